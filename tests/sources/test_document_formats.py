"""Exact text: what `prepare` writes for decoders decodes to the documents, character by
character."""
import csv
import gzip
import io
import itertools
import json
import pathlib

from etils import epath
import numpy as np
import pytest
from shuffled import Shuffled

from plm_jax import tokenizers
from plm_jax.data import records
from plm_jax.data.windows import Windows
from plm_jax.preparation import encode, prepare
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import document_formats, text_sources
from plm_jax.sources.document_formats import TextReadConfig, split_exactly

DOCUMENTS = (
    'def f(x):\n    if x:\n        return 1\n\n\n    return 2',
    'def g():\n\tyield  # trailing blanks   \n\n\t\n',
    '# Title\n\n* a list\n    * a deeper one\n\n```\ncode\n```\n\nA line with a break.  \nThe '
    'next.\n',
    'a:\n  - b: 1\n  - c: |\n      text\n\n      more\n',
    '\n\n   Shall I compare thee\n      to a summer\'s day?\n\n\nThou art more lovely',
    'one\r\n\r\n  two\r\nthree\rfour\r\n',
    '\ttabs\t\tand   spaces \x0b\x0c',
    '一行\n　全角空格\n\n両方 ありがとう\n',
    'Кириллица, नमस्ते, مرحبا\u200f, ไทย\u2028U+2028\u2029\x85\xa0end',
    '👩‍👩‍👧‍👦 🇫🇷 e\u0301 ½ ﬁ Å',
    '<s> [MASK] <|endoftext|> <unk> &amp; "quotes" \'\' ``',
    ' ')
NUL = 'zero bytes: \0 and\n\0'
TOKENIZERS = {
    'byte-bpe': dict(kind='byte-bpe', layout='gpt2', vocab=300),
    'sentencepiece': dict(kind='sentencepiece-bpe', layout='llama', vocab=420, lowercase=False),
    'bytes': dict(kind='bytes')}


@pytest.fixture(autouse=True)
def small_units(monkeypatch, tmp_path):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', 500)


@pytest.fixture(params=list(TOKENIZERS))
def options(request):
  return TOKENIZERS[request.param] | dict(sentences='none', heldout=0.0, workers=1)


def decode_documents(folder: pathlib.Path, split: records.Split = 'train') -> list[str]:
  """Decode every document of token records."""
  tokenizer, found = tokenizers.load(folder), []
  for shard in records.read_meta(folder).shards(split):
    tokens, sentences = records.open_tokens(folder, shard)['token'], records.read_sentences(
        folder, shard)
    first = np.flatnonzero(np.diff(sentences['document'].astype(int), prepend=-1))
    starts = [*sentences['start'][first].tolist(), len(tokens)]
    found += [tokenizer.decode(tokens[start:end].tolist())
              for start, end in itertools.pairwise(starts)]
  return found


def write_corpus(folder: pathlib.Path, form: str) -> tuple[str, list[str]]:
  """Write DOCUMENTS in a format -> the source, and the documents that it has."""
  texts = [*DOCUMENTS, NUL]
  rows = [{'n': n, 'text': text} for n, text in enumerate(texts)]
  if form == 'files':
    for n, text in enumerate(texts):
      (folder / f'{n:02}.py').write_bytes(text.encode())
    return str(folder), texts
  path = folder / f'corpus.{form}'
  if form in ('jsonl', 'jsonl.gz'):
    content = ''.join(json.dumps(row, ensure_ascii=bool(row['n'] % 2)) + '\n'
                      for row in rows).encode()
    path.write_bytes(gzip.compress(content) if form.endswith('gz') else content)
  elif form == 'json':
    path.write_text(json.dumps(rows))
  elif form == 'parquet':
    parquet = pytest.importorskip('pyarrow.parquet')
    pyarrow = pytest.importorskip('pyarrow')
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  else:  # a table cannot have a zero byte
    texts, rows = list(DOCUMENTS), rows[:-1]
    lines = io.StringIO()
    writer = csv.DictWriter(lines, ['n', 'text'], delimiter=',' if form == 'csv' else '\t',
                            quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(lines.getvalue().encode())
  return str(path), texts


@pytest.mark.parametrize('form', ['files', 'jsonl', 'jsonl.gz', 'json', 'parquet', 'csv', 'tsv'])
def test_records_decode_to_the_documents_in_every_format(form, options, tmp_path):
  (tmp_path / 'text').mkdir()
  source, texts = write_corpus(tmp_path / 'text', form)
  prepare.prepare(PrepareConfig(source=source, **options), tmp_path / 'out')
  assert decode_documents(tmp_path / 'out') == texts


@pytest.mark.parametrize('text', [*DOCUMENTS, NUL, '\ufeff  BOM first',
                                  'carriage\rreturns\r\r  only\r', '\n\n', 'x\n'])
def test_a_single_file_is_one_document_with_every_character(text, tmp_path):
  (tmp_path / 'a.txt').write_bytes(text.encode())
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(text.encode('utf-16')))
  for name, encoding in (('a.txt', 'utf-8'), ('a.txt.gz', 'utf-16')):
    config = TextReadConfig(division='files', encoding=encoding, exact=True)
    found = list(text_sources.read_documents(str(tmp_path / name), config))
    assert [document.paragraphs for document in found] == [[text.removeprefix('\ufeff')]]


