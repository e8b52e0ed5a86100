"""Rotary position embeddings (RoPE), and their scaling to rows longer than those of training."""
import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.layers.positions import NoPosition
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class Unscaled(ValidatedConfig):
  """RoPE frequencies without scaling; base class of all scalings.

  Lengths and wavelengths are in tokens.
  """

  @property
  def attention_factor(self) -> float:
    """Factor on sines and cosines, whose square is a factor on attention logits."""
    return 1.0

  def frequencies(self, theta: float, size: int, positions):
    """Compute the angle, in radians per token, of each pair of features.

    Args:
      theta: base of the wavelengths.
      size: number of features that are rotated.
      positions: [batch, length].

    Returns:
      [size / 2] or [batch, 1, size / 2].
    """
    del positions
    return self.scaled_frequencies(theta, size).astype(np.float32)

  def scaled_frequencies(self, theta: float, size: int) -> np.ndarray:
    """Compute theta^(-2 i / size), the angle per token, [size / 2] float64."""
    return theta ** -(np.arange(0, size, 2) / size)


@dataclasses.dataclass(frozen=True)
class LinearScaling(Unscaled):
  """Linear RoPE scaling: positions are divided by a factor (Chen et al. 2023, section 2.3)."""

  limits = intervals(factor='(0, inf)')

  factor: float = 1.0
  """How many times longer sequences are than in training."""

  def scaled_frequencies(self, theta, size):
    """Compute angles per token, all divided by the factor."""
    return super().scaled_frequencies(theta, size) / self.factor


@dataclasses.dataclass(frozen=True)
class DynamicScaling(Unscaled):
  """Dynamic NTK scaling: theta grows with the length of a row (Peng et al. 2024, appendix B.3).

  The length is that of the row itself, by its last position, so that a row does not depend on its
  batch; transformers uses that of the batch. Keys that were cached while the row was shorter keep
  their rotation, as in transformers.
  """

  limits = intervals(factor='(0, inf)', original='[1, inf)')

  factor: float = 1.0
  """How many times longer sequences are than in training."""
  original: int = 2048
  """Maximum sequence length in training."""

  def frequencies(self, theta, size, positions):
    """Compute angles per token [batch, 1, size / 2], with theta by the length of each row."""
    if size == 2:
      raise ConfigError('dynamic RoPE scaling rotates more than 2 features per head, got 2')
    length = jnp.maximum(positions.max(-1) + 1, self.original).astype(jnp.float32)
    stretch = self.factor * length / self.original - (self.factor - 1)
    theta = theta * stretch ** (size / (size - 2))
    return theta[:, None, None] ** -(jnp.arange(0, size, 2) / size)


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(Unscaled):
  """LLaMA 3.1's scaling: long wavelengths are stretched, short ones kept (released code)."""

  limits = intervals(factor='(0, inf)', low='(0, inf)', high='(0, inf)', original='[1, inf)')

  factor: float = 8.0
  """How many times longer the longest wavelengths become."""
  low: float = 1.0
  """Wavelengths longer than original / low are stretched completely."""
  high: float = 4.0
  """Wavelengths shorter than original / high are kept."""
  original: int = 8192
  """Maximum sequence length in training."""

  def conflict(self, option):
    if self.low == self.high:
      return f'{option("high")} differs from {option("low")}, got {self.high} for both'
    return None

  def scaled_frequencies(self, theta, size):
    """Compute angles per token; long wavelengths are stretched, with a ramp from low to high."""
    own = super().scaled_frequencies(theta, size)
    turns = self.original * own / (2 * math.pi)
    kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
    return own * (kept + (1 - kept) / self.factor)


