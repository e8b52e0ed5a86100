"""Where the windows of token records begin.

How many windows each shard has is known before the first is read: the order of reading depends on it. Under 'packed'
that is arithmetic; under the other assemblies all sentences are read once, by whoever comes first, and the numbers are
kept beside the records, for every later run and every host; where they cannot be written, in the cache.

Where the windows of a shard begin is found when the shard is first read from, and kept in a file as large as all of it
will be, most of it a hole: a run of one epoch fills it up, a look at a few windows does not. The file holds, for S
shards, their checksums [S], 0 of those that are not there yet, then `CUT`s of all windows, and is never trusted: what
does not fit its checksum, or the shard, is made again.
"""
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import logging
import pathlib
import sys
from typing import Any

from etils import epath
import numpy as np
from tqdm import tqdm

from plm_jax import storage
from plm_jax.data import checksums
from plm_jax.data.cutting import CUT, Rule, key, offsets
from plm_jax.data.records import RecordsError, Shard, Split
from plm_jax.data.shards import REQUESTS, Shards
from plm_jax.errors import Expected
from plm_jax.storage.lock import Lock

SHARED = 1 << 24  # sentences: where there are more, one process counts windows and others wait for it

logger = logging.getLogger(__name__)


class Cuts:
  """Where the windows of a split begin: `offsets` [S + 1] counts windows by shard, `of` has those of one.

  Raises RecordsError for records that are not of what the rule cuts.
  """

  def __init__(self, shards: Shards, split: Split, rule: Rule, digest: str):
    """digest: of records.json: what is stored for other records is not used."""
    self.shards, self.rule = shards, rule
    self.name = f'{split}-{rule}'
    self.homes = [shards.folder / 'windows' / key(digest), epath.Path(shards.cache)]
    counts = self.stored_counts() if rule.assembly != 'packed' else None
    windows, clipped = counts or self.count()
    self.offsets, self.clipped = offsets(windows), clipped
    self._known = np.zeros(len(windows), bool)
    self._path: pathlib.Path | None = None
    self._open()

  def of(self, number: int) -> np.ndarray:
    """Where the windows of a shard begin [W] of `CUT`."""
    start, stop = self.offsets[number:number + 2]
    if not self._known[number]:
      found = self._cuts[start:stop]
      if not self._crcs[number] or not sound(found, self._crcs[number], self.shards.entries[number]):
        if self._crcs[number]:
          logger.warning('%s is damaged: the windows of %s are cut again', self._path, self.shards.entries[number].name)
        self._make(number)
      self._known[number] = True
    return self._cuts[start:stop]

  def _make(self, number: int) -> None:
    cuts = self.rule.cut(self.shards.sentences(number), self.shards.entries[number])
    start, stop = self.offsets[number:number + 2]
    if len(cuts) != stop - start:
      raise RecordsError(f'{self.name}.json in {self.homes[0]} or {self.homes[1]} counts {stop - start} windows in '
                         f'{self.shards.entries[number].name}, which has {len(cuts)}: delete it, and it is made again.')
    content = cuts.tobytes()
    if path := self._path:
      try:
        with path.open('r+b') as file:
          file.seek(len(self._known) * CRC.itemsize + start * CUT.itemsize)
          file.write(content)
          file.seek(number * CRC.itemsize)
          file.write(np.array(checksums.crc(content), CRC).tobytes())  # once there is what it is of
        return
      except OSError:  # a full disk, say: memory has to do
        known, before = np.flatnonzero(self._known), self._cuts
        self._open(memory=True)
        for other in known:
          self._cuts[self.offsets[other]:self.offsets[other + 1]] = before[self.offsets[other]:self.offsets[other + 1]]
    self._cuts[start:stop] = cuts

  def _open(self, memory: bool = False) -> None:
    """The file of cuts, on a disk that takes it, or else a stretch of memory, which is there once it is used."""
    size = file_size(self.offsets)
    self._path = None
    for home in [] if memory else self.homes[self.shards.remote:]:
      path = pathlib.Path(home) / f'{self.name}.cuts'
      with contextlib.suppress(OSError, Expected):
        if not path.exists() or path.stat().st_size != size:
          with storage.drafted(path) as file:
            file.truncate(size)
        content = np.memmap(path, np.uint8, 'r').view(np.ndarray)
        self._path = path
        break
    else:
      content = np.zeros(size, np.uint8)
    self._crcs, self._cuts = parts(content, self.offsets)

  def stored_counts(self) -> tuple[list[int], int] | None:
    """Windows of every shard, and examples that are too long, as somebody has counted them for these records."""
    for home in self.homes:
      path = home / f'{self.name}.json'
      with contextlib.suppress(Expected, OSError):
        if not path.exists():
          continue
        try:
          return read_counts(path, self.shards.entries)
        except Expected as error:
          logger.warning('%s; it is made again', error)
    return None

  def count(self) -> tuple[list[int], int]:
    """`stored_counts`, made, and stored where that is possible. Of much text by one process at a time."""
    with contextlib.ExitStack() as stack:
      if self.rule.assembly != 'packed' and sum(entry.sentences for entry in self.shards.entries) > SHARED:
        with contextlib.suppress(Expected):  # where nothing can be written, everybody counts on his own
          stack.enter_context(Lock(self.homes[0], 'a process that counts windows', wait=True))
          if counts := self.stored_counts():
            return counts
      counts = list(tqdm(self.each_count(), f'where the {self.rule.length}-token windows of {self.shards.folder} begin',
                         len(self.shards), delay=2, unit=' shards',
                         mininterval=0.5 if sys.stderr.isatty() else 10))  # a file keeps every bar that is drawn
      windows, clipped = [count for count, _ in counts], sum(too_long for _, too_long in counts)
      for home in self.homes if self.rule.assembly != 'packed' else []:
        with contextlib.suppress(Expected):  # read-only or full: the next place
          storage.write(home / f'{self.name}.json', checksums.seal({'windows': windows, 'clipped': clipped}))
          break
      return windows, clipped

  def each_count(self) -> Iterator[tuple[int, int]]:
    def one(number: int) -> tuple[int, int]:
      return self.rule.count(lambda: self.shards.sentences(number), self.shards.entries[number])
    numbers = range(len(self.shards))
    if self.rule.assembly == 'packed' or not self.shards.remote:
      yield from map(one, numbers)
      return
    with ThreadPoolExecutor(REQUESTS) as pool:
      yield from pool.map(one, numbers)


