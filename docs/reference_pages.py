"""Pages that are generated at every build: API, commands, configuration, and the project's files.

The API pages only list names; autodoc fills them. The commands page shows the output of `--help`.
Three pages exist in the repository, in both languages, and a build appends to them (APPENDED).
"""
import ast
from collections.abc import Iterator
import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import pathlib
import re
import runpy
import sys
import textwrap
import types
import typing
from typing import Any, Literal

import plm_jax
from plm_jax import validation
from plm_jax.cli import catalog
from plm_jax.cli.help import as_sentence
from plm_jax.cli.signatures import describe_choice
from plm_jax.config.run import FinetuneRun, Model, Objectives, PretrainRun, Tasks
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.validation import Choice
from plm_jax.word_vectors.train import VectorRun

ROOT = pathlib.Path(__file__).parents[1]
# Pages of the API: file, title, description, keywords, and the objects.
API_TOPICS = (
    ('training', 'Pre-training', 'Build, run and read pre-training runs in Python.',
     'plm_jax.train, plm_jax.recipe, pre-training in Python', ('recipe', 'train', 'history')),
    ('models', 'Loading, filling masks and generating text',
     'Load a model, fill masks, generate and score text in Python.',
     'plm_jax.load, plm_jax.generate, fill_mask, load a model',
     ('load', 'fill_mask', 'generate', 'stream', 'score', 'perplexity', 'GenerationConfig',
      'MeshConfig', 'warm_up')),
    ('finetuning', 'Fine-tuning and prediction', 'Fine-tune a model on a task and predict in Python.',
     'plm_jax.finetune, plm_jax.predict', ('finetune', 'predict', 'tag', 'answer')),
    ('embeddings', 'Embeddings and similarity', 'Encode, compare, search and rerank texts in Python.',
     'plm_jax.encode, plm_jax.search, plm_jax.rerank',
     ('encode', 'similar', 'search', 'rerank', 'distill')),
    ('evaluation', 'Evaluation and probing',
     'Likelihoods, minimal pairs, probes, attention maps and token losses in Python.',
     'plm_jax.likelihood, plm_jax.probe',
     ('likelihood', 'minimal_pairs', 'probe', 'attention', 'losses', 'neighbors')),
    ('data', 'Data', 'Clean, prepare and inspect text in Python.',
     'plm_jax.clean, plm_jax.prepare', ('clean', 'prepare', 'inspect')),
    ('conversion', 'Export and conversion',
     'Export a model to transformers and other libraries in Python.',
     'plm_jax.export, plm_jax.convert', ('export', 'push', 'convert')),
)
# Classes outside of `import plm_jax` that users meet: results of functions, and base classes.
API_CLASSES = (
    ('classes', 'Models, runs and base classes',
     'Classes that functions return, and the base classes of objectives and tasks.',
     'LoadedModel, Objective, Task', (
         'plm_jax.loading.loaded_model.LoadedModel', 'plm_jax.config.run.PretrainRun',
         'plm_jax.config.run.FinetuneRun', 'plm_jax.objectives.Objective',
         'plm_jax.tasks.contract.Task', 'plm_jax.errors.UserError')),
)
# Pages of options: file, title, description, and (heading, configuration, prefix) of each part.
NOTE = ('An option of the command line is a field of a configuration: `--optim.b2=0.98` on a command '
        'line is `optim={"b2": 0.98}` in Python. `--optim.bias-correction` and '
        '`--optim.bias-correction=True` turn a switch on; `--optim.no-bias-correction` and '
        '`--optim.bias-correction=False` turn it off.')


def write(folder: pathlib.Path) -> None:
  """Write all generated pages into the folder of sources, those that have changed."""
  pages = {**api_pages(), **configuration_pages(), **project_pages()}
  for name, text in pages.items():
    path = folder / f'{name}.md'
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding='utf-8') != text:
      path.write_text(text, encoding='utf-8')


def front_matter(description: str, keywords: str) -> str:
  """Return the front matter of a page."""
  return f'---\ndescription: "{description}"\nkeywords: "{keywords}"\n---\n'


# API.


