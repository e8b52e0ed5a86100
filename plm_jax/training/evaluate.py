"""How good a model is on held-out text, and how good it would be to know nothing."""
import collections
from collections.abc import Iterable
import math

import jax
import numpy as np

from plm_jax.objectives import CARRY
from plm_jax.training import metrics
from plm_jax.training.step import Learner, eval_step


def evaluator(learner: Learner, sizes: np.ndarray | None = None):
  """Makes a function(params, batches of windows on the devices) -> means of the objective's losses over all of them.

  The corruption depends on the windows alone, so every evaluation of the same text asks the same questions. Beside each
  NAME_accuracy stands NAME_baseline, that of always giving the answer that is right most often. With the tokenizer's
  `sizes` [V], language modelling has `bits_per_byte`: what the text takes, which no tokenizer changes.
  """
  step = jax.jit(lambda params, windows: eval_step(learner, params, windows))

  def evaluate(params, batches: Iterable) -> dict[str, float]:
    results, counts = [], collections.defaultdict(lambda: np.zeros(learner.vocab.size))
    carry = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), learner.carry)
    for windows in batches:
      losses, answers = step(params, windows if carry is None else {**windows, CARRY: carry})
      carry = losses.pop(CARRY, None)
      results.append(jax.device_get(losses))
      for name, (labels, weights) in answers.items():
        counts[name] += np.bincount(own_rows(labels), own_rows(weights), learner.vocab.size)
    values = metrics.combine(results)
    values |= {f'{name}_baseline': float(some.max() / some.sum()) for name, some in counts.items() if some.any()}
    if sizes is not None and (some := counts['clm']).any():
      values['bits_per_byte'] = values['clm'] / math.log(2) * float(some.sum() / (some[:len(sizes)] @ sizes))
    return values

  return evaluate


def own_rows(x: jax.Array) -> np.ndarray:
  """Returns what of x [B, ...] lies on this process's devices, each row once, flat: enough for an estimate."""
  rows = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
  return np.concatenate([np.asarray(data).ravel() for data in rows.values()])
