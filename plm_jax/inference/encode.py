"""Vectors of texts: hidden states of any layer, or one vector for each text."""
from collections.abc import Iterator, Sequence
import dataclasses
import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import shortened
from plm_jax.config import ConfigError
from plm_jax.inference import blanks, elmo, generate
from plm_jax.inference.batches import by_length, doubled
from plm_jax.inference.generate import Prompt, ids_of
from plm_jax.inference.loading import Trained
from plm_jax.inference.prompts import check
from plm_jax.layers.pooling import pooled
from plm_jax.layers.stack import StackConfig
from plm_jax.objectives.seq2seq import delimiters
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.checkpoint import CheckpointError

Pooling = Literal['own', 'mean', 'max', 'first', 'last', 'mean_sqrt', 'weighted_mean', 'none']


def encode(
    trained: Trained, texts: Sequence[Prompt], layer: int = -1, pooling: Pooling = 'mean', cut: bool = False,
    tokens: int = 8192) -> np.ndarray | list[np.ndarray]:
  """Encodes texts as vectors; an encoder-decoder does by its encoder.

  Texts of like length go through the model together, in a few shapes, so that few programs are compiled; padding
  counts nowhere.

  Args:
    trained: any model with a tokenizer
    texts: texts, or their ids; each gets the special tokens that stand around a text in training
    layer: 0: the embeddings; k: the output of layer k; -1: the last, which heads read (of a model that normalises
      first, its last norm included), -2 the one before, as in transformers' `hidden_states`
    pooling: over the tokens of a text, special ones included, see `layers.pooling`; none: a vector for every token;
      own: the mean (`plm_jax.similarity.encode` knows of models that have learned another)
    cut: texts that are too long lose their end; otherwise they are refused
    tokens: that go through the model together, padding included, at most

  Returns:
    float32 [N, D]; with pooling 'none' a list of N arrays [tokens of the text, D].

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: no text, one that is too long or empty, a layer that the model does not have.
  """
  if trained.model.kind == 'recurrent':
    return elmo.encode(trained, [str(text) for text in texts], layer, pooling)
  if trained.tokenizer is None:
    raise CheckpointError('the model has no tokenizer: texts cannot be encoded without it')
  check([text if isinstance(text, str) else '' for text in texts], 'give texts')
  if pooling not in get_args(Pooling):
    raise ConfigError(f'pooling is one of {", ".join(get_args(Pooling))}, got {shortened(pooling)}')
  if tokens < 1:
    raise ConfigError(f'tokens is at least 1, got {tokens}')
  rows = [fitted(row(trained, trained.tokenizer, text), trained.model.max_length, cut) for text in texts]
  config = encoder_of(trained.model)
  depth = config.stack.blocks
  if not -depth - 1 <= layer <= depth:
    raise ConfigError(f'the model has layers 0 (its embeddings) to {depth}, got {layer}')
  params = jax.tree.map(jnp.asarray, {name: part for name, part in trained.params['backbone'].items()
                                      if name != 'decoder' or trained.model.kind != 'encoder-decoder'})
  found: list[Any] = [None] * len(rows)
  for numbers, batch in batches(rows, trained.model.max_length, tokens, max(trained.tokenizer.vocab.pad, 0)):
    states = np.asarray(vectors(config, params, batch, layer % (depth + 1), pooling), np.float32)
    for place, number in enumerate(numbers):
      found[number] = states[place] if pooling != 'none' else states[place, :len(rows[number])].copy()
  return found if pooling == 'none' else np.stack(found)


@functools.partial(jax.jit, static_argnames=('config', 'layer', 'pooling'))
def vectors(config, params, batch, layer: int, pooling: Pooling):
  """Computes the vectors of a batch of tokens and segments [B, L] -> [B, D], or [B, L, D] without pooling."""
  x = states(config, params, batch, layer).astype(jnp.float32)
  return x if pooling == 'none' else pooled(x, batch['segments'], 'mean' if pooling == 'own' else pooling)