def test_blank_lines_divide_exact_text_where_the_user_asks_for_it(tmp_path):
  (tmp_path / 'a.txt').write_text('\n\n  A\n\tb  \n \n\nC\n    d\r\n\r\n\r\ne')
  def read(documents):
    config = PrepareConfig(sentences='none', documents=documents).read_config
    return [document.paragraphs[0]
            for document in text_sources.read_documents(str(tmp_path / 'a.txt'), config)]
  assert read('blank-lines') == ['  A\n\tb  ', 'C\n    d', 'e']
  assert read('lines') == ['  A', '\tb  ', 'C', '    d', 'e']
  assert read('auto') == read('files') == ['\n\n  A\n\tb  \n \n\nC\n    d\r\n\r\n\r\ne']


def test_marked_up_files_keep_the_lines_of_their_documents(tmp_path):
  (tmp_path / 'wiki').write_text(
      '<doc id="1">\nA title\n\n  verse\n\n\nend\n</doc>\n\n<doc id="2">\nB\n</doc>\n')
  config = TextReadConfig(exact=True)
  found = [document.paragraphs
           for document in text_sources.read_documents(str(tmp_path / 'wiki'), config)]
  assert found == [['A title\n\n  verse\n\n\nend'], ['B']]


def test_the_built_in_corpus_keeps_its_documents(tmp_path, monkeypatch):
  (tmp_path / 'embedded.txt').write_text('A one.\nA two.\n\nB.\n\n')
  monkeypatch.setattr('plm_jax.sources.builtin_corpus.corpus_path',
                      lambda: str(tmp_path / 'embedded.txt'))
  config = PrepareConfig(sentences='none').read_config
  assert [document.paragraphs for document in text_sources.read_documents('embedded', config)] == [
      ['A one.\nA two.'], ['B.']]


LONG_TEXTS = [
    '\n'.join(DOCUMENTS) * 9, ' x' * 3000, 'x' * 5000, ' = Title = \n' * 500,
    '    indented\n' * 400, 'a' + ' \n\t' * 2000,
    '\n' * 5000 + 'x', '字' * 4000, 'word\r\n' * 800]


@pytest.mark.parametrize('text', LONG_TEXTS)
def test_parts_of_a_long_text_are_the_text_and_begin_where_tokens_do(text):
  parts = list(split_exactly(text, 1000))
  assert ''.join(parts) == text
  for part in parts[1:]:
    assert not part.lstrip(' ')[:1].isspace() and not part.startswith('  ')
  assert max(map(len, split_exactly('word word\n' * 1000, 1000))) <= 1000


def test_long_documents_are_one_document_in_the_records(options, tmp_path, monkeypatch):
  monkeypatch.setattr(document_formats, 'MAX_PARAGRAPH', 1000)
  (tmp_path / 'a.jsonl').write_text(''.join(json.dumps({'text': text}) + '\n'
                                            for text in LONG_TEXTS))
  prepare.prepare(PrepareConfig(source=f'{tmp_path}/a.jsonl', **options), tmp_path / 'out')
  assert decode_documents(tmp_path / 'out') == LONG_TEXTS
  alone = LONG_TEXTS[0] * 9
  (tmp_path / 'b.txt').write_bytes(alone.encode())
  config = PrepareConfig(source=f'{tmp_path}/b.txt', **options)
  prepare.prepare(config, tmp_path / 'b')
  assert decode_documents(tmp_path / 'b') == [alone]
  # Several shards cut a document only where one ends.
  prepare.prepare(PrepareConfig(source=f'{tmp_path}/b.txt', shard_tokens=9000, **options),
                  tmp_path / 'c')
  shards = records.read_meta(tmp_path / 'c').train
  tokens = [records.open_tokens(tmp_path / 'c', shard)['token'] for shard in shards]
  assert tokenizers.load(tmp_path / 'c').decode(np.concatenate(tokens).tolist()) == alone
  assert [shard.documents for shard in shards] == [1] * len(shards) and len(shards) > 1


