"""The shards of records, opened when they are asked for and verified as they are read.

However many shards there are, a few are open at once (`OPEN`, in all of a process), each mapped to memory. Of records
in a bucket, sentences and checksums are copied to the cache when a shard is first asked for, and tokens are read by
byte range; where there is little text (`SMALL`), all is copied.

What is read is verified: by the checksums of the blocks that it lies in, once while its shard is open. Where there is
little text, all of it is verified at opening. Records of format 1, which have no checksums, have sizes and sentences
that fit together.
"""
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
import functools
import itertools
import os

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import checksums, records
from plm_jax.data.cutting import key, ranges
from plm_jax.data.records import HEADER, Meta, RecordsError, Shard, Split, blocks, damaged, file_size, truncated

OPEN = 20  # shards that are open at once, of two descriptors each
SMALL, FEW = 1 << 25, 256  # bytes and shards of a split that is verified, or copied from a bucket, as a whole
REQUESTS = 32  # that are asked of a bucket at once


class Shards:
  """One split of a folder of records. Raises RecordsError for shards that are missing, truncated or damaged."""

  def __init__(self, folder: epath.Path, meta: Meta, split: Split):
    self.folder, self.root, self.split = folder, os.fspath(folder), split
    self.vocab, self.dtype = meta.vocab, records.token_dtype(meta.vocab)
    self.entries = meta.shards(split)
    self.remote = storage.remote(folder)
    size = sum(self.dtype.itemsize * entry.tokens + 8 * entry.sentences for entry in self.entries)
    self.small = size <= SMALL and len(self.entries) <= FEW
    self.home = folder / 'windows' / key(meta.digest)  # of what is known of the windows of these records, and no others
    self.cache = storage.cache_folder() / 'windows' / key(meta.digest, self.root)  # and of copies from a bucket
    self._opening = next(OPENINGS)
    self._sound = [False] * len(self.entries)

  def check(self) -> None:
    """Checks what can be said of all shards before the first is used: that their files are there, and, of little text,
    all."""
    # Damage is found before the first step. A bucket would have to be asked for every file, so there it is found later.
    if not self.remote:
      for entry in self.entries:
        check_size(self.path(entry, ''), self.dtype, entry.tokens)
        check_size(self.path(entry, '.sentences'), records.SENTENCE, entry.sentences)
    if self.small:
      self.fetch(range(len(self.entries)))
      for number, entry in enumerate(self.entries):
        verify_whole(self, number, entry)

  @property
  def homes(self) -> list[epath.Path]:
    """Folders for what is known of windows, the better one first."""
    return [self.home, epath.Path(self.cache)]

  def __len__(self) -> int:
    return len(self.entries)

  def path(self, entry: Shard, kind: str) -> str:
    """Returns the path of a shard's file. kind: '' tokens, '.sentences', '.crc'."""
    return f'{self.root}/{entry.name}{kind}.npy'

  def copy(self, entry: Shard, kind: str) -> str:
    """Returns the path of the same file in the cache."""
    return f'{self.cache}/{entry.name}{kind}.npy'

  def fetch(self, numbers: Iterable[int]) -> None:
    """Copies what these shards have in a bucket to the cache, all at once."""
    if not self.remote:
      return
    wanted = []
    for number in numbers:
      entry = self.entries[number]
      kinds: list[tuple[str, np.dtype, int]] = [('.sentences', records.SENTENCE, entry.sentences)]
      if entry.blocks_crc is not None:
        kinds.append(('.crc', CRC, blocks(self.dtype, entry.tokens) + blocks(records.SENTENCE, entry.sentences)))
      if self.small:
        kinds.append(('', self.dtype, entry.tokens))
      wanted += [(self.path(entry, kind), self.copy(entry, kind), dtype, length) for kind, dtype, length in kinds
                 if not has_size(self.copy(entry, kind), file_size(dtype, length))]
    def fetch(path, copy, dtype, length):
      storage.write(copy, self.download(path, dtype, length), RecordsError)
    if wanted:
      with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(lambda one: fetch(*one), wanted))

  def download(self, path: str, dtype: np.dtype, length: int) -> bytes:
    """Reads a file of a shard in a bucket, whole; in one request where there are many."""
    size = file_size(dtype, length)
    if self.small:
      content = storage.read_bytes(path, max(size, storage.LIMIT), RecordsError)
    else:
      content = storage.read_range(path, 0, size, RecordsError)
    if len(content) != size:
      raise truncated(path, dtype, length, len(content))
    return content

  def open(self, number: int) -> 'Opened':
    """Opens a shard, from a bucket with a copy of what is needed in the cache. Raises RecordsError."""
    entry = self.entries[number]
    self.fetch([number])
    path = self.copy(entry, '') if self.remote else self.path(entry, '')
    remote = self.path(entry, '') if self.remote and not self.small else ''
    opened = open_shard(self._opening, path, entry, self.dtype, remote)
    if entry.blocks_crc is None and not self._sound[number]:
      records.check(self.path(entry, '.sentences'), entry, opened.sentences.data)
      self._sound[number] = True
    return opened

  def sentences(self, number: int) -> np.ndarray:
    """Reads all sentences of a shard, verified [S]. A copy in the cache is used, but none is made."""
    entry = self.entries[number]
    path = self.path(entry, '.sentences')
    copy = self.copy(entry, '.sentences')
    if self.remote and not has_size(copy, file_size(records.SENTENCE, entry.sentences)):
      content = self.download(path, records.SENTENCE, entry.sentences)
    else:
      path = copy if self.remote else path
      content = records.read_file(path, records.SENTENCE, entry.sentences)
    if entry.sentences_crc not in (None, checksums.crc(content)):
      raise damaged(path)
    sentences = records.array_of(path, content, records.SENTENCE, entry.sentences)
    records.check(path, entry, sentences)
    return sentences


