"""Journals, from which interrupted work resumes: what is not in the journal does not count.

The journal of a folder (`write_journal`) is one JSON file, on a disk or in a bucket. It is replaced
after each finished part of the work. It has a format number, the fingerprint of what is worked on
(`source`), and a checksum of its fields.

The journal of a growing file (`PartialFile`) is for many small chunks of one local file. The data
of each chunk are appended to `OUTPUT.part`, then a line to the journal `OUTPUT.part.jsonl`:

    {"format": 1, "work": {"model": "5e1f...", "input": "0a9c...", ...}, "crc32": "..."}
    {"rows": 1024, "bytes": 181202, "data": 2774172107, "record": null, "crc32": "..."}
    {"rows": 2048, "bytes": 361877, "data": 3632233996, "record": null, "crc32": "..."}

The first line identifies the work by digests. The other lines hold the number of complete rows and
bytes so far, the CRC-32 of the chunk's data, and a record of the chunk that is needed at the end,
such as the predictions that metrics are computed from. Each line ends with its own CRC-32. The same
work resumes after the last complete and undamaged chunk: it truncates the data to the bytes of the
journal, reads the rows of complete chunks, and skips them. Other work starts from scratch. At the
end, `OUTPUT.part` gets its final name, and the journal is deleted.
"""
from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import importlib
import os
import stat
import sys
from typing import IO, Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import SAVED, ConfigError, UserError
from plm_jax.storage import checksums
from plm_jax.storage.digests import digest_json
from plm_jax.storage.lock import LockError, lock_file

FILE_NAME = 'journal.json'
PART_FORMAT = 1
"""format number of the journals of growing files"""
PART_SUFFIX, JOURNAL_SUFFIX = '.part', '.part.jsonl'


def write_journal(
    folder: epath.PathLike, format_number: int, fields: Mapping[str, Any],
    error: type[UserError] = storage.StorageError) -> None:
  """Write the journal of a folder atomically.

  Args:
    folder: that of the work.
    format_number: number to raise when the fields, or the rules of the work, change.
    fields: progress of the work, as JSON.
    error: class of the error that is raised where it cannot be written.
  """
  content = {'format': format_number, **fields}
  storage.write_json(
      storage.resolve_path(folder) / FILE_NAME, {**content, 'check': digest_json(content)}, error)
  SAVED.append(os.fspath(folder))


def read_journal(
    folder: epath.PathLike, format_number: int, error: type[UserError] = storage.StorageError
) -> dict[str, Any] | str | None:
  """Read the journal of a folder.

  Args:
    folder: that of the work.
    format_number: number that the journal must have.
    error: class of the error that is raised where it cannot be read.

  Returns:
    The fields; None if there is no journal; or a text that says why it cannot be used.
  """
  path = storage.resolve_path(folder) / FILE_NAME
  with storage.io_errors_as(path, 'read', error):
    if not path.exists():
      return None
  content = storage.read_bytes(path, error=error)
  try:
    fields = storage.parse_json(content.decode(errors='replace'), path, dict, error)
  except error:
    return f'{path} is damaged'
  check = fields.pop('check', None)
  if check != digest_json(fields) or fields.pop('format') != format_number:
    return f'{path} is damaged or of another version'
  return fields


# Journals of growing files.


class Chunk(NamedTuple):
  """A line of the journal: a chunk whose results are complete."""

  rows: int
  """number of complete rows, including earlier chunks"""
  bytes: int
  """size of the data at the end of the chunk"""
  data: int
  """CRC-32 of the chunk's data"""
  record: Any
  """JSON values that the command has stored with the chunk"""


class ChunkOutput:
  """Output that cannot be resumed: standard output, a bucket, or results of standard input."""

  rows = 0
  """number of rows whose results are complete from the beginning"""

  def __init__(self, writer: Callable[[Any], Any]):
    self.writer = writer

  def skip_chunk(self, rows: int) -> Chunk | None:
    """Return the complete chunk for the next `rows` rows of the input; None: compute it."""
    del rows

  def write(self, content: Any) -> None:
    """Write results of the next chunk."""
    self.writer(content)

  def finish_chunk(self, rows: int, record: Any = None) -> None:
    """Mark the results of `rows` more rows as complete, with a record for the journal."""
    del rows, record

  def first_line(self) -> str:
    """Return the first line of the results, without its end."""
    return ''


