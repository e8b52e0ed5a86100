"""Normalisation in float32."""
import dataclasses
import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within


@dataclasses.dataclass(frozen=True)
class NormConfig(Checked):
  """A norm over the features of each token."""

  limits = within(eps='[0, 1)')

  kind: Literal['layer', 'layer_scale', 'plain', 'rms'] = 'layer'
  """LayerNorm (Ba et al. 2016), the same without a bias (PaLM), or without parameters (LTG-BERT), or RMSNorm (Zhang and
  Sennrich 2019)"""
  eps: float = 1e-12
  """added to the variance"""


class Norm(nn.Module):
  """x [..., D], normalised in float32 -> dtype."""

  cfg: NormConfig
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x):
    plain = self.cfg.kind == 'plain'
    scale = jnp.ones(()) if plain else self.param('scale', nn.initializers.ones, x.shape[-1:], jnp.float32)
    bias = None if self.cfg.kind == 'rms' else jnp.zeros(())
    if self.cfg.kind == 'layer':
      bias = self.param('bias', nn.initializers.zeros, x.shape[-1:], jnp.float32)
    # The backward pass keeps x, not what it becomes on the way: one array [B, L, D] instead of three in float32. The
    # barriers that come with it also keep the compiler for TPU v6e from kernels so deep that its stack overflows.
    normalise = jax.checkpoint(functools.partial(normalised, eps=self.cfg.eps))
    return normalise(x, scale, bias).astype(self.dtype)


def normalised(x, scale, bias, eps: float):
  """Normalises x [..., D] by scale and bias [D] (None: RMSNorm), in float32."""
  x = x.astype(jnp.float32)
  if bias is not None:
    x -= x.mean(-1, keepdims=True)
  # The mean of squares of what is already centred: E[x^2] - E[x]^2 loses digits.
  y = x * jnp.reciprocal(jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + eps)) * scale
  return y if bias is None else y + bias
