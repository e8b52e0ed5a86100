"""Logits by distance: a row's products with the embeddings of all distances in order, which a shift lines up with keys.

No entry is looked up, and nothing of [Q, K, D] is made.
"""
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Distances(NamedTuple):
  """What a scheme gives in place of a bias where it is two products: of this a bias is written out, or a kernel makes
  what it needs in a core's fast memory."""

  keys: Any
  """[2 K, H, A], of the distances query - key from K down: content to position; None: there is none"""
  queries: Any
  """[2 K, H, A], of the distances from -K up: position to content; None: there is none"""
  share: Any
  """of the scale, on content to content too: the products are summed; a number"""
  places: Any = None
  """[B, M], the keys at which the queries stand; None: queries are as many as keys, one at each"""

  @property
  def terms(self) -> int:
    """Products with distances."""
    return (self.keys is not None) + (self.queries is not None)

  def written(self, q, k, scale: float):
    """Returns q [B, Q, H, A], scaled for a sum of products, and the bias [B, H, Q, K], which is added to logits times
    the scale."""
    number, places = k.shape[1], self.places
    factor = scale * self.share
    def product(letters, x, relative):
      return jnp.einsum(letters, x, relative, preferred_element_type=jnp.float32) * factor
    bias = 0
    if self.keys is not None:
      by_distance = product('bqha,rha->bhqr', q, self.keys)
      bias += by_key(by_distance, number) if places is None else windows(by_distance, places, number)
    if self.queries is not None:
      by_query = by_key(product('bkha,rha->bhkr', k, self.queries), number).swapaxes(2, 3)
      bias += by_query if places is None else jnp.take_along_axis(by_query, places[:, None, :, None], 2)
    return q * jnp.asarray(self.share, q.dtype), bias


def by_key(by_distance, keys: int, places=None):
  """Moves [B, H, Q, R] by distance, from R - Q down, to [B, H, Q, K] by key: row q begins Q - q entries later.

  For queries one after another that is no look-up: with the first Q entries gone, rows that are one entry shorter
  begin where they should (Dai et al. 2019, appendix B). `places` [B, M] are those of the last M of the rows.
  """
  more = 0 if places is None else places.shape[1]
  size = by_distance.shape[2] - more
  first = by_distance[:, :, :size]
  rows, heads, _, distances = first.shape
  first = first.reshape(rows, heads, size * distances)[:, :, size:]
  first = first.reshape(rows, heads, size, distances - 1)[..., :keys]
  if places is None:
    return first
  def cut(row, place):
    return jax.lax.dynamic_slice_in_dim(row, size - place, keys, axis=1)  # [H, R] -> [H, K]
  others = jax.vmap(jax.vmap(cut, (1, 0), 1))(by_distance[:, :, size:], places)
  return jnp.concatenate([first, others], 2)


def windows(by_distance, places, keys: int):
  """Looks up, of [B, H, M, 2 K] by distance, from K down, and places [B, M], what stands by key -> [B, H, M, K]."""
  def cut(row, place):
    return jax.lax.dynamic_slice_in_dim(row, keys - place, keys, axis=1)  # [H, 2 K] -> [H, K]
  return jax.vmap(jax.vmap(cut, (1, 0), 1))(by_distance, places)
