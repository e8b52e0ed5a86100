"""Low-rank adapters (LoRA, rsLoRA, DoRA): two small trained matrices whose product is added to a
kernel.

    adapter/down       [.., *inputs, r]    sampled as the authors sample it
    adapter/up         [.., r, *features]  zeros at first, so that the model is unchanged
    adapter/factor     [..]                scales the product; not trained
    adapter/magnitude  [.., *features]     of DoRA: the norm of each column of the sum
    adapter/dropout    [..]                dropout rate of the input, where it is not 0; not trained

`layers.dense.Dense` reads them next to its kernel; .. are the layers of a stack.
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

from plm_jax.layers.dense import column_norms, merge_low_rank
from plm_jax.optim.trainable import ParameterError, is_stacked
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class AdapterConfig(ValidatedConfig):
  """Adapters of frozen kernels."""

  limits = intervals(rank='[1, 65536]', alpha='(0, 1e6]', dropout='[0, 1)')
  counts_with = dict.fromkeys(
      ('rank', 'alpha', 'targets', 'dropout'), ('kind', ('lora', 'rslora', 'dora')))

  kind: Literal['none', 'lora', 'rslora', 'dora'] = 'none'
  """Kind of adapter. lora: LoRA (Hu et al. 2022); rslora: rsLoRA, scaled for higher ranks
  (Kalajdzievski 2023); dora: DoRA, which trains column norms separately (Liu et al. 2024)."""
  rank: int = 8
  """Rank r of the adapter matrices."""
  alpha: float = 8.0
  """Scale of the product: its factor is alpha / r, that of rslora alpha / sqrt(r)."""
  targets: tuple[str, ...] = ('query', 'value')
  """Names of the projections in layers that get an adapter, as patterns: query, key, value, out,
  up, gate, down, * (Hu et al. 2022, section 4.2: queries and values)."""
  dropout: float = 0.0
  """Dropout rate of the adapter's input."""

  @property
  def factor(self) -> float:
    """Factor of the product of the two matrices."""
    if self.kind == 'rslora':
      return self.alpha / self.rank ** 0.5
    return self.alpha / self.rank


def add(params, config: AdapterConfig, key) -> Any:
  """Add an adapter to each kernel of a layer that is a target.

  The first matrix is uniform in +-1 / sqrt(inputs), as the authors' code and peft sample it.

  Args:
    params: parameters, in flax boxes or not.
    config: which adapters.
    key: random key.

  Raises:
    ParameterError: no projection has one of the target names.
  """
  def init(path, kernel):
    """Make the adapter of a kernel, in boxes where the kernel has one."""
    x = nn.unbox(kernel)
    inputs = count_input_axes(path, x)
    layers, into, out = x.shape[:1], x.shape[1:1 + inputs], x.shape[1 + inputs:]
    bound = math.prod(into) ** -0.5
    own_key = jax.random.fold_in(key, zlib.crc32('/'.join(path).encode()))
    down_shape = layers + into + (config.rank,)
    down = jax.random.uniform(own_key, down_shape, x.dtype, -bound, bound)
    up = jnp.zeros(layers + (config.rank,) + out, x.dtype)

    # Logical axes: those of the kernel's inputs or outputs, with the rank between.
    boxed = isinstance(kernel, nn.Partitioned)
    axes = tuple(kernel.names) if boxed else ()
    def box(value, names):
      return kernel.replace(value=value, names=names) if boxed else value
    layer_axes, input_axes, output_axes = axes[:1], axes[1:1 + inputs], axes[1 + inputs:]
    adapter = {
        'down': box(down, layer_axes + input_axes + (None,)),
        'up': box(up, layer_axes + (None,) + output_axes),
        'factor': box(jnp.full(layers, config.factor, x.dtype), layer_axes)}
    if config.dropout:
      adapter['dropout'] = box(jnp.full(layers, config.dropout, x.dtype), layer_axes)
    if config.kind == 'dora':
      adapter['magnitude'] = box(column_norms(inputs, x), layer_axes + output_axes)
    return adapter

  found = []
  def adapt(path, module):
    is_target = any(fnmatch.fnmatchcase(path[-1], target) for target in config.targets)
    if path[0] != 'backbone' or not is_stacked(path) or not is_target:
      return module
    found.append(path)
    return module | {'adapter': init(path, module['kernel'])}
  params = map_dense(adapt, params)
  if not found:
    raise ParameterError(
        f'no projection of a layer is called {" or ".join(config.targets)}: query, key, value, '
        'out, up, gate and down are what they are called')
  return params


def merge(params) -> Any:
  """Merge adapters into their kernels; the result has no adapters."""
  def merge_module(path, module):
    if 'adapter' not in module:
      return module
    def merge_layer(kernel, adapter):
      return merge_low_rank(count_input_axes(path, kernel, 0), kernel, adapter)
    kernel = jax.vmap(merge_layer)(module['kernel'], module['adapter'])
    del module['adapter']
    return module | {'kernel': kernel}
  return map_dense(merge_module, params)


def init_magnitudes(params) -> Any:
  """Initialize the magnitudes of DoRA with the column norms of the kernels."""
  def init_module(path, module):
    if 'magnitude' not in module.get('adapter', ()):
      return module
    magnitude = column_norms(count_input_axes(path, module['kernel']), module['kernel'])
    return module | {'adapter': module['adapter'] | {'magnitude': magnitude}}
  return map_dense(init_module, params)


def remove(params) -> Any:
  """Return parameters without their adapters."""
  def remove_adapter(path, module):
    del path
    module.pop('adapter', None)
    return module
  return map_dense(remove_adapter, params)


def attach(params, other) -> Any:
  """Return `params`, which have no adapters, with the adapters of `other`."""
  result = {}
  for name, x in other.items():
    if name not in params:
      result[name] = x
    elif isinstance(x, Mapping):
      result[name] = attach(params[name], x)
    else:
      result[name] = params[name]
  return result


def map_dense(function, tree, path=()) -> Any:
  """Replace each module with a kernel in a tree of dictionaries by function(path, module)."""
  if 'kernel' in tree and path:
    return function(path, dict(tree))
  result = {}
  for name, x in tree.items():
    if isinstance(x, Mapping):
      x = map_dense(function, x, (*path, name))
    result[name] = x
  return result


def count_input_axes(path, kernel, layers: int = 1) -> int:
  """Count the input axes that a kernel contracts, after those of layers.

  Attention's output projection contracts all axes but the last.
  """
  return kernel.ndim - layers - 1 if path[-1] == 'out' else 1
