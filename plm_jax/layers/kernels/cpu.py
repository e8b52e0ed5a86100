"""CPU workarounds: faster products and sums over rows, dropout bits, unrolled layers.

Gradients of dense layers and of biases, and random bits, are computed otherwise on a CPU;
`choose_by_platform` switches them when a program is lowered. Vocabulary logits, sums and maxima
over rows, and functions that use them, are computed otherwise where `is_single_cpu` holds when a
program is traced. With WORKAROUNDS False every backend computes alike, which shows whether a newer
jaxlib still needs them. The rest is the same on every backend: two dropout draws per word of random
bits, and unrolled layers for decoders.
"""
from collections.abc import Callable
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.layers.kernels import gpu, threefry
from plm_jax.sharding import constrain, gather_parameter, target_platform

WORKAROUNDS = True


def choose_by_platform(*args, cpu: Callable[..., Any], default: Callable[..., Any]) -> Any:
  """Compute `cpu(*args)` where the program is lowered for a CPU, `default(*args)` elsewhere."""
  if not WORKAROUNDS:
    return default(*args)
  return jax.lax.platform_dependent(*args, cpu=cpu, default=default)


def is_single_cpu() -> bool:
  """Tell whether the program that is traced is for one CPU device."""
  mesh = jax.sharding.get_abstract_mesh()
  return WORKAROUNDS and target_platform() == 'cpu' and (mesh.empty or mesh.size == 1)


def fold(combine: Callable[[Any, Any], Any], parts: int, x, axis: int = -1, term=lambda x: x):
  """Combine equal parts of x along an axis, in pairs.

  jaxlib 0.10 reduces the last axis of an array number by number on a CPU. Parts are combined by
  vector instructions in one pass, and little is left to reduce.

  Args:
    combine: function of two arrays, such as jnp.add.
    parts: number of parts, a power of two.
    x: array whose axis has at least that size.
    axis: the axis.
    term: function of each part, such as its square.

  Returns:
    (the combined parts, term of the remainder that does not divide by `parts`, which may be empty).
  """
  size = x.shape[axis] // parts
  terms = [term(jax.lax.slice_in_dim(x, start, start + size, axis=axis))
           for start in range(0, parts * size, size)]
  while len(terms) > 1:
    terms = [combine(*pair) for pair in zip(terms[::2], terms[1::2], strict=True)]
  return terms[0], term(jax.lax.slice_in_dim(x, parts * size, x.shape[axis], axis=axis))


