"""Stages of clean on a runner that shuffles and repeats them write what one process writes."""
import base64
import gzip
import hashlib
import json
import os
import random
import zlib

import numpy as np
import pytest
from shuffled import Shuffled
from test_filters import LANGUAGES

from plm_jax import storage, validation
from plm_jax.corpora import batches, clean_stages, duplicate_stages, duplicates, filter_documents
from plm_jax.corpora import clean as clean_lib
from plm_jax.corpora.clean import CleanError, clean
from plm_jax.corpora.duplicate_stages import CorpusShard, DocumentRange
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.preparation import encode
from plm_jax.preparation.parallel_stages import make_runner
from plm_jax.sources.lines import SourceError


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """Files of documents of random words: copies, near-copies, repeated sentences, lines that break
  rules, a bad line, and a file whose documents are all dropped."""
  folder, draw = tmp_path_factory.mktemp('corpus'), random.Random(0)
  words = [f'w{n}' for n in range(3000)]
  sentences = [' '.join(draw.choices(words, k=12)).capitalize() + '.' for _ in range(40)]
  texts = []
  for _ in range(70):
    lines = [' '.join(draw.choices(words, k=12)).capitalize() + '.' for _ in range(12)]
    if draw.random() < 0.3:
      at = draw.randrange(30)
      lines[3:3] = sentences[at:at + 3]
    texts.append('\n'.join(lines))
  copies = []
  for text in texts[:50]:
    kind, inner = draw.random(), text.split(' ')
    if kind < 0.4:
      inner[len(inner) // 2] = f'x{len(copies)}'
    copies.append(' '.join(inner) if kind < 0.8 else text.upper())
  texts += copies
  draw.shuffle(texts)
  texts[11] += '\nA line with Javascript in it.\nThis line has no end'
  texts[23] += '\nWhat is the name of this old river here?'
  # A sentence stays if only dropped documents had it before.
  long, other, again = ('\n'.join(' '.join(draw.choices(words, k=12)).capitalize() + '.'
                                  for _ in range(number))
                        for number in (30, 9, 3))
  texts += [long, f'{long}\n{again}', f'{other}\n{again}']
  lines = [json.dumps({'text': text}) for text in texts]
  (folder / 'a.jsonl').write_text('\n'.join([*lines[:45], '{', *lines[45:60]]) + '\n')
  (folder / 'b.jsonl').write_text('\n'.join(json.dumps({'text': 'Short.'}) for _ in range(9))
                                  + '\n')
  (folder / 'c.jsonl.gz').write_bytes(gzip.compress('\n'.join(lines[60:100]).encode()))
  (folder / 'd.txt').write_text('\n\n'.join(texts[100:]) + '\n')
  (folder / 'e.txt').write_text('\n')
  return folder


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
  """Many pieces, units, files and parts of tables."""
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', 3000)
  monkeypatch.setattr(clean_stages, 'PIECE_CHARACTERS', 8000)
  monkeypatch.setattr(duplicates, 'PIECE_BYTES', 1 << 12)
  monkeypatch.setattr(duplicates, 'CHUNK_ROWS', 1 << 8)
  monkeypatch.setattr(os, 'fsync', lambda file: None)  # a test writes hundreds of files


@pytest.fixture
def config(tmp_path):
  (tmp_path / 'test.tsv').write_text('question\tlabel\nthe name of this old river\t1\n')
  return validation.with_overrides(
      CleanConfig(decontaminate=str(tmp_path / 'test.tsv'), ngram=6, samples=3,
                  shard_characters=9000, workers=1,
                  on_error='skip'), filter_documents.parse_rules('c4') | {'min_sentences': 2})


def contents(folder):
  return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
          for path in sorted(folder.iterdir())}


@pytest.mark.parametrize('changes', [
    {}, {'shard_characters': 1}, {'shard_characters': 1 << 28}, {'duplicates': 'none'},
    {'duplicates': 'exact'},
    {'span': 0, 'similarity': 0.6}, {'duplicates': 'none', 'span': 0, 'samples': 0},
    {'min_sentences': 999}])
def test_stages_in_any_order_write_what_one_process_writes(config, corpus, tmp_path, changes):
  config = validation.with_overrides(config, changes)
  report = clean(config, str(corpus), tmp_path / 'one')
  many = clean(config, str(corpus), tmp_path / 'many', Shuffled(len(str(changes))))
  assert many == report and list(many.dropped) == list(report.dropped)
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  assert many.skipped == 1
  if not changes:
    assert {'exact duplicate', 'near-duplicate', 'evaluation', 'no line left'} <= set(many.dropped)
    assert many.lines['repeated span'] > 9 and len(contents(tmp_path / 'one')) > 5


