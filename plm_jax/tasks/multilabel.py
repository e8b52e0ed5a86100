"""Multi-label classification: a text or a pair of texts with any number of labels.

Each label is a decision of its own: the sigmoid of its logit is its probability, and it is
predicted where the probability is above its threshold (Tsoumakas and Katakis 2007, binary
relevance). Files have a list of labels, labels in one text with separators, or a column of 0 and 1
for each label.
"""
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import json
import re
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.metrics import multilabel as metrics
from plm_jax.metrics.calibration import log_probabilities
from plm_jax.metrics.multilabel import DEFAULT_THRESHOLD, MULTILABEL_METRICS, Tuning
from plm_jax.sources import row_readers
from plm_jax.sources.class_names import (
  MULTI_LABEL_NOTE,
  format_label,
  is_missing,
  name_classes,
  parse_collection,
)
from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import KEY_COLUMNS, Columns, RawExample, UnreadableRow
from plm_jax.tasks.contract import Decisions, sigmoid
from plm_jax.tasks.example_formats import Classification
from plm_jax.tasks.outputs import Labels
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.validation import intervals

SEPARATORS = ('|', ';', ',')
NUMBERS = re.compile(r'[0-9]+([ \t]+[0-9]+)*')
INDICATORS = {'0': False, '1': True, '0.0': False, '1.0': True, 'false': False, 'true': True}
HIDDEN = ('', '-1')  # of 0 and 1, where labels are not published


class Indicators(NamedTuple):
  """Labels of a row with a column for each label."""

  names: tuple[str, ...]
  """of all labels, in the order of the columns"""
  chosen: tuple[str, ...]
  """those of the row"""


class MultiLabelPrediction(NamedTuple):
  """The predicted labels of an example."""

  label: tuple[int, ...]
  """their indices, ascending"""
  probabilities: np.ndarray
  """of each label [C]"""


class MultiLabel(Classification):
  """A text or a pair of texts with any number of labels."""

  name = 'multilabel'
  columns = Columns(
      'text|sentence|comment_text|comment|content|review|title|question|abstract',
      label='labels|label|gold_label|classes|categories|topics|genres|emotions|tags')
  measures = MULTILABEL_METRICS
  hides_labels = False

  def guess_columns(self, columns, row):
    """Fill in the columns; without a column of labels, those of 0 and 1 are labels."""
    found = super().guess_columns(columns, row)
    if not columns.label and row_readers.column_value(row, found.label) is None:
      texts = set(re.split(r'[|+]', f'{found.first}|{found.second}'))
      others = texts.union(KEY_COLUMNS)
      names = [name for name, value in row.columns.items()
               if name not in others and parse_indicator(value) is not None]
      if len(names) > 1:
        return dataclasses.replace(found, label=','.join(names))
    return found

  def read(self, row, columns):
    if ',' in columns.label:
      item = row_readers.read_sequence(row, dataclasses.replace(columns, label=''))
      try:
        return item._replace(label=read_indicators(row, columns.label.split(',')))
      except UnreadableRow as error:
        error.unlabeled = item
        raise
    item = row_readers.read_sequence(row, columns)
    if columns.separator and isinstance(item.label, str):
      return item._replace(label=split_labels(item.label, columns.separator))
    return item

  def normalize_labels(self, source, part, names, notes):
    """Rewrite labels as lists. An empty text is an empty list if other rows have labels."""
    if all(is_missing(item.label) for item in part):
      return [item._replace(label=None) for item in part]
    part = [item._replace(label=parse_list(item.label)) for item in part]
    texts = [item.label for item in part if isinstance(item.label, str)]
    separator = find_separator(texts)
    if separator and not names:
      notes.append(f'labels are separated by {separator!r}')
    part = [item._replace(label=to_list(item.label, separator, names)) for item in part]
    vectors = [item.label for item in part if type(item.label) is list]
    if not are_multi_hot(vectors, names):
      return part
    notes.append(f'labels are vectors of 0 and 1, for {len(vectors[0])} labels')
    all_names = tuple(names) or tuple(map(str, range(len(vectors[0]))))
    return [choose_labels(item, all_names) for item in part]

  def list_labels(self, raw, notes):
    """List the labels: columns in their order, numbers in numeric order, others sorted."""
    columns: dict[str, None] = {}
    labels = []
    for item in raw:
      if isinstance(item.label, Indicators):
        columns |= dict.fromkeys(item.label.names)
      elif isinstance(item.label, list):
        labels += item.label
    if columns:
      return tuple(columns)
    names, found = name_classes(labels)
    notes += [note for note in found if MULTI_LABEL_NOTE not in note]
    return names

  def parse_label(self, item, classes):
    label = item.label
    numbers = set()
    for one in label.chosen if isinstance(label, Indicators) else label:
      if is_missing(one):
        raise UnreadableRow(
            'empty label', f'{item.example.where}: one of the labels is empty')
      numbers.add(row_readers.parse_class(one, classes, item.example.where))
    return tuple(sorted(numbers))

  def note_labels(self, raw, names, notes):
    """Count the examples without labels."""
    labels = [item.label for item in raw]
    chosen = [one.chosen if isinstance(one, Indicators) else one for one in labels]
    empty = sum(some in ([], ()) for some in chosen)
    if empty:
      notes.append(f'{empty:,} examples have none of the labels')

  def name_prediction(self, task, example, prediction, text, starts):
    probabilities = [float(share) for share in prediction.probabilities]
    return Labels([task.labels[number] for number in prediction.label],
                  dict(zip(task.labels, probabilities, strict=True)))

  def name_truth(self, task, example):
    labels = example.label
    return None if labels is None else [task.labels[number] for number in labels]

  def table_fields(self, one, named, truth):
    """Return the cells of a row; labels are joined by a separator that no label contains."""
    if truth is not None:
      truth = join_labels(truth, named.probabilities)
    return super().table_fields(one, named, truth)

  def prediction_cells(self, named):
    return {'labels': join_labels(named.labels, named.probabilities)}

  def confidence(self, example, prediction):
    """Return the largest probability of a wrong decision; of all decisions if none is wrong."""
    shares = np.array(prediction.probabilities, np.float64)
    found = indicate([prediction.label], len(shares))[0]
    shares = np.where(found, shares, 1 - shares)
    truth: Any = example.label or ()
    wrong = indicate([truth], len(shares))[0] != found
    return float(shares[wrong].max() if wrong.any() else shares.min())

  def describe_label(self, task, example, label):
    return ', '.join(task.labels[number] for number in label or ()) or 'no label'

  def describe_prediction(self, task, example, prediction):
    parts = [f'{task.labels[number]} ({prediction.probabilities[number]:.1%})'
             for number in prediction.label]
    return ', '.join(parts) or 'no label'

  def count_confusion(self, task, found):
    """Return None: an example has several labels."""

  def score_classes(self, task, found):
    labels: Any = [example.label or () for example, _ in found]
    truth = indicate(labels, len(task.labels))
    predicted = indicate([prediction.label for _, prediction in found], len(task.labels))
    return metrics.per_label_scores(truth, predicted, task.labels)


