"""The stack of transformer blocks: scan over layers, activation checkpointing, parameter sharing.

An architecture calls `Stack`, which computes the position context, runs `Layers` and applies the
final norm. `Layers` runs `Block` once per layer, in a scan.
"""
from collections.abc import Callable, Mapping
import dataclasses
import functools
import operator
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.layers.attention import AttentionMask, CrossAttentionCache, KVCache
from plm_jax.layers.block import Block, BlockConfig, CrossAttentionInput, DenseStreams
from plm_jax.layers.dense import PRODUCT
from plm_jax.layers.kernels import cpu, gpu
from plm_jax.layers.positions import NoPosition
from plm_jax.layers.sliding_window import SlidingWindow
from plm_jax.validation import ValidatedConfig, intervals

Remat = Literal['none', 'dots', 'full']
RememberedStates = Literal['', 'inputs', 'keys', 'inside']


class LayerStates(flax.struct.PyTreeNode):
  """States inside all layers of a model, for layer distillation.

  Attention logits are query times key times the scale, plus bias.
  """

  embedded: jax.Array
  """[batch, length, hidden], input of the first layer."""
  hidden: jax.Array
  """[layers, batch, length, hidden], output of each layer; that of the last layer after the final
  norm, where there is one."""
  query: jax.Array
  """[layers, batch, length, heads, head_size]."""
  key: jax.Array
  """[layers, batch, length, key_heads, head_size]."""
  value: jax.Array
  """[layers, batch, length, key_heads, head_size]."""
  bias: jax.Array | None
  """[layers, batch or 1, heads, length, length], of positions; None where the scheme has none."""


def make_layer_states(embedded, last, layers: Mapping[str, Any]) -> LayerStates:
  """Make `LayerStates` from embeddings, final hidden states and what `Layers` remembers.

  Args:
    embedded: [batch, length, hidden].
    last: [batch, length, hidden].
    layers: result of `Layers` with remember='inside'.
  """
  hidden = jnp.concatenate([layers['hidden'][:-1], last[None]])
  return LayerStates(embedded, hidden, **layers['heads'])


class LayerInputs(flax.struct.PyTreeNode):
  """Inputs of a block that differ from layer to layer; each has a leading axis of layers.

  Without a scan (`StackConfig.scan`) caches are tuples of one array per layer.
  """

  logit_factor: Any = None
  """[layers] float32, factor on attention logits."""
  skip_norm: Any = None
  """[layers] bool, True: attention reads its input without a norm."""
  skip_position: Any = None
  """[layers] bool, True: attention has no positions (NoPE)."""
  key: Any = None
  """[layers, batch, key_heads, slots, head_size], keys of the KV cache."""
  memory_key: Any = None
  """[layers, batch, keys, key_heads, head_size], cached keys of cross-attention."""
  memory_value: Any = None
  """Cached values of cross-attention, of the same shape."""
  value: Any = None
  """Values of the KV cache, of the shape of `key`."""


