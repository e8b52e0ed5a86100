"""The programs of the TPU attention kernel, forward and backward.

A program computes attention of one block of queries and all keys of a row. `tpu_attention` lays out
what these functions read. Here are softmax, dropout by a hash, and products with embeddings of
distances, which `relative_shift` aligns with keys.
"""
import dataclasses
from typing import Any, Literal, NamedTuple

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from plm_jax.layers.kernels.relative_shift import (
  LANES,
  RotateMethod,
  shift_to_distances,
  shift_to_keys,
)
from plm_jax.layers.sliding_window import SlidingWindow, round_to_tiles

MASKED_LOGIT = -1e9
"""Logit of a masked key. It is finite, so that a row of padding is uniform instead of NaN."""
PADDING_LOGIT = -2e9
"""Logit of keys that only pad a block."""
Term = Literal['keys', 'queries']


class Arrays(NamedTuple):
  """Inputs of attention.

  Shapes are those of `tpu_attention.attend`, and in brackets those of `blocked_attention`, where
  heads and head sizes are one axis and blocks divide all lengths.
  """

  q: jax.Array
  """[batch, queries, heads, head_size] ([batch, queries, heads * head_size])."""
  k: jax.Array
  """[batch, keys, key_heads, head_size] ([batch, keys, key_heads * head_size])."""
  v: jax.Array
  """Of the shape of k."""
  mask: Any
  """Bool [batch or 1, 1, 1 or queries, keys], or None (integers [batch or 1, 1 or queries,
  keys])."""
  bias: Any
  """[1, heads, queries, keys] float32, or `RelativeLogits`, or None (of `RelativeLogits` the tables
  are [queries + keys, heads * head_size])."""


class DropoutIds(NamedTuple):
  """Numbers that key the dropout mask."""

  seed: jax.Array
  """[2]."""
  rows: jax.Array
  """[batch] int32."""
  heads: jax.Array
  """[heads] int32, their numbers among those of all devices."""


@dataclasses.dataclass(frozen=True)
class KernelPlan:
  """Static layout of a kernel's work, the same for both passes."""

  scale: float
  """Factor on logits."""
  rate: float
  """Dropout rate."""
  size: int
  """Lanes per head; they divide the lanes of a program."""
  lanes: int
  """Lanes per program."""
  queries: int
  """Queries per block."""
  keys: int
  """Keys of a row, without padding."""
  groups: int
  """Number of consecutive programs that share keys."""
  has_bias: bool
  """Logits have a bias."""
  terms: tuple[Term, ...]
  """Tables of distances, named as in `RelativeLogits`."""
  rotate_method: RotateMethod
  """How rows are rotated."""
  float32_operands: bool
  """Operands of products are converted to float32."""
  vmem_limit: int | None
  """Bytes of fast memory; None: the compiler's own limit."""
  window: SlidingWindow | None = None
  """Sliding window: a block of queries visits only the keys in reach, in whole tiles."""
  interpret: bool = False
  """Run in Pallas' interpreter."""

  @property
  def heads(self) -> int:
    """Heads per program."""
    return self.lanes // self.size

  @property
  def shared(self) -> int:
    """Number of arrays that all rows of the batch share: a bias, or tables of distances.

    Their gradients are summed over the rows.
    """
    return self.has_bias + len(self.terms)

  def span(self, keys: int) -> int:
    """Return how many of a row's `keys`, with padding, a block of queries visits."""
    if self.window is None:
      return keys
    return self.queries + round_to_tiles(self.window.before) + round_to_tiles(self.window.after)


class KeyWindow(NamedTuple):
  """The keys that a block of queries visits."""

  window: Any
  """Slice of the row's keys."""
  first: Any
  """Number of the first key."""
  mask: Any
  """Bool [1 or queries, keys in the window], True where a query attends to the key."""


def forward_kernel(*refs, plan: KernelPlan, blocks: int):
  """Compute attention of one block of queries.

  Args:
    refs: `DropoutIds`, `Arrays` and the output.
    plan: layout.
    blocks: number of blocks of queries.
  """
  del blocks
  seed, rows, heads, q, k, v, mask = refs[:7]
  shared, out = refs[7:-1], refs[-1]
  row, group, block = program_position(plan)
  keys = find_key_window(mask, k.shape[1], block, plan)

  def attend(head, total):
    p = probabilities(select_head(q[0], head, plan), k, shared, (head, block), keys, plan)
    if plan.rate:
      head_id = heads[group * plan.heads + head]
      keep = block_keep_mask(
          seed, rows[row], head_id, block, (keys.first, k.shape[1]), p.shape, plan)
      p = jnp.where(keep, p * (1 / (1 - plan.rate)), 0.0)
    y = dot(cast_operand(p, v.dtype, plan), v[0, keys.window], ((1,), (0,)), plan)
    return total + select_head(y, head, plan)

  total = loop_over_heads(attend, jnp.zeros(out.shape[1:], jnp.float32), plan)
  out[0] = total.astype(out.dtype)


