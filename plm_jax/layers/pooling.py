"""Sentence vectors: how the states of a text's tokens become one vector (Reimers and Gurevych 2019, section 3)."""
import dataclasses
from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.errors import ConfigError
from plm_jax.layers.dense import Dense
from plm_jax.layers.mlp import Activation, activation

Pooling = Literal['mean', 'first', 'max', 'mean_sqrt', 'last', 'weighted_mean']
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
EPS = 1e-12  # least length that a vector is divided by


@dataclasses.dataclass(frozen=True)
class VectorConfig(Checked):
  """From token states to a sentence vector: pooling, then a dense layer, then the length 1, of which each but the first
  may be left out."""

  limits = within(dense='[0, 1048576]')

  pooling: tuple[Pooling, ...] = ('mean',)
  """over the tokens of a text, special ones included: their mean, the first, their maximum, their sum over the root of
  their number, the last, their mean weighted by 1, 2, 3, ...; of several the vectors are joined"""
  dense: int = 0
  """numbers of the vector after a dense layer; 0: no such layer"""
  activation: Activation | Literal['none'] = 'tanh'
  """of the dense layer"""
  dense_bias: bool = True
  """whether the dense layer has one"""
  dense_used: Literal['always', 'training'] = 'always'
  """whether vectors of a trained model go through the dense layer too (of SimCSE without labels only those in training
  do: Gao et al. 2021, section 6.3)"""
  normalise: bool = False
  """vectors have the length 1"""

  def conflict(self, option):
    """Says where no pooling is named."""
    return None if self.pooling else f'{option("pooling")} names no pooling, give one of {", ".join(POOLINGS)}'


class SentenceVector(nn.Module):
  """A vector for each row: pooled, through a dense layer, and of length 1, as far as the configuration says."""

  cfg: VectorConfig

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """output.hidden [B, L, D] (of an encoder-decoder the encoder's), batch['segments'] [B, L] (0 padding) -> [B, W],
    float32; rows None: not in training."""
    cfg = self.cfg
    encoded = getattr(output, 'encoded', None)
    hidden = (output.hidden if encoded is None else encoded).astype(jnp.float32)
    x = jnp.concatenate([pooled(hidden, batch['segments'], how) for how in cfg.pooling], -1)
    if cfg.dense and (cfg.dense_used == 'always' or rows is not None or self.is_initializing()):
      x = Dense((cfg.dense,), ('width', None), cfg.dense_bias, jnp.float32, name='dense')(x)
      x = x if cfg.activation == 'none' else activation(cfg.activation)(x)
    return unit(x) if cfg.normalise else x


def pooled(hidden: jax.Array, segments: jax.Array, how: Pooling) -> jax.Array:
  """Pools the states of each row's tokens: hidden [B, L, D], segments [B, L] (0 padding) -> [B, D].

  A row without tokens gets zeros. Raises ConfigError for a pooling that there is not.
  """
  real = (segments > 0).astype(hidden.dtype)
  if how == 'first':
    return hidden[:, 0] * real[:, :1]
  if how == 'last':
    last = jnp.max(jnp.arange(hidden.shape[1]) * (segments > 0), 1)
    return jnp.take_along_axis(hidden, last[:, None, None], 1)[:, 0] * real.max(1, keepdims=True)
  if how == 'max':
    # The gradient of max() looks for the numbers that are equal to it, and finds none where XLA has rounded otherwise.
    place = jnp.where(real[..., None] > 0, hidden, -jnp.inf).argmax(1)
    return jnp.take_along_axis(hidden, place[:, None], 1)[:, 0] * real.max(1, keepdims=True)
  weights = {'mean': real, 'mean_sqrt': real, 'weighted_mean': real * jnp.cumsum(real, 1)}.get(how)
  if weights is None:
    raise ConfigError(f'pooling is one of {", ".join(POOLINGS)}, got {how!r}')
  total = jnp.einsum('bl,bld->bd', weights, hidden, precision='highest')
  count = jnp.maximum(weights.sum(1, keepdims=True), 1)
  return total / (jnp.sqrt(count) if how == 'mean_sqrt' else count)


def unit(x: jax.Array) -> jax.Array:
  """Scales vectors [..., D] to the length 1; a vector of zeros stays what it is, and has the gradient 0."""
  squares = jnp.square(x).sum(-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(squares, EPS ** 2))
