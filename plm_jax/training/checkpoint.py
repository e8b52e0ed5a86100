"""Checkpoints of a run, by Orbax, behind this module alone: save, resume, warm start.

A checkpoint holds `state` (the arrays), `meta` (JSON: step, and whatever the run wants beside it) and the checksums of
their files. It appears whole or not at all: Orbax writes to a temporary folder and renames it, in a bucket it writes
one more file at the end.
"""
from collections.abc import Callable, Iterator, Mapping
import contextlib
import logging
import re
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from plm_jax import storage
from plm_jax.errors import Expected, outside
from plm_jax.pods import hosts
from plm_jax.training import sums

logger = logging.getLogger(__name__)


class CheckpointError(Expected):
  """A checkpoint that is missing, damaged or of another run."""


class Checkpoints:
  """The checkpoints in a folder; `keep` newest stay. Saving is asynchronous, one at a time.

  keep None: to read alone, while another process may train: nothing is made or removed.
  """

  def __init__(self, folder: epath.PathLike, keep: int | None = 3):
    folder = storage.path_of(folder)
    self.folder = folder if storage.remote(folder) else folder.resolve()
    self.saving = 0
    # Orbax explains at length, as a warning, what it does by default.
    logging.getLogger('absl').setLevel(logging.CRITICAL)
    if keep is None:
      options = ocp.CheckpointManagerOptions(read_only=True)
    else:
      options = ocp.CheckpointManagerOptions(
          max_to_keep=keep, create=True, cleanup_tmp_directories=True, enable_async_checkpointing=True,
          # A removal whose answer was lost finds nothing when it is repeated: no reason for a save to fail.
          enable_background_delete=storage.remote(self.folder),
          async_options=ocp.options.AsyncOptions(post_finalization_callback=self.sum_up))
    with storage.explained(self.folder, 'used for checkpoints', CheckpointError):
      self.manager = ocp.CheckpointManager(self.folder, item_names=('state', 'meta'), options=options)

  def steps(self) -> list[int]:
    """Lists the steps that are saved, ascending."""
    return sorted(self.manager.all_steps())

  def latest(self) -> int | None:
    """Returns the newest step that is saved, None where there is none."""
    return self.manager.latest_step()

  def save(self, step: int, state, meta: Mapping[str, Any]) -> None:
    """Returns once the arrays are copied; the writing goes on. A step that is already there is left alone.

    Raises CheckpointError before anything is written if the disk has no room for it, and whatever went wrong with the
    save before this one.
    """
    if step != self.latest():
      self.check_space(state)
      with self.writing():
        self.manager.wait_until_finished()
        self.saving = step
        self.manager.save(step, args=ocp.args.Composite(
            state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave({**meta, 'step': step})))

  def sum_up(self) -> None:
    """Writes the checksums of what has just been written, before it gets its name."""
    # A thread of Orbax's own writes what it says of the step, which it waits for only after us.
    self.manager._non_blocking_metadata_store.wait_until_finished()
    drafts = [] if storage.remote(self.folder) else [
        path for path in self.folder.iterdir() if path.name.startswith(f'{self.saving}.') and path.is_dir()]
    sums.write(max(drafts, key=lambda path: path.stat().mtime) if drafts else self.folder / str(self.saving))

  def check_space(self, state) -> None:
    """Raises CheckpointError unless the disk has room for the state: found out later, it would be half-written."""
    check_room(self.folder, sum(x.nbytes for x in jax.tree.leaves(state)), storage.free_bytes(self.folder))

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """Wraps calls that raise what went wrong with a save, now or in the background."""
    try:
      yield
    except Expected:
      raise
    except Exception as error:
      if not storage.of_storage(root_of(error)):
        raise
      step = f'step {self.saving:,}' if self.saving else 'a step'
      full = not storage.remote(self.folder) and re.search('RESOURCE_EXHAUSTED|No space left', str(error))
      reason = 'No space left on device' if full else reason_of(error)
      raise CheckpointError(
          f'the checkpoint of {step} could not be written to {self.folder}: {reason}. Those of before are '
          'whole: the same command goes on from the newest when the cause is mended') from error

  def check(self, step: int) -> None:
    """Raises CheckpointError, on all processes, if the checkpoint of `step` has checksums and is not what was written,
    and StorageError for what cannot be read. Each process reads its share."""
    with hosts.together(f'check of step {step}'):
      self.compare(step, jax.process_index(), jax.process_count())

  def compare(self, step: int, part: int = 0, parts: int = 1) -> bool:
    """Compares the files of a step with the sums that were written with them; of `parts` processes each its share.

    Returns whether there are sums, which older versions did not write. Raises DamagedError for a file that is not what
    was written.
    """
    try:
      return sums.check(self.folder / str(step), part, parts)
    except sums.DamageError as error:
      raise DamagedError(self, step, str(error)) from error

  def put_damaged_aside(self, say: Callable[[str], None]) -> None:
    """Moves the newest checkpoints that are damaged out of the folder, beside it, until one is whole."""
    def look() -> None:
      for step in reversed(self.steps()):
        try:
          self.compare(step)
          return
        except DamagedError as error:
          aside = self.folder.parent / f'damaged-{step}'
          storage.move(self.folder / str(step), aside)
          say(f'{error.what}. The checkpoint of step {step:,} is put aside as {aside}')
    with hosts.together('damaged checkpoints'):
      if jax.process_index() == 0:
        look()
    self.manager.reload()

  def restore(self, step: int, shapes, shardings):
    """Restores the state saved at `step`, laid out by `shardings`, whatever mesh it was saved from.

    Raises CheckpointError for damage, another model, and numbers that are not finite.
    """
    target = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    with explained(self, step):
      state = self.manager.restore(step, args=ocp.args.Composite(state=restore_args(target)))['state']
    check_finite(state, self.folder / str(step))
    return state

  def meta(self, step: int) -> dict[str, Any]:
    """Reads what the run has put beside a step. Raises DamagedError where it is no object of JSON."""
    with explained(self, step):
      meta = self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))['meta']
    if not isinstance(meta, dict):
      raise DamagedError(self, step, f'{self.folder / str(step) / "meta"} is not an object of JSON')
    return meta

  def preempted(self, step: int) -> bool:
    """Tells whether the cluster has announced, to any host, that it takes the machines back."""
    return self.manager.reached_preemption(step)

  def check_saved(self) -> None:
    """Raises CheckpointError for what has gone wrong in the background."""
    with self.writing():
      self.manager.check_for_errors()

  def wait(self) -> None:
    """Waits until what is being saved in the background is saved. Raises what went wrong with it."""
    with self.writing():
      self.manager.wait_until_finished()

  def close(self) -> None:
    """Waits as `wait` does, and ends Orbax's threads. Old checkpoints that stay are a warning."""
    self.wait()
    try:
      self.manager.close()
    except Exception as error:  # all is saved: what remained are removals
      if not storage.of_storage(root_of(error)):
        raise
      logger.warning('not all old checkpoints in %s could be removed: %s', self.folder, reason_of(error))


