"""Scale-invariant fine-tuning (SiFT): virtual adversarial training on normalized embeddings."""
from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from plm_jax.validation import ValidatedConfig


@dataclasses.dataclass(frozen=True)
class Sift(ValidatedConfig):
  """Virtual adversarial training (Miyato et al. 2018) on normalized embeddings (SiFT: He et al.
  2021, section 4).

      def logits(perturbation):
        return model.apply(params, {**batch, 'perturbation': perturbation}, rows,
        rngs=rngs)['label']
      clean, change = sift.perturbed_divergence(logits, keys, (length, width))
      loss = cross_entropy(clean, labels) + sift.weight * change.mean()

  One thing differs from the released code: the embedding tables learn from the divergence too.
  """

  weight: float = 5.0
  """Factor of the divergence, next to the task's own loss."""
  step: float = 1e-4
  """Step size: maximum entry that is added to the noise of each token, along the gradient."""
  noise: float = 1e-2
  """Standard deviation of the initial noise, truncated at twice that."""

  def perturbed_divergence(
      self, logits: Callable[[jax.Array], jax.Array], keys, shape: tuple[int, ...]):
    """Compute how much the logits change under an adversarial perturbation of the embeddings.

    Dropout has to be the same in all three calls of `logits`, as it is with one key for them.

    Args:
      logits: function from a perturbation [batch, length, width] to logits [batch, ..., classes].
      keys: one random key per row, [batch].
      shape: (length, width).

    Returns:
      (logits without a perturbation [batch, ..., classes], divergence under the worst perturbation
      found [batch, ...]).
    """
    clean = logits(jnp.zeros((keys.shape[0], *shape)))
    def draw(key):
      return jnp.clip(jax.random.normal(key, shape), -2, 2) * self.noise
    noise = jax.vmap(draw)(keys)
    target = jax.lax.stop_gradient(clean)
    gradient = jax.grad(lambda noise: symmetric_divergence(logits(noise), target).sum())(noise)
    worst = noise + self.step * gradient / (1e-6 + jnp.abs(gradient).max(-1, keepdims=True))
    return clean, symmetric_divergence(logits(jax.lax.stop_gradient(worst)), clean)


def symmetric_divergence(logits, target):
  """Compute the symmetric KL divergence between the softmax of two arrays of logits.

  In each of the two divergences the first distribution is constant: gradients are those of the two
  cross-entropies. With one class (regression) it is the squared difference.

  Args:
    logits: [..., classes].
    target: [..., classes].

  Returns:
    [...].
  """
  if logits.shape[-1] == 1:
    return jnp.square(logits.astype(jnp.float32) - target)[..., 0]
  log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
  log_q = jax.nn.log_softmax(target.astype(jnp.float32))
  def divergence(first, second):
    first = jax.lax.stop_gradient(first)
    return (jnp.exp(first) * (first - second)).sum(-1)
  return divergence(log_q, log_p) + divergence(log_p, log_q)
