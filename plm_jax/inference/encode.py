"""Text embeddings: hidden states of any layer, pooled into one vector per text or not."""
from collections.abc import Iterator, Sequence
import dataclasses
import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import progress, truncation
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.data.bucketing import split_by_length
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference.prompts import (
  Prompt,
  check_text_prompts,
  encode_prompt,
  encoder_delimiters,
  make_batch,
  prompt_ids,
)
from plm_jax.layers.pooling import pool
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tasks.document_windows import WindowPooling, combine_windows, window_starts
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import delimiters
from plm_jax.truncation import Truncation
from plm_jax.validation import short_repr

Pooling = Literal['own', 'mean', 'max', 'first', 'last', 'mean_sqrt', 'weighted_mean', 'none']

CPU_BATCH_TOKENS = 2048
"""maximum number of tokens per batch on a CPU"""
CPU_ATTENTION_SCORES = 1 << 21
"""maximum number of attention scores per layer and batch on a CPU: 8 MiB; more in wide models"""


def encode(
    trained: LoadedModel, texts: Sequence[Prompt], layer: int = -1, pooling: Pooling = 'mean',
    cut: bool = False, tokens: int = 8192, windows: WindowPooling = 'off', stride: int = 0,
) -> np.ndarray | list[np.ndarray]:
  """Encode texts as vectors; of an encoder-decoder, the encoder is used.

  Texts of similar length go through the model together, in few shapes to limit compilation. Padding
  does not affect the vectors.

  Args:
    trained: any model with a tokenizer.
    texts: texts, or their ids. Special tokens are added as in training.
    layer: 0: the embeddings; k: the output of layer k; -1: the last layer, which heads read (with
      its final norm in a pre-norm model); -2: the layer before it, as in transformers'
      `hidden_states`.
    pooling: how token vectors become one vector, special tokens included (see `layers.pooling`);
      none: one vector per token; own: the mean (`plm_jax.encode` uses the pooling that a
      model has learned).
    cut: truncate texts that are too long at their end; otherwise they are refused.
    tokens: maximum number of tokens per batch, padding included; on a CPU at most 2,048,
      and fewer of long texts (`split_rows`).
    windows: for a text that is too long, the mean or the maximum of the vectors of its windows.
    stride: tokens between the starts of windows; 0: three quarters of a window.

  Returns:
    float32 [texts, hidden]; with pooling 'none' one array [tokens, hidden] per text.

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: there is no text, a text is empty or too long, or the layer does not exist.
  """
  if trained.model.kind == 'recurrent':
    from plm_jax.inference import elmo
    return elmo.encode_texts(trained, [str(text) for text in texts], layer, pooling)
  tokenizer = trained.tokenizer
  if tokenizer is None:
    raise CheckpointError('the model has no tokenizer: texts cannot be encoded without it')
  check_text_prompts(texts, 'give texts')
  if pooling not in get_args(Pooling):
    names = ', '.join(get_args(Pooling))
    raise ConfigError(f'pooling is one of {names}, got {short_repr(pooling)}')
  if tokens < 1:
    raise ConfigError(f'tokens is at least 1, got {tokens}')
  if windows != 'off' and pooling == 'none':
    raise ConfigError('windows are for one vector per text, and pooling none gives one per token')
  if windows == 'off':
    rows, documents = truncated_rows(trained, tokenizer, texts, cut), []
  else:
    rows, documents = window_rows(trained, tokenizer, texts, stride)
  config = encoder_config(trained.model)
  depth = config.stack.blocks
  if not -depth - 1 <= layer <= depth:
    raise ConfigError(f'the model has layers 0 (its embeddings) to {depth}, got {layer}')
  layer %= depth + 1

  params = encoder_params(trained.model, trained.device_params('backbone')['backbone'])
  found: list[Any] = [None] * len(rows)
  with progress.progress_bar('texts', len(rows)) as done:
    for some, batch in iterate_batches(rows, trained.model, tokens, max(tokenizer.vocab.pad, 0)):
      encoded = np.asarray(compute_vectors(config, params, batch, layer, pooling), np.float32)
      for number, vectors in zip(some, encoded, strict=False):
        own = vectors[:len(rows[number])].copy() if pooling == 'none' else vectors
        found[number] = check_finite(own)
      done.update(len(some))
  if pooling == 'none':
    return found
  if windows != 'off':
    found = combine_windows(found, np.array(documents), windows)
  return np.stack(found)


