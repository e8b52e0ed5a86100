import bz2
import gzip
import json
import lzma
import os
import socket
import time

import pytest

from plm_jax import validation
from plm_jax.cli.flags import name_flags
from plm_jax.config.run import PretrainRun
from plm_jax.sources import builtin_corpus, document_formats, lines, text_sources, tfds
from plm_jax.sources.document_formats import TextReadConfig
from plm_jax.sources.lines import ReadStats, SourceError

# a newline ends a line, and nothing else does
TEXT = 'One.\nTwo\x0b\x85 end.\r\n\n \n\nThree.\u2028Four.\n'
DOCUMENTS = [['One.', 'Two\x0b\x85 end.'], ['Three.\u2028Four.']]


def read(source, stats=None, **reading):
  documents = text_sources.read_documents(str(source), TextReadConfig(**reading), stats)
  return [document.paragraphs for document in documents]


@pytest.mark.parametrize(('name', 'pack'), [
    ('a.txt', bytes), ('a.txt.gz', gzip.compress), ('a.xz', lzma.compress), ('a.bz2', bz2.compress),
    ('no_suffix', bytes),
    ('bom.txt', lambda text: b'\xef\xbb\xbf' + text),
])
def test_text(tmp_path, name, pack):
  path = tmp_path / name
  path.write_bytes(pack(TEXT.encode()))
  assert read(path) == DOCUMENTS
  assert [document.where for document in text_sources.read_documents(str(path))] == [
      f'{path}:1', f'{path}:6']


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
  assert text_sources.source_bytes(str(tmp_path)) == len('a.txtb.txtsub/c.txt')


def test_embedded(tmp_path, monkeypatch):
  (tmp_path / 'corpus.txt').write_text('Prose.\n\nMore.\n')
  monkeypatch.setattr(builtin_corpus, 'corpus_path', lambda: tmp_path / 'corpus.txt')
  assert read('embedded') == [['Prose.'], ['More.']]


