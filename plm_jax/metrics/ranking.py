"""Metrics of rankings with graded relevance: nDCG, MRR and MAP, in percent.

They agree with trec_eval where no two documents of a query have the same score. Documents with the
same score rank with the least relevant one first, so that a constant score is not rewarded.
"""
from collections.abc import Sequence

import numpy as np

from plm_jax.errors import UserError

CUTOFF = 10
RANKING_METRICS = ('ndcg_10', 'mrr_10', 'map')
"""names of the metrics, the main metric first"""


def ranking_metrics(
    relevance: Sequence[Sequence[float]], scores: Sequence[Sequence[float]],
    missed: Sequence[Sequence[float]] = ()) -> dict[str, float]:
  """Compute the metrics of rankings.

  Args:
    relevance: of each document of each query; above 0 it is relevant.
    scores: of the same documents; the highest ranks first.
    missed: relevance of documents that were not ranked, of each query; (): there are none.

  Returns:
    ndcg_10: discounted cumulative gain of the first ten, by that of the ideal order (Järvelin and
    Kekäläinen 2002; the gain is the relevance). mrr_10: reciprocal rank of the first relevant
    document among the first ten. map: average precision. Means over the queries with a relevant
    document; 0 if no query has one.

  Raises:
    UserError: numbers of queries or documents differ.
  """
  if len(relevance) != len(scores) or (missed and len(missed) != len(relevance)):
    raise UserError(f'relevance and scores of the same queries: got {len(relevance)}, '
                    f'{len(scores)} and {len(missed)}')
  rows = []
  for number, (truth, found) in enumerate(zip(relevance, scores, strict=True)):
    if len(truth) != len(found):
      raise UserError(f'query {number + 1}: a score for each document: got {len(found)} scores of '
                      f'{len(truth)} documents')
    others = np.asarray(missed[number] if missed else (), np.float64)
    truth = np.asarray(truth, np.float64)
    if (truth > 0).any() or (others > 0).any():
      order = np.lexsort((truth, -np.asarray(found, np.float64)))
      rows.append(score_ranking(truth[order], np.concatenate([truth, others])))
  if not rows:
    return dict.fromkeys(RANKING_METRICS, 0.0)
  means = 100 * np.mean(rows, axis=0)
  return dict(zip(RANKING_METRICS, means.tolist(), strict=True))


def score_ranking(ranked: np.ndarray, known: np.ndarray) -> tuple[float, float, float]:
  """Compute (nDCG@10, MRR@10, average precision) of a query, from 0 to 1.

  Args:
    ranked: relevance of the documents in their order [N].
    known: relevance of all documents, in any order.
  """
  right = ranked > 0
  places = np.flatnonzero(right)
  ideal = discounted_gain(np.sort(known)[::-1])
  first = 1 / (1 + places[0]) if len(places) and places[0] < CUTOFF else 0.0
  precisions = np.arange(1, len(places) + 1) / (places + 1)
  return discounted_gain(ranked) / ideal, first, float(precisions.sum() / (known > 0).sum())


def discounted_gain(ranked: np.ndarray) -> float:
  """Compute the discounted cumulative gain of the first ten documents; negative gains are 0."""
  gains = np.maximum(ranked[:CUTOFF], 0)
  return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())
