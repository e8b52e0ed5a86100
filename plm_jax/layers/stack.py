"""N blocks: scan, rematerialisation and parameter sharing, hidden here once for all."""
from collections.abc import Callable, Mapping
import dataclasses
import functools
import operator
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers import cpu
from plm_jax.layers.attention import Visible
from plm_jax.layers.block import Block, BlockConfig, Streams
from plm_jax.layers.dense import PRODUCT

Remat = Literal['none', 'dots', 'full']
Remembered = Literal['', 'inputs', 'keys', 'inside']


class Inside(flax.struct.PyTreeNode):
  """What the layers of a model do with a batch: what a student may learn of its teacher besides the output.

  Layers are the first axis of all but the first; logits of attention are query times key times the scale, plus bias.
  """

  embedded: jax.Array
  """what the first layer reads [B, L, D]"""
  hidden: jax.Array
  """what each layer gives, the last one through the norm behind it where there is one [N, B, L, D]"""
  query: jax.Array
  """[N, B, L, H, A]"""
  key: jax.Array
  value: jax.Array
  """both [N, B, L, G, A]"""
  bias: jax.Array | None
  """of positions [N, B|1, H, L, L]; None where the scheme has none"""


def inside(embedded, last, layers: Mapping[str, Any]) -> Inside:
  """Makes it of the embeddings and the last hidden states [B, L, D], and what `Layers` remembers."""
  return Inside(embedded, jnp.concatenate([layers['hidden'][:-1], last[None]]), **layers['heads'])


@dataclasses.dataclass(frozen=True)
class StackConfig(Checked):
  """How many layers there are, what they share, and how they are compiled."""

  limits = within(layers='[0, 100000]', inner='[1, 1000]')

  layers: int = 12
  """N"""
  groups: int = 0
  """runs of layers that share parameters (ALBERT: 1, all layers); 0: each layer has its own"""
  inner: int = 1
  """blocks in a layer, each with parameters of its own, one after another (ALBERT's inner groups)"""
  shared: Literal['all', 'attention', 'mlp'] = 'all'
  """what the layers of a group share; the rest is each layer's own (Lan et al. 2020, table 4)"""
  first_norm: bool = True
  """the first layer has a norm before its attention as the others do; False: what it reads is normalised already, by a
  norm of the embeddings (ModernBERT), and it has none"""
  scan: bool = True
  """compile one layer and loop over it: compile time does not grow with depth"""
  frozen: int = 0
  """layers at the bottom behind which the backward pass ends: neither they nor what is below them is trained"""
  remat: Remat = 'none'
  """what the backward pass computes again to save memory: nothing, all but products with parameters, or everything"""

  def conflict(self, option):
    """Says that there are more groups than layers, or more that are frozen."""
    if self.frozen > self.blocks or (self.frozen and self.groups):
      return f'{option("frozen")} is at most the number of layers, which share nothing, got {self.frozen}'
    if self.groups > self.layers:
      return f'{option("groups")} is at most {option("layers")}, got {self.groups} groups of {self.layers} layers'
    if not self.first_norm and (self.groups or self.blocks < 2):
      return f'{option("first_norm")} False is for two layers or more, which share nothing'
    return None

  @property
  def blocks(self) -> int:
    """Blocks that a row goes through."""
    return self.layers * self.inner

  def copies(self, part: str) -> int:
    """Returns the leading axis of the parameters of a part of the block: 'attention', 'attention_norm', 'mlp', ..."""
    alone = not self.groups or self.shared not in ('all', 'mlp' if part.startswith('mlp') else 'attention')
    lacking = not self.first_norm and part == 'attention_norm'
    return self.blocks - lacking if alone else self.groups * self.inner

  def copy(self, part: str, block: int) -> int:
    """Returns which of these parameters the block with this number has."""
    layer, place = divmod(block, self.inner)
    if self.copies(part) == self.blocks:
      return block
    if not self.groups:  # the first block, which has none, reads another's and passes it over
      return max(block - 1, 0)
    # In floating point, as transformers has it: now and then that rounds to another group than whole numbers would.
    return int(layer / (self.layers / self.groups)) * self.inner + place


def one_stream(block, x, visible: Visible, rows=None):
  """Calls a layer of every family but XLNet."""
  return block(x, visible, rows=rows)


