"""Parameters that stay in the file until they are asked for, and of which only what is asked for is read."""
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plm_jax.conversion.rules import ConvertError, Rule, Source
from plm_jax.conversion.slices import Index, Shape, bounded, sizes


class Lazy:
  """Looks like a float32 array of `shape`; `x[index]`, with slices, reads that part, `np.asarray(x)` all of it."""

  dtype = np.dtype(np.float32)

  def __init__(self, rule: Rule, source: Source, shape: Shape, copies: Sequence[Rule] = ()):
    """rule: where `source` has it; copies: rules of what has to equal it, and is compared as it is read."""
    self.rule, self.source, self.shape, self.copies = rule, source, shape, copies

  def __getitem__(self, index: Any) -> np.ndarray:
    """Raises ConvertError where a copy differs."""
    index = bounded(index, self.shape)
    x = np.empty(sizes(index), self.dtype)
    for part, name, inner in self.layers(self.rule, x, index):
      part[...] = self.read(self.rule, name, inner)
    for copy in self.copies:
      for part, name, inner in self.layers(copy, x, index):
        if name in self.source.tensors and not np.array_equal(self.read(copy, name, inner), part):
          raise ConvertError(f'{name} differs from what it has to equal, {self.rule.theirs}')
    return x

  def __array__(self, dtype=None, copy=None):
    del copy
    x = self[...]
    return x if dtype is None else x.astype(dtype, copy=False)

  def layers(self, rule: Rule, x: np.ndarray, index: Index) -> Iterator[tuple[np.ndarray, str, Index]]:
    """Yields (part of x, name of the tensor, index inside a layer) for every layer of x, which is this parameter's
    `index`."""
    names = rule.names(self.shape)
    if rule.stacked:
      yield from ((part, name, index[1:]) for part, name in zip(x, names[index[0]], strict=True))
    else:
      yield x, names[0], index

  def read(self, rule: Rule, name: str, index: Index) -> np.ndarray:
    """Reads ours[index] of one layer."""
    shape = self.shape[1:] if rule.stacked else self.shape
    theirs, box = rule.layout.covering(index, shape)
    x = rule.layout.ours(self.source.read(name, theirs), sizes(box))
    return x[tuple(slice(i.start - b.start, i.stop - b.start) for i, b in zip(index, box, strict=True))]
