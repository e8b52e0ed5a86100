"""Attention to neighbours alone: a row is cut into blocks of queries, each beside the keys that it can see.

What a layer costs then grows with the length of a row, not with its square. Blocks are rows to whatever attends, a
kernel or products written out; keys between two blocks are there twice.
"""
from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp

from plm_jax.layers.shifts import LANES


@dataclasses.dataclass(frozen=True)
class Band:
  """Which keys of its own row a query sees at most: so many places before its own, and behind it."""

  before: int
  after: int

  @property
  def block(self) -> int:
    """Returns how many queries are cut off together: at least as many as the band reaches to a side."""
    return tiles(max(self.before, self.after, 1))

  @property
  def span(self) -> int:
    """Returns how many keys stand beside a block."""
    return self.before + self.block + self.after

  def saves(self, length: int) -> bool:
    """Tells whether a row of so many tokens is worth cutting: to half of its products, or less."""
    return 2 * self.span <= length

  def within(self, mask, length: int):
    """Returns a mask [B|1, 1, 1|L, L] or None that is also the band's."""
    shown = self.shown(length, length)
    return shown if mask is None else mask & shown

  def shown(self, queries: int, keys: int, first: int = 0):
    """Returns bool [1, 1, Q, K], True in the band; first: how many keys stand before the first query's own."""
    return self.holds(jnp.arange(keys) - first - jnp.arange(queries)[:, None])[None, None]

  def holds(self, distance):
    """Tells whether a key so many places behind its query, before it if that is negative, is in the band."""
    return (distance >= -self.before) & (distance <= self.after)


def tiles(length: int) -> int:
  """Rounds a length up to tiles of 128, those of a TPU."""
  return -(-length // LANES) * LANES


def blocks(x, band: Band):
  """Cuts x [B, L, ...] into blocks of queries [B N, S, ...]; the last one is filled up with zeros."""
  x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % band.block)) + ((0, 0),) * (x.ndim - 2))
  return x.reshape(-1, band.block, *x.shape[2:])


def neighbours(x, band: Band):
  """Cuts x [B, L, ...] into what stands beside each block, [B N, span, ...]; zeros where the row has no more."""
  own = blocks(x, band).reshape(x.shape[0], -1, band.block, *x.shape[2:])
  def beside(part, *at):
    return jnp.pad(part, ((0, 0), at) + ((0, 0),) * (part.ndim - 2))
  parts = beside(own[:, :-1, band.block - band.before:], 1, 0), own, beside(own[:, 1:, :band.after], 0, 1)
  return jnp.concatenate(parts, 2).reshape(-1, band.span, *x.shape[2:])


def joined(y, rows: int, length: int):
  """Puts blocks [B N, S, ...] of so many rows together again, [B, L, ...]."""
  return y.reshape(rows, -1, *y.shape[2:])[:, :length]


def cut(mask, band: Band, rows: int, length: int):
  """Returns which keys beside each block its queries see, bool [B N, 1, S, span], of a mask [B|1, 1, 1|L, L] or None,
  for so many rows of this length."""
  if mask is None or mask.shape[2] == 1:
    keys = jnp.ones((rows, length), bool) if mask is None else jnp.broadcast_to(mask[:, 0, 0], (rows, length))
    seen = neighbours(keys, band)[:, None]
  else:
    rowed = blocks(jnp.broadcast_to(mask[:, 0], (rows, length, length)), band)
    rowed = jnp.pad(rowed, ((0, 0), (0, 0), (band.before, band.block + band.after)))
    starts = jnp.tile(jnp.arange(-(-length // band.block)) * band.block, rows)
    seen = jax.vmap(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, band.span, 1))(rowed, starts)
  return seen[:, None] & band.shown(band.block, band.span, band.before)


def numbered(rows, band: Band, length: int):
  """Returns numbers of blocks [B N], of the numbers of their rows [B]: no two are alike."""
  count = -(-length // band.block)
  return (rows[:, None] * count + jnp.arange(count)).reshape(-1)


def pairs(windows: Sequence[int], layers: int, length: int) -> int:
  """Counts the pairs of query and key of a row of `length` tokens in all layers: of a layer all, or with each query as
  many keys as its window has. windows: one a layer, in turn; 0: all.

  >>> pairs((0, 3), 3, 100)
  20300
  """
  sizes = [windows[number % len(windows)] if windows else 0 for number in range(layers)]
  return length * sum(min(length, size) if size else length for size in sizes)
