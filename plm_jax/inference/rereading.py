"""How an encoder that predicts next tokens goes on (GPT-BERT): it reads the row anew for every token.

Its distances are counted in the row, in products with keys and with queries alike, which no cache holds: a token costs
what a row costs.
"""
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.heads import WithHeads


@dataclasses.dataclass(frozen=True)
class RereadingSteps:
  """`engine.Steps` of an encoder and its head of masked tokens. A cache holds the tokens and segments [B, S] of rows,
  and how many slots are taken."""

  config: EncoderConfig
  head: nn.Module

  def load(self, params):
    """Puts the parameters on the devices: once, before the first of the other functions."""
    return jax.tree.map(jnp.asarray, {name: params[name] for name in ('backbone', 'heads_mlm') if name in params})

  def start(self, params, batch, slots):
    """Reads the prompts, padded in front -> logits [B, V] behind them, and the cache."""
    length = batch['tokens'].shape[1]
    def room(x):
      return jnp.pad(x, ((0, 0), (0, slots - length)))
    return self.read(params, {'tokens': room(batch['tokens']), 'segments': room(batch['segments']),
                              'length': jnp.int32(length)})

  def next(self, params, tokens, cache):
    """Reads a token of each row, one place behind the last -> logits [B, V], and the cache."""
    put = jax.lax.dynamic_update_slice_in_dim
    return self.read(params, {
        'tokens': put(cache['tokens'], tokens[:, None].astype(cache['tokens'].dtype), cache['length'], 1),
        'segments': put(cache['segments'], jnp.ones_like(cache['segments'][:, :1]), cache['length'], 1),
        'length': cache['length'] + 1})

  def pick(self, cache, rows):
    """Returns the cache of these rows."""
    return cache | {name: cache[name][rows] for name in ('tokens', 'segments')}

  def read(self, params, cache) -> tuple[jax.Array, Any]:
    """Reads whole rows, from left to right -> logits [B, V] behind the last token, and the cache as it is."""
    model, (rows, slots) = WithHeads(self.config.backbone(), {'mlm': self.head}), cache['tokens'].shape
    logits: Any = model.apply({'params': params}, {
        'tokens': cache['tokens'], 'segments': cache['segments'], 'ranks': ranks(rows, slots),
        'positions': jnp.full((rows, 1), cache['length'] - 1)})
    return logits['mlm'][:, 0], cache


def ranks(rows: int, length: int):
  """Returns the ranks of tokens that see what is before them [B, L]."""
  return jnp.broadcast_to(jnp.arange(length), (rows, length))
