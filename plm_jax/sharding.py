"""Device mesh and sharding rules: which logical axis of an array is split over which mesh axis.

    data    data parallelism: copies of the parameters, each with its own rows of the batch
    fsdp    fully sharded data parallelism (ZeRO 3): rows of the batch are split, too, and so are
            parameters and optimizer state
    tensor  tensor parallelism (Megatron): heads, MLP units and vocabulary are split, and between
            layers the residual stream, of which one array per layer is kept for the backward pass
            (Korthikanti et al. 2022, who split its length)
"""
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from plm_jax.errors import UserError, name_field
from plm_jax.validation import ValidatedConfig, intervals

MESH_AXES = ('data', 'fsdp', 'tensor')

# Logical axis -> mesh axes. An axis that is not listed, or whose size the mesh axes do not divide,
# is not split. `pieces` is the vocabulary axis of logits. The vocabulary is not padded to a
# multiple of the mesh: token ids, tables and checkpoints keep the published size.
AXIS_RULES: dict[str, tuple[str, ...]] = {
    'batch': ('data', 'fsdp'),
    'width': ('fsdp',),
    'heads': ('tensor',),
    'mlp': ('tensor',),
    'vocab': ('tensor',),
    'stream': ('tensor',),
    'pieces': ('tensor',),
}
# Axes of activations that are split whatever their size: the compiler pads the last part. Where no
# mesh divides a vocabulary (GPT-2's 50,257), the token table is not split over `tensor`. Logits
# are: they take most of the memory of activations.
PADDED_AXES = frozenset({'pieces'})


class MeshError(UserError):
  """A mesh or a batch that does not fit the devices."""