class PartialFile(ChunkOutput):
  """The data and the journal of a file that is not complete; holds a lock on the journal."""

  def __init__(self, output: str, work: Mapping[str, str], unit: str = 'rows'):
    """Open the files, and resume after the last complete chunk of the same work.

    Args:
      output: local path of the complete file.
      work: identifies the work; files of other work are overwritten.
      unit: plural noun for the rows in messages.

    Raises:
      LockError: another process writes the same file.
      StorageError: the files cannot be written.
    """
    target = storage.write_target(storage.resolve_path(output))
    assert target is not None, f'{output} is no file'
    self.output, self.target, self.unit = output, target, unit
    self.path = target.with_name(target.name + PART_SUFFIX)
    self.journal_path = target.with_name(target.name + JOURNAL_SUFFIX)
    self.name = str(self.path) if os.path.islink(output) else f'{output}{PART_SUFFIX}'
    self.rows = self.size = self.num_chunks = self.skipped = self.chunk_crc = 0
    self.complete = self.chunks()
    self.is_journaled = True
    with storage.io_errors_as(self.path, 'written'):
      target.parent.mkdir(parents=True, exist_ok=True)
      self.journal = self.open_journal()
      self.data = open(self.path, 'a+b')  # noqa: SIM115  closed by `close`
      with contextlib.suppress(OSError):  # a new file, or a disk without permissions
        mode = stat.S_IMODE(target.stat().st_mode)  # results for a private file are private
        for path in (self.path, self.journal_path):
          path.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)
      self.resume(work)

  def open_journal(self) -> IO[bytes]:
    """Open the journal and lock it. Raises LockError if another process has done so."""
    while True:
      file = open(self.journal_path, 'a+b')  # noqa: SIM115  closed by `close`
      if not lock_file(file):
        file.close()
        raise LockError(f'{self.output} is being written by another process')
      # The other process may have deleted the journal between opening and locking it.
      with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), os.stat(self.journal_path)):
          return file
      file.close()

  def resume(self, work: Mapping[str, str]) -> None:
    """Read the journal, and remove what is incomplete; or start from scratch."""
    size = os.fstat(self.data.fileno()).st_size
    self.journal.seek(0)
    head = parse_line(self.journal.readline())
    if head and head.get('format') == PART_FORMAT and head.get('work') == work:
      end, is_damaged = self.journal.tell(), False
      while (line := self.journal.readline()).endswith(b'\n'):
        chunk = parse_chunk(line)
        if not chunk or chunk.bytes > size or self.read_crc(chunk) != chunk.data:
          is_damaged = True
          break
        self.rows, self.size = chunk.rows, chunk.bytes
        self.num_chunks += 1
        end = self.journal.tell()
      self.journal.truncate(end)
      self.data.truncate(self.size)
      if is_damaged:
        print(f'{self.name} or its journal is damaged after {self.rows:,} {self.unit}: what '
              'follows is computed again', file=sys.stderr)
      if self.num_chunks:
        print(f'resuming after {self.rows:,} {self.unit}', file=sys.stderr)
      return
    if size:
      before, changed = (head or {}).get('work'), []
      if isinstance(before, dict):
        changed = [name for name in work if before.get(name) != work[name]]
      other = f'was made with another {" and another ".join(changed)}'
      reason = other if changed else 'has no journal that can be read'
      print(f'{self.name} {reason}: starting again', file=sys.stderr)
    self.data.truncate(0)
    self.journal.truncate(0)
    self.append_line({'format': PART_FORMAT, 'work': dict(work)})

  def read_crc(self, chunk: Chunk) -> int:
    """Compute the CRC-32 of the data of the chunk after `size`."""
    self.data.seek(self.size)
    return checksums.crc(self.data.read(chunk.bytes - self.size))

  def append_line(self, value: dict[str, Any]) -> None:
    """Append a line to the journal."""
    self.journal.write(checksums.seal_json(value, one_line=True).encode())
    self.journal.flush()

  def write(self, content):
    if isinstance(content, str):
      content = content.encode()
    with storage.io_errors_as(self.path, 'written'):
      self.data.write(content)
    self.size += len(content)
    self.chunk_crc = checksums.crc(content, start=self.chunk_crc)

  def finish_chunk(self, rows, record=None):
    try:
      record = encode_record(record)
    except TypeError:  # a class of the user's own task: resuming would lose its metrics
      self.is_journaled = False
    if not self.is_journaled:
      return
    with storage.io_errors_as(self.path, 'written'):
      self.data.flush()
      os.fsync(self.data.fileno())
      self.append_line({'rows': self.rows + rows, 'bytes': self.size, 'data': self.chunk_crc,
                        'record': record})
    self.chunk_crc = 0
    self.rows += rows
    self.num_chunks += 1

  def skip_chunk(self, rows):
    """Return the next complete chunk. Raises ConfigError if it has another number of rows."""
    chunk = next(self.complete, None)
    if chunk is not None:
      self.skipped += rows
      if chunk.rows != self.skipped:
        raise self.damage_error()
    return chunk

  def chunks(self) -> Iterator[Chunk]:
    """Yield the complete chunks, with their records."""
    number = self.num_chunks
    with storage.io_errors_as(self.journal_path, 'read'), open(self.journal_path, 'rb') as file:
      file.readline()
      for _ in range(number):
        chunk = parse_chunk(file.readline())
        if chunk is None:
          raise self.damage_error()
        try:
          yield chunk._replace(record=decode_record(chunk.record))
        except (ValueError, TypeError, LookupError, AttributeError, ImportError) as error:
          raise self.damage_error() from error

  def damage_error(self) -> ConfigError:
    """Return the error about a journal that does not fit the input or the data."""
    return ConfigError(f'{self.journal_path} is damaged: delete it to start again')

  def first_line(self):
    self.data.seek(0)
    return self.data.readline().decode().removesuffix('\n')

  def publish(self) -> None:
    """Give the complete data its final name, and delete the journal."""
    with storage.io_errors_as(self.target, 'written'):
      self.data.flush()
      os.fsync(self.data.fileno())
      with contextlib.suppress(OSError):
        self.path.chmod(stat.S_IMODE(self.target.stat().st_mode))
      os.replace(self.path, self.target)
      self.journal_path.unlink()

  def remove(self) -> None:
    """Delete data and journal."""
    with contextlib.suppress(OSError):
      self.path.unlink(missing_ok=True)
      self.journal_path.unlink(missing_ok=True)

  def close(self) -> None:
    """Close the files. Incomplete results that do not fit on a full disk are lost."""
    for file in (self.data, self.journal):
      with contextlib.suppress(OSError):
        file.close()


