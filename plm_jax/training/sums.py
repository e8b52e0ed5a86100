"""Checksums of the files of a folder, in a file beside them: whether what is read is what was written.

CRC32C, which Google's buckets keep of every object: there a listing tells it, and nothing travels.
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
from plm_jax.errors import Expected
from plm_jax.storage import gcs

NAME = 'sums.json'
# Orbax writes these once more, or at last, when it names a checkpoint's folder: of the first all but the moment counts.
STEP, MOMENT, COMMITTED = '_CHECKPOINT_METADATA', 'commit_timestamp_nsecs', 'commit_success.txt'
READ = 1 << 20  # bytes that are read at once: more would not stay in the processor's cache until they are summed
THREADS = 8
Listing = dict[str, tuple[int, str] | None]  # name below the folder -> (bytes, sum), None: not known yet


class DamageError(Expected):
  """A file that is not what was written, or is missing."""


def write(folder: epath.PathLike) -> None:
  """Puts the sums of all files into the folder. Raises StorageError."""
  folder = storage.path_of(folder)
  found = sums_of(folder, listed(folder))
  files = {name: [size, sum_of] for name, (size, sum_of) in sorted(found.items())}
  storage.write_json(folder / NAME, {'kind': 'crc32c', 'files': files, 'sum': sum_of_all(files)})


def check(folder: epath.PathLike, part: int = 0, parts: int = 1) -> bool:
  """Tells whether the folder has sums: all files are those that were written then. Raises DamageError that names one
  which is not, StorageError for one that cannot be read. Of `parts` processes each looks at its share."""
  folder = storage.path_of(folder)
  with storage.explained(folder, 'read'):
    if not (folder / NAME).exists():
      return False
  text = storage.read_bytes(folder / NAME)
  try:
    told = storage.parse_json(text.decode(), folder / NAME, error=DamageError)
    known = {name: (int(size), str(sum_of)) for name, (size, sum_of) in told['files'].items()}
    whole = told['kind'] == 'crc32c' and told['sum'] == sum_of_all(told['files'])
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise DamageError(f'{folder / NAME} is damaged: it is not a list of checksums') from error
  if not whole:
    raise DamageError(f'{folder / NAME} is damaged: its checksum is another')
  there = listed(folder)
  if lost := sorted(set(known) - set(there)):
    raise DamageError(f'{folder / lost[0]} is missing')
  if strange := sorted(set(there) - set(known)):
    raise DamageError(f'{folder / strange[0]} was not written with the others')
  found = sums_of(folder, {name: there[name] for name in sorted(known)[part::parts]})
  for name in found:
    size, sum_of = known[name]
    if found[name][0] != size:
      raise DamageError(f'{folder / name} has {found[name][0]:,} bytes, {size:,} were written')
    if found[name][1] != sum_of:
      raise DamageError(f'{folder / name} is damaged: its checksum is {found[name][1]}, {sum_of} was written')
  return True


def sum_of_all(files: Mapping[str, Any]) -> str:
  """Returns the sum of the sums themselves, CRC-32C in hex."""
  return f'{google_crc32c.value(json.dumps(files, sort_keys=True).encode()):08x}'


def listed(folder: epath.Path) -> Listing:
  """Lists the files below a folder that have sums, with those that are known without reading."""
  with storage.explained(folder, 'read'):
    found: Listing = listing(folder) if storage.remote(folder) else {name: None for name in names(folder)}
  return {name: told for name, told in found.items()
          if name not in (NAME, COMMITTED) and not name.endswith(storage.DRAFT)}


def sums_of(folder: epath.Path, files: Listing) -> dict[str, tuple[int, str]]:
  """Returns name -> (bytes, sum): of those that are not known, many are read at once."""
  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    found = pool.map(lambda name: (name != STEP and files[name]) or of_file(folder / name), files)
    return dict(zip(files, found, strict=True))


def of_file(path: epath.Path) -> tuple[int, str]:
  """Reads a file -> (bytes, CRC-32C in hex); of Orbax's record of the step without the moment at which it was
  written."""
  if path.name == STEP:
    value = storage.read_json(path, error=DamageError)
    value.pop(MOMENT, None)
    content = json.dumps(value, sort_keys=True).encode()
    return len(content), f'{google_crc32c.value(content):08x}'
  size, checksum = 0, 0
  with storage.explained(path, 'read'), storage.open_text(path) as file:
    while part := file.read(READ):
      size, checksum = size + len(part), google_crc32c.extend(checksum, part)
  return size, f'{checksum:08x}'


def names(folder: epath.Path) -> Iterator[str]:
  """Yields the names of all files below a folder of a disk, with / between."""
  root = pathlib.Path(folder)
  for place, _, files in os.walk(root):
    for name in files:
      yield pathlib.Path(place, name).relative_to(root).as_posix()


def listing(folder: epath.Path) -> Listing:
  """Returns name -> (bytes, sum) of every object below a folder of a bucket; None where the bucket does not tell."""
  bucket, prefix = gcs.split(f'{os.fspath(folder).rstrip("/")}/')
  objects = gcs.google_client().list_blobs(
      bucket, prefix=prefix, fields='items(name,size,crc32c),nextPageToken', retry=gcs.google_retry(120))
  return {blob.name.removeprefix(prefix): (int(blob.size), base64.b64decode(blob.crc32c).hex()) if blob.crc32c else None
          for blob in objects if not blob.name.endswith('/')}