class DamagedError(CheckpointError):
  """A checkpoint with another content than was written."""

  def __init__(self, checkpoints: Checkpoints, step: int, what: str):
    self.what = what
    others = [other for other in checkpoints.steps() if other < step]
    advice = (f'the one before is that of step {others[-1]:,}: to go on from the newest whole one give '
              f'--train.resume=whole, or remove {checkpoints.folder / str(step)}') if others else (
                  f'there is none before it: to begin again give another folder, or remove {checkpoints.folder}')
    super().__init__(f'the checkpoint of step {step:,} is damaged: {what}. {advice[0].upper()}{advice[1:]}')


def check_room(folder: epath.PathLike, needed: int, free: int | None) -> None:
  """Raises CheckpointError where a checkpoint of `needed` bytes has no room. free: bytes of the folder's disk; None: of
  a bucket, which has room."""
  if free is not None and free < needed:
    raise CheckpointError(
        f'no space left for a checkpoint in {folder}: it needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are '
        'free. The checkpoints that are there are whole: make room, and the same command goes on.')


def of_run(folder: epath.PathLike) -> epath.Path:
  """Finds the checkpoints of the run in `folder` that its users want: the best, where it is kept, else the newest."""
  folder = storage.path_of(folder)
  best = folder / 'best'
  # The folder is there before the first evaluation has put anything into it.
  kept = best.is_dir() and any(path.name.rstrip('/').isdigit() for path in best.iterdir())
  return best if kept else folder / 'checkpoints'


def restore_params(folder: epath.PathLike, shapes, shardings=None):
  """Restores the parameters alone of the newest checkpoint in `folder`, without reading the optimizer's state. Raises
  CheckpointError."""
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, shapes)
  target = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
  while True:
    with reading(folder) as (checkpoints, step):
      try:
        return params_of(checkpoints, step, target)
      except CheckpointError:
        # A run that goes on removes its old checkpoints: then there is a newer one.
        if (checkpoints.folder / str(step)).exists():
          raise


