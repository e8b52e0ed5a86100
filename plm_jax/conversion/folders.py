"""Folders of checkpoints: atomic writes, and a local cache for those in a bucket.

Libraries that read a checkpoint's files take local ones only, so a folder in a bucket is copied to
the cache first.
"""
import contextlib
import os
import pathlib
import shutil
from typing import TypeVar
import uuid

from etils import epath

from plm_jax import storage
from plm_jax.models.rules import ConvertError
from plm_jax.storage import hub
from plm_jax.storage.digests import compute_digest
from plm_jax.tokenizers.contract import abbreviate

PathType = TypeVar('PathType', pathlib.Path, epath.Path)
"""a local path, or one in a bucket"""
MARKER_FILE = 'config.json'
"""the file that makes a folder a checkpoint; it is uploaded last"""


class atomic_folder:
  """Context manager of a draft folder that becomes `folder` at the end, or nothing after an error.

  Raises ConvertError if the folder exists and is not empty, and if it cannot be written.
  """

  def __init__(self, folder: epath.PathLike):
    self.folder = storage.resolve_path(folder)
    with storage.io_errors_as(self.folder, 'written', ConvertError):
      if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
        raise ConvertError(
            f'{self.folder} is there already and not empty: give another folder, or remove it')
      if storage.is_remote(self.folder):
        place = storage.cache_folder() / 'exports'
      else:
        self.folder = epath.Path(storage.follow_links(self.folder))
        place = pathlib.Path(self.folder).parent
      # Not by tempfile, whose folders only the owner may read, whatever the umask is.
      self.draft = place / f'.{self.folder.name}.{uuid.uuid4().hex}{storage.DRAFT_SUFFIX}'

  def __enter__(self) -> pathlib.Path:
    with storage.io_errors_as(self.folder, 'written', ConvertError):
      self.draft.mkdir(parents=True)
    return self.draft

  def __exit__(self, kind, error, trace):
    try:
      with storage.io_errors_as(self.folder, 'written', ConvertError):
        if error is not None:
          raise error
        if storage.is_remote(self.folder):
          self.upload()
        else:
          self.draft.replace(self.folder)
    finally:
      shutil.rmtree(self.draft, ignore_errors=True)

  def upload(self) -> None:
    """Upload the draft to a bucket, where folders cannot be renamed: config.json comes last."""
    found = [path for path in self.draft.rglob('*') if path.is_file()]
    found.sort(key=lambda path: path.name == MARKER_FILE)
    for path in found:
      target = self.folder / path.relative_to(self.draft).as_posix()
      with path.open('rb') as file, storage.atomic_writer(target, ConvertError) as there:
        shutil.copyfileobj(file, there, storage.READ_SIZE)


def copy_if_remote(path: epath.PathLike) -> pathlib.Path:
  """Return a local path: of a path in a bucket, or of a model of the hub, that of a copy in the
  cache.

  For a file in a bucket the whole folder is copied. Raises ConvertError if it cannot be read.
  """
  path = hub.find_folder(path)
  if not storage.is_remote(path):
    return pathlib.Path(path).absolute()
  with storage.io_errors_as(path, 'read', ConvertError):
    if path.is_dir():
      return copy_to_cache(path)
    if not path.exists() and not path.with_name(f'{path.name}.index').exists():
      raise ConvertError(f'there is no folder {path}')
    return copy_to_cache(path.parent) / path.name


def copy_to_cache(folder: epath.Path) -> pathlib.Path:
  """Copy a folder of a bucket to the cache.

  A copy with the same names, sizes and modification times is used again. Raises ConvertError if the
  folder cannot be read, and SpaceError if the disk is full.
  """
  found = list_files(folder)
  text = '\n'.join(f'{name} {size} {time}' for name, (size, time) in sorted(found.items()))
  key = compute_digest(f'{folder}\n{text}')[:32]
  copy = storage.cache_folder() / 'checkpoints' / key
  if copy.is_dir():
    return copy
  total = sum(size for size, _ in found.values())
  if total > (storage.free_bytes(copy) or 0):
    raise storage.SpaceError(f'{folder} has {total:,} bytes, for which there is no space in '
                             f'{copy.parent}: PLM_JAX_CACHE moves the cache')
  print(f'{folder}: {len(found)} files, {total / (1 << 20):,.0f} MiB, are copied to {copy}',
        flush=True)
  draft = copy.with_name(f'.{copy.name}.{uuid.uuid4().hex}{storage.DRAFT_SUFFIX}')
  try:
    for name, (size, _) in found.items():
      with storage.atomic_writer(draft / name, ConvertError) as file, storage.open_stream(
          folder / name) as there:
        shutil.copyfileobj(there, file, storage.READ_SIZE)
      came = (draft / name).stat().st_size
      if came != size:
        raise ConvertError(f'{folder / name} has {size:,} bytes, of which {came:,} came: was it '
                           'written just now?')
    with storage.io_errors_as(copy, 'written', ConvertError), contextlib.suppress(FileExistsError):
      os.rename(draft, copy)
  except OSError as error:
    if not copy.is_dir():  # otherwise another process was first
      with storage.io_errors_as(copy, 'written', ConvertError):
        raise error
  finally:
    shutil.rmtree(draft, ignore_errors=True)
  return copy


def list_files(
    folder: epath.Path, prefix: str = '', depth: int = 4,
) -> dict[str, tuple[int, int]]:
  """List the files of a folder in a bucket: name with folders -> (bytes, modification time).

  depth: levels of folders that are entered.
  """
  found = {}
  for path in folder.iterdir():
    if path.is_dir():
      if depth:
        found |= list_files(path, f'{prefix}{path.name}/', depth - 1)
      continue
    stat = path.stat()
    found[prefix + path.name] = stat.length, stat.mtime
  return found


def is_regular_file(path: epath.Path | pathlib.Path) -> bool:
  """Tell whether a path is a file: no folder, and no pipe, which would block."""
  if storage.is_remote(path):
    return path.exists() and not path.is_dir()
  return os.path.isfile(path)


def child_path(folder: PathType, name: str) -> PathType:
  """Return a path directly in `folder`. Raises ConvertError for a name that leads elsewhere."""
  if name in ('', '.', '..') or pathlib.PurePath(name).name != name or '\0' in name:
    raise ConvertError(f'{folder} names {abbreviate(name)}, expected something in this folder')
  return folder / name
