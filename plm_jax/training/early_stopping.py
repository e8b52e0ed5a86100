"""Early stopping, and the best checkpoint of a run by a held-out metric."""
import logging
import math
from typing import Any

from etils import epath

from plm_jax.checkpoints.checkpoint import Checkpoints
from plm_jax.checkpoints.restore import restore_params
from plm_jax.config.run import RunConfig
from plm_jax.errors import ConfigError, name_field

logger = logging.getLogger(__name__)


class BestCheckpoint:
  """The parameters of the evaluation with the best `train.best`, in the folder `best` of the run.

  Its state is read from there, so that a resumed run chooses as if it had not been stopped. On all
  processes of a job the state is the same: it comes from process 0, as do the metrics that `update`
  gets from `evaluate` (`training/evaluate.py` and `finetuning/feed.py` broadcast them). So all
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
    if config.train.resume == 'whole':
      self.checkpoints.move_damaged_aside(logger.warning)
    newest = self.checkpoints.latest_on_all_hosts()
    if newest is None:
      return
    self.checkpoints.verify(newest)
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
