"""Muon: orthogonalized momentum for hidden matrices (Jordan et al. 2024), and Adam for the rest.

The update of a matrix is its Nesterov momentum, orthogonalized by five Newton-Schulz iterations.
Embeddings, heads, biases and norms are updated by Adam. Which axes of a parameter are the rows and
the columns of a matrix follows from its logical axes: layers are stacked, and attention's kernels
have an axis of heads.

On a mesh, a matrix is split over devices, and the iterations multiply it with itself. So the
matrices of a stack are distributed over the devices that share them: each device has whole
matrices, and momentum and updates are sent once each, instead of a matrix in every iteration.
"""
from collections.abc import Mapping
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec
import optax

from plm_jax.optim.trainable import path_names

MATRICES = ('kernel', 'input', 'recurrent', 'project')
"""names of parameters that can be matrices"""
WIDE = ('width', 'mlp')
"""logical axes that are a side of a matrix by themselves"""


class Sides(NamedTuple):
  """Axes of a parameter that are the sides of a matrix; other axes are batch axes."""

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]


Dimensions = Mapping[tuple[str, ...], Sides]
"""path of each hidden matrix -> its axes"""


def matrix_dimensions(boxed: Any) -> Dimensions:
  """Find the hidden matrices among parameters.

  Args:
    boxed: parameters, or their shapes, boxed with their logical axes.
  """
  found = {}
  leaves, _ = jax.tree_util.tree_flatten_with_path(
      boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
  for path, leaf in leaves:
    names = tuple(path_names(path))
    is_hidden = names[-1] in MATRICES and not names[0].startswith('heads') and (
        'embeddings' not in names)
    if is_hidden and isinstance(leaf, nn.LogicallyPartitioned):
      dimensions = find_sides(leaf.names)
      if dimensions:
        found[names] = dimensions
  return found


def find_sides(axes: tuple[str | None, ...]) -> Sides | None:
  """Find the two sides of a matrix by its logical axes; None: it is no hidden matrix.

  Other axes count single matrices, such as layers and gates.

  >>> find_sides((None, 'width', 'heads', None))
  Sides(inputs=(1,), outputs=(2, 3))
  >>> find_sides((None, 'width', None, 'mlp'))
  Sides(inputs=(1,), outputs=(3,))
  """
  sides = []
  for number, axis in enumerate(axes):
    if axis == 'heads':
      sides.append((number, number + 1))  # the size of a head follows
    elif axis in WIDE:
      sides.append((number,))
  if len(sides) == 1 and len(sides[0]) == 1 and len(axes) > 1:
    # A matrix with one named side, next to it the other.
    own = sides[0][0]
    sides = [(own,), (own + 1,)] if own + 1 < len(axes) else [(own - 1,), (own,)]
  if len(sides) != 2 or 'vocab' in axes:
    return None
  return Sides(*sides)


def scale_by_muon_and_adam(
    dimensions: Dimensions, adam: optax.GradientTransformation, momentum: float = 0.95,
    rms: float = 0.2) -> optax.GradientTransformation:
  """Make Muon's direction for hidden matrices, and Adam's for all other parameters.

  Args:
    dimensions: the hidden matrices.
    adam: the direction of other parameters.
    momentum: decay rate of the mean of gradients.
    rms: root mean square of an update: updates are multiplied by rms * sqrt(max(rows, columns))
      (Liu et al. 2025, equation 4: 0.2, as in AdamW). 0: multiply by sqrt(max(1, columns / rows))
      for a matrix [rows, columns] whose rows are inputs (Jordan et al. 2024).
  """
  def scale(updates: Any, params: Any = None) -> Any:
    del params
    def scale_matrix(path, x):
      inputs, outputs = dimensions[tuple(path_names(path))]
      rows = math.prod(x.shape[axis] for axis in inputs)
      columns = math.prod(x.shape[axis] for axis in outputs)
      factor = rms * max(rows, columns) ** 0.5 if rms else max(1, columns / rows) ** 0.5
      return x * factor
    return jax.tree_util.tree_map_with_path(scale_matrix, updates)

  def labels(tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: 'muon' if tuple(path_names(path)) in dimensions else 'adam', tree)

  def orthogonalize_all(updates: Any, params: Any = None) -> Any:
    del params
    return jax.tree_util.tree_map_with_path(
        lambda path, x: orthogonalize(x, dimensions[tuple(path_names(path))]), updates)

  muon = optax.chain(
      nesterov_momentum(momentum), optax.stateless(orthogonalize_all), optax.stateless(scale))
  return optax.partition({'muon': muon, 'adam': adam}, labels)


def scale_matrices(dimensions: Dimensions, rate: float) -> optax.GradientTransformation:
  """Multiply the updates of hidden matrices, with their weight decay, by a factor of their learning
  rate."""
  def scale(path, x):
    return x * rate if tuple(path_names(path)) in dimensions else x
  return optax.stateless(
      lambda updates, params=None: jax.tree_util.tree_map_with_path(scale, updates))


class MomentumState(NamedTuple):
  """State of `nesterov_momentum`."""

  mean: Any  # of gradients


def nesterov_momentum(decay: float) -> optax.GradientTransformation:
  """Make the Nesterov momentum of Muon: decay * mean + (1 - decay) * gradient.

  The mean of gradients starts at 0 and has no bias correction (`muon_update` in muon.py of
  KellerJordan/Muon; examples/toy_train.py of MoonshotAI/Moonlight has the same direction).
  """
  def init(params: Any) -> MomentumState:
    return MomentumState(optax.tree.zeros_like(params))

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MomentumState]:
    del params
    mean = optax.tree.update_moment(updates, state.mean, decay, 1)
    direction = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, mean, updates)
    return direction, MomentumState(mean)

  return optax.GradientTransformation(init, update)


