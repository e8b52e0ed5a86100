"""Disentangled attention: content and relative position meet in products of their own."""
import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.layers.cpu import keep_mask
from plm_jax.layers.dense import Dense, named
from plm_jax.layers.distances import Distances
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.positions import NoPosition


@dataclasses.dataclass(frozen=True)
class Disentangled(NoPosition):
  """Content to position and position to content, beside content to content (He et al. 2021, section 3.1).

  With k_r(d) and q_r(d) the projected embedding of distance d = query - key, a logit is q k + q k_r(d) + q_r(d) k
  (equation 4), divided by the root of head size times the number of products. A key's own term has the distance from
  the same query, as in the released code; the paper writes it as one from the key.

  Both terms multiply by the embedding of every distance in order, which a shift then lines up with keys: no entry is
  looked up, and nothing of [Q, K, D] is made. Where the context has `places` [B, M], the queries stand at these keys.
  """

  limits = within(span='[1, inf)')

  terms: tuple[Literal['c2p', 'p2c'], ...] = ('c2p', 'p2c')
  """products with positions: content to position, position to content"""
  span: int = 512
  """tokens: longer distances count as this one"""
  buckets: int = 0
  """rows of the table for each direction: half are single distances, half logarithmic up to `span`; 0: all single"""
  shared: bool = False
  """distances are projected as tokens are, by the layer's own query and key; False: by projections of their own"""
  norm: bool = False
  """normalise the embeddings of distances, with gain and bias where the block's norms have no parameters"""
  exact: bool = False
  """the table has a row for each bucket and no more: one less, of a distance that none reaches (LTG-BERT)"""

  def conflict(self, option):
    """Says that the row would be missed."""
    return f'{option("exact")} is of {option("buckets")}, got none' if self.exact and not self.buckets else None

  @property
  def size(self) -> int:
    """Rows of the table for each direction."""
    return self.buckets or self.span

  def context(self, scope, cfg, q_positions, k_positions):
    """Returns relative [2 size, D], the embeddings of distances. They count tokens of the row, whatever its
    positions."""
    del q_positions, k_positions
    if not self.terms:
      return {}
    table = scope.param('relative', named(cfg.init.plain, (None, 'width')), (2 * self.size - self.exact, cfg.width),
                        jnp.float32)
    norm = NormConfig(eps=cfg.norm.eps) if cfg.norm.kind == 'plain' else cfg.norm
    normal = Norm(norm, cfg.compute, name='relative_norm') if self.norm else lambda x: x.astype(cfg.compute)
    return {'relative': normal(table)}

  def interact(self, scope, cfg, q, k, context, query, key):
    """Returns q and k as they are, and the projected embeddings of all distances between them."""
    if not self.terms:
      return q, k, None
    table, keys, places = context['relative'], k.shape[1], context.get('places')
    if scope.has_rng('dropout') and cfg.dropout:
      keep = keep_mask(scope.make_rng('dropout'), table.shape, cfg.dropout)
      table = jnp.where(keep, table / (1 - cfg.dropout), jnp.zeros((), table.dtype))

    def embedded(name, own, bias, distances):
      project = own if self.shared else Dense(
          (cfg.heads, cfg.head_dim), ('width', 'heads', None), bias, cfg.compute, cfg.init.plain, name=name)
      rows = self.rows(distances)
      return project(table[rows]) if len(rows) <= len(table) else project(table)[rows]

    distances, biased = np.arange(keys, -keys, -1), scope.cfg.bias
    of_keys = embedded('relative_key', key, 'key' in biased, distances) if 'c2p' in self.terms else None
    of_queries = embedded('relative_query', query, 'query' in biased, -distances) if 'p2c' in self.terms else None
    return q, k, Distances(of_keys, of_queries, (1 + len(self.terms)) ** -0.5, places)

  def rows(self, distances: np.ndarray) -> np.ndarray:
    """Returns the rows of the table for distances of any shape."""
    if self.buckets:
      distances = log_buckets(distances, self.buckets, self.span)
    return np.clip(distances + self.size, 0, 2 * self.size - 1) - self.exact


def log_buckets(distances: np.ndarray, buckets: int, span: int) -> np.ndarray:
  """Distances below buckets / 2 stay; longer ones share, up to `span` - 1, what is left up to `buckets` - 1.

  In float32 and rounded up, as in the released code: at the edges of buckets that decides.
  """
  half = np.float32(buckets // 2)
  size = np.maximum(np.abs(distances), half).astype(np.float32)
  share = np.log(size / half) / np.log(np.float32((span - 1) / half))
  far = np.sign(distances) * (np.ceil(share * (half - 1)) + half)
  return np.where(np.abs(distances) <= half, distances, far).astype(np.int32)
