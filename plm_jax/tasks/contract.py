"""What a downstream task is: an objective over labelled examples, with a head and the metrics of the field."""
import abc
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import numpy as np

from plm_jax import conversion
from plm_jax.objectives import Arrays, Objective
from plm_jax.tasks.examples import Example, Features
from plm_jax.tasks.forms import Form, form_of
from plm_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Task(Objective):
  """A kind of task. Its windows are made of `Features` by `tasks.batches`, as they are read: nothing is corrupted.

  A batch holds tokens and segments [B, L] (0 padding; equal numbers see each other), whatever of `Features.aligned`
  there is [B, L], and for each of E slots of a row, a segment each, `extract` [B, E], the token that stands for it,
  `weight` [B, E], 0.0 where the slot is empty, `feature` [B, E], the number of its row among the features, and the
  other `Features.values`. Where no two examples share a row, E is 1.
  """

  head: ClassVar[str]
  """name of the head among those of the family: label, tags, span, choice"""
  larger: ClassVar[bool] = True
  """whether the first measure is better where it is larger"""

  family: str = 'bert'
  """model_type of transformers whose head and whose form of rows are taken"""
  labels: tuple[str, ...] = ()
  """names of the classes; empty: those of the training examples, in the order of their names"""

  @property
  def form(self) -> Form:
    """How the family takes texts."""
    return form_of(self.family)

  @property
  @abc.abstractmethod
  def classes(self) -> int:
    """C, numbers that the head gives for a row, or for a token."""

  @abc.abstractmethod
  def features(self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Makes rows of at most `length` tokens. Raises ConfigError for an example that is not of the task."""

  @abc.abstractmethod
  def predict(self, examples: Sequence[Example], features: Features, outputs: Sequence[np.ndarray]) -> list[Any]:
    """Answers examples, in their order.

    outputs: of each feature what the head gave: [C], of tags [tokens, C], of a span [tokens, 2], of a choice [].
    """

  @abc.abstractmethod
  def scores(self, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
    """Measures predictions by the field's metrics, in percent; by the first the best checkpoint is chosen."""

  def heads(self, model: Any) -> dict[str, nn.Module]:
    """Returns the family's head of the task."""
    return {self.head: conversion.head_of(self.family, self.head, model, self.classes)}

  def corrupt(self, key: jax.Array, windows: Arrays, vocab: Any) -> Arrays:
    """Returns the rows with what the family's form adds to them."""
    del key
    return self.form.arrange(windows, vocab)

  def window(self, length: int) -> int:
    """Returns the tokens of a row: all are the task's."""
    return length

  def predictions(self, length: int) -> int:
    """Returns 0: no tokens are predicted."""
    del length
    return 0

  @property
  def terms(self) -> Mapping[str, float]:
    """The task's own loss."""
    return {self.head: 1.0}


def weighted(loss, right, weight) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
  """Returns (sum, weight) of a loss and of what is right, both as large as `weight`."""
  return ((loss * weight).sum(), weight.sum()), ((right * weight).sum(), weight.sum())


def softmax(logits: np.ndarray) -> np.ndarray:
  """Turns logits [..., C] into probabilities, in float64."""
  logits = np.asarray(logits, np.float64)
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers / powers.sum(-1, keepdims=True)
