"""Shards of token records, opened on demand and verified by checksum as they are read.

However many shards there are, only a few are open at once (`MAX_OPEN_SHARDS` per process), each
memory-mapped. For records in a bucket, sentences and checksums are copied to the cache when a shard
is first read, and tokens are read by byte range; small splits (`SMALL_BYTES`) are copied
completely.

Everything that is read is verified: each block by its checksum, once while its shard is open. Small
splits are verified completely when they are opened.
"""
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
import functools
import itertools
import os

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import records
from plm_jax.data.records import (
  MAX_HEADER_BYTES,
  SENTENCE_DTYPE,
  RecordsError,
  RecordsMeta,
  Shard,
  Split,
  count_blocks,
  damaged_error,
  npy_size,
  truncated_error,
)
from plm_jax.data.window_rules import cache_key, concat_ranges
from plm_jax.storage import checksums

MAX_OPEN_SHARDS = 20  # at once, with two file descriptors each
# At most, of a split that is verified or copied completely:
SMALL_BYTES, SMALL_SHARDS = 1 << 25, 256
REQUESTS = 32  # to a bucket at once


class Shards:
  """The shards of one split of a folder of records."""

  def __init__(self, folder: epath.Path, meta: RecordsMeta, split: Split):
    self.folder, self.root, self.split = folder, os.fspath(folder), split
    self.vocab, self.dtype = meta.vocab, records.token_dtype(meta.vocab)
    self.entries = meta.shards(split)
    self.remote = storage.is_remote(folder)
    size = sum(self.dtype.itemsize * entry.tokens + 8 * entry.sentences for entry in self.entries)
    self.small = size <= SMALL_BYTES and len(self.entries) <= SMALL_SHARDS
    # For what is known of the windows of these records, and no others:
    self.home = folder / 'windows' / cache_key(meta.digest)
    # The same, and copies of files in a bucket:
    self.cache = storage.cache_folder() / 'windows' / cache_key(meta.digest, self.root)
    self._opening = next(OPENING_NUMBERS)

  def check(self) -> None:
    """Check all shards before the first is used: that files exist; of a small split, everything.

    Raises:
      RecordsError: shards are missing, truncated or damaged.
    """
    # Damage is found before the first step. For a bucket that would take a request per file, so
    # there it is found later.
    if not self.remote:
      for entry in self.entries:
        check_file_size(self.path(entry, ''), self.dtype, entry.tokens)
        check_file_size(self.path(entry, '.sentences'), SENTENCE_DTYPE, entry.sentences)
    if self.small:
      self.fetch(range(len(self.entries)))
      for number, entry in enumerate(self.entries):
        verify_shard(self, number, entry)

  @property
  def homes(self) -> list[epath.Path]:
    """Folders for what is known of windows, the preferred one first."""
    return [self.home, epath.Path(self.cache)]

  def __len__(self) -> int:
    return len(self.entries)

  def path(self, entry: Shard, kind: str) -> str:
    """Return the path of a shard's file. kind: '' tokens, '.sentences', '.crc'."""
    return f'{self.root}/{entry.name}{kind}.npy'

  def copy_path(self, entry: Shard, kind: str) -> str:
    """Return the path of the same file in the cache."""
    return f'{self.cache}/{entry.name}{kind}.npy'

  def fetch(self, numbers: Iterable[int]) -> None:
    """Copy files of these shards from a bucket to the cache, in parallel."""
    if not self.remote:
      return
    missing = []
    for number in numbers:
      entry = self.entries[number]
      blocks = count_blocks(self.dtype, entry.tokens)
      blocks += count_blocks(SENTENCE_DTYPE, entry.sentences)
      files: list[tuple[str, np.dtype, int]] = [
          ('.sentences', SENTENCE_DTYPE, entry.sentences), ('.crc', CRC_DTYPE, blocks)]
      if self.small:
        files.append(('', self.dtype, entry.tokens))
      for kind, dtype, length in files:
        copy = self.copy_path(entry, kind)
        if not has_size(copy, npy_size(dtype, length)):
          missing.append((self.path(entry, kind), copy, dtype, length))

    def fetch(file: tuple[str, str, np.dtype, int]) -> None:
      path, copy, dtype, length = file
      storage.write(copy, self.download(path, dtype, length), RecordsError)

    if missing:
      with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(fetch, missing))

  def download(self, path: str, dtype: np.dtype, length: int) -> bytes:
    """Read a whole file of a shard from a bucket; with one request where there are many files."""
    size = npy_size(dtype, length)
    if self.small:
      content = storage.read_bytes(path, max(size, storage.READ_LIMIT), RecordsError)
    else:
      content = storage.read_range(path, 0, size, RecordsError)
    if len(content) != size:
      raise truncated_error(path, dtype, length, len(content))
    return content

  def open(self, number: int) -> 'OpenShard':
    """Open a shard; for a bucket, copy what is needed to the cache. Raises RecordsError."""
    entry = self.entries[number]
    self.fetch([number])
    path = self.copy_path(entry, '') if self.remote else self.path(entry, '')
    remote = self.path(entry, '') if self.remote and not self.small else ''
    return open_shard(self._opening, path, entry, self.dtype, remote)

  def sentences(self, number: int) -> np.ndarray:
    """Read and verify all sentences of a shard [S]. Use a copy in the cache, but make none."""
    entry = self.entries[number]
    path = self.path(entry, '.sentences')
    copy = self.copy_path(entry, '.sentences')
    if self.remote and not has_size(copy, npy_size(SENTENCE_DTYPE, entry.sentences)):
      content = self.download(path, SENTENCE_DTYPE, entry.sentences)
    else:
      path = copy if self.remote else path
      content = records.read_file(path, SENTENCE_DTYPE, entry.sentences)
    sentences = records.parse_sentences(path, content, entry)
    records.check_sentences(path, entry, sentences)
    return sentences


