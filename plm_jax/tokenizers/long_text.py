"""Splitting of long texts and words for the tokenizer libraries, and a cache of the ids of words.

The libraries take about 130 bytes of memory for each byte that they encode at once, and the time to
learn tokens from a word grows with its length for every token. So long texts (megabyte lines,
base64, text without spaces) are encoded in parts, and runs of letters that are longer than any word
are left out of tokenizer training.

Most words of a text occurred before, and a lookup is far faster than encoding. `WordCache` is for
tokenizers that encode the words of a text independently of each other.
"""
import abc
import array
from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
import itertools
import re
import threading
from typing import Any, TypeVar

import numpy as np
import tokenizers

from plm_jax import unicode_words
from plm_jax.errors import name_field
from plm_jax.tokenizers.contract import Tokenizer, reject_surrogates

T = TypeVar('T')
MAX_PART = 1 << 16  # characters of a text that are encoded at once
MAX_BATCH = 1 << 20  # characters of all texts that are encoded at once, about
# Characters of a word, or of a run of punctuation or spaces, that tokens are learned from.
MAX_TRAINED_WORD = 1000
# Borders, where a word begins whatever comes before it: a text that is cut there has the ids of the
# whole. Before a space that follows something else; for byte-level BPE also before punctuation
# after a letter; where punctuation marks are words of their own, on both sides of one. No special
# token contains these marks.
SPACE_BORDERS = re.compile(r'(?<=\S)(?= \S)')
BYTE_BPE_BORDERS = re.compile(r'(?<=\S)(?= \S)|(?<=[^\W\d_])(?=[.,;:!?。，、；：！？])')
PUNCTUATION_BORDERS = re.compile(
    r'(?= )|(?=[.,;:!?。，、；：！？])|(?<=[.,;:!?。，、；：！？])')
LETTER, NON_CHINESE_LETTER = '[^\\W_]', '[^\\W_\u3400-\u4dbf\u4e00-\u9fff]'


def split_text(text: str, border: re.Pattern, whole: bool = False) -> list[str]:
  """Split a text into parts of at most MAX_PART characters, at the last border.

  The ids of the parts are those of the text, unless it has more than half of MAX_PART characters
  without a border. Such a run is cut where it is, and transformers, which encodes all of it at
  once, may have other ids there.

  Args:
    text: any text.
    border: matches the empty string where the text can be cut.
    whole: keep runs without a border in one part instead.

  Returns:
    The parts, at least one.
  """
  parts, start = [], 0
  while len(text) - start > MAX_PART:
    middle, end = start + MAX_PART // 2, start + MAX_PART
    cut = max((match.start() for match in border.finditer(text, middle, end)), default=0)
    if not cut and whole:
      later = border.search(text, end)
      cut = later.start() if later else len(text)
    parts.append(text[start:cut or end])
    start = cut or end
  if start < len(text) or not parts:
    parts.append(text[start:])
  return parts


