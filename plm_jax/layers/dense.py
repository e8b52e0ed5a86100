"""Dense layers, low-rank adapters (LoRA, DoRA) and dropout, with logical axes for sharding."""
from collections.abc import Mapping
import math
from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from plm_jax.layers.init import Initializer, make_initializer
from plm_jax.layers.kernels import cpu
from plm_jax.sharding import gather_parameter

PRODUCT = 'product'
"""Name of products with parameters, by which activation checkpointing saves them
(`stack.StackConfig.remat`)."""


class Dense(nn.Module):
  """Dense (affine) layer: x [..., *inputs] -> [..., *features].

  It contracts the trailing axes of x with the leading axes of the kernel. `axes` are the logical
  names of the kernel's axes, inputs first. One kernel of three or more axes, instead of a reshaped
  matrix, keeps heads visible to the sharding rules. Where the parameters hold an `adapter`
  (`optim.adapters`), its low-rank product is added, with dropout keyed by row_ids [batch]; None: no
  dropout.
  """

  features: tuple[int, ...]
  axes: tuple[str | None, ...]
  bias: bool = True
  dtype: Any = jnp.float32
  init: Initializer = make_initializer('truncated', 0.02)

  @nn.compact
  def __call__(self, x, row_ids=None) -> Any:
    num_inputs = len(self.axes) - len(self.features)
    inputs = x.shape[x.ndim - num_inputs:]
    init = with_logical_axes(self.init, self.axes)
    kernel = self.param('kernel', init, inputs + self.features, jnp.float32)
    y: Any = cpu.dense_product(
        num_inputs, self.axes, x.astype(self.dtype), kernel.astype(self.dtype))
    # By its name: inside a custom gradient rule jax.checkpoint does not see the product.
    y = checkpoint_name(y, PRODUCT)
    if self.has_variable('params', 'adapter'):
      y = self.apply_adapter(x, y, kernel, self.get_variable('params', 'adapter'), row_ids)
    if self.bias:
      axes = self.axes[num_inputs:]
      init = with_logical_axes(nn.initializers.zeros, axes)
      bias = self.param('bias', init, self.features, jnp.float32)
      y = cpu.add_bias(y, gather_parameter(bias.astype(self.dtype), *axes))
    return y

  def apply_adapter(self, x, y, kernel, adapter: Mapping[str, jax.Array], row_ids):
    """Apply a LoRA or DoRA adapter (Hu et al. 2022, equation 3; Liu et al. 2024, equation 5).

    Args:
      x: input of the layer.
      y: [..., *features], the product of x and the kernel.
      kernel: [*inputs, *features].
      adapter: `down` [*inputs, rank], `up` [rank, *features], `factor`; optionally `dropout` (a
        rate) and `magnitude` [*features], the norms of the columns (DoRA).
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.

    Returns:
      y plus the low-rank product; with a magnitude, columns are scaled to these norms.
    """
    num_inputs = kernel.ndim - len(self.features)
    if 'dropout' in adapter and row_ids is not None:
      key, keep = self.make_rng('dropout'), 1 - jax.lax.stop_gradient(adapter['dropout'])

      def draw(row_id):
        return jax.random.bernoulli(jax.random.fold_in(key, row_id), keep, x.shape[1:])

      kept = jax.vmap(draw)(row_ids)
      x = jnp.where(kept, x / keep.astype(x.dtype), jnp.zeros((), x.dtype))

    down, up = adapter['down'].astype(self.dtype), adapter['up'].astype(self.dtype)
    low_axes, high_axes = self.axes[:num_inputs] + (None,), (None,) + self.axes[num_inputs:]
    low: Any = cpu.dense_product(num_inputs, low_axes, x.astype(self.dtype), down)
    factor = jax.lax.stop_gradient(adapter['factor']).astype(self.dtype)
    high: Any = cpu.dense_product(1, high_axes, low, up)
    y += high * factor

    if 'magnitude' in adapter:
      # Norms count as constants, which saves their gradient (Liu et al. 2024, section 4.3).
      norms = column_norms(num_inputs, add_low_rank(kernel, adapter), layers=0)
      y *= (adapter['magnitude'] / jax.lax.stop_gradient(norms)).astype(self.dtype)
    return y


def add_low_rank(kernel, adapter: Mapping[str, jax.Array]):
  """Add the product of an adapter's matrices to a kernel [*inputs, *features]."""
  return kernel + adapter['factor'] * jnp.tensordot(adapter['down'], adapter['up'], 1)


def merge_low_rank(num_inputs: int, kernel, adapter: Mapping[str, jax.Array]):
  """Merge an adapter into its kernel [*inputs, *features]."""
  merged = add_low_rank(kernel, adapter)
  if 'magnitude' not in adapter:
    return merged
  return merged * (adapter['magnitude'] / column_norms(num_inputs, merged, layers=0))


def column_norms(num_inputs: int, kernel, layers: int = 1):
  """Compute the norm of each column of a kernel [*layers, *inputs, *features].

  Args:
    num_inputs: number of input axes.
    kernel: the kernel.
    layers: number of leading axes.

  Returns:
    [*layers, *features].
  """
  return jnp.sqrt(jnp.square(kernel).sum(range(layers, layers + num_inputs)))


class Dropout(nn.Module):
  """Dropout of x [batch, ...] at `rate`, keyed by the step and by each row.

  row_ids [batch] int32 number the rows of the whole batch. So an example gets the same dropout mask
  on any mesh, and under any gradient accumulation. row_ids None: no dropout.
  """

  rate: float

  def __call__(self, x, row_ids=None):
    return self.drop(x, self.draw_keep_mask(x.shape, row_ids))

  def draw_keep_mask(self, shape: tuple[int, ...], row_ids=None):
    """Draw a bool mask of `shape` [batch, ...]; None where nothing is dropped."""
    if row_ids is None or not self.rate:
      return None
    key = self.make_rng('dropout')

    def draw(row_id):
      return cpu.keep_mask(jax.random.fold_in(key, row_id), shape[1:], self.rate)

    return jax.vmap(draw)(row_ids)

  def seed(self) -> jax.Array:
    """Draw a seed, uint32 [2], for a kernel that computes its own dropout mask."""
    return jax.random.bits(self.make_rng('dropout'), (2,), 'uint32')

  def drop(self, x, keep):
    """Set x [batch, ...] to 0 where `keep` is False, and scale up the rest; None: return x."""
    if keep is None:
      return x
    return jnp.where(keep, x / (1 - self.rate), jnp.zeros((), x.dtype))


class NamedAxes(nn.LogicallyPartitioned):
  """A parameter with the logical names of its axes.

  In an NNX program (`flax.nnx.bridge.ToNNX`) the variable keeps the names, but is not sharded when
  it is created. Flax would otherwise refuse to create it without a mesh that has axes of these
  names, which are translated by `sharding.AXIS_RULES`.
  """

  def to_nnx_metadata(self) -> dict[str, Any]:
    """Return the metadata of an `nnx.Variable` with these names."""
    return {'value': self.value, 'out_sharding': self.names, 'sharding_rules': self.rules,
            'mesh': self.mesh, 'eager_sharding': False}


def with_logical_axes(init: Initializer, axes: tuple[str | None, ...]) -> Any:
  """Return `init` whose parameter carries the logical names of its axes, for sharding."""
  def init_named(*args, **kwargs):
    return NamedAxes(init(*args, **kwargs), axes)
  return init_named


def count_parameters(params) -> int:
  """Count the parameters in a tree of arrays or shapes; tied embeddings count once."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(params)))
