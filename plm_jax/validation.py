"""Validated configurations: types and limits of fields, checked when an object is made.

    @dataclasses.dataclass(frozen=True)
    class TrainConfig(ValidatedConfig):
      limits = intervals(keep='[1, inf)')
      keep: int = 3

A value must have the type of its field's annotation and lie within its limits, which are an
interval in mathematical notation. Without limits a number must be finite and not negative, and an
integer must fit 32 bits. Conditions on several fields are in `conflict`. Code that reads a command
line or a file knows better names for the fields: it defers the checks (`defer_checks`), and then
calls `check` on the complete configuration.
"""
import abc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
import contextlib
import contextvars
import dataclasses
import functools
import math
import numbers
import re
import types
import typing
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from plm_jax.errors import ConfigError, name_field

Config = TypeVar('Config')
FieldNamer = Callable[[str], str]
"""Function from a field, such as 'train.keep', to its name in messages."""

LARGEST_NUMBERS = 2 ** 31 - 1, 3e38  # the largest integer and the largest float on a device
MAX_TEXT_LENGTH = 1 << 20  # characters


def intervals(**limits: str) -> Mapping[str, str]:
  """Make the limits of fields: intervals of numbers, or of each number of a tuple."""
  return types.MappingProxyType(limits)


class ValidatedConfig:
  """Base class of configurations, which are frozen dataclasses."""

  limits: ClassVar[Mapping[str, str]] = intervals()
  """field -> interval, such as '[1, inf)', '[0, 1]', '(0, 1)'; 'inf]' includes infinity, '(-inf'
  includes negative numbers."""
  counts_with: ClassVar[Mapping[str, tuple[str, Container[Any] | None]]] = {}
  """Fields that change nothing beside some values of another field: field -> (the other field,
  values beside which it counts). None: any value but 0, False and an empty one. Both fields may be
  paths, such as 'train.early'."""

  def __post_init__(self):
    if not _deferred.get():
      name = type(self).__name__
      check(self, lambda path: f'{name}.{path}' if path else name, deep=False)

  def conflict(self, option: FieldNamer) -> str | None:
    """Describe what is wrong between fields; None: nothing.

    Args:
      option: function from a field's name to the name that the user knows.
    """
    del option
    return None


@dataclasses.dataclass(frozen=True)
class Choice(ValidatedConfig, abc.ABC):
  """Base class of configurations of several kinds, such as optimizers, each with its own fields.

  The command line and Python set `kind` as if it were a field: `optim.kind`.
  """

  title: ClassVar[str] = ''
  """What is chosen: the first word of its help text."""

  @classmethod
  @abc.abstractmethod
  def kinds(cls) -> Mapping[str, type['Choice']]:
    """Return the classes to choose from by their `kind`."""

  @property
  def kind(self) -> str:
    """Name of the class in `kinds`."""
    return {cls: name for name, cls in self.kinds().items()}[type(self)]


def choose_kind(config: Choice, kind: Any, called: str = 'kind') -> Choice:
  """Return a configuration of another kind with the values of the fields that both have.

  Args:
    config: the configuration.
    kind: the other kind.
    called: name of `kind` in messages.

  Raises:
    ConfigError: there is no such kind.
  """
  kinds = config.kinds()
  check_value(kind, Literal[tuple(kinds)], None, lambda path: path, called)
  shared = field_types(kinds[kind]).keys() & field_types(type(config)).keys()
  return kinds[kind](**{name: getattr(config, name) for name in shared})


def offered_fields(cls: type) -> dict[str, type]:
  """Return the fields of a configuration's class, each with the class that has it.

  Those of a choice include the fields of its other kinds, which the user can choose.
  """
  owners = {name: cls for name in field_types(cls)}
  if issubclass(cls, Choice):
    for other in cls.kinds().values():
      owners |= {name: other for name in field_types(other) if name not in owners}
  return owners


@contextlib.contextmanager
def defer_checks(deferred: bool = True) -> Iterator[None]:
  """Defer the checks of configurations that are made inside; False: check them after all."""
  token = _deferred.set(deferred)
  try:
    yield
  finally:
    _deferred.reset(token)


