"""Optax transformations that optimizers consist of."""
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from plm_jax.optim.trainable import is_stacked


def scale_by_plain_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  """Make Adam without bias correction, which optax.scale_by_adam always has; the states are
  alike."""
  def update(updates, state, params=None):
    del params
    mu = optax.tree.update_moment(updates, state.mu, b1, 1)
    nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)
  return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def stabilize_updates(
    adam: optax.GradientTransformation, b2: float, eps: float, bias_correction: bool
    ) -> optax.GradientTransformation:
  """Clip the updates of Adam and weight decay per parameter (StableAdamW's update clipping).

  Updates are divided by the root mean of g^2 / v if it is over 1: where gradients grow, v lags
  behind them, and updates would be too large (Wortsman et al. 2023, section 3.3, algorithm 2).
  Parameters that hold one layer per row are clipped layer by layer.

  Args:
    adam: a chain of which Adam is the first.
    b2: Adam's decay rate of the mean of squared gradients.
    eps: Adam's epsilon.
    bias_correction: whether Adam corrects its means.
  """
  def update(updates, state: Any, params=None):
    grads = updates
    updates, state = adam.update(grads, state, params)
    count = jnp.asarray(state[0].count, jnp.float32)
    corrected = 1 - b2 ** count if bias_correction else 1.0
    def clip(path, update, grad, square):
      layers = is_stacked(key_names(path))
      share = jnp.square(grad) / jnp.maximum(square / corrected, eps ** 2)
      axes = range(int(layers), grad.ndim)
      return update / jnp.maximum(1, jnp.sqrt(share.mean(axes, keepdims=True)))
    return jax.tree_util.tree_map_with_path(clip, updates, grads, state[0].nu), state
  return optax.GradientTransformation(adam.init, update)


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


def decay_mask(params, exempt: Sequence[str]):
  """Return the weight-decay mask, a tree of bools: False where a name is one of `exempt`.

  XLNet's content_bias, position_bias and type_bias, which are added to queries, do decay: the
  released code names r_w_bias, r_r_bias and r_s_bias as exceptions to its exclusion of biases
  (model_utils.py, include_in_weight_decay).
  """
  def decays(path, _):
    return not any(name in exempt for name in key_names(path))
  return jax.tree_util.tree_map_with_path(decays, params)


def key_names(path) -> list[Any]:
  """Return the names on the path of a leaf of updates or of optimizer state; None: not a name."""
  return [getattr(entry, 'key', None) for entry in path]
