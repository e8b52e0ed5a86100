"""The mesh, and the one table that says which array axis lies along which mesh axis.

    data    copies of the parameters, each with its own rows of the batch
    fsdp    rows of the batch too, but parameters and optimizer state are split (ZeRO 3)
    tensor  heads, MLP width and vocabulary are split (Megatron), and between layers the residual stream, of which
            one array a layer waits for the backward pass (Korthikanti et al. 2022, who split its length)
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

from plm_jax.checked import Checked, within
from plm_jax.errors import Expected

AXES = ('data', 'fsdp', 'tensor')

# Logical axis -> mesh axes. A name that is not here, or a size that the mesh axes do not divide, is not split. A
# vocabulary has the name `pieces` where logits are made.
TABLE: dict[str, tuple[str, ...]] = {
    'batch': ('data', 'fsdp'),
    'width': ('fsdp',),
    'heads': ('tensor',),
    'mlp': ('tensor',),
    'vocab': ('tensor',),
    'stream': ('tensor',),
    'pieces': ('tensor',),
}
# Of what a step computes these are split whatever their size: the compiler fills up the last part. Of a vocabulary that
# no mesh divides (GPT-2's 50,257) the parameters lie whole, and the logits, which are most of it, do not.
FILLED = frozenset({'pieces'})


class MeshError(Expected):
  """A mesh or a batch that does not fit the devices."""


@dataclasses.dataclass(frozen=True)
class MeshConfig(Checked):
  """How many devices lie along each mesh axis; their product is the number of devices that the run uses."""

  limits = within(data='[-1, inf)', fsdp='[1, inf)', tensor='[1, inf)')

  data: int = -1
  """copies of the model; -1: as many as the devices give"""
  fsdp: int = 1
  """devices that share one copy of parameters and optimizer state, each with its own rows"""
  tensor: int = 1
  """devices that share the heads, MLP width and vocabulary of one copy"""
  adapts: bool = False
  """take as much of it as the devices allow: the mesh of a recipe, for its pod, where none is given"""

  def conflict(self, option):
    """Says that the axis `data` has no devices."""
    return None if self.data else f'{option("data")} is 1 or more, or -1 for as many as the devices give, got 0'


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
  """Makes the mesh of `config` over all devices; over the first ones where it asks for fewer and there is one process.

  Raises MeshError for a mesh that needs more devices than there are or leaves some of a pod idle.
  """
  devices = list(jax.devices() if devices is None else devices)
  config = adapted(config, len(devices), slices(devices))
  shape = [config.data, config.fsdp, config.tensor]
  if config.data == -1:
    shape[0] = max(1, len(devices) // (config.fsdp * config.tensor))
  needed = math.prod(shape)
  if needed > len(devices):
    raise MeshError(
        f'the mesh {dict(zip(AXES, shape, strict=True))} needs {needed} devices, there are {len(devices)} '
        f'({devices[0].device_kind}). Make --mesh.data, --mesh.fsdp or --mesh.tensor smaller.')
  if needed < len(devices) and len({d.process_index for d in devices}) > 1:
    raise MeshError(
        f'the mesh {dict(zip(AXES, shape, strict=True))} uses {needed} of the {len(devices)} devices; with several '
        'processes it must use all of them.')
  if slices(devices) > 1 and devices[0].platform == 'tpu':
    return Mesh(across_slices(shape, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))
  if needed == len(jax.devices()) and devices == jax.devices() and slices(devices) == 1:
    return jax.make_mesh(tuple(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))
  return Mesh(np.array(devices[:needed]).reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def slices(devices: Sequence[Any]) -> int:
  """Counts the slices of a job: groups of devices that only the hosts' network connects."""
  return len({getattr(device, 'slice_index', 0) for device in devices})


