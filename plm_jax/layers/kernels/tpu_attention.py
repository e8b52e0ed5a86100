"""Attention in one TPU kernel (Pallas): logits and probabilities are never written to HBM.

    attend(Arrays(q, k, v, mask, bias=None), scale, AttentionDropout(seed, row_ids, 0.1))

A program of the kernel has a block of queries and all keys of a row, so its logits are complete
rows, and softmax needs no second pass over the keys. The backward pass recomputes the probabilities
from queries, keys and values, and keeps nothing else (FlashAttention: Dao et al. 2022, section 3,
which also splits the keys; that is needed only where a row does not fit a core's memory, beyond
`max_keys`). Queries, keys and values stay where the product with their kernel put them, with heads
adjacent. Heads narrower than the 128 lanes of a core are processed together, separated by zeros,
which cost the matrix unit nothing.

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
  LOGITS_BYTES,
  VMEM_LIMITS,
  attend_in_blocks,
  head_lanes,
  round_up,
)
from plm_jax.layers.kernels.tpu_attention_plan import Arrays, DropoutIds, Tables
from plm_jax.layers.relative_logits import RelativeLogits, TransformerXLLogits
from plm_jax.layers.sliding_window import SlidingWindow, round_to_tiles
from plm_jax.sharding import partition_spec

MIN_KEYS, MAX_KEYS = 256, 2048
"""Keys of a row. With 128 keys the kernel reads as much as the probabilities that it saves
(BERT-base on v5e:4x4, compiled: 5.17 GB per step, 5.01 without)."""
MAX_KEYS_BY_DEVICE = {'TPU v5 lite': 8192, 'TPU v5': 4096, 'TPU v6 lite': 8192}
"""Keys of a row on devices whose cores have more fast memory: 128 queries of 8,192 keys have 4 MiB
of float32 logits. ModernBERT's rows of 8,192 tokens on v5e:4x8, compiled: 1,613 GB per step without
the kernel, 100 with it."""
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
  device = None
  if not mesh.empty:
    device = getattr(mesh, 'abstract_device', None)
  if device is None:
    if jax.default_backend() != 'tpu':
      return ''
    return jax.local_devices()[0].device_kind
  return device.device_kind if device.platform == 'tpu' else ''


def supports(kind: str, dtype, query: tuple[int, ...], key: tuple[int, ...],
             bias: tuple[int, ...] | None = None, terms: int = 0) -> bool:
  """Tell whether the kernel supports attention of this kind; the only place that decides.

  A bias that differs between rows would be read completely, and its gradient written: there is
  nothing to gain. Of a shared bias a program holds all queries, and its gradient, which is summed
  over the rows. Of relative logits it holds the complete tables and their gradients. Two tables are
  the most: DeBERTa's two terms, or XLNet's two directions.

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
  if queries < 8 or keys < fewest or round_up(keys) > max_keys(kind, size, terms):
    return False
  if terms:
    fits = round_to_tiles(keys) * max(size, LANES) <= MAX_KEYS // 2 * LANES
    return heads == key_heads and (kind in VMEM_LIMITS or fits)
  if bias is None:
    return True
  together = max(1, LANES // head_lanes(size))
  # Bytes of a bias and of its gradient, each twice: the next one is loaded meanwhile.
  held = 4 * 4 * together * round_up(queries) * round_up(keys)
  return bias[0] == 1 and heads == key_heads and held <= VMEM_LIMITS.get(kind, 16 << 20) // 2


def max_keys(kind: str, size: int, terms: int = 0) -> int:
  """Return how many keys, of heads of this size, a program can hold; with `terms`, also tables."""
  if terms:
    return MAX_KEYS
  most = MAX_KEYS_BY_DEVICE.get(kind, MAX_KEYS)
  return min(most, most * LANES // size)


def attend(arrays: Arrays, scale: float, noise: AttentionDropout | None = None,
           window: SlidingWindow | None = None, *, on: str = '', interpret=False) -> jax.Array:
  """Compute attention. On a mesh each device computes its own rows and heads.

  Args:
    arrays: queries, keys, values, mask, and a bias that is added to the scaled logits.
    scale: factor on logits.
    noise: dropout; None: no dropout.
    window: sliding window over the row's own keys. Without a bias or relative logits, a program
      then visits only the keys in reach.
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
    mask, bias = mark_segments(mask, bias.same), transformer_xl_tables(bias)
  if noise:
    seed, rows, rate = noise.seed, noise.rows, noise.rate
  else:
    seed, rows, rate = jnp.zeros(2, jnp.uint32), jnp.zeros(q.shape[0], jnp.int32), 0.0
  local = functools.partial(attend_on_device, scale=scale, rate=rate, window=window,
                            on=on or device_kind(), interpret=interpret)
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
  mask_spec = whole
  if mask is not None:
    mask_spec = partition_spec(('batch', None, None, None), mask.shape, mesh)
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


def attend_on_device(arrays: Arrays, ids: DropoutIds, *, scale: float, rate: float,
                     window: SlidingWindow | None, on: str, interpret: bool) -> jax.Array:
  """Compute attention of the rows and heads of one device."""
  q, k, v, mask, bias = arrays
  if not isinstance(bias, Tables) or bias.places is None:
    return attend_in_blocks(arrays, ids, scale, rate, window, on, interpret)
  if bias.queries is None:
    # The consecutive queries, and those at any positions.
    parts, first = [], q.shape[1] - bias.places.shape[1]
    for tables, own in ((bias._replace(places=None), slice(first)), (bias, slice(first, None))):
      if q[:, own].shape[1]:
        visible = mask
        if mask is not None and mask.shape[2] > 1:
          visible = mask[:, :, own]
        own_arrays = Arrays(q[:, own], k, v, visible, tables)
        parts.append(attend_in_blocks(
            own_arrays, ids, scale, rate, None, on, interpret, first_query=own.start or 0))
    return jnp.concatenate(parts, 1)

  # Queries at any positions are moved to these positions, and their results back. Of several
  # queries at one position the first stands for all.
  at = (bias.places[:, :, None] == jnp.arange(k.shape[1])).astype(q.dtype)  # [B, M, K]
  first = at * (jnp.cumsum(at.astype(jnp.float32), 1) == 1)
  q = jnp.einsum('bmk,bmha->bkha', first, q)
  if mask is not None and mask.shape[2] > 1:
    mask = jnp.einsum('bmk,bml->bkl', first, mask[:, 0].astype(q.dtype))[:, None] > 0
  moved = Arrays(q, k, v, mask, bias._replace(places=None))
  y = attend_in_blocks(moved, ids, scale, rate, None, on, interpret)
  return jnp.einsum('bmk,bkha->bmha', at, y)


def mark_segments(mask, same):
  """Add to a mask a second bit, for keys of the query's segment: int8 [batch, 1, queries, keys]."""
  if same is None:
    return mask
  same = 2 * same[:, None].astype(jnp.int8)
  return same + 1 if mask is None else same + mask.astype(jnp.int8)


def transformer_xl_tables(logits: TransformerXLLogits) -> Tables:
  """Return the tables and vectors of Transformer-XL's logits."""
  vectors = [logits.content_bias, logits.position_bias]
  if logits.same is not None:
    vectors += [logits.type_bias, logits.types[0] - logits.types[1]]
  backward = logits.backward
  if backward is not None:
    backward = backward.astype(jnp.int32)
  return Tables(logits.table, None, jnp.stack(vectors).astype(jnp.float32), logits.places, backward)
