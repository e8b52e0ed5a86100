"""The fake Hugging Face hub, read and written by the real client."""
import hub_server
import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
import pytest

FILES = {'config.json': b'{"a": 1}', 'model.safetensors': bytes(range(250)) * 40, 'sub/b.txt': b'b'}


@pytest.fixture
def hub(monkeypatch):
  with hub_server.Hub(page=2) as server:
    server.connect(monkeypatch)
    yield server


def client(hub, logged_in=False):
  return huggingface_hub.HfApi(hub.url, token=hub.token if logged_in else False)


def test_downloads_a_snapshot(hub, tmp_path):
  commit = hub.add('org/model', FILES)
  folder = client(hub).snapshot_download('org/model', cache_dir=tmp_path)
  assert folder.endswith(commit)
  for name, content in FILES.items():
    with open(f'{folder}/{name}', 'rb') as file:
      assert file.read() == content
  assert hub.requests[0] == ('GET', '/api/models/org/model/revision/main')
  assert hub.requests[1:3] == [('GET', f'/api/models/org/model/tree/{commit}')] * 2  # two pages
  assert hub.downloads() == sorted(FILES)
  assert sum(hub.sent.values()) == 8 + 10_000 + 1


def test_errors(hub, tmp_path):
  hub.add('org/model', FILES)
  hub.add('org/gated', FILES, gated=True)
  hub.add('org/private', FILES, private=True)
  api = client(hub)
  for name in ('org/other', 'org/private'):
    with pytest.raises(HfHubHTTPError, match='401'):  # strangers do not learn which there are
      api.model_info(name)
  with pytest.raises(RepositoryNotFoundError):
    client(hub, logged_in=True).model_info('org/other')
  assert client(hub, logged_in=True).model_info('org/private').private
  with pytest.raises(RevisionNotFoundError):
    api.model_info('org/model', revision='v9')
  with pytest.raises(RemoteEntryNotFoundError):
    api.hf_hub_download('org/model', 'other.json', cache_dir=tmp_path)
  with pytest.raises(GatedRepoError):
    api.hf_hub_download('org/gated', 'config.json', cache_dir=tmp_path)
  hub.faults.append(hub_server.Fault(403))
  with pytest.raises(HfHubHTTPError, match='403 Forbidden'):
    api.model_info('org/model')


def test_a_cut_download_resumes(hub, tmp_path, monkeypatch):
  monkeypatch.setattr('huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE', 1000)
  hub.add('org/model', FILES)
  hub.faults.append(hub_server.Fault('cut', 'model.safetensors', 'GET', after=4000, times=1))
  path = client(hub).hf_hub_download('org/model', 'model.safetensors', cache_dir=tmp_path)
  with open(path, 'rb') as file:
    assert file.read() == FILES['model.safetensors']
  assert hub.sent['model.safetensors'] == 10_000 + 6000  # the second request requested the rest


def test_short_download_fails(hub, tmp_path):
  hub.add('org/model', FILES)
  hub.faults.append(hub_server.Fault('short', 'model.safetensors', 'GET', after=4000))
  with pytest.raises(OSError, match='should be of size 10000 but has size 4000'):
    client(hub).hf_hub_download('org/model', 'model.safetensors', cache_dir=tmp_path)


def test_uploads(hub, tmp_path):
  (tmp_path / 'README.md').write_text('---\nlicense: mit\n---\n')
  (tmp_path / 'model.safetensors').write_bytes(FILES['model.safetensors'])
  api = client(hub, logged_in=True)
  api.create_repo('org/new', private=True)
  api.upload_folder(repo_id='org/new', folder_path=tmp_path, commit_message='First')
  uploaded = hub.files('org/new')
  assert uploaded['model.safetensors'] == FILES['model.safetensors']
  assert uploaded['README.md'] == b'---\nlicense: mit\n---\n'
  assert hub.repositories['models', 'org/new'].private
  assert hub.repositories['models', 'org/new'].messages[-1] == 'First'
  with pytest.raises(HfHubHTTPError):
    client(hub).create_repo('org/newer')


def test_datasets_are_read_in_ranges(hub):
  hub.add('org/data', {'a/x.jsonl': b'0123456789' * 10, 'a/y.jsonl': b'y'}, kind='datasets')
  files = huggingface_hub.HfFileSystem(endpoint=hub.url, token=False, skip_instance_cache=True)
  assert files.glob('datasets/org/data/**/*.jsonl') == [
      'datasets/org/data/a/x.jsonl', 'datasets/org/data/a/y.jsonl']
  assert files.cat_file('datasets/org/data/a/x.jsonl', start=5, end=12) == b'5678901'
  with files.open('datasets/org/data/a/x.jsonl') as file:
    file.seek(98)
    assert file.read() == b'89'
