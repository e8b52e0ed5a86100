"""Subwords (Bojanowski et al. 2017): hashed character n-grams, for unseen words."""
from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from plm_jax.validation import FieldNamer, ValidatedConfig, intervals
from plm_jax.word_vectors.vectors import WordVectors

FNV_OFFSET, FNV_PRIME, UINT32_MASK = 2166136261, 16777619, 0xFFFFFFFF
END_OF_LINE = '</s>'  # in fastText's files: a word without n-grams


@dataclasses.dataclass(frozen=True)
class Subwords(ValidatedConfig):
  """Which character n-grams of a word have vectors."""

  limits = intervals(buckets='[0, 1073741824]')

  shortest: int = 3
  """Minimum length of an n-gram in characters, including the markers < and > at the ends of a
  word."""
  longest: int = 6
  """Maximum length of an n-gram in characters; 0: words have no n-grams."""
  buckets: int = 2_000_000
  """Number of table rows that n-grams are hashed into; 0: words have no n-grams."""

  def conflict(self, option: FieldNamer) -> str | None:
    """Return the message for lengths that leave no n-grams."""
    if self and not 1 <= self.shortest <= self.longest:
      return (f'{option("shortest")} is from 1 to {option("longest")}, got {self.shortest} and '
              f'{self.longest}')
    return None

  def __bool__(self) -> bool:
    return bool(self.longest and self.buckets)

  def ngram_rows(self, word: str, words: int) -> list[int]:
    """Return the table rows of a word's n-grams, which follow the rows of `words` words."""
    if not self:
      return []
    hashes = ngram_hashes(word, self.shortest, self.longest)
    return [words + code % self.buckets for _, code in hashes]


def ngram_hashes(word: str, shortest: int = 3, longest: int = 6) -> Iterator[tuple[str, int]]:
  """Yield (n-gram, its hash) of <word>, ordered by start, then length.

  The hash is 32-bit FNV-1a over UTF-8 bytes, with bytes from 128 on taken as negative numbers, as
  in fastText's dictionary.cc (Dictionary::hash, computeSubwords). < and > alone are no n-grams.

  >>> [ngram for ngram, code in ngram_hashes('the')]
  ['<th', '<the', '<the>', 'the', 'the>', 'he>']
  """
  if word == END_OF_LINE:
    return
  marked = f'<{word}>'
  characters = [character.encode(errors='surrogateescape') for character in marked]
  for start in range(len(characters)):
    code = FNV_OFFSET
    for stop in range(start + 1, min(start + longest, len(characters)) + 1):
      code = extend_hash(code, characters[stop - 1])
      length = stop - start
      marker_alone = length == 1 and (start == 0 or stop == len(characters))
      if length >= shortest and not marker_alone:
        yield marked[start:stop], code


def extend_hash(code: int, content: bytes) -> int:
  """Return the FNV-1a hash of a byte string that continues after bytes with the hash `code`."""
  for byte in content:
    if byte >= 128:
      byte |= 0xFFFFFF00  # signed
    code = ((code ^ byte) * FNV_PRIME) & UINT32_MASK
  return code


@dataclasses.dataclass(frozen=True)
class SubwordRows:
  """Table rows of each word of a vocabulary, its own first: rows[starts[i] : starts[i + 1]]."""

  rows: np.ndarray  # int32
  starts: np.ndarray  # int64 [V + 1]

  @classmethod
  def build(cls, words: Sequence[str], subwords: Subwords) -> 'SubwordRows':
    """Compute the rows of all words and their n-grams."""
    rows, starts = [], [0]
    for number, word in enumerate(words):
      rows.append(number)
      rows += subwords.ngram_rows(word, len(words))
      starts.append(len(rows))
    return cls(np.array(rows, np.int32), np.array(starts, np.int64))

  def select(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated rows [R] of words [N], and each row's position in `ids` [R]."""
    lengths = self.starts[ids + 1] - self.starts[ids]
    owner = np.repeat(np.arange(len(ids)), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return self.rows[self.starts[ids][owner] + within], owner.astype(np.int32)


def compose_vectors(
    words: Sequence[str], table: np.ndarray, subwords: Subwords, bags: SubwordRows) -> WordVectors:
  """Compute vectors of words from a table with subwords (fasttext.cc's getWordVector).

  The vector of a word is the mean of its rows, that of an unseen word the mean of its n-grams'
  rows, and zeros where it has none.
  """
  matrix = np.zeros((len(words), table.shape[1]), np.float32)
  for first in range(0, len(words), 4096):  # a word has dozens of rows
    starts = bags.starts[first:first + 4097]
    rows = table[bags.rows[starts[0]:starts[-1]]]
    matrix[first:first + 4096] = np.add.reduceat(rows, starts[:-1] - starts[0], 0)
  matrix /= np.diff(bags.starts)[:, None].astype(np.float32)

  def compose(word: str) -> np.ndarray:
    rows = subwords.ngram_rows(word, len(words))
    return table[rows].mean(0) if rows else np.zeros(table.shape[1], np.float32)

  if not subwords:
    return WordVectors(tuple(words), matrix)
  return WordVectors(tuple(words), matrix, compose)
