"""A run whose batches continue the previous ones: checkpoints contain the state between batches."""
import dataclasses

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from plm_jax.checkpoints.checkpoint import Checkpoints
from plm_jax.config.run import Phase
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes import find_recipe
from plm_jax.runs.run import run
from plm_jax.training.train import TrainingResult


def states(folder):
  manager = Checkpoints(folder / 'checkpoints', keep=None)
  try:
    what = ocp.args.Composite(state=ocp.args.PyTreeRestore())
    return manager.manager.restore(max(manager.steps()), args=what)['state']
  finally:
    manager.close()


def test_the_wall_time_of_a_resumed_run_counts_all_processes():
  result = TrainingResult(9, {}, True, 90.0, {})
  assert result.wall_times == {'Wall time': '1.5 min'}
  resumed = dataclasses.replace(result, earlier=480.0)
  assert resumed.wall_times == {
      'Wall time': '9.5 min', 'Wall time since it resumed': '1.5 min'}


@pytest.mark.slow
def test_a_resumed_run_with_state_ends_with_the_same_bits(tmp_path):
  """Parameters, Adagrad's sums and what LSTMs carry, after a stop between two batches of one
  stretch of text."""
  text = tmp_path / 'text.txt'
  text.write_text('\n\n'.join(f'the {n}th of many texts is here . it says {n * n} , or {n % 7} .'
                              for n in range(900)))
  config = find_recipe('elmo_small')('test')
  config = dataclasses.replace(
      config, model=dataclasses.replace(config.model, words=200, vocab=400),
      data=dataclasses.replace(config.data, path=(str(text),),
                               prepare=TextConfig(kind='words', workers=1)))
  phases = lambda steps: dataclasses.replace(config.train, phases=(Phase(steps, 20, 8),),
                                             save_every=3, eval_every=9)
  run(dataclasses.replace(config, train=phases(6), output=str(tmp_path / 'whole')))
  for steps in (3, 6):
    result = run(dataclasses.replace(config, train=phases(steps), output=str(tmp_path / 'parts')))
  assert result and result.earlier > 0
  whole, parts = (states(tmp_path / name) for name in ('whole', 'parts'))
  assert {*whole} == {'step', 'params', 'opt_state', 'skipped', 'streak',
                      'carry'} and whole['carry']['due'].any()
  jax.tree.map(np.testing.assert_array_equal, whole, parts)