class Layers(nn.Module):
  """The blocks one after another; parameters under `block`, with a leading axis for those that differ.

  Instead of them there may be what `cpu.split` makes of them, in the collection `split`: then the loop is written out.
  """

  cfg: BlockConfig
  stack: StackConfig
  step: Callable[..., Any] = one_stream
  summed: bool = False  # behind each sublayer the stream is a weighted sum of all that it was (`block.Streams`)
  windows: tuple[int, ...] = ()  # one a block, in turn, which `step` gets as `window`; (): it gets none

  @nn.compact
  def __call__(self, x, *args, cache=None, remember: Remembered = ''):
    """x, a tree, goes from block to block; args are the same for all. cache: a tree with a leading axis of blocks, of
    which each gets its own part, as `cache`. remember: -> also, stacked, what each block was given as x (inputs), or
    the `key` and `value` of its self attention (keys), and of its cross attention under `memory`, or its `hidden`
    states and what is in its `heads` (inside). With split parameters tuples stand for leading axes."""
    stack, block = self.stack, Block(self.cfg, parent=None)
    def call(block, x, cache, window=0):
      own: dict[str, Any] = {'window': window} if self.windows else {}
      own |= {} if cache is None else {'cache': cache}
      if not isinstance(x, Streamed):
        return self.step(block, x, *args, **own)
      return Streamed(*self.step(functools.partial(block, streams=x.streams), x.x, *args, **own))

    def initial(key):
      first = jax.tree.map(lambda leaf: leaf[0], cache)
      def drawn(number):
        params = jax.vmap(lambda key: nn.init(call, block)(key, x, first)['params'])(jax.random.split(key, number))
        return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: None})
      # What shares nothing is drawn once more than what does: the compiler drops the parts that are not picked.
      kinds = 'attention', 'mlp', 'attention_norm'
      parts = {number: drawn(number) for number in {stack.copies(kind) for kind in kinds}}
      return {name: parts[stack.copies(name)][name] for name in next(iter(parts.values()))}

    sums = tuple(self.param(f'sum_{number}', last_of_all, (number + 2,), jnp.float32)
                 for number in range(2 * stack.blocks * self.summed))
    parts = self.get_variable('split', 'block')
    # What is there already may hold more than what is made afresh: adapters.
    given: Any = self.get_variable('params', 'block')
    params: Any = {} if parts else self.param('block', initial) if given is None else nn.unbox(given)
    own = {name: part for name, part in params.items() if stack.copies(name) == stack.blocks}
    look = [name for name, wanted in (
        ('intermediates', self.is_mutable_collection('intermediates')), (remember, remember in ('keys', 'inside')))
            if wanted]
    dropout = self.make_rng('dropout') if self.has_rng('dropout') else None

    def layer(window, x, number_own_cache):
      number, mine, cached = number_own_cache
      def pick(name, part):
        which = jnp.array([stack.copy(name, n) for n in range(stack.blocks)])[number]
        return jax.tree.map(lambda leaf: leaf[0] if len(leaf) == 1 else leaf[which], part)
      chosen = mine | {name: pick(name, part) for name, part in params.items() if name not in own}
      rngs = {} if dropout is None else {'dropout': jax.random.fold_in(dropout, number)}
      y, seen = nn.apply(call, block, mutable=look)({'params': chosen}, x, cached, window, rngs=rngs)
      return y, (seen.get('intermediates'), x if remember == 'inputs' else remembered(seen, remember))

    kinds = recomputed([functools.partial(layer, window) for window in self.windows or (0,)], stack)
    if self.summed:
      x, (seen, given) = with_streams(kinds[0], x, sums, own, stack)
    elif parts:
      x, (seen, given) = cpu.in_turn(kinds, x, parts, cache)
    else:
      x, (seen, given) = above_frozen(kinds, x, (jnp.arange(stack.blocks), own, cache), stack)
    if seen is not None:
      self.put_variable('intermediates', 'block', seen)
    return (x, given) if remember else x


def recomputed(kinds, stack: StackConfig):
  """Makes layers of each kind compute again in the backward pass what `remat` says."""
  if stack.remat == 'none':
    return kinds
  policy = jax.checkpoint_policies.save_only_these_names(PRODUCT) if stack.remat == 'dots' else None
  # A loop keeps the compiler from undoing the recomputation; layers of several kinds stand beside each other in it.
  together = not stack.scan or len(kinds) > 1
  return [jax.checkpoint(layer, prevent_cse=together, policy=policy) for layer in kinds]


class Streamed(NamedTuple):
  """What goes from block to block where the stream is a sum of all that it was."""

  x: Any
  streams: Streams


def last_of_all(key, shape: tuple[int, ...], dtype=jnp.float32):
  """Makes the weights [S] that a sum begins with: it is the last of its states, as without any sum."""
  del key
  return jnp.zeros(shape, dtype).at[-1].set(1)