def backward_kernel(*refs, plan: KernelPlan, blocks: int):
  """Compute the gradients of one block of queries, and sum those of its keys and values.

  Args:
    refs: `DropoutIds`, `Arrays`, the gradient of the output; the gradients of q, k, v and of shared
      arrays; sums of those of k and v.
    plan: layout.
    blocks: number of blocks of queries.
  """
  seed, rows, heads, q, k, v, mask = refs[:7]
  shared, (out_grad, dq, dk, dv) = refs[7:7 + plan.shared], refs[7 + plan.shared:11 + plan.shared]
  shared_grads, k_sum, v_sum = refs[11 + plan.shared:-2], refs[-2], refs[-1]
  row, group, block = program_position(plan)
  first = (group % plan.groups == 0) & (block == 0)
  last = (group % plan.groups == plan.groups - 1) & (block == blocks - 1)

  @pl.when(first)
  def _():
    k_sum[...] = jnp.zeros_like(k_sum)
    v_sum[...] = jnp.zeros_like(v_sum)

  if plan.terms:
    @pl.when((row == 0) & (block == 0))
    def _():
      for table in shared_grads:
        table[...] = jnp.zeros_like(table)

  keys = find_key_window(mask, k.shape[1], block, plan)
  window = keys.window

  def differentiate(head, total):
    q_head, y_grad = select_head(q[0], head, plan), select_head(out_grad[0], head, plan)
    p = probabilities(q_head, k, shared, (head, block), keys, plan)
    dp = dot(y_grad, v[0, window], ((1,), (1,)), plan)
    dropped = p
    if plan.rate:
      head_id = heads[group * plan.heads + head]
      keep = block_keep_mask(
          seed, rows[row], head_id, block, (keys.first, k.shape[1]), p.shape, plan)
      dropped = jnp.where(keep, p * (1 / (1 - plan.rate)), 0.0)
      dp = jnp.where(keep, dp * (1 / (1 - plan.rate)), 0.0)
    # A logit that was replaced by the mask has no gradient.
    ds = jnp.where(keys.mask, p * (dp - (p * dp).sum(-1, keepdims=True)), 0.0)
    if plan.has_bias:
      own = query_slice(block, plan)
      bias_grad = shared_grads[0]
      bias_grad[0, head, own] = jnp.where(row == 0, 0.0, bias_grad[0, head, own]) + ds
    ds *= plan.scale
    if plan.terms:
      total += relative_logits_backward(
          ds, q_head, k, (shared, shared_grads, k_sum), (head, block), plan)
    ds = cast_operand(ds, q.dtype, plan)
    total += select_head(dot(ds, k[0, window], ((1,), (0,)), plan), head, plan)
    k_sum[window] += dot(ds, q_head, ((0,), (0,)), plan)
    v_sum[window] += dot(cast_operand(dropped, q.dtype, plan), y_grad, ((0,), (0,)), plan)
    return total

  total = loop_over_heads(differentiate, jnp.zeros(dq.shape[1:], jnp.float32), plan)
  dq[0] = total.astype(dq.dtype)

  @pl.when(last)
  def _():
    dk[0] = k_sum[...].astype(dk.dtype)
    dv[0] = v_sum[...].astype(dv.dtype)


def loop_over_heads(body, total, plan: KernelPlan):
  """Run body(head, total) -> total over the heads of a program.

  On a core with little fast memory it is a loop, so that the logits of two heads are never there at
  once.
  """
  unroll = plan.vmem_limit is not None or not plan.terms
  return jax.lax.fori_loop(0, plan.heads, body, total, unroll=unroll)


def program_position(plan: KernelPlan):
  """Return (row, group of heads, block of queries) of a program."""
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


def probabilities(q, k, shared, at, keys: KeyWindow, plan: KernelPlan):
  """Compute the attention probabilities of one head.

  Args:
    q: [queries, lanes].
    k: ref of the keys.
    shared: refs of the bias, or of tables of distances.
    at: (head, block of queries).
    keys: the keys that the queries visit.
    plan: layout.

  Returns:
    [queries, keys in the window] float32.
  """
  logits = dot(q, k[0, keys.window], ((1,), (1,)), plan)
  if plan.terms:
    logits = add_relative_logits(logits, q, k, shared, at, plan)
  logits *= plan.scale
  if plan.has_bias:
    logits += shared[0][0, at[0], query_slice(at[1], plan)]
  logits = jnp.where(keys.mask, logits, MASKED_LOGIT)
  if k.shape[1] > plan.keys:
    key = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) + keys.first
    logits = jnp.where(key < plan.keys, logits, PADDING_LOGIT)
  p = jnp.exp(logits - logits.max(-1, keepdims=True))
  return p * (1 / p.sum(-1, keepdims=True))


