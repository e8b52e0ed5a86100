"""Splitting of long texts and words for the tokenizer libraries.

For megabyte lines, base64 and text without spaces. The libraries take about 130 bytes of memory for
each byte that they encode at once, and the time to learn tokens from a word grows with its length
for every token. So long texts are encoded in parts, and runs of letters that are longer than any
word are left out of tokenizer training.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import re

import numpy as np
import tokenizers

from plm_jax import unicode_words
from plm_jax.errors import name_field

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
  batch, size = [], 0
  for number, text in enumerate(texts):
    start = 0
    for part in split_text(text, border, whole):
      batch.append((number, start, part))
      start, size = start + len(part), size + len(part)
      if size > MAX_BATCH:
        yield batch
        batch, size = [], 0
  if batch:
    yield batch


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
