"""The entry point of `plm-jax` and `python -m plm_jax`.

Help, versions and misspelled names are answered here. JAX is imported only for a command that
runs.
"""
from collections.abc import Sequence
import sys

import plm_jax
from plm_jax import environment, errors, streams, versions
from plm_jax.cli import completion, flags, help, suggestions
from plm_jax.cli.catalog import COMMANDS

ARGUMENTS_NEEDED = 'vectors', 'show', 'plan', 'inspect', 'finetune'
"""commands that print their help if they get no argument"""


def main() -> None:
  """Run the command that sys.argv names, or print help."""
  with streams.protect(), errors.exit_on_error():
    if answer(sys.argv[1:]):
      return
    versions.check_importable()  # JAX would raise with a traceback
    errors.show_warnings()
    from plm_jax.cli import commands
    commands.main()


def answer(args: Sequence[str]) -> bool:
  """Print what needs no JAX, and return whether that was all.

  Raises:
    UsageError: there is no such command, option, or section of options.
    ConfigError: an option is before the command.
  """
  if not args or args[0] in ('-h', '--help', 'help'):
    if len(args) > 1 and args[1] in COMMANDS:
      print(help.command_help(help.find_path(args[1:]), ''))
    else:
      print(help.top_help())
    return True
  if args[0] == '--version':
    print(f'plm_jax {plm_jax.__version__}')
    return True
  if args[0].startswith('-'):
    raise errors.ConfigError(f'{args[0]} is before the command: give `{environment.program()} '
                             'COMMAND [arguments] [options]`')
  path = help.find_path(args)
  rest = list(args[len(path):])
  topic, others = help.take_topic(rest)
  if path == ['completion'] and topic is None:
    print(completion.completion_script(''.join(rest[:1])), end='')
    return True
  # The values of a recipe or task are read from its configuration: the command prints them.
  named = any(not arg.startswith('-') or arg.startswith('--task') for arg in others)
  if topic and path[0] in ('train', 'finetune') and named:
    return False
  if topic is not None or (not rest and path[-1] in ARGUMENTS_NEEDED):
    print(help.command_help(path, topic or '', ''.join(others[:1])))
    return True
  command = help.find_command(path)
  if not command.config:  # a command whose options depend on a recipe or a task checks them itself
    called = f'{environment.program()} {" ".join(path)} --help all'
    rest = rest[:rest.index('--beam')] if '--beam' in rest else rest
    kinds = help.option_kinds(path)
    rest = flags.normalize(rest, kinds)
    suggestions.check_options(rest, kinds, called)
    suggestions.check_argument_count(
        ' '.join(path), command.usage, rest, help.command_options(command))
  return False
