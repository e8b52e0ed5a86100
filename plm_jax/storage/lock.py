"""Locks of folders, on a disk or in a bucket: one process works on a folder, others wait or fail.

A process that needs a folder writes a claim into its `.lock`: a file with a name of its own that
identifies the process and is renewed every few seconds. It holds the folder once it has then seen
no other live claim. Writing and listing are consistent on disks and in Google's buckets alike, so
in any order of two processes at most one sees no other claim; no other operation is needed. Of
several simultaneous claims the one with the smallest name stays, and the others are withdrawn.

A claim is dead when its process is, which is known on the same machine until it reboots, and in the
same container until it restarts. Any other claim is dead when it was watched for `EXPIRE_SECONDS`
without being renewed, whatever the clocks show: machines may have the same name. So the folder of a
killed run is free at once on the same machine, and a minute later after a reboot or on another.
"""
import contextlib
import dataclasses
import functools
import os
import pathlib
import random
import socket
import threading
import time
from typing import IO, Any
import uuid

from etils import epath

from plm_jax import storage
from plm_jax.errors import UserError

RENEW_SECONDS = 15.0  # between renewals
EXPIRE_SECONDS = 60.0  # of watching, after which a claim that was not renewed is dead
MAX_CLOCK_SKEW = 86400.0  # seconds; older claims are dead without being watched


class LockError(UserError):
  """A folder that another process works on, or has taken over."""


@dataclasses.dataclass(frozen=True)
class Claim:
  """A process that works on a folder, or waits for it; a JSON file."""

  what: str  # 'a run'
  host: str
  machine: str  # its boot, and its namespace of process ids
  process: int
  started: str  # start time of the process, whose id may be reused
  since: str
  renewed: float  # seconds since 1970, by the clock of its machine
  holds: bool = False

  def __str__(self) -> str:
    return f'{self.what} (process {self.process} on {self.host}, since {self.since})'


class Lock:
  """Lock of a folder: `with Lock(folder, 'a run'): ...`; or `acquire` and `release`."""

  def __init__(self, folder: epath.PathLike, what: str, wait: bool = False):
    """Make the lock, not yet acquired.

    Args:
      folder: the folder.
      what: how others call the holder, 'a run'.
      wait: wait for another holder to end; False: raise LockError.
    """
    self.folder = storage.resolve_path(folder)
    self.claims = self.folder / '.lock'
    self.path = self.claims / f'{uuid.uuid4().hex}.json'
    self.wait = wait
    process = os.getpid()
    self.claim = Claim(what, *this_machine(), process, process_start(process) or '',
                       time.strftime('%F %T %Z'), 0.0)
    # Name of a claim -> its time of renewal, and when we first saw that.
    self.watched: dict[str, tuple[float, float]] = {}
    self.ended = threading.Event()
    self.renewer = threading.Thread(
        target=self.renew_claim, name=f'lock {self.folder}', daemon=True)
    self.lost_to = ''

  def __enter__(self) -> 'Lock':
    self.acquire()
    return self

  def __exit__(self, *error: Any) -> None:
    self.release()

  def acquire(self) -> None:
    """Acquire the folder.

    Raises:
      LockError: another process holds it.
      StorageError: claims cannot be written.
    """
    announced, claimed, first_seen = False, False, {}
    try:
      while True:
        others = self.live_claims()
        holder = next((name for name, claim in others.items() if claim.holds), '')
        if holder:
          claim = others[holder]
          # Elsewhere it may be dead: either it renews its claim, or the claim expires.
          renewed = first_seen.setdefault(holder, claim.renewed) != claim.renewed
          if (is_process_known(claim) or renewed) and not self.wait:
            raise LockError(f'{self.folder} is in use by {claim}: wait for it, stop it (`kill '
                            f'{claim.process}` on {claim.host}), or give another folder')
          if not announced:
            announced = True
            limit = '' if self.wait else f', up to {EXPIRE_SECONDS:.0f} s, to see whether it runs'
            print(f'{self.folder} is in use by {claim}: waiting for it{limit}', flush=True)
        if not others and not claimed:
          self.write_claim()
          claimed = True  # look again: others may have done the same
        elif not others:
          self.write_claim(holds=True)
          self.renewer.start()
          return
        elif claimed and (holder or min(others) < self.path.name):
          self.remove_claim()
          claimed = False
        elif holder:
          time.sleep(random.uniform(0.5, 1.0))
        else:
          time.sleep(random.uniform(0.05, 0.3))
    except BaseException:
      self.remove_claim()
      raise

  def release(self) -> None:
    """End the renewal and remove our claim. The folder is free at once."""
    self.ended.set()
    if self.renewer.is_alive():
      self.renewer.join(RENEW_SECONDS)
    self.remove_claim()

  def check(self) -> None:
    """Check that we still hold the folder.

    Raises:
      LockError: another process has taken it over, because this one was suspended for a minute.
    """
    if self.lost_to:
      raise LockError(
          f'{self.folder} was taken over by {self.lost_to} while this process was '
          'suspended. Nothing of it is lost: the same command resumes when the other has ended')

  def write_claim(self, holds: bool = False) -> None:
    """Write our claim, renewed now.

    Raises:
      StorageError: it cannot be written.
    """
    claim = dataclasses.replace(self.claim, renewed=time.time(), holds=holds)
    for left in reversed(range(10)):
      try:
        storage.write_json(self.path, dataclasses.asdict(claim))
        self.claim = claim
        return
      except storage.StorageError:
        # The last other process may have removed the folder of claims before our file was in it.
        if not left or storage.is_remote(self.claims) or self.claims.exists():
          raise

  def remove_claim(self) -> None:
    """Remove our claim, and on a disk an empty folder of claims. Raises nothing."""
    with contextlib.suppress(Exception):  # the claim expires
      self.path.unlink(missing_ok=True)
    if not storage.is_remote(self.claims):
      with contextlib.suppress(OSError):  # there are others in it
        os.rmdir(self.claims)

  def live_claims(self) -> dict[str, Claim]:
    """Return the live claims of other processes, by name; remove dead ones."""
    found = {}
    for path in self.claim_paths():
      if path == self.path:
        continue
      try:
        claim = parse_claim(storage.read_json(path, limit=1 << 16))
      except storage.StorageError as error:
        if not storage.is_missing(error):
          raise
        continue  # it was removed meanwhile
      if self.is_dead(path.name, claim):
        with contextlib.suppress(OSError):
          path.unlink(missing_ok=True)
      else:
        found[path.name] = claim
    return found

  def claim_paths(self) -> list[epath.Path]:
    """List the files of all claims; none where there is no folder of claims."""
    try:
      with storage.io_errors_as(self.claims, 'listed'):
        return [path for path in self.claims.iterdir() if path.suffix == '.json']
    except storage.StorageError as error:
      if not storage.is_missing(error):
        raise
      return []

  def is_dead(self, name: str, claim: Claim) -> bool:
    """Tell whether a claim's process has ended.

    On this machine the system knows; any other claim is watched for EXPIRE_SECONDS.
    """
    here = (claim.host, claim.machine) == this_machine()
    if here and not is_alive(claim.process, claim.started):
      return True
    if is_process_known(claim):
      return False
    now = time.monotonic()
    renewed, seen = self.watched.setdefault(name, (claim.renewed, now))
    if renewed != claim.renewed:
      self.watched[name] = claim.renewed, now
      return False
    return now - seen > EXPIRE_SECONDS or time.time() - claim.renewed > MAX_CLOCK_SKEW

  def renew_claim(self) -> None:
    """Renew our claim every RENEW_SECONDS, until `release`.

    It stops where another process has taken the folder, and records it in `lost_to`.
    """
    while not self.ended.wait(RENEW_SECONDS):
      # A bucket that does not respond now will later, or the claim expires.
      with contextlib.suppress(Exception):
        holders = [claim for claim in self.live_claims().values() if claim.holds]
        if holders or not self.path.exists():
          self.lost_to = 'another process'
          if holders:
            self.lost_to = str(holders[0])
          return
        self.write_claim(holds=True)
    self.remove_claim()  # it may have been renewed at the moment of its release


