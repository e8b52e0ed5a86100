"""Corpora as they are distributed: Common Crawl's WET files, Wikipedia's dumps, C4, datatrove's
output; and damaged."""
import bz2
import gzip
import json
import sys

import mutate
import pytest

from plm_jax.errors import UserError
from plm_jax.sources import text_sources
from plm_jax.sources.document_formats import TextReadConfig
from plm_jax.sources.lines import ReadStats, SourceError


def read(source, stats=None, **reading):
  documents = text_sources.read_documents(str(source), TextReadConfig(**reading), stats)
  return [document.paragraphs for document in documents]


def record(text, kind='conversion', length=None):
  content = text.encode()
  header = (f'WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://x/\r\nContent-Type: '
            f'text/plain\r\n'
            f'Content-Length: {len(content) if length is None else length}\r\n\r\n')
  return header.encode() + content + b'\r\n\r\n'


INFO = record('Software-Info: x\r\n', 'warcinfo')
WET = INFO + record('Home\n\nOne page.\nMore.\n') + record('WARC/1.0\r\n四。')


@pytest.mark.parametrize(('name', 'content'), [
    ('a.warc.wet', WET), ('a.warc.wet.gz', gzip.compress(WET)),
    # a member a record, as released
    ('b.wet.gz', b''.join(gzip.compress(part) for part in (INFO, WET[len(INFO):])))])
def test_wet(tmp_path, name, content):
  (tmp_path / name).write_bytes(content)
  assert read(tmp_path) == [['Home', 'One page.', 'More.'], ['WARC/1.0', '四。']]
  assert [document.where for document in text_sources.read_documents(str(tmp_path))] == [
      f'{tmp_path / name}[2]', f'{tmp_path / name}[3]']
  assert len(list(text_sources.read_texts(str(tmp_path / name)))) == 2


@pytest.mark.parametrize(('content', 'message', 'left'), [
    (INFO + record('One.', length=2) + record('Two.'),
     r'a\.wet\[2\]: no record begins after the 2 bytes', [['Two.']]),
    (INFO + record('One.', length=8) + record('Two.'),
     r'a\.wet\[2\]: no record begins after the 8 bytes', [['Two.']]),
    (INFO + record('One.', length='x') + record('Two.'),
     r"a\.wet\[2\]: a Content-Length .* got 'x'", [['Two.']]),
    (record('One.') + record('One.', length=3), r'a\.wet\[2\]: no record begins after the 3',
     [['One.']]),
    (INFO + record('\ud800'.encode('utf-8', 'surrogatepass').decode('latin-1')).replace(
        b'\xc3\xad', b'\xed'),
     r'a\.wet\[2\]: not UTF-8', []),
    (record('One.') + record('Two.')[:-9], r'a\.wet\[2\]: cut off: 0 bytes of the 4', None),
    (record('One.') + record('Two.')[:50], r'a\.wet\[2\]: cut off in its header', None),
    (record('One.', 'response'),
     r'a\.wet\[1\] is a response of a web server: .* expected the WET file', None),
])
def test_damaged_wet(tmp_path, content, message, left):
  (tmp_path / 'a.wet').write_bytes(content)
  with pytest.raises(SourceError, match=message):
    read(tmp_path)
  stats = ReadStats()
  if left is None:
    with pytest.raises(SourceError, match=message):
      read(tmp_path, on_error='skip')
  else:
    assert read(tmp_path, stats, on_error='skip') == left
    assert stats.skipped == 1


def test_archives_that_are_cut_off(tmp_path):
  (tmp_path / 'a.wet.gz').write_bytes(gzip.compress(WET)[:-12])
  with pytest.raises(SourceError,
                     match=r'a\.wet\.gz: damaged or cut off after .*: Compressed file ended'):
    read(tmp_path)


WIKITEXT = """{{Infobox|name=[[X]]}}
'''Albedo''' ({{IPA|x}}; {{lang|la|y}}) is a ''fraction'' of [[light|sunlight]] that is \
[[Diffuse reflection|diffusely]]
reflected.<ref>Smith, ''Light''.</ref> It is 5&nbsp;% <!-- no --> at most.
[[File:A.jpg|thumb|A [[caption]] of it]]
[[Kategorie:Physik]]

== Heading ==
* an item
* another with '''weight'''
{| class="wikitable"
| a cell
|}
A second paragraph<br />and [http://x.org a page], <math>x^2</math>.
[[Category:Light]]
"""
PAGE = ('<page><title>{}</title><ns>{}</ns><id>1</id>{}<revision><id>2</id>'
        '<model>wikitext</model><text>{}</text></revision></page>')
HEAD = ('<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" '
        'version="0.11">\n<siteinfo><namespaces>'
        '<namespace key="0" /><namespace key="14">Kategorie</namespace></namespaces></siteinfo>\n')


def dump(*pages):
  return HEAD + '\n'.join(pages) + '\n</mediawiki>\n'


def escaped(text):
  return text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')


