"""Words of a text and their n-grams as numbers: what duplicates and overlaps are found by.

Case, punctuation and white space are nothing here. Of scripts that write no spaces between words (Chinese, Japanese,
Thai, Lao, Burmese, Khmer) a character counts as a word, so that nothing has to be told about a text, or known of it.
"""
import hashlib
import re

import numpy as np

UNSPACED = ('\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
            '\U00020000-\U0003ffff')
CHARACTER = re.compile(f'[{UNSPACED}]')
WORD = re.compile(rf'[{UNSPACED}]|[^\W_{UNSPACED}]+')
KNOWN = 1 << 18  # words whose numbers are remembered
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, its bits without a pattern: 2^64 over the golden ratio


def split(text: str) -> list[str]:
  """Splits a text into words, in lower case, without punctuation.

  >>> split("It's 3.5 km; 他走了。")
  ['it', 's', '3', '5', 'km', '他', '走', '了']
  """
  return WORD.findall(text.lower())


def count(text: str) -> int:
  """Counts the words between spaces, and of scripts without spaces the characters."""
  return len(split(text)) if CHARACTER.search(text) else len(text.split())


def hashes(words: list[str]) -> np.ndarray:
  """Returns a number [W] for each word, uint64, the same wherever and whenever it is asked for."""
  if len(_numbers) > KNOWN:
    _numbers.clear()
  return np.fromiter(map(_numbers.__getitem__, words), np.uint64, len(words))


def grams(numbers: np.ndarray, n: int) -> np.ndarray:
  """Returns a number [W - n + 1] for every n words in a row; of fewer than n words one for all of them together."""
  places = max(len(numbers) - n + 1, 1)
  found = np.zeros(places, np.uint64)
  for place in range(min(n, len(numbers))):
    found = found * FACTOR + numbers[place:place + places]
  return mixed(found)


def mixed(numbers: np.ndarray) -> np.ndarray:
  """Spreads every bit of 64-bit numbers over all of them, one to one: the finalizer of SplitMix64 (Steele et al.
  2014)."""
  numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return numbers ^ (numbers >> np.uint64(31))


class Numbers(dict):
  """Words, and their numbers as they are asked for."""

  def __missing__(self, word: str) -> int:
    number = int.from_bytes(hashlib.blake2b(word.encode('utf-8', 'surrogatepass'), digest_size=8).digest(), 'little')
    self[word] = number
    return number


_numbers = Numbers()
