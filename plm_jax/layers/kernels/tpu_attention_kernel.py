"""The programs of the TPU attention kernel, forward and backward.

A program computes attention of one block of queries and all keys of a row, or of a part of them
(`KeyPart`). `tpu_attention` lays out what these functions read. Here are softmax, dropout by a
hash, and products with embeddings of distances, which `relative_shift` aligns with keys.
"""
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.layers.kernels.hashed_dropout import hashed_keep_mask
from plm_jax.layers.kernels.relative_shift import (
  LANES,
  place_rows,
  shift_to_distances,
  shift_to_keys,
  slice_rows,
)
from plm_jax.layers.kernels.tpu_attention_plan import (
  CONTENT,
  DIFFERENCE,
  DISTANCE,
  SEGMENT,
  KernelPlan,
  Term,
)
from plm_jax.layers.sliding_window import round_to_tiles

MASKED_LOGIT = -1e9
"""Logit of a masked key. It is finite, so that a row of padding is uniform instead of NaN."""
PADDING_LOGIT = -2e9
"""Logit of keys that only pad a block."""


class KeyWindow(NamedTuple):
  """The keys that a block of queries visits."""

  window: Any
  """Slice of the row's keys."""
  first: Any
  """Number of the first key."""
  mask: Any
  """Bool [1 or queries, keys in the window], True where a query attends to the key."""
  same: Any = None
  """Bool [queries, keys in the window], True where query and key are of one segment, or None."""


class HeadQueries(NamedTuple):
  """The queries of one head [queries, lanes], with the bias of each product."""

  content: Any
  """For products with keys."""
  distance: Any
  """For products with distances."""
  segment: Any
  """For products with segments; None: there are none."""


class SharedInputs(NamedTuple):
  """Inputs of relative logits in one program."""

  arrays: Any
  """Refs of the bias, or of the tables of distances and then the vectors."""
  starts: Any
  """Ref of the rows of the table at which the first key of each query is, or None."""
  offset: Any
  """First row of the table of distances."""


def forward_kernel(*refs, plan: KernelPlan, blocks: int):
  """Compute attention of one block of queries.

  Args:
    refs: `DropoutIds`, `Arrays`, the output; for a part of the keys also their log-sum-exp.
    plan: layout.
    blocks: number of blocks of queries.
  """
  del blocks
  seed, rows, heads, q, k, v, mask = refs[:7]
  out, *logs = refs[plan.inputs:]
  row, group, block = program_position(plan)
  shared = read_shared(refs, row, plan)
  keys = find_key_window(mask, k.shape[1], block, plan)

  def attend(head, totals):
    p, log_total = probabilities(
        head_queries(q[0], shared, head, plan), k, shared, (head, block), keys, plan)
    if plan.rate:
      head_id = heads[group * plan.heads + head]
      keep = block_keep_mask(
          seed, rows[row], head_id, block, (keys.first, k.shape[1]), p.shape, plan)
      p = jnp.where(keep, p * (1 / (1 - plan.rate)), 0.0)
    y = dot(cast_operand(p, v.dtype, plan), v[0, keys.window], ((1,), (0,)), plan)
    added = select_head(y, head, plan), *(write_column(log_total, head) for _ in logs)
    return tuple(map(jnp.add, totals, added))

  outputs = out, *logs
  initial = tuple(jnp.zeros(ref.shape[1:], jnp.float32) for ref in outputs)
  for ref, total in zip(outputs, loop_over_heads(attend, initial, plan), strict=True):
    ref[0] = total.astype(ref.dtype)


