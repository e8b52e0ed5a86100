"""Fine-tuning runs: killed and resumed, on several devices, with gradient accumulation, packed;
their best checkpoint and their initialization."""
import json
import os
import pathlib
import shutil
import signal

import jax
import labelled
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.errors import ConfigError
from plm_jax.finetuning.feed import LabeledFeed
from plm_jax.loading import loaded_model
from plm_jax.recipes.finetune import InitialModel
from plm_jax.runs.run import evaluate_folder, run

PLAIN = {'model__block__dropout': 0.0, 'model__block__attention__dropout': 0.0}


@pytest.fixture(scope='module')
def home(tmp_path_factory) -> pathlib.Path:
  """A tokenizer, and examples of every kind of task in the tests."""
  return tmp_path_factory.mktemp('labelled')


@pytest.fixture(scope='module')
def finished(home):
  """A run that nothing disturbed: (folder, result)."""
  folder = home / 'undisturbed'
  return folder, run(labelled.run(home, output=str(folder)))


def test_a_run_is_evaluated_without_its_training_data(finished, tmp_path, capsys):
  """Its best checkpoint, by its final metrics; the classes come from its configuration."""
  folder = shutil.copytree(finished[0], tmp_path / 'run')
  said = json.loads((folder / 'config.json').read_text())
  said['data']['train'] = ['gone.jsonl']
  (folder / 'config.json').write_text(json.dumps(said))
  capsys.readouterr()
  evaluate_folder(str(folder))
  found = dict(line.split(': ') for line in capsys.readouterr().out.splitlines())
  values = {name: float(value.removesuffix('%')) for name, value in found.items()}
  assert values == pytest.approx(finished[1].heldout, abs=5e-3)
  said['data']['dev'] = []
  (folder / 'config.json').write_text(json.dumps(said))
  with pytest.raises(ConfigError, match='has no development set'):
    evaluate_folder(str(folder))


def losses(folder: pathlib.Path) -> list[float]:
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  return [line['loss'] for line in lines if line['split'] == 'train']


def assert_alike(a, b, folders, rel=1e-4):
  """Two results, of one run but for rounding."""
  np.testing.assert_allclose(*(losses(folder) for folder in folders), rtol=rel)
  tiny.assert_close(a.params, b.params, rel)


@pytest.mark.parametrize(('how', 'at'), [
    ('signal', 3), pytest.param('crash', 5, marks=pytest.mark.slow), *(
        pytest.param(how, at, marks=[pytest.mark.slow, pytest.mark.release]) for how, at in [
            ('crash', 1), ('crash', 2), ('signal', 4)])])
def test_a_killed_run_ends_with_the_same_bits(how, at, home, finished, tmp_path, monkeypatch):
  """Its best checkpoint too, which may be of before."""
  config = labelled.run(home, output=str(tmp_path / 'run'))
  stream = LabeledFeed.stream
  def disturbed(self, start, mesh):
    for step, phase, windows in stream(self, start, mesh):
      if step == at:
        if how == 'crash':
          raise KeyError('power cut')
        os.kill(os.getpid(), signal.SIGTERM)
      yield step, phase, windows
  with monkeypatch.context() as patch:
    patch.setattr(LabeledFeed, 'stream', disturbed)
    if how == 'crash':
      with pytest.raises(KeyError, match='power cut'):
        run(config)
    else:
      result = run(config)
      assert (result.finished, result.step) == (False, at + 1)
  result = run(config)
  assert result.finished and (result.best, result.heldout) == (finished[1].best,
                                                               finished[1].heldout)
  tiny.assert_same(result.params, finished[1].params)
  assert losses(tmp_path / 'run') == losses(finished[0])


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [
    {'mesh__data': 1, 'mesh__fsdp': 8}, pytest.param({'mesh__data': 8}, marks=pytest.mark.release)])
def test_eight_devices_train_the_same_as_one(mesh, home, finished, tmp_path):
  """Dropout included."""
  result = run(labelled.run(home, output=str(tmp_path / 'run'), **mesh))
  assert_alike(result, finished[1], (tmp_path / 'run', finished[0]))


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize('kind', ['tagging',
                                  pytest.param('classification', marks=pytest.mark.release)])
def test_gradient_accumulation_and_packing_change_nothing(kind, home, tmp_path):
  """Without dropout, whose draws are of rows. Packed batches are of the same examples, in the same
  order."""
  results = {}
  for name, changes in {'one': {}, 'four': {'train__accumulate': 4},
                        'packed': {'data__pack': True}}.items():
    results[name] = run(labelled.run(home, kind, 4, output=str(tmp_path / name), **PLAIN,
                                     **changes))
  for name in ('four', 'packed'):
    assert_alike(results[name], results['one'], (tmp_path / name, tmp_path / 'one'))


