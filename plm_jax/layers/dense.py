"""Affine maps, embeddings' initializers and dropout: the smallest parts, with their logical axes."""
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
  reshaped matrix keeps heads visible to the sharding table.
  """

  features: tuple[int, ...]
  axes: tuple[str | None, ...]
  bias: bool = True
  dtype: Any = jnp.float32
  init: Initializer = drawn('truncated', 0.02)

  @nn.compact
  def __call__(self, x) -> Any:
    inputs = x.shape[x.ndim - (len(self.axes) - len(self.features)):]
    kernel = self.param('kernel', named(self.init, self.axes), (*inputs, *self.features), jnp.float32)
    # By its name: inside a rule of its own jax.checkpoint does not see the product.
    y = checkpoint_name(cpu.product(len(inputs), self.axes, x.astype(self.dtype), kernel.astype(self.dtype)), PRODUCT)
    if self.bias:
      axes = self.axes[len(inputs):]
      bias = self.param('bias', named(nn.initializers.zeros, axes), self.features, jnp.float32)
      y = cpu.plus(y, gathered(bias.astype(self.dtype), *axes))
    return y


def contracted(inputs: int, x, kernel):
  """Multiplies x [..., *inputs], of which there are so many, by kernel [*inputs, *features] -> [..., *features]."""
  axes = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
  return jax.lax.dot_general(x, kernel, (axes, ((), ())))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def product(inputs: int, axes: tuple[str | None, ...], x, kernel):
  """Multiplies as `contracted` does, with a kernel whose axes have these names.

  The devices that share the kernel gather it, and again in the backward pass: what waits for that is each one's part.
  In the gradient of the kernel a CPU transposes the operand on the left before it multiplies: here the smaller one,
  where transposing the larger took a quarter of the product's time.
  """
  return contracted(inputs, x, gathered(kernel, *axes))


def product_pulled(inputs, axes, kept, grads):
  """Returns the gradients of x and of the kernel, the latter in the kernel's sharding."""
  x, kernel = kept
  rows = tuple(range(x.ndim - inputs))
  features = tuple(range(inputs, kernel.ndim))
  def smaller_first(x, kernel, grads):
    by_x = jax.lax.dot_general(grads, kernel, ((tuple(range(len(rows), grads.ndim)), features), ((), ())))
    if x.size <= grads.size:
      return by_x, jax.lax.dot_general(x, grads, ((rows, rows), ((), ())))
    turned = jax.lax.dot_general(grads, x, ((rows, rows), ((), ())))
    return by_x, turned.transpose(*range(len(features), kernel.ndim), *range(len(features)))
  def as_they_are(x, kernel, grads):
    return jax.vjp(lambda x, kernel: contracted(inputs, x, kernel), x, kernel)[1](grads)
  by_x, by_kernel = jax.lax.platform_dependent(
      x, gathered(kernel, *axes), grads, cpu=smaller_first, default=as_they_are)
  return by_x, constrain(by_kernel, *axes)


def product_kept(inputs, axes, x, kernel):
  """Multiplies, and keeps both operands for the backward pass."""
  return product(inputs, axes, x, kernel), (x, kernel)


product.defvjp(product_kept, product_pulled)


@jax.custom_vjp
def plus(y, bias):
  """Adds y [..., *features] + bias [*features].

  The gradient of the bias is a sum over rows. jaxlib 0.10 adds up columns on a CPU ten times slower than it multiplies
  by ones, which in a step of BART was a tenth.
  """
  return y + bias


def plus_pulled(shape, grads):
  """Returns the gradients of y and of the bias."""
  rows = grads.shape[:grads.ndim - len(shape)]
  multiplied = lambda grads: jnp.tensordot(jnp.ones(rows, grads.dtype), grads, len(rows))
  added = lambda grads: grads.sum(range(len(rows)))
  return grads, jax.lax.platform_dependent(grads, cpu=multiplied, default=added)


plus.defvjp(lambda y, bias: (y + bias, bias.shape), plus_pulled)


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

  def drop(self, x, keep):
    """Sets x to 0 where `keep` is False and scales the rest; None keeps all as it is."""
    return x if keep is None else jnp.where(keep, x / (1 - self.rate), jnp.zeros((), x.dtype))


def keep_mask(key, shape: tuple[int, ...], rate: float):
  """Draws bool `shape`, True with probability 1 - rate (to 2^-16).

  Two draws from every 32 random bits: on a CPU the bits are a good part of a small model's step.
  """
  threshold = round(rate * (1 << 16))
  half = (*shape[:-1], -(-shape[-1] // 2))
  bits = jax.random.bits(key, half, jnp.uint32)
  return jnp.concatenate([(bits & 0xFFFF) >= threshold, (bits >> 16) >= threshold], -1)[..., :shape[-1]]


def named(init: Initializer, axes: tuple[str | None, ...]) -> Any:
  """Returns `init` whose parameter carries the logical names of its axes."""
  return nn.with_logical_partitioning(init, axes)


def count(params) -> int:
  """Counts the parameters in a tree of arrays or shapes; a tied matrix stands in the tree once."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(params)))
