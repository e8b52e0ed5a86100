"""Multi-head attention for every family: softmax, dropout, grouped keys, and the choice of kernel.

One of four forms computes it. Within a sliding window the TPU kernel visits only the keys in reach;
the cuDNN and plain forms get blocks of queries as rows (`sliding_window`) where that saves half of
the products.

    TPU       our kernel, in bfloat16 (`kernels.tpu_attention.supports`), which stores nothing of
              [queries, keys]. Rows of 256 to 2,048 keys train with it in every family, and longer
              ones without a bias. Disentangled attention (DeBERTa, LTG-BERT, GPT-BERT) passes
              `RelativeLogits`, and XLNet `TransformerXLLogits`; the other forms get them as a bias
    cuDNN     cuDNN's fused kernel, which stores nothing of [queries, keys]: on an NVIDIA GPU, in
              bfloat16, for what `kernels.cudnn.supports`. ALBERT, LLaMA, PaLM (heads of 256: Hopper
              only) and the Transformer train with it, and T5 v1.1 in its encoder. BERT and its kin,
              GPT and BART are evaluated with it, and trained where attention has no dropout
    plain     `probabilities` and `mix_values`: on a CPU; in float32; on older GPUs (T4, V100); on a
              GPU with dropout or a bias (T5), and with odd lengths; for the positions of DeBERTa
              and XLNet outside of the TPU kernel. The backward pass keeps the probabilities, in the
              dtype of the queries, and nothing else of [queries, keys]
    decoding  plain, with a KV cache that is read in place: one query at a time does not need a
              kernel. The prompt takes the TPU or cuDNN form

Logits with a soft cap (Gemma 2, T5Gemma) take the plain form everywhere.

Parameters are initialized in the plain form: initialization is vmapped over layers, which cuDNN's
kernel does not support.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

from flax.core import FrozenDict
import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers import sliding_window
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, Dropout
from plm_jax.layers.kernels import cpu, cudnn, gpu, tpu_attention
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.positions import NoPosition
from plm_jax.layers.relative_logits import RelativeLogits, TransformerXLLogits
from plm_jax.layers.sliding_window import SlidingWindow
from plm_jax.sharding import constrain, partition_spec
from plm_jax.validation import ValidatedConfig, intervals

Projection = Literal['query', 'key', 'value', 'gate', 'out']
HEAD_AXES = 'batch', None, 'heads', None  # logical axes of queries, keys and values


@dataclasses.dataclass(frozen=True)
class AttentionConfig(ValidatedConfig):
  """Attention; the block has the number and size of its heads."""

  limits = intervals(
      scale='(0, inf)', logit_cap='(0, inf)', dropout='[0, 1)', out_dropout='[0, 1)')

  bias: tuple[Projection, ...] = ('query', 'key', 'value', 'out')
  """Projections that have biases. Softmax does not depend on the bias of keys."""
  scale: float | None = None
  """Factor on logits; None: 1 / sqrt(head size)."""
  logit_cap: float | None = None
  """Soft cap on logits, cap * tanh(logits / cap), before the attention mask (Gemma 2); None: no
  cap."""
  dropout: float = 0.1
  """Dropout rate of attention probabilities."""
  out_dropout: float = 0.0
  """Dropout rate of the output of attention alone (the block's dropout also applies to that of the
  MLP)."""
  gated: bool = False
  """Multiply the output of the heads, element by element, by gelu of a projection of the input
  (GPT-BERT: Charpentier and Samuel 2024, section 2)."""
  mixture_norm: bool = False
  """Normalize the output of all heads together, after the gate and before the output projection, by
  a norm of the block's kind."""
  qk_norm: bool = False
  """Normalize the queries and keys of each head, before positions, by a norm of the block's kind
  (QK-norm: Henry et al. 2020; Qwen3, Gemma 3)."""
  out_norm: bool = False
  """Normalize the output of attention, with scale and bias, before it is added to the residual
  stream (NormFormer: Shleifer et al. 2021)."""
  position: NoPosition = NoPosition()
  """Position scheme inside attention."""


