"""Several processes as one job: they meet, give each other their verdicts, and end together.

A process that is missing would leave the others waiting for ever, and jaxlib kills a process, without a word for
people, that waits for it too long. So before they join, all of them call the roll at the coordinator's address, by a
protocol of one line each way. Afterwards whatever one of them finds wrong is told to the others through the
coordinator.
"""
from collections.abc import Callable, Iterator
import contextlib
import itertools
import json
import os
import re
import socket
import time
from typing import Any, NamedTuple
import uuid

from etils import epath
import jax
from orbax.checkpoint import multihost

from plm_jax import storage
from plm_jax.config import ConfigError, HostsConfig
from plm_jax.errors import Expected
from plm_jax.storage.lock import Lock

DAYS = 7  # that a process waits for another one's records, at most: one that dies is noticed sooner
ANSWER = 15.0  # seconds beyond the roll's own within which process 0 says who is missing
SEEN = 10.0  # seconds after which a file of another host is seen, on a disk that both share
EVERYWHERE = 'every worker of the job has to run this command, within --hosts.timeout seconds of the others'


class HostsError(Expected):
  """A job whose processes do not find each other, or of which one cannot go on."""


class Place(NamedTuple):
  """Of a process in its job."""

  coordinator: str  # address:port of process 0
  count: int  # processes
  index: int
  devices: Any = None  # of this machine that it takes; None: all


def join(hosts: HostsConfig) -> Place:
  """Meets the other processes of the job -> the place in it. Raises ConfigError, or HostsError that says who did not
  come."""
  if not hosts.distributed:
    if hosts.coordinator or hosts.count or hosts.index >= 0:
      raise ConfigError('--hosts.coordinator, --hosts.count and --hosts.index are for a job of several processes: give '
                        '--hosts.distributed=True too')
    return Place('', 1, 0)
  place = find(hosts)
  if place.index == 0:
    print(f'waiting for {place.count - 1} other processes of the job at {place.coordinator}', flush=True)
  call_roll(place, hosts.timeout)
  # All are there: what fails from now on is no longer a command that was not given.
  jax.distributed.initialize(*place, shutdown_timeout_seconds=60)
  return place


def find(hosts: HostsConfig) -> Place:
  """Finds the place that the options give, or that the pod or Slurm tells. Raises ConfigError."""
  given = hosts.coordinator, hosts.count, hosts.index
  if hosts.coordinator and not re.fullmatch(r'.+:\d{1,5}', hosts.coordinator):
    raise ConfigError(f'--hosts.coordinator={hosts.coordinator} is not address:port, such as 10.0.0.1:8476')
  if hosts.count < 0 or hosts.index < -1 or (hosts.count and hosts.index >= hosts.count):
    raise ConfigError(f'--hosts.index={hosts.index} of --hosts.count={hosts.count}: processes are numbered from 0 to '
                      'count - 1')
  try:
    from jax._src.clusters import ClusterEnv
    found = ClusterEnv.auto_detect_unset_distributed_params(
        hosts.coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS'), hosts.count or None,
        hosts.index if hosts.index >= 0 else None, None, None, max(1, int(hosts.timeout)))
    reason = ''
  except Exception as error:  # whatever asking a pod's metadata or Slurm raises
    found, reason = (*given, None), f' ({" ".join(str(error).split())[:200]})'
  coordinator, count, index, devices = found
  lacking = [f'--hosts.{name}' for name, lacks in (
      ('coordinator', not coordinator), ('count', not count), ('index', index in (None, -1))) if lacks]
  if not coordinator or not count or index is None or lacking:
    raise ConfigError('--hosts.distributed=True, but this machine is no worker of a TPU pod, of Slurm or of MPI'
                      f'{reason}: give {" and ".join(lacking)} too, or leave it out for a run of one process')
  return Place(coordinator, count, index, devices)


def call_roll(place: Place, seconds: float) -> None:
  """Returns when all processes of the job are there. Raises HostsError that names those which are not."""
  if place.count == 1:
    return
  if place.index == 0:
    receive_all(place, seconds)
  else:
    report(place, seconds)


