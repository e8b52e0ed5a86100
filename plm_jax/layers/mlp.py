"""The feed-forward network (MLP) of a transformer block."""
import dataclasses
from typing import Literal

import flax.linen as nn
import jax

from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, Dropout
from plm_jax.sharding import constrain
from plm_jax.validation import ValidatedConfig, intervals

Activation = Literal['gelu', 'gelu_tanh', 'relu', 'silu', 'tanh']


@dataclasses.dataclass(frozen=True)
class MlpConfig(ValidatedConfig):
  """The feed-forward network of a block."""

  limits = intervals(dropout='[0, 1)')

  activation: Activation = 'gelu'
  """Activation function. gelu is exact (erf); gelu_tanh is the approximation of the released
  TensorFlow models."""
  gated: bool = False
  """Multiply the activated projection by a second projection (gated linear unit, GLU)."""
  bias: bool = True
  """The projections have biases."""
  bias_in: bool = True
  """With bias, the projections to the hidden units have biases, too; False: only the projection
  back has one (MosaicBERT)."""
  norm: bool = False
  """The activated hidden units are normalized, by a norm of the block's kind (NormFormer: Shleifer
  et al. 2021)."""
  dropout: float = 0.0
  """Dropout rate of the activated hidden units (T5)."""
  dropped: bool = True
  """The block's dropout applies to the network's output, too; False: only to the other sublayers
  (MosaicBERT)."""


def activation(name: Activation):
  """Return the activation function of a name.

  `gelu` is the error-function form (transformers' BERT). `gelu_tanh` is the approximation that the
  released TensorFlow BERT computes under the name gelu.
  """
  return {
      'gelu': lambda x: jax.nn.gelu(x, approximate=False),
      'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
      'relu': jax.nn.relu,
      'silu': jax.nn.silu,
      'tanh': jax.numpy.tanh,
  }[name]


class Mlp(nn.Module):
  """Feed-forward network: x [batch, length, hidden] -> the same shape, through `mlp_dim` units.

  With `gated` the hidden units are act(up x) * gate x (Shazeer 2020).
  """

  cfg: MlpConfig
  common: CommonConfig

  @nn.compact
  def __call__(self, x, row_ids=None):
    cfg, width, hidden = self.cfg, self.common.width, self.common.mlp_dim
    dtype, init = self.common.compute_dtype, self.common.init
    init_in = init.matrix_initializer(width, hidden)
    init_out = init.matrix_initializer(hidden, width, out=True)
    bias_in = cfg.bias and cfg.bias_in
    # Activation checkpointing of the activation: the backward pass keeps its input, not the parts
    # of the function: one array [B, L, F] instead of four.
    act = jax.checkpoint(activation(cfg.activation))

    up = Dense((hidden,), ('width', 'mlp'), bias_in, dtype, init_in, name='up')
    h = act(constrain(up(x, row_ids), 'batch', None, 'mlp'))
    if cfg.gated:
      gate = Dense((hidden,), ('width', 'mlp'), bias_in, dtype, init_in, name='gate')
      h *= constrain(gate(x, row_ids), 'batch', None, 'mlp')
    if cfg.norm:
      h = self.common.make_norm('norm')(h)
    h = Dropout(cfg.dropout, name='dropout')(h, row_ids)
    down = Dense((width,), ('mlp', 'width'), cfg.bias, dtype, init_out, name='down')
    return down(h, row_ids)
