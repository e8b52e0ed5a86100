"""Several labels per example: how they are read, learned, predicted, printed, exported and
analyzed."""
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax import conversion
from plm_jax.errors import ConfigError, UserError, write_plain
from plm_jax.finetuning.predict import predict
from plm_jax.loading import loaded_model
from plm_jax.report import error_analysis
from plm_jax.report.baselines import describe_collapse
from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import Columns, Example
from plm_jax.tasks import baselines
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.multilabel import MULTILABEL, MultiLabelPrediction, MultiLabelTask
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.outputs import Labels, StreamingMetrics, name_labels
from plm_jax.tasks.regularizers import RDrop
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.sources import read_chunks, read_sources
from plm_jax.training import step

NAMES = ('bad', 'good', 'place')
EXAMPLES = [('fine film', (1,)), ('dull berlin', (0, 2)), ('fine berlin', (1, 2)), ('a film', ())]
LISTS = [[NAMES[number] for number in labels] for _, labels in EXAMPLES]
VECTORS = [[int(number in labels) for number in range(3)] for _, labels in EXAMPLES]


def written(path, rows, kind='jsonl'):
  """Writes rows as JSON Lines or as a table."""
  if kind == 'jsonl':
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  else:
    head = '\t'.join(rows[0]) + '\n'
    path.write_text(head + ''.join('\t'.join(map(str, row.values())) + '\n' for row in rows))
  return str(path)


def rows_of(labels, name='labels'):
  return [{'text': text, name: label} for (text, _), label in zip(EXAMPLES, labels, strict=True)]


FORMS = {
    'lists': rows_of(LISTS), 'lists as JSON': rows_of(map(json.dumps, LISTS)),
    'lists of Python': rows_of(map(str, LISTS)),
    'bars': rows_of(map('|'.join, LISTS)), 'semicolons': rows_of(map('; '.join, LISTS)),
    'commas': rows_of(map(','.join, LISTS)),
    'columns': [{'text': text, **dict(zip(NAMES, vector, strict=True))}
                for (text, _), vector in zip(
        EXAMPLES, VECTORS, strict=True)],
    'columns of truth': [{'comment_text': text, 'id': 'x',
                          **dict(zip(NAMES, map(bool, vector), strict=True))}
                         for (text, _), vector in zip(EXAMPLES, VECTORS, strict=True)]}


@pytest.mark.parametrize('kind', ['jsonl', 'tsv'])
@pytest.mark.parametrize('form', FORMS)
def test_labels_are_read_in_every_form(tmp_path, form, kind):
  found = read_sources('multilabel', [written(tmp_path / f'x.{kind}', FORMS[form], kind)])
  assert found.labels == NAMES
  assert [(one.texts[0], one.label) for one in found.examples] == EXAMPLES
  assert '1 examples have none of the labels' in found.report.lines()


@pytest.mark.parametrize('form', ['vectors', 'floats', 'numpy', 'numbers', 'spaced'])
def test_vectors_and_numbers(tmp_path, form):
  labels = {'vectors': VECTORS, 'floats': [list(map(float, vector)) for vector in VECTORS],
            'numpy': [str(np.array(vector)) for vector in VECTORS],
            'numbers': [list(labels) for _, labels in EXAMPLES],
            'spaced': [' '.join(map(str, labels)) for _, labels in EXAMPLES]}[form]
  path = written(tmp_path / 'x.jsonl', rows_of(labels))
  found = read_sources('multilabel', [path])
  assert found.labels == ('0', '1', '2') and [one.label
                                              for one in found.examples] == [
                                                  labels for _, labels in EXAMPLES]
  named = read_sources('multilabel', [path], labels=NAMES)
  assert [one.label for one in named.examples] == [labels for _, labels in EXAMPLES]
  chunks = [one.label for chunk in read_chunks('multilabel', path, labels=NAMES, size=4)
            for one in chunk]
  assert chunks == [labels for _, labels in EXAMPLES]


