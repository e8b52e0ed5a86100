"""What people give a model to read: texts, and templates that rows of data fill."""
from collections.abc import Mapping, Sequence
import string
from typing import Any

from plm_jax.checked import shortened, unreadable
from plm_jax.errors import ConfigError


def check(prompts: Sequence[str], wanted: str = 'give one') -> None:
  """Raises ConfigError where there is no prompt, with what is `wanted`, or one that tokenizers cannot read."""
  if not prompts:
    raise ConfigError(f'there is no prompt: {wanted}')
  for prompt in prompts:
    if wrong := unreadable(prompt):
      raise ConfigError(f'the prompt {shortened(prompt, 40)} {wrong}')


def filled(template: str, columns: Mapping[str, Any]) -> str:
  """Fills the template with the columns that it names in braces, {{ and }} for braces.

  Raises KeyError for a column that is not there, ConfigError for what is no template: other than str.format this one
  looks into no column, and formats none.
  """
  parts = []
  try:
    for text, name, form, conversion in string.Formatter().parse(template):
      parts.append(text)
      if name is None:
        continue
      if form or conversion or (name not in columns and not name.isidentifier()):
        whole = name + (f'!{conversion}' if conversion else '') + (f':{form}' if form else '')
        raise ValueError(f'{shortened(f"{{{whole}}}")} is not the name of a column')
      parts.append(str(columns[name]))
  except ValueError as error:
    raise ConfigError(f'the template {shortened(template)} cannot be filled: {error}') from error
  return ''.join(parts)
