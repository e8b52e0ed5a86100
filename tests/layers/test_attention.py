"""Attention's own derivative rules."""
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.attention import mix_values, probabilities


def test_the_jacobian_is_made_of_the_gradients():
  """All rows at once, by a vmapped pullback, against one after another."""
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 16, 32)), jnp.float32)

  def attended(x):
    q = x.reshape(2, 16, 4, 8)
    y = mix_values(probabilities(q, q, None, 1.0), q)
    return y.reshape(2, 16, 32).sum(-1).reshape(-1)

  together = jax.jit(jax.jacrev(attended))(x)
  one_by_one = jax.jit(lambda x: jax.lax.map(lambda n: jax.grad(lambda x: attended(x)[n])(x),
                                             jnp.arange(32)))(x)
  np.testing.assert_allclose(together, one_by_one, atol=1e-4)
