"""Special tokens and generation settings in transformers' config.json and generation_config.json.

What an export states comes from the tokenizer that the model was trained with, by the functions
that lay out its training sequences (`objectives.clm.boundaries`, `objectives.seq2seq.delimiters`).
So transformers generates the same tokens.
"""
from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from etils import epath

from plm_jax.conversion.files import read_json
from plm_jax.models.rules import ConvertError
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import (
  Vocab,
  abbreviate,
  boundary_ids,
  delimiters,
  end_of_text_id,
  read_config,
)

FILE = 'generation_config.json'
TextFrame = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""special tokens around texts: ids before the first text, between two, and after the last"""
END_TOKEN_KEYS = ('eos_token', 'eot_token', 'eom_token')
"""keys of tokenizer_config.json for the tokens that end a text, a turn, a message"""
GENERATIVE_KINDS = ('decoder', 'infilling', 'encoder-decoder')


def special_ids(kind: str, vocab: Vocab) -> dict[str, int | None]:
  """Return the ids that a model of this kind states about its tokenizer, such as `pad_token_id`.

  Args:
    kind: `config.kind` of the backbone.
    vocab: of the tokenizer that trained the model.

  Returns:
    Attribute of config.json -> id, or None where the tokenizer has no such token. The ids of tokens
    that generation forces at the first or last position are None, because models trained here force
    none. Empty for a model that does not generate, and for a tokenizer without a token that ends a
    text.
  """
  try:
    first, end = boundary_ids(vocab)
    ids = {'pad': vocab.pad, 'bos': first, 'eos': end}
    if kind == 'encoder-decoder':
      before, after, start = delimiters(vocab)
      ids |= {'bos': before[0] if before else vocab.bos, 'eos': after[0], 'decoder_start': start,
              'forced_bos': -1, 'forced_eos': -1}
  except ValueError:
    return {}
  if kind == 'infilling':
    ids = {'pad': vocab.pad, 'bos': vocab.cls, 'eos': end_of_text_id(vocab), 'sop': vocab.sop,
           'eop': vocab.eop, 'gmask': vocab.gmask, 'smask': vocab.smask, 'mask': vocab.mask}
  if kind not in GENERATIVE_KINDS:
    return {}
  return {f'{role}_token_id': number if number >= 0 else None for role, number in ids.items()}


def text_frame(kind: str, vocab: Vocab) -> TextFrame | None:
  """Return the special tokens around texts as sequences have them in pre-training.

  A decoder's text has no end token, so that generation continues it; the end of a complete text is
  predicted.

  Returns:
    None for a model that does not generate, and for a tokenizer without these tokens.
  """
  try:
    first, end = boundary_ids(vocab)
    if kind == 'encoder-decoder':
      before, after, _ = delimiters(vocab)
      return before, (after[0], after[0]) if before else (after[0],), after
  except ValueError:
    return None
  if kind == 'infilling':
    end = end_of_text_id(vocab)
    return (vocab.cls,), (end,), (end,)
  if kind == 'decoder':
    return (first,), (first,), ()
  return None


def build_generation_config(
    hf_config: Mapping[str, Any], vocab: Vocab, rows: int,
) -> dict[str, Any]:
  """Return the contents of generation_config.json for a model trained here.

  Args:
    hf_config: contents of its config.json.
    vocab: of its tokenizer.
    rows: of its embedding table. Rows without a token are suppressed in generation, as they are
      here.
  """
  roles = ('bos', 'eos', 'pad', 'decoder_start', 'forced_bos', 'forced_eos')
  names = [f'{role}_token_id' for role in roles]
  settings = {name: hf_config[name] for name in names if name in hf_config}
  if rows > vocab.size:
    settings['suppress_tokens'] = list(range(vocab.size, rows))
  return settings


def read_generation_config(folder: pathlib.Path) -> dict[str, Any]:
  """Read generation_config.json of a checkpoint; {} without one. Raises ConvertError."""
  return read_json(folder / FILE) if (folder / FILE).exists() else {}


def end_ids(
    folder: pathlib.Path, hf_config: Mapping[str, Any], generation: Mapping[str, Any],
    tokenizer: Tokenizer | None,
) -> tuple[int, ...]:
  """Return the ids of all tokens that end a text according to a checkpoint's files, ascending.

  Both configurations may state one id or several, and tokenizer_config.json may name an end of turn
  that neither has. Ids that the tokenizer does not have, which are defaults of other models, are
  left out.

  Args:
    folder: of the checkpoint.
    hf_config: contents of config.json.
    generation: contents of generation_config.json.
    tokenizer: of the checkpoint.

  Returns:
    () where no file states an end.

  Raises:
    ConvertError: for an eos_token_id that is no id.
  """
  found: set[int] = set()
  for name, contents in ((FILE, generation), ('config.json', hf_config)):
    given = contents.get('eos_token_id')
    value = given if isinstance(given, list) else [given]
    for one in value:
      if one is None:
        continue
      if type(one) is not int or one < 0:
        raise ConvertError(f'{folder / name}: eos_token_id is {abbreviate(value)}, expected an id '
                           f'or a list of ids, got {abbreviate(one)} among them')
      found.add(one)
  if tokenizer:
    contents = read_config(epath.Path(folder))
    for key in END_TOKEN_KEYS:
      name = contents.get(key)
      name = name.get('content') if isinstance(name, dict) else name
      if name in tokenizer.pieces:
        found.add(tokenizer.pieces.index(name))
    found = {one for one in found if one < len(tokenizer.pieces)}
  return tuple(sorted(found))
