"""Evaluation on held-out text: mean losses, accuracies, and the majority-class baseline.

Also early stopping, and the best checkpoint of a run by a held-out metric.
"""
import collections
from collections.abc import Iterable, Sequence
import functools
import logging
import math
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checkpoints.checkpoint import Checkpoints
from plm_jax.checkpoints.restore import restore_params
from plm_jax.config.run import RunConfig
from plm_jax.distributed import hosts
from plm_jax.errors import ConfigError, name_field
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


logger = logging.getLogger(__name__)


def find_verified_step(config: RunConfig, checkpoints: Checkpoints) -> int | None:
  """Return the step of the checkpoint to resume from, with verified checksums; None: there is
  none."""
  if config.train.resume == 'whole':
    checkpoints.move_damaged_aside(logger.warning)
  step = checkpoints.latest_on_all_hosts()
  if step is not None:
    checkpoints.verify(step)
  return step


class BestCheckpoint:
  """The parameters of the evaluation with the best `train.best`, in the folder `best` of the run.

  Its state is read from there, so that a resumed run chooses as if it had not been stopped. On all
  processes of a job the state is the same: it comes from process 0, as do the metrics that `update`
  gets from `evaluate` (`training/py` and `finetuning/feed.py` broadcast them). So all
  processes stop at the same step without a vote.
  """

  def __init__(self, config: RunConfig, folder: epath.Path):
    self.config, self.folder = config, folder / 'best'
    self.name = config.train.best
    self.sign = 1 if config.training_objective.reporting.higher_is_better(self.name) else -1
    self.checkpoints = Checkpoints(self.folder, keep=1) if self.name else None
    self.step: int | None = None
    self.values: dict[str, float] = {}
    if not self.checkpoints:
      return
    newest = find_verified_step(config, self.checkpoints)
    if newest is None:
      return
    meta = self.checkpoints.meta(newest)
    if self.name in meta['heldout']:  # otherwise it was selected by another metric
      self.step, self.values = meta['step'], meta['heldout']

  def update(self, step: int, values: dict[str, float], params: Any, meta: dict[str, Any]) -> None:
    """Save the parameters where their metric is finite and better than any before.

    A metric that stays at 0, such as micro F1 while the model predicts no label, counts as better:
    early stopping begins once it has risen.

    Raises:
      ConfigError: there is no such metric.
    """
    if not self.checkpoints:
      return
    if self.name not in values:
      raise ConfigError(
          f'{name_field("train.best")} is one of the held-out metrics {", ".join(values)}, got '
          f'{self.name!r}')
    new = values[self.name]
    if not math.isfinite(new):
      return
    old = self.sign * self.values[self.name] if self.step is not None else -math.inf
    not_begun = self.sign * new == old == 0.0 and self.sign > 0
    if self.sign * new <= old and not not_begun:
      return
    # A run that was resumed from an older checkpoint may find a better one before the step of the
    # best so far. Orbax keeps the highest number, so that the number is then not the step.
    newest = self.checkpoints.latest()
    number = step if newest is None else max(step, newest + 1)
    self.checkpoints.save(number, {'params': params}, {**meta, 'heldout': values, 'step': step})
    self.checkpoints.wait()
    self.step, self.values = step, values

  def should_stop(self, step: int) -> bool:
    """Tell whether the steps of `train.early` evaluations have passed without a better one."""
    train = self.config.train
    if not train.early or self.step is None:
      return False
    return step - self.step >= train.early * train.eval_every

  def restore(self, shapes, shardings) -> Any:
    """Restore the parameters that were kept."""
    return restore_params(self.folder, shapes, shardings, job=True)

  def close(self) -> None:
    """Close the checkpoints."""
    if self.checkpoints:
      self.checkpoints.close()
