import gzip
import json
import lzma
import os

import pytest

from plm_jax.data import embedded, sources
from plm_jax.data.sources import SourceError, Tally

TEXT = 'One.\nTwo\x0b\x85 end.\r\n\n \n\nThree.\u2028Four.\n'  # a newline ends a line, and nothing else does
DOCUMENTS = [['One.', 'Two\x0b\x85 end.'], ['Three.\u2028Four.']]


def read(source, **options):
  return [document.paragraphs for document in sources.documents(str(source), **options)]


@pytest.mark.parametrize(('name', 'pack'), [
    ('a.txt', bytes), ('a.txt.gz', gzip.compress), ('a.xz', lzma.compress), ('no_suffix', bytes),
    ('bom.txt', lambda text: b'\xef\xbb\xbf' + text),
])
def test_text(tmp_path, name, pack):
  path = tmp_path / name
  path.write_bytes(pack(TEXT.encode()))
  assert read(path) == DOCUMENTS
  assert [document.where for document in sources.documents(str(path))] == [f'{path}:1', f'{path}:6']


@pytest.mark.parametrize(('name', 'pack'), [
    ('a.jsonl', bytes), ('a.jsonl.gz', gzip.compress), ('a.jsonl.xz', lzma.compress)])
def test_jsonl(tmp_path, name, pack):
  lines = [{'text': 'One.\nTwo.\n\nThree.', 'id': 1}, {'text': ''}, {'text': '四。'}]
  (tmp_path / name).write_bytes(pack('\n'.join(map(json.dumps, lines)).encode() + b'\n\n'))
  assert read(tmp_path / name) == [['One.', 'Two.', 'Three.'], ['四。']]


