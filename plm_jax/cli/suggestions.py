"""Suggest commands and options for names that do not exist."""
from collections.abc import Collection, Sequence
import difflib

from plm_jax.cli import catalog
from plm_jax.cli.signatures import Option
from plm_jax.errors import UsageError

SHOWN = 3
"""largest number of suggestions"""


def suggest_command(name: str, known: Collection[str]) -> list[str]:
  """Return commands that a mistyped or foreign name may mean, the most likely first."""
  bare = name.lower().replace('_', '-')
  for meant in (catalog.FOREIGN_COMMANDS.get(bare), bare):
    if meant in known:
      return [str(meant)]
  return difflib.get_close_matches(bare, known, SHOWN, 0.6)


def suggest_option(name: str, known: Collection[str]) -> list[str]:
  """Return options that a mistyped or foreign name may mean, without dashes.

  >>> suggest_option('optim.lr', ['optim.peak', 'optim.power'])
  ['optim.peak']
  >>> suggest_option('seeed', ['seed', 'scale'])
  ['seed']
  """
  name = name.replace('_', '-')
  section, _, leaf = name.rpartition('.')
  foreign = catalog.FOREIGN_OPTIONS.get(name, catalog.FOREIGN_OPTIONS.get(leaf, ()))
  found = [meant for meant in foreign if meant in known]
  if found:
    return found
  # The same field of another section, the section of the name first.
  found = [path for path in sorted(known) if path.rpartition('.')[2] == leaf]
  found.sort(key=lambda path: (not path.startswith(f'{section}.'), path.count('.')))
  if found:
    return found[:SHOWN]
  near = difflib.get_close_matches(name, known, SHOWN, 0.7)
  if near:
    return near
  leaves = {path.rpartition('.')[2]: path for path in sorted(known, reverse=True)}
  return [leaves[one] for one in difflib.get_close_matches(leaf, leaves, SHOWN, 0.7)]


def check_options(args: Sequence[str], known: Collection[str], help_command: str) -> None:
  """Check that all options of a command line exist.

  Args:
    args: the command line, after `flags.normalize`.
    known: names of options, without dashes.
    help_command: command that prints all options.

  Raises:
    UsageError: an option that does not exist; the message suggests others.
  """
  for arg in args:
    name = arg.partition('=')[0].removeprefix('--').replace('_', '-')
    if arg == '--':
      return
    if not arg.startswith('--') or name in known:
      continue
    found = [f'--{one}' for one in suggest_option(name, known)]
    advice = f'did you mean {" or ".join(found)}? ' if found else ''
    raise UsageError(f'there is no option --{name}: {advice}`{help_command}` prints all options')


def check_argument_count(
    name: str, usage: str, args: Sequence[str], known: Sequence[Option]) -> None:
  """Check that a command line has as many arguments as its command takes.

  Args:
    name: the command.
    usage: its arguments, as its help shows them.
    args: the command line, after `check_options`.
    known: arguments and options of the command.

  Raises:
    UsageError: there are too few or too many arguments.
  """
  arguments = [option for option in known if option.positional]
  has_list = any(argument.kind.endswith('...') for argument in arguments)
  lists = [option.name for option in known if option.kind.endswith('...') or option.name == 'rules']
  given, rest = [], iter(args)
  for arg in rest:
    if arg == '-' or not arg.startswith('-'):
      given.append(arg)
    elif '=' not in arg:
      if arg.removeprefix('--').replace('_', '-') in lists:
        return  # its values are not counted
      next(rest, None)
  required = [argument for argument in arguments
              if argument.default is None and not argument.kind.endswith('...')]
  if len(given) < len(required):
    raise UsageError(f'{name} takes {usage}, got {" ".join(given) or "no arguments"}')
  if len(given) > len(arguments) and not has_list:
    commas = any('separated by commas' in argument.text for argument in arguments)
    advice = '; separate several sources by commas' if commas else ''
    raise UsageError(f'{name} takes {usage}, got {len(given)} arguments: {" ".join(given)}{advice}')
