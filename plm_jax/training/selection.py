"""Which parameters are trained, by their names and by how far they are from the head."""
from collections.abc import Sequence
import fnmatch
from typing import Any

import jax
import numpy as np

from plm_jax.errors import Expected


class ParameterError(Expected):
  """A pattern of names that no parameter has."""


def matching(patterns: Sequence[str], tree) -> Any:
  """Returns the same tree of numpy bools, of the whole parameter [] or of each of its layers [N].

  A pattern is the name of a parameter or the beginning of one, `backbone/encoder/embeddings`, a `*` in which stands for
  any part of a name between slashes; `...attention/query[0]` is the first layer of those that hold one layer a row.
  Raises ParameterError for a pattern that matches nothing.
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [[entry.key for entry in path if hasattr(entry, 'key')] for path, _ in leaves]
  found = [np.zeros((), bool) for _ in leaves]
  for pattern in patterns:
    path, _, layer = pattern.removesuffix(']').partition('[')
    parts, matches = path.split('/'), 0
    for number, (name, (_, x)) in enumerate(zip(names, leaves, strict=True)):
      if len(parts) > len(name) or not all(map(fnmatch.fnmatchcase, name, parts)):
        continue
      rows = np.array([str(n) == layer for n in range(x.shape[0])] if layer and is_stacked(name) else not layer)
      matches += rows.any()
      found[number] = found[number] | rows
    if not matches:
      there = '\n  '.join('/'.join(name) + (f'[0..{x.shape[0] - 1}]' if is_stacked(name) else '')
                         for name, (_, x) in zip(names, leaves, strict=True))
      raise ParameterError(f'no parameter is called {pattern!r}. There are:\n  {there}')
  return structure.unflatten(found)


def is_stacked(name: Sequence[Any]) -> bool:
  """Tells whether the parameter with this path holds one layer a row."""
  return {'layers', 'block'} <= set(name)
