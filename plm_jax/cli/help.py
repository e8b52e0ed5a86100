"""Print the help of `plm-jax` and of its commands, without importing JAX."""
from collections.abc import Container, Iterable, Mapping, Sequence
import re
import shutil
import textwrap
from typing import Any

from plm_jax import environment
from plm_jax.cli import signatures, suggestions
from plm_jax.cli.catalog import COMMANDS, GROUPS, VECTORS, Command
from plm_jax.cli.signatures import Option
from plm_jax.errors import UsageError

MAX_WIDTH = 80
"""columns of a help text in a wide terminal"""
TEXT_COLUMN = 24
"""column where descriptions begin"""
MAX_OPTIONS = 20
"""options without a section that a short help prints, where the catalog names none"""


def width() -> int:
  """Return the number of columns of a help text."""
  return min(MAX_WIDTH, max(40, shutil.get_terminal_size((MAX_WIDTH, 24)).columns))


def top_help() -> str:
  """Return the help of `plm-jax`: the commands by purpose."""
  program = environment.program()
  sections = {group: {name: command.summary for name, command in COMMANDS.items()
                      if command.group == group} for group in GROUPS}
  sections['Options'] = {'--help': 'Show this help, or the help of a command.',
                         '--version': 'Print the version.'}
  sections['Common options'] = {
      '--output PATH': 'Write to this file or folder.',
      '--NAME A B C': 'Pass several values to an option.',
      '-': 'Read texts or prompts from standard input, one per line.'}
  lines = [f'usage: {program} COMMAND [arguments] [options]', '',
           'Pre-train, fine-tune, evaluate and export language models in JAX.']
  for title, rows in sections.items():
    lines += ['', title]
    for name, text in rows.items():
      lines += describe_row(name, text, 18)
  lines += ['', 'Examples',
            f'  {program} train bert_base --scale=laptop',
            f"  {program} fill-mask runs/bert_base-laptop 'Returns the [MASK].'", '',
            f'Run `{program} COMMAND --help` for the options of a command.']
  return '\n'.join(lines)


def describe_row(name: str, text: str, column: int = TEXT_COLUMN) -> list[str]:
  """Return a name and its description, wrapped in two columns."""
  head = f'  {name}'
  rest = textwrap.wrap(text, width() - column, break_on_hyphens=False)
  if rest and len(head) + 2 <= column:  # the description begins next to the name
    head = f'{head:{column}}{rest.pop(0)}'
  return [head.rstrip(), *(f'{"":{column}}{line}' for line in rest)]


def describe_option(option: Option) -> list[str]:
  """Return the lines of an option: its name, values, description and default."""
  kind = option.kind
  if option.positional:
    name = option.name.upper()
  elif kind == 'BOOL':
    name = f'--{option.name}'
  else:
    if ',' in kind:
      kind = f'{{{kind}}}' if len(kind) <= 40 else 'NAME'
    name = f'--{option.name} {kind.replace("...", " ...")}'.rstrip()
  text = as_sentence(option.text, option.kind.split(','))
  if ',' in option.kind and kind == 'NAME':
    text = f'{text} One of {option.kind.replace(",", ", ")}.'
  if option.kind == 'BOOL' and option.default == 'True':
    section, dot, field = option.name.rpartition('.')
    text = f'{text} [on by default; --{section}{dot}no-{field} turns it off]'
  elif option.default not in (None, '', 'False'):
    text = f'{text} [default: {option.default}]'
  return describe_row(name, text.strip())


def as_sentence(text: str, values: Container[str] = ()) -> str:
  """Return a description with a capital letter and a full stop.

  >>> as_sentence('number of updates')
  'Number of updates.'
  >>> as_sentence('model_type of transformers')
  'model_type of transformers.'

  Args:
    text: the description.
    values: values of the option, which keep their spelling.
  """
  first = re.match('[a-z]+(?=[ ,;(-]|: )', text)
  if first and first[0] not in values:
    text = text[0].upper() + text[1:]
  return text if not text or text.endswith(('.', '?')) else f'{text}.'


