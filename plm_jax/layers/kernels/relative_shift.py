"""Relative shift inside a TPU kernel: align logits by distance with keys, in fast memory.

A program does tile by tile what `relative_logits.shift_logits` does with a complete row. 128 rows
are multiplied with a window of the table of distances that is 128 rows longer than the other
operand, and row i of the products is rotated by i lanes. For content to position these rows are
queries; for position to content they are keys, and the result is transposed. Queries at any
positions (XLNet's query stream) are multiplied with the complete table, and each row is sliced from
a lane of its own.

Mosaic (libtpu 0.0.42) rotates each row by another number of lanes in three ways: a strided roll, to
the right only, on v5e and later; a look-up of lanes, in both directions, on v4 and later, which is
slower; and rolls of some of the rows.
"""
import itertools
from typing import Literal

import jax
import jax.numpy as jnp

LANES = 128
BITS = 1, 2, 4  # of a row's number among the eight rows of one register
PLACE_BITS = 1, 2, 4, 8, 16, 32, 64  # of the number of a lane
RotateMethod = Literal['rolls', 'look-ups', 'strides']
ROTATE_COST: dict[RotateMethod, int] = {'rolls': 1 + 2 * len(BITS), 'look-ups': 1, 'strides': 1}
"""Vector operations per number that is rotated."""
PLACE_ROTATE_COST: dict[RotateMethod, int] = {
    'rolls': 2 * len(PLACE_BITS), 'look-ups': 1, 'strides': 1}
"""The same where each row is rotated by a number of its own."""


def shift_to_keys(x, method: RotateMethod):
  """Align x [128, n + 128] by distance with keys, [128, n]: row i begins 128 - i lanes later."""
  row, lane = tile_indices()
  tiles = rotate_rows(x, 1, method)
  shifted = [jnp.where(lane >= row, after, own) for own, after in itertools.pairwise(tiles)]
  return jnp.concatenate(shifted, 1)


def shift_to_distances(x, method: RotateMethod):
  """Turn gradients by key, x [128, n], into gradients by distance, [128, n + 128].

  This is the transpose of `shift_to_keys`.
  """
  row, lane = tile_indices()
  tiles, zeros = rotate_rows(x, -1, method), jnp.zeros((LANES, LANES), x.dtype)
  pairs = itertools.pairwise([zeros, *tiles, zeros])
  shifted = [jnp.where(lane + row < LANES, before, own) for before, own in pairs]
  return jnp.concatenate(shifted, 1)


def slice_rows(x, starts, num_keys: int, method: RotateMethod):
  """Slice `num_keys` lanes of each row of x [128, n], from a lane of its own.

  Args:
    x: [128, n]; past its end there are zeros.
    starts: [128, 128] int32, the first lane of each row, the same in all columns.
    num_keys: lanes of the result.
    method: the instruction that rotates.
  """
  tiles = [x[:, start:start + LANES] for start in range(0, x.shape[1], LANES)]
  zeros, needed = jnp.zeros((LANES, LANES), x.dtype), num_keys // LANES + 1
  tiles += [zeros] * (needed - len(tiles))

  def tile_at(number):
    return tiles[number] if number < len(tiles) else zeros

  for bit in reversed(tile_bits(x)):
    moves = (starts & (bit * LANES)) != 0
    tiles = [jnp.where(moves, tile_at(number + bit), tile_at(number))
             for number in range(needed + bit - 1)]
  _, lane = tile_indices()
  places = starts & (LANES - 1)
  tiles = [rotate_by_places(tile, places, -1, method) for tile in tiles[:needed]]
  pairs = itertools.pairwise(tiles)
  sliced = [jnp.where(lane + places < LANES, own, after) for own, after in pairs]
  return jnp.concatenate(sliced, 1)


def place_rows(x, starts, length: int, method: RotateMethod):
  """Place each row of x [128, n] in zeros, from a lane of its own: [128, length].

  This is the transpose of `slice_rows`.
  """
  tiles = [x[:, start:start + LANES] for start in range(0, x.shape[1], LANES)]
  zeros = jnp.zeros((LANES, LANES), x.dtype)
  _, lane = tile_indices()
  places = starts & (LANES - 1)
  tiles = [zeros, *[rotate_by_places(tile, places, 1, method) for tile in tiles], zeros]
  tiles = [jnp.where(lane < places, before, own) for before, own in itertools.pairwise(tiles)]

  def tile_at(number):
    return tiles[number] if 0 <= number < len(tiles) else zeros

  needed = length // LANES
  for bit in tile_bits(jax.ShapeDtypeStruct((LANES, length), x.dtype)):
    moves = (starts & (bit * LANES)) != 0
    tiles = [jnp.where(moves, tile_at(number - bit), tile_at(number))
             for number in range(min(len(tiles) + bit, needed))]
  tiles += [zeros] * (needed - len(tiles))
  return jnp.concatenate(tiles[:needed], 1)


def tile_bits(x) -> list[int]:
  """Return the bits of the number of a tile of x [128, n]."""
  return [1 << bit for bit in range((x.shape[1] // LANES - 1).bit_length())]


def rotate_by_places(tile, places, direction: int, method: RotateMethod):
  """Rotate each row of a tile [128, 128] by a number of lanes of its own, places [128, 128]."""
  if method != 'rolls':
    _, lane = tile_indices()
    source = (lane - direction * places) & (LANES - 1)
    return jnp.take_along_axis(tile, source, 1, mode='promise_in_bounds')
  from jax.experimental.pallas import tpu as pltpu
  for bit in PLACE_BITS:
    tile = jnp.where((places & bit) != 0, pltpu.roll(tile, direction * bit % LANES, 1), tile)
  return tile


def rotate_rows(x, direction: int, method: RotateMethod) -> list[jax.Array]:
  """Split x [128, n] into tiles [128, 128], and rotate row i of each by i lanes.

  Args:
    x: [128, n].
    direction: 1: to the right, -1: to the left.
    method: the instruction that rotates.
  """
  tiles = [x[:, start:start + LANES] for start in range(0, x.shape[1], LANES)]
  from jax.experimental.pallas import tpu as pltpu  # takes time, and only TPUs need it
  if method == 'rolls':
    return [rotate_by_rolls(tile, direction) for tile in tiles]
  if method == 'strides' and direction > 0:
    return [pltpu.roll(tile, 0, 1, stride=1, stride_axis=0) for tile in tiles]
  row, lane = tile_indices()
  source = (lane - direction * row) & (LANES - 1)
  return [jnp.take_along_axis(tile, source, 1, mode='promise_in_bounds') for tile in tiles]


def rotate_by_rolls(x, direction: int):
  """Rotate row i of x [128, 128] by i lanes: eight rows at once, then by the bits of their
  numbers."""
  from jax.experimental.pallas import tpu as pltpu
  row, parts = jax.lax.broadcasted_iota(jnp.int32, (8, LANES), 0), []
  for first in range(0, LANES, 8):
    part = x[first:first + 8]
    if first:
      part = pltpu.roll(part, direction * first % LANES, 1)
    for bit in BITS:
      part = jnp.where((row & bit) != 0, pltpu.roll(part, direction * bit % LANES, 1), part)
    parts.append(part)
  return jnp.concatenate(parts, 0)


def tile_indices() -> tuple[jax.Array, jax.Array]:
  """Return the numbers of the rows and of the lanes of a tile, [128, 128] each."""
  row = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
  lane = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1)
  return row, lane
