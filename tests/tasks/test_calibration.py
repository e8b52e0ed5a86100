"""Calibration: the expected calibration error, temperature scaling, and the files of a run about
its errors."""
import dataclasses
import json

import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax import conversion
from plm_jax.errors import ConfigError
from plm_jax.finetuning.predict import predict
from plm_jax.metrics.calibration import Bin, calibration_error, confidence_bins, fit_temperature
from plm_jax.runs.development import write_errors
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import CalibratedTask, softmax
from plm_jax.tasks.elmo import RecurrentTagging
from plm_jax.tasks.multilabel import MultiLabelPrediction, MultiLabelTask
from plm_jax.tasks.sequence_classification import ClassPrediction, SequenceTask
from plm_jax.tasks.token_classification import TaggingTask, TagPrediction


def test_error_of_bins():
  """By hand: bins of a tenth, 0.95 of which half are correct, 0.55 all of which are."""
  bins = confidence_bins([0.95, 0.95, 0.55], [1, 0, 1], 10)
  assert [one.count for one in bins] == [1, 2]
  np.testing.assert_allclose([bins[0][:2], bins[1][:2]], [(0.55, 1.0), (0.95, 0.5)])
  assert calibration_error(bins) == pytest.approx(100 * (2 * 0.45 + 0.45) / 3)
  assert calibration_error([]) == 0 and calibration_error([Bin(1.0, 1.0, 7)]) == 0
  assert [one.count for one in confidence_bins([0.0, 1.0, 0.1], [0, 1, 0], 10)] == [2, 1]


def test_error_equals_a_loop():
  random = np.random.default_rng(0)
  confidence, correct = random.random(999), random.random(999) < 0.5
  expected, size = 0.0, 1 / 15
  for number in range(15):
    inside = (confidence > number * size) & (confidence <= (number + 1) * size)
    if inside.any():
      expected += abs(confidence[inside].mean() - correct[inside].mean()) * inside.sum() / 999
  assert calibration_error(confidence_bins(confidence, correct)) == pytest.approx(100 * expected)


@pytest.mark.parametrize('temperature', [0.3, 1.0, 4.0])
def test_the_temperature_of_drawn_labels_is_found(temperature):
  """Labels are drawn from softmax(logits / temperature)."""
  random = np.random.default_rng(0)
  logits = random.normal(size=(20_000, 4)) * 3
  shares = softmax(logits / temperature)
  labels = (shares.cumsum(-1) < random.random((len(shares), 1))).sum(-1)
  found = fit_temperature(logits, labels)
  assert found == pytest.approx(temperature, rel=0.05)
  def loss(value):
    return -np.log(softmax(logits / value)[np.arange(len(labels)), labels]).mean()
  assert loss(found) <= min(loss(found * 1.01), loss(found / 1.01))
  assert fit_temperature(logits[:0], labels[:0]) == 1.0



def drawn(kind, number=400):
  """A task, examples with random labels, and predictions that are much too sure."""
  random = np.random.default_rng(0)
  names = ('a', 'b', 'c')
  logits = random.normal(size=(number, 3)) * 12
  labels = (softmax(logits / 8).cumsum(-1) < random.random((number, 1))).sum(-1)
  if kind == 'classification':
    task = SequenceTask(labels=names, calibrate=True)
    return task, [Example(('x',), int(label)) for label in labels], [
        ClassPrediction(int(row.argmax()), softmax(row)) for row in logits]
  if kind == 'tagging':
    task = TaggingTask(labels=names, metric='accuracy', calibrate=True)
    shares = softmax(logits).reshape(-1, 4, 3)
    return task, [Example(('x',) * 4, tuple(row)) for row in labels.reshape(-1, 4).tolist()], [
        TagPrediction(row.argmax(-1).tolist(), row.max(-1).tolist(), row) for row in shares]
  task = MultiLabelTask(labels=names, calibrate=True, tune_thresholds='one')
  shares = 1 / (1 + np.exp(-logits))
  truth = random.random(shares.shape) < 1 / (1 + np.exp(-logits / 8))
  return task, [Example(('x',), tuple(np.flatnonzero(row).tolist())) for row in truth], [
      MultiLabelPrediction(tuple(np.flatnonzero(row > 0.5).tolist()), row) for row in shares]


@pytest.mark.parametrize('kind', ['classification', 'tagging', 'multilabel'])
def test_temperature_scaling_lowers_the_error(kind):
  task, examples, predictions = drawn(kind)
  before = calibration_error(task.calibration_bins(examples, predictions))
  fields = task.fit_to_development(examples, predictions)
  assert 5 < fields['temperature'] < 12
  fitted = dataclasses.replace(task, **fields)
  found = task.decisions(examples, predictions)
  scaled = softmax(found.logs / fields['temperature'])
  after = calibration_error(confidence_bins(scaled.max(-1), scaled.argmax(-1) == found.labels))
  assert before > 15 and after < 7
  assert ('thresholds' in fields) == (kind == 'multilabel')
  assert fitted.export_attributes()['calibration_temperature'] == fields['temperature']
  unlabeled = [dataclasses.replace(one, label=None) for one in examples]
  assert not task.calibration_bins(unlabeled, predictions)


