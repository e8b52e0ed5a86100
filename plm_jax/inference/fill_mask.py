"""Fill-mask: predict the tokens at the [MASK] positions of an encoder's prompts."""
from __future__ import annotations

from collections.abc import Sequence
import functools
import itertools
from typing import TYPE_CHECKING, Any

from etils import epath
import flax.linen as nn
import jax
import numpy as np

from plm_jax import unicode_words
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.data.bucketing import next_power_of_two
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference.prompts import (
  BERT_TOKENS,
  check_prompts,
  encoder_delimiters,
  make_batch,
  require_tokens,
)
from plm_jax.inference.samples import FillMaskSample
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.loaded_model import LoadedModel, has_shifted_targets
from plm_jax.objectives.masked_diffusion import suppress_mask
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import boundary_ids
from plm_jax.tokenizers.wordpiece import remove_chinese_spaces

if TYPE_CHECKING:
  from plm_jax.data.windows import Windows

SENTENCE_WINDOW = 256
"""tokens of the windows that held-out sentences are taken from; few sentences are longer"""
Candidates = list[tuple[str, float]]
"""(token, probability), most likely first"""


def fill(trained: LoadedModel, prompts: Sequence[str], top: int = 5) -> list[list[Candidates]]:
  """Predict the `top` tokens for each [MASK] of each prompt, with their probabilities.

  Raises:
    CheckpointError: the model has no masked language modeling head, or its tokenizer lacks [MASK],
      [CLS] or [SEP].
    ConfigError: there is no prompt, or one has no [MASK] or is too long for the model.
  """
  config, tokenizer = trained.model, trained.tokenizer
  if 'mlm' not in trained.heads or not tokenizer:
    if trained.lm_head_name and tokenizer:
      does = 'generates texts' if config.kind == 'encoder-decoder' else 'continues texts'
      raise CheckpointError(f'a {trained.family} has no [MASK] and {does}: '
                            'use `python -m plm_jax generate`')
    lacking = 'tokenizer' if 'mlm' in trained.heads else 'masked language model head'
    raise CheckpointError(f'the model has no {lacking}: blanks cannot be filled without it')
  require_tokens(tokenizer.vocab, BERT_TOKENS, 'blanks cannot be filled without it')
  check_prompts(prompts, 'give a sentence with a [MASK] in place of the word to predict')
  if top < 1:
    raise ConfigError(f'top is 1 or more, got {top}')

  # Pad to powers of two, such that one compiled shape serves many calls.
  rows = [encode_prompt(config, tokenizer, prompt) for prompt in prompts]
  length, size = max(16, next_power_of_two(max(map(len, rows)))), next_power_of_two(len(rows))
  batch = make_batch(
      rows, min(length, config.max_length or length), max(tokenizer.vocab.pad, 0), size,
      config.cls_last)

  # Positions of the masks, or of the tokens before them where the model predicts from there.
  blanks = [np.flatnonzero(np.array(row) == tokenizer.vocab.mask) for row in rows]
  positions = np.zeros((size, next_power_of_two(max(map(len, blanks)))), np.int32)
  for number, some in enumerate(blanks):
    positions[number, :len(some)] = some
    positions[number] -= has_shifted_targets(config)

  batch['positions'] = positions
  params = trained.device_params('backbone', 'heads_mlm')
  # Masked diffusion does not train the logit of [MASK].
  suppressed = tokenizer.vocab.mask if trained.generates_by_unmasking else None
  probabilities = np.asarray(predict_masks(
      config, trained.heads['mlm'], tokenizer.vocab.size, suppressed, params,
      jax.device_put(batch)))
  return [[top_candidates(row, tokenizer, top) for row in check_finite(found[:len(some)])]
          for found, some in zip(probabilities, blanks, strict=False)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def predict_masks(config: Any, head: nn.Module, pieces: int, suppressed: int | None, params: Any,
                  batch: Any) -> jax.Array:
  """Compute token probabilities [batch, masks, pieces] at the `positions` [batch, masks].

  suppressed: id that is never predicted; None: none.
  """
  outputs: Any = ModelWithHeads(config.backbone(), {'mlm': head}).apply({'params': params}, batch)
  # The embedding table may have more rows than the tokenizer has tokens.
  logits = outputs['mlm'][..., :pieces]
  return jax.nn.softmax(logits if suppressed is None else suppress_mask(logits, suppressed))


def make_samples(
    trained: LoadedModel, prompts: Sequence[str], folder: epath.Path, seed: int = 0,
    number: int = 20,
) -> list[FillMaskSample]:
  """Fill the prompts, and held-out sentences of the records in `folder`; for the report."""
  pairs = [(prompt, None) for prompt in prompts]
  pairs += sample_heldout_blanks(trained, folder, seed, number)
  if not pairs:
    return []
  filled = fill(trained, [prompt for prompt, _ in pairs])
  return [FillMaskSample(prompt, masks[0], truth)
          for (prompt, truth), masks in zip(pairs, filled, strict=True)]


def sample_heldout_blanks(
    trained: LoadedModel, folder: epath.PathLike, seed: int, number: int,
) -> list[tuple[str, str]]:
  """Sample held-out sentences with one masked word -> (sentence with [MASK], word).

  Without held-out text, they are sentences of the training text.

  Sentences have 8 to 32 tokens, and the masked word is a single token. Sentences without unknown
  tokens come first.
  """
  tokenizer: Any = trained.tokenizer
  longest = min(32, (trained.model.max_length or 64) - 2)
  from plm_jax.data.records import read_meta
  from plm_jax.data.windows import Windows
  windows = Windows(folder, read_meta(folder).evaluation_split, SENTENCE_WINDOW, 'document')
  if not len(windows):
    return []
  found, random = [], np.random.default_rng(seed)
  for ids, word in select_sentences(windows, 8 * number, longest, random, tokenizer.vocab.unk):
    # Tokens that are a whole word.
    places = [place for place in np.flatnonzero(np.bincount(word)[word] == 1)
              if unicode_words.is_word(tokenizer.pieces[ids[place]].strip('▁'))]
    if len(ids) < 8 or not places or len(found) >= number:
      continue
    place = int(random.choice(places))
    before, behind = tokenizer.decode(ids[:place]), tokenizer.decode(ids[place + 1:])
    space = '' if tokenizer.keeps_leading_space or behind[:1] in set('.,;:!?') else ' '
    text = remove_chinese_spaces(f'{before} [MASK]{space}{behind}'.strip())
    # Count tokens again: a decoded text may be encoded as other tokens.
    if len(tokenizer.encode(text, specials=True)) <= longest:
      found.append((text, tokenizer.pieces[ids[place]].strip('▁')))
  return found


def select_sentences(
    windows: Windows, most: int, longest: int, random: np.random.Generator, unknown: int,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Return (ids, word numbers) of complete sentences of at most `longest` tokens.

  The first sentence of each of `most` windows comes first, then the second ones, and so on.
  Sentences with the `unknown` token come last.
  """
  numbers = np.unique(np.linspace(0, len(windows) - 1, most).astype(np.int64))
  read, before = windows.read(numbers), windows.read(np.maximum(numbers - 1, 0))
  # A window that is full of one sentence may have the end of that sentence in the next window.
  same_document = before['document'] == read['document']
  cut = (before['sentences'] == 1).all(1) & same_document & (numbers > 0)
  sentences: list[list[tuple[np.ndarray, np.ndarray]]] = []
  for tokens, of, words, is_cut in zip(
      read['tokens'], read['sentences'], read['words'], cut, strict=True):
    found = []
    for sentence in random.permutation(np.arange(1 + is_cut, of.max() + 1)):
      inside = of == sentence
      if inside.sum() <= longest:
        found.append((tokens[inside], words[inside]))
    sentences.append(found)
  turns = itertools.zip_longest(*sentences)
  mixed = filter(None, itertools.chain.from_iterable(turns))
  return sorted(mixed, key=lambda sentence: bool((sentence[0] == unknown).any()))


def encode_prompt(config: Any, tokenizer: Tokenizer, prompt: str) -> list[int]:
  """Encode a prompt with its special tokens.

  Raises:
    ConfigError: the prompt has no [MASK], or is too long for the model.
  """
  vocab = tokenizer.vocab
  text = tokenizer.encode(prompt.replace('[MASK]', tokenizer.pieces[vocab.mask]), specials=True)
  before, after = encoder_delimiters(vocab, config.cls_last)
  if has_shifted_targets(config):  # GPT-BERT: no token at the end
    before, after = [boundary_ids(vocab)[0]], []
  ids = before + text + after
  if vocab.mask not in ids:
    raise ConfigError(f'there is no [MASK] in {prompt!r}: put one in place of the word to predict')
  if config.max_length and len(ids) > config.max_length:
    raise ConfigError(f'the prompt has {len(ids)} tokens, the model takes {config.max_length}')
  return ids


def top_candidates(probabilities: np.ndarray, tokenizer: Tokenizer, top: int) -> Candidates:
  """Return the `top` most likely tokens, with their probabilities, from `probabilities` [vocab]."""
  order = np.argsort(-probabilities, kind='stable')[:top]
  return [(tokenizer.pieces[token].lstrip('▁'), float(probabilities[token])) for token in order]
