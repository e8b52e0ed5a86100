"""Measures of sentence vectors, and exact search, by literal values and by brute force."""
import math

import numpy as np
import pytest

from plm_jax.errors import ConfigError
from plm_jax.metrics import nearest as search
from plm_jax.metrics.embeddings import fit_whitening, retrieval_metrics
from plm_jax.metrics.nearest import compare_pairs, find_nearest, sparsity_metrics, to_sparse


def test_retrieval_by_hand():
  """Three vectors at angles 0, 10 and 90 degrees; a query at 0 finds them in this order."""
  corpus = np.array([[math.cos(angle), math.sin(angle)] for angle in np.radians([0, 10, 90])])
  found = retrieval_metrics(corpus[[0, 0]], corpus, [{1}, {0, 2}])
  second, ideal = 1 / math.log2(3), 1 + 1 / math.log2(3)
  assert found == pytest.approx({
      'ndcg_10': 50 * (second + (1 + 1 / math.log2(4)) / ideal), 'mrr': 50 * (1 / 2 + 1),
      'recall_1': 50 * (0 + 1 / 2),
      'recall_10': 100.0})


def test_retrieval_needs_something_to_find():
  with pytest.raises(ConfigError, match='each have relevant texts, got 1 queries and 0 with'):
    retrieval_metrics(np.ones((1, 2)), np.ones((3, 2)), [set()])


@pytest.mark.parametrize('count', [1, 7, 500])
def test_nearest_is_brute_force(count, monkeypatch):
  monkeypatch.setattr(search, 'BLOCK_VECTORS', 64)
  draw = np.random.default_rng(0)
  corpus = np.round(draw.normal(size=(500, 4)))  # with many equal cosines
  corpus[3] = 0
  queries = draw.normal(size=(9, 4)).astype(np.float32)
  scores, numbers = find_nearest(queries, corpus, count)
  x = corpus / np.maximum(np.linalg.norm(corpus, axis=1, keepdims=True), 1e-12)
  wanted = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ x.T
  np.testing.assert_allclose(scores, -np.sort(-wanted, 1)[:, :count], atol=1e-6)
  np.testing.assert_allclose(np.take_along_axis(wanted, numbers, 1), scores, atol=1e-6)
  assert all(len({*row}) == count for row in numbers.tolist())


def drawn_sparse(rows, seed, size=40):
  """Vectors of whole numbers, most of them 0, so that many scores are equal."""
  draw = np.random.default_rng(seed)
  return np.maximum(np.round(draw.normal(size=(rows, size)) - 0.5), 0).astype(np.float32)


@pytest.mark.parametrize('similarity', ['dot', 'cosine'])
@pytest.mark.parametrize('count', [1, 7, 500])
def test_an_inverted_index_finds_what_exact_search_does(similarity, count, monkeypatch):
  """Also vectors of zeros; of equal scores the first."""
  monkeypatch.setattr(search, 'BLOCK_SCORES', 1000)
  queries, corpus = drawn_sparse(9, 0), drawn_sparse(300, 1)
  corpus[5], queries[3] = 0, 0
  wanted_scores, wanted = find_nearest(queries, corpus, count, similarity=similarity)
  scores, numbers = find_nearest(
      to_sparse(queries), to_sparse(corpus), count, similarity=similarity)
  np.testing.assert_allclose(scores, wanted_scores, rtol=1e-5, atol=1e-6)
  if similarity == 'dot':  # cosines of dense and sparse vectors are rounded differently
    np.testing.assert_array_equal(numbers, wanted)
  pairs = compare_pairs(to_sparse(corpus[:9]), to_sparse(queries), similarity)
  np.testing.assert_allclose(pairs, compare_pairs(corpus[:9], queries, similarity), rtol=1e-6)


def test_distances_of_sparse_vectors_are_refused():
  x = to_sparse(drawn_sparse(3, 0))
  with pytest.raises(ConfigError, match='compared by cosine or dot product, not by euclidean'):
    find_nearest(x, x, similarity='euclidean')


def test_sparsity_by_hand_and_as_the_library_computes_it():
  queries, documents = drawn_sparse(6, 2), drawn_sparse(50, 3)
  found = sparsity_metrics(to_sparse(queries), to_sparse(documents))
  products = [(query * document > 0).sum() for query in queries for document in documents]
  assert found == pytest.approx({
      'query_dimensions': np.mean([(row > 0).sum() for row in queries]),
      'document_dimensions': np.mean([(row > 0).sum() for row in documents]),
      'flops': np.mean(products)})
  pytest.importorskip('sentence_transformers')
  from sentence_transformers import SparseEncoder
  import torch
  theirs = SparseEncoder.sparsity(torch.tensor(documents).to_sparse())
  assert found['document_dimensions'] == pytest.approx(theirs['active_dims'])


def test_search_reports_wrong_shapes():
  with pytest.raises(ConfigError, match=r'got \[1, 2\], \[3, 4\] and 5'):
    find_nearest(np.ones((1, 2)), np.ones((3, 4)), 5)
  with pytest.raises(ConfigError, match=r'got \[1, 2\], \[0, 2\]'):
    find_nearest(np.ones((1, 2)), np.ones((0, 2)))


def test_whitening_leaves_no_direction_before_others():
  draw = np.random.default_rng(0)
  vectors = draw.normal(size=(200, 6)) @ draw.normal(size=(6, 6)) + 5
  found = fit_whitening(vectors, 4)(vectors)
  np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
  np.testing.assert_allclose(found.T @ found / 200, np.eye(4), atol=1e-4)
  with pytest.raises(ConfigError,
                     match='3 vectors have 2 directions with nonzero variance, and 4 are '
                           'requested'):
    fit_whitening(vectors[:3], 4)


@pytest.mark.parametrize('similarity', ['cosine', 'dot', 'euclidean', 'manhattan'])
def test_similarities_by_hand(similarity):
  """Distances count negative; search and pairs agree."""
  draw = np.random.default_rng(0)
  queries, corpus = draw.normal(size=(3, 5)), draw.normal(size=(40, 5))
  differences = queries[:, None] - corpus
  products = queries @ corpus.T
  norms = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(corpus, axis=1)
  want = {'cosine': products / norms, 'dot': products,
          'euclidean': -np.sqrt(np.square(differences).sum(-1)),
          'manhattan': -np.abs(differences).sum(-1)}[similarity]
  scores, numbers = find_nearest(queries, corpus, 4, similarity=similarity)
  np.testing.assert_array_equal(numbers, np.argsort(-want, axis=1)[:, :4])
  np.testing.assert_allclose(scores, -np.sort(-want, axis=1)[:, :4], rtol=1e-5)
  pairs = compare_pairs(queries, corpus[:3], similarity)
  np.testing.assert_allclose(pairs, np.diagonal(want), rtol=1e-6)
