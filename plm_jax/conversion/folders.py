"""Folders of checkpoints: one that is written appears whole or not at all; one in a bucket is brought to the cache
first, as the libraries that read its files take local ones only."""
import contextlib
import hashlib
import os
import pathlib
import shutil
from typing import TypeVar
import uuid

from etils import epath

from plm_jax import storage
from plm_jax.conversion.rules import ConvertError
from plm_jax.tokenizers.contract import brief

Place = TypeVar('Place', pathlib.Path, epath.Path)  # on a disk or, before it is brought there, in a bucket
LAST = 'config.json'  # what makes a folder a checkpoint is the last to go to a bucket


class fresh_folder:
  """A folder to write to, which becomes `folder` at the end, or nothing if there was an error.

  Raises ConvertError where something is already, and for what cannot be written.
  """

  def __init__(self, folder: epath.PathLike):
    self.folder = storage.path_of(folder)
    with storage.explained(self.folder, 'written', ConvertError):
      if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
        raise ConvertError(f'{self.folder} is there already and not empty: give another folder, or remove it')
      if storage.remote(self.folder):
        place = storage.cache_folder() / 'exports'
      else:
        self.folder = epath.Path(pathlib.Path(self.folder).absolute())
        place = pathlib.Path(self.folder).parent
      # Not by tempfile, whose folders nobody else may read, whatever the umask says.
      self.draft = place / f'.{self.folder.name}.{uuid.uuid4().hex}{storage.DRAFT}'

  def __enter__(self) -> pathlib.Path:
    with storage.explained(self.folder, 'written', ConvertError):
      self.draft.mkdir(parents=True)
    return self.draft

  def __exit__(self, kind, error, trace):
    try:
      with storage.explained(self.folder, 'written', ConvertError):
        if error is not None:
          raise error
        if storage.remote(self.folder):
          self.upload()
        else:
          self.draft.replace(self.folder)
    finally:
      shutil.rmtree(self.draft, ignore_errors=True)

  def upload(self) -> None:
    """Uploads the folder to a bucket, which has no folders to rename: config.json comes last."""
    found = sorted((path for path in self.draft.rglob('*') if path.is_file()), key=lambda path: path.name == LAST)
    for path in found:
      with path.open('rb') as file, storage.drafted(
          self.folder / path.relative_to(self.draft).as_posix(), ConvertError) as there:
        shutil.copyfileobj(file, there, storage.READ)


def local(path: epath.PathLike) -> pathlib.Path:
  """Returns a path on this machine's disk: of one in a bucket, that of a copy in the cache, made now or before.

  A file in a bucket comes with all of its folder. Raises ConvertError for what cannot be read.
  """
  path = storage.path_of(path)
  if not storage.remote(path):
    return pathlib.Path(path).absolute()
  with storage.explained(path, 'read', ConvertError):
    if path.is_dir():
      return bring(path)
    if not path.exists() and not path.with_name(f'{path.name}.index').exists():
      raise ConvertError(f'there is no folder {path}')
    return bring(path.parent) / path.name


def bring(folder: epath.Path) -> pathlib.Path:
  """Copies a folder of a bucket to the cache, unless one is there of the same names, sizes and times of change."""
  found = listed(folder)
  text = '\n'.join(f'{name} {size} {time}' for name, (size, time) in sorted(found.items()))
  copy = storage.cache_folder() / 'checkpoints' / hashlib.sha256(f'{folder}\n{text}'.encode()).hexdigest()[:32]
  if copy.is_dir():
    return copy
  total = sum(size for size, _ in found.values())
  if total > (storage.free_bytes(copy) or 0):
    raise storage.SpaceError(f'{folder} has {total:,} bytes, for which there is no space in {copy.parent}: '
                             'PLM_JAX_CACHE moves the cache')
  print(f'{folder}: {len(found)} files, {total / (1 << 20):,.0f} MiB, are copied to {copy}', flush=True)
  draft = copy.with_name(f'.{copy.name}.{uuid.uuid4().hex}{storage.DRAFT}')
  try:
    for name, (size, _) in found.items():
      with storage.drafted(draft / name, ConvertError) as file, storage.open_text(folder / name) as there:
        shutil.copyfileobj(there, file, storage.READ)
      came = (draft / name).stat().st_size
      if came != size:
        raise ConvertError(f'{folder / name} has {size:,} bytes, of which {came:,} came: was it written just now?')
    with storage.explained(copy, 'written', ConvertError), contextlib.suppress(FileExistsError):
      os.rename(draft, copy)
  except OSError as error:
    if not copy.is_dir():  # another process was first
      with storage.explained(copy, 'written', ConvertError):
        raise error
  finally:
    shutil.rmtree(draft, ignore_errors=True)
  return copy


def listed(folder: epath.Path, before: str = '', depth: int = 4) -> dict[str, tuple[int, int]]:
  """Lists name, with folders, -> (bytes, time of change) of all that is in a folder of a bucket."""
  found = {}
  for path in folder.iterdir():
    if path.is_dir():
      if depth:
        found |= listed(path, f'{before}{path.name}/', depth - 1)
      continue
    said = path.stat()
    found[before + path.name] = said.length, said.mtime
  return found


def ordinary(path: epath.Path | pathlib.Path) -> bool:
  """Tells whether a file is there, no folder, and no pipe, which would be waited for."""
  return path.exists() and not path.is_dir() if storage.remote(path) else os.path.isfile(path)


def inside(folder: Place, name: str) -> Place:
  """Returns a file or folder directly in `folder`. Raises ConvertError for a name that leads elsewhere."""
  if name in ('', '.', '..') or pathlib.PurePath(name).name != name or '\0' in name:
    raise ConvertError(f'{folder} names {brief(name)}, expected something in this folder')
  return folder / name
