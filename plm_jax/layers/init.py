"""How parameters begin."""
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked

Initializer = nn.initializers.Initializer
Draw = Literal['truncated', 'rescaled', 'normal', 'uniform']

CUT = 0.87962566103423978  # the standard deviation of a normal that is cut at two of its own


@dataclasses.dataclass(frozen=True)
class InitConfig(Checked):
  """Initial weights. Biases begin with zeros, gains of norms with ones."""

  std: float = 0.02
  """standard deviation of what is drawn"""
  out_std: float | None = None
  """that of the projections back into the residual stream; None: std (GPT-2: std / sqrt(2N))"""
  fan: Literal['none', 'in', 'average'] = 'none'
  """what matrices inside a layer have instead: 1 / sqrt(their inputs), queries less by what logits are not scaled by
  (T5), or that of the mean of inputs and outputs (the original Transformer)"""
  tables: Draw = 'truncated'
  """of tables, and of matrices outside of layers: a normal cut at two deviations, which leaves 0.88 of std (BERT's
  released code), one that has std after the cut, one that is not cut, or a uniform distribution"""
  matrices: Draw = 'truncated'
  """the same, of matrices inside a layer"""

  @property
  def plain(self) -> Initializer:
    """Of tables, and of matrices outside of layers."""
    return drawn(self.tables, self.std)

  def matrix(self, inputs: int, outputs: int, out: bool = False, gain: float = 1.0) -> Initializer:
    """Returns the initializer of a matrix inside a layer; out: of one that leads back into the residual stream."""
    if self.fan == 'none':
      return drawn(self.matrices, self.std if not out or self.out_std is None else self.out_std)
    return drawn(self.matrices, gain * (inputs if self.fan == 'in' else (inputs + outputs) / 2) ** -0.5)


NORMAL = InitConfig(tables='normal', matrices='normal')
"""an uncut normal of 0.02 for all: XLNet, DeBERTa, fairseq, SpanBERT, GPT and GLM as released"""


def drawn(draw: Draw, std: float) -> Initializer:
  """Returns the initializer with the mean 0 and this standard deviation; of `truncated`, before it is cut."""
  match draw:
    case 'truncated':
      return nn.initializers.truncated_normal(std)
    case 'rescaled':
      return nn.initializers.truncated_normal(std / CUT)
    case 'normal':
      return nn.initializers.normal(std)
    case 'uniform':
      edge = std * 3 ** 0.5
      return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -edge, edge)
