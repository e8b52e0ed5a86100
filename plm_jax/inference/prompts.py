"""Prompts: validation of texts given to a model, and templates filled from the columns of data."""
from collections.abc import Mapping, Sequence
import string
from typing import Any

from plm_jax.errors import ConfigError
from plm_jax.tokenizers.contract import Vocab
from plm_jax.validation import find_text_problem, short_repr


def check_prompts(prompts: Sequence[str], wanted: str = 'give one') -> None:
  """Check that there are prompts and that tokenizers can read them.

  Raises:
    ConfigError: there is no prompt (the message ends with `wanted`), or one is unreadable.
  """
  if not prompts:
    raise ConfigError(f'there is no prompt: {wanted}')
  for prompt in prompts:
    if wrong := find_text_problem(prompt):
      raise ConfigError(f'the prompt {short_repr(prompt, 40)} {wrong}')


BERT_TOKENS = {'[MASK]': 'mask', '[CLS]': 'cls', '[SEP]': 'sep'}
"""special tokens of a masked language model: name -> field of `Vocab`"""


def missing_tokens(vocab: Vocab, roles: Mapping[str, str]) -> list[str]:
  """Return the names of the special tokens that a vocabulary lacks. roles: name -> field."""
  return [name for name, role in roles.items() if getattr(vocab, role) < 0]


def fill_template(template: str, columns: Mapping[str, Any]) -> str:
  """Fill a template with the columns that it names in braces; {{ and }} are literal braces.

  Unlike str.format, this accepts neither attributes or items of a column nor format specifications.

  Raises:
    KeyError: a named column does not exist.
    ConfigError: the template is malformed.
  """
  parts = []
  try:
    for text, name, form, conversion in string.Formatter().parse(template):
      parts.append(text)
      if name is None:
        continue
      if form or conversion or (name not in columns and not name.isidentifier()):
        field = name
        if conversion:
          field += f'!{conversion}'
        if form:
          field += f':{form}'
        raise ValueError(f'{short_repr(f"{{{field}}}")} is not the name of a column')
      parts.append(str(columns[name]))
  except ValueError as error:
    raise ConfigError(f'the template {short_repr(template)} cannot be filled: {error}') from error
  return ''.join(parts)
