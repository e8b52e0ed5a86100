"""Multi-host jobs: processes meet, agree on settings, synchronize at barriers, and exit together.

A missing process would leave the others waiting forever, and jaxlib kills a process that waits for
it too long, without a readable message. So before joining, all processes report at the
coordinator's address, by a protocol of one line each way. Later, a problem of one process is sent
to the others through the coordinator. The connections of the protocol stay open: the end of one
without a goodbye means that its process was killed (`Peers`).
"""
import atexit
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import json
import os
import re
import socket
import threading
import time
from typing import Any, NamedTuple
import uuid

from etils import epath
import jax

from plm_jax import storage
from plm_jax.errors import EXIT_STOPPED, ConfigError, UserError, name_field
from plm_jax.storage.digests import compute_digest
from plm_jax.storage.lock import Lock
from plm_jax.validation import ValidatedConfig, intervals, short_repr

# 7 days, for another process's records; a process that dies is noticed sooner.
MAX_WAIT_MILLISECONDS = 7 * 24 * 3600 * 1000
MAX_NAMED = 8  # differences, or processes, in a message
ANSWER_SECONDS = 15.0  # after the timeout, in which process 0 reports which processes are missing
LOST_SECONDS = 2.0  # until it is known whether an error is due to a killed process
VISIBLE_SECONDS = 10.0  # until a file of another host is visible on a shared disk
STALE_KEYS: list[str] = []  # at the coordinator that are not needed after the next barrier
KEY_NUMBERS = itertools.count()
SAME_COMMAND = ('every worker of the job has to run this command, within '
                f'{name_field("hosts.timeout")} seconds of the others')


@dataclasses.dataclass(frozen=True)
class HostsConfig(ValidatedConfig):
  """A job of several processes, each with its own devices."""

  limits = intervals(index='[-1, inf)', timeout='(0, 1e6]')

  distributed: bool = False
  """Multi-host training: connect to the other processes of the job before the run. On a TPU pod or
  under Slurm, the other --hosts options are detected."""
  coordinator: str = ''
  """The address:port of process 0, if it is not detected."""
  count: int = 0
  """The number of processes, if it is not detected."""
  index: int = -1
  """The index of this process, from 0, if it is not detected."""
  timeout: float = 60.0
  """Maximum time in seconds to wait for all processes to start."""


class HostsError(UserError):
  """A job whose processes do not find each other, or in which a process fails."""


class JobPlace(NamedTuple):
  """Place of a process in its job."""

  coordinator: str  # address:port of process 0
  count: int  # processes
  index: int
  devices: Any = None  # of this machine that it uses; None: all


def join_job(hosts: HostsConfig) -> JobPlace:
  """Join the other processes of the job, and initialize jax.distributed.

  Raises:
    ConfigError: options are invalid.
    HostsError: processes are missing; the message names them.
  """
  if not hosts.distributed:
    if hosts.coordinator or hosts.count or hosts.index >= 0:
      raise ConfigError(f'{name_field("hosts.coordinator")}, {name_field("hosts.count")} and '
                        f'{name_field("hosts.index")} are for a job of several processes: give '
                        f'{name_field("hosts.distributed")}=True too')
    return JobPlace('', 1, 0)
  place = find_place(hosts)
  if place.index == 0:
    print(f'waiting for {place.count - 1} other processes of the job at {place.coordinator}',
          flush=True)
  Peers(wait_for_processes(place, hosts.timeout)).watch()
  # All processes run: a later failure is not due to a missing command.
  jax.distributed.initialize(*place, shutdown_timeout_seconds=60)
  return place


