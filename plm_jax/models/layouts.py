"""Tensor layouts: how the axes of a parameter differ between plm_jax and another library.

A layout only moves numbers, it does no arithmetic, so conversion in both directions is exact.
Indices are tuples of slices with a start and a stop, one for every axis of an array.
"""
import dataclasses
import math
from typing import Any, Protocol

import numpy as np

Shape = tuple[int, ...]
Index = tuple[slice, ...]


class TensorLayout(Protocol):
  """How the axes of one layer's parameter differ between our array and the file's tensor."""

  def export_shape(self, ours: Shape) -> Shape:
    """Return the shape in the file of an array of ours with shape `ours`."""
    ...

  def export_array(self, x: np.ndarray) -> np.ndarray:
    """Turn a whole array of ours into the file's layout."""
    ...

  def export_index(self, index: Index, shape: Shape) -> tuple[Index, Index]:
    """Find the part of the file's tensor that holds ours[index].

    Args:
      index: of our array.
      shape: of our array.

    Returns:
      The smallest index of the file's tensor that covers `index`, and the index of our array that
      this part corresponds to, which may be larger than `index`.
    """
    ...

  def import_array(self, x: np.ndarray, shape: Shape) -> np.ndarray:
    """Turn a part that `export_index` selects into our layout, with `shape`."""
    ...


@dataclasses.dataclass(frozen=True)
class Same:
  """The same axes; with `flat`, the axes of a bias [heads, head size] are one axis in the file."""

  flat: bool = False

  def export_shape(self, ours):
    """Return our shape; flat: its axes joined to one."""
    return (math.prod(ours),) if self.flat else ours

  def export_array(self, x):
    """Return the array unchanged, or flat."""
    return x.reshape(self.export_shape(x.shape))

  def export_index(self, index, shape):
    """Return the same part; flat: the run of numbers that covers it."""
    if not self.flat:
      return index, index
    run, box = join_axes(index, shape)
    return (run,), box

  def import_array(self, x, shape):
    """Return the array in our shape."""
    return x.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Linear:
  """A kernel [*inputs, *outputs] that is a matrix in the file.

  torch's Linear has [outputs, inputs]; TensorFlow and Conv1D have [inputs, outputs].
  """

  inputs: int = 1
  """number of leading axes of our kernel that are contracted"""
  transposed: bool = True
  """whether the file has [outputs, inputs]"""

  def export_shape(self, ours):
    """Return two axes: inputs joined to one, outputs joined to one."""
    rows, columns = math.prod(ours[:self.inputs]), math.prod(ours[self.inputs:])
    return (columns, rows) if self.transposed else (rows, columns)

  def export_array(self, x):
    """Join inputs and outputs to one axis each."""
    x = x.reshape(math.prod(x.shape[:self.inputs]), -1)
    return x.T if self.transposed else x

  def export_index(self, index, shape):
    """Return the block of rows and columns of the matrix that covers the part."""
    rows, inputs = join_axes(index[:self.inputs], shape[:self.inputs])
    columns, outputs = join_axes(index[self.inputs:], shape[self.inputs:])
    block = (columns, rows) if self.transposed else (rows, columns)
    return block, (*inputs, *outputs)

  def import_array(self, x, shape):
    """Split inputs and outputs into our axes."""
    return (x.T if self.transposed else x).reshape(shape)


@dataclasses.dataclass(frozen=True)
class RopePairs(Linear):
  """The kernel of queries or keys whose rotary pairs are interleaved in the file.

  In the file the two numbers of a pair are neighbors; here they are half a head apart.
  """

  def export_array(self, x):
    """Move the numbers of each pair next to each other, then as `Linear`."""
    halves = x.reshape(*x.shape[:-1], 2, -1)
    return super().export_array(halves.swapaxes(-1, -2).reshape(x.shape))

  def import_array(self, x, shape):
    """Move the numbers of each pair half a head apart."""
    x = super().import_array(x, shape)
    return x.reshape(*shape[:-1], -1, 2).swapaxes(-1, -2).reshape(shape)


