"""Contestants in one run, turn and turn about: A B A B, medians and their ratio.

Each contestant is a process of its own that sets itself up, says so, and then does one round of work whenever it is
told to; the others wait meanwhile. What disturbs the machine disturbs all.
"""
from collections.abc import Callable, Sequence
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time


def compare(module: str, contestants: Sequence[str], arguments: list[str], rounds: int) -> dict[str, dict[str, float]]:
  """Runs `python -m module --contestant NAME arguments` for all -> {name: {median, least, each figure it reported}}."""
  workers: dict[str, Worker] = {}
  facts: dict[str, dict[str, float]] = {}
  try:
    for name in contestants:  # one after another: what a contestant measures of the machine is measured undisturbed
      workers[name] = Worker(module, name, arguments)
      facts[name] = workers[name].read()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
      for name, worker in workers.items():
        seconds[name] += worker.go()['seconds']
    return {name: {**facts[name], 'median': statistics.median(times), 'least': min(times)}
            for name, times in seconds.items()}
  finally:
    for worker in workers.values():
      worker.close()


class Worker:
  """The parent's end of a contestant."""

  def __init__(self, module: str, name: str, arguments: list[str]):
    self.process = subprocess.Popen(
        [sys.executable, '-m', module, '--contestant', name, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True)

  def read(self) -> dict:
    line = self.process.stdout.readline() if self.process.stdout else ''
    if not line:
      raise RuntimeError(f'a contestant died with status {self.process.wait()}')
    return json.loads(line)

  def go(self) -> dict:
    assert self.process.stdin
    self.process.stdin.write('go\n')
    self.process.stdin.flush()
    return self.read()

  def close(self) -> None:
    if self.process.stdin:
      self.process.stdin.close()
    self.process.wait()


def contest(facts: dict[str, float], work: Callable[[], object], repeats: int) -> None:
  """The contestant's end: reports its facts, then times `work`, `repeats` times a round.

  Each round begins with work that is not timed: it takes back the memory that went to another meanwhile, for which a
  virtual machine asked its host for seconds.
  """
  print(json.dumps(facts), flush=True)
  for _ in sys.stdin:
    work()
    seconds = []
    for _ in range(repeats):
      began = time.perf_counter()
      work()
      seconds.append(time.perf_counter() - began)
    print(json.dumps({'seconds': seconds}), flush=True)


def machine(*packages: str) -> str:
  """The line above a table: cores, processor, versions."""
  info = pathlib.Path('/proc/cpuinfo')
  model = re.search(r'model name\s*: (.*)', info.read_text()) if info.exists() else None
  versions = [f'{package} {importlib.metadata.version(package)}' for package in packages]
  return ', '.join([f'{os.cpu_count()} cores', model.group(1) if model else platform.machine(),
                    f'Python {platform.python_version()}', *versions])
