"""Options of commands and configurations: their names, values, defaults and descriptions.

Help needs them without JAX, whose import takes seconds, so they are in help.json next to this file,
which `write_help` writes.
"""
from collections.abc import Callable, Iterator
import dataclasses
import functools
import inspect
import json
import pathlib
import types
import typing
from typing import Any, NamedTuple

from plm_jax import validation
from plm_jax.validation import Choice

FILE = pathlib.Path(__file__).with_name('help.json')
SIMPLE_TYPES = {str: 'TEXT', int: 'INT', float: 'FLOAT', bool: 'BOOL'}


class Option(NamedTuple):
  """An argument or option of a command."""

  name: str
  """optim.peak for --optim.peak; the name itself for a positional argument"""
  kind: str = 'TEXT'
  """values: TEXT, INT, FLOAT, BOOL, or the choices a,b,c; with ... for a list"""
  default: str | None = None
  """default as it is typed; None: the argument is required"""
  text: str = ''
  """description"""
  positional: bool = False

  @property
  def section(self) -> str:
    """The part before the last dot; '' without one."""
    return self.name.rpartition('.')[0]


@functools.cache
def read_file() -> dict[str, Any]:
  """Read help.json: the options by the name of their function or class, recipes and words."""
  return json.loads(FILE.read_text('utf-8'))


def read_options(name: str) -> list[Option]:
  """Return the options of a function or configuration that `catalog` names."""
  return [Option(*row) for row in read_file()[name]]


def recipe_titles() -> dict[str, str]:
  """Return the names of all recipes, each with the title of its family."""
  return dict(read_file()['recipes'])


def registered_words() -> dict[str, str]:
  """Return names in registries that help texts list, by the names of their fields in `catalog`."""
  return dict(read_file()['words'])


def command_arguments(function: Callable[..., Any]) -> Iterator[Option]:
  """Yield the arguments of a command's function, and the options of its settings."""
  texts, kinds = part_texts(function), typing.get_type_hints(function)
  marked = typing.get_type_hints(function, include_extras=True)
  for name, parameter in inspect.signature(function).parameters.items():
    marks, default = getattr(marked[name], '__metadata__', ()), parameter.default
    renamed = [mark.name for mark in marks if getattr(mark, 'name', None) is not None]
    called = renamed[0] if renamed else name.replace('_', '-')
    if dataclasses.is_dataclass(default):
      yield from config_options(default, called)
      continue
    shown = None if default is parameter.empty else format_default(default)
    yield Option(called, describe_kind(kinds[name]), shown, texts.get(name, ''),
                 any('Positional' in repr(mark) for mark in marks))


@functools.cache
def part_texts(part: Any) -> dict[str, str]:
  """Return the descriptions of the arguments of a function or the fields of a class, by name."""
  import docstring_parser  # tyro reads docstrings by it, too
  found = {}
  bases = filter(dataclasses.is_dataclass, part.__mro__[::-1]) if isinstance(part, type) else [part]
  for base in bases:
    for each in docstring_parser.parse_from_object(base).params:
      found[each.arg_name] = ' '.join((each.description or '').split())
  return found


def config_options(config: Any, path: str = '') -> Iterator[Option]:
  """Yield the options of a configuration, with its values as defaults."""
  for name, owner, field in option_fields(config, path):
    if isinstance(owner, Choice) and field == 'kind':
      yield Option(name, ','.join(owner.kinds()), owner.kind, describe_choice(type(owner)))
    else:
      yield Option(
          name, describe_kind(validation.field_types(type(owner))[field]),
          format_default(getattr(owner, field)), part_texts(type(owner)).get(field, ''))


def describe_choice(choice: type[Choice]) -> str:
  """Describe the kinds of a choice by the first paragraphs of their docstrings."""
  kinds = []
  for kind, cls in choice.kinds().items():
    text = ' '.join((inspect.getdoc(cls) or '').partition('\n\n')[0].split())
    kinds.append(f'{kind}: {text.rstrip(".")}')
  return f'{choice.title}. {"; ".join(kinds)}.'


def option_fields(config: Any, path: str = '') -> Iterator[tuple[str, Any, str]]:
  """Yield (name of the option, configuration that has it, its field) for each option.

  The fields of other kinds of a choice have these kinds' defaults.
  """
  if isinstance(config, Choice):
    yield f'{path}.kind', config, 'kind'
  for field, cls in validation.offered_fields(type(config)).items():
    name = f'{path}.{field}' if path else field
    owner = config if cls is type(config) else cls()
    value = getattr(owner, field)
    inner = dict(enumerate(value)) if isinstance(value, tuple) else {}
    if dataclasses.is_dataclass(value):
      yield from option_fields(value, name)
    elif dataclasses.is_dataclass(inner.get(0)):
      for number, item in inner.items():
        yield from option_fields(item, f'{name}.{number}')
    else:
      yield name.replace('_', '-'), owner, field


def describe_kind(hint: Any) -> str:
  """Describe the values of an annotation as a help text shows them.

  >>> describe_kind(tuple[int, ...]), describe_kind(typing.Literal['a', 'b'] | None)
  ('INT...', 'a,b')
  """
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin is typing.Literal:
    return ','.join(map(str, args))
  if origin in (typing.Union, types.UnionType):
    parts = [describe_kind(part) for part in args if part is not types.NoneType]
    return (',' if any(',' in part for part in parts) else '|').join(parts)  # choices, or types
  if origin is tuple:
    return f'{describe_kind(args[0])}...'
  return SIMPLE_TYPES.get(hint, 'TEXT')


def format_default(value: Any) -> str:
  """Format a default as it is typed: a number, a text, or several."""
  return ' '.join(map(str, value)) if isinstance(value, tuple) else str(value)
