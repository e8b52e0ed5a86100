"""JAX's default random generator, Threefry, with its rounds unrolled, for CPUs.

On a CPU, JAX computes the generator in a loop over the rounds, each of which reads and writes all
words. Unrolled, the rounds are one loop over words, which takes a quarter of the time. The random
numbers are the same.
"""
import functools
import math
from typing import Any

import jax
from jax.extend.random import define_prng_impl
import jax.numpy as jnp

THREEFRY = 'threefry2x32'
"""name of JAX's default random number generator"""
PARTITIONABLE = 'jax_threefry_partitionable'
"""setting of JAX: the number of a random word's block is the position of the word"""
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24)) * 2 + ((13, 15, 26, 6),)
"""rotations of the rounds, in groups after which the key is added (Salmon et al. 2011, table 2)"""
PARITY = 0x1BD11BDA
"""constant of the third word of the extended key"""


def unroll_generator(key):
  """Return a key that draws the same random numbers with unrolled rounds.

  `jax.random.poisson` takes only keys of JAX's own generators, and keys of two generators cannot be
  concatenated.

  Args:
    key: typed key, of any shape.

  Returns:
    The key itself where it is not a key of Threefry with JAX's default settings.
  """
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or not is_default(key):
    return key
  return jax.random.wrap_key_data(jax.random.key_data(key), impl=UNROLLED)


def is_default(key) -> bool:
  """Tell whether a key is of Threefry, and random words are numbered as JAX does by default."""
  return jax.random.key_impl(key) == THREEFRY and getattr(jax.config, PARTITIONABLE)


@functools.partial(jax.jit, static_argnums=1)
def draw_words(key_data, shape: tuple[int, ...]):
  """Draw random words [*shape], the same as `jax.random.bits`.

  Each word is the exclusive or of the two words of a block.

  Args:
    key_data: the key, uint32 [2].
    shape: of the words, fewer than 2^32.
  """
  high, low = hash_block(key_data, jnp.zeros((), jnp.uint32), count_positions(shape))
  return high ^ low


def count_positions(shape: tuple[int, ...]):
  """Return the position of each element of an array [*shape], uint32."""
  position = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):
    stride = jnp.uint32(math.prod(shape[axis + 1:]))
    position += stride * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
  return position


def hash_block(key_data, high, low) -> tuple[Any, Any]:
  """Compute Threefry-2x32 of blocks with 20 rounds (Salmon et al. 2011, section 4.2).

  Args:
    key_data: the key, uint32 [2].
    high: first word of each block, uint32, in a shape that broadcasts with `low`.
    low: second word of each block, uint32.

  Returns:
    (first word, second word) of each result.
  """
  first, second = key_data
  keys = first, second, first ^ second ^ jnp.uint32(PARITY)
  high, low = jnp.broadcast_arrays(high + keys[0], low + keys[1])
  for group, rotations in enumerate(ROTATIONS, 1):
    for rotation in rotations:
      high += low
      low = high ^ ((low << rotation) | (low >> (32 - rotation)))
    high += keys[group % 3]
    low += keys[(group + 1) % 3] + jnp.uint32(group)
  return high, low


def draw_bits(key_data, bit_width: int, shape: tuple[int, ...]):
  """Draw random bits [*shape], as a generator of JAX does."""
  if bit_width == 32 and math.prod(shape) < 1 << 32:
    return draw_words(key_data, shape)
  key = jax.random.wrap_key_data(key_data, impl=THREEFRY)
  return jax.random.bits(key, shape, f'uint{bit_width}')


def split(key_data, shape: tuple[int, ...]):
  """Derive keys [*shape, 2] from a key [2]."""
  return jnp.stack(hash_block(key_data, jnp.uint32(0), count_positions(shape)), -1)


def fold_in(key_data, data):
  """Derive a key [2] from a key [2] and a number below 2^32."""
  return jnp.stack(hash_block(key_data, jnp.uint32(0), jnp.asarray(data, jnp.uint32)))


def make_key(seed):
  """Make the key [2] of a seed."""
  return jax.random.key_data(jax.random.key(seed, impl=THREEFRY))


UNROLLED = define_prng_impl(
    key_shape=(2,), seed=make_key, split=split, random_bits=draw_bits, fold_in=fold_in,
    name='unrolled_threefry2x32', tag='unrolled')
"""The generator as JAX takes it"""
