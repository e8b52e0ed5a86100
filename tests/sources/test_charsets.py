import dataclasses
import gzip
import io

import pytest

from plm_jax import validation
from plm_jax.cli.flags import name_flags
from plm_jax.cli.inputs import read_text_lines
from plm_jax.cli.predict import PredictConfig
from plm_jax.config.run import ConfigError, PretrainRun
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.preparation import prepare
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import charsets, labeled_files, text_sources
from plm_jax.sources.conll import FileLayout
from plm_jax.sources.document_formats import TextReadConfig
from plm_jax.sources.lines import ReadStats, SourceError
from plm_jax.tasks.sources import SourceConfig, read_sources

CHINESE = '今天天气很好，我们去公园散步。\n\n这是第二行文字，说明经济发展的情况。\n'
JAPANESE = '今日はとても天気がいいので、公園へ散歩に行きました。\n\nカタカナも混ざっています。\n'
RUSSIAN = 'Сегодня очень хорошая погода, мы идём гулять в парк.\n\nМосква - столица России.\n'
TEXTS = {
    'gb18030': CHINESE, 'utf_16_le': CHINESE, 'utf_16_be': RUSSIAN, 'cp932': JAPANESE,
    'euc_jp': JAPANESE,
    'cp1251': RUSSIAN, 'koi8_r': RUSSIAN, 'big5': '今天天氣很好，我們去公園散步。\n\n這是第二行文字。\n',
    'cp949': '오늘은 날씨가 매우 좋습니다.\n\n공원에 갔습니다.\n',
    'cp1252': 'Le café était fermé.\n\nOù êtes-vous ?\n',
    'cp1250': 'Wczoraj poszliśmy na długi spacer.\n\nZażółć gęślą jaźń.\n',
    'cp1254': 'Bugün hava çok güzel.\n\nIşık söndü, şimdi.\n', 'cp866': RUSSIAN,
    'iso2022_jp': JAPANESE,
    'iso2022_kr': '오늘은 날씨가 매우 좋습니다.\n\n공원에 갔습니다.\n'}


@pytest.mark.parametrize('encoding', TEXTS)
def test_a_text_of_another_encoding_is_named_and_read_with_the_option(tmp_path, encoding):
  path, text = tmp_path / 'a.txt', TEXTS[encoding]
  path.write_bytes(text.encode(encoding))
  name = encoding.replace('_', '-')
  with pytest.raises(SourceError, match=f'--encoding={name}\\b'), name_flags(
      validation.field_paths(PrepareConfig)):
    list(text_sources.read_documents(str(path)))
  with pytest.raises(SourceError, match=r'convert it to UTF-8 \(iconv -f '), name_flags(()):
    list(text_sources.read_documents(str(path)))
  found = [document.paragraphs
           for document in text_sources.read_documents(str(path), TextReadConfig(encoding=name))]
  assert found == [[part] for part in text.strip().split('\n\n')]
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(text.encode(encoding)))
  assert [one.paragraphs for one in text_sources.read_documents(f'{path}.gz',
                                                           TextReadConfig(
                                                               encoding=encoding))] == found


@pytest.mark.parametrize('order', ['le', 'be'])
def test_utf_16_is_named_where_characters_end_in_a_zero_byte(tmp_path, order):
  """The Chinese character for one and the ideographic space look like N and 0 in the other byte
  order."""
  path = tmp_path / 'a.txt'
  path.write_bytes(('这是一个普通的句子\u3000它有一个空格。\n\n' * 40).encode(f'utf-16-{order}'))
  for on_error in 'refuse', 'skip':
    with pytest.raises(SourceError, match=f'give encoding=utf-16-{order}'):
      list(text_sources.read_documents(str(path), TextReadConfig(on_error)))
  path.write_bytes(b'\x1b[1mNorth\x1b[0m \x1b$ is a prompt\n')
  assert len(list(text_sources.read_documents(str(path)))) == 1


def test_utf_16_with_a_mark_and_ascii_text_in_utf_16(tmp_path):
  path = tmp_path / 'a.jsonl'
  content = '{"text": "One."}\n{"text": "Two."}\n'
  for encoding in ('utf-16', 'utf-16-le', 'utf-16-be', 'utf-32'):
    path.write_bytes(content.encode(encoding))
    with pytest.raises(SourceError, match=f'give encoding={encoding}'):
      list(labeled_files.iterate_rows(str(path)))
    rows = labeled_files.iterate_rows(str(path), layout=FileLayout(encoding=encoding))
    assert [row.columns['text'] for row in rows] == ['One.', 'Two.']


