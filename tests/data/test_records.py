import contextlib
import dataclasses
import json
import os
import shutil

import mutate
import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.cli.commands import main
from plm_jax.data import records, shards
from plm_jax.data.records import RecordsError, RecordsMeta, Shard
from plm_jax.data.windows import Windows
from plm_jax.errors import UserError
from plm_jax.storage import checksums


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))


@pytest.fixture(scope='module')
def sound(tmp_path_factory):
  """Two shards of 3,000 tokens and one that is held out, with their tokenizer, and windows that
  were read once."""
  folder, tokenizer = tmp_path_factory.mktemp('records'), tokenizers.ByteTokenizer()
  draw, parts = np.random.default_rng(0), {'train': [], 'heldout': []}
  for split, name in (('train', 'train-00000'), ('train', 'train-00001'),
                      ('heldout', 'heldout-00000')):
    parts[split].append(write(folder, name, draw.integers(3, 259, 3000),
                              vocab=tokenizer.vocab.size))
  tokenizer.save(folder / 'tokenizer')
  train, heldout = map(tuple, parts.values())
  records.write_meta(folder, RecordsMeta(tokenizer.vocab.size, tokenizer.hash, train, heldout,
                                         'test'))
  read(folder)
  return folder


def write(folder, name, ids, vocab=100, size=10):
  """A shard of sentences of `size` tokens, three a document."""
  tokens = np.zeros(len(ids), records.token_dtype(vocab))
  tokens['token'], tokens['flags'] = ids, records.WORD_START
  sentences = np.zeros(len(ids) // size, records.SENTENCE_DTYPE)
  sentences['start'], sentences['document'] = np.arange(len(sentences)) * size, np.arange(
      len(sentences)) // 3
  return records.write_shard(folder, name, tokens, sentences)


def read(folder):
  """Everything that a run reads."""
  found = []
  for split in ('train', 'heldout'):
    for assembly in ('document', 'packed'):
      some = Windows(folder, split, 16, assembly)
      found.append(some.read(np.arange(len(some)))['tokens'])
  return np.concatenate(found)


def copy_of(folder, place):
  if place.exists():
    shutil.rmtree(place)
  return shutil.copytree(folder, place)


def flip(path, place, bit):
  content = bytearray(path.read_bytes())
  content[place] ^= 1 << bit
  path.write_bytes(content)


def verified(folder, capsys, monkeypatch):
  """(exit status, output) of the command."""
  monkeypatch.setattr('sys.argv', ['plm_jax', 'verify', str(folder)])
  try:
    main()
  except SystemExit as ended:
    return ended.code, capsys.readouterr().out
  return 0, capsys.readouterr().out


def files_of(folder):
  return sorted(path for path in folder.rglob('*') if path.is_file())


def test_no_flipped_bit_is_silent(sound, tmp_path, capsys, monkeypatch, caplog):
  expected = read(sound)
  assert verified(sound, capsys, monkeypatch)[0] == 0
  assert {path.suffix for path in files_of(sound)} == {'.json', '.npy', '.cuts'}
  draw = np.random.default_rng(0)
  for path in [path for path in files_of(sound) for _ in range(2)]:
    folder = copy_of(sound, tmp_path / 'copy')
    damaged = folder / path.relative_to(sound)
    flip(damaged, int(draw.integers(damaged.stat().st_size)), int(draw.integers(8)))
    # unread part
    empty = path.suffix == '.cuts' and damaged.read_bytes()[:4] == path.read_bytes()[:4] == bytes(4)
    status, said = verified(folder, capsys, monkeypatch)
    assert empty or (status == 1 and damaged.stem.partition('.')[0] in said), (damaged, said)
    caplog.clear()
    if 'windows' in path.parts:  # made again
      np.testing.assert_array_equal(read(folder), expected)
      assert damaged.name in caplog.text
    else:
      with pytest.raises(RecordsError, match=damaged.name) as error:
        read(folder)
      assert '\n' not in str(error.value)


def test_of_much_text_what_is_read_is_verified_and_no_more(sound, tmp_path, monkeypatch):
  monkeypatch.setattr(shards, 'SMALL_BYTES', 0)
  expected = Windows(sound, 'train', 16, 'packed').read(np.arange(375))['tokens']
  folder = copy_of(sound, tmp_path / 'copy')
  flip(folder / 'train-00001.npy', 5000, 0)
  some = Windows(folder, 'train', 16, 'packed')
  second = 188  # windows of the first shard; a block is 4096 bytes, 1365 tokens of 3 bytes
  np.testing.assert_array_equal(some.read(np.arange(second + 80))['tokens'], expected[:second + 80])
  with pytest.raises(RecordsError, match=r'train-00001\.npy is damaged'):
    some.read(np.array([3, second + 90]))
  flip(folder / 'train-00000.sentences.npy', 200, 0)
  with pytest.raises(RecordsError, match=r'train-00000\.sentences\.npy is damaged'):
    Windows(folder, 'train', 16, 'packed').read(np.arange(3))
  with pytest.raises(RecordsError, match=r'train-00000\.sentences\.npy is damaged'):
    Windows(folder, 'train', 17, 'document')


def test_files_that_are_cut_off_or_gone_are_named(sound, tmp_path, capsys, monkeypatch):
  for path in [path for path in files_of(sound) if 'windows' not in path.parts]:
    for size in (0, 3, path.stat().st_size - 1, None):
      folder = copy_of(sound, tmp_path / 'copy')
      damaged = folder / path.relative_to(sound)
      os.truncate(damaged, size) if size is not None else damaged.unlink()
      with pytest.raises(UserError, match=damaged.name) as error:
        read(folder)
      assert '\n' not in str(error.value)
  assert verified(folder, capsys, monkeypatch)[0] == 1


@pytest.mark.parametrize('name', ['train-00000.npy', 'train-00000.crc.npy',
                                  'heldout-00000.sentences.npy'])
def test_a_pipe_in_place_of_a_file_does_not_hang(sound, tmp_path, name):
  folder = copy_of(sound, tmp_path / 'r')
  (folder / name).unlink()
  os.mkfifo(folder / name)
  with pytest.raises(UserError, match=rf'{name}.*(no ordinary file|0 bytes)'):
    read(folder)


def test_ids_beyond_the_vocabulary_are_refused_though_the_checksums_are_right(
    tmp_path, monkeypatch):
  shard = write(tmp_path, 'train-00000', np.arange(90) + 11, vocab=100)
  records.write_meta(tmp_path, RecordsMeta(100, 'h', (shard,), (), 'x'))
  with pytest.raises(RecordsError,
                     match=r'train-00000\.npy holds the id 100, but the vocabulary .* has 100 ids'):
    Windows(tmp_path)
  monkeypatch.setattr(shards, 'SMALL_BYTES', 0)
  some = Windows(tmp_path, 'train', 30)
  assert some.read(np.arange(2))['tokens'].max() == 70
  with pytest.raises(RecordsError, match='holds the id 100'):
    some.read(np.arange(3))


CRCS = {'sentences_crc': 1, 'blocks_crc': 2}


@pytest.mark.parametrize(('change', 'message'), [
    ({'format': 1}, 'of format 1; this version reads format 2. Prepare the records again.'),
    ({'format': 3}, 'of format 3'),
    ({'format': True}, 'of format True'), ({'format': None}, 'of format None'),
    ({'vocab': -1}, 'a vocabulary of -1'), ({'vocab': '5'}, "vocab is '5', expected a number"),
    ({'vocab': True}, 'vocab is True'), ({'train': {}}, 'train is {}, expected a list'),
    ({'train': [3]}, 'a shard is 3'), ({'source': None}, 'source is None'), ({'more': 1}, 'more'),
    ({'train': [{'name': '../x', 'tokens': 1, 'sentences': 1, 'documents': 1} | CRCS]},
     'is no name of a shard'),
    ({'train': [{'name': 'x', 'tokens': 1 << 70, 'sentences': 1, 'documents': 1} | CRCS]},
     'cannot have'),
    ({'train': [{'name': 'x', 'tokens': -1, 'sentences': -2, 'documents': -3} | CRCS]},
     'cannot have'),
    ({'train': [{'name': 'x', 'tokens': 5}]}, 'sentences')])
def test_what_records_json_cannot_say_is_refused(tmp_path, change, message):
  fields = {'vocab': 100, 'tokenizer': 'h', 'train': [], 'heldout': [], 'source': 'x', 'skipped': 0,
            'format': 2}
  (tmp_path / 'records.json').write_text(checksums.seal_json(fields | change))
  with pytest.raises(RecordsError, match=r'records\.json') as error:
    records.read_meta(tmp_path)
  assert message in str(error.value) and '\n' not in str(error.value)


def test_another_tokenizers_files_are_noticed(sound, tmp_path, capsys, monkeypatch):
  folder = copy_of(sound, tmp_path / 'copy')
  fields = json.loads((sound / 'records.json').read_text())
  del fields['crc32']
  (folder / 'records.json').write_text(checksums.seal_json(fields | {'tokenizer': 'another'}))
  status, said = verified(folder, capsys, monkeypatch)
  assert status == 1 and 'tokenizer is not the tokenizer that made the records' in said
  (folder / 'records.json').write_text(
      checksums.seal_json(fields | {'tokenizer_crcs': {'../records.json': 3}}))
  with pytest.raises(RecordsError, match="is no name of a tokenizer's file"):
    records.read_meta(folder)


def test_open_files_do_not_grow_with_shards(tmp_path):
  shard = write(tmp_path, 'train', np.arange(40) + 10)
  entries = tuple(dataclasses.replace(shard, name=f'train-{number:05d}') for number in range(150))
  for entry in entries:
    for kind in ('', '.sentences', '.crc'):
      (tmp_path / f'{entry.name}{kind}.npy').write_bytes(
          (tmp_path / f'train{kind}.npy').read_bytes())
  records.write_meta(tmp_path, RecordsMeta(100, 'h', entries, (), 'x'))
  before = len(os.listdir('/proc/self/fd'))
  phases = [Windows(tmp_path, 'train', length, assembly) for length in (8, 20)
            for assembly in ('document', 'packed')]
  assert len(os.listdir('/proc/self/fd')) - before < 60
  for phase in phases:
    found = phase.read(np.random.default_rng(0).permutation(len(phase)))['tokens']
    assert np.count_nonzero(found) == 150 * 40
  assert len(os.listdir('/proc/self/fd')) - before < 60


def test_a_folder_that_holds_nothing_of_ours(tmp_path, capsys, monkeypatch):
  status, _ = verified(tmp_path, capsys, monkeypatch)
  assert 'holds nothing that can be verified' in str(status)


def test_a_shard_says_what_it_is(tmp_path):
  shard = write(tmp_path, 'train-00000', np.arange(30))
  assert shard == Shard('train-00000', 30, 3, 1,
                        *(checksums.crc((tmp_path / f'train-00000.{kind}.npy').read_bytes())
                                                  for kind in ('sentences', 'crc')))
  assert np.load(tmp_path / 'train-00000.npy')['token'].tolist() == list(range(30))
  assert np.load(tmp_path / 'train-00000.sentences.npy').dtype == records.SENTENCE_DTYPE
  blocks = np.load(tmp_path / 'train-00000.crc.npy').tolist()
  assert blocks == [checksums.crc((tmp_path / f'train-00000{kind}.npy').read_bytes())
                    for kind in ('', '.sentences')]


@pytest.mark.parametrize('seed', range(2))
def test_damage_of_any_kind_is_one_line(sound, tmp_path, seed):
  folder = tmp_path / 'copy'
  meta = json.loads((sound / 'records.json').read_text())
  del meta['crc32']
  for number, text in enumerate(mutate.jsons(meta, 30, seed)):
    copy_of(sound, folder)
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
      # sealed by who has damaged it
      text = checksums.seal_json(json.loads(text)).encode() if number % 2 else text
    (folder / 'records.json').write_bytes(text)
    one_line(folder)
  paths = [path for path in files_of(sound) if path.name != 'records.json']
  for number, path in enumerate(paths):
    for content in mutate.contents(path.read_bytes(), 2, 100 * seed + number):
      copy_of(sound, folder)
      (folder / path.relative_to(sound)).write_bytes(content)
      one_line(folder)


def one_line(folder):
  said = ''
  with mutate.limits():
    try:
      read(folder)
    except UserError as error:
      said = str(error)
  assert not said or (str(folder) in said and '\n' not in said)


def test_many_small_shards_are_not_all_read_at_opening(tmp_path, monkeypatch):
  monkeypatch.setattr(shards, 'SMALL_SHARDS', 1)
  entries = tuple(write(tmp_path, f'train-{number:05d}', np.arange(40) + 10) for number in range(2))
  records.write_meta(tmp_path, RecordsMeta(100, 'h', entries, (), 'x'))
  flip(tmp_path / 'train-00001.npy', 130, 0)
  some = Windows(tmp_path, 'train', 8, 'packed')
  assert some.read(np.arange(5))['tokens'][4].tolist() == [*range(42, 50)]
  with pytest.raises(RecordsError, match=r'train-00001\.npy is damaged'):
    some.read(np.arange(6))
