"""The best checkpoint of a run, by a held-out figure, and a run that ends when none better comes."""
from typing import Any

from etils import epath

from plm_jax.config import ConfigError, Run
from plm_jax.training.checkpoint import Checkpoints, restore_params


class Best:
  """The parameters of the evaluation with the best `train.best`, in the folder `best` of the run.

  What it knows it reads from there, so that a run that is continued chooses as if it had not been stopped.
  """

  def __init__(self, config: Run, folder: epath.Path):
    self.name, self.sign = config.train.best, 1 if config.objective.larger(config.train.best) else -1
    self.config, self.folder = config, folder / 'best'
    self.checkpoints = Checkpoints(self.folder, keep=1) if self.name else None
    self.step: int | None = self.checkpoints.latest() if self.checkpoints else None
    self.values: dict[str, float] = {}
    if self.checkpoints and self.step is not None:
      self.values = self.checkpoints.meta(self.step)['heldout']

  def offer(self, step: int, values: dict[str, float], params: Any, meta: dict[str, Any]) -> None:
    """Keeps the parameters where their figure is better than any before. Raises ConfigError where there is no such
    figure."""
    if not self.checkpoints:
      return
    if self.name not in values:
      raise ConfigError(f'--train.best is one of the held-out figures {", ".join(values)}, got {self.name!r}')
    if self.step is None or self.sign * values[self.name] > self.sign * self.values[self.name]:
      self.checkpoints.save(step, {'params': params}, {**meta, 'heldout': values})
      self.checkpoints.wait()
      self.step, self.values = step, values

  def hopeless(self, step: int) -> bool:
    """Tells whether as many evaluations as `train.early` says have found none better, by `step`."""
    train = self.config.train
    return bool(train.early) and self.step is not None and step - self.step >= train.early * train.eval_every

  def restore(self, shapes, shardings) -> Any:
    """Restores the parameters that were kept."""
    return restore_params(self.folder, shapes, shardings)

  def close(self) -> None:
    """Ends the threads of the checkpoints."""
    if self.checkpoints:
      self.checkpoints.close()
