"""A corpus goes in, fewer documents come out: which, and that neither workers nor interruptions
leave a trace."""
import gzip
import json
import os

import numpy as np
import pytest

import plm_jax
from plm_jax import validation
from plm_jax.corpora import batches, duplicates, filter_documents
from plm_jax.corpora.clean import CleanError, clean
from plm_jax.corpora.duplicates import PLACE_DTYPE, SPAN_DTYPE, DiskTable
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.distributed import worker_pool
from plm_jax.preparation import encode
from plm_jax.sources import text_sources
from plm_jax.sources.lines import SourceError
from plm_jax.validation import ConfigError

RNG = np.random.default_rng(0)
LENGTH = 150  # words


def planted(originals, copies):
  """Documents of random words, and copies of the first ones in which every `gap`-th word is
  changed."""
  words = [[f'w{n}' for n in RNG.integers(0, 9999, LENGTH)] for _ in range(originals)]
  other = []
  for number, gap in enumerate(copies):
    copy = list(words[number])
    for place in range(gap // 2, LENGTH, gap):
      copy[place] = f'x{number}'
    other.append(copy)
  return [' '.join(text) for text in words + other]


def write(path, texts):
  path.write_text(''.join(json.dumps({'text': text}) + '\n' for text in texts))
  return str(path)


def kept(folder):
  return [json.loads(line)['text'] for path in sorted(folder.glob('documents-*.jsonl.gz'))
          for line in gzip.open(path, 'rt', encoding='utf-8')]


def contents(folder):
  return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_planted_duplicates_are_found(tmp_path):
  # A word in 45 differs: 130 of 162 5-grams are common, 0.80; a word in 18: 110 of 182, 0.60.
  texts = planted(400, [45] * 150 + [18] * 150)
  report = clean(CleanConfig(workers=1), write(tmp_path / 'a.jsonl', texts), tmp_path / 'out')
  left = set(kept(tmp_path / 'out'))
  assert all(text in left for text in texts[:400])
  assert sum(text not in left for text in texts[400:550]) >= 0.95 * 150
  assert sum(text not in left for text in texts[550:]) <= 0.01 * 150
  assert report.kept_documents == len(left) == report.documents - sum(report.dropped.values())


def test_reasons_add_up(tmp_path):
  lines = ['The old house stood there.', 'We lived in it for years.', 'Nobody knew who built it.',
           'Then came the rain again.']
  texts = ['\n'.join(lines), '\n'.join(['It was late in the year.', *lines[1:]]),
           '\n'.join(lines).upper(), 'Too short',
           'What is the name of this old river here?', ' '.join(lines[1:])]
  (tmp_path / 'test.tsv').write_text('question\tlabel\nthe name of this old river\t1\n')
  config = validation.with_overrides(CleanConfig(decontaminate=str(tmp_path / 'test.tsv'), ngram=6,
                                                 samples=1),
                           filter_documents.parse_rules('c4') | {'min_sentences': 1})
  report = clean(config, write(tmp_path / 'a.jsonl', texts), tmp_path / 'out')
  assert report.dropped == {'no line left': 1, 'evaluation': 1, 'exact duplicate': 1,
                            'repeated span': 1}
  assert report.lines == {'no terminal punctuation': 1, 'repeated span': 6}
  assert kept(tmp_path / 'out') == ['\n'.join(lines), 'It was late in the year.']
  documents = text_sources.read_documents(str(tmp_path / 'out'))
  assert [document.paragraphs for document in documents] == [lines, ['It was late in the year.']]
  shown = [json.loads(line) for line in (tmp_path / 'out/_dropped.jsonl').read_text().splitlines()]
  assert [(one['reason'], one['where'].rpartition(':')[2]) for one in shown] == [
      ('no line left', '4'), ('evaluation', '5'), ('exact duplicate', '3'), ('repeated span', '6')]
  stored = json.loads((tmp_path / 'out/_clean.json').read_text())
  assert stored['dropped'] == report.dropped and stored['documents'] == 6 and stored[
      'kept_documents'] == 2
  assert str(report).splitlines()[-2:] == [
      '  repeated span                              6 sentences',
                                           '  no terminal punctuation                    1 lines']
  # it is finished
  assert clean(config, str(tmp_path / 'a.jsonl'), tmp_path / 'out').dropped == report.dropped
  with pytest.raises(CleanError, match='documents of another source, or by other settings'):
    clean(CleanConfig(), str(tmp_path / 'a.jsonl'), tmp_path / 'out')


def test_kept_text_keeps_its_white_space(tmp_path):
  code = 'def f(x):\n    if x:\n        return 1\n\n\n    return 2  \n'
  verse = '\n   Shall I compare thee\r\n\r\n      to a summer day?\r\n'
  mixed = ('Navigation\n\nThis line has a full stop at its end.\n\n\n'
           '  So does this one, which is indented.\n\nMore')
  source = write(tmp_path / 'a.jsonl', [code, verse, mixed])
  clean(CleanConfig(workers=1), source, tmp_path / 'out')
  assert kept(tmp_path / 'out') == [code, verse, mixed]
  report = clean(CleanConfig(workers=1, terminal=True), source, tmp_path / 'ended')
  assert report.dropped == {'no line left': 1} and report.lines['no terminal punctuation'] == 7
  assert kept(tmp_path / 'ended') == [
      '      to a summer day?\r',
      'This line has a full stop at its end.\n\n\n  So does this one, which is indented.']


@pytest.fixture
def small(monkeypatch):
  """Many units, files and pieces, of few documents."""
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', 1 << 13)
  monkeypatch.setattr(duplicates, 'PIECE_BYTES', 1 << 12)
  monkeypatch.setattr(duplicates, 'CHUNK_ROWS', 1 << 8)
  return CleanConfig(shard_characters=30_000, span=2, samples=3, workers=1)


def corpus():
  texts = planted(90, [45] * 40)
  return [text.replace(' w1', '. W1') + '.' for text in [*texts, *texts[20:30]]]


def test_interrupted_cleaning_resumes(tmp_path, small, monkeypatch):
  source = write(tmp_path / 'a.jsonl', corpus())
  clean(small, source, tmp_path / 'whole')
  calls = []
  def failing(function, at):
    def run(*args):
      calls.append(args)
      if len(calls) == at:
        function(*args)
        raise KeyboardInterrupt
      return function(*args)
    return run
  for module, name, at in (
      (batches, 'filter_batch', 9), (batches, 'filter_batch', 5),
      *((duplicates, 'group_equal', at) for at in (1, 2, 3)),
      (duplicates, 'partition_rows', 7), (batches, 'write_documents', 2)):
    calls.clear()
    with monkeypatch.context() as patch:
      patch.setattr(module, name, failing(getattr(module, name), at))
      with pytest.raises(KeyboardInterrupt):
        clean(small, source, tmp_path / 'out')
    assert [path.name[:6] for path in (tmp_path / 'out').iterdir()] == ['.work-']
  monkeypatch.setattr(batches, 'filter_batch', lambda *args: pytest.fail('filtered again'))
  (tmp_path / 'out' / '._clean.json.0123456789abcdef.tmp').write_text('a draft of a killed process')
  clean(small, source, tmp_path / 'out')
  assert contents(tmp_path / 'out') == contents(tmp_path / 'whole')
  assert len(contents(tmp_path / 'whole')) > 4


@pytest.mark.slow
def test_workers_leave_no_trace(tmp_path, small, monkeypatch):
  source = write(tmp_path / 'a.jsonl', corpus())
  clean(small, source, tmp_path / 'one')
  monkeypatch.setattr(worker_pool, 'BYTES_PER_WORKER', 1 << 10)
  clean(validation.with_overrides(small, {'workers': 2}), source, tmp_path / 'two')
  assert contents(tmp_path / 'one') == contents(tmp_path / 'two')


def test_unusable_inputs_and_outputs_are_refused(tmp_path):
  source = write(tmp_path / 'in.jsonl', [])
  with pytest.raises(SourceError, match='holds no documents'):
    clean(CleanConfig(), source, tmp_path / 'out')
  with pytest.raises(CleanError, match='is a file'):
    clean(CleanConfig(), source, source)
  with pytest.raises(CleanError, match='lies in'):
    clean(CleanConfig(), str(tmp_path), tmp_path / 'out')


  (tmp_path / 'other').mkdir()
  (tmp_path / 'other/documents-00000.jsonl.gz').touch()
  with pytest.raises(CleanError, match=r'holds documents without _clean\.json'):
    clean(CleanConfig(), source, tmp_path / 'other')


def test_the_front_door(tmp_path):
  source = write(tmp_path / 'a.jsonl',
                 ['A page has this one sentence. And another one is here. And one more is too.'])
  assert plm_jax.clean(source, tmp_path / 'out', 'c4',
                       min_sentences=4).dropped == {'too few sentences': 1}
  with pytest.raises(ConfigError, match=r'has no field .sentences.'):
    plm_jax.clean(source, tmp_path / 'out', sentences=4)


def test_nothing_is_left(tmp_path):
  report = clean(CleanConfig(min_sentences=9), write(tmp_path / 'a.jsonl', ['One.']),
                 tmp_path / 'out')
  assert report.dropped == {'too few sentences': 1}
  assert os.listdir(tmp_path / 'out') == ['_clean.json']


def test_equal_numbers_meet(tmp_path, monkeypatch):
  monkeypatch.setattr(duplicates, 'PIECE_BYTES', 1 << 10)
  numbers = RNG.integers(0, 500, 3000).astype(np.uint64) * np.uint64((1 << 64) // 500)
  parts = (duplicates.make_rows(PLACE_DTYPE, number=some,
                                 place=np.arange(at * 300, at * 300 + 300))
           for at, some in enumerate(np.split(numbers, 10)))
  found = list(duplicates.group_equal(parts, 3000, tmp_path))
  assert len(found) > 8 and not list(tmp_path.iterdir())
  rows = np.concatenate(found)
  order = np.argsort(numbers, kind='stable')
  assert (rows['place'] == order).all() and (rows['number'] == numbers[order]).all()
  assert duplicates.repeats_previous(rows).sum() == 3000 - len(np.unique(numbers))
  assert not list(duplicates.group_equal([np.empty(0, SPAN_DTYPE)], 0, tmp_path))


def test_rows_that_an_interruption_left_are_not_counted_again(tmp_path):
  places = np.arange(10)
  rows = duplicates.make_rows(PLACE_DTYPE, number=places.astype(np.uint64), place=places)
  def interrupted():
    yield rows
    raise KeyboardInterrupt
  with pytest.raises(KeyboardInterrupt):
    list(duplicates.group_equal(interrupted(), 10, tmp_path))
  assert list(tmp_path.iterdir())
  grouped = np.concatenate(list(duplicates.group_equal([rows], 10, tmp_path)))
  assert grouped.tolist() == rows.tolist()


def test_rows_of_tables_are_read_at_places(tmp_path):
  table = DiskTable(tmp_path / 'a', np.uint64, 2)
  assert len(table) == 0 and table.read().shape == (0, 2)
  table.append(np.arange(10).reshape(5, 2))
  assert len(table) == 5 and table.read_at(np.array([2, 0])).tolist() == [[4, 5], [0, 1]]
