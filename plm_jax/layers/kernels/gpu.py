"""Forms of products, losses and norms that are faster on an NVIDIA GPU.

Without them, XLA multiplies in TF32 where one operand of a gradient's product is float32, runs slow
kernels for vocabularies whose size is not a multiple of 8, and writes float32 copies of the inputs
of norms. `is_gpu` tells, when a program is traced, whether it is for a GPU. Every form computes the
same numbers on every backend, up to rounding.
"""
import functools
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.sharding import AXIS_RULES, target_platform

VOCAB_MULTIPLE = 64
"""cuBLAS multiplies bfloat16 matrices several times faster where their sizes are multiples of 8;
its tiles have 64 columns or more."""
UNROLLED_BLOCKS = 48
"""A loop over layers copies what the backward pass needs into stacked arrays, a fifth of a step on
an H100. Unrolled, it does not. Stacks of more blocks stay loops: compile time grows with them."""


def is_gpu() -> bool:
  """Tell whether the program that is traced is for a GPU."""
  return target_platform() == 'gpu'


def has_whole_vocabulary() -> bool:
  """Tell whether each device of the mesh has the complete vocabulary: it can be padded, or split
  into chunks."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.empty or all(mesh.shape[axis] == 1 for axis in AXIS_RULES['vocab'])


def unrolls(blocks: int) -> bool:
  """Tell whether the loop over so many blocks is unrolled by default.

  For a mesh of absent GPUs a step is only traced: a loop keeps the same arrays, and is faster.
  """
  is_present = jax.sharding.get_abstract_mesh().empty or jax.default_backend() == 'gpu'
  return is_gpu() and is_present and blocks <= UNROLLED_BLOCKS


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(letters: str, x, y) -> jax.Array:
  """Compute an einsum of two arrays in float32; gradients are products in the operands' dtype.

  Args:
    letters: the axes, as for einsum.
    x: first operand.
    y: second operand, of the same dtype.
  """
  return jnp.einsum(letters, x, y, preferred_element_type=jnp.float32)


def float32_product_forward(letters, x, y):
  """Compute `float32_product` and the residuals of its gradient."""
  return float32_product(letters, x, y), (x, y)


def float32_product_backward(letters, residuals, grads):
  """Compute the gradients of both operands."""
  _, vjp = jax.vjp(functools.partial(jnp.einsum, letters), *residuals)
  return vjp(grads.astype(residuals[0].dtype))


float32_product.defvjp(float32_product_forward, float32_product_backward)


def vocabulary_product(letters: str, h, matrix) -> jax.Array:
  """Compute vocabulary logits with the vocabulary padded to a multiple of `VOCAB_MULTIPLE`.

  Args:
    letters: `bld,dv->blv`, or `bld,vd->blv` for a transposed matrix.
    h: [batch, predicted, hidden].
    matrix: [hidden, vocab] or [vocab, hidden].

  Returns:
    [batch, predicted, vocab] float32.
  """
  axis = letters.split('->')[0].split(',')[1].index('v')
  size = matrix.shape[axis]
  if has_whole_vocabulary():
    padding = [(0, 0), (0, 0)]
    padding[axis] = 0, -size % VOCAB_MULTIPLE
    matrix = jnp.pad(matrix, padding)
  logits: Any = float32_product(letters, h, matrix)
  return logits[..., :size]


@jax.custom_vjp
def softmax_stats(logits, labels) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Compute what losses need of logits; their gradient is one pass over the logits.

  Args:
    logits: [..., classes] float32.
    labels: [...] ids of classes.

  Returns:
    (log of the denominator of softmax, logit of the label, largest logit without a gradient), each
    [...].
  """
  label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
  return jax.nn.logsumexp(logits, -1), label, logits.max(-1)


def softmax_stats_forward(logits, labels):
  """Compute `softmax_stats` and the residuals of its gradient."""
  stats = softmax_stats(logits, labels)
  return stats, (logits, labels, stats[0])


def softmax_stats_backward(residuals, grads):
  """Compute the gradient of `softmax_stats` with respect to the logits.

  The label is found by comparison: the scatter that JAX would derive is a pass of its own.
  """
  logits, labels, log_total = residuals
  total_grad, label_grad, _ = grads
  is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
  probs = jnp.exp(logits - log_total[..., None])
  return probs * total_grad[..., None] + jnp.where(is_label, label_grad[..., None], 0), None


softmax_stats.defvjp(softmax_stats_forward, softmax_stats_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(x, scale, bias, eps: float):
  """Normalize x [..., hidden] in float32, as `norm.normalize` does.

  The backward pass reads x and two numbers per token. Derived by JAX it would keep or write
  normalized numbers in float32.

  Args:
    x: [..., hidden].
    scale: [hidden] or [].
    bias: [hidden] or []; None: RMSNorm, which does not subtract the mean.
    eps: epsilon that is added to the variance.

  Returns:
    [..., hidden] float32.
  """
  return normalize_forward(x, scale, bias, eps)[0]


def normalize_forward(x, scale, bias, eps: float):
  """Compute `normalize` and the residuals of its gradient."""
  centered, mean = x.astype(jnp.float32), None
  if bias is not None:
    mean = centered.mean(-1, keepdims=True)
    centered -= mean
  factor = jnp.reciprocal(jnp.sqrt(jnp.square(centered).mean(-1, keepdims=True) + eps))
  y = centered * factor * scale
  if bias is not None:
    y += bias
  return y, (x, mean, factor, scale, bias)


def normalize_backward(eps: float, residuals, grads):
  """Compute the gradients of x, scale and bias."""
  del eps  # it is in the factor
  x, mean, factor, scale, bias = residuals
  normalized = x.astype(jnp.float32)
  if bias is not None:
    normalized -= mean
  normalized *= factor
  scaled = grads * scale
  x_grad = scaled - normalized * (scaled * normalized).mean(-1, keepdims=True)
  if bias is not None:
    x_grad -= scaled.mean(-1, keepdims=True)

  def sum_tokens(product, parameter):
    return product.sum(range(product.ndim - parameter.ndim)).astype(parameter.dtype)

  bias_grad = None if bias is None else sum_tokens(grads, bias)
  return (x_grad * factor).astype(x.dtype), sum_tokens(grads * normalized, scale), bias_grad


normalize.defvjp(normalize_forward, normalize_backward)
