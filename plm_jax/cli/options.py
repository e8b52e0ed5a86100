"""Parse command lines: make subcommands, look up and remove options, parse runs."""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
import dataclasses
import functools
import inspect
import re
import shlex
import sys
import typing
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from plm_jax import environment, progress, truncation, validation
from plm_jax.cli import help, signatures, suggestions
from plm_jax.cli.flags import flag_name, name_flags, normalize
from plm_jax.errors import ConfigError
from plm_jax.storage import bucket_check

if TYPE_CHECKING:
  from plm_jax.config.run import Scale
  from plm_jax.recipes import Recipe

Run = TypeVar('Run')
UNPREFIXED = 'settings', 'reading'
"""arguments of commands whose fields are options without a prefix"""
FILES = 'output', 'page'
"""arguments of commands that are files for results"""
SEED_LIMITS = '[0, 4294967295]'
"""seeds that both jax.random.key and numpy accept"""


def command(**limits: str) -> Callable[[Callable], Callable]:
  """Decorate a function as a subcommand whose arguments are checked before it runs.

  Arguments in FILES must be files that can be written, unless the command writes a folder `out`.

  Args:
    **limits: intervals of numeric arguments, as in `validation.ValidatedConfig.limits`.
  """
  def decorate(function):
    signature, kinds = inspect.signature(function), typing.get_type_hints(function)
    paths: set[str] = set()  # names of its options
    for name, kind in kinds.items():
      paths |= validation.field_paths(kind, '' if name in UNPREFIXED else name)

    @functools.wraps(function)
    def run(*args, **kwargs):
      given = signature.bind(*args, **kwargs)
      given.apply_defaults()
      with validation.defer_checks(False), name_flags(paths):
        for name, value in given.arguments.items():
          if dataclasses.is_dataclass(value):
            validation.check(value, path='' if name in UNPREFIXED else name)
            continue
          positional = signature.parameters[name].default is inspect.Parameter.empty
          called = name.upper() if positional else flag_name(name)
          if positional and value == '':
            raise ConfigError(f'{called} is empty, expected a path or a name')
          validation.check_value(value, kinds[name], limits.get(name), lambda path: path, called)
        if 'out' not in given.arguments:
          bucket_check.check_reachable({given.arguments.get(name, ''): 'file' for name in FILES})
        name = function.__name__.removesuffix('_command').replace('_', '-')
        with progress.command_scope(name), truncation.print_at_end():
          return function(*args, **kwargs)

    run.paths = paths  # pyright: ignore[reportAttributeAccessIssue]
    return run
  return decorate


def choose_output(out: str, output: str) -> str:
  """Return the output of a command, which is its last argument or --output.

  Raises:
    ConfigError: neither is given, or both.
    StorageError: it is standard output (-).
  """
  if out and output:
    raise ConfigError(f'the output is given twice: {out} and --output={output}')
  if not out and not output:
    raise ConfigError('OUTPUT is missing, a path or a name: give it last, or as --output')
  if '-' in (out, output):
    bucket_check.check_reachable({'-': 'write'})
  return out or output


def join_values(
    name: str, args: Iterable[str], known: Container[str] | None = None) -> list[str]:
  """Join the values of a list option with commas, where they are separated by spaces.

  >>> join_values('--tasks', ['--tasks', 'cola', 'rte', '--limit=3'])
  ['--tasks=cola,rte', '--limit=3']

  Args:
    name: the option, with its dashes.
    args: the arguments.
    known: values that may follow the first one; None: all up to the next option, for a command
      without positional arguments.
  """
  found, rest = [], list(args)
  while rest:
    arg = rest.pop(0)
    option, equals, value = arg.partition('=')
    if option != name:
      found.append(arg)
      continue
    values = [value] if equals or not rest else [rest.pop(0)]
    while rest and not rest[0].startswith('--') and (known is None or rest[0] in known):
      values.append(rest.pop(0))
    found.append(f'{name}={",".join(values)}')
  return found


def option_kinds(config: Any) -> dict[str, str]:
  """Return the options of a configuration with their values, as `signatures.Option.kind`."""
  return {name: signatures.describe_kind(validation.field_types(type(owner)).get(field))
          for name, owner, field in signatures.option_fields(config)}


def choose_kinds(config: Any, args: Sequence[str]) -> tuple[Any, list[str]]:
  """Read options such as --optim.kind=muon, which decide what other options there are.

  Returns:
    The configuration, and the other arguments.
  """
  rest = list(args)
  for option in dict.fromkeys(arg.partition('=')[0] for arg in args):
    path = option.removeprefix('--').replace('-', '_').removesuffix('.kind')
    choice = validation.get_field(config, path)
    if option.endswith('.kind') and isinstance(choice, validation.Choice):
      kind, rest = pop_option(option, rest)
      config = validation.with_paths(
          config, {path: validation.choose_kind(choice, kind, option)})
  return config, rest


def parse_whole_number(name: str, given: str, least: int) -> int:
  """Parse the value of an option as a whole number of at least `least`. Raises ConfigError."""
  is_number = given.isascii() and given.isdecimal()
  if not is_number or not least <= int(given) < 1 << 31:
    raise ConfigError(f'--{name} is a whole number, {least} or more, got '
                      f'{validation.short_repr(given)}')
  return int(given)


def option_value(name: str, args: list[str]) -> str:
  """Return the value of an option, '' if it is not given; the last one counts, as everywhere."""
  return pop_option(name, args)[0]


