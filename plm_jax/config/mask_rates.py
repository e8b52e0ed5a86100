"""Set the mask rate of an objective, wherever among its parts it is."""
import dataclasses
from typing import Any

NAME = 'mask_rate'


def count_mask_rates(config: Any) -> int:
  """Count the mask rates of an objective, or of a part of one: 1 for BERT, T5 and ELECTRA."""
  if isinstance(config, tuple):
    return sum(map(count_mask_rates, config))
  if not dataclasses.is_dataclass(config):
    return 0
  inner = sum(count_mask_rates(getattr(config, field.name)) for field in dataclasses.fields(config))
  return inner + hasattr(config, NAME)


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
