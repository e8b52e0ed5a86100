"""Metrics of rankings: by hand, next to a plain reference, and next to scikit-learn."""
import math

import numpy as np
import pytest
from sklearn import metrics as sklearn

from plm_jax.errors import UserError
from plm_jax.metrics.ranking import RANKING_METRICS, ranking_metrics


def plain(relevance, scores, missed):
  """The definitions, one document at a time."""
  rows = []
  for truth, found, others in zip(relevance, scores, missed, strict=True):
    ranked = [truth[at] for at in sorted(range(len(truth)), key=lambda at: (-found[at], truth[at]))]
    known = [*ranked, *others]
    if max(known) <= 0:
      continue
    gain = sum(max(value, 0) / math.log2(place + 2) for place, value in enumerate(ranked[:10]))
    best = sum(max(value, 0) / math.log2(place + 2)
               for place, value in enumerate(sorted(known)[::-1][:10]))
    first = next((1 / (place + 1) for place, value in enumerate(ranked[:10]) if value > 0), 0)
    right, total = 0, 0.0
    for place, value in enumerate(ranked):
      if value > 0:
        right += 1
        total += right / (place + 1)
    rows.append((gain / best, first, total / sum(value > 0 for value in known)))
  return [100 * sum(column) / len(rows) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize('levels', [2, 4])
@pytest.mark.parametrize('seed', range(4))
def test_metrics_are_the_definitions(seed, levels):
  draw = np.random.default_rng(seed)
  sizes = draw.integers(1, 30, 25)
  relevance = [draw.integers(0, levels, size).tolist() for size in sizes]
  # with ties and without
  scores = [np.round(draw.random(size), 1 if seed % 2 else 9).tolist() for size in sizes]
  missed = [draw.integers(0, levels, 3).tolist() for _ in sizes]
  found = ranking_metrics(relevance, scores, missed)
  assert list(found.values()) == pytest.approx(plain(relevance, scores, missed), abs=1e-9)


def test_metrics_are_scikit_learns():
  draw = np.random.default_rng(0)
  relevance, scores = draw.integers(0, 3, (12, 20)), draw.random((12, 20))
  relevance[:, 0] = 1
  found = ranking_metrics(relevance, scores)
  assert found['ndcg_10'] == pytest.approx(100 * sklearn.ndcg_score(relevance, scores, k=10))
  precision = [sklearn.average_precision_score(row > 0, some)
               for row, some in zip(relevance, scores, strict=True)]
  assert found['map'] == pytest.approx(100 * np.mean(precision))


def test_metrics_by_hand():
  found = ranking_metrics([[0, 1, 0], [3, 0, 1]], [[0.9, 0.5, 0.1], [0.1, 0.2, 0.3]])
  ideal = 3 + 1 / math.log2(3)
  assert found == pytest.approx({
      'ndcg_10': 50 * (1 / math.log2(3) + (1 + 3 / 2) / ideal), 'mrr_10': 75.0,
      'map': 100 * (0.5 + (1 + 2 / 3) / 2) / 2})


def test_a_constant_score_gets_the_worst_order():
  found = ranking_metrics([[1, 0, 0, 0]], [[0.5] * 4])
  assert found['mrr_10'] == 25 and found['map'] == 25
  assert ranking_metrics([[1] + [0] * 10], [[0.5] * 11])['mrr_10'] == 0


def test_queries_without_relevant_documents_do_not_count():
  assert ranking_metrics([[0, 0], [1, 0]], [[1, 2], [2, 1]])['map'] == 100
  assert ranking_metrics([[0, 0]], [[1, 2]]) == dict.fromkeys(RANKING_METRICS, 0.0)
  assert ranking_metrics([[0, 0]], [[1, 2]], [[1]])['map'] == 0


def test_inconsistent_shapes_are_refused():
  with pytest.raises(UserError, match='relevance and scores of the same queries: got 1, 2'):
    ranking_metrics([[1]], [[1], [2]])
  with pytest.raises(UserError, match='query 1: a score for each document: got 2 scores of 1'):
    ranking_metrics([[1]], [[1, 2]])
