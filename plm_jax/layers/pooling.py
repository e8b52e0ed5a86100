"""Pooling of token states into sentence vectors (Reimers and Gurevych 2019, section 3)."""
from collections.abc import Sequence
import dataclasses
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError
from plm_jax.layers.dense import Dense
from plm_jax.layers.mlp import Activation, activation
from plm_jax.validation import ValidatedConfig, intervals

Pooling = Literal['mean', 'first', 'max', 'mean_sqrt', 'last', 'weighted_mean']
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
MIN_LENGTH = 1e-12  # least length that a vector is divided by


@dataclasses.dataclass(frozen=True)
class DenseConfig(ValidatedConfig):
  """A dense layer after the first one."""

  limits = intervals(size='[1, 1048576]')

  size: int = 768
  """Size of its output."""
  activation: Activation | Literal['none'] = 'none'
  """Activation of the layer."""
  bias: bool = True
  """The layer has a bias."""


@dataclasses.dataclass(frozen=True)
class VectorConfig(ValidatedConfig):
  """Sentence vectors: pooling of token states, optional dense layers, optional L2 norm."""

  limits = intervals(dense='[0, 1048576]', truncate='[0, 1048576]')

  pooling: tuple[Pooling, ...] = ('mean',)
  """Pooling over the tokens of a text, special tokens included. mean: their mean; first: the first
  token; max: their maximum; mean_sqrt: their sum over the root of their number; last: the last
  token; weighted_mean: their mean weighted by 1, 2, 3, ...; several are concatenated."""
  dense: int = 0
  """Size of a dense layer after pooling; 0: no such layer."""
  activation: Activation | Literal['none'] = 'tanh'
  """Activation of the dense layer."""
  dense_bias: bool = True
  """The dense layer has a bias."""
  dense_used: Literal['always', 'training'] = 'always'
  """When the dense layer is used: always, or in training only (SimCSE without labels: Gao et al.
  2021, section 6.3)."""
  more: tuple[DenseConfig, ...] = ()
  """Dense layers after the first one, as some released models have them."""
  normalize: bool = False
  """Scale vectors to length 1."""
  truncate: int = 0
  """Numbers of a vector that are kept, from the first on, as the last step; 0: all."""

  def conflict(self, option):
    if not self.pooling:
      return f'{option("pooling")} names no pooling, give one of {", ".join(POOLINGS)}'
    if self.more and (not self.dense or self.dense_used != 'always'):
      return f'{option("more")} needs {option("dense")}, a first layer that is always used'
    return None

  def size(self, model: Any) -> int:
    """Return the size of a vector of a model."""
    pooled = model.block.width * len(self.pooling)
    size = self.more[-1].size if self.more else self.dense or pooled
    return min(size, self.truncate or size)

  def make_head(self, model: Any) -> nn.Module:
    """Make the head that computes the vectors."""
    del model
    return SentenceVector(self)


class SentenceVector(nn.Module):
  """Head that computes a sentence vector per row: pooling, dense layer, L2 norm."""

  cfg: VectorConfig

  @nn.compact
  def __call__(self, output, batch, row_ids=None, skip=0):
    """Compute sentence vectors.

    Args:
      output: the model's output; `encoded` of an encoder-decoder, else `hidden` [batch, length,
        hidden].
      batch: `segments` [batch, length], 0 is padding.
      row_ids: None: not in training.
      skip: tokens at the start of each row that are not pooled.

    Returns:
      [batch, size] float32.
    """
    cfg = self.cfg
    hidden = output.hidden if output.encoded is None else output.encoded
    hidden = hidden.astype(jnp.float32)
    x = jnp.concatenate([pool(hidden, batch['segments'], how, skip) for how in cfg.pooling], -1)
    training = row_ids is not None or self.is_initializing()
    if cfg.dense and (cfg.dense_used == 'always' or training):
      x = apply_dense_layers((DenseConfig(cfg.dense, cfg.activation, cfg.dense_bias), *cfg.more), x)
    x = l2_normalize(x) if cfg.normalize else x
    return x[:, :cfg.truncate] if cfg.truncate else x


def apply_dense_layers(layers: Sequence[DenseConfig], x: jax.Array) -> jax.Array:
  """Apply the layers dense, dense_1, ... of the module that calls this to x [..., size]."""
  for number, layer in enumerate(layers):
    name = f'dense_{number}' if number else 'dense'
    x = Dense((layer.size,), ('width', None), layer.bias, jnp.float32, name=name)(x)
    x = x if layer.activation == 'none' else activation(layer.activation)(x)
  return x


def pool(hidden: jax.Array, segments: jax.Array, how: Pooling, skip: int = 0) -> jax.Array:
  """Pool the states of each row's tokens.

  Args:
    hidden: [batch, length, hidden].
    segments: [batch, length], 0 is padding.
    how: kind of pooling.
    skip: tokens at the start of each row that are left out; positions count from the row's start.

  Returns:
    [batch, hidden]; zeros for a row without tokens.

  Raises:
    ConfigError: there is no such pooling.
  """
  pooled = token_mask(segments, skip)
  real = pooled.astype(hidden.dtype)
  if how in ('first', 'last'):
    last = jnp.max(jnp.arange(hidden.shape[1]) * pooled, 1)
    place = last if how == 'last' else jnp.argmax(pooled, 1)
    token = jnp.take_along_axis(hidden, place[:, None, None], 1)[:, 0]
    return token * real.max(1, keepdims=True)
  if how == 'max':
    # The gradient of max() looks for the numbers that are equal to the maximum, and finds none
    # where XLA has rounded otherwise.
    place = jnp.where(real[..., None] > 0, hidden, -jnp.inf).argmax(1)
    token = jnp.take_along_axis(hidden, place[:, None], 1)[:, 0]
    return token * real.max(1, keepdims=True)
  if how in ('mean', 'mean_sqrt'):
    weights = real
  elif how == 'weighted_mean':
    weights = real * jnp.cumsum(segments > 0, 1)
  else:
    raise ConfigError(f'pooling is one of {", ".join(POOLINGS)}, got {how!r}')
  total = jnp.einsum('bl,bld->bd', weights, hidden, precision='highest')
  count = jnp.maximum(weights.sum(1, keepdims=True), 1)
  return total / (jnp.sqrt(count) if how == 'mean_sqrt' else count)


def token_mask(segments: jax.Array, skip: int = 0) -> jax.Array:
  """Mask the tokens of each row that are pooled, [batch, length]; skip: those left out at its
  start."""
  return (segments > 0) & (jnp.arange(segments.shape[1]) >= skip)


def l2_normalize(x: jax.Array) -> jax.Array:
  """Scale vectors [..., size] to length 1 (L2 norm); a vector of zeros stays, with gradient 0."""
  squares = jnp.square(x).sum(-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(squares, MIN_LENGTH ** 2))
