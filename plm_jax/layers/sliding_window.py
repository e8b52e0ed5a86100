"""Sliding-window (local) attention: blocks of queries, each with the keys in its window.

The cost of a layer then grows with the length of a row, not with its square. Attention treats the
blocks as rows, in a kernel or in plain products; keys at the edge of two blocks are copied.
"""
from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp

from plm_jax.layers.kernels.relative_shift import LANES


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
  """Sliding window: a query attends to so many keys of its row before and after its own place."""

  before: int
  after: int

  @property
  def block_size(self) -> int:
    """Number of queries per block: at least as many as the window reaches to one side."""
    return round_to_tiles(max(self.before, self.after, 1))

  @property
  def span(self) -> int:
    """Number of keys per block of queries."""
    return self.before + self.block_size + self.after

  def saves(self, length: int) -> bool:
    """Tell whether blocks save half of the products of a row of `length` tokens, or more."""
    return 2 * self.span <= length

  def restrict(self, mask, length: int):
    """Restrict an attention mask [batch or 1, 1, 1 or length, length], or None, to the window."""
    window = self.window_mask(length, length)
    return window if mask is None else mask & window

  def window_mask(self, queries: int, keys: int, offset: int = 0):
    """Build the mask bool [1, 1, queries, keys], True inside the window.

    Args:
      queries: number of queries.
      keys: number of keys.
      offset: number of keys before the place of the first query.
    """
    distance = jnp.arange(keys) - offset - jnp.arange(queries)[:, None]
    return self.contains(distance)[None, None]

  def contains(self, distance):
    """Tell whether keys at these distances, key minus query, are inside the window."""
    return (distance >= -self.before) & (distance <= self.after)


def resize_windows(windows: Sequence[int], length: int, new: int) -> tuple[int, ...]:
  """Scale window sizes from a model of `length` tokens to one of `new` tokens; 0 stays 0.

  A window has two tokens at least: with one, a token attends to nothing but itself.
  """
  return tuple(size and max(2, -(-size * new // length)) for size in windows)


def round_to_tiles(length: int) -> int:
  """Round a length up to whole tiles of 128 lanes."""
  return -(-length // LANES) * LANES


def split_queries(x, window: SlidingWindow):
  """Split rows into blocks of queries.

  Args:
    x: [batch, length, ...].
    window: the sliding window.

  Returns:
    [batch * blocks, block_size, ...]; the last block of a row is padded with zeros.
  """
  padding = [(0, 0), (0, -x.shape[1] % window.block_size)] + [(0, 0)] * (x.ndim - 2)
  x = jnp.pad(x, padding)
  return x.reshape(-1, window.block_size, *x.shape[2:])


def neighbor_keys(x, window: SlidingWindow):
  """Gather the keys, or values, in the window of each block of queries.

  Args:
    x: [batch, length, ...].
    window: the sliding window.

  Returns:
    [batch * blocks, span, ...]; zeros outside of the row.
  """
  blocks = split_queries(x, window)
  own = blocks.reshape(x.shape[0], -1, *blocks.shape[1:])  # [batch, blocks, block_size, ...]

  def pad_blocks(part, before, after):
    return jnp.pad(part, [(0, 0), (before, after)] + [(0, 0)] * (part.ndim - 2))

  previous = pad_blocks(own[:, :-1, window.block_size - window.before:], 1, 0)
  following = pad_blocks(own[:, 1:, :window.after], 0, 1)
  joined = jnp.concatenate([previous, own, following], 2)  # [batch, blocks, span, ...]
  return joined.reshape(-1, window.span, *x.shape[2:])


def join_blocks(y, batch: int, length: int):
  """Join blocks of queries [batch * blocks, block_size, ...] into rows [batch, length, ...]."""
  return y.reshape(batch, -1, *y.shape[2:])[:, :length]


def block_mask(mask, window: SlidingWindow, batch: int, length: int):
  """Build the attention mask of blocks of queries.

  Args:
    mask: [batch or 1, 1, 1 or length, length] bool, or None.
    window: the sliding window.
    batch: number of rows.
    length: tokens per row.

  Returns:
    Bool [batch * blocks, 1, block_size, span].
  """
  size, span = window.block_size, window.span
  if mask is None or mask.shape[2] == 1:
    keys = jnp.broadcast_to(True if mask is None else mask[:, 0, 0], (batch, length))
    visible = neighbor_keys(keys, window)[:, None]
  else:
    rows = split_queries(jnp.broadcast_to(mask[:, 0], (batch, length, length)), window)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (window.before, size + window.after)))
    starts = jnp.tile(jnp.arange(-(-length // size)) * size, batch)

    def slice_span(x, start):
      return jax.lax.dynamic_slice_in_dim(x, start, span, 1)

    visible = jax.vmap(slice_span)(rows, starts)
  return visible[:, None] & window.window_mask(size, span, window.before)


def count_pairs(windows: Sequence[int], layers: int, length: int) -> int:
  """Count the pairs of query and key of one row in all layers, for FLOPs.

  >>> count_pairs((0, 3), 3, 100)
  20300

  Args:
    windows: keys per query of each layer, cyclically; 0: all.
    layers: number of layers.
    length: tokens of the row.
  """
  pairs = 0
  for number in range(layers):
    size = windows[number % len(windows)] if windows else 0
    pairs += length * min(length, size or length)
  return pairs
