"""Evaluation on held-out text: mean losses, accuracies, and the majority-class baseline."""
import collections
from collections.abc import Iterable, Sequence
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.distributed import hosts
from plm_jax.objectives import CARRY
from plm_jax.training import run_metrics
from plm_jax.training.step import Learner, eval_step


@functools.lru_cache(maxsize=1)
def jit_evaluation(learner: Learner):
  """Compile the evaluation step of a learner, once.

  Returns:
    function(params, windows on the devices) -> ((sum, weight) pairs by name, counts of labels
    [vocabulary] by name, number of the corpus).
  """
  @jax.jit
  def step(params, windows):
    losses, targets = eval_step(learner, params, windows)
    # Sums over the rows of all processes: each process sees only its own.
    counts = {name: jnp.zeros(learner.vocab.size).at[labels.ravel()].add(weights.ravel())
              for name, (labels, weights) in targets.items()}
    return losses, counts, windows['corpus'].max()
  return step


def make_evaluator(
    learner: Learner, sizes: np.ndarray | None = None, corpora: Sequence[str] = ()):
  """Make the function that evaluates parameters on batches of held-out text.

  Corruption depends on the windows alone, so every evaluation of the same text has the same
  targets. Next to each NAME_accuracy there is NAME_baseline, the accuracy of the majority-class
  baseline.

  Args:
    learner: static parts of the step.
    sizes: bytes of each token of the tokenizer, [vocabulary]. Causal language modeling then has
      `bits_per_byte`, which does not depend on the tokenizer.
    corpora: names of the corpora of a mixture, two or more. Each batch is then of one of them, and
      METRIC/CORPUS are the metrics of each. They have no baselines.

  Returns:
    function(params, batches of windows on the devices) -> mean metrics over all of them.
  """
  step = jit_evaluation(learner)

  def evaluate(params, batches: Iterable) -> dict[str, float]:
    results, counts = [], collections.defaultdict(lambda: np.zeros(learner.vocab.size))
    by_corpus: dict[str, Any] = collections.defaultdict(list)
    # Of each corpus: number of predictions, and bytes of their labels.
    spelled = collections.defaultdict(lambda: np.zeros(2))
    carry = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), learner.carry)
    for windows in batches:
      if carry is not None:
        windows = {**windows, CARRY: carry}
      losses, found, number = step(params, windows)
      carry = losses.pop(CARRY, None)
      results.append(jax.device_get(losses))
      corpus = corpora[int(number)] if len(corpora) > 1 else ''
      by_corpus[corpus].append(results[-1])
      for name, some in jax.device_get(found).items():
        counts[name] += some
        if name == 'clm' and sizes is not None:
          spelled[corpus] += some.sum(dtype=np.float64), some[:len(sizes)] @ sizes

    values = run_metrics.combine_metrics(results)
    for name, some in counts.items():
      if some.any():
        values[f'{name}_baseline'] = float(some.max() / some.sum())
    every = sum(spelled.values(), np.zeros(2))
    if every.any():
      values['bits_per_byte'] = to_bits_per_byte(values['clm'], every)
    if len(corpora) > 1:
      for corpus, some in by_corpus.items():
        own = run_metrics.combine_metrics(some)
        if spelled[corpus].any():
          own['bits_per_byte'] = to_bits_per_byte(own['clm'], spelled[corpus])
        values |= {f'{name}/{corpus}': value for name, value in own.items()}
    return hosts.broadcast(values, 'held-out figures')

  return evaluate


def to_bits_per_byte(loss: float, spelled: np.ndarray) -> float:
  """Convert a loss in nats per prediction to bits per byte; spelled: (predictions, bytes)."""
  return loss / math.log(2) * float(spelled[0] / spelled[1])