@dataclasses.dataclass(frozen=True)
class YarnScaling(Unscaled):
  """YaRN scaling (Peng et al. 2024, section 3).

  Pairs of features that turn often in a row are kept, slow ones are stretched.
  """

  limits = intervals(factor='(0, inf)', original='[1, inf)', fast='(0, inf)', slow='(0, inf)')

  factor: float = 1.0
  """How many times longer sequences are than in training."""
  original: int = 2048
  """Maximum sequence length in training."""
  fast: float = 32.0
  """Turns per row from which a pair is kept."""
  slow: float = 1.0
  """Turns per row up to which a pair is stretched completely."""
  whole: bool = True
  """Round the ends of the ramp between fast and slow outwards to whole pairs."""
  temperature: float = 0.0
  """Factor on sines and cosines; 0: 0.1 ln factor + 1."""

  @property
  def attention_factor(self):
    """Factor on sines and cosines, which sharpens logits (Peng et al. 2023, section 3.4)."""
    return self.temperature or 0.1 * math.log(max(self.factor, 1.0)) + 1

  def scaled_frequencies(self, theta, size):
    """Compute angles per token; slow pairs are stretched, with a ramp from slow to fast."""
    own = super().scaled_frequencies(theta, size)

    def pair_of(turns):
      return size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(self.fast), pair_of(self.slow)
    if self.whole:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    # Where both ends are one pair the ramp is a step.
    stretched = np.clip((np.arange(size // 2) - first) / max(last - first, 1e-3), 0, 1)
    return own * (1 - stretched + stretched / self.factor)


@dataclasses.dataclass(frozen=True)
class Rope(NoPosition):
  """Rotary position embedding, RoPE (Su et al. 2021, section 3.2.2).

  Pairs of features are rotated by an angle that grows with the position. The two features of a pair
  are half of the rotated features apart, as in transformers and GPT-NeoX. The paper and LLaMA's
  original checkpoints pair adjacent features, which is the same model with the columns of query and
  key in another order.
  """

  limits = intervals(theta='(0, inf)', share='(0, 1]')

  theta: float = 10_000.0
  """Base of the wavelengths, which are 2 pi to 2 pi theta tokens."""
  share: float = 1.0
  """Share of each head's features that are rotated, counted from the first feature."""
  scaling: Unscaled = Unscaled()
  """Scaling to sequences that are longer than in training."""

  def conflict(self, option):
    if isinstance(self.scaling, YarnScaling) and self.theta == 1:
      return f'{option("theta")} is not 1 with YaRN scaling, whose wavelengths differ'
    return None

  def context(self, scope, cfg, q_positions, k_positions):
    """Compute `cos` and `sin` [batch, queries, 1, rotated / 2], float32.

    They are those of the queries and of their own keys; cached keys are rotated already.
    """
    del scope, k_positions
    size = int(cfg.head_dim * self.share)
    frequencies = self.scaling.frequencies(self.theta, size, q_positions)
    angles = (q_positions[..., None] * frequencies)[:, :, None]
    factor = self.scaling.attention_factor
    return {'cos': jnp.cos(angles) * factor, 'sin': jnp.sin(angles) * factor}

  def skip_context(self, context, skip):
    return {'cos': jnp.where(skip, 1, context['cos']), 'sin': jnp.where(skip, 0, context['sin'])}

  def interact(self, scope, cfg, q, k, context, query, key):
    del scope, cfg, query, key
    return rotate(q, **context), rotate(k, **context), None


@dataclasses.dataclass(frozen=True)
class TwoRopes(NoPosition):
  """RoPE with one theta for global layers and another for sliding-window layers.

  Warner et al. 2024 (ModernBERT), section 2.1.2.
  """

  whole: Rope = Rope(160_000.0)
  """RoPE of layers with global attention."""
  band: Rope = Rope()
  """RoPE of layers with sliding-window (local) attention."""

  def context(self, scope, cfg, q_positions, k_positions):
    return {'whole': self.whole.context(scope, cfg, q_positions, k_positions),
            'band': self.band.context(scope, cfg, q_positions, k_positions)}

  def layer_context(self, context, windowed: bool):
    return context['band' if windowed else 'whole']

  def interact(self, scope, cfg, q, k, context, query, key):
    return self.whole.interact(scope, cfg, q, k, context, query, key)


def rotate(x, cos, sin):
  """Rotate the first features of x by angles.

  Args:
    x: [batch, length, heads, head_size].
    cos: [batch, length, 1, pairs], at most head_size / 2 pairs.
    sin: of the same shape.
  """
  half = cos.shape[-1]
  first, second, rest = jnp.split(x, (half, 2 * half), -1)
  first, second = first * cos - second * sin, second * cos + first * sin
  return jnp.concatenate([first.astype(x.dtype), second.astype(x.dtype), rest], -1)
