"""What a program of the kernel for a TPU does: attention of a block of queries and a row's keys, forward and backward.

`mosaic` lays out what these functions read; here are softmax, dropout by a hash, and products with distances, which
`shifts` lines up with keys.
"""
import dataclasses
from typing import Any, Literal, NamedTuple

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from plm_jax.layers.bands import Band, tiles
from plm_jax.layers.shifts import LANES, Means, lined_up, taken_back

HIDDEN, OUTSIDE = -1e9, -2e9
"""logits of keys that a query does not see (finite: a row of padding is uniform instead of NaN), and of what only fills
up a block"""
Term = Literal['keys', 'queries']


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
  """[1, H, Q, K], float32, or `Distances`, or None; of `Distances` the tables [Q + K, H A]"""


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
  terms: tuple[Term, ...]
  """tables of distances, as `Distances` calls them"""
  means: Means
  """of turning rows"""
  wide: bool
  """operands of products are made float32"""
  limit: int | None
  """bytes of fast memory; None: the compiler's own"""
  band: Band | None = None
  """of the keys of a row a block of queries meets those that are in reach, in whole tiles"""
  interpret: bool = False

  @property
  def heads(self) -> int:
    """of a program"""
    return self.lanes // self.size

  @property
  def shared(self) -> int:
    """Arrays that all rows of the batch share, whose gradients are added up over them: a bias, tables of distances."""
    return self.biased + len(self.terms)

  def span(self, keys: int) -> int:
    """Returns how many keys a block of queries meets, of so many that a row has with what fills it up."""
    return keys if self.band is None else self.queries + tiles(self.band.before) + tiles(self.band.after)


class Seen(NamedTuple):
  """The keys that a block of queries meets."""

  window: Any
  """slice of those of the row"""
  first: Any
  """the number of the first one"""
  shown: Any
  """bool [1|Q, those], True where a query sees a key"""


def forward_kernel(*refs, plan: Plan, blocks: int):
  """Attends with one block of queries. refs: `Places`, `Arrays`, what it answers."""
  del blocks
  seed, rows, heads, q, k, v, mask, *shared, out = refs
  row, group, block = where(plan)
  seen = seen_by(mask, k.shape[1], block, plan)
  def attended(head, total):
    p = probabilities(only(q[0], head, plan), k, shared, (head, block), seen, plan)
    if plan.rate:
      stay = stays(seed, rows[row], heads[group * plan.heads + head], block, (seen.first, k.shape[1]), p.shape, plan)
      p = jnp.where(stay, p * (1 / (1 - plan.rate)), 0.0)
    return total + only(dot(operand(p, v.dtype, plan), v[0, seen.window], ((1,), (0,)), plan), head, plan)
  out[0] = each_head(attended, jnp.zeros(out.shape[1:], jnp.float32), plan).astype(out.dtype)


def backward_kernel(*refs, plan: Plan, blocks: int):
  """Finds the gradients of one block of queries, and adds up those of the keys and values that it has seen. refs:
  `Places`, `Arrays`, the gradient of the answer, the gradients of q, k, v and what is shared, sums of those of k and v.
  """
  seed, rows, heads, q, k, v, mask = refs[:7]
  shared, given, dq, dk, dv, *rest, keys, values = refs[7:7 + plan.shared], *refs[7 + plan.shared:]
  row, group, block = where(plan)
  first = (group % plan.groups == 0) & (block == 0)
  last = (group % plan.groups == plan.groups - 1) & (block == blocks - 1)

  @pl.when(first)
  def _():
    keys[...] = jnp.zeros_like(keys)
    values[...] = jnp.zeros_like(values)

  if plan.terms:
    @pl.when((row == 0) & (block == 0))
    def _():
      for table in rest:
        table[...] = jnp.zeros_like(table)

  seen = seen_by(mask, k.shape[1], block, plan)
  window = seen.window
  def learned(head, total):
    mine, back = only(q[0], head, plan), only(given[0], head, plan)
    p = probabilities(mine, k, shared, (head, block), seen, plan)
    dp = dot(back, v[0, window], ((1,), (1,)), plan)
    dropped = p
    if plan.rate:
      stay = stays(seed, rows[row], heads[group * plan.heads + head], block, (seen.first, k.shape[1]), p.shape, plan)
      dropped, dp = (jnp.where(stay, x * (1 / (1 - plan.rate)), 0.0) for x in (p, dp))
    # A logit that was put in place of another is nobody's.
    ds = jnp.where(seen.shown, p * (dp - (p * dp).sum(-1, keepdims=True)), 0.0)
    if plan.biased:
      own = of_block(block, plan)
      rest[0][0, head, own] = jnp.where(row == 0, 0.0, rest[0][0, head, own]) + ds
    ds *= plan.scale
    if plan.terms:
      total += pulled(ds, mine, k, (shared, rest, keys), (head, block), plan)
    ds = operand(ds, q.dtype, plan)
    total += only(dot(ds, k[0, window], ((1,), (0,)), plan), head, plan)
    keys[window] += dot(ds, mine, ((0,), (0,)), plan)
    values[window] += dot(operand(dropped, q.dtype, plan), back, ((0,), (0,)), plan)
    return total

  dq[0] = each_head(learned, jnp.zeros(dq.shape[1:], jnp.float32), plan).astype(dq.dtype)

  @pl.when(last)
  def _():
    dk[0] = keys[...].astype(dk.dtype)
    dv[0] = values[...].astype(dv.dtype)