def receive_all(place: Place, seconds: float) -> None:
  """Calls the roll, as process 0 does: each of the others says its index, and hears the outcome when it is known."""
  port = int(place.coordinator.rpartition(':')[2])
  both = socket.has_dualstack_ipv6()
  until, here = time.monotonic() + seconds, {}
  try:
    server = socket.create_server(('', port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both,
                                  backlog=place.count)
  except (OSError, OverflowError) as error:
    raise HostsError(f'port {port} of --hosts.coordinator={place.coordinator} cannot be had: {error}. Is another job '
                     'running on this machine?') from error
  with server, contextlib.ExitStack() as open_ones:
    problem = ''
    while len(here) < place.count - 1 and not problem:
      server.settimeout(max(0.01, until - time.monotonic()))
      try:
        connection, address = server.accept()
      except TimeoutError:
        missing = [str(index) for index in range(1, place.count) if index not in here]
        named = ', '.join([*missing[:20], *['...'][:len(missing) - 20]])
        problem = f'of {place.count} processes, number {named} did not come within {seconds:g} s: {EVERYWHERE}'
        break
      open_ones.enter_context(connection)
      if said := line_of(connection):
        index, count = said
        if count != place.count or not 0 < index < place.count:
          problem = f'process {index} of {count}, at {address[0]}, came to a job of {place.count}: the options differ'
        elif index in here:
          problem = f'two processes, at {here[index][1]} and {address[0]}, say that they are number {index}'
        here[index] = connection, address[0]
    for connection, _ in here.values():
      with contextlib.suppress(OSError):
        connection.sendall(json.dumps({'problem': problem}).encode() + b'\n')
    for connection, _ in here.values():  # who closes last keeps the port free
      with contextlib.suppress(OSError):
        connection.settimeout(1)
        connection.recv(1)
  if problem:
    raise HostsError(problem)


def line_of(connection: socket.socket) -> tuple[int, int] | None:
  """Reads (index, count) of who came; None of a stranger, who is left alone."""
  try:
    connection.settimeout(2)
    said = json.loads(connection.makefile('rb').readline(200))
    return int(said['index']), int(said['count'])
  except (OSError, ValueError, TypeError, KeyError):
    return None


def report(place: Place, seconds: float) -> None:
  """Answers the roll, as all but process 0 do."""
  host, _, port = place.coordinator.rpartition(':')
  until, connection, reason = time.monotonic() + seconds, None, 'no answer'
  while connection is None:
    left = until - time.monotonic()
    if left <= 0:
      raise HostsError(f'process 0 did not answer at {place.coordinator} within {seconds:g} s ({reason}): {EVERYWHERE}'
                       ', and this machine has to reach that address')
    try:
      connection = socket.create_connection((host.strip('[]'), int(port)), timeout=min(left, 5))
    except (OSError, OverflowError) as error:
      reason = getattr(error, 'strerror', None) or str(error)
      time.sleep(min(0.2, left))
  with connection:
    try:
      connection.sendall(json.dumps({'index': place.index, 'count': place.count}).encode() + b'\n')
      connection.settimeout(seconds + ANSWER)
      problem = json.loads(connection.makefile('rb').readline(10_000))['problem']
    except (OSError, ValueError, TypeError, KeyError) as error:
      raise HostsError(f'process 0 at {place.coordinator} went away before all processes had come') from error
  if problem:
    raise HostsError(problem)


def wait_for_all(what: str) -> None:
  """Waits until every process of the job is here. Not a collective of the devices, which would give up after
  seconds."""
  multihost.get_barrier_sync_fn()(key=what, timeout_ms=DAYS * 24 * 3600 * 1000)


@contextlib.contextmanager
def together(what: str) -> Iterator[None]:
  """Makes what is done inside succeed on all processes or on none: an Expected error of one ends all, each with a line.

  Returns when all have come to the end. what: which part of the work it is.
  """
  problem = None
  try:
    yield
  except Expected as error:
    problem = error
  if jax.process_count() > 1:
    client, key = multihost.get_jax_distributed_client(), f'plm_jax {next(NUMBERS)} {what}'
    client.key_value_set(f'{key}/{jax.process_index()}', str(problem or ''))
    wait_for_all(key)
    for index in range(jax.process_count()):
      said = client.blocking_key_value_get(f'{key}/{index}', 60_000)
      if said and not problem:
        problem = HostsError(f'process {index} of the job cannot go on: {said}')
  if problem:
    raise problem


def in_turn(what: str, work: Callable[[], Any]) -> Any:
  """Calls `work` on process 0 first, then on the others: who sees its disk finds it done."""
  result = None
  for turn in (0, 1):
    with together(f'{what} {turn}'):
      if min(jax.process_index(), 1) == turn:
        result = work()
  return result


def check_shared(folder: epath.PathLike) -> None:
  """Raises HostsError, on all processes, unless all see the same folder: checkpoints are written by all of them."""
  if jax.process_count() == 1:
    return
  folder = storage.path_of(folder)
  client, key = multihost.get_jax_distributed_client(), f'plm_jax {next(NUMBERS)} mark'
  if jax.process_index() == 0:
    client.key_value_set(key, uuid.uuid4().hex)
  place = folder if storage.remote(folder) else folder.absolute()
  mark = folder / f'.hosts.{client.blocking_key_value_get(key, 60_000)}'
  try:
    with together('mark in the output'):
      if jax.process_index() == 0:
        storage.write(mark, 'whether all processes of the job see this folder\n')
    with together('look at the output'):
      if not seen(mark):
        raise HostsError(
            f'process {jax.process_index()} does not see the output of process 0 in {place} of {socket.gethostname()}, '
            'but all processes of a job write its checkpoints into one folder: give '
            f'--output=gs://BUCKET/{folder.name}, or a folder on a disk that they share')
  finally:
    if jax.process_index() == 0:
      with contextlib.suppress(Exception):
        mark.unlink(missing_ok=True)
      remove_empty(folder)


@contextlib.contextmanager
def owned(folder: epath.PathLike) -> Iterator[Lock]:
  """Locks the folder of a run for this job alone. Raises LockError, on all processes, where another has it."""
  folder, lock = storage.path_of(folder), Lock(folder, 'a run')
  with together('lock of the output'):
    if jax.process_index() == 0:
      lock.acquire()
  try:
    yield lock
  finally:
    if jax.process_index() == 0:
      lock.release()
      remove_empty(folder)


def remove_empty(folder: epath.Path) -> None:
  """Removes a folder that holds nothing: bad input leaves none behind."""
  if not storage.remote(folder):
    with contextlib.suppress(OSError):
      os.rmdir(folder)


def seen(path: epath.Path) -> bool:
  """Tells whether the file is there, or comes to be: what a host remembers of a shared disk may be seconds old."""
  until = time.monotonic() + SEEN
  while True:
    with storage.explained(path, 'read', HostsError):
      if path.exists():
        return True
    if time.monotonic() > until:
      return False
    time.sleep(0.5)


NUMBERS = itertools.count()  # of what processes do together: they count alike
