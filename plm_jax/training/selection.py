"""Which parameters are trained, by their names and by how far they are from the head."""
from collections.abc import Sequence
import dataclasses
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
  any part of a name between slashes and `**` for any number of them, as in `**/bias`; `...attention/query[0]` is the
  first layer of those that hold one layer a row. Raises ParameterError for a pattern that matches nothing.
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [[entry.key for entry in path if hasattr(entry, 'key')] for path, _ in leaves]
  found = [np.zeros((), bool) for _ in leaves]
  for pattern in patterns:
    path, _, layer = pattern.removesuffix(']').partition('[')
    parts, matches = path.split('/'), 0
    for number, (name, (_, x)) in enumerate(zip(names, leaves, strict=True)):
      if not begins(name, parts):
        continue
      rows = np.array([str(n) == layer for n in range(x.shape[0])] if layer and is_stacked(name) else not layer)
      matches += rows.any()
      found[number] = found[number] | rows
    if not matches:
      there = '\n  '.join('/'.join(name) + (f'[0..{x.shape[0] - 1}]' if is_stacked(name) else '')
                         for name, (_, x) in zip(names, leaves, strict=True))
      raise ParameterError(f'no parameter is called {pattern!r}. There are:\n  {there}')
  return structure.unflatten(found)


def begins(name: Sequence[str], parts: Sequence[str]) -> bool:
  """Tells whether a name begins as a pattern says, both in parts."""
  if not parts:
    return True
  if parts[0] == '**':
    return any(begins(name[skipped:], parts[1:]) for skipped in range(len(name) + 1))
  return bool(name) and fnmatch.fnmatchcase(name[0], parts[0]) and begins(name[1:], parts[1:])


def is_stacked(name: Sequence[Any]) -> bool:
  """Tells whether the parameter with this path holds one layer a row."""
  return {'layers', 'block'} <= set(name)


SIDES = 'source', 'encoder', 'decoder'
"""stacks of one backbone, in the order in which text goes through them"""


def heights(tree) -> Any:
  """Returns the same tree of numpy int32: how far below the head a parameter is [], or each of its layers is [N].

  Heads and what pools for them 0, layer n of N layers N + 2 - n, embeddings and all else N + 2: the depths of ELECTRA's
  released code (google-research/electra, model/optimization.py, _get_layer_lrs). The norm behind a stack goes with its
  last layer. The layers of several stacks of a backbone count one behind another, source, encoder and decoder; where
  layers share parameters, each copy counts for the last layer that has it.
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [[entry.key for entry in path if hasattr(entry, 'key')] for path, _ in leaves]
  stacks: dict[tuple[str, ...], int] = {}  # what stands before `layers` in a name -> how many there are
  for name, (_, x) in zip(names, leaves, strict=True):
    if is_stacked(name):
      stack = tuple(name[:name.index('layers')])
      stacks[stack] = max(stacks.get(stack, 0), x.shape[0])
  def order(stack):
    return next((SIDES.index(part) for part in stack if part in SIDES), 0)
  ends: dict[tuple[str, ...], int] = {}  # the number of a stack's last layer
  totals: dict[str, int] = {}
  for stack in sorted(stacks, key=order):
    totals[stack[0]] = ends[stack] = totals.get(stack[0], 0) + stacks[stack]
  def height(name, x):
    if name[0] not in totals or name[1:2] == ['pooler']:
      return np.zeros((), np.int32)
    top = totals[name[0]] + 2
    if is_stacked(name):
      stack = tuple(name[:name.index('layers')])
      number = -(-np.arange(1, x.shape[0] + 1) * stacks[stack] // x.shape[0])
      return (top - (ends[stack] - stacks[stack] + number)).astype(np.int32)
    behind = tuple(name[:name.index('norm')]) if 'norm' in name else ()
    return np.array(top - ends.get(behind, 0), np.int32)
  return structure.unflatten([height(name, x) for name, (_, x) in zip(names, leaves, strict=True)])


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which parameters are trained: all, but for what its fields say. The others stay as they are, bit for bit."""

  only: tuple[str, ...] = ()
  """patterns of those that are (`matching`); none: all"""
  frozen: tuple[str, ...] = ()
  """patterns of those that are not"""
  adapters: bool = False
  """only heads and adapters are, beside those of `only`"""
  top: int = -1
  """layers that are trained beneath the head, from the top; 0: nothing of the backbone; -1: all of it"""

  def __bool__(self) -> bool:
    return self != Selection()

  def __call__(self, tree) -> Any:
    """Returns the same tree of numpy bools, [] or of each layer [N]. Raises ParameterError for a pattern that matches
    nothing."""
    chosen, frozen = matching(self.only or (() if self.adapters else ('**',)), tree), matching(self.frozen, tree)
    if self.adapters:
      chosen = jax.tree_util.tree_map_with_path(lambda path, yes: yes | adapts(path), chosen)
    chosen = jax.tree.map(lambda yes, no: yes & ~no, chosen, frozen)
    if self.top < 0:
      return chosen
    def near(path, yes, height):
      backbone = path[0].key == 'backbone'
      return yes & ((height <= self.top + 1) if self.top or not backbone else np.zeros((), bool))
    return jax.tree_util.tree_map_with_path(near, chosen, heights(tree))


def adapts(path) -> bool:
  """Tells whether the parameter at a path is of a head, or an adapter's."""
  name = [entry.key for entry in path if hasattr(entry, 'key')]
  return name[0] != 'backbone' or ('adapter' in name and name[-1] in ('down', 'up', 'magnitude'))


def trained(select: Selection, tree) -> int:
  """Counts the numbers of a tree of parameters that are trained."""
  return sum(round(rows.mean() * x.size) for rows, x in zip(
      jax.tree.leaves(select(tree)), jax.tree.leaves(tree), strict=True))


def parted(select: Selection, tree):
  """Parts a tree -> (list of the leaves of which something is trained, a function of such a list: the whole tree, what
  is not trained in which has no gradient)."""
  leaves, structure = jax.tree.flatten(tree)
  chosen = jax.tree.leaves(select(tree)) if select else [np.ones((), bool)] * len(leaves)
  def of_rows(rows, x):
    return x if rows.all() else jax.numpy.where(
        rows.reshape(-1, *[1] * (x.ndim - 1)), x, jax.lax.stop_gradient(x))
  def whole(moving, still=leaves):
    moving = iter(moving)
    return structure.unflatten([
        of_rows(rows, next(moving)) if rows.any() else x for rows, x in zip(chosen, still, strict=True)])
  return [x for rows, x in zip(chosen, leaves, strict=True) if rows.any()], whole
