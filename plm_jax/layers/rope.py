"""Rotary positions, and how models that learned on shorter rows are stretched to longer ones."""
import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from plm_jax.checked import Checked, within
from plm_jax.layers.positions import NoPosition


@dataclasses.dataclass(frozen=True)
class Unscaled(Checked):
  """Frequencies as they are; the base of all scalings. Lengths and wavelengths are in tokens."""

  @property
  def attention(self) -> float:
    """Factor on sines and cosines, and so its square on attention logits."""
    return 1.0

  def frequencies(self, theta: float, size: int, positions):
    """Radians a token of each pair of `size` features, [size / 2] or [B, 1, size / 2]; positions [B, L]."""
    del positions
    return self.scaled(theta, size).astype(np.float32)

  def scaled(self, theta: float, size: int) -> np.ndarray:
    """Returns theta^(-2 i / size), the angle of a step [size / 2] float64."""
    return theta ** -(np.arange(0, size, 2) / size)


@dataclasses.dataclass(frozen=True)
class LinearScaling(Unscaled):
  """Positions are divided by a factor (Chen et al. 2023, section 2.3)."""

  limits = within(factor='(0, inf)')

  factor: float = 1.0
  """how many times longer rows are"""

  def scaled(self, theta, size):
    """Returns angles that are all smaller by the factor."""
    return super().scaled(theta, size) / self.factor


@dataclasses.dataclass(frozen=True)
class DynamicScaling(Unscaled):
  """theta grows with a row that is longer than those learned on ("dynamic NTK", Peng et al. 2024, appendix B.3).

  A row goes by its own last position, so that it does not depend on its neighbours; transformers goes by the batch's.
  Keys that were cached while the row was shorter stay turned as they were, as there.
  """

  limits = within(factor='(0, inf)', original='[1, inf)')

  factor: float = 1.0
  """how many times longer rows are"""
  original: int = 2048
  """the longest row learned on"""

  def frequencies(self, theta, size, positions):
    """Returns angles [B, 1, size / 2] by the length of each row: theta grows where it is over the original one."""
    length = jnp.maximum(positions.max(-1) + 1, self.original).astype(jnp.float32)
    stretch = self.factor * length / self.original - (self.factor - 1)
    theta = theta * stretch ** (size / (size - 2))
    return theta[:, None, None] ** -(jnp.arange(0, size, 2) / size)


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(Unscaled):
  """Long waves are stretched, short ones not, those between in part (LLaMA 3.1's released code)."""

  limits = within(factor='(0, inf)', low='(0, inf)', high='(0, inf)', original='[1, inf)')

  factor: float = 8.0
  """how many times longer the longest waves are"""
  low: float = 1.0
  """waves longer than original / low are stretched in full"""
  high: float = 4.0
  """waves shorter than original / high are not"""
  original: int = 8192
  """the longest row learned on"""

  def scaled(self, theta, size):
    """Returns angles of which those of long waves are smaller by the factor, with a ramp between `low` and `high`."""
    own = super().scaled(theta, size)
    kept = np.clip((self.original * own / (2 * math.pi) - self.low) / (self.high - self.low), 0, 1)
    return own * (kept + (1 - kept) / self.factor)


@dataclasses.dataclass(frozen=True)
class YarnScaling(Unscaled):
  """Pairs that turn often in a row are kept, those that turn less than once stretched (Peng et al. 2024, section 3)."""

  limits = within(factor='(0, inf)', original='[1, inf)', fast='(0, inf)', slow='(0, inf)')

  factor: float = 1.0
  """how many times longer rows are"""
  original: int = 2048
  """the longest row learned on"""
  fast: float = 32.0
  """turns in a row from which a pair is kept"""
  slow: float = 1.0
  """turns in a row up to which a pair is stretched in full"""
  whole: bool = True
  """the ends of the ramp between are rounded outwards to whole pairs"""
  temperature: float = 0.0
  """factor on sines and cosines; 0: 0.1 ln factor + 1"""

  @property
  def attention(self):
    """Factor on cos and sin, which makes logits sharper (Peng et al. 2023, section 3.4)."""
    return self.temperature or 0.1 * math.log(max(self.factor, 1.0)) + 1

  def scaled(self, theta, size):
    """Returns angles of which those that turn less than `slow` times are smaller by the factor, with a ramp up to
    `fast`."""
    own = super().scaled(theta, size)
    first, last = (size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))
                   for turns in (self.fast, self.slow))
    if self.whole:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    # Where both ends are one pair the ramp is a step.
    stretched = np.clip((np.arange(size // 2) - first) / max(last - first, 1e-3), 0, 1)
    return own * (1 - stretched + stretched / self.factor)


@dataclasses.dataclass(frozen=True)
class Rope(NoPosition):
  """Pairs of features turn by an angle that grows with the position (Su et al. 2021, section 3.2.2).

  A feature's other is half the turned part away, as transformers and GPT-NeoX have it; the paper and LLaMA's original
  checkpoints pair neighbours, which is the same model with the columns of query and key in another order.
  """

  limits = within(theta='(0, inf)', share='(0, 1]')

  theta: float = 10_000.0
  """base of the wavelengths, 2 pi to 2 pi theta tokens"""
  share: float = 1.0
  """share of each head's features that turn, the first ones"""
  scaling: Unscaled = Unscaled()
  """for rows longer than those learned on"""

  def context(self, scope, cfg, q_positions, k_positions):
    """Returns cos, sin [B, Q, 1, A / 2] float32, of queries and of their own keys: those in a cache are turned
    already."""
    del scope, k_positions
    size = int(cfg.head_dim * self.share)
    angles = (q_positions[..., None] * self.scaling.frequencies(self.theta, size, q_positions))[:, :, None]
    return {'cos': jnp.cos(angles) * self.scaling.attention, 'sin': jnp.sin(angles) * self.scaling.attention}

  def interact(self, scope, cfg, q, k, context, query, key):
    """Turns q and k by their positions; there is no bias."""
    del scope, cfg, query, key
    return turned(q, **context), turned(k, **context), None


@dataclasses.dataclass(frozen=True)
class TwoRopes(NoPosition):
  """Rotary positions that turn otherwise in layers that see a band of neighbours alone (Warner et al. 2024, section
  2.1.2)."""

  whole: Rope = Rope(160_000.0)
  """of layers that see all"""
  band: Rope = Rope()
  """of the others"""

  def context(self, scope, cfg, q_positions, k_positions):
    """Returns cos and sin of both."""
    return {name: rope.context(scope, cfg, q_positions, k_positions)
            for name, rope in (('whole', self.whole), ('band', self.band))}

  def of_layer(self, context, banded: bool):
    """Returns cos and sin of the layer's own."""
    return context['band' if banded else 'whole']

  def interact(self, scope, cfg, q, k, context, query, key):
    """Turns q and k by their positions; there is no bias."""
    return self.whole.interact(scope, cfg, q, k, context, query, key)


def turned(x, cos, sin):
  """Turns the first features of x [B, L, H, A], those that cos and sin [B, L, 1, up to A / 2] are for."""
  half = cos.shape[-1]
  first, second, rest = jnp.split(x, (half, 2 * half), -1)
  first, second = first * cos - second * sin, second * cos + first * sin
  return jnp.concatenate([first.astype(x.dtype), second.astype(x.dtype), rest], -1)
