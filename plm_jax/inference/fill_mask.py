"""Fills blanks: the quickest look at what an encoder has learned."""
from collections.abc import Sequence
import re
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config import ConfigError
from plm_jax.data.windows import Windows
from plm_jax.inference.loading import Trained
from plm_jax.inference.prompts import check
from plm_jax.inference.samples import Blank
from plm_jax.layers.heads import WithHeads
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.wordpiece import CJK, MARKS
from plm_jax.training.checkpoint import CheckpointError

BESIDE_CHINESE = re.compile(f'(?<=[{CJK}{MARKS}]) (?=\\[MASK\\])|(?<=\\[MASK\\]) (?=[{CJK}{MARKS}])')
Candidates = list[tuple[str, float]]  # pieces and their probabilities, likeliest first


def fill(trained: Trained, prompts: Sequence[str], top: int = 5) -> list[list[Candidates]]:
  """Prompts with [MASK] -> for each prompt, for each [MASK] in it, the `top` pieces with their probabilities.

  Raises CheckpointError for a model without the masked language model head or a tokenizer with [MASK] and what stands
  around texts, ConfigError for no prompt, and for one without [MASK] or too long for the model.
  """
  config, tokenizer = trained.model, trained.tokenizer
  if 'mlm' not in trained.heads or not tokenizer:
    if 'lm' in trained.heads and tokenizer:
      does = 'answers texts' if trained.model.kind == 'encoder-decoder' else 'goes on with texts'
      raise CheckpointError(f'a {trained.family} has no [MASK] and {does}: `python -m plm_jax generate` has it write')
    lacking = 'tokenizer' if 'mlm' in trained.heads else 'masked language model head'
    raise CheckpointError(f'the model has no {lacking}: blanks cannot be filled without it')
  if lacking := [f'[{role.upper()}]' for role in ('mask', 'cls', 'sep') if getattr(tokenizer.vocab, role) < 0]:
    raise CheckpointError(f'the tokenizer has no {" and no ".join(lacking)}: blanks cannot be filled without it')
  check(prompts, 'give a sentence with a [MASK] where a word is to be guessed')
  if top < 1:
    raise ConfigError(f'top is 1 or more, got {top}')
  rows = [encode(config, tokenizer, prompt) for prompt in prompts]
  # One compiled shape for all prompts of a call: a power of two that holds the longest.
  length = max(16, 1 << (max(map(len, rows)) - 1).bit_length())
  tokens = np.full((len(rows), length), max(tokenizer.vocab.pad, 0), np.int32)
  segments = np.zeros_like(tokens)
  for number, row in enumerate(rows):
    tokens[number, :len(row)], segments[number, :len(row)] = row, 1
  length = min(length, config.max_length or length)
  blanks = [[position for position, token in enumerate(row) if token == tokenizer.vocab.mask] for row in rows]
  most = max(map(len, blanks))
  batch = {'tokens': jnp.array(tokens[:, :length]), 'segments': jnp.array(segments[:, :length]),
           'positions': jnp.array([some + some[:1] * (most - len(some)) for some in blanks], jnp.int32)}
  model = WithHeads(config.backbone(), {'mlm': trained.heads['mlm']})
  params = {name: trained.params[name] for name in ('backbone', 'heads_mlm')}
  outputs: Any = jax.jit(lambda params, batch: model.apply({'params': params}, batch))(params, batch)
  # Rows of the table beyond the tokenizer's last piece are no answers.
  probabilities = np.asarray(jax.nn.softmax(outputs['mlm'][..., :tokenizer.vocab.size]))
  return [[best(probabilities[number, blank], tokenizer, top) for blank in range(len(some))]
          for number, some in enumerate(blanks)]


def examples(
    trained: Trained, prompts: Sequence[str], folder: epath.Path, seed: int = 0, number: int = 6) -> list[Blank]:
  """Shows the prompts, then held-out sentences of the records in `folder` with a hidden word; for the report."""
  asked = [(prompt, None) for prompt in prompts] + heldout_blanks(trained, folder, seed, number)
  answers = fill(trained, [prompt for prompt, _ in asked]) if asked else []
  return [Blank(prompt, filled[0], truth) for (prompt, truth), filled in zip(asked, answers, strict=True)]


def heldout_blanks(trained: Trained, folder: epath.PathLike, seed: int, number: int) -> list[tuple[str, str]]:
  """Draws sentences of 8 to 32 tokens from the held-out split, each with one word of one token hidden."""
  tokenizer: Any = trained.tokenizer
  longest = min(32, (trained.model.max_length or 64) - 2)
  windows = Windows(folder, 'heldout', 64, 'document')
  if not len(windows):
    return []
  read = windows.read(np.unique(np.linspace(0, len(windows) - 1, 8 * number).astype(np.int64)))
  found, random = [], np.random.default_rng(seed)
  for tokens, sentences, words in zip(read['tokens'], read['sentences'], read['words'], strict=True):
    inside = sentences == 1
    # A window may begin inside a word.
    inside &= np.cumsum(inside & tokenizer.starts_word[tokens]) > 0
    ids, word = tokens[inside], words[inside]
    whole = np.flatnonzero(np.bincount(word)[word] == 1)
    whole = [place for place in whole if tokenizer.pieces[ids[place]].strip('▁').isalpha()]
    if len(ids) >= 8 and whole and len(found) < number:
      place = int(random.choice(whole))
      space = '' if tokenizer.spaced else ' '
      text = f'{tokenizer.decode(ids[:place])} [MASK]{space}{tokenizer.decode(ids[place + 1:])}'.strip()
      text = BESIDE_CHINESE.sub('', text)
      # Counted anew: a decoded text need not come back as the same pieces.
      if len(tokenizer.encode(text, specials=True)) <= longest:
        found.append((text, tokenizer.pieces[ids[place]].strip('▁')))
  return found


def encode(config: Any, tokenizer: Tokenizer, prompt: str) -> list[int]:
  """Encodes a prompt with its special tokens. Raises ConfigError for one without [MASK], or that is too long for the
  model."""
  vocab = tokenizer.vocab
  text = tokenizer.encode(prompt.replace('[MASK]', tokenizer.pieces[vocab.mask]), specials=True)
  # XLNet's rows end with [CLS].
  ids = [*text, vocab.sep, vocab.cls] if config.cls_last else [vocab.cls, *text, vocab.sep]
  if vocab.mask not in ids:
    raise ConfigError(f'there is no [MASK] in {prompt!r}: put one where a word is to be guessed')
  if config.max_length and len(ids) > config.max_length:
    raise ConfigError(f'the prompt has {len(ids)} tokens, the model takes {config.max_length}')
  return ids


def best(probabilities: np.ndarray, tokenizer: Tokenizer, top: int) -> Candidates:
  """Returns the `top` likeliest pieces with their probabilities, of those of all [V], best first."""
  order = np.argsort(-probabilities, kind='stable')[:top]
  return [(tokenizer.pieces[i].lstrip('▁'), float(probabilities[i])) for i in order]
