"""What is here for one backend: gradients of products and biases, dropout's bits and layers apart, as a CPU likes them.

Two of them are other computations there, and `choose` is the switch of both: with WORKAROUNDS off every backend
computes as the others do, which shows whether a newer jaxlib still needs them. The others are the same everywhere:
two draws from a word of random bits, and layers written out where whoever decodes asks for it.
"""
from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.sharding import constrain, gathered

WORKAROUNDS = True


def choose(*args, cpu: Callable[..., Any], default: Callable[..., Any]) -> Any:
  """Computes `cpu` of the arguments where the program is lowered for a CPU, elsewhere `default`."""
  return jax.lax.platform_dependent(*args, cpu=cpu, default=default) if WORKAROUNDS else default(*args)


def contracted(inputs: int, x, kernel):
  """Multiplies x [..., *inputs], of which there are so many, by kernel [*inputs, *features] -> [..., *features]."""
  axes = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
  return jax.lax.dot_general(x, kernel, (axes, ((), ())))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def product(inputs: int, axes: tuple[str | None, ...], x, kernel):
  """Computes `contracted`, with a kernel whose axes have these names.

  The devices that share the kernel gather it, and again in the backward pass: what waits for that is each one's part.
  In the gradient of the kernel a CPU transposes the operand on the left before it multiplies: here the smaller one,
  where transposing the larger took a quarter of the product's time.
  """
  return contracted(inputs, x, gathered(kernel, *axes))


def product_pulled(inputs, axes, kept, grads):
  """Returns the gradients of `product` by x and by the kernel, of the gradient by its result."""
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
  by_x, by_kernel = choose(x, gathered(kernel, *axes), grads, cpu=smaller_first, default=as_they_are)
  return by_x, constrain(by_kernel, *axes)


def product_kept(inputs, axes, x, kernel):
  """Returns the product, and what its gradient is made of."""
  return product(inputs, axes, x, kernel), (x, kernel)


product.defvjp(product_kept, product_pulled)


@jax.custom_vjp
def plus(y, bias):
  """Adds y [..., *features] and bias [*features].

  The gradient of the bias is a sum over rows. jaxlib 0.10 adds up columns on a CPU ten times slower than it multiplies
  by ones, which in a step of BART was a tenth.
  """
  return y + bias


def plus_pulled(shape, grads):
  """Returns the gradients of `plus` by y and by a bias of this shape, of the gradient by their sum."""
  rows = grads.shape[:grads.ndim - len(shape)]
  multiplied = lambda grads: jnp.tensordot(jnp.ones(rows, grads.dtype), grads, len(rows))
  added = lambda grads: grads.sum(range(len(rows)))
  return grads, choose(grads, cpu=multiplied, default=added)


plus.defvjp(lambda y, bias: (y + bias, bias.shape), plus_pulled)


def keep_mask(key, shape: tuple[int, ...], rate: float):
  """Draws bool `shape`, True with probability 1 - rate (to 2^-16).

  Two draws from every 32 random bits: on a CPU the bits are a good part of a small model's step.
  """
  threshold = round(rate * (1 << 16))
  half = (*shape[:-1], -(-shape[-1] // 2))
  bits = jax.random.bits(key, half, jnp.uint32)
  return jnp.concatenate([(bits & 0xFFFF) >= threshold, (bits >> 16) >= threshold], -1)[..., :shape[-1]]


def split(stack, params) -> dict[str, Any]:
  """Parts the parameters of `stack.Layers` -> one tree a block, under the same name: the collection `split`.

  A decoder on a CPU takes them so, where each turn of a loop over layers would first copy its part. stack: StackConfig.
  """
  def at(part, number):
    return jax.tree.map(lambda leaf: leaf[number], part)
  return {'block': tuple({name: at(part, stack.copy(name, number)) for name, part in params['block'].items()}
                         for number in range(stack.blocks))}


def in_turn(kinds, x, parts, cache):
  """Runs `stack.in_turns` over split parameters, written out: what it would stack comes in tuples."""
  def of(number):
    return jax.tree.map(lambda leaf: leaf[number], cache, is_leaf=lambda leaf: isinstance(leaf, tuple))
  found = []
  for number, own in enumerate(parts):
    x, given = kinds[number % len(kinds)](x, (number, own, of(number)))
    found.append(given)
  return x, jax.tree.map(lambda *leaves: leaves, *found)
