"""Files on a disk or in a bucket (gs://): all reading and writing of the project goes through here.

Files of datasets of the Hugging Face hub (hf://datasets/) are read as those of a bucket
(`hub_files`).

Writes are atomic: until a file is complete it has a temporary name of its own, so no process reads
a half-written file, and two writers do not conflict. Errors of a disk or a bucket become one line
that names the path (`StorageError`). In a bucket, complete files are accessed with epath
(TensorFlow's client where it is installed), parts of files with tensorstore, which Orbax installs:
TensorFlow's client reads a block of megabytes for one byte.

`gcs` has what only buckets do, `lock` lets one process at a time work on a folder, `journal`
records the progress of work that may be interrupted, `digests` identify content, `checksums` detect
damage, `bucket_check` checks buckets when a command begins, and `compilation_cache` keeps compiled
programs for the next process.
"""
from collections.abc import Iterator
import contextlib
import errno
import importlib
import io
import json
import os
import pathlib
import re
import shutil
import stat
import sys
import tempfile
from typing import Any
import uuid

from etils import epath

from plm_jax.errors import UserError, describe_error, describe_lfs_pointer
from plm_jax.storage import gcs

READ_LIMIT = 1 << 28  # bytes of a file that is read whole: configurations, vocabularies, indices
HUB_PREFIX = 'hf://datasets/'
DRAFT_SUFFIX = '.tmp'


class StorageError(UserError):
  """A file, folder or bucket that cannot be read or written."""


class SpaceError(StorageError):
  """A full disk. Files are complete, and the same command continues when there is space."""


def is_remote(path: epath.PathLike) -> bool:
  """Tell whether the path is in a bucket, or on the Hugging Face hub."""
  return '://' in os.fspath(path)


def is_hub_file(path: epath.PathLike) -> bool:
  """Tell whether the path is in a dataset of the Hugging Face hub."""
  return os.fspath(path).startswith(HUB_PREFIX)


def resolve_path(path: epath.PathLike) -> epath.Path:
  """Resolve ~ in a path; paths in buckets stay.

  Raises:
    StorageError: it is not a path.
  """
  text = os.fspath(path)
  if '\0' in text:
    raise StorageError(f'{text!r} is no path: it holds a zero byte')
  if text.startswith('/gs/'):  # epath's other spelling
    text = f'gs://{text[4:]}'
  match = re.match(r'([A-Za-z][\w+.-]*)://', text)
  if match:
    if is_hub_file(text):
      return importlib.import_module('plm_jax.storage.hub_files').HubPath(text)
    if match[1] != 'gs' or not re.match(r'gs://[a-z0-9][\w.-]*(/|$)', text):
      raise StorageError(f'{text} is neither a path, nor gs://BUCKET/FOLDER, nor '
                         'hf://datasets/ORG/NAME/PATH')
    return epath.Path(text)
  path = os.path.expanduser(text)
  if path.startswith('~'):
    raise StorageError(f'{text}: there is no such user; a folder of that name is ./{text}')
  return epath.Path(path)


def cache_folder() -> pathlib.Path:
  """Return the cache folder: $PLM_JAX_CACHE, else ~/.cache/plm_jax.

  Raises:
    StorageError: it is in a bucket, but its files are memory-mapped.
  """
  found = os.environ.get('PLM_JAX_CACHE') or '~/.cache/plm_jax'
  if is_remote(found):
    raise StorageError(f'PLM_JAX_CACHE={found} is a bucket: the cache has to be a local folder')
  return pathlib.Path(resolve_path(found))


