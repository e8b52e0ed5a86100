"""Scalar mix: a learned weighted sum of the layers of a model (ELMo)."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class ScalarMix(nn.Module):
  """Scalar mix of layers (Peters et al. 2018, equation 1); each task has its own.

  Layers [layers, batch, length, hidden] -> gamma * sum of softmax(weights) * layer, [batch, length,
  hidden] float32.
  """

  norm: bool = False  # normalize each layer over the batch first (section 3.2)
  apart: bool = False  # normalize over each row instead of the batch

  @nn.compact
  def __call__(self, layers, mask):
    """Mix layers; mask [batch, length] is False for padding, which normalization ignores."""
    weights = self.param('weights', nn.initializers.zeros, layers.shape[:1], jnp.float32)
    gamma = self.param('gamma', nn.initializers.ones, (), jnp.float32)
    layers = layers.astype(jnp.float32)
    if self.norm:
      layers = jax.vmap(lambda layer: normalize_layer(layer, mask, self.apart))(layers)
    return gamma * jnp.einsum('n,nbld->bld', nn.softmax(weights), layers)


def normalize_layer(x, mask, apart: bool = False):
  """Normalize a layer to mean 0 and variance 1 over all its numbers.

  Args:
    x: [batch, length, hidden].
    mask: [batch, length] bool; only numbers where it is True count.
    apart: normalize each row separately.
  """
  real = mask[..., None]
  axes = (1, 2) if apart else (0, 1, 2)

  def total(values):
    return jnp.where(real, values, 0).sum(axes, keepdims=True)

  number = jnp.maximum(total(1.0) * x.shape[-1], 1)
  mean = total(x) / number
  variance = total(jnp.square(x - mean)) / number
  return (x - mean) / jnp.sqrt(variance + 1e-13)