def api_pages() -> dict[str, str]:
  """Return the pages of the Python API by name."""
  covered = {name for *_, names in API_TOPICS for name in names}
  missing = {*plm_jax.__all__} - covered
  assert not missing, f'no topic of the API has {", ".join(sorted(missing))}'
  pages = {}
  for file, title, description, keywords, names in (*API_TOPICS, *API_CLASSES):
    parts = [front_matter(description, keywords) + f'# {title}', description]
    for name in names:
      full = name if '.' in name else f'plm_jax.{name}'
      parts.append(autodoc_directive(full))
    pages[f'reference/api/{file}'] = '\n\n'.join(parts) + '\n'
  return pages


def api_index() -> str:
  """Return the table of the API's pages, and their toctree."""
  lines = []
  for file, title, _, _, names in (*API_TOPICS, *API_CLASSES):
    shown = ', '.join(f'`{name.rpartition(".")[2]}`' for name in names)
    lines.append(f'| [{title}]({file}.md) | {shown} |')
  return index_of(lines, [file for file, *_ in (*API_TOPICS, *API_CLASSES)])


def index_of(lines: list[str], names: list[str]) -> str:
  """Return a table of pages without a header, and their toctree."""
  table, tree = '\n'.join(['| | |', '|---|---|', *lines]), '\n'.join(names)
  return f'\n\n{table}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n'


def autodoc_directive(name: str) -> str:
  """Return the directive that documents a function or a class."""
  module, _, last = name.rpartition('.')
  value = getattr(sys.modules.get(module) or __import__(module, fromlist=[last]), last)
  if not inspect.isclass(value):
    return f'```{{eval-rst}}\n.. autofunction:: {name}\n```'
  if dataclasses.is_dataclass(value) and not module.endswith(
      ('contract', 'objectives', 'loaded_model')):
    # Fields and defaults of configurations are on the configuration pages.
    return f'```{{eval-rst}}\n.. autoclass:: {name}(...)\n```'
  return f'```{{eval-rst}}\n.. autoclass:: {name}\n   :members:\n```'


# Commands.


def command_sections() -> str:
  """Return the output of `--help`, and a section with that of each command."""
  parts = ['', block(help_text([]))]
  for name in catalog.COMMANDS:
    parts += [f'## {name}', block(help_text([name]))]
  return '\n\n'.join(parts) + '\n'


def help_text(args: list[str]) -> str:
  """Return what `python -m plm_jax ARGS --help` prints, 80 columns wide and without colors."""
  printed = io.StringIO()
  arguments, environment = sys.argv, dict(os.environ)
  os.environ.update(COLUMNS='80', NO_COLOR='1', TERM='dumb')
  sys.argv = ['plm_jax', *args, '--help']
  try:
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
      runpy.run_module('plm_jax', run_name='__main__', alter_sys=False)
  finally:
    sys.argv = arguments
    os.environ.clear()
    os.environ.update(environment)
  lines = [line.rstrip() for line in re.sub(r'\x1b\[[0-9;]*m', '', printed.getvalue()).splitlines()]
  return '\n'.join(lines).replace(str(pathlib.Path.home()), '~').strip()


def block(text: str, language: str = 'text') -> str:
  """Return a block of code; an empty text gives none."""
  return f'```{language}\n{text}\n```' if text.strip() else ''


# Configuration.


def option_pages() -> dict[str, tuple]:
  """Return title, description, keywords and configurations of the pages of options."""
  union = typing.get_args
  return {
      'pretraining': ('Pre-training options', 'Options of `train RECIPE`, without those of model and '
                      'objective.', 'options of train, training options, --train, --optim, --data', [
                          ('', PretrainRun, '')]),
      'models': ('Model options', 'Options that begin with `--model`, by architecture.',
                 'model options, --model', [
                     (kind.__name__, kind, 'model') for kind in union(Model)]),
      'objectives': ('Objective options', 'Options that begin with `--objective`, by objective.',
                     'objective options, --objective', [
                         (kind.__name__, kind, 'objective') for kind in union(Objectives)]),
      'finetuning': ('Fine-tuning options', 'Options of `finetune`.',
                     'options of finetune, --tuning', [
                         ('', FinetuneRun, ''),
                         *((kind.__name__, kind, 'task') for kind in union(Tasks))]),
      'data': ('Options of prepare and clean', 'Options of the commands `prepare` and `clean`.',
               'options of prepare, options of clean', [
                   ('prepare', PrepareConfig, ''), ('clean', CleanConfig, '')]),
      'generation': ('Options of generate', 'Options of the command `generate`.',
                     'options of generate, temperature, top-p, top-k, beams', [
                         ('', GenerationConfig, '')]),
      'word_vectors': ('Word-vector options', 'Options of `train word2vec`, `train glove` and the other '
                       'word-vector recipes.', 'word2vec options, GloVe options, fastText options', [
                           ('', VectorRun, '')]),
  }