def command_options(command: Command) -> list[Option]:
  """Return all arguments and options of a command, at the defaults of the code."""
  found, words = [], signatures.registered_words()
  for name, values, text in command.own:
    parts: Any = re.fullmatch(r'(.*?)(?: \(default: (.*)\))?', text.format(**words))
    found.append(Option(name, values, parts[2] or '', parts[1]))
  if command.function:
    found += signatures.read_options(command.function)
  if command.config:
    taken = {option.name for option in found}
    found += [one for one in signatures.read_options(command.config) if one.name not in taken]
  return found


def find_command(path: Sequence[str]) -> Command:
  """Return the command of a name, or of `vectors` and the name of a subcommand."""
  return VECTORS[path[1]] if len(path) > 1 else COMMANDS[path[0]]


def command_help(path: Sequence[str], topic: str = '', recipe: str = '') -> str:
  """Return the help of a command.

  Args:
    path: its name; for a subcommand of `vectors` both names.
    topic: '' for the options that people use, 'all', or a section of options such as 'optim'.
    recipe: recipe that was given to the command; '': none.

  Raises:
    UsageError: there is no such section.
  """
  command, called = find_command(path), f'{environment.program()} {" ".join(path)}'
  if path[0] == 'train' and recipe in signatures.recipe_titles():
    title = signatures.recipe_titles()[recipe]
    command = command._replace(usage='', summary=title, examples=('--scale=laptop', '--help all'))
    called = f'{called} {recipe}'
  options = command_options(command)
  arguments = [option for option in options if option.positional]
  named = [option for option in options if not option.positional]
  if topic and topic != 'all':
    return section_help(called, named, topic)
  lines = usage_lines(called, command)
  if path == ['vectors']:
    lines += ['', 'commands:']
    for name, inner in VECTORS.items():
      lines += describe_row(f'{name} {inner.usage}', inner.summary, 28)
  if arguments:
    lines += ['', 'arguments:']
    names = re.findall('[A-Z]+', command.usage)  # as in the usage line
    for name, argument in zip(names, arguments, strict=False):
      lines += describe_option(argument._replace(name=name))
  if topic == 'all':
    lines += all_options(named)
    return '\n'.join(lines)
  shown = short_options(command, named)
  if shown:
    # Defaults of a run depend on its recipe, so the short help leaves out those of the class.
    fixed = not command.config
    lines += ['', 'options:']
    for option in shown:
      brief = option._replace(text=first_sentence(option.text))
      known = fixed or option in options[:len(command.own)]
      lines += describe_option(brief if known else brief._replace(default=None))
  hidden = [option for option in named if option not in shown]
  lines += ['', 'examples:']
  for example in command.examples:
    lines.append(f'  {called} {example}'.rstrip())
  if hidden:
    more = f'Run `{called} --help all` for all {len(named)} options'
    if sections := section_names(named):
      more += f', or `{called} --help SECTION` for one section: {", ".join(sections)}'
    lines += ['', *textwrap.wrap(f'{more}.', width(), break_on_hyphens=False)]
  return '\n'.join(lines)


def first_sentence(text: str) -> str:
  """Return the first sentence of a description, and a default after it, without the full stop.

  >>> first_sentence('Peak learning rate, at the end of the warmup. With Adafactor ...')
  'Peak learning rate, at the end of the warmup'
  >>> first_sentence('File for the results. Default: standard output. Lines are ...')
  'File for the results. Default: standard output'
  """
  return re.split(r'(?<!\.)\.(?= (?!Default:)[A-Z`]|$)', text, maxsplit=1)[0]


def usage_lines(called: str, command: Command) -> list[str]:
  """Return the usage line of a command, its summary, and its notes."""
  usage = f'usage: {called} {command.usage}'.rstrip()
  if '[options' not in usage:
    usage += ' [options]'
  lines = textwrap.wrap(usage, width(), subsequent_indent='  ', break_on_hyphens=False)
  lines += ['', *textwrap.wrap(command.summary, width())]
  if command.notes:
    notes = command.notes.format(program=environment.program())
    lines += ['', *textwrap.wrap(notes, width(), break_on_hyphens=False)]
  return lines