@contextlib.contextmanager
def io_errors_as(
    path: epath.PathLike, doing: str, error: type[UserError] = StorageError) -> Iterator[None]:
  """Turn errors of a disk or a bucket's client into an `error` that names the path.

  A full disk is a SpaceError, whatever `error` is.

  Args:
    path: the path.
    doing: 'read', 'written', 'listed'.
    error: class of the error.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as raised:
    if not is_storage_error(raised):
      raise
    if isinstance(raised, OSError) and raised.errno in (errno.ENOSPC, errno.EDQUOT):
      raise SpaceError(f'no space left for {path} ({raised.strerror}). Files written so far '
                       'are complete: make room, and the same command resumes') from raised
    if is_hub_file(path):
      hub_files = importlib.import_module('plm_jax.storage.hub_files')
      if message := hub_files.describe(path, raised):
        raise error(message) from raised
    if is_missing(raised):
      raise error(f'{path} is not there') from raised
    raise error(f'{path} cannot be {doing}: {describe_error(raised)}') from raised


def is_missing(error: BaseException) -> bool:
  """Tell whether an error, or the cause of a UserError, means that a file does not exist."""
  if isinstance(error, UserError) and error.__cause__ is not None:
    return is_missing(error.__cause__)
  names = ('NotFoundError', 'NotFound')
  return isinstance(error, FileNotFoundError) or type(error).__name__ in names


def is_storage_error(error: BaseException) -> bool:
  """Tell whether an error is one of a disk or of a bucket's client."""
  package = type(error).__module__.partition('.')[0]
  clients = ('tensorflow', 'google', 'gcsfs', 'aiohttp', 'requests', 'urllib3', 'huggingface_hub',
             'httpx', 'httpx2')
  if isinstance(error, OSError) or package in clients:
    return True
  return type(error) is ValueError and GCS_ERROR.search(str(error)) is not None  # tensorstore's


def read_bytes(path: epath.PathLike, limit: int = READ_LIMIT,
               error: type[UserError] = StorageError) -> bytes:
  """Read a complete file.

  Args:
    path: the file.
    limit: its largest size, in bytes.
    error: class of the error that is raised where it cannot be read, or is larger.
  """
  path = resolve_path(path)
  with io_errors_as(path, 'read', error):
    if is_remote(path):
      return read_bucket_object(path, limit, error)
    found = os.stat(path)  # once: others may remove the file between two calls
    if stat.S_ISDIR(found.st_mode):
      raise error(f'{path} is a folder, expected a file')
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would block; epath's is_file accepts one
      raise error(f'{path} is no ordinary file')
    if found.st_size > limit:
      raise error(f'{path} has {found.st_size:,} bytes, expected {limit:,} at most: is this the '
                  'right file?')
    return path.read_bytes()


def read_bucket_object(path: epath.Path, limit: int, error: type[UserError]) -> bytes:
  """Read a file of a bucket as `read_bytes` does: one request for a small file, nothing cached."""
  try:
    content = io.BytesIO()
    with open_stream(path) as file:
      while content.tell() <= limit and (piece := file.read(READ_SIZE)):
        content.write(piece)
  except Exception as raised:
    if is_missing(raised) and path.is_dir():
      raise error(f'{path} is a folder, expected a file') from raised
    raise
  if content.tell() > limit:
    raise error(f'{path} has more than {limit:,} bytes, the most that is expected: is this the '
                'right file?')
  return content.getvalue()


def read_text(path: epath.PathLike, limit: int = READ_LIMIT,
              error: type[UserError] = StorageError) -> str:
  """Read a complete UTF-8 file.

  Args:
    path: the file.
    limit: its largest size, in bytes.
    error: class of the error that is raised where it cannot be read, is larger, or is not UTF-8.
  """
  try:
    return read_bytes(path, limit, error).decode()
  except UnicodeDecodeError as wrong:
    raise error(f'{path} is not UTF-8 text: {wrong.reason} at byte {wrong.start}') from wrong


def read_json(path: epath.PathLike, kind: type | tuple[type, ...] = dict, limit: int = READ_LIMIT,
              error: type[UserError] = StorageError) -> Any:
  """Read the JSON value in a file, which must be a `kind`; see `parse_json`."""
  return parse_json(read_text(path, limit, error), path, kind, error)


def parse_json(text: str, where: epath.PathLike, kind: type | tuple[type, ...] = dict,
               error: type[UserError] = StorageError) -> Any:
  """Parse a JSON text.

  Args:
    text: the JSON text.
    where: its file, for messages.
    kind: class, or classes, of the value.
    error: class of the error that is raised for text that is not JSON, for numbers and nested
      values that are too large for Python, and for a value of another kind.
  """
  try:
    # Editors of Windows write a byte order mark, which JSON does not have.
    value = json.loads(text.removeprefix('\ufeff'))
  except RecursionError as wrong:
    raise error(f'{where} cannot be read as JSON: values too deep inside one another') from wrong
  except ValueError as wrong:
    pointer = describe_lfs_pointer(where)
    raise error(pointer or f'{where} cannot be read as JSON: {wrong}') from wrong
  if not isinstance(value, kind):
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = ' or '.join(JSON_NAMES.get(one, one.__name__) for one in kinds)
    got = JSON_NAMES.get(type(value), type(value).__name__)
    raise error(f'{where} holds {got}, expected {wanted}')
  return value


