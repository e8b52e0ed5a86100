"""Lazy parameters: they stay in the file, and only the parts that are used are read."""
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plm_jax.models.layouts import Index, Shape, index_shape, normalize_index
from plm_jax.models.rules import ConvertError, Rule, Source


class LazyParameter:
  """Looks like a float32 array of `shape`.

  `x[index]`, with slices, reads that part; `np.asarray(x)` reads all of it.
  """

  dtype = np.dtype(np.float32)

  def __init__(self, rule: Rule, source: Source, shape: Shape, copies: Sequence[Rule] = ()):
    """Make the parameter without reading it.

    Args:
      rule: where `source` has the parameter.
      source: the file.
      shape: of the parameter.
      copies: rules of tied weights, which have to be equal and are compared as they are read.
    """
    self.rule, self.source, self.shape, self.copies = rule, source, shape, copies

  def __getitem__(self, index: Any) -> np.ndarray:
    """Read a part. Raises ConvertError where a copy differs."""
    index = normalize_index(index, self.shape)
    x = np.empty(index_shape(index), self.dtype)
    for part, name, inner in self.iterate_layers(self.rule, x, index):
      part[...] = self.read_layer(self.rule, name, inner)
    for copy in self.copies:
      for part, name, inner in self.iterate_layers(copy, x, index):
        if name not in self.source.tensors:
          continue
        if not np.array_equal(self.read_layer(copy, name, inner), part):
          raise ConvertError(f'{name} differs from what it has to equal, {self.rule.theirs}')
    return x

  def __array__(self, dtype=None, copy=None):
    x = self[...]
    return x if dtype is None else x.astype(dtype, copy=False)

  def iterate_layers(
      self, rule: Rule, x: np.ndarray, index: Index,
  ) -> Iterator[tuple[np.ndarray, str, Index]]:
    """Yield (part of x, name of the tensor, index within a layer) for every layer.

    x: the part of this parameter that `index` selects.
    """
    names = rule.names(self.shape)
    if not rule.is_stacked:
      yield x, names[0], index
      return
    for part, name in zip(x, names[index[0]], strict=True):
      yield part, name, index[1:]

  def read_layer(self, rule: Rule, name: str, index: Index) -> np.ndarray:
    """Read the part of one layer that `index` selects."""
    shape = self.shape[1:] if rule.is_stacked else self.shape
    theirs, box = rule.layout.export_index(index, shape)
    x = rule.layout.import_array(self.source.read(name, theirs), index_shape(box))
    # The file's part may be larger than the index: cut it.
    pairs = zip(index, box, strict=True)
    return x[tuple(slice(i.start - b.start, i.stop - b.start) for i, b in pairs)]
