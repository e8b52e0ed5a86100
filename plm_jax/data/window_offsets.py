"""Where the windows of token records begin, found per shard and cached on disk.

The starts of a shard's windows are found when the shard is first read. They are kept in a file that
has its full size from the start, as a sparse file: a run of one epoch fills it, reading a few
windows does not. For S shards the file holds their checksums [S], 0 for those not yet found, then
the `WINDOW_START`s of all windows. The file is never trusted: entries that do not match their
checksum, or the shard, are found again.
"""
import contextlib
import logging
import mmap
import os
import pathlib
import threading
import weakref

import numpy as np

from plm_jax import storage
from plm_jax.data import window_counts
from plm_jax.data.records import RecordsError, Shard
from plm_jax.data.shards import Shards
from plm_jax.data.window_rules import WINDOW_START, WindowRule, cumulative_offsets
from plm_jax.errors import UserError
from plm_jax.storage import checksums

logger = logging.getLogger(__name__)


class WindowOffsets:
  """Where the windows of a split begin.

  `shard_offsets` [S + 1] has the number of the first window of each shard, and the total last.
  `clipped_examples` is the number of examples that are too long for a window.

  Raises RecordsError for records that do not fit the rule.
  """

  def __init__(self, shards: Shards, rule: WindowRule):
    self.shards, self.rule = shards, rule
    self.name = f'{shards.split}-{rule}'
    counts = window_counts.load_or_count(shards, [rule])[0]
    self.clipped_examples = counts.clipped
    self.shard_offsets = cumulative_offsets(counts.windows)
    self._known = np.zeros(len(counts.windows), bool)
    self._lock = threading.Lock()  # for all attributes below: the pipeline reads in threads
    self._path: pathlib.Path | None = None
    self._file: int | None = None
    self._open()

  def window_starts(self, number: int) -> np.ndarray:
    """Return where the windows of a shard begin, [W] of `WINDOW_START`. Thread-safe."""
    start, stop = self.shard_offsets[number:number + 2]
    entry = self.shards.entries[number]
    with self._lock:
      if not self._known[number] and self._crcs[number]:
        self._known[number] = is_valid(self._starts[start:stop], self._crcs[number], entry)
        if not self._known[number]:
          logger.warning('%s is damaged: the windows of %s are found again', self._path, entry.name)
      if self._known[number]:
        return self._starts[start:stop]
    starts = self.rule.find_starts(self.shards.sentences(number), entry)
    if len(starts) != stop - start:
      home, cache = self.shards.homes
      raise RecordsError(f'{self.name}.json in {home} or {cache} counts {stop - start} windows in '
                         f'{entry.name}, which has {len(starts)}: delete it, and it is made again.')
    with self._lock:
      if not self._known[number]:
        self._store(number, starts)
        self._known[number] = True
      return self._starts[start:stop]

  def _store(self, number: int, starts: np.ndarray) -> None:
    """Write the window starts of a shard to the file; switch to memory if that fails."""
    start, stop = self.shard_offsets[number:number + 2]
    content = starts.tobytes()
    if self._file is not None:
      try:
        place = len(self._known) * CRC_DTYPE.itemsize + int(start) * WINDOW_START.itemsize
        write_at(self._file, content, place)
        # The checksum is last: it vouches for the content.
        crc = np.array(checksums.crc(content), CRC_DTYPE).tobytes()
        write_at(self._file, crc, number * CRC_DTYPE.itemsize)
      except OSError:  # such as a full disk
        pass
      if np.array_equal(self._starts[start:stop], starts):
        return
      known, before = np.flatnonzero(self._known), self._starts
      self._open(memory=True)
      for other in known:
        own = slice(self.shard_offsets[other], self.shard_offsets[other + 1])
        self._starts[own] = before[own]
    self._starts[start:stop] = starts

  def _open(self, memory: bool = False) -> None:
    """Open the file on a disk that can be written, otherwise memory, which is allocated lazily."""
    size = offsets_file_size(self.shard_offsets)
    self._path = self._file = None
    homes = [] if memory else self.shards.homes[self.shards.remote:]
    for home in homes:
      path = pathlib.Path(home) / f'{self.name}.cuts'
      with contextlib.suppress(OSError, ValueError, UserError):  # ValueError: it is shorter now
        if not path.exists() or path.stat().st_size != size:
          with storage.atomic_writer(path) as file:
            file.truncate(size)
        # Another process that found no file either may replace this one: writes go to the file
        # that is mapped, and not to the one of that name.
        self._file = open_writable(path)
        weakref.finalize(self, os.close, self._file)
        mapping = mmap.mmap(self._file, size, access=mmap.ACCESS_READ)
        content = np.frombuffer(mapping, np.uint8)
        self._path = path
        break
    else:
      content = np.zeros(size, np.uint8)
    self._crcs, self._starts = split_content(content, self.shard_offsets)


def open_writable(path: pathlib.Path) -> int:
  """Open a file for reading and, where allowed, writing -> its file descriptor."""
  try:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
  except OSError:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def write_at(file: int, content: bytes, place: int) -> None:
  """Write all of `content` to the file descriptor at a byte offset. Raises OSError."""
  while content:
    written = os.pwrite(file, content, place)
    content, place = content[written:], place + written


def offsets_file_size(offsets: np.ndarray) -> int:
  """Return the bytes of a file of window starts. offsets [S + 1]: windows before each shard."""
  return (len(offsets) - 1) * CRC_DTYPE.itemsize + int(offsets[-1]) * WINDOW_START.itemsize


def split_content(content: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Split the bytes of a file of window starts -> its checksums [S], its window starts [W]."""
  split = (len(offsets) - 1) * CRC_DTYPE.itemsize
  return content[:split].view(CRC_DTYPE), content[split:].view(WINDOW_START)


def is_valid(window_starts: np.ndarray, crc: int, entry: Shard) -> bool:
  """Return whether these may be the window starts of a shard."""
  if checksums.crc(window_starts.tobytes()) != crc:
    return False
  starts = window_starts['start'].astype(np.int64)
  sentences = window_starts['sentence'].astype(np.int64)
  in_range = (starts[0] == sentences[0] == 0 and starts[-1] < entry.tokens
              and sentences[-1] < entry.sentences)
  return bool(in_range and (np.diff(starts) > 0).all() and (np.diff(sentences) >= 0).all())


CRC_DTYPE = np.dtype('<u4')
