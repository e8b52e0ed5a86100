"""Words and their vectors: who is near whom, and what is to what as what."""
from collections.abc import Callable, Sequence
import dataclasses
import functools

import numpy as np

from plm_jax.errors import Expected


class WordError(Expected):
  """A word that has no vector."""


@dataclasses.dataclass(frozen=True)
class WordVectors:
  """Vectors [V, D], float32, of words, most frequent first. compose: makes the vector of any other word, where the
  model has parts of words (fastText); None: other words have none."""

  words: tuple[str, ...]
  matrix: np.ndarray
  compose: Callable[[str], np.ndarray] | None = None

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Maps words to their rows."""
    return {word: number for number, word in enumerate(self.words)}

  @functools.cached_property
  def unit(self) -> np.ndarray:
    """Returns the vectors at length 1; that of length 0 stays."""
    return self.matrix / np.maximum(np.linalg.norm(self.matrix, axis=1, keepdims=True), 1e-30)

  def __contains__(self, word: str) -> bool:
    return word in self.index or self.compose is not None

  def __len__(self) -> int:
    return len(self.words)

  def __getitem__(self, word: str) -> np.ndarray:
    """Returns the vector [D] of a word. Raises WordError where it has none."""
    if word in self.index:
      return self.matrix[self.index[word]]
    if self.compose is None:
      raise WordError(f'{word!r} is none of the {len(self):,} words that have vectors')
    return self.compose(word)

  def direction(self, word: str) -> np.ndarray:
    """Returns the vector of a word at length 1."""
    vector = self[word]
    return vector / max(float(np.linalg.norm(vector)), 1e-30)

  def similarity(self, one: str, other: str) -> float:
    """Returns the cosine of two words. Raises WordError."""
    return float(self.direction(one) @ self.direction(other))

  def nearest(
      self, positive: str | Sequence[str], negative: Sequence[str] = (), top: int = 10) -> list[tuple[str, float]]:
    """Finds the words nearest to the mean direction of some, away from others; those that are asked about are none of
    them. Returns (word, cosine), nearest first, as gensim's `most_similar` does."""
    positive = [positive] if isinstance(positive, str) else positive
    mean = sum((self.direction(word) for word in positive), np.zeros(self.matrix.shape[1], np.float32))
    for word in negative:
      mean = mean - self.direction(word)
    scores = self.unit @ (mean / max(float(np.linalg.norm(mean)), 1e-30))
    return self.best(scores, [*positive, *negative], top)

  def analogy(self, a: str, b: str, c: str, how: str = 'add', top: int = 1) -> list[tuple[str, float]]:
    """Answers: a is to b as c is to what? Returns (word, score), best first; a, b and c are no answers.

    how: `add` is cos(x, b - a + c) of unit vectors (Mikolov et al. 2013), `mul` cos(x, b) cos(x, c) / (cos(x, a) +
    0.001), with cosines brought to 0 .. 1 (Levy and Goldberg 2014, "Linguistic regularities", equation 5).
    """
    if how == 'add':
      return self.nearest([b, c], [a], top)
    scores = multiplied(*(self.unit @ self.direction(word) for word in (a, b, c)))
    return self.best(scores, (a, b, c), top)

  def best(self, scores: np.ndarray, asked: Sequence[str], top: int) -> list[tuple[str, float]]:
    """Finds the words of the highest scores [V] that were not asked about."""
    excluded = {self.index[word] for word in asked if word in self.index}
    number = min(top + len(excluded), len(scores))
    found = np.argpartition(-scores, number - 1)[:number]
    found = found[np.lexsort((found, -scores[found]))]
    return [(self.words[int(row)], float(scores[row])) for row in found if row not in excluded][:top]


def multiplied(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
  """Combines the cosines of all words with a, b and c by 3CosMul, which asks for none below 0."""
  a, b, c = ((1 + cosine) / 2 for cosine in (a, b, c))
  return b * c / (a + 0.001)
