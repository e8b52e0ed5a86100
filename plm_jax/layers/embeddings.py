"""From ids to vectors."""
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

  @nn.compact
  def __call__(self, tokens, types, positions, rows=None):
    """tokens, types, positions [B, L] -> (x [B, L, D], token table [V, E])."""
    cfg = self.cfg
    def table(name, size, axes):
      return self.param(name, named(cfg.init, axes), (size, self.width), jnp.float32)
    embedding = table('tokens', self.vocab, ('vocab', 'width'))
    x = embedding[tokens]
    if self.positions:
      x += table('positions', self.positions, (None, 'width'))[positions]
    if self.types:
      # A product with one-hot rows: the gradient of a gather from so few rows is a serial scatter.
      x += nn.one_hot(types, self.types) @ table('types', self.types, (None, 'width'))
    if cfg.norm_at == 'post':
      x = cfg.make_norm('norm')(x)
    x = Dropout(cfg.dropout, name='dropout')(x.astype(cfg.compute), rows)
    if self.width != cfg.width:
      x = Dense((cfg.width,), (None, 'width'), True, cfg.compute, cfg.init, name='project')(x)
    return constrain(x, 'batch', None, None), embedding
