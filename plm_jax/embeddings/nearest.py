"""Exact search: of each query the nearest vectors, by cosine, without an index."""
import numpy as np

from plm_jax.errors import ConfigError

BLOCK = 16384  # vectors of the corpus that are compared at once
SCORES = 1 << 22  # numbers that a block's scores have, at most: what a processor's cache nearly holds


def nearest(queries: np.ndarray, corpus: np.ndarray, count: int = 10, normalised: bool = False
            ) -> tuple[np.ndarray, np.ndarray]:
  """Finds the vectors of a corpus with the largest cosines.

  Args:
    queries: [Q, D]
    corpus: [N, D]; a file that is mapped into memory is read block by block
    count: k, how many to find for each query; of fewer there are N
    normalised: those of the corpus have the length 1

  Returns:
    (cosines [Q, k] float32, numbers [Q, k] int64), the largest first, of equal ones the lower number first.

  Raises:
    ConfigError: sides of different widths, or nothing to find.
  """
  if queries.ndim != 2 or corpus.ndim != 2 or queries.shape[1] != corpus.shape[1] or not len(corpus) or count < 1:
    raise ConfigError(f'search takes queries [Q, D] and a corpus [N, D] of one D, N and count 1 or more, got '
                      f'{list(queries.shape)}, {list(corpus.shape)} and {count}')
  queries = queries.astype(np.float32)
  queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
  count = min(count, len(corpus))
  rows = max(1, min(len(queries), SCORES // BLOCK))
  parts = [some(queries[start:start + rows], corpus, count, normalised) for start in range(0, len(queries), rows)]
  if not parts:
    return np.zeros((0, count), np.float32), np.zeros((0, count), np.int64)
  return np.concatenate([scores for scores, _ in parts]), np.concatenate([numbers for _, numbers in parts])


def some(queries: np.ndarray, corpus: np.ndarray, count: int, normalised: bool) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest of a few queries of length 1."""
  best = np.full((len(queries), count), -np.inf, np.float32)
  numbers = np.full((len(queries), count), -1, np.int64)
  for start in range(0, len(corpus), BLOCK):
    block = np.asarray(corpus[start:start + BLOCK], np.float32)
    scores = queries @ block.T
    if not normalised:
      scores /= np.maximum(np.sqrt(np.einsum('nd,nd->n', block, block)), 1e-12)
    # Few blocks have anything that is better than what was found: one comparison tells.
    for row in np.flatnonzero(scores.max(1) > best[:, -1]):
      places = np.flatnonzero(scores[row] > best[row, -1])
      if len(places) > count:
        places = places[largest(scores[row, places], count)]
      joined = np.concatenate([best[row], scores[row, places]]), np.concatenate([numbers[row], start + places])
      order = np.lexsort((joined[1], -joined[0]))[:count]
      best[row], numbers[row] = joined[0][order], joined[1][order]
  return best, numbers


def largest(scores: np.ndarray, count: int) -> np.ndarray:
  """Returns the places of the `count` largest scores [N], of equal ones the first, in any order."""
  least = np.partition(scores, len(scores) - count)[len(scores) - count]
  above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
  return np.concatenate([above, equal[:count - len(above)]])
