"""Rules of MassiveText by which documents are no prose, or repeat themselves (Rae et al. 2021, appendix A.1.1 and
table A1; as Penedo et al. 2023 read them).

What they say of the length of words and of stop words is not asked of text that is written without spaces. There
`words` counts characters, and for runs of n words 2 n are taken: with n, two of five articles of the Chinese Wikipedia
would be left out as repetitions.
"""
from collections.abc import Sequence

import numpy as np

from plm_jax.corpora import words


def breaks(paragraphs: Sequence[str], stop_words: int = 2) -> str:
  """Returns the rule that a document breaks, '' where it breaks none.

  stop_words: English ones that it has at least, each counted once.
  """
  text = '\n'.join(paragraphs)
  spaced = text.split()
  unspaced = len(words.CHARACTER.findall(text))
  number = len(spaced) + unspaced
  if not MIN_WORDS <= number <= MAX_WORDS:
    return 'number of words'
  if (text.count('#') + text.count('...') + text.count('…')) / number > 0.1:
    return 'symbols'
  bullets = sum(line.lstrip().startswith(BULLETS) for line in paragraphs)
  if bullets > 0.9 * len(paragraphs):
    return 'bullets'
  if sum(line.rstrip().endswith(('...', '…')) for line in paragraphs) > 0.3 * len(paragraphs):
    return 'ellipses'
  if unspaced > len(spaced):
    return ''
  if not 3 <= sum(map(len, spaced)) / len(spaced) <= 10:
    return 'length of words'
  if sum(any(map(str.isalpha, word)) for word in spaced) < 0.8 * len(spaced):
    return 'words without letters'
  if stop_words and len(STOP_WORDS.intersection(words.split(text))) < stop_words:
    return 'stop words'
  return ''


def repeats(paragraphs: Sequence[str]) -> str:
  """Returns the rule on repetition that a document breaks, '' where it breaks none."""
  lengths = list(map(len, paragraphs))
  seen, repeated, characters = set(), 0, 0
  for line, length in zip(paragraphs, lengths, strict=True):
    if line in seen:
      repeated, characters = repeated + 1, characters + length
    seen.add(line)
  if repeated > 0.3 * len(paragraphs) or characters > 0.2 * sum(lengths):
    return 'repeated lines'
  found = words.split('\n'.join(paragraphs))
  numbers, sizes = words.hashes(found), np.fromiter(map(len, found), np.int64, len(found))
  wide = 2 if sum(map(bool, map(words.CHARACTER.match, found))) > len(found) / 2 else 1
  for n, share in TOP.items():
    if len(numbers) >= wide * n and top_share(numbers, sizes, wide * n) > share:
      return f'one {n}-gram'
  for n, share in DUPLICATE.items():
    if len(numbers) >= wide * n and duplicate_share(numbers, sizes, wide * n) > share:
      return f'repeated {n}-grams'
  return ''


def top_share(numbers: np.ndarray, sizes: np.ndarray, n: int) -> float:
  """Returns the share of characters, out of words of `sizes` [W], that is in the most frequent n-gram, if it comes
  more than once."""
  _, first, counts = np.unique(words.grams(numbers, n), return_index=True, return_counts=True)
  most = counts == counts.max()
  if counts.max() == 1:
    return 0.0
  return max(sizes[place:place + n].sum() for place in first[most]) * counts.max() / sizes.sum()


def duplicate_share(numbers: np.ndarray, sizes: np.ndarray, n: int) -> float:
  """Returns the share of characters that is in n-grams which come more than once, none counted twice."""
  _, inverse, counts = np.unique(words.grams(numbers, n), return_inverse=True, return_counts=True)
  inside = np.zeros(len(numbers) + 1, np.int64)
  repeated = np.flatnonzero(counts[inverse] > 1)
  np.add.at(inside, repeated, 1)
  np.add.at(inside, repeated + n, -1)
  return sizes[np.cumsum(inside)[:-1] > 0].sum() / sizes.sum()


MIN_WORDS, MAX_WORDS = 50, 100_000
BULLETS = '•', '‣', '▪', '●', '-', '*', '·'
STOP_WORDS = frozenset(['the', 'be', 'to', 'of', 'and', 'that', 'have', 'with'])
TOP = {2: 0.2, 3: 0.18, 4: 0.16}  # n -> share of characters in the most frequent n-gram, at most
DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}  # n -> share in all n-grams that are repeated
