"""Metric writers next to metrics.jsonl: TensorBoard, Weights & Biases, and a caller's own.

A writer has the three methods of `ScalarWriter`, which `clu.metric_writers` have too:

    with writers.also(clu.metric_writers.LoggingWriter()):
      plm_jax.train('bert_base', scale='laptop')
"""
from collections.abc import Iterator, Mapping
import contextlib
import contextvars
import importlib.util
import os
from typing import Any, Protocol
import uuid

from etils import epath

from plm_jax import storage
from plm_jax.errors import ConfigError, name_field


class ScalarWriter(Protocol):
  """Writer of metrics by name: 'train/loss', 'heldout/mlm'."""

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Write the metrics of a step.

    A step may come again: a run that was killed resumes from its last checkpoint.
    """

  def flush(self) -> None:
    """Write out what is buffered."""

  def close(self) -> None:
    """Close the writer, at the end of the run."""


_brought: contextvars.ContextVar[tuple[ScalarWriter, ...]] = contextvars.ContextVar(
    'writers', default=())


@contextlib.contextmanager
def also(*writers: ScalarWriter) -> Iterator[None]:
  """Pass the metrics of the runs inside to these writers too; of several processes, the first does.

  They are flushed with every line, and not closed: they are the caller's.
  """
  token = _brought.set((*_brought.get(), *writers))
  try:
    yield
  finally:
    _brought.reset(token)


def current_writers() -> tuple[ScalarWriter, ...]:
  """Return the writers of `also`."""
  return _brought.get()


class TensorBoard:
  """Write TensorBoard event files with the module TensorFlow."""

  def __init__(self, tensorflow: Any, folder: epath.Path):
    self.folder, self.summary = folder, tensorflow.summary
    with storage.io_errors_as(folder, 'written'):
      self.board = self.summary.create_file_writer(str(folder))

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Write scalars."""
    with storage.io_errors_as(self.folder, 'written'), self.board.as_default(step):
      for name, value in scalars.items():
        self.summary.scalar(name, value)

  def flush(self) -> None:
    """Flush to the disk, or the bucket."""
    with storage.io_errors_as(self.folder, 'written'):
      try:
        self.board.flush()
      except Exception:
        if not storage.is_remote(self.folder):
          raise
        # In a bucket the first flush is refused where its answer was lost and TensorFlow asked
        # again.
        self.board.flush()

  def close(self) -> None:
    """Close the file."""
    with storage.io_errors_as(self.folder, 'written'):
      self.board.close()


class WeightsAndBiases:
  """Write to a run of Weights & Biases; a resumed run is the same run there, by wandb_id.txt.

  WANDB_MODE, WANDB_ENTITY and other variables apply. Metrics are plotted over `step`, so that a
  step may come again.
  """

  def __init__(self, project: str, name: str, folder: epath.Path, config: Mapping[str, Any]):
    import wandb  # pyright: ignore[reportMissingImports]
    file = folder / 'wandb_id.txt'
    with storage.io_errors_as(file, 'read'):
      run_id = file.read_text().strip() if file.exists() else ''
    if not run_id:
      run_id = uuid.uuid4().hex[:12]
      storage.write(file, run_id)
    self.run = wandb.init(
        project=project, name=name, id=run_id, resume='allow', config=dict(config),
        dir=None if storage.is_remote(folder) else os.fspath(folder))
    self.run.define_metric('*', step_metric='step')

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Send scalars."""
    self.run.log({**scalars, 'step': step})

  def flush(self) -> None:
    """Do nothing: wandb sends what it has by itself."""

  def close(self) -> None:
    """Finish the run there."""
    self.run.finish()


def check_wandb(project: str) -> None:
  """Check that wandb is installed where metrics go to a project of Weights & Biases.

  Raises:
    ConfigError: it is not.
  """
  if project and importlib.util.find_spec('wandb') is None:
    raise ConfigError(
        f'{name_field("train.wandb")}={project} needs wandb: pip install wandb, or leave the '
        'option out')