def query_slice(block, plan: KernelPlan):
  """Return the slice of the queries of a block."""
  return pl.ds(pl.multiple_of(block * plan.queries, 8), plan.queries)


def add_relative_logits(logits, q, k, tables, at, plan: KernelPlan):
  """Add relative logits to logits [queries, keys], before the scale.

  The other arguments are those of `probabilities`.
  """
  for term, table in zip(plan.terms, tables, strict=True):
    tiles = []
    for x, window in table_windows(term, q, k, table, at, plan):
      by_distance = dot(x, table[window], ((1,), (1,)), plan)
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
    refs: (tables, their gradients, gradient of the keys).
    at: (head, block of queries).
    plan: layout.

  Returns:
    [queries, lanes], what is added to the gradient of q.
  """
  tables, gradients, k_sum = refs
  total = jnp.zeros(q.shape, jnp.float32)
  for term, table, gradient in zip(plan.terms, tables, gradients, strict=True):
    parts = []
    for number, (x, window) in enumerate(table_windows(term, q, k, table, at, plan)):
      own = slice(number * LANES, (number + 1) * LANES)
      by_key = ds[own] if term == 'keys' else ds[:, own].T
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


def table_windows(term: Term, q, k, table, at, plan: KernelPlan):
  """Pair blocks of 128 rows with windows of a table of distances.

  A table has a row per distance: for relative keys from the number of queries downwards, for
  relative queries from minus the number of keys upwards.

  Args:
    term: 'keys': the rows are queries; 'queries': the rows are keys.
    q: [queries, lanes].
    k: ref of the keys.
    table: ref of the table.
    at: (head, block of queries).
    plan: layout.

  Returns:
    Pairs of rows [128, lanes] and the slice of the table whose products `shift_to_keys` takes.
  """
  head, block = at
  num_keys, first = k.shape[1], block * plan.queries
  pairs = []
  if term == 'keys':
    last = table.shape[0] - num_keys - LANES - first
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
  first, num_keys = keys
  window = (first, shape[1]) if plan.window else None
  return hashed_keep_mask(seed, row, head, query, num_keys, plan.rate, window)


def hashed_keep_mask(seed, row, head, query, num_keys: int, rate: float,
                     window: tuple[Any, int] | None = None):
  """Compute a dropout mask by a hash: True with probability 1 - rate, to 2^-16.

  A number of the query and one of the key, each hashed with (seed, row, head), are combined into a
  word of 32 bits, whose halves decide for two keys. Most of the cost of dropout on the vector unit
  is mixing that word. `mix_bits` is Murmur3's finalizer (Appleby, smhasher).

  Args:
    seed: two int32.
    row: int32, number of the row, in a shape that broadcasts.
    head: int32, number of the head, in a shape that broadcasts.
    query: int32 [.., queries, 1], numbers of the queries.
    num_keys: number of keys of the row.
    rate: dropout rate.
    window: (first key, number of keys) where only some keys are needed.

  Returns:
    Bool [.., queries, keys].
  """
  one = mix_bits(seed[0] + row * jnp.int32(-1640531527)) ^ mix_bits(head + jnp.int32(0x3C6EF372))
  two = mix_bits(seed[1] ^ mix_bits(one + row))
  # Whole tiles, so that the halves are adjacent without being moved.
  half = min(num_keys, -(-num_keys // (2 * LANES)) * LANES)

  def hash_words(key):
    return combine_words(mix_bits(query + one), mix_bits(key * jnp.int32(-1640531527) + two))

  def split_halves(word):
    return word & jnp.int32(0xFFFF), jax.lax.shift_right_logical(word, jnp.int32(16))

  if window is None:
    words = hash_words(jax.lax.broadcasted_iota(jnp.int32, (1, half), 1))
    early, late = split_halves(words)
    bits = [early]
    if num_keys > half:
      bits.append(late[..., :num_keys - half])
    bits = jnp.concatenate(bits, -1)
  else:
    key = jax.lax.broadcasted_iota(jnp.int32, (1, window[1]), 1) + window[0]
    early, late = split_halves(hash_words(jnp.where(key < half, key, key - half)))
    bits = jnp.where(key < half, early, late)
  return bits >= jnp.int32(round(rate * (1 << 16)))


def combine_words(one, two):
  """Combine two mixed int32 into one by sums and shifts (Jenkins 1997, one-at-a-time).

  TPU v3 and v4 compute a product of 32-bit numbers from many others.
  """
  x = one + two
  for left, right in ((10, 6), (3, 11), (15, 16)):
    x += x << jnp.int32(left)
    x ^= jax.lax.shift_right_logical(x, jnp.int32(right))
  return x


def mix_bits(x):
  """Mix the bits of int32 x (Murmur3's finalizer)."""
  for shift, factor in ((16, -2048144789), (13, -1028477387)):
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(shift))) * jnp.int32(factor)
  return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
