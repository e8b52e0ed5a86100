"""Files of a text source: find them by path, folder or glob, and fingerprint their content.

    embedded                             the English documentation of the installed packages
    a.txt,b.txt.gz,more/*.jsonl.xz       files, globs, folders, local, gs:// or hf://datasets/,
                                         separated by commas

A path that exists may have commas in its name.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import fnmatch
import glob
import itertools
import os
import re
import stat
from typing import TypeVar

from etils import epath

from plm_jax import storage
from plm_jax.sources import builtin_corpus
from plm_jax.sources.lines import SourceError
from plm_jax.storage import hub_files
from plm_jax.storage.digests import compute_digest, digest_file

X = TypeVar('X')
Y = TypeVar('Y')
END_BYTES = 1 << 16  # at the beginning and at the end of a large file in a bucket, for its digest
REQUESTS = 32  # to a bucket at once
HIDDEN_PREFIXES = '.', '_'  # of names that are not read in a folder


def find_files(source: str) -> list[epath.Path]:
  """Return the files of a source, in reading order. Raises SourceError where there are none."""
  if source == 'embedded':
    return [epath.Path(builtin_corpus.corpus_path())]
  found = list(itertools.chain.from_iterable(matches for _, matches in split_source(source)))
  for file in found:
    if not storage.is_remote(file):
      with storage.io_errors_as(file, 'read', SourceError):
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe could be read only once
          raise SourceError(f'{file} is no ordinary file')
  return found


def split_source(source: str) -> list[tuple[str, list[epath.Path]]]:
  """Split a source at commas into (path, its files). Raises SourceError if none match a path."""
  found = list(split_commas(source))
  for path, matches in found:
    if not path:
      raise SourceError(f'{source!r} names no text: {EXPECTED_SOURCE}')
    if not matches:
      hint = ' (commas separate paths; a name with one has to exist as it is written)'
      commas = hint if ',' in source else ''
      raise SourceError(f'no files match {path!r}{commas}: {EXPECTED_SOURCE}')
  return found


def split_commas(source: str) -> Iterator[tuple[str, list[epath.Path]]]:
  """Yield (path, its files) of a source; keep commas inside the name of a file that exists."""
  if not storage.is_remote(source) and ',' in source and (whole := match_files(source)):
    yield source, whole
    return
  parts = source.split(',')
  while parts:
    path, matches, count = parts[0].strip(), [], 1
    # The shortest join of the next parts that exists: 'a' of 'a,b', 'May, 2019' of 'May, 2019,b'.
    for length in range(1, len(parts) + 1):
      joined = ','.join(parts[:length]).strip()
      if matches := match_files(joined):
        path, count = joined, length
        break
    yield path, matches
    del parts[:count]


def split_names(names: str) -> tuple[str, ...]:
  """Split names of sources, files or tfds:NAME:SPLIT, at commas outside the names of files."""
  return tuple(path for path, _ in split_commas(names)) if names else ()


def match_files(path: str) -> list[epath.Path]:
  """List the files of a file, folder or glob, in order; [] if there are none."""
  if not path.strip() or path.startswith('tfds:'):
    return []
  with storage.io_errors_as(path, 'read', SourceError):
    place = storage.resolve_path(path)
    # One commit of the hub for all that is read, whatever is pushed meanwhile.
    place = place.pin() if isinstance(place, hub_files.HubPath) else place
    if place.is_dir():
      return sorted(walk_folder(place))
    return [place] if place.exists() else sorted(expand_glob(str(place)))


def expand_glob(pattern: str) -> list[epath.Path]:
  """List the files that match a glob, local or in a bucket."""
  if not storage.is_remote(pattern):
    if '**' in pattern.split('/'):
      return expand_recursive_glob(pattern)
    return [epath.Path(p) for p in glob.glob(pattern) if not epath.Path(p).is_dir()]
  fixed = re.split(r'[*?\[]', pattern)[0].rpartition('/')[0]
  if fixed == pattern or not storage.resolve_path(fixed).exists():
    return []
  paths = storage.resolve_path(fixed).glob(pattern[len(fixed) + 1:])
  return [path for path in paths if not path.is_dir()]


def expand_recursive_glob(pattern: str) -> list[epath.Path]:
  """List the files that match a local glob with `**`, any number of folders.

  glob.glob follows a link that leads back into its folder until the system refuses; this reads each
  folder once.
  """
  parts = pattern.split('/')
  at = next(number for number, part in enumerate(parts) if glob.has_magic(part))
  root = '/'.join(parts[:at]) or ('/' if pattern.startswith('/') else '')
  if not os.path.isdir(root or '.'):
    return []
  found = []
  for path in walk_local_folder(root or '.', hidden=()):
    relative = os.path.relpath(path, root or '.')
    if matches_glob(relative.split('/'), parts[at:]):
      found.append(epath.Path(root) / relative)
  return found


def matches_glob(names: Sequence[str], parts: Sequence[str]) -> bool:
  """Return whether the names of a path match the parts of a glob, as in glob.glob.

  `**` is any number of folders, and wildcards do not match the dot of a hidden name.
  """
  if not parts:
    return not names
  if parts[0] != '**':
    if not names or not fnmatch.fnmatchcase(names[0], parts[0]):
      return False
    if names[0].startswith('.') and not parts[0].startswith('.'):
      return False
    return matches_glob(names[1:], parts[1:])
  visible = list(itertools.takewhile(lambda name: not name.startswith('.'), names))
  return any(matches_glob(names[count:], parts[1:]) for count in range(len(visible) + 1))


def walk_folder(folder: epath.Path) -> Iterator[epath.Path]:
  """Yield the files below `folder`, without hidden ones and those of jobs, such as _SUCCESS.

  A folder that several links lead to is read once, so that a link back into a folder adds nothing.
  """
  if not storage.is_remote(folder):
    yield from map(epath.Path, walk_local_folder(os.fspath(folder)))
    return
  for path in folder.iterdir():
    if path.name.startswith(HIDDEN_PREFIXES):
      continue
    if path.is_dir():
      yield from walk_folder(path)
    else:
      yield path


def walk_local_folder(folder: str, hidden: tuple[str, ...] = HIDDEN_PREFIXES) -> Iterator[str]:
  """Yield the files below a local folder, each folder once: real folders first, then linked ones.

  hidden: prefixes of names that are left out.
  """
  seen: set[tuple[int, int]] = set()
  links = [folder]
  while links:
    pending, links = [links[0]], links[1:]
    while pending:
      place = pending.pop()
      status = os.stat(place)
      if (status.st_dev, status.st_ino) in seen:
        continue
      seen.add((status.st_dev, status.st_ino))
      with os.scandir(place) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
      for entry in found:
        if entry.name.startswith(hidden):
          continue
        if not entry.is_dir():
          yield entry.path
        elif entry.is_symlink():
          links.append(entry.path)
        else:
          pending.append(entry.path)


def file_length(file: epath.Path) -> int:
  """Return the bytes of a file. Raises SourceError."""
  with storage.io_errors_as(file, 'read', SourceError):
    return file.stat().length


def content_digest(file: epath.Path) -> str:
  """Return the sha256 hex of a file.

  For a large one in a bucket it is that of its ends and its version; on the hub, of its checksum.
  """
  with storage.io_errors_as(file, 'read', SourceError):
    if not storage.is_remote(file):
      return digest_file(file)
    if isinstance(file, hub_files.HubPath):
      return compute_digest(file.checksum())
    length = file_length(file)
    if length <= 2 * END_BYTES:  # with one request
      content = storage.read_bytes(file, error=SourceError)
      first, last = content[:END_BYTES], content[max(0, length - END_BYTES):]
      return compute_digest(f'{length}  ', first, last)
    first = storage.read_range(file, 0, END_BYTES, SourceError)
    last = storage.read_range(file, length - END_BYTES, length, SourceError)
    return compute_digest(f'{length} {file_version(file)} ', first, last)


def file_version(file: epath.Path) -> str:
  """Return a text that changes when the file is written again, or is another file."""
  with storage.io_errors_as(file, 'read', SourceError):
    if not storage.is_remote(file):
      status = os.stat(file)
      return (f'{file.absolute()} {status.st_ino} {status.st_size} {status.st_mtime_ns} '
              f'{status.st_ctime_ns}')
    if isinstance(file, hub_files.HubPath):
      return file.checksum()
    status = file.stat()
    return f'{status.length} {status.mtime}'


def map_in_threads(function: Callable[[X], Y], items: Iterable[X]) -> list[Y]:
  """Call a function for each item, with many requests at once."""
  items = list(items)
  if len(items) == 1:
    return [function(items[0])]
  with ThreadPoolExecutor(REQUESTS) as pool:
    return list(pool.map(function, items))


EXPECTED_SOURCE = (
    'expected a file, folder or glob, of text or .jsonl, plain, .gz, .xz or .bz2, local, gs:// or '
    'hf://datasets/ORG/NAME; or tfds:NAME; or embedded, or task:NAME:SOURCE')
