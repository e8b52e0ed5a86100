"""Configurations as JSON: a run's config.json, and what a checkpoint says of its run.

A dataclass is written with its class under 'is', and the whole with the number of its format:

    {"format": 4, "is": "plm_jax.config:Experiment", "name": "bert_base", ...}

What was written under an older number, or none, is brought up to date before it is read, one format after another, by
`CHANGES`. Whoever moves or renames a class or a field, or adds a field whose default is not what runs did before, adds
the next number: the class as the format before names it -> a function of what was saved of it, 'is' among the fields,
that returns what the new format would hold. What is inside has been changed already. To change OptimConfig and others:

    5: {'plm_jax.training.optim:OptimConfig': lacking(heads='apart'),
        'plm_jax.objectives.plm:PermutationLM': moved('plm_jax.objectives.permutation:PermutationLM'),
        'plm_jax.objectives.mlm:MaskedLM': lambda saved: renamed(lacking(duplicates=1)(saved), rate='share')},

A new field whose default is what was done before needs nothing here.
"""
from collections.abc import Callable, Mapping
import dataclasses
import importlib
import json
from typing import Any

from plm_jax import checked
from plm_jax.checked import Checked
from plm_jax.errors import ConfigError

Saved = dict[str, Any]
"""a dataclass in JSON: its fields, and its class under 'is'"""


def moved(name: str) -> Callable[[Saved], Saved]:
  """Makes a change of a class's name, or of the module it is in, to 'module:Class'."""
  return lambda saved: {**saved, 'is': name}


def lacking(**old: Any) -> Callable[[Saved], Saved]:
  """Makes a change by new fields, and in JSON what runs of before did where they are."""
  return lambda saved: {**old, **saved}


def renamed(saved: Saved, **names: str) -> Saved:
  """Returns saved, with fields old='new' under their new names."""
  return {names.get(key, key): value for key, value in saved.items()}


def block_in_parts(saved: Saved) -> Saved:
  """BlockConfig of format 1, where the fields of all its parts lay beside each other, and 0 stood for None."""
  saved = dict(saved)
  def part(place: str, **fields: str) -> Saved:
    inner = {new: saved.pop(old) for new, old in fields.items() if old in saved}
    return {'is': f'plm_jax.layers.{place}', **inner}
  def absent(part: Saved, *names: str) -> Saved:
    return part | {name: part[name] or None for name in names if name in part}
  biased, inputs, average = (saved.pop(name, default) for name, default in (
      ('bias', True), ('fan_in', False), ('fan_out', False)))
  attention = absent(part('attention:AttentionConfig', bias='attention_bias', scale='logit_scale',
                          dropout='attention_dropout', position='position'), 'scale')
  mlp = part('mlp:MlpConfig', activation='activation', gated='gated', bias='mlp_bias', dropout='mlp_dropout')
  norm = part('norm:NormConfig', kind='norm', eps='norm_eps')
  init = absent(part('init:InitConfig', std='init_std', out_std='out_std'), 'out_std')
  init['fan'] = 'none' if not inputs else 'average' if average else 'in'
  if not biased:
    attention['bias'], mlp['bias'] = [], False
  return absent(saved, 'head_size', 'kv_heads') | {'attention': attention, 'mlp': mlp, 'norm': norm, 'init': init}


CHANGES: Mapping[int, Mapping[str, Callable[[Saved], Saved]]] = {
    2: {'plm_jax.optim:OptimConfig': moved('plm_jax.training.optim:OptimConfig'),
        'plm_jax.layers.block:BlockConfig': block_in_parts},
    3: {'plm_jax.data.prepare:TextConfig': moved('plm_jax.data.settings:TextConfig')},
    4: {'plm_jax.objectives.distillation:Distillation': lambda saved: renamed(saved, mlm='task')},
}
FORMAT = max(CHANGES)


def dump(config: Any) -> str:
  """Writes the text of a configuration's file."""
  return json.dumps(to_json(config), indent=1, ensure_ascii=False) + '\n'


