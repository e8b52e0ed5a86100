"""Attention in one kernel on a TPU: neither logits nor probabilities reach its memory (HBM), forward or backward.

    attend(Arrays(q, k, v, mask, bias=None), scale, Noise(seed, rows, 0.1))

A program of the kernel has a block of queries and all keys of a row, so its logits are whole rows: softmax needs no
second pass over the keys, and the backward pass makes the probabilities again from what it is given, queries, keys and
values, and nothing else is kept (Dao et al. 2022, section 3, whose blocks of keys are needed where rows do not fit a
core's memory, which up to `LONGEST` keys they do). Queries, keys and values stay where a product with their kernel has
put them, heads beside each other: of heads narrower than the 128 lanes of a core several go through together, kept
apart by zeros, which cost its matrix unit nothing.

Dropout draws no bits from memory either: whether a probability stays is a hash of (seed, row, head, query, key), so the
same on any mesh, under any split into blocks and in both passes.

Written for libtpu 0.0.42 to 0.0.50. What was read: jax.experimental.pallas.ops.tpu.flash_attention, which has no
dropout and wants heads in front of tokens.
"""
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.sharding import spec

LANES = 128
SHORTEST, LONGEST = 256, 2048
"""keys of a row: with 128 what the kernel reads is as much as the probabilities that it saves (BERT-base on v5e:4x4,
compiled: 5.17 GB a step, 5.01 without)"""
HIDDEN, OUTSIDE = -1e9, -2e9
"""logits of keys that a query does not see (finite: a row of padding is uniform instead of NaN), and of what only fills
up a block"""
# Bytes of a core's fast memory that one float32 array of logits may take; a backward program has some eight of them.
# By device kind; pltpu.get_tpu_info has the sizes: 16 MiB up to v4, 128 on v5e and v6e, 64 on v5p.
# Not TPU v2, whose steps are bound by arithmetic either way: that of BERT-base, 512 tokens on v2:4x4, takes 104.7 ms
# without the kernel, 106.4 with it, which makes products again in the backward pass.
ROOM = {'TPU v3': 1 << 19, 'TPU v4': 1 << 19, 'TPU v5 lite': 1 << 21, 'TPU v5': 1 << 21,
        'TPU v6 lite': 1 << 21}
LIMIT = {'TPU v5 lite': 96 << 20, 'TPU v5': 48 << 20, 'TPU v6 lite': 96 << 20}  # of all arrays; else the compiler's
WIDE = ('TPU v3',)
"""whose matrix units take float32 alone from a kernel"""
OPERATIONS = {'forward': (8, 22), 'backward': (15, 24)}
"""what the vector unit does for a score in each pass, and for its dropout besides"""
SIZES = ('batch', None, 'heads', None)


class Noise(NamedTuple):
  """Dropout of probabilities."""

  seed: jax.Array
  """[2] uint32"""
  rows: jax.Array
  """[B] int32, the numbers of the rows in the whole batch"""
  rate: float


class Arrays(NamedTuple):
  """What is attended with, as `attend` takes it, or as `attention` does where blocks divide everything."""

  q: jax.Array
  """[B, Q, H, A]; [B, Q, H A]"""
  k: jax.Array
  v: jax.Array
  """[B, K, G, A]; [B, K, G A]"""
  mask: Any
  """bool [B|1, 1, 1|Q, K] or None; integers [B|1, 1|Q, K]"""
  bias: Any
  """[1, H, Q, K] or None; float32"""


class Places(NamedTuple):
  """Of which noise is a function."""

  seed: jax.Array
  """[2]"""
  rows: jax.Array
  """[B] int32"""
  heads: jax.Array
  """[H] int32, their numbers among those of all devices"""


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a kernel goes through attention: static, and the same for both passes."""

  scale: float
  rate: float
  size: int
  """lanes of a head, which divide those of a program or are them"""
  lanes: int
  """of a program"""
  queries: int
  """in a block"""
  keys: int
  """of a row that are real: others fill it up"""
  groups: int
  """programs, one behind another, that share keys"""
  biased: bool
  wide: bool
  """operands of products are made float32"""
  limit: int | None
  """bytes of fast memory; None: the compiler's own"""
  interpret: bool = False

  @property
  def heads(self) -> int:
    """of a program"""
    return self.lanes // self.size