def truncated_rows(
    trained: LoadedModel, tokenizer: Tokenizer, texts: Sequence[Prompt], cut: bool
) -> list[list[int]]:
  """Make a row per text, and report how much is truncated. Raises ConfigError as `encode`."""
  whole = [build_row(trained, tokenizer, text) for text in texts]
  rows, longest = [], trained.model.max_length
  for text, row in zip(texts, whole, strict=True):
    if longest and len(row) > longest:
      if not cut:
        raise ConfigError(f'a text has {len(row)} tokens, the model takes {longest}: give '
                          'windows=mean, which reads all, or cut=True, which leaves out the end')
      ids, room = find_room(tokenizer, text, row, longest)
      row = build_row(trained, tokenizer, ids[:room])
    rows.append(row)
  lost = [len(ids) - len(row) for ids, row in zip(whole, rows, strict=True)]
  truncation.report(Truncation(
      len(rows), sum(map(bool, lost)), sum(map(len, whole)), sum(lost)))
  return rows


def window_rows(
    trained: LoadedModel, tokenizer: Tokenizer, texts: Sequence[Prompt], stride: int
) -> tuple[list[list[int]], list[int]]:
  """Make a row per window of each text -> (rows, index of each row's text).

  Each window has the special tokens of training.
  """
  rows, documents, longest = [], [], trained.model.max_length
  for number, text in enumerate(texts):
    own = [build_row(trained, tokenizer, text)]
    if longest and len(own[0]) > longest:
      ids, room = find_room(tokenizer, text, own[0], longest)
      starts = window_starts(len(ids), room, stride)
      own = [build_row(trained, tokenizer, ids[start:start + room]) for start in starts]
    rows += own
    documents += [number] * len(own)
  return rows, documents


def find_room(
    tokenizer: Tokenizer, text: Prompt, row: Sequence[int], longest: int) -> tuple[list[int], int]:
  """Return the ids of a text, and how many of them fit next to the special tokens of its row.

  Raises:
    ConfigError: none fits.
  """
  ids = prompt_ids(tokenizer, text)
  room = longest - (len(row) - len(ids))
  if room < 1:
    raise ConfigError(f'the model takes {longest} tokens, which leaves no room for text')
  return ids, room


@functools.partial(jax.jit, static_argnames=('config', 'layer', 'pooling'))
def compute_vectors(config, params, batch, layer: int, pooling: Pooling):
  """Compute the vectors [batch, hidden] of one batch, or [batch, length, hidden] without pooling.

  batch: tokens and segments [batch, length]. layer: 0 (embeddings) to the number of layers.
  """
  output, x, block = apply_with_intermediates(config, params, batch)
  if layer == config.stack.blocks:
    x = output.hidden
  elif layer:
    x = block['hidden'][-1][layer - 1]
  x = x.astype(jnp.float32)
  if pooling == 'none':
    return x
  return pool(x, batch['segments'], 'mean' if pooling == 'own' else pooling)


@functools.partial(jax.jit, static_argnames=('config', 'attention'))
def compute_all_layers(config, params, batch, attention: bool = False):
  """Compute the hidden states of all layers, or their attention probabilities, in float32.

  Args:
    config: the encoder or decoder.
    params: its parameters.
    batch: tokens and segments [batch, length].
    attention: whether to return attention probabilities.

  Returns:
    Hidden states [layers + 1, batch, length, hidden], or attention [layers, batch, heads, length,
    length].
  """
  output, embedded, block = apply_with_intermediates(config, params, batch)
  if attention:
    return block['attention']['probs'][-1].astype(jnp.float32)
  inner = block['hidden'][-1][:config.stack.blocks - 1]
  states = jnp.concatenate([embedded[None], inner, output.hidden[None]])
  return states.astype(jnp.float32)