class OpenShard:
  """An open shard: its files of tokens and of sentences."""

  def __init__(self, tokens: 'ShardFile | RemoteShardFile', sentences: 'ShardFile'):
    self.tokens, self.sentences = tokens, sentences


class ShardFile:
  """A memory-mapped `.npy` file: `data` is the array; call `verify` for the items to be used."""

  def __init__(self, path: str, dtype: np.dtype, length: int, crcs: np.ndarray):
    self.path, self.crcs = path, crcs
    self.content = content = records.map_file(path)
    self.data = records.parse_array(path, content, dtype, length)
    if len(content) != npy_size(dtype, length):
      raise truncated_error(path, dtype, length, len(content))
    self.offset = len(content) - length * dtype.itemsize
    self.verified = np.zeros(-(-len(content) // checksums.BLOCK_BYTES), bool)
    self.verify_blocks(np.array([0]))

  def verify(self, start: np.ndarray, stop: np.ndarray) -> None:
    """Verify the items from start[n] to stop[n]. Raises RecordsError for a damaged file."""
    size = self.data.itemsize
    first = (self.offset + start * size) // checksums.BLOCK_BYTES
    last = (self.offset + stop * size - 1) // checksums.BLOCK_BYTES
    self.verify_blocks(concat_ranges(first, last + 1)[1])

  def verify_blocks(self, numbers: np.ndarray) -> None:
    """Compare the blocks of these numbers with their checksums, each once. Raises RecordsError."""
    numbers = np.unique(numbers[~self.verified[numbers]])
    if len(numbers):
      crcs = checksums.block_checksums(memoryview(self.content), numbers.tolist())
      if not np.array_equal(crcs, self.crcs[numbers]):
        raise damaged_error(self.path)
      self.verified[numbers] = True

  def verify_all(self) -> None:
    """Compare all blocks not yet verified with their checksums. Raises RecordsError."""
    self.verify_blocks(np.arange(len(self.verified)))


class RemoteShardFile:
  """Tokens of a shard in a bucket, read and verified by blocks."""

  def __init__(self, path: str, dtype: np.dtype, length: int, crcs: np.ndarray):
    self.path, self.dtype, self.crcs = path, dtype, crcs
    self.offset = len(records.npy_header(dtype, length))
    self.size = self.offset + length * dtype.itemsize

  def read(self, start: int, stop: int) -> np.ndarray:
    """Read the items from start to stop with one request. Raises RecordsError for damage."""
    begin = self.offset + start * self.dtype.itemsize
    end = self.offset + stop * self.dtype.itemsize
    block = checksums.BLOCK_BYTES
    first, last = begin // block, -(-end // block)
    last_byte = min(last * block, self.size)
    content = storage.read_range(self.path, first * block, last_byte, RecordsError)
    if not np.array_equal(checksums.block_checksums(content), self.crcs[first:last]):
      raise damaged_error(self.path)
    return np.frombuffer(content, self.dtype, stop - start, begin - first * block)


@functools.lru_cache(MAX_OPEN_SHARDS)
def open_shard(opening: int, path: str, entry: Shard, dtype: np.dtype, remote: str) -> OpenShard:
  """Open a shard.

  Args:
    opening: number of this opening of the records; other openings may have seen other files.
    path: of the file of tokens on a disk.
    entry: the shard in records.json.
    dtype: of a token.
    remote: path of the tokens if they are only in a bucket; otherwise ''.
  """
  stem = path.removesuffix('.npy')
  split = count_blocks(dtype, entry.tokens)
  length = split + count_blocks(SENTENCE_DTYPE, entry.sentences)
  content = records.read_file(f'{stem}.crc.npy', CRC_DTYPE, length)
  if checksums.crc(content) != entry.blocks_crc:
    raise damaged_error(f'{stem}.crc.npy')
  crcs = records.parse_array(f'{stem}.crc.npy', content, CRC_DTYPE, length)
  sentences = ShardFile(f'{stem}.sentences.npy', SENTENCE_DTYPE, entry.sentences, crcs[split:])
  if remote:
    return OpenShard(RemoteShardFile(remote, dtype, entry.tokens, crcs[:split]), sentences)
  return OpenShard(ShardFile(path, dtype, entry.tokens, crcs[:split]), sentences)


def check_file_size(path: str, dtype: np.dtype, length: int) -> None:
  """Raise RecordsError unless a file exists and has the size of `length` items."""
  with records.shard_errors(path):
    size = os.stat(path).st_size
  # Other versions of numpy may pad the header, always to a multiple of 16.
  offset = size - length * dtype.itemsize
  if not 64 <= offset <= MAX_HEADER_BYTES or offset % 16:
    raise truncated_error(path, dtype, length, size)


def verify_shard(shards: Shards, number: int, entry: Shard) -> None:
  """Verify everything in a shard. Raises RecordsError."""
  shard = shards.open(number)
  shard.sentences.verify_all()
  if isinstance(shard.tokens, ShardFile):
    shard.tokens.verify_all()
    tokens = shard.tokens.data
  else:
    tokens = shard.tokens.read(0, entry.tokens)
  records.check_sentences(shard.sentences.path, entry, shard.sentences.data)
  if entry.tokens and (largest := int(tokens['token'].max())) >= shards.vocab:
    raise records.foreign_id_error(shards.path(entry, ''), largest, shards.vocab)


def has_size(path: str, size: int) -> bool:
  """Return whether a file exists and has so many bytes."""
  try:
    return os.stat(path).st_size == size
  except OSError:
    return False


CRC_DTYPE = np.dtype('<u4')
OPENING_NUMBERS = itertools.count()
