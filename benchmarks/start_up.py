"""Measure the seconds from process start to the metrics of the first optimizer step, and their parts.

    python -m benchmarks.start_up

The run is BERT at laptop scale, with prepared records. Cold: the folder of the persistent compilation cache is empty.
Warm: it has the contents that an earlier start wrote. The first part is the time of a process that only checks that the
records are there, the second is the rest.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.side_by_side import machine

RUN = [sys.executable, '-m', 'experiments.bert_base', '--scale=laptop', '--train.log-every=1']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', default='embedded', help='text to train on')
  parser.add_argument('--rounds', type=int, default=4)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as scratch:
    measure(pathlib.Path(scratch), args.data, args.rounds)


def measure(scratch: pathlib.Path, data: str, rounds: int) -> None:
  # Use a separate cache: the user's cache stays unchanged, and a cold start is really cold.
  environment = {**os.environ, 'PLM_JAX_CACHE': str(scratch / 'cache')}
  environment.pop('JAX_COMPILATION_CACHE_DIR', None)
  data = f'--data.path={data}'

  def find_records() -> float:
    began = time.perf_counter()
    subprocess.run([*RUN, data, '--mode=prepare'], env=environment, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return time.perf_counter() - began

  def first_step(cold: bool) -> float:
    if cold:
      shutil.rmtree(scratch / 'cache' / 'xla', ignore_errors=True)
    shutil.rmtree(scratch / 'run', ignore_errors=True)
    metrics = scratch / 'run' / 'metrics.jsonl'
    began = time.perf_counter()
    process = subprocess.Popen([*RUN, data, f'--output={scratch / "run"}'], env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
      while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
          raise RuntimeError(f'the run died with status {process.returncode}')
        time.sleep(0.01)
      return time.perf_counter() - began
    finally:
      process.kill()
      process.wait()

  find_records()  # the first call makes them
  seconds: dict[str, list[float]] = {'records': [], 'cold': [], 'warm': []}
  for _ in range(rounds):
    seconds['records'].append(find_records())
    seconds['cold'].append(first_step(cold=True))
    seconds['warm'].append(first_step(cold=False))
  median = {name: statistics.median(some) for name, some in seconds.items()}
  print(machine('jax', 'flax', 'tensorflow-cpu'))
  print('\n| | cold s | warm s |\n|---|---|---|')
  before = median['records']
  print(f'| imports, options, records, tokenizer | {before:.1f} | {before:.1f} |')
  print(f'| data, parameters, compilation, the step | {median["cold"] - before:.1f} | {median["warm"] - before:.1f} |')
  print(f'| **total until the first step** | **{median["cold"]:.1f}** | **{median["warm"]:.1f}** |')


if __name__ == '__main__':
  main()
