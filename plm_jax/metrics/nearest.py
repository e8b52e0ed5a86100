"""Exact nearest-neighbor search by cosine or another similarity.

Dense vectors are compared one by one. Sparse vectors, rows of a csr_array of scipy, are found by an
inverted index. With late interaction, a text is an array of token vectors [tokens, D], and MaxSim
compares them.
"""
from collections.abc import Iterator, Sequence
import itertools
from typing import Any, Literal

import numpy as np

from plm_jax.errors import ConfigError, check_finite

Similarity = Literal['cosine', 'dot', 'euclidean', 'manhattan']
"""similarities of vectors, as sentence-transformers names them; a distance counts negative"""
Comparison = Similarity | Literal['maxsim']
"""those, and the sum of the largest products of a query's tokens with a document's (ColBERT)"""
Vectors = Any
"""vectors [N, D], an array or a csr_array of scipy; or the token vectors [tokens, D] of N texts"""
DISTANCES: dict[Similarity, Literal['euclidean', 'cityblock']] = {
    'euclidean': 'euclidean', 'manhattan': 'cityblock'}
BLOCK_VECTORS = 16384  # corpus vectors that are compared at once
BLOCK_SCORES = 1 << 22  # maximum scores of a block: about what a processor's cache holds


def find_nearest(
    queries: Vectors, corpus: Vectors, count: int = 10, normalised: bool = False,
    similarity: Comparison = 'cosine') -> tuple[np.ndarray, np.ndarray]:
  """Find the most similar corpus vectors (exact k-nearest-neighbor search).

  Args:
    queries: [Q, D], an array or a csr_array; for maxsim Q arrays [tokens, D].
    corpus: [N, D], of the same kind; a memory-mapped file is read block by block. For maxsim N
      arrays [tokens, D].
    count: k, vectors to find per query; N if there are fewer.
    normalised: whether corpus vectors already have norm 1, for cosines.
    similarity: cosine, dot product, negative distance, or maxsim.

  Returns:
    (similarities [Q, k] float32, corpus indices [Q, k] int64), the largest first; of equal ones
    the lower index first.

  Raises:
    ConfigError: widths differ, the corpus is empty, or count is below 1.
    NotFiniteError: a vector is not finite.
  """
  if similarity == 'maxsim':
    return search_token_vectors(queries, corpus, count)
  same_width = queries.ndim == 2 and corpus.ndim == 2 and queries.shape[1] == corpus.shape[1]
  if not same_width or not corpus.shape[0] or count < 1:
    raise ConfigError(
        'search takes queries [Q, D] and a corpus [N, D] of one D, N and count 1 or more, got '
        f'{list(queries.shape)}, {list(corpus.shape)} and {count}')
  asked = queries.astype(np.float32)
  if is_sparse(corpus):
    return search_index(asked, corpus, count, similarity)
  if similarity == 'cosine':
    asked = asked / np.maximum(np.linalg.norm(asked, axis=1, keepdims=True), 1e-12)
  count = min(count, len(corpus))
  rows = max(1, min(len(asked), BLOCK_SCORES // BLOCK_VECTORS))
  scores, numbers = [], []
  for start in range(0, len(asked), rows):
    some_scores, some_numbers = search_queries(
        asked[start:start + rows], corpus, count, normalised, similarity)
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
      keep_best(best[row], numbers[row], scores[row], start)
  return best, numbers


def search_index(
    queries: Any, corpus: Any, count: int, similarity: Similarity
) -> tuple[np.ndarray, np.ndarray]:
  """Find the nearest sparse vectors by an inverted index; see `find_nearest`.

  The index has a row per token of the vocabulary: the documents in which it has a weight. The
  product of a query with it reads only the rows of the query's tokens.
  """
  check_finite(queries.data.sum() + corpus.data.sum(), 'vectors of the queries or of the corpus')
  queries, corpus = scale_sparse(queries, similarity), scale_sparse(corpus, similarity)
  index, count = corpus.T.tocsr(), min(count, corpus.shape[0])
  scores = np.zeros((queries.shape[0], count), np.float32)
  numbers = np.zeros((queries.shape[0], count), np.int64)
  rows = max(1, BLOCK_SCORES // corpus.shape[0])
  for start in range(0, queries.shape[0], rows):
    for row, found in enumerate((queries[start:start + rows] @ index).toarray(), start):
      best = np.sort(top_positions(found, count))
      numbers[row] = best[np.argsort(-found[best], kind='stable')]
      scores[row] = found[numbers[row]]
  return scores, numbers


def scale_sparse(vectors: Any, similarity: Similarity) -> Any:
  """Scale the rows of a csr_array so that their dot products are the similarity.

  Rows of zeros stay zeros. Raises ConfigError for a distance.
  """
  if similarity in DISTANCES:
    raise ConfigError(f'sparse vectors are compared by cosine or dot product, not by {similarity}')
  if similarity == 'dot':
    return vectors
  norms = np.sqrt(vectors.multiply(vectors).sum(1))
  return vectors.multiply(1 / np.maximum(norms, 1e-12)[:, None]).tocsr()


def sparsity_metrics(queries: Any, documents: Any) -> dict[str, float]:
  """Compute the mean numbers of active dimensions of sparse vectors, and the FLOPs of a search.

  `flops` is the expected number of products per pair of a query and a document: the sum over the
  vocabulary of the shares of queries and of documents in which a token has a weight (Paria et al.
  2020; naver/splade 8dcd33a, splade/flops.py).

  Args:
    queries: csr_array [Q, V].
    documents: csr_array [N, V].
  """
  shares = [(vectors != 0).mean(0) for vectors in (queries, documents)]
  return {'query_dimensions': float(shares[0].sum()),
          'document_dimensions': float(shares[1].sum()), 'flops': float(shares[0] @ shares[1])}


def is_sparse(vectors: Any) -> bool:
  """Tell whether vectors are a sparse array of scipy."""
  return hasattr(vectors, 'tocsr')


def count_vectors(vectors: Vectors) -> int:
  """Return the number of texts."""
  return vectors.shape[0] if is_sparse(vectors) else len(vectors)


def to_sparse(vectors: np.ndarray) -> Any:
  """Return vectors [N, D] as a csr_array of scipy."""
  from scipy import sparse  # takes a while to import
  return sparse.csr_array(vectors)


def to_dense(vectors: Any) -> np.ndarray:
  """Return vectors [N, D] as an array."""
  return vectors.toarray() if is_sparse(vectors) else vectors


def stack_vectors(parts: Sequence[Any]) -> Any:
  """Join the vectors of several calls: arrays [N, D], csr_arrays, or lists of token vectors."""
  if isinstance(parts[0], list):
    return list(itertools.chain.from_iterable(parts))
  if not is_sparse(parts[0]):
    return np.concatenate(parts)
  from scipy import sparse
  return sparse.vstack(parts, 'csr')


def take_vectors(vectors: Vectors, numbers: Sequence[int]) -> Any:
  """Return the vectors of some texts by their numbers."""
  if isinstance(vectors, list):
    return [vectors[number] for number in numbers]
  return vectors[numbers]


def keep_best(best: np.ndarray, numbers: np.ndarray, scores: np.ndarray, start: int) -> None:
  """Merge the scores [B] of the texts from `start` on into the best scores [k] and numbers."""
  count, places = len(best), np.flatnonzero(scores > best[-1])
  if len(places) > count:
    places = places[top_positions(scores[places], count)]
  joined_scores = np.concatenate([best, scores[places]])
  joined_numbers = np.concatenate([numbers, start + places])
  order = np.lexsort((joined_numbers, -joined_scores))[:count]
  best[:], numbers[:] = joined_scores[order], joined_numbers[order]


def search_token_vectors(
    queries: Vectors, corpus: Vectors, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Find the texts with the largest MaxSim to each query; see `find_nearest`."""
  shapes = {np.shape(vectors)[1:] for vectors in (*queries, *corpus)}
  if len(shapes) != 1 or not len(corpus) or count < 1 or not all(map(len, corpus)):
    raise ConfigError('search by maxsim takes queries and a corpus of arrays [tokens, D] of one D, '
                      f'none of them empty, got {len(queries)} and {len(corpus)} arrays [tokens, '
                      f'...] of {sorted(shapes)}')
  count = min(count, len(corpus))
  best = np.full((len(queries), count), -np.inf, np.float32)
  numbers = np.full((len(queries), count), -1, np.int64)
  for start, end in token_blocks([len(vectors) for vectors in corpus]):
    block = np.concatenate(corpus[start:end]).astype(np.float32).T  # [D, tokens]
    firsts = np.cumsum([0, *map(len, corpus[start:end - 1])])
    for row, query in enumerate(queries):
      products = np.asarray(query, np.float32) @ block
      scores = np.maximum.reduceat(products, firsts, axis=1).sum(0)
      check_finite(scores, 'vectors of the queries or of the corpus')
      keep_best(best[row], numbers[row], scores, start)
  return best, numbers


def token_blocks(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
  """Yield (start, end) of texts that have about BLOCK_VECTORS tokens together."""
  start = total = 0
  for number, length in enumerate(lengths):
    if total and total + length > BLOCK_VECTORS:
      yield start, number
      start, total = number, 0
    total += length
  yield start, len(lengths)


def top_positions(scores: np.ndarray, count: int) -> np.ndarray:
  """Return the positions of the `count` largest scores [N] in any order, first of equal scores."""
  threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
  above, equal = np.flatnonzero(scores > threshold), np.flatnonzero(scores == threshold)
  return np.concatenate([above, equal[:count - len(above)]])


def compare_pairs(
    first: Vectors, second: Vectors, similarity: Comparison = 'cosine') -> np.ndarray:
  """Compute the similarity of vectors [N, D] with as many others -> float64 [N].

  Sparse vectors are compared by cosine or dot product. For maxsim, N arrays of token vectors
  [tokens, D] of queries, and as many of documents.
  """
  if similarity == 'maxsim':
    pairs = zip(first, second, strict=True)
    products = [np.asarray(query, np.float64) @ np.asarray(document, np.float64).T
                for query, document in pairs]
    return np.array([product.max(1).sum() for product in products])
  if is_sparse(first):
    products = scale_sparse(first, similarity).multiply(scale_sparse(second, similarity))
    return np.asarray(products.sum(1), np.float64)
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
