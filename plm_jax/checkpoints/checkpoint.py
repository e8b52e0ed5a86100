"""Checkpoints of a run: save, resume and restore, by Orbax, which only this package uses.

A checkpoint holds `state` (the arrays), `meta` (JSON: the step, and what the run records) and the
checksums of their files. It appears whole or not at all. Orbax writes to a temporary folder and
renames it; in a bucket it writes one more file at the end.
"""
from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import logging
import re
import time
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import storage
from plm_jax.checkpoints import checksums
from plm_jax.distributed import hosts
from plm_jax.errors import SAVED, UserError, describe_error, name_field

logger = logging.getLogger(__name__)

FINITE_BLOCK = 1 << 20
"""numbers that are checked together for being finite"""


class CheckpointError(UserError):
  """A checkpoint that is missing, damaged or of another run."""


class Checkpoints:
  """The checkpoints in a folder. Saving is asynchronous, one checkpoint at a time.

  Args:
    folder: the folder, on a disk or in a bucket.
    keep: number of newest checkpoints to keep. None: read only, while another process may train;
      nothing is made or removed.
  """

  def __init__(self, folder: epath.PathLike, keep: int | None = 3):
    folder = storage.resolve_path(folder)
    self.folder = folder if storage.is_remote(folder) else folder.resolve()
    self.saving_step, self.keep, self.read_only = 0, keep, keep is None

  @functools.cached_property
  def manager(self) -> Any:
    """Orbax's manager, which reads the metadata of all steps when it is made.

    Raises:
      DamagedCheckpointError: it cannot be made because a checkpoint is damaged.
      CheckpointError: it cannot be made because of the disk or the bucket.
    """
    import orbax.checkpoint as ocp  # takes time, and not every command reads a checkpoint of a run
    # Orbax explains at length, as a warning, what it does by default.
    logging.getLogger('absl').setLevel(logging.CRITICAL)
    if self.read_only:
      options = ocp.CheckpointManagerOptions(read_only=True)
    else:
      options = ocp.CheckpointManagerOptions(
          preservation_policy=ocp.checkpoint_managers.LatestN(self.keep), create=True,
          cleanup_tmp_directories=True, enable_async_checkpointing=True,
          # A removal whose answer was lost finds nothing when it is repeated: no reason for a save
          # to fail.
          enable_background_delete=storage.is_remote(self.folder),
          # Orbax calls it when all files are written, before the folder gets its final name.
          async_options=ocp.options.AsyncOptions(
              post_finalization_callback=self.write_checksums))
    with storage.io_errors_as(self.folder, 'used for checkpoints', CheckpointError):
      try:
        return ocp.CheckpointManager(self.folder, item_names=('state', 'meta'), options=options)
      except Exception:  # whatever Orbax raises for foreign content
        for step in reversed(self.list_steps()):
          self.verify_checksums(step)
        raise

  def steps(self) -> list[int]:
    """List the steps that are saved, ascending."""
    return sorted(self.manager.all_steps())

  def list_steps(self) -> list[int]:
    """List the steps that are saved, ascending, without Orbax, which fails if one is damaged."""
    found = []
    with storage.io_errors_as(self.folder, 'read', CheckpointError):
      for path in self.folder.iterdir() if self.folder.is_dir() else ():
        name = path.name.rstrip('/')
        # A folder of a bucket has its name before its files are complete.
        last = checksums.FILE_NAME, checksums.ORBAX_COMMIT_FILE
        if name.isdigit() and (
            not storage.is_remote(path) or any((path / file).exists() for file in last)):
          found.append(int(name))
    return sorted(found)

  def latest(self) -> int | None:
    """Return the newest step that is saved, None where there is none."""
    return self.manager.latest_step()

  def latest_on_all_hosts(self) -> int | None:
    """Return the newest step that process 0 sees, once all processes of the job see it.

    A shared disk may show an older state to some of them.

    Raises:
      HostsError: a process does not come to see it.
    """
    newest = hosts.broadcast(self.latest(), 'newest checkpoint')
    def sees_newest() -> bool:
      if self.read_only and newest is not None:
        # To a reader of a run in training, a newer one than process 0 saw does not matter.
        return newest in self.steps()
      return self.latest() == newest
    with hosts.barrier('newest checkpoint'):
      until = time.monotonic() + hosts.VISIBLE_SECONDS
      while not sees_newest():
        if time.monotonic() > until:
          raise hosts.HostsError(
              f'process 0 sees the checkpoint of step {newest} as the newest in {self.folder}, and '
              f'process {jax.process_index()} that of step {self.latest()}')
        time.sleep(0.5)
        self.manager.reload()
    return newest

  def save(self, step: int, state, meta: Mapping[str, Any]) -> None:
    """Save a step: return once the arrays are copied, while they are written in the background.

    The newest step, if it is this one, is left alone.

    Raises:
      CheckpointError: the disk has no room (on all processes, before anything is written), the
        step is older than the newest, or the save before this one failed.
    """
    import orbax.checkpoint as ocp
    if step == self.latest():
      return
    with hosts.barrier(f'room for the checkpoint of step {step}'), self.explain_save_errors():
      self.check_space(state)
      self.manager.check_for_errors()
    with self.explain_save_errors():
      self.manager.wait_until_finished()
      self.saving_step = step
      SAVED.append(f'{self.folder}/{step}')
      saved = self.manager.save(step, args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave({'step': step, **meta})))
    if not saved:
      raise CheckpointError(
          f'the checkpoint of step {step:,} was not saved: {self.folder} has a newer one, of step '
          f'{self.latest():,}. Remove that, or give another folder')

  def write_checksums(self) -> None:
    """Write the checksums of what has just been written, before it gets its name."""
    # Another thread of Orbax writes the step's metadata. Orbax waits for it only after this
    # callback, and only a private member can be waited for (setup.cfg: Orbax below 1.0).
    self.manager._non_blocking_metadata_store.wait_until_finished()
    folder = self.folder / str(self.saving_step)
    if not storage.is_remote(self.folder):
      drafts = [path for path in self.folder.iterdir()
                if path.name.startswith(f'{self.saving_step}.') and path.is_dir()]
      if drafts:
        folder = max(drafts, key=lambda path: path.stat().mtime)
    checksums.write(folder)

  def check_space(self, state) -> None:
    """Check that the disk has room for the state: found out later, it would be half-written.

    Raises:
      CheckpointError: it has not.
    """
    needed = sum(x.nbytes for x in jax.tree.leaves(state))
    check_free_space(self.folder, needed, storage.free_bytes(self.folder))

  @contextlib.contextmanager
  def explain_save_errors(self) -> Iterator[None]:
    """Turn what went wrong with a save, now or in the background, into a CheckpointError."""
    try:
      yield
    except UserError:
      raise
    except Exception as error:
      if not storage.is_storage_error(root_cause(error)):
        raise
      step = f'step {self.saving_step:,}' if self.saving_step else 'a step'
      full = re.search('RESOURCE_EXHAUSTED|No space left', str(error))
      if full and not storage.is_remote(self.folder):
        reason = 'No space left on device'
      else:
        reason = short_reason(error)
      raise CheckpointError(
          f'the checkpoint of {step} could not be written to {self.folder}: {reason}. Those of '
          'before '
          'are whole: the same command resumes from the newest when the cause is fixed') from error

  def verify(self, step: int) -> None:
    """Verify the checkpoint of a step by its checksums. Each process reads its share.

    Raises:
      CheckpointError: it is not what was written; raised on all processes.
      StorageError: a file cannot be read.
    """
    with hosts.barrier(f'check of step {step}'):
      self.verify_checksums(step, jax.process_index(), jax.process_count())

  def verify_checksums(self, step: int, part: int = 0, parts: int = 1) -> None:
    """Compare the files of a step with the checksums that were written with them.

    Args:
      step: that of the checkpoint.
      part: number of this process.
      parts: number of processes, each of which verifies its share.

    Raises:
      DamagedCheckpointError: a file is not what was written.
    """
    try:
      checksums.check(self.folder / str(step), part, parts)
    except checksums.ChecksumError as error:
      raise DamagedCheckpointError(self, step, str(error)) from error

  def move_damaged_aside(self, say: Callable[[str], None]) -> None:
    """Move checkpoints that are damaged to the folder's parent."""
    def move() -> None:
      for step in reversed(self.list_steps()):
        try:
          self.verify_checksums(step)
        except DamagedCheckpointError as error:
          aside = self.folder.parent / f'damaged-{step}'
          storage.move(self.folder / str(step), aside)
          say(f'{error.what}. The checkpoint of step {step:,} is put aside as {aside}')
    with hosts.barrier('damaged checkpoints'):
      if jax.process_index() == 0:
        move()
    self.manager.reload()

  def restore(self, step: int, shapes, shardings):
    """Restore the state saved at `step`, laid out by `shardings`, whatever mesh it was saved from.

    It does not compare checksums: call `verify` before.

    Raises:
      CheckpointError: it is damaged, of another model, or has numbers that are not finite.
    """
    import orbax.checkpoint as ocp
    target = sharded_shapes(shapes, shardings)
    with explain_restore_errors(self, step):
      args = ocp.args.Composite(state=make_restore_args(target))
      state = self.manager.restore(step, args=args)['state']
    check_finite(state, self.folder / str(step))
    SAVED.append(f'{self.folder}/{step}')
    return state

  def meta(self, step: int) -> dict[str, Any]:
    """Read what the run recorded with a step.

    Raises:
      DamagedCheckpointError: it is no JSON object.
    """
    import orbax.checkpoint as ocp
    with explain_restore_errors(self, step):
      args = ocp.args.Composite(meta=ocp.args.JsonRestore())
      meta = self.manager.restore(step, args=args)['meta']
    if not isinstance(meta, dict):
      raise DamagedCheckpointError(
          self, step, f'{self.folder / str(step) / "meta"} is not an object of JSON')
    return meta

  def reached_preemption(self, step: int) -> bool:
    """Tell whether the cluster has announced preemption of a machine, to any host."""
    return self.manager.reached_preemption(step)

  def check_saved(self) -> None:
    """Raise CheckpointError for what has gone wrong in the background."""
    with self.explain_save_errors():
      self.manager.check_for_errors()

  def wait(self) -> None:
    """Wait until the save in the background is done. Raises CheckpointError where it failed."""
    with self.explain_save_errors():
      self.manager.wait_until_finished()

  def close(self) -> None:
    """Wait as `wait` does, and end Orbax's threads. Old checkpoints that stay are a warning."""
    if 'manager' not in self.__dict__:  # it was not used
      return
    self.wait()
    try:
      self.manager.close()
    except Exception as error:  # all is saved: what remained are removals
      if not storage.is_storage_error(root_cause(error)):
        raise
      logger.warning('not all old checkpoints in %s could be removed: %s', self.folder,
                     short_reason(error))


