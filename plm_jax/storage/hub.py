"""Models of the Hugging Face hub: names, and local copies of the files that are needed.

    find_folder('google-bert/bert-base-uncased')   # local folder of a snapshot, after a download
    find_folder('runs/bert_base')                  # a local path stays
    pin(parse_name('google-bert/bert-base-uncased'))   # 'google-bert/bert-base-uncased@86b5e0...'

A name is ORG/NAME or NAME, optionally with @REVISION (a branch, tag or commit), where no local
path of that name exists. `hf://ORG/NAME` is always the model of the hub. Downloads go through
`huggingface_hub` and its cache. It is imported when the first name is resolved.
"""
from collections.abc import Collection, Iterator
import contextlib
import functools
import json
import logging
import os
import pathlib
import re
import sys
from typing import Any, Literal, NamedTuple

from etils import epath

from plm_jax import storage
from plm_jax.errors import describe_error, name_field
from plm_jax.storage.digests import start_hub_digest
from plm_jax.storage.hub_client import HubError, classify_error, import_client, retry

LOG = logging.getLogger(__name__)
Need = Literal['model', 'tokenizer']
SCHEME = 'hf://'
PART = r'[A-Za-z0-9_][\w.-]*'
NAME = re.compile(rf'(?P<name>(?:{PART}/)?{PART})(?:@(?P<revision>[\w./-]+))?', re.ASCII)
COMMIT = re.compile('[0-9a-f]{40}')
FILE_SUFFIXES = (
    '.bin', '.ckpt', '.gz', '.h5', '.hdf5', '.index', '.json', '.jsonl', '.model', '.msgpack',
    '.npz', '.onnx', '.parquet', '.pkl', '.pt', '.pth', '.safetensors', '.tsv', '.txt', '.vec',
    '.yaml', '.zip')
"""a name that ends in one of them is a path"""
LOCAL_PARENTS = ('runs', 'notebooks', 'tests')
"""a name in one of these folders is a path: runs/NAME is where runs are written"""
TOKENIZER_FILES = re.compile(
    r'config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|'
    r'added_tokens\.json|vocab\.json|merges\.txt|vocab\.txt|dict\.txt|bpe\.codes|'
    r'[\w.-]+\.(model|spm)')
CONFIG_FILES = re.compile(
    r'[\w.-]*config[\w.-]*\.json|modules\.json|options\.json|(\d+_\w+/)config\.json')
WEIGHTS = (
    r'{folder}model\.safetensors',
    r'{folder}model(-\d+-of-\d+\.safetensors|\.safetensors\.index\.json)',
    r'{folder}pytorch_model\.bin',
    r'{folder}pytorch_model(-\d+-of-\d+\.bin|\.bin\.index\.json)',
    r'{folder}flax_model\.msgpack',
    r'{folder}flax_model(-\d+-of-\d+\.msgpack|\.msgpack\.index\.json)',
    r'{folder}[\w.-]+\.(index|meta|data-\d+-of-\d+|pt|hdf5)')
"""the weights of a folder, in order of preference"""
ADAPTER_WEIGHTS = re.compile(r'adapter_model\.(safetensors|bin)')
MODULE_FOLDER = re.compile(r'(\d+_\w+)/')


class HubName(NamedTuple):
  """The name of a model of the hub."""

  name: str
  revision: str = ''
  """branch, tag or commit; '': the main branch"""

  def __str__(self) -> str:
    return f'{self.name}@{self.revision}' if self.revision else self.name


def parse_name(path: epath.PathLike) -> HubName | None:
  """Parse the name of a model of the hub; None for a local path, and for one in a bucket.

  Raises:
    HubError: the path begins with hf://, and is not such a name.
  """
  text = os.fspath(path)
  found = NAME.fullmatch(text.removeprefix(SCHEME))
  if text.startswith(SCHEME):
    if not found or found['name'].startswith(('datasets/', 'spaces/')):
      raise HubError(f'{text} is no model of the Hugging Face hub: expected hf://ORG/NAME or '
                     'hf://ORG/NAME@REVISION')
    return HubName(found['name'], found['revision'] or '')
  if not isinstance(path, str) or not found or text.endswith(FILE_SUFFIXES):
    return None
  revision, (parent, slash, _) = found['revision'] or '', text.partition('/')
  if os.path.exists(text):
    report_local_folder(text)
    return None
  looks_local = slash and (parent in LOCAL_PARENTS or os.path.isdir(parent))
  if looks_local and not COMMIT.fullmatch(revision):
    return None
  return HubName(found['name'], revision)


