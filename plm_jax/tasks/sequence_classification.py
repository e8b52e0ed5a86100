"""Sequence classification and regression of a text or a pair of texts (Devlin et al. 2019, 4.1)."""
from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.metrics.calibration import log_probabilities
from plm_jax.metrics.tasks import METRICS
from plm_jax.objectives.mlm import classification_losses
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import CalibratedTask, Decisions
from plm_jax.tasks.document_windows import WindowPooling, combine_windows, window_starts
from plm_jax.tasks.example_formats import CLASSIFICATION, REGRESSION
from plm_jax.tasks.features import Features
from plm_jax.tasks.input_formats import InputRow, collect_rows
from plm_jax.tasks.outputs import Value
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab
from plm_jax.validation import intervals


class ClassPrediction(NamedTuple):
  """The predicted class of an example."""

  label: int
  """index of the class"""
  probabilities: np.ndarray
  """of each class [C]; empty if they are not known"""


@dataclasses.dataclass(frozen=True)
class SequenceTask(CalibratedTask):
  """Sequence classification or regression of one text or two, by the row's summary token."""

  head: ClassVar[str] = 'label'

  known_measures: ClassVar[tuple[str, ...]] = tuple(METRICS)
  """names of metrics that `measures` may have"""
  resolved_fields: ClassVar = ('labels', 'words', 'class_weights')
  limits = intervals(class_weights='(0, 1e6]', focal='[0, 100]')
  counts_with: ClassVar = {
      'stride': ('windows', ('mean', 'max')), 'balanced': ('class_weights', [()]),
      'temperature': ('calibrate', (False,))}

  regression: bool = False
  """whether the label is a number, learned by the squared error"""
  measures: tuple[str, ...] = ('accuracy',)
  """metrics to compute (`metrics.tasks.METRICS`; of several labels, `metrics.multilabel`); the
  first selects the best checkpoint"""
  balanced: bool = False
  """weight classes by the inverse of their frequency in the training examples, so that all classes
  count the same"""
  class_weights: tuple[float, ...] = ()
  """weight of each class in the loss, in the order of the class names; for several labels, of the
  examples that have the label. Empty: equal weights, or those of `balanced`"""
  focal: float = 0.0
  """exponent gamma of the focal loss, which gives less weight to examples that are classified well
  (Lin et al. 2017, equation 4: 2). 0: cross-entropy"""
  windows: WindowPooling = 'off'
  """sliding windows for texts that are longer than a row. off: a text is truncated; mean, max: a
  text is the mean or the largest of the logits of its windows. Each window learns the label, with a
  weight of 1 / windows. Of two texts, the second is divided"""
  stride: int = 0
  """tokens between the starts of consecutive windows; 0: three quarters of a window"""

  def conflict(self, option):
    unknown = [name for name in self.measures if name not in self.known_measures]
    if unknown or not self.measures:
      return (f'{option("measures")} are of {", ".join(self.known_measures)}, got '
              f'{", ".join(unknown) or "none"}')
    weights = len(self.class_weights)
    if self.regression and (weights or self.balanced or self.focal or self.calibrate):
      return (f'{option("class_weights")}, {option("balanced")}, {option("focal")} and '
              f'{option("calibrate")} are for classes, and a regression has none')
    if weights and self.labels and weights != len(self.labels):
      return (f'{option("class_weights")} are one per class, {len(self.labels)}, got {weights}')
    return None

  def run_conflict(self, run):
    """Describe augmentation of texts that are read in windows."""
    if run.data.augment.share and self.windows != 'off':
      return (f'{name_field("data.augment.share")} changes the length of texts, and so the number '
              f'of windows that {name_field("objective.windows")}={self.windows} makes of them: '
              'leave out one of the two')
    return super().run_conflict(run)

  @property
  def metric_names(self):
    return tuple(self.measures)

  @property
  def example_format(self):
    return REGRESSION if self.regression else CLASSIFICATION

  @classmethod
  def from_spec(cls, spec, **fields):
    return super().from_spec(spec, **fields, regression=spec.kind == REGRESSION.name)

  @property
  def classes(self):
    return 1 if self.regression else super().classes

  def features(self, examples, tokenizer, length):
    """Make a row per example. Raises ConfigError for an example of more than two texts."""
    for example in examples:
      if len(example.texts) not in (1, 2):
        raise ConfigError(f'{example.where}: expected a text or two, got {len(example.texts)}')
    return self.features_from_ids(
        examples, encode_examples(tokenizer, examples), tokenizer.vocab, length)

  def features_from_ids(
      self, examples: Sequence[Example], texts: Sequence[Sequence[Sequence[int]]], vocab: Vocab,
      length: int) -> Features:
    """Make a row per example, or per window of it, from the token ids of its texts."""
    if self.windows == 'off':
      rows = [self.input_format.make_row(some, vocab, length, self.cut) for some in texts]
      values = {'label': self.label_values(examples), 'weight': label_weights(examples)}
      return collect_rows(rows, values, np.arange(len(rows), dtype=np.int32))
    windows = [self.window_rows(some, vocab, length) for some in texts]
    counts, rows = list(map(len, windows)), list(itertools.chain.from_iterable(windows))
    numbers = np.repeat(np.arange(len(texts), dtype=np.int32), counts)
    weights = label_weights(examples) / np.array(counts, np.float32)
    values = {'label': self.label_values(examples)[numbers], 'weight': weights[numbers]}
    return collect_rows(rows, values, numbers)

  def window_rows(
      self, texts: Sequence[Sequence[int]], vocab: Vocab, length: int) -> list[InputRow]:
    """Make the rows of an example, one per window of its last text."""
    room = length - self.input_format.count_special(vocab, len(texts))
    first = [text[:max(room // 2, room - len(texts[-1]))] for text in texts[:-1]]
    room -= sum(map(len, first))
    if room < 1:
      return [self.input_format.make_row(texts, vocab, length, self.cut)]
    rows = [
        self.input_format.make_row([*first, texts[-1][start:start + room]], vocab, length, 'none')
        for start in window_starts(len(texts[-1]), room, self.stride)]
    rows[0] = rows[0]._replace(lost=sum(map(len, texts[:-1])) - sum(map(len, first)))
    return rows

  @property
  def windows_advice(self):
    advice = f'{name_field("objective.windows")}=mean reads all, in windows'
    return advice if self.windows == 'off' else ''

  def document_outputs(
      self, features: Features, outputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return the head outputs of each example, combined from those of its windows."""
    if self.windows == 'off':
      return outputs
    return combine_windows(outputs, features.example, self.windows)

  def label_values(self, examples: Sequence[Example]) -> np.ndarray:
    """Return what is learned of each example [N, ...]; 0 where there is no label."""
    dtype = np.float32 if self.regression else np.int32
    return label_array(examples, dtype)

  def fit_to_training(self, examples):
    """Set class weights, if they are balanced and not given."""
    if not self.balanced or self.class_weights:
      return self
    return dataclasses.replace(self, class_weights=self.balanced_weights(examples))

  def balanced_weights(self, examples: Sequence[Example]) -> tuple[float, ...]:
    """Return weights whose mean over the examples is 1; 1 for a class without examples.

    They are those of scikit-learn's 'balanced': examples / (classes * examples of the class).
    """
    labels: Any = [example.label for example in examples if example.label is not None]
    counts = np.bincount(labels, minlength=self.classes)
    weights = np.where(counts, len(labels) / (self.classes * np.maximum(counts, 1)), 1.0)
    return tuple(float(f'{weight:.6g}') for weight in weights)

  def loss(self, outputs, batch):
    """Compute cross-entropy and accuracy of the slots [B, E], or their squared error.

    With class weights the loss is the weighted mean, as CrossEntropyLoss of PyTorch.
    """
    logits, weight = outputs['label'], batch['weight']
    if not self.regression:
      labels, loss_weight = batch['label'], weight
      if self.class_weights:
        loss_weight = weight * jnp.asarray(self.class_weights, jnp.float32)[labels]
      found = classification_losses('label', logits, labels, loss_weight, weight)
      if self.focal:
        found['label'] = focal_loss(logits, labels, loss_weight, self.focal)
      return found
    error = jnp.square(logits[..., 0].astype(jnp.float32) - batch['label'])
    return {'label': ((error * weight).sum(), weight.sum())}

  def predict(self, examples, features, outputs):
    outputs = self.document_outputs(features, outputs)
    if self.regression:
      return [Value(float(x[0])) for x in outputs]
    return [ClassPrediction(int(np.argmax(x)), self.class_probabilities(x)) for x in outputs]

  def decisions(self, examples, predictions):
    """Return a decision per example; None for a regression."""
    if self.regression:
      return None
    pairs = zip(examples, predictions, strict=True)
    logs = [log_probabilities(found.probabilities) for one, found in pairs if one.label is not None]
    labels = [example.label for example in examples if example.label is not None]
    return Decisions(np.array(logs).reshape(-1, self.classes), np.array(labels, int))

  def compact_prediction(self, prediction):
    return prediction if self.regression else label_prediction(prediction.label)

  def scores(self, examples, predictions):
    found = [one.value if self.regression else one.label for one in predictions]
    return compute_label_metrics(self.measures, examples, found)


def focal_loss(
    logits: jax.Array, labels: jax.Array, weight: jax.Array, gamma: float
) -> tuple[jax.Array, jax.Array]:
  """Compute the focal loss (1 - p) ** gamma * -log p (Lin et al. 2017) as (sum, weight).

  Args:
    logits: [..., C].
    labels: [...].
    weight: of each label [...].
    gamma: exponent.
  """
  logs = jax.nn.log_softmax(logits.astype(jnp.float32))
  log_p = jnp.take_along_axis(logs, labels[..., None], -1)[..., 0]
  # expm1 keeps 1 - p exact for p near 1. The lower limit keeps the gradient of its power finite.
  rest = jnp.clip(-jnp.expm1(log_p), 1e-12, 1.0)
  return (-(rest ** gamma) * log_p * weight).sum(), weight.sum()


@functools.lru_cache(maxsize=65536)
def label_prediction(label: int) -> ClassPrediction:
  """Return a prediction without probabilities, the same object for equal labels."""
  return ClassPrediction(label, np.zeros(0))


def label_weights(examples: Sequence[Example]) -> np.ndarray:
  """Return loss weights [N]: 1.0 for an example with a label, else 0.0."""
  return np.array([example.label is not None for example in examples], np.float32)


def label_array(examples: Sequence[Example], dtype: Any) -> np.ndarray:
  """Return the labels of examples [N]; 0 where there is none."""
  return np.array([example.label or 0 for example in examples], dtype)


def compute_label_metrics(
    names: Sequence[str], examples: Sequence[Example], predicted: Sequence[float]
) -> dict[str, float]:
  """Compute metrics of labels by their names, in percent.

  Args:
    names: of `metrics.tasks.METRICS`.
    examples: with labels.
    predicted: labels.
  """
  truth = np.asarray([example.label for example in examples])
  return {name: float(METRICS[name](truth, np.asarray(predicted))) for name in names}


def encode_examples(tokenizer: Tokenizer, examples: Sequence[Example]) -> list[list[list[int]]]:
  """Encode the texts of examples."""
  texts = itertools.chain.from_iterable(example.texts for example in examples)
  ids = iter(tokenizer.encode_batch(list(texts)))
  return [list(itertools.islice(ids, len(example.texts))) for example in examples]


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
  """Encode texts; a text that occurs several times is encoded once."""
  distinct = list(dict.fromkeys(texts))
  ids = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
  return [ids[text] for text in texts]
