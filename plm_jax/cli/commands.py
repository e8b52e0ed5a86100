"""Find the function of a command of `python -m plm_jax`, and call it with its arguments.

The module of a command is imported when the command is called. Each takes time to import, and needs
libraries that other commands do not need.
"""
from collections.abc import Callable
import dataclasses
import importlib
import inspect
import sys
from typing import Any

import tyro

from plm_jax import environment, errors, streams, validation
from plm_jax.cli import catalog, options
from plm_jax.cli.flags import name_flags
from plm_jax.cli.options import command
from plm_jax.storage import bucket_check, compilation_cache

STARTS = {
    'doctor': 'doctor.start', 'inspect': 'inspect.start', 'show': 'show.start',
    'vectors': 'vectors.main', 'finetune': 'finetune.start'}
"""modules and functions of commands that parse their own arguments: their options depend on a
recipe, a task or a subcommand"""


@command()
def train_command() -> None:
  """Trains a model: `train RECIPE`; --help for its options. Without a recipe, lists all recipes."""
  from plm_jax import recipes
  # `main` handles `train RECIPE`.
  print(recipes.list_recipes())


def find_function(name: str) -> Callable[..., Any]:
  """Return the function of a command, and import its module.

  The function of a command in STARTS takes the list of its arguments; any other takes what
  `options.command` describes.
  """
  if name == 'train':
    return train_command
  place = STARTS.get(name) or catalog.COMMANDS[name].function
  module, _, function = place.rpartition('.')
  return getattr(importlib.import_module(f'plm_jax.cli.{module}'), function)


def main() -> None:
  """Run the command that sys.argv names; errors of the user end it with status 1 and one line."""
  args = sys.argv[1:]
  name, rest = ''.join(args[:1]).replace('_', '-'), args[1:]
  if name == 'train' and rest and not rest[0].startswith('-'):
    from plm_jax.cli import run
    run.start(rest[0], rest[1:])
    return
  if name in STARTS:
    find_function(name)(args=rest)
    return
  output, others = options.pop_option('--output', args)
  if output == '-' and name in catalog.PRINTING_COMMANDS:
    output, args = '', others
  in_files = bool(output) or 'OUTPUT' in catalog.COMMANDS[name].usage
  # Messages that cannot be printed do not end a command whose results are in files.
  with streams.protect(tolerant=in_files), errors.exit_on_error(), name_flags():
    bucket_check.check_reachable(dict.fromkeys(bucket_check.find_bucket_paths(args), 'read'))
    compilation_cache.use_compilation_cache()
    function = find_function(name)
    if name == 'prepare':
      from plm_jax.cli import prepare
      args = prepare.prepare_arguments(args)
    elif name == 'clean':
      from plm_jax.cli import clean
      args = clean.clean_arguments(args)
    args = options.normalize_booleans(args[1:], command_options_of_type(function, bool))
    args = options.normalize_lists(args, command_options_of_type(function, tuple))
    with validation.defer_checks():
      tyro.cli(function, prog=f'{environment.program()} {name}', args=args,
               config=(tyro.conf.FlagConversionOff,))


def command_options_of_type(function: Callable[..., Any], kind: type) -> set[str]:
  """Return the command-line names of the options of a command that are booleans or lists."""
  found: set[str] = set()
  for name, parameter in inspect.signature(function).parameters.items():
    default, option = parameter.default, name.replace('_', '-')
    if isinstance(default, kind):
      found.add(option)
    elif dataclasses.is_dataclass(default):
      path = '' if name in options.UNPREFIXED else name
      found |= options.options_of_type(default, kind, path)
  return found
