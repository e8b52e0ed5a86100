"""Attention in one kernel on a TPU: neither logits nor probabilities reach its memory (HBM), forward or backward.

    attend(Arrays(q, k, v, mask, bias=None), scale, Noise(seed, rows, 0.1))

A program of the kernel has a block of queries and all keys of a row, so its logits are whole rows: softmax needs no
second pass over the keys, and the backward pass makes the probabilities again from what it is given, queries, keys and
values, and nothing else is kept (Dao et al. 2022, section 3, whose blocks of keys are needed where rows do not fit a
core's memory, which up to `longest` they do). Queries, keys and values stay where a product with their kernel has
put them, heads beside each other: of heads narrower than the 128 lanes of a core several go through together, kept
apart by zeros, which cost its matrix unit nothing.

Of disentangled attention a program gets the tables of distances, which all rows share, in place of logits by distance
that each row would have of its own (`Distances`): it multiplies by the window of a table that a block of queries can
reach, and lines up what comes of it with keys (`shifts`); in the backward pass it adds up the tables' gradients over
the rows.

Dropout draws no bits from memory either: whether a probability stays is a hash of (seed, row, head, query, key), so the
same on any mesh, under any split into blocks and in both passes.

Written for libtpu 0.0.42 to 0.0.50. What was read: jax.experimental.pallas.ops.tpu.flash_attention, which has no
dropout and wants heads in front of tokens.
"""
import functools
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.layers.bands import Band, tiles
from plm_jax.layers.distances import Distances
from plm_jax.layers.programs import Arrays, Places, Plan, backward_kernel, forward_kernel
from plm_jax.layers.shifts import LANES, TURN, Means
from plm_jax.sharding import spec

SHORTEST, LONGEST = 256, 2048
"""keys of a row: with 128 what the kernel reads is as much as the probabilities that it saves (BERT-base on v5e:4x4,
compiled: 5.17 GB a step, 5.01 without)"""
LONGER = {'TPU v5 lite': 8192, 'TPU v5': 4096, 'TPU v6 lite': 8192}
"""by device kind, where a core has more fast memory: 128 queries of 8,192 keys have 4 MiB of float32 logits.
ModernBERT's rows of 8,192 on v5e:4x8, compiled: 1,613 GB a step without the kernel, 100 with it"""
NEAREST = 128
"""keys of a row that has distances"""
# Bytes of a core's fast memory that one float32 array of logits may take; a backward program has some eight of them.
# By device kind; pltpu.get_tpu_info has the sizes: 16 MiB up to v4, 128 on v5e and v6e, 64 on v5p.
# Not TPU v2, whose steps are bound by arithmetic either way: that of BERT-base, 512 tokens on v2:4x4, takes 104.7 ms
# without the kernel, 106.4 with it, which makes products again in the backward pass.
ROOM = {'TPU v3': 1 << 19, 'TPU v4': 1 << 19, 'TPU v5 lite': 1 << 21, 'TPU v5': 1 << 21,
        'TPU v6 lite': 1 << 21}
LIMIT = {'TPU v5 lite': 96 << 20, 'TPU v5': 48 << 20, 'TPU v6 lite': 96 << 20}  # of all arrays; else the compiler's
WIDE = ('TPU v3',)
"""whose matrix units take float32 alone from a kernel"""
MEANS: dict[str, Means] = {'TPU v3': 'rolls', 'TPU v4': 'look-ups'}  # of turning rows; else strides
OPERATIONS = {'forward': (8, 10.5), 'backward': (15, 12.5)}
"""what the vector unit does for a score in each pass, and for its dropout besides"""
SIZES = ('batch', None, 'heads', None)


class Noise(NamedTuple):
  """Dropout of probabilities."""

  seed: jax.Array
  """[2] uint32"""
  rows: jax.Array
  """[B] int32, the numbers of the rows in the whole batch"""
  rate: float


def kind() -> str:
  """Returns the device kind of the TPU that is traced for, '' where it is none: that of the mesh, whose devices need
  not be here, else of what JAX runs on."""
  mesh = jax.sharding.get_abstract_mesh()
  device = None if mesh.empty else getattr(mesh, 'abstract_device', None)
  if device is not None:
    return device.device_kind if device.platform == 'tpu' else ''
  return jax.local_devices()[0].device_kind if jax.default_backend() == 'tpu' else ''