def scripted(figures: list[float], seen: dict):
  """Return an evaluator with given accuracies, which records the evaluated parameters in
  `seen`."""
  def evaluator(self, learner, mesh):
    def evaluate(params, phase):
      seen[len(seen)] = jax.device_get(params)
      return {'accuracy': figures[len(seen) - 1], 'loss': 1.0}
    return evaluate
  return evaluator


@pytest.mark.slow
def test_early_stopping_ends_with_the_best_parameters(home, tmp_path, monkeypatch):
  """Early: after two evaluations without improvement. The same command does not continue the
  run."""
  seen: dict = {}
  config = labelled.run(home, steps=12, output=str(tmp_path / 'run'), train__early=2)
  monkeypatch.setattr(LabeledFeed, 'make_evaluator', scripted([40, 70, 70, 60, 99, 99], seen))
  result = run(config)
  assert (result.finished, result.step, result.best) == (True, 8, 4) and len(seen) == 4
  assert result.heldout['accuracy'] == 70
  tiny.assert_same(result.params, seen[1])
  tiny.assert_same(dict(loaded_model.load_model(tmp_path / 'run').params), seen[1])
  again = run(config)
  assert (again.step, again.best,
          again.heldout) == (8, 4, result.heldout) and len(losses(tmp_path / 'run')) == 8
  tiny.assert_same(again.params, seen[1])


@pytest.mark.slow
@pytest.mark.parametrize(('labels', 'taken'), [
    (('bad', 'good'), True), (('good', 'bad'), False), (('LABEL_0', 'LABEL_1'), False)])
def test_the_head_of_an_exported_checkpoint_is_reused_for_the_same_classes(
    home, finished, tmp_path, capsys, labels, taken):
  trained = loaded_model.load_model(finished[0])
  out = tmp_path / 'out'
  conversion.save(out, trained.model, trained.params, trained.tokenizer,
                  like=conversion.ExportTemplate('bert', labels))
  config = labelled.run(home, steps=1, start=InitialModel(str(out), 'bert', trained.model),
                        output=str(tmp_path / 'run'), optim__peak=0.0)
  result = run(config)
  line = f"heads_label: in {out} it is for the classes '{', '.join(labels)}', initialized at random"
  assert (line in capsys.readouterr().out) == (not taken)
  kernels = [np.asarray(params['heads_label']['dense']['kernel'])
             for params in (result.params, trained.params)]
  assert np.array_equal(*kernels) == taken


@pytest.mark.slow
def test_the_head_of_another_task_is_not_reused(home, finished, tmp_path, capsys):
  """Three classes, then two with other names; the other parameters are kept."""
  (tmp_path / 'three').mkdir()
  for part in ('train', 'dev'):
    rows = [json.loads(line)
            for line in (home / f'classification.{part}.jsonl').read_text().splitlines()]
    (tmp_path / 'three' / f'classification.{part}.jsonl').write_text(''.join(
        json.dumps({**row, 'label': ('no', 'maybe', 'yes')[n % 3]}) + '\n'
        for n, row in enumerate(rows)))
  loaded_model.load_model(finished[0]).tokenizer.save(tmp_path / 'three' / 'tokenizer')
  begun = InitialModel(str(finished[0]), 'bert', loaded_model.load_model(finished[0]).model)
  config = labelled.run(tmp_path / 'three', steps=1, start=begun, output=str(tmp_path / 'run'),
                        optim__peak=0.0)
  result = run(config)
  assert (f"heads_label: in {finished[0]} it is for the classes 'bad, good', initialized at "
          "random") in capsys.readouterr().out
  assert result.params['heads_label']['dense']['kernel'].shape[-1] == 3
  tiny.assert_same(result.params['backbone'], finished[1].params['backbone'])


def test_a_model_with_a_trained_head_is_evaluated_before_training(home, finished, tmp_path):
  """At a learning rate of 0 nothing gets better, so the result is the initial model."""
  begun = InitialModel(str(finished[0]), 'bert', loaded_model.load_model(finished[0]).model)
  result = run(labelled.run(home, steps=2, start=begun, output=str(tmp_path / 'run'),
                            optim__peak=0.0))
  lines = [json.loads(line)
           for line in (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()]
  first = next(line for line in lines if line['split'] == 'heldout')
  assert first['step'] == 0 and first['accuracy'] == pytest.approx(finished[1].heldout['accuracy'])
  assert result.best == 0 and result.finished


def test_a_model_with_a_new_head_is_not_evaluated_before_training(finished):
  lines = [json.loads(line) for line in (finished[0] / 'metrics.jsonl').read_text().splitlines()]
  assert min(line['step'] for line in lines if line['split'] == 'heldout') == 2
