"""Stages on a runner that shuffles and repeats them write what one process writes."""
import dataclasses
import gzip
import hashlib
import json
import lzma
import os
import random

import numpy as np
import pytest
from shuffled import Shuffled

from plm_jax import storage, tokenizers
from plm_jax.data import records
from plm_jax.data.window_rules import WindowRule
from plm_jax.preparation import encode, parallel_prepare, parallel_stages, prepare
from plm_jax.preparation.parallel_stages import BeamError, make_runner
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import document_formats, text_sources

RULES = WindowRule('document', 20), WindowRule('sentences', 33), WindowRule('examples', 20, (6, 1))
WORDS = ['the', 'a', 'cat', 'dog', 'mat', 'sat', 'ran', 'on', 'in', 'of', 'big', 'small', 'house',
         'tree', 'sky', 'sea']


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """A folder of plain text, JSON lines and a table; two lines are none, and documents come
  twice."""
  folder, rng = tmp_path_factory.mktemp('corpus'), random.Random(0)
  sentence = lambda: ' '.join(rng.choices(WORDS, k=rng.randint(3, 12))).capitalize() + '.'
  some = ['\n'.join(' '.join(sentence() for _ in range(3)) for _ in range(rng.randint(1, 3)))
          for _ in range(40)]
  some[9::10] = some[4::10]
  (folder / 'a.txt').write_text('\n\n'.join(some[:12]) + '\n')
  (folder / 'b.jsonl.gz').write_bytes(gzip.compress('\n'.join(
      ['{', *(json.dumps({'text': text}) for text in some[12:24]),
       '{"text": "\\u0001"}']).encode()))
  (folder / 'c.txt.xz').write_bytes(lzma.compress(b'\xff\n\n' + '\n\n'.join(some[24:]).encode()))
  (folder / 'd.tsv').write_text('text\tlabel\n'
                                + ''.join(f'{sentence()}\t{n}\n' for n in range(12)))
  return folder


@pytest.fixture(scope='module')
def vocab(corpus, tmp_path_factory):
  folder = tmp_path_factory.mktemp('vocab')
  tokenizers.train_wordpiece((corpus / 'a.txt').read_text().split('\n'), 60).save(folder)
  return folder


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', 500)
  monkeypatch.setattr(parallel_prepare, 'PIECE_CHARACTERS', 700)
  monkeypatch.setattr(os, 'fsync', lambda file: None)  # a test writes hundreds of files


@pytest.fixture
def config(corpus, vocab):
  return PrepareConfig(
      source=str(corpus), tokenizer=str(vocab), heldout=0.2, shard_tokens=300, workers=1,
      on_error='skip')