@contextlib.contextmanager
def atomic_writer(
    path: epath.PathLike, error: type[UserError] = StorageError) -> Iterator[Any]:
  """Open a temporary file for writing bytes, and move it to `path` at the end unless there is an
  error.

  It makes the folder. A symbolic link stays one: its target is replaced. A device, a pipe and
  `/dev/stdout` are written to at the end. An existing file keeps its permissions.
  """
  path = resolve_path(path)
  if is_remote(path):
    # An object of a bucket appears when it is complete. What was written to GFile is uploaded even
    # after an error.
    with io_errors_as(path, 'written', error), tempfile.SpooledTemporaryFile(SPOOL_SIZE) as draft:
      yield draft
      try:
        upload(draft, path)
      except Exception as raised:
        if not is_missing(raised):
          raise
        # Buckets need no folders, but what replaces a bucket in tests may.
        path.parent.mkdir(parents=True, exist_ok=True)
        upload(draft, path)
    return
  with io_errors_as(path, 'written', error):
    target = write_target(path)
  if target is None:
    with io_errors_as(path, 'written', error), tempfile.SpooledTemporaryFile(SPOOL_SIZE) as draft:
      yield draft
      draft.seek(0)
      with open_in_place(path) as file:
        shutil.copyfileobj(draft, file, READ_SIZE)
    return
  draft = target.with_name(f'.{target.name}.{uuid.uuid4().hex}{DRAFT_SUFFIX}')
  try:
    with io_errors_as(path, 'written', error):
      target.parent.mkdir(parents=True, exist_ok=True)
      with draft.open('wb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      with contextlib.suppress(OSError):  # a new file, or a disk without permissions
        draft.chmod(stat.S_IMODE(target.stat().st_mode))  # a private file stays private
      draft.replace(target)
  finally:
    with contextlib.suppress(OSError):
      draft.unlink(missing_ok=True)


def follow_links(path: epath.PathLike) -> str:
  """Resolve symbolic links of a local path up to a file, a missing name or an open descriptor.

  `/dev/stdout` gives `/proc/PID/fd/1`, not the file or pipe that the shell has put there.

  Raises:
    OSError: the links are circular.
  """
  hop = os.path.join(os.getcwd(), os.fspath(path))
  for _ in range(MAX_LINKS):
    folder, name = os.path.split(hop)
    hop = os.path.join(os.path.realpath(folder), name)
    if DESCRIPTOR.fullmatch(hop) or not os.path.islink(hop):
      return hop
    hop = os.path.join(os.path.dirname(hop), os.readlink(hop))
  raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def write_target(path: epath.PathLike) -> pathlib.Path | None:
  """Return the file that writing to a local path creates or replaces, with symbolic links followed.

  None: the path is a device, a pipe, a socket or an open descriptor such as `/dev/stdout`. It takes
  the bytes in place and must not be replaced by a file.

  Raises:
    OSError: the links are circular.
  """
  target = follow_links(path)
  if DESCRIPTOR.fullmatch(target):
    return None
  try:
    mode = os.stat(target).st_mode
  except (FileNotFoundError, NotADirectoryError):
    return pathlib.Path(target)
  if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
    return pathlib.Path(target)
  return None


def open_in_place(path: epath.PathLike) -> Any:
  """Open a device, a pipe or an open descriptor for writing bytes.

  A descriptor of this process is duplicated: opening `/dev/stdout` by its name would truncate the
  file that the shell has redirected it to.
  """
  target = follow_links(path)
  descriptor = DESCRIPTOR.fullmatch(target)
  if descriptor and int(descriptor[1]) == os.getpid():
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fdopen(os.dup(int(descriptor[2])), 'wb')
  return open(target, 'wb')


def upload(draft: Any, path: epath.Path) -> None:
  """Upload a draft, from its beginning, to a path in a bucket."""
  draft.seek(0)
  with path.open('wb') as file:
    file.write(b'')  # for an empty file: there is no object before the first write
    while piece := draft.read(READ_SIZE):
      file.write(piece)  # bytes: GFile accepts no other buffers


def write(
    path: epath.PathLike, content: bytes | str, error: type[UserError] = StorageError) -> None:
  """Write a file atomically; concurrent writers do not conflict."""
  with atomic_writer(path, error) as file:
    if isinstance(content, str):
      content = content.encode()
    file.write(content)


def write_json(path: epath.PathLike, value: Any, error: type[UserError] = StorageError) -> None:
  """Write a JSON value, indented, as `write` does."""
  write(path, json.dumps(value, indent=1, ensure_ascii=False) + '\n', error)


def append(path: epath.PathLike, text: str, error: type[UserError] = StorageError) -> None:
  """Append text to a file. In a bucket only the new text is uploaded."""
  path = resolve_path(path)
  with io_errors_as(path, 'written', error):
    if is_remote(path):
      gcs.append(path, text.encode())
      return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'a', encoding='utf-8', newline='') as file:
      file.write(text)


