"""How parameters begin."""
import dataclasses
from typing import Literal

import flax.linen as nn

from plm_jax.checked import Checked

Initializer = nn.initializers.Initializer


@dataclasses.dataclass(frozen=True)
class InitConfig(Checked):
  """Initial weights. Biases begin with zeros, gains of norms with ones."""

  std: float = 0.02
  """standard deviation, normal cut at twice that"""
  out_std: float | None = None
  """that of the projections back into the residual stream; None: std (GPT-2: std / sqrt(2N))"""
  fan: Literal['none', 'in', 'average'] = 'none'
  """what matrices inside a layer have instead: 1 / sqrt(their inputs), queries less by what logits are not scaled by
  (T5), or that of the mean of inputs and outputs (the original Transformer)"""

  @property
  def plain(self) -> Initializer:
    """Of tables, and of matrices outside of layers."""
    return truncated_normal(self.std)

  def matrix(self, inputs: int, outputs: int, out: bool = False, gain: float = 1.0) -> Initializer:
    """Returns the initializer of a matrix inside a layer; out: of one that leads back into the residual stream."""
    if self.fan == 'none':
      return self.plain if not out or self.out_std is None else truncated_normal(self.out_std)
    return truncated_normal(gain * (inputs if self.fan == 'in' else (inputs + outputs) / 2) ** -0.5)


def truncated_normal(std: float) -> Initializer:
  """Returns a normal cut at two standard deviations, as TensorFlow's: the width after the cut is 0.88 `std`."""
  return nn.initializers.truncated_normal(std)
