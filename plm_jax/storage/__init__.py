"""Files, on a disk or in a bucket (gs://): what reads or writes one goes through here.

A file appears whole or not at all, under a draft's name of its own until then, so that nobody meets half of it and two
writers cannot meet. What a disk or a bucket refuses is one line that names the path (`StorageError`). Of a bucket,
whole files go by epath (TensorFlow's client where it is installed), parts of files by tensorstore, which Orbax brings:
TensorFlow's reads a block of megabytes where it is asked for a byte.
"""
from collections.abc import Iterator
import contextlib
import errno
import io
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
from typing import Any
import uuid

from etils import epath

from plm_jax.errors import Expected, outside
from plm_jax.storage import gcs

LIMIT = 1 << 28  # bytes of a file that is read whole: configurations, vocabularies, indices
DEPTH = 100  # of what is inside one another in JSON
DIGITS = 100  # of a number in JSON
DRAFT = '.tmp'


class StorageError(Expected):
  """A file, folder or bucket that cannot be read or written."""


class SpaceError(StorageError):
  """A full disk. What is there is whole, and the same command goes on when there is room."""


def remote(path: epath.PathLike) -> bool:
  """Tells whether the path is in a bucket."""
  return '://' in os.fspath(path)


def path_of(path: epath.PathLike) -> epath.Path:
  """Returns the path as everything here takes it: with ~ resolved, gs:// as it is. Raises StorageError for one that is
  none."""
  text = os.fspath(path)
  if '\0' in text:
    raise StorageError(f'{text!r} is no path: it holds a zero byte')
  if text.startswith('/gs/'):  # epath's other spelling
    text = f'gs://{text[4:]}'
  if match := re.match(r'([A-Za-z][\w+.-]*)://', text):
    if match[1] != 'gs' or not re.match(r'gs://[a-z0-9][\w.-]*(/|$)', text):
      raise StorageError(f'{text} is neither a path nor gs://BUCKET/FOLDER')
    return epath.Path(text)
  path = os.path.expanduser(text)
  if path.startswith('~'):
    raise StorageError(f'{text}: there is no such user; a folder of that name is ./{text}')
  return epath.Path(path)


def cache_folder() -> pathlib.Path:
  """Returns $PLM_JAX_CACHE, else ~/.cache/plm_jax. Raises StorageError for a bucket: what is kept there is mapped to
  memory."""
  found = os.environ.get('PLM_JAX_CACHE') or '~/.cache/plm_jax'
  if remote(found):
    raise StorageError(f'PLM_JAX_CACHE={found} is a bucket: the cache has to be a local folder')
  return pathlib.Path(path_of(found))


@contextlib.contextmanager
def explained(path: epath.PathLike, doing: str, error: type[Expected] = StorageError) -> Iterator[None]:
  """Turns what a disk or a client of a bucket raises inside into an `error` that says what could not be done with path.

  doing: 'read', 'written', 'listed'. A full disk is a SpaceError, whatever `error` is.
  """
  try:
    yield
  except Expected:
    raise
  except Exception as raised:
    if not of_storage(raised):
      raise
    if isinstance(raised, OSError) and raised.errno in (errno.ENOSPC, errno.EDQUOT):
      raise SpaceError(f'no space left for {path} ({raised.strerror}). What is there is whole: make room, and the same '
                       'command goes on') from raised
    if missing(raised):
      raise error(f'{path} is not there') from raised
    raise error(f'{path} cannot be {doing}: {outside(raised)}') from raised


def missing(error: BaseException) -> bool:
  """Tells whether a disk or a client of a bucket says with an error, or with what was made of it here, that a file is
  not there."""
  if isinstance(error, Expected) and error.__cause__ is not None:
    return missing(error.__cause__)
  return isinstance(error, FileNotFoundError) or type(error).__name__ in ('NotFoundError', 'NotFound')


def of_storage(error: BaseException) -> bool:
  """Tells whether a disk, or a client of a bucket, raised an error."""
  home = type(error).__module__.partition('.')[0]
  return isinstance(error, OSError) or home in ('tensorflow', 'google', 'gcsfs', 'aiohttp', 'requests', 'urllib3') or (
      type(error) is ValueError and GCS_ERROR.search(str(error)) is not None)  # tensorstore's