def read_counts(path: epath.Path, entries: Sequence[Shard]) -> tuple[list[int], int]:
  """Windows of every shard, and examples that are too long. Raises RecordsError for what cannot be that."""
  stored = checksums.unseal(storage.read_text(path, error=RecordsError), path, RecordsError)
  windows: Any = stored.get('windows')
  clipped: Any = stored.get('clipped')
  right = isinstance(windows, list) and len(windows) == len(entries) and type(clipped) is int and all(
      type(count) is int and bool(entry.tokens) <= count <= entry.tokens
      for count, entry in zip(windows, entries, strict=True))
  if not right:
    raise RecordsError(f'{path} does not count the windows of these records')
  return windows, clipped


def file_size(offsets: np.ndarray) -> int:
  """Bytes of a file of cuts. offsets [S + 1]: windows before each shard."""
  return (len(offsets) - 1) * CRC.itemsize + int(offsets[-1]) * CUT.itemsize


def parts(content: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The bytes of a file of cuts -> its checksums [S], its cuts [W]."""
  split = (len(offsets) - 1) * CRC.itemsize
  return content[:split].view(CRC), content[split:].view(CUT)


def sound(cuts: np.ndarray, crc: int, entry: Shard) -> bool:
  """Whether these may be the cuts of a shard."""
  if checksums.crc(cuts.tobytes()) != crc:
    return False
  starts, sentences = cuts['start'].astype(np.int64), cuts['sentence'].astype(np.int64)
  return bool(starts[0] == sentences[0] == 0 and starts[-1] < entry.tokens and sentences[-1] < entry.sentences
              and (np.diff(starts) > 0).all() and (np.diff(sentences) >= 0).all())


CRC = np.dtype('<u4')