def check(config: Any, named: FieldNamer = name_field, path: str = '', deep: bool = True) -> None:
  """Check the types and limits of all fields, and `conflict`.

  Args:
    config: the configuration.
    named: names fields in messages.
    path: field that holds `config` itself.
    deep: check configurations in fields as well.

  Raises:
    ConfigError: the first field or conflict that is wrong.
  """
  def path_of(name):
    return f'{path}.{name}'.lstrip('.')

  cls = type(config)
  limits = inherited_table(cls, 'limits')
  for name, kind in field_types(cls).items():
    if deep or not contains_configs(kind):
      check_value(getattr(config, name), kind, limits.get(name), named, path_of(name))
  is_validated = isinstance(config, ValidatedConfig)
  if is_validated and (message := config.conflict(lambda name: named(path_of(name)))):
    raise ConfigError(message)


def check_value(
    value: Any, kind: Any, limits: str | None, named: FieldNamer, path: str) -> None:
  """Check one value against its annotation and limits.

  Args:
    value: the value.
    kind: annotation of the field.
    limits: interval of its numbers; None: the default.
    named: names fields in messages.
    path: the field.

  Raises:
    ConfigError: the value is wrong.
  """
  if not matches_type(value, kind):
    raise ConfigError(f'{named(path)} is {describe_type(kind, limits)}, got {short_repr(value)}')
  if isinstance(value, bool) or value is None:
    return
  if isinstance(value, numbers.Real):
    interval = Interval.parse(limits) if limits else DEFAULT_INTERVAL
    if not interval.contains(value):
      raise ConfigError(
          f'{named(path)} is {describe_type(kind, limits, value)}, got {short_repr(value)}')
  elif isinstance(value, str):
    if problem := find_text_problem(value):
      raise ConfigError(f'{named(path)} {problem}: {short_repr(value)}')
  elif isinstance(value, tuple):
    if typing.get_origin(kind) is not tuple:  # a union
      kind = next(one for one in typing.get_args(kind) if matches_type(value, one))
    kinds = typing.get_args(kind)
    if len(kinds) == 2 and kinds[1] is ...:
      kinds = (kinds[0],) * len(value)
    for number, item in enumerate(value):
      item_path = f'{path}.{number}' if dataclasses.is_dataclass(item) else path
      check_value(item, kinds[number], limits, named, item_path)
  elif dataclasses.is_dataclass(value):
    check(value, named, path)


def contains_configs(kind: Any) -> bool:
  """Tell whether values of an annotation are or contain configurations, which are checked alone."""
  return dataclasses.is_dataclass(kind) or any(map(contains_configs, typing.get_args(kind)))


def matches_type(value: Any, kind: Any) -> bool:
  """Tell whether a value, and all items of a tuple, match an annotation."""
  if kind is Any:
    return True
  if kind is None:
    return value is None
  if kind is int:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if kind is float:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
  origin, kinds = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    return any(matches_type(value, one) for one in kinds)
  if origin is Literal:
    return any(type(value) is type(one) and value == one for one in kinds)
  if origin is tuple:
    if not isinstance(value, tuple):
      return False
    if len(kinds) == 2 and kinds[1] is ...:
      return all(matches_type(item, kinds[0]) for item in value)
    return len(value) == len(kinds) and all(map(matches_type, value, kinds))
  return isinstance(value, origin or kind)


class Interval(NamedTuple):
  """Interval of numbers."""

  low: float
  high: float
  low_is_open: bool
  high_is_open: bool

  @classmethod
  @functools.cache
  def parse(cls, text: str) -> 'Interval':
    """Parse an interval such as '[0, 1)'; with inf, only the limit of the number's type holds."""
    found = re.fullmatch(r'([\[(])(\S+), (\S+)([\])])', text)
    assert found, text
    return cls(float(found[2]), float(found[3]), found[1] == '(', found[4] == ')')

  def contains(self, value: Any) -> bool:
    """Tell whether a number is inside; ends with a square bracket are."""
    is_included_infinity = value == self.high and not self.high_is_open
    if math.isinf(self.high) and value > largest_number(value) and not is_included_infinity:
      return False
    above = self.low < value if self.low_is_open else self.low <= value
    below = value < self.high if self.high_is_open else value <= self.high
    return above and below


def largest_number(value: Any) -> float:
  """Return the largest number of a value's type, which holds without a limit."""
  return LARGEST_NUMBERS[not isinstance(value, numbers.Integral)]


