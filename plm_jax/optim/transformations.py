"""Optimizers as optax transformations, made from their configuration (`optimizers.OptimConfig`)."""
from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.layers.kernels import cpu
from plm_jax.optim import muon
from plm_jax.optim.optimizers import OptimConfig, Pace, make_schedule
from plm_jax.optim.trainable import (
  ParameterError,
  ParameterSelection,
  depths_below_head,
  expand_rows,
  is_stacked,
  path_names,
)


def make_optimizer(
    config: OptimConfig, steps: int, frozen: Sequence[str] = (), pace: Pace = (),
    parts: Sequence[Sequence[str]] = (), select: ParameterSelection | None = None,
    matrices: muon.Dimensions | None = None) -> optax.GradientTransformation:
  """Make the optimizer of a run, in the order of the released code.

  The order is: gradient clipping, the optimizer's direction, decoupled weight decay, LAMB's trust
  ratio, learning-rate schedule. Frozen parameters stay as they are, bit for bit. They have no
  optimizer state, and do not count in the norm that is clipped.

  Args:
    config: the optimizer's configuration.
    steps: number of steps of the run.
    frozen: patterns of frozen parameters, where `select` is None.
    pace: phases of the run, as for `make_schedule`.
    parts: groups of parameters with an optimizer of their own, as for `clip_gradients`.
    select: trainable parameters; None: config.only without `frozen`.
    matrices: hidden matrices, for Muon.

  Returns:
    the transformation, which raises ParameterError for a pattern, or an exempt name, that matches
    nothing.
  """
  clip = clip_gradients(config.clip, parts, config.clip_by) if config.clip else optax.identity()
  moved = [make_direction(config, matrices or {}), add_weight_decay(config, steps, pace)]
  if config.kind == 'muon' and config.muon_rate != 1:
    moved.append(muon.scale_matrices(matrices or {}, config.muon_rate))
  if config.kind == 'stable_adamw':
    moved = [stabilize_updates(optax.chain(*moved), config)]
  ratio = optax.identity()
  if config.kind == 'lamb':
    ratio = optax.masked(
        apply_per_layer(optax.scale_by_trust_ratio()),
        lambda params: decay_mask(params, config.exempt))
  rate = optax.scale_by_learning_rate(make_schedule(config, steps, pace))
  optimizer = optax.chain(clip, *moved, ratio, rate)
  select = select or ParameterSelection(config.only, tuple(frozen))
  if select:
    optimizer = freeze_unselected(optimizer, select)
  if config.layer_decay != 1 or config.unfreeze:
    optimizer = optax.chain(optimizer, scale_by_depth(config.layer_decay, config.unfreeze))
  def init(params):
    check_exempt(config.exempt, params)
    return optimizer.init(params)
  return optax.GradientTransformation(init, optimizer.update)


def freeze_unselected(
    optimizer: optax.GradientTransformation, select: ParameterSelection
    ) -> optax.GradientTransformation:
  """Make an optimizer of the selected parameters; the updates of the others are -0.0."""
  # Of all zeros only -0.0 leaves every number as it is that it is added to.
  frozen = optax.stateless(
      lambda updates, _: jax.tree.map(lambda x: jnp.full_like(x, -0.0), updates))
  def label(rows):
    return 'trained' if rows.any() else 'frozen'
  def labels(tree):
    return jax.tree.map(label, select(tree))
  whole = optax.partition({'trained': optimizer, 'frozen': frozen}, labels)
  def replace_frozen_rows(tree, zero):
    def replace(rows, x):
      if rows.all() or not rows.any():
        return x
      return jnp.where(expand_rows(rows, x), x, zero)
    return jax.tree.map(replace, select(tree), tree)
  def update(updates, state, params=None):
    updates, state = whole.update(replace_frozen_rows(updates, 0.0), state, params)
    return replace_frozen_rows(updates, -0.0), state
  return optax.GradientTransformation(whole.init, update)


def scale_by_depth(layer_decay: float, unfreeze: int) -> optax.GradientTransformation:
  """Apply layer-wise learning-rate decay and gradual unfreezing, by depth below the head.

  Means of gradients continue for frozen layers, and the gradient that is clipped is that of all.
  A layer that begins to learn has the learning rate of the others.

  Args:
    layer_decay: factor on updates per layer below the head (`trainable.depths_below_head`).
    unfreeze: steps after which one more layer is trained; updates below it are -0.0. 0: all are
      trained.
  """
  def update(updates, state, params=None):
    del params
    def scale(x, depth):
      if depth.ndim:
        depth = expand_rows(depth, x)
      if layer_decay != 1:
        x = x * jnp.asarray(layer_decay ** depth, x.dtype)
      if unfreeze:
        x = jnp.where(state.count >= unfreeze * np.maximum(depth - 1, 0), x, -0.0)
      return x
    updates = jax.tree.map(scale, updates, depths_below_head(updates))
    return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))
  return optax.GradientTransformation(init_count, update)