def to_json(config: Any) -> Saved:
  """Turns a configuration into JSON values, with the number of the format."""
  return {'format': FORMAT, **plain(config)}


def plain(value: Any) -> Any:
  """Turns a value of a field into JSON values; each dataclass carries its class under 'is'."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    name = f'{type(value).__module__}:{type(value).__qualname__}'
    return {'is': name, **{f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}}
  return [plain(item) for item in value] if isinstance(value, tuple) else value


def from_json(value: Any, where: str = 'config.json') -> Any:
  """Turns JSON values into a configuration, those that older versions wrote too.

  where: the file, for messages. Raises ConfigError for a format, a class or a field that this version does not have,
  and for values that a field does not take.
  """
  if not isinstance(value, dict):
    raise ConfigError(f'{where}: this is no configuration: {checked.shortened(value)}')
  fields = {key: item for key, item in value.items() if key != 'format'}
  with checked.later():
    config = built(current(fields, value.get('format', 1), where), where)
  checked.check(config, lambda path: f'{where}: {path}')
  return config


def current(saved: Saved, number: Any, where: str) -> Any:
  """Brings what was saved under the format of this number up to the newest."""
  if type(number) is not int or number < 1:
    raise ConfigError(f'{where}: the format is a whole number from 1 on, got {checked.shortened(number)}')
  if number > FORMAT:
    raise ConfigError(f'{where}: a newer version of plm_jax wrote this, in format {number}: this version reads formats '
                      f'up to {FORMAT}')
  for newer in range(number + 1, FORMAT + 1):
    saved = changed(saved, CHANGES[newer], where)
  return saved


def changed(value: Any, changes: Mapping[str, Callable[[Saved], Saved]], where: str) -> Any:
  """Makes these changes in a JSON value, from the inside out."""
  if isinstance(value, list):
    return [changed(item, changes, where) for item in value]
  if not isinstance(value, dict):
    return value
  value = {key: changed(item, changes, where) for key, item in value.items()}
  change = changes.get(name) if isinstance(name := value.get('is'), str) else None
  try:
    return change(value) if change else value
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise ConfigError(f'{where}: {checked.shortened(value)} is not what a version of before wrote') from error


def built(value: Any, where: str, path: str = '') -> Any:
  """Turns a JSON value of the newest format into configurations, of whatever their fields hold."""
  if isinstance(value, list):
    return tuple(built(item, where, f'{path}.{number}') for number, item in enumerate(value))
  if not isinstance(value, dict):
    return value
  place = f'{where}: {path.lstrip(".") or "the configuration"}'
  cls = class_of(value.get('is'), place, value)
  fields = {key: built(item, where, f'{path}.{key}') for key, item in value.items() if key != 'is'}
  known = {f.name: f for f in dataclasses.fields(cls)}
  if unknown := set(fields) - set(known):
    raise ConfigError(
        f'{place}: {cls.__name__} has no field {checked.shortened(sorted(unknown))} in this version of plm_jax')
  missing = [key for key, field in known.items() if field.default is dataclasses.MISSING
             and field.default_factory is dataclasses.MISSING and key not in fields]
  if missing:
    raise ConfigError(f'{place}: {cls.__name__} lacks {missing}')
  try:
    return cls(**fields)
  except TypeError as error:  # no class of objects, but one that others are derived from
    raise ConfigError(f'{place}: {error}') from error


def class_of(name: Any, place: str, value: Saved) -> type:
  """Finds the configuration that 'module:Class' names. place, value: what is named so, for messages."""
  if not isinstance(name, str):
    raise ConfigError(f'{place} is without a class: {checked.shortened(value)}')
  module, _, attribute = name.partition(':')
  called = checked.shortened(name)[1:-1]
  if not module.startswith('plm_jax.'):
    raise ConfigError(f'{place} names the class {called}, which is not one of plm_jax')
  try:
    cls = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise ConfigError(f'{place}: this version of plm_jax has no {called}') from error
  if not isinstance(cls, type) or not issubclass(cls, Checked) or not dataclasses.is_dataclass(cls):
    raise ConfigError(f'{place}: {called} is not a configuration')
  return cls