class Opened:
  """A shard: two files, and their checksums."""

  def __init__(self, tokens: 'File | RemoteFile', sentences: 'File'):
    self.tokens, self.sentences = tokens, sentences


class File:
  """A `.npy` file in memory or mapped to it: `data`, the array; of which `verify` says what is to be used."""

  def __init__(self, path: str, dtype: np.dtype, length: int, crcs: np.ndarray | None):
    self.path, self.crcs = path, crcs
    self.content = content = records.mapped(path)
    self.data = records.array_of(path, content, dtype, length)
    if crcs is not None and len(content) != file_size(dtype, length):
      raise truncated(path, dtype, length, len(content))
    self.offset = len(content) - length * dtype.itemsize
    self.done = np.full(-(-len(content) // checksums.BLOCK), crcs is None)
    self.verify_blocks(np.array([0]))

  def verify(self, start: np.ndarray, stop: np.ndarray) -> None:
    """Items start[n] .. stop[n]. Raises RecordsError where the file is not what was written."""
    size = self.data.itemsize
    first, last = (self.offset + start * size) // checksums.BLOCK, (self.offset + stop * size - 1) // checksums.BLOCK
    self.verify_blocks(ranges(first, last + 1)[1])

  def verify_blocks(self, numbers: np.ndarray) -> None:
    """Compares the blocks of these numbers with their checksums, each once. Raises RecordsError."""
    todo = np.unique(numbers[~self.done[numbers]])
    if len(todo):
      assert self.crcs is not None
      if not np.array_equal(checksums.of_blocks(memoryview(self.content), todo.tolist()), self.crcs[todo]):
        raise damaged(self.path)
      self.done[todo] = True

  def verify_all(self) -> None:
    """Compares all blocks that were not yet with their checksums. Raises RecordsError."""
    self.verify_blocks(np.arange(len(self.done)))


class RemoteFile:
  """Tokens of a shard in a bucket, read and verified by blocks."""

  def __init__(self, path: str, dtype: np.dtype, length: int, crcs: np.ndarray | None):
    self.path, self.dtype, self.crcs = path, dtype, crcs
    self.offset = len(records.header(dtype, length))
    self.size = self.offset + length * dtype.itemsize

  def read(self, start: int, stop: int) -> np.ndarray:
    """Items start .. stop: one request. Raises RecordsError where they are not what was written."""
    begin, end = (self.offset + place * self.dtype.itemsize for place in (start, stop))
    block = checksums.BLOCK
    if self.crcs is None:
      return np.frombuffer(storage.read_range(self.path, begin, end, RecordsError), self.dtype)
    first, last = begin // block, -(-end // block)
    content = storage.read_range(self.path, first * block, min(last * block, self.size), RecordsError)
    if not np.array_equal(checksums.of_blocks(content), self.crcs[first:last]):
      raise damaged(self.path)
    return np.frombuffer(content, self.dtype, stop - start, begin - first * block)


@functools.lru_cache(OPEN)
def open_shard(opening: int, path: str, entry: Shard, dtype: np.dtype, remote: str) -> Opened:
  """Opens a shard. opening: of records, a number of its own: what another has seen may be other files. path: of the
  file of tokens, on a disk; remote: in a bucket, if they are there alone."""
  stem = path.removesuffix('.npy')
  crcs_of_tokens = crcs_of_sentences = None
  if entry.blocks_crc is not None:
    split = blocks(dtype, entry.tokens)
    length = split + blocks(records.SENTENCE, entry.sentences)
    content = records.read_file(f'{stem}.crc.npy', CRC, length)
    if checksums.crc(content) != entry.blocks_crc:
      raise damaged(f'{stem}.crc.npy')
    crcs = records.array_of(f'{stem}.crc.npy', content, CRC, length)
    crcs_of_tokens, crcs_of_sentences = crcs[:split], crcs[split:]
  sentences = File(f'{stem}.sentences.npy', records.SENTENCE, entry.sentences, crcs_of_sentences)
  if remote:
    return Opened(RemoteFile(remote, dtype, entry.tokens, crcs_of_tokens), sentences)
  return Opened(File(path, dtype, entry.tokens, crcs_of_tokens), sentences)


def check_size(path: str, dtype: np.dtype, length: int) -> None:
  """Raises RecordsError unless a file of `length` items is there and has their size."""
  with records.missing(path):
    size = os.stat(path).st_size
  # Other versions of numpy may fill up what stands in front, always to a multiple of 16.
  offset = size - length * dtype.itemsize
  if not 64 <= offset <= HEADER or offset % 16:
    raise truncated(path, dtype, length, size)


def verify_whole(shards: Shards, number: int, entry: Shard) -> None:
  """Verifies everything that can be said of a shard. Raises RecordsError."""
  opened = shards.open(number)
  opened.sentences.verify_all()
  if isinstance(opened.tokens, File):
    opened.tokens.verify_all()
    tokens = opened.tokens.data
  else:
    tokens = opened.tokens.read(0, entry.tokens)
  records.check(opened.sentences.path, entry, opened.sentences.data)
  if entry.tokens and (largest := int(tokens['token'].max())) >= shards.vocab:
    raise records.foreign_id(shards.path(entry, ''), largest, shards.vocab)


def has_size(path: str, size: int) -> bool:
  """Tells whether a file is there and has so many bytes."""
  try:
    return os.stat(path).st_size == size
  except OSError:
    return False


CRC = np.dtype('<u4')
OPENINGS = itertools.count()
