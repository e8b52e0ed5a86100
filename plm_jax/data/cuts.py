"""Where the windows of token records begin.

Where the windows of a shard begin is found when the shard is first read from, and kept in a file as large as all of it
will be, most of it a hole: a run of one epoch fills it up, a look at a few windows does not. The file holds, for S
shards, their checksums [S], 0 of those that are not there yet, then `CUT`s of all windows, and is never trusted: what
does not fit its checksum, or the shard, is made again.
"""
import contextlib
import logging
import mmap
import os
import pathlib
import weakref

import numpy as np

from plm_jax import storage
from plm_jax.data import checksums, counts
from plm_jax.data.cutting import CUT, Rule, offsets
from plm_jax.data.records import RecordsError, Shard
from plm_jax.data.shards import Shards
from plm_jax.errors import Expected

logger = logging.getLogger(__name__)


class Cuts:
  """Where the windows of a split begin: `offsets` [S + 1] counts windows by shard, `of` has those of one.

  Raises RecordsError for records that are not of what the rule cuts.
  """

  def __init__(self, shards: Shards, rule: Rule):
    self.shards, self.rule = shards, rule
    self.name = f'{shards.split}-{rule}'
    ((windows, self.clipped),) = counts.of(shards, [rule])
    self.offsets = offsets(windows)
    self._known = np.zeros(len(windows), bool)
    self._path: pathlib.Path | None = None
    self._file: int | None = None
    self._open()

  def of(self, number: int) -> np.ndarray:
    """Returns where the windows of a shard begin [W] of `CUT`."""
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
      home, cache = self.shards.homes
      raise RecordsError(f'{self.name}.json in {home} or {cache} counts {stop - start} windows in '
                         f'{self.shards.entries[number].name}, which has {len(cuts)}: delete it, and it is made again.')
    content = cuts.tobytes()
    if self._file is not None:
      try:
        put(self._file, content, len(self._known) * CRC.itemsize + int(start) * CUT.itemsize)
        # Once there is what it is of:
        put(self._file, np.array(checksums.crc(content), CRC).tobytes(), number * CRC.itemsize)
      except OSError:  # a full disk, say
        pass
      if np.array_equal(self._cuts[start:stop], cuts):
        return
      known, before = np.flatnonzero(self._known), self._cuts  # memory has to do
      self._open(memory=True)
      for other in known:
        self._cuts[self.offsets[other]:self.offsets[other + 1]] = before[self.offsets[other]:self.offsets[other + 1]]
    self._cuts[start:stop] = cuts

  def _open(self, memory: bool = False) -> None:
    """The file of cuts, on a disk that takes it, or else a stretch of memory, which is there once it is used."""
    size = file_size(self.offsets)
    self._path = self._file = None
    for home in [] if memory else self.shards.homes[self.shards.remote:]:
      path = pathlib.Path(home) / f'{self.name}.cuts'
      with contextlib.suppress(OSError, ValueError, Expected):  # ValueError: it is shorter now
        if not path.exists() or path.stat().st_size != size:
          with storage.drafted(path) as file:
            file.truncate(size)
        # Another process, which found no file either, may put its own in the place of this one: what is written goes
        # to the file that is read, and not to the one of that name.
        self._file = opened(path)
        weakref.finalize(self, os.close, self._file)
        content = np.frombuffer(mmap.mmap(self._file, size, access=mmap.ACCESS_READ), np.uint8)
        self._path = path
        break
    else:
      content = np.zeros(size, np.uint8)
    self._crcs, self._cuts = parts(content, self.offsets)


def opened(path: pathlib.Path) -> int:
  """Opens a file, to write to where that is allowed -> its number."""
  try:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
  except OSError:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def put(file: int, content: bytes, place: int) -> None:
  """Writes all of `content` to a place of a file. Raises OSError."""
  while content:
    written = os.pwrite(file, content, place)
    content, place = content[written:], place + written


def file_size(offsets: np.ndarray) -> int:
  """Returns the bytes of a file of cuts. offsets [S + 1]: windows before each shard."""
  return (len(offsets) - 1) * CRC.itemsize + int(offsets[-1]) * CUT.itemsize


def parts(content: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Parts the bytes of a file of cuts -> its checksums [S], its cuts [W]."""
  split = (len(offsets) - 1) * CRC.itemsize
  return content[:split].view(CRC), content[split:].view(CUT)


def sound(cuts: np.ndarray, crc: int, entry: Shard) -> bool:
  """Tells whether these may be the cuts of a shard."""
  if checksums.crc(cuts.tobytes()) != crc:
    return False
  starts, sentences = cuts['start'].astype(np.int64), cuts['sentence'].astype(np.int64)
  return bool(starts[0] == sentences[0] == 0 and starts[-1] < entry.tokens and sentences[-1] < entry.sentences
              and (np.diff(starts) > 0).all() and (np.diff(sentences) >= 0).all())


CRC = np.dtype('<u4')