@dataclasses.dataclass(frozen=True)
class StackConfig(ValidatedConfig):
  """Number of layers, what they share, and how they are compiled."""

  limits = intervals(layers='[0, 100000]', inner='[1, 1000]')

  layers: int = 12
  """Number of layers."""
  groups: int = 0
  """Number of groups of consecutive layers that share parameters (ALBERT: 1, all layers); 0: each
  layer has its own."""
  inner: int = 1
  """Number of blocks per layer, each with its own parameters (ALBERT's inner groups)."""
  shared: Literal['all', 'attention', 'mlp'] = 'all'
  """Parameters that the layers of a group share; each layer has its own copy of the rest (Lan et
  al. 2020, table 4)."""
  first_norm: bool = True
  """The first layer has a norm before its attention, as the others do; False: it has none, because
  its input, the embeddings, is normalized already (ModernBERT)."""
  scan: bool = True
  """Compile one layer and loop over it, so that compile time does not grow with depth. On a GPU
  only stacks of more than 48 blocks are loops: the others are unrolled, which is faster there."""
  frozen: int = 0
  """Number of layers at the bottom that are not trained; the backward pass ends above them, so the
  embeddings are not trained either."""
  remat: Remat = 'none'
  """Activation checkpointing (remat): the activations that the backward pass recomputes, to save
  memory. none: none; dots: all except products with parameters; full: all."""

  def conflict(self, option):
    if self.frozen > self.blocks or (self.frozen and self.groups):
      return (f'{option("frozen")} is at most the number of layers, which share nothing, got '
              f'{self.frozen}')
    if self.groups > self.layers:
      return (f'{option("groups")} is at most {option("layers")}, got {self.groups} groups of '
              f'{self.layers} layers')
    if not self.first_norm and (self.groups or self.blocks < 2):
      return f'{option("first_norm")} False is for two layers or more, which share nothing'
    return None

  @property
  def blocks(self) -> int:
    """Number of blocks that a row passes through."""
    return self.layers * self.inner

  def num_copies(self, part: str) -> int:
    """Return the size of the leading axis of a part's parameters.

    Args:
      part: a part of the block, such as 'attention', 'attention_norm' or 'mlp'.
    """
    kind = 'mlp' if part.startswith('mlp') else 'attention'
    if self.groups and self.shared in ('all', kind):
      return self.groups * self.inner
    if not self.first_norm and part == 'attention_norm':
      return self.blocks - 1
    return self.blocks

  def copy_index(self, part: str, block: int) -> int:
    """Return the index, along the leading axis, of the parameters that a block uses."""
    layer, inner = divmod(block, self.inner)
    if self.num_copies(part) == self.blocks:
      return block
    if not self.groups:  # the first block has no norm: it reads the second's and skips it
      return max(block - 1, 0)
    # In floating point, as in transformers: sometimes that rounds to another group than integers.
    return int(layer / (self.layers / self.groups)) * self.inner + inner


