"""Multi-head attention: softmax, dropout, grouped keys and kernels are written here, once, for every family.

Four forms of one thing. Where a layer sees a band of neighbours alone the first meets those that are in reach, and the
next two get blocks of queries for rows (`bands`), if that saves half of the products:

    mosaic     one kernel of our own on a TPU in bfloat16 (`mosaic.takes`), which keeps nothing of [Q, K]: rows of 256
               to 2,048 keys train so in every family, but where a scheme gives each row logits of its own (XLNet).
               Disentangled attention (DeBERTa, LTG-BERT, GPT-BERT) gives it `Distances`, of which the others have a
               bias written out
    fused      one kernel of cuDNN, which keeps nothing of [Q, K]: on an NVIDIA GPU in bfloat16, for what `cudnn.takes`.
               ALBERT, LLaMA, PaLM (heads of 256: Hopper alone) and the Transformer train so, and T5 v1.1 reads its
               encoder so; BERT's kin, GPT and BART are evaluated so, and without dropout of attention trained so
    plain      `probabilities` and `mixture`, products written out: on a CPU; in float32; on older GPUs (T4, V100); on a
               GPU with dropout or a bias (T5's) and with odd lengths; DeBERTa's positions but for the kernel of ours,
               and XLNet's. For the backward
               pass it keeps the probabilities, in the type of the queries, and nothing else of [Q, K]
    decoding   plain, with keys and values of before where they lie in the cache: one query at a time has no use for
               the kernel. What is read before the first token takes either of the others

Parameters are initialised in the plain form: initialisation is vmapped over layers, which cuDNN's kernel cannot be.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

from flax.core import FrozenDict
import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers import bands, cudnn, mosaic
from plm_jax.layers.bands import Band
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, Dropout
from plm_jax.layers.distances import Distances
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.positions import NoPosition
from plm_jax.sharding import constrain, spec

Projection = Literal['query', 'key', 'value', 'gate', 'out']
SPLIT = 'batch', None, 'heads', None  # the axes of queries, keys and values


@dataclasses.dataclass(frozen=True)
class AttentionConfig(Checked):
  """Attention; the sizes and number of its heads are the block's."""

  limits = within(scale='(0, inf)', dropout='[0, 1)', out_dropout='[0, 1)')

  bias: tuple[Projection, ...] = ('query', 'key', 'value', 'out')
  """projections that have biases; softmax does not feel that of keys"""
  scale: float | None = None
  """factor on logits; None: 1 / sqrt(head size)"""
  dropout: float = 0.1
  """share of probabilities that are dropped"""
  out_dropout: float = 0.0
  """share of what attention gives that is dropped, where the position-wise network's is not (the block's dropout is of
  both)"""
  gated: bool = False
  """what the heads give is multiplied, number by number, by gelu of a projection of what queries are made of
  (GPT-BERT: Charpentier and Samuel 2024, section 2)"""
  mixture_norm: bool = False
  """what the heads give, gated or not, is normalised together before the projection back, by a norm of the block's
  kind"""
  out_norm: bool = False
  """what attention gives is normalised, with gain and bias, before it is added (NormFormer: Shleifer et al. 2021)"""
  position: NoPosition = NoPosition()
  """the scheme that acts inside"""


class Visible(NamedTuple):
  """What queries see of keys, and what logits get besides."""

  mask: jax.Array | None
  """[B|1, 1, 1|Q, K], True where visible; None: everything. With a `Past`, its keys come first"""
  context: Mapping[str, Any] = FrozenDict()
  """what the position scheme gave for all layers"""
  factor: jax.Array | None = None
  """on logits, [], for what differs from layer to layer"""
  band: Band | None = None
  """of the keys of its own row a query sees no others; None: what the mask says. Not with a `Past`"""


class Keys(NamedTuple):
  """Keys and values of a memory that was read before: there are no hidden states to make them of."""

  key: jax.Array
  value: jax.Array
  """[B, K, G, A] both"""


class Past(NamedTuple):
  """Keys and values of earlier tokens, which stand in front of those of the row, as a cache has them."""

  key: jax.Array
  value: jax.Array
  """[B, G, S, A] both"""