def kind() -> str:
  """Returns the device kind of the TPU that is traced for, '' where it is none: that of the mesh, whose devices need
  not be here, else of what JAX runs on."""
  mesh = jax.sharding.get_abstract_mesh()
  device = None if mesh.empty else getattr(mesh, 'abstract_device', None)
  if device is not None:
    return device.device_kind if device.platform == 'tpu' else ''
  return jax.local_devices()[0].device_kind if jax.default_backend() == 'tpu' else ''


def takes(kind: str, dtype, query: tuple[int, ...], key: tuple[int, ...], bias: tuple[int, ...] | None = None) -> bool:
  """Tells whether the kernel takes attention of this kind: pure, and the only place that decides.

  query, key, bias: shapes. A bias that differs between rows would be read, and its gradient written, whole: there is
  nothing to gain. The gradient of another is added up over the rows, for which a program has all queries.
  """
  if kind not in ROOM or dtype != jnp.bfloat16:
    return False
  (_, queries, heads, size), (_, keys, key_heads, _) = query, key
  if queries < 8 or not SHORTEST <= keys <= LONGEST or (kind not in LIMIT and up(keys) * size > LONGEST * LANES):
    return False
  room = ROOM[kind] * (1 if kind in WIDE else 2)
  return bias is None or (bias[0] == 1 and heads == key_heads and up(queries) * up(keys) * 4 <= room)


def attend(arrays: Arrays, scale: float, noise: Noise | None = None, *, on: str = '', interpret=False) -> jax.Array:
  """Attends -> [B, Q, H, A] in the type of the queries; the bias is added to the scaled logits.

  on: device kind that the kernel is for, one of `ROOM`; if it is not given that of the mesh or of JAX's devices, which
  are TPUs then. On a mesh each device attends with its own rows and heads.
  """
  q, k, v, mask, bias = arrays
  on = on or kind()
  mesh = jax.sharding.get_abstract_mesh()
  local = functools.partial(on_device, scale=scale, rate=noise.rate if noise else 0.0, on=on, interpret=interpret)
  places = Places(noise.seed if noise else jnp.zeros(2, jnp.uint32),
                  noise.rows if noise else jnp.zeros(q.shape[0], jnp.int32), jnp.arange(q.shape[2], dtype=jnp.int32))
  if mesh.empty or mesh.size == 1:
    return local(Arrays(q, k, v, mask, bias), places)
  along, keyed, everywhere = spec(SIZES, q.shape, mesh), spec(SIZES, k.shape, mesh), PartitionSpec()
  if along[2] != keyed[2]:  # devices do not divide the heads of keys: each gets those of its queries
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    keyed = along
  masked = everywhere if mask is None else spec(('batch', None, None, None), mask.shape, mesh)
  layout: Any = along, keyed, keyed, masked, PartitionSpec(None, along[2])
  placed: Any = everywhere, PartitionSpec(along[0]), PartitionSpec(along[2])
  specs = Arrays(*layout), Places(*placed)
  return jax.shard_map(local, in_specs=specs, out_specs=along, check_vma=False)(Arrays(q, k, v, mask, bias), places)


