"""Options of the command line: their forms, and options for the fields that messages name."""
from collections.abc import Container, Iterable, Mapping
import contextlib
import functools

from plm_jax import errors

SECTIONS = '', 'data.', 'data.prepare.', 'model.'
"""sections of a configuration in which a field without a path is searched, in this order"""


def flag_name(path: str) -> str:
  """Return a field's name on the command line."""
  return f'--{path.replace("_", "-")}' if path else 'the options'


def normalize(args: Iterable[str], kinds: Mapping[str, str]) -> list[str]:
  """Write booleans as --name=True or --name=False, and empty lists as options without values.

  A boolean may be given as --name, --no-name, --name true, or --name=true; an empty list as none or
  an empty value.

  >>> normalize(['--a', '--no-b', '--c=none', '--c', 'none', '--d', 'none'],
  ...           {'a': 'BOOL', 'b': 'BOOL', 'c': 'INT...', 'd': 'TEXT'})
  ['--a=True', '--b=False', '--c', '--c', '--d', 'none']

  Args:
    args: the arguments.
    kinds: values of the options of the command, as `signatures.Option.kind`.
  """
  found, rest = [], list(args)
  while rest:
    arg = rest.pop(0)
    name, equals, value = arg.partition('=')
    option = name.removeprefix('--').replace('_', '-')
    section, dot, field = option.rpartition('.')
    positive, kind = f'{section}{dot}{field.removeprefix("no-")}', kinds.get(option, '')
    if not arg.startswith('--'):
      pass
    elif kind == 'BOOL':
      if not equals:
        value = rest.pop(0) if rest and rest[0].lower() in ('true', 'false') else 'True'
      arg = f'--{option}={value.capitalize()}'
    elif not equals and kinds.get(positive) == 'BOOL':
      arg = f'--{positive}=False'
    elif kind.endswith('...') and equals and value in ('', 'none'):
      arg = name
    elif kind.endswith('...') and rest[:1] == ['none'] and not equals and (
        all(one.startswith('--') for one in rest[1:2])):
      rest.pop(0)
    found.append(arg)
  return found


def write_flags(text: str, paths: Container[str] | None = None) -> str:
  """Write the fields in a message as options of a command.

  >>> advice = errors.add_advice(f', or give {errors.name_field("on_error")}=skip')
  >>> write_flags(f'no text{advice}', {'data.on_error'}), write_flags(f'no text{advice}', {})
  ('no text, or give --data.on-error=skip', 'no text')

  Args:
    text: the message.
    paths: fields that the command has; None: any.
  """
  def find_path(field):
    found = (section + field for section in SECTIONS if paths is None or section + field in paths)
    return next(found, 'model.vocab' if field == 'vocab' else '')  # all architectures have one
  return errors.spell_fields(text, lambda field: flag_name(find_path(field) or field), find_path)


def name_flags(paths: Container[str] | None = None) -> contextlib.AbstractContextManager[None]:
  """Make errors, warnings and lines of the code inside name options of a command.

  Args:
    paths: fields that the command has; None: any.
  """
  return errors.spell_messages(functools.partial(write_flags, paths=paths))
