"""Work in processes of its own, of which what was found is kept in files: the part that several benchmarks share.

    python -m benchmarks.kept MODULE:FUNCTION JSON    # what `run` starts: calls the function, prints what it returns

A process of its own gives a run the memory and the compiler that a reader's command would have, and its peak of memory
is its own. What a file keeps is not done again, so that a table can be made in many sittings, or by several processes.
"""
from collections.abc import Callable, Sequence
import contextlib
import importlib
import json
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import time
from typing import Any, NoReturn

INTERRUPTED = 75  # as `python -m plm_jax` ends where a signal has stopped a run


def run(function: str, given: Any, kept: str | pathlib.Path = '') -> dict[str, Any]:
  """Calls `MODULE:FUNCTION` with `given` in a process of its own -> what it returns, which is kept in a file.

  An interrupt is passed on, and waited for: runs save a checkpoint before they end, and the same command resumes.
  """
  file = pathlib.Path(kept) if kept else None
  if file and file.exists():
    return json.loads(file.read_text())
  found = apart(function, given)
  if file:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Under its name all at once: whoever finds the file finds it whole.
    part = file.with_name(f'{file.name}.part')
    part.write_text(found + '\n')
    part.replace(file)
  return json.loads(found)


def apart(function: str, given: Any) -> str:
  """Calls a function in a process of its own -> what it returns, as JSON. Ends this one where that has failed."""
  process = subprocess.Popen(
      [sys.executable, '-m', 'benchmarks.kept', function, json.dumps(given)], stdout=subprocess.PIPE, text=True)
  with passed_on(process):
    printed, _ = process.communicate()
  if process.returncode in (INTERRUPTED, -signal.SIGTERM, -signal.SIGINT):
    sys.exit(INTERRUPTED)
  if process.returncode:
    sys.exit(f'{function} ended with status {process.returncode}, given {json.dumps(given)}')
  return printed.splitlines()[-1]


@contextlib.contextmanager
def passed_on(process: subprocess.Popen):
  """Gives the signals that would end this process to another, which ends this one by its status."""
  old = {number: signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
         for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield
  finally:
    for number, before in old.items():
      signal.signal(number, before)


def interrupted(folder: str) -> NoReturn:
  """Ends a process whose run a signal has stopped."""
  print(f'{folder} was interrupted: the same command resumes from there', file=sys.stderr)
  sys.exit(INTERRUPTED)


def place(data: str, name: str) -> pathlib.Path:
  """Finds a file under a folder."""
  found = next(iter(sorted(pathlib.Path(data).expanduser().rglob(name))), None)
  if found is None:
    sys.exit(f'{data} has no {name}')
  return found


def finetuned(given: tuple[list[str], str]) -> dict[str, Any]:
  """Runs `finetune` with these arguments -> scores by a measure (a seed each), numbers trained, seconds a run and KiB
  that it held; without arguments the same of a process that does nothing."""
  from plm_jax.cli import finetune
  from plm_jax.optim import trainable
  from plm_jax.training.learner import make_selection as select

  command, measure = given
  config, seeds = finetune.parse('', command or ['--task=classification', '--scale=test'], '')
  begun = time.perf_counter()
  results = finetune.run_seeds(config, seeds) if command else []
  if command and (len(results) < seeds or not all(result.finished for result in results)):
    interrupted(config.folder)
  return {
      'scores': [result.heldout[measure] for result in results],
      'trained': trainable.count_trained(select(config), results[0].params) if results else 0,
      'seconds': (time.perf_counter() - begun) / seeds,
      'memory': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def shown(values: Sequence[float], digits: int = 2) -> str:
  """Writes a mean, and the standard deviation where there are several; a dash for none.

  >>> shown([1.0, 2.0]), shown([3.0]), shown([])
  ('1.50 ± 0.71', '3.00', '-')
  """
  if not values:
    return '-'
  mean = f'{statistics.mean(values):.{digits}f}'
  return f'{mean} ± {statistics.stdev(values):.{digits}f}' if len(values) > 1 else mean


def named(function: str) -> Callable[[Any], Any]:
  """Finds a function by `MODULE:FUNCTION`."""
  module, _, name = function.partition(':')
  return getattr(importlib.import_module(module), name)


if __name__ == '__main__':
  print(json.dumps(named(sys.argv[1])(json.loads(sys.argv[2]))))