def init_count(params) -> optax.ScaleByScheduleState:
  """Return the initial state of a transformation that counts its updates."""
  del params
  return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))


def clip_gradients(
    limit: float, parts: Sequence[Sequence[str]] = (), by: str = 'global'
    ) -> optax.GradientTransformation:
  """Clip gradients by their global norm, by groups of parameters, or by parameter.

  Args:
    limit: maximum norm.
    parts: groups of names at the top of the tree of parameters that have an optimizer of their
      own, and so a norm of their own. In nothing else do several optimizers of one configuration
      differ from one, which works on each parameter alone.
    by: `OptimConfig.clip_by`.
  """
  if by == 'parameter':
    def clip_parameter(x):
      norm = jnp.sqrt(jnp.square(x.astype(jnp.float32)).sum())
      factor = jnp.minimum(1, limit / jnp.maximum(norm, 1e-30))
      return x * factor.astype(x.dtype)
    return apply_per_layer(
        optax.stateless(lambda updates, params=None: jax.tree.map(clip_parameter, updates)))
  clip = optax.GradientTransformation(
      optax.clip_by_global_norm(limit).init, functools.partial(clip_by_global_norm, limit))
  if not parts:
    return clip
  def label(path, _):
    for number, names in enumerate(parts):
      if path[0].key in names:
        return number
    return len(parts)
  def labels(tree):
    return jax.tree_util.tree_map_with_path(label, tree)
  return optax.partition(dict.fromkeys(range(len(parts) + 1), clip), labels)


def clip_by_global_norm(limit: float, updates, state, params=None):
  """Clip updates by their global norm, as optax does."""
  if not cpu.is_single_cpu():
    return optax.clip_by_global_norm(limit).update(updates, state, params)
  # A factor that is multiplied is part of the loops that read the updates. The compiler would write
  # quotients to memory first.
  norm = compute_global_norm(updates)
  factor = jnp.where(norm < limit, 1.0, limit / norm)
  return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates), state


def compute_global_norm(tree) -> jax.Array:
  """Compute the norm of all numbers of a tree, float32."""
  if not cpu.is_single_cpu():
    return optax.tree.norm(tree)
  squares = [cpu.sum_squares(x) for x in jax.tree.leaves(tree)]
  return jnp.sqrt(jnp.array(squares).sum())


def make_direction(
    config: OptimConfig, matrices: muon.Dimensions) -> optax.GradientTransformation:
  """Make the optimizer's direction: the gradient before weight decay and learning rate."""
  if config.kind == 'adafactor':
    # The constants of section 8.
    squares = optax.scale_by_factored_rms(
        factored=config.factored > 0, min_dim_size_to_factor=config.factored, decay_rate=0.8,
        epsilon=1e-30)
    if config.heads == 'joined':
      squares = apply_to_matrices(squares)
    scale = optax.scale_by_param_block_rms(1e-3) if config.parameter_scale else optax.identity()
    updates = apply_per_layer(optax.chain(squares, optax.clip_by_block_rms(1.0), scale))
    if config.momentum:
      return optax.chain(updates, optax.ema(config.momentum, debias=False))
    return updates
  if config.kind == 'adagrad':
    return optax.scale_by_rss(config.accumulator, config.eps)
  if config.kind == 'lion':
    return optax.scale_by_lion(config.b1, config.b2)
  make_adam = optax.scale_by_adam if config.bias_correction else scale_by_plain_adam
  adam = make_adam(config.b1, config.b2, config.eps)
  if config.kind == 'muon':
    return muon.scale_by_muon_and_adam(
        matrices, adam, config.muon_momentum, config.muon_rms)
  if config.kind in ('adamw', 'stable_adamw', 'lamb'):
    return adam
  raise ValueError(f'make_direction has no branch for the optimizer {config.kind!r}')


def add_weight_decay(
    config: OptimConfig, steps: int, pace: Pace = ()) -> optax.GradientTransformation:
  """Make decoupled weight decay, before the learning rate is multiplied.

  Decay to the power p of the learning rate adds the factor of power p - 1 here.
  """
  if config.decay_power == 1:
    return optax.add_decayed_weights(
        config.weight_decay, lambda params: decay_mask(params, config.exempt))
  rate = make_schedule(config, steps, pace)
  def update(updates, state, params=None):
    factor = config.weight_decay * rate(state.count) ** (config.decay_power - 1)
    def add(update, param, decays):
      return update + factor * param if decays else update
    updates = jax.tree.map(add, updates, params, decay_mask(params, config.exempt))
    return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))
  return optax.GradientTransformation(init_count, update)