def find_place(hosts: HostsConfig) -> JobPlace:
  """Return the place given by options, by the TPU pod or by Slurm. Raises ConfigError."""
  if hosts.coordinator and not re.fullmatch(r'.+:\d{1,5}', hosts.coordinator):
    raise ConfigError(
        f'{name_field("hosts.coordinator")}={hosts.coordinator} is not address:port, such as '
        '10.0.0.1:8476')
  if hosts.count < 0 or hosts.index < -1 or (hosts.count and hosts.index >= hosts.count):
    raise ConfigError(f'{name_field("hosts.index")}={hosts.index} of '
                      f'{name_field("hosts.count")}={hosts.count}: processes are numbered from 0 '
                      'to count - 1')
  reason = ''
  try:
    from jax._src.clusters import ClusterEnv
    address = hosts.coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS')
    own_index = hosts.index if hosts.index >= 0 else None
    coordinator, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
        address, hosts.count or None, own_index, None, None, max(1, int(hosts.timeout)))
  except Exception as error:  # any error of querying a pod's metadata or Slurm
    coordinator, count, index, devices = hosts.coordinator, hosts.count, hosts.index, None
    reason = f' ({" ".join(str(error).split())[:200]})'
  found = {'coordinator': coordinator, 'count': count, 'index': index is not None and index >= 0}
  missing = [name_field(f'hosts.{name}') for name, value in found.items() if not value]
  if not coordinator or not count or index is None or missing:
    raise ConfigError(f'{name_field("hosts.distributed")}=True, but this machine is no worker of a '
                      f'TPU pod, of Slurm or of MPI{reason}: give {" and ".join(missing)} too, or '
                      'leave it out for a run of one process')
  return JobPlace(coordinator, count, index, devices)


def wait_for_processes(place: JobPlace, seconds: float) -> dict[int, socket.socket]:
  """Return when all processes of the job run. Raises HostsError that names the missing ones.

  Returns:
    Open connections by process: of process 0 to all others, of these to process 0.
  """
  if place.count == 1:
    return {}
  if place.index == 0:
    return receive_processes(place, seconds)
  return {0: send_greeting(place, seconds)}


def receive_processes(place: JobPlace, seconds: float) -> dict[int, socket.socket]:
  """Wait, as process 0, for the greetings of all others, then send each of them the outcome."""
  port = int(place.coordinator.rpartition(':')[2])
  both = socket.has_dualstack_ipv6()
  until, present = time.monotonic() + seconds, {}
  try:
    family = socket.AF_INET6 if both else socket.AF_INET
    server = socket.create_server(('', port), family=family, dualstack_ipv6=both,
                                  backlog=place.count)
  except (OSError, OverflowError) as error:
    raise HostsError(f'port {port} of {name_field("hosts.coordinator")}={place.coordinator} cannot '
                     f'be had: {error}. Is another job running on this machine?') from error
  with server, contextlib.ExitStack() as connections:
    # Receive greetings until all processes are present.
    problem = ''
    while len(present) < place.count - 1 and not problem:
      server.settimeout(max(0.01, until - time.monotonic()))
      try:
        connection, address = server.accept()
      except TimeoutError:
        missing = [str(index) for index in range(1, place.count) if index not in present]
        if len(missing) > 20:
          missing = [*missing[:20], '...']
        problem = (f'of {place.count} processes, number {", ".join(missing)} did not come within '
                   f'{seconds:g} s: {SAME_COMMAND}')
        break
      connections.enter_context(connection)
      if greeting := read_greeting(connection):
        index, count = greeting
        if count != place.count or not 0 < index < place.count:
          problem = (f'process {index} of {count}, at {address[0]}, came to a job of '
                     f'{place.count}: the options differ')
        elif index in present:
          problem = (f'two processes, at {present[index][1]} and {address[0]}, say that they are '
                     f'number {index}')
        present[index] = connection, address[0]
    # Send the outcome.
    for connection, _ in present.values():
      with contextlib.suppress(OSError):
        connection.sendall(json.dumps({'problem': problem}).encode() + b'\n')
    if not problem:
      connections.pop_all()
      return {index: connection for index, (connection, _) in present.items()}
    for connection, _ in present.values():  # the side that closes last keeps the port free
      with contextlib.suppress(OSError):
        connection.settimeout(1)
        connection.recv(1)
  raise HostsError(problem)