def configuration_pages() -> dict[str, str]:
  """Return the pages of options by name."""
  written = {}
  for name, (title, description, keywords, parts) in option_pages().items():
    text = [front_matter(description.replace('`', ''), keywords) + f'# {title}', description, NOTE]
    if len(parts) > 1:
      text.append('A configuration that several sections share is described in the first of them.')
    seen: set[type] = set()
    for heading, kind, prefix in parts:
      text += option_sections(heading, kind, prefix, seen)
    written[f'reference/configuration/{name}'] = '\n\n'.join(part for part in text if part) + '\n'
  return written


def configuration_index() -> str:
  """Return the table of the pages of options, and their toctree."""
  pages = option_pages()
  lines = [f'| [{title}]({name}.md) | {text} |' for name, (title, text, *_) in pages.items()]
  return index_of(lines, [*pages])


def option_sections(heading: str, kind: type, prefix: str, seen: set[type]) -> Iterator[str]:
  """Yield the sections of a configuration: its own options, then those of the parts in it.

  A configuration that appears in several places is described once, under its first prefix.
  """
  parts = list(nested_configs(kind, prefix, seen))
  if heading:
    yield f'## {heading}'
  level = '###' if heading else '##'
  for path, part in parts:
    if path != prefix:
      # Without the name of the page's section, so that the list of contents stays narrow.
      section = path.removeprefix(f'{prefix}.').replace('_', '-')
      yield f'{level} {section}: {part.__name__}'
    elif not heading:
      yield f'{level} Options of the run' if not prefix else f'{level} --{prefix}'
    yield escape_markdown(first_paragraph(part))
    yield option_list(part, path)


def nested_configs(kind: type, path: str, seen: set[type]) -> Iterator[tuple[str, type]]:
  """Yield (path, class) of a configuration and of those in its fields, each class once."""
  if kind in seen or not dataclasses.is_dataclass(kind):
    return
  seen.add(kind)
  yield path, kind
  unions = {Model: 'models', Objectives: 'objectives', Tasks: 'finetuning'}
  for name, annotation in typing.get_type_hints(kind).items():
    if annotation in unions or name not in {field.name for field in dataclasses.fields(kind)}:
      continue  # have a page or sections of their own
    inner = f'{path}.{name}'.lstrip('.')
    if typing.get_origin(annotation) is tuple:
      inner += '.N'
    for part in classes_of(annotation):
      yield from nested_configs(part, inner, seen)


def classes_of(annotation: Any) -> Iterator[type]:
  """Yield the classes in an annotation."""
  if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
    yield annotation
  for part in typing.get_args(annotation):
    yield from classes_of(part)


def first_paragraph(kind: type) -> str:
  """Return the first paragraph of a class's docstring."""
  text = (inspect.getdoc(kind) or '').partition('\n\n')[0]
  return '' if text.startswith(f'{kind.__name__}(') else text


def option_list(kind: type, path: str) -> str:
  """Return a definition list of the options of a configuration: type, default and description.

  Nested configurations have sections of their own; their entry says what they configure.
  """
  entries = []
  if issubclass(kind, Choice):
    kinds = ', '.join(f'`{name}`' for name in kind.kinds())
    entries.append(f'**`--{path}.kind`** {kinds}\n: {escape_markdown(describe_choice(kind))}')
  for name, owner in validation.offered_fields(kind).items():
    field = next(one for one in dataclasses.fields(owner) if one.name == name)
    descriptions, hints = field_docstrings(owner), typing.get_type_hints(owner)
    limits = getattr(owner, 'limits', {})
    option = f'{path}.{field.name}'.lstrip('.').replace('_', '-')
    type_text = describe_annotation(hints[field.name], limits.get(field.name))
    default = format_default(field)
    term, text = f'**`--{option}`** {type_text}', descriptions.get(field.name, '')
    classes = [one for one in classes_of(hints[field.name]) if dataclasses.is_dataclass(one)]
    if default and not classes:
      term += f', default {default}'
    elif not text and len(classes) == 1:
      text = first_paragraph(classes[0])
    elif not text:
      text = f'One of these configurations. The default is {default}.'
    entries.append(f'{term}\n: {escape_markdown(as_sentence(text, type_text))}')
  return '\n\n'.join(entries)