def test_a_part_of_a_single_file_is_held_out(tmp_path):
  text = ''.join(f'Line {n} of the text.\n\n' for n in range(9000))
  (tmp_path / 'a.txt').write_text(text)
  config = PrepareConfig(source=f'{tmp_path}/a.txt', kind='bytes', sentences='none', workers=1)
  meta = prepare.prepare(config, tmp_path / 'out')
  train, heldout = decode_documents(tmp_path / 'out'), decode_documents(tmp_path / 'out', 'heldout')
  assert sum(map(len, train + heldout)) == len(text)
  assert 0.02 < sum(map(len, heldout)) / len(text) < 0.1
  assert len(train) <= len(heldout) + 1  # the text is cut only where a part is held out
  position, remaining = 0, train + heldout
  while remaining:  # together they are the text
    part = next(part for part in remaining if text.startswith(part, position))
    position += len(part)
    remaining.remove(part)
  # Another machine's stages write the same files.
  stages = prepare.prepare(config, tmp_path / 'stages', (), Shuffled(7))
  assert stages.content_digest == meta.content_digest


def test_the_ids_are_those_of_the_whole_document(options, tmp_path):
  (tmp_path / 'a.jsonl').write_text(''.join(json.dumps({'text': text}) + '\n'
                                            for text in DOCUMENTS))
  prepare.prepare(PrepareConfig(source=f'{tmp_path}/a.jsonl', **options), tmp_path / 'out')
  tokenizer = tokenizers.load(tmp_path / 'out')
  windows = Windows(tmp_path / 'out', length=4000, assembly='packed').read(np.array([0]))
  ids = windows['tokens'][0][windows['segments'][0] > 0]
  assert ids.tolist() == list(itertools.chain.from_iterable(
      tokenizer.encode_batch(list(DOCUMENTS))))


def test_exact_records_have_a_fingerprint_of_their_own_and_say_what_they_are(tmp_path):
  (tmp_path / 'a.txt').write_text('One.\n\nTwo.\n')
  plain = PrepareConfig(source=f'{tmp_path}/a.txt', kind='bytes', heldout=0.0, workers=1)
  exact = PrepareConfig(source=f'{tmp_path}/a.txt', kind='bytes', heldout=0.0, workers=1,
                        sentences='none')
  assert prepare.fingerprint(plain, None) != prepare.fingerprint(exact, None)
  assert not prepare.prepare(plain, tmp_path / 'plain').exact and prepare.prepare(
      exact, tmp_path / 'exact').exact
  assert 'exact' not in json.loads((tmp_path / 'plain' / 'records.json').read_text())
  with pytest.raises(records.RecordsError, match='holds records of another source'):
    prepare.prepare(exact, tmp_path / 'plain')
  with pytest.raises(ValueError, match='give one of them'):
    PrepareConfig(sentences='none', segmenter='jieba')


def test_texts_to_evaluate_keep_every_character(tmp_path):
  for n, text in enumerate(DOCUMENTS):
    (tmp_path / f'{n:02}.txt').write_bytes(text.encode())
  (tmp_path / 'z.jsonl').write_text('\n'.join(json.dumps({'text': text}) for text in DOCUMENTS))
  assert list(text_sources.read_texts(str(tmp_path))) == [*DOCUMENTS, *DOCUMENTS]
  assert list(text_sources.read_texts(str(epath.Path(tmp_path) / '04.txt'))) == [DOCUMENTS[4]]


def test_a_single_small_document_says_how_to_divide_it(tmp_path):
  (tmp_path / 'a.txt').write_text('One.\n\nTwo.\n')
  config = PrepareConfig(source=f'{tmp_path}/a.txt', kind='bytes', workers=1, sentences='none')
  prepare.prepare(config, tmp_path / 'out')
  assert decode_documents(tmp_path / 'out') == ['One.\n\nTwo.\n']
  with pytest.raises(records.RecordsError, match="blank lines with documents=blank-lines, or"):
    Windows(tmp_path / 'out', 'heldout')