def short_options(command: Command, options: Sequence[Option]) -> list[Option]:
  """Return the options of a short help, in the order of the catalog."""
  known = {option.name: option for option in options}
  names = [name for name, _, _ in command.own]
  if command.main:
    names += command.main
  elif not command.config:
    names += [option.name for option in options if '.' not in option.name][:MAX_OPTIONS]
  return [known[name] for name in dict.fromkeys(names) if name in known]


def section_names(options: Iterable[Option]) -> list[str]:
  """Return the first parts of the names of options with a section."""
  return list(dict.fromkeys(
      option.name.partition('.')[0] for option in options if option.section))


def all_options(options: Sequence[Option]) -> list[str]:
  """Return the lines of all options, section by section."""
  lines = []
  for section in dict.fromkeys(option.section for option in options):
    lines += ['', f'options of {section}:' if section else 'options:']
    for option in options:
      if option.section == section:
        lines += describe_option(option)
  return lines


def section_help(called: str, options: Sequence[Option], topic: str) -> str:
  """Return the options of a section and of the sections in it; raise UsageError for no section."""
  name = topic.removeprefix('--').replace('_', '-')
  shown = [option for option in options if f'{option.name}.'.startswith(f'{name}.')]
  if not shown:
    sections = section_names(options)
    near = suggestions.suggest_option(name, [option.name for option in options])
    advice = f'; did you mean --{near[0]}?' if near else ''
    raise UsageError(f'there is no section {topic!r}: --help takes one of '
                     f'{", ".join(["all", *sections])}{advice}')
  return '\n'.join([f'Options of `{called}`, section {name}', *all_options(shown)])


def run_help(called: str, about: str, config: Any, topic: str = 'all') -> str:
  """Return the options of a run with the values of its recipe.

  Args:
    called: the command, such as `plm-jax train bert_base`.
    about: description of the recipe.
    config: the run at its scale.
    topic: 'all', or a section of options.
  """
  options = list(signatures.config_options(config))
  if topic and topic != 'all':
    return section_help(called, options, topic)
  lines = [f'usage: {called} [options]', '', about.strip()]
  return '\n'.join(lines + all_options(options))


def take_topic(args: Sequence[str]) -> tuple[str | None, list[str]]:
  """Split off --help and the topic after it.

  >>> take_topic(['bert_base', '--help', 'optim'])
  ('optim', ['bert_base'])
  >>> take_topic(['bert_base'])
  (None, ['bert_base'])

  Returns:
    The topic, '' for --help alone, None without --help; and the other arguments.
  """
  for place, arg in enumerate(args):
    name, equals, topic = arg.partition('=')
    if name in ('-h', '--help'):
      rest = list(args[place + 1:])
      if not equals and rest and not rest[0].startswith('-'):
        topic = rest.pop(0)
      return topic, [*args[:place], *rest]
  return None, list(args)


def known_options(path: Sequence[str]) -> Mapping[str, Option]:
  """Return the options of a command by name."""
  return {option.name: option for option in command_options(find_command(path))
          if not option.positional}


def option_kinds(path: Sequence[str]) -> dict[str, str]:
  """Return the options of a command with the kinds of their values."""
  return {name: option.kind for name, option in known_options(path).items()}


def find_path(args: Sequence[str]) -> list[str]:
  """Return the names of the command that arguments begin with.

  Raises:
    UsageError: there is no such command; the message suggests others.
  """
  name = args[0].replace('_', '-')
  commands, path = COMMANDS, [name]
  if name == 'vectors' and len(args) > 1 and not args[1].startswith('-'):
    commands, path, name = VECTORS, ['vectors', args[1]], args[1]
  if name == 'babylm':
    raise UsageError('babylm runs from a checkout of plm_jax: `python -m experiments.babylm`')
  if name not in commands:
    found = suggestions.suggest_command(name, commands)
    advice = f'did you mean {" or ".join(found)}? ' if found else ''
    called = ' '.join([environment.program(), *path[:-1]])
    raise UsageError(f'there is no command {name}: {advice}`{called} --help` lists them')
  return path
