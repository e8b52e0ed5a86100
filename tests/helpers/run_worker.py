"""One process of a run with several processes: python run_worker.py COORDINATOR COUNT INDEX
TERMINATED ARGUMENTS of the recipe.

TERMINATED: the index of the process that is notified, before the fifth step, that its machine is
preempted; -1: none. Environment variables: RECIPE, instead of bert_base; KILL=STEP, at which the
process is killed; WINDOWS=FILE, where it records the windows that it reads; EXTRA, additional
arguments of this process only.
"""
import json
import os
import shlex
import signal
import sys
import time

import numpy as np

from plm_jax import recipes
from plm_jax.cli.run import main
from plm_jax.training import feed


def note(step, windows) -> None:
  """Writes the rows of a batch that this process reads: step, and of each row its number, window
  and epoch."""
  shards = {name: {shard.index[0].start or 0: np.asarray(shard.data)
                   for shard in windows[name].addressable_shards}
            for name in ('index', 'epoch')}
  rows = [(int(first + row), int(index), int(shards['epoch'][first][row]))
          for first, part in sorted(shards['index'].items()) for row, index in enumerate(part)]
  with open(os.environ['WINDOWS'], 'a') as file:
    file.write(json.dumps([step, rows]) + '\n')


if __name__ == '__main__':
  coordinator, count, index, terminated, *args = sys.argv[1:]
  batches = feed.stream_batches

  def disturbed(*arguments):
    for step, phase, windows in batches(*arguments):
      if step >= 4 and int(terminated) >= 0:
        if step == 4 and index == terminated:
          os.kill(os.getpid(), getattr(signal, os.environ.get('SIGNAL', 'SIGTERM')))
        time.sleep(2)  # a notice takes a second or so to reach all
      if step == int(os.environ.get('KILL', '-1')):
        os.kill(os.getpid(), signal.SIGKILL)
      if 'WINDOWS' in os.environ:
        note(step, windows)
      yield step, phase, windows

  feed.stream_batches = disturbed
  main(recipes.find_recipe(os.environ.get('RECIPE', 'bert_base')), [
      *args, *shlex.split(os.environ.get('EXTRA', '')), '--hosts.distributed=True',
      f'--hosts.coordinator={coordinator}', f'--hosts.count={count}', f'--hosts.index={index}'])
