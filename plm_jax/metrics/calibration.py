"""Calibration of probabilities: the expected calibration error, and temperature scaling.

Guo et al. 2017, sections 2 and 4.2.
"""
from typing import Any, NamedTuple

import numpy as np

NUM_BINS = 15
LARGEST_TEMPERATURE = 100.0
LOWEST_LOG = -700.0
"""smallest logarithm of a probability, which stands for log(0)"""


class Bin(NamedTuple):
  """Decisions of similar confidence."""

  confidence: float
  """mean probability of the predicted class"""
  accuracy: float
  """share of correct predictions"""
  count: int


def confidence_bins(confidence: Any, correct: Any, bins: int = NUM_BINS) -> list[Bin]:
  """Group decisions by their confidence, in bins of equal width; empty bins are left out.

  Args:
    confidence: probability of each predicted class [N].
    correct: whether each prediction is correct [N].
    bins: number of bins between 0 and 1; each contains its upper border.
  """
  shares, right = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
  number = np.clip(np.ceil(shares * bins).astype(int) - 1, 0, bins - 1)
  counts = np.bincount(number, minlength=bins)
  sums = np.bincount(number, shares, bins), np.bincount(number, right, bins)
  found = []
  for one in np.flatnonzero(counts):
    confidence, accuracy = (float(some[one] / counts[one]) for some in sums)
    found.append(Bin(confidence, accuracy, int(counts[one])))
  return found


def calibration_error(bins: list[Bin]) -> float:
  """Compute the expected calibration error (ECE) in percent: the mean distance of confidence and
  accuracy over all decisions.

  >>> round(calibration_error(confidence_bins([0.9, 0.9, 0.6], [1, 0, 1])), 6)
  40.0
  """
  total = sum(one.count for one in bins)
  error = sum(abs(one.confidence - one.accuracy) * one.count for one in bins)
  return 100 * error / max(1, total)


def log_probabilities(probabilities: Any) -> np.ndarray:
  """Return the logarithms of probabilities in float64, not below LOWEST_LOG."""
  with np.errstate(divide='ignore'):
    return np.maximum(np.log(np.asarray(probabilities, np.float64)), LOWEST_LOG)


def fit_temperature(logs: np.ndarray, labels: np.ndarray) -> float:
  """Fit the temperature by which logits are divided: the one with the smallest cross-entropy.

  The cross-entropy is convex in its inverse.

  Args:
    logs: logits, or logarithms of probabilities, of N decisions [N, C].
    labels: true classes [N].

  Returns:
    Between 0.01 and 100; 1.0 without decisions.
  """
  import scipy.optimize
  import scipy.special
  if not len(labels):
    return 1.0

  def loss(inverse: float) -> float:
    scaled = logs * inverse
    chosen = np.take_along_axis(scaled, labels[:, None], -1)[:, 0]
    return float((scipy.special.logsumexp(scaled, axis=-1) - chosen).mean())

  bounds = 1 / LARGEST_TEMPERATURE, LARGEST_TEMPERATURE
  found: Any = scipy.optimize.minimize_scalar(
      loss, bounds=bounds, method='bounded', options={'xatol': 1e-6})
  return float(f'{1 / found.x:.6g}')
