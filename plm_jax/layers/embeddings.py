"""From ids to vectors."""
from collections.abc import Mapping

from flax.core import FrozenDict
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, Dropout, named
from plm_jax.layers.norm import normalised
from plm_jax.sharding import constrain, gathered


class Embeddings(nn.Module):
  """Token, absolute position and segment type vectors, summed (Devlin et al. 2019, section 3); norm, dropout.

  Where `width` is given the sum is projected from it to the block's (Lan et al. 2020, section 3.1).
  """

  cfg: CommonConfig
  vocab: int
  width: int  # E; 0: the block's width, and no projection
  positions: int  # rows of the position table, 0: no absolute positions
  types: int  # rows of the type table, 0: no types
  norm: bool = True  # of the sum
  factor: float = 1.0  # on the token vectors (Vaswani et al. 2017, section 3.4: sqrt(D))
  more: tuple[tuple[str, int], ...] = ()  # names and rows of more tables, which `moved` has ids for; 0: none
  waves: bool = False  # positions begin as sines and cosines in turn, and stay these
  scaled: bool = False  # positions are these, times one number that is trained and begins as 1 / sqrt(E)

  @nn.compact
  def __call__(
      self, tokens, types, positions, rows=None, tables: Mapping[str, jax.Array] | None = None,
      moved: Mapping[str, jax.Array] = FrozenDict()):
    """tokens, types, positions [B, L] -> (x [B, L, D], token table [V, E]). tokens may be vectors instead,
    [B, L, E], on which there is no factor.

    tables: another model's, or fixed, `tokens`, `positions` or `types`, which this one uses and has none of its own.
    moved: `noise` [B, L, E] is added to the token vectors, and `perturbation` [B, L, E] to the sum, which is normalised
    for it, so that all sums are of one size; vectors of its ids [B, L] under the names of `more` are added too. All
    may be left out, and a batch given as it is.
    """
    cfg = self.cfg
    def table(name, size, axes, init=cfg.init.plain):
      if tables and name in tables:
        return tables[name]
      return self.param(name, named(init, axes), (size, self.width or cfg.width), jnp.float32)
    embedding = table('tokens', self.vocab, ('vocab', 'width'))
    # Rows are looked up in tables of whole rows: of split ones the compiler would gather the result instead.
    x = tokens if tokens.ndim == 3 else gathered(embedding, 'vocab', 'width')[tokens]
    if self.factor != 1 and tokens.ndim < 3:
      x *= self.factor
    if 'noise' in moved:
      x += moved['noise']
    if self.scaled:
      width = self.width or cfg.width
      factor = self.param('position_scale', named(nn.initializers.constant(width ** -0.5), (None,)), (1,), jnp.float32)
      x += factor * waves(None, (self.positions, width))[positions]
    elif self.positions:
      of_positions = table('positions', self.positions, (None, 'width'), waves if self.waves else cfg.init.plain)
      x += gathered(of_positions, None, 'width')[positions]
    if self.types:
      rows_of_types = gathered(table('types', self.types, (None, 'width')), None, 'width')
      # From few rows a product with one-hot rows: the gradient of a gather from these is a serial scatter.
      x += nn.one_hot(types, self.types) @ rows_of_types if self.types <= 16 else rows_of_types[types]
    for name, size in self.more:
      if size:
        other = gathered(table(name, size, (None, 'width')), None, 'width')
        x += other[moved[name]] if name in moved else 0
    if 'perturbation' in moved:
      x = normalised(x, jnp.ones(()), jnp.zeros(()), eps=1e-7) + moved['perturbation']
    if self.norm:
      x = cfg.make_norm('norm')(x)
    x = Dropout(cfg.dropout, name='dropout')(x.astype(cfg.compute), rows)
    if self.width:
      x = Dense((cfg.width,), (None, 'width'), True, cfg.compute, cfg.init.plain, name='project')(x)
    return constrain(x, 'batch', None, 'stream'), embedding


def waves(key, shape: tuple[int, ...], dtype=jnp.float32):
  """Makes [rows, width]: sines and cosines in turn, of wavelengths that grow from 2 pi towards 20,000 pi (Vaswani et
  al. 2017, section 3.5); an initializer that draws nothing."""
  del key
  rows, width = shape
  angles = np.arange(rows)[:, None] / 10_000 ** (2 * (np.arange(width) // 2) / width)
  return jnp.array(np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)), dtype)
