"""Data sheets of GPUs and TPUs by the names that people use, such as rtx4090 or v5e-8."""
import os
import re
from typing import Any, Literal, NamedTuple

from plm_jax.errors import ConfigError
from plm_jax.training import run_metrics

GIB = 2 ** 30
GPU_MEMORY_SHARE = 0.75
"""Share of a GPU's memory that JAX takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""
USED_SHARE = 0.92
"""Share of that memory that a plan uses: estimates are within 10%, and kernels need work space."""
UTILIZATION = {'encoder-decoder': 0.21, 'gpu': 0.28, 'tpu': 0.4, 'cpu': 0.4}
"""Model FLOPs utilization that estimates assume. GPU: measured on an H100 (benchmarks/RESULTS.md:
BERT-base 30%, GPT-2 29%, ModernBERT 26%, T5 21%); it was not measured on other GPUs. TPU and CPU:
an assumption."""
CPU_CORE_FLOPS = 5e10
"""Rough float32 peak of a CPU core, for the batch size of a run on a CPU: its time is measured."""


class Device(NamedTuple):
  """A device that a run is planned for."""

  name: str
  kind: str
  """device kind in JAX, or its beginning"""
  memory: float
  """bytes that a training step can use"""
  peak: float
  """peak of matrix products in FLOP/s, in `dtype`"""
  platform: Literal['gpu', 'tpu', 'cpu'] = 'gpu'
  dtype: str = 'bfloat16'
  """compute dtype of runs on this device"""
  count: int = 1
  """number of devices"""

  def utilization(self, model: Any) -> float:
    """Return the share of the peak that estimates assume for a model."""
    key = model.kind if self.platform == 'gpu' else self.platform
    return UTILIZATION.get(key, UTILIZATION[self.platform])

  @property
  def note(self) -> str:
    """A sentence about the compute dtype of a GPU without bfloat16; '' for others."""
    if self.dtype == 'bfloat16' or self.platform == 'cpu':
      return ''
    return f'{self.kind} has no bfloat16 units: the run computes in float32'


# Memory in GiB and peak in FLOP/s: bfloat16 without sparsity, float32 where there is no bfloat16.
# From NVIDIA's data sheets and white papers (SXM variants where there are several; GeForce with
# float32 accumulation: GA102, Ada and Blackwell RTX white papers), and cloud.google.com/tpu/docs.
GPUS = {
    'rtx3090': ('NVIDIA GeForce RTX 3090', 24, 71e12),
    'rtx4090': ('NVIDIA GeForce RTX 4090', 24, 165e12),
    'rtx5090': ('NVIDIA GeForce RTX 5090', 32, 209e12),
    't4': ('Tesla T4', 15, 8.1e12),
    'v100': ('Tesla V100', 16, 15.7e12),
    'v100-32gb': ('Tesla V100', 32, 15.7e12),
    'l4': ('NVIDIA L4', 22, 121e12),
    'a10': ('NVIDIA A10', 22, 125e12),
    'a100-40gb': ('NVIDIA A100', 40, 312e12),
    'a100-80gb': ('NVIDIA A100', 80, 312e12),
    'h100': ('NVIDIA H100', 80, 989e12),
    'h200': ('NVIDIA H200', 141, 989e12),
    'b200': ('NVIDIA B200', 180, 2250e12)}
TPUS = {
    'v4': ('TPU v4', 32, 275e12), 'v5e': ('TPU v5 lite', 16, 197e12),
    'v5p': ('TPU v5', 95, 459e12), 'v6e': ('TPU v6 lite', 32, 918e12)}
WITHOUT_BFLOAT16 = 'Tesla T4', 'Tesla V100', 'Tesla P'
"""kinds of GPUs before Ampere"""


def find_device(name: str) -> Device:
  """Find a device by its name: rtx4090, 8xh100 (eight of them), or v5e-8 (eight chips).

  Raises:
    ConfigError: there is no such device; the message lists them.
  """
  parts: Any = re.fullmatch(r'(?:(\d+)x)?(.+)', name.lower())
  count, rest = int(parts[1] or 1) if parts else 0, parts[2] if parts else ''
  chips = re.fullmatch(r'(v\d\w)-(\d+)', rest)
  if chips and rest not in GPUS:
    rest, count = chips[1], count * int(chips[2])
  if rest in GPUS and count:
    kind, memory, peak = GPUS[rest]
    return Device(
        name, kind, memory * GIB * GPU_MEMORY_SHARE * USED_SHARE, peak, 'gpu', choose_dtype(kind),
        count)
  if rest in TPUS and count:
    kind, memory, peak = TPUS[rest]
    return Device(name, kind, memory * GIB * USED_SHARE, peak, 'tpu', count=count)
  raise ConfigError(f'there is no device {name!r}, expected one of {", ".join(GPUS | TPUS)}; '
                    '8xh100 is eight GPUs, v5e-8 a TPU of eight chips')


def choose_dtype(kind: str) -> str:
  """Return the compute dtype for a kind of GPU: float32 where there are no bfloat16 units."""
  return 'float32' if kind.startswith(WITHOUT_BFLOAT16) else 'bfloat16'


def present_device(devices: Any) -> Device:
  """Describe the devices of this job, of one kind.

  Args:
    devices: the devices of JAX.
  """
  first, count = devices[0], len(devices)
  if first.platform == 'cpu':
    pages = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    peak = CPU_CORE_FLOPS * (os.cpu_count() or 1) / count
    return Device('this machine', 'cpu', pages / 2 / count, peak, 'cpu', 'float32', count)
  kind = first.device_kind
  sheets = [sheet for sheet in (GPUS | TPUS).values() if kind.startswith(sheet[0])]
  known = max(sheets, key=lambda sheet: len(sheet[0]), default=(kind, 8, 0.0))
  memory = (first.memory_stats() or {}).get('bytes_limit', known[1] * GIB * GPU_MEMORY_SHARE)
  peak = known[2] or run_metrics.peak_flops(first) or 1e14
  return Device('this machine', kind, memory * USED_SHARE, peak, first.platform,
                choose_dtype(kind), count)
