"""Files of datasets of the Hugging Face hub, read as those of a bucket.

    hf://datasets/ORG/NAME/PATH             of the main branch
    hf://datasets/ORG/NAME@REVISION/PATH    of a branch, tag or commit

With this module imported, `epath.Path('hf://...')` is a `HubPath`. Files are read in ranges by
`huggingface_hub`, which repeats requests that fail, and nothing is kept on the disk. It is imported
when the first file is read.
"""
import functools
import os
from typing import Any, NamedTuple

from etils import epath

from plm_jax import storage
from plm_jax.storage import gcs, hub
from plm_jax.storage.digests import start_hub_digest
from plm_jax.storage.hub_client import import_client, retry

BLOCK_SIZE = 8 << 20  # bytes of a request

BucketPath: Any = type(epath.Path('gs://bucket'))


class FileStatus(NamedTuple):
  """What `HubPath.stat` returns."""

  length: int
  """bytes"""
  mtime: int
  """0: the hub knows it of commits alone"""
  is_directory: bool


@epath.register_path_cls('hf://')
class HubPath(BucketPath):
  """A file or folder of a dataset. It can only be read."""

  def exists(self) -> bool:
    """Tell whether there is such a file or folder."""
    return self.find_info() is not None

  def is_dir(self) -> bool:
    """Tell whether it is a folder, or the dataset itself."""
    info = self.find_info()
    return info is not None and info['type'] == 'directory'

  def is_file(self) -> bool:
    """Tell whether it is a file."""
    return self.exists() and not self.is_dir()

  def iterdir(self):
    """Yield the files and folders in this folder."""
    for name in file_system().ls(str(self), detail=False):
      yield type(self)(f'hf://{name}')

  def glob(self, pattern: str):
    """Yield the files and folders that match a pattern, which may contain `**`."""
    for name in file_system().glob(f'{self}/{pattern}'):
      yield type(self)(f'hf://{name}')

  def open(self, mode: str = 'r', **options: Any):
    """Open the file for reading; it can be positioned anywhere."""
    if mode.strip('bt') != 'r':
      raise hub.HubError(f'{self} is on the Hugging Face hub, from where text is only read: give a '
                         'local folder, or gs://BUCKET/FOLDER')
    return file_system().open(str(self), mode, block_size=BLOCK_SIZE, **options)

  def mkdir(self, *options: Any, **named: Any) -> None:
    """Raise HubError: nothing is written."""
    del options, named
    self.open('wb')

  def stat(self) -> FileStatus:
    """Return the size of the file. Raises FileNotFoundError."""
    info = self.find_info()
    if info is None:
      raise FileNotFoundError(str(self))
    return FileStatus(info['size'] or 0, 0, info['type'] == 'directory')

  def find_info(self) -> dict[str, Any] | None:
    """Return what a listing says of this path; None where there is no such file or folder."""
    try:
      return file_system().info(str(self))
    except FileNotFoundError as error:
      # The dataset or its revision may be what is missing.
      if error.__cause__ is None or 'EntryNotFoundError' in hub.classify_error(error)[0]:
        return None
      raise

  def pin(self) -> 'HubPath':
    """Return the path in the commit of its revision, which does not change."""
    resolved = file_system().resolve_path(str(self))
    commit = find_commit(hub.HubName(resolved.repo_id, resolved.revision))
    inner = f'/{resolved.path_in_repo}' if resolved.path_in_repo else ''
    return type(self)(f'{storage.HUB_PREFIX}{resolved.repo_id}@{commit}{inner}')

  def checksum(self) -> str:
    """Return the checksum by which the hub knows the file: hex, SHA-256 or git's SHA-1."""
    info = self.find_info()
    if info is None:
      raise FileNotFoundError(str(self))
    return info['lfs']['sha256'] if info.get('lfs') else info['blob_id']


@functools.cache
def file_system() -> Any:
  """Return the client of this process."""
  client = import_client()
  return client.HfFileSystem(endpoint=client.constants.ENDPOINT)


@functools.cache
def find_commit(name: hub.HubName) -> str:
  """Return the commit of a dataset's revision; one process asks the hub once."""
  if hub.COMMIT.fullmatch(name.revision):
    return name.revision
  client = import_client().HfApi(library_name='plm_jax')
  info = retry(lambda: client.dataset_info(name.name, revision=name.revision or None))
  return str(info.sha)


def describe(path: epath.PathLike, error: BaseException) -> str:
  """Describe an error of the hub's client for a path; '' for one of the disk, and for a bug."""
  parts = os.fspath(path).removeprefix(storage.HUB_PREFIX).split('/')
  name, _, revision = '/'.join(parts[:2]).partition('@')
  if hub.COMMIT.fullmatch(revision):  # `pin` has found it: messages are about the dataset
    revision = ''
  return hub.describe_hub_error(hub.HubName(name, revision), error, 'dataset')


class HubStream(gcs.BucketStream):
  """File of a dataset, read from beginning to end; then its checksum is compared."""

  def __init__(self, path: HubPath):
    self.path = path
    self.expected = path.checksum()
    self.size = path.stat().length
    super().__init__(path)
    self.content = start_hub_digest(self.expected, self.size)

  def readinto(self, buffer) -> int:
    """Fill a buffer with the next bytes, and return their number; 0 at the end.

    Raises:
      HubError: the hub fails, the file ends early, or its content is not that of its checksum.
    """
    try:
      length = super().readinto(buffer)
    except Exception as error:
      if message := describe(self.path, error):
        raise hub.HubError(message) from error
      raise
    self.content.update(buffer[:length])
    if length < len(buffer) and self.position < self.size:
      raise hub.HubError(f'{self.path} ended at byte {self.position:,} of {self.size:,}: the same '
                         'command reads it again')
    if length and self.position == self.size and self.content.hexdigest() != self.expected:
      raise hub.HubError(f'{self.path} was damaged on its way (its checksum differs): the same '
                         'command reads it again')
    return length


def read_range(path: HubPath, start: int, stop: int) -> bytes:
  """Read bytes start to stop - 1 of a file, or fewer where it ends before."""
  stop = min(stop, path.stat().length)
  if stop <= start:
    return b''
  with path.open('rb') as file:
    file.seek(start)
    return file.read(stop - start)
