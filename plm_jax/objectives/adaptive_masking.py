"""Adaptive masking: tokens that the model predicts badly are masked more often."""
from typing import Any, Literal

import jax
import jax.numpy as jnp

Difficulty = Literal['off', 'accuracy', 'loss']
"""what makes a token difficult; off: no adaptive masking"""

KEEP = 0.2
"""Share of the old weights in an update."""
FLOOR = 0.005
"""Smallest mask rate of a token."""


def initial_statistics(vocab: int) -> dict[str, jax.Array]:
  """Return the statistics of a new run: every token of the vocabulary has the same weight.

  Returns:
    float32 [vocab] each: `weights`, relative mask rates with mean 1; `difficulty`, the sum of
    errors or losses of each token since the last update of the weights; `count`, how many there
    were.
  """
  zeros = jnp.zeros(vocab, jnp.float32)
  return {'weights': jnp.ones(vocab, jnp.float32), 'difficulty': zeros, 'count': zeros}


def update_statistics(
    statistics: Any, seen: Any, kind: Difficulty, due: jax.Array, mask_rate: float) -> Any:
  """Add the predictions of a batch, and update the weights if that is due.

  The weights are updated as in the released code of Edman and Fraser 2025
  (serdardoesml/babylm25, train_mask.py): a fifth of the old weight, and four fifths of the new one.
  With `accuracy` (hard), the new weight is the share of errors, (errors + 0.5) / (count + 1). With
  `loss` (soft), it is the mean loss, scaled to 0 for the easiest token and 1 for the hardest.

  Args:
    statistics: see `initial_statistics`.
    seen: `labels`, `difficulty` and `count` of the predictions of a batch, [batch, predictions];
      the difficulty is 1 for an error, or a loss in nats.
    kind: what the difficulty is, `accuracy` or `loss`.
    due: bool, whether to update the weights and to begin with new sums.
    mask_rate: mask rate of the run; `FLOOR` divided by it is the smallest weight.
  """
  labels = seen['labels'].reshape(-1)
  def add(name):
    return statistics[name].at[labels].add(seen[name].reshape(-1))
  difficulty, count = add('difficulty'), add('count')

  if kind == 'accuracy':
    new = (difficulty + 0.5) / (count + 1)
  else:
    # Before it is seen, a token has the loss of a uniform guess, once.
    mean = (difficulty + jnp.log(float(len(count)))) / (count + 1)
    new = (mean - mean.min()) / jnp.maximum(mean.max() - mean.min(), 1e-6)
  weights = KEEP * statistics['weights'] + (1 - KEEP) * new
  weights = jnp.maximum(weights, FLOOR / mask_rate)
  updated = {
      'weights': weights / weights.mean(), 'difficulty': jnp.zeros_like(difficulty),
      'count': jnp.zeros_like(count)}
  current = {'weights': statistics['weights'], 'difficulty': difficulty, 'count': count}
  return jax.tree.map(lambda new, old: jnp.where(due, new, old), updated, current)
