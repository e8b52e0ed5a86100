"""Run functions in processes of their own and keep their results in files, for several benchmarks.

    python -m benchmarks.kept MODULE:FUNCTION JSON    # what `run` starts: calls the function and prints its result

In a process of its own a run has the memory and the compiler of an ordinary command, and its peak memory can be
measured. Results in files are not computed again, so that a table can be made in several sessions or by several
processes.
"""
import argparse
from collections.abc import Callable, Iterable, Sequence
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
  """Call `MODULE:FUNCTION` with `given` in a process of its own -> its result, which is kept in a file.

  An interrupt is passed on: the run saves a checkpoint before it ends, and the same command resumes it.
  """
  file = pathlib.Path(kept) if kept else None
  if file and file.exists():
    return json.loads(file.read_text())
  found = apart(function, given)
  if file:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Rename, so that readers never see a partial file.
    part = file.with_name(f'{file.name}.part')
    part.write_text(found + '\n')
    part.replace(file)
  return json.loads(found)


def apart(function: str, given: Any) -> str:
  """Call a function in a process of its own -> its result as JSON; exit if that process fails."""
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
  """Pass signals that would end this process on to another one."""
  old = {number: signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
         for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield
  finally:
    for number, before in old.items():
      signal.signal(number, before)


class Table:
  """Results as lines of a file: each is measured once, and the same command continues after an interruption."""

  def __init__(self, name: str, function: str):
    """name: the file of the lines in `figures`; function: `MODULE:FUNCTION`, which measures one."""
    self.name, self.function = name, function
    self.file = pathlib.Path(__file__).parent / 'figures' / f'{name}.jsonl'

  def make_parser(self, description: str | None) -> argparse.ArgumentParser:
    """Make a parser of the options that all tables have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', help='folder of the files')
    parser.add_argument('--output', default=f'runs/{self.name}', help='folder of texts and runs')
    parser.add_argument('--seeds', type=int, default=3, help='number of seeds')
    parser.add_argument('--minutes', type=float, default=0.0, help='start nothing after these; 0: no limit')
    parser.add_argument('--table', action='store_true', help='only print the table')
    return parser

  def read(self, **fields: Any) -> list[dict[str, Any]]:
    """Read the stored lines that have these values."""
    lines = self.file.read_text().splitlines() if self.file.exists() else []
    found = [json.loads(line) for line in lines]
    return [one for one in found if fields.items() <= one.items()]

  def fill(
      self, args: argparse.Namespace, keys: Iterable[dict[str, Any]],
      more: Callable[[dict[str, Any]], dict[str, Any]] = lambda key: {}) -> None:
    """Measure what is not stored.

    Args:
      args: parsed by `make_parser`; the function also gets `data` and `output`.
      keys: fields that identify a line.
      more: makes further arguments of the function from a key, when the earlier lines are stored.
    """
    began = time.time()
    for key in () if args.table else keys:
      if self.read(**key):
        continue
      if args.minutes and time.time() - began > 60 * args.minutes:
        break
      found = apart(self.function, {**key, **more(key), 'data': args.data, 'output': args.output})
      with self.file.open('a') as file:
        file.write(json.dumps(key | json.loads(found)) + '\n')


def interrupted(folder: str) -> NoReturn:
  """Exit after a signal has stopped a run."""
  print(f'{folder} was interrupted: the same command resumes from there', file=sys.stderr)
  sys.exit(INTERRUPTED)


def place(data: str, name: str) -> pathlib.Path:
  """Find a file under a folder."""
  found = next(iter(sorted(pathlib.Path(data).expanduser().rglob(name))), None)
  if found is None:
    sys.exit(f'{data} has no {name}')
  return found


def finetuned(given: tuple[list[str], str]) -> dict[str, Any]:
  """Run `finetune` with these arguments -> scores of each seed, trained parameters, seconds per run and peak KiB.

  Without arguments, measure a process that does nothing.
  """
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
  """Format the mean, and the standard deviation of several values; a dash for none.

  >>> shown([1.0, 2.0]), shown([3.0]), shown([])
  ('1.50 ± 0.71', '3.00', '-')
  """
  if not values:
    return '-'
  mean = f'{statistics.mean(values):.{digits}f}'
  return f'{mean} ± {statistics.stdev(values):.{digits}f}' if len(values) > 1 else mean


def named(function: str) -> Callable[[Any], Any]:
  """Return the function `MODULE:FUNCTION`."""
  module, _, name = function.partition(':')
  return getattr(importlib.import_module(module), name)


if __name__ == '__main__':
  print(json.dumps(named(sys.argv[1])(json.loads(sys.argv[2]))))
