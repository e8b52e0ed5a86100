"""Metrics of a run: means over steps, metrics.jsonl, TensorBoard, and peak FLOPs of devices for
MFU."""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import json
import logging
import math
from typing import Any

from etils import epath
import jax
import numpy as np

from plm_jax import storage
from plm_jax.data.pipeline import import_tensorflow
from plm_jax.training.writers import ScalarWriter, TensorBoard, current_writers

logger = logging.getLogger(__name__)
READ_LIMIT = 1 << 34
"""bytes of a metrics.jsonl that is read"""
# Peak bfloat16 (fp16 on older GPUs) dense matrix throughput in FLOP/s of one JAX device: a core on
# TPU v2 and v3, a chip elsewhere. From Google's TPU system architecture pages and NVIDIA's data
# sheets (SXM variants).
PEAK_FLOPS = {
    'TPU v2': 23e12, 'TPU v3': 61.5e12, 'TPU v4': 275e12, 'TPU v5 lite': 197e12, 'TPU v5e': 197e12,
    'TPU v5': 459e12, 'TPU v5p': 459e12, 'TPU v6 lite': 918e12, 'TPU v6e': 918e12,
    'Tesla T4': 65e12, 'Tesla V100': 125e12, 'NVIDIA L4': 121e12, 'NVIDIA A100': 312e12,
    'NVIDIA H100': 989e12, 'NVIDIA H200': 989e12, 'NVIDIA B200': 2250e12,
}


def peak_flops(device: Any) -> float | None:
  """Return the peak FLOPs per second of a device; None where it is not known (a CPU, for
  example)."""
  kind = device.device_kind
  names = [name for name in PEAK_FLOPS if kind == name or kind.startswith((f'{name} ', f'{name}-'))]
  return PEAK_FLOPS[max(names, key=len)] if names else None


def combine_metrics(steps: Iterable[Mapping[str, Any]]) -> dict[str, float]:
  """Combine the metrics of several steps to means.

  (sum, weight) pairs are summed first; other numbers are averaged.
  """
  pairs, scalars = {}, {}
  for step in jax.device_get([dict(step) for step in steps]):
    for name, value in step.items():
      if isinstance(value, tuple):
        pairs[name] = pairs.get(name, np.zeros(2)) + np.array(value, np.float64)
      else:
        scalars.setdefault(name, []).append(float(value))
  means = {name: float(total / weight) if weight else 0.0
           for name, (total, weight) in pairs.items()}
  return means | {name: float(np.mean(values)) for name, values in scalars.items()}


class MetricsWriter:
  """Write metrics.jsonl in a run's folder, TensorBoard events where TensorFlow is installed, and
  more."""

  def __init__(self, folder: epath.PathLike, step: int = 0, *own: ScalarWriter,
               on_failure: Callable[[], None] = lambda: None):
    """Open the writers.

    Args:
      folder: that of the run.
      step: step from which the run resumes. Lines of later steps, which will be written again, are
        removed first.
      own: writers that are closed with this one.
      on_failure: called when metrics cannot be written; it asks the loop to save and stop.
    """
    folder = storage.resolve_path(folder)
    self.path = folder / 'metrics.jsonl'
    with storage.io_errors_as(self.path, 'read'):
      content = storage.read_bytes(self.path, READ_LIMIT) if self.path.exists() else b''
    before = content.decode('utf-8', 'replace')
    kept = lines_until(before, step)
    if kept != before:
      storage.write(self.path, kept)
    self.failed, self.on_failure = False, on_failure
    self.own = list(own)
    tensorflow = import_tensorflow()
    if tensorflow:
      self.own.insert(0, TensorBoard(tensorflow, folder / 'tensorboard'))

  def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
    """Append a line to metrics.jsonl, and pass scalars to the writers.

    A number that is not finite is null: JSON has none. What cannot be written, for example to a
    full disk, is a warning, after which nothing more is written.
    """
    if self.failed:
      return
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    line = json.dumps({'step': step, 'split': split, **finite}, allow_nan=False)
    with self.note_failure():
      storage.append(self.path, line + '\n')
      for writer in (*self.own, *current_writers()):
        writer.write_scalars(step, {f'{split}/{name}': value for name, value in values.items()})
        writer.flush()

  @contextlib.contextmanager
  def note_failure(self) -> Iterator[None]:
    """Turn an error of a disk or of a bucket's client into a warning."""
    try:
      with storage.io_errors_as(self.path, 'written'):
        yield
    except storage.StorageError as error:
      self.failed = True
      self.on_failure()
      logger.warning('metrics: %s', error)

  def close(self) -> None:
    """Close the writers that are its own."""
    for writer in self.own:
      with self.note_failure():
        writer.close()


def lines_until(text: str, step: int) -> str:
  """Return the lines of metrics.jsonl up to a step, without incomplete ones, such as a killed
  run's last."""
  def belongs(line: str) -> bool:
    try:
      return int(json.loads(line)['step']) <= step
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
      return False
  return ''.join(f'{line}\n' for line in text.split('\n') if belongs(line))


def count_tokens_read(pace: Sequence[tuple[int, int]], step: int) -> int:
  """Count the tokens of the first `step` updates.

  >>> count_tokens_read(((2, 100), (5, 1000)), 3)
  1200

  Args:
    pace: for each phase its updates, and the tokens of each.
    step: number of updates.
  """
  read = 0
  for steps, tokens in pace:
    read += min(step, steps) * tokens
    step = max(0, step - steps)
  return read