def on_device(arrays: Arrays, places: Places, *, scale: float, rate: float, on: str, interpret: bool) -> jax.Array:
  """`attend` of the rows and heads of one device: lays everything out in blocks."""
  q, k, v, mask, bias = arrays
  batch, queries, number, size = q.shape
  keys = k.shape[1]
  lanes = next((n for n in (32, 64, LANES) if size <= n), up(size))
  together = max(1, LANES // lanes)  # heads of a program
  if together > 1 and k.shape[2] != number:
    k, v = (jnp.repeat(x, number // x.shape[2], 2) for x in (k, v))
  groups = number // k.shape[2]
  block = up(queries)
  if bias is None:
    block = min(block, max(LANES if block > LANES else 8, ROOM[on] // 4 // up(keys) // LANES * LANES))
  plan = Plan(scale, rate, lanes, together * lanes, block, keys, groups, bias is not None, on in WIDE, LIMIT.get(on),
              interpret)
  longer, more = -(-queries // block) * block, -number % together

  def laid(x, length):  # [B, L, N, A] -> [B, length, N' A'], N' and A' filled up
    x = jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, -x.shape[2] % together), (0, lanes - size)))
    return x.reshape(*x.shape[:2], -1)
  if mask is None:
    mask = jnp.ones((1, 1, 1, keys), bool)
  whole = mask.shape[2] > 1
  mask = jnp.pad(mask[:, 0], ((0, 0), (0, (longer - queries) * whole), (0, up(keys) - keys)))
  if bias is None:
    bias = jnp.zeros((1, 1, 8, LANES), jnp.float32)
  else:
    bias = jnp.pad(bias.astype(jnp.float32), ((0, 0), (0, more), (0, longer - queries), (0, up(keys) - keys)))
  blocks = Arrays(laid(q, longer), laid(k, up(keys)), laid(v, up(keys)), mask.astype(jnp.int8 if whole else jnp.int32),
                  bias)
  y: Any = attention(blocks, Places(jax.lax.bitcast_convert_type(places.seed, jnp.int32), places.rows.astype(jnp.int32),
                               jnp.pad(places.heads, (0, more))), plan)
  return y[:, :queries].reshape(batch, queries, -1, lanes)[:, :, :number, :size]


def up(length: int) -> int:
  """Rounds a length up to what a block takes: tiles of 128, below that of 8."""
  return -(-length // LANES) * LANES if length > LANES else -(-length // 8) * 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def attention(arrays: Arrays, places: Places, plan: Plan) -> jax.Array:
  """Attends where blocks divide everything -> [B, Q, H A]."""
  return call(forward_kernel, arrays, (), places, plan, 'q')[0]


def attention_forward(arrays: Arrays, places: Places, plan: Plan):
  """Returns what attention returns, and for the backward pass what it was given."""
  return attention(arrays, places, plan), (arrays, places)


def attention_backward(plan: Plan, kept, given):
  """Returns the gradients of queries, keys, values and bias."""
  arrays, places = kept
  dq, dk, dv, *rest = call(backward_kernel, arrays, (given,), places, plan, 'qkvb' if plan.biased else 'qkv')
  return Arrays(dq, dk, dv, None, rest[0] if rest else jnp.zeros_like(arrays.bias)), None


attention.defvjp(attention_forward, attention_backward)


def call(kernel, arrays: Arrays, given: tuple[jax.Array, ...], places: Places, plan: Plan, results: str):
  """Calls a kernel over rows, groups of heads and blocks of queries; where there is a bias rows come last, so that its
  gradient is added up over them.

  given: more arrays of the shape of the queries. results: of which arrays' shapes, by their letters.
  """
  q, k, _, mask, bias = arrays
  batch, programs, blocks = q.shape[0], q.shape[2] // plan.lanes, q.shape[1] // plan.queries
  def place(at):  # of a grid's indices -> (row, group, block)
    return (lambda n, b: at(b, n, 0)) if plan.biased else at
  whole, own = mask.shape[1] > 1, mask.shape[0] > 1
  of_queries = pl.BlockSpec((1, plan.queries, plan.lanes), place(lambda b, n, i: (b, i, n)))
  of_keys = pl.BlockSpec((1, k.shape[1], plan.lanes), place(lambda b, n, i: (b, 0, n // plan.groups)))
  of_mask = pl.BlockSpec((1, plan.queries if whole else 1, mask.shape[2]),
                         place(lambda b, n, i: (b if own else 0, i if whole else 0, 0)))
  of_bias = pl.BlockSpec((1, plan.heads if plan.biased else 1, *bias.shape[2:]),
                         place(lambda b, n, i: (0, n if plan.biased else 0, 0, 0)))
  out = {'q': (of_queries, q), 'k': (of_keys, k), 'v': (of_keys, k), 'b': (of_bias, bias)}
  products, each = (2, OPERATIONS['forward']) if results == 'q' else (5, OPERATIONS['backward'])
  scores = batch * programs * plan.heads * q.shape[1] * k.shape[1]
  return pl.pallas_call(
      functools.partial(kernel, plan=plan, blocks=blocks),
      grid=(programs, batch) if plan.biased else (batch, programs, blocks),
      in_specs=[*[pl.BlockSpec(memory_space=pltpu.SMEM)] * 3, of_queries, of_keys, of_keys, of_mask, of_bias,
                *[of_queries] * len(given)],
      out_specs=[out[name][0] for name in results],
      out_shape=[jax.ShapeDtypeStruct(out[name][1].shape, out[name][1].dtype) for name in results],
      scratch_shapes=[] if results == 'q' else [pltpu.VMEM((k.shape[1], plan.lanes), jnp.float32)] * 2,
      compiler_params=pltpu.CompilerParams(vmem_limit_bytes=plan.limit),
      # As products elsewhere are counted: lanes of zeros, which the matrix unit multiplies with the others, are none.
      cost_estimate=pl.CostEstimate(
          flops=2 * products * scores * plan.size,
          bytes_accessed=sum(x.size * x.dtype.itemsize for x in (q, k, k, mask, *given))
          + sum(out[name][1].size * out[name][1].dtype.itemsize for name in results),
          transcendentals=scores),
      metadata={'vector_operations': str(scores * (sum(each) if plan.rate else each[0]))},
      interpret=plan.interpret)(*places, *arrays, *given)


def forward_kernel(*refs, plan: Plan, blocks: int):
  """Attends with one block of queries. refs: `Places`, `Arrays`, what it answers."""
  del blocks
  seed, rows, heads, q, k, v, mask, bias, out = refs
  row, group, block = where(plan)
  shown = mask[0].astype(jnp.int32) != 0
  total = jnp.zeros(out.shape[1:], jnp.float32)
  for head in range(plan.heads):
    p = probabilities(only(q[0], head, plan), k[0], bias, head, shown, plan)
    if plan.rate:
      p = jnp.where(stays(seed, rows[row], heads[group * plan.heads + head], block, p.shape, plan),
                    p * (1 / (1 - plan.rate)), 0.0)
    total += only(dot(p.astype(v.dtype), v[0], ((1,), (0,)), plan), head, plan)
  out[0] = total.astype(out.dtype)


def backward_kernel(*refs, plan: Plan, blocks: int):
  """Finds the gradients of one block of queries, and adds up those of the keys and values that it has seen. refs:
  `Places`, `Arrays`, the gradient of the answer, the gradients of q, k, v and the bias, sums of those of k and v."""
  seed, rows, heads, q, k, v, mask, bias, given, dq, dk, dv, *rest, keys, values = refs
  row, group, block = where(plan)
  first = (group % plan.groups == 0) & (block == 0)
  last = (group % plan.groups == plan.groups - 1) & (block == blocks - 1)

  @pl.when(first)
  def _():
    keys[...] = jnp.zeros_like(keys)
    values[...] = jnp.zeros_like(values)

  shown = mask[0].astype(jnp.int32) != 0
  total = jnp.zeros(dq.shape[1:], jnp.float32)
  for head in range(plan.heads):
    mine, back = only(q[0], head, plan), only(given[0], head, plan)
    p = probabilities(mine, k[0], bias, head, shown, plan)
    dp = dot(back, v[0], ((1,), (1,)), plan)
    dropped = p
    if plan.rate:
      stay = stays(seed, rows[row], heads[group * plan.heads + head], block, p.shape, plan)
      dropped, dp = (jnp.where(stay, x * (1 / (1 - plan.rate)), 0.0) for x in (p, dp))
    # A logit that was put in place of another is nobody's.
    ds = jnp.where(shown, p * (dp - (p * dp).sum(-1, keepdims=True)), 0.0)
    if rest:
      rest[0][0, head] = jnp.where(row == 0, 0.0, rest[0][0, head]) + ds
    ds = (ds * plan.scale).astype(q.dtype)
    total += only(dot(ds, k[0], ((1,), (0,)), plan), head, plan)
    keys[...] += dot(ds, mine, ((0,), (0,)), plan)
    values[...] += dot(dropped.astype(q.dtype), back, ((0,), (0,)), plan)
  dq[0] = total.astype(dq.dtype)

  @pl.when(last)
  def _():
    dk[0] = keys[...].astype(dk.dtype)
    dv[0] = values[...].astype(dv.dtype)


def where(plan: Plan):
  """Returns (row, group of heads, block of queries) of a program."""
  if plan.biased:
    return pl.program_id(1), pl.program_id(0), 0
  return pl.program_id(0), pl.program_id(1), pl.program_id(2)


def dot(a, b, contract, plan: Plan):
  """Multiplies matrices over the axes `contract`, added up in float32."""
  if plan.wide:
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  return jax.lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def only(x, head: int, plan: Plan):
  """Returns x [L, lanes] with zeros for all of a program's heads but one."""
  if plan.heads == 1:
    return x
  lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  return jnp.where(lane // plan.size == head, x, jnp.zeros_like(x))


def probabilities(q, k, bias, head: int, shown, plan: Plan):
  """Returns the softmax of the logits of a head [Q, K], float32."""
  logits = dot(q, k, ((1,), (1,)), plan) * plan.scale
  if plan.biased:
    logits += bias[0, head]
  logits = jnp.where(shown, logits, HIDDEN)
  if logits.shape[1] > plan.keys:
    key = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    logits = jnp.where(key < plan.keys, logits, OUTSIDE)
  p = jnp.exp(logits - logits.max(-1, keepdims=True))
  return p * (1 / p.sum(-1, keepdims=True))


def stays(seed, row, head, block, shape, plan: Plan):
  """Tells which probabilities of a block [Q, K] stay: a share 1 - rate, by a hash of their place."""
  query = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + block * plan.queries
  key = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  return kept(seed[0], seed[1], row, head, query, key, plan.rate)


def kept(first, second, row, head, query, key, rate: float):
  """Tells whether probabilities stay, of places that are int32 arrays which broadcast; the rest of Bernoulli(1 - rate).

  first, second: the seed, int32. Murmur3's finaliser (Appleby, smhasher) of (query, key), under two numbers that are
  such hashes of (seed, row, head).
  """
  one = mixed(first + row * jnp.int32(-1640531527)) ^ mixed(head + jnp.int32(0x3C6EF372))
  two = mixed(second ^ mixed(one + row))
  x = mixed((query * jnp.int32(1 << 16) + key) ^ mixed(one)) + two
  x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(15))) * jnp.int32(0x2C1B3C6D)
  return jax.lax.shift_right_logical(x ^ jax.lax.shift_right_logical(x, jnp.int32(16)), jnp.int32(8)) >= jnp.int32(
      math.ceil(rate * (1 << 24)))


def mixed(x):
  """Mixes the bits of int32 x."""
  for shift, factor in ((16, -2048144789), (13, -1028477387)):
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(shift))) * jnp.int32(factor)
  return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
