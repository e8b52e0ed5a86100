"""Affine maps, embeddings' initializers and dropout: the smallest parts, with their logical axes."""
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class Dense(nn.Module):
  """x [..., *inputs] -> [..., *features]: contracts the trailing axes of x with the leading ones of the kernel.

  `axes` are the logical names of the kernel's axes, inputs first. One kernel of three or more axes instead of a
  reshaped matrix keeps heads visible to the sharding table.
  """

  features: tuple[int, ...]
  axes: tuple[str | None, ...]
  bias: bool = True
  dtype: Any = jnp.float32
  init: nn.initializers.Initializer = nn.initializers.truncated_normal(0.02)

  @nn.compact
  def __call__(self, x):
    inputs = x.shape[x.ndim - (len(self.axes) - len(self.features)):]
    kernel = self.param('kernel', named(self.init, self.axes), (*inputs, *self.features), jnp.float32)
    contract = tuple(range(x.ndim - len(inputs), x.ndim)), tuple(range(len(inputs)))
    y = jax.lax.dot_general(x.astype(self.dtype), kernel.astype(self.dtype), (contract, ((), ())))
    if self.bias:
      axes = self.axes[len(inputs):]
      y += self.param('bias', named(nn.initializers.zeros, axes), self.features, jnp.float32).astype(self.dtype)
    return y


class Dropout(nn.Module):
  """Zeroes a share `rate` of x [B, ...] and scales up the rest, by the key of the step and of each row.

  rows [B] int32 number the rows of the whole batch, so the same example meets the same noise on any mesh and under
  any split into micro-steps; rows None means no dropout.
  """

  rate: float

  def __call__(self, x, rows=None):
    return self.drop(x, self.keep(x.shape, rows))

  def keep(self, shape: tuple[int, ...], rows=None):
    """-> bool `shape` [B, ...], or None where nothing is dropped."""
    if rows is None or not self.rate:
      return None
    key = self.make_rng('dropout')
    return jax.vmap(lambda row: keep_mask(jax.random.fold_in(key, row), shape[1:], self.rate))(rows)

  def drop(self, x, keep):
    return x if keep is None else jnp.where(keep, x / (1 - self.rate), jnp.zeros((), x.dtype))


def keep_mask(key, shape: tuple[int, ...], rate: float):
  """-> bool `shape`, True with probability 1 - rate (to 2^-16).

  Two draws from every 32 random bits: on a CPU the bits are a good part of a small model's step.
  """
  threshold = round(rate * (1 << 16))
  half = (*shape[:-1], -(-shape[-1] // 2))
  bits = jax.random.bits(key, half, jnp.uint32)
  return jnp.concatenate([(bits & 0xFFFF) >= threshold, (bits >> 16) >= threshold], -1)[..., :shape[-1]]


def named(init: nn.initializers.Initializer, axes: tuple[str | None, ...]) -> Any:
  """`init` whose parameter carries the logical names of its axes."""
  return nn.with_logical_partitioning(init, axes)


def truncated_normal(std: float) -> nn.initializers.Initializer:
  """Normal cut at two standard deviations, as TensorFlow's: the width after the cut is 0.88 `std`."""
  return nn.initializers.truncated_normal(std)


def count(params) -> int:
  """Parameters in a tree of arrays or shapes; a tied matrix stands in the tree once."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(params)))
