"""DeBERTa's disentangled attention: separate products for content and relative position."""
import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from plm_jax.layers.dense import Dense, with_logical_axes
from plm_jax.layers.kernels.cpu import keep_mask
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.positions import NoPosition
from plm_jax.layers.relative_logits import RelativeLogits
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class Disentangled(NoPosition):
  """Disentangled attention (DeBERTa: He et al. 2021, section 3.1).

  To content-to-content logits it adds content-to-position and position-to-content terms. With
  k_r(d) and q_r(d) the projected embedding of distance d = query - key, a logit is q k + q k_r(d) +
  q_r(d) k (equation 4), divided by the root of head size times the number of products. The key's
  term uses the distance from the same query, as in the released code; the paper uses that from the
  key.

  Both terms multiply by the embeddings of all distances in order, and a relative shift aligns the
  products with keys. No embedding is looked up, and no array of [queries, keys, hidden] is made.
  With `places` [batch, M] in the context, the queries are at these positions among the keys.
  """

  uses_row_order = True
  limits = intervals(span='[1, inf)')

  terms: tuple[Literal['c2p', 'p2c'], ...] = ('c2p', 'p2c')
  """Products with positions: c2p is content to position, p2c is position to content."""
  span: int = 512
  """Longest distance, in tokens: longer distances count as this one."""
  buckets: int = 0
  """Rows of the table per direction: half are single distances, half are logarithmic buckets up to
  span; 0: a row per distance."""
  shared: bool = False
  """Distances are projected by the layer's own query and key projections, as tokens are; False: by
  projections of their own."""
  norm: bool = False
  """Normalize the embeddings of distances; the norm has scale and bias where the block's norms have
  no parameters."""
  exact: bool = False
  """The table has no row for the one distance that never occurs (LTG-BERT); needs buckets."""

  def conflict(self, option):
    if self.exact and not self.buckets:
      return f'{option("exact")} is of {option("buckets")}, got none'
    if self.buckets == 1:
      return f'{option("buckets")} is 0, or 2 or more, got 1'
    # The logarithm of (span - 1) / half is a divisor.
    half = self.buckets // 2
    if self.buckets and self.span in (1, half + 1):
      return (f'{option("buckets")} {self.buckets} are logarithmic from {half} tokens on, so that '
              f'{option("span")} is {half + 2} or more, got {self.span}')
    return None

  @property
  def size(self) -> int:
    """Rows of the table per direction."""
    return self.buckets or self.span

  def context(self, scope, cfg, q_positions, k_positions):
    """Return the embeddings of distances, `relative` [2 * size, hidden].

    Distances count tokens of the row, whatever the positions are.
    """
    del q_positions, k_positions
    if not self.terms:
      return {}
    init = with_logical_axes(cfg.init.table_initializer, (None, 'width'))
    shape = 2 * self.size - self.exact, cfg.width
    table = scope.param('relative', init, shape, jnp.float32)
    if not self.norm:
      return {'relative': table.astype(cfg.compute_dtype)}
    norm = NormConfig(eps=cfg.norm.eps) if cfg.norm.kind == 'plain' else cfg.norm
    return {'relative': Norm(norm, cfg.compute_dtype, name='relative_norm')(table)}

  def interact(self, scope, cfg, q, k, context, query, key):
    if not self.terms:
      return q, k, None
    table, num_keys = context['relative'], k.shape[1]
    if scope.has_rng('dropout') and cfg.dropout:
      keep = keep_mask(scope.make_rng('dropout'), table.shape, cfg.dropout)
      table = jnp.where(keep, table / (1 - cfg.dropout), jnp.zeros((), table.dtype))

    def project_distances(name, own_projection, bias, distances):
      project = own_projection if self.shared else Dense(
          (cfg.heads, cfg.head_dim), ('width', 'heads', None), bias, cfg.compute_dtype,
          cfg.init.table_initializer, name=name)
      rows = self.table_rows(distances)
      # The smaller of the two is projected: the rows that are needed, or the table.
      return project(table[rows]) if len(rows) <= len(table) else project(table)[rows]

    distances, biases = np.arange(num_keys, -num_keys, -1), scope.cfg.bias
    keys = queries = None
    if 'c2p' in self.terms:
      keys = project_distances('relative_key', key, 'key' in biases, distances)
    if 'p2c' in self.terms:
      queries = project_distances('relative_query', query, 'query' in biases, -distances)
    share = (1 + len(self.terms)) ** -0.5
    return q, k, RelativeLogits(keys, queries, share, context.get('places'))

  def table_rows(self, distances: np.ndarray) -> np.ndarray:
    """Return the rows of the table for distances of any shape."""
    if self.buckets:
      distances = log_buckets(distances, self.buckets, self.span)
    return np.clip(distances + self.size, 0, 2 * self.size - 1) - self.exact


def log_buckets(distances: np.ndarray, buckets: int, span: int) -> np.ndarray:
  """Map distances to logarithmic buckets.

  Distances below buckets / 2 are kept. Longer ones, up to span - 1, share the remaining buckets up
  to buckets - 1. In float32 and rounded up, as in the released code: at the edges of buckets the
  rounding decides.
  """
  half = np.float32(buckets // 2)
  size = np.maximum(np.abs(distances), half).astype(np.float32)
  share = np.log(size / half) / np.log(np.float32((span - 1) / half))
  far = np.sign(distances) * (np.ceil(share * (half - 1)) + half)
  return np.where(np.abs(distances) <= half, distances, far).astype(np.int32)
