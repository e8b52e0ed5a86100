"""Read and write configurations as JSON: config.json of a run, and the copy in a checkpoint.

A dataclass is written with its class under 'is', and the whole with a format number:

    {"format": 8, "is": "plm_jax.config.run:PretrainRun", "name": "bert_base", ...}

A choice of several kinds is written with its base class and its kind:

    {"is": "plm_jax.optim.optimizers:OptimConfig", "kind": "adamw", "peak": 0.0001, ...}

`FIRST_FORMAT` is the oldest format that is read. A file with an older format number than `FORMAT`
is migrated before it is read, one format after another, by `MIGRATIONS`. Add the next format number
when you move or rename a class or a field, or add a field whose default differs from earlier
behavior. An entry maps the class, as the previous format names it, to a function of its saved
fields ('is' among them), which returns the fields of the new format. Values inside have been
migrated already. To change OptimConfig and others:

    9: {'plm_jax.optim.optimizers:OptimConfig': add_fields(heads='apart'),
        'plm_jax.objectives.plm:PermutationLM':
            rename_class('plm_jax.objectives.permutation:PermutationLM'),
        'plm_jax.objectives.mlm:MaskedLM': rename_fields(rate='mask_rate')},

A new field whose default is the earlier behavior needs no entry.
"""
from collections.abc import Callable, Mapping
import dataclasses
import importlib
import json
from typing import Any, Literal

from plm_jax import validation
from plm_jax.errors import ConfigError
from plm_jax.validation import Choice, ValidatedConfig

SavedConfig = dict[str, Any]
"""a dataclass as JSON: its fields, and its class under 'is'"""
Migration = Callable[[SavedConfig], SavedConfig]


def rename_class(name: str) -> Migration:
  """Make a migration that changes the class, or the module it is in, to 'module:Class'."""
  return lambda saved: {**saved, 'is': name}


def add_fields(**old: Any) -> Migration:
  """Make a migration that adds new fields with the JSON values that describe earlier behavior."""
  return lambda saved: {**old, **saved}


def rename_fields(**names: str) -> Migration:
  """Make a migration that renames fields: old='new'."""
  return lambda saved: {names.get(key, key): value for key, value in saved.items()}


FIRST_FORMAT = 8
"""the oldest format that is read: that of plm_jax 0.1.0"""
MIGRATIONS: Mapping[int, Mapping[str, Migration]] = {}
FORMAT = max(MIGRATIONS, default=FIRST_FORMAT)


def dump(config: Any) -> str:
  """Return the text of a config.json file."""
  return json.dumps(to_json(config), indent=1, ensure_ascii=False) + '\n'


def to_json(config: Any) -> SavedConfig:
  """Convert a configuration to JSON values, with the format number."""
  return {'format': FORMAT, **to_plain(config)}