def read_bytes(path: epath.PathLike, limit: int = LIMIT, error: type[Expected] = StorageError) -> bytes:
  """Reads the whole file. Raises `error` for what cannot be read, and for one of more than `limit` bytes."""
  path = path_of(path)
  with explained(path, 'read', error):
    if remote(path):
      return read_object(path, limit, error)
    found = os.stat(path)  # asked once: others may take the file away between two questions
    if stat.S_ISDIR(found.st_mode):
      raise error(f'{path} is a folder, expected a file')
    if not stat.S_ISREG(found.st_mode):  # a pipe would wait for ever; epath's is_file takes one for a file
      raise error(f'{path} is no ordinary file')
    if found.st_size > limit:
      raise error(f'{path} has {found.st_size:,} bytes, expected {limit:,} at most: is this the right file?')
    return path.read_bytes()


def read_object(path: epath.Path, limit: int, error: type[Expected]) -> bytes:
  """Reads as `read_bytes` does from a bucket: one request for a small file, and nothing that was known of it before."""
  try:
    content = io.BytesIO()
    with open_text(path) as file:
      while content.tell() <= limit and (piece := file.read(READ)):
        content.write(piece)
  except Exception as raised:
    if missing(raised) and path.is_dir():
      raise error(f'{path} is a folder, expected a file') from raised
    raise
  if content.tell() > limit:
    raise error(f'{path} has more than {limit:,} bytes, the most that is expected: is this the right file?')
  return content.getvalue()


def read_text(path: epath.PathLike, limit: int = LIMIT, error: type[Expected] = StorageError) -> str:
  """Reads the whole file, UTF-8. Raises `error` for what cannot be read, is longer than `limit` bytes, or is not
  UTF-8."""
  try:
    return read_bytes(path, limit, error).decode()
  except UnicodeDecodeError as wrong:
    raise error(f'{path} is not UTF-8 text: {wrong.reason} at byte {wrong.start}') from wrong


def read_json(path: epath.PathLike, kind: type | tuple[type, ...] = dict, limit: int = LIMIT,
              error: type[Expected] = StorageError) -> Any:
  """Reads the JSON value in a file, which has to be a `kind`; see `parse_json`."""
  return parse_json(read_text(path, limit, error), path, kind, error)


def parse_json(text: str, where: epath.PathLike, kind: type | tuple[type, ...] = dict,
               error: type[Expected] = StorageError) -> Any:
  """Parses a JSON text, whose value has to be a `kind`.

  Raises `error`, naming `where`, for what is not JSON, for numbers of over a hundred digits, and for values more than
  a hundred deep inside others.
  """
  def whole(digits: str) -> int:
    if len(digits) > DIGITS:
      raise ValueError(f'a number of {len(digits):,} digits')
    return int(digits)
  try:
    value = json.loads(text, parse_int=whole)
    check_depth(value, DEPTH)
  except (ValueError, RecursionError) as wrong:
    reason = 'values too deep inside one another' if isinstance(wrong, RecursionError) else str(wrong)
    raise error(f'{where} cannot be read as JSON: {reason}') from wrong
  if not isinstance(value, kind):
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = ' or '.join(JSON_NAMES.get(one, one.__name__) for one in kinds)
    raise error(f'{where} holds {JSON_NAMES.get(type(value), type(value).__name__)}, expected {wanted}')
  return value


def check_depth(value: Any, left: int) -> None:
  """Raises RecursionError for lists and objects more than `left` deep inside one another."""
  if not left:
    raise RecursionError
  for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
    if isinstance(inner, dict | list):
      check_depth(inner, left - 1)


@contextlib.contextmanager
def drafted(path: epath.PathLike, error: type[Expected] = StorageError) -> Iterator[Any]:
  """Opens a file to write bytes to, which becomes `path` at the end, or nothing if there was an error. Makes the
  folder."""
  path = path_of(path)
  if remote(path):
    # An object of a bucket appears when it is whole. What was given to GFile goes there even after an error.
    with explained(path, 'written', error), tempfile.SpooledTemporaryFile(SPOOLED) as draft:
      yield draft
      try:
        upload(draft, path)
      except Exception as raised:
        if not missing(raised):
          raise
        path.parent.mkdir(parents=True, exist_ok=True)  # which buckets do without, and what stands in for one may not
        upload(draft, path)
    return
  draft = path.with_name(f'.{path.name}.{uuid.uuid4().hex}{DRAFT}')
  try:
    with explained(path, 'written', error):
      path.parent.mkdir(parents=True, exist_ok=True)
      with draft.open('wb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      draft.replace(path)
  finally:
    with contextlib.suppress(OSError):
      draft.unlink(missing_ok=True)


def upload(draft: Any, path: epath.Path) -> None:
  """Copies a draft from its beginning to a path in a bucket, where it appears when it is whole."""
  draft.seek(0)
  with path.open('wb') as file:
    file.write(b'')  # of an empty file too: nothing is there before the first writing
    while piece := draft.read(READ):
      file.write(piece)  # bytes: GFile takes no other buffers


def write(path: epath.PathLike, content: bytes | str, error: type[Expected] = StorageError) -> None:
  """Puts the content into `path`, which is whole at any moment, whoever else writes it."""
  with drafted(path, error) as file:
    file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: epath.PathLike, value: Any, error: type[Expected] = StorageError) -> None:
  """Writes a JSON value, indented, as `write` writes: whole or not at all. Raises `error`."""
  write(path, json.dumps(value, indent=1, ensure_ascii=False) + '\n', error)


