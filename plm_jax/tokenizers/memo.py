"""Ids of words met before: text is mostly the same words again, and to look one up is far faster than to encode it.

Good for tokenizers that encode the words of a text independently of each other.
"""
import array
from collections.abc import Callable, Iterator, Sequence
import itertools
import re

import numpy as np

from plm_jax.tokenizers.parts import TOGETHER


class Memo:
  """Ids of words, back to back in one array: a text takes one dictionary look-up a word and one gather."""

  def __init__(self, encode: Callable[[list[str]], list[list[int]]], split: re.Pattern):
    """`encode` gives the ids of words; `split` finds the parts of a printable ASCII word that are encoded on their own.

    The second halves the work: 'word', 'word,' and '(word' are three words, but of few parts.
    """
    self._encode = encode
    self._split = split
    self.clear()

  def clear(self) -> None:
    """Forgets all words."""
    self.bytes = 0
    self._rows: dict[str, int] = {}
    self._parts: dict[str, Sequence[int]] = {}
    self._ids = array.array('I')
    self._starts = array.array('q', [0])  # row r is ids[starts[r]:starts[r + 1]]

  def gather(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of words [W] in a row [T] uint32, and how many each has [W]."""
    rows = self._find(words)
    starts = np.frombuffer(self._starts, np.int64)
    sizes = starts[rows + 1] - starts[rows]
    ends = np.cumsum(sizes)
    where = np.arange(sizes.sum()) + np.repeat(starts[rows] - (ends - sizes), sizes)
    return np.frombuffer(self._ids, np.uint32)[where], sizes

  def gather_lines(self, lines: Sequence[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of texts [N], given as their words, in a row [T] uint32, and how many each text has [N]."""
    ids, sizes = self.gather(list(itertools.chain.from_iterable(lines)))
    ends = np.concatenate([[0], np.cumsum(sizes)])[np.cumsum([len(line) for line in lines], dtype=np.int64)]
    return ids, np.diff(ends, prepend=0)

  def _find(self, words: list[str]) -> np.ndarray:
    rows = np.fromiter(map(self._rows.get, words, itertools.repeat(-1)), np.int64, len(words))
    misses = np.flatnonzero(rows < 0).tolist()
    if not misses:
      return rows
    if self.bytes > LIMIT:
      self.clear()
      return self._find(words)
    self._learn(list(dict.fromkeys(words[i] for i in misses)))
    rows[misses] = [self._rows[words[i]] for i in misses]
    return rows

  def _learn(self, words: list[str]) -> None:
    parts = [self._split.findall(word) if word.isascii() and word.isprintable() else [word] for word in words]
    unknown = list(dict.fromkeys(part for some in parts for part in some if part not in self._parts))
    for some in together(unknown):
      self._parts.update(zip(some, map(compact, self._encode(some)), strict=True))
    for word, some in zip(words, parts, strict=True):
      for part in some:
        self._ids.extend(self._parts[part])
      self._rows[word] = len(self._rows)
      self._starts.append(len(self._ids))
    self.bytes += sum(map(len, words)) + sum(map(len, unknown)) + 160 * (len(words) + len(unknown))


def together(words: list[str]) -> Iterator[list[str]]:
  """Yields words in lists of so many that to encode one takes little memory."""
  start, size = 0, 0
  for end, word in enumerate(words):
    if size + len(word) > TOGETHER and end > start:
      yield words[start:end]
      start, size = end, 0
    size += len(word)
  yield words[start:]


def compact(ids: list[int]) -> Sequence[int]:
  """Returns ids in a form to keep: four bytes an id where there are many."""
  return tuple(ids) if len(ids) < 100 else array.array('I', ids)


def lists(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
  """Splits ids in a row [T], of which each of N texts has lengths[n], into those of each text."""
  return [some.tolist() for some in np.split(ids, np.cumsum(lengths)[:-1])] if len(lengths) else []


LIMIT = 1 << 27  # bytes, about; beyond, everything is forgotten and learnt anew