DEFAULT_INTERVAL = Interval.parse('[0, inf)')


def describe_type(kind: Any, limits: str | None = None, value: Any = None) -> str:
  """Describe in words the values of an annotation; `value`: as in `describe_interval`."""
  origin, kinds = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(dict.fromkeys(describe_type(one, limits, value) for one in kinds))
  if origin is Literal:
    choices = [str(one) for one in kinds]
    return ' or '.join(filter(None, (', '.join(choices[:-1]), choices[-1])))
  if origin is tuple:
    if kinds[-1] is ...:
      return f'a list, each {describe_type(kinds[0], limits, value)}'
    return f'a list of {len(kinds)} values'
  if kind is int:
    return f'a whole number {describe_interval(limits, value)}'.strip()
  if kind is float:
    return f'a number {describe_interval(limits, value)}'.strip()
  names = {str: 'a text', bool: 'True or False', type(None): 'nothing'}
  return names.get(kind) or f'a {kind.__name__}'


def describe_interval(limits: str | None, value: Any = None) -> str:
  """Describe an interval in words; the largest number is named only where `value` exceeds it."""
  interval = Interval.parse(limits) if limits else DEFAULT_INTERVAL
  low, high, low_is_open, high_is_open = interval
  if math.isinf(high) and value is not None and value > largest_number(value):
    high, high_is_open = largest_number(value), False
  if math.isinf(low) and math.isinf(high):
    return ''
  low_text, high_text = f'{low:,.12g}', f'{high:,.12g}'
  if math.isinf(high):
    return f'above {low_text}' if low_is_open else f'of {low_text} or more'
  if low_is_open and high_is_open:
    return f'between {low_text} and {high_text}'
  if low_is_open:
    return f'above {low_text} and at most {high_text}'
  if high_is_open:
    return f'from {low_text} to below {high_text}'
  return f'from {low_text} to {high_text}'


def find_text_problem(text: str) -> str:
  """Describe why files and tokenizers do not accept a text; '': they do."""
  if '\0' in text:
    return 'holds a zero byte'
  if len(text) > MAX_TEXT_LENGTH:
    return f'has {len(text):,} characters, {MAX_TEXT_LENGTH:,} at most are read'
  try:
    text.encode()
  except UnicodeEncodeError as error:
    return f'is not UTF-8 text, at character {error.start}'
  return ''


def short_repr(value: Any, most: int = 100) -> str:
  """Write a value for a message, in at most `most` characters."""
  if isinstance(value, numbers.Integral) and abs(int(value)) >= 10 ** 30:
    return 'a number of over 30 digits'
  if isinstance(value, str | tuple):
    value = value[:most]
  text = repr(value).encode('utf-8', 'backslashreplace').decode()
  return text if len(text) <= most else f'{text[:most]}...'


def with_paths(config: Any, values: Mapping[str, Any]) -> Any:
  """Return `config` with new values under paths like 'block.width'.

  The fields of one dataclass are replaced together.
  """
  fields: dict[str, Any] = {}
  nested: dict[str, dict[str, Any]] = {}
  for path, value in values.items():
    name, _, rest = path.partition('.')
    if rest:
      nested.setdefault(name, {})[rest] = value
    else:
      fields[name] = value
  if isinstance(config, Choice) and 'kind' in fields:
    config = choose_kind(config, fields.pop('kind'))
  inner = {name: with_paths(getattr(config, name), nested[name]) for name in nested}
  return dataclasses.replace(config, **fields, **inner)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
  """Return the annotation of each field."""
  hints = typing.get_type_hints(cls)
  return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def field_paths(kind: Any, path: str = '') -> set[str]:
  """Collect the fields of a configuration's class, and of configurations in them, as paths.

  Args:
    kind: the class; it may be no configuration.
    path: field that holds `kind` itself.

  Returns:
    Paths such as 'data.on_error'.
  """
  if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
    return {path}
  paths = {f'{path}.kind'} if issubclass(kind, Choice) else set()
  for name, owner in offered_fields(kind).items():
    paths |= field_paths(field_types(owner)[name], f'{path}.{name}'.lstrip('.'))
  return paths


@functools.cache
def inherited_table(cls: type, name: str) -> dict[str, Any]:
  """Return a table about fields, such as `limits`, of a class and of its base classes."""
  table = {}
  for base in reversed(cls.__mro__):
    table |= vars(base).get(name, {})
  return table


