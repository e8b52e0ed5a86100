"""A stand-in for the Hugging Face hub on the loopback interface, for the real client.

    with Hub() as hub:
      commit = hub.add('org/model', {'config.json': b'{}', 'model.safetensors': weights})
      subprocess.run(..., env={**os.environ, **hub.environment(cache_folder)})
      hub.requests  # [('GET', '/api/models/org/model/revision/main'), ...]

`huggingface_hub` reads the environment when it is imported, so a client runs in a process of its
own, or passes `endpoint=hub.url`. The server knows models and datasets: information on a
repository, file listings in pages, downloads with ranges, and uploads (plain and LFS).
"""
import collections
import dataclasses
import functools
import hashlib
import http.server
import pathlib
import threading
from typing import Any

from hub_handler import Handler

LFS_SUFFIXES = ('.safetensors', '.bin', '.parquet', '.msgpack', '.h5', '.model', '.npz')


@dataclasses.dataclass(frozen=True)
class File:
  """A file of a commit."""

  content: bytes
  lfs: bool

  @functools.cached_property
  def sha256(self) -> str:
    return hashlib.sha256(self.content).hexdigest()

  @functools.cached_property
  def oid(self) -> str:
    """Id of the file in git: of the file itself, or of the pointer to it."""
    content = self.content
    if self.lfs:
      content = f'oid sha256:{self.sha256}\nsize {len(self.content)}\n'.encode()
    return hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()

  @property
  def etag(self) -> str:
    return self.sha256 if self.lfs else self.oid


@dataclasses.dataclass
class Repository:
  kind: str  # models or datasets
  name: str
  private: bool = False
  gated: bool = False
  commits: dict[str, dict[str, File]] = dataclasses.field(default_factory=dict)
  branches: dict[str, str] = dataclasses.field(default_factory=dict)
  messages: list[str] = dataclasses.field(default_factory=list)

  def commit(self, files: dict[str, File], branch: str = 'main', message: str = '') -> str:
    text = f'{self.kind}/{self.name} {len(self.commits)} {branch} {sorted(files)}'
    commit = hashlib.sha1(text.encode()).hexdigest()
    self.commits[commit] = files
    self.branches[branch] = commit
    self.messages.append(message)
    return commit


@dataclasses.dataclass
class Fault:
  """An error in the responses to requests whose path contains a text."""

  kind: int | str
  """a status; 'cut' (the connection ends after `after` bytes), 'short' (the file ends after `after`
  bytes, and its length says so), 'corrupt' (one byte is another), 'headers' (the answer has
  `headers` in addition), 'html' (a login page), 'silent' (no answer for some seconds) or 'endless'
  (an answer without an end)"""
  path: str = ''
  method: str = ''
  after: int = 0
  times: int = 1 << 30
  headers: dict[str, str] = dataclasses.field(default_factory=dict)
  following: str = ''
  """the answer waits until a file with this name is sent: a client loads files side by side"""
  done: int = 0

  def strikes(self, method: str, path: str) -> bool:
    if self.done >= self.times or self.path not in path or self.method not in ('', method):
      return False
    self.done += 1
    return True


class Hub:
  """The server; `token` is the one that may read private and gated repositories, and write."""

  token = 'hf_token_of_the_tests'
  make_file = File

  def __init__(self, page: int = 1000):
    """page: entries per page of a listing."""
    self.page = page
    self.repositories: dict[tuple[str, str], Repository] = {}
    self.stored: dict[str, bytes] = {}  # LFS uploads by their SHA-256
    self.faults: list[Fault] = []
    self.requests: list[tuple[str, str]] = []
    self.sent: dict[str, int] = collections.defaultdict(int)  # bytes of file contents by path
    self.received = 0
    self.guard = threading.RLock()
    self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0),
                                                  functools.partial(Handler, self))
    self.server.daemon_threads = True
    self.url = f'http://127.0.0.1:{self.server.server_address[1]}'

  def __enter__(self) -> 'Hub':
    threading.Thread(
        target=self.server.serve_forever, kwargs={'poll_interval': 0.02}, daemon=True).start()
    return self

  def __exit__(self, *error: Any) -> None:
    self.server.shutdown()
    self.server.server_close()

  def environment(self, cache: pathlib.Path, token: bool = False) -> dict[str, str]:
    """Variables of a client's process.

    Args:
      cache: folder of its downloads and settings.
      token: whether it is logged in.
    """
    return {'HF_ENDPOINT': self.url, 'HF_HOME': str(cache), 'HF_HUB_DISABLE_XET': '1',
            'HF_HUB_DISABLE_TELEMETRY': '1', 'HF_HUB_DISABLE_UPDATE_CHECK': '1',
            'HF_HUB_OFFLINE': '0', 'HF_TOKEN': self.token if token else '',
            'no_proxy': '127.0.0.1,localhost'}

  def connect(self, patch: Any) -> None:
    """Make this process a client that is logged in, with the fixture `monkeypatch`."""
    template = self.url + '/{repo_id}/resolve/{revision}/{filename}'
    for name, value in (
        ('ENDPOINT', self.url), ('HUGGINGFACE_CO_URL_TEMPLATE', template),
        ('HF_HUB_OFFLINE', False), ('HF_HUB_DISABLE_XET', True)):
      patch.setattr(f'huggingface_hub.constants.{name}', value)
    patch.setenv('HF_TOKEN', self.token)
    patch.setenv('no_proxy', '127.0.0.1,localhost')

  def add(self, name: str, files: dict[str, bytes], kind: str = 'models', branch: str = 'main',
          private: bool = False, gated: bool = False) -> str:
    """Make a commit of files, and the repository if there is none; return the commit.

    Args:
      name: of the repository.
      files: all files of the commit by their path.
      kind: models or datasets.
      branch: that the commit is on.
      private: whether only `token` finds it, for a new repository.
      gated: whether only `token` reads its files, for a new repository.
    """
    with self.guard:
      new = Repository(kind, name, private, gated)
      repository = self.repositories.setdefault((kind, name), new)
      made = {}
      for path, content in files.items():
        made[path] = File(content, path.endswith(LFS_SUFFIXES))
      return repository.commit(made, branch)

  def add_folder(self, name: str, folder: pathlib.Path, **options: Any) -> str:
    """Make a commit of a folder's files; see `add`."""
    files = {}
    for path in sorted(folder.rglob('*')):
      if path.is_file():
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return self.add(name, files, **options)

  def files(self, name: str, kind: str = 'models', branch: str = 'main') -> dict[str, bytes]:
    """Return the files of a branch by their path."""
    repository = self.repositories[kind, name]
    found = {}
    for path, file in repository.commits[repository.branches[branch]].items():
      found[path] = file.content
    return found

  def downloads(self) -> list[str]:
    """Return the paths in repositories that were read, in order of their names."""
    found = set()
    for method, path in self.requests:
      if method == 'GET' and '/resolve/' in path:
        found.add(path.partition('/resolve/')[2].partition('/')[2])
    return sorted(found)

  def forget(self) -> None:
    """Drop counts and faults; the repositories stay."""
    with self.guard:
      self.faults.clear()
      self.requests.clear()
      self.sent.clear()
      self.received = 0
