"""Configurations that say which values their fields take, and are refused with one line where they have others.

    @dataclasses.dataclass(frozen=True)
    class TrainConfig(Checked):
      limits = within(keep='[1, inf)')
      keep: int = 3

A value has to be of its field's annotation and within its limits, an interval as mathematics writes it. Where none is
given a number is finite and not negative, and a whole number fits 32 bits. What concerns several fields is said by
`conflict`. All of this is checked when an object is made; only what reads a command line or a file, and knows better
names for the fields, puts it off (`later`) and calls `check` on the whole.
"""
from collections.abc import Callable, Container, Iterator, Mapping
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

from plm_jax.errors import ConfigError

Config = TypeVar('Config')
Named = Callable[[str], str]  # 'train.keep' -> how messages call it

LARGEST = 2 ** 31 - 1, 3e38  # a whole number and a number on a device
LONGEST = 1 << 20  # characters of a text


def within(**intervals: str) -> Mapping[str, str]:
  """Fields and their limits: of a number, or of each number of a tuple."""
  return types.MappingProxyType(intervals)


class Checked:
  """Base of configurations."""

  limits: ClassVar[Mapping[str, str]] = within()
  """field -> interval: '[1, inf)', '[0, 1]', '(0, 1)'; inf] admits infinity, (-inf what is negative"""

  def __post_init__(self):
    if not _later.get():
      check(self, lambda path: f'{type(self).__name__}.{path}' if path else type(self).__name__, deep=False)

  def conflict(self, option: Named) -> str | None:
    """Says what is wrong between fields; option: a field's name -> how the user knows it."""
    del option
    return None


def flag(path: str) -> str:
  """Names a field as the command line calls it."""
  return f'--{path.replace("_", "-")}' if path else 'the options'


@contextlib.contextmanager
def later(so: bool = True) -> Iterator[None]:
  """Leaves what is made inside unchecked, or checks it after all with so=False."""
  token = _later.set(so)
  try:
    yield
  finally:
    _later.reset(token)


def check(config: Any, named: Named = flag, path: str = '', deep: bool = True) -> None:
  """Raises ConfigError for the first value that is not of its field's type or not within its limits.

  named: how messages call a field; path: of `config` itself; deep: look into configurations inside as well.
  """
  cls = type(config)
  for name, wanted in annotations(cls).items():
    if not deep and holds_configurations(wanted):
      continue
    check_value(getattr(config, name), wanted, limits_of(cls).get(name), named, f'{path}.{name}'.lstrip('.'))
  option = lambda name: named(f'{path}.{name}'.lstrip('.'))
  if isinstance(config, Checked) and (said := config.conflict(option)):
    raise ConfigError(said)


def check_value(value: Any, wanted: Any, limits: str | None, named: Named, path: str) -> None:
  """Checks a value of a field `path` with the annotation `wanted`. Raises ConfigError."""
  if not fits(value, wanted):
    raise ConfigError(f'{named(path)} is {noun(wanted, limits)}, got {shortened(value)}')
  if isinstance(value, bool) or value is None:
    return
  if isinstance(value, numbers.Real):
    interval = Interval.of(limits) if limits else DEFAULT
    if not interval.holds(value):
      raise ConfigError(f'{named(path)} is {noun(wanted, limits, value)}, got {shortened(value)}')
  elif isinstance(value, str):
    if wrong := unreadable(value):
      raise ConfigError(f'{named(path)} {wrong}: {shortened(value)}')
  elif isinstance(value, tuple):
    kinds = typing.get_args(of_tuple(wanted, value))
    for number, item in enumerate(value):
      kind = kinds[0] if len(kinds) == 2 and kinds[1] is ... else kinds[number]
      inner = f'{path}.{number}' if dataclasses.is_dataclass(item) else path
      check_value(item, kind, limits, named, inner)
  elif dataclasses.is_dataclass(value):
    check(value, named, path)


def holds_configurations(wanted: Any) -> bool:
  """Tells whether values of an annotation are, or have in them, configurations: checked already when they were made."""
  return dataclasses.is_dataclass(wanted) or any(map(holds_configurations, typing.get_args(wanted)))


def fits(value: Any, wanted: Any) -> bool:
  """Tells whether a value is of an annotation; of a tuple, all its items too."""
  origin = typing.get_origin(wanted)
  if wanted is Any:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(fits(value, one) for one in typing.get_args(wanted))
  if origin is Literal:
    return any(type(value) is type(one) and value == one for one in typing.get_args(wanted))
  if origin is tuple:
    kinds = typing.get_args(wanted)
    if not isinstance(value, tuple):
      return False
    if len(kinds) == 2 and kinds[1] is ...:
      return all(fits(item, kinds[0]) for item in value)
    return len(value) == len(kinds) and all(map(fits, value, kinds))
  if wanted in (int, float):
    kind = numbers.Integral if wanted is int else numbers.Real
    return isinstance(value, kind) and not isinstance(value, bool)
  if wanted is None:
    return value is None
  return isinstance(value, origin or wanted)


