"""Make the learner of a run: model, objective and optimizer from its configuration."""
from collections.abc import Callable
import dataclasses

import jax

from plm_jax.config.run import Phase, RunConfig, phase_objective
from plm_jax.loading.build import build_model, parameter_shapes
from plm_jax.optim import muon
from plm_jax.optim.trainable import ParameterSelection
from plm_jax.optim.transformations import make_optimizer
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.step import Learner, init_state, jit_train_step


def make_learner(config: RunConfig, vocab: Vocab) -> Learner:
  """Make the learner of a run: model, objective, optimizer and what they share.

  Its objective is that of the last phase, with which a run is evaluated.

  Raises:
    ConfigError: the options make no model (`build_model`).
  """
  model, objective = build_model(config, vocab), phase_objective(config, config.train.phases[-1])
  select = make_selection(config)
  matrices = (muon.matrix_dimensions(parameter_shapes(config, model))
              if config.optim.uses_matrices else None)
  optimizer = make_optimizer(
      config.optim, config.train.steps, pace=config.train.steps_and_tokens,
      parts=objective.optimizer_hints.groups, select=select, matrices=matrices)
  carry = objective.carry(config.model, config.train.phases[0].batch)
  return Learner(
      model, objective, optimizer, vocab, config.seed, config.train.accumulate, select,
      config.tuning.adapter, config.train.steps, carry, config.optim.ema)


def phase_learner(config: RunConfig, learner: Learner, phase: Phase) -> Learner:
  """Return the learner of a run with the objective of a phase."""
  objective = phase_objective(config, phase)
  if objective == learner.objective:
    return learner
  return dataclasses.replace(learner, objective=objective)


def make_updates(config: RunConfig, learner: Learner, layout) -> Callable[[Phase], Callable]:
  """Make the function from a phase to its jitted training step; phases of one mask rate share it.

  Args:
    config: the run.
    learner: that of the run.
    layout: shardings of the training state.
  """
  updates: dict[float | None, Callable] = {}
  def update(phase: Phase) -> Callable:
    if phase.mask_rate not in updates:
      updates[phase.mask_rate] = jit_train_step(phase_learner(config, learner, phase), layout)
    return updates[phase.mask_rate]
  return update


def make_selection(config: RunConfig) -> ParameterSelection:
  """Select the trainable parameters of a run."""
  tuning = config.tuning
  frozen = config.training_objective.optimizer_hints.frozen + getattr(config.model, 'frozen', ())
  return ParameterSelection(
      config.optim.only, frozen, tuning.adapter.kind != 'none', tuning.top)


def state_shapes(config: RunConfig, learner: Learner):
  """Compute the shapes of a run's training state, with their logical axes.

  Modules raise a UserError for options that they cannot work with. Any other exception is a bug,
  and passes through with its traceback.
  """
  windows = config.training_objective.shapes(2, config.train.phases[0].length)
  return jax.eval_shape(lambda w: init_state(learner, w), windows)


def placeholder_vocab(config: RunConfig) -> Vocab:
  """Make a vocabulary for shapes alone: ids of special tokens change none.

  A tokenizer with sentinels has one special token around a text; BART's has two and no sentinels.
  """
  size = config.model.vocab
  sentinels = getattr(config.objective, 'sentinels', 1000)
  sentinel = -1 if getattr(config.objective, 'specials', 1) == 2 else size - 1
  return Vocab(
      size, max(config.model.padding, 0), unk=1, cls=2, sep=3, mask=4, bos=5, eos=6, sop=7, eop=8,
      gmask=9, smask=10, sentinel=sentinel, sentinels=sentinels, language=11)
