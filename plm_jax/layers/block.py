"""The transformer block: one for every family, varied by values."""
import dataclasses
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers.attention import Attention, Keys, Past, Visible
from plm_jax.layers.dense import Dropout, truncated_normal
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.norm import Norm, NormKind
from plm_jax.layers.positions import NoPosition
from plm_jax.sharding import constrain

Dtype = Literal['float32', 'bfloat16']
Projection = Literal['query', 'key', 'value', 'out']


@dataclasses.dataclass(frozen=True)
class BlockConfig(Checked):
  """The hyper-parameters of one layer."""

  limits = within(
      width='[1, inf)', heads='[1, inf)', mlp_dim='[1, inf)', norm_eps='[0, 1)', dropout='[0, 1)',
      attention_dropout='[0, 1)', mlp_dropout='[0, 1)')

  width: int = 768
  """D, the hidden size"""
  heads: int = 12
  """H, attention heads; their size is width / heads unless head_size says otherwise"""
  mlp_dim: int = 3072
  """F, the hidden size of the position-wise network"""
  head_size: int = 0
  """A; 0: width / heads"""
  kv_heads: int = 0
  """G, key and value heads, each shared by heads / kv_heads query heads; 0: as many as heads"""
  activation: Activation = 'gelu'
  """gelu is exact (erf), gelu_tanh the approximation of the released TensorFlow models"""
  gated: bool = False
  """multiply the activated projection by a second one (GLU)"""
  norm: NormKind = 'layer'
  """LayerNorm or RMSNorm"""
  norm_at: Literal['pre', 'post'] = 'post'
  """before each sublayer, with one more norm after the stack; or after each residual sum"""
  parallel: bool = False
  """attention and the position-wise network read the same norm and are summed, one residual for both (PaLM)"""
  norm_eps: float = 1e-12
  """added to the variance"""
  bias: bool = True
  """biases in attention and the position-wise network"""
  attention_bias: tuple[Projection, ...] = ('query', 'key', 'value', 'out')
  """projections of attention that have biases, where there are any at all; softmax does not feel that of keys"""
  mlp_bias: bool = True
  """biases in the position-wise network, where there are any at all"""
  logit_scale: float = 0.0
  """factor on attention logits; 0: 1 / sqrt(head size)"""
  position: NoPosition = NoPosition()
  """the scheme that acts inside attention"""
  cross: bool = False
  """attend to a memory (an encoder's output) after attending to oneself"""
  dropout: float = 0.1
  """share of each sublayer's output that is dropped"""
  attention_dropout: float = 0.1
  """share of attention probabilities that are dropped"""
  mlp_dropout: float = 0.0
  """share of the activated hidden units of the position-wise network that are dropped (T5)"""
  init_std: float = 0.02
  """standard deviation of initial weights, normal cut at twice that"""
  out_std: float = 0.0
  """that of the projections back into the residual stream; 0: init_std (GPT-2: init_std / sqrt(2N))"""
  fan_in: bool = False
  """matrices inside a layer have 1 / sqrt(their inputs) instead, queries less by what logits are not scaled by (T5)"""
  fan_out: bool = False
  """that of the mean of inputs and outputs (the original Transformer)"""
  dtype: Dtype = 'float32'
  """what matrix products compute in; parameters, softmax, norms and losses stay float32"""

  def conflict(self, option):
    if not self.head_size and self.width % self.heads:
      return (f'{option("width")} {self.width} is not a multiple of {option("heads")} {self.heads}; give '
              f'{option("head_size")}')
    if self.kv_heads and self.heads % self.kv_heads:
      return f'{option("heads")} {self.heads} is not a multiple of {option("kv_heads")} {self.kv_heads}'
    if self.parallel and (self.norm_at != 'pre' or self.cross):
      return f'{option("parallel")}: such a block has its norm before it (norm_at pre) and no cross attention'
    return None

  @property
  def head_dim(self) -> int:
    return self.head_size or self.width // self.heads

  @property
  def key_heads(self) -> int:
    return self.kv_heads or self.heads

  @property
  def scale(self) -> float:
    return self.logit_scale or self.head_dim ** -0.5

  @property
  def compute(self):
    return jnp.dtype(self.dtype)

  @property
  def init(self) -> nn.initializers.Initializer:
    return truncated_normal(self.init_std)

  def weights(self, inputs: int, outputs: int, out: bool = False, gain: float = 1.0) -> nn.initializers.Initializer:
    """Of a matrix inside a layer; out: one that leads back into the residual stream."""
    if not self.fan_in:
      return self.out_init if out else self.init
    return truncated_normal(gain * ((inputs + outputs) / 2 if self.fan_out else inputs) ** -0.5)

  @property
  def out_init(self) -> nn.initializers.Initializer:
    return truncated_normal(self.out_std or self.init_std)

  def make_norm(self, name: str) -> Norm:
    return Norm(self.norm, self.norm_eps, self.compute, name=name)


class Memory(NamedTuple):
  """What cross attention reads: an encoder's output."""

  hidden: jax.Array | None
  """[B, K, D]; None: `keys` stand for it"""
  mask: jax.Array | None
  """[B, 1, 1|Q, K], True where visible; None: everything"""
  keys: Keys | None = None
  """what this layer made of the hidden states before"""


class Block(nn.Module):
  """Self attention, cross attention where cfg.cross, MLP; each with dropout, residual and norm."""

  cfg: BlockConfig

  @nn.compact
  def __call__(self, x, visible: Visible, memory: Memory | None = None, rows=None, past: Past | None = None, kv=None):
    """x [B, Q, D] attends to kv [B, K, D] (itself if None) behind the past, then to the memory -> [B, Q, D].

    A separate kv is what XLNet's query stream and DeBERTa's mask decoder need. rows [B] key dropout; None: no dropout.
    """
    cfg = self.cfg
    pre = cfg.norm_at == 'pre'

    def residual(name, sublayer, x):
      norm = cfg.make_norm(f'{name}_norm')
      drop = Dropout(cfg.dropout, name=f'{name}_dropout')
      y = x + drop(sublayer(norm(x), norm) if pre else sublayer(x, lambda kv: kv), rows)
      return constrain(y if pre else norm(y), 'batch', None, 'stream')

    def attention(y, norm):
      return Attention(cfg, cfg.position, name='attention')(
          y, y if kv is None else norm(kv), visible, rows, past)
    def cross(y, norm):
      del norm
      assert memory is not None, 'a block with cross attention reads a memory'
      return Attention(cfg, NoPosition(), name='cross')(y, memory.keys or memory.hidden, Visible(memory.mask), rows)
    def mlp(y, norm):
      del norm
      return Mlp(cfg, name='mlp')(y, rows)

    if cfg.parallel:
      x = residual('parallel', lambda y, norm: attention(y, norm) + mlp(y, norm), x)
    else:
      x = residual('attention', attention, x)
      if cfg.cross:
        x = residual('cross', cross, x)
      x = residual('mlp', mlp, x)
    self.sow('intermediates', 'hidden', x)
    return x