def test_many_files_in_order(tmp_path):
  for name in ('b.txt', 'a.txt', 'sub/c.txt', '.hidden', '_SUCCESS'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  assert read(tmp_path) == [['a.txt'], ['b.txt'], ['sub/c.txt']]
  assert read(tmp_path / '*.txt') == [['a.txt'], ['b.txt']]
  assert read(tmp_path / '**/c.*') == [['sub/c.txt']]
  assert read(f'{tmp_path}/b.txt, {tmp_path}/sub') == [['b.txt'], ['sub/c.txt']]
  assert sources.size(str(tmp_path)) == len('a.txtb.txtsub/c.txt')


def test_embedded(tmp_path, monkeypatch):
  (tmp_path / 'corpus.txt').write_text('Prose.\n\nMore.\n')
  monkeypatch.setattr(embedded, 'corpus_path', lambda: tmp_path / 'corpus.txt')
  assert read('embedded') == [['Prose.'], ['More.']]


def test_not_utf8_is_refused_by_name(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_bytes(b'good\nbad \xff\xfe\nalso good\n')
  with pytest.raises(SourceError) as error:
    read(path)
  assert str(error.value) == (
      f"{path}:2: not UTF-8: invalid start byte at byte 4 of the line (byte 5 of the file). "
      "Mend it, or leave such lines out with on_error='skip'.")


def test_skipped_lines_are_counted_and_named(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'good\nbad \xff\nalso good\n\n\xfe\n')
  (tmp_path / 'b.jsonl').write_bytes(b'{"text": "good"}\n{"text": \n{"body": "x"}\n[1]\n"text"\n{"text": "\\ud800"}\n')
  tally = Tally()
  assert read(tmp_path, on_error='skip', tally=tally) == [['good', 'also good'], ['good']]
  assert tally.skipped == 7
  assert [example.removeprefix(str(tmp_path))[:24] for example in tally.examples] == [
      '/a.txt:2: not UTF-8: inv', '/a.txt:5: not UTF-8: inv', '/b.jsonl:2: not JSON: Ex', "/b.jsonl:3: no field 'te",
      "/b.jsonl:4: no field 'te", "/b.jsonl:5: no field 'te", "/b.jsonl:6: not text: 'u"]
  with pytest.raises(SourceError, match=r'b.jsonl:2: not JSON: Expecting value'):
    read(tmp_path / 'b.jsonl')


def test_examples_are_few(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'\xff\n' * 1000)
  tally = Tally()
  assert read(tmp_path / 'a.txt', on_error='skip', tally=tally) == []
  assert (tally.skipped, len(tally.examples)) == (1000, 10)


@pytest.mark.parametrize('on_error', ['refuse', 'skip'])
@pytest.mark.parametrize(('name', 'content', 'message'), [
    ('a.txt.gz', gzip.compress(os.urandom(9000))[:5000], 'a.txt.gz: damaged or cut off after line'),
    ('a.txt.xz', lzma.compress(os.urandom(9000))[:5000], 'a.txt.xz: damaged or cut off after line'),
    ('b.gz', b'plain text', 'b.gz: damaged or cut off after line 0: Not a gzipped file'),
    ('b.xz', b'plain text', 'b.xz: damaged or cut off after line 0'),
])
def test_damaged_archives(tmp_path, name, content, message, on_error):
  if content[:2] == b'\x1f\x8b' or content[:1] == b'\xfd':
    content = (gzip if name.endswith('gz') else lzma).compress(b'line\n' * 9 + bytes(range(32, 127)) * 90)[:-30]
  (tmp_path / name).write_bytes(content)
  with pytest.raises(SourceError, match=message):
    read(tmp_path / name, on_error=on_error)


def test_nothing_there(tmp_path):
  for source in (tmp_path / 'gone.txt', tmp_path / '*.txt', tmp_path, 'gs-less/nowhere/*'):
    with pytest.raises(SourceError, match=r'no files match .*expected a file, folder or glob'):
      read(source)


def test_no_line_or_document_outgrows_memory(tmp_path, monkeypatch):
  path = tmp_path / 'a.txt'
  path.write_text('one\ntwo\nthree\nfour\n\nfive\n')
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 6)
  tally = Tally()
  assert read(path, tally=tally) == [['one', 'two'], ['three', 'four'], ['five']]
  assert tally.cut == 2
  monkeypatch.setattr(sources, 'MAX_LINE', 4)
  with pytest.raises(SourceError, match=r'a.txt:3: a line of more than'):
    read(path)


def test_bytes_read_reach_the_size(tmp_path):
  (tmp_path / 'a.txt').write_text('x\n' * 5000)
  (tmp_path / 'b.txt.gz').write_bytes(gzip.compress(b'y\n\n' * 5000))
  tally, seen = Tally(), []
  for _ in sources.documents(str(tmp_path), tally=tally):
    seen.append(tally.bytes)
  assert seen == sorted(seen)
  assert tally.bytes == sources.size(str(tmp_path))


def test_fingerprint_follows_content(tmp_path):
  path = tmp_path / 'a.txt'
  found = []
  for text in ('one', 'two', 'two', 'twoo'):
    path.write_text(text)
    found.append(sources.fingerprint(str(path)))
  assert found[1] == found[2]
  assert len(set(found)) == 3


def test_tfds(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  tf = pytest.importorskip('tensorflow')
  features = tfds.features.FeaturesDict({'text': tfds.features.Text()})
  folder, splits = tmp_path / 'prose', []
  folder.mkdir()
  for split, texts in (('train', ['One.\nTwo.', '三。', '']), ('test', ['Other.'])):
    with tf.io.TFRecordWriter(f'{folder}/prose-{split}.tfrecord-00000-of-00001') as writer:
      for text in texts:
        writer.write(features.serialize_example({'text': text}))
    template = tfds.core.ShardedFileTemplate(folder, dataset_name='prose', split=split, filetype_suffix='tfrecord')
    splits.append(tfds.core.SplitInfo(split, [len(texts)], 0, template))
  tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=splits)
  documents = read(f'tfds:{folder}')
  assert documents == [['One.', 'Two.'], ['三。']]
  assert documents == read(f'tfds:{folder}:train')
  assert read(f'tfds:{folder}:test') == [['Other.']]
  assert len(read(f'tfds:{folder}:train[:34%]+test')) == 2
  assert sources.fingerprint(f'tfds:{folder}') != sources.fingerprint(f'tfds:{folder}:test')
  with pytest.raises(SourceError, match=r'tfds:.*nosuch'):
    read(f'tfds:{folder}:nosuch')
  with pytest.raises(SourceError, match='tfds:no_such_data_set'):
    read('tfds:no_such_data_set')