def get_field(config: Any, path: str) -> Any:
  """Return the value at a path like 'train.phases.0.steps'; None where there is no such field."""
  for name in path.split('.'):
    if isinstance(config, tuple):
      config = dict(enumerate(config)).get(int(name)) if name.isdecimal() else None
    else:
      config = getattr(config, name, None)
  return config


_deferred = contextvars.ContextVar('deferred', default=False)


def with_overrides(config: Config, options: Mapping[str, Any]) -> Config:
  """Return a configuration with other values of fields.

  Args:
    config: the configuration.
    options: field -> value; for a field that holds a configuration, a mapping of its fields.

  Raises:
    ConfigError: a field that does not exist, or a value that is wrong.
  """
  if isinstance(config, Choice) and 'kind' in options:
    config = choose_kind(config, options['kind'])
    options = {name: value for name, value in options.items() if name != 'kind'}
  fields = dataclasses.fields(config)  # pyright: ignore
  known: Any = {field.name: getattr(config, field.name) for field in fields}
  values = {}
  for name, value in options.items():
    if name not in known:
      check_unused(config, [name], lambda path: path)
      raise ConfigError(
          f'{type(config).__name__} has no field {name!r}: it has {", ".join(known)}')
    if isinstance(value, Mapping) and dataclasses.is_dataclass(known[name]):
      value = with_overrides(known[name], value)
    values[name] = value
  new: Any = dataclasses.replace(config, **values)  # pyright: ignore
  check_unused(new, nested_paths(options), lambda path: path)
  return new


def nested_paths(options: Mapping[str, Any], path: str = '') -> set[str]:
  """Collect the paths of the values in nested mappings."""
  paths = set()
  for name, value in options.items():
    if isinstance(value, Mapping):
      paths |= nested_paths(value, f'{path}{name}.')
    else:
      paths.add(path + name)
  return paths


def check_unused(config: Any, given: Iterable[str], named: FieldNamer = name_field) -> None:
  """Check that fields that were given count beside the other values (`counts_with`).

  Args:
    config: the configuration.
    given: paths of the fields that the user has set.
    named: names fields in messages.

  Raises:
    ConfigError: a field would change nothing.
  """
  for path in sorted(given):
    parts = path.split('.')
    for depth in range(len(parts)):
      outer = ''.join(f'{name}.' for name in parts[:depth])
      section = get_field(config, outer[:-1]) if outer else config
      table = conditions(type(section))
      other, values = table.get('.'.join(parts[depth:]), ('', None))
      if not other or get_field(config, path) == '':
        continue
      value = get_field(section, other)
      if bool(value) if values is None else value in values:
        continue
      wanted = f', not {" or ".join(map(str, values))}' if isinstance(values, tuple) else ''
      raise ConfigError(f'{named(path)} would change nothing: {named(outer + other)} is '
                        f'{"empty" if value in ("", ()) else value}{wanted}')


def conditions(cls: type) -> dict[str, Any]:
  """Return `counts_with` of a class; a field of other kinds of a choice counts with these."""
  table = inherited_table(cls, 'counts_with')
  if not issubclass(cls, Choice):
    return table
  kinds = cls.kinds().items()
  others = {}
  for name in offered_fields(cls).keys() - field_types(cls).keys():
    others[name] = 'kind', tuple(kind for kind, other in kinds if name in field_types(other))
  return table | others


def differences(old: Any, new: Any, free: Container[str] = (), path: str = '') -> list[str]:
  """List the fields in which two configurations differ, as 'field: old -> new'.

  Args:
    old: a configuration.
    new: another configuration.
    free: fields that may differ.
    path: field that holds `old` and `new` themselves.
  """
  if path in free:
    return []
  names = ['kind'] if isinstance(old, Choice) and type(new) in old.kinds().values() else []
  if not dataclasses.is_dataclass(old) or (type(old) is not type(new) and not names):
    return [] if old == new else [f'{path}: {old} -> {new}']
  names += [field.name for field in dataclasses.fields(old) if hasattr(new, field.name)]
  lines = []
  for name in names:
    field_path = f'{path}.{name}'.lstrip('.')
    lines += differences(getattr(old, name), getattr(new, name), free, field_path)
  return lines