def apply_with_intermediates(config, params, batch) -> tuple[Any, jax.Array, Any]:
  """Apply a backbone -> (output, embeddings [batch, length, hidden], intermediates of its blocks).

  The intermediates have the layers as their first axis.
  """
  if config.kind == 'infilling':  # attention is bidirectional within part A of a GLM
    batch = batch | {'ranks': jnp.zeros_like(batch['tokens'])}
  output, seen = config.backbone().apply({'params': params}, batch, mutable=['intermediates'])
  seen = seen['intermediates']
  seen = seen.get('encoder', seen)
  return output, seen['embedded'][0], seen.get('stack', seen)['layers']['block']


def encoder_config(model):
  """Return the configuration of the part that reads texts: of an encoder-decoder, the encoder."""
  if model.kind == 'encoder-decoder':
    return dataclasses.replace(model, decoder=StackConfig(0))
  return model


def encoder_params(model, params):
  """Return the parameters of `encoder_of(model)` from those of the backbone."""
  is_pair = model.kind == 'encoder-decoder'
  return {name: x for name, x in params.items() if not is_pair or name != 'decoder'}


def build_row(trained: LoadedModel, tokenizer: Tokenizer, text: Prompt) -> list[int]:
  """Encode a text with the special tokens of training.

  Raises:
    ConfigError: the text has no tokens.
  """
  model, vocab = trained.model, tokenizer.vocab
  if model.kind == 'infilling':
    if not isinstance(text, str):
      text = tokenizer.decode(prompt_ids(tokenizer, text))
    from plm_jax.inference import glm_infill
    return glm_infill.encode_prompt(trained, text)
  if model.kind == 'decoder':
    return encode_prompt(tokenizer, text, start=True)
  if model.kind == 'encoder-decoder':
    before, behind, _ = delimiters(vocab)
    return [*before, *prompt_ids(tokenizer, text), *behind]
  ids = prompt_ids(tokenizer, text)
  if vocab.sep < 0 or vocab.cls < 0:
    raise CheckpointError('the tokenizer has no [CLS] or no [SEP], which stand around the texts of '
                          'an encoder')
  before, behind = encoder_delimiters(vocab, model.cls_last)
  return before + ids + behind


def iterate_batches(
    rows: Sequence[Sequence[int]], model: Any, tokens: int, pad: int,
) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
  """Group sequences of ids by length and yield padded batches.

  All batches of one length have the same size: the last is filled with copies of its first
  sequence.

  Args:
    rows: the sequences.
    model: configuration of the model that reads them.
    tokens: maximum number of tokens per batch, padding included.
    pad: id of padding.

  Yields:
    (indices of the sequences, their tokens and segments [batch, length]).
  """
  lengths = [len(ids) for ids in rows]
  for length, size, some in split_rows(lengths, model, model.max_length, tokens):
    filled = [rows[number] for number in some + some[:1] * (size - len(some))]
    cls_last = model.kind == 'encoder' and model.cls_last
    yield some, jax.device_put(make_batch(filled, length, pad, cls_last=cls_last))


def split_rows(
    lengths: Sequence[int], model: Any, longest: int, tokens: int,
) -> Iterator[tuple[int, int, list[int]]]:
  """Split rows into batches of similar length, on a CPU into those that it encodes best.

  Larger batches leave its cache, and their memory is cleared by the system for each of them: one of
  8,192 tokens took a seventh more CPU time per token. In long sequences, attention scores take the
  most memory: they are limited to 8 MiB, or to the size of a layer's weights, which are read from
  memory for every batch.

  Args:
    lengths: tokens of each row.
    model: configuration of the model.
    longest: maximum length of a row; 0: no limit.
    tokens: maximum number of tokens per batch, padding included.

  Returns:
    As `bucketing.split_by_length`.
  """
  if jax.default_backend() != 'cpu':
    return split_by_length(lengths, longest, tokens)
  weights = 12 * model.block.width ** 2  # of a layer, about
  return split_by_length(
      lengths, longest, min(tokens, CPU_BATCH_TOKENS),
      token_pairs=max(CPU_ATTENTION_SCORES, weights) // model.block.heads)
