"""One at a time: a folder, on a disk or in a bucket, that one process works on and others wait for or leave alone.

Who wants a folder puts a claim into its `.lock`: a file under a name of its own that says who it is and is renewed
every few seconds. It has the folder once it has then seen no other live claim. Whatever order two of them come in, at
most one sees none, as writing and listing are consistent on disks and in Google's buckets alike; no operation beyond
these is needed. Of several that came together the smallest name stays and the others step back.

A claim is dead when its process is, which is known on the same machine; of another machine when it stayed the same for
`EXPIRES` seconds of watching it, whatever the clocks say. So a killed run's folder is free at once on the machine that
it died on, and a minute later on another.
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
from typing import Any
import uuid

from etils import epath

from plm_jax import storage
from plm_jax.errors import Expected

RENEWED = 15.0  # seconds between renewals
EXPIRES = 60.0  # seconds of watching after which a claim that was not renewed is dead
LONG_AGO = 86400.0  # seconds by which no two clocks differ: older claims need no watching


class LockError(Expected):
  """A folder that somebody else works on, or that was taken away."""


@dataclasses.dataclass(frozen=True)
class Claim:
  """Who works on a folder, or wants to."""

  what: str  # 'a run'
  host: str
  machine: str  # this boot of it, and its numbering of processes
  process: int
  started: str  # of the process: its number may be another's by now
  since: str
  renewed: float  # seconds since 1970, by the clock of its machine
  holds: bool = False

  def __str__(self) -> str:
    return f'{self.what} (process {self.process} on {self.host}, since {self.since})'


class Lock:
  """`with Lock(folder, 'a run'): ...`; or `acquire` and `release`."""

  def __init__(self, folder: epath.PathLike, what: str, wait: bool = False):
    """what: how others call the holder, 'a run'. wait: for the holder to end; otherwise LockError names it."""
    self.folder = storage.path_of(folder)
    self.claims = self.folder / '.lock'
    self.path = self.claims / f'{uuid.uuid4().hex}.json'
    self.wait = wait
    self.claim = Claim(what, *here(), os.getpid(), started(os.getpid()) or '', time.strftime('%F %T %Z'), 0.0)
    self.watched: dict[str, tuple[float, float]] = {}  # name of a claim -> renewed, and when we saw that first
    self.ended = threading.Event()
    self.renewer = threading.Thread(target=self.renew, name=f'lock {self.folder}', daemon=True)
    self.lost = ''

  def __enter__(self) -> 'Lock':
    self.acquire()
    return self

  def __exit__(self, *error: Any) -> None:
    self.release()

  def acquire(self) -> None:
    """Returns once the folder is ours. Raises LockError where another has it, StorageError where none can be had."""
    said, claimed, before = False, False, {}
    try:
      while True:
        others = self.others()
        holder = next((name for name, claim in others.items() if claim.holds), '')
        if holder:
          claim = others[holder]
          # On another machine it may have died: if it renews its claim it lives, if not the claim will expire.
          alive = claim.host == self.claim.host or before.setdefault(holder, claim.renewed) != claim.renewed
          if alive and not self.wait:
            raise LockError(f'{self.folder} is in use by {claim}: wait for it, stop it, or give another folder')
          if not said:
            said = True
            print(f'{self.folder} is in use by {claim}: waiting for it', flush=True)
        if not others and not claimed:
          self.put()
          claimed = True  # and look again: others may have done the same
        elif not others:
          self.put(holds=True)
          self.renewer.start()
          return
        elif claimed and (holder or min(others) < self.path.name):
          self.withdraw()
          claimed = False
        else:
          time.sleep(random.uniform(0.5, 1.0) if holder else random.uniform(0.05, 0.3))
    except BaseException:
      self.withdraw()
      raise

  def release(self) -> None:
    """Ends the renewal and takes our claim away. The folder is free at once."""
    self.ended.set()
    if self.renewer.is_alive():
      self.renewer.join(RENEWED)
    self.withdraw()

  def check(self) -> None:
    """Raises LockError if somebody has taken the folder, as happens where this process stood still for a minute."""
    if self.lost:
      raise LockError(f'{self.folder} was taken over by {self.lost} while this process stood still. Nothing of it is '
                      'lost: the same command goes on when the other has ended')

  def put(self, holds: bool = False) -> None:
    """Writes our claim, renewed now. Raises StorageError where it cannot be written."""
    claim = dataclasses.replace(self.claim, renewed=time.time(), holds=holds)
    for left in reversed(range(10)):
      try:
        storage.write_json(self.path, dataclasses.asdict(claim))
        self.claim = claim
        return
      except storage.StorageError:
        if not left or storage.remote(self.claims) or self.claims.exists():
          raise  # otherwise who was last has taken away the folder between its making and our file's

  def withdraw(self) -> None:
    """Takes our claim away, and on a disk the folder of claims with the last one. Raises nothing: a claim expires."""
    with contextlib.suppress(Exception):  # it expires
      self.path.unlink(missing_ok=True)
    if not storage.remote(self.claims):
      with contextlib.suppress(OSError):  # others are in it
        os.rmdir(self.claims)

  def others(self) -> dict[str, Claim]:
    """Returns the live claims beside our own, by name; dead ones are taken away."""
    found = {}
    for path in self.paths():
      if path == self.path:
        continue
      try:
        claim = claim_of(storage.read_json(path, limit=1 << 16))
      except storage.StorageError as error:
        if not storage.missing(error):
          raise
        continue  # it went away meanwhile
      if self.dead(path.name, claim):
        with contextlib.suppress(OSError):
          path.unlink(missing_ok=True)
      else:
        found[path.name] = claim
    return found

  def paths(self) -> list[epath.Path]:
    """Lists the files of all claims; none where nobody has claimed the folder."""
    try:
      with storage.explained(self.claims, 'listed'):
        return [path for path in self.claims.iterdir() if path.suffix == '.json']
    except storage.StorageError as error:
      if not storage.missing(error):
        raise
      return []

  def dead(self, name: str, claim: Claim) -> bool:
    """Tells whether a claim's process has ended: here by asking the system, elsewhere by watching it for EXPIRES
    seconds."""
    if (claim.host, claim.machine) == here():
      return not alive(claim.process, claim.started)
    now = time.monotonic()
    renewed, seen = self.watched.setdefault(name, (claim.renewed, now))
    if renewed != claim.renewed:
      self.watched[name] = claim.renewed, now
      return False
    return now - seen > EXPIRES or time.time() - claim.renewed > LONG_AGO

  def renew(self) -> None:
    """Renews our claim every RENEWED seconds, until `release`, or until somebody has taken the folder: `lost` says
    who."""
    while not self.ended.wait(RENEWED):
      with contextlib.suppress(Exception):  # a bucket that does not answer now will later, or the claim expires
        taken = [claim for claim in self.others().values() if claim.holds]
        if taken or not self.path.exists():
          self.lost = str(taken[0]) if taken else 'another process'
          return
        self.put(holds=True)
    self.withdraw()  # it may have been renewed at the moment of its release


def claim_of(said: dict[str, Any]) -> Claim:
  """Reads what a claim's file holds, of another version perhaps: what it lacks is empty or zero."""
  kinds: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Claim)}
  return Claim(**{name: said[name] if isinstance(said.get(name), kind) else kind() for name, kind in kinds.items()})


@functools.cache
def here() -> tuple[str, str]:
  """Returns the name of this machine, and which of its boots and of its containers this is."""
  boot, numbering = pathlib.Path('/proc/sys/kernel/random/boot_id'), ''
  with contextlib.suppress(OSError):
    numbering = os.readlink('/proc/self/ns/pid')
  return socket.gethostname(), f'{boot.read_text().strip() if boot.exists() else ""} {numbering}'


def started(process: int) -> str | None:
  """Returns when a process began, in ticks of the machine; '' if it has ended; None where the system does not say."""
  with contextlib.suppress(OSError, IndexError):
    said = pathlib.Path(f'/proc/{process}/stat').read_text()
    fields = said.rpartition(')')[2].split()
    return '' if fields[0] == 'Z' else fields[19]  # Z: its parent has not looked
  return None


def alive(process: int, since: str) -> bool:
  """Tells whether the process that began at `since` still runs on this machine; with '' whether any of that number
  does."""
  found = started(process)
  if since and found is not None:
    return found == since
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except OSError:  # another user's
    return True
  return True
