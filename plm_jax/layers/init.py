"""Initialization of parameters."""
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.validation import ValidatedConfig

Initializer = nn.initializers.Initializer
Distribution = Literal['truncated', 'rescaled', 'normal', 'uniform']

# Standard deviation of a standard normal that is truncated at two standard deviations.
TRUNCATED_STD = 0.87962566103423978


@dataclasses.dataclass(frozen=True)
class InitConfig(ValidatedConfig):
  """Initial weights. Biases are initialized with zeros, scales of norms with ones."""

  std: float = 0.02
  """Standard deviation of initial weights."""
  out_std: float | None = None
  """Standard deviation of projections back into the residual stream; None: std (GPT-2 uses std /
  sqrt(2 * layers))."""
  fan: Literal['none', 'in', 'average', 'third'] = 'none'
  """Fan scaling of matrices inside a layer, in place of std. in: 1 / sqrt(inputs), where queries
  also absorb the factor that logits are not scaled by (T5). average: 1 / sqrt of the mean of inputs
  and outputs (the original Transformer). third: 1 / sqrt(3 * inputs), which drawn uniformly lies
  between -1 and 1 over the root of the inputs, the default of torch.nn.Linear (XLM)."""
  tables: Distribution = 'truncated'
  """Distribution of embedding tables and of matrices outside of layers. truncated: a normal that
  is truncated at two standard deviations, which leaves 0.88 of std (BERT's released code).
  rescaled: one that has std after the truncation. normal: not truncated. uniform: uniform."""
  matrices: Distribution = 'truncated'
  """Distribution of matrices inside a layer, with the same choices as tables."""

  @property
  def table_initializer(self) -> Initializer:
    """Initializer of embedding tables, and of matrices outside of layers."""
    return make_initializer(self.tables, self.std)

  def matrix_initializer(
      self, inputs: int, outputs: int, out: bool = False, gain: float = 1.0) -> Initializer:
    """Return the initializer of a matrix inside a layer.

    Args:
      inputs: fan in.
      outputs: fan out.
      out: the matrix projects back into the residual stream.
      gain: factor on the standard deviation where `fan` sets it.
    """
    if self.fan == 'none':
      std = self.std if not out or self.out_std is None else self.out_std
      return make_initializer(self.matrices, std)
    fans = {'in': inputs, 'average': (inputs + outputs) / 2, 'third': 3 * inputs}
    return make_initializer(self.matrices, gain * fans[self.fan] ** -0.5)


NORMAL_INIT = InitConfig(tables='normal', matrices='normal')
"""A normal of 0.02, not truncated: XLNet, DeBERTa, fairseq, SpanBERT, GPT and GLM as released."""


def make_initializer(distribution: Distribution, std: float) -> Initializer:
  """Return an initializer with mean 0 and standard deviation `std`.

  Of `truncated`, `std` is that before the truncation.
  """
  match distribution:
    case 'truncated':
      return nn.initializers.truncated_normal(std)
    case 'rescaled':
      return nn.initializers.truncated_normal(std / TRUNCATED_STD)
    case 'normal':
      return nn.initializers.normal(std)
    case 'uniform':
      edge = std * 3 ** 0.5
      return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
          key, shape, dtype, -edge, edge)