def encode_in_parts(
    run: Callable[[list[str]], list[tokenizers.Encoding]], texts: Sequence[str], border: re.Pattern,
    whole: bool = False, places: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Encode texts [N] in parts (`split_text`).

  Args:
    run: the library's function that encodes a batch.
    texts: any texts.
    border: where a text can be cut.
    whole: keep runs without a border in one part.
    places: whether to compute offsets.

  Returns:
    Flat ids [T] uint32, ids per text [N], and the character offset of each id in its text [T],
    empty without `places`.
  """
  ids, offsets = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
  lengths = np.zeros(len(texts), np.int64)
  for batch in batch_parts(texts, border, whole):
    encodings = run([part for _, _, part in batch])
    for (number, start, _), encoding in zip(batch, encodings, strict=True):
      ids.append(np.array(encoding.ids, np.uint32))
      lengths[number] += len(ids[-1])
      if places:
        offsets.append(np.array([offset for offset, _ in encoding.offsets], np.int64) + start)
  return np.concatenate(ids), lengths, np.concatenate(offsets)


def batch_parts(
    texts: Sequence[str], border: re.Pattern, whole: bool) -> Iterator[list[tuple[int, int, str]]]:
  """Yield batches of (number of the text, start of the part, part), of about MAX_BATCH."""
  def list_parts() -> Iterator[tuple[int, int, str]]:
    for number, text in enumerate(texts):
      start = 0
      for part in split_text(text, border, whole):
        yield number, start, part
        start += len(part)

  return group_by_size(list_parts(), lambda part: len(part[2]), MAX_BATCH)


def group_by_size(items: Iterable[T], measure: Callable[[T], int], limit: int
                  ) -> Iterator[list[T]]:
  """Yield lists of items in order, each with a total size of `limit` or a little more."""
  group, size = [], 0
  for item in items:
    group.append(item)
    size += measure(item)
    if size >= limit:
      yield group
      group, size = [], 0
  if group:
    yield group


def drop_overlong_words(texts: Iterable[str], letters: str = LETTER) -> Iterator[str]:
  """Yield texts without runs that are longer than a word can be.

  In scripts without spaces, line breaks divide such a run instead.

  Args:
    texts: texts to train a tokenizer on.
    letters: a regular-expression character class of the letters of words.
  """
  limit = f'{{{MAX_TRAINED_WORD + 1},}}'
  overlong = re.compile(rf'{letters}{limit}|[^\w\s]{limit}|\s{limit}')

  def shorten(match: re.Match) -> str:
    run = match[0]
    if not unicode_words.UNSPACED_LETTER.match(run):
      return ' '
    starts = range(0, len(run), MAX_TRAINED_WORD)
    return '\n'.join(run[start:start + MAX_TRAINED_WORD] for start in starts)

  for text in texts:
    if len(text) > MAX_TRAINED_WORD:
      text = overlong.sub(shorten, text)
    yield text


def no_words_message() -> str:
  """Return the message for a text without words to learn tokens from."""
  return (f'the text is empty, or has no word of {MAX_TRAINED_WORD:,} letters or fewer, as of DNA '
          f'or base64: {name_field("kind")}=sentencepiece-unigram learns from longer ones')


MAX_BYTES = 1 << 27  # about; beyond it the cache is emptied


class LibraryTokenizer(Tokenizer):
  """Base class of tokenizers that the `tokenizers` library runs, which split long texts."""

  _plain: tokenizers.Tokenizer
  """the library's tokenizer, which takes names of special tokens as text"""
  _border: re.Pattern = PUNCTUATION_BORDERS
  """where a long text can be cut"""
  _whole = False
  """whether a run without a border stays in one part"""

  @property
  @abc.abstractmethod
  def _with_specials(self) -> tokenizers.Tokenizer:
    """The library's tokenizer, which finds special tokens by their names."""

  @property
  @abc.abstractmethod
  def _arguments(self) -> tuple[Any, ...]:
    """Arguments of the constructor: worker processes build the library's tokenizers again."""

  @reject_surrogates
  def encode(self, text: str, specials: bool = False) -> list[int]:
    library = self._with_specials if specials else self._plain
    ids = []
    for part in split_text(text, self._border, self._whole):
      ids += library.encode(part, add_special_tokens=False).ids
    return ids

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    run = functools.partial(self._plain.encode_batch_fast, add_special_tokens=False)
    return encode_in_parts(run, texts, self._border, self._whole)[:2]

  @reject_surrogates
  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode like `encode_flat`, with the character offset of each id in its text [T]."""
    run = functools.partial(self._plain.encode_batch, add_special_tokens=False)
    return encode_in_parts(run, texts, self._border, self._whole, places=True)

  def _encode_words(self, words: list[str]) -> list[list[int]]:
    """Encode words for a `WordCache`."""
    encodings = self._plain.encode_batch_fast(words, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]

  def _split_long(self, text: str, words: list[str]) -> list[str]:
    """Split the words of a long text that are too long."""
    if len(text) <= MAX_PART:
      return words
    parts = (split_text(word, self._border) for word in words)
    return list(itertools.chain.from_iterable(parts))

  def __reduce__(self):
    return type(self), self._arguments


class WordCache:
  """Cache of the token ids of words.

  They are concatenated in one array: one dictionary lookup per word, one gather per text. A lock
  makes it safe to share between threads. A thread takes the lock once per call, which costs nothing
  measurable next to the lookups.
  """

  def __init__(self, encode: Callable[[list[str]], list[list[int]]], split: re.Pattern):
    """Create an empty cache.

    Args:
      encode: encodes words.
      split: finds the parts of a printable ASCII word that are encoded on their own. This halves
        the work: 'word', 'word,' and '(word' are three words, but of few parts.
    """
    self._encode = encode
    self._part_pattern = split
    self._lock = threading.Lock()
    self.clear()

  def __getstate__(self) -> dict[str, Any]:
    """Return what a copy in another process needs: neither the lock nor the words."""
    return {'encode': self._encode, 'split': self._part_pattern}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__init__(**state)

  def clear(self) -> None:
    """Remove all words. The caller holds the lock, except before the cache is shared."""
    self.bytes = 0
    self._rows: dict[str, int] = {}
    self._parts: dict[str, Sequence[int]] = {}
    self._ids = array.array('I')
    self._starts = array.array('q', [0])  # row r is ids[starts[r]:starts[r + 1]]

  def lookup(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return flat ids [T] uint32 of words [W], and the number of ids per word [W]."""
    with self._lock:
      rows = self._find_rows(words)
      starts = np.frombuffer(self._starts, np.int64)
      sizes = starts[rows + 1] - starts[rows]
      ends = np.cumsum(sizes)
      where = np.arange(sizes.sum()) + np.repeat(starts[rows] - (ends - sizes), sizes)
      # The arrays cannot grow while numpy views them: no view outlives the lock.
      ids = np.frombuffer(self._ids, np.uint32)[where]
      del starts
    return ids, sizes

  def lookup_texts(self, lines: Sequence[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of texts [N], given as their words: ids [T] uint32, ids per text [N]."""
    ids, sizes = self.lookup(list(itertools.chain.from_iterable(lines)))
    word_ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
    ends = np.concatenate([[0], np.cumsum(sizes)])[word_ends]
    return ids, np.diff(ends, prepend=0)

  def _find_rows(self, words: list[str]) -> np.ndarray:
    """Return the rows of words [W]; words that are not cached are added."""
    rows = np.fromiter(map(self._rows.get, words, itertools.repeat(-1)), np.int64, len(words))
    misses = np.flatnonzero(rows < 0).tolist()
    if not misses:
      return rows
    if self.bytes > MAX_BYTES:
      self.clear()
      return self._find_rows(words)
    try:
      self._add_words(list(dict.fromkeys(words[i] for i in misses)))
    except BaseException:  # also Ctrl-C: half of a word would shift the ids of all later ones
      self.clear()
      raise
    rows[misses] = [self._rows[words[i]] for i in misses]
    return rows

  def _add_words(self, words: list[str]) -> None:
    word_parts: list[list[str]] = []
    unknown: dict[str, None] = {}
    for word in words:
      splits = word.isascii() and word.isprintable()
      parts = self._part_pattern.findall(word) if splits else [word]
      word_parts.append(parts)
      unknown.update((part, None) for part in parts if part not in self._parts)
    for batch in group_by_size(unknown, len, MAX_BATCH):
      self._parts.update(zip(batch, map(compact_ids, self._encode(batch)), strict=True))
    for word, parts in zip(words, word_parts, strict=True):
      for part in parts:
        self._ids.extend(self._parts[part])
      self._rows[word] = len(self._rows)
      self._starts.append(len(self._ids))
    characters = sum(map(len, words)) + sum(map(len, unknown))
    self.bytes += characters + 160 * (len(words) + len(unknown))


def compact_ids(ids: list[int]) -> Sequence[int]:
  """Return ids in a compact form: four bytes per id where there are many."""
  return tuple(ids) if len(ids) < 100 else array.array('I', ids)
