"""What a command line says, on its way to a configuration: booleans, values that a command takes, what was typed."""
from collections.abc import Callable, Container, Iterable
import dataclasses
import functools
import inspect
import re
import shlex
import sys
import typing
from typing import Any

from plm_jax import checked
from plm_jax.checked import flag
from plm_jax.errors import ConfigError
from plm_jax.recipes import Recipe

UNPREFIXED = ('settings', 'reading')  # arguments of commands whose fields are options by their own names
SEED = '[0, 4294967295]'  # what jax.random.key and numpy take alike


def command(**limits: str) -> Callable[[Callable], Callable]:
  """Makes a subcommand, whose arguments are checked before it runs: numbers by `limits`, as those of
  `checked.Checked`."""
  def of(function):
    signature, kinds = inspect.signature(function), typing.get_type_hints(function)
    @functools.wraps(function)
    def run(*args, **kwargs):
      given = signature.bind(*args, **kwargs)
      given.apply_defaults()
      with checked.later(False):
        for name, value in given.arguments.items():
          if dataclasses.is_dataclass(value):
            checked.check(value, path='' if name in UNPREFIXED else name)
          else:
            positional = signature.parameters[name].default is inspect.Parameter.empty
            check_argument(name.upper() if positional else flag(name), value, kinds[name], limits.get(name))
        return function(*args, **kwargs)
    return run
  return of


# Options of a block that have moved to one of its parts -> where they are.
MOVED = {'activation': 'mlp.activation', 'gated': 'mlp.gated', 'mlp-bias': 'mlp.bias', 'mlp-dropout': 'mlp.dropout',
         'norm': 'norm.kind', 'norm-eps': 'norm.eps', 'bias': 'attention.bias', 'attention-bias': 'attention.bias',
         'attention-dropout': 'attention.dropout', 'logit-scale': 'attention.scale', 'position': 'attention.position',
         'init-std': 'init.std', 'out-std': 'init.out-std', 'fan-in': 'init.fan', 'fan-out': 'init.fan'}


def check_moved(args: Iterable[str]) -> None:
  """Raises ConfigError for an option of before that has another name now."""
  for arg in args:
    option = arg.partition('=')[0].replace('_', '-')
    block, dot, name = option.partition('.block.')
    first, _, rest = name.removeprefix('no-').partition('.')
    if option.startswith('--') and dot and first in MOVED and (not rest or first == 'position'):
      raise ConfigError(f'{option} is {block}.block.{MOVED[first]}{rest and f".{rest}"} now')


def check_argument(called: str, value: Any, kind: Any, limits: str | None) -> None:
  """Raises ConfigError that names the argument for a value that is not of its kind or within its limits, and for an
  empty path."""
  if called.isupper() and value == '':
    raise ConfigError(f'{called} is empty, expected a path or a name')
  checked.check_value(value, kind, limits, lambda path: path, called)


def normalise_booleans(args: Iterable[str], booleans: set[str]) -> list[str]:
  """Writes booleans among the arguments as --name=True or --name=False, however given: --name, --no-name, --name true,
  --name=."""
  found, rest = [], list(args)
  while rest:
    arg = rest.pop(0)
    name, equals, value = arg.partition('=')
    name = name.removeprefix('--').replace('_', '-')
    groups, dot, last = name.rpartition('.')
    positive = f'{groups}{dot}{last.removeprefix("no-")}'
    if arg.startswith('--') and name in booleans:
      if not equals:
        value = rest.pop(0) if rest and rest[0].lower() in ('true', 'false') else 'True'
      arg = f'--{name}={value.capitalize()}'
    elif arg.startswith('--') and positive in booleans and not equals:
      arg = f'--{positive}=False'
    found.append(arg)
  return found


def booleans_of(config: Any, path: str = '') -> set[str]:
  """Returns the options of a configuration that are True or False, by the names of the command line."""
  if not dataclasses.is_dataclass(config):
    inner = enumerate(config) if isinstance(config, tuple) else ()
    return {name for number, item in inner if dataclasses.is_dataclass(item)
            for name in booleans_of(item, f'{path}{number}.')}
  found = set()
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    name = path + field.name.replace('_', '-')
    found |= {name} if isinstance(value, bool) else booleans_of(value, f'{name}.')
  return found


def value_of(name: str, args: list[str]) -> str:
  """Returns what an option is given, '' where it is not there."""
  pairs = zip(args, [*args, ''][1:], strict=True)
  return next((arg.partition('=')[2] or following for arg, following in pairs
               if arg.startswith(f'{name}=') or arg == name), '')


def taken(name: str, args: Iterable[str]) -> tuple[str, list[str]]:
  """Takes an option out of the arguments -> its value, '' where it is not there, and the others."""
  args = list(args)
  value = value_of(name, args)
  at = next((n for n, arg in enumerate(args) if arg == name or arg.startswith(f'{name}=')), None)
  if at is not None:
    del args[at:at + (1 if '=' in args[at] else 2)]
  return value, args


def beam_joined(args: Iterable[str], own: Container[str]) -> list[str]:
  """Makes one argument of everything behind --beam: options of Beam, not of here.

  own: fields whose options stand in front of it. Raises ConfigError for one of these behind it, and for no --runner.
  """
  args = list(args)
  if '--beam' not in args:
    return args
  at = args.index('--beam')
  behind = args[at + 1:]
  for arg in behind:
    if re.sub('^--(no-)?', '', (name := arg.partition('=')[0])).replace('-', '_') in own:
      raise ConfigError(f'{name} stands behind --beam, where the options of Beam are: put it in front')
  if not value_of('--runner', behind):
    raise ConfigError('--beam is followed by options of Beam, expected --runner=DirectRunner, FlinkRunner or another, '
                      f'got {" ".join(behind) or "none"}')
  return [*args[:at], f'--beam={shlex.join(behind)}']


def program(recipe: Recipe) -> str:
  """Returns what was typed to start a recipe, or what can be."""
  spec = getattr(sys.modules.get('__main__'), '__spec__', None)
  package, _, door = (spec.name if spec else '').rpartition('.')
  if package != 'experiments' or door not in (recipe.name, recipe.family):
    return f'python -m plm_jax train {recipe.name}'
  return f'python -m experiments.{door}' + (f' --size={recipe.size}' if door != recipe.name else '')
