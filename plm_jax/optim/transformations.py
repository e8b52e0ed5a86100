"""Optimizers of runs as optax transformations, made from their configuration
(`optimizers.OptimConfig`)."""
from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.layers.kernels import cpu
from plm_jax.optim.directions import apply_per_layer, decay_mask
from plm_jax.optim.muon import Dimensions
from plm_jax.optim.optimizers import OptimConfig, Pace, make_schedule
from plm_jax.optim.trainable import (
  ParameterError,
  ParameterSelection,
  depths_below_head,
  expand_rows,
  path_names,
)


def make_optimizer(
    config: OptimConfig, steps: int, frozen: Sequence[str] = (), pace: Pace = (),
    parts: Sequence[Sequence[str]] = (), select: ParameterSelection | None = None,
    matrices: Dimensions | None = None) -> optax.GradientTransformation:
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
  updates = config.make_updates(add_weight_decay(config, steps, pace), matrices or {})
  rate = optax.scale_by_learning_rate(make_schedule(config, steps, pace))
  optimizer = optax.chain(clip, *updates, rate)
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


def check_exempt(exempt: Sequence[str], params) -> None:
  """Raise ParameterError for a name in no parameter's path; a model may lack the default names."""
  names = set()
  for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]:
    names.update(path_names(path))
  for name in exempt:
    if name not in names and name not in OptimConfig.exempt:
      raise ParameterError(f'optim.exempt: no parameter has the name {name!r} in its path. There '
                           f'are: {", ".join(sorted(names))}')
