"""Compare the configuration of a run with that of the checkpoint it resumes: what may change."""
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from plm_jax import validation
from plm_jax.config.run import Phase, PretrainRun, RunConfig
from plm_jax.optim.optimizers import make_schedule

MAY_DIFFER_ON_RESUME = {
    'mode', 'topology', 'search', 'output', 'mesh', 'hosts', 'prompts', 'warm_start',
    'train.log_every', 'train.eval_every', 'train.eval_batches', 'train.save_every', 'train.keep',
    'train.max_nonfinite_steps', 'train.best', 'train.early', 'train.accumulate', 'train.resume',
    'train.changed_data', 'train.wandb', 'data.prepare.workers', 'tuning.expand',
    # These are resolved into phases and the learning rate.
    'data.epochs', 'data.least_steps', 'data.baseline', 'data.warmup', 'data.evaluations',
    'data.tokenizer',
    # Text and tokenizer may be moved: checkpoints have digests of their content.
    'data.path', 'data.heldout_path', 'data.train', 'data.dev', 'data.prepare.tokenizer'}
"""options that may differ when a run resumes, since they do not change its updates"""
for _model in ('model', 'objective.model'):
  for _stack in ('stack', 'decoder', 'source'):
    MAY_DIFFER_ON_RESUME |= {f'{_model}.{_stack}.remat', f'{_model}.{_stack}.scan'}
  MAY_DIFFER_ON_RESUME |= {f'{_model}.block.init.tables', f'{_model}.block.init.matrices'}

SCHEDULE_FIELDS = (
    'train.phases', 'optim.peak', 'optim.warmup', 'optim.horizon', 'optim.cooldown', 'optim.clock',
    'optim.schedule', 'optim.power', 'optim.floor', 'optim.warmup_start')
"""options of the schedule: the part after the newest checkpoint may differ"""


def differences(old: Any, new: Any) -> list[str]:
  """List the fields outside MAY_DIFFER_ON_RESUME that differ, as 'field: old -> new'."""
  return validation.differences(old, new, MAY_DIFFER_ON_RESUME)


def resume_obstacles(old: RunConfig, new: RunConfig, done: int) -> list[str]:
  """List the reasons why `new` cannot resume `old` at step `done`; none if it can.

  A run may become longer or shorter, and the rest of it may use another learning rate. Its phases
  and its learning rate up to step `done` must be the same.

  Returns:
    Differences as 'field: old -> new', and a sentence on finished steps that they would change.
  """
  found = differences(old, new)
  schedule_changes = [line for line in found if line.partition(':')[0] in SCHEDULE_FIELDS]
  others = [line for line in found if line not in schedule_changes]
  if not schedule_changes:
    return others
  changed = ''
  if new.training_objective.step_traits.changes_over_run and old.train.steps != new.train.steps:
    changed = 'and another number of steps would change their mask rates'
  elif unimax_budget(old) != unimax_budget(new):
    changed = 'and another number of tokens would change the shares of the corpora'
  elif completed_phases(old.train.phases, done) != completed_phases(new.train.phases, done):
    changed = 'and these phases would change their batches'
  elif not np.array_equal(past_learning_rates(old, done), past_learning_rates(new, done)):
    changed = 'and this would change their learning rates'
  if not changed:
    return others
  return others + schedule_changes + [f'{done:,} steps are done, {changed}']


def unimax_budget(config: RunConfig) -> int:
  """Return the tokens of text that UniMax distributes over the corpora; 0: no UniMax."""
  if isinstance(config, PretrainRun) and config.data.unimax_epochs:
    return config.text_tokens
  return 0


def completed_phases(phases: Sequence[Phase], done: int) -> list[Phase] | None:
  """Return the phases up to step `done`, the last one cut there; None if they end before it."""
  found = []
  for phase in phases:
    if done > 0:
      found.append(dataclasses.replace(phase, steps=min(phase.steps, done)))
      done -= phase.steps
  if done <= 0:
    return found
  return None


def past_learning_rates(config: RunConfig, done: int) -> np.ndarray:
  """Compute the learning rates of the steps before `done`, or of a sample of 10,000 of them."""
  sample = np.linspace(0, max(done - 1, 0), min(done, 10_000)).astype(np.int64)
  rate = make_schedule(config.optim, config.train.steps, config.train.steps_and_tokens)
  return np.asarray(rate(np.unique(sample)))