def each_head(do, total, plan: Plan):
  """Runs do(head, total) -> total over the heads of a program: in a loop where a core has little room, so that no two
  heads have their logits there at once."""
  return jax.lax.fori_loop(0, plan.heads, do, total, unroll=plan.limit is not None or not plan.terms)


def where(plan: Plan):
  """Returns (row, group of heads, block of queries) of a program."""
  if plan.shared:
    return pl.program_id(1), pl.program_id(0), pl.program_id(2)
  return pl.program_id(0), pl.program_id(1), pl.program_id(2)


def seen_by(mask, keys: int, block, plan: Plan) -> Seen:
  """Finds the keys that a block meets, of so many that a row has; of a band whole tiles of the row. mask: ref."""
  if plan.band is None:
    return Seen(slice(None), 0, mask[0].astype(jnp.int32) != 0)
  size = plan.span(keys)
  own = block * plan.queries
  first = pl.multiple_of(jnp.clip(own - tiles(plan.band.before), 0, keys - size), LANES)
  window = pl.ds(first, size)
  query, key = (jax.lax.broadcasted_iota(jnp.int32, (plan.queries, size), axis) for axis in (0, 1))
  shown = plan.band.holds(key + first - query - own)
  return Seen(window, first, shown & (mask[0, :, window].astype(jnp.int32) != 0))


def dot(a, b, contract, plan: Plan):
  """Multiplies matrices over the axes `contract`, added up in float32."""
  if plan.wide:
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  return jax.lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def operand(x, dtype, plan: Plan):
  """Returns float32 x as a product takes it."""
  return x if plan.wide else x.astype(dtype)


def only(x, head: int, plan: Plan):
  """Returns x [L, lanes] with zeros for all of a program's heads but one."""
  if plan.heads == 1:
    return x
  lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  return jnp.where(lane // plan.size == head, x, jnp.zeros_like(x))


def probabilities(q, k, shared, at, seen: Seen, plan: Plan):
  """Returns the softmax of the logits of a head's queries q [Q, lanes], float32 [Q, keys that they meet].

  k: ref of the keys. shared: refs of what is shared. at: (head, block).
  """
  logits = dot(q, k[0, seen.window], ((1,), (1,)), plan)
  if plan.terms:
    logits = with_distances(logits, q, k, shared, at, plan)
  logits *= plan.scale
  if plan.biased:
    logits += shared[0][0, at[0], of_block(at[1], plan)]
  logits = jnp.where(seen.shown, logits, HIDDEN)
  if k.shape[1] > plan.keys:
    key = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) + seen.first
    logits = jnp.where(key < plan.keys, logits, OUTSIDE)
  p = jnp.exp(logits - logits.max(-1, keepdims=True))
  return p * (1 / p.sum(-1, keepdims=True))


def of_block(block, plan: Plan):
  """Returns which queries a block has."""
  return pl.ds(pl.multiple_of(block * plan.queries, 8), plan.queries)


def with_distances(logits, q, k, tables, at, plan: Plan):
  """Adds to logits [Q, K], before the scale, the products with distances of a head's queries q [Q, lanes] and keys; the
  rest as `probabilities` takes it."""
  for term, table in zip(plan.terms, tables, strict=True):
    tiles = [lined_up(dot(x, table[window], ((1,), (1,)), plan), plan.means)
             for x, window in met(term, q, k, table, at, plan)]
    logits += jnp.concatenate(tiles, 0) if term == 'keys' else jnp.concatenate([tile.T for tile in tiles], 1)
  return logits


