"""One vector of a word from those of all layers."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class ScalarMix(nn.Module):
  """Layers [N, B, L, D] -> gamma * sum of softmax(weights) * layer, [B, L, D] float32.

  Peters et al. 2018, equation 1: a task has its own. norm: before, each layer is brought to the mean 0 and the variance
  1 of all its numbers in the batch (section 3.2), apart: in each row; padding, where mask [B, L] is False, does not
  count.
  """

  norm: bool = False
  apart: bool = False

  @nn.compact
  def __call__(self, layers, mask):
    weights = self.param('weights', nn.initializers.zeros, layers.shape[:1], jnp.float32)
    gamma = self.param('gamma', nn.initializers.ones, (), jnp.float32)
    layers = layers.astype(jnp.float32)
    if self.norm:
      layers = jax.vmap(lambda layer: normalised(layer, mask, self.apart))(layers)
    return gamma * jnp.einsum('n,nbld->bld', nn.softmax(weights), layers)


def normalised(x, mask, apart: bool = False):
  """Brings x [B, L, D] to the mean 0 and the variance 1 of all its numbers where mask [B, L] is True; apart: of those
  of each row."""
  real = mask[..., None]
  total = lambda values: jnp.where(real, values, 0).sum((1, 2) if apart else (0, 1, 2), keepdims=True)
  number = jnp.maximum(total(1.0) * x.shape[-1], 1)
  mean = total(x) / number
  variance = total(jnp.square(x - mean)) / number
  return (x - mean) / jnp.sqrt(variance + 1e-13)