class DamagedCheckpointError(CheckpointError):
  """A checkpoint with another content than was written."""

  def __init__(self, checkpoints: Checkpoints, step: int, what: str):
    self.what = what
    others = [other for other in checkpoints.list_steps() if other < step]
    if others:
      advice = (f'The one before is that of step {others[-1]:,}: to go on from the newest whole '
                f'one give {name_field("train.resume")}=whole, or remove '
                f'{checkpoints.folder / str(step)}')
    else:
      advice = ('There is none before it: to begin again give another folder, or remove '
                f'{checkpoints.folder}')
    super().__init__(f'the checkpoint of step {step:,} is damaged: {what}. {advice}')


def check_free_space(folder: epath.PathLike, needed: int, free: int | None) -> None:
  """Check that there is room for a checkpoint.

  Args:
    folder: where it is written.
    needed: its bytes.
    free: free bytes of the folder's disk; None: of a bucket, which has room.

  Raises:
    CheckpointError: there is not.
  """
  if free is not None and free < needed:
    raise CheckpointError(
        f'no space left for a checkpoint in {folder}: it needs {needed / 1e6:,.1f} MB, '
        f'{free / 1e6:,.1f} MB are free. The existing checkpoints are complete: make room, and '
        'the same command resumes.')


def sharded_shapes(shapes: Any, shardings: Any) -> Any:
  """Combine a tree of shapes and a tree of shardings."""
  def combine(shape, sharding):
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
  return jax.tree.map(combine, shapes, shardings)


