"""Word vectors in memory: cosine similarity, nearest neighbors and analogies."""
from collections.abc import Callable, Sequence
import dataclasses
import functools
import unicodedata

import numpy as np

from plm_jax.errors import UserError


class WordError(UserError):
  """A word that has no vector."""


@dataclasses.dataclass(frozen=True)
class WordVectors:
  """Vectors of words, most frequent first.

  Attributes:
    words: V words.
    matrix: vectors [V, D], float32.
    compose: computes the vector of any other word from its subwords (fastText); None: other words
      have no vector.
  """

  words: tuple[str, ...]
  matrix: np.ndarray
  compose: Callable[[str], np.ndarray] | None = None

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Rows of words."""
    return {word: number for number, word in enumerate(self.words)}

  @functools.cached_property
  def unit_matrix(self) -> np.ndarray:
    """Vectors [V, D] of length 1; a vector of length 0 stays as it is."""
    return self.matrix / np.maximum(np.linalg.norm(self.matrix, axis=1, keepdims=True), 1e-30)

  def find_row(self, word: str) -> int:
    """Return the row of a word, or of its NFC or NFD form; -1: it has none."""
    for form in (word, unicodedata.normalize('NFC', word), unicodedata.normalize('NFD', word)):
      if form in self.index:
        return self.index[form]
    return -1

  def __contains__(self, word: str) -> bool:
    return self.find_row(word) >= 0 or self.compose is not None

  def __len__(self) -> int:
    return len(self.words)

  def __getitem__(self, word: str) -> np.ndarray:
    """Return the vector [D] of a word. Raises WordError where it has none."""
    if (row := self.find_row(word)) >= 0:
      return self.matrix[row]
    if self.compose is None:
      raise WordError(f'{word!r} is none of the {len(self):,} words that have vectors')
    return self.compose(word)

  def unit_vector(self, word: str) -> np.ndarray:
    """Return the vector [D] of a word, scaled to length 1. Raises WordError where it has none."""
    vector = self[word]
    return vector / max(float(np.linalg.norm(vector)), 1e-30)

  def similarity(self, one: str, other: str) -> float:
    """Return the cosine similarity of two words. Raises WordError for a word without a vector."""
    return float(self.unit_vector(one) @ self.unit_vector(other))

  def nearest(
      self, positive: str | Sequence[str], negative: Sequence[str] = (),
      top: int = 10) -> list[tuple[str, float]]:
    """Find the nearest neighbors of the mean direction of words, as gensim's `most_similar` does.

    Args:
      positive: a word, or words that are added.
      negative: words that are subtracted.
      top: number of neighbors. The words asked about are excluded.

    Returns:
      (word, cosine similarity), nearest first.

    Raises:
      WordError: a word has no vector.
    """
    if isinstance(positive, str):
      positive = [positive]
    mean = np.zeros(self.matrix.shape[1], np.float32)
    for word in positive:
      mean = mean + self.unit_vector(word)
    for word in negative:
      mean = mean - self.unit_vector(word)
    scores = self.unit_matrix @ (mean / max(float(np.linalg.norm(mean)), 1e-30))
    return self.top_words(scores, list(positive) + list(negative), top)

  def analogy(
      self, a: str, b: str, c: str, how: str = 'add', top: int = 1) -> list[tuple[str, float]]:
    """Answer the analogy "a is to b as c is to ?".

    Args:
      a: a word.
      b: a word.
      c: a word; a, b and c are no answers.
      how: `add` (3CosAdd) is cos(x, b - a + c) of unit vectors (Mikolov et al. 2013); `mul`
        (3CosMul) is cos(x, b) cos(x, c) / (cos(x, a) + 0.001), with cosines mapped to 0 .. 1 (Levy
        and Goldberg 2014, "Linguistic regularities", equation 5).
      top: number of answers.

    Returns:
      (word, score), best first.

    Raises:
      WordError: a word has no vector.
    """
    if how == 'add':
      return self.nearest([b, c], [a], top)
    cosines = [self.unit_matrix @ self.unit_vector(word) for word in (a, b, c)]
    return self.top_words(three_cos_mul(*cosines), (a, b, c), top)

  def top_words(
      self, scores: np.ndarray, asked: Sequence[str], top: int) -> list[tuple[str, float]]:
    """Return the words with the highest scores [V], without the words `asked` about."""
    excluded = {self.find_row(word) for word in asked} - {-1}
    number = min(top + len(excluded), len(scores))
    rows = np.argpartition(-scores, number - 1)[:number]
    rows = rows[np.lexsort((rows, -scores[rows]))]
    kept = [row for row in rows if row not in excluded]
    return [(self.words[int(row)], float(scores[row])) for row in kept[:top]]


def three_cos_mul(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
  """Combine the cosines of all words with a, b and c by 3CosMul, which needs cosines from 0 on."""
  a, b, c = (1 + a) / 2, (1 + b) / 2, (1 + c) / 2
  return b * c / (a + 0.001)