def with_streams(layer, x, sums, own, stack: StackConfig):
  """Runs layers one after another, as `above_frozen` does, on x [B, L, D] and all that it was before; sums: weights,
  two a layer; own: parameters with a leading axis of layers.

  A loop would carry room for all states, and its backward pass keep that once for each layer.
  """
  leaves, tree = jax.tree.flatten(own)
  states, found = Streamed(x, Streams((x,), ())), []
  for number, mine in enumerate(zip(*map(jnp.unstack, leaves), strict=True)):
    states = states._replace(streams=Streams(states.streams.states, sums[2 * number:2 * number + 2]))
    states, given = layer(states, (number, tree.unflatten(mine), None))
    if number + 1 == stack.frozen:
      states = jax.lax.stop_gradient(states)
    found.append(given)
  return states.x, jax.tree.map(lambda *some: jnp.stack(some), *found)


def remembered(seen: Mapping[str, Any], remember: Remembered):
  """Returns what is remembered of a block by what it has let out, each of which comes as a tuple of one."""
  if remember == 'inside':
    return {'hidden': seen['inside']['hidden'][-1], 'heads': seen['inside']['attention']['heads'][0]}
  if remember != 'keys':
    return None
  keys = seen['keys']['attention']['heads'][0]
  return keys | {'memory': seen['keys']['cross']['heads'][0]} if 'cross' in seen['keys'] else keys


def above_frozen(kinds, x, each, stack: StackConfig):
  """Runs `in_turns` over layers, the frozen ones by themselves, behind which the backward pass ends."""
  if not stack.frozen:
    return in_turns(kinds, x, each, stack.blocks, stack.scan)
  below, above = part(each, 0, stack.frozen), part(each, stack.frozen, stack.blocks)
  x, first = jax.lax.stop_gradient(
      in_turns(kinds, *jax.lax.stop_gradient((x, below)), stack.frozen, stack.scan))
  next_kind = stack.frozen % len(kinds)
  x, last = in_turns(
      kinds[next_kind:] + kinds[:next_kind], x, above, stack.blocks - stack.frozen, stack.scan)
  return x, behind(first, last)


def in_turns(kinds, x, each, number: int, scan: bool):
  """Runs jax.lax.scan over so many layers, which are of these kinds in turn: the loop's body has one of each, and what
  is left over comes behind the loop."""
  size = len(kinds)
  turns = number // size
  unroll = 1 if scan else max(1, turns)
  if size == 1:
    return jax.lax.scan(kinds[0], x, each, unroll=unroll)
  def one_after_another(x, layers):
    found = []
    for layer, own in zip(kinds, layers, strict=False):
      x, given = layer(x, own)
      found.append(given)
    return x, found
  even, found = turns * size, []
  if turns or not number:
    # Each kind has a tree of its own: gradients of one of all kinds would be put together in every turn.
    folded = jax.tree.map(lambda leaf: leaf[:even].reshape(turns, size, *leaf.shape[1:]), each)
    own = [jax.tree.map(operator.itemgetter((slice(None), kind)), folded) for kind in range(size)]
    x, given = jax.lax.scan(one_after_another, x, own, unroll=unroll)
    found.append(jax.tree.map(lambda *some: jnp.stack(some, 1).reshape(-1, *some[0].shape[1:]), *given))
  if even < number:
    own = [jax.tree.map(operator.itemgetter(place), each) for place in range(even, number)]
    x, given = one_after_another(x, own)
    found.append(jax.tree.map(lambda *some: jnp.stack(some), *given))
  return x, behind(*found)


def part(each, first: int, last: int):
  """Takes some of the layers of a tree with a leading axis of layers."""
  return jax.tree.map(lambda leaf: leaf[first:last], each)


def behind(*trees):
  """Lays such trees behind each other."""
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


class Stack(nn.Module):
  """Position context once, then the layers, then the last norm where norms come first."""

  cfg: BlockConfig
  stack: StackConfig
  step: Callable[..., Any] = one_stream
  summed: bool = False  # as of `Layers`
  windows: tuple[int, ...] = ()  # the same

  @nn.compact
  def __call__(self, x, mask, positions, *args, past=None, cache=None, remember: Remembered = ''):
    """x [B, L, D], mask [B, 1, 1|L, L] or None, positions [B, L] -> [B, L, D]; args go to `step`.

    past [B, S]: positions of keys in the cache, which come before those of x; cache, remember: as `Layers` has them.
    """
    keys = positions if past is None else jnp.concatenate([past, positions], 1)
    context = self.cfg.attention.position.context(self, self.cfg, positions, keys)
    layers = Layers(self.cfg, self.stack, self.step, self.summed, self.windows, name='layers')
    x = layers(x, Visible(mask, context), *args, cache=cache, remember=remember)
    x, given = x if remember else (x, None)
    x = self.cfg.make_norm('norm')(x) if self.cfg.norm_at == 'pre' else x
    return (x, given) if remember else x
