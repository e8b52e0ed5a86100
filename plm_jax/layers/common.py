"""Sizes and initialization that the parts of a transformer block share."""
import dataclasses
from typing import Literal

import jax.numpy as jnp

from plm_jax.layers.init import InitConfig
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.validation import ValidatedConfig, intervals

Dtype = Literal['float32', 'bfloat16']


@dataclasses.dataclass(frozen=True)
class CommonConfig(ValidatedConfig):
  """Sizes of a block, norm, initialization and compute dtype; `block.BlockConfig` adds the
  parts."""

  limits = intervals(
      width='[1, inf)', heads='[1, inf)', mlp_dim='[1, inf)', head_size='[1, inf)',
      kv_heads='[1, inf)', dropout='[0, 1)')

  width: int = 768
  """Hidden size."""
  heads: int = 12
  """Number of attention heads."""
  mlp_dim: int = 3072
  """Hidden size of the feed-forward network (MLP)."""
  head_size: int | None = None
  """Size of an attention head; None: width / heads."""
  kv_heads: int | None = None
  """Number of key and value heads, each shared by heads / kv_heads query heads (grouped-query
  attention); None: as many as heads."""
  dropout: float = 0.1
  """Dropout rate of each sublayer's output."""
  norm: NormConfig = NormConfig()
  """Kind of every norm."""
  init: InitConfig = InitConfig()
  """Initialization of the parameters."""
  dtype: Dtype = 'float32'
  """Compute dtype (mixed precision): dtype of activations, the residual stream included.
  Parameters, and sums inside matrix products, softmax, norms and losses, stay float32."""

  def conflict(self, option):
    if not self.head_size and self.width % self.heads:
      return (f'{option("width")} {self.width} is not a multiple of {option("heads")} '
              f'{self.heads}; give {option("head_size")}')
    if self.kv_heads and self.heads % self.kv_heads:
      return (f'{option("heads")} {self.heads} is not a multiple of {option("kv_heads")} '
              f'{self.kv_heads}')
    return None

  @property
  def head_dim(self) -> int:
    """Size of an attention head."""
    return self.head_size or self.width // self.heads

  @property
  def key_heads(self) -> int:
    """Number of key and value heads."""
    return self.kv_heads or self.heads

  @property
  def compute_dtype(self):
    """Dtype of activations and of the factors of matrix products."""
    return jnp.dtype(self.dtype)

  def make_norm(self, name: str) -> Norm:
    """Make a norm of the block's kind."""
    return Norm(self.norm, self.compute_dtype, name=name)
