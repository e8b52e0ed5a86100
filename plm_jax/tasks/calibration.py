"""Tasks whose probabilities are calibrated on a development set by temperature scaling."""
from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from plm_jax.metrics.calibration import Bin, confidence_bins, fit_temperature
from plm_jax.sources.examples import Example
from plm_jax.tasks.contract import Task, softmax
from plm_jax.validation import intervals


class Decisions(NamedTuple):
  """Decisions between classes: of texts, of labels of texts, or of words."""

  logs: np.ndarray
  """logarithms of the probabilities of classes [N, C]"""
  labels: np.ndarray
  """true classes [N]"""


@dataclasses.dataclass(frozen=True)
class CalibratedTask(Task):
  """A task with probabilities of classes."""

  limits = intervals(temperature='[0.001, 1000]')

  calibrate: bool = False
  """fit `temperature` on the first development set after training (temperature scaling, Guo et al.
  2017). Predicted classes stay the same, and probabilities come closer to the share of correct
  predictions"""
  temperature: float = 1.0
  """number by which logits are divided before probabilities are computed"""

  def class_probabilities(self, logits: Any) -> np.ndarray:
    """Compute the probabilities of classes of logits [..., C] at the temperature."""
    return softmax(np.asarray(logits, np.float64) / self.temperature)

  def decisions(self, examples: Sequence[Example], predictions: Sequence[Any]) -> Decisions | None:
    """Return the decisions of examples with labels; None: the task has no probabilities."""

  @property
  def fits_development(self):
    return self.calibrate

  def fit_to_development(self, examples, predictions):
    found = self.decisions(examples, predictions) if self.calibrate else None
    if found is None:
      return {}
    return {'temperature': fit_temperature(found.logs * self.temperature, found.labels)}

  def calibration_bins(self, examples: Sequence[Example], predictions: Sequence[Any]) -> list[Bin]:
    """Group decisions by their confidence; []: there are none."""
    found = self.decisions(examples, predictions)
    if found is None or not len(found.labels):
      return []
    correct = found.logs.argmax(-1) == found.labels
    return confidence_bins(np.exp(found.logs.max(-1)), correct)

  def export_attributes(self):
    if self.temperature == 1.0:
      return {}
    return {'calibration_temperature': self.temperature}