class Layers(nn.Module):
  """Run all blocks; parameters are under `block`, stacked along a leading axis.

  Parts of the block that layers share have a shorter leading axis. In place of stacked parameters
  the collection `split` may hold one tree per block (`cpu.split_layers`); then the loop is
  unrolled.

  Args of the call:
    x: [batch, length, hidden]; with `step`, the tree that it takes.
    mask: attention mask of all layers, without their windows.
    memory: input of cross-attention.
    row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
    inputs: `LayerInputs`, or, with `step`, the tree that it takes; or None.
    distance: [batch, 1, queries, keys], key minus query, by which windows are applied where rows
      are not consecutive text. A prefix attends to later keys too, so the window of a causal model
      then limits only how far back a query attends. None: windows apply to places in the row.
    remember: what to return besides the output: the inputs of each layer (inputs); the keys and
      values of self-attention, and of cross-attention under `memory` (keys); or `hidden` and
      `heads` of each layer (inside).

  Returns of the call:
    (output of the last layer, remembered states with a leading axis of layers, or None). With
    split parameters they are tuples instead.
  """

  cfg: BlockConfig
  stack: StackConfig
  step: Callable[..., Any] | None = None  # (block, x, mask, row_ids, inputs) -> x; None: the block
  dense: bool = False  # DenseFormer: the residual stream is a weighted sum of all its states
  windows: tuple[SlidingWindow | None, ...] = ()  # of the layers, cyclically; (): global attention

  @nn.compact
  def __call__(
      self, x, mask: AttentionMask, memory: CrossAttentionInput | None = None, row_ids=None, *,
      inputs=None, distance=None, remember: RememberedStates = ''):
    """Run all layers; see the class for arguments and results."""
    stack, block = self.stack, Block(self.cfg, parent=None)
    common = CommonInputs(
        self.cfg.attention.position, self.step, mask, memory, row_ids, distance)
    run = functools.partial(run_block, common)

    # Parameters: stacked, or split into one tree per block. Restored ones may include adapters.
    # DenseFormer's weights begin as 1 for the last state and 0 for all others.
    def init_last_state(key, states):
      return jnp.zeros(states).at[-1].set(1)

    sums = [self.param(f'sum_{number}', init_last_state, number + 2)
            for number in range(2 * stack.blocks if self.dense else 0)]
    split_params = self.get_variable('split', 'block')
    params: Any = self.get_variable('params', 'block')
    if split_params:
      params = {}
    elif params is None:
      first = jax.tree.map(operator.itemgetter(0), inputs)
      params = self.param('block', init_layers, run, block, x, first, stack)
    params = nn.unbox(params)
    owned = {name for name in params if stack.num_copies(name) == stack.blocks}
    own_params = {name: part for name, part in params.items() if name in owned}
    shared_params = {name: part for name, part in params.items() if name not in owned}

    # One layer, as the body of a scan.
    collections = []
    if self.is_mutable_collection('intermediates'):
      collections.append('intermediates')
    if remember in ('keys', 'inside'):
      collections.append(remember)
    dropout_key = self.make_rng('dropout') if self.has_rng('dropout') else None

    def run_layer(window, x, scanned):
      number, layer_params, layer_inputs = scanned
      layer_params = dict(layer_params)
      for name, part in shared_params.items():
        index = jnp.array([stack.copy_index(name, n) for n in range(stack.blocks)])[number]
        # [copies, ...] -> the copy of this layer
        layer_params[name] = jax.tree.map(
            lambda leaf, i=index: leaf[0] if len(leaf) == 1 else jnp.asarray(leaf)[i], part)
      rngs = {}
      if dropout_key is not None:
        rngs['dropout'] = jax.random.fold_in(dropout_key, number)
      apply = nn.apply(run, block, mutable=collections)
      y, sown = apply({'params': layer_params}, x, layer_inputs, window, rngs=rngs)
      remembered = x if remember == 'inputs' else collect_remembered(sown, remember)
      return y, (sown.get('intermediates'), remembered)

    # All layers.
    windows = self.windows or (None,)
    scan = stack.scan and (self.is_initializing() or not gpu.unrolls(stack.blocks))
    bodies = [functools.partial(run_layer, window) for window in windows]
    bodies = with_remat(bodies, stack.remat, scan)
    if self.dense:
      x, (sown, remembered) = run_dense_streams(bodies[0], x, sums, own_params, stack)
    elif split_params:
      x, (sown, remembered) = cpu.run_split_layers(bodies, x, split_params, inputs)
    else:
      scanned = jnp.arange(stack.blocks), own_params, inputs
      x, (sown, remembered) = scan_above_frozen(bodies, x, scanned, stack, scan)
    if sown is not None:
      self.put_variable('intermediates', 'block', sown)
    return x, remembered


class CommonInputs(NamedTuple):
  """What all blocks of `Layers` get; see its arguments."""

  position: NoPosition
  step: Callable[..., Any] | None
  mask: AttentionMask
  memory: CrossAttentionInput | None
  row_ids: Any
  distance: Any


def run_block(
    common: CommonInputs, block: Block, x, inputs: LayerInputs | None,
    window: SlidingWindow | None = None):
  """Run a block with its own window, caches and factors.

  Args:
    common: inputs of all blocks.
    block: the block, with its parameters.
    x: [batch, length, hidden], or the states of DenseFormer.
    inputs: those of this layer, without an axis of layers; with `common.step`, any tree.
    window: its sliding window.
  """
  mask, distance = common.mask, common.distance
  if common.step is not None:
    return common.step(block, x, mask, common.row_ids, inputs)
  own = LayerInputs() if inputs is None else inputs
  context = common.position.layer_context(mask.context, window is not None)
  if own.skip_position is not None:
    context = common.position.skip_context(context, own.skip_position)
  own_mask = mask._replace(context=context, factor=own.logit_factor)
  if window is not None and distance is None:
    own_mask = own_mask._replace(window=window)
  elif window is not None:
    near = distance >= -window.before
    if window.after:
      near &= distance <= window.after
    own_mask = own_mask._replace(mask=mask.mask & near)
  memory, past, streams = common.memory, None, None
  if own.memory_key is not None:
    assert memory is not None
    memory = memory._replace(keys=CrossAttentionCache(own.memory_key, own.memory_value))
  if own.key is not None:
    past = KVCache(own.key, own.value)
  if isinstance(x, tuple):  # DenseFormer
    x, streams = x
  return block(x, own_mask, memory, common.row_ids, past, None, own.skip_norm, streams)


