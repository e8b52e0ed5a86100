"""Time contestants alternately in one run (A B A B): medians and their ratio.

Each contestant is a process of its own that runs one round of work whenever the parent tells it to, while the others
wait. Disturbances of the machine therefore affect all. Each round is timed in wall-clock seconds, and in CPU seconds
of the process and its finished children, which depend less on other load.
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
  """Run `python -m module --contestant NAME arguments` for all contestants.

  Returns:
    {name: {median, least, most, cpu, cpu_least, cpu_most, each figure it reported}}: seconds, and CPU seconds.
  """
  workers: dict[str, Worker] = {}
  facts: dict[str, dict[str, float]] = {}
  try:
    for name in contestants:  # one after another: what a contestant measures of the machine is measured undisturbed
      workers[name] = Worker(module, name, arguments)
      facts[name] = workers[name].read()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
      for name, worker in workers.items():
        times = worker.go()
        seconds[name] += times['seconds']
        cpu[name] += times['cpu']
    found = {}
    for name in contestants:
      found[name] = {**facts[name], 'median': statistics.median(seconds[name]), 'least': min(seconds[name]),
                     'most': max(seconds[name]), 'cpu': statistics.median(cpu[name]), 'cpu_least': min(cpu[name]),
                     'cpu_most': max(cpu[name])}
    return found
  finally:
    for worker in workers.values():
      worker.close()


class Worker:
  """A contestant as the parent process sees it."""

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
  """Report facts, then time `work` in rounds of `repeats` calls that the parent process starts.

  Each round begins with one call that is not timed: on a virtual machine, memory that was returned in the meantime
  can take seconds to get back.
  """
  print(json.dumps(facts), flush=True)
  for _ in sys.stdin:
    work()
    seconds, cpu = [], []
    for _ in range(repeats):
      began, cpu_began = time.perf_counter(), cpu_seconds()
      work()
      seconds.append(time.perf_counter() - began)
      cpu.append(cpu_seconds() - cpu_began)
    print(json.dumps({'seconds': seconds, 'cpu': cpu}), flush=True)


def cpu_seconds() -> float:
  """Return the CPU seconds, user and system, of this process and its finished children."""
  return sum(os.times()[:4])


def spread(figures: dict[str, float]) -> str:
  """Format the least and the greatest CPU seconds of the rounds."""
  return f'{figures["cpu_least"]:.2f} to {figures["cpu_most"]:.2f}'


def machine(*packages: str) -> str:
  """Describe the machine: cores, processor and versions."""
  versions = [f'{package} {importlib.metadata.version(package)}' for package in packages]
  return ', '.join([f'{os.cpu_count()} cores', processor(), f'Python {platform.python_version()}', *versions])


def processor() -> str:
  """Return the name of the processor, as Linux has it."""
  info = pathlib.Path('/proc/cpuinfo')
  model = re.search(r'model name\s*: (.*)', info.read_text()) if info.exists() else None
  return model.group(1) if model else platform.machine()
