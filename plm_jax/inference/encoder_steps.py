"""Prefill and decode steps of an encoder that predicts next tokens (GPT-BERT), without a KV cache.

The encoder reads the whole sequence again for every token. Its relative positions multiply keys and
queries alike, which no KV cache holds, so a token costs as much as a sequence.
"""
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.heads import ModelWithHeads


@dataclasses.dataclass(frozen=True)
class EncoderSteps:
  """The steps (`engine.Steps`) of an encoder with its masked language modeling head.

  The cache holds `tokens` and `segments` [rows, slots], and `length`, the number of used slots.
  """

  config: EncoderConfig
  head: nn.Module

  def load_params(self, params):
    """Put the parameters on the devices, once, before the other methods."""
    found = {name: params[name] for name in ('backbone', 'heads_mlm') if name in params}
    return jax.tree.map(jnp.asarray, found)

  def prefill(self, params, batch, slots):
    """Prefill: read the prompts, padded in front -> (logits [rows, vocab], cache)."""
    length = batch['tokens'].shape[1]
    def extend(x):
      return jnp.pad(x, ((0, 0), (0, slots - length)))
    cache = {'tokens': extend(batch['tokens']), 'segments': extend(batch['segments']),
             'length': jnp.int32(length)}
    return self.read(params, cache)

  def decode_step(self, params, tokens, cache):
    """Decode one step: append one token per row -> (logits [rows, vocab], cache)."""
    put = jax.lax.dynamic_update_slice_in_dim
    tokens, length = tokens[:, None].astype(cache['tokens'].dtype), cache['length']
    ones = jnp.ones_like(cache['segments'][:, :1])
    return self.read(params, {
        'tokens': put(cache['tokens'], tokens, length, 1),
        'segments': put(cache['segments'], ones, length, 1), 'length': length + 1})

  def reorder_cache(self, cache, rows):
    """Return the cache of `rows`."""
    return cache | {'tokens': cache['tokens'][rows], 'segments': cache['segments'][rows]}

  def read(self, params, cache) -> tuple[jax.Array, Any]:
    """Read all tokens with causal attention -> (logits [rows, vocab] of the next token, cache)."""
    rows, slots = cache['tokens'].shape
    batch = {
        'tokens': cache['tokens'], 'segments': cache['segments'],
        'ranks': causal_ranks(rows, slots), 'positions': jnp.full((rows, 1), cache['length'] - 1)}
    model = ModelWithHeads(self.config.backbone(), {'mlm': self.head})
    logits: Any = model.apply({'params': params}, batch)
    return logits['mlm'][:, 0], cache


def causal_ranks(rows: int, length: int):
  """Return the ranks [rows, length] of tokens that attend to all tokens before them (causal)."""
  return jnp.broadcast_to(jnp.arange(length), (rows, length))