@dataclasses.dataclass(frozen=True)
class MultiLabelTask(SequenceTask):
  """Multi-label classification by sigmoids of the classifier's logits.

  The loss is the mean binary cross-entropy of all labels, as BCEWithLogitsLoss of PyTorch.
  `class_weights` are weights of the positive examples of each label (pos_weight there).
  """

  known_measures: ClassVar = MULTILABEL_METRICS
  limits = intervals(thresholds='[0, 1)')

  measures: tuple[str, ...] = MULTILABEL_METRICS
  thresholds: tuple[float, ...] = (DEFAULT_THRESHOLD,)
  """a label is predicted where its probability is above this: one threshold, or one per label"""
  tune_thresholds: Tuning = 'no'
  """thresholds to tune on the first development set after training, by F1: none; one for all
  labels; one for each label. Metrics during training are at `thresholds`"""

  def conflict(self, option):
    if self.regression:
      return f'{option("regression")} is for numbers, not for labels'
    count = len(self.thresholds)
    if count != 1 and (not count or (self.labels and count != len(self.labels))):
      wanted = f'one, or {len(self.labels)}' if self.labels else 'one, or one per label'
      return f'{option("thresholds")} are {wanted}, got {count}'
    return super().conflict(option)

  @property
  def example_format(self):
    return MULTILABEL

  @property
  def classes(self):
    return max(1, len(self.labels))

  @property
  def metric_names(self):
    """The names in `measures`; average precision is first if thresholds are tuned."""
    names = list(super().metric_names)
    if self.tune_thresholds != 'no' and 'average_precision' in names:
      names.sort(key='average_precision'.__ne__)
    return tuple(names)

  def label_values(self, examples):
    """Return 1 for the labels of each example, else 0 [N, C]."""
    labels: Any = [example.label or () for example in examples]
    return indicate(labels, self.classes).astype(np.float32)

  def balanced_weights(self, examples):
    """Return negative examples per positive one, of each label; 1 if no example has it."""
    positive = self.label_values(examples).sum(0)
    weights = np.where(positive > 0, (len(examples) - positive) / np.maximum(positive, 1), 1.0)
    return tuple(float(f'{weight:.6g}') for weight in weights)

  @property
  def loss_arrays(self):
    return {'label': (1, self.classes)}

  def loss(self, outputs, batch):
    logits, label = outputs['label'].astype(jnp.float32), batch['label']
    positive = jnp.asarray(self.class_weights or 1.0, jnp.float32)
    present, absent = jax.nn.softplus(-logits), jax.nn.softplus(logits)  # -log of probabilities
    if self.focal:
      present *= jnp.exp(-self.focal * absent)
      absent *= jnp.exp(-self.focal * jax.nn.softplus(-logits))
    losses = (positive * label * present + (1 - label) * absent).mean(-1)
    return {'label': ((losses * batch['weight']).sum(), batch['weight'].sum())}

  def logits_and_weights(self, outputs, batch):
    """Return logits of both sides of each decision [B, E, C, 2], and weights [B, E, 1]."""
    logits = outputs['label']
    pairs = jnp.stack([logits, jnp.zeros_like(logits)], -1)
    return pairs, batch['weight'][..., None] / self.classes

  def predict(self, examples, features, outputs):
    predictions = []
    for logits in self.document_outputs(features, outputs):
      probabilities = sigmoid(np.asarray(logits, np.float64) / self.temperature)
      chosen = np.flatnonzero(probabilities > np.asarray(self.thresholds))
      predictions.append(MultiLabelPrediction(tuple(chosen.tolist()), probabilities))
    return predictions

  def compact_prediction(self, prediction):
    """Keep probabilities, which average precision reads, in single precision."""
    return prediction._replace(probabilities=prediction.probabilities.astype(np.float32))

  def scores(self, examples, predictions):
    truth = self.label_values(examples)
    predicted = indicate([prediction.label for prediction in predictions], self.classes)
    probabilities = np.stack([prediction.probabilities for prediction in predictions])
    found = metrics.all_metrics(truth, predicted, probabilities)
    return {name: found[name] for name in self.measures}

  def fit_to_development(self, examples, predictions):
    """Return tuned thresholds, if they are wanted.

    A fitted temperature changes probabilities. Other thresholds than 0.5 change with them, so that
    the predicted labels stay the same.
    """
    fields = super().fit_to_development(examples, predictions)
    factor = self.temperature / fields.get('temperature', self.temperature)
    if self.tune_thresholds != 'no':
      probabilities = np.stack([prediction.probabilities for prediction in predictions])
      return fields | {'thresholds': metrics.tune_thresholds(
          self.label_values(examples), scale_logits(probabilities, factor), self.tune_thresholds)}
    if fields and set(self.thresholds) != {DEFAULT_THRESHOLD}:
      thresholds = scale_logits(np.array(self.thresholds), factor)
      return fields | {'thresholds': tuple(thresholds.tolist())}
    return fields

  def decisions(self, examples, predictions):
    """Return a decision per label of each example: it has the label (class 0), or not."""
    probabilities = np.stack([prediction.probabilities for prediction in predictions]).ravel()
    logs = log_probabilities(np.stack([probabilities, 1 - probabilities], -1))
    labels = np.where(self.label_values(examples).ravel() > 0, 0, 1)
    known = np.repeat([example.label is not None for example in examples], self.classes)
    return Decisions(logs[known], labels[known])

  @property
  def fits_development(self):
    return self.tune_thresholds != 'no' or super().fits_development

  def export_attributes(self):
    """Return the problem type, and thresholds other than transformers' single 0.5."""
    attributes: dict[str, Any] = super().export_attributes()
    attributes['problem_type'] = 'multi_label_classification'
    if set(self.thresholds) != {DEFAULT_THRESHOLD}:
      values = self.thresholds * (len(self.labels) if len(self.thresholds) == 1 else 1)
      attributes['thresholds'] = dict(zip(self.labels, values, strict=True))
    return attributes


