"""A cache of the token ids of words.

Most words of a text occurred before, and a lookup is far faster than encoding. For tokenizers that
encode the words of a text independently of each other.
"""
import array
from collections.abc import Callable, Iterator, Sequence
import itertools
import re
import threading
from typing import Any

import numpy as np

from plm_jax.tokenizers.long_text import MAX_BATCH

MAX_BYTES = 1 << 27  # about; beyond it the cache is emptied


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
    for batch in split_batches(list(unknown)):
      self._parts.update(zip(batch, map(compact_ids, self._encode(batch)), strict=True))
    for word, parts in zip(words, word_parts, strict=True):
      for part in parts:
        self._ids.extend(self._parts[part])
      self._rows[word] = len(self._rows)
      self._starts.append(len(self._ids))
    characters = sum(map(len, words)) + sum(map(len, unknown))
    self.bytes += characters + 160 * (len(words) + len(unknown))


def split_batches(words: list[str]) -> Iterator[list[str]]:
  """Split words into lists that are encoded at once in little memory."""
  start, size = 0, 0
  for end, word in enumerate(words):
    if size + len(word) > MAX_BATCH and end > start:
      yield words[start:end]
      start, size = end, 0
    size += len(word)
  yield words[start:]


def compact_ids(ids: list[int]) -> Sequence[int]:
  """Return ids in a compact form: four bytes per id where there are many."""
  return tuple(ids) if len(ids) < 100 else array.array('I', ids)


def split_by_length(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
  """Split flat ids [T] into the ids of N texts, lengths[n] for text n."""
  if not len(lengths):
    return []
  return [text_ids.tolist() for text_ids in np.split(ids, np.cumsum(lengths)[:-1])]
