"""The transformer block: one for every family, varied by its configuration."""
import dataclasses
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.attention import (
  Attention,
  AttentionConfig,
  AttentionMask,
  CrossAttentionCache,
  KVCache,
)
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dropout
from plm_jax.layers.mlp import Mlp, MlpConfig
from plm_jax.layers.positions import NoPosition
from plm_jax.sharding import constrain


@dataclasses.dataclass(frozen=True)
class BlockConfig(CommonConfig):
  """Hyperparameters of one transformer block (layer)."""

  attention: AttentionConfig = AttentionConfig()
  """Self-attention and cross-attention."""
  mlp: MlpConfig = MlpConfig()
  """Feed-forward network."""
  norm_at: Literal['pre', 'post', 'both'] = 'post'
  """Place of the norms. pre: before each sublayer, with a final norm after the stack. post: after
  each residual sum. both: as pre, and the output of each sublayer is normalized before the residual
  sum (Gemma 3)."""
  parallel: bool = False
  """Attention and MLP read the same norm, and their outputs are added to one residual stream
  (PaLM)."""
  parallel_norms: bool = False
  """With parallel, the MLP reads a norm of its own of the same residual stream (GPT-NeoX)."""
  cross: bool = False
  """Cross-attention to an encoder's output, after self-attention."""

  def conflict(self, option):
    if self.parallel and (self.norm_at != 'pre' or self.cross):
      return (f'{option("parallel")}: such a block has its norm before it (norm_at pre) and no '
              'cross attention')
    return super().conflict(option)


class CrossAttentionInput(NamedTuple):
  """What cross-attention attends to: an encoder's output, or its cached keys and values."""

  hidden: jax.Array | None
  """[batch, keys, hidden]; None: `keys` replace them."""
  mask: jax.Array | None
  """[batch, 1, 1 or queries, keys], True where visible; None: everywhere."""
  keys: CrossAttentionCache | None = None
  """This layer's keys and values of the encoder's output, computed before."""


class DenseStreams(NamedTuple):
  """DenseFormer's residual stream: a weighted sum of all earlier states, after each sublayer.

  Pagliardini et al. 2024, section 3, sum after each block; GPT-BERT sums after each sublayer.
  """

  states: tuple[jax.Array, ...]
  """[batch, length, hidden] each: the embeddings, then the stream before each sum."""
  weights: tuple[jax.Array, ...]
  """Weights of the next sums; each has one number more than the one before."""

  def add_state(self, x) -> tuple[jax.Array, 'DenseStreams']:
    """Add x [batch, length, hidden] to the states.

    Returns:
      (weighted sum of all states [batch, length, hidden], the streams for the next sublayer).
    """
    states, weights = (*self.states, x), self.weights[0].astype(x.dtype)
    total = sum(weight * state for weight, state in zip(weights, states, strict=True))
    return jnp.asarray(total), DenseStreams(states, self.weights[1:])


class Block(nn.Module):
  """Transformer block: self-attention, optional cross-attention, MLP.

  Each sublayer has dropout, a residual connection and a norm.
  """

  cfg: BlockConfig

  @nn.compact
  def __call__(
      self, x, mask: AttentionMask, memory: CrossAttentionInput | None = None, row_ids=None,
      past: KVCache | None = None, kv=None, skip_norm=None,
      streams: DenseStreams | None = None) -> Any:
    """Run the block.

    Args:
      x: [batch, queries, hidden].
      mask: self-attention mask.
      memory: input of cross-attention.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
      past: KV cache of self-attention.
      kv: [batch, keys, hidden], what self-attention attends to (XLNet's query stream, DeBERTa's
        mask decoder); None: x.
      skip_norm: bool scalar, True: attention reads x without its norm (`StackConfig.first_norm`);
        None: False.
      streams: DenseFormer's states; their weighted sum replaces the residual stream after each
        sublayer.

    Returns:
      [batch, queries, hidden]; with `streams`, a pair of it and the streams for the next block.
    """
    cfg = self.cfg
    pre_norm = cfg.norm_at != 'post'

    def run_sublayer(name, sublayer, x):
      """Add `sublayer(input, norm of the keys)` to the residual stream, with norm and dropout."""
      nonlocal streams
      norm: Any = cfg.make_norm(f'{name}_norm')
      if name == 'attention' and skip_norm is not None:
        norm = lambda x, norm=norm: norm_unless(skip_norm, norm, x)
      has_dropout = name != 'mlp' or cfg.mlp.dropped
      dropout = Dropout(cfg.dropout if has_dropout else 0.0, name=f'{name}_dropout')
      # [batch, queries, hidden]
      if pre_norm:
        y = sublayer(norm(x), norm)
        if cfg.norm_at == 'both':
          y = cfg.make_norm(f'{name}_out_norm')(y)
        y = x + dropout(y, row_ids)
      else:
        y = norm(x + dropout(sublayer(x, lambda kv: kv), row_ids))
      y = constrain(y, 'batch', None, 'stream')
      if streams is None:
        return y
      y, streams = streams.add_state(y)
      return constrain(y, 'batch', None, 'stream')

    def attention(y, norm):
      keys = y if kv is None else norm(kv)
      return Attention(cfg.attention, cfg, name='attention')(y, keys, mask, row_ids, past)

    def cross_attention(y, norm):
      del norm
      assert memory is not None, 'a block with cross attention reads a memory'
      plain = dataclasses.replace(cfg.attention, position=NoPosition())
      keys = memory.keys or memory.hidden
      return Attention(plain, cfg, name='cross')(y, keys, AttentionMask(memory.mask), row_ids)

    def mlp(y, norm):
      del norm
      return Mlp(cfg.mlp, cfg, name='mlp')(y, row_ids)

    def attention_and_mlp(y, norm, stream=x):
      z = cfg.make_norm('mlp_norm')(stream) if cfg.parallel_norms else y
      return attention(y, norm) + mlp(z, norm)

    # Parameters get the names of these sublayers: attention, cross and mlp, or parallel.
    if cfg.parallel:
      x = run_sublayer('parallel', attention_and_mlp, x)
    else:
      x = run_sublayer('attention', attention, x)
      if cfg.cross:
        x = run_sublayer('cross', cross_attention, x)
      x = run_sublayer('mlp', mlp, x)
    self.sow('intermediates', 'hidden', x)
    self.sow('inside', 'hidden', x)
    return x if streams is None else (x, streams)


def norm_unless(skip_norm, norm, x):
  """Return x where the scalar skip_norm is True, else its norm."""
  y = norm(x)
  return jnp.where(skip_norm, x.astype(y.dtype), y)