def pulled(ds, q, k, refs, at, plan: Plan):
  """Returns what products with distances add to the gradient of a head's queries q [Q, lanes], of that of the sum of
  products, ds [Q, K]; adds to those of the tables and the keys. refs: (tables, their gradients, the keys' gradient)."""
  tables, gradients, keys = refs
  total = jnp.zeros(q.shape, jnp.float32)
  for term, table, gradient in zip(plan.terms, tables, gradients, strict=True):
    found = []
    for number, (x, window) in enumerate(met(term, q, k, table, at, plan)):
      own = slice(number * LANES, (number + 1) * LANES)
      back = operand(taken_back(ds[own] if term == 'keys' else ds[:, own].T, plan.means), q.dtype, plan)
      found.append(only(dot(back, table[window], ((1,), (0,)), plan), at[0], plan))
      # On its side: of the two operands the smaller one is transposed for the product.
      gradient[:, window] += dot(x, back, ((0,), (0,)), plan)
      if term == 'queries':
        keys[own] += found[-1]
    if term == 'keys':
      total += jnp.concatenate(found, 0)
  return total


def met(term: Term, q, k, table, at, plan: Plan):
  """Returns pairs of 128 rows x [128, lanes], of queries q [Q, lanes] where the table is of relative keys, else of
  keys, and the window of the table whose products with x `lined_up` takes.

  A table has a row for each distance: of relative keys from as many as there are queries down, of relative queries from
  the opposite of as many as there are keys up.
  """
  head, block = at
  keys, first = k.shape[1], block * plan.queries
  if term == 'keys':
    last = table.shape[0] - keys - LANES - first
    return [(q[i:i + LANES], reach(last - i, keys)) for i in range(0, plan.queries, LANES)]
  last = keys - LANES + first
  return [(only(k[0, j:j + LANES], head, plan), reach(last - j, plan.queries)) for j in range(0, keys, LANES)]


def reach(start, length: int):
  """Returns the slice of a table that 128 rows meet on their way along so many others."""
  return pl.ds(pl.multiple_of(start, LANES), length + LANES)


def stays(seed, row, head, block, first_of_keys, shape, plan: Plan):
  """Tells which probabilities of a block stay, of this shape: a share 1 - rate, by a hash of their place."""
  query = jax.lax.broadcasted_iota(jnp.int32, (shape[0], 1), 0) + block * plan.queries
  first, keys = first_of_keys
  return kept(seed, row, head, query, keys, plan.rate, (first, shape[1]) if plan.band else None)


def kept(seed, row, head, query, keys: int, rate: float, window: tuple[Any, int] | None = None):
  """Tells whether probabilities stay [.., Q, K], of the places of int32 queries [.., Q, 1] and so many keys; the rest
  of Bernoulli(1 - rate), to 2^-16. window: (the first, how many) of the keys, where not all are asked for.

  seed: two int32. row, head: int32, of places that broadcast. A number of the query and one of the key, each under one
  of (seed, row, head), meet in a word of 32 bits, whose halves are for two keys: most of what dropout costs the vector
  unit is to mix that word. `mixed` is Murmur3's finaliser (Appleby, smhasher).
  """
  one = mixed(seed[0] + row * jnp.int32(-1640531527)) ^ mixed(head + jnp.int32(0x3C6EF372))
  two = mixed(seed[1] ^ mixed(one + row))
  half = min(keys, -(-keys // (2 * LANES)) * LANES)  # whole tiles, so that halves lie beside each other as they are
  def words(key):
    return met_in(mixed(query + one), mixed(key * jnp.int32(-1640531527) + two))
  def halves(word):
    return word & jnp.int32(0xFFFF), jax.lax.shift_right_logical(word, jnp.int32(16))
  if window is None:
    early, late = halves(words(jax.lax.broadcasted_iota(jnp.int32, (1, half), 1)))
    bits = jnp.concatenate([early, late[..., :keys - half]][:1 + (keys > half)], -1)
  else:
    key = jax.lax.broadcasted_iota(jnp.int32, (1, window[1]), 1) + window[0]
    early, late = halves(words(jnp.where(key < half, key, key - half)))
    bits = jnp.where(key < half, early, late)
  return bits >= jnp.int32(round(rate * (1 << 16)))


def met_in(one, two):
  """Mixes two int32 that are mixed each into one, by sums and shifts (Jenkins 1997, one-at-a-time): v3 and v4 make a
  product of numbers of 32 bits of many others."""
  x = one + two
  for left, right in ((10, 6), (3, 11), (15, 16)):
    x += x << jnp.int32(left)
    x ^= jax.lax.shift_right_logical(x, jnp.int32(right))
  return x


def mixed(x):
  """Mixes the bits of int32 x."""
  for shift, factor in ((16, -2048144789), (13, -1028477387)):
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(shift))) * jnp.int32(factor)
  return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
