"""Normalisation in float32."""
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

NormKind = Literal['layer', 'rms']


class Norm(nn.Module):
  """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of x [..., D], computed in float32 -> dtype."""

  kind: NormKind
  eps: float
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x):
    x = x.astype(jnp.float32)
    scale = self.param('scale', nn.initializers.ones, x.shape[-1:], jnp.float32)
    if self.kind == 'layer':
      x -= x.mean(-1, keepdims=True)
    # The mean of squares of what is already centred: E[x^2] - E[x]^2 loses digits.
    y = x * jnp.reciprocal(jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + self.eps)) * scale
    if self.kind == 'layer':
      y += self.param('bias', nn.initializers.zeros, x.shape[-1:], jnp.float32)
    return y.astype(self.dtype)
