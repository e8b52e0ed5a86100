"""Where the time of a compiled step goes: milliseconds per kernel, by the profiler of JAX."""
from collections import Counter
from collections.abc import Callable
import pathlib
import re
import tempfile
from typing import Any

# Lines of a profile that have the kernels: streams of a GPU, threads of the CPU client.
KERNEL_LINES = re.compile(r'Stream #|tf_XLA')
# Events on a thread of the CPU client that are no kernels.
BOOKKEEPING = re.compile(r'end: |Threadpool|Thunk|TaskDispatcher|Execute')


def measure_kernels(work: Callable[[], object], calls: int) -> Counter[str]:
  """Return the milliseconds per call of every kind of kernel; numbered names are one kind.

  Args:
    work: one call, which waits for its result.
    calls: calls that are profiled.
  """
  import jax

  profiler: Any = jax.profiler
  found: Counter[str] = Counter()
  with tempfile.TemporaryDirectory() as folder:
    with profiler.trace(folder):
      for _ in range(calls):
        work()
    for file in pathlib.Path(folder).rglob('*.xplane.pb'):
      for plane in profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
          if not KERNEL_LINES.match(line.name):
            continue
          for event in line.events:
            if not BOOKKEEPING.match(event.name):
              found[re.sub(r'([._]\d+)+$', '', event.name)] += event.duration_ns / 1e6 / calls
  return found


def table(kernels: Counter[str], largest: int = 15) -> str:
  """Format the largest kinds of kernels as a table."""
  total = sum(kernels.values())
  lines = ['| kernel | ms | share |', '|---|---|---|']
  for name, time in kernels.most_common(largest):
    lines.append(f'| {name[:80]} | {time:.2f} | {time / total:.0%} |')
  return '\n'.join([*lines, f'| all | {total:.2f} | |'])
