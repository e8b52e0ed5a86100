"""One of several processes; one of them is killed while the others wait for it: python
killed_worker.py COORDINATOR COUNT INDEX KILLED HOW."""
import os
import signal
import sys

from jax.experimental import multihost_utils
import numpy as np

from plm_jax.distributed import hosts

if __name__ == '__main__':
  coordinator, count, index, killed, how = sys.argv[1:]
  hosts.join_job(hosts.HostsConfig(
      distributed=True, coordinator=coordinator, count=int(count), index=int(index)))
  with hosts.barrier('all are here'):
    pass
  if how == 'ends':  # as all processes do, without a message to the others
    sys.exit(0)
  if how == 'collective':
    multihost_utils.process_allgather(np.ones(3))
  if index == killed:
    os.kill(os.getpid(), signal.SIGKILL)
  with hosts.wait_for_cause():
    if how == 'collective':
      for _ in range(1000):
        multihost_utils.process_allgather(np.ones(3))
    with hosts.barrier('never reached by all'):
      pass
