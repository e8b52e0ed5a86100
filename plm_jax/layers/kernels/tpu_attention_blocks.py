"""Blocks of the TPU attention kernel: padding of the inputs, the kernel calls, and their cost."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.layers.kernels.relative_shift import (
  LANES,
  PLACE_ROTATE_COST,
  ROTATE_COST,
  RotateMethod,
)
from plm_jax.layers.kernels.tpu_attention_kernel import backward_kernel, forward_kernel
from plm_jax.layers.kernels.tpu_attention_plan import (
  DIFFERENCE,
  Arrays,
  DropoutIds,
  KernelPlan,
  Settings,
  Tables,
)
from plm_jax.layers.sliding_window import round_to_tiles

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


def attend_in_blocks(arrays: Arrays, ids: DropoutIds, settings: Settings) -> jax.Array:
  """Lay out the rows and heads of one device in blocks, and compute attention."""
  blocks, plan = lay_out(arrays, settings)
  y = blocked_attention(blocks, pad_ids(ids, plan), plan)
  return remove_padding(y, arrays.q.shape, plan)


def attend_to_part(arrays: Arrays, ids: DropoutIds, settings: Settings
                   ) -> tuple[jax.Array, jax.Array]:
  """Compute attention to the part of a row's keys that `arrays` has.

  Returns:
    (output [batch, queries, heads, head_size], as if these were all keys; log-sum-exp of their
    logits [batch, queries, heads] float32).
  """
  blocks, plan = lay_out(arrays, settings)
  y, logs = call_kernel(forward_kernel, blocks, (), pad_ids(ids, plan), plan)
  batch, queries, heads, _ = arrays.q.shape
  logs = logs[:, :queries].reshape(batch, queries, -1, LANES)[..., :plan.heads]
  return (remove_padding(y, arrays.q.shape, plan),
          logs.reshape(batch, queries, -1)[..., :heads])


def differentiate_part(arrays: Arrays, ids: DropoutIds, settings: Settings, out_grad, row_means):
  """Compute the gradients of q, k and v through attention to a part of a row's keys.

  Args:
    arrays: queries, and the part's keys, values and mask.
    ids: row numbers and heads.
    settings: with `part`.
    out_grad: gradient of the row's output times the part's share of the row's softmax, [batch,
      queries, heads, head_size].
    row_means: mean, over all keys of the row, of the gradients of probabilities, times the same
      share, [batch, queries, heads] float32.
  """
  blocks, plan = lay_out(arrays, settings)
  more_queries = blocks.q.shape[1] - out_grad.shape[1]
  out_grad = pad_heads(out_grad, 0, more_queries, plan)
  # One lane per head of a program.
  means = jnp.pad(row_means, ((0, 0), (0, more_queries), (0, -row_means.shape[2] % plan.heads)))
  means = means.reshape(*means.shape[:2], -1, plan.heads)
  means = jnp.pad(means, ((0, 0), (0, 0), (0, 0), (0, LANES - plan.heads)))
  means = means.reshape(*means.shape[:2], -1)
  grads = call_kernel(backward_kernel, blocks, (out_grad, means), pad_ids(ids, plan), plan)

  def lay_out_rows(q, k, v):
    return lay_out(arrays._replace(q=q, k=k, v=v), settings)[0][:3]

  _, restore = jax.vjp(lay_out_rows, *arrays[:3])
  return restore(tuple(grads))


def lay_out(arrays: Arrays, settings: Settings) -> tuple[Arrays, KernelPlan]:
  """Divide the rows and heads of one device into blocks, and pad them."""
  q, k, v, mask, bias = arrays
  window, on = settings.window, settings.on
  _, queries, heads, size = q.shape
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
      # At most as many queries as the window has keys before and after a block.
      larger = range(max(neighbors, LANES), LANES, -LANES)
      block = next((size for size in larger
                    if 4 * size * (size + neighbors) <= LOGITS_BYTES[on]), LANES)
    else:
      mask, window = window.restrict(mask, keys), None
  terms: Any = []
  if relative:
    terms = [name for name in ('keys', 'queries') if getattr(bias, name) is not None]
  has_bias = bias is not None and not relative
  plan = KernelPlan(
      settings.scale, settings.rate, lanes, together * lanes, block, keys, groups, has_bias,
      tuple(terms), ROTATE_METHODS.get(on, 'strides'), on in FLOAT32_DEVICES,
      VMEM_LIMITS.get(on), window, settings.interpret, part=settings.part,
      first_query=settings.first_query)
  if isinstance(bias, Tables):
    plan = dataclasses.replace(
        plan, directions=1 if bias.backward is None else 2, has_vectors=bias.vectors is not None,
        has_segments=bias.vectors is not None and len(bias.vectors) > DIFFERENCE,
        placed=bias.places is not None)

  # Padding: lengths to whole blocks, heads to whole programs, head sizes to lanes.
  padded_queries, padded_keys = -(-queries // block) * block, pad_length(keys)
  more_heads, more_queries = -heads % together, padded_queries - queries
  if mask is None:
    mask = jnp.ones((1, 1, 1, keys), bool)
  mask = mask[:, 0]
  per_query = mask.shape[1] > 1
  mask = jnp.pad(mask, ((0, 0), (0, more_queries if per_query else 0), (0, padded_keys - keys)))
  mask = mask.astype(jnp.int8 if per_query else jnp.int32)
  if isinstance(bias, Tables):
    bias = pad_tables(bias, (queries, keys), (more_queries, padded_keys - keys), plan, q.dtype)
  elif bias is not None:
    padding = (0, 0), (0, more_heads), (0, more_queries), (0, padded_keys - keys)
    bias = jnp.pad(bias.astype(jnp.float32), padding)
  blocks = Arrays(
      pad_heads(q, 0, more_queries, plan), pad_heads(k, 0, padded_keys - keys, plan),
      pad_heads(v, 0, padded_keys - keys, plan), mask, bias)
  return blocks, plan


def pad_ids(ids: DropoutIds, plan: KernelPlan) -> DropoutIds:
  """Pad the numbers of heads to whole programs, and convert all to int32."""
  seed = jax.lax.bitcast_convert_type(ids.seed, jnp.int32)
  heads = jnp.pad(ids.heads, (0, -ids.heads.shape[0] % plan.heads))
  return DropoutIds(seed, ids.rows.astype(jnp.int32), heads)


def remove_padding(y, shape: tuple[int, ...], plan: KernelPlan):
  """Return y [batch, blocks of queries, programs * lanes] as [batch, queries, heads, head_size]."""
  batch, queries, heads, size = shape
  return y[:, :queries].reshape(batch, queries, -1, plan.size)[:, :, :heads, :size]


def pad_heads(x, before: int, after: int, plan: KernelPlan):
  """Pad x [.., length, heads, head_size] to whole programs, and join its last two axes.

  Args:
    before: rows of zeros that are added before x.
    after: rows of zeros that are added after x.
    plan: layout.
  """
  padding = [(0, 0)] * (x.ndim - 3)
  padding += [(before, after), (0, -x.shape[-2] % plan.heads), (0, plan.size - x.shape[-1])]
  x = jnp.pad(x, padding)
  return x.reshape(*x.shape[:-2], -1)


def pad_tables(tables: Tables, lengths: tuple[int, int], more: tuple[int, int], plan: KernelPlan,
               dtype) -> Tables:
  """Pad tables of distances and what belongs to them, see `Tables` for the shapes.

  Args:
    tables: those of `attend`.
    lengths: (queries, keys) of a row.
    more: (queries, keys) that pad a row.
    plan: layout.
    dtype: that of the queries.
  """
  (queries, keys), (more_queries, more_keys) = lengths, more
  vectors, places = tables.vectors, tables.places
  length = (tables.queries if tables.keys is None else tables.keys).shape[-3]
  before, after = queries + more_queries - (length - keys), more_keys
  if vectors is not None:
    vectors = pad_heads(vectors, 0, 8 - len(vectors), plan)
  if places is not None:
    # Row `length - keys` of the table is the distance from the first query to the first key.
    starts = jnp.pad(length - keys - places, ((0, 0), (0, more_queries)))
    places = jnp.broadcast_to(starts[..., None], (*starts.shape, LANES)).astype(jnp.int32)
    before, after = 0, -length % LANES

  def pad_table(x, before, after):  # [.., rows, heads, head_size] -> [.. * rows', heads' * lanes]
    if x is None:
      return None
    x = pad_heads(x, before, after, plan)
    x = x.reshape(-1, x.shape[-1])
    return x.astype(jnp.float32) if plan.float32_operands else x.astype(dtype)

  return Tables(pad_table(tables.keys, before, after), pad_table(tables.queries, after, before),
                vectors, places, tables.backward)


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
    out_grads: in the backward pass the gradient of the output, and for a part of the keys the means
      of the row, see `backward_kernel`; else ().
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
  shared, shared_specs, sum_specs, sum_shapes = shared_blocks(bias, plan, grid_order)

  # Inputs, outputs and scratch memory. Programs may run in any order where none adds to what
  # another one has written.
  scalar_specs = [pl.BlockSpec(memory_space=pltpu.SMEM)] * 3
  in_specs = scalar_specs + [q_spec, k_spec, k_spec, mask_spec] + shared_specs
  parallel, arbitrary = pltpu.PARALLEL, pltpu.ARBITRARY
  column_spec = pl.BlockSpec((1, plan.queries, LANES), lambda b, n, i: (b, i, n))
  column_specs = [column_spec] if plan.part else []  # one lane per head
  if backward:
    in_specs += [q_spec, *column_specs]
    out_specs = [q_spec, k_spec, k_spec, *sum_specs]
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)]
    outputs += [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in sum_shapes]
    scratch = [pltpu.VMEM((num_keys, plan.lanes), jnp.float32)] * 2
    group_order = arbitrary if plan.shared or plan.groups > 1 else parallel
    order = parallel, group_order, arbitrary
  else:
    out_specs = [q_spec, *column_specs]
    outputs, scratch = [jax.ShapeDtypeStruct(q.shape, q.dtype)], []
    if plan.part:
      outputs.append(jax.ShapeDtypeStruct((*q.shape[:2], programs * LANES), jnp.float32))
    order = parallel, parallel, parallel
  call = pl.pallas_call(
      functools.partial(kernel, plan=plan, blocks=blocks),
      grid=grid, in_specs=in_specs, out_specs=out_specs, out_shape=outputs, scratch_shapes=scratch,
      compiler_params=pltpu.CompilerParams(
          vmem_limit_bytes=plan.vmem_limit, dimension_semantics=order),
      interpret=plan.interpret, **estimate_cost(arrays, out_grads, outputs, plan))
  return call(*ids, q, k, v, mask, *shared, *out_grads)


def shared_blocks(bias, plan: KernelPlan, grid_order):
  """Return the blocks of a bias, or of tables and what belongs to them.

  Args:
    bias: the bias, `Tables`, or None.
    plan: layout.
    grid_order: maps an index map of (row, group of heads, block of queries) to one of the grid.

  Returns:
    (arrays, their block specs, block specs of the gradients, shapes of the gradients). Only what
    all rows share has a gradient, that of a table transposed.
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu
  if plan.has_bias:
    spec = pl.BlockSpec((1, plan.heads, *bias.shape[2:]), grid_order(lambda b, n, i: (0, n, 0, 0)))
    return [bias], [spec], [spec], [bias.shape]
  arrays = [getattr(bias, name) for name in plan.terms]
  specs = [pl.BlockSpec((x.shape[0], plan.lanes), grid_order(lambda b, n, i: (0, n)))
           for x in arrays]
  sum_specs = [pl.BlockSpec((plan.lanes, x.shape[0]), grid_order(lambda b, n, i: (n, 0)))
               for x in arrays]
  sum_shapes = [x.shape[::-1] for x in arrays]
  if plan.has_vectors:
    arrays.append(bias.vectors)
    spec = pl.BlockSpec((len(bias.vectors), plan.lanes), grid_order(lambda b, n, i: (0, n)))
    specs.append(spec)
    sum_specs.append(spec)
    sum_shapes.append(bias.vectors.shape)
  # What differs between rows.
  if plan.placed:
    arrays.append(bias.places)
    place_block = 1, plan.queries, LANES
    specs.append(pl.BlockSpec(place_block, grid_order(lambda b, n, i: (b, i, 0))))
  if plan.directions > 1:
    arrays.append(bias.backward)
    specs.append(pl.BlockSpec(memory_space=pltpu.SMEM))
  return arrays, specs, sum_specs, sum_shapes


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