class Stack(nn.Module):
  """Position context, all layers, and the final norm of pre-norm blocks."""

  cfg: BlockConfig
  stack: StackConfig
  dense: bool = False  # as in `Layers`
  windows: tuple[SlidingWindow | None, ...] = ()  # as in `Layers`

  @nn.compact
  def __call__(
      self, x, mask: AttentionMask, positions, memory: CrossAttentionInput | None = None,
      row_ids=None, *,
      past_positions=None, inputs: LayerInputs | None = None, distance=None,
      remember: RememberedStates = ''):
    """Run the stack.

    Args:
      x: [batch, length, hidden].
      mask: attention mask, without a context; keys are those of the KV cache, then `length`.
      positions: [batch or 1, length].
      memory: input of cross-attention.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
      past_positions: [batch, slots], positions of the keys in the KV cache; None: no cache.
      inputs: as in `Layers`.
      distance: as in `Layers`.
      remember: as in `Layers`.

    Returns:
      (hidden states [batch, length, hidden], remembered states as in `Layers`).
    """
    k_positions = (positions if past_positions is None
                   else jnp.concatenate([past_positions, positions], 1))
    context = self.cfg.attention.position.context(self, self.cfg, positions, k_positions)
    layers = Layers(self.cfg, self.stack, None, self.dense, self.windows, name='layers')
    x, remembered = layers(x, mask._replace(context=context), memory, row_ids, inputs=inputs,
                           distance=distance, remember=remember)
    if self.cfg.norm_at != 'post':
      x = self.cfg.make_norm('norm')(x)
    return x, remembered


def init_layers(key, run_block, block: Block, x, inputs, stack: StackConfig):
  """Initialize the stacked parameters of all layers.

  Args:
    key: random key.
    run_block: function of (block, x, inputs) that runs a bound block.
    block: the unbound block.
    x: input of the first layer.
    inputs: `LayerInputs` of the first layer, or None.
    stack: the configuration.

  Returns:
    {name of a part of the block: parameters with a leading axis of copies}.
  """
  def init_block(key):
    return nn.init(run_block, block)(key, x, inputs)['params']

  def init_copies(number):
    params = jax.vmap(init_block)(jax.random.split(key, number))
    return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: None})

  # Each number of copies is drawn for all parts: the compiler drops the parts that are not used.
  numbers = {stack.num_copies(part) for part in ('attention', 'mlp', 'attention_norm')}
  copies = {number: init_copies(number) for number in numbers}
  names = next(iter(copies.values()))
  return {name: copies[stack.num_copies(name)][name] for name in names}


def collect_remembered(sown: Mapping[str, Any], remember: RememberedStates):
  """Collect what a block has sown, each as a tuple of one, into the states that are remembered."""
  if remember == 'inside':
    inside = sown['inside']
    return {'hidden': inside['hidden'][-1], 'heads': inside['attention']['heads'][0]}
  if remember != 'keys':
    return None
  keys = dict(sown['keys']['attention']['heads'][0])
  if 'cross' in sown['keys']:
    keys['memory'] = sown['keys']['cross']['heads'][0]
  return keys


def with_remat(bodies, remat: Remat, scan: bool):
  """Apply activation checkpointing to layers of each kind, which are scanned or unrolled."""
  if remat == 'none':
    return bodies
  policy = jax.checkpoint_policies.save_only_these_names(PRODUCT) if remat == 'dots' else None
  # A scan keeps the compiler from removing the recomputation. Where layers are unrolled, or a scan
  # holds layers of several kinds, prevent_cse does.
  prevent_cse = not scan or len(bodies) > 1
  return [jax.checkpoint(body, prevent_cse=prevent_cse, policy=policy) for body in bodies]


