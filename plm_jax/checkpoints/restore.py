"""Restore parameters from the checkpoints of a run, without training it."""
from collections.abc import Iterator
import contextlib
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp

from plm_jax import storage
from plm_jax.checkpoints.checkpoint import (
  CheckpointError,
  Checkpoints,
  check_finite,
  explain_restore_errors,
  make_restore_args,
  sharded_shapes,
)
from plm_jax.distributed import hosts
from plm_jax.errors import name_field
from plm_jax.storage import hub

NAMED_FOLDER = 'named_checkpoints'
"""folder of a run with the parameters that are kept under a name, one folder per name"""


def find_run_checkpoints(
    folder: epath.PathLike, job: bool = False, name: str = '') -> epath.Path:
  """Find the checkpoints of the run in `folder` that its users want: the best, if kept, else the
  newest.

  Args:
    folder: that of the run.
    job: all processes of the job call this, and take those that process 0 sees.
    name: name of a checkpoint, such as chck_10M, that is wanted instead.

  Raises:
    CheckpointError: there is no checkpoint of this name.
  """
  folder = hub.find_folder(folder)
  if name:
    names = list_named_checkpoints(folder)
    if name not in names:
      kept = f'it has {", ".join(names)}' if names else 'it has kept none'
      raise CheckpointError(f'{folder} has no checkpoint {name}: {kept}')
    return folder / NAMED_FOLDER / name
  best = folder / 'best'
  # The folder exists before the first evaluation has put anything into it.
  kept = best.is_dir() and any(path.name.rstrip('/').isdigit() for path in best.iterdir())
  if job:
    kept = hosts.broadcast(kept, 'kind of checkpoint')
  return best if kept else folder / 'checkpoints'


def list_named_checkpoints(folder: epath.PathLike) -> list[str]:
  """List the names of the checkpoints that a run has kept under a name, in their order."""
  home = hub.find_folder(folder) / NAMED_FOLDER
  with storage.io_errors_as(home, 'read', CheckpointError):
    if not home.is_dir():
      return []
    steps = {}
    for path in home.iterdir():
      saved = [int(step.name) for step in path.iterdir() if step.name.rstrip('/').isdigit()]
      if saved:
        steps[path.name] = max(saved)
  return sorted(steps, key=lambda name: (steps[name], len(name), name))


def restore_params(
    folder: epath.PathLike, shapes, shardings=None, job: bool = False, part: str = 'params'):
  """Restore the parameters alone of the newest checkpoint, without reading the optimizer's state.

  Args:
    folder: that of the checkpoints.
    shapes: shapes of the parameters.
    shardings: their shardings; None: all on the first device.
    job: all processes of the job call this, and take the checkpoint that process 0 sees as the
      newest.
    part: another part of the training state, in place of the parameters.

  Raises:
    CheckpointError: there is no such checkpoint.
  """
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, shapes)
  target = sharded_shapes(shapes, shardings)
  while True:
    with open_newest(folder) as (checkpoints, step):
      if job:
        newest = checkpoints.latest_on_all_hosts() or step
        return restore_step_params(checkpoints, newest, target, part)
      try:
        return restore_step_params(checkpoints, step, target, part)
      except CheckpointError:
        # A run in training removes its old checkpoints: then there is a newer one.
        if (checkpoints.folder / str(step)).exists():
          raise


def restore_mean_params(folder: epath.PathLike, number: int, shapes):
  """Restore the mean of the parameters of the newest checkpoints, on the first device.

  Averaged checkpoints translate better than the last one (Vaswani et al. 2017, section 6.1).

  Args:
    folder: the folder with the checkpoints.
    number: how many checkpoints are averaged.
    shapes: shapes of the parameters.

  Raises:
    CheckpointError: there are fewer checkpoints, or one is damaged.
  """
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  target = sharded_shapes(shapes, jax.tree.map(lambda _: device, shapes))
  with open_newest(folder) as (checkpoints, _):
    steps = checkpoints.steps()[-number:]
    if len(steps) < number:
      raise CheckpointError(
          f'{folder} has {len(steps)} checkpoints, and {number} are to be averaged: '
          f'{name_field("train.keep")}={number} keeps as many')
    total = restore_step_params(checkpoints, steps[0], target)
    for step in steps[1:]:
      total = jax.tree.map(jnp.add, total, restore_step_params(checkpoints, step, target))
  return jax.tree.map(lambda x: x / number, total)


def restore_step_params(checkpoints: Checkpoints, step: int, target, part: str = 'params'):
  """Restore the parameters alone of a step.

  Args:
    checkpoints: those of the run.
    step: that of the checkpoint.
    target: shapes with shardings.
    part: as of `restore_params`.

  Raises:
    CheckpointError: parameters are damaged, missing, or have numbers that are not finite.
  """
  import orbax.checkpoint as ocp
  checkpoints.verify(step)
  with explain_restore_errors(checkpoints, step):
    args = ocp.args.Composite(state=make_restore_args({part: target}, partial=True))
    params = checkpoints.manager.restore(step, args=args)['state'][part]
    # A partial restore leaves what it does not find as it was asked for.
    missing = []
    for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
      if not isinstance(x, jax.Array):
        missing.append(jax.tree_util.keystr(path, simple=True, separator='/'))
    if missing:
      raise KeyError(f'no parameters {", ".join(missing[:5])}')
  check_finite(params, checkpoints.folder / str(step))
  return params


def read_newest_meta(folder: epath.PathLike) -> dict[str, Any]:
  """Read what the run recorded with its newest checkpoint. Raises CheckpointError."""
  with open_newest(folder) as (checkpoints, step):
    return checkpoints.meta(step)


@contextlib.contextmanager
def open_newest(folder: epath.PathLike) -> Iterator[tuple[Checkpoints, int]]:
  """Open the checkpoints in a folder to read, with the newest step.

  Raises:
    CheckpointError: there is none.
  """
  folder = storage.resolve_path(folder)
  with storage.io_errors_as(folder, 'read', CheckpointError):
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
