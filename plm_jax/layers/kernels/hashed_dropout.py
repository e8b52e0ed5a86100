"""Dropout masks from a hash instead of stored random bits, for the TPU attention kernel.

A mask depends on (seed, row, head, query, key) alone, so it is the same on any mesh, for any
blocks, and in both passes.
"""
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.layers.kernels.relative_shift import LANES


def hashed_keep_mask(seed, row, head, query, num_keys: int, rate: float,
                     window: tuple[Any, int] | None = None):
  """Compute a dropout mask by a hash: True with probability 1 - rate, to 2^-16.

  A number of the query and one of the key, each hashed with (seed, row, head), are combined into a
  word of 32 bits, whose halves decide for two keys. Most of the cost of dropout on the vector unit
  is mixing that word. `mix_bits` is Murmur3's finalizer (Appleby, smhasher).

  Args:
    seed: two int32.
    row: int32, number of the row, in a shape that broadcasts.
    head: int32, number of the head, in a shape that broadcasts.
    query: int32 [.., queries, 1], numbers of the queries.
    num_keys: number of keys of the row.
    rate: dropout rate.
    window: (first key, number of keys) where only some keys are needed.

  Returns:
    Bool [.., queries, keys].
  """
  one = mix_bits(seed[0] + row * jnp.int32(-1640531527)) ^ mix_bits(head + jnp.int32(0x3C6EF372))
  two = mix_bits(seed[1] ^ mix_bits(one + row))
  # Whole tiles, so that the halves are adjacent without being moved.
  half = min(num_keys, -(-num_keys // (2 * LANES)) * LANES)

  def hash_words(key):
    x = mix_bits(query + one) + mix_bits(key * jnp.int32(-1640531527) + two)
    # By sums and shifts (Jenkins 1997, one-at-a-time): TPU v3 and v4 compute a product of 32-bit
    # numbers from many others.
    for left, right in ((10, 6), (3, 11), (15, 16)):
      x += x << jnp.int32(left)
      x ^= jax.lax.shift_right_logical(x, jnp.int32(right))
    return x

  def split_halves(word):
    return word & jnp.int32(0xFFFF), jax.lax.shift_right_logical(word, jnp.int32(16))

  if window is None:
    words = hash_words(jax.lax.broadcasted_iota(jnp.int32, (1, half), 1))
    early, late = split_halves(words)
    bits = [early]
    if num_keys > half:
      bits.append(late[..., :num_keys - half])
    bits = jnp.concatenate(bits, -1)
  else:
    key = jax.lax.broadcasted_iota(jnp.int32, (1, window[1]), 1) + window[0]
    early, late = split_halves(hash_words(jnp.where(key < half, key, key - half)))
    bits = jnp.where(key < half, early, late)
  return bits >= jnp.int32(round(rate * (1 << 16)))


def mix_bits(x):
  """Mix the bits of int32 x (Murmur3's finalizer)."""
  for shift, factor in ((16, -2048144789), (13, -1028477387)):
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(shift))) * jnp.int32(factor)
  return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
