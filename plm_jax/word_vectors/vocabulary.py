"""Vocabulary with word counts, subsampling of frequent words, noise distribution, Huffman tree."""
from collections.abc import Iterable, Mapping
import dataclasses
import functools
from typing import Literal

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import UserError, name_field

Subsampling = Literal['released', 'paper']


class VocabularyError(UserError):
  """Text without enough words to learn from."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Words by decreasing frequency; equally frequent words are in the order of their code points.

  That is GloVe's order. word2vec.c, fastText and gensim do not define the order of equally frequent
  words.
  """

  words: tuple[str, ...]
  counts: np.ndarray  # int64 [V]

  @classmethod
  def from_counts(cls, counted: Mapping[str, int], least: int, most: int = 0) -> 'Vocabulary':
    """Build a vocabulary from word counts.

    Args:
      counted: word -> count.
      least: minimum count of a word.
      most: maximum vocabulary size, of the most frequent words; 0: no limit.

    Raises:
      VocabularyError: fewer than two words are left, so there is nothing to learn.
    """
    frequent = [word for word, count in counted.items() if count >= least]
    frequent.sort(key=lambda word: (-counted[word], word))
    if most:
      frequent = frequent[:most]
    if not counted:
      raise VocabularyError('the corpus is empty: there are no words in it')
    if len(frequent) < 2:
      raise VocabularyError(
          f'of {len(counted):,} different words, {len(frequent)} occur {least} times or more '
          f'({name_field("data.least")}): word vectors need at least two')
    return cls(tuple(frequent), np.array([counted[word] for word in frequent], np.int64))

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Ids of words."""
    return {word: number for number, word in enumerate(self.words)}

  @property
  def total(self) -> int:
    """Number of words in the text that are in the vocabulary."""
    return int(self.counts.sum())

  def __len__(self) -> int:
    return len(self.words)

  def to_text(self) -> str:
    """Return lines `word count`, as word2vec's -save-vocab and GloVe's vocab_count write them."""
    return ''.join(
        f'{word} {count}\n' for word, count in zip(self.words, self.counts, strict=True))


def read_vocabulary(path: epath.PathLike) -> Vocabulary:
  """Read lines `word count`. Raises VocabularyError that names the line."""
  words, counts = [], []
  lines = storage.read_text(path, error=VocabularyError).split('\n')[:-1]
  for number, line in enumerate(lines, 1):
    word, _, count = line.rpartition(' ')
    if not word or not count.isascii() or not count.isdecimal():
      raise VocabularyError(f'{path}:{number}: expected a word and its count, got {line[:60]!r}')
    words.append(word)
    counts.append(int(count))
  return Vocabulary(tuple(words), np.array(counts, np.int64))


def keep_probability(
    counts: np.ndarray, threshold: float, form: Subsampling = 'released') -> np.ndarray:
  """Return the probability [V] that subsampling keeps an occurrence of a word.

  With f a word's share of the text and t the threshold, `released` is sqrt(t / f) + t / f, as in
  word2vec.c and fastText's dictionary.cc, and `paper` is sqrt(t / f) (Mikolov et al. 2013, section
  2.3, which states the complement).

  Args:
    counts: of words [V].
    threshold: share of the text above which occurrences are dropped; 0 keeps all.
    form: which formula.
  """
  if not threshold:
    return np.ones(len(counts))
  ratio = threshold * counts.sum() / np.maximum(counts, 1)
  probability = np.sqrt(ratio)
  if form == 'released':
    probability += ratio
  return np.minimum(1.0, probability)


def noise_distribution(counts: np.ndarray, power: float = 0.75) -> np.ndarray:
  """Return the distribution [V] of negative samples, counts ** power (Mikolov et al. 2013)."""
  weights = counts.astype(np.float64) ** power
  return weights / weights.sum()


def sample_ids(
    cumulated: np.ndarray, random: np.random.Generator, shape: Iterable[int]) -> np.ndarray:
  """Sample word ids, int32, from a distribution given by its cumulative sum [V]."""
  points = random.random(tuple(shape)) * cumulated[-1]
  return np.searchsorted(cumulated, points, 'right').astype(np.int32)


@dataclasses.dataclass(frozen=True)
class HuffmanPaths:
  """Paths from the root of a hierarchical softmax to each word.

  A word is predicted by a path of binary decisions (Morin and Bengio 2005), a frequent one by a
  short path (Mikolov et al. 2013, section 2.1). Inner nodes have word2vec.c's numbers, with the
  root last.
  """

  nodes: np.ndarray  # int32 [V, P], 0 after the end of a path
  codes: np.ndarray  # int8 [V, P]: 0 or 1, the branch that is taken; -1 after the end


def huffman_paths(counts: np.ndarray) -> HuffmanPaths:
  """Build the Huffman tree of counts [V], which decrease, by word2vec.c's CreateBinaryTree.

  It takes the smaller head of two queues, the words from the rarest on and the inner nodes; of
  equal ones the node.
  """
  size = len(counts)
  weight = list(map(int, counts)) + [1 << 62] * (size - 1)
  parent, code = np.zeros(2 * size - 1, np.int64), np.zeros(2 * size - 1, np.int8)
  word, node = size - 1, size
  for made in range(size, 2 * size - 1):
    pair = []
    for _ in range(2):
      if word >= 0 and weight[word] < weight[node]:
        pair.append(word)
        word -= 1
      else:
        pair.append(node)
        node += 1
    weight[made] = weight[pair[0]] + weight[pair[1]]
    parent[pair], code[pair[1]] = made, 1
  depth = np.zeros(2 * size - 1, np.int64)
  for at in range(2 * size - 3, -1, -1):
    depth[at] = depth[parent[at]] + 1
  longest = int(depth[:size].max())
  nodes = np.zeros((size, longest), np.int32)
  codes = np.full((size, longest), -1, np.int8)
  at = np.arange(size)
  for place in range(longest, 0, -1):  # towards the root, all words of this depth or deeper at once
    here = depth[at] == place
    codes[here, place - 1] = code[at[here]]
    nodes[here, place - 1] = parent[at[here]] - size
    at = np.where(here, parent[at], at)
  return HuffmanPaths(nodes, codes)