class AttentionMask(NamedTuple):
  """Attention mask, and the other inputs of attention that do not depend on the hidden states."""

  mask: jax.Array | None
  """[batch or 1, 1, 1 or queries, keys], True where the query attends to the key; None: everywhere.
  Keys of a `KVCache` come first."""
  context: Mapping[str, Any] = FrozenDict()
  """What the position scheme computed for all layers."""
  factor: jax.Array | None = None
  """Scalar factor on logits, where layers differ in it."""
  causal: bool = False
  """No query attends to a key after its own place in the row. The mask says so, too: this lets a
  kernel skip them."""
  window: SlidingWindow | None = None
  """Sliding window over the row's own keys; None: the mask alone decides. Not with a `KVCache`."""


class CrossAttentionCache(NamedTuple):
  """Keys and values of an encoder's output, computed before; hidden states are not needed."""

  key: jax.Array
  """[batch, keys, key_heads, head_size]."""
  value: jax.Array
  """[batch, keys, key_heads, head_size]."""


class KVCache(NamedTuple):
  """KV cache: keys and values of earlier tokens, which precede those of the row."""

  key: jax.Array
  """[batch, key_heads, slots, head_size]."""
  value: jax.Array
  """[batch, key_heads, slots, head_size]."""


class Attention(nn.Module):
  """Multi-head attention (Vaswani et al. 2017, section 3.2), with grouped-query attention.

  Grouped keys and values: Ainslie et al. 2023.
  """

  cfg: AttentionConfig
  common: CommonConfig

  @property
  def scale(self) -> float:
    """Factor on logits."""
    return self.cfg.scale or self.common.head_dim ** -0.5

  @nn.compact
  def __call__(self, x, kv, mask: AttentionMask, row_ids=None, past: KVCache | None = None):
    """Attend from x to kv.

    Args:
      x: [batch, queries, hidden].
      kv: [batch, keys, hidden], or a `CrossAttentionCache`.
      mask: the attention mask.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
      past: KV cache, whose keys precede those of kv.

    Returns:
      [batch, queries, hidden]. New keys and values are sown in the collection `keys`.
    """
    cfg, common, size = self.cfg, self.common, self.common.head_dim
    cached = isinstance(kv, CrossAttentionCache)

    def make_projection(name, heads, gain=1.0):
      init = common.init.matrix_initializer(common.width, heads * size, gain=gain)
      return Dense((heads, size), ('width', 'heads', None), name in cfg.bias, common.compute_dtype,
                   init, name=name)

    # Queries, keys and values.
    def norm_heads(name, heads):
      return common.make_norm(name)(heads) if cfg.qk_norm else heads

    query = make_projection('query', common.heads, size ** -0.5 / self.scale)
    key = make_projection('key', common.key_heads)
    value = make_projection('value', common.key_heads)
    q = norm_heads('query_norm', query(x, row_ids))
    if cached:
      k, v = kv
      if self.is_initializing():  # the parameters are the same with and without the cache
        _ = norm_heads('key_norm', key(x)), value(x)
    else:
      k, v = norm_heads('key_norm', key(kv, row_ids)), value(kv, row_ids)

    # Positions. Only the TPU kernel takes relative logits as they are.
    q, k, bias = cfg.position.interact(self, common, q, k, mask.context, query, key)
    needs_bias = self.is_mutable_collection('inside') or mask.factor is not None
    if isinstance(bias, RelativeLogits | TransformerXLLogits) and (
        needs_bias or not self.kernels_allowed(past) or self.cfg.logit_cap
        or not use_tpu_kernel(q, k, bias)):
      q, bias = bias.to_bias(q, k, self.scale)
    q, k, v = constrain(q, *HEAD_AXES), constrain(k, *HEAD_AXES), constrain(v, *HEAD_AXES)
    if not cached:
      self.sow('keys', 'heads', {'key': k, 'value': v})
    if mask.factor is not None:
      q *= mask.factor.astype(q.dtype)
    self.sow('inside', 'heads', {'query': q, 'key': k, 'value': v, 'bias': bias})

    # Attention and the output projection.
    noisy_rows = row_ids if cfg.dropout > 0 else None
    y = constrain(self.attend(q, k, v, mask, bias, noisy_rows, past), *HEAD_AXES)
    if cfg.gated:
      gate = make_projection('gate', common.heads)(x, row_ids)
      y *= jax.nn.gelu(constrain(gate, *HEAD_AXES), approximate=False)
    if cfg.mixture_norm:
      y = common.make_norm('mixture_norm')(y.reshape(*y.shape[:2], -1)).reshape(y.shape)
    init = common.init.matrix_initializer(common.heads * size, common.width, out=True)
    out = Dense((common.width,), ('heads', None, 'width'), 'out' in cfg.bias, common.compute_dtype,
                init, name='out')
    y = out(y, row_ids)
    if cfg.out_norm:
      y = Norm(NormConfig(eps=common.norm.eps), common.compute_dtype, name='out_norm')(y)
    return Dropout(cfg.out_dropout, name='out_dropout')(y, row_ids)

  def kernels_allowed(self, past: KVCache | None) -> bool:
    """Tell whether kernels and blocks may be used.

    They are not used with a KV cache, at initialization, or where probabilities are recorded.
    """
    recording = self.is_mutable_collection('intermediates')
    return past is None and not recording and not self.is_initializing()

  def attend(self, q, k, v, mask: AttentionMask, bias, row_ids, past: KVCache | None = None):
    """Compute attention in one of the forms.

    Args:
      q: [batch, queries, heads, head_size].
      k: [batch, keys, key_heads, head_size].
      v: of the same shape as k.
      mask: the attention mask.
      bias: [batch or 1, heads, queries, cached + keys], or `RelativeLogits`, or
        `TransformerXLLogits`, or None.
      row_ids: [batch] row numbers, folded into the key of attention dropout; None: no dropout.
      past: KV cache.

    Returns:
      [batch, queries, heads, head_size].
    """
    allowed = self.kernels_allowed(past)
    cap = self.cfg.logit_cap
    on_tpu = allowed and not cap and use_tpu_kernel(q, k, bias)
    window = mask.window
    # The kernel visits only the keys in the window, unless it computes the row part by part.
    skips_keys = on_tpu and not tpu_attention.needs_parts(
        tpu_attention.device_kind(), k.shape[1], q.shape[3])
    if window and allowed and not skips_keys and bias is None and window.saves(q.shape[1]):
      return self.attend_in_blocks(q, k, v, mask.mask, window, row_ids)
    dropout = Dropout(self.cfg.dropout, name='dropout')
    if on_tpu:
      noise = (None if row_ids is None
               else tpu_attention.AttentionDropout(dropout.seed(), row_ids, self.cfg.dropout))
      arrays = tpu_attention.Arrays(q, k, v, mask.mask, bias)
      return tpu_attention.attend(arrays, self.scale, noise, window, causal=mask.causal)

    visible = window.restrict(mask.mask, q.shape[1]) if window else mask.mask
    if allowed and not cap and use_cudnn(
        q, k, bias=bias is not None, dropout=row_ids is not None):
      return cudnn_attention(q, k, v, visible, self.scale, mask.causal)
    keep = dropout.draw_keep_mask((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), row_ids)
    probs = probabilities(q, k, visible, self.scale, bias, past, cap)
    self.sow('intermediates', 'probs', probs)
    return mix_values(probs, v, lambda probs: dropout.drop(probs, keep), past)

  def attend_in_blocks(self, q, k, v, mask, window: SlidingWindow, row_ids):
    """Compute sliding-window attention as `attend` does, with blocks of queries as rows."""
    batch, length = q.shape[:2]
    mask = sliding_window.block_mask(mask, window, batch, length)
    q = sliding_window.split_queries(q, window)
    k = sliding_window.neighbor_keys(k, window)
    v = sliding_window.neighbor_keys(v, window)
    q, k, v = constrain(q, *HEAD_AXES), constrain(k, *HEAD_AXES), constrain(v, *HEAD_AXES)
    if row_ids is not None:
      # Dropout numbers the blocks of all rows: [batch] -> [batch * blocks].
      blocks = -(-length // window.block_size)
      row_ids = (row_ids[:, None] * blocks + jnp.arange(blocks)).reshape(-1)
    y = self.attend(q, k, v, AttentionMask(mask), None, row_ids)
    return sliding_window.join_blocks(y, batch, length)


def use_tpu_kernel(q, k, bias) -> bool:
  """Tell whether the TPU kernel supports this attention.

  Args:
    q: [batch, queries, heads, head_size].
    k: [batch, keys, key_heads, head_size].
    bias: bias of logits, `RelativeLogits`, `TransformerXLLogits`, or None.
  """
  supports = functools.partial(
      tpu_attention.supports, tpu_attention.device_kind(), q.dtype, q.shape, k.shape)
  if isinstance(bias, RelativeLogits | TransformerXLLogits):
    return supports(terms=bias.terms)
  return supports(None if bias is None else bias.shape)


def use_cudnn(q, k, bias: bool, dropout: bool) -> bool:
  """Tell whether cuDNN's fused kernel supports this attention on the device.

  On a mesh queries and keys must be split alike, which grouped keys are not where the devices do
  not divide their heads.

  Args:
    q: [batch, queries, heads, head_size].
    k: [batch, keys, key_heads, head_size].
    bias: whether logits have a bias.
    dropout: whether probabilities have dropout.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty and (
      partition_spec(HEAD_AXES, q.shape, mesh) != partition_spec(HEAD_AXES, k.shape, mesh)):
    return False
  return cudnn.supports(cudnn.compute_capability(), q.dtype, q.shape[3], q.shape[1], k.shape[1],
                        bias=bias, dropout=dropout)


def cudnn_attention(q, k, v, mask, scale: float, causal: bool = False):
  """Attend with cuDNN's fused kernel.

  Args:
    q: [batch, queries, heads, head_size].
    k: [batch, keys, key_heads, head_size].
    v: of the same shape as k.
    mask: [batch or 1, 1, 1 or queries, keys] bool, or None.
    scale: factor on logits.
    causal: no query attends to a key after its own place: these are skipped.

  Returns:
    [batch, queries, heads, head_size].
  """
  if mask is not None:
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], q.shape[1], k.shape[1]))
    mask = constrain(mask, 'batch', None, None, None)
  attend = functools.partial(
      jax.nn.dot_product_attention, mask=mask, scale=scale, is_causal=causal)
  if gpu.is_gpu() and jax.default_backend() != 'gpu':
    # The GPU is absent, the step only traced: the backward pass keeps what the kernel keeps.
    return jax.checkpoint(attend)(q, k, v)
  return attend(q, k, v, implementation='cudnn')


def probabilities(
    q, k, mask, scale: float, bias=None, past: KVCache | None = None, cap: float | None = None,
) -> Any:
  """Compute attention probabilities.

  Args:
    q: [batch, queries, heads, head_size].
    k: [batch, keys, key_heads, head_size].
    mask: broadcasts to the result; True where the query attends to the key; None: everywhere.
    scale: factor on the products.
    bias: added to the scaled logits; broadcasts to the result; or None.
    past: KV cache.
    cap: soft cap on the scaled logits; None: no cap.

  Returns:
    [batch, heads, queries, cached + keys] in the dtype of q.
  """
  products = []
  if past is not None:
    # The cache is read in place: concatenated with k it would be copied for every token.
    products.append(multiply_query_key(q, past.key, 'bgka'))
  products.append(multiply_query_key(q, k))
  logits = jnp.concatenate(products, -1) * scale
  if cap:
    logits = cap * jnp.tanh(logits / cap)
  if bias is not None:
    logits += bias
  if mask is not None:
    # Finite, so that the probabilities of a row of padding are uniform instead of NaN.
    logits = jnp.where(mask, logits, -1e9)
  return softmax(logits, q.dtype)


def mix_values(probs, v, drop=lambda probs: probs, past: KVCache | None = None):
  """Mix values by attention probabilities.

  Args:
    probs: [batch, heads, queries, cached + keys].
    v: [batch, keys, key_heads, head_size].
    drop: applies dropout to probabilities.
    past: KV cache.

  Returns:
    [batch, queries, heads, head_size].
  """
  if past is None:
    # Activation checkpointing: the backward pass keeps the probabilities and drops them again,
    # instead of keeping both.
    mix = jax.checkpoint(lambda probs, v: multiply_values(drop(probs), v), prevent_cse=False)
    return mix(probs, v)
  size = past.value.shape[2]
  cached = multiply_values(probs[..., :size], past.value, 'bgka')
  return cached + multiply_values(probs[..., size:], v)


def multiply_query_key(q, k, axes='bkga'):
  """Multiply queries and keys, without copying grouped keys.

  Args:
    q: [batch, queries, heads, head_size].
    k: [batch, keys, key_heads, head_size], each key head for heads / key_heads query heads.
    axes: order of the axes of k. A KV cache has heads before tokens, so that the keys of a head are
      adjacent.

  Returns:
    [batch, heads, queries, keys] float32.
  """
  product: Any = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  if gpu.is_gpu():
    product = gpu.float32_product
  groups = k.shape[axes.index('g')]
  if groups == q.shape[2]:
    return product(f'bqga,{axes}->bgqk', q, k)
  # [batch, queries, key_heads, heads / key_heads, head_size]
  q = q.reshape(*q.shape[:2], groups, -1, q.shape[3])
  logits = product(f'bqgra,{axes}->bgrqk', q, k)
  return logits.reshape(logits.shape[0], -1, *logits.shape[3:])


def multiply_values(probs, v, axes='bkga'):
  """Multiply probabilities [batch, heads, queries, keys] and values, without copying values.

  v [batch, keys, key_heads, head_size], with its axes in the order of `axes` -> [batch, queries,
  heads, head_size].
  """
  groups = v.shape[axes.index('g')]
  if groups == probs.shape[1]:
    return jnp.einsum(f'bgqk,{axes}->bqga', probs, v)
  # [batch, key_heads, heads / key_heads, queries, keys]
  probs = probs.reshape(probs.shape[0], groups, -1, *probs.shape[2:])
  y = jnp.einsum(f'bgrqk,{axes}->bqgra', probs, v)
  return y.reshape(*y.shape[:2], -1, y.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def softmax(logits, dtype):
  """Compute the softmax of logits [..., keys] in float32, and return it in `dtype`.

  The backward pass keeps the probabilities in `dtype`, and nothing else.
  """
  logits = logits.astype(jnp.float32)
  if not cpu.is_single_cpu():
    return nn.softmax(logits).astype(dtype)
  exponentials = jnp.exp(logits - cpu.max_rows(logits)[..., None])
  return (exponentials / cpu.sum_rows(exponentials)[..., None]).astype(dtype)


def softmax_forward(logits, dtype):
  """Compute `softmax` and the residuals of its gradient."""
  probs = softmax(logits, dtype)
  return probs, probs


def softmax_backward(dtype, probs, gradient):
  """Compute the gradient of the logits in float32, from the probabilities alone."""
  del dtype
  probs, gradient = probs.astype(jnp.float32), gradient.astype(jnp.float32)
  return (probs * (gradient - cpu.sum_rows(probs * gradient)[..., None]),)


softmax.defvjp(softmax_forward, softmax_backward)