def test_separators_inside_names(tmp_path):
  path = written(tmp_path / 'x.tsv', rows_of(['food, drink', 'food, drink|art', '', 'art']), 'tsv')
  found = read_sources('multilabel', [path])
  assert found.labels == (
      'art', 'food, drink') and "labels are separated by '|'" in found.report.lines()
  found = read_sources('multilabel', [path], Columns(separator='/'))
  assert found.labels == ('art', 'food, drink', 'food, drink|art')
  only = written(tmp_path / 'y.tsv', rows_of(['food, drink', 'art', '', 'art']), 'tsv')
  assert [one.label for one in read_sources('multilabel', [only],
                                            labels=('art', 'food, drink')).examples] == [
      (1,), (0,), (), (0,)]
  task = MultiLabelTask(labels=('food, drink', 'art'))
  named = name_labels(task, Example(('x',)), MultiLabelPrediction((0, 1), np.array([0.8, 0.9])))
  assert MULTILABEL.prediction_cells(named) == {'labels': 'food, drink|art'}


@pytest.mark.parametrize(('labels', 'message'), [
    ([['good'], ['worse'], [], []],
     "x.jsonl:2: the label 'worse' is none of those that are learned: bad, good, place"),
    ([['good'], None, [], []], 'x.jsonl:2: no label to learn from'),
    ([['good', ''], [], [], []], 'x.jsonl:1: one of the labels is empty'),
    ([['good', ['bad']], [], [], []],
     'x.jsonl:1: the label must be one class: a text, a number or a boolean, got a list'),
    ([{'good': 1}, [], [], []],
     'x.jsonl:1: the label must be one class: a text, a number or a boolean, got an object'),
    ([None, None, None, None], 'has no labels to learn from: no row has one in'),
    (['', '', '', ''], 'has no labels to learn from: no row has one in')])
def test_bad_labels_are_refused_by_their_line(tmp_path, labels, message):
  path = written(tmp_path / 'x.jsonl', rows_of(labels))
  with pytest.raises(SourceError, match=message):
    read_sources('multilabel', [path], labels=NAMES)


def test_bad_columns_are_refused(tmp_path):
  table = [{'text': 'fine', 'bad': 0, 'good': 1}, {'text': 'dull', 'bad': 2, 'good': 0}]
  path = written(tmp_path / 'x.tsv', table, 'tsv')
  with pytest.raises(SourceError, match=r"x\.tsv:3: the column 'bad' must be 0 or 1, got '2'"):
    read_sources('multilabel', [path])
  hidden = written(tmp_path / 'y.tsv', [{'text': 'fine', 'bad': -1, 'good': -1}], 'tsv')
  columns = Columns(label='bad,good')
  chunk, = read_chunks('multilabel', hidden, columns, labels=('bad', 'good'))
  assert chunk[0].label is None
  with pytest.raises(SourceError, match='has no labels to learn from'):
    read_sources('multilabel', [hidden], columns)


def test_an_empty_column_is_no_labels_to_predict(tmp_path):
  path = written(tmp_path / 'x.tsv', rows_of(['', '', '', '']), 'tsv')
  chunk, = read_chunks('multilabel', path, labels=NAMES)
  assert [one.label for one in chunk] == [None] * 4


