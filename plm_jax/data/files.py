"""Files of a source: which they are, and what they are known by.

    embedded                             the English documentation of the installed packages
    a.txt,b.txt.gz,more/*.jsonl.xz       files, globs and folders, local or gs://, separated by commas
"""
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
import glob
import hashlib
import os
import re
import stat
from typing import TypeVar

from etils import epath

from plm_jax import storage
from plm_jax.data import embedded
from plm_jax.data.lines import SourceError

X = TypeVar('X')
Y = TypeVar('Y')
END = 1 << 16  # bytes at the beginning and at the end of a large file in a bucket by which it is known
REQUESTS = 32  # of a bucket, at once


def files(source: str) -> list[epath.Path]:
  """Returns the files of a source of text or rows, in reading order. Raises SourceError where there are none."""
  if source == 'embedded':
    return [epath.Path(embedded.corpus_path())]
  found = []
  for part in map(str.strip, source.split(',')):
    if not part:
      raise SourceError(f'{source!r} names no text: {EXPECTED}')
    with storage.explained(part, 'read', SourceError):
      path = storage.path_of(part)
      if path.is_dir():
        matches = sorted(walk(path))
      elif path.exists():
        matches = [path]
      else:
        matches = sorted(expand(str(path)))
    if not matches:
      raise SourceError(f'no files match {part!r}: {EXPECTED}')
    found += matches
  for file in found:
    if not storage.remote(file):
      with storage.explained(file, 'read', SourceError):
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe could be read once only
          raise SourceError(f'{file} is no ordinary file')
  return found


def expand(pattern: str) -> list[epath.Path]:
  """Lists the files that match a glob, local or in a bucket."""
  if not storage.remote(pattern):
    return [epath.Path(p) for p in glob.glob(pattern, recursive=True) if not epath.Path(p).is_dir()]
  fixed = re.split(r'[*?\[]', pattern)[0].rpartition('/')[0]
  if fixed == pattern or not epath.Path(fixed).exists():
    return []
  return [p for p in epath.Path(fixed).glob(pattern[len(fixed) + 1:]) if not p.is_dir()]


def walk(folder: epath.Path) -> Iterator[epath.Path]:
  """Yields the files below `folder`, but for hidden ones and those that a job leaves behind, such as _SUCCESS."""
  for path in folder.iterdir():
    if path.name.startswith(('.', '_')):
      continue
    if path.is_dir():
      yield from walk(path)
    else:
      yield path


def length_of(file: epath.Path) -> int:
  """Returns the bytes of a file. Raises SourceError."""
  with storage.explained(file, 'read', SourceError):
    return file.stat().length


def ends_of(file: epath.Path) -> tuple[int, bytes, bytes]:
  """Reads the bytes of a file's length, the first of them and the last."""
  length = length_of(file)
  if storage.remote(file) and length <= 2 * END:
    content = storage.read_bytes(file, error=SourceError)
    return length, content[:END], content[max(0, length - END):]
  return length, storage.read_range(file, 0, min(length, END), SourceError), storage.read_range(
      file, max(0, length - END), length, SourceError)


def content_of(file: epath.Path) -> str:
  """Returns the hex digest of a file."""
  with storage.explained(file, 'read', SourceError):
    if not storage.remote(file):
      with open(file, 'rb') as f:
        return hashlib.file_digest(f, 'sha256').hexdigest()
    length, first, last = ends_of(file)
    known = '' if length <= 2 * END else version_of(file)
    return hashlib.sha256(b'%d %s %s' % (length, known.encode(), first + last)).hexdigest()


def version_of(file: epath.Path) -> str:
  """Returns what is another when the file is written again, or is another file."""
  with storage.explained(file, 'read', SourceError):
    if not storage.remote(file):
      status = os.stat(file)
      return f'{file.absolute()} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}'
    status = file.stat()
    return f'{status.length} {status.mtime}'


def each(function: Callable[[X], Y], items: Iterable[X]) -> list[Y]:
  """Calls a function for each item, many requests at once."""
  items = list(items)
  if len(items) == 1:
    return [function(items[0])]
  with ThreadPoolExecutor(REQUESTS) as pool:
    return list(pool.map(function, items))


EXPECTED = ('expected a file, folder or glob, of text or .jsonl, plain, .gz, .xz or .bz2, or tfds:NAME; or embedded, '
            'or task:NAME:SOURCE')
