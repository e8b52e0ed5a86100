"""Sequence classification and regression of a text or a pair of texts (Devlin et al. 2019, 4.1)."""
from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.metrics.tasks import METRICS
from plm_jax.objectives.mlm import classification_losses
from plm_jax.tasks.contract import Task, softmax
from plm_jax.tasks.example_formats import CLASSIFICATION, REGRESSION
from plm_jax.tasks.examples import Example, Features
from plm_jax.tasks.input_formats import collect_rows
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab


class ClassPrediction(NamedTuple):
  """The predicted class or value of an example."""

  label: int | float
  """index of the class; value of a regression"""
  probabilities: np.ndarray
  """of each class [C]; empty for a regression [0]"""


@dataclasses.dataclass(frozen=True)
class SequenceTask(Task):
  """Sequence classification or regression of one text or two, by the row's summary token."""

  head: ClassVar[str] = 'label'
  output_unit: ClassVar = 'slot'

  regression: bool = False
  """whether the label is a number, learned by the squared error"""
  measures: tuple[str, ...] = ('accuracy',)
  """metrics to compute (`metrics.tasks.METRICS`); the first selects the best checkpoint"""

  def conflict(self, option):
    """Describe unknown metrics."""
    unknown = [name for name in self.measures if name not in METRICS]
    if unknown:
      return f'{option("measures")} are of {", ".join(METRICS)}, got {", ".join(unknown)}'
    return None

  @property
  def metric_names(self):
    """The names in `measures`."""
    return tuple(self.measures)

  @property
  def example_format(self):
    """Texts with a class, or with a number."""
    return REGRESSION if self.regression else CLASSIFICATION

  @classmethod
  def from_spec(cls, spec, **fields):
    """Make a published task."""
    regression = spec.kind == REGRESSION.name
    return cls(**fields, regression=regression, measures=spec.measures)

  @property
  def classes(self):
    """Number of classes; 1 for a regression."""
    if self.regression:
      return 1
    return max(2, len(self.labels))

  def features(self, examples, tokenizer, length):
    """Make a row per example. Raises ConfigError for an example of more than two texts."""
    for example in examples:
      if len(example.texts) not in (1, 2):
        raise ConfigError(f'{example.where}: expected a text or two, got {len(example.texts)}')
    all_texts = list(itertools.chain.from_iterable(example.texts for example in examples))
    ids = iter(tokenizer.encode_batch(all_texts))
    texts = [list(itertools.islice(ids, len(example.texts))) for example in examples]
    return self.features_from_ids(examples, texts, tokenizer.vocab, length)

  def features_from_ids(
      self, examples: Sequence[Example], texts: Sequence[Sequence[Sequence[int]]], vocab: Vocab,
      length: int) -> Features:
    """Make a row per example from the token ids of its texts."""
    rows = [self.input_format.make_row(some, vocab, length, self.cut) for some in texts]
    clipped = 0
    for row, some in zip(rows, texts, strict=True):
      clipped += row.kept_lengths != [len(text) for text in some]
    values = {'label': self.label_values(examples), 'weight': label_weights(examples)}
    return collect_rows(rows, values, np.arange(len(rows), dtype=np.int32), clipped=clipped)

  def label_values(self, examples: Sequence[Example]) -> np.ndarray:
    """Return what is learned of each example [N, ...]; 0 where there is no label."""
    dtype = np.float32 if self.regression else np.int32
    return label_array(examples, dtype)

  def task_loss(self, outputs, batch):
    """Compute cross-entropy and accuracy of the slots [B, E], or their squared error."""
    logits, weight = outputs['label'], batch['weight']
    if not self.regression:
      return classification_losses('label', logits, batch['label'], weight)
    error = jnp.square(logits[..., 0].astype(jnp.float32) - batch['label'])
    return {'label': ((error * weight).sum(), weight.sum())}

  def accuracy_targets(self, outputs, batch):
    """Return the classes that accuracy is computed against."""
    del outputs
    if self.regression:
      return {}
    return {'label': (batch['label'], batch['weight'])}

  def predict(self, examples, features, outputs):
    """Return the most likely class, or the value."""
    del examples, features
    if self.regression:
      return [ClassPrediction(float(x[0]), np.zeros(0)) for x in outputs]
    return [ClassPrediction(int(np.argmax(x)), softmax(x)) for x in outputs]

  def compact_prediction(self, prediction):
    """Drop the probabilities."""
    return label_prediction(prediction.label)

  def scores(self, examples, predictions):
    """Compute each of `measures`."""
    return compute_label_metrics(self.measures, examples, predictions)


@functools.lru_cache(maxsize=65536)
def label_prediction(label: float) -> ClassPrediction:
  """Return a prediction without probabilities, the same object for equal labels."""
  return ClassPrediction(label, np.zeros(0))


def label_weights(examples: Sequence[Example]) -> np.ndarray:
  """Return loss weights [N]: 1.0 for an example with a label, else 0.0."""
  return np.array([example.label is not None for example in examples], np.float32)


def label_array(examples: Sequence[Example], dtype: Any) -> np.ndarray:
  """Return the labels of examples [N]; 0 where there is none."""
  return np.array([example.label or 0 for example in examples], dtype)


def compute_label_metrics(
    names: Sequence[str], examples: Sequence[Example], predictions: Sequence[Any]
) -> dict[str, float]:
  """Compute metrics of labels by their names, in percent.

  Args:
    names: of `metrics.tasks.METRICS`.
    examples: with labels.
    predictions: with the attribute `label`.
  """
  truth = np.asarray([example.label for example in examples])
  predicted = np.asarray([prediction.label for prediction in predictions])
  return {name: float(METRICS[name](truth, predicted)) for name in names}


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
  """Encode texts; a text that occurs several times is encoded once."""
  distinct = list(dict.fromkeys(texts))
  ids = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
  return [ids[text] for text in texts]