class Interval(NamedTuple):
  """Of numbers."""

  low: float
  high: float
  above: bool  # low itself is not one
  below: bool  # high itself is not one

  @classmethod
  @functools.cache
  def of(cls, text: str) -> 'Interval':
    """Parses an interval such as '[0, 1)'; inf has no limit but that of the kind."""
    found = re.fullmatch(r'([\[(])(\S+), (\S+)([\])])', text)
    assert found, text
    return cls(float(found[2]), float(found[3]), found[1] == '(', found[4] == ')')

  def holds(self, value: Any) -> bool:
    """Tells whether a number is inside; an end is where its bracket is square."""
    if math.isinf(self.high) and value > most(value) and not (value == self.high and not self.below):
      return False
    return ((self.low < value if self.above else self.low <= value)
            and (value < self.high if self.below else value <= self.high))


def most(value: Any) -> float:
  """Returns the largest number of the kind, where no limit is given."""
  return LARGEST[not isinstance(value, numbers.Integral)]


DEFAULT = Interval.of('[0, inf)')


def noun(wanted: Any, limits: str | None = None, value: Any = None) -> str:
  """Says in words what a field takes."""
  origin, kinds = typing.get_origin(wanted), typing.get_args(wanted)
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(dict.fromkeys(noun(kind, limits, value) for kind in kinds))
  if origin is Literal:
    return ' or '.join(filter(None, (', '.join(map(str, kinds[:-1])), str(kinds[-1]))))
  if origin is tuple:
    return f'a list, each {noun(kinds[0], limits, value)}' if kinds[-1] is ... else f'a list of {len(kinds)} values'
  if wanted in (int, float):
    return f'{"a whole number" if wanted is int else "a number"} {extent(limits, value)}'.strip()
  return {str: 'a text', bool: 'True or False', type(None): 'nothing'}.get(wanted) or f'a {wanted.__name__}'


def extent(limits: str | None, value: Any = None) -> str:
  """Says an interval in words; the largest number is left out unless `value` is above it."""
  low, high, above, below = Interval.of(limits) if limits else DEFAULT
  if math.isinf(high) and value is not None and value > most(value):
    high, below = most(value), False
  if math.isinf(low) and math.isinf(high):
    return ''
  said = f'{low:,.12g}', f'{high:,.12g}'
  if math.isinf(high):
    return f'above {said[0]}' if above else f'of {said[0]} or more'
  if above:
    return f'between {said[0]} and {said[1]}' if below else f'above {said[0]} and at most {said[1]}'
  return f'from {said[0]} to {"below " if below else ""}{said[1]}'


def unreadable(text: str) -> str:
  """Says why a text is none that files and tokenizers take; '' where it is one."""
  if '\0' in text:
    return 'holds a zero byte'
  if len(text) > LONGEST:
    return f'has {len(text):,} characters, {LONGEST:,} at most are read'
  try:
    text.encode()
  except UnicodeEncodeError as error:
    return f'is not UTF-8 text, at character {error.start}'
  return ''


def shortened(value: Any, most: int = 100) -> str:
  """Writes a value as a message can show it."""
  if isinstance(value, numbers.Integral) and abs(int(value)) >= 10 ** 30:
    return 'a number of over 30 digits'
  said = repr(value[:most] if isinstance(value, str | tuple) else value)
  said = said.encode('utf-8', 'backslashreplace').decode()
  return said if len(said) <= most else f'{said[:most]}...'


def of_tuple(wanted: Any, value: tuple) -> Any:
  """Returns the annotation of a tuple, out of a union of several."""
  if typing.get_origin(wanted) is tuple:
    return wanted
  return next(kind for kind in typing.get_args(wanted) if fits(value, kind))


def replaced(config: Any, values: Mapping[str, Any]) -> Any:
  """Returns `config` with new values under paths like 'block.width'; the fields of one dataclass change together."""
  fields: dict[str, Any] = {}
  nested: dict[str, dict[str, Any]] = {}
  for path, value in values.items():
    name, _, rest = path.partition('.')
    if rest:
      nested.setdefault(name, {})[rest] = value
    else:
      fields[name] = value
  return dataclasses.replace(
      config, **fields, **{name: replaced(getattr(config, name), inner) for name, inner in nested.items()})


@functools.cache
def annotations(cls: type) -> dict[str, Any]:
  """Returns the type of each field."""
  hints = typing.get_type_hints(cls)
  return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def limits_of(cls: type) -> dict[str, str]:
  """Returns the limits of a class and of what it is derived from."""
  return {name: text for base in reversed(cls.__mro__) for name, text in vars(base).get('limits', {}).items()}


_later = contextvars.ContextVar('later', default=False)


def changed(config: Config, options: Mapping[str, Any]) -> Config:
  """Replaces fields of a configuration; of a section, by a mapping of those of its fields. Raises ConfigError."""
  known: Any = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # pyright: ignore
  if unknown := [name for name in options if name not in known]:
    raise ConfigError(f'{type(config).__name__} has no field {unknown[0]!r}: it has {", ".join(known)}')
  values = {name: changed(known[name], value) if isinstance(value, Mapping) and dataclasses.is_dataclass(known[name])
            else value for name, value in options.items()}
  return dataclasses.replace(config, **values)  # pyright: ignore


def differences(old: Any, new: Any, free: Container[str] = (), path: str = '') -> list[str]:
  """Lists the fields outside `free` in which two configurations differ, as 'field: old -> new'."""
  if path in free:
    return []
  if dataclasses.is_dataclass(old) and type(old) is type(new):
    return [line for f in dataclasses.fields(old) for line in differences(
        getattr(old, f.name), getattr(new, f.name), free, f'{path}.{f.name}'.lstrip('.'))]
  return [] if old == new else [f'{path}: {old} -> {new}']
