"""From ids to vectors."""
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dense, Dropout, named
from plm_jax.sharding import constrain


class Embeddings(nn.Module):
  """Token, absolute position and segment type vectors, summed (Devlin et al. 2019, section 3); norm, dropout.

  Where `width` differs from the block's the sum is projected to it (ALBERT, section 3.1).
  """

  cfg: BlockConfig
  vocab: int
  width: int
  positions: int  # rows of the position table, 0: no absolute positions
  types: int  # rows of the type table, 0: no types
  position_init: Literal['normal', 'sinusoidal'] = 'normal'

  @nn.compact
  def __call__(self, tokens, types, positions, rows=None):
    """tokens, types, positions [B, L] -> (x [B, L, D], token table [V, E])."""
    cfg = self.cfg
    def table(name, size, axes, init=cfg.init):
      return self.param(name, named(init, axes), (size, self.width), jnp.float32)
    embedding = table('tokens', self.vocab, ('vocab', 'width'))
    # Rows are looked up in tables of whole rows: of split ones the compiler would gather the result instead.
    x = constrain(embedding, 'vocab', None)[tokens]
    if self.positions:
      init = sinusoids(cfg.init_std) if self.position_init == 'sinusoidal' else cfg.init
      x += constrain(table('positions', self.positions, (None, 'width'), init), None, None)[positions]
    if self.types:
      # A product with one-hot rows: the gradient of a gather from so few rows is a serial scatter.
      x += nn.one_hot(types, self.types) @ table('types', self.types, (None, 'width'))
    if cfg.norm_at == 'post':
      x = cfg.make_norm('norm')(x)
    x = Dropout(cfg.dropout, name='dropout')(x.astype(cfg.compute), rows)
    if self.width != cfg.width:
      x = Dense((cfg.width,), (None, 'width'), True, cfg.compute, cfg.init, name='project')(x)
    return constrain(x, 'batch', None, None), embedding


def sinusoids(std: float) -> nn.initializers.Initializer:
  """Rows of sines and cosines of the row number (Vaswani et al. 2017, section 3.5), of root mean square `std`."""
  def init(key, shape, dtype=jnp.float32):
    del key
    length, width = shape
    rates = 10_000 ** (-jnp.arange(0, width, 2) / width)
    angles = jnp.arange(length)[:, None] * rates
    table = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[:, :width]
    return (2 ** 0.5 * std * table).astype(dtype)
  return init
