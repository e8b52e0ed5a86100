"""What a downstream task is: an objective over labelled examples, with a head and the metrics of the field."""
import abc
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import conversion
from plm_jax.architectures.encoder import Output
from plm_jax.checked import within
from plm_jax.objectives import Arrays, Losses, Objective
from plm_jax.objectives.mlm import classification
from plm_jax.tasks.examples import Example, Features, Kind
from plm_jax.tasks.forms import Cut, Form, form_of
from plm_jax.tasks.regularize import Plain, Regularizer
from plm_jax.tokenizers import Tokenizer

Per = Literal['slot', 'token', 'row']
"""what a head gives numbers for: texts, tokens, or whole rows"""


@dataclasses.dataclass(frozen=True)
class Task(Objective):
  """A kind of task. Its windows are made of `Features` by `tasks.batches`, as they are read: nothing is corrupted.

  A batch holds tokens and segments [B, L] (0 padding; equal numbers see each other), whatever of `Features.aligned`
  there is [B, L], and for each of E slots of a row, a segment each, `extract` [B, E], the token that stands for it,
  `weight` [B, E], 0.0 where the slot is empty, `feature` [B, E], the number of its row among the features, and the
  other `Features.values`. Where no two examples share a row, E is 1.
  """

  limits = within(auxiliary='[0, 1e6]', head_dropout='[-1, 1)')

  head: ClassVar[str]
  """name of the head among those of the family: label, tags, span, choice"""
  per: ClassVar[Per]
  """what the head gives numbers for"""

  of_tokens: ClassVar[tuple[str, ...]] = ()
  """arrays [B, L] that the loss reads"""
  of_rows: ClassVar[tuple[str, ...]] = ('label',)
  """arrays [B, E] that the loss reads"""

  family: str = 'bert'
  """model_type of transformers whose head and whose form of rows are taken"""
  labels: tuple[str, ...] = ()
  """names of the classes; empty: those of the training examples, in the order of their names"""
  words: tuple[int, ...] = ()
  """ids of the tokens that say the classes, of a family that is asked by a blank (GLM); empty: the first token of each
  name"""
  cut: Cut = 'longest'
  """which text loses its end where two are too long for a row"""
  regularizer: Regularizer = Plain()
  """what is asked of the model besides the right answer, while it is trained"""
  auxiliary: float = 0.0
  """lambda, factor of the loss of language modelling besides, of decoders (Radford et al. 2018, section 3.2: 0.5)"""
  head_dropout: float = -1.0
  """share of what the head reads that is dropped; -1: as many as the family's"""

  @property
  def form(self) -> Form:
    """How the family takes texts."""
    return form_of(self.family)

  @property
  @abc.abstractmethod
  def reads(self) -> Kind:
    """Which kind of examples the task has: see `tasks.reading`."""

  @property
  def learns(self) -> Kind:
    """Which kind of examples it is taught by: that of those it answers, unless it says otherwise."""
    return self.reads

  def lessons(self, examples: Sequence[Example]) -> Sequence[Example]:
    """Returns training examples as they are learned from: as they are. Raises ConfigError for one that cannot be."""
    return examples

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

  @abc.abstractmethod
  def judged(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Returns (sum, weight) of the task's loss, under the head's name, and of NAME_accuracy where there is one."""

  def heldout(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Returns (sum, weight) of losses that development sets are measured by besides `scores`: those of training."""
    return self.loss(outputs, batch)

  def read_off(self, outputs: Mapping[str, Any]) -> jax.Array:
    """Returns what `predict` is given of what the head says, with the axes that `per` says."""
    return outputs[self.head]

  @property
  def keeps(self) -> Per:
    """What of a backbone's output the head reads, and all that has to be kept of one that is not trained."""
    return self.per

  def kept(self, output: Any) -> jax.Array:
    """Returns what the head reads of each token, [B, L, ...], where that is all that it reads."""
    return output.hidden

  def recalled(self, kept: Any) -> Any:
    """Returns an output of a backbone that says what was kept."""
    return Output(kept, None, None)  # pyright: ignore[reportArgumentType]

  def refuses(self, run: Any) -> str | None:
    """Says what of a run (`config.FineTuning`) the task does not go with."""
    if run.model.kind == 'recurrent':
      return 'an ELMo learns tagging, and classification or regression of one text: RecurrentTagging, RecurrentSequence'
    return None

  def compared(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> tuple[jax.Array, jax.Array]:
    """Returns what a regulariser compares between passes: logits [..., C], and weights that broadcast to [...]."""
    return outputs[self.head], batch['marks' if self.per == 'token' else 'weight']

  @property
  def moves_inputs(self) -> bool:
    """Whether the regulariser moves token vectors."""
    return self.regularizer.moves_inputs

  def losses(self, passes, batch):
    """Returns those of the regulariser."""
    return self.regularizer(self, passes, batch)

  def heads(self, model: Any) -> dict[str, nn.Module]:
    """Returns the family's head of the task, and that of language modelling where its loss is added."""
    names = [self.head, *(['lm'] if self.auxiliary else [])]
    words = {self.head: self.words}
    heads = {name: conversion.head_of(self.family, name, model, self.classes, words.get(name, ())) for name in names}
    if self.head_dropout >= 0 and hasattr(heads[self.head], 'dropout'):
      heads[self.head] = heads[self.head].clone(dropout=self.head_dropout)
    return heads

  def loss(self, outputs, batch):
    """Returns the task's losses, and `lm`: each token of a text predicts the next."""
    losses = self.judged(outputs, batch)
    if self.auxiliary:
      segments = batch['segments']
      follows = (segments > 0) & (segments == jnp.pad(segments[:, 1:], ((0, 0), (0, 1))))
      following = jnp.pad(batch['tokens'][:, 1:], ((0, 0), (0, 1)))
      losses |= classification('lm', outputs['lm'], following, follows.astype(jnp.float32))
    return losses

  def shapes(self, rows, length, layout=None):
    """Returns a batch without its content, of one example a row."""
    def shape(*size, dtype=jnp.int32):
      return jax.ShapeDtypeStruct(size, dtype, sharding=layout)
    whole = dict.fromkeys(('tokens', 'segments', 'types', *self.of_tokens), shape(rows, length))
    return whole | {name: shape(rows, 1) for name in ('extract', *self.of_rows)} | {
        'weight': shape(rows, 1, dtype=jnp.float32)}

  def shown(self, figure, value, digits=3):
    """Writes metrics, which are percents, with two digits, as tables have them."""
    return f'{value:.{digits if figure.endswith("loss") else 2}f}'

  def larger(self, figure: str) -> bool:
    """Tells that figures but losses are better where they are larger."""
    return not figure.endswith('loss')

  def corrupt(self, key: jax.Array, windows: Arrays, vocab: Any) -> Arrays:
    """Returns the rows with what the family's form adds to them."""
    del key
    return windows if 'output' in windows else self.form.arrange(windows, vocab)

  def window(self, length: int) -> int:
    """Returns the tokens of a row: all are the task's."""
    return length

  def predictions(self, length: int) -> int:
    """Returns 0: no tokens are predicted."""
    del length
    return 0

  @property
  def terms(self) -> Mapping[str, float]:
    """The task's own loss, and that of language modelling with its factor."""
    return {self.head: 1.0, **({'lm': self.auxiliary} if self.auxiliary else {})}


def weighted(loss, right, weight) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
  """Returns (sum, weight) of a loss and of what is right, both as large as `weight`."""
  return ((loss * weight).sum(), weight.sum()), ((right * weight).sum(), weight.sum())


def softmax(logits: np.ndarray) -> np.ndarray:
  """Turns logits [..., C] into probabilities, in float64."""
  logits = np.asarray(logits, np.float64)
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers / powers.sum(-1, keepdims=True)
