"""Options of commands and configurations: their names, values, defaults and descriptions.

Help needs them without JAX, whose import takes seconds, so they are in help.json next to this file.
`python -m plm_jax.cli.signatures` regenerates it; a test checks that it is current.
"""
import ast
from collections.abc import Callable, Iterator
import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import pathlib
import re
import textwrap
import types
import typing
from typing import Any, NamedTuple

from plm_jax import validation
from plm_jax.validation import Choice

FILE = pathlib.Path(__file__).with_name('help.json')
UNPREFIXED = 'settings', 'reading'
"""arguments of commands whose fields are options without a prefix"""
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
  """Read help.json: the options by the name of their function or class, and the recipes."""
  return json.loads(FILE.read_text('utf-8'))


def read_options(name: str) -> list[Option]:
  """Return the options of a function or configuration that `catalog` names."""
  return [Option(*row) for row in read_file()['options'][name]]


def recipe_titles() -> dict[str, str]:
  """Return the names of all recipes, each with the title of its family."""
  return read_file()['recipes']


# From the code, which is imported.


def collect() -> dict[str, Any]:
  """Collect what help.json contains."""
  from plm_jax import recipes
  from plm_jax.cli import catalog
  from plm_jax.recipes import word_vectors
  options: dict[str, list[Option]] = {}
  for command in (*catalog.COMMANDS.values(), *catalog.VECTORS.values()):
    if command.function:
      module, _, function = command.function.partition('.')
      found = getattr(importlib.import_module(f'plm_jax.cli.{module}'), function)
      options[command.function] = list(command_arguments(found))
    if command.config:
      module, _, name = command.config.rpartition('.')
      options[command.config] = list(
          config_options(getattr(importlib.import_module(module), name)(name='')))
  titles = {name: recipe.description for name, recipe in recipes.all_recipes().items()}
  titles |= dict.fromkeys(word_vectors.PUBLISHED, word_vectors.__doc__ or '')
  return {'options': options,
          'recipes': {name: text.strip().partition('\n')[0] for name, text in titles.items()}}


def write_file() -> None:
  """Write help.json, one option per line."""
  found, parts = collect(), []
  for name, options in found['options'].items():
    lines = ',\n'.join(json.dumps(option, ensure_ascii=False) for option in options)
    parts.append(f'{json.dumps(name)}: [\n{lines}]')
  options, titles = ',\n'.join(parts), json.dumps(found['recipes'], ensure_ascii=False, indent=0)
  FILE.write_text(f'{{"options": {{\n{options}}},\n"recipes": {titles}}}\n', 'utf-8')


def command_arguments(function: Callable[..., Any]) -> Iterator[Option]:
  """Yield the arguments of a command's function, and the options of its settings."""
  texts = argument_texts(inspect.getdoc(function) or '')
  hints = typing.get_type_hints(function, include_extras=True)
  for name, parameter in inspect.signature(function).parameters.items():
    hint, marks, default = hints[name], [], parameter.default
    if typing.get_origin(hint) is typing.Annotated:
      hint, *marks = typing.get_args(hint)
    called = next((mark.name for mark in marks if getattr(mark, 'name', None)), name)
    if dataclasses.is_dataclass(default):
      yield from config_options(default, '' if called in UNPREFIXED else called)
      continue
    positional = any('Positional' in repr(mark) for mark in marks)
    shown = None if default is inspect.Parameter.empty else format_default(default)
    yield Option(called.replace('_', '-'), describe_kind(hint), shown, texts.get(name, ''),
                 positional)


def argument_texts(doc: str) -> dict[str, str]:
  """Return the descriptions of arguments in a docstring, in one line each."""
  texts, name = {}, ''
  for line in doc.partition('Args:\n')[2].splitlines():
    start = re.match(r'  (\w+): (.*)', line)
    if start:
      name = start[1]
      texts[name] = start[2]
    elif name and line.strip():
      texts[name] += f' {line.strip()}'
  return texts


def config_options(config: Any, path: str = '') -> Iterator[Option]:
  """Yield the options of a configuration, with its values as defaults."""
  for name, owner, field in option_fields(config, path):
    texts, hints = field_texts(type(owner)), typing.get_type_hints(type(owner))
    if isinstance(owner, Choice) and field == 'kind':
      yield Option(name, ','.join(owner.kinds()), owner.kind, describe_choice(type(owner)))
    else:
      yield Option(name, describe_kind(hints[field]), format_default(getattr(owner, field)),
                   texts.get(field, ''))


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
    if dataclasses.is_dataclass(value):
      yield from option_fields(value, name)
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
      for number, item in enumerate(value):
        yield from option_fields(item, f'{name}.{number}')
    else:
      yield name.replace('_', '-'), owner, field


@functools.cache
def field_texts(cls: type) -> dict[str, str]:
  """Return the descriptions below the fields of a class and of its base classes, in one line."""
  texts: dict[str, str] = {}
  for base in reversed(cls.__mro__):
    if not dataclasses.is_dataclass(base):
      continue
    body: Any = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
    for field, text in itertools.pairwise(body.body):
      if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
        texts[ast.unparse(field.target)] = ' '.join(ast.literal_eval(text.value).split())
  return texts


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


if __name__ == '__main__':
  write_file()
