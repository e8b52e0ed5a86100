"""Pages of the reference that are made from the code: the functions, the commands, the configuration, the recipes."""
import ast
from collections.abc import Iterator
import dataclasses
import inspect
import itertools
import pathlib
import re
import textwrap
import typing
from typing import Any

import plm_jax
from plm_jax.cli import commands
from plm_jax.config import Experiment, FineTuning
from plm_jax.corpora.examine import CleanConfig
from plm_jax.data.settings import PrepareConfig
from plm_jax.inference.search import GenerationConfig
from plm_jax.vectors.train import VectorRun

MADE = 'This page is made from the code at every build.'


def write(folder: pathlib.Path) -> None:
  """Writes the pages into a folder, those that have changed."""
  folder.mkdir(exist_ok=True)
  for name, page in (('api', api()), ('commands', command_page()), ('configuration', configuration())):
    path = folder / f'{name}.md'
    if not path.exists() or path.read_text() != page:
      path.write_text(page)


def api() -> str:
  """Returns the page of `import plm_jax`."""
  parts = ['# Functions', 'What `import plm_jax` gives. ' + MADE]
  for name in sorted(plm_jax.__all__, key=str.lower):
    value = getattr(plm_jax, name)
    if dataclasses.is_dataclass(value):
      continue  # of the configuration
    said = inspect.getdoc(value) or ''
    head, _, rest = said.partition('\n\n')
    parts += [f'## {name}', ' '.join(head.split()), block(f'plm_jax.{name}{signature(value)}', 'python'), block(rest)]
  return '\n\n'.join(parts) + '\n'


def signature(value: Any) -> str:
  """Writes the arguments of a function, without the types that an editor shows."""
  found = inspect.signature(value)
  bare = [parameter.replace(annotation=parameter.empty) for parameter in found.parameters.values()]
  return '\n    '.join(textwrap.wrap(str(found.replace(parameters=bare, return_annotation=found.empty)), 100))


def block(text: str, language: str = 'text') -> str:
  """Makes a block of code of a text; none of no text."""
  return f'```{language}\n{text.strip(chr(10))}\n```' if text.strip() else ''


def command_page() -> str:
  """Returns the page of the commands."""
  parts = ['# Commands', f'`python -m plm_jax COMMAND`, and `--help` behind any of them. {MADE}']
  for name, function in commands.COMMANDS.items():
    said = inspect.getdoc(function) or ''
    head, _, rest = said.partition('\n\n')
    parts += [f'## {name}', head, block(rest.removeprefix('Args:\n'))]
  return '\n\n'.join(part for part in parts if part) + '\n'


def configuration() -> str:
  """Returns the page of all options: the fields of the configurations, part by part."""
  parts = ['# Configuration', 'An option of the command line is a field: `--optim.peak=1e-4` on a command line is '
           f'`optim={{"peak": 1e-4}}` in Python. {MADE}']
  seen: set[type] = set()
  for title, kind in (('A run of pre-training', Experiment), ('A run of fine-tuning', FineTuning),
                      ('A run of word vectors', VectorRun), ('prepare', PrepareConfig), ('clean', CleanConfig),
                      ('generate', GenerationConfig)):
    parts.append(f'## {title}')
    for each in reached(kind, seen):
      parts += [f'### {each.__name__}', first_sentence(each), table(each)]
  return '\n\n'.join(part for part in parts if part) + '\n'


def reached(kind: type, seen: set[type]) -> Iterator[type]:
  """Yields a configuration and those of its fields, each once."""
  if kind in seen or not dataclasses.is_dataclass(kind):
    return
  seen.add(kind)
  yield kind
  for annotation in typing.get_type_hints(kind).values():
    for part in parts_of(annotation):
      yield from reached(part, seen)


def parts_of(annotation: Any) -> Iterator[type]:
  """Yields the classes that a type is made of."""
  if isinstance(annotation, type):
    yield annotation
  for part in typing.get_args(annotation):
    yield from parts_of(part)


def first_sentence(kind: type) -> str:
  """Returns what a class says of itself, as one paragraph that Markdown leaves alone."""
  said = (inspect.getdoc(kind) or '').partition('\n\n')[0]
  return plain('' if said.startswith(f'{kind.__name__}(') else said)


def table(kind: type) -> str:
  """Returns the fields of a configuration as a table."""
  said = fields_of(kind)
  lines = ['| field | default | |', '|---|---|---|']
  for field in dataclasses.fields(kind):
    lines.append(f'| `{field.name}` | {shown(field)} | {plain(said.get(field.name, ""))} |')
  return '\n'.join(lines) if len(lines) > 2 else ''


def shown(field: dataclasses.Field) -> str:
  """Writes a default that is short enough to be read."""
  if field.default is dataclasses.MISSING:
    return ''
  text = type(field.default).__name__ if dataclasses.is_dataclass(field.default) else repr(field.default)
  return f'`{text}`'.replace('|', r'\|') if len(text) <= 40 else '...'


def fields_of(kind: type) -> dict[str, str]:
  """Reads the texts that stand below the fields of a class and of those that it inherits from."""
  found: dict[str, str] = {}
  for base in reversed(kind.__mro__[:-1]):
    try:
      body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
    except (OSError, TypeError, IndexError):
      continue
    statements = getattr(body, 'body', [])
    for statement, following in itertools.pairwise(statements):
      if (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
          and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)):
        found[statement.target.id] = inspect.cleandoc(str(following.value.value))
  return found


def plain(text: str) -> str:
  """Makes one line of a text, in which nothing is mark-up but code."""
  def escaped(part: str) -> str:
    return re.sub(r'([\\*_\[\]<>|$])', r'\\\1', part)
  parts = re.split('(`[^`]*`)', ' '.join(text.split()))
  return ''.join(part if number % 2 else escaped(part) for number, part in enumerate(parts))
