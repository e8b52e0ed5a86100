"""Attention in one TPU kernel (Pallas): logits and probabilities are never written to HBM.

    attend(Arrays(q, k, v, mask, bias=None), scale, AttentionDropout(seed, row_ids, 0.1))

A program of the kernel has a block of queries and all keys of a row, so its logits are complete
rows, and softmax needs no second pass over the keys. The backward pass recomputes the probabilities
from queries, keys and values, and keeps nothing else (FlashAttention: Dao et al. 2022, section 3).
Rows with more keys than a core's memory holds (`max_keys`) are computed part by part
(`attend_in_parts`). Queries, keys and values stay where the product with their kernel put them,
with heads adjacent. Heads narrower than the 128 lanes of a core are processed together, separated
by zeros, which cost the matrix unit nothing.

For disentangled attention a program gets the tables of distances, which all rows share, in place of
logits by distance per row (`RelativeLogits`). It multiplies by the window of a table that a block
of queries can reach, and aligns the products with keys (`relative_shift`). The backward pass sums
the gradients of the tables over the rows. XLNet's logits (`TransformerXLLogits`) are such products,
too, with biases of the queries that a program adds, and with a table for each direction of text.
Its two streams are two calls: the queries of the second are at any positions.

Dropout reads no bits from memory: a hash of (seed, row, head, query, key) decides whether a
probability is kept. So the mask is the same on any mesh, for any blocks, and in both passes.

Written for libtpu 0.0.42 to 0.0.50. Compare jax.experimental.pallas.ops.tpu.flash_attention, which
has no dropout and needs heads before tokens.
"""
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.layers.kernels.relative_shift import LANES
from plm_jax.layers.kernels.tpu_attention_blocks import (
  FLOAT32_DEVICES,
  LOGITS_BYTES,
  VMEM_LIMITS,
  attend_in_blocks,
  attend_to_part,
  differentiate_part,
  head_lanes,
  round_up,
)
from plm_jax.layers.kernels.tpu_attention_kernel import PADDING_LOGIT
from plm_jax.layers.kernels.tpu_attention_plan import (
  Arrays,
  DropoutIds,
  KeyPart,
  Settings,
  Tables,
)
from plm_jax.layers.relative_logits import RelativeLogits, TransformerXLLogits
from plm_jax.layers.sliding_window import SlidingWindow, round_to_tiles
from plm_jax.sharding import partition_spec

MIN_KEYS, MAX_KEYS = 256, 2048
"""Keys of a program. With 128 keys the kernel reads as much as the probabilities that it saves
(BERT-base on v5e:4x4, compiled: 5.17 GB per step, 5.01 without)."""
MAX_KEYS_BY_DEVICE = {'TPU v5 lite': 8192, 'TPU v5': 4096, 'TPU v6 lite': 8192}
"""Keys of a program on devices whose cores have more fast memory: 128 queries of 8,192 keys have
4 MiB of float32 logits. ModernBERT's rows of 8,192 tokens on v5e:4x8, compiled: 1,613 GB per step
without the kernel, 100 with it."""
MIN_KEYS_RELATIVE = 128
"""Keys of a row with relative logits."""
ARRAY_AXES = ('batch', None, 'heads', None)


class AttentionDropout(NamedTuple):
  """Dropout of attention probabilities."""

  seed: jax.Array
  """[2] uint32."""
  rows: jax.Array
  """[batch] int32, numbers of the rows in the whole batch."""
  rate: float
  """Dropout rate."""


def device_kind() -> str:
  """Return the kind of the TPU that is compiled for, '' for other devices.

  It is that of the mesh, whose devices need not be present, or else of JAX's own devices.
  """
  mesh = jax.sharding.get_abstract_mesh()
  device = None if mesh.empty else getattr(mesh, 'abstract_device', None)
  if device is None:
    if jax.default_backend() != 'tpu':
      return ''
    return jax.local_devices()[0].device_kind
  return device.device_kind if device.platform == 'tpu' else ''


