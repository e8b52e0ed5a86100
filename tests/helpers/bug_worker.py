"""One of two processes; in one of them the work of a barrier has a bug: python bug_worker.py
COORDINATOR COUNT INDEX HOW."""
import sys

import jax

from plm_jax.distributed import hosts

if __name__ == '__main__':
  coordinator, count, index, how = sys.argv[1:]
  jax.distributed.initialize(coordinator, int(count), int(index))

  def work():
    if how == 'leader' or index == '1':
      return {}['no such name']

  if how == 'leader':
    hosts.leader_first('work', work)
  else:
    with hosts.barrier('work'):
      work()