def contents(folder):
  return {os.fspath(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
          for path in folder.rglob('*') if path.is_file()}


def killed_at(shard):
  """What is in place of `records.write_shard` where a process ends before it writes a shard."""
  write_shard = records.write_shard

  def write(folder, name, *arrays):
    if name == shard:
      raise KeyboardInterrupt
    return write_shard(folder, name, *arrays)

  return write


@pytest.mark.parametrize('changes', [
    {}, {'shard_tokens': 1}, {'shard_tokens': 90}, {'shard_tokens': 1500},
    {'shard_tokens': 1 << 22}, {'heldout': 0.0},
    {'heldout': 0.7, 'shard_tokens': 200}, {'tokenizer': '', 'vocab': 70},
    {'tokenizer': '', 'kind': 'bytes'},
    {'sentences': 'line', 'segmenter': 'spaces'}])
def test_stages_in_any_order_write_what_one_process_writes(config, tmp_path, changes):
  config = dataclasses.replace(config, **changes)
  meta = prepare.prepare(config, tmp_path / 'one', RULES)
  assert prepare.prepare(config, tmp_path / 'many', RULES, Shuffled(config.shard_tokens)) == meta
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  assert meta.skipped == 2


@pytest.mark.parametrize('shard_tokens', [1, 90, 1 << 22])
def test_a_held_out_text_is_shared_out_too(config, tmp_path, shard_tokens):
  (tmp_path / 'valid').mkdir()
  for name in ('a', 'b'):
    (tmp_path / f'valid/{name}.txt').write_text('\n\n'.join(f'the {word} {name}' for word in WORDS))
  config = dataclasses.replace(
      config, heldout=0.0, heldout_path=str(tmp_path / 'valid'), shard_tokens=shard_tokens)
  meta = prepare.prepare(config, tmp_path / 'one', RULES)
  assert prepare.prepare(config, tmp_path / 'many', RULES, Shuffled(shard_tokens)) == meta
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  assert sum(shard.documents for shard in meta.heldout) == 2 * len(WORDS)


@pytest.mark.parametrize(('piece', 'characters'), [(1, 1 << 20), (1 << 20, 1)])
def test_pieces_of_any_size_are_the_same_records(config, tmp_path, monkeypatch, piece, characters):
  monkeypatch.setattr(parallel_prepare, 'PIECE_CHARACTERS', piece)
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', characters)
  prepare.prepare(config, tmp_path / 'one')
  prepare.prepare(config, tmp_path / 'many', (), Shuffled())
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')


def test_a_task_is_shared_out_too(vocab, tmp_path, caplog):
  rows = [f'the {word}\t{n % 2}' for n, word in enumerate(WORDS * 4)]
  (tmp_path / 'rows.tsv').write_text('\n'.join(['sentence\tlabel', *rows[:5], '\x01\t1',
                                                *rows[5:]]))
  config = PrepareConfig(source=f'task:columns-sentence-label:{tmp_path}/rows.tsv',
                         tokenizer=str(vocab),
                         heldout=0.1, shard_tokens=50, workers=1)
  prepare.prepare(config, tmp_path / 'one', RULES)
  said = caplog.text
  caplog.clear()
  meta = prepare.prepare(config, tmp_path / 'many', RULES, Shuffled())
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  assert meta.skipped == 1 and 'rows.tsv:7: its target or its inputs have no tokens' in said
  assert 'rows.tsv:7: its target or its inputs have no tokens' in caplog.text


def test_cuts_are_behind_the_document_with_which_a_split_is_full():
  counts = [((0, 0), np.array([[5, 0], [0, 3], [4, 0]])),
            ((0, 1), np.array([[1, 0], [0, 0], [0, 10]])),
            ((2, 0), np.array([[0, 0], [30, 0], [0, 0], [2, 0], [0, 0]]))]
  assert list(parallel_prepare.group_into_shards(iter(counts), 10)) == [
      ([('train', 0), ('heldout', 0)], [((0, 0), 0, 3), ((0, 1), 0, 1)]),
      ([('heldout', 1)], [((0, 1), 1, 3)]),
      ([('train', 1)], [((2, 0), 0, 2)]),
      ([('train', 2)], [((2, 0), 2, 5)])]


def test_damaged_text_is_the_error_that_it_is_for_one_process_and_leaves_nothing(
    config, corpus, tmp_path):
  said = []
  for run in None, Shuffled():
    with pytest.raises(text_sources.SourceError) as error:
      prepare.prepare(dataclasses.replace(config, on_error='refuse', heldout=0.0), tmp_path / 'out',
                      (), run)
    said.append(str(error.value))
    for left in tmp_path.glob('out/*.npy'):
      left.unlink()
  assert said[0] == said[1] and 'b.jsonl.gz:1: not JSON' in said[0]
  assert not [*tmp_path.glob('out/.pieces*')]


@pytest.mark.parametrize('text', ['', '\x01\x02\n'])
def test_text_without_a_token_leaves_nothing_behind(vocab, tmp_path, text):
  (tmp_path / 'a.txt').write_text(text)
  with pytest.raises(text_sources.SourceError, match='holds no'):
    prepare.prepare(PrepareConfig(f'{vocab}', source=f'{tmp_path}/a.txt'), tmp_path / 'out', (),
                    Shuffled())
  assert not (tmp_path / 'out').exists()


def test_what_is_encoded_is_not_encoded_again_after_an_interruption(config, tmp_path, monkeypatch):
  prepare.prepare(config, tmp_path / 'one')
  encoded, encode_unit = [], encode.encode_documents
  monkeypatch.setattr(encode, 'encode_documents', lambda *args: encoded.append(1)
                      or encode_unit(*args))
  write_shard = records.write_shard
  monkeypatch.setattr(records, 'write_shard', killed_at('train-00003'))
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, tmp_path / 'many', (), Shuffled())
  assert len(encoded) > 10 and not (tmp_path / 'many' / 'records.json').exists()
  encoded.clear()
  monkeypatch.setattr(records, 'write_shard', write_shard)
  prepare.prepare(config, tmp_path / 'many', (), Shuffled(1))
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  assert len(encoded) < 5  # of the first documents, which settle what is held out


def test_what_one_process_has_begun_many_finish_and_the_other_way_round(config, tmp_path,
                                                                        monkeypatch):
  prepare.prepare(config, tmp_path / 'one')
  write_shard, order = records.write_shard, [None, Shuffled()]
  for first, second in order, order[::-1]:
    folder = tmp_path / f'{order.index(first)}'
    monkeypatch.setattr(records, 'write_shard', killed_at('train-00003'))
    with pytest.raises(KeyboardInterrupt):
      prepare.prepare(config, folder, (), first)
    monkeypatch.setattr(records, 'write_shard', write_shard)
    prepare.prepare(config, folder, (), second)
    assert contents(folder) == contents(tmp_path / 'one')


def test_workers_that_see_another_disk_are_found(config, tmp_path):
  with pytest.raises(records.RecordsError, match='expected a folder that all of them see'):
    prepare.prepare(config, tmp_path / 'out', (), lambda describe: None)


def test_a_bucket_that_fails_is_the_runners_to_try_again(tmp_path, monkeypatch):
  def denied(*_):
    raise storage.StorageError('gs://bucket/a: no answer') from OSError('no answer')
  monkeypatch.setattr(text_sources, 'open_text_file', denied)
  part = parallel_stages.SourcePart(0, str(tmp_path / 'a.txt'), True)
  config = document_formats.TextReadConfig()
  with pytest.raises(storage.StorageError):
    list(parallel_stages.read_part(config, encode.batch_documents, part))


def test_without_beam_it_is_one_line(monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'apache_beam', None)
  with pytest.raises(BeamError,
                     match=r'not installed: pip install "plm_jax\[beam\]", in an environment of '
                           r'its own'):
    make_runner(['--runner=DirectRunner'])


def test_beam_itself_writes_what_one_process_writes(config, tmp_path):
  pytest.importorskip('apache_beam')
  prepare.prepare(config, tmp_path / 'one', RULES)
  prepare.prepare(config, tmp_path / 'many', RULES, make_runner(['--runner=DirectRunner']))
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')
  with pytest.raises(text_sources.SourceError, match=r'b\.jsonl\.gz:1: not JSON'):
    prepare.prepare(dataclasses.replace(config, on_error='refuse', heldout=0.0),
                    tmp_path / 'refused', (),
                    make_runner(['--runner=DirectRunner']))