def count_parts(size: int) -> int:
  """Return into how many parts `fold` divides an axis: at most 32 of at least 16 numbers."""
  return min(32, 1 << max(size // 16, 1).bit_length() - 1)


def sum_rows(x):
  """Sum x [..., size] over its last axis."""
  parts = count_parts(x.shape[-1])
  if parts == 1 or not is_single_cpu():
    return x.sum(-1)
  total, rest = fold(jnp.add, parts, x)
  return total.sum(-1) + rest.sum(-1)


def max_rows(x):
  """Compute the maximum of x [..., size] over its last axis."""
  parts = count_parts(x.shape[-1])
  if parts == 1 or not is_single_cpu():
    return x.max(-1)
  largest, rest = fold(jnp.maximum, parts, x)
  return jnp.maximum(largest.max(-1), rest.max(-1, initial=-jnp.inf))


def sum_squares(x):
  """Compute the sum of the squares of an array, in float32 or better."""
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  axis = max(range(x.ndim), key=lambda axis: x.shape[axis], default=None)
  if axis is None or x.shape[axis] < 64:
    return jnp.square(x).sum()
  # Along the longest axis: flattened, an array whose layout is transposed would be copied.
  total, rest = fold(jnp.add, 32, x, axis, jnp.square)
  total, second = fold(jnp.add, count_parts(total.shape[axis]), total, axis)
  return total.sum() + second.sum() + rest.sum()


def contract(num_inputs: int, x, kernel):
  """Multiply x [..., *inputs] by kernel [*inputs, *features] -> [..., *features]."""
  axes = tuple(range(x.ndim - num_inputs, x.ndim)), tuple(range(num_inputs))
  return jax.lax.dot_general(x, kernel, (axes, ((), ())))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def dense_product(num_inputs: int, axes: tuple[str | None, ...], x, kernel):
  """Compute `contract` with a kernel that the devices share (ZeRO 3).

  Devices gather the kernel, and gather it again in the backward pass, so that no device keeps it
  whole between the two. `axes` are the logical names of the kernel's axes.

  For the gradient of the kernel a CPU transposes the left operand before it multiplies. Here that
  is the smaller operand: transposing the larger one took a quarter of the product's time.
  """
  return contract(num_inputs, x, gather_parameter(kernel, *axes))


def dense_product_forward(num_inputs, axes, x, kernel):
  """Compute `dense_product` and the residuals of its gradient."""
  return dense_product(num_inputs, axes, x, kernel), (x, kernel)


def dense_product_backward(num_inputs, axes, residuals, grads):
  """Compute the gradients of `dense_product` with respect to x and the kernel."""
  x, kernel = residuals
  rows = tuple(range(x.ndim - num_inputs))
  features = tuple(range(num_inputs, kernel.ndim))

  def smaller_first(x, kernel, grads):
    contracted = tuple(range(len(rows), grads.ndim)), features
    x_grad = jax.lax.dot_general(grads, kernel, (contracted, ((), ())))
    if x.size <= grads.size:
      return x_grad, jax.lax.dot_general(x, grads, ((rows, rows), ((), ())))
    transposed = jax.lax.dot_general(grads, x, ((rows, rows), ((), ())))
    order = [*range(len(features), kernel.ndim), *range(len(features))]
    return x_grad, transposed.transpose(*order)

  def default_order(x, kernel, grads):
    _, vjp = jax.vjp(functools.partial(contract, num_inputs), x, kernel)
    return vjp(grads)

  x_grad, kernel_grad = choose_by_platform(
      x, gather_parameter(kernel, *axes), grads, cpu=smaller_first, default=default_order)
  return x_grad, constrain(kernel_grad, *axes)


dense_product.defvjp(dense_product_forward, dense_product_backward)


def vocabulary_product(letters: str, h, matrix) -> jax.Array:
  """Multiply hidden states by an output matrix: vocabulary logits in float32.

  Args:
    letters: `bld,dv->blv`, or `bld,vd->blv` for a transposed matrix, as for einsum.
    h: [batch, predicted, hidden].
    matrix: [hidden, vocab] or [vocab, hidden].

  Returns:
    [batch, predicted, vocab] float32.
  """
  if is_single_cpu():
    return multiply_vocabulary(letters, h, matrix)
  if gpu.is_gpu():
    return gpu.vocabulary_product(letters, h, matrix)
  return jnp.einsum(letters, h, matrix, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_vocabulary(letters: str, h, matrix) -> jax.Array:
  """Compute `vocabulary_product` on a CPU.

  The gradient of the matrix is a product whose left operand a CPU transposes. Here that is h, not
  the gradient of the logits, which is as large as the logits.
  """
  return jnp.einsum(letters, h, matrix, preferred_element_type=jnp.float32)


def multiply_vocabulary_forward(letters, h, matrix):
  """Compute `multiply_vocabulary` and the residuals of its gradient."""
  return multiply_vocabulary(letters, h, matrix), (h, matrix)


def multiply_vocabulary_backward(letters, residuals, grads):
  """Compute the gradients of `multiply_vocabulary` with respect to h and the matrix."""
  h, matrix = residuals

  def product(h):
    return jnp.einsum(letters, h, matrix, preferred_element_type=jnp.float32)

  _, vjp = jax.vjp(product, h)
  matrix_grad = jnp.einsum('bld,blv->dv', h, grads, preferred_element_type=jnp.float32)
  matrix_grad = matrix_grad.T if letters.endswith('vd->blv') else matrix_grad
  return *vjp(grads), matrix_grad.astype(matrix.dtype)


multiply_vocabulary.defvjp(multiply_vocabulary_forward, multiply_vocabulary_backward)


@jax.custom_vjp
def add_bias(y, bias):
  """Add y [..., *features] and bias [*features].

  The gradient of the bias is a sum over rows. On a CPU, jaxlib 0.10 sums columns ten times slower
  than it multiplies by ones, which was a tenth of a step of BART.
  """
  return y + bias


def add_bias_forward(y, bias):
  """Compute `add_bias` and the residuals of its gradient."""
  return y + bias, bias.shape


def add_bias_backward(shape, grads):
  """Compute the gradients of `add_bias` with respect to y and a bias of this shape."""
  rows = grads.shape[:grads.ndim - len(shape)]

  def multiply_by_ones(grads):
    return jnp.tensordot(jnp.ones(rows, grads.dtype), grads, len(rows))

  def sum_rows(grads):
    return grads.sum(range(len(rows)))

  return grads, choose_by_platform(grads, cpu=multiply_by_ones, default=sum_rows)


add_bias.defvjp(add_bias_forward, add_bias_backward)


@jax.custom_vjp
def softmax_stats(logits, labels) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Compute what losses need of logits on a CPU, and their gradient from one stored array.

  Args:
    logits: [..., classes] float32.
    labels: [...] ids of classes.

  Returns:
    (log of the denominator of softmax, logit of the label, largest logit without a gradient), each
    [...].
  """
  return softmax_stats_forward(logits, labels)[0]


def softmax_stats_forward(logits, labels):
  """Compute `softmax_stats` and the residuals of its gradient."""
  max_logit = max_rows(logits)
  shift = jnp.where(jnp.isfinite(max_logit), max_logit, 0)
  exponentials = jnp.exp(logits - shift[..., None])
  total = sum_rows(exponentials)
  label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
  return (jnp.log(total) + shift, label, max_logit), (exponentials, total, labels)


def softmax_stats_backward(residuals, grads):
  """Compute the gradient of `softmax_stats` with respect to the logits."""
  exponentials, total, labels = residuals
  total_grad, label_grad, _ = grads
  is_label = jnp.arange(exponentials.shape[-1]) == labels[..., None]
  label_grads = jnp.where(is_label, label_grad[..., None], 0)
  return exponentials * (total_grad / total)[..., None] + label_grads, None


softmax_stats.defvjp(softmax_stats_forward, softmax_stats_backward)


def keep_mask(key, shape: tuple[int, ...], rate: float):
  """Draw a dropout mask: bool `shape`, True with probability 1 - rate (to 2^-16).

  Every 32 random bits give two draws: on a CPU the bits are a good part of a small model's step.
  """
  threshold = round(rate * (1 << 16))
  half_shape = shape[:-1] + (-(-shape[-1] // 2),)
  bits = draw_words(key, half_shape)
  halves = [(bits & 0xFFFF) >= threshold, (bits >> 16) >= threshold]
  return jnp.concatenate(halves, -1)[..., :shape[-1]]


def draw_words(key, shape: tuple[int, ...]):
  """Draw random words: uint32 `shape`, the same as `jax.random.bits`.

  On a CPU, the rounds of the generator are unrolled (`threefry`).
  """
  def default_draw(key):
    return jax.random.bits(key, shape, jnp.uint32)

  if not threefry.is_default(key) or math.prod(shape) >= 1 << 32:
    return default_draw(key)

  def unrolled_draw(key):
    return threefry.draw_words(jax.random.key_data(key), shape)

  return choose_by_platform(key, cpu=unrolled_draw, default=default_draw)


def split_layers(stack, params) -> dict[str, Any]:
  """Split the stacked parameters of `stack.Layers` into one tree per block.

  A decoder on a CPU takes them so, as the collection `split`: each turn of a scan over layers would
  copy its part first.

  Args:
    stack: the `StackConfig`.
    params: {'block': tree of arrays with a leading axis of layers}.

  Returns:
    {'block': tuple of one tree per block}.
  """
  blocks = []
  for number in range(stack.blocks):
    block = {}
    for name, part in params['block'].items():
      copy = stack.copy_index(name, number)
      block[name] = jax.tree.map(operator.itemgetter(copy), part)
    blocks.append(block)
  return {'block': tuple(blocks)}


def run_split_layers(bodies, x, split_params, inputs):
  """Run layers on split parameters in a plain loop; stacked outputs become tuples.

  Args:
    bodies: functions as `jax.lax.scan` takes them, one per kind of layer.
    x: input of the first layer.
    split_params: one tree of parameters per layer.
    inputs: tree of per-layer inputs, whose leaves are arrays or tuples indexed by layer.

  Returns:
    (output of the last layer, tree of tuples of what each layer returned).
  """
  found = []
  for number, params in enumerate(split_params):
    own = jax.tree.map(
        operator.itemgetter(number), inputs, is_leaf=lambda leaf: isinstance(leaf, tuple))
    x, outputs = bodies[number % len(bodies)](x, (number, params, own))
    found.append(outputs)
  return x, jax.tree.map(lambda *leaves: leaves, *found)
