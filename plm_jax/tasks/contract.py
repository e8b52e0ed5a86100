"""The contract of downstream tasks: an objective over labeled examples, with a head and metrics."""
import abc
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import conversion
from plm_jax.architectures import Output
from plm_jax.objectives import Arrays, Losses, Objective, Reporting, StepTraits
from plm_jax.objectives.mlm import classification_losses
from plm_jax.tasks.example_formats import ExampleFormat
from plm_jax.tasks.examples import Example, Features
from plm_jax.tasks.input_formats import InputFormat, Truncation, get_input_format
from plm_jax.tasks.regularizers import Plain, Regularizer
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import intervals

OutputUnit = Literal['slot', 'token', 'row']
"""what a head has outputs for: texts, tokens, or whole rows"""
DEFAULT_ROW_LENGTH = 512
"""maximum tokens per row for a model without a limit"""


@dataclasses.dataclass(frozen=True)
class Task(Objective):
  """A kind of downstream task.

  `tasks.batches` makes its windows from `Features`; nothing is corrupted. A batch holds tokens and
  segments [B, L] (0 padding; equal numbers attend to each other) and the arrays of
  `Features.aligned` [B, L]. A row has E slots, one segment each. Each slot has `extract` [B, E],
  its summary position; `weight` [B, E], 0.0 for an empty slot; and the other `Features.values`.
  Without packing, E is 1.
  """

  limits = intervals(auxiliary='[0, 1e6]', head_dropout='[-1, 1)')

  head: ClassVar[str]
  """name of the head among those of the family, such as label, tags, span or choice"""
  output_unit: ClassVar[OutputUnit]
  """what the head has outputs for"""

  token_arrays: ClassVar[tuple[str, ...]] = ()
  """arrays [B, L] that the loss reads"""
  slot_arrays: ClassVar[tuple[str, ...]] = ('label',)
  """arrays [B, E] that the loss reads"""
  resolved_fields: ClassVar[tuple[str, ...]] = ('labels', 'words')
  """fields that follow from the training examples if they are not given"""
  row_unit: ClassVar[str] = 'rows'
  """what a progress bar counts"""

  family: str = 'bert'
  """model family (model_type of transformers) that determines the head and the input format"""
  labels: tuple[str, ...] = ()
  """class names. If empty, the sorted labels of the training examples."""
  words: tuple[int, ...] = ()
  """ids of the label words of the classes, for a family that classifies by cloze (GLM). If empty,
  the first token of each class name."""
  cut: Truncation = 'longest'
  """text that is truncated if two are too long for a row"""
  regularizer: Regularizer = Plain()
  """regularizer of training"""
  auxiliary: float = 0.0
  """weight (lambda) of an auxiliary language-modeling loss, for decoders (Radford et al. 2018,
  section 3.2: 0.5)"""
  head_dropout: float = -1.0
  """dropout of the head's input. -1 means the dropout of the family."""

  # Examples and features.

  @property
  def input_format(self) -> InputFormat:
    """Input format of the family."""
    return get_input_format(self.family)

  @property
  @abc.abstractmethod
  def example_format(self) -> ExampleFormat:
    """Format of the examples that the task predicts."""

  @property
  def train_format(self) -> ExampleFormat:
    """Format of training examples; `example_format` by default."""
    return self.example_format

  @property
  def example_kind(self) -> str:
    """Name of `example_format`."""
    return self.example_format.name

  @classmethod
  def from_spec(cls, spec: Any, **fields: Any) -> 'Task':
    """Make the task of a published `registry.TaskSpec`; fields: family, labels and cut."""
    return cls(**fields)

  def training_examples(self, examples: Sequence[Example]) -> Sequence[Example]:
    """Convert training examples, unchanged by default. Raises ConfigError for an invalid one."""
    return examples

  def fit_to_training(self, examples: Sequence[Example]) -> 'Task':
    """Return the task with the fields that follow from the training examples."""
    return self

  @property
  def fits_development(self) -> bool:
    """Whether `fit_to_development` returns fields."""
    return False

  def fit_to_development(
      self, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, Any]:
    """Return fields that are chosen on the first development set after training."""
    return {}

  @property
  def prompts(self) -> dict[str, str]:
    """Texts before each 'query' and each 'document', where the task has them."""
    return {}

  def export_attributes(self) -> dict[str, Any]:
    """Return attributes of the task in the config.json of an export to transformers."""
    return {}

  def describe_truncation(self, clipped: int) -> str:
    """Describe truncated examples and what helps; '': longer rows do, as for most tasks."""
    return ''

  @property
  def windows_advice(self) -> str:
    """How to read long texts in windows; '': the task cannot, or does."""
    return ''

  def limit_length(self, longest: int) -> 'Task':
    """Return the task for a model whose rows have at most `longest` tokens."""
    return self

  @property
  @abc.abstractmethod
  def classes(self) -> int:
    """C, number of outputs of the head per row or token."""

  @abc.abstractmethod
  def features(self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Make rows of at most `length` tokens. Raises ConfigError for an example that does not fit."""

  def training_features(
      self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Make the rows of training examples; by default, as `features` does."""
    return self.features(examples, tokenizer, length)

  # Model and loss.

  def heads(self, model: Any) -> dict[str, nn.Module]:
    """Return the family's head for the task, and its LM head if there is an auxiliary loss."""
    heads = {self.head: conversion.build_head(
        self.family, self.head, model, self.classes, self.words)}
    if self.auxiliary:
      heads['lm'] = conversion.build_head(self.family, 'lm', model, self.classes, ())
    if self.head_dropout >= 0 and hasattr(heads[self.head], 'dropout'):
      heads[self.head] = heads[self.head].clone(dropout=self.head_dropout)
    return heads

  @property
  def terms(self) -> Mapping[str, float]:
    """The task's own loss with weight 1, and the auxiliary language-modeling loss."""
    if self.auxiliary:
      return {self.head: 1.0, 'lm': self.auxiliary}
    return {self.head: 1.0}

  @abc.abstractmethod
  def task_loss(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Compute (sum, weight) of the task's loss, by the head's name, and of NAME_accuracy if any."""

  def loss(self, outputs, batch):
    """Compute the task's losses, and `lm`, next-token prediction within each text."""
    losses = self.task_loss(outputs, batch)
    if self.auxiliary:
      segments = batch['segments']
      next_segments = jnp.pad(segments[:, 1:], ((0, 0), (0, 1)))
      next_tokens = jnp.pad(batch['tokens'][:, 1:], ((0, 0), (0, 1)))
      weight = ((segments > 0) & (segments == next_segments)).astype(jnp.float32)
      losses |= classification_losses('lm', outputs['lm'], next_tokens, weight)
    return losses

  def losses(self, passes, batch):
    """Compute the losses of a training step, by the regularizer."""
    return self.regularizer(self, passes, batch)

  def logits_and_weights(
      self, outputs: Mapping[str, jax.Array], batch: Arrays) -> tuple[jax.Array, jax.Array]:
    """Return what a regularizer compares: logits [..., C], and weights that broadcast to [...]."""
    return outputs[self.head], batch['marks' if self.output_unit == 'token' else 'weight']

  @property
  def step_traits(self) -> StepTraits:
    """Gradients of the embeddings, where the regularizer perturbs them."""
    return StepTraits(perturbs_inputs=self.regularizer.perturbs_inputs)

  # Prediction and metrics.

  def prediction_inputs(self, outputs: Mapping[str, Any]) -> jax.Array:
    """Select the head outputs that `predict` gets, with the axes of `output_unit`."""
    return outputs[self.head]

  @abc.abstractmethod
  def predict(self, examples: Sequence[Example], features: Features, outputs: Sequence[np.ndarray]
              ) -> list[Any]:
    """Predict examples, in their order.

    outputs: head outputs of each feature: [C]; [tokens, C] for tags; [tokens, 2] for a span; [] for
      a choice.
    """

  def compact_prediction(self, prediction: Any) -> Any:
    """Reduce a prediction to what `scores` reads; predictions of a large file are kept."""
    return prediction

  @abc.abstractmethod
  def scores(self, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
    """Compute the task's metrics, in percent, the main metric first."""

  @property
  @abc.abstractmethod
  def metric_names(self) -> tuple[str, ...]:
    """Metrics that `scores` may return; the first is the main metric, which selects checkpoints."""

  @property
  def has_heldout_loss(self) -> bool:
    """Whether the training loss is computed on development sets, as the metric `loss`."""
    return True

  def heldout(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Compute (sum, weight) of the losses on development sets: those of training, or none."""
    if not self.has_heldout_loss:
      return {}
    return self.loss(outputs, batch)

  @property
  def reporting(self) -> Reporting:
    return TaskReporting()

  # Cached features of a frozen backbone.

  @property
  def feature_cache(self) -> 'FeatureCache':
    """What the head reads of a frozen backbone."""
    return FeatureCache(self.output_unit)

  # Runs and batches.

  def run_conflict(self, run: Any) -> str | None:
    """Describe options of a run (`config.FinetuneRun`) that the task does not support."""
    if run.model.kind == 'recurrent':
      return ('an ELMo learns tagging, and classification or regression of one text: '
              'RecurrentTagging, RecurrentSequence')
    return None

  def shapes(self, rows, length, layout=None):
    """Return the shapes of a batch, with one example per row."""
    def shape(*size, dtype=jnp.int32):
      return jax.ShapeDtypeStruct(size, dtype, sharding=layout)
    shapes = dict.fromkeys(('tokens', 'segments', 'types', *self.token_arrays), shape(rows, length))
    shapes |= dict.fromkeys(('extract', *self.slot_arrays), shape(rows, 1))
    return shapes | {'weight': shape(rows, 1, dtype=jnp.float32)}

  def corrupt(self, key: jax.Array, windows: Arrays, vocab: Any) -> Arrays:
    """Add the inputs of the model family's format; nothing is corrupted."""
    if 'output' in windows:
      return windows
    return self.input_format.add_model_inputs(windows, vocab)

  def max_predictions(self, length: int) -> int:
    return 0


@dataclasses.dataclass(frozen=True)
class FeatureCache:
  """What a head reads of a frozen backbone: it is computed once and kept."""

  unit: OutputUnit
  """unit of the backbone outputs that the head reads"""

  def states(self, output: Any) -> jax.Array:
    """Return what the head reads of each token, [B, L, ...], if it reads nothing else."""
    return output.hidden

  def make_output(self, kept: Any) -> Any:
    """Make a backbone output of cached states."""
    return Output(kept, None, None)  # pyright: ignore[reportArgumentType]


class TaskReporting(Reporting):
  """Metrics in percent, and losses."""

  def higher_is_better(self, figure):
    return not figure.endswith('loss')

  def format_metric(self, figure, value, digits=3):
    return f'{value:.{digits if figure.endswith("loss") else 2}f}'


def softmax(logits: np.ndarray) -> np.ndarray:
  """Compute softmax probabilities of logits [..., C], in float64."""
  logits = np.asarray(logits, np.float64)
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers / powers.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
  """Compute sigmoid probabilities of logits [...], in float64."""
  logits = np.asarray(logits, np.float64)
  powers = np.exp(-np.abs(logits))
  return np.where(logits >= 0, 1, powers) / (1 + powers)