def test_the_loss_is_binary_cross_entropy_by_hand():
  draw = np.random.default_rng(0)
  logits, label = draw.normal(size=(4, 1, 3)).astype(np.float32), (
      draw.random((4, 1, 3)) < 0.5).astype(np.float32)
  batch = {'label': label, 'weight': np.array([[1], [1], [0], [1]], np.float32)}
  p = 1 / (1 + np.exp(-logits.astype(np.float64)))
  for fields, positive, gamma in (({}, np.ones(3), 0),
                                  ({'class_weights': (2.0, 0.5, 3.0)}, np.array([2, 0.5, 3]), 0), (
      {'focal': 2.0}, np.ones(3), 2), ({'focal': 1.5, 'class_weights': (2.0, 1.0, 1.0)},
                                       np.array([2, 1, 1]), 1.5)):
    each = -(positive * label * (1 - p) ** gamma * np.log(p) + (1 - label) * p ** gamma
             * np.log(1 - p)).mean(-1)
    task = MultiLabelTask(labels=NAMES, **fields)
    loss, weight = task.loss({'label': jnp.asarray(logits)}, batch)['label']
    assert float(loss) == pytest.approx((each * batch['weight']).sum(), rel=1e-5) and weight == 3
    # The gradient by differences in double precision.
    gradient = jax.grad(lambda x, task=task: task.loss({'label': x}, batch)['label'][0])(
        jnp.asarray(logits))
    def total(x, positive=positive, gamma=gamma):
      q = 1 / (1 + np.exp(-x))
      some = -(positive * label * (1 - q) ** gamma * np.log(q) + (1 - label) * q ** gamma
               * np.log(1 - q)).mean(-1)
      return (some * batch['weight']).sum()
    for place in np.ndindex(logits.shape):
      step = np.zeros(logits.shape)
      step[place] = 1e-6
      assert gradient[place] == pytest.approx((total(logits + step) - total(logits - step)) / 2e-6,
                                              abs=1e-5)
  extreme = MultiLabelTask(labels=NAMES, focal=2.0)
  for value in (-1e4, 1e4):
    x = jnp.full((4, 1, 3), value)
    assert np.isfinite(jax.grad(lambda x: extreme.loss({'label': x}, batch)['label'][0])(x)).all()


def test_class_weights_and_focal_loss_of_single_labels():
  draw = np.random.default_rng(1)
  logits, label = draw.normal(size=(5, 1, 3)).astype(np.float32), np.array(
      [[0], [2], [1], [0], [2]])
  batch = {'label': label, 'weight': np.array([[1], [1], [1], [1], [0]], np.float32)}
  p = np.exp(logits.astype(np.float64))
  p = np.take_along_axis(p / p.sum(-1, keepdims=True), label[..., None], -1)[..., 0]
  weights = np.array([0.5, 2.0, 1.0])
  for fields, scale, gamma in (({'class_weights': (0.5, 2.0, 1.0)}, weights, 0),
                               ({'focal': 2.0}, np.ones(3), 2), (
      {'class_weights': (0.5, 2.0, 1.0), 'focal': 2.0}, weights, 2)):
    task = SequenceTask(labels=NAMES, **fields)
    found = task.loss({'label': jnp.asarray(logits)}, batch)
    own = scale[label] * batch['weight']
    assert float(found['label'][0]) == pytest.approx((-own * (1 - p) ** gamma * np.log(p)).sum(),
                                                     rel=1e-5)
    assert float(found['label'][1]) == pytest.approx(own.sum()) and found['label_accuracy'][1] == 4
  certain = jnp.full((5, 1, 3), -1e4).at[:, :, 0].set(1e4)
  task = SequenceTask(labels=NAMES, focal=0.5)
  assert np.isfinite(jax.grad(lambda x: task.loss({'label': x}, batch)['label'][0])(certain)).all()


@pytest.mark.parametrize('factor', [1.0, 0.01])
def test_the_loss_is_a_mean_also_of_small_weights(factor):
  """Class weights and the weights of many windows (1 / windows) may sum to less than 1 in a
  batch."""
  logits, label = jnp.array([[[1.0, -1.0]], [[0.5, 0.0]]]), jnp.array([[0], [1]])
  p = np.exp(np.asarray(logits, np.float64))
  first, second = -np.log((p / p.sum(-1, keepdims=True))[[0, 1], 0, [0, 1]])
  batch = {'label': label, 'weight': jnp.ones((2, 1))}
  weighted = SequenceTask(labels=('a', 'b'), class_weights=(factor, 3 * factor))
  windows = {**batch, 'weight': factor * jnp.array([[0.1], [0.3]])}
  for task, some in ((weighted, batch), (SequenceTask(labels=('a', 'b')), windows)):
    loss = step.total_loss(TaskObjective(task).terms, task.loss({'label': logits}, some))
    assert float(loss) == pytest.approx((first + 3 * second) / 4, rel=1e-5)
  empty = {**batch, 'weight': jnp.zeros((2, 1))}
  assert step.total_loss(TaskObjective(weighted).terms,
                         weighted.loss({'label': logits}, empty)) == 0