def backward_kernel(*refs, plan: KernelPlan, blocks: int):
  """Compute the gradients of one block of queries, and sum those of its keys and values.

  Args:
    refs: `DropoutIds`, `Arrays`, the gradient of the output; for a part of the keys the mean over
      all keys of the row of the gradients of probabilities; the gradients of q, k, v and of shared
      arrays; sums of those of k and v.
    plan: layout.
    blocks: number of blocks of queries.
  """
  from jax.experimental import pallas as pl
  seed, rows, heads, q, k, v, mask = refs[:7]
  out_grad, *rest = refs[plan.inputs:-2]
  row_means = rest.pop(0) if plan.part else None
  dq, dk, dv, *shared_grads = rest
  k_sum, v_sum = refs[-2:]
  row, group, block = program_position(plan)
  shared = read_shared(refs, row, plan)
  first = (group % plan.groups == 0) & (block == 0)
  last = (group % plan.groups == plan.groups - 1) & (block == blocks - 1)

  @pl.when(first)
  def _():
    k_sum[...] = jnp.zeros_like(k_sum)
    v_sum[...] = jnp.zeros_like(v_sum)

  if plan.terms:
    @pl.when((row == 0) & (block == 0))
    def _():
      for array in shared_grads:
        array[...] = jnp.zeros_like(array)

  keys = find_key_window(mask, k.shape[1], block, plan)
  window = keys.window

  def differentiate(head, total):
    queries, y_grad = head_queries(q[0], shared, head, plan), select_head(out_grad[0], head, plan)
    p, _ = probabilities(queries, k, shared, (head, block), keys, plan)
    dp = dot(y_grad, v[0, window], ((1,), (1,)), plan)
    dropped = p
    if plan.rate:
      head_id = heads[group * plan.heads + head]
      keep = block_keep_mask(
          seed, rows[row], head_id, block, (keys.first, k.shape[1]), p.shape, plan)
      dropped = jnp.where(keep, p * (1 / (1 - plan.rate)), 0.0)
      dp = jnp.where(keep, dp * (1 / (1 - plan.rate)), 0.0)
    # The mean [queries, 1] of the gradients; `row_means` has it where only some keys are here.
    weighed = p * dp if row_means is None else row_means[0] * write_column(1.0, head)
    mean = weighed.sum(-1, keepdims=True)
    # A logit that was replaced by the mask has no gradient.
    ds = jnp.where(keys.mask, p * (dp - mean), 0.0)
    if plan.has_bias:
      add_bias_gradient(shared_grads[0], ds, row, (head, block), plan)
    ds *= plan.scale
    query_grads = {}
    if plan.terms:
      query_grads[DISTANCE] = relative_logits_backward(
          ds, queries.distance, k, (shared, shared_grads, k_sum), (head, block), plan)
    if plan.has_segments:
      query_grads[SEGMENT] = segment_logits_backward(
          ds, queries, keys, (shared, shared_grads), (head, plan))
    ds = cast_operand(ds, q.dtype, plan)
    content = dot(ds, k[0, window], ((1,), (0,)), plan)
    query_grads[CONTENT] = select_head(content, head, plan)
    for number, grad in query_grads.items():
      total += grad
      if plan.has_vectors:
        add_vector_gradient(shared_grads, number, grad)
    k_sum[window] += dot(ds, queries.content, ((0,), (0,)), plan)
    v_sum[window] += dot(cast_operand(dropped, q.dtype, plan), y_grad, ((0,), (0,)), plan)
    return total

  total = loop_over_heads(differentiate, jnp.zeros(dq.shape[1:], jnp.float32), plan)
  dq[0] = total.astype(dq.dtype)

  @pl.when(last)
  def _():
    dk[0] = k_sum[...].astype(dk.dtype)
    dv[0] = v_sum[...].astype(dv.dtype)