def parse_claim(fields: dict[str, Any]) -> Claim:
  """Parse a claim's file, perhaps of another version: missing fields are empty or zero."""
  values = {}
  for field in dataclasses.fields(Claim):
    kind: Any = field.type
    value = fields.get(field.name)
    values[field.name] = value if isinstance(value, kind) else kind()
  return Claim(**values)


@functools.cache
def this_machine() -> tuple[str, str]:
  """Return the name of this machine, and an id of its boot and of its process namespace."""
  boot, namespace = pathlib.Path('/proc/sys/kernel/random/boot_id'), ''
  with contextlib.suppress(OSError):
    namespace = os.readlink('/proc/self/ns/pid')
  return socket.gethostname(), f'{boot.read_text().strip() if boot.exists() else ""} {namespace}'


def is_process_known(claim: Claim) -> bool:
  """Tell whether a claim is of this boot and process namespace, with the start of its process."""
  return (claim.host, claim.machine) == this_machine() and bool(claim.started)


def process_start(process: int) -> str | None:
  """Return when a process started, in clock ticks; '': it has ended; None: the system has no
  /proc."""
  with contextlib.suppress(OSError, IndexError):
    content = pathlib.Path(f'/proc/{process}/stat').read_text()
    fields = content.rpartition(')')[2].split()
    # Z: its parent has not waited for it
    if fields[0] == 'Z':
      return ''
    return fields[19]
  return None


def is_alive(process: int, since: str) -> bool:
  """Tell whether the process that started at `since` still runs on this machine.

  since '': whether any process of that number does.
  """
  found = process_start(process)
  if since and found is not None:
    return found == since
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except OSError:  # another user's
    return True
  return True


def lock_file(file: IO[bytes]) -> bool:
  """Lock a file until it is closed; return whether no other process holds its lock.

  Where the system or the disk has no locks, nothing is locked.
  """
  try:
    import fcntl
  except ImportError:  # Windows
    return True
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    return True
  return True
