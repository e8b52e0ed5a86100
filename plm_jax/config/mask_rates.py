"""The mask rate of a phase: find and set it in an objective, or in a part of the objective."""
from collections.abc import Sequence
import dataclasses
from typing import Any

from plm_jax.errors import ConfigError, name_field

NAME = 'mask_rate'


def count_mask_rates(config: Any) -> int:
  """Count the mask rates of an objective, or of a part of one: 1 for BERT, T5 and ELECTRA."""
  if isinstance(config, tuple):
    return sum(map(count_mask_rates, config))
  if not dataclasses.is_dataclass(config):
    return 0
  inner = sum(count_mask_rates(getattr(config, field.name)) for field in dataclasses.fields(config))
  return inner + hasattr(config, NAME)


def check_mask_rates(phases: Sequence[Any], objective: Any) -> None:
  """Raise ConfigError for the mask rate of a phase where the objective has none, or several."""
  for number, phase in enumerate(phases):
    if phase.mask_rate is None:
      continue
    option, rates = name_field(f'train.phases.{number}.mask_rate'), count_mask_rates(objective)
    if rates != 1:
      raise ConfigError(f'{option}: the objective {type(objective).__name__} has '
                        f'{rates or "no"} mask rate{"s" if rates > 1 else ""}: leave it out')
    if getattr(objective, 'final_mask_rate', None) is not None:
      raise ConfigError(f'{option} and {name_field("objective.final_mask_rate")} both change the '
                        'mask rate during the run: give one of them')


def set_mask_rate(config: Any, rate: float) -> Any:
  """Return an objective, or a part of one, with another mask rate."""
  if isinstance(config, tuple):
    return tuple(set_mask_rate(part, rate) for part in config)
  if not count_mask_rates(config):
    return config
  changed = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    changed[field.name] = rate if field.name == NAME else set_mask_rate(value, rate)
  return dataclasses.replace(config, **changed)