@dataclasses.dataclass(frozen=True)
class RopePairBias(Same):
  """The bias of queries or keys whose rotary pairs are interleaved in the file."""

  flat: bool = True

  def export_array(self, x):
    """Move the numbers of each pair next to each other, then as `Same`."""
    halves = x.reshape(*x.shape[:-1], 2, -1)
    return super().export_array(halves.swapaxes(-1, -2).reshape(x.shape))

  def import_array(self, x, shape):
    """Move the numbers of each pair half a head apart."""
    return x.reshape(*shape[:-1], -1, 2).swapaxes(-1, -2).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Axes:
  """The same axes in another order: the file's axes are ours number `order`."""

  order: tuple[int, ...]

  def export_shape(self, ours):
    """Return our shape in the file's order of axes."""
    return tuple(ours[axis] for axis in self.order)

  def export_array(self, x):
    """Transpose to the file's order of axes."""
    return x.transpose(self.order)

  def export_index(self, index, shape):
    """Return the same part in the file's order of axes."""
    del shape
    return tuple(index[axis] for axis in self.order), index

  def import_array(self, x, shape):
    """Transpose to our order of axes."""
    return x.transpose([self.order.index(axis) for axis in range(len(self.order))]).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Packed:
  """One of several parameters of equal shapes that are one tensor in the file: fused QKV.

  Along the axis of outputs the file has whole parts one after another; with `by_head`, it has for
  each head its share of every part.
  """

  part: int
  """number of this part, from 0"""
  parts: int = 3
  """how many parts the tensor holds"""
  by_head: bool = False
  """whether the parts alternate within each head"""
  layout: Linear | Same = Linear()
  """layout of a part on its own"""
  rope_parts: tuple[int, ...] = ()
  """parts with the layout `RopePairs`: queries and keys"""

  def export_shape(self, ours):
    """Return the shape of one part, `parts` times as long along the axis of outputs."""
    alone = list(self.layout.export_shape(ours))
    alone[self.axis] *= self.parts
    return tuple(alone)

  def export_index(self, index, shape):
    """Return the run of our part along the axis of outputs; by head, the runs of whole heads."""
    alone, box = self.layout.export_index(index, shape)
    theirs, run = list(alone), alone[self.axis]
    if self.by_head:
      # Our outputs begin with the axis of heads, so the run is one of whole heads.
      theirs[self.axis] = slice(run.start * self.parts, run.stop * self.parts)
    else:
      before = self.part * self.layout.export_shape(shape)[self.axis]
      theirs[self.axis] = slice(before + run.start, before + run.stop)
    return tuple(theirs), box

  def import_array(self, x, shape):
    """Take our part out of what was read."""
    if self.by_head:
      heads, parts = self.leading_axes(shape)
      x = np.moveaxis(x, self.axis, 0)
      x = x.reshape(heads, parts, -1, *x.shape[1:])[:, self.part]
      x = np.moveaxis(x.reshape(-1, *x.shape[2:]), 0, self.axis)
    return self.part_layout(self.part).import_array(x, shape)

  def part_layout(self, part: int) -> Linear | Same:
    """Return the layout of one of the parts on its own."""
    return RopePairs() if part in self.rope_parts else self.layout

  def export_array(self, *parts: np.ndarray):
    """Join all parts, in order."""
    rows = [np.moveaxis(self.part_layout(part).export_array(x), self.axis, 0)
            for part, x in enumerate(parts)]
    if not self.by_head:
      return np.moveaxis(np.concatenate(rows), 0, self.axis)
    heads, _ = self.leading_axes(parts[0].shape)
    x = np.stack([x.reshape(heads, -1, *x.shape[1:]) for x in rows], 1)
    return np.moveaxis(x.reshape(-1, *x.shape[3:]), 0, self.axis)

  @property
  def axis(self) -> int:
    """The axis of outputs in the file: the first of a bias and of a transposed matrix."""
    return 0 if isinstance(self.layout, Same) or self.layout.transposed else 1

  def leading_axes(self, ours: Shape) -> tuple[int, int]:
    """Return (heads, parts), the axes by which the parts alternate in each head."""
    axis = 0 if isinstance(self.layout, Same) else self.layout.inputs
    return ours[axis], self.parts


@dataclasses.dataclass(frozen=True)
class RowVector(Same):
  """A vector that is a matrix of one row in the file."""

  def export_shape(self, ours):
    return (1, *ours)

  def export_index(self, index, shape):
    return (slice(0, 1), *index), index


@dataclasses.dataclass(frozen=True)
class CountBuffer:
  """The buffer position_ids [1, positions], 0, 1, 2, ..., of old checkpoints; no parameter."""

  def export_shape(self, ours):
    """Return [1, positions] for a table [positions, hidden]."""
    return (1, ours[0])

  def export_array(self, x):
    """Return 0, 1, 2, ... for the rows of the table."""
    return np.arange(x.shape[0])[None]


def normalize_index(index: Any, shape: Shape) -> Index:
  """Turn an index of slices and ellipses into one slice with start and stop per axis."""
  index = index if isinstance(index, tuple) else (index,)
  index = tuple(slice(None) if i is Ellipsis else i for i in index)
  index += (slice(None),) * (len(shape) - len(index))
  return tuple(slice(*i.indices(size)[:2]) for i, size in zip(index, shape, strict=False))


def select(x: np.ndarray, index: Index | None) -> np.ndarray:
  """Return x[index], or all of x without an index."""
  return x if index is None else x[index]


def index_shape(index: Index) -> Shape:
  """Return the shape of the part that an index selects."""
  return tuple(i.stop - i.start for i in index)


def join_axes(index: Index, shape: Shape) -> tuple[slice, Index]:
  """Find a part of an array in the same array with all axes joined to one.

  Returns:
    The smallest run of the joined axis that covers `index`, and the index of that run in the
    original array.
  """
  first, rest = index[0], math.prod(shape[1:])
  return slice(first.start * rest, first.stop * rest), (first, *(slice(0, n) for n in shape[1:]))
