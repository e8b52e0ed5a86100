"""LayerNorm and RMSNorm, computed in float32."""
import dataclasses
import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.kernels import gpu
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class NormConfig(ValidatedConfig):
  """A norm over the features of each token."""

  limits = intervals(eps='[0, 1)')

  kind: Literal['layer', 'layer_scale', 'plain', 'rms', 'rms_offset'] = 'layer'
  """Kind of norm. layer: LayerNorm (Ba et al. 2016). layer_scale: LayerNorm without a bias (PaLM).
  plain: LayerNorm without parameters (LTG-BERT). rms: RMSNorm (Zhang and Sennrich 2019).
  rms_offset: RMSNorm whose scale is 1 + a parameter that is initialized with zeros (Gemma)."""
  eps: float = 1e-12
  """Epsilon that is added to the variance."""


class Norm(nn.Module):
  """Normalize x [..., hidden] in float32, and return it in `dtype`."""

  cfg: NormConfig
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1:]
    scale, bias = jnp.ones(()), None if self.cfg.kind.startswith('rms') else jnp.zeros(())
    if self.cfg.kind == 'rms_offset':
      scale += self.param('scale', nn.initializers.zeros, width, jnp.float32)
    elif self.cfg.kind != 'plain':
      scale = self.param('scale', nn.initializers.ones, width, jnp.float32)
    if self.cfg.kind == 'layer':
      bias = self.param('bias', nn.initializers.zeros, width, jnp.float32)
    if gpu.is_gpu():
      y: Any = gpu.normalize(x, scale, bias, self.cfg.eps)
      return y.astype(self.dtype)
    # Activation checkpointing: the backward pass keeps x alone, one array instead of three in
    # float32. The barriers that come with it also keep the compiler for TPU v6e from kernels so
    # deep that its stack overflows.
    rematerialized = jax.checkpoint(functools.partial(normalize, eps=self.cfg.eps))
    return rematerialized(x, scale, bias).astype(self.dtype)


def normalize(x, scale, bias, eps: float):
  """Normalize x [..., hidden] with scale and bias [hidden], in float32; bias None: RMSNorm."""
  x = x.astype(jnp.float32)
  if bias is not None:
    x -= x.mean(-1, keepdims=True)
  # The mean of the squares of centered numbers: E[x^2] - E[x]^2 loses digits.
  y = x * jnp.reciprocal(jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + eps)) * scale
  return y if bias is None else y + bias
