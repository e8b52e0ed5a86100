"""Parts of words, hashed (Bojanowski et al. 2017): vectors of words that no text had."""
from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from plm_jax.checked import Checked, Named, within

OFFSET, PRIME, MASK = 2166136261, 16777619, 0xFFFFFFFF
END = '</s>'  # of a line in fastText's files: a word without parts


@dataclasses.dataclass(frozen=True)
class Subwords(Checked):
  """Which character n-grams of a word have vectors."""

  limits = within(buckets='[0, 1073741824]')

  shortest: int = 3
  """characters of an n-gram, the ends of the word that are marked by < and > included"""
  longest: int = 6
  """characters of an n-gram; 0: words have no parts"""
  buckets: int = 2_000_000
  """rows that n-grams are hashed into; 0: words have no parts"""

  def conflict(self, option: Named) -> str | None:
    """Says where the lengths leave nothing."""
    if self and not 1 <= self.shortest <= self.longest:
      return f'{option("shortest")} is from 1 to {option("longest")}, got {self.shortest} and {self.longest}'
    return None

  def __bool__(self) -> bool:
    return bool(self.longest and self.buckets)

  def rows(self, word: str, words: int) -> list[int]:
    """Returns the rows of a word's n-grams, behind those of `words` words."""
    return [words + code % self.buckets for _, code in hashed(word, self.shortest, self.longest)] if self else []


def hashed(word: str, shortest: int = 3, longest: int = 6) -> Iterator[tuple[str, int]]:
  """Yields (n-gram, its hash) of <word>, in order of beginning, then length.

  The hash is FNV-1a of 32 bits over UTF-8, whose bytes from 128 on are taken for negative numbers, as fastText's
  dictionary.cc does (Dictionary::hash, computeSubwords); < and > alone are none.

  >>> [ngram for ngram, code in hashed('the')]
  ['<th', '<the', '<the>', 'the', 'the>', 'he>']
  """
  if word == END:
    return
  marked = f'<{word}>'
  parts = [character.encode(errors='surrogateescape') for character in marked]
  for start in range(len(parts)):
    code = OFFSET
    for stop in range(start + 1, min(start + longest, len(parts)) + 1):
      code = hashed_on(code, parts[stop - 1])
      length = stop - start
      if length >= shortest and not (length == 1 and (start == 0 or stop == len(parts))):
        yield marked[start:stop], code


def hashed_on(code: int, content: bytes) -> int:
  """Returns the hash of what `code` is that of, with more bytes behind it."""
  for byte in content:
    code = ((code ^ (byte | 0xFFFFFF00 if byte >= 128 else byte)) * PRIME) & MASK
  return code


def code_of(word: str) -> int:
  """Returns the hash of a word, without marks of its ends."""
  return hashed_on(OFFSET, word.encode(errors='surrogateescape'))


@dataclasses.dataclass(frozen=True)
class Bags:
  """Rows of each word of a vocabulary, its own first: rows[starts[i] : starts[i + 1]]."""

  rows: np.ndarray  # int32
  starts: np.ndarray  # int64 [V + 1]

  @classmethod
  def of(cls, words: Sequence[str], subwords: Subwords) -> 'Bags':
    """Finds the rows of the parts of all words."""
    found = [[number, *subwords.rows(word, len(words))] for number, word in enumerate(words)]
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return cls(np.fromiter((row for rows in found for row in rows), np.int32, int(starts[-1])), starts)

  def take(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of words [N], one word behind the other -> (rows [R], places of their words in ids [R])."""
    lengths = self.starts[ids + 1] - self.starts[ids]
    owner = np.repeat(np.arange(len(ids)), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return self.rows[self.starts[ids][owner] + within], owner.astype(np.int32)
