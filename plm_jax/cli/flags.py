"""Options of the command line for the fields that messages name."""
from collections.abc import Container
import contextlib
import functools

from plm_jax import errors

SECTIONS = '', 'data.', 'data.prepare.', 'model.'
"""sections of a configuration in which a field without a path is searched, in this order"""


def flag_name(path: str) -> str:
  """Return a field's name on the command line."""
  return f'--{path.replace("_", "-")}' if path else 'the options'


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
