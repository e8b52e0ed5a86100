"""Relative logits: attention logits by relative distance, aligned with keys by a relative shift.

A row is multiplied with the embeddings of all distances in order; a shift then lines up the
products with the keys. No embedding is looked up, and no array of [queries, keys, hidden] is made.
"""
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class RelativeLogits(NamedTuple):
  """Attention logits that are products with embeddings of distances, in place of a bias.

  `to_bias` writes them out. A kernel computes the parts that it needs in a core's fast memory.
  """

  keys: Any
  """[2 * keys, heads, head_size], embeddings of the distances query - key from `keys` downwards,
  for the content-to-position term; None: there is no such term."""
  queries: Any
  """[2 * keys, heads, head_size], embeddings of the distances from -`keys` upwards, for the
  position-to-content term; None: there is no such term."""
  share: Any
  """A number: factor on the attention scale, of content-to-content logits too, because the products
  are summed."""
  places: Any = None
  """[batch, queries], positions of the queries among the keys; None: query i is at key i."""

  @property
  def terms(self) -> int:
    """Number of products with embeddings of distances."""
    return (self.keys is not None) + (self.queries is not None)

  def to_bias(self, q, k, scale: float):
    """Write the logits out as a bias.

    Args:
      q: [batch, queries, heads, head_size].
      k: [batch, keys, heads, head_size].
      scale: the attention scale.

    Returns:
      (q scaled for a sum of products, bias [batch, heads, queries, keys], which is added to the
      scaled logits).
    """
    num_keys, places = k.shape[1], self.places
    factor = scale * self.share

    def product(letters, x, relative):
      return jnp.einsum(letters, x, relative, preferred_element_type=jnp.float32) * factor

    bias = 0
    if self.keys is not None:
      by_distance = product('bqha,rha->bhqr', q, self.keys)
      if places is None:
        bias += shift_logits(by_distance, num_keys)
      else:
        bias += slice_distances(by_distance, num_keys - places, num_keys)
    if self.queries is not None:
      by_distance = product('bkha,rha->bhkr', k, self.queries)
      by_query = shift_logits(by_distance, num_keys).swapaxes(2, 3)
      if places is None:
        bias += by_query
      else:
        bias += jnp.take_along_axis(by_query, places[:, None, :, None], 2)
    return q * jnp.asarray(self.share, q.dtype), bias


class TransformerXLLogits(NamedTuple):
  """Attention logits of Transformer-XL's positions and XLNet's segments, in place of a bias.

  A logit is ((q + w) k + (q + r) R[distance] + (q + s) S[same segment or not]) times the scale.
  `to_bias` writes the last two terms out. A kernel computes them in a core's fast memory.
  """

  table: Any
  """[keys + queries, heads, head_size], embeddings R of the distances query - key from `keys`
  downwards, for consecutive queries, which are the last of the keys. With `backward`
  [2, keys + queries, heads, head_size]: the second table is that of the opposite distances."""
  content_bias: Any
  """[heads, head_size], w."""
  position_bias: Any
  """[heads, head_size], r."""
  type_bias: Any = None
  """[heads, head_size], s; None: there are no segments."""
  types: Any = None
  """[2, heads, head_size], embeddings S of the same and of another segment; None with `same`."""
  same: Any = None
  """[batch, queries, keys] bool, True where the segments of query and key are the same; None:
  there are no segments."""
  backward: Any = None
  """[batch] bool, True for rows whose text is reversed; None: no row is."""
  places: Any = None
  """[batch, M], positions of M more queries, which follow the consecutive ones; None: there are
  none."""

  terms = 1
  """Number of products with embeddings of distances."""

  def to_bias(self, q, k, scale: float):
    """Write the logits of distances and segments out as a bias.

    Args:
      q: [batch, queries, heads, head_size], without a bias.
      k: [batch, keys, heads, head_size].
      scale: the attention scale.

    Returns:
      (q with the content bias, bias [batch, heads, queries, keys], which is added to the scaled
      logits).
    """
    def add_head_bias(bias):
      return q + bias.astype(q.dtype)

    def product(letters, x, y):
      return jnp.einsum(letters, x, y, preferred_element_type=jnp.float32) * scale

    if self.backward is None:
      by_distance = product('bqha,rha->bhqr', add_head_bias(self.position_bias), self.table)
    else:
      ahead, back = self.table
      by_row = jnp.where(self.backward[:, None, None, None], back, ahead)
      by_distance = product('bqha,brha->bhqr', add_head_bias(self.position_bias), by_row)
    bias = shift_logits(by_distance, k.shape[1], self.places)
    if self.same is not None:
      same, other = product(
          'bqha,sha->sbhq', add_head_bias(self.type_bias), self.types.astype(q.dtype))
      bias += jnp.where(self.same[:, None], same[..., None], other[..., None])
    return add_head_bias(self.content_bias), bias


def shift_logits(by_distance, num_keys: int, places=None):
  """Relative shift of logits: from distances to keys (Dai et al. 2019, appendix B).

  Row q of the result begins Q - q entries later. For consecutive queries that takes no look-up:
  with the first Q entries removed, rows that are one entry shorter begin where they should.

  Args:
    by_distance: [batch, heads, queries, R], for distances from R - queries downwards.
    num_keys: number of keys.
    places: [batch, M], positions of the last M queries; None: all queries are consecutive.

  Returns:
    [batch, heads, queries, num_keys].
  """
  extra = 0 if places is None else places.shape[1]
  size = by_distance.shape[2] - extra
  consecutive = by_distance[:, :, :size]
  batch, heads, _, distances = consecutive.shape
  # Rows that are one element shorter shift each query by one more distance.
  flat = consecutive.reshape(batch, heads, size * distances)[:, :, size:]
  shifted = flat.reshape(batch, heads, size, distances - 1)[..., :num_keys]
  if places is None:
    return shifted
  others = slice_distances(by_distance[:, :, size:], size - places, num_keys)
  return jnp.concatenate([shifted, others], 2)


def slice_distances(by_distance, starts, num_keys: int):
  """Align logits by distance with keys, for queries at any positions.

  Args:
    by_distance: [batch, heads, M, distances].
    starts: [batch, M], index of the distance of each query to the first key.
    num_keys: number of keys.

  Returns:
    [batch, heads, M, num_keys].
  """
  def slice_row(row, start):  # [H, distances] -> [H, K]
    return jax.lax.dynamic_slice_in_dim(row, start, num_keys, axis=1)

  return jax.vmap(jax.vmap(slice_row, (1, 0), 1))(by_distance, starts)