def describe_annotation(annotation: Any, limits: str | None) -> str:
  """Describe a type for a table: choices of literals, classes of a union, limits of a number."""
  origin, args = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Literal:
    return ', '.join(f'`{choice}`' for choice in args)
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(describe_annotation(part, None) for part in args)
  if annotation is type(None):
    return '`None`'
  if origin is tuple:
    inner = [part for part in args if part is not ...]
    text = ', '.join(describe_annotation(part, None) for part in inner)
    return f'several: {text}' if ... in args else f'({text})'
  names = {int: 'integer', float: 'number', str: 'text', bool: '`True`, `False`'}
  text = names.get(annotation) or escape_markdown(getattr(annotation, '__name__', str(annotation)))
  return f'{text} in `{limits}`' if limits and annotation in (int, float) else text


def format_default(field: dataclasses.Field) -> str:
  """Format a default; a nested configuration is named by its class."""
  if field.default is dataclasses.MISSING:
    return '' if field.default_factory is dataclasses.MISSING else 'see its fields'
  value = field.default
  if dataclasses.is_dataclass(value):
    return type(value).__name__
  text = repr(value)
  return '`' + text.replace('|', r'\|') + '`' if len(text) <= 60 else 'as published'


def field_docstrings(kind: type) -> dict[str, str]:
  """Return the docstrings below the fields of a class and of its base classes."""
  found: dict[str, str] = {}
  for base in reversed(kind.__mro__[:-1]):
    try:
      body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
    except (OSError, TypeError, IndexError):
      continue
    for statement, following in itertools.pairwise(getattr(body, 'body', [])):
      if (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
          and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)):
        found[statement.target.id] = inspect.cleandoc(str(following.value.value))
  return found


def escape_markdown(text: str) -> str:
  """Return a text as one line in which only code has markup."""
  parts = re.split('(`[^`]*`)', ' '.join(text.split()))
  for number in range(0, len(parts), 2):
    parts[number] = re.sub(r'([\\*_\[\]<>|$])', r'\\\1', parts[number])
  return ''.join(parts)


# Project.


def project_pages() -> dict[str, str]:
  """Return the files of the repository's root that are pages, with links between them adapted."""
  files = {
      'CHANGELOG.md': ('changelog', 'What changed in each version of plm_jax.',
                       'changelog, changes, release notes'),
      'CONTRIBUTING.md': ('contributing', 'How to contribute to plm_jax.',
                          'contributing, development, tests, versions'),
      'benchmarks/RESULTS.md': ('results', 'Measured results of plm_jax next to other libraries.',
                                'results, benchmarks, measured results'),
      'WORKSPACE.md': ('architecture', 'Packages, levels and data flow of the code.',
                       'architecture, packages, code structure')}
  pages = {}
  for file, (name, description, keywords) in files.items():
    text = (ROOT / file).read_text(encoding='utf-8')
    for other, (page, *_) in files.items():
      text = text.replace(f']({other}', f']({page}.md')
    text = text.replace('](docs/', '](../').replace('](figures/', '](../figures/')
    # Other files of the repository are not pages.
    text = re.sub(r'\[([^\]]+)\]\((?!https?:|#|\.\./|[a-z]+\.md)[^)]*\)', r'\1', text)
    pages[f'project/{name}'] = front_matter(description, keywords) + text
  return pages


# Pages of the repository, and the functions that return what a build appends to them.
APPENDED = {
    'reference/api/index': api_index, 'reference/commands': command_sections,
    'reference/configuration/index': configuration_index}
