"""Build the model of a run and the shapes of its parameters, without an optimizer."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax

from plm_jax.errors import ConfigError, name_field
from plm_jax.models import families
from plm_jax.optim import adapters
from plm_jax.optim.tuning import freeze_lower_layers
from plm_jax.tokenizers.contract import Vocab

if TYPE_CHECKING:
  from plm_jax.config.run import RunConfig


def build_model(config: RunConfig, vocab: Vocab) -> nn.Module:
  """Build the backbone of a run with the heads of its objective.

  Modules raise a UserError for options that they cannot build. Any other exception is a bug, and
  passes through with its traceback.

  Raises:
    ConfigError: the tokenizer does not fit the model or the objective, or these two do not match.
  """
  padding = config.model.padding
  if padding not in (-1, vocab.pad):
    raise ConfigError(
        f'the model knows padding by the id {padding} and gives it no position, the tokenizer pads '
        f'with {vocab.pad}: give {name_field("model.padding")} {vocab.pad}')
  if vocab.size > config.model.vocab:
    raise ConfigError(
        f'the tokenizer has {vocab.size} tokens, but the model has {config.model.vocab}: give '
        f'{name_field("model.vocab")}={vocab.size} or more, or prepare the records with the '
        f'{name_field("scale")} of the run')
  objective = config.training_objective
  lacking = [name for name in objective.requirements.special_tokens if getattr(vocab, name) < 0]
  if lacking:
    raise ConfigError(
        'the objective needs special tokens that the tokenizer does not have: '
        f'{", ".join(lacking)}. One that is trained for GLM or T5 has theirs: '
        f'{name_field("data.prepare.layout")} glm or t5')
  # In config.json the two may not match; recipes have parts that do.
  kind = type(config.model).__name__
  architectures = objective.requirements.architectures
  if architectures and kind not in architectures:
    raise ConfigError(f'{type(objective).__name__} is not for {kind}: it trains '
                      f'{" or ".join(architectures)}')
  block = getattr(config.model, 'block', None)
  if block is not None and block.cross:
    raise ConfigError(f'{name_field("model.block.cross")} is for the decoder of an '
                      'encoder-decoder, which has it anyway: leave it out')
  backbone = (config.model if objective.step_traits.perturbs_inputs
              else freeze_lower_layers(config.model, config.tuning.top))
  return objective.build(backbone, packed=config.data.several_texts)


def parameter_shapes(config: RunConfig, model: nn.Module) -> Any:
  """Compute the shapes of a run's parameters, boxed with their logical axes; nothing is allocated.

  They follow from the model alone, on a dummy batch: no text is corrupted, and there is no
  optimizer. Includes the parameters of adapters. Training makes the same tree
  (`training.step.init_state`).
  """
  family, objective = families.get_family(config.family), config.training_objective
  batch: dict[str, Any] = dict(families.dummy_inputs(family.input_shapes(config.model)))
  batch |= objective.module_inputs(config.model)

  def init(batch):
    key = jax.random.key(0)  # outside of a traced function, it would compile a program
    params = model.init(key, batch)['params']
    adapter = config.tuning.adapter
    return params if adapter.kind == 'none' else adapters.add(params, adapter, key)

  return jax.eval_shape(init, batch)
