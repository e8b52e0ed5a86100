"""Quality and repetition filters of Gopher's MassiveText.

Rae et al. 2021, appendix A.1.1 and table A1, as Penedo et al. 2023 read them. The rules on word
length and stop words are not applied to text without spaces between words. There `word_hashes`
counts characters, and n-grams have 2 n of them: with n, two of five articles of the Chinese
Wikipedia would be dropped as repetitions.
"""
from collections.abc import Sequence
import unicodedata

import numpy as np

from plm_jax import unicode_words
from plm_jax.corpora import word_hashes

MIN_WORDS, MAX_WORDS = 50, 100_000
BULLETS = '•', '‣', '▪', '●', '-', '*', '·'
STOP_WORDS = frozenset(['the', 'be', 'to', 'of', 'and', 'that', 'have', 'with'])
# n -> largest share of characters in the most frequent n-gram.
MAX_TOP_SHARE = {2: 0.2, 3: 0.18, 4: 0.16}
# n -> largest share of characters in all repeated n-grams.
MAX_DUPLICATE_SHARE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}


def broken_quality_rule(paragraphs: Sequence[str], stop_words: int = 2) -> str:
  """Return the name of the quality rule that a document breaks, '' where it breaks none.

  Args:
    paragraphs: the document.
    stop_words: minimum number of different English stop words.
  """
  text = unicodedata.normalize('NFC', '\n'.join(paragraphs))
  spaced = text.split()
  unspaced = len(word_hashes.UNSPACED_LETTER.findall(text))
  number = len(spaced) + unspaced
  if not MIN_WORDS <= number <= MAX_WORDS:
    return 'number of words'
  if (text.count('#') + text.count('...') + text.count('…')) / number > 0.1:
    return 'symbols'
  bullets = [line for line in paragraphs if line.lstrip().startswith(BULLETS)]
  if len(bullets) > 0.9 * len(paragraphs):
    return 'bullets'
  ellipses = [line for line in paragraphs if line.rstrip().endswith(('...', '…'))]
  if len(ellipses) > 0.3 * len(paragraphs):
    return 'ellipses'
  if unspaced > len(spaced):
    return ''
  characters, marks = sum(map(len, spaced)), len(unicode_words.MARKS.findall(text))
  # Marks, such as those of Hebrew, Hindi or Tamil, do not make a word too long.
  if characters < 3 * len(spaced) or characters - marks > 10 * len(spaced):
    return 'length of words'
  with_letters = [word for word in spaced if any(map(str.isalpha, word))]
  if len(with_letters) < 0.8 * len(spaced):
    return 'words without letters'
  if stop_words:
    found = STOP_WORDS.intersection(word_hashes.split_words(text))
    if len(found) < stop_words:
      return 'stop words'
  return ''


def broken_repetition_rule(paragraphs: Sequence[str]) -> str:
  """Return the name of the repetition rule that a document breaks, '' where it breaks none."""
  seen, repeated, repeated_characters, characters = set(), 0, 0, 0
  for line in paragraphs:
    characters += len(line)
    if line in seen:
      repeated += 1
      repeated_characters += len(line)
    seen.add(line)
  if repeated > 0.3 * len(paragraphs) or repeated_characters > 0.2 * characters:
    return 'repeated lines'
  words = word_hashes.split_words('\n'.join(paragraphs))
  numbers = word_hashes.hash_words(words)
  sizes = np.fromiter(map(len, words), np.int64, len(words))
  unspaced = [word for word in words if word_hashes.UNSPACED_LETTER.match(word)]
  factor = 2 if len(unspaced) > len(words) / 2 else 1
  for n, share in MAX_TOP_SHARE.items():
    length = factor * n
    if len(numbers) >= length and top_ngram_share(numbers, sizes, length) > share:
      return f'one {n}-gram'
  for n, share in MAX_DUPLICATE_SHARE.items():
    length = factor * n
    if len(numbers) >= length and duplicate_ngram_share(numbers, sizes, length) > share:
      return f'repeated {n}-grams'
  return ''


def top_ngram_share(numbers: np.ndarray, sizes: np.ndarray, n: int) -> float:
  """Return the share of characters that is in the most frequent n-gram, 0 if none is repeated.

  Args:
    numbers: hashes of words [W].
    sizes: lengths of words in characters [W].
    n: words of an n-gram.
  """
  ngrams = word_hashes.ngram_hashes(numbers, n)
  _, first, counts = np.unique(ngrams, return_index=True, return_counts=True)
  most = counts.max()
  if most == 1:
    return 0.0
  longest = max(sizes[place:place + n].sum() for place in first[counts == most])
  return longest * most / sizes.sum()


def duplicate_ngram_share(numbers: np.ndarray, sizes: np.ndarray, n: int) -> float:
  """Return the share of characters that is in repeated n-grams, none counted twice.

  Args: as of `top_ngram_share`.
  """
  ngrams = word_hashes.ngram_hashes(numbers, n)
  _, inverse, counts = np.unique(ngrams, return_inverse=True, return_counts=True)
  inside = np.zeros(len(numbers) + 1, np.int64)
  repeated = np.flatnonzero(counts[inverse] > 1)
  np.add.at(inside, repeated, 1)
  np.add.at(inside, repeated + n, -1)
  return sizes[np.cumsum(inside)[:-1] > 0].sum() / sizes.sum()
