"""How good a model is on held-out text, and how good it would be to know nothing."""
import collections
from collections.abc import Iterable, Sequence
import math
from typing import Any

import jax
import numpy as np

from plm_jax.objectives import CARRY
from plm_jax.training import metrics
from plm_jax.training.step import Learner, eval_step


def evaluator(learner: Learner, sizes: np.ndarray | None = None, corpora: Sequence[str] = ()):
  """Makes a function(params, batches of windows on the devices) -> means of the objective's losses over all of them.

  The corruption depends on the windows alone, so every evaluation of the same text asks the same questions. Beside each
  NAME_accuracy stands NAME_baseline, that of always giving the answer that is right most often. With the tokenizer's
  `sizes` [V], language modelling has `bits_per_byte`: what the text takes, which no tokenizer changes.

  corpora: names of a mixture's, two or more; then each batch is of one of them, and behind the figures of all stand
  those of each, under FIGURE/CORPUS. They have no baselines.
  """
  step = jax.jit(lambda params, windows: eval_step(learner, params, windows))

  def evaluate(params, batches: Iterable) -> dict[str, float]:
    results, counts = [], collections.defaultdict(lambda: np.zeros(learner.vocab.size))
    apart: dict[str, Any] = collections.defaultdict(list)
    spelt = collections.defaultdict(lambda: np.zeros(2))  # of a corpus: predictions, and the bytes of what was right
    carry = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), learner.carry)
    for windows in batches:
      losses, answers = step(params, windows if carry is None else {**windows, CARRY: carry})
      carry = losses.pop(CARRY, None)
      results.append(jax.device_get(losses))
      corpus = corpora[int(own_rows(windows['corpus'])[0])] if len(corpora) > 1 else ''
      apart[corpus].append(results[-1])
      for name, (labels, weights) in answers.items():
        found = np.bincount(own_rows(labels), own_rows(weights), learner.vocab.size)
        counts[name] += found
        if name == 'clm' and sizes is not None:
          spelt[corpus] += found.sum(), found[:len(sizes)] @ sizes
    values = metrics.combine(results)
    values |= {f'{name}_baseline': float(some.max() / some.sum()) for name, some in counts.items() if some.any()}
    if (every := sum(spelt.values(), np.zeros(2))).any():
      values['bits_per_byte'] = bits(values['clm'], every)
    for corpus, some in apart.items() if len(corpora) > 1 else ():
      own = metrics.combine(some)
      if spelt[corpus].any():
        own['bits_per_byte'] = bits(own['clm'], spelt[corpus])
      values |= {f'{name}/{corpus}': value for name, value in own.items()}
    return values

  return evaluate


def bits(loss: float, spelt: np.ndarray) -> float:
  """Turns a loss in nats a prediction into bits a byte. spelt: how many predictions, and how many bytes they are."""
  return loss / math.log(2) * float(spelt[0] / spelt[1])


def own_rows(x: jax.Array) -> np.ndarray:
  """Returns what of x [B, ...] lies on this process's devices, each row once, flat: enough for an estimate."""
  rows = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
  return np.concatenate([np.asarray(data).ravel() for data in rows.values()])