def to_plain(value: Any) -> Any:
  """Convert the value of a field to JSON values; each dataclass has its class under 'is'."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    cls = type(value)
    if isinstance(value, Choice):
      cls = next(base for base in cls.__mro__ if Choice in base.__bases__)
    saved = {'is': f'{cls.__module__}:{cls.__qualname__}'}
    if isinstance(value, Choice):
      saved['kind'] = value.kind
    for field in dataclasses.fields(value):
      saved[field.name] = to_plain(getattr(value, field.name))
    return saved
  if isinstance(value, tuple):
    return [to_plain(item) for item in value]
  return value


def flatten(value: Any, path: str = '') -> SavedConfig:
  """Flatten the JSON values of a configuration to {field: value}, such as optim.peak."""
  items: list[tuple[str, Any]] = []
  if isinstance(value, dict):
    for key, item in value.items():
      items.append((f'{path}.{key}'.lstrip('.'), item))
  elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
    items = [(f'{path}.{number}', item) for number, item in enumerate(value)]
  else:
    return {path: value}
  found = {}
  for place, item in items:
    found |= flatten(item, place)
  return found


def from_json(value: Any, where: str = 'config.json') -> Any:
  """Build a configuration from JSON values, also from those that older versions wrote.

  Args:
    value: the JSON values.
    where: the file, for messages.

  Raises:
    ConfigError: this version does not have the format, a class or a field; or a field does not
      take its value.
  """
  if not isinstance(value, dict):
    raise ConfigError(f'{where}: this is no configuration: {validation.short_repr(value)}')
  if 'is' not in value and ('model_type' in value or 'architectures' in value):
    raise ConfigError(f'{where} belongs to a transformers checkpoint, expected the folder of a run')
  fields = dict(value)
  # Without a class it is no configuration of any format, as `build_config` says.
  number = fields.pop('format', 1 if 'is' in value else FORMAT)
  with validation.defer_checks():
    config = build_config(upgrade(fields, number, where), where)
  validation.check(config, lambda path: f'{where}: {path}')
  return config


def upgrade(saved: SavedConfig, number: Any, where: str) -> Any:
  """Migrate saved values from the format with this number to the newest format."""
  if type(number) is not int or number < 1:
    raise ConfigError(f'{where}: the format is a whole number from 1 on, got '
                      f'{validation.short_repr(number)}')
  if number < FIRST_FORMAT:
    raise ConfigError(f'{where} was written before plm_jax 0.1.0, in format {number}: this version '
                      f'reads formats from {FIRST_FORMAT} on. Export the model with the version '
                      'that wrote this, or train it again')
  if number > FORMAT:
    raise ConfigError(f'{where}: a newer version of plm_jax wrote this, in format {number}: this '
                      f'version reads formats up to {FORMAT}')
  for newer in range(number + 1, FORMAT + 1):
    saved = apply_migrations(saved, MIGRATIONS[newer], where)
  return saved


def apply_migrations(value: Any, changes: Mapping[str, Migration], where: str) -> Any:
  """Apply the migrations of one format to a JSON value, from the inside out."""
  if isinstance(value, list):
    return [apply_migrations(item, changes, where) for item in value]
  if not isinstance(value, dict):
    return value
  value = {key: apply_migrations(item, changes, where) for key, item in value.items()}
  name = value.get('is')
  if not isinstance(name, str) or name not in changes:
    return value
  try:
    return changes[name](value)
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise ConfigError(f'{where}: {validation.short_repr(value)} was not written by an earlier '
                      'version') from error


def build_config(value: Any, where: str, path: str = '') -> Any:
  """Build the configurations in a JSON value of the newest format.

  Args:
    value: the JSON value: a dataclass, a list, or the value of a field.
    where: the file, for messages.
    path: the field that the value belongs to, for messages.
  """
  if isinstance(value, list):
    return tuple(build_config(item, where, f'{path}.{number}') for number, item in enumerate(value))
  if not isinstance(value, dict):
    return value
  place = f'{where}: {path.lstrip(".") or "the configuration"}'
  cls = find_class(value.get('is'), place, value)
  fields = {
      key: build_config(item, where, f'{path}.{key}') for key, item in value.items() if key != 'is'}
  if issubclass(cls, Choice):
    kind, kinds = fields.pop('kind', None), cls.kinds()
    validation.check_value(kind, Literal[tuple(kinds)], None, str, f'{place}: kind')
    cls = kinds[kind]
  known = {field.name: field for field in dataclasses.fields(cls)}
  if unknown := set(fields) - set(known):
    raise ConfigError(f'{place}: {cls.__name__} has no field '
                      f'{validation.short_repr(sorted(unknown))} in this version of plm_jax')
  required = [key for key, field in known.items() if field.default is dataclasses.MISSING
              and field.default_factory is dataclasses.MISSING]
  if missing := [key for key in required if key not in fields]:
    raise ConfigError(f'{place}: {cls.__name__} lacks {missing}')
  try:
    return cls(**fields)
  except TypeError as error:  # an abstract base class
    raise ConfigError(f'{place}: {error}') from error


def find_class(name: Any, place: str, value: SavedConfig) -> type:
  """Find the configuration class that 'module:Class' names.

  Args:
    name: the name, which a file may have made anything.
    place: where the file has it, for messages.
    value: the saved configuration, for messages.

  Raises:
    ConfigError: there is no such class, or it is not a configuration of plm_jax.
  """
  if not isinstance(name, str):
    raise ConfigError(f'{place} is without a class: {validation.short_repr(value)}')
  module, _, attribute = name.partition(':')
  called = validation.short_repr(name)[1:-1]
  if not module.startswith('plm_jax.'):
    raise ConfigError(f'{place} names the class {called}, which is not one of plm_jax')
  try:
    cls = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise ConfigError(f'{place}: this version of plm_jax has no {called}') from error
  is_config = isinstance(cls, type) and issubclass(cls, ValidatedConfig)
  if not is_config or not dataclasses.is_dataclass(cls):
    raise ConfigError(f'{place}: {called} is not a configuration')
  return cls
