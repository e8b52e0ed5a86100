"""Suggest commands and options for names that do not exist."""
from collections.abc import Collection, Mapping, Sequence
import difflib
import itertools

from plm_jax.cli import catalog
from plm_jax.cli.signatures import Option
from plm_jax.errors import UsageError
from plm_jax.validation import short_repr

SHOWN = 3
"""largest number of suggestions"""
NUMBERS = {'INT': (int, 'a whole number'), 'FLOAT': (float, 'a number')}
"""how values of options are parsed, and described in messages"""


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


def check_options(args: Sequence[str], known: Mapping[str, str], help_command: str) -> None:
  """Check that all options of a command line exist, and that their values are of their kinds.

  Args:
    args: the command line, after `flags.normalize`.
    known: options without dashes, with their values as `signatures.Option.kind`.
    help_command: command that prints all options.

  Raises:
    UsageError: an option that does not exist; the message suggests others. Or a wrong value.
  """
  for place, arg in enumerate(args, 1):
    name, equals, value = arg.removeprefix('--').partition('=')
    name = name.replace('_', '-')
    if arg == '--':
      return
    if not arg.startswith('--'):
      continue
    if name in known:
      others = itertools.takewhile(lambda other: not other.startswith('--'), args[place:])
      check_values(name, known[name], [value] if equals else list(others))
      continue
    found = [f'--{one}' for one in suggest_option(name, known)]
    advice = f'did you mean {" or ".join(found)}? ' if found else ''
    raise UsageError(f'there is no option --{name}: {advice}`{help_command}` prints all options')


def check_values(name: str, kind: str, values: Sequence[str]) -> None:
  """Raise UsageError for an option without a value, or with one that is no number or no choice.

  Args:
    name: the option, without dashes.
    kind: its values, as `signatures.Option.kind`.
    values: what follows it; only the first belongs to an option of one value.
  """
  parse, described = NUMBERS.get(kind.removesuffix('...'), (str, 'a value'))
  choices = kind.removesuffix('...').split(',')
  if len(choices) > 1 and choices[-1] != 'TEXT':
    parse, described = choices.index, f'{", ".join(choices[:-1])} or {choices[-1]}'
  if not values and not kind.endswith('...'):
    raise UsageError(f'--{name} needs {described}: --{name}=...')
  for value in values if kind.endswith('...') else values[:1]:
    try:
      parse(value)
    except ValueError:
      if value != 'None':
        raise UsageError(f'--{name} is {described}, got {short_repr(value)}') from None


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
