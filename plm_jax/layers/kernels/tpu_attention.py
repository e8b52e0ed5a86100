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
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.layers.kernels.relative_shift import (
  LANES,
  PLACE_ROTATE_COST,
  ROTATE_COST,
  RotateMethod,
)
from plm_jax.layers.kernels.tpu_attention_kernel import (
  DIFFERENCE,
  Arrays,
  DropoutIds,
  KernelPlan,
  Tables,
  backward_kernel,
  forward_kernel,
)
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
# Bytes of fast memory for one float32 array of logits, by device kind; a backward program has about
# eight of them. From pltpu.get_tpu_info: 16 MiB in all up to v4, 128 on v5e and v6e, 64 on v5p.
# TPU v2 is not listed, because its steps are bound by arithmetic either way: that of BERT-base, 512
# tokens on v2:4x4, takes 104.7 ms without the kernel and 106.4 with it, because the backward pass
# recomputes products.
LOGITS_BYTES = {'TPU v3': 1 << 19, 'TPU v4': 1 << 19, 'TPU v5 lite': 1 << 21, 'TPU v5': 1 << 21,
                'TPU v6 lite': 1 << 21}
# Bytes of fast memory for all arrays; elsewhere the compiler's limit.
VMEM_LIMITS = {'TPU v5 lite': 96 << 20, 'TPU v5': 48 << 20, 'TPU v6 lite': 96 << 20}
FLOAT32_DEVICES = ('TPU v3',)
"""Devices whose matrix units accept only float32 from a kernel."""
ROTATE_METHODS: dict[str, RotateMethod] = {'TPU v3': 'rolls', 'TPU v4': 'look-ups'}
"""How rows are rotated, by device kind; elsewhere by strided rolls."""
VECTOR_OPERATIONS = {'forward': (8, 10.5), 'backward': (15, 12.5)}
"""Vector operations per score in each pass, and in addition for its dropout."""
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


