"""How good predictions are that come in chunks: of each is kept what its metric reads, and no more."""
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from plm_jax.tasks.answers import AnswerPrediction
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Example
from plm_jax.tasks.sequence import Classified
from plm_jax.tasks.tagging import Tagged

NONE = np.zeros(0)


class Scores:
  """Predictions and what they are held against."""

  def __init__(self, task: Task):
    self.task = task
    self.rows = 0
    """predictions that came"""
    self.examples: list[Example] = []
    self.predictions: list[Any] = []
    self.same: dict[Any, Any] = {}  # one object for all that are equal

  @property
  def labelled(self) -> int:
    """How many have a label."""
    return len(self.examples)

  def add(self, examples: Sequence[Example], predictions: Sequence[Any]) -> None:
    """Takes a chunk; examples without labels are only counted."""
    self.rows += len(examples)
    for example, prediction in zip(examples, predictions, strict=True):
      if example.label is not None or example.answers is not None:
        kept = Example((), example.label, answers=example.answers)
        self.examples.append(self.same.setdefault(kept, kept))
        self.predictions.append(self.brief(prediction))

  def brief(self, prediction: Any) -> Any:
    """Returns of a prediction what metrics read."""
    if isinstance(prediction, AnswerPrediction):
      return dataclasses.replace(prediction, candidates=prediction.candidates[:1])
    if isinstance(prediction, Tagged):
      return Tagged(prediction.tags, [])
    return self.same.setdefault(prediction.label, Classified(prediction.label, NONE))

  def values(self) -> dict[str, float]:
    """Measures them by the task's metrics."""
    return self.task.scores(self.examples, self.predictions)
