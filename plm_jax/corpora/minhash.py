"""MinHash and locality-sensitive hashing: which documents have most of their n-grams in common (Broder 1997; Leskovec,
Rajaraman and Ullman, "Mining of massive datasets", section 3.4; for text to train on, Lee et al. 2022).

A document is the set of its n-grams of words. Of two documents a value of the signatures agrees with the probability
that is the Jaccard similarity of their sets. Documents of which `rows` values in a row, a band, agree are candidates;
they are near-duplicates where the signatures as wholes agree in the share that is asked for. For that comparison, 8
bits of each value are kept (b-bit minwise hashing, Li and König 2010).
"""
import dataclasses
import functools
import math

import numpy as np

from plm_jax.corpora import words
from plm_jax.corpora.words import FACTOR, mixed

AT_ONCE = 1 << 18  # values that are computed at once: they fit into a core's cache
SURE = 0.99  # with which probability documents that are just similar enough meet in a band


@dataclasses.dataclass(frozen=True)
class MinHash:
  """How documents are compared."""

  similarity: float = 0.8
  """Jaccard similarity from which on documents are near-duplicates"""
  values: int = 256
  """of a signature"""
  ngram: int = 5
  """words of an n-gram"""

  @functools.cached_property
  def rows(self) -> int:
    """Counts the values of a band: as many as let documents of just the `similarity` meet with probability SURE."""
    meets = lambda rows: 1 - (1 - self.similarity ** rows) ** (self.values // rows)
    return max((rows for rows in range(1, self.values + 1) if meets(rows) >= SURE), default=1)

  @property
  def bands(self) -> int:
    """Counts the bands of a signature."""
    return self.values // self.rows

  @property
  def agreeing(self) -> float:
    """Returns the share of agreeing values from which on two signatures are of near-duplicates: two standard errors
    below the similarity."""
    return self.similarity - 2 * math.sqrt(self.similarity * (1 - self.similarity) / self.values)

  def signature(self, numbers: np.ndarray) -> np.ndarray:
    """Returns the least values [values], uint32, of the n-grams of words, given as numbers [W], under as many hash
    functions."""
    grams = (words.grams(numbers, self.ngram) >> np.uint64(32)).astype(np.uint32)
    factors, offsets = functions(self.values)
    least = np.full(self.values, np.iinfo(np.uint32).max, np.uint32)
    step = max(AT_ONCE // self.values, 1)
    for start in range(0, len(grams), step):
      hashed = grams[start:start + step, None] * factors
      hashed += offsets
      np.minimum(least, hashed.min(0), out=least)
    return least

  def bands_of(self, signature: np.ndarray) -> np.ndarray:
    """Returns a number [..., bands], uint64, for each band of signatures [..., values]: documents with the same one are
    candidates."""
    rows = signature[..., :self.bands * self.rows].reshape(*signature.shape[:-1], self.bands, self.rows)
    found = np.arange(1, self.bands + 1, dtype=np.uint64)  # a band meets none but its like
    for row in range(self.rows):
      found = found * FACTOR + rows[..., row]
    return mixed(found)

  def sketch(self, signature: np.ndarray) -> np.ndarray:
    """Returns 8 bits [..., values], uint8, of each value of signatures."""
    return (signature * np.uint32(FACTOR >> np.uint64(32)) >> np.uint32(24)).astype(np.uint8)

  def similar(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Tells [...] whether two sketches [..., values] are of near-duplicates."""
    agreeing = np.count_nonzero(one == other, -1) / self.values
    return (agreeing - 1 / 256) / (1 - 1 / 256) >= self.agreeing  # of different values, one in 256 has the same 8 bits


@functools.cache
def functions(number: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the factors, odd, and the offsets of hash functions modulo 2^32, uint32 [number] each."""
  drawn = mixed(np.arange(1, 2 * number + 1, dtype=np.uint64) * FACTOR)
  drawn = (drawn >> np.uint64(32)).astype(np.uint32)
  return drawn[:number] | np.uint32(1), drawn[number:]
