"""How the axes of a parameter differ between libraries, in both directions."""
import dataclasses
import math
from typing import Protocol

import numpy as np

from plm_jax.conversion.slices import Index, Shape, joined


class Layout(Protocol):
  """How the axes of one layer's parameter differ; no arithmetic, so that both directions are exact."""

  def shape(self, ours: Shape) -> Shape:
    """Returns their shape of an array of ours."""
    ...

  def theirs(self, x: np.ndarray) -> np.ndarray:
    """Turns an array of ours, whole, into theirs."""
    ...

  def covering(self, index: Index, shape: Shape) -> tuple[Index, Index]:
    """Returns, for ours[index] of `shape`, the least of theirs that holds it, and what of ours that is."""
    ...

  def ours(self, x: np.ndarray, shape: Shape) -> np.ndarray:
    """Turns what of theirs `covering` says into what of ours that is, of `shape`."""
    ...


@dataclasses.dataclass(frozen=True)
class Same:
  """The same axes, but for those of a bias [H, A], which they keep as one."""

  flat: bool = False

  def shape(self, ours):
    """Returns our shape; flat: its axes in one."""
    return (math.prod(ours),) if self.flat else ours

  def theirs(self, x):
    """Returns the array as it is, or flat."""
    return x.reshape(self.shape(x.shape))

  def covering(self, index, shape):
    """Returns the same part; flat: the run of numbers that holds it."""
    if not self.flat:
      return index, index
    run, box = joined(index, shape)
    return (run,), box

  def ours(self, x, shape):
    """Returns the array in our shape."""
    return x.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Linear:
  """A kernel [*inputs, *outputs] that they keep as a matrix: [out, in] in torch, [in, out] in TensorFlow and Conv1D."""

  inputs: int = 1  # axes of ours that are contracted
  transposed: bool = True

  def shape(self, ours):
    """Returns two axes, those of inputs and of outputs each in one, as torch's Linear or transposed."""
    rows, columns = math.prod(ours[:self.inputs]), math.prod(ours[self.inputs:])
    return (columns, rows) if self.transposed else (rows, columns)

  def theirs(self, x):
    """Joins inputs and outputs to one axis each."""
    x = x.reshape(math.prod(x.shape[:self.inputs]), -1)
    return x.T if self.transposed else x

  def covering(self, index, shape):
    """Returns a block of the matrix, rows and columns that hold the part."""
    (rows, inputs), (columns, outputs) = (
        joined(index[part], shape[part]) for part in (slice(self.inputs), slice(self.inputs, None)))
    return (columns, rows) if self.transposed else (rows, columns), (*inputs, *outputs)

  def ours(self, x, shape):
    """Parts inputs and outputs again."""
    return (x.T if self.transposed else x).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Pairs(Linear):
  """The kernel of a query or a key whose pairs for rope are neighbours there, and lie half a head apart here."""

  def theirs(self, x):
    """Moves pairs, which lie half a head apart here, next to each other, then as `Linear`."""
    halves = x.reshape(*x.shape[:-1], 2, -1)
    return super().theirs(halves.swapaxes(-1, -2).reshape(x.shape))

  def ours(self, x, shape):
    """Moves pairs half a head apart."""
    x = super().ours(x, shape)
    return x.reshape(*shape[:-1], -1, 2).swapaxes(-1, -2).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Axes:
  """The same axes in another order: theirs are ours number `order`."""

  order: tuple[int, ...]

  def shape(self, ours):
    """Returns our shape in their order of axes."""
    return tuple(ours[axis] for axis in self.order)

  def theirs(self, x):
    """Transposes to their order of axes."""
    return x.transpose(self.order)

  def covering(self, index, shape):
    """Returns the same part in their order of axes."""
    del shape
    return tuple(index[axis] for axis in self.order), index

  def ours(self, x, shape):
    """Transposes to our order of axes."""
    return x.transpose([self.order.index(axis) for axis in range(len(self.order))]).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Packed:
  """One of several parameters of ours, of equal shapes, that they keep in one tensor: query, key and value.

  Along its axis of outputs lie whole parts, or for each head its share of every part.
  """

  part: int  # which of them, from 0
  parts: int = 3
  by_head: bool = False
  layout: Linear | Same = Linear()  # of a part on its own
  turned: tuple[int, ...] = ()  # parts that are as `Pairs` has them: queries and keys

  def shape(self, ours):
    """Returns the shape of one part, with `parts` times as many along its axis."""
    alone = list(self.layout.shape(ours))
    alone[self.axis] *= self.parts
    return tuple(alone)

  def covering(self, index, shape):
    """Returns the run of our part along the axis; by head, the runs of all parts for whole heads."""
    alone, box = self.layout.covering(index, shape)
    theirs, run = list(alone), alone[self.axis]
    if self.by_head:
      # Outputs of ours begin with heads, so the run is of whole heads.
      theirs[self.axis] = slice(run.start * self.parts, run.stop * self.parts)
    else:
      before = self.part * self.layout.shape(shape)[self.axis]
      theirs[self.axis] = slice(before + run.start, before + run.stop)
    return tuple(theirs), box

  def ours(self, x, shape):
    """Takes our part out of what was read."""
    if self.by_head:
      x = np.moveaxis(x, self.axis, 0)
      x = x.reshape(*self.leading(shape), -1, *x.shape[1:])[:, self.part]
      x = np.moveaxis(x.reshape(-1, *x.shape[2:]), 0, self.axis)
    return self.of(self.part).ours(x, shape)

  def of(self, part: int) -> Linear | Same:
    """Returns the layout of one of the parts on its own."""
    return Pairs() if part in self.turned else self.layout

  def theirs(self, *parts: np.ndarray):
    """Joins all the parts, in order."""
    rows = [np.moveaxis(self.of(part).theirs(x), self.axis, 0) for part, x in enumerate(parts)]
    if not self.by_head:
      return np.moveaxis(np.concatenate(rows), 0, self.axis)
    heads, _ = self.leading(parts[0].shape)
    x = np.stack([x.reshape(heads, -1, *x.shape[1:]) for x in rows], 1)
    return np.moveaxis(x.reshape(-1, *x.shape[3:]), 0, self.axis)

  @property
  def axis(self) -> int:
    """That of outputs: the first of a bias and of a transposed matrix."""
    return 0 if isinstance(self.layout, Same) or self.layout.transposed else 1

  def leading(self, ours: Shape) -> tuple[int, ...]:
    """Returns the axes by which parts alternate: (heads, parts) where they do in each head."""
    heads = ours[0 if isinstance(self.layout, Same) else self.layout.inputs]
    return (heads, self.parts) if self.by_head else (self.parts,)


@dataclasses.dataclass(frozen=True)
class Row(Same):
  """A vector that they keep as a matrix of one row."""

  def shape(self, ours):
    """Returns our shape with an axis of 1 in front."""
    return (1, *ours)

  def covering(self, index, shape):
    """Returns the same part of the only row."""
    return (slice(0, 1), *index), index


@dataclasses.dataclass(frozen=True)
class Count:
  """0, 1, 2, ... [1, rows]: the buffer that old checkpoints hold beside a position table."""

  def shape(self, ours):
    """Returns [1, rows]: a buffer that counts them."""
    return (1, ours[0])

  def theirs(self, x):
    """Returns 0, 1, 2, ...: what the buffer holds."""
    return np.arange(x.shape[0])[None]