def states(config, params, batch, layer: int):
  """Computes the hidden states [B, L, D] of a layer: 0 the embeddings, ..., config.stack.blocks the last."""
  output, embedded, block = observed(config, params, batch)
  if layer == config.stack.blocks:
    return output.hidden
  return block['hidden'][-1][layer - 1] if layer else embedded


@functools.partial(jax.jit, static_argnames=('config', 'attention'))
def layers(config, params, batch, attention: bool = False):
  """Computes the hidden states of all layers [K + 1, B, L, D] of a batch of tokens and segments [B, L]; or the
  probabilities of attention [K, B, H, L, L]. Both float32."""
  output, embedded, block = observed(config, params, batch)
  if attention:
    return block['attention']['probs'][-1].astype(jnp.float32)
  inner = block['hidden'][-1][:config.stack.blocks - 1]
  return jnp.concatenate([embedded[None], inner, output.hidden[None]]).astype(jnp.float32)


def observed(config, params, batch) -> tuple[Any, jax.Array, Any]:
  """Applies what reads texts -> its output, the embeddings [B, L, D], and what its blocks let out, layers in front."""
  if config.kind == 'infilling':  # all of a text is read at once, as what stands before a blank
    batch = batch | {'ranks': jnp.zeros_like(batch['tokens'])}
  output, seen = config.backbone().apply({'params': params}, batch, mutable=['intermediates'])
  seen = seen['intermediates']
  seen = seen.get('encoder', seen)
  return output, seen['embedded'][0], seen.get('stack', seen)['layers']['block']


def encoder_of(model):
  """Makes the configuration of what reads texts: of an encoder-decoder, the encoder alone."""
  return dataclasses.replace(model, decoder=StackConfig(0)) if model.kind == 'encoder-decoder' else model


def row(trained: Trained, tokenizer: Tokenizer, text: Prompt) -> list[int]:
  """Makes the ids of a text with what stands around it in training. Raises ConfigError for a text without tokens."""
  model, vocab = trained.model, tokenizer.vocab
  if model.kind == 'infilling':
    ids = blanks.encode(trained, text if isinstance(text, str) else tokenizer.decode(text))
  elif model.kind == 'decoder':
    ids = generate.encode(tokenizer, text, start=True)
  elif model.kind == 'encoder-decoder':
    try:
      before, behind, _ = delimiters(vocab)
    except ValueError as error:
      raise ConfigError(str(error)) from error
    ids = [*before, *ids_of(tokenizer, text), *behind]
  else:
    ends = (vocab.sep, vocab.cls)
    ids = [*ids_of(tokenizer, text), *ends] if model.cls_last else [ends[1], *ids_of(tokenizer, text), ends[0]]
    if min(ends) < 0:
      raise CheckpointError('the tokenizer has no [CLS] or no [SEP], which stand around the texts of an encoder')
  return ids


def fitted(ids: list[int], longest: int, cut: bool) -> list[int]:
  """Cuts what is too long, its last token kept; longest 0: nothing is."""
  if not longest or len(ids) <= longest:
    return ids
  if not cut:
    raise ConfigError(f'a text has {len(ids)} tokens, the model takes {longest}: shorten it, or give cut=True, which '
                      'leaves out the end')
  return [*ids[:longest - 1], ids[-1]]


def batches(rows: Sequence[Sequence[int]], longest: int, tokens: int, pad: int,
            ) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
  """Divides rows of ids by length -> (numbers of rows, their tokens and segments [B, L]); of a length all have one B,
  the last filled up with copies of its first row."""
  for length, numbers in sorted(by_length([len(ids) for ids in rows], longest, tokens).items()):
    size = min(max(1, tokens // length), doubled(len(numbers)))
    for first in range(0, len(numbers), size):
      some = numbers[first:first + size]
      chosen = [rows[number] for number in some + some[:1] * (size - len(some))]
      batch = {'tokens': [[*ids, *[pad] * (length - len(ids))] for ids in chosen],
               'segments': [[1] * len(ids) + [0] * (length - len(ids)) for ids in chosen]}
      yield some, {name: jnp.array(values, jnp.int32) for name, values in batch.items()}