@functools.cache
def report_local_folder(text: str) -> None:
  """Report, once, that a local folder has the name of a model of the hub."""
  parent, slash, _ = text.partition('/')
  config = pathlib.Path(text, 'config.json')
  if slash and parent not in LOCAL_PARENTS and config.is_file() and (
      not pathlib.Path(text, 'checkpoints').is_dir()):
    LOG.warning('%s is read from the local folder of that name; hf://%s is the model of the '
                'Hugging Face hub', text, text)


def find_folder(path: epath.PathLike, need: Need = 'model') -> epath.Path:
  """Resolve a path, and download a model of the hub.

  Args:
    path: a local path, a path in a bucket, or the name of a model of the hub.
    need: which files of a model are downloaded: all that a model needs, or its tokenizer's alone.

  Returns:
    The path; for a name, the local folder of its files.

  Raises:
    HubError: there is no such model, or it cannot be downloaded.
  """
  name = parse_name(path)
  if name is None:
    return storage.resolve_path(path)
  return epath.Path(download(name, need))


def pin(name: HubName) -> str:
  """Return the name of a model of the hub with its commit as the revision."""
  return f'{name.name}@{resolve_commit(name)}'


@functools.cache
def resolve_commit(name: HubName) -> str:
  """Return the commit of a name; one process asks the hub once."""
  if COMMIT.fullmatch(name.revision):
    return name.revision
  client = import_client().HfApi(library_name='plm_jax')
  from huggingface_hub import constants
  with hub_errors(name):
    commit = retry(lambda: client.resolve_revision(
        name.name, revision=name.revision or None,
        local_files_only=constants.is_offline_mode())).resolved
  if not COMMIT.fullmatch(commit):  # of a file in the cache
    raise HubError(f'{name}: the commit in the cache of the Hugging Face hub is {commit[:100]!r}, '
                   f'which is none: remove {constants.HF_HUB_CACHE}')
  return commit


@functools.cache
def download(name: HubName, need: Need) -> str:
  """Download the files of a model that are needed and not in the cache.

  Returns:
    The folder of its snapshot.
  """
  huggingface_hub = import_client()
  from huggingface_hub import constants
  from huggingface_hub.errors import CachedRepoTreeNotFoundError
  from huggingface_hub.utils import tqdm
  commit = resolve_commit(name)

  class Quiet(tqdm):
    """A progress bar that is not shown."""

    def __init__(self, *args, **kwargs):
      super().__init__(*args, **{**kwargs, 'disable': True})

  def fetch(patterns: list[str], bar: type[tqdm]) -> str:
    return huggingface_hub.snapshot_download(
        name.name, revision=commit, library_name='plm_jax', allow_patterns=patterns,
        tqdm_class=bar)

  def list_files() -> dict[str, int]:
    listed = huggingface_hub.get_cached_repo_tree(name.name, revision=commit)
    return {file.path: file.size for file in listed}

  with storage.io_errors_as(constants.HF_HUB_CACHE, 'written', HubError), hub_errors(name):
    try:
      sizes = list_files()
    except CachedRepoTreeNotFoundError:
      folder = fetch(['config.json'], Quiet)  # lists the files as well
      try:
        sizes = list_files()
      except CachedRepoTreeNotFoundError:  # no network, and another program filled the cache
        return folder
    folder = os.path.join(constants.HF_HUB_CACHE, 'models--' + name.name.replace('/', '--'),
                          'snapshots', commit)
    wanted = select_files(sizes, need)
    new = [path for path in wanted if not os.path.exists(os.path.join(folder, path))]
    if new:
      size = sum(sizes[path] for path in new) / (1 << 20)
      print(f'{name.name}: downloading {len(new)} files, {size:,.1f} MiB, commit {commit[:12]}',
            file=sys.stderr, flush=True)
      # A pattern is a glob, and a name may contain its characters.
      folder = fetch([re.sub(r'([*?[])', r'[\1]', path) for path in wanted],
                     tqdm if sys.stderr and sys.stderr.isatty() else Quiet)
  check_files(name, pathlib.Path(folder), wanted)
  return folder