def test_a_zero_byte_and_a_bad_byte_are_no_reason_to_name_an_encoding(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_bytes(b'text\tlabel\na\0b\t1\nc\t2\n')
  found = read_sources('classification', [str(path)], on_error='skip')
  assert [example.texts for example in found.examples] == [('c',)]
  assert found.report.problems == [f'{path}:2: not a row of a table: it has a zero byte']
  # the file is UTF-8, and a line of it is not
  path.write_bytes('text\tlabel\nä\t1\n'.encode() + b'\xe4\t2\n')
  with pytest.raises(SourceError, match=r'a\.tsv:3: not UTF-8: .*\)\. Fix it, or'):
    read_sources('classification', [str(path)])


def test_bytes_that_are_not_of_the_encoding_are_those_of_one_line(tmp_path):
  path, stats = tmp_path / 'a.txt', ReadStats()
  path.write_bytes('один\n'.encode('cp1251') + b'\x98\n' + 'два\n'.encode('cp1251'))
  found = list(text_sources.read_documents(str(path),
                                      TextReadConfig('skip', division='lines', encoding='cp1251'),
                                      stats))
  assert [document.paragraphs for document in found] == [['один'], ['два']]
  assert stats.examples == [f'{path}:2: not cp1251']


def test_a_source_of_which_all_is_left_out_says_how_much_and_why(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_bytes((RUSSIAN * 5).encode('cp1251'))
  config = PrepareConfig(source=str(path), kind='bytes', on_error='skip')
  with pytest.raises(SourceError,
                     match=r'holds no documents: 10 lines were left out, the first because of '
                           r'.*a\.txt:1: '
                     r'not UTF-8.*probably cp1251'):
    prepare.prepare(config, tmp_path / 'records')
  assert not (tmp_path / 'records').exists()
  prepare.prepare(dataclasses.replace(config, encoding='cp1251'), tmp_path / 'records')
  (tmp_path / 'b.jsonl').write_text('{"text": null}\n{"text": 5}\n')
  with pytest.raises(SourceError, match=r'2 lines were left out, the first because of .*is null'):
    prepare.prepare(PrepareConfig(source=f'{tmp_path}/b.jsonl', kind='bytes', on_error='skip'),
                    tmp_path / 'more')
  with pytest.raises(SourceError,
                     match=r'has no examples: 2 lines were left out, the first because of .*is '
                           r'null'):
    read_sources('classification', [f'{tmp_path}/b.jsonl'], on_error='skip')


def test_labelled_rows_of_another_encoding(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_bytes('text,label\nхорошо,да\nплохо,нет\n'.encode('koi8_r'))
  found = read_sources('classification', [str(path)], encoding='koi8-r')
  assert found.labels == ('да', 'нет')
  assert [example.texts for example in found.examples] == [('хорошо',), ('плохо',)]


def test_standard_input_of_another_encoding(monkeypatch):
  class Stdin:
    buffer = io.BytesIO('один\nдва\n'.encode('cp1251'))
  monkeypatch.setattr('sys.stdin', Stdin)
  assert list(read_text_lines('-', encoding='cp1251')) == [(1, 'один'), (2, 'два')]


@pytest.mark.parametrize('config', [PrepareConfig, CleanConfig, SourceConfig, PredictConfig])
def test_an_unknown_encoding_is_refused(config):
  for encoding in ('klingon', 'base64'):
    with pytest.raises(ConfigError, match=f'encoding .*{encoding}'):
      config(encoding=encoding)
  assert config(encoding='Shift_JIS').encoding == 'Shift_JIS'


def test_the_encoding_is_part_of_the_fingerprint_of_records(monkeypatch):
  monkeypatch.setattr(text_sources, 'fingerprint', lambda source: 'x')
  config = PrepareConfig(source='embedded', kind='bytes')
  assert prepare.fingerprint(config, None) != prepare.fingerprint(
      dataclasses.replace(config, encoding='cp1251'), None)
  assert 'data.prepare.encoding' in validation.field_paths(PretrainRun)


def test_some_encodings_cannot_be_told():
  assert charsets.guess_encoding(b'') == charsets.guess_encoding(bytes(range(128, 256)) * 3) == ''