@pytest.mark.parametrize('kind', ['classification', 'tagging', 'multilabel'])
def test_a_temperature_divides_logits(kind):
  model = tuned.trained(kind)
  warm = dataclasses.replace(model, task=dataclasses.replace(model.task, temperature=4.0))
  words = Example(('fine', 'berlin'),
                  (0, 3)) if kind == 'tagging' else Example(('fine film berlin',), None)
  def logs(trained):
    found = predict(trained, [words])[0]
    shares = np.asarray(found.all_probabilities if kind == 'tagging' else found.probabilities)
    if kind == 'multilabel':
      return np.log(shares) - np.log1p(-shares)
    return np.log(shares) - np.log(shares[..., :1])
  np.testing.assert_allclose(logs(warm) * 4, logs(model), rtol=1e-9)


def test_thresholds_are_tuned_on_calibrated_probabilities():
  task, examples, predictions = drawn('multilabel')
  fields = task.fit_to_development(examples, predictions)
  plain = dataclasses.replace(task, calibrate=False).fit_to_development(examples, predictions)
  logit = np.log(plain['thresholds'][0]) - np.log1p(-plain['thresholds'][0])
  calibrated = 1 / (1 + np.exp(-logit / fields['temperature']))
  assert fields['thresholds'][0] == pytest.approx(calibrated, abs=0.02)


def test_what_has_no_probabilities_is_not_calibrated():
  with pytest.raises(ConfigError, match='are for classes, and a regression has none'):
    SequenceTask(regression=True, measures=('pearson',), calibrate=True)
  with pytest.raises(ConfigError, match='a CRF predicts whole rows of tags'):
    RecurrentTagging(calibrate=True)
  regression = tuned.trained('regression')
  examples = [Example(('fine',), 1.0)]
  assert regression.task.calibration_bins(examples, predict(regression, examples)) == []
  assert not isinstance(tuned.trained('answers').task, CalibratedTask)


def test_a_temperature_is_exported_and_read(tmp_path):
  model = tuned.trained('classification')
  model = dataclasses.replace(model, task=dataclasses.replace(model.task, temperature=2.5))
  plm_jax.export(model, tmp_path / 'out')
  assert json.loads((tmp_path / 'out/config.json').read_text())['calibration_temperature'] == 2.5
  again = plm_jax.load(tmp_path / 'out')
  assert again.task.temperature == 2.5
  texts = ['a fine film', 'dull']
  ours, theirs = plm_jax.predict(model, texts), plm_jax.predict(again, texts)
  assert [one.probability for one in ours] == pytest.approx([one.probability for one in theirs],
                                                            abs=1e-6)
  assert conversion.is_checkpoint(tmp_path / 'out')


@pytest.mark.parametrize(('kind', 'examples', 'expected'), [
    ('classification', [Example(('fine',), 1, where='x:1'), Example(('a <b>film',), 1, where='x:2'),
                        Example(('a dull film',), 1, where='x:3')],
     [{'text': 'a dull film', 'label': 'bad', 'truth': 'good', 'where': 'x:3'},
      {'text': 'a <b>film', 'label': 'bad', 'truth': 'good', 'where': 'x:2'}]),
    ('tagging', [Example(('Angela', 'came'), (1, 3), where='x:1')],
     [{'words': ['Angela', 'came'], 'tags': ['B-PER', 'O'], 'truth': ['B-PER', 'B-LOC'],
       'where': 'x:1'}]),
    ('multilabel', [Example(('fine',), (0,), key='k')],
     [{'id': 'k', 'labels': ['good'], 'truth': ['bad']}]),
    ('regression', [Example(('fine',), -1.0)], [{'text': 'fine', 'truth': -1.0}])])
def test_errors_are_files_of_the_run(tmp_path, kind, examples, expected):
  model = tuned.trained(kind)
  from etils import epath
  write_errors(epath.Path(tmp_path), model.task,
               list(zip(examples, predict(model, examples), strict=True)))
  rows = [json.loads(line) for line in (tmp_path / 'errors.jsonl').read_text().splitlines()]
  assert [{name: row.get(name) for name in wanted}
          for row, wanted in zip(rows, expected, strict=True)] == expected
  confusion = tmp_path / 'confusion.tsv'
  assert confusion.exists() == (kind == 'classification')
  if confusion.exists():
    assert confusion.read_text() == 'true \\ predicted\tbad\tgood\nbad\t0\t0\ngood\t2\t1\n'
