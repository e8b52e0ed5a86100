"""metrics.jsonl as it is drawn: what a run has written there, and whatever else may have got into it."""
from collections.abc import Mapping, Sequence
import json
import math
from typing import Any, NamedTuple

from etils import epath

from plm_jax import storage
from plm_jax.config import Run
from plm_jax.errors import Expected
from plm_jax.inference.loading import read_config
from plm_jax.training.checkpoint import CheckpointError
from plm_jax.training.metrics import tokens_read

Point = tuple[int, float]  # step, value
Curves = dict[str, dict[str, list[Point]]]  # metric -> split -> points by step; a value is NaN where it was not finite
Phase = tuple[int, int, int]  # the last step of a length, that length and the next one in tokens
LONGEST = 1 << 31  # bytes of metrics.jsonl
LARGEST = 1e30  # of values: what could not be drawn beside others is as good as infinite


class History(NamedTuple):
  """What a run has written of itself up to now."""

  folder: str
  config: Run | None
  """None: it cannot be read, or is of another kind of run"""
  curves: Curves

  @property
  def step(self) -> int:
    """The last step that is told of."""
    return max((points[-1][0] for splits in self.curves.values() for points in splits.values()), default=0)

  def last(self, name: str, split: str = 'heldout') -> float | None:
    """Returns the last value of a figure that is finite."""
    points = finite(self.curves.get(name, {}).get(split, ()))
    return points[-1][1] if points else None

  def tokens(self, step: int) -> int:
    """Counts the tokens, padding included, that a run has read up to a step; 0 where its rows are not known."""
    return tokens_read(self.config.train.pace, step) if self.config else 0


def history(folder: epath.PathLike) -> History:
  """Reads a run's folder, on a disk or in a bucket. Raises CheckpointError where no run has written there."""
  folder = storage.path_of(folder)
  path = folder / 'metrics.jsonl'
  with storage.explained(path, 'read', CheckpointError):
    if not path.exists():
      raise CheckpointError(f'{folder} is not the folder of a run that has begun: it has no metrics.jsonl')
  try:
    config = read_config(folder)
  except Expected:
    config = None
  return History(str(folder), config, read_curves(path)[0])


def finite(points: Sequence[Point]) -> list[Point]:
  """Returns the points whose values are finite."""
  return [point for point in points if math.isfinite(point[1])]


def read_curves(path: epath.PathLike) -> tuple[Curves, list[Phase], int]:
  """Reads the curves, the phases, and how many lines are no metrics: of a process that died, or of something else.

  Of lines with the same step and split the last counts. null is a number that was not finite.
  """
  path, records, foreign = storage.path_of(path), {}, 0
  for line in storage.read_bytes(path, LONGEST).decode('utf-8', 'replace').split('\n') if path.exists() else ():
    try:
      record = json.loads(line) if line.strip() else None
      if record is not None:
        records[place(record)] = record
    except (ValueError, TypeError, KeyError, RecursionError):
      foreign += 1
  curves, phases, before = {}, [], None
  for step, split in sorted(records):
    for key, value in records[step, split].items():
      value = math.nan if value is None else value
      if key not in ('step', 'split', 'length') and isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value) if abs(value) < LARGEST else math.nan
        curves.setdefault(key, {}).setdefault(split, []).append((step, value))
    length = records[step, split].get('length') if split == 'train' else None
    if isinstance(length, int):
      if before and before[1] != length:
        phases.append((*before, length))
      before = step, length
  return curves, phases, foreign


def place(record: Mapping[str, Any]) -> tuple[int, str]:
  """Returns the step and the split of a line. Raises ValueError, TypeError or KeyError where it has none."""
  step, split = record['step'], record['split']
  if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 53 or not isinstance(split, str):
    raise ValueError
  return step, split