def select_files(paths: Collection[str], need: Need = 'model') -> list[str]:
  """Select the files of a repository that a model needs.

  One set of weights is selected: safetensors, else pytorch_model.bin, else another format. Weights
  of the folders of sentence-transformers' modules are selected likewise.

  >>> select_files(['README.md', 'config.json', 'model.safetensors', 'pytorch_model.bin'])
  ['config.json', 'model.safetensors']
  """
  found = {path for path in paths if TOKENIZER_FILES.fullmatch(path)}
  if need == 'tokenizer':
    return sorted(found)
  found |= {path for path in paths if CONFIG_FILES.fullmatch(path)}
  folders = {''}
  for path in paths:
    if inner := MODULE_FOLDER.match(path):
      folders.add(inner[0])
  for folder in folders:
    for pattern in WEIGHTS:
      compiled = re.compile(pattern.format(folder=re.escape(folder)))
      if weights := {path for path in paths if compiled.fullmatch(path)}:
        found |= weights
        break
  if 'adapter_config.json' in paths:
    found |= {path for path in paths if ADAPTER_WEIGHTS.fullmatch(path)}
  return sorted(found)


def check_files(name: HubName, folder: pathlib.Path, paths: Collection[str]) -> None:
  """Check files of a snapshot against their checksums, and remove those that differ.

  The cache names a file by its checksum: SHA-256 of a large one, and git's SHA-1 of others. The
  client itself checks sizes alone. Sizes and times of files that were right are recorded, so only
  new and changed files are read, also those of a download that broke off.

  Raises:
    HubError: a file differs.
  """
  record = storage.cache_folder() / 'hub' / f'{folder.name}.json'
  checked: dict[str, Any] = {}
  with contextlib.suppress(OSError, ValueError):
    checked = json.loads(record.read_text())
  before = dict(checked)
  for path in paths:
    link = folder / path
    blob = link.resolve()
    stat = blob.stat()
    seen = [str(blob), stat.st_size, stat.st_mtime_ns]
    if checked.get(path) == seen:
      continue
    if not re.fullmatch('[0-9a-f]{40}|[0-9a-f]{64}', blob.name):
      continue  # a cache without symbolic links
    content = start_hub_digest(blob.name, stat.st_size)
    with blob.open('rb') as file:
      while piece := file.read(storage.READ_SIZE):
        content.update(piece)
    if content.hexdigest() != blob.name:
      link.unlink(missing_ok=True)
      blob.unlink(missing_ok=True)
      raise HubError(f'{name}: {path} was damaged on its way (its checksum differs) and is '
                     'removed: the same command downloads it again')
    checked[path] = seen
  if checked != before:
    with contextlib.suppress(storage.StorageError):
      storage.write(record, json.dumps(checked))


@contextlib.contextmanager
def hub_errors(name: HubName) -> Iterator[None]:
  """Turn errors of the hub's client into one line that says what to do."""
  from huggingface_hub.errors import HFValidationError
  try:
    yield
  except HFValidationError as error:
    raise HubError(f'{name} is no local folder, and no name of a model of the Hugging Face hub: '
                   f'{describe_error(error)}') from error
  except Exception as error:
    message = describe_hub_error(name, error)
    if not message:
      raise
    raise HubError(message) from error


def upload(folder: pathlib.Path, name: str, public: bool, revision: str, message: str) -> str:
  """Upload a folder to the hub as one commit, and make the model and the branch if needed.

  Args:
    folder: a local folder.
    name: ORG/NAME, or NAME for the user that is logged in.
    public: whether all may read it; otherwise it is private.
    revision: branch; '': the main branch.
    message: of the commit.

  Returns:
    The address of the model.

  Raises:
    HubError: nothing was uploaded; why.
  """
  huggingface_hub = import_client()
  from huggingface_hub import utils
  found = NAME.fullmatch(name)
  if not found or found['revision']:
    raise HubError(f'{name!r} is no name of a model of the Hugging Face hub: expected ORG/NAME')
  if not huggingface_hub.get_token():
    raise HubError('push needs an account of the Hugging Face hub: log in with `hf auth login`, or '
                   'set HF_TOKEN')
  client = huggingface_hub.HfApi(library_name='plm_jax')
  try:
    # The model and the branch.
    made = retry(lambda: client.create_repo(name, private=not public, exist_ok=True))
    private = retry(lambda: client.model_info(made.repo_id)).private
    if not public and not private:
      raise HubError(f'{made.repo_id} exists and is public: push with {name_field("public")}, or '
                     'to another name')
    if public and private:
      raise HubError(f'{made.repo_id} exists and is private: push without {name_field("public")}, '
                     f'or make it public in its settings, {made}/settings')
    if revision:
      client.create_branch(made.repo_id, branch=revision, exist_ok=True)
    # All files, as one commit.
    draws = sys.stderr is not None and sys.stderr.isatty()
    hide = not draws and not utils.are_progress_bars_disabled()
    if hide:
      utils.disable_progress_bars()
    try:
      client.upload_folder(
          repo_id=made.repo_id, folder_path=folder, revision=revision or None,
          commit_message=message)
    finally:
      if hide:
        utils.enable_progress_bars()
  except HubError:
    raise
  except Exception as error:
    kinds, status = classify_error(error)
    problem = ''
    if status in (401, 404):
      problem = 'its token is not valid: log in again with `hf auth login`'
    elif status == 403:
      problem = f'its token may not write there: {short_reason(error)}'
    elif status == 429:
      problem = 'too many requests (429): wait some minutes'
    elif status:
      problem = f'status {status}: {short_reason(error)}'
    elif 'TransportError' in kinds or 'OfflineModeIsEnabled' in kinds:
      problem = 'it cannot be reached: check the network and HF_HUB_OFFLINE'
    if not problem:
      raise
    raise HubError(f'the Hugging Face hub did not take {name}, nothing was uploaded; '
                   f'{problem}') from error
  return str(made)


