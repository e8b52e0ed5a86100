"""The position-wise network of a block."""
from typing import TYPE_CHECKING, Literal

import flax.linen as nn
import jax

from plm_jax.layers.dense import Dense, Dropout
from plm_jax.sharding import constrain

if TYPE_CHECKING:
  from plm_jax.layers.block import BlockConfig  # which imports this file

Activation = Literal['gelu', 'gelu_tanh', 'relu', 'silu', 'tanh']


def activation(name: Activation):
  """`gelu` is the error-function form (transformers' BERT); `gelu_tanh` the approximation that the released
  TensorFlow BERT computes under the name gelu."""
  return {
      'gelu': lambda x: jax.nn.gelu(x, approximate=False),
      'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
      'relu': jax.nn.relu,
      'silu': jax.nn.silu,
      'tanh': jax.numpy.tanh,
  }[name]


class Mlp(nn.Module):
  """x [B, L, D] -> [B, L, D] through F; gated: act(up x) * gate x (Shazeer 2020)."""

  cfg: 'BlockConfig'

  @nn.compact
  def __call__(self, x, rows=None):
    cfg = self.cfg
    def dense(name, features, *axes, init=cfg.weights(cfg.width, cfg.mlp_dim)):
      return Dense((features,), axes, cfg.bias and cfg.mlp_bias, cfg.compute, init, name=name)
    # The backward pass keeps what goes in, not the parts of the function: one array [B, L, F] instead of four.
    act = jax.checkpoint(activation(cfg.activation))
    h = act(constrain(dense('up', cfg.mlp_dim, 'width', 'mlp')(x), 'batch', None, 'mlp'))
    if cfg.gated:
      h *= constrain(dense('gate', cfg.mlp_dim, 'width', 'mlp')(x), 'batch', None, 'mlp')
    h = Dropout(cfg.mlp_dropout, name='dropout')(h, rows)
    return dense('down', cfg.width, 'mlp', 'width', init=cfg.weights(cfg.mlp_dim, cfg.width, out=True))(h)