def scan_above_frozen(bodies, x, scanned, stack: StackConfig, scan: bool):
  """Scan over layers, frozen ones first; the backward pass ends above the frozen layers."""
  if not stack.frozen:
    return scan_layers(bodies, x, scanned, stack.blocks, scan)
  below = jax.tree.map(lambda leaf: leaf[:stack.frozen], scanned)
  above = jax.tree.map(lambda leaf: leaf[stack.frozen:stack.blocks], scanned)
  x, below = jax.lax.stop_gradient((x, below))
  frozen = scan_layers(bodies, x, below, stack.frozen, scan)
  x, frozen_outputs = jax.lax.stop_gradient(frozen)
  offset = stack.frozen % len(bodies)
  bodies = bodies[offset:] + bodies[:offset]
  x, outputs = scan_layers(bodies, x, above, stack.blocks - stack.frozen, scan)
  return x, concat_layers(frozen_outputs, outputs)


def scan_layers(bodies, x, scanned, number: int, scan: bool):
  """Run `jax.lax.scan` over layers of several kinds, which alternate cyclically.

  The body of the scan runs one layer of each kind. Remaining layers are unrolled after it.

  Args:
    bodies: one function per kind of layer, as `jax.lax.scan` takes it.
    x: input of the first layer.
    scanned: tree with a leading axis of layers, of which each layer gets its part.
    number: number of layers.
    scan: False: unroll the loop.

  Returns:
    (output of the last layer, what the layers returned, with a leading axis of layers).
  """
  size = len(bodies)
  periods, remaining = divmod(number, size)
  unroll = 1 if scan else max(1, periods)
  if size == 1:
    return jax.lax.scan(bodies[0], x, scanned, unroll=unroll)

  def run_period(x, layers):
    outputs = []
    for body, layer in zip(bodies, layers, strict=False):
      x, output = body(x, layer)
      outputs.append(output)
    return x, outputs

  def fold(leaf):  # [layers, ...] -> [periods, kinds, ...]
    return leaf[:periods * size].reshape(periods, size, *leaf.shape[1:])

  def interleave(*leaves):  # per kind [periods, ...] -> [layers, ...]
    return jnp.stack(leaves, 1).reshape(-1, *leaves[0].shape[1:])

  collected = []
  if periods or not number:
    # Each kind has a tree of its own: gradients of one tree for all kinds would be concatenated in
    # every period.
    folded = jax.tree.map(fold, scanned)
    by_kind = [jax.tree.map(operator.itemgetter((slice(None), kind)), folded)
               for kind in range(size)]
    x, outputs = jax.lax.scan(run_period, x, by_kind, unroll=unroll)
    collected.append(jax.tree.map(interleave, *outputs))
  if remaining:
    last = [jax.tree.map(operator.itemgetter(place), scanned)
            for place in range(periods * size, number)]
    x, outputs = run_period(x, last)
    collected.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs))
  return x, concat_layers(*collected)


def concat_layers(*trees):
  """Concatenate trees along their leading axis of layers."""
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def run_dense_streams(body, x, sums, params, stack: StackConfig):
  """Run DenseFormer's layers in a plain loop.

  A scan would carry room for all states, and its backward pass would keep that once per layer.

  Args:
    body: one layer.
    x: [batch, length, hidden].
    sums: weights of the sums, two per layer.
    params: tree with a leading axis of layers.
    stack: the configuration.

  Returns:
    (output of the last layer, what the layers returned, with a leading axis of layers).
  """
  leaves, tree = jax.tree.flatten(params)
  by_layer = zip(*map(jnp.unstack, leaves), strict=True)
  states, outputs = (x,), []
  for number, layer_leaves in enumerate(by_layer):
    streams = DenseStreams(states, sums[2 * number:2 * number + 2])
    (x, streams), output = body((x, streams), (number, tree.unflatten(layer_leaves), None))
    states = streams.states
    if number + 1 == stack.frozen:
      x, states = jax.lax.stop_gradient((x, states))
    outputs.append(output)
  return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
