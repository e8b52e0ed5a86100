"""A kind of task that the package does not have: multi-label classification, by the members that docs/howto/adding.md
lists. It is read, learned, predicted, printed and analyzed like the others."""
import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import tuned

from plm_jax.finetuning.predict import predict
from plm_jax.report import error_analysis
from plm_jax.tasks import kinds, row_readers
from plm_jax.tasks.baselines import majority_baseline
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.example_formats import Classification
from plm_jax.tasks.kinds import TaskKind
from plm_jax.tasks.outputs import name_labels
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.sources import read_sources


class Topics(NamedTuple):
  """The predicted classes of a text, and the probability of each class."""

  label: tuple[int, ...]
  probabilities: np.ndarray


class Named(NamedTuple):
  """The names of the predicted classes."""

  labels: tuple[str, ...]


class TopicFormat(Classification):
  """A text with any number of classes, separated by commas."""

  name = 'topics'

  def list_labels(self, raw, notes):
    return tuple(sorted({name for item in raw for name in str(item.label).split(',')}))

  def parse_label(self, item, classes):
    return tuple(row_readers.parse_class(name, classes, item.example.where) for name in item.label.split(','))

  def name_prediction(self, task, example, prediction, text, starts):
    return Named(tuple(task.labels[number] for number in prediction.label))

  def name_truth(self, task, example):
    return [task.labels[number] for number in example.label]

  def prediction_cells(self, named):
    return {'labels': ','.join(named.labels)}

  def confidence(self, example, prediction):
    return float(np.abs(prediction.probabilities - 0.5).max() + 0.5)

  def describe_label(self, task, example, label):
    return ', '.join(task.labels[number] for number in label) or 'none'

  def count_confusion(self, task, found):
    return None

  def score_classes(self, task, found):
    return {}


@dataclasses.dataclass(frozen=True)
class TopicTask(SequenceTask):
  """Multi-label classification."""

  @property
  def example_format(self):
    return TOPICS

  @property
  def metric_names(self):
    return ('exact',)

  def label_values(self, examples):
    values = np.zeros((len(examples), self.classes), np.float32)
    for row, example in zip(values, examples, strict=True):
      row[list(example.label or ())] = 1
    return values

  def shapes(self, rows, length, layout=None):
    shapes = super().shapes(rows, length, layout)
    label = shapes['weight'].update(shape=(rows, 1, self.classes))
    return shapes | {'label': label}

  def task_loss(self, outputs, batch):
    losses = optax.sigmoid_binary_cross_entropy(outputs['label'].astype(jnp.float32), batch['label']).mean(-1)
    return {'label': ((losses * batch['weight']).sum(), batch['weight'].sum())}

  def accuracy_targets(self, outputs, batch):
    return {}

  def predict(self, examples, features, outputs):
    return [Topics(tuple(np.flatnonzero(logits > 0).tolist()), 1 / (1 + np.exp(-logits))) for logits in outputs]

  def compact_prediction(self, prediction):
    return Topics(prediction.label, np.zeros(0))

  def scores(self, examples, predictions):
    same = [one.label == found.label for one, found in zip(examples, predictions, strict=True)]
    return {'exact': 100 * float(np.mean(same))}


TOPICS = TopicFormat()
FILE = 'text\tlabel\nfine film\tgood\ndull berlin\tbad,place\nfine berlin\tgood,place\n'


def test_a_kind_of_task_is_added_by_the_members_that_the_page_lists(tmp_path, monkeypatch):
  monkeypatch.setitem(kinds.KINDS, 'topics', TaskKind(TOPICS, TopicTask))
  monkeypatch.setitem(tuned.SAID, 'topics', {('dull', 0): 9.0, ('fine', 1): 9.0, ('berlin', 2): 9.0})
  (tmp_path / 'some.tsv').write_text(FILE)
  examples, labels, report = read_sources('topics', [str(tmp_path / 'some.tsv')])
  assert labels == ('bad', 'good', 'place') and [one.label for one in examples] == [(1,), (0, 2), (1, 2)]
  assert not report.lines()
  task = TopicTask(labels=labels)
  monkeypatch.setitem(tuned.TASKS, 'topics', task)

  # Learning: a batch has the shapes that the model is built for, packed or not, and a loss that predictions lower.
  trained = tuned.trained('topics')
  for pack in (False, True):
    features = task.features(examples, trained.tokenizer, 16)
    batch, placement = FeatureBatches(features, BatchShape(3, 16, pack=pack)).batch(0)
    if not pack:
      assert {name: x.shape[2:] for name, x in batch.items() if name in task.shapes(3, 16)} == {
          name: x.shape[2:] for name, x in task.shapes(3, 16).items()}
      assert batch['label'].shape == task.shapes(3, 16)['label'].shape
    assert batch['label'][placement.row, placement.slot].tolist() == task.label_values(examples)[placement.number].tolist()
    loss, weight = task.task_loss({'label': 8.0 * (2 * batch['label'] - 1)}, batch)['label']
    assert weight == 3 and loss / weight < 0.001

  # Predictions, their names and metrics.
  found = predict(trained, examples)
  assert [one.label for one in found] == [(1,), (0, 2), (1, 2)]
  assert task.scores(examples, [task.compact_prediction(one) for one in found]) == {'exact': 100}
  assert name_labels(task, examples[1], found[1]) == Named(('bad', 'place'))
  assert TOPICS.prediction_cells(Named(('bad', 'place'))) == {'labels': 'bad,place'}
  assert TOPICS.name_truth(task, examples[2]) == ['good', 'place']

  # The report; no baseline is known.
  wrong = dataclasses.replace(examples[0], label=(0, 1))
  text = ' '.join(''.join(section.itertext()) for section in error_analysis.error_sections(trained, [wrong, *examples]))
  assert 'Most confident mistakes' in text and 'is bad, good' in text and 'Confusion' not in text
  assert majority_baseline(task, examples, examples) == {}
