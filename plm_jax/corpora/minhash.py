"""MinHash with locality-sensitive hashing: documents that have most of their n-grams in common.

Broder 1997; Leskovec, Rajaraman and Ullman, "Mining of massive datasets", section 3.4; for training
data Lee et al. 2022.

A document is the set of its word n-grams. A value of the signatures of two documents agrees with a
probability that is the Jaccard similarity of their sets. Documents whose signatures agree in all
values of a band are candidates; they are near-duplicates where the whole signatures agree in a
large enough share. For that comparison, 8 bits of each value are kept (b-bit minwise hashing, Li
and König 2010).
"""
import dataclasses
import functools
import math

import numpy as np

from plm_jax.corpora import word_hashes
from plm_jax.corpora.word_hashes import HASH_FACTOR, mix_bits

VALUES_AT_ONCE = 1 << 18  # values that are computed at once: they fit into a core's cache
# Probability that documents with exactly the minimum similarity share a band.
BAND_PROBABILITY = 0.99


@dataclasses.dataclass(frozen=True)
class MinHash:
  """Parameters of the comparison of documents."""

  similarity: float = 0.8
  """Jaccard similarity from which on documents are near-duplicates."""
  values: int = 256
  """Number of values of a signature."""
  ngram: int = 5
  """Number of words of an n-gram."""

  @functools.cached_property
  def rows(self) -> int:
    """Values per band: the most with which `similarity` leads to BAND_PROBABILITY."""
    best = 1
    for rows in range(1, self.values + 1):
      probability = 1 - (1 - self.similarity ** rows) ** (self.values // rows)
      if probability >= BAND_PROBABILITY:
        best = rows
    return best

  @property
  def bands(self) -> int:
    """Number of bands of a signature."""
    return self.values // self.rows

  @property
  def min_agreement(self) -> float:
    """Share of agreeing values from which on documents are near-duplicates.

    Two standard errors below the similarity.
    """
    return self.similarity - 2 * math.sqrt(self.similarity * (1 - self.similarity) / self.values)

  def signature(self, numbers: np.ndarray) -> np.ndarray:
    """Compute the signature [values], uint32: the least n-gram hash under each hash function.

    Args:
      numbers: hashes of the document's words [W].
    """
    ngrams = word_hashes.ngram_hashes(numbers, self.ngram)
    ngrams = (ngrams >> np.uint64(32)).astype(np.uint32)
    factors, offsets = hash_functions(self.values)
    least = np.full(self.values, np.iinfo(np.uint32).max, np.uint32)
    step = max(VALUES_AT_ONCE // self.values, 1)
    for start in range(0, len(ngrams), step):
      hashed = ngrams[start:start + step, None] * factors
      hashed += offsets
      np.minimum(least, hashed.min(0), out=least)
    return least

  def band_hashes(self, signature: np.ndarray) -> np.ndarray:
    """Return a hash [..., bands], uint64, for each band of signatures [..., values].

    Documents with an equal one are candidates.
    """
    shape = signature.shape[:-1] + (self.bands, self.rows)
    rows = signature[..., :self.bands * self.rows].reshape(shape)
    # Different numbers to begin with: a band is only equal to the same band of another document.
    hashes = np.arange(1, self.bands + 1, dtype=np.uint64)
    for row in range(self.rows):
      hashes = hashes * HASH_FACTOR + rows[..., row]
    return mix_bits(hashes)

  def sketch(self, signature: np.ndarray) -> np.ndarray:
    """Return 8 bits [..., values], uint8, of each value of signatures."""
    return (signature * np.uint32(HASH_FACTOR >> np.uint64(32)) >> np.uint32(24)).astype(np.uint8)

  def are_similar(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return [...] whether two sketches [..., values] are of near-duplicates."""
    agreement = np.count_nonzero(one == other, -1) / self.values
    # Of different values, one in 256 has the same 8 bits.
    return (agreement - 1 / 256) / (1 - 1 / 256) >= self.min_agreement


@functools.cache
def hash_functions(number: int) -> tuple[np.ndarray, np.ndarray]:
  """Return odd factors and offsets of hash functions modulo 2^32, uint32 [number] each."""
  random = mix_bits(np.arange(1, 2 * number + 1, dtype=np.uint64) * HASH_FACTOR)
  random = (random >> np.uint64(32)).astype(np.uint32)
  return random[:number] | np.uint32(1), random[number:]
