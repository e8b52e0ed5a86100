"""Words and how often they come, and what follows from that: which are left out, which are drawn as noise."""
from collections.abc import Iterable, Mapping
import dataclasses
import functools
from typing import Literal

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import Expected

Subsampling = Literal['released', 'paper']


class VocabularyError(Expected):
  """Text without enough words to learn from."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Words by falling frequency, those of one frequency in the order of their code points.

  That is GloVe's order; word2vec.c, fastText and gensim leave open which of equals comes first.
  """

  words: tuple[str, ...]
  counts: np.ndarray  # int64 [V]

  @classmethod
  def of(cls, counted: Mapping[str, int], least: int, most: int = 0) -> 'Vocabulary':
    """Keeps the words that come `least` times or more, the `most` frequent (0: all). Raises VocabularyError where fewer
    than two are left: there is nothing to tell a word from."""
    found = sorted((word for word, count in counted.items() if count >= least), key=lambda word: (-counted[word], word))
    found = found[:most or None]
    if not counted:
      raise VocabularyError('the corpus is empty: there are no words in it')
    if len(found) < 2:
      raise VocabularyError(
          f'of {len(counted):,} different words {len(found)} come {least} times or more (--data.least): word vectors '
          'need two at the least')
    return cls(tuple(found), np.array([counted[word] for word in found], np.int64))

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Maps words to their ids."""
    return {word: number for number, word in enumerate(self.words)}

  @property
  def total(self) -> int:
    """Counts the words of the text that are in the vocabulary."""
    return int(self.counts.sum())

  def __len__(self) -> int:
    return len(self.words)

  def text(self) -> str:
    """Writes a line `word count` for each word, as word2vec's -save-vocab and GloVe's vocab_count do."""
    return ''.join(f'{word} {count}\n' for word, count in zip(self.words, self.counts, strict=True))


def read(path: epath.PathLike) -> Vocabulary:
  """Reads lines `word count`. Raises VocabularyError that names the line."""
  words, counts = [], []
  for number, line in enumerate(storage.read_text(path, error=VocabularyError).split('\n')[:-1], 1):
    word, _, count = line.rpartition(' ')
    if not word or not count.isdecimal():
      raise VocabularyError(f'{path}:{number}: expected a word and its count, got {line[:60]!r}')
    words.append(word)
    counts.append(int(count))
  return Vocabulary(tuple(words), np.array(counts, np.int64))


def keep_probability(counts: np.ndarray, threshold: float, form: Subsampling = 'released') -> np.ndarray:
  """Returns the probability [V] that an occurrence of a word is kept; threshold 0 keeps all.

  With f a word's share of the text, `released` is sqrt(t / f) + t / f, as word2vec.c and fastText's dictionary.cc have
  it, and `paper` sqrt(t / f) (Mikolov et al. 2013, section 2.3, which writes the complement).
  """
  if not threshold:
    return np.ones(len(counts))
  ratio = threshold * counts.sum() / np.maximum(counts, 1)
  return np.minimum(1.0, np.sqrt(ratio) + (ratio if form == 'released' else 0))


def noise(counts: np.ndarray, power: float = 0.75) -> np.ndarray:
  """Returns the distribution [V] that negative samples are drawn from, unigram to a power (Mikolov et al. 2013)."""
  weights = counts.astype(np.float64) ** power
  return weights / weights.sum()


def draw(cumulated: np.ndarray, random: np.random.Generator, shape: Iterable[int]) -> np.ndarray:
  """Draws ids from a distribution given by its running sum [V] -> int32."""
  return np.searchsorted(cumulated, random.random(tuple(shape)) * cumulated[-1], 'right').astype(np.int32)
