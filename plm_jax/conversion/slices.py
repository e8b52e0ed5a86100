"""Arithmetic of slices that have a start and a stop, one for every axis of an array."""
import math
from typing import Any

Shape = tuple[int, ...]
Index = tuple[slice, ...]


def bounded(index: Any, shape: Shape) -> Index:
  """Slices, fewer than axes or an ellipsis -> one for every axis, with start and stop."""
  index = index if isinstance(index, tuple) else (index,)
  index = tuple(slice(None) if i is Ellipsis else i for i in index)
  index += (slice(None),) * (len(shape) - len(index))
  return tuple(slice(*i.indices(size)[:2]) for i, size in zip(index, shape, strict=False))


def whole(shape: Shape) -> Index:
  """Returns the index of all of an array."""
  return tuple(slice(0, size) for size in shape)


def sizes(index: Index) -> Shape:
  """Returns the shape of what an index selects."""
  return tuple(i.stop - i.start for i in index)


def joined(index: Index, shape: Shape) -> tuple[slice, Index]:
  """Joins axes that they keep as one -> (the least run of it that holds `index`, what of ours that is)."""
  first, rest = index[0], math.prod(shape[1:])
  return slice(first.start * rest, first.stop * rest), (first, *whole(shape[1:]))
