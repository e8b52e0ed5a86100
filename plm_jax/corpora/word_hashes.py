"""Hashes of words and of their n-grams, by which duplicates and overlaps are found.

Words are those of `plm_jax.unicode_words`. Case, punctuation and white space do not count, and
composed and decomposed characters are the same. In scripts without spaces between words (Chinese,
Japanese, Thai, Lao, Burmese, Khmer) a letter with its marks counts as a word, so no dictionary is
needed.
"""
import re
import unicodedata

import numpy as np

from plm_jax import unicode_words
from plm_jax.storage.digests import hash64

UNSPACED_LETTER = unicode_words.UNSPACED_LETTER
WORD = re.compile(unicode_words.word_pattern(divided=True))
MAX_CACHED_WORDS = 1 << 18
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, with irregular bits: 2^64 over the golden ratio


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


def mix_bits(numbers: np.ndarray) -> np.ndarray:
  """Spread each bit of 64-bit numbers over all bits, one to one.

  The finalizer of SplitMix64 (Steele et al. 2014).
  """
  numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return numbers ^ (numbers >> np.uint64(31))


class WordHashes(dict):
  """A cache of the hashes of words, which are computed on first use."""

  def __missing__(self, word: str) -> int:
    content = word.encode('utf-8', 'surrogatepass')
    number = self[word] = hash64(content)
    return number


_cached_hashes = WordHashes()