class Attention(nn.Module):
  """Vaswani et al. 2017, section 3.2; grouped keys: Ainslie et al. 2023."""

  cfg: AttentionConfig
  common: CommonConfig

  @property
  def scale(self) -> float:
    """Factor on logits."""
    return self.cfg.scale or self.common.head_dim ** -0.5

  @nn.compact
  def __call__(self, x, kv, visible: Visible, rows=None, past: Past | None = None):
    """x [B, Q, D] attends to kv, hidden states [B, K, D] or `Keys` of them, behind the past -> [B, Q, D].

    Keys and values that are made here are let out as the collection `keys`. rows [B] key dropout; None: no dropout.
    """
    cfg, common, size = self.cfg, self.common, self.common.head_dim
    def dense(name, features, *axes, init):
      return Dense(features, axes, name in cfg.bias, common.compute, init, name=name)
    def heads(name, number, gain=1.0):
      init = common.init.matrix(common.width, number * size, gain=gain)
      return dense(name, (number, size), 'width', 'heads', None, init=init)
    query = heads('query', common.heads, size ** -0.5 / self.scale)
    key, value = heads('key', common.key_heads), heads('value', common.key_heads)
    q = query(x, rows)
    if isinstance(kv, Keys):
      k, v = kv
      if self.is_initializing():  # the parameters are the same, in use or not
        _ = key(x), value(x)
    else:
      k, v = key(kv, rows), value(kv, rows)
    q, k, logits = cfg.position.interact(self, common, q, k, visible.context, query, key)
    parted = self.is_mutable_collection('inside') or visible.factor is not None
    if isinstance(logits, Distances) and (parted or not self.free(past) or not taken(q, k, logits)):
      q, logits = logits.written(q, k, self.scale)
    q, k, v = (constrain(y, *SPLIT) for y in (q, k, v))
    if not isinstance(kv, Keys):
      self.sow('keys', 'heads', {'key': k, 'value': v})
    if visible.factor is not None:
      q *= visible.factor.astype(q.dtype)
    self.sow('inside', 'heads', {'query': q, 'key': k, 'value': v, 'bias': logits})
    noisy = rows if cfg.dropout > 0 else None
    y = constrain(self.attend(q, k, v, visible, logits, noisy, past), *SPLIT)
    if cfg.gated:
      y *= jax.nn.gelu(constrain(heads('gate', common.heads)(x, rows), *SPLIT), approximate=False)
    if cfg.mixture_norm:
      y = common.make_norm('mixture_norm')(y.reshape(*y.shape[:2], -1)).reshape(y.shape)
    init = common.init.matrix(common.heads * size, common.width, out=True)
    y = dense('out', (common.width,), 'heads', None, 'width', init=init)(y, rows)
    if cfg.out_norm:
      y = Norm(NormConfig(eps=common.norm.eps), common.compute, name='out_norm')(y)
    return Dropout(cfg.out_dropout, name='out_dropout')(y, rows)

  def free(self, past: Past | None) -> bool:
    """Tells whether kernels may attend, and rows be cut: nothing comes from a cache, nobody wants to see probabilities,
    and this is no initialisation."""
    return past is None and not self.is_mutable_collection('intermediates') and not self.is_initializing()

  def attend(self, q, k, v, visible: Visible, logits, rows, past: Past | None = None):
    """Attends in one of the forms: q [B, Q, H, A], k and v [B, K, G, A] -> [B, Q, H, A].

    logits: a bias [B|1, H, Q, S + K], `Distances` or None. rows [B] key dropout of probabilities; None: no dropout.
    """
    free = self.free(past)
    mask, band, ours = visible.mask, visible.band, free and taken(q, k, logits)
    if band and free and not ours and logits is None and band.saves(q.shape[1]):
      return self.attend_in_blocks(q, k, v, mask, band, rows)
    dropout = Dropout(self.cfg.dropout, name='dropout')
    if ours:
      noise = None if rows is None else mosaic.Noise(dropout.seed(), rows, self.cfg.dropout)
      return mosaic.attend(mosaic.Arrays(q, k, v, mask, logits), self.scale, noise, band)
    if band:
      mask = band.within(mask, q.shape[1])
    if free and fits(q, k, bias=logits is not None, dropout=rows is not None):
      return fused(q, k, v, mask, self.scale)
    keep = dropout.keep((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), rows)
    probs = probabilities(q, k, mask, self.scale, logits, past)
    self.sow('intermediates', 'probs', probs)
    return mixture(probs, v, lambda probs: dropout.drop(probs, keep), past)

  def attend_in_blocks(self, q, k, v, mask, band: Band, rows):
    """Attends within the band: as `attend` does, with blocks of queries for rows."""
    batch, length = q.shape[:2]
    mask = bands.cut(mask, band, batch, length)
    cut = bands.blocks(q, band), bands.neighbours(k, band), bands.neighbours(v, band)
    q, k, v = (constrain(y, *SPLIT) for y in cut)
    y = self.attend(q, k, v, Visible(mask), None, None if rows is None else bands.numbered(rows, band, length))
    return bands.joined(y, batch, length)