def move(folder: epath.PathLike, target: epath.PathLike) -> None:
  """Rename a folder on the same disk or in the same bucket; an old target is removed.

  In a bucket, objects are moved one by one.
  """
  folder, target = resolve_path(folder), resolve_path(target)
  with io_errors_as(target, 'written'):
    if target.exists():
      target.rmtree()
    if is_remote(folder):
      gcs.move(os.fspath(folder), os.fspath(target))
    else:
      folder.rename(target)


def remove_drafts(folder: epath.PathLike) -> None:
  """Remove the drafts that killed processes have left in a folder, which the caller has locked."""
  folder = resolve_path(folder)
  if not is_remote(folder) and folder.is_dir():
    for draft in pathlib.Path(folder).glob(f'.*{DRAFT_SUFFIX}'):
      with contextlib.suppress(OSError):
        draft.unlink()


def open_file(path: epath.PathLike) -> io.BufferedReader:
  """Open a file on a disk for reading bytes.

  Raises:
    OSError: there is none, or it is not a regular file: reading a pipe could block.
  """
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError(errno.EINVAL, 'no ordinary file', os.fspath(path))
  return open(path, 'rb')


def open_stream(path: epath.PathLike) -> io.BufferedReader:
  """Open a file as a stream of bytes; its `readline` takes a limit, and `tell` counts bytes."""
  path = resolve_path(path)
  if not is_remote(path):
    return open_file(path)
  stream = gcs.BucketStream
  if is_hub_file(path):
    stream = importlib.import_module('plm_jax.storage.hub_files').HubStream
  return io.BufferedReader(stream(path), READ_SIZE)


def read_range(path: epath.PathLike, start: int, stop: int,
               error: type[UserError] = StorageError) -> bytes:
  """Read bytes start to stop - 1 of a file, and no others.

  Args:
    path: the file.
    start: first byte.
    stop: byte after the last.
    error: class of the error that is raised where the file ends before `stop`.
  """
  path = resolve_path(path)
  with io_errors_as(path, 'read', error):
    if not is_remote(path):
      with open_file(path) as file:
        file.seek(start)
        content = file.read(stop - start)
    elif is_hub_file(path):
      content = importlib.import_module('plm_jax.storage.hub_files').read_range(path, start, stop)
    elif stop > start:
      bucket, name = gcs.split_url(os.fspath(path))
      store = gcs.bucket_store(bucket)
      found = store.read(name, byte_range=slice(start, stop)).result()
      if found.state == 'missing':
        raise error(f'{path} is not there')
      content = found.value
    else:
      content = b''
  if len(content) < stop - start:
    raise error(f'{path} ends at byte {start + len(content)}, expected {stop} at least')
  return content


def free_bytes(folder: epath.PathLike) -> int | None:
  """Return the free space, in bytes, of a folder's disk; None in a bucket.

  The folder need not exist.
  """
  folder = resolve_path(folder)
  if is_remote(folder):
    return None
  place = pathlib.Path(folder).absolute()
  while not place.exists():
    place = place.parent
  return shutil.disk_usage(place).free


READ_SIZE = 8 << 20  # bytes of a stream that are read at once
SPOOL_SIZE = 64 << 20  # bytes for a bucket that are held in memory; more are spooled to the disk
JSON_NAMES = {dict: 'an object', list: 'a list', str: 'a text', int: 'a number', float: 'a number',
              bool: 'true or false', type(None): 'null'}
MAX_LINKS = 40  # symbolic links that are followed, as on Linux
DESCRIPTOR = re.compile(r'/proc/(\d+)/fd/(\d+)')
GCS_ERROR = re.compile(r'^[A-Z_]+: |\[source locations=|gcs|CURL')
