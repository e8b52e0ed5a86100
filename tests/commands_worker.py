"""Commands, one after the other, in a process of their own: JSON lists of [module, *arguments] on standard input.

Says how each ended in a line `NAME ended with CODE`. KILLED_AT: a step before which a run is killed, as by kill -9.
"""
import importlib
import json
import os
import signal
import sys
import time

from plm_jax import __main__ as cli
from plm_jax import train
from plm_jax.run import main


def run(module: str, arguments: list[str]) -> object:
  """-> the exit status, or what was printed instead."""
  try:
    if module == 'plm_jax':
      sys.argv = ['plm_jax', *arguments]
      cli.main()
    else:
      main(importlib.import_module(f'experiments.{module}').recipe, arguments)
  except SystemExit as ended:
    return ended.code
  return 0


def killed(*arguments):
  for step, phase, windows in batches(*arguments):
    if step == int(os.environ['KILLED_AT']):
      os.kill(os.getpid(), signal.SIGKILL)
    yield step, phase, windows


if __name__ == '__main__':
  batches = train.batches
  if os.environ.get('KILLED_AT'):
    train.batches = killed
  for name, *rest in json.load(sys.stdin):
    began = time.monotonic()
    print(f'{name} {rest[:1]} ended with {run(name, rest)} after {time.monotonic() - began:.1f} s', flush=True)
