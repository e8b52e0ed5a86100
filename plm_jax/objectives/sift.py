"""Scale-invariant fine-tuning: answers that hold when normalised embeddings move a little, where it hurts most."""
from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked


@dataclasses.dataclass(frozen=True)
class Sift(Checked):
  """Virtual adversarial training (Miyato et al. 2018) on normalised embeddings (He et al. 2021, section 4; its code).

      def logits(perturbation):
        return model.apply(params, {**batch, 'perturbation': perturbation}, rows, rngs=rngs)['label']
      clean, change = sift.change(logits, keys, (length, width))
      loss = cross_entropy(clean, labels) + sift.weight * change.mean()

  One thing differs from the released code: the tables of embeddings learn from the change too.
  """

  weight: float = 5.0
  """of the change, beside the task's own loss"""
  step: float = 1e-4
  """largest entry of what is added to the noise of each token, along the gradient"""
  noise: float = 1e-2
  """standard deviation of the noise to begin with, cut at twice that"""

  def change(self, logits: Callable[[jax.Array], jax.Array], keys, shape: tuple[int, ...]):
    """-> (logits without a perturbation [B, ..., C], how much they change under the worst one found [B, ...]).

    logits: perturbation [B, L, E] -> [B, ..., C]; keys [B], one a row; shape: (L, E). Dropout has to be the same in all
    three calls, as it is with one key for them.
    """
    clean = logits(jnp.zeros((keys.shape[0], *shape)))
    noise = jax.vmap(lambda key: jnp.clip(jax.random.normal(key, shape), -2, 2) * self.noise)(keys)
    target = jax.lax.stop_gradient(clean)
    gradient = jax.grad(lambda noise: divergence(logits(noise), target).sum())(noise)
    worst = noise + self.step * gradient / (1e-6 + jnp.abs(gradient).max(-1, keepdims=True))
    return clean, divergence(logits(jax.lax.stop_gradient(worst)), clean)


def divergence(logits, target):
  """Returns both Kullback-Leibler divergences between the softmax of two [..., C], summed -> [...].

  In each the first distribution is taken as given: gradients are those of the two cross-entropies. Of one number, C =
  1, it is the squared difference.
  """
  if logits.shape[-1] == 1:
    return jnp.square(logits.astype(jnp.float32) - target)[..., 0]
  one, other = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in (logits, target))
  def given(p, q):
    p = jax.lax.stop_gradient(p)
    return (jnp.exp(p) * (p - q)).sum(-1)
  return given(other, one) + given(one, other)