def parse_line(line: bytes) -> dict[str, Any] | None:
  """Parse a line of a journal; None for an incomplete or damaged one."""
  if not line.endswith(b'\n'):
    return None
  try:
    return checksums.unseal_json(line.decode(), 'the journal', ConfigError)
  except (ConfigError, UnicodeDecodeError):
    return None


def parse_chunk(line: bytes) -> Chunk | None:
  """Parse the line of a chunk; None for an incomplete or damaged one."""
  found = parse_line(line)
  if found is None:
    return None
  return Chunk(found['rows'], found['bytes'], found['data'], found['record'])


# Records of chunks as JSON.


def encode_record(value: Any) -> Any:
  """Convert a value to JSON values from which `decode_record` restores an equal one.

  It takes numbers, texts, lists, tuples, dicts, arrays, and named tuples and dataclasses of this
  project. Raises TypeError for anything else.
  """
  if value is None or type(value) in (bool, int, float, str):
    return value
  if type(value) is list:
    return [encode_record(item) for item in value]
  if type(value) is dict:
    return {'is': 'dict', 'values': encode_record([list(item) for item in value.items()])}
  if type(value) is tuple:
    return {'is': 'tuple', 'values': encode_record(list(value))}
  if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in 'biuf':
    kind = 'array' if isinstance(value, np.ndarray) else 'scalar'
    content = base64.b64encode(value.tobytes()).decode()
    return {'is': kind, 'values': [value.dtype.str, list(value.shape), content]}
  kind = type(value)
  name = f'{kind.__module__}:{kind.__qualname__}'
  if not name.startswith('plm_jax.'):
    raise TypeError(f'{name} cannot be stored')
  if isinstance(value, tuple):
    return {'is': name, 'values': encode_record(list(value))}
  if dataclasses.is_dataclass(value):
    fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return {'is': name, 'values': encode_record(fields)}
  raise TypeError(f'{name} cannot be stored')


def decode_record(value: Any) -> Any:
  """Restore a value that `encode_record` has converted; raise an error for anything else."""
  if isinstance(value, list):
    return [decode_record(item) for item in value]
  if not isinstance(value, dict):
    return value
  name, values = value['is'], decode_record(value['values'])
  if name == 'dict':
    return dict(values)
  if name == 'tuple':
    return tuple(values)
  if name in ('array', 'scalar'):
    dtype, shape, content = values
    array = np.frombuffer(base64.b64decode(content), dtype).reshape(shape)
    return array if name == 'array' else array[()]
  module, _, class_name = name.partition(':')
  if not module.startswith('plm_jax.'):
    raise ValueError(f'{name} is no class of plm_jax')
  kind = getattr(importlib.import_module(module), class_name)
  is_named_tuple = issubclass(kind, tuple) and hasattr(kind, '_fields')
  if not is_named_tuple and not dataclasses.is_dataclass(kind):
    raise ValueError(f'{name} is no named tuple and no dataclass')
  return kind(*values)