def read_greeting(connection: socket.socket) -> tuple[int, int] | None:
  """Read (index, count) of a process; None for a connection that is not from the job."""
  try:
    connection.settimeout(2)
    greeting = json.loads(connection.makefile('rb').readline(200))
    return int(greeting['index']), int(greeting['count'])
  except (OSError, ValueError, TypeError, KeyError):
    return None


def send_greeting(place: JobPlace, seconds: float) -> socket.socket:
  """Report to process 0, and wait for the outcome. Raises HostsError.

  Returns:
    The open connection to process 0.
  """
  host, _, port = place.coordinator.rpartition(':')
  until, connection, reason = time.monotonic() + seconds, None, 'no answer'
  while connection is None:
    left = until - time.monotonic()
    if left <= 0:
      raise HostsError(f'process 0 did not answer at {place.coordinator} within {seconds:g} s '
                       f'({reason}): {SAME_COMMAND}, and this machine has to reach that address')
    try:
      address = host.strip('[]'), int(port)
      connection = socket.create_connection(address, timeout=min(left, 5))
    except (OSError, OverflowError) as error:
      reason = getattr(error, 'strerror', None) or str(error)
      time.sleep(min(0.2, left))
  with contextlib.ExitStack() as stack:
    stack.enter_context(connection)
    try:
      greeting = {'index': place.index, 'count': place.count}
      connection.sendall(json.dumps(greeting).encode() + b'\n')
      connection.settimeout(seconds + ANSWER_SECONDS)
      problem = json.loads(connection.makefile('rb').readline(10_000))['problem']
    except (OSError, ValueError, TypeError, KeyError) as error:
      raise HostsError(f'process 0 at {place.coordinator} went away before all processes had come'
                       ) from error
    if problem:
      raise HostsError(problem)
    stack.pop_all()
    return connection


class Peers:
  """The other processes of the job that this one is connected to.

  A process that ends says so. If a connection ends otherwise, its process was killed, or its
  machine has failed: then the others cannot continue either, and end at once with one line.
  Otherwise they would wait for minutes, until jaxlib aborts them without naming the cause.
  """

  def __init__(self, connections: dict[int, socket.socket]):
    self.connections = connections

  def watch(self) -> None:
    """Watch the connections in threads, and say goodbye when this process ends."""
    for index, connection in self.connections.items():
      connection.settimeout(None)
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
      for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
          connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
      threading.Thread(target=self.watch_process, args=[index], daemon=True).start()
    if self.connections:
      atexit.register(self.send, GOODBYE)

  def watch_process(self, index: int) -> None:
    """Return when a process says goodbye; end this process if it, or another one, is lost."""
    message = b''
    with contextlib.suppress(OSError):  # no answer of the machine: keepalive
      message = self.connections[index].makefile('rb').readline(100)
    if message == GOODBYE:
      return
    lost = int(message) if message.strip().isdigit() else index
    self.send(b'%d\n' % lost)
    line = (f'error: process {lost} of the job was killed, or its machine has failed: this process '
            'ends too. The same command on all machines resumes from the newest checkpoint')
    with contextlib.suppress(OSError):  # one call: the process may print its own error now
      os.write(2, f'\n{line}\n'.encode())
    os._exit(EXIT_STOPPED)

  def send(self, message: bytes) -> None:
    """Send a line to all connected processes."""
    for connection in self.connections.values():
      with contextlib.suppress(OSError):
        connection.sendall(message)


@contextlib.contextmanager
def wait_for_cause() -> Iterator[None]:
  """Delay errors of a job, which may follow from the loss of a process: `Peers` then names it."""
  try:
    yield
  except Exception:
    if jax.process_count() > 1:
      time.sleep(LOST_SECONDS)
    raise


