"""Text of datasets on the Hugging Face hub, with the real client and a server on this machine."""
import gzip
import io
import json
import pickle

from etils import epath
import hub_server
import pytest

from plm_jax import storage
from plm_jax.api import corpus
from plm_jax.errors import UserError
from plm_jax.preparation.prepare import prepare
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import source_files, text_sources
from plm_jax.storage import hub_files

TEXT = 'hf://datasets/org/text'
SENTENCES = [f'The parrot number {number} is not dead. It is resting on perch {number % 7}.'
             for number in range(300)]


def json_lines(texts):
  return ''.join(json.dumps({'text': text}) + '\n' for text in texts).encode()


def parquet(texts):
  arrow, file = pytest.importorskip('pyarrow'), io.BytesIO()
  pytest.importorskip('pyarrow.parquet').write_table(arrow.table({'text': texts}), file)
  return file.getvalue()


FILES = {
    'README.md': b'# About', 'data/a.jsonl': json_lines(SENTENCES[:100]),
    'data/b.jsonl.gz': gzip.compress(json_lines(SENTENCES[100:200]), mtime=0),
    'data/_SUCCESS': b'', 'data/deep/c.jsonl': json_lines(SENTENCES[200:250]),
    'plain.txt': '\n\n'.join(SENTENCES).encode()}


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  with hub_server.Hub() as found:
    found.connect(monkeypatch)
    found.add('org/text', FILES, kind='datasets')
    hub_files.file_system.cache_clear()
    hub_files.find_commit.cache_clear()
    yield found
  hub_files.file_system.cache_clear()
  hub_files.find_commit.cache_clear()


def commit_of(server):
  return server.repositories['datasets', 'org/text'].branches['main']


@pytest.mark.parametrize(('source', 'names'), [
    ('plain.txt', ['plain.txt']),
    ('data', ['data/a.jsonl', 'data/b.jsonl.gz', 'data/deep/c.jsonl']),
    ('data/*.jsonl*', ['data/a.jsonl', 'data/b.jsonl.gz']),
    ('**/*.jsonl', ['data/a.jsonl', 'data/deep/c.jsonl']),
    ('data/[b].jsonl.gz', ['data/b.jsonl.gz'])])
def test_files_folders_and_globs_belong_to_one_commit(source, names, server):
  found = source_files.find_files(f'{TEXT}/{source}')
  assert list(map(str, found)) == [f'{TEXT}@{commit_of(server)}/{name}' for name in names]
  assert [file.stat().length for file in found] == [len(FILES[name]) for name in names]


def test_a_path_is_the_same_for_epath_and_in_another_process(server):
  path = storage.resolve_path(f'{TEXT}/plain.txt')
  assert isinstance(epath.Path(f'{TEXT}/plain.txt'), hub_files.HubPath)
  assert pickle.loads(pickle.dumps(path)) == path
  assert (path.exists(), path.is_file(), path.is_dir(),
          path.parent.is_dir()) == (True, True, False, True)
  assert path.read_bytes() == FILES['plain.txt'] == storage.read_bytes(path)
  assert storage.read_range(path, 4, 20) == FILES['plain.txt'][4:20]
  with pytest.raises(UserError, match='ends at byte'):
    storage.read_range(path, 4, 1 << 20)


def test_text_from_the_hub_is_prepared_like_a_folder(server, tmp_path):
  for name, content in FILES.items():
    (tmp_path / 'local' / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'local' / name).write_bytes(content)
  records = []
  for number, source in enumerate((f'{TEXT}/data', str(tmp_path / 'local/data'))):
    folder = tmp_path / f'records-{number}'
    prepare(PrepareConfig(source=source, vocab=300), folder)
    records.append({file.name: file.read_bytes() for file in folder.glob('*.npy')})
  assert records[0] == records[1]


def test_parquet_is_read_in_ranges(server):
  server.add('org/table', {'a.parquet': parquet(SENTENCES)}, kind='datasets')
  found = [document.paragraphs[0]
           for document in text_sources.read_documents('hf://datasets/org/table/a.parquet')]
  assert found == SENTENCES


def test_cleaned_text_comes_from_the_hub(server, tmp_path):
  corpus.clean(f'{TEXT}/data', tmp_path / 'clean')
  files = (tmp_path / 'clean').glob('documents-*')
  assert sum(gzip.decompress(file.read_bytes()).count(b'\n') for file in files) == 250


def test_the_digest_depends_on_content_and_names_but_needs_no_download(server):
  first = text_sources.fingerprint(f'{TEXT}/data')
  assert not server.sent
  server.add('org/text', {**FILES, 'README.md': b'another'}, kind='datasets')
  hub_files.find_commit.cache_clear()
  assert text_sources.fingerprint(f'{TEXT}/data') == first
  server.add('org/text', {**FILES, 'data/a.jsonl': b'{"text": "another"}'}, kind='datasets')
  hub_files.find_commit.cache_clear()
  assert text_sources.fingerprint(f'{TEXT}/data') != first


def test_a_revision_is_read(server):
  old = commit_of(server)
  server.add('org/text', {'plain.txt': b'New.'}, kind='datasets')
  assert storage.read_bytes(f'{TEXT}/plain.txt') == b'New.'
  for file in source_files.find_files(f'{TEXT}@{old}/plain.txt'):
    assert storage.read_bytes(file) == FILES['plain.txt']


def read(path):
  for file in source_files.find_files(path):
    with storage.open_stream(file) as stream:
      stream.read()


@pytest.mark.parametrize(('fault', 'message'), [
    (hub_server.Fault(403, 'resolve'), r'refuses access to org/text \(403\)'),
    (hub_server.Fault(401, 'resolve', headers={'X-Error-Code': 'GatedRepo'}),
     'org/text is gated: ask for access at .*/datasets/'),
    (hub_server.Fault('short', 'resolve', after=100),
     r'plain.txt ended at byte 100 of 18,488: the same command reads it'),
    (hub_server.Fault('corrupt', 'resolve'), 'plain.txt was damaged on its way')],
    ids=['403', 'gated', 'short', 'corrupt'])
def test_errors_are_one_line(fault, message, server):
  server.faults.append(fault)
  with pytest.raises(UserError, match=message) as raised:
    read(f'{TEXT}/plain.txt')
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize(('path', 'message'), [
    ('hf://datasets/org/nothing/a.txt',
     'there is no public dataset org/nothing on the Hugging Face hub'),
    (f'{TEXT}@v9/plain.txt', 'org/text on the Hugging Face hub has no revision v9'),
    (f'{TEXT}/b.txt', 'no files match'), ('hf://org/model', 'nor hf://datasets/ORG/NAME/PATH')])
def test_missing_files_are_named(path, message, server):
  with pytest.raises(UserError, match=message):
    source_files.find_files(path)


def test_a_cut_connection_is_continued(server, monkeypatch):
  monkeypatch.setattr('time.sleep', lambda seconds: None)
  server.faults.append(hub_server.Fault('cut', 'resolve', after=100, times=2))
  read(f'{TEXT}/plain.txt')
  assert server.faults[0].done == 2


def test_without_a_network(server, monkeypatch):
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  with pytest.raises(UserError, match='the dataset org/text cannot be read: HF_HUB_OFFLINE is set'):
    read(f'{TEXT}/plain.txt')


@pytest.mark.parametrize('write', [
    lambda path: storage.write(path, 'text'), lambda path: prepare(PrepareConfig(vocab=300), path)])
def test_nothing_is_written_to_the_hub(write, server):
  with pytest.raises(UserError, match='is on the Hugging Face hub, from where text is only read'):
    write(f'{TEXT}/out')
