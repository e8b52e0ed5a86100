"""Trainable parameters: select them by name patterns and by their depth below the head."""
from collections.abc import Sequence
import dataclasses
import fnmatch
from typing import Any

import jax
import numpy as np

from plm_jax.errors import UserError


class ParameterError(UserError):
  """A pattern of names that matches no parameter."""


def match_parameters(patterns: Sequence[str], tree) -> Any:
  """Match parameter names with patterns.

  A pattern is the name of a parameter or a prefix of it, such as `backbone/encoder/embeddings`.
  `*` in it stands for any part of a name between slashes, and `**` for any number of them, as in
  `**/bias`. `...attention/query[0]` is the first layer of parameters that hold one layer per row.

  Args:
    patterns: name patterns.
    tree: parameters.

  Returns:
    the same tree of numpy bools, of the whole parameter [] or of each of its layers [layers].

  Raises:
    ParameterError: a pattern matches nothing.
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [path_names(path) for path, _ in leaves]
  found = [np.zeros((), bool) for _ in leaves]
  for pattern in patterns:
    path, _, layer = pattern.removesuffix(']').partition('[')
    parts, matches = path.split('/'), 0
    for number, (name, (_, x)) in enumerate(zip(names, leaves, strict=True)):
      if not matches_prefix(name, parts):
        continue
      if layer and is_stacked(name):
        rows = np.array([str(n) == layer for n in range(x.shape[0])])
      else:
        rows = np.array(not layer)
      matches += rows.any()
      found[number] = found[number] | rows
    if not matches:
      lines = []
      for name, (_, x) in zip(names, leaves, strict=True):
        line = '/'.join(name)
        if is_stacked(name):
          line += f'[0..{x.shape[0] - 1}]'
        lines.append(line)
      there = '\n  '.join(lines)
      raise ParameterError(f'no parameter is called {pattern!r}. There are:\n  {there}')
  return structure.unflatten(found)


def path_names(path) -> list[str]:
  """Return the names on the path of a parameter."""
  return [entry.key for entry in path if hasattr(entry, 'key')]


def matches_prefix(name: Sequence[str], parts: Sequence[str]) -> bool:
  """Tell whether a name begins as a pattern says, both split at slashes."""
  if not parts:
    return True
  if parts[0] == '**':
    return any(matches_prefix(name[skipped:], parts[1:]) for skipped in range(len(name) + 1))
  if not name or not fnmatch.fnmatchcase(name[0], parts[0]):
    return False
  return matches_prefix(name[1:], parts[1:])


def is_stacked(name: Sequence[Any]) -> bool:
  """Tell whether the parameter with this path holds one layer per row."""
  return {'layers', 'block'} <= set(name)


STACK_ORDER = 'source', 'encoder', 'decoder'
"""Stacks of one backbone, in the order in which text goes through them."""


def depths_below_head(tree) -> Any:
  """Compute the depth of each parameter below the head, for layer-wise learning rates and
  unfreezing.

  Heads and their poolers have depth 0, layer n of N layers N + 2 - n, embeddings and all else N +
  2: the depths of ELECTRA's released code (google-research/electra, model/optimization.py,
  _get_layer_lrs). The norm after a stack goes with its last layer. The layers of several stacks
  of a backbone count one after another: source, encoder, decoder. Where layers share parameters,
  each copy counts for the last layer that has it.

  Args:
    tree: parameters.

  Returns:
    the same tree of numpy int32, of the whole parameter [] or of each of its layers [layers].
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [path_names(path) for path, _ in leaves]

  # Number of layers of each stack, by the names before `layers`.
  stacks: dict[tuple[str, ...], int] = {}
  for name, (_, x) in zip(names, leaves, strict=True):
    if is_stacked(name):
      stack = tuple(name[:name.index('layers')])
      stacks[stack] = max(stacks.get(stack, 0), x.shape[0])

  # Number of each stack's last layer in its backbone, and of all layers of the backbone.
  def order(stack):
    return next((STACK_ORDER.index(part) for part in stack if part in STACK_ORDER), 0)
  ends: dict[tuple[str, ...], int] = {}
  totals: dict[str, int] = {}
  for stack in sorted(stacks, key=order):
    totals[stack[0]] = ends[stack] = totals.get(stack[0], 0) + stacks[stack]

  def depth(name, x):
    if name[0] not in totals or name[1:2] == ['pooler']:
      return np.zeros((), np.int32)
    top = totals[name[0]] + 2
    if is_stacked(name):
      stack = tuple(name[:name.index('layers')])
      # Each row of shared parameters counts for its last layer.
      number = -(-np.arange(1, x.shape[0] + 1) * stacks[stack] // x.shape[0])
      return (top - (ends[stack] - stacks[stack] + number)).astype(np.int32)
    before_norm = tuple(name[:name.index('norm')]) if 'norm' in name else ()
    return np.array(top - ends.get(before_norm, 0), np.int32)

  depths = [depth(name, x) for name, (_, x) in zip(names, leaves, strict=True)]
  return structure.unflatten(depths)


@dataclasses.dataclass(frozen=True)
class ParameterSelection:
  """Trainable parameters: all, except for what the fields say. The others stay as they are, bit
  for bit."""

  only: tuple[str, ...] = ()
  """Patterns of trainable parameters (`match_parameters`); empty: all."""
  frozen: tuple[str, ...] = ()
  """Patterns of frozen parameters."""
  adapters: bool = False
  """Train heads and adapters alone, and those of `only`."""
  top: int = -1
  """Number of trainable layers below the head, from the top; 0: none of the backbone; -1: all of
  it."""

  def __bool__(self) -> bool:
    return self != ParameterSelection()

  def __call__(self, tree) -> Any:
    """Return which parameters are trainable.

    Returns:
      the same tree of numpy bools, of the whole parameter [] or of each of its layers [layers].

    Raises:
      ParameterError: a pattern matches nothing.
    """
    patterns = self.only or (() if self.adapters else ('**',))
    chosen, frozen = match_parameters(patterns, tree), match_parameters(self.frozen, tree)
    if self.adapters:
      chosen = jax.tree_util.tree_map_with_path(
          lambda path, yes: yes | is_head_or_adapter(path), chosen)
    chosen = jax.tree.map(lambda yes, no: yes & ~no, chosen, frozen)
    if self.top < 0:
      return chosen
    def in_top_layers(path, yes, depth):
      if self.top or path[0].key != 'backbone':
        return yes & (depth <= self.top + 1)
      return yes & np.zeros((), bool)
    return jax.tree_util.tree_map_with_path(in_top_layers, chosen, depths_below_head(tree))


def is_head_or_adapter(path) -> bool:
  """Tell whether the parameter at a path belongs to a head or an adapter."""
  name = path_names(path)
  if name[0] != 'backbone':
    return True
  return 'adapter' in name and name[-1] in ('down', 'up', 'magnitude')


def count_trained(select: ParameterSelection, tree) -> int:
  """Count the trainable numbers of a tree of parameters."""
  leaves = zip(jax.tree.leaves(select(tree)), jax.tree.leaves(tree), strict=True)
  return sum(round(rows.mean() * x.size) for rows, x in leaves)


def expand_rows(values, x):
  """Reshape one value per row of x, [rows], for broadcasting against x: [rows, 1, ...]."""
  return values.reshape((-1,) + (1,) * (x.ndim - 1))


def split_trained(select: ParameterSelection, tree):
  """Split a tree into its trainable leaves and a function that puts it together again.

  Returns:
    (list of the leaves of which something is trainable, function from such a list, and optionally
    all leaves for the others, to the whole tree; what is not trainable in it has no gradient).
  """
  leaves, structure = jax.tree.flatten(tree)
  chosen = jax.tree.leaves(select(tree)) if select else [np.ones((), bool)] * len(leaves)
  def stop_frozen_rows(rows, x):
    if rows.all():
      return x
    return jax.numpy.where(expand_rows(rows, x), x, jax.lax.stop_gradient(x))
  def combine(trained, others=leaves):
    trained = iter(trained)
    combined = []
    for rows, x in zip(chosen, others, strict=True):
      if rows.any():
        x = stop_frozen_rows(rows, next(trained))
      combined.append(x)
    return structure.unflatten(combined)
  trained = [x for rows, x in zip(chosen, leaves, strict=True) if rows.any()]
  return trained, combine
