"""Prompts: validation of texts given to a model, and templates filled from the columns of data."""
from collections.abc import Mapping, Sequence
import numbers
import string
from typing import Any

import numpy as np

from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError, name_field
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.preparation.encode import encode_parts
from plm_jax.preparation.fill_middle import TextPart, arrange
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab, boundary_ids
from plm_jax.validation import find_text_problem, short_repr

Prompt = str | Sequence[int]
"""text, or its token ids without special tokens"""


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


def check_text_prompts(prompts: Sequence[Any], wanted: str = 'give one') -> None:
  """Check prompts as `check_prompts` does, where they may also be token ids, which are skipped."""
  check_prompts([prompt if isinstance(prompt, str) else '' for prompt in prompts], wanted)


BERT_TOKENS = {'[MASK]': 'mask', '[CLS]': 'cls', '[SEP]': 'sep'}
"""special tokens of a masked language model: name -> field of `Vocab`"""


def require_tokens(vocab: Vocab, roles: Mapping[str, str], otherwise: str) -> None:
  """Raise CheckpointError if a vocabulary lacks special tokens.

  Args:
    vocab: the tokenizer's vocabulary.
    roles: name of each token -> its field of the vocabulary.
    otherwise: what follows from a missing one.
  """
  if lacking := [name for name, role in roles.items() if getattr(vocab, role) < 0]:
    raise CheckpointError(f'the tokenizer has no {" and no ".join(lacking)}: {otherwise}')


def encoder_delimiters(vocab: Vocab, cls_last: bool) -> tuple[list[int], list[int]]:
  """Return the special tokens before and after a text of an encoder. cls_last: as XLNet's are."""
  return ([], [vocab.sep, vocab.cls]) if cls_last else ([vocab.cls], [vocab.sep])


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


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt, specials: bool = False) -> list[int]:
  """Return the ids of a prompt, which is text or ids already.

  Raises:
    ConfigError: the ids are none of the tokenizer. The model would read others in their place.
  """
  if isinstance(prompt, str):
    return tokenizer.encode(prompt, specials)
  size = tokenizer.vocab.size
  for number in prompt:
    is_id = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    if isinstance(prompt, bytes) or not is_id or not 0 <= number < size:
      raise ConfigError(f'a prompt is a text, or a list of token ids from 0 to {size - 1:,}: got '
                        f'{short_repr(prompt, 40)}')
  return list(prompt)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, start: bool) -> list[int]:
  """Encode a prompt, after the begin-of-text token if `start` is set or the prompt is empty.

  Raises:
    ConfigError: the prompt is empty, and the tokenizer has no begin-of-text token.
  """
  try:
    first = [boundary_ids(tokenizer.vocab)[0]]
  except ValueError:
    first = []
  ids = prompt_ids(tokenizer, prompt)
  if not ids and not first:
    raise ConfigError('the prompt is empty, and the tokenizer has no token that begins a text: '
                      'give a prompt')
  return first + ids if start or not ids else ids


def encode_hole(tokenizer: Tokenizer, prompt: Prompt, config: GenerationConfig) -> list[int]:
  """Encode the text around a hole, as in training (`preparation.fill_middle`).

  Raises:
    ConfigError: the tokenizer has no tokens for it, or the prompt has no hole, or several.
  """
  if not tokenizer.vocab.fills_middle:
    raise ConfigError('the tokenizer has no tokens for filling in the middle: expected a model '
                      f'that was trained with {name_field("data.prepare.fim_rate")}')
  texts = prompt.split(config.hole) if isinstance(prompt, str) else []
  if len(texts) != 2:
    raise ConfigError(f'expected a text with one hole {short_repr(config.hole)} in it, got '
                      f'{short_repr(prompt, 40)}')
  before, after = texts
  parts = arrange(TextPart(before), after, config.hole_order == 'spm', tokenizer.vocab)
  return encode_parts(parts, tokenizer)[0].tolist()


def pad_rows(
    rows: Sequence[Sequence[int]], length: int, pad: int, size: int = 0, front: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  """Pad sequences of ids -> (tokens, segments), both [rows, length].

  Args:
    rows: the sequences.
    length: their padded length.
    pad: id of padding; segments have 0 there.
    size: number of rows, of which the last may be empty; 0: as many as sequences.
    front: pad on the left.
  """
  tokens = np.full((size or len(rows), length), pad, np.int32)
  segments = np.zeros_like(tokens)
  for row, ids in enumerate(rows):
    begin = length - len(ids) if front else 0
    tokens[row, begin:begin + len(ids)], segments[row, begin:begin + len(ids)] = ids, 1
  return tokens, segments


def make_batch(
    rows: Sequence[Sequence[int]], length: int, pad: int, size: int = 0, cls_last: bool = False
) -> dict[str, np.ndarray]:
  """Make the inputs of a model of sequences; arguments as for `pad_rows` and `encoder_delimiters`.
  """
  tokens, segments = pad_rows(rows, length, pad, size)
  batch = {'tokens': tokens, 'segments': segments}
  if cls_last:  # XLNet's segment type of <cls>, the last token, is 2
    batch['types'] = np.zeros_like(segments)
    batch['types'][np.arange(len(segments)), (segments > 0).sum(1) - 1] = 2
  return batch