def read_shared(refs, row, plan: KernelPlan) -> SharedInputs:
  """Read the inputs of relative logits from the refs of a kernel."""
  arrays, rest = refs[7:7 + plan.shared], refs[7 + plan.shared:plan.inputs]
  starts, offset = None, 0
  if plan.placed:
    starts = rest[0]
  if plan.directions > 1:
    offset = rest[-1][row] * (arrays[0].shape[0] // plan.directions)
  return SharedInputs(arrays, starts, offset)


def head_queries(q, shared: SharedInputs, head, plan: KernelPlan) -> HeadQueries:
  """Select the queries of one head of q [queries, lanes], and add their biases."""
  if not plan.has_vectors:
    q = select_head(q, head, plan)
    return HeadQueries(q, q, None)
  vectors = shared.arrays[-1]

  def add_bias(number):
    return select_head(q.astype(jnp.float32) + vectors[number:number + 1], head, plan)

  segment = add_bias(SEGMENT) if plan.has_segments else None
  return HeadQueries(cast_operand(add_bias(CONTENT), q.dtype, plan),
                     cast_operand(add_bias(DISTANCE), q.dtype, plan), segment)


def loop_over_heads(body, total, plan: KernelPlan):
  """Run body(head, total) -> total over the heads of a program.

  On a core with little fast memory it is a loop, so that the logits of two heads are never there at
  once.
  """
  unroll = plan.vmem_limit is not None or not plan.terms
  return jax.lax.fori_loop(0, plan.heads, body, total, unroll=unroll)


def program_position(plan: KernelPlan):
  """Return (row, group of heads, block of queries) of a program."""
  from jax.experimental import pallas as pl
  if plan.shared:
    return pl.program_id(1), pl.program_id(0), pl.program_id(2)
  return pl.program_id(0), pl.program_id(1), pl.program_id(2)


def find_key_window(mask, num_keys: int, block, plan: KernelPlan) -> KeyWindow:
  """Find the keys that a block of queries visits; with a sliding window, whole tiles of the row.

  Args:
    mask: ref of the mask.
    num_keys: keys of a row, with padding.
    block: number of the block of queries.
    plan: layout.
  """
  from jax.experimental import pallas as pl
  if plan.has_segments:
    bits = mask[0].astype(jnp.int32)
    return KeyWindow(slice(None), 0, (bits & 1) != 0, bits >= 2)
  if plan.window is None:
    return KeyWindow(slice(None), 0, mask[0].astype(jnp.int32) != 0)
  size = plan.span(num_keys)
  own = block * plan.queries
  first = jnp.clip(own - round_to_tiles(plan.window.before), 0, num_keys - size)
  first = pl.multiple_of(first, LANES)
  window = pl.ds(first, size)
  query = jax.lax.broadcasted_iota(jnp.int32, (plan.queries, size), 0)
  key = jax.lax.broadcasted_iota(jnp.int32, (plan.queries, size), 1)
  visible = plan.window.contains(key + first - query - own)
  return KeyWindow(window, first, visible & (mask[0, :, window].astype(jnp.int32) != 0))


def dot(a, b, contract, plan: KernelPlan):
  """Multiply matrices over the axes `contract`, and accumulate in float32."""
  if plan.float32_operands:
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  return jax.lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def cast_operand(x, dtype, plan: KernelPlan):
  """Cast float32 x to the dtype of a product's operands."""
  return x if plan.float32_operands else x.astype(dtype)


def select_head(x, head: int, plan: KernelPlan):
  """Set the lanes of a program's other heads to zero; x: [length, lanes]."""
  if plan.heads == 1:
    return x
  lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  return jnp.where(lane // plan.size == head, x, jnp.zeros_like(x))


def add_bias_gradient(gradient, ds, row, at, plan: KernelPlan):
  """Add the gradient ds [queries, keys] of logits to that of the bias, which the first row sets.

  gradient: ref of the gradient of the bias. at: (head, block of queries).
  """
  head, block = at
  own = query_slice(block, plan)
  gradient[0, head, own] = jnp.where(row == 0, 0.0, gradient[0, head, own]) + ds


def write_column(x, head):
  """Write x [queries, 1] into the lane of a head -> [queries, 128], with zeros in other lanes."""
  lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
  return jnp.where(lane == head, x, 0.0)


def probabilities(q: HeadQueries, k, shared: SharedInputs, at, keys: KeyWindow, plan: KernelPlan):
  """Compute the attention probabilities of one head.

  Args:
    q: the queries.
    k: ref of the keys.
    shared: the bias, or inputs of relative logits.
    at: (head, block of queries).
    keys: the keys that the queries visit.
    plan: layout.

  Returns:
    (probabilities [queries, keys in the window] float32; for a part of the keys the log-sum-exp of
    their logits [queries, 1], else None).
  """
  logits = dot(q.content, k[0, keys.window], ((1,), (1,)), plan)
  if plan.terms:
    logits = add_relative_logits(logits, q.distance, k, shared, at, plan)
  if plan.has_segments:
    # Softmax does not depend on what a query adds to all logits: the difference suffices.
    difference = shared.arrays[-1][DIFFERENCE:DIFFERENCE + 1]
    logits += jnp.where(keys.same, (q.segment * difference).sum(-1, keepdims=True), 0.0)
  logits *= plan.scale
  if plan.has_bias:
    logits += shared.arrays[0][0, at[0], query_slice(at[1], plan)]
  logits = jnp.where(keys.mask, logits, MASKED_LOGIT)
  if k.shape[1] > plan.keys:
    key = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) + keys.first
    logits = jnp.where(key < plan.keys, logits, PADDING_LOGIT)
  largest = logits.max(-1, keepdims=True)
  p = jnp.exp(logits - largest)
  total = p.sum(-1, keepdims=True)
  return p * (1 / total), jnp.log(total) + largest if plan.part else None


def query_slice(block, plan: KernelPlan):
  """Return the slice of the queries of a block."""
  from jax.experimental import pallas as pl
  return pl.ds(pl.multiple_of(block * plan.queries, 8), plan.queries)


def add_relative_logits(logits, q, k, shared: SharedInputs, at, plan: KernelPlan):
  """Add relative logits to logits [queries, keys], before the scale.

  The other arguments are those of `probabilities`; q is [queries, lanes].
  """
  for term, table in zip(plan.terms, shared.arrays, strict=False):
    tiles = []
    for number, (x, window) in enumerate(table_windows(term, q, k, (table, shared), at, plan)):
      by_distance = dot(x, table[window], ((1,), (1,)), plan)
      if plan.placed:
        starts = shared.starts[0, number * LANES:(number + 1) * LANES]
        tiles.append(slice_rows(by_distance, starts, logits.shape[1], plan.rotate_method))
      else:
        tiles.append(shift_to_keys(by_distance, plan.rotate_method))
    if term == 'keys':
      logits += jnp.concatenate(tiles, 0)
    else:
      logits += jnp.concatenate([tile.T for tile in tiles], 1)
  return logits


def relative_logits_backward(ds, q, k, refs, at, plan: KernelPlan):
  """Compute the gradients through relative logits.

  It adds to the gradients of the tables and of the keys.

  Args:
    ds: [queries, keys], gradient of the sum of products.
    q: [queries, lanes], queries of one head.
    k: ref of the keys.
    refs: (inputs of relative logits, gradients of their arrays, gradient of the keys).
    at: (head, block of queries).
    plan: layout.

  Returns:
    [queries, lanes], what is added to the gradient of q.
  """
  shared, gradients, k_sum = refs
  total = jnp.zeros(q.shape, jnp.float32)
  for term, table, gradient in zip(plan.terms, shared.arrays, gradients, strict=False):
    parts = []
    for number, (x, window) in enumerate(table_windows(term, q, k, (table, shared), at, plan)):
      own = slice(number * LANES, (number + 1) * LANES)
      by_key = ds[own] if term == 'keys' else ds[:, own].T
      if plan.placed:
        length = table.shape[0] // plan.directions
        by_distance = place_rows(by_key, shared.starts[0, own], length, plan.rotate_method)
      else:
        by_distance = shift_to_distances(by_key, plan.rotate_method)
      by_distance = cast_operand(by_distance, q.dtype, plan)
      x_grad = dot(by_distance, table[window], ((1,), (0,)), plan)
      parts.append(select_head(x_grad, at[0], plan))
      # Transposed: the smaller one of the two operands is transposed for the product.
      gradient[:, window] += dot(x, by_distance, ((0,), (0,)), plan)
      if term == 'queries':
        k_sum[own] += parts[-1]
    if term == 'keys':
      total += jnp.concatenate(parts, 0)
  return total


def segment_logits_backward(ds, q: HeadQueries, keys: KeyWindow, refs, at):
  """Compute the gradient of the queries through the logits of segments.

  It adds to the gradient of the vectors.

  Args:
    ds: [queries, keys], gradient of the sum of products.
    q: the queries.
    keys: the keys that the queries visit.
    refs: (inputs of relative logits, gradients of their arrays).
    at: (head, layout).

  Returns:
    [queries, lanes].
  """
  (shared, gradients), (head, plan) = refs, at
  by_query = jnp.where(keys.same, ds, 0.0).sum(-1, keepdims=True)
  add_vector_gradient(gradients, DIFFERENCE, by_query * q.segment)
  difference = shared.arrays[-1][DIFFERENCE:DIFFERENCE + 1]
  return select_head(by_query * difference, head, plan)


def add_vector_gradient(gradients, number: int, grad):
  """Add the sum of grad [queries, lanes] over the queries to the gradient of a vector."""
  gradients[-1][number:number + 1] += grad.sum(0, keepdims=True)


def table_windows(term: Term, q, k, table, at, plan: KernelPlan):
  """Pair blocks of 128 rows with windows of a table of distances.

  A table has a row per distance: for relative keys from the number of queries downwards, for
  relative queries from minus the number of keys upwards.

  Args:
    term: 'keys': the rows are queries; 'queries': the rows are keys.
    q: [queries, lanes].
    k: ref of the keys.
    table: (ref of the table, inputs of relative logits).
    at: (head, block of queries).
    plan: layout.

  Returns:
    Pairs of rows [128, lanes] and the slice of the table whose products `shift_to_keys` takes, or
    `slice_rows`.
  """
  (table, shared), (head, block) = table, at
  num_keys, first = k.shape[1], block * plan.queries
  length = table.shape[0] // plan.directions
  pairs = []
  if plan.placed:
    from jax.experimental import pallas as pl
    whole = pl.ds(pl.multiple_of(shared.offset, LANES), length)
    pairs = [(q[start:start + LANES], whole) for start in range(0, plan.queries, LANES)]
  elif term == 'keys':
    last = shared.offset + length - num_keys - LANES - first
    for start in range(0, plan.queries, LANES):
      pairs.append((q[start:start + LANES], table_slice(last - start, num_keys)))
  else:
    last = num_keys - LANES + first
    for start in range(0, num_keys, LANES):
      rows = select_head(k[0, start:start + LANES], head, plan)
      pairs.append((rows, table_slice(last - start, plan.queries)))
  return pairs


def table_slice(start, length: int):
  """Return the slice of a table for 128 rows and `length` rows of the other operand."""
  from jax.experimental import pallas as pl
  return pl.ds(pl.multiple_of(start, LANES), length + LANES)


def block_keep_mask(seed, row, head, block, keys, shape: tuple[int, ...], plan: KernelPlan):
  """Compute the dropout mask of one block: True, with probability 1 - rate, where it is kept.

  Args:
    seed: ref of two int32.
    row: number of the row.
    head: number of the head.
    block: number of the block of queries.
    keys: (number of the first key in the window, keys of the row).
    shape: (queries, keys in the window).
    plan: layout.
  """
  query = jax.lax.broadcasted_iota(jnp.int32, (shape[0], 1), 0) + block * plan.queries
  if plan.first_query:
    query += plan.first_query
  first, num_keys = keys
  window = (first, shape[1]) if plan.window else None
  if plan.part:
    window, num_keys = (plan.part.first, shape[1]), plan.part.row_keys
  return hashed_keep_mask(seed, row, head, query, num_keys, plan.rate, window)
