"""Embeddings: token, position and segment type vectors of token ids."""
from collections.abc import Mapping
import dataclasses
from typing import Literal

from flax.core import FrozenDict
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, Dropout, with_logical_axes
from plm_jax.layers.norm import normalize
from plm_jax.sharding import constrain, gather_parameter
from plm_jax.validation import ValidatedConfig


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(ValidatedConfig):
  """Configuration of an encoder's embeddings: what is added to the token vectors, and how."""

  types: int = 2
  """Rows of the segment type table; 0: no types; 1: the same type for every token."""
  absolute: Literal['learned', 'sinusoidal', 'scaled', 'none'] = 'learned'
  """Absolute positions. learned: a trained table of max_length rows. sinusoidal: a table of sines
  and cosines, not trained (XLM). scaled: sines and cosines times one trained number (Cramming).
  none: no absolute positions."""
  languages: int = 0
  """Rows of the language table, which is added where a batch has the language of each token (XLM);
  0: no table."""
  tasks: int = 0
  """Rows of the table of pre-training tasks; where a batch names no task, the first row is added
  (ERNIE 2.0); 0: no table."""
  width: int = 0
  """Width of the tables, whose sum is then projected to the hidden size (ALBERT); 0: the hidden
  size."""
  norm: bool = False
  """The sum is normalized also where the blocks are pre-norm (ModernBERT); with post-norm blocks it
  always is."""


class Embeddings(nn.Module):
  """Sum of token, position and segment type embeddings, with norm and dropout.

  Devlin et al. 2019, section 3. With `width` the sum is projected from this width to the block's
  (Lan et al. 2020, section 3.1).
  """

  cfg: CommonConfig
  vocab: int
  width: int  # E; 0: the block's width, without a projection
  positions: int  # rows of the position table; 0: no absolute positions
  types: int  # rows of the segment type table; 0: no types
  norm: bool = True  # of the sum
  factor: float = 1.0  # on the token vectors (Vaswani et al. 2017, section 3.4: sqrt(D))
  more: tuple[tuple[str, int], ...] = ()  # names and rows of other tables; 0 rows: no table
  waves: bool = False  # the position table is initialized with sines and cosines
  scaled: bool = False  # fixed sines and cosines, times one trained number, initially 1 / sqrt(E)

  @nn.compact
  def __call__(
      self, tokens, types, positions, row_ids=None, tables: Mapping[str, jax.Array] | None = None,
      batch: Mapping[str, jax.Array] = FrozenDict()):
    """Embed a batch.

    Args:
      tokens: [batch, length] ids; or vectors in their place, [batch, length, E], to which `factor`
        does not apply.
      types: [batch, length] segment types; unused where there is no table.
      positions: [batch, length] rows of the position table.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
      tables: tables `tokens`, `positions` or `types` that this module uses in place of parameters
        of its own: another model's, or fixed ones.
      batch: optional `noise` [batch, length, E], added to the token vectors; optional
        `perturbation` [batch, length, E], added to the sum, which is normalized first so that all
        sums have one size; optional ids [batch, length] for the tables `more`. Other entries are
        ignored.

    Returns:
      (x [batch, length, hidden], token table [vocab, E]).
    """
    cfg, width = self.cfg, self.width or self.cfg.width
    table_init = cfg.init.table_initializer

    def make_table(name, size, axes, init=table_init):
      if tables and name in tables:
        return tables[name]
      return self.param(name, with_logical_axes(init, axes), (size, width), jnp.float32)

    # Tokens. Rows are looked up in gathered tables: of a split table the compiler would gather the
    # result instead.
    token_table = make_table('tokens', self.vocab, ('vocab', 'width'))
    if tokens.ndim == 3:
      x = tokens
    else:
      x = gather_parameter(token_table, 'vocab', 'width')[tokens]
      if self.factor != 1:
        x *= self.factor
    if 'noise' in batch:
      x += batch['noise']

    # Positions.
    if self.scaled:
      init = with_logical_axes(nn.initializers.constant(width ** -0.5), (None,))
      factor = self.param('position_scale', init, (1,), jnp.float32)
      x += factor * init_sinusoids(None, (self.positions, width))[positions]
    elif self.positions:
      init = init_sinusoids if self.waves else table_init
      table = make_table('positions', self.positions, (None, 'width'), init)
      x += gather_parameter(table, None, 'width')[positions]

    # Segment types, and other tables.
    if self.types:
      table = gather_parameter(make_table('types', self.types, (None, 'width')), None, 'width')
      if self.types <= 16:
        # A product with one-hot vectors: the gradient of a gather from few rows is a serial
        # scatter.
        x += nn.one_hot(types, self.types) @ table
      else:
        x += table[types]
    for name, size in self.more:
      if size:
        table = gather_parameter(make_table(name, size, (None, 'width')), None, 'width')
        x += table[batch[name]] if name in batch else 0

    if 'perturbation' in batch:
      x = normalize(x, jnp.ones(()), jnp.zeros(()), eps=1e-7) + batch['perturbation']
    if self.norm:
      x = cfg.make_norm('norm')(x)
    x = Dropout(cfg.dropout, name='dropout')(x.astype(cfg.compute_dtype), row_ids)
    if self.width:
      project = Dense(
          (cfg.width,), (None, 'width'), True, cfg.compute_dtype, table_init, name='project')
      x = project(x)
    return constrain(x, 'batch', None, 'stream'), token_table


def init_sinusoids(key, shape: tuple[int, ...], dtype=jnp.float32):
  """Initialize a table [rows, width] with interleaved sinusoidal positions; nothing is drawn.

  Wavelengths grow from 2 pi towards 20,000 pi (Vaswani et al. 2017, section 3.5).
  """
  del key
  rows, width = shape
  angles = np.arange(rows)[:, None] / 10_000 ** (2 * (np.arange(width) // 2) / width)
  return jnp.array(np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)), dtype)
