"""Logits by distance in a kernel for a TPU: lined up with keys, and taken back, in a core's fast memory.

What `distances.by_key` does with a whole row a program does tile by tile. 128 rows meet a window of a table of
distances that is 128 rows longer than what they go along, and row i of the products is turned by i lanes. Content to
position has queries as these rows; position to content has keys, and what comes of it is transposed.

Of Mosaic (libtpu 0.0.42) a turn by another number of lanes in each row is to be had as a roll with a stride, to the
right alone, on v5e and later; as a look-up of lanes, either way, from v4 on, which takes longer; and from rolls of some
of the rows.
"""
import itertools
from typing import Literal

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

LANES = 128
BITS = 1, 2, 4  # of a row's number among the eight that lie in one register
Means = Literal['rolls', 'look-ups', 'strides']
TURN: dict[Means, int] = {'rolls': 1 + 2 * len(BITS), 'look-ups': 1, 'strides': 1}
"""what is done with a number that is turned"""


def lined_up(x, means: Means):
  """Turns x [128, n + 128] by distance into what stands by key, [128, n]: row i begins 128 - i lanes later."""
  row, lane = places()
  tiles = turned(x, 1, means)
  return jnp.concatenate([jnp.where(lane >= row, late, soon) for soon, late in itertools.pairwise(tiles)], 1)


def taken_back(x, means: Means):
  """Turns x [128, n], gradients by key, into gradients by distance, [128, n + 128]: `lined_up`, transposed."""
  row, lane = places()
  tiles, none = turned(x, -1, means), jnp.zeros((LANES, LANES), x.dtype)
  return jnp.concatenate(
      [jnp.where(lane + row < LANES, soon, late) for soon, late in zip([none, *tiles], [*tiles, none], strict=True)], 1)


def turned(x, way: int, means: Means) -> list[jax.Array]:
  """Parts x [128, n] into tiles [128, 128], and turns row i of each by i lanes, to the right (way 1) or left (-1)."""
  tiles = [x[:, at:at + LANES] for at in range(0, x.shape[1], LANES)]
  if means == 'rolls':
    return [by_rolls(tile, way) for tile in tiles]
  if means == 'strides' and way > 0:
    return [pltpu.roll(tile, 0, 1, stride=1, stride_axis=0) for tile in tiles]
  row, lane = places()
  found = (lane - way * row) & (LANES - 1)
  return [jnp.take_along_axis(tile, found, 1, mode='promise_in_bounds') for tile in tiles]


def by_rolls(x, way: int):
  """Turns row i of x [128, 128] by i lanes: eight rows together, and then those of each bit of their numbers."""
  row, parts = jax.lax.broadcasted_iota(jnp.int32, (8, LANES), 0), []
  for first in range(0, LANES, 8):
    part = x[first:first + 8]
    if first:
      part = pltpu.roll(part, way * first % LANES, 1)
    for bit in BITS:
      part = jnp.where((row & bit) != 0, pltpu.roll(part, way * bit % LANES, 1), part)
    parts.append(part)
  return jnp.concatenate(parts, 0)


def places() -> tuple[jax.Array, jax.Array]:
  """Returns the numbers of the rows and of the lanes of a tile."""
  row, lane = (jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in (0, 1))
  return row, lane