def supports(kind: str, dtype, query: tuple[int, ...], key: tuple[int, ...],
             bias: tuple[int, ...] | None = None, terms: int = 0) -> bool:
  """Tell whether the kernel supports attention of this kind; the only place that decides.

  Rows of more than `max_keys` keys are computed in parts, unless they have a bias or relative
  logits. A bias that differs between rows would be read completely, and its gradient written: there
  is nothing to gain. Of a shared bias a program holds all queries, and its gradient, which is
  summed over the rows. Of relative logits it holds the complete tables and their gradients. Two
  tables are the most: DeBERTa's two terms, or XLNet's two directions.

  Args:
    kind: device kind.
    dtype: dtype of queries and keys.
    query: shape [batch, queries, heads, head_size].
    key: shape [batch, keys, key_heads, head_size].
    bias: shape of the bias; None: there is none.
    terms: number of products with distances (`RelativeLogits.terms`).
  """
  if kind not in LOGITS_BYTES or dtype != jnp.bfloat16:
    return False
  (_, queries, heads, size), (_, keys, key_heads, _) = query, key
  fewest = MIN_KEYS_RELATIVE if terms else MIN_KEYS
  if queries < 8 or keys < fewest:
    return False
  if terms:
    fits = round_to_tiles(keys) * max(size, LANES) <= MAX_KEYS // 2 * LANES
    return (heads == key_heads and round_to_tiles(keys) <= MAX_KEYS
            and (kind in VMEM_LIMITS or fits))
  if bias is None:
    return True
  if needs_parts(kind, keys, size):
    return False
  together = max(1, LANES // head_lanes(size))
  # Bytes of a bias and of its gradient, each twice: the next one is loaded meanwhile.
  held = 4 * 4 * together * round_up(queries) * round_up(keys)
  return bias[0] == 1 and heads == key_heads and held <= VMEM_LIMITS.get(kind, 16 << 20) // 2


def max_keys(kind: str, size: int) -> int:
  """Return how many keys, of heads of this size, a program can hold."""
  most = MAX_KEYS_BY_DEVICE.get(kind, MAX_KEYS)
  return min(most, most * LANES // size)


def attend(arrays: Arrays, scale: float, noise: AttentionDropout | None = None,
           window: SlidingWindow | None = None, *, causal: bool = False, on: str = '',
           interpret=False) -> jax.Array:
  """Compute attention. On a mesh each device computes its own rows and heads.

  Args:
    arrays: queries, keys, values, mask, and a bias that is added to the scaled logits.
    scale: factor on logits.
    noise: dropout; None: no dropout.
    window: sliding window over the row's own keys. Without a bias or relative logits, a program
      then visits only the keys in reach, unless the row needs parts (`needs_parts`).
    causal: the mask is causal, and the last query is at the last key. In rows that need parts,
      queries before a part skip it.
    on: device kind that is compiled for, one of `LOGITS_BYTES`; '': that of the mesh or of JAX's
      devices, which must be TPUs.
    interpret: run in Pallas' interpreter.

  Returns:
    [batch, queries, heads, head_size] in the dtype of the queries.
  """
  q, k, v, mask, bias = arrays
  if window and bias is not None:
    mask, window = window.restrict(mask, q.shape[1]), None
  if isinstance(bias, RelativeLogits):
    scale = scale * bias.share
    bias = Tables(bias.keys, bias.queries, places=bias.places)
  elif isinstance(bias, TransformerXLLogits):
    logits, vectors = bias, [bias.content_bias, bias.position_bias]
    if logits.same is not None:
      vectors += [logits.type_bias, logits.types[0] - logits.types[1]]
      # A second bit of the mask [batch, 1, queries, keys] marks keys of the query's segment.
      same = 2 * logits.same[:, None].astype(jnp.int8)
      mask = same + (1 if mask is None else mask.astype(jnp.int8))
    backward = None if logits.backward is None else logits.backward.astype(jnp.int32)
    bias = Tables(
        logits.table, None, jnp.stack(vectors).astype(jnp.float32), logits.places, backward)
  if noise:
    seed, rows, rate = noise.seed, noise.rows, noise.rate
  else:
    seed, rows, rate = jnp.zeros(2, jnp.uint32), jnp.zeros(q.shape[0], jnp.int32), 0.0
  settings = Settings(scale, rate, window, on or device_kind(), interpret)
  local = functools.partial(attend_on_device, settings=settings, causal=causal)
  mesh = jax.sharding.get_abstract_mesh()
  ids = DropoutIds(seed, rows, jnp.arange(q.shape[2], dtype=jnp.int32))
  if mesh.empty or mesh.size == 1:
    return local(Arrays(q, k, v, mask, bias), ids)

  # On a mesh. Where devices do not divide the heads of keys, each gets those of its queries.
  q_spec = partition_spec(ARRAY_AXES, q.shape, mesh)
  k_spec = partition_spec(ARRAY_AXES, k.shape, mesh)
  if q_spec[2] != k_spec[2]:
    repeats = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, repeats, 2), jnp.repeat(v, repeats, 2)
    k_spec = q_spec
  whole = PartitionSpec()
  mask_spec = (whole if mask is None
               else partition_spec(('batch', None, None, None), mask.shape, mesh))
  bias_spec: Any = PartitionSpec(None, q_spec[2])
  if isinstance(bias, Tables):
    table_spec, row_spec = bias_spec, PartitionSpec(q_spec[0])
    if bias.backward is not None:
      table_spec = PartitionSpec(None, None, q_spec[2])
    bias_spec = Tables(table_spec, bias_spec, bias_spec, row_spec, row_spec)
  array_specs: Any = q_spec, k_spec, k_spec, mask_spec, bias_spec
  id_specs: Any = whole, PartitionSpec(q_spec[0]), PartitionSpec(q_spec[2])
  specs = Arrays(*array_specs), DropoutIds(*id_specs)
  sharded = jax.shard_map(local, in_specs=specs, out_specs=q_spec, check_vma=False)
  return sharded(Arrays(q, k, v, mask, bias), ids)


def attend_on_device(arrays: Arrays, ids: DropoutIds, *, settings: Settings, causal: bool
                     ) -> jax.Array:
  """Compute attention of the rows and heads of one device."""
  q, k, v, mask, bias = arrays
  if bias is None and needs_parts(settings.on, k.shape[1], q.shape[3]):
    if settings.window:
      arrays = arrays._replace(mask=settings.window.restrict(mask, q.shape[1]))
    return attend_in_parts(arrays, ids, settings._replace(window=None), causal)
  if not isinstance(bias, Tables) or bias.places is None:
    return attend_in_blocks(arrays, ids, settings)
  settings = settings._replace(window=None)
  if bias.queries is None:
    # The consecutive queries, and those at any positions.
    parts, first = [], q.shape[1] - bias.places.shape[1]
    for tables, own in ((bias._replace(places=None), slice(first)), (bias, slice(first, None))):
      if q[:, own].shape[1]:
        visible = mask[:, :, own] if mask is not None and mask.shape[2] > 1 else mask
        own_arrays = Arrays(q[:, own], k, v, visible, tables)
        parts.append(attend_in_blocks(
            own_arrays, ids, settings._replace(first_query=own.start or 0)))
    return jnp.concatenate(parts, 1)

  # Queries at any positions are moved to these positions, and their results back. Of several
  # queries at one position the first stands for all.
  at = (bias.places[:, :, None] == jnp.arange(k.shape[1])).astype(q.dtype)  # [B, M, K]
  first = at * (jnp.cumsum(at.astype(jnp.float32), 1) == 1)
  q = jnp.einsum('bmk,bmha->bkha', first, q)
  if mask is not None and mask.shape[2] > 1:
    mask = jnp.einsum('bmk,bml->bkl', first, mask[:, 0].astype(q.dtype))[:, None] > 0
  moved = Arrays(q, k, v, mask, bias._replace(places=None))
  return jnp.einsum('bmk,bkha->bmha', at, attend_in_blocks(moved, ids, settings))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def attend_in_parts(arrays: Arrays, ids: DropoutIds, settings: Settings, causal: bool) -> jax.Array:
  """Compute attention to rows with more keys than a core's memory holds, part by part.

  The parts are combined by their log-sum-exp (online softmax: Dao et al. 2022, section 3.1). A
  query that sees no key gets a mean of values that depends on the parts. The backward pass keeps
  the output and the log-sum-exp of each part.

  Args:
    arrays: as for `attend`, without a bias.
    ids: row numbers and heads.
    settings: without a window.
    causal: the mask is causal, and the last query is at the last key. Queries before a part skip
      it.
  """
  return attend_in_parts_forward(arrays, ids, settings, causal)[0]


def attend_in_parts_forward(arrays: Arrays, ids: DropoutIds, settings: Settings, causal: bool):
  """Compute `attend_in_parts` and the residuals of its gradient."""
  q = arrays.q
  y = jnp.zeros(q.shape, jnp.float32)
  logs = jnp.full(q.shape[:3], PADDING_LOGIT, jnp.float32)
  part_logs = []
  for rows, own, part_settings in list_parts(arrays, settings, causal):
    part_y, own_logs = attend_to_part(select_part(arrays, rows, own), ids, part_settings)
    largest = jnp.maximum(logs[:, rows], own_logs)
    weight, own_weight = jnp.exp(logs[:, rows] - largest), jnp.exp(own_logs - largest)
    total = weight + own_weight
    combined = y[:, rows] * (weight / total)[..., None]
    combined += part_y.astype(jnp.float32) * (own_weight / total)[..., None]
    y = y.at[:, rows].set(combined)
    logs = logs.at[:, rows].set(largest + jnp.log(total))
    part_logs.append(own_logs)
  y = y.astype(q.dtype)
  return y, (arrays, ids, y, logs, tuple(part_logs))


def attend_in_parts_backward(settings: Settings, causal: bool, residuals, out_grad):
  """Compute the gradients of queries, keys and values.

  With the share w of a part in the row's softmax, the gradient of a logit is w p (g v - g y), where
  p are the probabilities of the part, g the gradient of the output y, and v a value (Dao et al.
  2022, appendix B.2).
  """
  arrays, ids, y, logs, part_logs = residuals
  q, k, v = arrays[:3]
  out_grad = out_grad.astype(jnp.float32)
  means = (out_grad * y.astype(jnp.float32)).sum(-1)
  q_grad = jnp.zeros(q.shape, jnp.float32)
  k_grad, v_grad = jnp.zeros_like(k), jnp.zeros_like(v)
  parts = list_parts(arrays, settings, causal)
  for (rows, own, part_settings), own_logs in zip(parts, part_logs, strict=True):
    share = jnp.exp(own_logs - logs[:, rows])
    grad = (out_grad[:, rows] * share[..., None]).astype(q.dtype)
    grads = differentiate_part(
        select_part(arrays, rows, own), ids, part_settings, grad, means[:, rows] * share)
    q_grad = q_grad.at[:, rows].add(grads[0].astype(jnp.float32))
    k_grad, v_grad = k_grad.at[:, own].set(grads[1]), v_grad.at[:, own].set(grads[2])
  return Arrays(q_grad.astype(q.dtype), k_grad, v_grad, None, None), None


attend_in_parts.defvjp(attend_in_parts_forward, attend_in_parts_backward)


def list_parts(arrays: Arrays, settings: Settings, causal: bool
               ) -> list[tuple[slice, slice, Settings]]:
  """List the parts of a row's keys, as equal as whole tiles allow.

  Returns:
    (queries that may attend to the part, its keys, its settings) of each part that has queries.
  """
  queries, keys = arrays.q.shape[1], arrays.k.shape[1]
  number = -(-keys // part_limit(settings.on, arrays.q.shape[3]))
  size = round_to_tiles(-(-keys // number))
  parts = []
  for start in range(0, keys, size):
    first = max(0, start - (keys - queries)) if causal else 0
    if first < queries:
      own = slice(start, min(start + size, keys))
      part = settings._replace(first_query=first, part=KeyPart(start, keys))
      parts.append((slice(first, queries), own, part))
  return parts


def select_part(arrays: Arrays, rows: slice, own: slice) -> Arrays:
  """Select queries `rows` and keys `own`."""
  q, k, v, mask, _ = arrays
  if mask is not None:
    mask = mask[..., own]
    if mask.shape[2] > 1:
      mask = mask[:, :, rows]
  return Arrays(q[:, rows], k[:, own], v[:, own], mask, None)


def needs_parts(kind: str, keys: int, size: int) -> bool:
  """Tell whether a program cannot hold this many keys, of heads of this size."""
  return round_up(keys) > max_keys(kind, size)


def part_limit(kind: str, size: int) -> int:
  """Return how many keys a part has at most, of heads of this size: whole tiles.

  The dropout mask of a part is a slice of the row's, and takes more memory to compute than a whole
  mask of the same size. Where operands are converted to float32 as well, a part has at most half as
  many keys as a row that is computed at once.
  """
  most = max_keys(kind, size)
  if kind in FLOAT32_DEVICES:
    most //= 2
  return most // LANES * LANES
