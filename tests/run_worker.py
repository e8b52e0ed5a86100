"""One process of a run by several: python run_worker.py COORDINATOR COUNT INDEX TERMINATED ARGUMENTS of the recipe.

TERMINATED: the index of the process that is told, before the fifth step, that its machine is taken away; -1: none.
"""
import os
import signal
import sys
import time

from plm_jax import recipes
from plm_jax.cli.run import main
from plm_jax.training import feed

if __name__ == '__main__':
  coordinator, count, index, terminated, *args = sys.argv[1:]
  batches = feed.batches

  def disturbed(*arguments):
    for step, phase, windows in batches(*arguments):
      if step >= 4 and int(terminated) >= 0:
        if step == 4 and index == terminated:
          os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2)  # a notice takes a second or so to reach all
      yield step, phase, windows

  feed.batches = disturbed
  main(recipes.find('bert_base'), [*args, '--hosts.distributed=True', f'--hosts.coordinator={coordinator}',
                          f'--hosts.count={count}', f'--hosts.index={index}'])
