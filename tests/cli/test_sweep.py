"""Sweeps: combinations and their runs, the table, resuming, and errors."""
import json
import types

import pytest

from plm_jax.cli import finetune, sweep
from plm_jax.errors import Caller, ConfigError

ARGS = ('--task=classification', '--scale=test')


@pytest.fixture
def started(tmp_path, monkeypatch, capsys):
  """Run a sweep with made-up scores; return (finished runs, printed text, whether the sweep
  finished)."""
  done = []
  def start(*args, stop_after=1000):
    done.clear()
    def made_up(config, caller):
      if len(done) == stop_after:
        return types.SimpleNamespace(finished=False)
      done.append(config)
      accuracy = 1e3 * config.optim.peak + config.train.phases[0].batch + config.seed
      return types.SimpleNamespace(finished=True, heldout={'accuracy': accuracy, 'loss': 1.0})
    monkeypatch.setattr(finetune.runs, 'run', made_up)
    settings, rest = sweep.pop_settings([*ARGS, f'--output={tmp_path}/run', *args])
    finished = finetune.run_sweep('', rest, '', settings, Caller())
    return [*done], capsys.readouterr().out, finished
  return start


SWEEP = '--sweep', 'learning-rate=1e-3,2e-3', '--sweep=batch=8,16', '--seeds=2'


def test_every_combination_and_seed_is_a_run(started, tmp_path):
  runs, said, finished = started(*SWEEP)
  assert finished and [(one.optim.peak, one.train.phases[0].batch, one.seed) for one in runs] == [
      (peak, batch, seed) for peak in (1e-3, 2e-3) for batch in (8, 16) for seed in (0, 1)]
  assert [one.data.baseline for one in runs] == [True] + [False] * 7
  assert runs[-1].folder == f'{tmp_path}/run/learning-rate=2e-3_batch=16/seed-1'
  table = said[said.index('combination'):].splitlines()
  assert table[1].split() == ['learning-rate=2e-3', 'batch=16', '18.50%', '0.71%', '18.00%',
                              'to', '19.00%', '2']
  assert [line.split()[0:2] for line in table[2:5]] == [
      ['learning-rate=1e-3', 'batch=16'], ['learning-rate=2e-3', 'batch=8'],
      ['learning-rate=1e-3', 'batch=8']]
  page = (tmp_path / 'run/sweep.html').read_text()
  assert 'learning-rate=2e-3 batch=16' in page and '0: 18.00%, 1: 19.00%' in page


def test_an_interrupted_sweep_resumes(started):
  first, _, finished = started(*SWEEP, stop_after=3)
  assert not finished and len(first) == 3
  rest, said, finished = started(*SWEEP)
  assert finished and len(rest) == 5
  again, same, finished = started(*SWEEP)
  assert finished and not again and same.splitlines()[1:-1] == said[
      said.index('\ncombination'):].splitlines()[1:-1]
  assert len(started(*SWEEP, '--data.epochs=2')[0]) == 8  # another run


@pytest.mark.parametrize('changed', ['train', 'dev'])
def test_a_sweep_on_other_data_has_other_runs(started, tmp_path, changed):
  for name in ('train', 'dev'):
    (tmp_path / f'{name}.tsv').write_text('text\tlabel\na\tx\nb\ty\n')
  asked = *SWEEP, f'--train={tmp_path}/train.tsv', f'--dev={tmp_path}/dev.tsv'
  assert len(started(*asked)[0]) == 8
  assert not started(*asked)[0]
  (tmp_path / f'{changed}.tsv').write_text('text\tlabel\na\ty\nb\tx\n')
  assert len(started(*asked)[0]) == 8


def test_a_single_seed_has_no_deviation(started):
  _, said, _ = started('--sweep=epochs=1,2')
  assert said.splitlines()[-2].split()[0] in ('epochs=1', 'epochs=2') and 'nan' not in said


@pytest.mark.parametrize(('args', 'message'), [
    (('--sweep',), "takes an option and its values, such as learning-rate=1e-5,2e-5, got ''"),
    (('--sweep=batch',), 'takes an option and its values'),
    (('--sweep=batch=8,,16',), 'takes an option and its values'),
    (('--sweep=batch=8,8',), 'a value occurs twice'), (('--sweep=seed=1,2',), 'cannot vary --seed'),
    (('--sweep=lr=1e-3', '--sweep=learning-rate=1e-3'),
     'names an option twice: optim.peak, optim.peak')])
def test_sweeps_that_cannot_be(args, message):
  with pytest.raises(ConfigError, match=message):
    sweep.pop_settings(args)
  with pytest.raises(ConfigError, match='1,024 combinations, more than 1,000'):
    sweep.combine([sweep.Setting(str(n), str(n), ('1', '2')) for n in range(10)])


def test_invalid_options_end_the_sweep_before_the_first_run(started):
  for wrong in ('--sweep=batch=8,0', '--sweep=batch=8,many', '--sweep=optim.peek=1,2'):
    with pytest.raises((ConfigError, SystemExit)):
      started(wrong)
  with pytest.raises(ConfigError, match='--sweep is for training'):
    started('--sweep=batch=8', '--mode=evaluate')


def test_the_lowest_loss_is_the_best():
  results = [sweep.SweepResult('a', {0: 1.0}), sweep.SweepResult('b', {0: 0.5})]
  assert [one.name for one in sweep.rank_results(results, higher_is_better=False)] == ['b', 'a']


def test_results_are_kept_by_configuration(tmp_path, started):
  runs, _, _ = started('--sweep=batch=8')
  log = sweep.SweepLog(f'{tmp_path}/run')
  assert log.find(runs[0])['accuracy'] > 8
  assert list(json.loads((tmp_path / 'run/sweep.json').read_text())) == [sweep.run_digest(runs[0])]