def scale_option(
    args: Sequence[str], default: Scale | None = 'paper', fits: bool = False) -> Any:
  """Return the value of --scale; raise ConfigError for an unknown one.

  Args:
    args: the arguments.
    default: the value where there is none.
    fits: accept gpu, for a pre-training run.
  """
  from plm_jax.config.run import PretrainScale, Scale
  scale: Any = option_value('--scale', list(args)) or default
  names = typing.get_args(PretrainScale if fits else Scale)
  if scale not in (default, *names):
    raise ConfigError(f'--scale is {", ".join(names[:-1])} or {names[-1]}, got '
                      + validation.short_repr(scale))
  return scale


def given_fields(args: Iterable[str], section: str = '') -> set[str]:
  """Return the names of the fields of a section ('' or 'data.prepare.') that are given."""
  names = [arg.partition('=')[0].removeprefix('--').replace('-', '_') for arg in args
           if arg.startswith('--')]
  return {name.removeprefix(section).removeprefix('no_') for name in names
          if name.startswith(section)}


def pop_values(name: str, args: Iterable[str]) -> tuple[list[str], list[str]]:
  """Remove an option from the arguments.

  Returns:
    Its values, one per occurrence, and the other arguments.
  """
  values, others, rest = [], [], iter(args)
  for arg in rest:
    if arg == name:
      values.append(next(rest, ''))
    elif arg.startswith(f'{name}='):
      values.append(arg.partition('=')[2])
    else:
      others.append(arg)
  return values, others


def pop_option(name: str, args: Iterable[str]) -> tuple[str, list[str]]:
  """Remove an option from the arguments, and return its last value, '' if it is not given."""
  values, others = pop_values(name, args)
  return ''.join(values[-1:]), others


def join_beam_options(args: Iterable[str], own: Container[str]) -> list[str]:
  """Join everything after --beam, which are options of Apache Beam, to one argument.

  Args:
    args: the arguments.
    own: fields of the command, whose options must be before --beam.

  Raises:
    ConfigError: an option of the command is after --beam, or there is no --runner.
  """
  args = list(args)
  if '--beam' not in args:
    return args
  at = args.index('--beam')
  beam = args[at + 1:]
  for arg in beam:
    name = arg.partition('=')[0]
    if re.sub('^--(no-)?', '', name).replace('-', '_') in own:
      raise ConfigError(f'{name} is after --beam, with the options of Beam: put it in '
                        'front')
  if not option_value('--runner', beam):
    raise ConfigError('--beam is followed by options of Beam, expected --runner=DirectRunner, '
                      f'FlinkRunner or another, got {" ".join(beam) or "none"}')
  return args[:at] + [f'--beam={shlex.join(beam)}']


def typed_fields(config: Any, args: Iterable[str]) -> dict[str, Any]:
  """Return the fields of a configuration without sections that were given or are not defaults."""
  named = given_fields(args)
  return {field.name: value for field in dataclasses.fields(config)
          if (value := getattr(config, field.name)) != field.default or field.name in named}


def parse_run(
    default: Run, args: Sequence[str], called: str, about: str) -> tuple[Run, list[str]]:
  """Parse the options of a run over its defaults; with --help, print them and exit.

  Args:
    default: the run at the defaults of its recipe and scale.
    args: the arguments.
    called: the command.
    about: description of the recipe or task.

  Returns:
    The run, and the arguments with one form of booleans and empty lists.

  Raises:
    ConfigError: an option, or a section of options, that does not exist or would change nothing.
  """
  with validation.defer_checks():
    default, args = choose_kinds(default, args)
  kinds = option_kinds(default)
  args = normalize(args, kinds)
  topic, rest = help.take_topic(args)
  if topic is not None:
    print(help.run_help(called, about, default, topic or 'all'))
    sys.exit(0)
  suggestions.check_options(rest, kinds, f'{called} --help all')
  # An option that the chosen kind (such as the optimizer) lacks belongs to another kind.
  paths = [path.rpartition('.') for path in given_fields(rest)]
  validation.check_unused(default, [
      ''.join(path) for path in paths
      if path[1] and not hasattr(validation.get_field(default, path[0]), path[2])])
  with validation.defer_checks():  # until `check`, which knows the names of options
    config = tyro.cli(
        type(default), default=default, args=args, prog=called, description=about,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff))
    validation.check_unused(config, given_fields(args))
  return config, args


def take_recipe(command: str, args: Sequence[str]) -> tuple[Recipe, list[str]]:
  """Find the recipe that the first argument of a command names, or a family with --size.

  Args:
    command: the command with its argument, for the message.
    args: the arguments.

  Returns:
    The recipe, and the other arguments.

  Raises:
    ConfigError: no argument names a recipe.
  """
  from plm_jax.recipes import find_recipe
  if not args or args[0].startswith('-'):
    raise ConfigError(f'which recipe? `python -m plm_jax {command}`; `python -m plm_jax train` '
                      'lists them')
  size, rest = pop_option('--size', args[1:])
  return find_recipe(args[0], size), rest


def program_name(recipe: Recipe) -> str:
  """Return the command that starts a recipe, for its --help: the one that was typed if possible."""
  spec = getattr(sys.modules.get('__main__'), '__spec__', None)
  package, _, module = (spec.name if spec else '').rpartition('.')
  if package != 'experiments' or module not in (recipe.name, recipe.family):
    return f'{environment.program()} train {recipe.name}'
  size = f' --size={recipe.size}' if module != recipe.name else ''
  return f'python -m experiments.{module}{size}'