def test_balanced_weights_come_from_the_training_examples():
  single = [Example(('x',), label) for label in (0, 0, 0, 1)]
  task = SequenceTask(labels=('a', 'b', 'c'), balanced=True).fit_to_training(single)
  assert task.class_weights == pytest.approx((4 / 9, 4 / 3, 1.0), rel=1e-5)
  several = [Example((text,), label) for text, label in EXAMPLES]
  task = MultiLabelTask(labels=(*NAMES, 'rest'), balanced=True).fit_to_training(several)
  assert task.class_weights == (3.0, 1.0, 1.0, 1.0)
  assert task.fit_to_training(single) is task


@pytest.mark.parametrize(('make', 'message'), [
    (lambda: SequenceTask(regression=True, focal=1.0),
     'are for classes, and a regression has none'),
    (lambda: SequenceTask(labels=('a', 'b'), class_weights=(1.0,)), 'are one per class, 2, got 1'),
    (lambda: MultiLabelTask(labels=NAMES, thresholds=(0.5, 0.5)), 'are one, or 3, got 2'),
    (lambda: MultiLabelTask(labels=NAMES, thresholds=(1.0,)), r'thresholds'),
    (lambda: MultiLabelTask(measures=('accuracy',)), 'are of micro_f1, macro_f1'),
    (lambda: MultiLabelTask(regression=True), 'is for numbers, not for labels')])
