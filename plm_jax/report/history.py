"""Read metrics.jsonl of a run as curves, and tolerate torn or foreign lines."""
from collections.abc import Mapping, Sequence
import json
import math
from typing import Any, NamedTuple

from etils import epath

from plm_jax import storage
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.config.run import RunConfig
from plm_jax.errors import UserError
from plm_jax.loading.loaded_model import read_config
from plm_jax.training.run_metrics import count_tokens_read

Point = tuple[int, float]
"""step, value"""
Curves = dict[str, dict[str, list[Point]]]
"""metric -> split -> points by step; a value is NaN where it was not finite"""
LengthChange = tuple[int, int, int]
"""the last step of a sequence length, that length, and the next one"""
MAX_BYTES = 1 << 31
"""largest size of metrics.jsonl in bytes"""
MAX_VALUE = 1e30
"""larger values are treated as infinite, since they cannot be drawn next to others"""


class History(NamedTuple):
  """The configuration of a run and the metrics that it has written so far."""

  folder: str
  config: RunConfig | None
  """None: it cannot be read, or belongs to another kind of run"""
  curves: Curves

  @property
  def step(self) -> int:
    """The last step with a metric; 0 without metrics."""
    steps = [points[-1][0] for splits in self.curves.values() for points in splits.values()]
    return max(steps, default=0)

  def points(self, name: str, split: str = 'heldout') -> list[Point]:
    """Return the points of a metric with finite values."""
    return finite_points(self.curves.get(name, {}).get(split, ()))

  def last(self, name: str, split: str = 'heldout') -> float | None:
    """Return the last finite value of a metric; None if there is none."""
    points = self.points(name, split)
    return points[-1][1] if points else None

  def tokens(self, step: int) -> int:
    """Return the number of tokens read up to a step, padding included; 0 if it is unknown."""
    if self.config:
      return count_tokens_read(self.config.train.steps_and_tokens, step)
    return 0


def history(folder: epath.PathLike) -> History:
  """Read the folder of a run, on a disk or in a bucket.

  Raises:
    CheckpointError: no run has written there.
  """
  folder = storage.resolve_path(folder)
  path = folder / 'metrics.jsonl'
  with storage.io_errors_as(path, 'read', CheckpointError):
    if not path.exists():
      raise CheckpointError(f'{folder} is not the folder of a run that has begun: it has no '
                            'metrics.jsonl')
  try:
    config = read_config(folder)
  except UserError:
    config = None
  return History(str(folder), config, read_curves(path)[0])


def finite_points(points: Sequence[Point]) -> list[Point]:
  """Return the points with finite values."""
  return [point for point in points if math.isfinite(point[1])]


def read_curves(path: epath.PathLike) -> tuple[Curves, list[LengthChange], int]:
  """Read curves from metrics.jsonl.

  The last of several lines with the same step and split counts. null is a number that was not
  finite.

  Returns:
    The curves, the changes of the sequence length, and the number of lines that are not metrics.
  """
  path = storage.resolve_path(path)
  records: dict[tuple[int, str], Mapping[str, Any]] = {}
  lines, foreign = [], 0
  if path.exists():
    lines = storage.read_bytes(path, MAX_BYTES).decode('utf-8', 'replace').split('\n')
  for line in lines:
    if not line.strip():
      continue
    try:
      record = json.loads(line)
      if record is not None:
        records[record_key(record)] = record
    except (ValueError, TypeError, KeyError, RecursionError):
      foreign += 1
  curves: Curves = {}
  changes: list[LengthChange] = []
  before: tuple[int, int] | None = None  # last step and length of training
  for step, split in sorted(records):
    record = records[step, split]
    for key, value in record.items():
      if value is None:
        value = math.nan
      is_number = isinstance(value, int | float) and not isinstance(value, bool)
      if key in ('step', 'split', 'length') or not is_number:
        continue
      value = float(value) if abs(value) < MAX_VALUE else math.nan
      curves.setdefault(key, {}).setdefault(split, []).append((step, value))
    length = record.get('length')
    if split == 'train' and isinstance(length, int):
      if before and before[1] != length:
        changes.append((*before, length))
      before = step, length
  return curves, changes, foreign


def record_key(record: Mapping[str, Any]) -> tuple[int, str]:
  """Return step and split of a line; raise ValueError, TypeError or KeyError if it has none."""
  step, split = record['step'], record['split']
  if type(step) is not int or not 0 <= step < 1 << 53 or not isinstance(split, str):
    raise ValueError
  return step, split