def across_slices(shape: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
  """Arranges the devices of several slices in a mesh of `shape`: copies of the model are in one slice each, and between
  slices goes what copies add up.

  Raises MeshError where copies cannot be dealt evenly to slices.
  """
  parts, (data, *rest) = slices(devices), shape
  if data % parts:
    raise MeshError(
        f'the mesh {dict(zip(AXES, shape, strict=True))} cannot be dealt to {parts} slices of {len(devices) // parts} '
        f'devices ({devices[0].device_kind}): make --mesh.data a multiple of {parts}, so that every copy of the model '
        'is in one slice')
  return mesh_utils.create_hybrid_device_mesh(
      (data // parts, *rest), (parts, *[1] * len(rest)), devices, allow_split_physical_axes=True)


def adapted(config: MeshConfig, devices: int, slices: int = 1) -> MeshConfig:
  """Returns a mesh that adapts as so many devices allow, with the largest parts of its axes that divide those of a
  slice; any other as it is."""
  if not config.adapts:
    return config
  tensor = math.gcd(config.tensor, devices // slices)
  fsdp = math.gcd(config.fsdp, devices // slices // tensor)
  return MeshConfig(devices // (tensor * fsdp), fsdp, tensor)


def spec(names: Sequence[str | None], shape: Sequence[int], mesh) -> PartitionSpec:
  """Returns the PartitionSpec on `mesh` for the logical names and sizes of an array's axes."""
  parts = []
  for name, size in zip(names, shape, strict=True):
    axes = TABLE.get(name or '', ())
    split = math.prod(mesh.shape[axis] for axis in axes)
    fits = size % split == 0 or (name in FILLED and size >= split)
    parts.append(axes if axes and split > 1 and fits else None)
  return PartitionSpec(*parts)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
  """Asks the compiler to lay x out as the table says; the identity where no mesh is set."""
  mesh = jax.sharding.get_abstract_mesh()
  return x if mesh.empty or mesh.size == 1 else jax.lax.with_sharding_constraint(x, spec(names, x.shape, mesh))


def split(batch: Any, parts: int) -> Any:
  """Splits the rows of a batch [B, ...] -> [parts, B / parts, ...]: every `parts`-th row, which leaves rows on their
  devices."""
  def micro(x):
    x = x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)
    return constrain(x, None, 'batch', *[None] * (x.ndim - 2))
  return jax.tree.map(micro, batch)


def gathered(x: jax.Array, *names: str | None) -> jax.Array:
  """Gathers a parameter, whole along the axes that devices with rows of their own have split: what a product reads
  (ZeRO 3).

  names: of its axes. Left to itself the compiler sends the other operand around where that is smaller. With three mesh
  axes in use XLA then gives rows to devices in another order than it takes them back (seen with jax 0.10.2 and 0.12.0,
  benchmarks/RESULTS.md): silently, each goes on with another's.
  """
  return constrain(x, *(None if set(TABLE.get(name or '', ())) & set(TABLE['batch']) else name for name in names))


def shardings(boxed, mesh: Mesh):
  """Turns a tree whose parameters carry logical names (flax boxes) -> the same tree, unboxed, of NamedShardings.

  An optimizer's state wears its parameters' boxes: around nothing, where it has none for one, and around sums over some
  of the axes, which are small and lie whole on every device.
  """
  def leaf(x):
    if not isinstance(x, nn.Partitioned):
      return NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda value: NamedSharding(mesh, spec(
        x.names if len(x.names) == value.ndim else (None,) * value.ndim, value.shape, mesh)), x.value)
  return jax.tree.map(leaf, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a batch: rows over data and fsdp; every other axis whole."""
  return NamedSharding(mesh, PartitionSpec(TABLE['batch']))


def batch_split(mesh: Mesh) -> int:
  """Counts the parts that rows are dealt to."""
  return math.prod(mesh.shape[axis] for axis in TABLE['batch'])


def check_batch(rows: int, accumulate: int, mesh: Mesh) -> None:
  """Raises MeshError unless every micro-step gives every device the same number of rows."""
  split = batch_split(mesh)
  if rows % (split * accumulate):
    raise MeshError(
        f'a batch of {rows} rows cannot be dealt evenly to {split} devices (data {mesh.shape["data"]} x fsdp '
        f'{mesh.shape["fsdp"]}) in {accumulate} micro-steps: make it a multiple of {split * accumulate}.')


def host_rows(rows: int, mesh: Mesh) -> slice:
  """Returns the rows of a global batch that this process's devices need."""
  indices = batch_sharding(mesh).addressable_devices_indices_map((rows,)).values()
  starts, stops, _ = zip(*(index[0].indices(rows) for index in indices if index is not None), strict=True)
  return slice(min(starts), max(stops))


def to_devices(batch, rows: int, mesh: Mesh):
  """Puts this process's rows of a batch (a tree of numpy arrays) on the mesh, as global arrays of `rows` rows."""
  own = host_rows(rows, mesh)
  sharding = batch_sharding(mesh)
  def place(x):
    def shard(index):
      start, stop, _ = index[0].indices(rows)
      return x[start - own.start:stop - own.start]
    return jax.make_array_from_callback((rows, *x.shape[1:]), sharding, shard)
  return jax.tree.map(place, batch)


def from_host(x, sharding) -> jax.Array:
  """Puts an array that every host has, or can read parts of (`conversion.Lazy`), on the mesh.

  A host asks for what its devices need, for each part once, and holds one part at a time.
  """
  devices: dict[tuple[tuple[int, int], ...], list[Any]] = {}
  for device, index in sharding.addressable_devices_indices_map(x.shape).items():
    bounds = tuple(part.indices(size)[:2] for part, size in zip(index, x.shape, strict=True))
    devices.setdefault(bounds, []).append(device)
  parts = []
  for bounds, alike in devices.items():
    part = x[tuple(slice(*ends) for ends in bounds)]
    # Until it has arrived: otherwise parts would pile up here.
    parts += jax.block_until_ready([jax.device_put(part, device) for device in alike])
  return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)
