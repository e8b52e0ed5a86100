"""The position-wise network of a block."""
import dataclasses
from typing import Literal

import flax.linen as nn
import jax

from plm_jax.checked import Checked, within
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, Dropout
from plm_jax.sharding import constrain

Activation = Literal['gelu', 'gelu_tanh', 'relu', 'silu', 'tanh']


@dataclasses.dataclass(frozen=True)
class MlpConfig(Checked):
  """The position-wise network."""

  limits = within(dropout='[0, 1)')

  activation: Activation = 'gelu'
  """gelu is exact (erf), gelu_tanh the approximation of the released TensorFlow models"""
  gated: bool = False
  """multiply the activated projection by a second one (GLU)"""
  bias: bool = True
  """biases of its projections"""
  bias_in: bool = True
  """there, those of the projections to the hidden units too; False: that of the one back alone has one (MosaicBERT)"""
  norm: bool = False
  """the activated hidden units are normalised, by a norm of the block's kind (NormFormer: Shleifer et al. 2021)"""
  dropout: float = 0.0
  """share of the activated hidden units that are dropped (T5)"""
  dropped: bool = True
  """the block's dropout is of what the network gives, too; False: of the other sublayers alone (MosaicBERT)"""


def activation(name: Activation):
  """Returns the function of that name: `gelu` is the error-function form (transformers' BERT); `gelu_tanh` the
  approximation that the released TensorFlow BERT computes under the name gelu."""
  return {
      'gelu': lambda x: jax.nn.gelu(x, approximate=False),
      'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
      'relu': jax.nn.relu,
      'silu': jax.nn.silu,
      'tanh': jax.numpy.tanh,
  }[name]


class Mlp(nn.Module):
  """x [B, L, D] -> [B, L, D] through F; gated: act(up x) * gate x (Shazeer 2020)."""

  cfg: MlpConfig
  common: CommonConfig

  @nn.compact
  def __call__(self, x, rows=None):
    cfg, width, hidden = self.cfg, self.common.width, self.common.mlp_dim
    def dense(name, features, *axes, init=self.common.init.matrix(width, hidden)):
      bias = cfg.bias and (cfg.bias_in or name == 'down')
      return Dense((features,), axes, bias, self.common.compute, init, name=name)
    # The backward pass keeps what goes in, not the parts of the function: one array [B, L, F] instead of four.
    act = jax.checkpoint(activation(cfg.activation))
    h = act(constrain(dense('up', hidden, 'width', 'mlp')(x, rows), 'batch', None, 'mlp'))
    if cfg.gated:
      h *= constrain(dense('gate', hidden, 'width', 'mlp')(x, rows), 'batch', None, 'mlp')
    h = self.common.make_norm('norm')(h) if cfg.norm else h
    h = Dropout(cfg.dropout, name='dropout')(h, rows)
    return dense('down', width, 'mlp', 'width', init=self.common.init.matrix(hidden, width, out=True))(h, rows)