def test_options_that_do_not_fit_are_refused(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


@pytest.fixture
def trained():
  return tuned.trained('multilabel')


def labeled():
  return [Example((text,), label) for text, label in EXAMPLES]


def test_batches_have_the_shapes_of_the_task(trained):
  task, examples = trained.task, labeled()
  for pack in (False, True):
    features = task.features(examples, trained.tokenizer, 16)
    batch, placement = FeatureBatches(features, BatchShape(4, 16, pack=pack)).batch(0)
    if not pack:
      assert {name: x.shape[2:] for name, x in batch.items() if name
              in TaskObjective(task).shapes(4, 16)} == {
          name: x.shape[2:] for name, x in TaskObjective(task).shapes(4, 16).items()}
    assert batch['label'][placement.row,
                          placement.slot].tolist() == task.label_values(examples)[
                              placement.number].tolist()
    loss, weight = task.loss({'label': 8.0 * (2 * batch['label'] - 1)}, batch)['label']
    assert weight == 4 and loss / weight < 0.001
  outputs = {'label': jnp.ones((4, 1, 3))}
  logits, weight = task.logits_and_weights(outputs, {'weight': jnp.ones((4, 1))})
  assert logits.shape == (4, 1, 3, 2) and weight.shape == (4, 1, 1)
  assert RDrop().alpha


def test_predictions_metrics_and_report(trained):
  task, examples = trained.task, labeled()
  for pack in (False, True):
    found = predict(trained, examples, pack=pack)
    assert [one.label for one in found] == [labels for _, labels in EXAMPLES]
  kept = StreamingMetrics(task)
  kept.add(examples, found)
  assert kept.compute()['subset_accuracy'] == 100 and kept.compute()['average_precision'] == 100
  named = name_labels(task, examples[1], found[1])
  assert named.labels == ['bad', 'place'] and list(named.probabilities) == list(NAMES)
  assert MULTILABEL.prediction_cells(named) == {'labels': 'bad,place'}
  assert MULTILABEL.name_truth(task, examples[2]) == ['good', 'place']
  wrong = dataclasses.replace(examples[0], label=(0, 1))
  text = ' '.join(''.join(section.itertext()) for section in error_analysis.error_sections(
      trained.task, error_analysis.labeled_pairs([wrong, *examples],
                                                 predict(trained, [wrong, *examples]))))
  assert 'Most confident mistakes' in text and 'is bad, good' in text and 'Scores by class' in text
  assert plm_jax.predict(trained, 'fine berlin')[0] == Labels(['good', 'place'],
                                                              found[2:3] and name_labels(
      task, examples[2], found[2]).probabilities)


@pytest.mark.parametrize('thresholds', [(0.2,), (0.9,), (0.5,), (0.0,), (0.1, 0.5, 0.95)])
def test_calibration_keeps_the_predicted_labels(thresholds):
  draw = np.random.default_rng(0)
  logits = draw.normal(0, 6, (200, 3)).astype(np.float32)
  truth = logits + draw.normal(0, 9, logits.shape) > 0
  examples = [Example(('x',), tuple(np.flatnonzero(row).tolist())) for row in truth]
  task = MultiLabelTask(labels=NAMES, thresholds=thresholds, calibrate=True)
  before = task.predict(examples, None, list(logits))
  fields = task.fit_to_development(examples, before)
  assert fields['temperature'] > 2 and ('thresholds' in fields) == (thresholds != (0.5,))
  after = dataclasses.replace(task, **fields).predict(examples, None, list(logits))
  assert [one.label for one in after] == [one.label for one in before]
  assert not np.allclose(after[0].probabilities, before[0].probabilities, atol=0.01)


def test_thresholds_are_tuned_kept_and_exported(trained, tmp_path):
  task, examples = dataclasses.replace(trained.task, tune_thresholds='each'), labeled()
  assert task.fits_development and task.metric_names[0] == 'average_precision'
  fields = task.fit_to_development(examples, predict(trained, examples))
  assert len(fields['thresholds']) == 3 and trained.task.fit_to_development(examples, []) == {}
  loaded_model.write_decision(tmp_path, fields)
  own = loaded_model.apply_decision(tmp_path, task)
  assert own.thresholds == fields['thresholds']
  (tmp_path / loaded_model.DECISION_FILE).write_text('{"other": 1}')
  with pytest.raises(UserError, match=r'decision.json: expected fields of the task as JSON'):
    loaded_model.apply_decision(tmp_path, task)

  high = dataclasses.replace(trained, task=dataclasses.replace(trained.task,
                                                               thresholds=(0.5, 0.5, 0.999)))
  assert [one.label for one in predict(high, examples)] == [(1,), (0,), (1,), ()]
  plm_jax.export(high, tmp_path / 'out')
  config = json.loads((tmp_path / 'out/config.json').read_text())
  assert config['problem_type'] == 'multi_label_classification'
  assert config['thresholds'] == {'bad': 0.5, 'good': 0.5, 'place': 0.999}
  again = plm_jax.load(tmp_path / 'out')
  assert again.task.thresholds == (0.5, 0.5, 0.999) and again.task.labels == NAMES
  assert [one.label for one in predict(again, examples)] == [(1,), (0,), (1,), ()]
  assert plm_jax.predict(again, 'dull')[0].labels == ['bad']
  plm_jax.export(trained, tmp_path / 'plain')
  assert 'thresholds' not in json.loads((tmp_path / 'plain/config.json').read_text())
  imported = conversion.load(tmp_path / 'out')
  conversion.save(tmp_path / 'copy', imported.config, imported.params, imported.tokenizer,
                  like=imported)
  assert json.loads((tmp_path / 'copy/config.json').read_text())['thresholds'] == config[
      'thresholds']


def test_baselines_and_a_hint_where_nothing_is_predicted():
  task, examples = MultiLabelTask(labels=NAMES), labeled() * 6
  majority = baselines.majority_baseline(task, examples, examples)
  assert majority['subset_accuracy'] == 25 and majority['micro_f1'] == 0
  found = baselines.simple_baseline(task, examples, examples)
  assert found.name == 'TF-IDF with logistic regression' and found.scores['micro_f1'] > 90
  none = [MultiLabelPrediction((), np.array([0.1, 0.2 + 0.01 * number]))
          for number in range(len(examples))]
  hints = describe_collapse(task, examples, none)
  assert hints[0] == 'no label is predicted. What may help:'
  assert write_plain(hints[-1]) == '- objective.tune_thresholds=each lowers thresholds' and len(
      hints) == 4
  given = {'objective.tune_thresholds', 'objective.focal'}
  assert len(describe_collapse(task, examples, none, given)) == 2
  assert not describe_collapse(task, examples[:1] * 4, none[:4])