def test_not_utf8_is_refused_by_name(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_bytes(b'good\nbad \xff\xfe\nalso good\n')
  with pytest.raises(SourceError) as error:
    read(path)
  assert str(error.value) == (
      f"{path}:2: not UTF-8: invalid start byte at byte 4 of the line (byte 5 of the file). "
      "Fix it, or leave such lines out with on_error=skip.")


def test_skipped_lines_are_counted_and_named(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'good\nbad \xff\nalso good\n\n\xfe\n')
  (tmp_path / 'b.jsonl').write_bytes(
      b'{"text": "good"}\n{"text": \n{"body": "x"}\n[1]\n"text"\n{"text": "\\ud800"}\n')
  stats = ReadStats()
  assert read(tmp_path, on_error='skip', stats=stats) == [['good', 'also good'], ['good']]
  assert stats.skipped == 7
  assert [example.removeprefix(str(tmp_path))[:24] for example in stats.examples] == [
      '/a.txt:2: not UTF-8: inv', '/a.txt:5: not UTF-8: inv', '/b.jsonl:2: not JSON: Ex',
      "/b.jsonl:3: no field 'te",
      "/b.jsonl:4: an object is", "/b.jsonl:5: an object is", "/b.jsonl:6: not text: 'u"]
  with pytest.raises(SourceError, match=r'b.jsonl:2: not JSON: Expecting value'):
    read(tmp_path / 'b.jsonl')


def test_examples_are_few(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'\xff\n' * 1000)
  stats = ReadStats()
  assert read(tmp_path / 'a.txt', on_error='skip', stats=stats) == []
  assert (stats.skipped, len(stats.examples)) == (1000, 10)


@pytest.mark.parametrize('on_error', ['refuse', 'skip'])
@pytest.mark.parametrize(('name', 'content', 'message'), [
    ('a.txt.gz', gzip.compress(os.urandom(9000))[:5000], 'a.txt.gz: damaged or cut off after line'),
    ('a.txt.xz', lzma.compress(os.urandom(9000))[:5000], 'a.txt.xz: damaged or cut off after line'),
    ('b.gz', b'plain text', 'b.gz: damaged or cut off after line 0: Not a gzipped file'),
    ('b.xz', b'plain text', 'b.xz: damaged or cut off after line 0'),
])
def test_damaged_archives(tmp_path, name, content, message, on_error):
  if content[:2] == b'\x1f\x8b' or content[:1] == b'\xfd':
    content = (gzip if name.endswith('gz') else lzma).compress(
        b'line\n' * 9 + bytes(range(32, 127)) * 90)[:-30]
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
  monkeypatch.setattr(document_formats, 'MAX_DOCUMENT', 6)
  stats = ReadStats()
  assert read(path, stats=stats) == [['one', 'two'], ['three', 'four'], ['five']]
  assert stats.split_documents == 2
  monkeypatch.setattr(lines, 'MAX_LINE', 5)
  with pytest.raises(SourceError, match=r'a.txt:3: a line of more than'):
    read(path)
  stats = ReadStats()
  assert read(path, stats=stats, on_error='skip') == [['one', 'two'], ['four'], ['five']]
  assert stats.skipped == 1


def test_bytes_read_reach_the_size(tmp_path):
  (tmp_path / 'a.txt').write_text('x\n' * 5000)
  (tmp_path / 'b.txt.gz').write_bytes(gzip.compress(b'y\n\n' * 5000))
  stats, seen = ReadStats(), []
  for _ in text_sources.read_documents(str(tmp_path), stats=stats):
    seen.append(stats.bytes)
  assert seen == sorted(seen)
  assert stats.bytes == text_sources.source_bytes(str(tmp_path))


def test_fingerprint_follows_content(tmp_path):
  path = tmp_path / 'a.txt'
  found = []
  for text in ('one', 'two', 'two', 'twoo'):
    path.write_text(text)
    found.append(text_sources.fingerprint(str(path)))
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
    template = tfds.core.ShardedFileTemplate(folder, dataset_name='prose', split=split,
                                             filetype_suffix='tfrecord')
    splits.append(tfds.core.SplitInfo(split, [len(texts)], 0, template))
  tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=splits)
  documents = read(f'tfds:{folder}')
  assert documents == [['One.', 'Two.'], ['三。']]
  assert documents == read(f'tfds:{folder}:train')
  assert read(f'tfds:{folder}:test') == [['Other.']]
  assert len(read(f'tfds:{folder}:train[:34%]+test')) == 2
  fingerprints = [text_sources.fingerprint(f'tfds:{folder}{split}') for split in ('', ':test')]
  assert fingerprints[0] != fingerprints[1]
  with pytest.raises(SourceError, match=r'tfds:.*nosuch'):
    read(f'tfds:{folder}:nosuch')
  with pytest.raises(SourceError, match=r"has no feature 'body', only \['text'\]"):
    read(f'tfds:{folder}', field='body')
  with open(f'{folder}/prose-test.tfrecord-00000-of-00001', 'r+b') as file:
    file.write(b'damage')
  with pytest.raises(SourceError, match=r'^tfds:.*:test: .*corrupted record'):
    read(f'tfds:{folder}:test')
  with pytest.raises(SourceError, match='tfds:no_such_data_set'):
    read('tfds:no_such_data_set')


def test_messages_name_the_option_as_it_is_typed_at_that_door(tmp_path):
  (tmp_path / 'a.jsonl').write_text('{"body": "x"}\n')
  with pytest.raises(SourceError,
                     match=r"a\.jsonl:1: no field 'text', only body; text_field=NAME reads "
                           r"another$"):
    read(tmp_path)
  (tmp_path / 'a.jsonl').write_text('{"text": "x"}\n{"body": "x"}\n')
  with pytest.raises(SourceError, match=r'text_field=NAME reads another.*with on_error=skip\.$'):
    read(tmp_path)
  paths = validation.field_paths(PretrainRun)
  with pytest.raises(SourceError, match=r'--data\.prepare\.on-error=skip\.$'), name_flags(paths):
    read(tmp_path)
  with pytest.raises(SourceError, match=r"a\.jsonl:2: no field 'text', only body$"), name_flags(()):
    read(tmp_path)