def append(path: epath.PathLike, text: str, error: type[Expected] = StorageError) -> None:
  """Adds to a file. Of one in a bucket, what is there already does not travel again."""
  path = path_of(path)
  with explained(path, 'written', error):
    if remote(path):
      gcs.append(path, text.encode())
      return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'a', encoding='utf-8', newline='') as file:
      file.write(text)


def move(folder: epath.PathLike, target: epath.PathLike) -> None:
  """Gives a folder another name on the same disk or in the same bucket, where there may be one that is left from
  before. In a bucket, objects go one by one."""
  folder, target = path_of(folder), path_of(target)
  with explained(target, 'written'):
    if target.exists():
      target.rmtree()
    if remote(folder):
      gcs.move(os.fspath(folder), os.fspath(target))
    else:
      folder.rename(target)


def remove_drafts(folder: epath.PathLike) -> None:
  """Drafts that a killed process has left directly in a folder. For who has locked it: they may be anybody's."""
  folder = path_of(folder)
  if not remote(folder) and folder.is_dir():
    for draft in pathlib.Path(folder).glob(f'.*{DRAFT}'):
      with contextlib.suppress(OSError):
        draft.unlink()


def open_file(path: epath.PathLike) -> io.BufferedReader:
  """Opens a file on a disk for reading. Raises OSError where there is none, or no file: a pipe would never end, nor
  begin."""
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError(errno.EINVAL, 'no ordinary file', os.fspath(path))
  return open(path, 'rb')


def open_text(path: epath.PathLike) -> io.BufferedReader:
  """Opens a file as a stream of its bytes whose `readline` takes a limit; `tell` counts bytes."""
  path = path_of(path)
  if not remote(path):
    return open_file(path)
  return io.BufferedReader(Stream(path), READ)


class Stream(io.RawIOBase):
  """A file of a bucket, forward."""

  def __init__(self, path: epath.Path):
    self.opened = contextlib.ExitStack()
    self.file = self.opened.enter_context(path.open('rb'))
    self.place = 0

  def readable(self) -> bool:
    """Returns True, as io.BufferedReader wants to hear before it reads."""
    return True

  def readinto(self, buffer) -> int:
    """Fills a buffer with the next bytes and returns how many there were, 0 at the end."""
    content = self.file.read(len(buffer))
    buffer[:len(content)] = content
    self.place += len(content)
    return len(content)

  def tell(self) -> int:
    """Counts the bytes that have been read."""
    return self.place

  def close(self) -> None:
    """Closes what was opened underneath too."""
    self.opened.close()
    super().close()


def read_range(path: epath.PathLike, start: int, stop: int, error: type[Expected] = StorageError) -> bytes:
  """Reads bytes start .. stop of a file, and no others. Raises `error` where the file ends before `stop`."""
  path = path_of(path)
  with explained(path, 'read', error):
    if not remote(path):
      with open_file(path) as file:
        file.seek(start)
        content = file.read(stop - start)
    elif stop > start:
      bucket, name = gcs.split(os.fspath(path))
      found = gcs.bucket_store(bucket).read(name, byte_range=slice(start, stop)).result()
      if found.state == 'missing':
        raise error(f'{path} is not there')
      content = found.value
    else:
      content = b''
  if len(content) < stop - start:
    raise error(f'{path} ends at byte {start + len(content)}, expected {stop} at least')
  return content


def free_bytes(folder: epath.PathLike) -> int | None:
  """Returns the bytes that are free on the disk of a folder, which may not be there yet; None in a bucket."""
  folder = path_of(folder)
  if remote(folder):
    return None
  place = pathlib.Path(folder).absolute()
  while not place.exists():
    place = place.parent
  return shutil.disk_usage(place).free


READ = 8 << 20  # bytes of a stream that are asked for at once
SPOOLED = 64 << 20  # bytes on their way to a bucket that are held in memory; more wait on the disk
JSON_NAMES = {dict: 'an object', list: 'a list', str: 'a text', int: 'a number', float: 'a number',
              bool: 'true or false', type(None): 'null'}
GCS_ERROR = re.compile(r'^[A-Z_]+: |\[source locations=|gcs|CURL')