def make_restore_args(target, partial: bool = False):
  """Make Orbax's arguments to restore each array as `target` has it.

  partial: whatever else is saved stays unread.
  """
  import orbax.checkpoint as ocp
  restore_args = ocp.checkpoint_utils.construct_restore_args(target)
  return ocp.args.PyTreeRestore(target, restore_args=restore_args, partial_restore=partial)


def check_finite(tree, where: epath.PathLike) -> None:
  """Check that all numbers are finite.

  Raises:
    CheckpointError: some are not; it names the first array.
  """
  floats = {jax.tree_util.keystr(path, simple=True, separator='/'): x
            for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
            if jnp.issubdtype(x.dtype, jnp.inexact)}
  if all(map(is_in_host_memory, floats.values())):
    # Compiling a program for it would take longer than this does for most models.
    good = [all(map(is_finite_on_host, host_arrays(x))) for x in floats.values()]
  else:
    check = jax.jit(lambda floats: [jnp.isfinite(x).all() for x in floats])
    good = jax.device_get(check(list(floats.values())))
  for name, fine in zip(floats, good, strict=True):
    if not fine:
      raise CheckpointError(f'{where} is of no use: there are numbers in {name} that are not '
                            'finite. An earlier checkpoint may be good')


def is_in_host_memory(x) -> bool:
  """Tell whether all of an array is in the memory of this process: in numpy, or on the CPU."""
  if not isinstance(x, jax.Array):
    return True
  return x.is_fully_addressable and all(device.platform == 'cpu' for device in x.devices())


