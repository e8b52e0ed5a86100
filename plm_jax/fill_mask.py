"""Fills blanks: the quickest look at what an encoder has learned."""
from collections.abc import Sequence
import json
from typing import Any

from etils import epath
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import config as config_lib
from plm_jax import convert
from plm_jax.architectures.encoder import Encoder, WithHeads
from plm_jax.checkpoint import CheckpointError, restore_params
from plm_jax.config import ConfigError, Experiment
from plm_jax.data.windows import Windows
from plm_jax.layers.heads import MaskedTokens
from plm_jax.report import Blank
from plm_jax.tokenizers import Tokenizer, load

Candidates = list[tuple[str, float]]  # pieces and their probabilities, likeliest first


def fill(
    config: Experiment, params, tokenizer: Tokenizer, prompts: Sequence[str], top: int = 5) -> list[list[Candidates]]:
  """Prompts with [MASK] -> for each prompt, for each [MASK] in it, the `top` pieces with their probabilities.

  Raises ConfigError for a prompt without [MASK] or too long for the model.
  """
  rows = [encode(config, tokenizer, prompt) for prompt in prompts]
  # One compiled shape for all prompts of a call: a power of two that holds the longest.
  length = max(16, 1 << (max(map(len, rows)) - 1).bit_length())
  tokens = np.full((len(rows), length), tokenizer.vocab.pad, np.int32)
  segments = np.zeros_like(tokens)
  for number, row in enumerate(rows):
    tokens[number, :len(row)], segments[number, :len(row)] = row, 1
  length = min(length, config.model.max_length or length)
  batch = {'tokens': jnp.array(tokens[:, :length]), 'segments': jnp.array(segments[:, :length])}
  model = WithHeads(Encoder(config.model), {'mlm': MaskedTokens(config.model.block)})
  outputs: Any = jax.jit(lambda params, batch: model.apply({'params': params}, batch))(params, batch)
  # Rows of the table beyond the tokenizer's last piece are no answers.
  probabilities = np.asarray(jax.nn.softmax(outputs['mlm'][..., :tokenizer.vocab.size]))
  answers = []
  for number, row in enumerate(rows):
    blanks = [position for position, token in enumerate(row) if token == tokenizer.vocab.mask]
    answers.append([best(probabilities[number, position], tokenizer, top) for position in blanks])
  return answers


def load_run(folder: epath.PathLike):
  """The folder of a run, or another library's checkpoint -> (configuration, tokenizer, newest parameters).

  Of a checkpoint only the configuration's `model` means anything. Raises CheckpointError, ConvertError.
  """
  if convert.is_checkpoint(folder):
    imported = convert.load(folder, heads=('mlm',))
    if imported.missing or not imported.tokenizer:
      lacking = 'the masked language model head' if imported.missing else 'tokenizer'
      raise CheckpointError(f'{folder} has no {lacking}: blanks cannot be filled without it')
    return Experiment(epath.Path(folder).name, model=imported.config), imported.tokenizer, imported.params
  folder = epath.Path(folder)
  if not (folder / 'config.json').exists():
    raise CheckpointError(f'{folder} is not the folder of a run: it has no config.json')
  config = config_lib.from_json(json.loads((folder / 'config.json').read_text()))
  model = WithHeads(Encoder(config.model), config.objective.heads(config.model))
  ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), {'tokens': ids, 'segments': ids})
  return config, load(folder / 'tokenizer'), restore_params(folder / 'checkpoints', jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nn.unbox(shapes['params'])))


def examples(
    config: Experiment, prompts: Sequence[str], folder: epath.Path, tokenizer: Tokenizer, params,
    number: int = 6) -> list[Blank]:
  """The prompts, then held-out sentences of the records in `folder` with a hidden word; for the report."""
  asked = [(prompt, None) for prompt in prompts] + heldout_blanks(folder, config, tokenizer, number)
  answers = fill(config, params, tokenizer, [prompt for prompt, _ in asked]) if asked else []
  return [Blank(prompt, filled[0], truth) for (prompt, truth), filled in zip(asked, answers, strict=True)]


def heldout_blanks(folder, config: Experiment, tokenizer: Tokenizer, number: int) -> list[tuple[str, str]]:
  """Sentences of 8 to 32 tokens from the held-out split, each with one word of one token hidden."""
  longest = min(32, (config.model.max_length or 64) - 2)
  windows = Windows(folder, 'heldout', 64, 'document')
  if not len(windows):
    return []
  read = windows.read(np.unique(np.linspace(0, len(windows) - 1, 8 * number).astype(np.int64)))
  found, random = [], np.random.default_rng(config.seed)
  for tokens, sentences, words in zip(read['tokens'], read['sentences'], read['words'], strict=True):
    inside = sentences == 1
    ids, word = tokens[inside], words[inside]
    whole = np.flatnonzero(np.bincount(word)[word] == 1)
    whole = [place for place in whole if tokenizer.pieces[ids[place]].strip('▁').isalpha()]
    if len(ids) >= 8 and whole and len(found) < number:
      place = int(random.choice(whole))
      text = f'{tokenizer.decode(ids[:place])} [MASK] {tokenizer.decode(ids[place + 1:])}'.strip()
      # Counted anew: a decoded text need not come back as the same pieces.
      if len(tokenizer.encode(text, specials=True)) <= longest:
        found.append((text, tokenizer.pieces[ids[place]].strip('▁')))
  return found


def encode(config: Experiment, tokenizer: Tokenizer, prompt: str) -> list[int]:
  ids = [tokenizer.vocab.cls, *tokenizer.encode(prompt, specials=True), tokenizer.vocab.sep]
  if tokenizer.vocab.mask not in ids:
    raise ConfigError(f'there is no [MASK] in {prompt!r}: put one where a word is to be guessed')
  if config.model.max_length and len(ids) > config.model.max_length:
    raise ConfigError(f'the prompt has {len(ids)} tokens, the model takes {config.model.max_length}')
  return ids


def best(probabilities: np.ndarray, tokenizer: Tokenizer, top: int) -> Candidates:
  order = np.argsort(-probabilities, kind='stable')[:top]
  return [(tokenizer.pieces[i].lstrip('▁'), float(probabilities[i])) for i in order]