def taken(q, k, logits) -> bool:
  """Tells whether the kernel of ours takes queries q [B, Q, H, A] and keys k [B, K, G, A] with what a scheme adds to
  logits, a bias or `Distances`."""
  takes = functools.partial(mosaic.takes, mosaic.kind(), q.dtype, q.shape, k.shape)
  if isinstance(logits, Distances):
    return takes(terms=logits.terms)
  return takes(None if logits is None else logits.shape)


def fits(q, k, bias: bool, dropout: bool) -> bool:
  """Tells whether the fused kernel takes queries q [B, Q, H, A] and keys k [B, K, G, A] where this is traced for.

  On a mesh it wants both split alike, which grouped keys are not where devices do not divide their heads.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty and spec(SPLIT, q.shape, mesh) != spec(SPLIT, k.shape, mesh):
    return False
  return cudnn.takes(
      cudnn.capability(), q.dtype, q.shape[3], q.shape[1], k.shape[1], bias=bias, dropout=dropout)


def fused(q, k, v, mask, scale: float):
  """Attends by cuDNN: q [B, Q, H, A], k and v [B, K, G, A], mask [B|1, 1, 1|Q, K] or None -> [B, Q, H, A]."""
  if mask is not None:
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], q.shape[1], k.shape[1]))
    mask = constrain(mask, 'batch', None, None, None)
  return jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale, implementation='cudnn')


def probabilities(q, k, mask, scale: float, bias=None, past: Past | None = None) -> Any:
  """Returns the probabilities of q [B, Q, H, A] and k [B, K, G, A]: [B, H, Q, S + K] in the type of q.

  mask, and bias, which is added to the scaled logits, broadcast to that, or are None.
  """
  # What there was before is read where it lies: put together with the rest it would be copied for every token.
  before = [] if past is None else [products(q, past.key, 'bgka')]
  logits = jnp.concatenate([*before, products(q, k)], -1) * scale
  if bias is not None:
    logits += bias
  if mask is not None:
    # Finite, so that a row of padding is uniform instead of NaN.
    logits = jnp.where(mask, logits, -1e9)
  return softmax(logits, q.dtype)


def mixture(probs, v, drop=lambda probs: probs, past: Past | None = None):
  """Mixes values: probs [B, H, Q, S + K], v [B, K, G, A] -> [B, Q, H, A]. past: `value` [B, G, S, A], which stand in
  front of v."""
  if past is None:
    # The backward pass keeps the probabilities and drops them again, instead of both.
    return jax.checkpoint(lambda probs, v: mixed(drop(probs), v), prevent_cse=False)(probs, v)
  size = past.value.shape[2]
  return mixed(probs[..., :size], past.value, 'bgka') + mixed(probs[..., size:], v)


def products(q, k, axes='bkga'):
  """Multiplies q [B, Q, H, A] and k [B, K, G, A] -> [B, H, Q, K] float32; each key head is met by H / G query heads,
  uncopied.

  axes: of k. A cache has its heads in front of its tokens, so that a head's keys lie together.
  """
  groups = k.shape[axes.index('g')]
  if groups == q.shape[2]:
    return jnp.einsum(f'bqga,{axes}->bgqk', q, k, preferred_element_type=jnp.float32)
  q = q.reshape(*q.shape[:2], groups, -1, q.shape[3])
  logits = jnp.einsum(f'bqgra,{axes}->bgrqk', q, k, preferred_element_type=jnp.float32)
  return logits.reshape(logits.shape[0], -1, *logits.shape[3:])


def mixed(probs, v, axes='bkga'):
  """Multiplies probs [B, H, Q, K] and v [B, K, G, A] (axes) -> [B, Q, H, A]."""
  groups = v.shape[axes.index('g')]
  if groups == probs.shape[1]:
    return jnp.einsum(f'bgqk,{axes}->bqga', probs, v)
  probs = probs.reshape(probs.shape[0], groups, -1, *probs.shape[2:])
  y = jnp.einsum(f'bgrqk,{axes}->bqgra', probs, v)
  return y.reshape(*y.shape[:2], -1, y.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def softmax(logits, dtype):
  """Returns the probabilities of logits [..., K], computed in float32. The backward pass keeps them in `dtype`, nothing
  else."""
  return nn.softmax(logits.astype(jnp.float32)).astype(dtype)


def softmax_forward(logits, dtype):
  """Returns the probabilities, and the same for the backward pass."""
  probs = softmax(logits, dtype)
  return probs, probs


def softmax_backward(dtype, probs, gradient):
  """Returns the gradient of the logits, computed in float32 from the probabilities alone."""
  del dtype
  probs, gradient = probs.astype(jnp.float32), gradient.astype(jnp.float32)
  return (probs * (gradient - (probs * gradient).sum(-1, keepdims=True)),)


softmax.defvjp(softmax_forward, softmax_backward)
