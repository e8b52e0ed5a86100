"""How good sentence vectors are: whether what belongs together is found, and how they lie in their space."""
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from plm_jax.embeddings.nearest import nearest
from plm_jax.errors import ConfigError

CUTS = (1, 10)  # ranks up to which recall is counted


def retrieval(queries: np.ndarray, corpus: np.ndarray, relevant: Sequence[Set[int]], depth: int = 100
              ) -> dict[str, float]:
  """Measures exact search by cosine, in percent.

  Args:
    queries: vectors [Q, D]
    corpus: vectors [N, D]
    relevant: of each query the numbers of what is right to find, one or more
    depth: ranks that are looked at; nothing behind counts

  Returns:
    ndcg_10 (Järvelin and Kekäläinen 2002, gains 0 and 1), mrr (one over the rank of the first right one), recall_1 and
    recall_10 (share of the right ones up to that rank), means over the queries.

  Raises:
    ConfigError: no queries, or one to which nothing is right.
  """
  if not len(queries) or len(relevant) != len(queries) or not all(relevant):
    raise ConfigError(f'retrieval is measured by queries that each have something to find, got {len(queries)} queries '
                      f'and {sum(map(bool, relevant))} with something to find')
  ranks = nearest(queries, corpus, min(depth, len(corpus)))[1]
  right = np.array([[number in of for number in row] for row, of in zip(ranks.tolist(), relevant, strict=True)])
  gains = 1 / np.log2(np.arange(2, 12))
  sizes = np.array([len(of) for of in relevant])
  ideal = np.cumsum(gains)[np.minimum(sizes, 10) - 1]
  first = np.where(right.any(1), 1 / (1 + right.argmax(1)), 0)
  found = {'ndcg_10': (right[:, :10] @ gains[:right.shape[1]]) / ideal, 'mrr': first} | {
      f'recall_{cut}': right[:, :cut].sum(1) / sizes for cut in CUTS}
  return {name: 100 * float(values.mean()) for name, values in found.items()}


def mean_cosine(vectors: np.ndarray) -> float:
  """Computes the mean cosine of any two of the vectors [N, D], N > 1: near 0 where they point everywhere, near 1 where
  they lie in a narrow cone (Ethayarajh 2019, section 4.1)."""
  x = unit(vectors)
  total = np.square(x.sum(0)).sum()
  return float((total - len(x)) / (len(x) * (len(x) - 1)))


def spectrum(vectors: np.ndarray) -> np.ndarray:
  """Computes what share of the variance each direction has, the largest first [D] (Li et al. 2020)."""
  x = np.asarray(vectors, np.float64)
  values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
  return np.pad(values, (0, x.shape[1] - len(values))) / max(values.sum(), 1e-300)


class Whitening(NamedTuple):
  """A linear map after which vectors have the mean 0 and no direction more variance than another."""

  mean: np.ndarray
  """[D]"""
  matrix: np.ndarray
  """[D, K]"""

  def __call__(self, vectors: np.ndarray) -> np.ndarray:
    """Maps vectors [N, D] -> [N, K] float32."""
    return ((np.asarray(vectors, np.float64) - self.mean) @ self.matrix).astype(np.float32)


def whitening(vectors: np.ndarray, size: int = 0) -> Whitening:
  """Finds the whitening of vectors [N, D] (Su et al. 2021, algorithm 1).

  size: K, directions of largest variance that are kept; 0: all that have some. Raises ConfigError for more than there
  are.
  """
  x = np.asarray(vectors, np.float64)
  mean = x.mean(0)
  _, values, directions = np.linalg.svd(x - mean, full_matrices=False)
  there = int((values > values.max(initial=0) * 1e-6).sum())
  if size > there or not there:
    raise ConfigError(f'{len(x)} vectors have {there} directions of some variance, and {size} are to be kept')
  kept = slice(size or there)
  return Whitening(mean, directions[kept].T / values[kept] * np.sqrt(len(x)))


def unit(vectors: np.ndarray) -> np.ndarray:
  """Scales vectors [..., D] to the length 1, in float64."""
  x = np.asarray(vectors, np.float64)
  return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
