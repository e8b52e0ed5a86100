"""Affine maps, embeddings' initializers and dropout: the smallest parts, with their logical axes."""
from collections.abc import Mapping
import math
from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from plm_jax.layers import cpu
from plm_jax.layers.init import Initializer, drawn
from plm_jax.sharding import gathered

PRODUCT = 'product'
"""what products with kernels are called where the backward pass chooses what to keep (`stack.StackConfig.remat`)"""


class Dense(nn.Module):
  """x [..., *inputs] -> [..., *features]: contracts the trailing axes of x with the leading ones of the kernel.

  `axes` are the logical names of the kernel's axes, inputs first. One kernel of three or more axes instead of a
  reshaped matrix keeps heads visible to the sharding table. Where an `adapter` stands beside the kernel
  (`training.adapters`), x goes through it too; rows [B] key its dropout, None: no dropout.
  """

  features: tuple[int, ...]
  axes: tuple[str | None, ...]
  bias: bool = True
  dtype: Any = jnp.float32
  init: Initializer = drawn('truncated', 0.02)

  @nn.compact
  def __call__(self, x, rows=None) -> Any:
    inputs = x.shape[x.ndim - (len(self.axes) - len(self.features)):]
    kernel = self.param('kernel', named(self.init, self.axes), (*inputs, *self.features), jnp.float32)
    # By its name: inside a rule of its own jax.checkpoint does not see the product.
    y: Any = cpu.product(len(inputs), self.axes, x.astype(self.dtype), kernel.astype(self.dtype))
    y = checkpoint_name(y, PRODUCT)
    if self.has_variable('params', 'adapter'):
      y = self.adapted(x, y, kernel, self.get_variable('params', 'adapter'), rows)
    if self.bias:
      axes = self.axes[len(inputs):]
      bias = self.param('bias', named(nn.initializers.zeros, axes), self.features, jnp.float32)
      y = cpu.plus(y, gathered(bias.astype(self.dtype), *axes))
    return y

  def adapted(self, x, y, kernel, adapter: Mapping[str, jax.Array], rows):
    """Adds to y [..., *features], the product of x and the kernel, that of x and the adapter's matrices, and gives the
    columns their lengths where it has some (Hu et al. 2022, equation 3; Liu et al. 2024, equation 5)."""
    into = kernel.ndim - len(self.features)
    if 'dropout' in adapter and rows is not None:
      key, keep = self.make_rng('dropout'), 1 - jax.lax.stop_gradient(adapter['dropout'])
      kept = jax.vmap(lambda row: jax.random.bernoulli(jax.random.fold_in(key, row), keep, x.shape[1:]))(rows)
      x = jnp.where(kept, x / keep.astype(x.dtype), jnp.zeros((), x.dtype))
    down, up = (adapter[name].astype(self.dtype) for name in ('down', 'up'))
    low: Any = cpu.product(into, (*self.axes[:into], None), x.astype(self.dtype), down)
    factor = jax.lax.stop_gradient(adapter['factor']).astype(self.dtype)
    more: Any = cpu.product(1, (None, *self.axes[into:]), low, up)
    y += more * factor
    if 'magnitude' in adapter:
      # Lengths count as given, which saves their gradient (Liu et al. 2024, section 4.3).
      whole = jax.lax.stop_gradient(lengths(into, low_sum(kernel, adapter), layers=0))
      y *= (adapter['magnitude'] / whole).astype(self.dtype)
    return y


def low_sum(kernel, adapter: Mapping[str, jax.Array]):
  """Adds the product of an adapter's matrices to a kernel [*inputs, *features]."""
  return kernel + adapter['factor'] * jnp.tensordot(adapter['down'], adapter['up'], 1)


def low_rank(inputs: int, kernel, adapter: Mapping[str, jax.Array]):
  """Returns the kernel [*inputs, *features] that does what one with an adapter does."""
  whole = low_sum(kernel, adapter)
  return whole * (adapter['magnitude'] / lengths(inputs, whole, layers=0)) if 'magnitude' in adapter else whole


def lengths(inputs: int, kernel, layers: int = 1):
  """Returns the length of each column of a kernel [.., *inputs, *features] -> [.., *features]."""
  return jnp.sqrt(jnp.square(kernel).sum(range(layers, layers + inputs)))


class Dropout(nn.Module):
  """Zeroes a share `rate` of x [B, ...] and scales up the rest, by the key of the step and of each row.

  rows [B] int32 number the rows of the whole batch, so the same example meets the same noise on any mesh and under
  any split into micro-steps; rows None means no dropout.
  """

  rate: float

  def __call__(self, x, rows=None):
    return self.drop(x, self.keep(x.shape, rows))

  def keep(self, shape: tuple[int, ...], rows=None):
    """Draws bool `shape` [B, ...], or returns None where nothing is dropped."""
    if rows is None or not self.rate:
      return None
    key = self.make_rng('dropout')
    return jax.vmap(lambda row: cpu.keep_mask(jax.random.fold_in(key, row), shape[1:], self.rate))(rows)

  def seed(self) -> jax.Array:
    """Draws the seed [2] uint32 of what makes its own noise."""
    return jax.random.bits(self.make_rng('dropout'), (2,), 'uint32')

  def drop(self, x, keep):
    """Sets x [B, ...] to 0 where `keep` is False, and divides the rest by its share; None: keeps all."""
    return x if keep is None else jnp.where(keep, x / (1 - self.rate), jnp.zeros((), x.dtype))


def named(init: Initializer, axes: tuple[str | None, ...]) -> Any:
  """`init` whose parameter carries the logical names of its axes."""
  return nn.with_logical_partitioning(init, axes)


def count(params) -> int:
  """Parameters in a tree of arrays or shapes; a tied matrix stands in the tree once."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(params)))
