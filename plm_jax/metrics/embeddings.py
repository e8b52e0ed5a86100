"""Metrics of sentence embeddings: retrieval (nDCG, MRR, recall), and whitening."""
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.metrics.nearest import Comparison, Vectors, count_vectors, find_nearest

RECALL_CUTOFFS = (1, 10)
RETRIEVAL_DEPTH = 100  # ranks that count
# Metrics of `retrieval_metrics`, the main one first.
RETRIEVAL_METRICS = ('ndcg_10', 'mrr', 'recall_1', 'recall_10')


def retrieval_metrics(
    queries: Vectors, corpus: Vectors, relevant: Sequence[Set[int]],
    own: Sequence[int] = (), similarity: Comparison = 'cosine') -> dict[str, float]:
  """Compute nDCG@10, MRR and recall of exact search, in percent.

  Args:
    queries: vectors [Q, D], an array or a csr_array, or token vectors of Q texts.
    corpus: vectors [N, D], of the same kind, or token vectors of N texts.
    relevant: indices of the relevant corpus vectors of each query, one or more.
    own: of each query, the index of the corpus vector that is left out of its ranking; -1: none.
    similarity: of the vectors.

  Returns:
    ndcg_10 (Järvelin and Kekäläinen 2002, gains 0 and 1), mrr (reciprocal rank of the first
    relevant vector), recall_1 and recall_10; means over the queries.

  Raises:
    ConfigError: there are no queries, or a query has nothing relevant.
  """
  count = count_vectors(queries)
  if not count or len(relevant) != count or not all(relevant):
    raise ConfigError(
        f'retrieval needs queries that each have relevant texts, got {count} queries and '
        f'{sum(1 for wanted in relevant if wanted)} with relevant texts')
  _, ranks = find_nearest(queries, corpus, RETRIEVAL_DEPTH + 1, similarity=similarity)
  return ranking_metrics(ranks, relevant, own)


def ranking_metrics(
    ranks: np.ndarray, relevant: Sequence[Set[int]], own: Sequence[int] = ()) -> dict[str, float]:
  """Compute the metrics of `retrieval_metrics` of given rankings, in percent.

  Args:
    ranks: indices of the vectors that were found, best first [Q, N]; RETRIEVAL_DEPTH count.
    relevant: relevant indices of each query.
    own: index that is left out of the ranking of each query; -1: none.
  """
  right = np.zeros(ranks.shape, bool)
  for place, (row, wanted) in enumerate(zip(ranks.tolist(), relevant, strict=True)):
    kept = [number in wanted for number in row if not own or number != own[place]]
    right[place, :len(kept)] = kept
  right = right[:, :RETRIEVAL_DEPTH]
  gains = 1 / np.log2(np.arange(2, 12))
  sizes = np.array([len(wanted) for wanted in relevant])
  ideal = np.cumsum(gains)[np.minimum(sizes, 10) - 1]
  values = {
      'ndcg_10': (right[:, :10] @ gains[:right.shape[1]]) / ideal,
      'mrr': np.where(right.any(1), 1 / (1 + right.argmax(1)), 0)}
  for cutoff in RECALL_CUTOFFS:
    values[f'recall_{cutoff}'] = right[:, :cutoff].sum(1) / sizes
  return {name: 100 * float(value.mean()) for name, value in values.items()}


class Whitening(NamedTuple):
  """A whitening transform: a linear map to vectors of mean 0 and equal variance per direction."""

  mean: np.ndarray
  """[D]"""
  matrix: np.ndarray
  """[D, K]"""

  def __call__(self, vectors: np.ndarray) -> np.ndarray:
    """Whiten vectors [N, D] -> [N, K] float32."""
    return ((np.asarray(vectors, np.float64) - self.mean) @ self.matrix).astype(np.float32)


def fit_whitening(vectors: np.ndarray, size: int = 0) -> Whitening:
  """Fit the whitening transform of vectors [N, D] (Su et al. 2021, algorithm 1).

  Args:
    vectors: [N, D].
    size: K, directions of largest variance to keep; 0: all with nonzero variance.

  Raises:
    ConfigError: `size` is larger than the number of directions with nonzero variance.
  """
  x = np.asarray(vectors, np.float64)
  mean = x.mean(0)
  _, values, directions = np.linalg.svd(x - mean, full_matrices=False)
  rank = int((values > values.max(initial=0) * 1e-6).sum())
  if size > rank or not rank:
    raise ConfigError(f'{len(x)} vectors have {rank} directions with nonzero variance, and {size} '
                      'are requested')
  kept = slice(size or rank)
  return Whitening(mean, directions[kept].T / values[kept] * np.sqrt(len(x)))


def normalize_vectors(vectors: np.ndarray) -> np.ndarray:
  """Scale vectors [..., D] to Euclidean norm 1, in float64."""
  x = np.asarray(vectors, np.float64)
  return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