WIKI = ('<doc id="12" url="https://x" title="Anarchism">\nAnarchism\n\nIt is a '
        '<b>movement</b>.\nMore.\n\n</doc>\n'
        '<doc id="39" url="https://x" title="Albedo">\nAlbedo\n\nA fraction.\n</doc>\n')
ARTICLES = [['Anarchism', 'It is a <b>movement</b>.', 'More.'], ['Albedo', 'A fraction.']]
JSON = '{"id": "1", "text": "One.\\nTwo."}\n{"id": "2", "text": "Three."}\n'


@pytest.mark.parametrize(('name', 'content', 'expected'), [
    ('AA/wiki_00', WIKI, ARTICLES),
    ('wiki.txt', WIKI, ARTICLES),
    ('wiki_01', JSON, [['One.', 'Two.'], ['Three.']]),
    ('a.JSONL', JSON, [['One.', 'Two.'], ['Three.']]),
    ('a.ndjson', JSON, [['One.', 'Two.'], ['Three.']]),
    ('a.json', JSON, [['One.', 'Two.'], ['Three.']]),
    ('b.json', '[{"text": "One."}, "Two.\\nThree."]', [['One.'], ['Two.', 'Three.']]),
    ('c.json', '\n[\n "One.",\n "Two."\n]\n', [['One.'], ['Two.']]),
    ('A.TXT', 'One.\n\nTwo.\n', [['One.'], ['Two.']]),
    ('mac.txt', 'One.\r\rTwo.\rThree.', [['One.'], ['Two.', 'Three.']]),
    ('zero.txt', 'On\0e.\n\nTwo.\n', [['On\0e.'], ['Two.']]),
    ('a.tsv', 'id\ttext\n1\t"One.\n2\tTwo.\n', [['"One.'], ['Two.']]),
    ('a.csv', 'id,text\n1,"One,\nor two."\n2,Three.\n', [['One,', 'or two.'], ['Three.']]),
    ('code.txt', '{ is a brace\n\n[so is this]\n', [['{ is a brace'], ['[so is this]']]),
])
def test_what_a_file_holds_is_seen(tmp_path, name, content, expected):
  (tmp_path / name).parent.mkdir(exist_ok=True)
  (tmp_path / name).write_bytes(content.encode())
  assert read(tmp_path) == expected
  (tmp_path / name).rename(tmp_path / 'moved')
  (tmp_path / f'{name}.XZ').write_bytes(lzma.compress(content.encode()))
  (tmp_path / 'moved').unlink()
  assert read(tmp_path) == expected


