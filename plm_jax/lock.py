"""One at a time: a folder, on a disk or in a bucket, that one process works on and others wait for or leave alone.

Who wants a folder puts a claim into its `.lock`: a file under a name of its own that says who it is and is renewed
every few seconds. It has the folder once it has seen no other live claim behind its own. Whatever order two of them
come in, at most one sees none, as writing and listing are consistent on disks and in Google's buckets alike; no
operation beyond these is needed. Of two that came together the smaller name stays and the other steps back.

A claim is dead when its process is, which is known on the same machine, or when it was not renewed for `EXPIRES`
seconds. So a killed run's folder is free at once on the machine that it died on, and after a minute on another.
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
EXPIRES = 60.0  # seconds after which a claim that was not renewed is dead


class LockError(Expected):
  """A folder that somebody else works on, or that was taken away."""


@dataclasses.dataclass(frozen=True)
class Claim:
  """Who works on a folder, or wants to."""

  what: str  # 'a run'
  host: str
  machine: str  # this boot of it
  process: int
  started: str  # of the process: its number may be another's by now
  since: str
  renewed: float  # seconds since 1970
  holds: bool = False

  def dead(self) -> bool:
    if (self.host, self.machine) == here():
      return not alive(self.process, self.started)
    return time.time() - self.renewed > EXPIRES

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
    self.claim = Claim(what, *here(), os.getpid(), started(os.getpid()), time.strftime('%F %T %Z'), time.time())
    self.ended = threading.Event()
    self.lost = ''

  def __enter__(self) -> 'Lock':
    self.acquire()
    return self

  def __exit__(self, *error: Any) -> None:
    self.release()

  def acquire(self) -> None:
    """Returns once the folder is ours. Raises LockError where another has it, StorageError where none can be had."""
    said, doubted = False, {}
    self.put()
    try:
      while True:
        others = self.others()
        if not others:
          self.claim = dataclasses.replace(self.claim, holds=True)
          self.put()
          threading.Thread(target=self.renew, name=f'lock {self.folder}', daemon=True).start()
          return
        holder = next((name for name, claim in others.items() if claim.holds), None)
        if holder:
          claim = others[holder]
          # On another machine it may have died: if it renews its claim it lives, if not the claim will expire.
          seen = doubted.setdefault(holder, claim.renewed)
          if not self.wait and (claim.host == self.claim.host or claim.renewed != seen):
            raise LockError(f'{self.folder} is in use by {claim}: wait for it, stop it, or give another folder')
          if not said:
            said = True
            print(f'{self.folder} is in use by {claim}: waiting for it', flush=True)
        if holder or min(others) < self.path.name:
          self.withdraw()
          time.sleep(random.uniform(0.5, 1.5))
          self.put()
        else:
          time.sleep(random.uniform(0.05, 0.2))
    except BaseException:
      self.withdraw()
      raise

  def release(self) -> None:
    self.ended.set()
    self.withdraw()

  def check(self) -> None:
    """Raises LockError if somebody has taken the folder, as happens where this process stood still for a minute."""
    if self.lost:
      raise LockError(f'{self.folder} was taken over by {self.lost} while this process stood still. Nothing of it is '
                      'lost: the same command goes on when the other has ended')

  def put(self) -> None:
    self.claim = dataclasses.replace(self.claim, renewed=time.time())
    for left in reversed(range(10)):
      try:
        storage.write_json(self.path, dataclasses.asdict(self.claim))
        return
      except storage.StorageError:
        if not left or storage.remote(self.claims) or self.claims.exists():
          raise  # otherwise who was last has taken away the folder between its making and our file's

  def withdraw(self) -> None:
    with contextlib.suppress(Exception):  # it expires
      self.path.unlink(missing_ok=True)
    if not storage.remote(self.claims):
      with contextlib.suppress(OSError):  # others are in it
        os.rmdir(self.claims)

  def others(self) -> dict[str, Claim]:
    """The live claims beside our own, by name; dead ones are taken away."""
    found = {}
    with storage.explained(self.claims, 'listed'):
      paths = [path for path in self.claims.iterdir() if path.suffix == '.json' and path.name != self.path.name]
    for path in paths:
      try:
        claim = Claim(**storage.read_json(path))
        dead = claim.dead()
      except (storage.StorageError, TypeError):  # it went away meanwhile, or is none
        if storage.remote(path) or not path.exists():
          continue
        dead = True
      if dead:
        with contextlib.suppress(OSError):
          path.unlink(missing_ok=True)
      else:
        found[path.name] = claim
    return found

  def renew(self) -> None:
    while not self.ended.wait(RENEWED):
      with contextlib.suppress(Exception):  # a bucket that does not answer now will later, or the claim expires
        late = time.time() - self.claim.renewed > EXPIRES
        taken = [claim for claim in self.others().values() if claim.holds] if late else []
        if taken:
          self.lost = str(taken[0])
          return
        if not self.ended.is_set():
          self.put()
    if self.ended.is_set():
      self.withdraw()  # it may have been renewed at the moment of its release


@functools.cache
def here() -> tuple[str, str]:
  """(name of this machine, which of its boots)."""
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id')
  return socket.gethostname(), boot.read_text().strip() if boot.exists() else ''


def started(process: int) -> str:
  """When a process began, in ticks of the machine; '' where the system does not say or there is none."""
  with contextlib.suppress(OSError, IndexError):
    said = pathlib.Path(f'/proc/{process}/stat').read_text()
    fields = said.rpartition(')')[2].split()
    return '' if fields[0] == 'Z' else fields[19]  # Z: it has ended, and its parent has not looked
  return ''


def alive(process: int, since: str) -> bool:
  if since:
    return started(process) == since
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    return True
  return True