GOODBYE = b'goodbye\n'
KEEPALIVE = {'TCP_KEEPIDLE': 30, 'TCP_KEEPINTVL': 10, 'TCP_KEEPCNT': 5}
"""seconds without traffic until the other machine is asked, between questions, and their number"""


def wait_at_barrier(what: str) -> None:
  """Wait until every process of the job is here, at the barrier of this name.

  This is no collective of the devices, which would time out after seconds.
  """
  if jax.process_count() == 1:
    return
  from orbax.checkpoint import multihost
  multihost.get_barrier_sync_fn()(key=what, timeout_ms=MAX_WAIT_MILLISECONDS)


@contextlib.contextmanager
def barrier(what: str) -> Iterator[None]:
  """Make the code inside succeed on all processes or on none.

  An error of one process ends all: that process with its own error, a bug with its traceback, the
  others with a message. Returns when all have reached the end.

  what: name of the work, for messages.
  """
  problem, message = None, ''
  try:
    yield
  except UserError as error:
    problem, message = error, error.marked
  except Exception as error:  # a bug; the others would wait for this process
    problem = error
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())[:500]
    message = f'{reason} (the output of that process has the traceback)'
  if jax.process_count() > 1:
    try:
      messages = exchange_messages(what, message)
    except Exception:
      if problem:  # the cause, where the coordinator is gone too
        raise problem from None
      raise
    for index, other in enumerate(messages):
      if other and not problem:
        problem = HostsError(f'process {index} of the job cannot go on: {other}')
  if problem:
    raise problem


def exchange_messages(what: str, message: str) -> list[str]:
  """Wait until all processes are here, and return the message of each, '' for none."""
  client, key = make_key(what)
  client.key_value_set(f'{key}/{jax.process_index()}', message)
  wait_at_barrier(key)
  if jax.process_index() == 0:
    for old in STALE_KEYS:  # read by all processes, because all are here
      client.key_value_delete(old)
  STALE_KEYS[:] = [key]
  return [client.blocking_key_value_get(f'{key}/{index}', 60_000)
          for index in range(jax.process_count())]


def broadcast(value: Any, what: str) -> Any:
  """Return the value of process 0, JSON, on every process.

  Every decision about what all processes do next (save, stop, evaluate, which checkpoint) must use
  this. A value that each process reads from a disk, a clock or its own sum may differ, and
  processes that decide differently wait for each other forever. what: name of the value.
  """
  if jax.process_count() == 1:
    return value
  client, key = make_key(what)
  if jax.process_index() == 0:
    client.key_value_set(key, json.dumps(value))
  STALE_KEYS.append(key)
  return json.loads(client.blocking_key_value_get(key, MAX_WAIT_MILLISECONDS))


def check_agreement(what: str, values: Mapping[str, Any], remedy: str,
                    place: JobPlace | None = None) -> None:
  """Raise HostsError, the same on all processes, unless all have the same values.

  The message names the differing values, as two processes have them.

  Args:
    what: name of the values.
    values: JSON by name.
    remedy: what to do about a difference.
    place: of this process, before JAX's devices are initialized.
  """
  place = place or JobPlace('', jax.process_count(), jax.process_index())
  if place.count == 1:
    return
  client, key = make_key(what)
  text = json.dumps(dict(values), sort_keys=True)
  client.key_value_set(f'{key}/values/{place.index}', text)
  # all that most processes read of the others
  client.key_value_set(f'{key}/digest/{place.index}', compute_digest(text))
  wait_at_barrier(key)

  def read(kind: str, index: int) -> str:
    return client.blocking_key_value_get(f'{key}/{kind}/{index}', 60_000)

  digests = [read('digest', index) for index in range(place.count)]
  others = [index for index, digest in enumerate(digests) if digest != digests[0]]
  if others:
    first, other = json.loads(read('values', 0)), json.loads(read('values', others[0]))
    raise HostsError(f'the processes of the job have different {what}: '
                     f'{describe_differences(first, other, others)}. {remedy}')