@pytest.mark.parametrize(('name', 'content', 'message'), [
    ('a.parquet', b'PAR1\x15', r'a\.parquet is damaged, or not a Parquet file'),
    ('a.txt', b'PAR1\x15',
     r'is a Parquet file, and its name does not end in \.parquet. Expected text in UTF-8'),
    ('a.docx', b'PK\x03\x04\x14', 'is a zip archive'),
    ('a.pdf', b'%PDF-1.5', 'is a PDF'),
    ('a.txt', gzip.compress(b'x', mtime=0),
     r'is packed by gzip, and its name does not end in \.gz'),
    ('a.txt.gz', gzip.compress(b'PK\x03\x04', mtime=0), 'is a zip archive'),
    ('a.tar.gz', gzip.compress(bytes(257) + b'ustar\x0000' + bytes(300), mtime=0),
     'is a tar archive'),
    ('a.bz2', b'BZh91AY', r'a\.bz2: damaged or cut off after line 0'),
    ('a.txt', b'BZh91AY', 'is packed by bzip2'),
    ('a.txt', 'text'.encode('utf-16'), "is in UTF-16: give encoding=utf-16"),
    ('a.txt', 'more text'.encode('utf-16-be'), "big-endian UTF-16 .*: give encoding=utf-16-be"),
    ('a.txt', bytes(300), 'full of zero bytes'),
    ('a.json', b'{\n "text": "One."\n}\n', 'neither a line for each document nor a list'),
    ('a.json', b'[1, 2]', r'a\.json\[0\]: neither a text nor an object with one'),
    ('a.json', b'["One.", ', 'cannot be read as JSON'),
    ('a.json', b'{"version": "1", "data": []}',
     r"no field 'text', only version, data; text_field=NAME"),
    ('a.tsv', b'sentence\tlabel\nx\t1\n',
     r"with no column 'text', its first line is: sentence, label.*task:"),
    ('a.csv', b'text\n"no end\n', r'a\.csv:2: not a row of a table'),
    ('a.jsonl', b'{"n": ' + b'7' * 5000 + b'}',
     r'a\.jsonl:1: not JSON: Exceeds the limit.*on_error=skip'),
    ('a.jsonl', b'[' * 200_000, r'a\.jsonl:1: .*not JSON'),
    ('a.jsonl', b'{"a": ' * 200_000, r'a\.jsonl:1: not JSON that can be read: values too deep'),
])
def test_what_is_no_text_is_named(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(SourceError, match=message):
    read(tmp_path)


def test_lines_of_too_much_json_are_left_out(tmp_path):
  (tmp_path / 'a.jsonl').write_text(f'{{"n": {"7" * 5000}}}\n{"[" * 100_000}\n{{"text": "good"}}\n')
  stats = ReadStats()
  assert read(tmp_path, stats, on_error='skip') == [['good']]
  assert stats.skipped == 2


def test_another_field(tmp_path):
  (tmp_path / 'a.jsonl').write_text('{"body": "One."}\n')
  (tmp_path / 'b.tsv').write_text('body\nTwo.\n')
  assert read(tmp_path, field='body') == [['One.'], ['Two.']]


@pytest.mark.parametrize(('files', 'division', 'expected'), [
    (['one\ntwo\n\nthree\n'], 'auto', [['one', 'two'], ['three']]),
    (['one\ntwo\n'], 'auto', [['one'], ['two']]),  # alone
    (['one\ntwo\n', 'three\n'], 'auto', [['one', 'two'], ['three']]),
    (['one\ntwo\n'], 'blank-lines', [['one', 'two']]),
    (['one\n\ntwo\nthree\n'], 'lines', [['one'], ['two'], ['three']]),
    (['one\n\ntwo\n', 'three\n'], 'files', [['one', 'two'], ['three']]),
])
def test_what_divides_documents(tmp_path, files, division, expected):
  for number, text in enumerate(files):
    (tmp_path / f'{number}.txt').write_text(text)
  assert read(tmp_path, division=division) == expected


def test_long_files_without_a_blank_line_are_documents_a_line(tmp_path, monkeypatch):
  (tmp_path / 'a.txt').write_text('one\n' * 10)
  (tmp_path / 'b.txt').write_text('one\n' * 9 + '\n')
  stats = ReadStats()
  assert len(read(tmp_path, stats)) == 2 and not stats.line_divided
  monkeypatch.setattr(lines, 'BEGINNING_BYTES', 20)
  assert len(read(tmp_path, stats)) == 19 and stats.line_divided == [f'{tmp_path}/a.txt',
                                                                     f'{tmp_path}/b.txt']


def test_pipes_and_commas_are_refused(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  with pytest.raises(SourceError, match='is no ordinary file'):
    read(tmp_path / 'pipe')
  with pytest.raises(SourceError, match='names no text'):
    read(f'{tmp_path},')


def test_an_edit_of_equal_size_in_the_middle_is_noticed(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('x' * 300_000)
  before = text_sources.fingerprint(str(path))
  path.write_text('x' * 150_000 + 'y' + 'x' * 149_999)
  assert text_sources.fingerprint(str(path)) != before


def test_what_is_known_of_a_large_text_is_noted(tmp_path, monkeypatch):
  path = tmp_path / 'a.txt'
  path.write_text('x' * 1000)
  expected = text_sources.fingerprint(str(path))
  monkeypatch.setattr(text_sources, 'NOTE_BYTES', 0)
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  assert text_sources.fingerprint(str(path)) == expected
  with monkeypatch.context() as patch:
    patch.setattr(text_sources, 'content_digest', lambda file: 1 / 0)
    assert text_sources.fingerprint(str(path)) == expected
  path.write_text('y' * 1000)
  assert text_sources.fingerprint(str(path)) != expected


def test_what_tfds_raises_is_one_line(tmp_path, monkeypatch):
  tfds = pytest.importorskip('tensorflow_datasets')

  def offline(name):
    raise ConnectionError('no way to\nstorage.googleapis.com')

  monkeypatch.setattr(tfds, 'builder', offline)
  with pytest.raises(SourceError, match=r'^tfds:wiki40b/en: no way to storage\.googleapis\.com$'):
    read('tfds:wiki40b/en')


def test_whole_texts(tmp_path):
  for name, content in (('a.txt', 'One.\n\n Two.\n'), ('b.JSONL', '{"text": "Three.\\nFour."}\n'),
                        ('c_00', WIKI)):
    (tmp_path / name).write_text(content)
  assert list(text_sources.read_texts(str(tmp_path))) == [
      'One.\n\n Two.\n', 'Three.\nFour.', 'Anarchism\n\nIt is a <b>movement</b>.\nMore.\n',
      'Albedo\n\nA fraction.']


def test_what_may_not_be_read_is_one_line(tmp_path, monkeypatch):
  path = tmp_path / 'a.txt'
  path.write_text('x')

  def denied(path):
    raise PermissionError(13, 'Permission denied', str(path))

  monkeypatch.setattr(text_sources.storage, 'open_stream', denied)
  with pytest.raises(SourceError, match=r'a\.txt cannot be read: .*: Permission denied'):
    read(path)


def test_no_paragraph_outgrows_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(document_formats, 'MAX_PARAGRAPH', 6)
  (tmp_path / 'a.txt').write_text('One two three.\n漢漢漢漢漢漢漢漢\n\nabcdef\n')
  (tmp_path / 'b.jsonl').write_text('{"text": "One two."}\n')
  assert read(tmp_path) == [['One ', 'two ', 'three.', '漢漢漢漢漢漢', '漢漢'], ['abcdef'],
                            ['One ', 'two.']]


@pytest.mark.parametrize('answers', [False, True])
def test_a_server_that_does_not_answer_is_given_up_soon(answers, monkeypatch, capfd):
  """One that refuses connections, and one that accepts them and sends nothing."""
  import tensorflow_datasets
  from tensorflow_datasets.core.download import downloader
  monkeypatch.setattr(tfds, 'READ_TIMEOUT', 0.2)
  before = downloader.MAX_RETRIES
  with socket.create_server(('127.0.0.1', 0)) as server:
    address = f'http://127.0.0.1:{server.getsockname()[1]}/data.zip'
    if not answers:
      server.close()
    class Builder:
      data_path = '/nowhere/glue'
      def is_prepared(self):
        return False
      def download_and_prepare(self):
        with downloader._open_url(address):
          raise AssertionError('nothing answers')
    monkeypatch.setattr(tensorflow_datasets, 'builder', lambda name: Builder())
    begun = time.monotonic()
    with pytest.raises(SourceError,
                       match=r'tfds:glue cannot be downloaded: 127\.0\.0\.1 cannot be reached .* '
                             r'give a'):
      tfds.open_builder('tfds:glue')
  assert time.monotonic() - begun < 10
  assert capfd.readouterr().err == 'tfds:glue is not in /nowhere/glue: TFDS is downloading it\n'
  assert before == downloader.MAX_RETRIES