def host_arrays(x) -> list[np.ndarray]:
  """Return the parts of an array in host memory as numpy arrays, without copies."""
  if not isinstance(x, jax.Array):
    return [np.asarray(x)]
  return [np.asarray(shard.data) for shard in x.addressable_shards if shard.replica_id == 0]


def is_finite_on_host(x: np.ndarray) -> bool:
  """Tell whether all numbers of an array are finite; block by block, to need little memory."""
  flat = x.reshape(-1)
  starts = range(0, len(flat), FINITE_BLOCK)
  return all(np.isfinite(flat[start:start + FINITE_BLOCK]).all() for start in starts)


@contextlib.contextmanager
def explain_restore_errors(checkpoints: Checkpoints, step: int) -> Iterator[None]:
  """Turn errors of Orbax into CheckpointError: damage, another model, or a disk that fails."""
  folder = checkpoints.folder / str(step)
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    cause, reason = root_cause(error), short_reason(error)
    unreadable = storage.is_storage_error(cause) and not isinstance(cause, FileNotFoundError)
    if unreadable and not DATA_LOSS.search(str(error)):
      raise CheckpointError(f'the checkpoint {folder} cannot be read: {reason}') from error
    checkpoints.verify_checksums(step)
    raise CheckpointError(
        f'the checkpoint {folder} cannot be restored, though its files are whole: it is of another '
        f'model, or of another version of plm_jax or Orbax ({type(error).__name__}: {reason})'
        ) from error


def root_cause(error: BaseException) -> BaseException:
  """Return the storage error that a chain of errors began with, otherwise the error itself."""
  at: BaseException | None = error
  while at is not None:
    if storage.is_storage_error(at):
      return at
    at = at.__cause__ or at.__context__
  return error


def short_reason(error: BaseException) -> str:
  """Return in 300 characters what went wrong, without tensorstore's places in its source."""
  text = describe_error(root_cause(error))
  return re.sub(r'\s*\[(source locations|tensorstore_spec)=.*', '', text)[:300]


DATA_LOSS = re.compile(r'DATA_LOSS|INVALID_ARGUMENT|FAILED_PRECONDITION|NOT_FOUND|OUT_OF_RANGE')
"""What tensorstore reports of corrupted files, with the same kind of error as of a failing disk."""
