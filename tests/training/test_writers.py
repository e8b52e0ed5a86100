"""Metrics of a run in writers: a simple one, and a fake wandb that records its calls."""
import json
import sys
import types

import pytest
import tiny

from plm_jax import recipes, storage
from plm_jax.cli.run import main
from plm_jax.config.run import ConfigError
from plm_jax.training import feed, run_metrics, writers


class Kept:
  """A writer that keeps its input."""

  def __init__(self):
    self.got, self.flushed, self.closed = [], 0, False

  def write_scalars(self, step, scalars):
    self.got.append((step, dict(scalars)))

  def flush(self):
    self.flushed += 1

  def close(self):
    self.closed = True


def test_custom_writers_get_every_metric_and_stay_open(tmp_path):
  mine, own, other = Kept(), Kept(), Kept()
  with writers.also(mine):
    with writers.also(other):
      writer = run_metrics.MetricsWriter(tmp_path, 0, own)
      writer.write(3, 'train', {'loss': 1.5, 'mlm': 2.0})
    writer.write(4, 'heldout', {'mlm': 0.25})
    writer.close()
  assert mine.got == own.got == [(3, {'train/loss': 1.5, 'train/mlm': 2.0}),
                                 (4, {'heldout/mlm': 0.25})]
  assert other.got == mine.got[:1] and (mine.flushed, other.flushed) == (2, 1)
  assert own.closed and not mine.closed and writers.current_writers() == ()
  assert [json.loads(line)['step']
          for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()] == [3, 4]


def test_unwritable_metrics_are_one_warning(tmp_path, caplog):
  writer = run_metrics.MetricsWriter(tmp_path)
  (tmp_path / 'metrics.jsonl').symlink_to('/dev/full')
  for step in (1, 2):
    writer.write(step, 'train', {'loss': 1.0})
    assert writer.failed
  writer.close()
  [warning] = caplog.messages
  assert warning.startswith(
      f'metrics: no space left for {tmp_path}/metrics.jsonl (No space left on device)')
  with pytest.raises(storage.StorageError, match='no ordinary file'):
    run_metrics.MetricsWriter(tmp_path)


@pytest.fixture
def wandb(monkeypatch):
  """The used part of wandb; `runs` has the arguments of `init`, and the lines of each run."""
  runs = []
  def init(**options):
    lines = []
    runs.append((options, lines))
    return types.SimpleNamespace(
        log=lines.append, finish=lambda: lines.append('finished'), define_metric=lambda *a,
        **k: lines.append((a, k)))
  module = types.ModuleType('wandb')
  module.__spec__ = types.SimpleNamespace()
  vars(module).update(init=init, runs=runs)
  monkeypatch.setitem(sys.modules, 'wandb', module)
  return module


def test_a_resumed_run_continues_at_weights_and_biases(tmp_path, wandb):
  for _ in range(2):
    writer = writers.WeightsAndBiases('project', 'bert_base', storage.resolve_path(tmp_path),
                                      {'seed': 3})
    writer.write_scalars(7, {'train/loss': 1.5})
    writer.close()
  (first, lines), (second, _) = wandb.runs
  assert first == second and first['project'] == 'project' and first['resume'] == 'allow'
  assert first['id'] == (tmp_path / 'wandb_id.txt').read_text() and first['config'] == {'seed': 3}
  assert lines == [(('*',), {'step_metric': 'step'}), {'train/loss': 1.5, 'step': 7}, 'finished']


@pytest.mark.slow
def test_a_run_that_fails_ends_its_writers(tmp_path, wandb, monkeypatch):
  text = tmp_path / 'text.txt'
  text.write_text(tiny.text())
  batches = feed.stream_batches
  def broken(*arguments):
    for step, phase, windows in batches(*arguments):
      if step == 3:
        raise OSError('the disk is gone')
      yield step, phase, windows
  monkeypatch.setattr(feed, 'stream_batches', broken)
  with pytest.raises(SystemExit, match='the disk is gone'):
    main(
      recipes.find_recipe('bert_base'),
      ['--scale=test', f'--data.path={text}', f'--output={tmp_path}/run', '--train.wandb=mine',
       '--mesh.data=1'],
    )
  (_, lines), = wandb.runs
  assert lines[-1] == 'finished' and 'train/loss' in lines[1]


def test_missing_wandb_is_reported_before_the_run(monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  writers.check_wandb('')
  with pytest.raises(ConfigError, match=r'train\.wandb=mine needs wandb: pip install wandb'):
    writers.check_wandb('mine')