MULTILABEL = MultiLabel()


def parse_indicator(value: Any) -> bool | None:
  """Parse 0, 1, true or false; None for anything else."""
  if not isinstance(value, str | int | float):
    return None
  return INDICATORS.get(format_label(value).lower())


def read_indicators(row: Any, names: Sequence[str]) -> Indicators | None:
  """Read columns of 0 and 1; None if all are empty or -1. Raises UnreadableRow."""
  values = [row_readers.column_value(row, name) for name in names]
  if all(value is None or format_label(value) in HIDDEN for value in values):
    return None
  chosen = []
  for name, value in zip(names, values, strict=True):
    found = parse_indicator(value)
    if found is None:
      raise UnreadableRow(
          'no indicator', f'{row.where}: the column {name!r} must be 0 or 1, got {value!r:.80}')
    if found:
      chosen.append(name)
  return Indicators(tuple(names), tuple(chosen))


def parse_list(label: Any) -> Any:
  """Parse a list that is written as text, as Python, JSON or numpy write it; else unchanged."""
  value = parse_collection(format_label(label)) if isinstance(label, str) else None
  if value is None or (isinstance(value, dict) and value):
    return label
  return sorted(value, key=str) if isinstance(value, set) else list(value)


def find_separator(texts: Iterable[str]) -> str:
  """Find the separator of the labels in texts: the first of SEPARATORS that occurs.

  A space separates numbers; '': no text has several labels.
  """
  texts = list(texts)
  for separator in SEPARATORS:
    if any(separator in text for text in texts):
      return separator
  several = [text for text in texts if ' ' in text.strip()]
  if several and all(NUMBERS.fullmatch(format_label(text)) for text in several):
    return ' '
  return ''


