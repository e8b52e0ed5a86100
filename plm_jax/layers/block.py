"""The transformer block: one for every family, varied by values."""
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.attention import Attention, AttentionConfig, Keys, Past, Visible
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dropout
from plm_jax.layers.mlp import Mlp, MlpConfig
from plm_jax.layers.positions import NoPosition
from plm_jax.sharding import constrain


@dataclasses.dataclass(frozen=True)
class BlockConfig(CommonConfig):
  """The hyper-parameters of one layer."""

  attention: AttentionConfig = AttentionConfig()
  """to oneself, and to a memory"""
  mlp: MlpConfig = MlpConfig()
  """the position-wise network"""
  norm_at: Literal['pre', 'post'] = 'post'
  """before each sublayer, with one more norm after the stack; or after each residual sum"""
  parallel: bool = False
  """attention and the position-wise network read the same norm and are summed, one residual for both (PaLM)"""
  cross: bool = False
  """attend to a memory (an encoder's output) after attending to oneself"""

  def conflict(self, option):
    """Says what a parallel block cannot have, or what is wrong with sizes."""
    if self.parallel and (self.norm_at != 'pre' or self.cross):
      return f'{option("parallel")}: such a block has its norm before it (norm_at pre) and no cross attention'
    return super().conflict(option)


class Memory(NamedTuple):
  """What cross attention reads: an encoder's output."""

  hidden: jax.Array | None
  """[B, K, D]; None: `keys` stand for it"""
  mask: jax.Array | None
  """[B, 1, 1|Q, K], True where visible; None: everything"""
  keys: Keys | None = None
  """what this layer made of the hidden states before"""


class Streams(NamedTuple):
  """What the residual stream was, from the embeddings on, and how it goes on: behind each sublayer as a weighted sum of
  all that (Pagliardini et al. 2024, section 3, behind each block; GPT-BERT's is behind each sublayer)."""

  states: tuple[jax.Array, ...]
  """[B, L, D] each, before they were summed"""
  weights: tuple[jax.Array, ...]
  """of the next sums, one number more each"""

  def summed(self, x) -> tuple[jax.Array, 'Streams']:
    """Adds x [B, L, D] to the states -> (their weighted sum [B, L, D], those that are next)."""
    states, weights = (*self.states, x), self.weights[0].astype(x.dtype)
    total = sum(weight * state for weight, state in zip(weights, states, strict=True))
    return jnp.asarray(total), Streams(states, self.weights[1:])


class Block(nn.Module):
  """Self attention, cross attention where cfg.cross, MLP; each with dropout, residual and norm."""

  cfg: BlockConfig

  @nn.compact
  def __call__(self, x, visible: Visible, memory: Memory | None = None, rows=None, past: Past | None = None, kv=None,
               normed=None, streams: Streams | None = None) -> Any:
    """x [B, Q, D] attends to kv [B, K, D] (itself if None) behind the past, then to the memory -> [B, Q, D]; with
    streams, whose sums take the place of x behind each sublayer, -> also those that are next.

    A separate kv is what XLNet's query stream and DeBERTa's mask decoder need. rows [B] key dropout; None: no dropout.
    normed [] bool: attention reads x as it is, in place of its norm (`StackConfig.first_norm`); None: it does not.
    """
    cfg = self.cfg
    pre = cfg.norm_at == 'pre'

    def residual(name, sublayer, x):
      nonlocal streams
      norm: Any = cfg.make_norm(f'{name}_norm')
      if name == 'attention' and normed is not None:
        norm = functools.partial(unless, normed, norm)
      drop = Dropout(cfg.dropout if name != 'mlp' or cfg.mlp.dropped else 0.0, name=f'{name}_dropout')
      y = x + drop(sublayer(norm(x), norm) if pre else sublayer(x, lambda kv: kv), rows)
      y = constrain(y if pre else norm(y), 'batch', None, 'stream')
      if streams is None:
        return y
      y, streams = streams.summed(y)
      return constrain(y, 'batch', None, 'stream')

    def attention(y, norm):
      return Attention(cfg.attention, cfg, name='attention')(y, y if kv is None else norm(kv), visible, rows, past)
    def cross(y, norm):
      del norm
      assert memory is not None, 'a block with cross attention reads a memory'
      plain = dataclasses.replace(cfg.attention, position=NoPosition())
      return Attention(plain, cfg, name='cross')(y, memory.keys or memory.hidden, Visible(memory.mask), rows)
    def mlp(y, norm):
      del norm
      return Mlp(cfg.mlp, cfg, name='mlp')(y, rows)

    if cfg.parallel:
      x = residual('parallel', lambda y, norm: attention(y, norm) + mlp(y, norm), x)
    else:
      x = residual('attention', attention, x)
      if cfg.cross:
        x = residual('cross', cross, x)
      x = residual('mlp', mlp, x)
    self.sow('intermediates', 'hidden', x)
    self.sow('inside', 'hidden', x)
    return x if streams is None else (x, streams)


def unless(normed, norm, x):
  """Returns x where normed [] is True, else its norm."""
  y = norm(x)
  return jnp.where(normed, x.astype(y.dtype), y)