def orthogonalize(x: jax.Array, sides: Sides) -> jax.Array:
  """Orthogonalize the matrices in x by five Newton-Schulz iterations.

  Args:
    x: one matrix or several.
    sides: axes that are the sides of a matrix.
  """
  from optax import contrib

  # Without momentum, Muon's direction is the orthogonalized gradient; its state is not needed.
  newton_schulz = contrib.scale_by_muon(
      beta=0.0, nesterov=False, weight_dimension_numbers=contrib.MuonDimensionNumbers(*sides))
  stages = distributed_shardings(x.shape, sides)
  for stage in stages:
    x = jax.lax.with_sharding_constraint(x, stage)
  updated: Any = newton_schulz.update(x, newton_schulz.init(x))
  x = updated[0]
  for stage in reversed(stages):
    x = jax.lax.with_sharding_constraint(x, stage)
  return x


def distributed_shardings(shape: tuple[int, ...], sides: Sides) -> list[PartitionSpec]:
  """Return the shardings through which matrices are distributed, along their longest batch axis.

  The axes of the mesh change places one after another: to move both at once, the compiler would
  first send everything to every device. An empty list: there are fewer matrices than devices that
  share them, so that the compiler splits each product instead.
  """
  mesh = jax.sharding.get_abstract_mesh()
  batch_axes = [axis for axis in range(len(shape)) if axis not in sides.inputs + sides.outputs]
  if mesh.empty or not batch_axes:
    return []
  longest = max(batch_axes, key=lambda axis: shape[axis])
  axes = [axis for axis in ('fsdp', 'tensor') if mesh.shape[axis] > 1]
  if not axes or shape[longest] < mesh.shape[axes[0]]:
    return []

  def shard(axes: Any, others: Any) -> PartitionSpec:
    partitions = [others] * len(shape)
    partitions[longest] = axes
    return PartitionSpec(*partitions)

  if len(axes) == 1:
    return [shard(axes[0], None)]
  divides = shape[longest] % math.prod(mesh.shape[axis] for axis in axes) == 0
  last = shard(tuple(axes) if divides else axes[0], None)
  return [shard(axes[0], PartitionSpec.UNCONSTRAINED), last]
