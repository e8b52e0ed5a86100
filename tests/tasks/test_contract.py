"""A kind of task needs one file and one line in the registry: a toy is trained and predicts."""
import contextlib
import dataclasses
import typing
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import labelled
import numpy as np
import pytest

from plm_jax import storage
from plm_jax.finetuning.predict import make_predictor
from plm_jax.finetuning.setup import resolve_run
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives import Objective
from plm_jax.report.baselines import describe_gap
from plm_jax.sharding import make_mesh
from plm_jax.sources.row_readers import Columns
from plm_jax.tasks import kinds
from plm_jax.tasks.baselines import Baseline
from plm_jax.tasks.contract import Task
from plm_jax.tasks.example_formats import ExampleFormat
from plm_jax.tasks.input_formats import collect_rows
from plm_jax.tasks.kinds import KINDS, TaskKind
from plm_jax.tasks.late_interaction import LateInteractionTask
from plm_jax.tasks.outputs import StreamingMetrics, Value, name_labels
from plm_jax.training.evaluate import BestCheckpoint
from plm_jax.training.learner import make_learner, state_shapes
from plm_jax.training.step import init_state, train_step
from plm_jax.training.train import TrainingResult
from plm_jax.validation import defer_checks

REQUIRED = {'example_format', 'features', 'head', 'loss', 'predict', 'scores'}
"""members of `Task` without a default"""


# The file of the kind.


class Lengths(ExampleFormat):
  """A text and a number, its length."""

  name = 'length'
  columns = Columns('text', label='length')
  expected_input = 'a text'
  has_class_names = False
  measures = ('mae',)

  def parse_label(self, item, classes):
    return int(item.label)


LENGTHS = Lengths()


@dataclasses.dataclass(frozen=True)
class LengthTask(Task):
  """Learns how long a text is, by the absolute error."""

  head: ClassVar[str] = 'label'
  lower_is_better: ClassVar = ('mae',)

  @property
  def example_format(self):
    return LENGTHS

  def features(self, examples, tokenizer, length):
    ids = tokenizer.encode_batch([example.texts[0] for example in examples])
    rows = [self.input_format.make_row([some], tokenizer.vocab, length) for some in ids]
    values = {'label': np.array([example.label or 0 for example in examples], np.int32),
              'weight': np.ones(len(rows), np.float32)}
    return collect_rows(rows, values, np.arange(len(rows), dtype=np.int32))

  def loss(self, outputs, batch):
    errors = jnp.abs(outputs['label'][..., 0] - batch['label'])
    return {'label': ((errors * batch['weight']).sum(), batch['weight'].sum())}

  def predict(self, examples, features, outputs):
    return [Value(float(x[0])) for x in outputs]

  def scores(self, examples, predictions):
    pairs = zip(examples, predictions, strict=True)
    return {'mae': float(np.mean([abs(one.label - found.value) for one, found in pairs]))}


# The line in the registry.


@pytest.fixture
def toy_kind(monkeypatch):
  monkeypatch.setitem(KINDS, 'length', TaskKind(LENGTHS, LengthTask))


def test_the_contract_is_small():
  assert Task.__abstractmethods__ | {'head'} == REQUIRED
  assert not issubclass(Task, Objective)
  assert set(typing.get_args(kinds.Tasks)) == {
      LateInteractionTask,
      *(task for kind in KINDS.values() for task in (kind.task, kind.recurrent) if task)}


@contextlib.contextmanager
def resolved_toy(folder):
  """A run of the toy whose examples have been read."""
  files = folder / 'train.tsv', folder / 'dev.tsv'
  for file, count in zip(files, (16, 4), strict=True):
    rows = [f'{"the film " * (1 + number % 3)}\t{1 + number % 3}' for number in range(count)]
    file.write_text('\n'.join(['text\tlength', *rows]) + '\n')
  with defer_checks():  # the configuration of runs was made without the toy
    config = labelled.run(
        folder, 'length', steps=2, data__train=(str(files[0]),), data__dev=(str(files[1]),))
    yield resolve_run(config, labelled.tokenizer())


def test_a_metric_that_is_better_when_lower_selects_the_checkpoint(tmp_path, toy_kind):
  with resolved_toy(tmp_path) as ready:
    best = BestCheckpoint(ready.config, storage.resolve_path(tmp_path))
  assert ready.config.train.best == 'mae'
  for step, value in ((1, 0.5), (2, 0.25), (3, 0.4), (4, 0.25)):
    best.update(step, {'mae': value}, {'x': jnp.zeros(1)}, {'config': {}})
  best.close()
  assert (best.step, best.values) == (2, {'mae': 0.25})

  # The direction also orders runs of a sweep, and tells whether a baseline is better.
  reporting = ready.config.training_objective.reporting
  found = [reporting.higher_is_better(name) for name in ('mae', 'other_mae', 'loss', 'accuracy')]
  assert found == [False, False, False, True]
  assert reporting.format_metric('mae', 0.5) == '0.500'
  assert reporting.format_metric('dev_accuracy', 50.0) == '50.00%'
  assert reporting.format_metric('f1', 50.0) == '50.00'
  baselines = [Baseline('zero', {'mae': 0.1}), Baseline('one', {'mae': 2.0})]
  results = [TrainingResult(4, {}, True, 1.0, {'mae': value}, 1.0, 2) for value in (0.05, 1.5)]
  assert describe_gap(ready, results[0], baselines, 'mae') == []
  assert describe_gap(ready, results[1], baselines, 'mae')[0] == (
      'zero reaches 1.4 mae less than the model, 0.1. What may help:')


def test_a_toy_kind_is_trained_and_predicts(tmp_path, toy_kind):
  tokenizer = labelled.tokenizer()
  with resolved_toy(tmp_path) as ready:
    learner = make_learner(ready.config, tokenizer.vocab)

  # Training.
  mesh = make_mesh(ready.config.mesh)
  windows = ready.open_feed(mesh).first_window()
  assert jax.tree.leaves(state_shapes(ready.config, learner).params)
  state, metrics = jax.jit(lambda windows: train_step(
      learner, nn.unbox(init_state(learner, windows)), windows))(windows)
  assert np.isfinite(metrics['loss']) and metrics['grad_norm'] > 0

  # Prediction, metrics and printed values.
  task = ready.config.objective
  trained = LoadedModel(
      'bert', ready.config.model, task.heads(ready.config.model), jax.device_get(state.params),
      tokenizer, task=task, length=16)
  examples = ready.dev[''].examples
  predictions = make_predictor(trained)(examples)
  metrics = StreamingMetrics(task)
  metrics.add(examples, predictions)
  assert metrics.compute() == task.scores(examples, predictions)
  named = name_labels(task, examples[0], predictions[0])
  assert task.example_format.json_fields(
      task.example_format.parse_input(examples[0], ''), named, {'truth': 1}) == {
          'text': 'the film', 'value': named.value, 'truth': 1}
