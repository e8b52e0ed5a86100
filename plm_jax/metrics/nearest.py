"""Exact nearest-neighbor search by cosine or another similarity, without an index."""
from typing import Literal

import numpy as np

from plm_jax.errors import ConfigError, check_finite

Similarity = Literal['cosine', 'dot', 'euclidean', 'manhattan']
"""similarities of vectors, as sentence-transformers names them; a distance counts negative"""
DISTANCES: dict[Similarity, Literal['euclidean', 'cityblock']] = {
    'euclidean': 'euclidean', 'manhattan': 'cityblock'}
BLOCK_VECTORS = 16384  # corpus vectors that are compared at once
BLOCK_SCORES = 1 << 22  # maximum scores of a block: about what a processor's cache holds


def find_nearest(
    queries: np.ndarray, corpus: np.ndarray, count: int = 10, normalised: bool = False,
    similarity: Similarity = 'cosine') -> tuple[np.ndarray, np.ndarray]:
  """Find the most similar corpus vectors (exact k-nearest-neighbor search).

  Args:
    queries: [Q, D].
    corpus: [N, D]; a memory-mapped file is read block by block.
    count: k, vectors to find per query; N if there are fewer.
    normalised: whether corpus vectors already have norm 1, for cosines.
    similarity: cosine, dot product, or negative distance.

  Returns:
    (similarities [Q, k] float32, corpus indices [Q, k] int64), the largest first; of equal ones
    the lower index first.

  Raises:
    ConfigError: widths differ, the corpus is empty, or count is below 1.
    NotFiniteError: a vector is not finite.
  """
  same_width = queries.ndim == 2 and corpus.ndim == 2 and queries.shape[1] == corpus.shape[1]
  if not same_width or not len(corpus) or count < 1:
    raise ConfigError(
        'search takes queries [Q, D] and a corpus [N, D] of one D, N and count 1 or more, got '
        f'{list(queries.shape)}, {list(corpus.shape)} and {count}')
  queries = queries.astype(np.float32)
  if similarity == 'cosine':
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
  count = min(count, len(corpus))
  rows = max(1, min(len(queries), BLOCK_SCORES // BLOCK_VECTORS))
  scores, numbers = [], []
  for start in range(0, len(queries), rows):
    some_scores, some_numbers = search_queries(
        queries[start:start + rows], corpus, count, normalised, similarity)
    scores.append(some_scores)
    numbers.append(some_numbers)
  if not scores:
    return np.zeros((0, count), np.float32), np.zeros((0, count), np.int64)
  return np.concatenate(scores), np.concatenate(numbers)


def search_queries(
    queries: np.ndarray, corpus: np.ndarray, count: int, normalised: bool, similarity: Similarity
) -> tuple[np.ndarray, np.ndarray]:
  """Find the nearest corpus vectors of a few queries, for cosines of norm 1; see `find_nearest`."""
  best = np.full((len(queries), count), -np.inf, np.float32)
  numbers = np.full((len(queries), count), -1, np.int64)
  for start in range(0, len(corpus), BLOCK_VECTORS):
    block = np.asarray(corpus[start:start + BLOCK_VECTORS], np.float32)
    if similarity in DISTANCES:
      from scipy.spatial import distance  # takes a while to import
      scores = -distance.cdist(queries, block, DISTANCES[similarity])
    else:
      scores = queries @ block.T
    if similarity == 'cosine' and not normalised:
      scores /= np.maximum(np.sqrt(np.einsum('nd,nd->n', block, block)), 1e-12)
    check_finite(scores, 'vectors of the queries or of the corpus')
    # Few blocks improve a query's result; one comparison finds the queries that they improve.
    for row in np.flatnonzero(scores.max(1) > best[:, -1]):
      places = np.flatnonzero(scores[row] > best[row, -1])
      if len(places) > count:
        places = places[top_positions(scores[row, places], count)]
      joined_scores = np.concatenate([best[row], scores[row, places]])
      joined_numbers = np.concatenate([numbers[row], start + places])
      order = np.lexsort((joined_numbers, -joined_scores))[:count]
      best[row], numbers[row] = joined_scores[order], joined_numbers[order]
  return best, numbers


def top_positions(scores: np.ndarray, count: int) -> np.ndarray:
  """Return the positions of the `count` largest scores [N] in any order, first of equal scores."""
  threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
  above, equal = np.flatnonzero(scores > threshold), np.flatnonzero(scores == threshold)
  return np.concatenate([above, equal[:count - len(above)]])


def compare_pairs(
    first: np.ndarray, second: np.ndarray, similarity: Similarity = 'cosine') -> np.ndarray:
  """Compute the similarity of vectors [N, D] with as many others -> float64 [N]."""
  a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
  if similarity == 'euclidean':
    return -np.linalg.norm(a - b, axis=-1)
  if similarity == 'manhattan':
    return -np.abs(a - b).sum(-1)
  products = (a * b).sum(-1)
  if similarity == 'dot':
    return products
  norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
  return products / np.maximum(norms, 1e-12)