def params_of(checkpoints: Checkpoints, step: int, target):
  """Restores the parameters alone of a step, laid out as `target`, shapes with shardings. Raises CheckpointError for
  damage, parameters that are not there, and numbers that are not finite."""
  checkpoints.check(step)
  with explained(checkpoints, step):
    params = checkpoints.manager.restore(
        step, args=ocp.args.Composite(state=restore_args({'params': target}, partial=True)))['state']['params']
    # What a partial restore does not find it leaves as it was asked for.
    missing = [jax.tree_util.keystr(path, simple=True, separator='/')
               for path, x in jax.tree_util.tree_flatten_with_path(params)[0] if not isinstance(x, jax.Array)]
    if missing:
      raise KeyError(f'no parameters {", ".join(missing[:5])}')
  check_finite(params, checkpoints.folder / str(step))
  return params


def newest_meta(folder: epath.PathLike) -> dict[str, Any]:
  """Reads what the run has put beside its newest checkpoint. Raises CheckpointError."""
  with reading(folder) as (checkpoints, step):
    return checkpoints.meta(step)


@contextlib.contextmanager
def reading(folder: epath.PathLike) -> Iterator[tuple[Checkpoints, int]]:
  """Opens the checkpoints in a folder, and the newest step. Raises CheckpointError where there is none."""
  folder = storage.path_of(folder)
  with storage.explained(folder, 'read', CheckpointError):
    there = folder.is_dir()
  if not there:
    raise CheckpointError(f'no checkpoint in {folder}')
  checkpoints = Checkpoints(folder, keep=None)
  try:
    step = checkpoints.latest()
    if step is None:
      raise CheckpointError(f'no checkpoint in {folder}')
    yield checkpoints, step
  finally:
    checkpoints.close()


def restore_args(target, partial: bool = False):
  """Makes Orbax's arguments: each array as `target` has it; partial: whatever else is saved stays unread."""
  return ocp.args.PyTreeRestore(
      target, restore_args=ocp.checkpoint_utils.construct_restore_args(target), partial_restore=partial)


def check_finite(tree, where: epath.PathLike) -> None:
  """Raises CheckpointError that names the first array with numbers that are not finite."""
  floats = {jax.tree_util.keystr(path, simple=True, separator='/'): x
            for path, x in jax.tree_util.tree_flatten_with_path(tree)[0] if jnp.issubdtype(x.dtype, jnp.inexact)}
  good = jax.device_get(jax.jit(lambda floats: [jnp.isfinite(x).all() for x in floats])(list(floats.values())))
  for name, fine in zip(floats, good, strict=True):
    if not fine:
      raise CheckpointError(f'{where} is of no use: there are numbers in {name} that are not finite. An earlier '
                            'checkpoint may be good')


@contextlib.contextmanager
def explained(checkpoints: Checkpoints, step: int) -> Iterator[None]:
  """Turns whatever Orbax raises into a CheckpointError: on damage, on another model, on a disk that does not read."""
  folder = checkpoints.folder / str(step)
  try:
    yield
  except Expected:
    raise
  except Exception as error:
    cause = root_of(error)
    if storage.of_storage(cause) and not isinstance(cause, FileNotFoundError) and not DATA_LOSS.search(str(error)):
      raise CheckpointError(f'the checkpoint {folder} cannot be read: {reason_of(error)}') from error
    if checkpoints.compare(step):
      raise CheckpointError(
          f'the checkpoint {folder} cannot be restored, though its files are whole: it is of another model, or of '
          f'another version of plm_jax or Orbax ({type(error).__name__}: {reason_of(error)})') from error
    raise CheckpointError(
        f'the checkpoint {folder} cannot be restored: it is damaged, or of another model or version '
        f'({type(error).__name__}: {reason_of(error)}). If it is of this model, remove that folder to go on from an '
        'earlier checkpoint') from error


def root_of(error: BaseException) -> BaseException:
  """Returns what a chain of errors began with, if a disk or a bucket began it; otherwise the error itself."""
  at: BaseException | None = error
  while at is not None:
    if storage.of_storage(at):
      return at
    at = at.__cause__ or at.__context__
  return error


def reason_of(error: BaseException) -> str:
  """Says in 300 characters what went wrong, without tensorstore's places in its source."""
  return re.sub(r'\s*\[(source locations|tensorstore_spec)=.*', '', outside(root_of(error)))[:300]


# What tensorstore says of bytes that are not what it wrote, by the same kind of error as of a disk.
DATA_LOSS = re.compile(r'DATA_LOSS|INVALID_ARGUMENT|FAILED_PRECONDITION|NOT_FOUND|OUT_OF_RANGE')