@dataclasses.dataclass(frozen=True)
class MeshConfig(ValidatedConfig):
  """Number of devices along each mesh axis; the run uses their product."""

  limits = intervals(data='[-1, inf)', fsdp='[1, inf)', tensor='[1, inf)')

  data: int = -1
  """Data parallelism: number of model replicas. -1: as many as the devices allow."""
  fsdp: int = 1
  """Fully sharded data parallelism (FSDP): number of devices over which the batch, parameters and
  optimizer state are split."""
  tensor: int = 1
  """Tensor parallelism: number of devices over which attention heads, MLP units and vocabulary are
  split."""
  adapts: bool = False
  """Shrink the recipe's mesh, which is for its pod, to the devices that are available. Has no
  effect if a --mesh option is given."""

  def conflict(self, option):
    if self.data:
      return None
    return f'{option("data")} is 1 or more, or -1 for as many as the devices give, got 0'


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
  """Make the device mesh.

  It covers all devices; in a single process it may ask for fewer, and then takes the first ones.

  Args:
    config: numbers of devices.
    devices: the devices; None: all of JAX's.

  Raises:
    MeshError: there are fewer devices than the mesh needs, or some of a pod would be idle.
  """
  if devices is None:
    devices = jax.devices()
  devices = list(devices)
  config = fit_mesh(config, len(devices), count_slices(devices))
  shape = [config.data, config.fsdp, config.tensor]
  if config.data == -1:
    shape[0] = max(1, len(devices) // (config.fsdp * config.tensor))
  needed = math.prod(shape)
  sizes = dict(zip(MESH_AXES, shape, strict=True))
  if needed > len(devices):
    raise MeshError(
        f'the mesh {sizes} needs {needed} devices, there are {len(devices)} '
        f'({devices[0].device_kind}). Make {name_field("mesh.data")}, {name_field("mesh.fsdp")} or '
        f'{name_field("mesh.tensor")} smaller.')
  if needed < len(devices) and len({d.process_index for d in devices}) > 1:
    raise MeshError(
        f'the mesh {sizes} uses {needed} of the {len(devices)} devices; with several processes it '
        'must use all of them.')
  axis_types = (AxisType.Auto,) * len(MESH_AXES)
  slices = count_slices(devices)
  if slices > 1 and devices[0].platform == 'tpu':
    return Mesh(arrange_slices(shape, devices), MESH_AXES, axis_types=axis_types)
  if needed == len(jax.devices()) and devices == jax.devices() and slices == 1:
    return jax.make_mesh(tuple(shape), MESH_AXES, axis_types=axis_types)
  return Mesh(np.array(devices[:needed]).reshape(shape), MESH_AXES, axis_types=axis_types)


def count_slices(devices: Sequence[Any]) -> int:
  """Count the slices of a job: groups of devices that are connected by the hosts' network only."""
  return len({getattr(device, 'slice_index', 0) for device in devices})


def arrange_slices(shape: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
  """Arrange the devices of several slices in a mesh of `shape`.

  Each copy of the model is in one slice, so only gradients are sent between slices.

  Raises:
    MeshError: copies cannot be divided evenly among slices.
  """
  slices = count_slices(devices)
  data, *rest = shape
  if data % slices:
    raise MeshError(
        f'the mesh {dict(zip(MESH_AXES, shape, strict=True))} cannot be dealt to {slices} slices '
        f'of {len(devices) // slices} devices ({devices[0].device_kind}): make '
        f'{name_field("mesh.data")} a multiple of {slices}, so that every copy of the model is in '
        'one slice')
  return mesh_utils.create_hybrid_device_mesh(
      (data // slices, *rest), (slices,) + (1,) * len(rest), devices,
      allow_split_physical_axes=True)


def fit_mesh(config: MeshConfig, devices: int, slices: int = 1) -> MeshConfig:
  """Fit a mesh that adapts (`MeshConfig.adapts`) to a number of devices; others stay.

  `tensor` and `fsdp` become their largest divisors that divide the devices of a slice.
  """
  if not config.adapts:
    return config
  tensor = math.gcd(config.tensor, devices // slices)
  fsdp = math.gcd(config.fsdp, devices // slices // tensor)
  return MeshConfig(devices // (tensor * fsdp), fsdp, tensor)


def partition_spec(names: Sequence[str | None], shape: Sequence[int], mesh) -> PartitionSpec:
  """Return the PartitionSpec of an array by the sharding rules.

  Args:
    names: logical names of its axes; None: not split.
    shape: its shape.
    mesh: the mesh.
  """
  parts = []
  for name, size in zip(names, shape, strict=True):
    axes = AXIS_RULES.get(name or '', ())
    shards = math.prod(mesh.shape[axis] for axis in axes)
    fits = size % shards == 0 or (name in PADDED_AXES and size >= shards)
    parts.append(axes if axes and shards > 1 and fits else None)
  return PartitionSpec(*parts)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
  """Constrain the sharding of x by the rules; names: logical axes. Without a mesh, return x."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, partition_spec(names, x.shape, mesh))


def target_platform() -> str:
  """Return the platform that a traced program is for, such as 'cpu', 'gpu' or 'tpu'.

  It is that of the mesh's devices, which need not be present, or else that of JAX's own.
  """
  mesh = jax.sharding.get_abstract_mesh()
  device = None if mesh.empty else getattr(mesh, 'abstract_device', None)
  return jax.default_backend() if device is None else device.platform


def split_microbatches(batch: Any, parts: int) -> Any:
  """Split a batch into microbatches, for gradient accumulation.

  Args:
    batch: tree of arrays [batch, ...].
    parts: number of microbatches.

  Returns:
    Tree of [parts, batch / parts, ...]. A microbatch has every `parts`-th row, so that rows stay on
    their devices.
  """
  def split(x):
    x = x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)
    return constrain(x, None, 'batch', *[None] * (x.ndim - 2))

  return jax.tree.map(split, batch)


def gather_parameter(x: jax.Array, *names: str | None) -> jax.Array:
  """Gather a parameter along the axes over which devices split rows (ZeRO 3), before a product.

  Otherwise the compiler sends the other operand around where that one is smaller. With three mesh
  axes in use, XLA then gives rows to devices in another order than it takes them back (seen with
  jax 0.10.2 and 0.12.0, benchmarks/RESULTS.md): without an error, each continues with another
  device's.

  Args:
    x: the parameter.
    names: logical names of its axes.
  """
  batch_axes = set(AXIS_RULES['batch'])
  kept = [name if batch_axes.isdisjoint(AXIS_RULES.get(name or '', ())) else None
          for name in names]
  return constrain(x, *kept)


def shardings(boxed, mesh: Mesh):
  """Compute the NamedShardings of a tree whose parameters carry logical names (Flax boxes).

  An optimizer's state has its parameters' boxes: around nothing, where it has no state for a
  parameter, and around sums over some of the axes. These are small, and are not split.

  Returns:
    The same tree, unboxed, of NamedShardings.
  """
  def shard_box(box):
    if not isinstance(box, nn.Partitioned):
      return NamedSharding(mesh, PartitionSpec())

    def shard_value(value):
      names = box.names if len(box.names) == value.ndim else (None,) * value.ndim
      return NamedSharding(mesh, partition_spec(names, value.shape, mesh))

    return jax.tree.map(shard_value, box.value)

  return jax.tree.map(shard_box, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Return the sharding of a batch: rows are split over data and fsdp, other axes are not."""
  return NamedSharding(mesh, PartitionSpec(AXIS_RULES['batch']))


def count_batch_shards(mesh: Mesh) -> int:
  """Count the parts that the rows of a batch are split into."""
  return math.prod(mesh.shape[axis] for axis in AXIS_RULES['batch'])


def check_batch(rows: int, accumulate: int, mesh: Mesh) -> None:
  """Check that every device has the same number of rows in each microbatch.

  Args:
    rows: batch size.
    accumulate: microbatches of gradient accumulation.
    mesh: the mesh.

  Raises:
    MeshError: the rows cannot be divided evenly.
  """
  shards = count_batch_shards(mesh)
  if rows % (shards * accumulate):
    raise MeshError(
        f'a batch of {rows} sequences cannot be divided evenly: {shards} devices (data '
        f'{mesh.shape["data"]} x fsdp {mesh.shape["fsdp"]}) and {accumulate} micro-batches need a '
        f'multiple of {shards * accumulate}')


def host_rows(rows: int, mesh: Mesh) -> slice:
  """Return the rows of a global batch that this process's devices need."""
  indices = batch_sharding(mesh).addressable_devices_indices_map((rows,)).values()
  bounds = [index[0].indices(rows) for index in indices if index is not None]
  return slice(min(start for start, _, _ in bounds), max(stop for _, stop, _ in bounds))


def shard_batch(batch, rows: int, mesh: Mesh):
  """Put this process's rows of a batch on the mesh, as global arrays.

  Args:
    batch: tree of numpy arrays, the rows of `host_rows`.
    rows: rows of the global batch.
    mesh: the mesh.
  """
  own = host_rows(rows, mesh)
  sharding = batch_sharding(mesh)

  def shard(x):
    def read_shard(index):
      start, stop, _ = index[0].indices(rows)
      return x[start - own.start:stop - own.start]

    # The copy is as explicit as jax.device_put; to JAX it is an implicit one.
    with jax.transfer_guard_host_to_device('allow'):
      return jax.make_array_from_callback((rows, *x.shape[1:]), sharding, read_shard)

  return jax.tree.map(shard, batch)


def shard_array(x, sharding) -> jax.Array:
  """Put an array on the mesh that every host has, or can read parts of
  (`conversion.files.LazyParameter`).

  A host reads only what its devices need, each part once, and holds one part at a time.
  """
  devices: dict[tuple[tuple[int, int], ...], list[Any]] = {}
  for device, index in sharding.addressable_devices_indices_map(x.shape).items():
    bounds = tuple(part.indices(size)[:2] for part, size in zip(index, x.shape, strict=True))
    devices.setdefault(bounds, []).append(device)
  parts = []
  for bounds, replicas in devices.items():
    region = tuple(slice(start, stop) for start, stop in bounds)
    part = x[region]
    # Wait for the copies: otherwise parts would accumulate in memory.
    parts += jax.block_until_ready([jax.device_put(part, device) for device in replicas])
  return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)
