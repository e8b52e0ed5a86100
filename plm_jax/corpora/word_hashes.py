"""Hashes of words and of their n-grams, by which duplicates and overlaps are found.

Words are those of `plm_jax.unicode_words`. Case, punctuation and white space do not count, and
composed and decomposed characters are the same. In scripts without spaces between words (Chinese,
Japanese, Thai, Lao, Burmese, Khmer) a letter with its marks counts as a word, so no dictionary is
needed.

`MinHash` with locality-sensitive hashing finds documents that have most of their n-grams in common
(Broder 1997; Leskovec, Rajaraman and Ullman, "Mining of massive datasets", section 3.4; for
training data Lee et al. 2022). A document is the set of its word n-grams. A value of the signatures
of two documents agrees with a probability that is the Jaccard similarity of their sets. Documents
whose signatures agree in all values of a band are candidates; they are near-duplicates where the
whole signatures agree in a large enough share. For that comparison, 8 bits of each value are kept
(b-bit minwise hashing, Li and König 2010).
"""
import dataclasses
import functools
import math
import re
import unicodedata

import numpy as np

from plm_jax import unicode_words
from plm_jax.storage.digests import HASH_FACTOR, hash64, mix_bits

UNSPACED_LETTER = unicode_words.UNSPACED_LETTER
WORD = re.compile(unicode_words.word_pattern(divided=True))
MAX_CACHED_WORDS = 1 << 18


def split_words(text: str) -> list[str]:
  """Split a text into words, in lower case, without punctuation.

  >>> split_words("It's 3.5 km; 他走了。मेरी बेटी")
  ['it', 's', '3', '5', 'km', '他', '走', '了', 'मेरी', 'बेटी']
  """
  return WORD.findall(unicodedata.normalize('NFC', text.lower()))


def count_words(text: str) -> int:
  """Count the words between spaces, and in scripts without spaces the characters."""
  if UNSPACED_LETTER.search(text):
    return len(split_words(text))
  return len(text.split())


def hash_words(words: list[str]) -> np.ndarray:
  """Return a hash for each word, uint64 [W], which is the same on all machines."""
  if len(_cached_hashes) > MAX_CACHED_WORDS:
    _cached_hashes.clear()
  return np.fromiter(map(_cached_hashes.__getitem__, words), np.uint64, len(words))


def ngram_hashes(numbers: np.ndarray, n: int) -> np.ndarray:
  """Return a hash for each n-gram, uint64 [W - n + 1], from the hashes of words [W].

  Fewer than n words have one hash for all of them together.
  """
  places = max(len(numbers) - n + 1, 1)
  hashes = np.zeros(places, np.uint64)
  for place in range(min(n, len(numbers))):
    hashes = hashes * HASH_FACTOR + numbers[place:place + places]
  return mix_bits(hashes)


class WordHashes(dict):
  """A cache of the hashes of words, which are computed on first use."""

  def __missing__(self, word: str) -> int:
    content = word.encode('utf-8', 'surrogatepass')
    number = self[word] = hash64(content)
    return number


_cached_hashes = WordHashes()


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
    ngrams = ngram_hashes(numbers, self.ngram)
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
