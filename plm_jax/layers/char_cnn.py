"""Character CNN: vectors of words from their characters (Kim et al. 2016; ELMo, Peters et al.
2018)."""
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers import char_ids
from plm_jax.layers.dense import Dense, with_logical_axes
from plm_jax.layers.init import make_initializer
from plm_jax.layers.mlp import activation
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class CharacterConfig(ValidatedConfig):
  """Convolutions over the characters of a word, then highway layers.

  The defaults are those of the released ELMo.
  """

  limits = intervals(size='[1, inf)', filters='[1, inf)', longest='[3, 1024]')

  size: int = 16
  """Size of a character embedding."""
  filters: tuple[tuple[int, int], ...] = (
      (1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
  """Convolutions, as pairs of (width in characters, number of filters)."""
  highways: int = 2
  """Number of highway layers, whose gates mix their input and its transformation (Srivastava et al.
  2015)."""
  longest: int = char_ids.MAX_CHARACTERS
  """Character ids per word, begin and end marks included."""
  activation: Literal['relu', 'tanh'] = 'relu'
  """Activation of the filters, after max pooling over the word."""

  def conflict(self, option):
    if not self.filters or max(width for width, _ in self.filters) > self.longest:
      return (f'{option("filters")} are one or more, none wider than {option("longest")} '
              f'{self.longest}')
    return None

  @property
  def features(self) -> int:
    """Number of filters of all widths."""
    return sum(number for _, number in self.filters)

  def flops(self, width: int) -> int:
    """Count the FLOPs of one word's vector of size `width`."""
    convolutions = sum(size * number * (self.longest - size + 1) * self.size
                       for size, number in self.filters)
    highways = self.highways * 2 * self.features ** 2
    return 2 * (convolutions + highways + self.features * width)


class CharacterCNN(nn.Module):
  """Character CNN with highway layers (Peters et al. 2018, section 3.4).

  Character ids [..., longest] (`char_ids`) -> vectors of words [..., hidden].
  """

  cfg: CharacterConfig
  width: int
  dtype: jnp.dtype = jnp.dtype('float32')

  @nn.compact
  def __call__(self, ids):
    cfg = self.cfg
    # Character embeddings; id 0, where there is no word, has the vector 0.
    shape = char_ids.NUM_CHARACTER_IDS, cfg.size
    table = self.param('table', make_initializer('uniform', 3 ** -0.5), shape, jnp.float32)
    table = jnp.pad(table, ((1, 0), (0, 0)))
    x = table[ids.reshape(-1, cfg.longest)].astype(self.dtype)

    # Convolutions and max pooling.
    features = []
    for number, (size, filters) in enumerate(cfg.filters):
      # As released: up to 0.05, as in Kim et al. 2016, except for tanh.
      init = (make_initializer('normal', (size * cfg.size) ** -0.5) if cfg.activation == 'tanh'
              else make_initializer('uniform', 0.05 * 3 ** -0.5))
      kernel = self.param(f'kernel_{number}', init, (size, cfg.size, filters), jnp.float32)
      bias = self.param(f'bias_{number}', nn.initializers.zeros, (filters,), jnp.float32)
      convolved = jax.lax.conv_general_dilated(
          x, kernel.astype(self.dtype), (1,), 'VALID', dimension_numbers=('NWC', 'WIO', 'NWC'))
      # The maximum first, and the activation of it alone: the activation is monotonic.
      features.append(activation(cfg.activation)(convolved.max(1) + bias.astype(self.dtype)))
    h = jnp.concatenate(features, -1)

    # Highway layers and the projection.
    for number in range(cfg.highways):
      h = Highway(self.dtype, name=f'highway_{number}')(h)
    init = make_initializer('normal', cfg.features ** -0.5)
    project = Dense((self.width,), ('mlp', 'width'), True, self.dtype, init, name='project')
    return project(h).reshape(*ids.shape[:-1], self.width)


class Highway(nn.Module):
  """Highway layer (Srivastava et al. 2015, equation 3).

  x [words, features] -> gate * relu(transformed) + (1 - gate) * x. Released code calls the kernel
  of the gate W_carry. The gate's bias is initialized with -2, so that little is transformed at
  first.
  """

  dtype: jnp.dtype = jnp.dtype('float32')

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    init = make_initializer('normal', width ** -0.5)
    both = Dense((2, width), ('width', None, 'mlp'), False, self.dtype, init, name='both')(x)
    # The gate begins closed: 0 for the transformation, -2 for the gate.
    init = with_logical_axes(
        lambda key, shape, dtype: jnp.zeros(shape, dtype).at[1].set(-2), (None, 'mlp'))
    bias = self.param('bias', init, (2, width), jnp.float32)
    transformed, gate = jnp.moveaxis(both.astype(jnp.float32) + bias, -2, 0)
    gate = nn.sigmoid(gate)
    return (gate * nn.relu(transformed) + (1 - gate) * x).astype(self.dtype)
