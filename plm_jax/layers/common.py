"""What the parts of a block have in common."""
import dataclasses
from typing import Literal

import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers.init import InitConfig
from plm_jax.layers.norm import Norm, NormConfig

Dtype = Literal['float32', 'bfloat16']


@dataclasses.dataclass(frozen=True)
class CommonConfig(Checked):
  """The sizes of a block, and what all of its parts are made by; `block.BlockConfig` adds the parts themselves."""

  limits = within(
      width='[1, inf)', heads='[1, inf)', mlp_dim='[1, inf)', head_size='[1, inf)', kv_heads='[1, inf)',
      dropout='[0, 1)')

  width: int = 768
  """D, the hidden size"""
  heads: int = 12
  """H, attention heads"""
  mlp_dim: int = 3072
  """F, the hidden size of the position-wise network"""
  head_size: int | None = None
  """A; None: width / heads"""
  kv_heads: int | None = None
  """G, key and value heads, each shared by heads / kv_heads query heads; None: as many as heads"""
  dropout: float = 0.1
  """share of each sublayer's output that is dropped"""
  norm: NormConfig = NormConfig()
  """every norm"""
  init: InitConfig = InitConfig()
  """initial parameters"""
  dtype: Dtype = 'float32'
  """what matrix products compute in; parameters, softmax, norms and losses stay float32"""

  def conflict(self, option):
    """Says which numbers of heads do not divide."""
    if not self.head_size and self.width % self.heads:
      return (f'{option("width")} {self.width} is not a multiple of {option("heads")} {self.heads}; give '
              f'{option("head_size")}')
    if self.kv_heads and self.heads % self.kv_heads:
      return f'{option("heads")} {self.heads} is not a multiple of {option("kv_heads")} {self.kv_heads}'
    return None

  @property
  def head_dim(self) -> int:
    """A, resolved."""
    return self.head_size or self.width // self.heads

  @property
  def key_heads(self) -> int:
    """G, resolved."""
    return self.kv_heads or self.heads

  @property
  def compute(self):
    """The type of matrix products."""
    return jnp.dtype(self.dtype)

  def make_norm(self, name: str) -> Norm:
    """Returns a norm of the block's kind."""
    return Norm(self.norm, self.compute, name=name)