def short_reason(error: BaseException) -> str:
  """Return the last line of what the hub answered."""
  return describe_error(error).splitlines()[-1].strip()[:200]


def describe_hub_error(
    name: HubName, error: BaseException, kind: Literal['model', 'dataset'] = 'model') -> str:
  """Describe an error of the hub's client; '' for one of the disk, and for a bug.

  Args:
    name: of the model or dataset.
    error: the error.
    kind: what the name is of. That of a model might have been meant as a local folder.
  """
  from huggingface_hub import constants
  (kinds, status), endpoint = classify_error(error), constants.ENDPOINT
  page = f'{endpoint}/{"datasets/" if kind == "dataset" else ""}{name.name}'
  # The hub refuses, or does not find it.
  if 'GatedRepoError' in kinds:
    return (f'{name} is gated: ask for access at {page}, then log in with '
            '`hf auth login`')
  if 'RevisionNotFoundError' in kinds:
    return f'{name.name} on the Hugging Face hub has no revision {name.revision or "main"}'
  if 'MissingFile' in kinds and 'RepositoryNotFoundError' not in kinds:
    return (f'{name} is on the Hugging Face hub, but the hub does not find one of its files '
            f'(status 404: {short_reason(error)}): try again later, or give another @REVISION')
  if 'RepositoryNotFoundError' in kinds or status in (401, 404):
    absent = f'{name.name} is no local folder, and no public model on the Hugging Face hub'
    if kind == 'dataset':
      absent = f'there is no public dataset {name.name} on the Hugging Face hub'
    return f'{absent}: check the name; a private {kind} needs `hf auth login`'
  if status == 403:
    return (f'the Hugging Face hub refuses access to {name.name} (403): the token of '
            '`hf auth login` needs the permission')
  if status == 429:
    return (f'the Hugging Face hub limits requests (429), {name} was not read: wait some minutes; '
            '`hf auth login` raises the limit')
  if status:
    return f'the Hugging Face hub failed on {name} (status {status}): try again later'
  # The hub is not asked, or not reached.
  absent = {'LocalEntryNotFoundError', 'RevisionResolutionError'}
  if 'OfflineModeIsEnabled' in kinds or (constants.is_offline_mode() and kinds & absent):
    if kind == 'dataset':
      return f'the dataset {name} cannot be read: HF_HUB_OFFLINE is set. Unset it'
    return (f'{name} is no local folder, and not in the cache of the Hugging Face hub '
            f'({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set: unset it to download')
  if kinds & {*absent, 'ConnectError', 'ConnectTimeout', 'ProxyError'}:
    if kind == 'dataset':
      return f'the Hugging Face hub cannot be reached at {endpoint} for {name}: check the network'
    return (f'{name} is no local folder, and the Hugging Face hub cannot be reached at {endpoint}: '
            'check the name and the network')
  if 'TransportError' in kinds or 'Consistency check failed' in str(error):
    if kind == 'dataset':
      return f'reading {name} from the Hugging Face hub broke off: run the same command again'
    return (f'the download of {name} broke off: the same command continues, and keeps the files '
            'that are complete')
  return ''
