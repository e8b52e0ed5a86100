"""Chunked cross-entropy: what losses need of vocabulary logits, one chunk of the vocabulary at a
time.

The logits are never all in memory; the backward pass computes them again.
"""
import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.layers.kernels import cpu, gpu

# Logit of ids that only pad a chunk. It is finite, so that the difference of two such logits is a
# number.
MIN_LOGIT = -1e30


class LogitScale(NamedTuple):
  """What is applied to the products of the output matrix."""

  factor: float = 1.0
  """Factor on the products."""
  cap: float | None = None
  """Soft cap, cap * tanh(logits / cap); None: no cap."""

  def apply(self, products, bias):
    """Compute logits [..., vocab] from the products and a bias [vocab], or None."""
    logits = products * self.factor
    logits = logits if bias is None else logits + bias
    return self.cap * jnp.tanh(logits / self.cap) if self.cap else logits


class LogitStats(flax.struct.PyTreeNode):
  """Statistics of logits [..., vocab] that losses need, each [...] float32."""

  log_total: jax.Array
  """Log of the denominator of softmax."""
  label: jax.Array
  """Logit of the label."""
  max_logit: jax.Array
  """Largest logit, without a gradient."""
  mean: jax.Array
  """Mean of all logits."""

  @classmethod
  def from_logits(cls, logits, labels) -> 'LogitStats':
    """Compute the statistics of logits [..., vocab] and labels [...].

    `LogitStats` in place of logits are returned unchanged.
    """
    if isinstance(logits, cls):
      return logits
    if cpu.is_single_cpu() or gpu.is_gpu():
      softmax_stats = cpu.softmax_stats if cpu.is_single_cpu() else gpu.softmax_stats
      log_total, label, max_logit = softmax_stats(logits, labels)
      return cls(log_total, label, max_logit, logits.mean(-1))
    label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    log_total = jax.nn.logsumexp(logits, -1)
    max_logit = jax.lax.stop_gradient(logits.max(-1))
    return cls(log_total, label, max_logit, logits.mean(-1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def chunked_logit_stats(h, table, bias, labels, scale: LogitScale, chunks: int) -> LogitStats:
  """Compute the statistics of the logits scale.apply(h @ table.T, bias), chunk by chunk.

  At most [batch, predicted, vocab / chunks] logits are in memory, in the backward pass, too. That
  one computes the product again: a quarter more FLOPs of the head. Products are float32.

  Args:
    h: [batch, predicted, hidden].
    table: [vocab, hidden].
    bias: [vocab] float32.
    labels: [batch, predicted].
    scale: factor on the products, and soft cap on the logits.
    chunks: number of chunks of the vocabulary.
  """
  return accumulate_logit_stats(h, table, bias, labels, scale, chunks)


def accumulate_logit_stats(h, table, bias, labels, scale: LogitScale, chunks: int) -> LogitStats:
  """Accumulate the statistics over chunks, with the denominator relative to the largest logit."""
  def add_chunk(stats: LogitStats, chunk):
    logits, real, is_label = block_logits(h, chunk, labels, scale)
    logits = jnp.where(real, logits, MIN_LOGIT)
    max_logit = jnp.maximum(stats.max_logit, logits.max(-1))
    rescaled = stats.log_total * jnp.exp(stats.max_logit - max_logit)
    total = rescaled + jnp.exp(logits - max_logit[..., None]).sum(-1)
    label = stats.label + jnp.where(is_label, logits, 0).sum(-1)
    mean = stats.mean + jnp.where(real, logits, 0).sum(-1)
    return LogitStats(total, label, max_logit, mean), None

  zeros = jnp.zeros(labels.shape, jnp.float32)
  initial = LogitStats(zeros, zeros, zeros + MIN_LOGIT, zeros)
  stats, _ = jax.lax.scan(add_chunk, initial, split_table(table, bias, chunks))
  log_total = jnp.log(stats.log_total) + stats.max_logit
  return stats.replace(log_total=log_total, mean=stats.mean / table.shape[0])


def forward(h, table, bias, labels, scale: LogitScale, chunks: int):
  """Compute the statistics and the residuals of their gradient."""
  stats = accumulate_logit_stats(h, table, bias, labels, scale, chunks)
  return stats, (h, table, bias, labels, stats.log_total)


def backward(scale: LogitScale, chunks: int, residuals, grads: LogitStats):
  """Compute the gradients of h, table and bias.

  The gradient of a logit is its probability's share, and what its label and the mean add.
  """
  h, table, bias, labels, log_total = residuals
  size = len(table)

  def add_chunk(h_grad, chunk):
    logits, real, is_label = block_logits(h, chunk, labels, scale)
    probs = jnp.exp(logits - log_total[..., None])
    slope = probs * grads.log_total[..., None] + grads.mean[..., None] / size
    slope = jnp.where(real, slope + jnp.where(is_label, grads.label[..., None], 0), 0)
    if scale.cap:
      slope *= 1 - jnp.square(logits / scale.cap)  # derivative of the cap
    scaled = (slope * scale.factor).astype(h.dtype)
    h_grad += jnp.einsum('bmv,vd->bmd', scaled, chunk[0], preferred_element_type=jnp.float32)
    table_grad = jnp.einsum('bmv,bmd->vd', scaled, h, preferred_element_type=jnp.float32)
    return h_grad, (table_grad.astype(table.dtype), slope.sum((0, 1)))

  zeros = jnp.zeros(h.shape, jnp.float32)
  h_grad, chunk_grads = jax.lax.scan(add_chunk, zeros, split_table(table, bias, chunks))
  table_grad, bias_grad = chunk_grads  # [chunks, chunk, width], [chunks, chunk]
  table_grad = table_grad.reshape(-1, h.shape[-1])[:size]
  return h_grad.astype(h.dtype), table_grad, bias_grad.reshape(-1)[:size], None


chunked_logit_stats.defvjp(forward, backward)


def split_table(table, bias, chunks: int):
  """Split a table [vocab, hidden] and a bias [vocab] into chunks of ids, the last one padded.

  Returns:
    (tables, biases, ids, whether an id is real), each with a leading axis of chunks.
  """
  size = -(-len(table) // chunks)

  def split(x):
    padding = [(0, chunks * size - len(x))] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(chunks, size, *x.shape[1:])

  ids = jnp.arange(chunks * size).reshape(chunks, size)
  return split(table), split(bias), ids, ids < len(table)


def block_logits(h, chunk, labels, scale: LogitScale):
  """Compute the logits [batch, predicted, vocab / chunks] of one chunk, float32.

  Returns:
    (logits, which ids of the chunk are real, which id is the label).
  """
  table, bias, ids, real = chunk
  products = jnp.einsum('bmd,vd->bmv', h, table, preferred_element_type=jnp.float32)
  return scale.apply(products, bias), real, ids == labels[..., None]