def attend_in_blocks(arrays: Arrays, ids: DropoutIds, scale: float, rate: float,
                     window: SlidingWindow | None, on: str, interpret: bool,
                     first_query: int = 0) -> jax.Array:
  """Lay out the rows and heads of one device in blocks, and compute attention."""
  q, k, v, mask, bias = arrays
  batch, queries, heads, size = q.shape
  keys, relative = k.shape[1], isinstance(bias, Tables)
  pad_length = round_to_tiles if relative else round_up

  # Heads: several per program where they are narrow.
  lanes = head_lanes(size)
  together = max(1, LANES // lanes)
  if together > 1 and k.shape[2] != heads:
    k, v = jnp.repeat(k, heads // k.shape[2], 2), jnp.repeat(v, heads // v.shape[2], 2)
  groups = heads // k.shape[2]

  # Queries per block, as far as their logits fit. A sliding window pays where it halves the
  # products.
  fitting = LOGITS_BYTES[on] // 4 // round_up(keys) // LANES * LANES
  block = pad_length(queries)
  smallest = LANES if block > LANES else pad_length(8)
  block = min(block, max(smallest, fitting))
  if window:
    neighbors = round_to_tiles(window.before) + round_to_tiles(window.after)
    if queries == keys and 4 * neighbors <= round_up(keys):
      block = window_block(neighbors, LOGITS_BYTES[on])
    else:
      mask, window = window.restrict(mask, keys), None
  terms: Any = []
  if relative:
    terms = [name for name in ('keys', 'queries') if getattr(bias, name) is not None]
  has_bias = bias is not None and not relative
  plan = KernelPlan(
      scale, rate, lanes, together * lanes, block, keys, groups, has_bias, tuple(terms),
      ROTATE_METHODS.get(on, 'strides'), on in FLOAT32_DEVICES, VMEM_LIMITS.get(on), window,
      interpret)
  if isinstance(bias, Tables):
    plan = dataclasses.replace(
        plan, directions=1 if bias.backward is None else 2, has_vectors=bias.vectors is not None,
        has_segments=bias.vectors is not None and len(bias.vectors) > DIFFERENCE,
        placed=bias.places is not None, first_query=first_query)

  # Padding: lengths to whole blocks, heads to whole programs, head sizes to lanes.
  padded_queries, padded_keys = -(-queries // block) * block, pad_length(keys)
  more_heads = -heads % together

  def lay_out(x, before, after):  # [.., L, N, A] -> [.., L', N' A']
    padding = [(0, 0)] * (x.ndim - 3) + [(before, after), (0, -x.shape[-2] % together)]
    x = jnp.pad(x, padding + [(0, lanes - size)])
    return x.reshape(*x.shape[:-2], -1)

  def lay_out_table(x, before, after):  # [.., R, N, A] -> [.. * R', N' A']
    if x is None:
      return None
    x = lay_out(x, before, after)
    x = x.reshape(-1, x.shape[-1])
    return x.astype(jnp.float32) if plan.float32_operands else x.astype(q.dtype)

  def lay_out_tables(tables):
    vectors, places = tables.vectors, tables.places
    length = (tables.queries if tables.keys is None else tables.keys).shape[-3]
    before, after = padded_queries - (length - keys), padded_keys - keys
    if vectors is not None:
      vectors = lay_out(vectors, 0, 8 - len(vectors))
    if places is not None:
      # Row `length - keys` of the table is the distance from the first query to the first key.
      starts = jnp.pad(length - keys - places, ((0, 0), (0, padded_queries - queries)))
      places = jnp.broadcast_to(starts[..., None], (*starts.shape, LANES)).astype(jnp.int32)
      before, after = 0, -length % LANES
    return Tables(lay_out_table(tables.keys, before, after),
                  lay_out_table(tables.queries, after, before), vectors, places, tables.backward)

  if mask is None:
    mask = jnp.ones((1, 1, 1, keys), bool)
  mask, more_queries = mask[:, 0], padded_queries - queries
  if mask.shape[1] > 1:
    mask = jnp.pad(mask, ((0, 0), (0, more_queries), (0, padded_keys - keys))).astype(jnp.int8)
  else:
    mask = jnp.pad(mask, ((0, 0), (0, 0), (0, padded_keys - keys))).astype(jnp.int32)
  if isinstance(bias, Tables):
    bias = lay_out_tables(bias)
  elif bias is not None:
    padding = (0, 0), (0, more_heads), (0, more_queries), (0, padded_keys - keys)
    bias = jnp.pad(bias.astype(jnp.float32), padding)
  blocks = Arrays(
      lay_out(q, 0, padded_queries - queries), lay_out(k, 0, padded_keys - k.shape[1]),
      lay_out(v, 0, padded_keys - v.shape[1]), mask, bias)
  seed = jax.lax.bitcast_convert_type(ids.seed, jnp.int32)
  padded_ids = DropoutIds(seed, ids.rows.astype(jnp.int32), jnp.pad(ids.heads, (0, more_heads)))
  y: Any = blocked_attention(blocks, padded_ids, plan)
  return y[:, :queries].reshape(batch, queries, -1, lanes)[:, :, :heads, :size]


def window_block(neighbors: int, logits_bytes: int) -> int:
  """Return the queries per block with a sliding window.

  Args:
    neighbors: keys in the window before and after a block, in whole tiles: a block has at most as
      many queries.
    logits_bytes: room for the block's logits.
  """
  for size in range(max(neighbors, LANES), LANES, -LANES):
    if 4 * size * (size + neighbors) <= logits_bytes:
      return size
  return LANES


def head_lanes(size: int) -> int:
  """Return how many lanes a head of this size gets."""
  for lanes in (32, 64, LANES):
    if size <= lanes:
      return lanes
  return round_to_tiles(size)


def round_up(length: int) -> int:
  """Round a length up to what a block takes: tiles of 128, below that of 8."""
  return round_to_tiles(length) if length > LANES else -(-length // 8) * 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def blocked_attention(arrays: Arrays, ids: DropoutIds, plan: KernelPlan) -> jax.Array:
  """Compute attention where blocks divide all lengths -> [batch, queries, heads * lanes]."""
  return call_kernel(forward_kernel, arrays, (), ids, plan)[0]


def blocked_attention_forward(arrays: Arrays, ids: DropoutIds, plan: KernelPlan):
  """Compute `blocked_attention` and the residuals of its gradient, which are its inputs."""
  return blocked_attention(arrays, ids, plan), (arrays, ids)


def blocked_attention_backward(plan: KernelPlan, residuals, out_grad):
  """Compute the gradients of queries, keys, values, and bias or tables."""
  arrays, ids = residuals
  dq, dk, dv, *sums = call_kernel(backward_kernel, arrays, (out_grad,), ids, plan)
  bias = arrays.bias
  if plan.has_bias:
    return Arrays(dq, dk, dv, None, sums[0].astype(bias.dtype)), None
  if bias is None:
    return Arrays(dq, dk, dv, None, None), None
  grads = {name: sums[number].T.astype(getattr(bias, name).dtype)
           for number, name in enumerate(plan.terms)}
  if plan.has_vectors:
    grads['vectors'] = sums[-1]
  return Arrays(dq, dk, dv, None, Tables(**grads)), None


blocked_attention.defvjp(blocked_attention_forward, blocked_attention_backward)


def call_kernel(kernel, arrays: Arrays, out_grads: tuple[jax.Array, ...], ids: DropoutIds,
                plan: KernelPlan):
  """Call a kernel over rows, groups of heads and blocks of queries.

  Where rows share a bias or tables, groups come first, so that their gradient is summed over the
  rows.

  Args:
    kernel: `forward_kernel` or `backward_kernel`.
    arrays: inputs.
    out_grads: in the backward pass the gradient of the output; else ().
    ids: row numbers, folded into the dropout key.
    plan: layout.
  """
  # Pallas takes time to import, and only TPUs need it.
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu
  q, k, v, mask, bias = arrays
  backward = bool(out_grads)
  batch, num_keys = q.shape[0], k.shape[1]
  programs, blocks = q.shape[2] // plan.lanes, q.shape[1] // plan.queries

  # Blocks, by (row, group of heads, block of queries).
  grid, grid_order = (batch, programs, blocks), lambda index_map: index_map
  if plan.shared:
    grid = programs, batch, blocks
    grid_order = lambda index_map: lambda n, b, i: index_map(b, n, i)
  has_rows, has_queries = mask.shape[0] > 1, mask.shape[1] > 1
  mask_index = lambda b, n, i: (b if has_rows else 0, i if has_queries else 0, 0)
  q_spec = pl.BlockSpec((1, plan.queries, plan.lanes), grid_order(lambda b, n, i: (b, i, n)))
  k_spec = pl.BlockSpec(
      (1, num_keys, plan.lanes), grid_order(lambda b, n, i: (b, 0, n // plan.groups)))
  mask_block = 1, min(mask.shape[1], plan.queries), mask.shape[2]
  mask_spec = pl.BlockSpec(mask_block, grid_order(mask_index))
  # What rows share, and the gradients of it: of tables transposed.
  if plan.has_bias:
    shared, bias_block = [bias], (1, plan.heads, *bias.shape[2:])
    shared_specs = [pl.BlockSpec(bias_block, grid_order(lambda b, n, i: (0, n, 0, 0)))]
    sum_specs, sum_shapes = shared_specs, [bias.shape]
  else:
    shared = [getattr(bias, name) for name in plan.terms]
    shared_specs = [pl.BlockSpec((x.shape[0], plan.lanes), grid_order(lambda b, n, i: (0, n)))
                    for x in shared]
    sum_specs = [pl.BlockSpec((plan.lanes, x.shape[0]), grid_order(lambda b, n, i: (n, 0)))
                 for x in shared]
    sum_shapes = [x.shape[::-1] for x in shared]
  if plan.has_vectors:
    shared += [bias.vectors]
    vector_spec = pl.BlockSpec((len(bias.vectors), plan.lanes), grid_order(lambda b, n, i: (0, n)))
    shared_specs, sum_specs = shared_specs + [vector_spec], sum_specs + [vector_spec]
    sum_shapes += [bias.vectors.shape]
  # What differs between rows.
  if plan.placed:
    shared += [bias.places]
    place_block = 1, plan.queries, LANES
    shared_specs += [pl.BlockSpec(place_block, grid_order(lambda b, n, i: (b, i, 0)))]
  if plan.directions > 1:
    shared += [bias.backward]
    shared_specs += [pl.BlockSpec(memory_space=pltpu.SMEM)]

  # Inputs, outputs and scratch memory. Programs may run in any order where none adds to what
  # another one has written.
  scalar_specs = [pl.BlockSpec(memory_space=pltpu.SMEM)] * 3
  in_specs = scalar_specs + [q_spec, k_spec, k_spec, mask_spec] + shared_specs
  parallel, arbitrary = pltpu.PARALLEL, pltpu.ARBITRARY
  if backward:
    in_specs += [q_spec]
    out_specs = [q_spec, k_spec, k_spec, *sum_specs]
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)]
    outputs += [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in sum_shapes]
    scratch = [pltpu.VMEM((num_keys, plan.lanes), jnp.float32)] * 2
    order = parallel, arbitrary, arbitrary
    if not plan.shared and plan.groups == 1:
      order = parallel, parallel, arbitrary
  else:
    out_specs = [q_spec]
    outputs, scratch = [jax.ShapeDtypeStruct(q.shape, q.dtype)], []
    order = parallel, parallel, parallel
  call = pl.pallas_call(
      functools.partial(kernel, plan=plan, blocks=blocks),
      grid=grid, in_specs=in_specs, out_specs=out_specs, out_shape=outputs, scratch_shapes=scratch,
      compiler_params=pltpu.CompilerParams(
          vmem_limit_bytes=plan.vmem_limit, dimension_semantics=order),
      interpret=plan.interpret, **estimate_cost(arrays, out_grads, outputs, plan))
  return call(*ids, q, k, v, mask, *shared, *out_grads)


def estimate_cost(arrays: Arrays, out_grads, outputs, plan: KernelPlan) -> dict[str, Any]:
  """Estimate the cost of a kernel, as keyword arguments of `pallas_call`.

  Products are counted as elsewhere: lanes of zeros, which the matrix unit multiplies as well, do
  not count. `vector_operations` in the metadata are those of the vector unit.
  """
  from jax.experimental import pallas as pl
  batch, queries, width = arrays.q.shape
  keys, heads, backward = arrays.k.shape[1], width // plan.size, bool(out_grads)
  scores = batch * heads * queries * plan.span(keys)
  # Products of rows with windows of tables of distances.
  by_distance = 0
  if plan.placed:
    by_distance += batch * heads * queries * arrays.bias.keys.shape[0] // plan.directions
  elif 'keys' in plan.terms:
    by_distance += batch * heads * queries * (keys + LANES)
  if 'queries' in plan.terms:
    by_distance += batch * heads * keys * (queries + queries // plan.queries * LANES)
  if backward:
    products, distance_products = 5, 3
    per_score, per_dropout = VECTOR_OPERATIONS['backward']
  else:
    products, distance_products = 2, 1
    per_score, per_dropout = VECTOR_OPERATIONS['forward']
  flops = 2 * (products * scores + distance_products * by_distance) * plan.size

  rotate, shifted = ROTATE_COST[plan.rotate_method], scores * len(plan.terms)
  if plan.placed:
    rotate = PLACE_ROTATE_COST[plan.rotate_method] + 2
  if plan.has_segments:
    per_score += 3
  operations = rotate * by_distance + 2 * shifted
  if backward:
    operations += rotate * shifted + 3 * by_distance
  if plan.rate:
    per_score += per_dropout
  operations = int(scores * per_score + operations)
  moved = (*jax.tree.leaves(arrays), *out_grads, *outputs)
  cost = pl.CostEstimate(
      flops=flops, bytes_accessed=sum(x.size * x.dtype.itemsize for x in moved),
      transcendentals=scores)
  return dict(cost_estimate=cost, metadata={'vector_operations': str(operations)})