def scale_by_plain_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  """Make Adam without bias correction; the state is that of optax.scale_by_adam, which always has
  it."""
  def update(updates, state, params=None):
    del params
    mu = optax.tree.update_moment(updates, state.mu, b1, 1)
    nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)
  return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def stabilize_updates(
    adam: optax.GradientTransformation, config: OptimConfig) -> optax.GradientTransformation:
  """Clip the updates of Adam and weight decay per parameter (StableAdamW's update clipping).

  Updates are divided by the root mean of g^2 / v where that is over 1. v lags behind gradients that
  grow, and updates would be too long (Wortsman et al. 2023, section 3.3 and algorithm 2).
  Parameters that hold one layer per row are clipped layer by layer.

  Args:
    adam: a chain of which Adam is the first.
    config: the optimizer's configuration.
  """
  def update(updates, state: Any, params=None):
    grads = updates
    updates, state = adam.update(grads, state, params)
    corrected = 1.0
    if config.bias_correction:
      corrected = 1 - config.b2 ** jnp.asarray(state[0].count, jnp.float32)
    def clip(path, update, grad, square):
      layers = is_stacked(key_names(path))
      share = jnp.square(grad) / jnp.maximum(square / corrected, config.eps ** 2)
      axes = range(int(layers), grad.ndim)
      return update / jnp.maximum(1, jnp.sqrt(share.mean(axes, keepdims=True)))
    return jax.tree_util.tree_map_with_path(clip, updates, grads, state[0].nu), state
  return optax.GradientTransformation(adam.init, update)


def key_names(path) -> list[Any]:
  """Return the names on the path of a leaf of updates or of optimizer state; None: not a name."""
  return [getattr(entry, 'key', None) for entry in path]


def apply_per_layer(transform: optax.GradientTransformation) -> optax.GradientTransformation:
  """Apply `transform`, which looks at whole tensors, to each layer of stacked parameters."""
  def label(path, x):
    return str(x.shape[0]) if is_stacked(key_names(path)) else 'single'
  def labels(tree):
    return jax.tree_util.tree_map_with_path(label, tree)
  def partition(tree):
    rows = optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))
    names = sorted(set(jax.tree.leaves(labels(tree))))  # in one order on every process
    transforms = dict.fromkeys(names, rows)
    if 'single' in names:
      transforms['single'] = transform
    return optax.partition(transforms, labels)
  def init(params):
    return partition(params).init(params)
  def update(updates, state, params=None):
    return partition(updates).update(updates, state, params)
  return optax.GradientTransformation(init, update)


def apply_to_matrices(transform: optax.GradientTransformation) -> optax.GradientTransformation:
  """Apply `transform`, which looks at matrices, to attention's kernels as matrices.

  Kernels are [D, H, A], in output projections [H, A, D].
  """
  def matrix(path, x):
    if x.ndim < 3:
      return x
    if 'out' in key_names(path):
      return x.reshape(-1, x.shape[-1])
    return x.reshape(x.shape[0], -1)
  def matrices(tree):
    return jax.tree_util.tree_map_with_path(matrix, tree)
  def init(params):
    return transform.init(matrices(params))
  def update(updates, state, params=None):
    new, state = transform.update(matrices(updates), state, matrices(params))
    return jax.tree.map(lambda new, old: new.reshape(old.shape), new, updates), state
  return optax.GradientTransformation(init, update)


def check_exempt(exempt: Sequence[str], params) -> None:
  """Raise ParameterError for a name in no parameter's path; a model may lack the default names."""
  names = set()
  for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]:
    names.update(path_names(path))
  for name in exempt:
    if name not in names and name not in OptimConfig.exempt:
      raise ParameterError(f'optim.exempt: no parameter has the name {name!r} in its path. There '
                           f'are: {", ".join(sorted(names))}')


def decay_mask(params, exempt: Sequence[str] = OptimConfig.exempt):
  """Return the weight-decay mask, a tree of bools: False where a name is one of `exempt`.

  XLNet's content_bias, position_bias and type_bias, which are added to queries, do decay: the
  released code names r_w_bias, r_r_bias and r_s_bias as exceptions to its exclusion of biases
  (model_utils.py, include_in_weight_decay).
  """
  def decays(path, _):
    return not any(name in exempt for name in key_names(path))
  return jax.tree_util.tree_map_with_path(decays, params)
