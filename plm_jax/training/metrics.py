"""Numbers of a run: sums over steps, JSON lines, TensorBoard, and what a chip could do at best."""
from collections.abc import Iterable, Mapping, Sequence
import json
import math
from typing import Any

from etils import epath
import jax
import numpy as np

from plm_jax import storage
from plm_jax.data.pipeline import tensorflow
from plm_jax.training.writers import ScalarWriter, TensorBoard, brought

# Peak bfloat16 (fp16 on older GPUs) dense matrix throughput in FLOP/s of one JAX device: a core on TPU v2 and v3, a
# chip elsewhere. From Google's TPU system architecture pages and NVIDIA's data sheets (SXM variants).
PEAK_FLOPS = {
    'TPU v2': 23e12, 'TPU v3': 61.5e12, 'TPU v4': 275e12, 'TPU v5 lite': 197e12, 'TPU v5e': 197e12, 'TPU v5': 459e12,
    'TPU v5p': 459e12, 'TPU v6 lite': 918e12, 'TPU v6e': 918e12,
    'Tesla T4': 65e12, 'Tesla V100': 125e12, 'NVIDIA L4': 121e12, 'NVIDIA A100': 312e12, 'NVIDIA H100': 989e12,
    'NVIDIA H200': 989e12, 'NVIDIA B200': 2250e12,
}


def peak_flops(device: Any) -> float | None:
  """Returns the peak of the device in FLOPs a second, None where it is not known (a CPU, say)."""
  names = [name for name in PEAK_FLOPS if device.device_kind == name or device.device_kind.startswith(f'{name} ')
           or device.device_kind.startswith(f'{name}-')]
  return PEAK_FLOPS[max(names, key=len)] if names else None


def combine(steps: Iterable[Mapping[str, Any]]) -> dict[str, float]:
  """Combines the metrics of several steps to means: (sum, weight) pairs are summed first, other numbers averaged."""
  pairs, scalars = {}, {}
  for step in jax.device_get([dict(step) for step in steps]):
    for name, value in step.items():
      if isinstance(value, tuple):
        pairs[name] = pairs.get(name, np.zeros(2)) + np.array(value, np.float64)
      else:
        scalars.setdefault(name, []).append(float(value))
  return {name: float(total / weight) if weight else 0.0 for name, (total, weight) in pairs.items()} | {
      name: float(np.mean(values)) for name, values in scalars.items()}


class Writer:
  """metrics.jsonl in a run's folder, TensorBoard event files where TensorFlow is installed, and writers besides."""

  def __init__(self, folder: epath.PathLike, step: int = 0, *own: ScalarWriter):
    """step: that the run goes on from. Lines of later ones, which will be written again, are taken out first.

    own: writers that end with this one.
    """
    folder = storage.path_of(folder)
    self.path = folder / 'metrics.jsonl'
    with storage.explained(self.path, 'read'):
      before = self.path.read_bytes().decode('utf-8', 'replace') if self.path.exists() else ''
    if (kept := lines_until(before, step)) != before:
      storage.write(self.path, kept)
    board = tensorflow()
    self.own = ([TensorBoard(board, folder / 'tensorboard')] if board else []) + [*own]

  def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
    """Appends a line to metrics.jsonl, and gives scalars to the writers. A number that is not finite is null: JSON has
    none."""
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    storage.append(self.path, json.dumps({'step': step, 'split': split, **finite}, allow_nan=False) + '\n')
    for writer in (*self.own, *brought()):
      writer.write_scalars(step, {f'{split}/{name}': value for name, value in values.items()})
      writer.flush()

  def close(self) -> None:
    """Ends the writers that are its own."""
    for writer in self.own:
      writer.close()


def lines_until(text: str, step: int) -> str:
  """Returns the lines of metrics.jsonl up to a step; without those that are not whole, as a killed run leaves its
  last."""
  def belongs(line: str) -> bool:
    try:
      return int(json.loads(line)['step']) <= step
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
      return False
  return ''.join(f'{line}\n' for line in text.split('\n') if belongs(line))


def tokens_read(pace: Sequence[tuple[int, int]], step: int) -> int:
  """Counts the tokens of the first `step` updates. pace: of each phase its updates, and the tokens of each.

  >>> tokens_read(((2, 100), (5, 1000)), 3)
  1200
  """
  read = 0
  for steps, each in pace:
    read += min(step, steps) * each
    step = max(0, step - steps)
  return read