def test_lists_and_models_go_to_the_workers(config, corpus, tmp_path):
  (tmp_path / 'bad.txt').write_text('w17\nw4 w5\n')
  (tmp_path / 'lid.bin').write_bytes(zlib.decompress(base64.b64decode(LANGUAGES)))
  config = validation.with_overrides(config, {
      'bad_words': str(tmp_path / 'bad.txt'), 'languages': 'fr', 'language_score': 0.2,
      'language_model': str(tmp_path / 'lid.bin')})
  def run(describe):  # where workers are, these files are not
    for name in ('bad.txt', 'lid.bin', 'test.tsv'):
      (tmp_path / name).unlink()
    Shuffled()(describe)
  clean(config, str(corpus), tmp_path / 'one')
  report = clean(config, str(corpus), tmp_path / 'many', run)
  assert report.dropped['bad word'] > 3 and report.dropped[
      'language'] > 3 and report.kept_documents > 3
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')


def test_finished_units_are_not_repeated_after_an_interruption(config, corpus, tmp_path,
                                                               monkeypatch):
  clean(config, str(corpus), tmp_path / 'one')
  examine_unit, write_documents, calls = batches.filter_batch, batches.write_documents, []
  def failing(*args):
    calls.append(args)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return write_documents(*args)
  monkeypatch.setattr(batches, 'write_documents', failing)
  with pytest.raises(KeyboardInterrupt):
    clean(config, str(corpus), tmp_path / 'many', Shuffled())
  assert [path.name[:6] for path in (tmp_path / 'many').iterdir()] == ['.work-']
  monkeypatch.setattr(batches, 'write_documents', lambda *args: calls.append(args)
                      or write_documents(*args))
  monkeypatch.setattr(batches, 'filter_batch', lambda *args: pytest.fail('examined again'))
  clean(config, str(corpus), tmp_path / 'many', Shuffled(1))
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  shards = len(list((tmp_path / 'one').glob('documents*')))
  assert shards < len(calls) <= 2 * shards
  monkeypatch.setattr(batches, 'filter_batch', examine_unit)
  (tmp_path / 'other/.work').mkdir(parents=True)  # left by one process
  clean(config, str(corpus), tmp_path / 'other', Shuffled())
  assert contents(tmp_path / 'other') == contents(tmp_path / 'one')


def test_damaged_text_gives_the_same_error_as_in_one_process(config, corpus, tmp_path):
  said = []
  for working in None, Shuffled():
    with pytest.raises(SourceError) as error:
      clean(validation.with_overrides(config, {'on_error': 'refuse'}), str(corpus),
            tmp_path / 'out', working)
    said.append(str(error.value))
  assert said[0] == said[1] and 'a.jsonl:46: not JSON' in said[0]
  assert not [*tmp_path.glob('out/.work-*')]


def test_unusable_sources_and_runners_are_refused(config, tmp_path):
  (tmp_path / 'empty.txt').write_text('\n')
  with pytest.raises(SourceError, match='holds no documents'):
    clean(config, str(tmp_path / 'empty.txt'), tmp_path / 'out', Shuffled())
  with pytest.raises(CleanError, match='expected a folder that all of them see'):
    clean(config, str(tmp_path / 'empty.txt'), tmp_path / 'out', lambda describe: None)


def test_a_file_ends_after_the_unit_that_fills_it():
  piece = clean_stages.FilteredPiece
  found = [piece((0, 0), [(2, 5), (0, 0), (3, 6)], 0), piece((0, 1), [(1, 9), (1, 4)], 0),
           piece((1, 0), [(0, 0)], 0), piece((2, 0), [(4, 3)], 0)]
  assert list(clean_stages.cut_shards(found, 10)) == [
      [((0, 0), 0, 5)], [((0, 1), 0, 2)], [((2, 0), 0, 4)]]
  assert list(clean_stages.cut_shards(found, 21)) == [[((0, 0), 0, 5), ((0, 1), 0, 2)],
                                                        [((2, 0), 0, 4)]]


def test_documents_of_many_shards_hang_together():
  shards = [(number, CorpusShard(number, 3 * number, [DocumentRange((0, number), 0, 3)], 9, 0))
            for number in range(3)]
  place = lambda shard, at: shard << duplicate_stages.PLACE_BITS | at
  edges = [np.array([[place(1, 1), place(2, 0)]]),
           np.array([[place(0, 2), place(2, 0)], [place(1, 0), place(1, 2)]])]
  found = {number: item.places.tolist()
           for number, item in duplicate_stages.join_similar(iter(shards), iter(edges))}
  assert found == {1: [1, 2], 2: [0]}


def test_beam_itself_writes_what_one_process_writes(config, corpus, tmp_path):
  pytest.importorskip('apache_beam')
  clean(config, str(corpus), tmp_path / 'one')
  clean(config, str(corpus), tmp_path / 'many', make_runner(['--runner=DirectRunner']))
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  assert clean_lib.read_finished(storage.resolve_path(tmp_path / 'many'), json.loads(
      (tmp_path / 'many/_clean.json').read_text())['source'])
