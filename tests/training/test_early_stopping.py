"""The best checkpoint of a run, early stopping, and log lines about skipped steps."""
import contextlib
import dataclasses
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import recipes, storage
from plm_jax.checkpoints.checkpoint import CheckpointError, Checkpoints
from plm_jax.config.run import ConfigError
from plm_jax.errors import STOP_SIGNALS
from plm_jax.objectives import metric_names
from plm_jax.optim.optimizers import make_schedule
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.training.evaluate import BestCheckpoint
from plm_jax.training.interrupts import catch_interrupts
from plm_jax.training.training_log import TrainingLog

NAN = float('nan')


def experiment(best='clm', early=0):
  config = recipes.find_recipe('gpt2_small')('test')
  return dataclasses.replace(config, train=dataclasses.replace(config.train, best=best, early=early,
                                                               eval_every=2))


@contextlib.contextmanager
def opened(folder, **settings):
  best = BestCheckpoint(experiment(**settings), storage.resolve_path(folder))
  try:
    yield best
  finally:
    best.close()


def offer(best, step, value, name='clm'):
  best.update(step, {name: value}, {'x': jnp.full(3, float(step))}, {'config': {}})


def kept(best):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return best.restore({'x': jax.ShapeDtypeStruct((3,), jnp.float32)}, {'x': device})['x'].tolist()


@pytest.mark.parametrize('bad', [NAN, float('inf'), -float('inf')])
@pytest.mark.parametrize(('name', 'values', 'chosen'), [
    ('clm', (3.0, 4.0), 4), ('clm', (4.0, 3.0), 6), ('clm_accuracy', (0.3, 0.4), 6),
    ('clm_accuracy', (0.4, 0.3), 4)])
def test_values_that_are_not_finite_are_never_the_best(name, values, chosen, bad, tmp_path):
  with opened(tmp_path, best=name) as best:
    for step, value in zip((2, 4, 6, 8), (bad, *values, bad), strict=True):
      offer(best, step, value, name)
    assert best.step == chosen and kept(best) == [chosen] * 3


def test_where_no_value_is_finite_none_is_kept(tmp_path):
  with opened(tmp_path, early=1) as best:
    offer(best, 2, NAN)
    offer(best, 4, NAN)
    assert best.step is None and not best.should_stop(4)


def test_patience_starts_once_an_accuracy_is_above_zero(tmp_path):
  with opened(tmp_path, best='clm_accuracy', early=2) as best:
    for step, value in ((2, 0.0), (4, 0.0), (6, 0.0), (8, 0.1), (10, 0.1)):
      offer(best, step, value, 'clm_accuracy')
      assert best.step == min(step, 8) and not best.should_stop(step)
    offer(best, 12, 0.0, 'clm_accuracy')
    assert best.step == 8 and best.should_stop(12)


def test_selection_by_another_metric_starts_over(tmp_path):
  with opened(tmp_path) as best:
    offer(best, 2, 3.0)
  with opened(tmp_path, best='clm_accuracy') as best:
    assert best.step is None
    offer(best, 4, 0.1, 'clm_accuracy')
    assert best.step == 4 and kept(best) == [4] * 3


def test_a_better_checkpoint_of_an_earlier_step_is_kept(tmp_path):
  """A run went back to an older checkpoint and continued with other settings."""
  with opened(tmp_path) as best:
    offer(best, 8, 3.0)
  with opened(tmp_path) as best:
    assert best.step == 8
    offer(best, 4, 3.5)
    assert best.step == 8 and kept(best) == [8] * 3
    offer(best, 6, 2.0)
    assert best.step == 6 and kept(best) == [6] * 3
    offer(best, 8, 1.0)
  with opened(tmp_path) as best:
    assert (best.step, best.values) == (8, {'clm': 1.0}) and kept(best) == [8] * 3
    offer(best, 20, 0.5)
    assert best.checkpoints.steps() == [20] and best.step == 20


def test_a_save_skipped_by_orbax_is_an_error(tmp_path):
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(4, {'x': jnp.zeros(3)}, {})
  with pytest.raises(CheckpointError,
                     match=r'the checkpoint of step 2 was not saved: .* has a newer one, of step '
                           r'4'):
    checkpoints.save(2, {'x': jnp.zeros(3)}, {})
  checkpoints.close()


def test_early_stopping_counts_from_the_best(tmp_path):
  with opened(tmp_path, early=2) as best:
    offer(best, 2, 3.0)
    offer(best, 4, NAN)
    assert not best.should_stop(4) and best.should_stop(6)