ARTICLES = dump(PAGE.format('Albedo', 0, '', escaped(WIKITEXT)),
                PAGE.format('Talk:Albedo', 1, '', 'No.'),
                PAGE.format('Other', 0, '<redirect title="Albedo" />', '#REDIRECT [[Albedo]]'),
                PAGE.format('四', 0, '', '四是一个数字。'))


@pytest.mark.parametrize('name', ['pages-articles.xml', 'pages-articles.xml.bz2',
                                  'pages-articles1.xml-p1p9.bz2'])
def test_dumps(tmp_path, name):
  pytest.importorskip('mwparserfromhell')
  content = ARTICLES.encode()
  (tmp_path / name).write_bytes(bz2.compress(content) if name.endswith('bz2') else content)
  assert read(tmp_path) == [[
      'Albedo is a fraction of sunlight that is diffusely', 'reflected. It is 5\xa0%  at most.',
      'A second paragraph', 'and a page, .'], ['四是一个数字。']]
  assert [document.where for document in text_sources.read_documents(str(tmp_path))] == [
      f'{tmp_path / name}[Albedo]', f'{tmp_path / name}[四]']


@pytest.mark.parametrize(('content', 'message'), [
    (ARTICLES[:-20].encode(), r'a\.xml:\d+: damaged or cut off: not the XML of a dump: '),
    (ARTICLES.replace('</revision>', '', 1).encode(), r'a\.xml:\d+: .*mismatched tag'),
    (ARTICLES.encode().replace('四'.encode(), b'\xff'), r'a\.xml:\d+: .*not well-formed'),
])
def test_damaged_dumps(tmp_path, content, message):
  pytest.importorskip('mwparserfromhell')
  (tmp_path / 'a.xml').write_bytes(content)
  with pytest.raises(SourceError, match=message):
    read(tmp_path, on_error='skip')
  (tmp_path / 'a.xml').unlink()
  (tmp_path / 'b.xml.bz2').write_bytes(bz2.compress(ARTICLES.encode())[:-30])
  with pytest.raises(SourceError,
                     match=r'b\.xml\.bz2: damaged or cut off after .*: Compressed file ended'):
    read(tmp_path)


def test_a_dump_without_its_library(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'mwparserfromhell', None)
  (tmp_path / 'a.xml').write_text(ARTICLES)
  with pytest.raises(SourceError,
                     match=r"mwparserfromhell: pip install 'plm_jax\[corpora\]'; or "
                           r".*WikiExtractor"):
    read(tmp_path)


def test_c4_and_datatrove(tmp_path):
  lines = [{'text': 'One.\nTwo.', 'timestamp': '2019-04-25T12:57:54Z', 'url': 'https://x'}]
  (tmp_path / 'c4-train.00000-of-01024.json.gz').write_bytes(
      gzip.compress(json.dumps(lines[0]).encode()))
  (tmp_path / 'x_00000.jsonl.gz').write_bytes(gzip.compress(
      json.dumps({'text': 'Three.', 'id': '<urn:uuid:1>', 'metadata': {'url': 'x'}}).encode()))
  assert read(tmp_path) == [['One.', 'Two.'], ['Three.']]


def test_parquet(tmp_path):
  import pyarrow
  from pyarrow import parquet
  table = pyarrow.table({'text': ['One.\nTwo.', None, 'Three.'], 'id': [1, 2, 3],
                         'other': ['x', 'y', 'z']})
  parquet.write_table(table, tmp_path / 'x_00000.parquet')
  stats = ReadStats()
  assert read(tmp_path, stats, on_error='skip') == [['One.', 'Two.'], ['Three.']]
  assert stats.skipped == 1 and "x_00000.parquet[1]: the field 'text' is null" in stats.examples[0]
  assert read(tmp_path, field='other') == [['x'], ['y'], ['z']]
  with pytest.raises(SourceError, match=r'x_00000\.parquet\[1\]'):
    list(text_sources.read_texts(str(tmp_path / '*.parquet')))
  with pytest.raises(SourceError,
                     match=r"has no column 'body', only text, id, other\. text_field=NAME"):
    read(tmp_path, field='body')


@pytest.mark.parametrize('name', ['a.warc.wet', 'a.warc.wet.gz', 'a.xml', 'a.xml.bz2'])
def test_damage_drawn_from_a_seed(tmp_path, name):
  """Each is read, or refused in one line that names the file."""
  if 'xml' in name:
    pytest.importorskip('mwparserfromhell')
  content = ARTICLES.encode() if 'xml' in name else WET
  content = {'gz': gzip.compress, 'z2': bz2.compress}.get(name[-2:], bytes)(content)
  for damaged in mutate.contents(content, 60):
    (tmp_path / name).write_bytes(damaged)
    for on_error in ('refuse', 'skip'):
      said = name
      try:
        with mutate.limits():
          read(tmp_path / name, on_error=on_error)
      except UserError as error:
        said = str(error)
      assert name in said and '\n' not in said
