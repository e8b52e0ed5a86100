"""The contract of downstream tasks: a reader of examples, a head, a loss, decoding and metrics.

`tasks.objective` makes the objective of a training step from a task.
"""
import abc
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from plm_jax import conversion
from plm_jax.architectures import Output
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.metrics.calibration import Bin, confidence_bins, fit_temperature
from plm_jax.objectives import Arrays, Losses
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.example_formats import ExampleFormat
from plm_jax.tasks.features import Features
from plm_jax.tasks.input_formats import InputFormat, Truncation, get_input_format
from plm_jax.tasks.regularizers import Plain, Regularizer
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import ValidatedConfig, intervals

OutputUnit = Literal['slot', 'token', 'row']
"""what a head has outputs for: texts, tokens, or whole rows"""
DEFAULT_ROW_LENGTH = 512
"""maximum tokens per row for a model without a limit"""
SPEC_FIELDS = 'measures', 'unanswerable', 'script'
PER_TOKEN = -1
"""axis of the tokens of a row, in `Task.loss_arrays`"""


@dataclasses.dataclass(frozen=True)
class Task(ValidatedConfig, abc.ABC):
  """A kind of downstream task.

  A new kind defines `example_format`, `head`, `features`, `loss`, `predict` and `scores`, and
  overrides what differs from the defaults.

  `tasks.batches` makes batches from `Features`. A batch holds tokens and segments [B, L] (0
  padding; equal numbers attend to each other) and the arrays of `Features.aligned` [B, L]. A row
  has E slots, one segment each. Each slot has `extract` [B, E], its summary position; `weight`
  [B, E], 0.0 for an empty slot; and the other `Features.values`. Without packing, E is 1.
  """

  limits = intervals(auxiliary='[0, 1e6]', head_dropout='[-1, 1)')

  head: ClassVar[str]
  """name of the head among those of the family, such as label, tags, span or choice"""
  output_unit: ClassVar[OutputUnit] = 'slot'
  """what the head has outputs for"""
  module_class: ClassVar[type[ModelWithHeads]] = ModelWithHeads
  """module of backbone and heads"""
  head_arrays: ClassVar[tuple[str, ...]] = ()
  """arrays [B, L] that the head reads in addition to what the backbone returns"""
  own_vocabulary: ClassVar[bool] = False
  """whether the tokenizer is a word list of the task, which the backbone does not know"""
  resolved_fields: ClassVar[tuple[str, ...]] = ('labels', 'words')
  """fields that follow from the training examples if they are not given"""
  lower_is_better: ClassVar[tuple[str, ...]] = ()
  """metrics of `scores` that are better when they are lower, and no percentages, such as the mean
  absolute error"""
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

  # Reader: examples and features.

  @property
  @abc.abstractmethod
  def example_format(self) -> ExampleFormat:
    """Format of the examples that the task predicts."""

  @abc.abstractmethod
  def features(self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Make rows of at most `length` tokens. Raises ConfigError for an example that does not fit."""

  @property
  def input_format(self) -> InputFormat:
    """Input format of the family."""
    return get_input_format(self.family)

  @property
  def train_format(self) -> ExampleFormat:
    """Format of training examples; `example_format` by default."""
    return self.example_format

  @property
  def example_kind(self) -> str:
    """Name of `example_format`."""
    return self.example_format.name

  def training_examples(self, examples: Sequence[Example]) -> Sequence[Example]:
    """Convert training examples, unchanged by default. Raises ConfigError for an invalid one."""
    return examples

  def training_features(
      self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Make the rows of training examples; by default, as `features` does."""
    return self.features(examples, tokenizer, length)

  def describe_truncation(self, clipped: int) -> str:
    """Describe truncated examples and what helps; '': longer rows do, as for most tasks."""
    return ''

  @property
  def windows_advice(self) -> str:
    """How to read long texts in windows; '': the task cannot, or does."""
    return ''

  # Head and loss.

  @property
  def classes(self) -> int:
    """C, number of outputs of the head per row or token."""
    return max(2, len(self.labels))

  def heads(self, model: Any) -> dict[str, nn.Module]:
    """Return the heads that `loss` reads: that of the family, by default."""
    return {self.head: conversion.build_head(
        self.family, self.head, model, self.classes, self.words)}

  @abc.abstractmethod
  def loss(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Compute (sum, weight) of the losses in `terms`, and of NAME_accuracy if any."""

  @property
  def terms(self) -> tuple[str, ...]:
    """Names of the losses that training minimizes, with equal weights."""
    return (self.head,)

  @property
  def cross_row(self) -> bool:
    """Whether the loss of an example depends on other examples of the batch."""
    return False

  @property
  def frozen(self) -> tuple[str, ...]:
    """Parameters that are not trained, as patterns of `trainable.match_parameters`."""
    return ()

  @property
  def pretrained_heads(self) -> tuple[str, ...]:
    """Heads that the initial model must have."""
    return ()

  @property
  def changes_over_run(self) -> bool:
    """Whether the loss depends on the fraction of the run's steps that is done. Batches of training
    then have `progress` [B]."""
    return False

  @property
  def has_heldout_loss(self) -> bool:
    """Whether the training loss is computed on development sets, as the metric `loss`."""
    return True

  @property
  def group_size(self) -> int:
    """Rows per example in the batch from which shapes are computed; 1: there are no groups."""
    return 1

  @property
  def loss_arrays(self) -> Mapping[str, tuple[int, ...]]:
    """Arrays of a batch that the loss reads -> axes after that of the rows, without packing."""
    return {'label': (1,)}

  def logits_and_weights(
      self, outputs: Mapping[str, jax.Array], batch: Arrays) -> tuple[jax.Array, jax.Array]:
    """Return what a regularizer compares: logits [..., C], and weights that broadcast to [...]."""
    return outputs[self.head], batch['marks' if self.output_unit == 'token' else 'weight']

  @property
  def feature_cache(self) -> 'FeatureCache':
    """What the head reads of a frozen backbone."""
    return FeatureCache(self.output_unit)

  # Decoding and metrics.

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
    """Compute the task's metrics, in percent but for `lower_is_better`, the main metric first."""

  @property
  def metric_names(self) -> tuple[str, ...]:
    """Metrics that `scores` may return; the first is the main metric, which selects checkpoints."""
    return self.example_format.measures

  # Runs and exports.

  @property
  def added_tokens(self) -> tuple[str, ...]:
    """Tokens of its rows, which are added to a tokenizer that lacks them."""
    return ()

  @classmethod
  def from_spec(cls, spec: Any, **fields: Any) -> 'Task':
    """Make the task of a published `registry.TaskSpec`; fields: family, labels and cut.

    A kind that has the fields `measures`, `unanswerable` or `script` takes them from `spec`.
    """
    for name in {field.name for field in dataclasses.fields(cls)}.intersection(SPEC_FIELDS):
      fields[name] = getattr(spec, name)
    return cls(**fields)

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

  def limit_length(self, longest: int) -> 'Task':
    """Return the task for a model whose rows have at most `longest` tokens."""
    return self

  @property
  def prompts(self) -> dict[str, str]:
    """Texts before each 'query' and each 'document', where the task has them."""
    return {}

  def export_attributes(self) -> dict[str, Any]:
    """Return attributes of the task in the config.json of an export to transformers."""
    return {}

  def run_conflict(self, run: Any) -> str | None:
    """Describe options of a run (`config.FinetuneRun`) that the task does not support."""
    if run.model.kind == 'recurrent':
      return ('an ELMo learns tagging, and classification or regression of one text: '
              'RecurrentTagging, RecurrentSequence')
    return None


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


class Decisions(NamedTuple):
  """Decisions between classes: of texts, of labels of texts, or of words."""

  logs: np.ndarray
  """logarithms of the probabilities of classes [N, C]"""
  labels: np.ndarray
  """true classes [N]"""


@dataclasses.dataclass(frozen=True)
class CalibratedTask(Task):
  """A task with probabilities of classes, which temperature scaling calibrates."""

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


# SciPy has both, but predictions from the shell would wait for its import.


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
