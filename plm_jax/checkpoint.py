"""Checkpoints of a run, by Orbax, behind this module alone: save, resume, warm start.

A checkpoint holds `state` (the arrays) and `meta` (JSON: step, and whatever the run wants beside it). It appears whole
or not at all: Orbax writes to a temporary folder and renames it.
"""
from collections.abc import Mapping
import logging
import shutil
from typing import Any

from etils import epath
import jax
import orbax.checkpoint as ocp

from plm_jax.errors import Expected


class CheckpointError(Expected):
  """A checkpoint that is missing, damaged or of another run."""


class Checkpoints:
  """The checkpoints in a folder; `keep` newest stay. Saving is asynchronous, one at a time."""

  def __init__(self, folder: epath.PathLike, keep: int = 3):
    self.folder = epath.Path(folder)
    if '://' not in str(folder):
      self.folder = self.folder.resolve()
    # Orbax explains at length, as a warning, what it does by default.
    logging.getLogger('absl').setLevel(logging.ERROR)
    self.manager = ocp.CheckpointManager(
        self.folder, item_names=('state', 'meta'),
        options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=True))

  def latest(self) -> int | None:
    return self.manager.latest_step()

  def save(self, step: int, state, meta: Mapping[str, Any]) -> None:
    """Returns once the arrays are copied; the writing goes on. A step that is already there is left alone.

    Raises CheckpointError, before anything is written, if the disk has no room for it.
    """
    if step != self.latest():
      self.check_space(state)
      self.manager.save(step, args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave({**meta, 'step': step})))

  def check_space(self, state) -> None:
    """Raises CheckpointError unless the disk has room for the state: found out later, it would be half-written."""
    if '://' in str(self.folder):
      return
    needed, free = sum(x.nbytes for x in jax.tree.leaves(state)), shutil.disk_usage(self.folder).free
    if free < needed:
      raise CheckpointError(
          f'no space left for a checkpoint in {self.folder}: it needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are '
          'free. The checkpoints that are there are whole: make room, and the same command goes on.')

  def restore(self, step: int, shapes, shardings):
    """-> the state saved at `step`, laid out by `shardings`, whatever mesh it was saved from."""
    target = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    with explained(self.folder / str(step)):
      return self.manager.restore(step, args=ocp.args.Composite(state=restore_args(target)))['state']

  def meta(self, step: int) -> dict[str, Any]:
    with explained(self.folder / str(step)):
      return self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))['meta']

  def preempted(self, step: int) -> bool:
    """Whether the cluster has announced, to any host, that it takes the machines back."""
    return self.manager.reached_preemption(step)

  def wait(self) -> None:
    self.manager.wait_until_finished()

  def close(self) -> None:
    self.manager.close()


def restore_params(folder: epath.PathLike, shapes, shardings=None):
  """Parameters alone of the newest checkpoint in `folder`, without reading the optimizer's state."""
  if not epath.Path(folder).exists():  # Orbax would make it
    raise CheckpointError(f'no checkpoint in {folder}')
  checkpoints = Checkpoints(folder)
  try:
    step = checkpoints.latest()
    if step is None:
      raise CheckpointError(f'no checkpoint in {folder}')
    if shardings is None:
      device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
      shardings = jax.tree.map(lambda _: device, shapes)
    target = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    with explained(checkpoints.folder / str(step)):
      params = checkpoints.manager.restore(
          step, args=ocp.args.Composite(state=restore_args({'params': target}, partial=True)))['state']['params']
      # What a partial restore does not find it leaves as it was asked for.
      missing = [jax.tree_util.keystr(path, simple=True, separator='/')
                 for path, x in jax.tree_util.tree_flatten_with_path(params)[0] if not isinstance(x, jax.Array)]
      if missing:
        raise KeyError(f'no parameters {", ".join(missing[:5])}')
      return params
  finally:
    checkpoints.close()


def restore_args(target, partial: bool = False):
  return ocp.args.PyTreeRestore(
      target, restore_args=ocp.checkpoint_utils.construct_restore_args(target), partial_restore=partial)


class explained:
  """Turns whatever Orbax raises on a damaged or foreign checkpoint into a CheckpointError that names it."""

  def __init__(self, path: epath.Path):
    self.path = path

  def __enter__(self):
    return self

  def __exit__(self, kind, error, trace):
    del trace
    if kind is not None and issubclass(kind, Exception) and not issubclass(kind, CheckpointError):
      reason = next(iter(str(error).splitlines()), '')
      raise CheckpointError(
          f'the checkpoint {self.path} cannot be restored: it is damaged, or of another model or version '
          f'({kind.__name__}: {reason}). Remove that folder to go on from an earlier checkpoint.') from error
