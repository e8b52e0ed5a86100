"""One vector of a word from those of all layers."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class ScalarMix(nn.Module):
  """Layers [N, B, L, D] -> gamma * sum of softmax(weights) * layer, [B, L, D] float32.

  Peters et al. 2018, equation 1: a task has its own. norm: before, each layer is brought to the mean 0 and the variance
  1 of all its numbers in the batch (section 3.2); padding, where mask [B, L] is False, does not count.
  """

  norm: bool = False

  @nn.compact
  def __call__(self, layers, mask):
    weights = self.param('weights', nn.initializers.zeros, layers.shape[:1], jnp.float32)
    gamma = self.param('gamma', nn.initializers.ones, (), jnp.float32)
    layers = layers.astype(jnp.float32)
    if self.norm:
      layers = jax.vmap(lambda layer: normalised(layer, mask))(layers)
    return gamma * jnp.einsum('n,nbld->bld', nn.softmax(weights), layers)


def normalised(x, mask):
  """Brings x [B, L, D] to the mean 0 and the variance 1 of all its numbers where mask [B, L] is True."""
  real = mask[..., None]
  number = jnp.maximum(real.sum() * x.shape[-1], 1)
  mean = jnp.where(real, x, 0).sum() / number
  variance = jnp.where(real, jnp.square(x - mean), 0).sum() / number
  return (x - mean) / jnp.sqrt(variance + 1e-13)