def takes(kind: str, dtype, query: tuple[int, ...], key: tuple[int, ...], bias: tuple[int, ...] | None = None,
          terms: int = 0) -> bool:
  """Tells whether the kernel takes attention of this kind: pure, and the only place that decides.

  query, key, bias: shapes. A bias that differs between rows would be read, and its gradient written, whole: there is
  nothing to gain. Of another a program has all queries at hand, and of its gradient, which is added up over the rows.
  terms: with distances, one or two, whose tables and their gradients a program has whole.
  """
  if kind not in ROOM or dtype != jnp.bfloat16:
    return False
  (_, queries, heads, size), (_, keys, key_heads, _) = query, key
  if queries < 8 or keys < (NEAREST if terms else SHORTEST) or up(keys) > longest(kind, size, terms):
    return False
  if terms:
    return heads == key_heads and (kind in LIMIT or tiles(keys) * max(size, LANES) <= LONGEST // 2 * LANES)
  if bias is None:
    return True
  together = max(1, LANES // lanes_of(size))
  held = 4 * 4 * together * up(queries) * up(keys)  # bytes of a bias and its gradient, each while the next one comes
  return bias[0] == 1 and heads == key_heads and held <= LIMIT.get(kind, 16 << 20) // 2


def longest(kind: str, size: int, terms: int = 0) -> int:
  """Returns how many keys of heads of this size a program may have, which it holds whole; with distances, besides their
  tables."""
  if terms:
    return LONGEST
  most = LONGER.get(kind, LONGEST)
  return min(most, most * LANES // size)


def attend(arrays: Arrays, scale: float, noise: Noise | None = None, band: Band | None = None, *, on: str = '',
           interpret=False) -> jax.Array:
  """Attends -> [B, Q, H, A] in the type of the queries; the bias is added to the scaled logits.

  band: of the keys of its own row a query sees no others; where there is neither bias nor distances a program then
  multiplies with those in reach alone.
  on: device kind that the kernel is for, one of `ROOM`; if it is not given that of the mesh or of JAX's devices, which
  are TPUs then. On a mesh each device attends with its own rows and heads.
  """
  q, k, v, mask, bias = arrays
  by_distance = isinstance(bias, Distances)
  if band and bias is not None:
    mask, band = band.within(mask, q.shape[1]), None
  if by_distance:
    scale, bias = scale * bias.share, bias._replace(share=None)
  on = on or kind()
  mesh = jax.sharding.get_abstract_mesh()
  local = functools.partial(
      on_device, scale=scale, rate=noise.rate if noise else 0.0, band=band, on=on, interpret=interpret)
  places = Places(noise.seed if noise else jnp.zeros(2, jnp.uint32),
                  noise.rows if noise else jnp.zeros(q.shape[0], jnp.int32), jnp.arange(q.shape[2], dtype=jnp.int32))
  if mesh.empty or mesh.size == 1:
    return local(Arrays(q, k, v, mask, bias), places)
  along, keyed, everywhere = spec(SIZES, q.shape, mesh), spec(SIZES, k.shape, mesh), PartitionSpec()
  if along[2] != keyed[2]:  # devices do not divide the heads of keys: each gets those of its queries
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    keyed = along
  masked = everywhere if mask is None else spec(('batch', None, None, None), mask.shape, mesh)
  shared: Any = PartitionSpec(None, along[2])
  if by_distance:
    shared = Distances(shared, shared, None, PartitionSpec(along[0]))
  layout: Any = along, keyed, keyed, masked, shared
  placed: Any = everywhere, PartitionSpec(along[0]), PartitionSpec(along[2])
  specs = Arrays(*layout), Places(*placed)
  return jax.shard_map(local, in_specs=specs, out_specs=along, check_vma=False)(Arrays(q, k, v, mask, bias), places)


def on_device(arrays: Arrays, places: Places, *, scale: float, rate: float, band: Band | None, on: str,
              interpret: bool) -> jax.Array:
  """`attend` of the rows and heads of one device."""
  standing = arrays.bias.places if isinstance(arrays.bias, Distances) else None
  if standing is None:
    return in_blocks(arrays, places, scale, rate, band, on, interpret)
  q, k, v, mask, bias = arrays
  at = (standing[:, :, None] == jnp.arange(k.shape[1])).astype(q.dtype)  # [B, M, K]
  # Of several queries at one place the first is asked, and answers for all.
  first = at * (jnp.cumsum(at.astype(jnp.float32), 1) == 1)
  q = jnp.einsum('bmk,bmha->bkha', first, q)
  if mask is not None and mask.shape[2] > 1:
    mask = jnp.einsum('bmk,bml->bkl', first, mask[:, 0].astype(q.dtype))[:, None] > 0
  y = in_blocks(Arrays(q, k, v, mask, bias._replace(places=None)), places, scale, rate, None, on, interpret)
  return jnp.einsum('bmk,bkha->bmha', at, y)


def in_blocks(arrays: Arrays, places: Places, scale: float, rate: float, band: Band | None, on: str,
              interpret: bool) -> jax.Array:
  """Attends with the rows and heads of one device, which it lays out in blocks."""
  q, k, v, mask, bias = arrays
  batch, queries, number, size = q.shape
  by_distance = isinstance(bias, Distances)
  keys, filled = k.shape[1], tiles if by_distance else up
  lanes = lanes_of(size)
  together = max(1, LANES // lanes)  # heads of a program
  if together > 1 and k.shape[2] != number:
    k, v = (jnp.repeat(x, number // x.shape[2], 2) for x in (k, v))
  groups = number // k.shape[2]
  block = filled(queries)
  block = min(block, max(LANES if block > LANES else filled(8), ROOM[on] // 4 // up(keys) // LANES * LANES))
  if band:
    aside = tiles(band.before) + tiles(band.after)
    if queries == keys and 4 * aside <= up(keys):  # as many queries as keys beside them: half of the products or less
      block = next((n for n in range(max(aside, LANES), LANES, -LANES) if 4 * n * (n + aside) <= ROOM[on]), LANES)
    else:
      mask, band = band.within(mask, keys), None
  terms: Any = tuple(name for name in ('keys', 'queries') if by_distance and getattr(bias, name) is not None)
  plan = Plan(scale, rate, lanes, together * lanes, block, keys, groups, bias is not None and not by_distance, terms,
              MEANS.get(on, 'strides'), on in WIDE, LIMIT.get(on), band, interpret)
  longer, wider, more = -(-queries // block) * block, filled(keys), -number % together

  def laid(x, *lengths):  # [.., L, N, A] -> [.., L', N' A'], filled up: L at its ends, N and A at the right
    at = (0, lengths[0] - x.shape[-3]) if len(lengths) == 1 else lengths
    x = jnp.pad(x, ((0, 0),) * (x.ndim - 3) + (at, (0, -x.shape[-2] % together), (0, lanes - size)))
    return x.reshape(*x.shape[:-2], -1)
  if mask is None:
    mask = jnp.ones((1, 1, 1, keys), bool)
  whole = mask.shape[2] > 1
  mask = jnp.pad(mask[:, 0], ((0, 0), (0, (longer - queries) * whole), (0, wider - keys)))
  if by_distance:
    before, behind = longer - keys, wider - keys
    def table(x, *ends):
      return None if x is None else laid(x, *ends).astype(jnp.float32 if plan.wide else q.dtype)
    bias = Distances(table(bias.keys, before, behind), table(bias.queries, behind, before), None)
  elif bias is not None:
    bias = jnp.pad(bias.astype(jnp.float32), ((0, 0), (0, more), (0, longer - queries), (0, wider - keys)))
  blocks = Arrays(laid(q, longer), laid(k, wider), laid(v, wider), mask.astype(jnp.int8 if whole else jnp.int32), bias)
  y: Any = attention(blocks, Places(jax.lax.bitcast_convert_type(places.seed, jnp.int32), places.rows.astype(jnp.int32),
                               jnp.pad(places.heads, (0, more))), plan)
  return y[:, :queries].reshape(batch, queries, -1, lanes)[:, :, :number, :size]


def lanes_of(size: int) -> int:
  """Returns how many lanes a head of this size gets."""
  return next((n for n in (32, 64, LANES) if size <= n), tiles(size))


def up(length: int) -> int:
  """Rounds a length up to what a block takes: tiles of 128, below that of 8."""
  return tiles(length) if length > LANES else -(-length // 8) * 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def attention(arrays: Arrays, places: Places, plan: Plan) -> jax.Array:
  """Attends where blocks divide everything -> [B, Q, H A]."""
  return call(forward_kernel, arrays, (), places, plan)[0]


def attention_forward(arrays: Arrays, places: Places, plan: Plan):
  """Returns what attention returns, and for the backward pass what it was given."""
  return attention(arrays, places, plan), (arrays, places)


def attention_backward(plan: Plan, kept, given):
  """Returns the gradients of queries, keys, values, and bias or tables."""
  arrays, places = kept
  dq, dk, dv, *rest = call(backward_kernel, arrays, (given,), places, plan)
  leaves, tree = jax.tree.flatten(arrays.bias)
  sums = rest if plan.biased else [table.T for table in rest]
  shared = [gradient.astype(leaf.dtype) for gradient, leaf in zip(sums, leaves, strict=True)]
  return Arrays(dq, dk, dv, None, jax.tree.unflatten(tree, shared)), None


attention.defvjp(attention_forward, attention_backward)


def call(kernel, arrays: Arrays, given: tuple[jax.Array, ...], places: Places, plan: Plan):
  """Calls a kernel over rows, groups of heads and blocks of queries; where rows share a bias, or tables, groups come
  first, so that its gradient is added up over the rows.

  given: more arrays of the shape of the queries, in the backward pass.
  """
  q, k, v, mask, bias = arrays
  batch, programs, blocks = q.shape[0], q.shape[2] // plan.lanes, q.shape[1] // plan.queries
  def place(at):  # of a grid's indices -> (row, group, block)
    return (lambda n, b, i: at(b, n, i)) if plan.shared else at
  whole, own = mask.shape[1] > 1, mask.shape[0] > 1
  of_queries = pl.BlockSpec((1, plan.queries, plan.lanes), place(lambda b, n, i: (b, i, n)))
  of_keys = pl.BlockSpec((1, k.shape[1], plan.lanes), place(lambda b, n, i: (b, 0, n // plan.groups)))
  of_mask = pl.BlockSpec((1, plan.queries if whole else 1, mask.shape[2]),
                         place(lambda b, n, i: (b if own else 0, i if whole else 0, 0)))
  shared = jax.tree.leaves(bias)
  if plan.biased:
    of_shared = of_sums = [pl.BlockSpec((1, plan.heads, *bias.shape[2:]), place(lambda b, n, i: (0, n, 0, 0)))]
  else:
    of_shared = [pl.BlockSpec((x.shape[0], plan.lanes), place(lambda b, n, i: (0, n))) for x in shared]
    of_sums = [pl.BlockSpec((plan.lanes, x.shape[0]), place(lambda b, n, i: (n, 0))) for x in shared]
  read = [of_queries, of_keys, of_keys, of_mask, *of_shared, *[of_queries] * len(given)]
  written = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ((q, k, v) if given else (q,))]
  if given:
    written += [jax.ShapeDtypeStruct(x.shape if plan.biased else x.shape[::-1], jnp.float32) for x in shared]
  # Programs of one core or two, in which order does not matter where none adds to what another has left.
  parallel, arbitrary = pltpu.PARALLEL, pltpu.ARBITRARY
  order = (parallel,) * 3 if not given else (
      parallel, parallel if not plan.shared and plan.groups == 1 else arbitrary, arbitrary)
  return pl.pallas_call(
      functools.partial(kernel, plan=plan, blocks=blocks),
      grid=(programs, batch, blocks) if plan.shared else (batch, programs, blocks),
      in_specs=[*[pl.BlockSpec(memory_space=pltpu.SMEM)] * 3, *read],
      out_specs=[of_queries, of_keys, of_keys, *of_sums] if given else [of_queries],
      out_shape=written,
      scratch_shapes=[pltpu.VMEM((k.shape[1], plan.lanes), jnp.float32)] * 2 if given else [],
      compiler_params=pltpu.CompilerParams(vmem_limit_bytes=plan.limit, dimension_semantics=order),
      interpret=plan.interpret, **estimate(arrays, given, written, plan))(*places, *jax.tree.leaves(arrays), *given)


def estimate(arrays: Arrays, given, written, plan: Plan) -> dict[str, Any]:
  """Returns what a kernel says of itself: products as they are counted elsewhere (lanes of zeros, which the matrix unit
  multiplies with the others, are none), bytes, and what its vector unit does."""
  (batch, queries, width), keys = arrays.q.shape, arrays.k.shape[1]
  heads = width // plan.size
  scores = batch * heads * queries * plan.span(keys)
  met = sum({'keys': queries * (keys + LANES), 'queries': keys * (queries + queries // plan.queries * LANES)}[term]
            for term in plan.terms) * batch * heads
  (products, distant), each = ((5, 3), OPERATIONS['backward']) if given else ((2, 1), OPERATIONS['forward'])
  one, turn = scores * len(plan.terms), TURN[plan.means]
  distant_each = turn * met + 2 * one + (turn * one + 3 * met if given else 0)
  return dict(
      cost_estimate=pl.CostEstimate(
          flops=2 * (products * scores + distant * met) * plan.size,
          bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*jax.tree.leaves(arrays), *given, *written)),
          transcendentals=scores),
      metadata={'vector_operations': str(int(scores * (sum(each) if plan.rate else each[0]) + distant_each))})
