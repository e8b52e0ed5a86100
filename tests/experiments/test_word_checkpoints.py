"""When a run has read how many words: by hand, and in a run whose millions are thousands."""
import functools
import json
import os
import pathlib
import re

import numpy as np
import pytest
import tiny

from experiments.babylm import tracks
from experiments.babylm.__main__ import main
from experiments.babylm.tracks import TrackConfig
from experiments.babylm.word_checkpoints import name_steps, plan_checkpoints
from plm_jax import recipes, storage, validation
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.checkpoints.restore import list_named_checkpoints
from plm_jax.config.run import Phase
from plm_jax.errors import ConfigError
from plm_jax.loading import loaded_model
from plm_jax.runs import pretrain
from plm_jax.runs import run as runs

SMALL = TrackConfig('strict-small')


def test_plan_of_ten_epochs():
  """0.3 million words per step, then 0.6: ten million words are read ten times."""
  plan = plan_checkpoints(SMALL, (Phase(100, 128, 8), Phase(117, 128, 16)), (3e5, 6e5))
  assert plan.words == pytest.approx(100.2e6)
  steps = {name: step for step, names in plan.names.items() for name in names}
  assert list(steps) == list(SMALL.checkpoint_words())
  assert steps['chck_1M'] == 4 and steps['chck_3M'] == 10 and steps['chck_30M'] == 100
  # 100 + 10 / 0.6, 100 + 70 / 0.6, rounded up
  assert steps['chck_40M'] == 117 and steps['chck_100M'] == 217


def test_a_large_step_has_several_names():
  plan = plan_checkpoints(SMALL, (Phase(3, 128, 8),), (2.5e6,))
  assert plan.names == {1: ['chck_1M', 'chck_2M'], 2: ['chck_3M', 'chck_4M', 'chck_5M'],
                        3: ['chck_6M', 'chck_7M']}


@pytest.mark.parametrize(('steps', 'last'), [(99, ['chck_100M']), (98, ['chck_100M']), (97, None)])
def test_a_run_may_end_slightly_before_its_last_checkpoint(steps, last):
  """A text of a little less than ten million words is read ten times, too."""
  assert plan_checkpoints(SMALL, (Phase(steps, 128, 8),), (1e6,)).names.get(steps) == last


@pytest.fixture
def thousands(tmp_path, monkeypatch):
  """Options of a run of a text of 20,000 words, in a world where a million is a thousand."""
  monkeypatch.setattr(tracks, 'MILLION', 1000)
  monkeypatch.setattr(tracks, 'CHECKPOINT_MILLIONS', (1, 2, 3, 40))
  monkeypatch.setattr(tracks, 'BUDGETS', {'strict-small': 21_000})
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  monkeypatch.setattr(pretrain, 'report_samples', lambda *args: None)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'text.txt').write_text(tiny.text())
  config = recipes.find_recipe('gpt2_small')('test')
  def run_steps(steps):
    options = {
        'output': 'run', 'data': {'path': ('text.txt',), 'prepare': {'heldout': 0.1}},
        'mesh': {'data': 1},
        'train': {'phases': (Phase(steps, 32, 24),), 'eval_every': 100, 'eval_batches': 1,
                  'save_every': 100}}
    return runs.run(validation.with_overrides(config, options),
                    functools.partial(name_steps, SMALL))
  return run_steps


@pytest.mark.slow
def test_a_run_keeps_its_checkpoints(thousands, monkeypatch, capsys):
  thousands(12)
  counts, = storage.cache_folder().glob('records/*/text_size.json')
  assert json.loads(counts.read_text())['words'] == len(tiny.text().split())
  names = list_named_checkpoints('run')
  assert names == ['chck_1M', 'chck_2M', 'chck_3M']
  steps = [int(os.listdir(f'run/named_checkpoints/{name}')[0]) for name in names]
  np.testing.assert_allclose(np.diff(steps), steps[0], atol=1)  # a thousand words each
  loaded = loaded_model.load_model('run', checkpoint='chck_2M')
  assert loaded.checkpoint == 'chck_2M'
  with pytest.raises(CheckpointError,
                     match='run has no checkpoint chck_4M: it has chck_1M, chck_2M, chck_3M'):
    loaded_model.load_model('run', checkpoint='chck_4M')

  # An export has them as revisions, with their steps in the model cards.
  main(['export', 'run', 'cache'])
  assert 'local/run in cache: HF_HUB_CACHE=cache' in capsys.readouterr().out
  home = pathlib.Path('cache/models--local--run')
  assert sorted(path.name for path in (home / 'refs').iterdir()) == [*names, 'main']
  commit = (home / 'refs/chck_1M').read_text()
  assert len(commit) == 40 and (home / 'snapshots' / commit / 'model.safetensors').exists()
  assert f'| Steps | {steps[0]} of 12 planned |' in (home / 'snapshots' / commit
                                                     / 'README.md').read_text()
  with pytest.raises(CheckpointError,
                     match='is not the folder of a run: it has no checkpoint chck_1M'):
    loaded_model.load_model(home / 'snapshots' / commit, checkpoint='chck_1M')


@pytest.mark.slow
def test_runs_with_too_many_epochs_or_words_are_refused(thousands, monkeypatch):
  message = (r'the run reads text.txt \d+\.?\d* times, and BabyLM allows 10 epochs: '
             r'give --train.phases.0.steps=(\d+)')
  with pytest.raises(ConfigError, match=message) as caught:
    thousands(4000)
  advised = re.search(message, str(caught.value))
  assert advised and 500 < int(advised[1]) < 600  # about 320 words per step of 18,000 words
  monkeypatch.setattr(tracks, 'BUDGETS', {'strict-small': 15_000})
  with pytest.raises(ConfigError,
                     match='the text has 20,295 words, and the track strict-small allows 15,000'):
    thousands(16)
