"""Where figures of a run go besides metrics.jsonl: TensorBoard, Weights & Biases, and what others bring.

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
from plm_jax.errors import ConfigError


class ScalarWriter(Protocol):
  """What takes figures by their names: 'train/loss', 'heldout/mlm'."""

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Takes the figures of a step. A step may come again: a run that was killed goes on from its last checkpoint."""

  def flush(self) -> None:
    """Lets nothing wait that has been taken."""

  def close(self) -> None:
    """Ends, when the run does."""


_brought: contextvars.ContextVar[tuple[ScalarWriter, ...]] = contextvars.ContextVar('writers', default=())


@contextlib.contextmanager
def also(*writers: ScalarWriter) -> Iterator[None]:
  """Gives the figures of the runs inside to these writers too; of several processes the first one's do. They are
  flushed with every line, and not closed: they are the caller's."""
  token = _brought.set((*_brought.get(), *writers))
  try:
    yield
  finally:
    _brought.reset(token)


def brought() -> tuple[ScalarWriter, ...]:
  """Returns the writers of `also`."""
  return _brought.get()


class TensorBoard:
  """Event files, written by TensorFlow, the module."""

  def __init__(self, tensorflow: Any, folder: epath.Path):
    self.folder, self.summary = folder, tensorflow.summary
    with storage.explained(folder, 'written'):
      self.board = self.summary.create_file_writer(str(folder))

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes scalars."""
    with storage.explained(self.folder, 'written'), self.board.as_default(step):
      for name, value in scalars.items():
        self.summary.scalar(name, value)

  def flush(self) -> None:
    """Writes to the disk, or the bucket."""
    with storage.explained(self.folder, 'written'):
      try:
        self.board.flush()
      except Exception:
        if not storage.remote(self.folder):
          raise
        self.board.flush()  # in a bucket the first is refused where its answer was lost and TensorFlow asked again

  def close(self) -> None:
    """Closes the file."""
    self.board.close()


class WeightsAndBiases:
  """A run of Weights & Biases; one that goes on is the same run there, whose name lies in the run's folder.

  What WANDB_MODE, WANDB_ENTITY and the like say holds. Figures are drawn over `step`, so that one may come again.
  """

  def __init__(self, project: str, name: str, folder: epath.Path, config: Mapping[str, Any]):
    import wandb  # pyright: ignore[reportMissingImports]
    file = folder / 'wandb_id.txt'
    with storage.explained(file, 'read'):
      known = file.read_text().strip() if file.exists() else ''
    if not known:
      storage.write(file, known := uuid.uuid4().hex[:12])
    self.run = wandb.init(
        project=project, name=name, id=known, resume='allow', config=dict(config),
        dir=None if storage.remote(folder) else os.fspath(folder))
    self.run.define_metric('*', step_metric='step')

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Sends scalars."""
    self.run.log({**scalars, 'step': step})

  def flush(self) -> None:
    """Does nothing: wandb sends what it has by itself."""

  def close(self) -> None:
    """Ends the run there."""
    self.run.finish()


def check_wandb(project: str) -> None:
  """Raises ConfigError where figures are to go to a project of Weights & Biases, and wandb is not installed."""
  if project and importlib.util.find_spec('wandb') is None:
    raise ConfigError(f'--train.wandb={project} needs wandb: pip install wandb, or leave the option out')