def describe_differences(first: Mapping[str, Any], other: Mapping[str, Any], others: Sequence[int]
                         ) -> str:
  """Describe the values in which processes differ: `others`, the first with the values `other`,
  from process 0 with the values `first`."""
  names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
  text = '; '.join(
      f'{name} is {short_repr(first.get(name, "missing"))} on process 0 and '
      f'{short_repr(other.get(name, "missing"))} on process {others[0]}'
      for name in names[:MAX_NAMED])
  if len(names) > MAX_NAMED:
    text += f', and {len(names) - MAX_NAMED} more differences'
  rest = ', '.join(map(str, others[1:MAX_NAMED]))
  if len(others) > MAX_NAMED:
    rest += ', ...'
  if rest:
    text += f' (processes that differ from process 0 as well: {rest})'
  return text


def leader_first(what: str, work: Callable[[], Any]) -> Any:
  """Call `work` on process 0 first, then on the others, which find its files on a shared disk."""
  result = None
  for turn in (0, 1):
    with barrier(f'{what} {turn}'):
      if min(jax.process_index(), 1) == turn:
        result = work()
  return result


def check_shared_folder(folder: epath.PathLike) -> None:
  """Raise HostsError, on all processes, unless all see the folder: all write checkpoints to it."""
  if jax.process_count() == 1:
    return
  folder = storage.resolve_path(folder)
  place = folder if storage.is_remote(folder) else folder.absolute()
  mark = folder / f'.hosts.{broadcast(uuid.uuid4().hex, "mark")}'
  try:
    with barrier('mark in the output'):
      if jax.process_index() == 0:
        storage.write(mark, 'whether all processes of the job see this folder\n')
    with barrier('look at the output'):
      if not wait_until_visible(mark):
        raise HostsError(
            f'process {jax.process_index()} does not see the output of process 0 in {place} of '
            f'{socket.gethostname()}, but all processes of a job write its checkpoints into one '
            f'folder: give {name_field("output")}=gs://BUCKET/{folder.name}, or a folder on a disk '
            'that they share')
  finally:
    if jax.process_index() == 0:
      with contextlib.suppress(Exception):
        mark.unlink(missing_ok=True)
      remove_empty_folder(folder)


@contextlib.contextmanager
def locked(folder: epath.PathLike) -> Iterator[Lock]:
  """Lock the folder of a run for this job, and remove drafts that a killed run has left in it.

  Raises:
    LockError: another job has locked the folder; on all processes.
  """
  folder = storage.resolve_path(folder)
  lock = Lock(folder, 'a run')
  with barrier('lock of the output'):
    if jax.process_index() == 0:
      lock.acquire()
      for place in (folder, folder / 'tokenizer'):
        storage.remove_drafts(place)
  try:
    yield lock
  finally:
    if jax.process_index() == 0:
      lock.release()
      remove_empty_folder(folder)


def remove_empty_folder(folder: epath.Path) -> None:
  """Remove a folder if it is empty, so that invalid input leaves none."""
  if not storage.is_remote(folder):
    with contextlib.suppress(OSError):
      os.rmdir(folder)


def wait_until_visible(path: epath.Path) -> bool:
  """Return whether a file exists or soon appears: caches of a shared disk may be seconds old."""
  until = time.monotonic() + VISIBLE_SECONDS
  while True:
    with storage.io_errors_as(path, 'read', HostsError):
      if path.exists():
        return True
    if time.monotonic() > until:
      return False
    time.sleep(0.5)


def make_key(what: str) -> tuple[Any, str]:
  """Return (client, new key at the coordinator); equal keys for processes that do equal work."""
  from orbax.checkpoint import multihost
  return multihost.get_jax_distributed_client(), f'plm_jax {next(KEY_NUMBERS)} {what}'