def test_a_metric_that_there_is_not(tmp_path):
  with opened(tmp_path, best='clm_acuracy') as best, pytest.raises(ConfigError,
                                                                   match='held-out metrics clm, '
                                                                         'got'):
    offer(best, 2, 1.0)


@pytest.mark.parametrize(('skipped', 'streak', 'updates'),
                         [(0, 0, 7), (2, 0, 5), (2, 1, 6), (3, 3, 5), (8, 8, 0)])
def test_the_logged_learning_rate_is_the_applied_one(skipped, streak, updates, tmp_path):
  """After eight steps. The optimizer counts its updates; the last step used the learning rate at
  the number of earlier updates."""
  config = experiment()
  numbers = {'loss': np.float32(1), 'grad_norm': np.float32(1), 'skipped': np.int32(skipped),
             'streak': np.int32(streak)}
  log = TrainingLog(config, storage.resolve_path(tmp_path), 0, make_mesh(MeshConfig(data=1)))
  log.pending = [numbers]
  assert log.flush(8) == streak
  log.close()
  line = json.loads((tmp_path / 'metrics.jsonl').read_text())
  schedule = make_schedule(config.optim, config.train.steps, config.train.steps_and_tokens)
  # the log compiles the schedule
  assert line['learning_rate'] == pytest.approx(float(schedule(updates)), rel=1e-6)


def progress_log(tmp_path, monkeypatch, terminal):
  monkeypatch.setattr('sys.stderr.isatty', lambda: terminal, raising=False)
  config = experiment()
  log = TrainingLog(config, storage.resolve_path(tmp_path), 0, make_mesh(MeshConfig(data=1)))
  return config, next(iter(config.objective.terms)), log


def test_a_log_gets_a_line_per_flush_with_losses_of_the_same_name(tmp_path, monkeypatch, capsys):
  config, name, log = progress_log(tmp_path, monkeypatch, terminal=False)
  values = {name: 2.5, 'loss': 3.5, 'skipped': 0, 'tokens_per_second': 1000.0, 'waiting': 0.01}
  log.show(4, values)
  log.log_heldout(4, {name: 2.25})
  log.show(8, values)
  log.close()
  told, lines = capsys.readouterr()
  first, before, after = lines.splitlines()
  total = config.train.steps
  called = metric_names.term_name(name)
  assert first == 'compiling the first step'
  assert before.startswith(f'step 4 of {total} ({4 / total:.0%}): ')
  assert f'{called} loss 2.500, ' in before and '1,000 tokens/s' in before
  assert f'{called} loss 2.500 (held-out 2.250)' in after and '3.5' not in after
  assert told == f'step 4  held-out {called} loss 2.250\n' and max(map(len, (before, after))) <= 80


def test_a_bar_shows_a_held_out_loss_as_soon_as_it_is_known(tmp_path, monkeypatch, capsys):
  _, name, log = progress_log(tmp_path, monkeypatch, terminal=True)
  log.show(4, {name: 2.5, 'loss': 3.5, 'skipped': 0, 'tokens_per_second': 1e9, 'mfu': 0.5,
               'waiting': 0.01})
  log.log_heldout(4, {name: 2.25, f'{name}_accuracy': 0.5})
  assert '(held-out 2.250)' in log.bar.postfix
  assert len(f'100%|{"#" * 8}| 8/8 00:00:00, {log.bar.postfix}') <= 80
  log.close()


@pytest.mark.parametrize('name', STOP_SIGNALS)
def test_termination_signals_stop_the_loop(name):
  number = getattr(signal, name)
  before = signal.signal(number, signal.SIG_DFL)
  try:
    with catch_interrupts() as interrupted:
      assert not interrupted()
      signal.raise_signal(number)
      assert interrupted()
      with pytest.raises(KeyboardInterrupt):  # a Ctrl-C after it ends the loop at once
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) == signal.SIG_DFL
    signal.signal(number, signal.SIG_IGN)
    with catch_interrupts() as interrupted:
      signal.raise_signal(number)
      assert interrupted() == (name in ('SIGINT', 'SIGTERM'))  # others stay ignored, as by nohup
  finally:
    signal.signal(number, before)


def test_ctrl_c_in_one_process_of_a_job_stops_all_processes(monkeypatch):
  """SIGTERM, which JAX's preemption service sends to all processes."""
  sent = []
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(os, 'kill', lambda process, number: sent.append((process, number)))
  before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  with catch_interrupts() as interrupted:
    assert signal.getsignal(signal.SIGTERM) is before[1]
    signal.raise_signal(signal.SIGINT)
    assert sent == [(os.getpid(), signal.SIGTERM)] and not interrupted()
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
  assert signal.getsignal(signal.SIGINT) is before[0]
