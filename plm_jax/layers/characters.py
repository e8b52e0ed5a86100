"""Vectors of words from their characters (Kim et al. 2016; Peters et al. 2018, section 3.4)."""
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers import spelling
from plm_jax.layers.dense import Dense, named
from plm_jax.layers.init import drawn
from plm_jax.layers.mlp import activation


@dataclasses.dataclass(frozen=True)
class CharacterConfig(Checked):
  """Filters over the characters of a word, and the highways behind them; the defaults are the released ELMo's."""

  limits = within(size='[1, inf)', filters='[1, inf)', longest='[3, 1024]')

  size: int = 16
  """width of the vector of a character"""
  filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
  """(characters that a filter sees, how many filters)"""
  highways: int = 2
  """layers in which a gate decides what is transformed and what goes on as it is (Srivastava et al. 2015)"""
  longest: int = spelling.LONGEST
  """ids of characters of a word, the signs of its begin and end among them"""
  activation: Literal['relu', 'tanh'] = 'relu'
  """of the filters, behind the maximum over places"""

  def conflict(self, option):
    """Says that a filter is wider than a word, or that there is none."""
    if not self.filters or max(width for width, _ in self.filters) > self.longest:
      return f'{option("filters")} are one or more, none wider than {option("longest")} {self.longest}'
    return None

  @property
  def features(self) -> int:
    """How many filters there are."""
    return sum(number for _, number in self.filters)

  def flops(self, width: int) -> int:
    """Counts the floating point operations of a word's vector of `width`."""
    filters = sum(size * number * (self.longest - size + 1) for size, number in self.filters) * self.size
    return 2 * (filters + self.highways * 2 * self.features ** 2 + self.features * width)


class Characters(nn.Module):
  """Ids of characters [..., longest] (`spelling`) -> vectors of words [..., D]."""

  cfg: CharacterConfig
  width: int  # D
  dtype: jnp.dtype = jnp.dtype('float32')

  @nn.compact
  def __call__(self, ids):
    cfg = self.cfg
    table = self.param('table', drawn('uniform', 3 ** -0.5), (spelling.IDS, cfg.size), jnp.float32)
    table = jnp.pad(table, ((1, 0), (0, 0)))  # 0 is where there is no word
    x = table[ids.reshape(-1, cfg.longest)].astype(self.dtype)
    found = []
    for number, (size, filters) in enumerate(cfg.filters):
      # Up to 0.05, as in Kim et al. 2016; as released.
      init = drawn('uniform', 0.05 * 3 ** -0.5)
      if cfg.activation == 'tanh':
        init = drawn('normal', (size * cfg.size) ** -0.5)
      kernel = self.param(f'kernel_{number}', init, (size, cfg.size, filters), jnp.float32)
      bias = self.param(f'bias_{number}', nn.initializers.zeros, (filters,), jnp.float32)
      seen = jax.lax.conv_general_dilated(
          x, kernel.astype(self.dtype), (1,), 'VALID', dimension_numbers=('NWC', 'WIO', 'NWC'))
      # The greatest first and the activation of it alone: it never falls.
      found.append(activation(cfg.activation)(seen.max(1) + bias.astype(self.dtype)))
    h = jnp.concatenate(found, -1)
    for number in range(cfg.highways):
      h = Highway(self.dtype, name=f'highway_{number}')(h)
    project = Dense((self.width,), ('mlp', 'width'), True, self.dtype, drawn('normal', cfg.features ** -0.5),
                    name='project')
    return project(h).reshape(*ids.shape[:-1], self.width)


class Highway(nn.Module):
  """x [N, D] -> gate * relu(transformed) + (1 - gate) * x (Srivastava et al. 2015, equation 3).

  Released code calls the kernel of the gate W_carry. At first little is transformed: the gate's bias is -2.
  """

  dtype: jnp.dtype = jnp.dtype('float32')

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    both = Dense((2, width), ('width', None, 'mlp'), False, self.dtype, drawn('normal', width ** -0.5), name='both')(x)
    bias = self.param('bias', named(gate_shut, (None, 'mlp')), (2, width), jnp.float32)
    transformed, gate = jnp.moveaxis(both.astype(jnp.float32) + bias, -2, 0)
    gate = nn.sigmoid(gate)
    return (gate * nn.relu(transformed) + (1 - gate) * x).astype(self.dtype)


def gate_shut(key, shape, dtype=jnp.float32):
  """Initializes biases [2, D]: of what is transformed 0, of the gate -2."""
  del key
  return jnp.stack([jnp.zeros(shape[1:], dtype), jnp.full(shape[1:], -2, dtype)])
