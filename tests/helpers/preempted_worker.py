"""A worker whose machine is preempted: python preempted_worker.py WHEN STEPS PORTS --output=FOLDER
ARGUMENTS

The arguments are those of bert_base. $CLOUD/preempted has the number of preemptions so far. Before
the step of STEPS with this index, the worker touches the file WHEN and stops working; after the
last of STEPS it runs to its end.
"""
import os
import pathlib
import sys
import time

from plm_jax import recipes
from plm_jax.cli.run import main
from plm_jax.training import feed

if __name__ == '__main__':
  when, steps, ports, output, *args = sys.argv[1:]
  index, taken = os.environ['WORKER'], pathlib.Path(os.environ['CLOUD'], 'preempted')
  number = int(taken.read_text()) if taken.exists() else 0
  stops = [int(step) for step in steps.split(',') if step]
  batches = feed.stream_batches

  def until_taken(*arguments):
    for step, phase, windows in batches(*arguments):
      if number < len(stops) and step == stops[number]:
        saved = pathlib.Path(output.removeprefix('--output='), 'checkpoints', str(step - step % 2))
        while step > 1 and not saved.exists():
          time.sleep(0.05)
        pathlib.Path(f'{when}.{index}').touch()
        time.sleep(600)
      yield step, phase, windows

  feed.stream_batches = until_taken
  port = ports.split(',')[number]
  main(recipes.find_recipe('bert_base'), [
      output, *args, '--train.save-every=2', '--hosts.distributed=True',
      f'--hosts.coordinator=127.0.0.1:{port}',
      '--hosts.count=2', f'--hosts.index={index}'])
