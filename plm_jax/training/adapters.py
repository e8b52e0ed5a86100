"""Adapters by rank: a product of two small matrices beside a kernel, which alone is trained, and can be added to it.

    adapter/down       [.., *inputs, r]    drawn as the authors draw it
    adapter/up         [.., r, *features]  begins with 0, so that the model is what it was
    adapter/factor     [..]                on their product; not trained
    adapter/magnitude  [.., *features]     of DoRA: the length of each column of the sum
    adapter/dropout    [..]                share of what goes in that is dropped, where it is not 0; not trained

`layers.dense.Dense` reads them where they stand beside its kernel, with .. the layers of a stack.
"""
from collections.abc import Mapping
import dataclasses
import fnmatch
import math
from typing import Any, Literal
import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers.dense import lengths, low_rank
from plm_jax.training.selection import ParameterError, is_stacked


@dataclasses.dataclass(frozen=True)
class AdapterConfig(Checked):
  """What is trained beside kernels that stay as they are."""

  limits = within(rank='[1, 65536]', alpha='(0, 1e6]', dropout='[0, 1)')

  kind: Literal['none', 'lora', 'rslora', 'dora'] = 'none'
  """nothing, LoRA (Hu et al. 2022), with a factor for higher ranks (Kalajdzievski 2023), or with the lengths of columns
  apart (DoRA, Liu et al. 2024)"""
  rank: int = 8
  """r, columns of the first matrix"""
  alpha: float = 8.0
  """the factor of the product is alpha / r, of rslora alpha / sqrt(r)"""
  targets: tuple[str, ...] = ('query', 'value')
  """names of the projections in layers that have one, by patterns: query, key, value, out, up, gate, down, * (Hu et al.
  2022, section 4.2: queries and values)"""
  dropout: float = 0.0
  """share of what the adapter reads that is dropped"""

  @property
  def factor(self) -> float:
    """On the product of the two matrices."""
    return self.alpha / (self.rank ** 0.5 if self.kind == 'rslora' else self.rank)


def add(params, config: AdapterConfig, key) -> Any:
  """Returns parameters, in flax boxes or not, with an adapter beside each kernel of a layer that is a target.

  The first matrix is drawn uniformly from +-1 / sqrt(inputs), as the authors' code and peft draw it. Raises
  ParameterError where no projection has one of the names.
  """
  def fresh(path, kernel):
    x, inputs = nn.unbox(kernel), inputs_of(path, nn.unbox(kernel))
    before, into, out = x.shape[:1], x.shape[1:1 + inputs], x.shape[1 + inputs:]
    bound = math.prod(into) ** -0.5
    draw = jax.random.fold_in(key, zlib.crc32('/'.join(path).encode()))
    made = {
        'down': (jax.random.uniform(draw, (*before, *into, config.rank), x.dtype, -bound, bound), slice(inputs), 1),
        'up': (jnp.zeros((*before, config.rank, *out), x.dtype), slice(inputs, None), 0),
        'factor': (jnp.full(before, config.factor, x.dtype), slice(0), None)}
    if config.dropout:
      made['dropout'] = jnp.full(before, config.dropout, x.dtype), slice(0), None
    if config.kind == 'dora':
      made['magnitude'] = lengths(inputs, x), slice(inputs, None), None
    def boxed(value, axes, rank):
      if not isinstance(kernel, nn.Partitioned):
        return value
      names = list(kernel.names[1:][axes])
      if rank is not None:
        names.insert(len(names) if rank else 0, None)
      return kernel.replace(value=value, names=(kernel.names[0], *names))
    return {name: boxed(*parts) for name, parts in made.items()}

  found = []
  def at(path, module):
    if path[0] == 'backbone' and is_stacked(path) and any(fnmatch.fnmatchcase(path[-1], to) for to in config.targets):
      found.append(path)
      return module | {'adapter': fresh(path, module['kernel'])}
    return module
  params = each_dense(at, params)
  if not found:
    raise ParameterError(f'no projection of a layer is called {" or ".join(config.targets)}: query, key, value, out, '
                         'up, gate and down are what they are called')
  return params


def merged(params) -> Any:
  """Returns parameters without adapters, whose kernels are what they came to with theirs."""
  def at(path, module):
    if 'adapter' not in module:
      return module
    kernel, adapter = module['kernel'], module['adapter']
    whole = jax.vmap(lambda kernel, adapter: low_rank(inputs_of(path, kernel, 0), kernel, adapter))(kernel, adapter)
    return {name: x for name, x in module.items() if name != 'adapter'} | {'kernel': whole}
  return each_dense(at, params)


def begun(params) -> Any:
  """Returns parameters whose DoRA begins with the kernels that there are: with the lengths of their columns."""
  def at(path, module):
    if 'magnitude' not in module.get('adapter', ()):
      return module
    magnitude = lengths(inputs_of(path, module['kernel']), module['kernel'])
    return module | {'adapter': module['adapter'] | {'magnitude': magnitude}}
  return each_dense(at, params)


def without(params) -> Any:
  """Returns parameters without adapters, as if there never had been any."""
  return each_dense(lambda path, module: {name: x for name, x in module.items() if name != 'adapter'}, params)


def beside(params, other) -> Any:
  """Returns `params`, which have no adapters, with those of `other`."""
  return {name: (beside(params[name], x) if isinstance(x, Mapping) else params[name]) if name in params else x
          for name, x in other.items()}


def each_dense(at, tree, path=()) -> Any:
  """Replaces every module with a kernel in a tree of dictionaries by what `at` makes of its path and it."""
  if 'kernel' in tree and path:
    return at(path, dict(tree))
  return {name: each_dense(at, x, (*path, name)) if isinstance(x, Mapping) else x for name, x in tree.items()}


def inputs_of(path, kernel, layers: int = 1) -> int:
  """Counts the axes that a kernel, behind those of layers, contracts: all but the last on the way out of attention."""
  return kernel.ndim - layers - 1 if path[-1] == 'out' else 1