def to_list(label: Any, separator: str, names: Sequence[str]) -> Any:
  """Convert a label to a list; a text is split by the separator, or is one of `names`."""
  if isinstance(label, Indicators | list) or label is None:
    return label
  if is_missing(label):
    return []
  if not isinstance(label, str):
    return list(label) if isinstance(label, tuple | set) else [label]
  if format_label(label) in names:
    return [label]
  for other in (*SEPARATORS, ' '):
    parts = split_labels(label, other)
    if len(parts) > 1 and all(part in names for part in parts):
      return parts
  return split_labels(label, separator)


def split_labels(text: str, separator: str) -> list[str]:
  """Split a text at a separator, without empty parts."""
  parts = [text]
  if separator:
    parts = text.split(separator if separator.strip() else None)
  return [part for part in map(format_label, parts) if part]


def are_multi_hot(vectors: Sequence[Sequence[Any]], names: Sequence[str]) -> bool:
  """Tell whether lists are vectors of 0 and 1 instead of lists of labels.

  All have the same length of at least two and only 0 and 1. If names are known, there is a value
  for each. Otherwise some list repeats a value or has floats, which a list of labels does not.
  """
  sizes = {len(vector) for vector in vectors}
  if len(sizes) != 1 or min(sizes) < 2:
    return False
  values = list(itertools.chain.from_iterable(vectors))
  if not all(type(value) in (int, float, bool) and value in (0, 1) for value in values):
    return False
  if names:
    return sizes == {len(names)}
  repeats = any(len(set(vector)) < len(vector) for vector in vectors)
  return repeats or any(type(value) is float for value in values)


def choose_labels(item: RawExample, names: tuple[str, ...]) -> RawExample:
  """Replace a vector of 0 and 1 by the labels that it chooses among `names`."""
  if type(item.label) is not list:
    return item
  if len(item.label) != len(names):
    raise SourceError(f'{item.example.where}: a vector of {len(item.label)} values for '
                      f'{len(names)} labels')
  chosen = [name for name, value in zip(names, item.label, strict=True) if value]
  return item._replace(label=Indicators(names, tuple(chosen)))


def join_labels(labels: Sequence[str], names: Mapping[str, float]) -> str:
  """Join labels by the first separator that no name contains."""
  for separator in (',', '|', ';'):
    if not any(separator in name for name in names):
      return separator.join(labels)
  return json.dumps(list(labels), ensure_ascii=False)


def indicate(labels: Sequence[Sequence[int]], classes: int) -> np.ndarray:
  """Convert indices of labels to indicators [N, classes] of booleans."""
  values = np.zeros((len(labels), classes), bool)
  for row, some in zip(values, labels, strict=True):
    row[list(some)] = True
  return values


def scale_logits(probabilities: np.ndarray, factor: float) -> np.ndarray:
  """Return the probabilities whose logits are those of `probabilities`, times a factor."""
  logs = factor * log_probabilities(np.stack([probabilities, 1 - probabilities], -1))
  return np.where(probabilities > 0, sigmoid(logs[..., 0] - logs[..., 1]), 0.0)


def thresholds_of(labels: Sequence[str], given: Any) -> tuple[float, ...]:
  """Return the thresholds that a config.json states for labels; one of 0.5 if it states none."""
  if not isinstance(given, Mapping):
    return (DEFAULT_THRESHOLD,)
  return tuple(float(given.get(name, DEFAULT_THRESHOLD)) for name in labels)
