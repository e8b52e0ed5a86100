"""Find the function of a command of `python -m plm_jax`, and call it with its arguments.

The module of a command is imported when the command is called. Each takes time to import, and needs
libraries that other commands do not need.
"""
from collections.abc import Callable, Mapping, Sequence
import sys
from typing import Any

import tyro

from plm_jax import environment, errors, streams, validation
from plm_jax.cli import catalog, help, options
from plm_jax.cli.flags import name_flags, normalize
from plm_jax.cli.options import command
from plm_jax.storage import bucket_check, compilation_cache

STARTS = {
    'doctor': 'doctor.start', 'plan': 'plan.start', 'inspect': 'inspect.start',
    'show': 'show.start', 'finetune': 'finetune.start'}
"""modules and functions of commands that parse their own arguments: their options depend on a
recipe or a task"""


@command()
def train_command() -> None:
  """Trains a model: `train RECIPE`; --help for its options. Without a recipe, lists all recipes."""
  from plm_jax import recipes
  # `main` handles `train RECIPE`.
  print(recipes.list_recipes())


def find_function(name: str) -> Callable[..., Any]:
  """Return the function of a command, such as 'predict' or 'vectors export'; import its module.

  The function of a command in STARTS takes the list of its arguments; any other takes what
  `options.command` describes.
  """
  return catalog.import_function(STARTS.get(name) or help.find_command(name.split()).function)


def main() -> None:
  """Run the command that sys.argv names; errors of the user end it with status 1 and one line."""
  path = help.find_path(sys.argv[1:])
  name, rest = ' '.join(path), sys.argv[1 + len(path):]
  if name == 'train' and rest and not rest[0].startswith('-'):
    from plm_jax.cli import run
    run.start(rest[0], rest[1:])
    return
  if name in STARTS:
    find_function(name)(args=rest)
    return
  output, others = options.pop_option('--output', rest)
  if output == '-' and name in catalog.PRINTING_COMMANDS:
    output, rest = '', others
  in_files = bool(output) or 'OUTPUT' in help.find_command(path).usage
  # Messages that cannot be printed do not end a command whose results are in files.
  with streams.protect(tolerant=in_files), errors.exit_on_error(), name_flags():
    bucket_check.check_reachable(dict.fromkeys(bucket_check.find_bucket_paths(rest), 'read'))
    compilation_cache.use_compilation_cache()
    function = find_function(name)
    if name == 'prepare':
      from plm_jax.cli import prepare
      rest = prepare.prepare_arguments(rest)
    elif name == 'clean':
      from plm_jax.cli import clean
      rest = clean.clean_arguments(rest)
    run_function(function, f'{environment.program()} {name}', rest, help.option_kinds(path))


def run_function(
    function: Callable[..., Any], called: str, args: Sequence[str], kinds: Mapping[str, str]
) -> None:
  """Call the function of a command with arguments of the command line.

  Args:
    function: the function.
    called: the command.
    args: its arguments.
    kinds: values of its options, as `signatures.Option.kind`.
  """
  with validation.defer_checks():
    tyro.cli(function, prog=called, args=normalize(args, kinds),
             config=(tyro.conf.FlagConversionOff,))
