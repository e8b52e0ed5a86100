"""Checksums of the files of a folder, in a file next to them: they detect corrupted files.

CRC32C, which Google's buckets keep of every object: there a listing has it, and nothing is
downloaded.
"""
import base64
from collections.abc import Iterator, Mapping
import concurrent.futures
import json
import os
import pathlib
from typing import Any

from etils import epath
import google_crc32c

from plm_jax import storage
from plm_jax.errors import UserError
from plm_jax.storage import gcs

FILE_NAME = 'sums.json'
ORBAX_STEP_FILE = '_CHECKPOINT_METADATA'
"""Orbax writes this file once more when it names a checkpoint's folder: all but the time counts."""
ORBAX_TIME_FIELD = 'commit_timestamp_nsecs'
ORBAX_COMMIT_FILE = 'commit_success.txt'
"""Orbax writes this file last, when it names a checkpoint's folder in a bucket."""
READ_BYTES = 1 << 20
"""Bytes that are read at once: more would not stay in the processor's cache until they are
summed."""
THREADS = 8
Listing = dict[str, tuple[int, str] | None]
"""Name below the folder -> (bytes, checksum); None: not known yet."""


class ChecksumError(UserError):
  """A file that is not what was written, or is missing."""


def write(folder: epath.PathLike) -> None:
  """Write the checksums of all files into the folder. Raises StorageError."""
  folder = storage.resolve_path(folder)
  found = compute_checksums(folder, list_checksums(folder))
  files = {name: [size, checksum] for name, (size, checksum) in sorted(found.items())}
  content = {'kind': 'crc32c', 'files': files, 'sum': combine_checksums(files)}
  storage.write_json(folder / FILE_NAME, content)


def check(folder: epath.PathLike, part: int = 0, parts: int = 1) -> None:
  """Check the files of a folder against its checksums.

  Args:
    folder: the folder.
    part: number of this process.
    parts: number of processes, each of which checks its share.

  Raises:
    ChecksumError: a file, which it names, is not what was written.
    StorageError: a file cannot be read.
  """
  # The file of checksums.
  folder = storage.resolve_path(folder)
  path = folder / FILE_NAME
  with storage.io_errors_as(folder, 'read'):
    if not path.exists():
      raise ChecksumError(f'{path} is missing')
  text = storage.read_bytes(path)
  try:
    content = storage.parse_json(text.decode(), path, error=ChecksumError)
    files = content['files']
    known = {name: (int(size), str(checksum)) for name, (size, checksum) in files.items()}
    whole = content['kind'] == 'crc32c' and content['sum'] == combine_checksums(files)
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise ChecksumError(f'{path} is damaged: it is not a list of checksums') from error
  if not whole:
    raise ChecksumError(f'{path} is damaged: its checksum is another')

  # The files.
  there = list_checksums(folder)
  if lost := sorted(set(known) - set(there)):
    raise ChecksumError(f'{folder / lost[0]} is missing')
  if strange := sorted(set(there) - set(known)):
    raise ChecksumError(f'{folder / strange[0]} was not written with the others')
  own = {name: there[name] for name in sorted(known)[part::parts]}
  for name, (size, checksum) in compute_checksums(folder, own).items():
    known_size, known_checksum = known[name]
    if size != known_size:
      raise ChecksumError(f'{folder / name} has {size:,} bytes, {known_size:,} were written')
    if checksum != known_checksum:
      raise ChecksumError(f'{folder / name} is damaged: its checksum is {checksum}, '
                          f'{known_checksum} was written')


def combine_checksums(files: Mapping[str, Any]) -> str:
  """Compute the checksum of the checksums themselves, CRC32C in hexadecimal."""
  return f'{google_crc32c.value(json.dumps(files, sort_keys=True).encode()):08x}'


def list_checksums(folder: epath.Path) -> Listing:
  """List the files below a folder that have checksums, with those known without reading."""
  with storage.io_errors_as(folder, 'read'):
    if storage.is_remote(folder):
      found: Listing = list_bucket(folder)
    else:
      found = dict.fromkeys(file_names(folder))
  listing: Listing = {}
  for name, known in found.items():
    is_draft = name.endswith(storage.DRAFT_SUFFIX)
    if name not in (FILE_NAME, ORBAX_COMMIT_FILE) and not is_draft:
      listing[name] = known
  return listing


def compute_checksums(folder: epath.Path, files: Listing) -> dict[str, tuple[int, str]]:
  """Compute name -> (bytes, checksum); files that are not known are read, several at once."""
  def compute(name):
    return (name != ORBAX_STEP_FILE and files[name]) or file_checksum(folder / name)
  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    return dict(zip(files, pool.map(compute, files), strict=True))


def file_checksum(path: epath.Path) -> tuple[int, str]:
  """Compute (bytes, CRC32C in hexadecimal) of a file; of Orbax's step file without the time."""
  if path.name == ORBAX_STEP_FILE:
    value = storage.read_json(path, error=ChecksumError)
    if not isinstance(value.pop(ORBAX_TIME_FIELD, None), int | None):
      raise ChecksumError(f'{path} is damaged: {ORBAX_TIME_FIELD} is no number')
    content = json.dumps(value, sort_keys=True).encode()
    return len(content), f'{google_crc32c.value(content):08x}'
  size, checksum = 0, 0
  with storage.io_errors_as(path, 'read'), storage.open_stream(path) as file:
    while part := file.read(READ_BYTES):
      size, checksum = size + len(part), google_crc32c.extend(checksum, part)
  return size, f'{checksum:08x}'


def file_names(folder: epath.Path) -> Iterator[str]:
  """Yield the names of all files below a folder of a disk, with / between."""
  root = pathlib.Path(folder)
  for place, _, files in os.walk(root):
    for name in files:
      yield pathlib.Path(place, name).relative_to(root).as_posix()


def list_bucket(folder: epath.Path) -> Listing:
  """List name -> (bytes, checksum) of every object below a folder of a bucket."""
  bucket, prefix = gcs.split_url(f'{os.fspath(folder).rstrip("/")}/')
  objects = gcs.google_client().list_blobs(
      bucket, prefix=prefix, fields='items(name,size,crc32c),nextPageToken',
      retry=gcs.google_retry(120))
  listing: Listing = {}
  for blob in objects:
    if blob.name.endswith('/'):
      continue
    known = (int(blob.size), base64.b64decode(blob.crc32c).hex()) if blob.crc32c else None
    listing[blob.name.removeprefix(prefix)] = known
  return listing
