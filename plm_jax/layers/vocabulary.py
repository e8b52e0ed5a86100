"""What losses read of logits over a vocabulary, without the logits: these are made block by block, and again for their
gradient."""
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.sharding import TABLE

LEAST = -1e30  # a logit that is none: finite, so that its difference from another one like it is a number


class Scores(flax.struct.PyTreeNode):
  """Logits [..., V] as far as losses read them, each [...] float32."""

  log_total: jax.Array
  """logarithm of softmax's denominator"""
  label: jax.Array
  """logit of the label"""
  greatest: jax.Array
  """greatest logit, which has no gradient"""
  mean: jax.Array
  """of all logits"""

  @classmethod
  def read(cls, logits, labels) -> 'Scores':
    """Reads them off whole logits [..., V], labels [...]; returns scores as they are."""
    if isinstance(logits, cls):
      return logits
    right = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return cls(jax.nn.logsumexp(logits, -1), right, jax.lax.stop_gradient(logits.max(-1)), logits.mean(-1))


def whole(mesh: Any) -> bool:
  """Tells whether a vocabulary is on every device of the mesh as a whole, so that it can be gone through in blocks."""
  return mesh.empty or all(mesh.shape[axis] == 1 for axis in TABLE['vocab'])


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def scored(h, table, bias, labels, factor: float, blocks: int) -> Scores:
  """h [B, M, D] times table [V, D], transposed, times `factor`, plus bias [V] float32, in so many blocks of ids; labels
  [B, M].

  Products are kept in float32. No more than [B, M, V / blocks] logits are there at a time, in the backward pass too,
  which multiplies once more: a quarter on top of the head's FLOPs.
  """
  return passed(h, table, bias, labels, factor, blocks)


def passed(h, table, bias, labels, factor: float, blocks: int) -> Scores:
  """Goes through the blocks once: the denominator grows by each, relative to the greatest logit so far."""
  def add(so_far: Scores, block):
    logits, real, mine = one(h, block, labels, factor)
    logits = jnp.where(real, logits, LEAST)
    greatest = jnp.maximum(so_far.greatest, logits.max(-1))
    total = so_far.log_total * jnp.exp(so_far.greatest - greatest) + jnp.exp(logits - greatest[..., None]).sum(-1)
    label = so_far.label + jnp.where(mine, logits, 0).sum(-1)
    return Scores(total, label, greatest, so_far.mean + jnp.where(real, logits, 0).sum(-1)), None
  zeros = jnp.zeros(labels.shape, jnp.float32)
  found, _ = jax.lax.scan(add, Scores(zeros, zeros, zeros + LEAST, zeros), cut(table, bias, blocks))
  return found.replace(log_total=jnp.log(found.log_total) + found.greatest, mean=found.mean / table.shape[0])


def forward(h, table, bias, labels, factor: float, blocks: int):
  """Returns the scores, and what the gradient needs."""
  found = passed(h, table, bias, labels, factor, blocks)
  return found, (h, table, bias, labels, found.log_total)


def backward(factor: float, blocks: int, kept, wanted: Scores):
  """Returns the gradients of h, table and bias: of a logit its probability's share, and what its label and the mean
  add."""
  h, table, bias, labels, log_total = kept
  def add(so_far, block):
    logits, real, mine = one(h, block, labels, factor)
    slope = jnp.exp(logits - log_total[..., None]) * wanted.log_total[..., None] + wanted.mean[..., None] / len(table)
    slope = jnp.where(real, slope + jnp.where(mine, wanted.label[..., None], 0), 0)
    scaled = (slope * factor).astype(h.dtype)
    so_far += jnp.einsum('bmv,vd->bmd', scaled, block[0], preferred_element_type=jnp.float32)
    of_table = jnp.einsum('bmv,bmd->vd', scaled, h, preferred_element_type=jnp.float32).astype(table.dtype)
    return so_far, (of_table, slope.sum((0, 1)))
  of_h, (of_table, of_bias) = jax.lax.scan(add, jnp.zeros(h.shape, jnp.float32), cut(table, bias, blocks))
  size = len(table)
  return of_h.astype(h.dtype), of_table.reshape(-1, h.shape[-1])[:size], of_bias.reshape(-1)[:size], None


scored.defvjp(forward, backward)


def cut(table, bias, blocks: int):
  """Cuts table [V, D] and bias [V] into blocks of ids, the last filled up: with each, which of its ids are real."""
  size = -(-len(table) // blocks)
  def parts(x):
    return jnp.pad(x, [(0, blocks * size - len(x)), *[(0, 0)] * (x.ndim - 1)]).reshape(blocks, size, *x.shape[1:])
  ids = jnp.arange(blocks * size).reshape(blocks, size)
  return parts(table), parts(bias), ids, ids < len(table)


def one(h, block, labels, factor: float):
  """Returns the logits [B, M, V / blocks] of a block, float32, which of its ids are real, and which is the label."""
  table, bias, ids, real = block
  logits = jnp.einsum('bmd,vd->bmv', h, table, preferred_element_type=jnp.float32) * factor + bias
  return logits, real, ids == labels[..., None]
