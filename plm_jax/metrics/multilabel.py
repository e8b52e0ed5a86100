"""Multi-label classification metrics, in percent, and thresholds of probabilities.

Labels are indicator arrays [N, C]: whether an example has a label. All metrics agree with
scikit-learn's, where `zero_division` is 0: what is undefined counts as 0.
"""
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from plm_jax.errors import UserError
from plm_jax.metrics.tasks import ClassScore, precision_recall_f1

Tuning = Literal['no', 'one', 'each']
"""thresholds that are tuned: none, one for all labels, or one for each"""
DEFAULT_THRESHOLD = 0.5
MULTILABEL_METRICS = (
    'micro_f1', 'macro_f1', 'weighted_f1', 'samples_f1', 'subset_accuracy', 'average_precision')
"""names of the metrics, the main metric first"""


def f1_metrics(truth: Any, predicted: Any) -> dict[str, float]:
  """Compute the averages of F1, and subset accuracy, of indicators [N, C].

  Returns:
    micro_f1: of all decisions. macro_f1: mean over labels. weighted_f1: mean weighted by the number
    of examples with the label. samples_f1: mean over examples; 0 of an example that neither has nor
    is predicted to have labels. subset_accuracy: share of examples with exactly the true labels.
  """
  truth, predicted = as_indicators(truth, predicted)
  right, found, true = truth & predicted, predicted, truth
  by_label = f1_of_counts(right.sum(0), found.sum(0), true.sum(0))
  support = true.sum(0)
  return {
      'micro_f1': percent(f1_of_counts(right.sum(), found.sum(), true.sum())),
      'macro_f1': percent(by_label.mean()),
      'weighted_f1': percent((by_label * support).sum() / max(1, support.sum())),
      'samples_f1': percent(f1_of_counts(right.sum(1), found.sum(1), true.sum(1)).mean()),
      'subset_accuracy': percent((truth == predicted).all(1).mean())}


def average_precision(truth: Any, scores: Any) -> float:
  """Compute the mean average precision over labels: truth [N, C], scores [N, C].

  The average precision of a label is the sum over thresholds of precision times the increase of
  recall, without interpolation. It is 0 for a label that no example has.
  """
  truth, scores = np.asarray(truth, bool), np.asarray(scores, np.float64)
  check_shapes(truth, scores)
  total = 0.0
  for label, own in zip(truth.T, scores.T, strict=True):
    _, right, found = count_by_threshold(label, own)
    recall = right / max(1, label.sum())
    total += (np.diff(recall, prepend=0.0) * right / found).sum()
  return percent(total / truth.shape[1])


def count_by_threshold(
    truth: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Count what is found at each distinct score: truth [N], scores [N].

  Returns:
    Distinct scores in descending order [K], and the numbers of true examples and of all examples
    with at least each score [K].
  """
  order = np.argsort(-scores, kind='stable')
  ranked, right = scores[order], np.cumsum(truth[order])
  ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
  return ranked[ends], right[ends], ends + 1


def tune_thresholds(truth: Any, probabilities: Any, tuning: Tuning) -> tuple[float, ...]:
  """Find the thresholds with the highest F1: truth [N, C], probabilities [N, C].

  Args:
    truth: indicators.
    probabilities: of each label.
    tuning: 'one' maximizes micro F1; 'each' maximizes F1 of every label. Of several thresholds with
      the same F1 it is the highest. A label that no example has keeps DEFAULT_THRESHOLD.

  Returns:
    One threshold, or C. Each is halfway between two probabilities, so that rounding does not
    matter. A label is predicted where its probability is above its threshold.
  """
  truth, probabilities = np.asarray(truth, bool), np.asarray(probabilities, np.float64)
  check_shapes(truth, probabilities)
  if tuning == 'one':
    return (best_threshold(truth.ravel(), probabilities.ravel()),)
  return tuple(map(best_threshold, truth.T, probabilities.T))


def best_threshold(truth: np.ndarray, probabilities: np.ndarray) -> float:
  """Find the threshold with the highest F1; see `tune_thresholds`."""
  if not truth.any():
    return DEFAULT_THRESHOLD
  distinct, right, found = count_by_threshold(truth, probabilities)
  best = int(np.argmax(f1_of_counts(right, found, truth.sum())))
  below = distinct[best + 1] if best + 1 < len(distinct) else 0.0
  return float((distinct[best] + below) / 2)


def per_label_scores(
    truth: Any, predicted: Any, names: Sequence[str]) -> dict[str, ClassScore]:
  """Compute precision, recall and F1 per label of indicators [N, C]; C names."""
  truth, predicted = as_indicators(truth, predicted)
  counts = zip((truth & predicted).sum(0), predicted.sum(0), truth.sum(0), strict=True)
  return {name: precision_recall_f1(*some) for name, some in zip(names, counts, strict=True)}


def f1_of_counts(right: Any, found: Any, true: Any) -> np.ndarray:
  """Compute F1 of numbers of correct, predicted and true items; 0 where there are neither."""
  return 2 * np.asarray(right) / np.maximum(np.asarray(found) + np.asarray(true), 1)


def percent(share: Any) -> float:
  """Return a share in percent."""
  return 100 * float(share)


def as_indicators(truth: Any, predicted: Any) -> tuple[np.ndarray, np.ndarray]:
  """Convert both sides to arrays of booleans [N, C]. Raises UserError if shapes differ."""
  truth, predicted = np.asarray(truth, bool), np.asarray(predicted, bool)
  check_shapes(truth, predicted)
  return truth, predicted


def check_shapes(truth: np.ndarray, predicted: np.ndarray) -> None:
  """Raise UserError unless both sides are [N, C], with at least one example and one label."""
  if truth.shape != predicted.shape or truth.ndim != 2 or not truth.size:
    raise UserError('indicators of as many examples and labels on both sides, and one at least: '
                    f'got shapes {truth.shape} and {predicted.shape}')


def all_metrics(truth: Any, predicted: Any, probabilities: Any) -> dict[str, float]:
  """Compute all metrics by name; the arguments are [N, C]."""
  figures = f1_metrics(truth, predicted)
  return figures | {'average_precision': average_precision(truth, probabilities)}
