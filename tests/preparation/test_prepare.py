import concurrent.futures
import contextlib
import errno
import gzip
import hashlib
import json
import os
import random
import re

import numpy as np
import pytest

from benchmarks import kill_prepare
from plm_jax import errors, storage, tokenizers
from plm_jax.data import records
from plm_jax.data.shards import Shards
from plm_jax.data.window_rules import WindowRule
from plm_jax.data.windows import Windows
from plm_jax.distributed import worker_pool as workers_lib
from plm_jax.preparation import encode, prepare
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import text_sources
from plm_jax.sources.document_formats import Document

RULES = WindowRule('document', 20), WindowRule('sentences', 33)
WORDS = ['the', 'a', 'cat', 'dog', 'mat', 'sat', 'ran', 'on', 'in', 'of', 'big', 'small', 'house',
         'tree', 'sky', 'sea']


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """60 documents of one to nine sentences; every tenth is a copy of another."""
  rng = random.Random(0)
  sentence = lambda: ' '.join(rng.choices(WORDS, k=rng.randint(3, 12))).capitalize() + '.'
  documents = ['\n'.join(' '.join(sentence() for _ in range(3)) for _ in range(rng.randint(1, 3)))
               for _ in range(60)]
  documents[9::10] = documents[4::10]
  path = tmp_path_factory.mktemp('corpus') / 'corpus.txt'
  path.write_text('\n\n'.join(documents) + '\n')
  return path


@pytest.fixture(scope='module')
def vocab(corpus, tmp_path_factory):
  folder = tmp_path_factory.mktemp('vocab')
  tokenizers.train_wordpiece(corpus.read_text().split('\n'), 60).save(folder)
  return folder


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', 500)


@pytest.fixture
def config(corpus, vocab):
  return PrepareConfig(source=str(corpus), tokenizer=str(vocab), heldout=0.2, shard_tokens=300,
                       workers=1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))


def replace(config, **changes):
  return prepare.dataclasses.replace(config, **changes)


def digests(folder):
  files = sorted(path for path in folder.rglob('*') if path.is_file())
  return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
          for path in files}


def counted(folder):
  """What is stored of numbers of windows: the text of each file by its name."""
  return {path.name: path.read_text() for path in folder.glob('windows/*/*.json')}


def count_reads(monkeypatch):
  """Shards whose sentences are read to count windows, from here on."""
  sentences, reads = Shards.sentences, []
  def read(self, number):
    reads.append(self.entries[number].name)
    return sentences(self, number)
  monkeypatch.setattr(Shards, 'sentences', read)
  return reads


def read(folder, split):
  """Documents of a split as lists of sentences, pieces with a bar before the starts of words."""
  meta, tokenizer = records.read_meta(folder), tokenizers.load(folder)
  documents = []
  for shard in meta.shards(split):
    tokens, sentences = records.open_tokens(folder, shard), records.read_sentences(folder, shard)
    ends = np.append(sentences['start'], shard.tokens)
    documents += [[] for _ in range(shard.documents)]
    for i, (start, document) in enumerate(sentences):
      pieces = [('|' if flags & records.WORD_START else '')
                + tokenizer.pieces[token].removeprefix('##')
                for token, flags in tokens[start:ends[i + 1]]]
      documents[int(document) - shard.documents].append(''.join(pieces))
  return documents


def test_records_are_the_text(config, corpus, tmp_path):
  meta = prepare.prepare(config, tmp_path)
  assert meta == records.read_meta(tmp_path)
  text = {split: [' '.join(document).replace('|', ' ').split()
                  for document in read(tmp_path, split)]
          for split in ('train', 'heldout')}
  source = [document.lower().replace('.', ' .').split()
            for document in corpus.read_text().split('\n\n')]
  assert sorted(text['train'] + text['heldout']) == sorted(source)
  in_order = iter(source)
  assert all(document in in_order for document in text['train'])  # reading order is kept
  assert all(300 <= shard.tokens < 600 for shard in meta.train[:-1])
  assert 5 <= len(text['heldout']) <= 20
  assert not any(document in text['train'] for document in text['heldout'])  # copies stay together
  assert meta.tokenizer == tokenizers.load(tmp_path).hash


@pytest.fixture
def heldout(tmp_path):
  """A held-out text of its own: 20 documents, some of which the corpus has as well."""
  rng = random.Random(1)
  documents = [' '.join(rng.choices(WORDS, k=rng.randint(3, 30))) + '.' for _ in range(20)]
  path = tmp_path / 'valid.txt'
  path.write_text('\n\n'.join(documents))
  return path


@pytest.mark.parametrize('share', [0.0, 0.01])
def test_a_held_out_text_is_held_out_as_a_whole_and_nothing_else_is(config, corpus, heldout,
                                                                    tmp_path, share, capsys):
  meta = prepare.prepare(replace(config, heldout=share, heldout_path=str(heldout)),
                         tmp_path / 'out')
  for split, path in (('train', corpus), ('heldout', heldout)):
    text = [' '.join(document).replace('|', ' ').split()
            for document in read(tmp_path / 'out', split)]
    assert text == [document.lower().replace('.', ' .').split()
                    for document in path.read_text().split('\n\n')]
  assert (meta.heldout_path, meta.heldout_share,
          meta.heldout_text) == (str(heldout), 0.0, str(heldout))
  assert f'shards, from {heldout}' in capsys.readouterr().out


def test_records_without_a_held_out_text_say_how_documents_were_chosen(config, tmp_path):
  chosen = prepare.prepare(config, tmp_path / 'chosen')
  assert (chosen.heldout_text, chosen.evaluation_split) == ('20% of the documents', 'heldout')
  none = prepare.prepare(replace(config, heldout=0), tmp_path / 'none')
  assert (none.heldout_text, none.evaluation_split) == ('none', 'train')


def test_the_content_of_the_held_out_text_is_part_of_the_fingerprint(config, heldout, tmp_path):
  config = replace(config, heldout=0.01, heldout_path=str(heldout))
  before = prepare.prepare(config, tmp_path / 'out')
  (tmp_path / 'elsewhere').mkdir()
  moved = heldout.rename(tmp_path / 'elsewhere' / heldout.name)
  assert prepare.prepare(replace(config, heldout_path=str(moved)), tmp_path / 'out') == before
  moved.write_text('Other text.')
  with pytest.raises(records.RecordsError, match='holds records of another source'):
    prepare.prepare(replace(config, heldout_path=str(moved)), tmp_path / 'out')


@pytest.mark.parametrize(('changes', 'message'), [
    ({'heldout_path': 'valid.txt', 'heldout': 0.2},
     r'names the held-out text, so no share .* leave out heldout'),
    ({'heldout_path': 'task:sst2:a.tsv'},
     r'is a text of the same kind as .*corpus.txt, got task:sst2:a.tsv'),
    ({'heldout_path': 'nowhere.txt'}, "no files match 'nowhere.txt'")])
def test_a_held_out_text_that_does_not_fit_is_refused(config, tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    prepare.prepare(replace(config, **{'heldout': 0.0, **changes}), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_held_out_examples_of_a_task(tmp_path):
  for name, text in (('train', 'fine'), ('dev', 'bad')):
    (tmp_path / f'{name}.jsonl').write_text(f'{{"sentence": "{text}", "label": 1}}\n' * 3)
  sources_of = [f'task:sst2:{tmp_path}/{name}.jsonl' for name in ('train', 'dev')]
  config = PrepareConfig(source=sources_of[0], heldout_path=sources_of[1], kind='bytes', workers=1)
  meta = prepare.prepare(config, tmp_path / 'out')
  assert [sum(shard.documents for shard in meta.shards(split))
          for split in records.SPLITS] == [3, 3]
  tokens = records.open_tokens(tmp_path / 'out', meta.heldout[0])['token']
  assert tokenizers.load(tmp_path / 'out').decode(tokens) == 'positivesst2 sentence: bad' * 3


def test_a_held_out_text_without_a_token_is_refused(config, heldout, tmp_path):
  heldout.write_text('\x01')
  message = 'holds no text: none of its documents has a token'
  with pytest.raises(text_sources.SourceError, match=message):
    prepare.prepare(replace(config, heldout=0.0, heldout_path=str(heldout)), tmp_path / 'out')


def test_words_and_sentences(vocab, tmp_path):
  (tmp_path / 'a.txt').write_text('The cats sat. Dr. Big ran!\nA dog.\n\nThe sea.\n')
  config = PrepareConfig(source=f'{tmp_path}/a.txt', tokenizer=str(vocab), heldout=0, workers=1)
  prepare.prepare(config, tmp_path / 'out')
  documents = read(tmp_path / 'out', 'train')
  assert documents == [['|the|cats|sat|.', '|dr|.|big|ran|[UNK]', '|a|dog|.'], ['|the|sea|.']]
  prepare.prepare(replace(config, sentences='line'), tmp_path / 'lines')
  assert [len(document) for document in read(tmp_path / 'lines', 'train')] == [2, 1]


def test_sentencepiece_words(corpus, tmp_path):
  config = PrepareConfig(source=str(corpus), kind='sentencepiece-bpe', vocab=60, workers=1)
  prepare.prepare(config, tmp_path)
  for document in read(tmp_path, 'train'):
    for sentence in document:
      assert sentence.startswith('|')
      assert '▁' not in sentence.replace('|▁', '')  # every '▁' starts a word


def test_bytes_need_no_training(tmp_path):
  (tmp_path / 'a.txt').write_text('Thé cats sat. Dr. Big ran!\n\nThe sky.\n')
  config = PrepareConfig(source=f'{tmp_path}/a.txt', kind='bytes', heldout=0, workers=1)
  meta = prepare.prepare(config, tmp_path / 'out')
  tokens = records.open_tokens(tmp_path / 'out', meta.shards('train')[0])['token']
  assert meta.vocab == 384 and tokenizers.load(tmp_path / 'out').decode(
      tokens) == 'Thé cats sat. Dr. Big ran!The sky.'


@pytest.mark.parametrize(('kind', 'vocab'), [('wordpiece', 60), ('sentencepiece-unigram', 40)])
def test_any_number_of_workers_gives_the_same_bytes(corpus, tmp_path, monkeypatch, kind, vocab):
  monkeypatch.setattr(workers_lib, 'BYTES_PER_WORKER', 1)
  for workers in (1, 3):
    config = PrepareConfig(source=str(corpus), kind=kind, vocab=vocab, heldout=0.1,
                           shard_tokens=300, workers=workers)
    prepare.prepare(config, tmp_path / str(workers), RULES)
  assert digests(tmp_path / '1') == digests(tmp_path / '3')
  assert len(digests(tmp_path / '1')) > 10 and len(counted(tmp_path / '1')) == 4


@pytest.mark.parametrize('own', [False, True])
@pytest.mark.parametrize('writes', [1, 2, 3, 6, 9, 10])
def test_killed_and_resumed_gives_the_same_bytes(config, heldout, tmp_path, monkeypatch, writes,
                                                 own):
  if own:
    config = replace(config, heldout=0.0, heldout_path=str(heldout), shard_tokens=200)
  monkeypatch.setattr(Shards, 'sentences', lambda *_: pytest.fail('read to count windows'))
  expected = prepare.prepare(config, tmp_path / 'whole', RULES)
  write_shard, count = records.write_shard, []

  def killed(folder, name, *arrays):
    count.append(name)
    if len(count) == writes:
      (folder / f'.{name}.npy.0a.tmp').write_bytes(b'half')
      raise KeyboardInterrupt
    return write_shard(folder, name, *arrays)

  monkeypatch.setattr(records, 'write_shard', killed)
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, tmp_path / 'killed', RULES)
  assert not (tmp_path / 'killed/records.json').exists()
  with pytest.raises(records.RecordsError, match='no finished token records'):
    records.read_meta(tmp_path / 'killed')
  assert prepare.prepare(config, tmp_path / 'killed', RULES) == expected
  assert digests(tmp_path / 'whole') == digests(tmp_path / 'killed')
  shards = len(expected.train) + len(expected.heldout)
  assert len(count) < shards + writes or writes <= 2  # what was committed was not written again


def test_windows_of_a_small_text_are_counted(tmp_path):
  """Of sentences of 8, 10 and 4 bytes, and another document of 8."""
  (tmp_path / 'a.txt').write_text('The cat.\nA dog ran.\nSky.\n\nThe sea.\n')
  config = PrepareConfig(source=f'{tmp_path}/a.txt', kind='bytes', heldout=0, workers=1)
  # arithmetic, and of another kind of text
  others = WindowRule('packed', 18), WindowRule('examples', 9, (3, 1))
  rules = WindowRule('document', 18), WindowRule('sentences',
                                                 18), WindowRule('document', 5), *others
  prepare.prepare(config, tmp_path / 'out', rules)
  assert {name: json.loads(text)['windows']
          for name, text in counted(tmp_path / 'out').items()} == {
      'train-document-18.json': [3],  # 8 + 10, 4, 8
      'train-sentences-18.json': [2],  # 8 + 10, 4 + 8
      'train-document-5.json': [7]}  # 5, 3, 5, 5, 4, 5, 3


def test_windows_of_a_small_task_are_counted(tmp_path):
  """Of three examples, each a target of 8 and inputs of 19 bytes."""
  (tmp_path / 'a.jsonl').write_text('{"sentence": "fine", "label": 1}\n' * 3)
  config = PrepareConfig(source=f'task:sst2:{tmp_path}/a.jsonl', kind='bytes', heldout=0, workers=1)
  rules = WindowRule('examples', 60, (20, 1)), WindowRule('examples', 25,
                                                          (10, 1)), WindowRule('document', 60)
  prepare.prepare(config, tmp_path / 'out', rules)
  found = {name: json.loads(text) for name, text in counted(tmp_path / 'out').items()}
  assert {name: (value['windows'], value['clipped']) for name, value in found.items()} == {
      'train-examples-60-20-1.json': ([2], 0), 'train-examples-25-10-1.json': ([3], 3)}


def test_what_prepare_has_counted_no_run_reads_sentences_for(config, tmp_path, monkeypatch):
  meta = prepare.prepare(config, tmp_path / 'out', RULES)
  expected = {f'{split}-{rule}.json': [
      rule.count_windows(records.read_sentences(tmp_path / 'out', shard), shard)[0]
                                       for shard in meta.shards(split)]
              for split in records.SPLITS for rule in RULES}
  assert {name: json.loads(text)['windows']
          for name, text in counted(tmp_path / 'out').items()} == expected
  assert min(map(len, expected.values())) > 1
  reads = count_reads(monkeypatch)
  for split in records.SPLITS:
    for rule in RULES:
      some = Windows(tmp_path / 'out', split, rule.length, rule.assembly)
      assert len(some) == sum(expected[f'{split}-{rule}.json'])
  assert not reads
  some.read(np.arange(len(some)))  # which does read them
  assert reads == [shard.name for shard in meta.heldout]


def test_records_of_before_are_counted_in_one_pass(config, tmp_path, monkeypatch):
  meta = prepare.prepare(config, tmp_path / 'out')
  before, reads = digests(tmp_path / 'out'), count_reads(monkeypatch)
  assert prepare.prepare(config, tmp_path / 'out', RULES) == meta
  assert sorted(reads) == sorted(shard.name for shard in meta.train + meta.heldout)
  reads.clear()
  prepare.prepare(config, tmp_path / 'out', RULES)
  assert not reads
  monkeypatch.undo()
  prepare.prepare(config, tmp_path / 'at once', RULES)
  assert digests(tmp_path / 'out') == digests(tmp_path / 'at once')
  assert before.items() < digests(tmp_path / 'out').items()


def test_a_run_that_goes_on_with_other_rules_counts_what_is_missing(config, tmp_path, monkeypatch):
  expected = prepare.prepare(config, tmp_path / 'whole', RULES)
  interrupt(config, tmp_path / 'torn', monkeypatch, rules=RULES[:1])
  reads = count_reads(monkeypatch)
  prepare.prepare(config, tmp_path / 'torn', RULES)
  assert digests(tmp_path / 'torn') == digests(tmp_path / 'whole')
  assert sorted(reads) == sorted(shard.name for shard in expected.train + expected.heldout)
  interrupt(config, tmp_path / 'fewer', monkeypatch, rules=RULES)
  prepare.prepare(config, tmp_path / 'fewer', RULES[1:])
  assert counted(tmp_path / 'fewer').items() < counted(tmp_path / 'whole').items()


def test_damaged_numbers_of_windows_are_made_again(config, tmp_path, caplog):
  prepare.prepare(config, tmp_path, RULES)
  before = digests(tmp_path)
  path = next(tmp_path.glob('windows/*/train-document-20.json'))
  path.write_text(path.read_text().replace('1', '2', 1))
  prepare.prepare(config, tmp_path, RULES)
  assert f'{path} is damaged' in caplog.text and 'it is made again' in caplog.text
  assert digests(tmp_path) == before


def test_finished_records_are_not_made_again(config, tmp_path, monkeypatch):
  meta = prepare.prepare(config, tmp_path)
  monkeypatch.setattr(prepare, 'write_records', None)
  assert prepare.prepare(replace(config, workers=5), tmp_path) == meta


@pytest.mark.parametrize('finished', [True, False])
@pytest.mark.parametrize('change', [
    {'heldout': 0.3}, {'shard_tokens': 301}, {'sentences': 'line'}, {'on_error': 'skip'},
    {'tokenizer': ''}])
def test_other_settings_are_refused(config, tmp_path, monkeypatch, change, finished):
  if not finished:
    monkeypatch.setattr(records, 'write_meta', lambda *_: 1 / 0)
  with contextlib.suppress(ZeroDivisionError):
    prepare.prepare(config, tmp_path)
  before = digests(tmp_path)
  with pytest.raises(records.RecordsError,
                     match='holds records of another source, or made with other settings'):
    prepare.prepare(replace(config, **change), tmp_path)
  assert digests(tmp_path) == before


def test_another_text_is_refused(config, corpus, tmp_path):
  (tmp_path / 'corpus.txt').write_text(corpus.read_text())
  config = replace(config, source=f'{tmp_path}/corpus.txt')
  prepare.prepare(config, tmp_path / 'out')
  (tmp_path / 'corpus.txt').write_text(corpus.read_text().replace('cat', 'dog', 1))
  with pytest.raises(records.RecordsError, match='another source'):
    prepare.prepare(config, tmp_path / 'out')


def prepare_text(folder, vocab, heldout=0.01, on_error='refuse'):
  """Records of folder/a.txt in folder/out."""
  return prepare.prepare(PrepareConfig(
      source=f'{folder}/a.txt', tokenizer=str(vocab), heldout=heldout, on_error=on_error,
      workers=1), folder / 'out')


@pytest.mark.parametrize(('text', 'heldout', 'expected'), [
    ('One.\n', 0.5, (1, 0)), ('One.\n\nTwo.\n', 0.01, (1, 1)), ('One.\n\nTwo.\n', 0.99, (1, 1)),
    ('One.\n\nOne.\n', 0.5, (2, 0)), ('One.\n\nOne.\n\nTwo.\n', 0.0, (3, 0)),
])
def test_tiny_corpora(text, heldout, expected, vocab, tmp_path):
  (tmp_path / 'a.txt').write_text(text)
  meta = prepare_text(tmp_path, vocab, heldout=heldout)
  assert tuple(sum(s.documents for s in meta.shards(split))
               for split in ('train', 'heldout')) == expected


@pytest.mark.parametrize(('content', 'on_error', 'message'), [
    (b'', 'refuse', 'a.txt holds no documents'),
    (b'\n \n\n', 'refuse', 'a.txt holds no documents'),
    (b'\xff\n', 'skip', 'a.txt holds no documents'),
    (b'\x01\x02\n', 'refuse', 'a.txt holds no text: none of its 1 documents has a token'),
    (b'The cat.\n\n\xff\n', 'refuse', r'a.txt:3: not UTF-8: .*byte 10 of the file'),
])
def test_bad_text_leaves_nothing_behind(content, on_error, message, vocab, tmp_path):
  (tmp_path / 'a.txt').write_bytes(content)
  with pytest.raises(text_sources.SourceError, match=message):
    prepare_text(tmp_path, vocab, on_error=on_error)
  assert not (tmp_path / 'out').exists()


def test_skipped_lines_are_reported(vocab, tmp_path, caplog):
  (tmp_path / 'a.txt').write_bytes(b'The cat.\n\xff\n\nA dog.\n')
  meta = prepare_text(tmp_path, vocab, on_error='skip')
  assert meta.skipped == 1
  assert f'1 lines were left out:\n  {tmp_path}/a.txt:2: not UTF-8' in caplog.text


def test_the_documents_of_each_file_and_copies_are_reported(vocab, tmp_path, caplog, capsys):
  """A file without a blank line is one document next to others; a packed copy has the same text."""
  folder = tmp_path / 'text'
  folder.mkdir()
  text = 'The cat sat.\n\nA dog ran.\n\nThe sea.\n'
  for name in ('a.txt', 'a.txt~', 'a (1).txt'):
    (folder / name).write_text(text)
  (folder / 'a.txt.gz').write_bytes(gzip.compress(text.encode()))
  (folder / 'README.md').write_text('The house.\nThe tree.\n')
  config = PrepareConfig(source=str(folder), tokenizer=str(vocab), heldout=0.5)
  prepare.prepare(config, tmp_path / 'out')
  said = capsys.readouterr().out
  assert f'  {folder}/README.md: 1 document\n' in said
  assert f'  {folder}/a.txt: 3 documents\n' in said
  assert (f'{folder}/a.txt has copies with the same text, which is read 4 times: {folder}/a.txt~, '
          f'{folder}/a.txt.gz, '
          f'{folder}/a (1).txt') in caplog.text
  for number in range(10):
    (folder / f'b{number}.txt').write_text(f'The cat of number {number}.\n')
  prepare.prepare(config, tmp_path / 'more')
  assert '  15 files gave 1 to 3 documents each\n' in capsys.readouterr().out


def test_unknown_tokens_are_reported(vocab, tmp_path, caplog):
  (tmp_path / 'a.txt').write_text('The cat. Ж ж ж.\n')
  prepare_text(tmp_path, vocab)
  assert '42.9% of the tokens are unknown to the tokenizer' in caplog.text
  (tmp_path / 'a.txt').write_text('机器 学习。The cat.\n')
  (tmp_path / 'out').rename(tmp_path / 'english')
  prepare_text(tmp_path, vocab)
  assert '的词元不在词表中' in caplog.text


@pytest.mark.parametrize('after', [0, 3])
def test_full_disk(config, tmp_path, monkeypatch, after):
  expected = prepare.prepare(config, tmp_path / 'whole')
  sync, count = os.fsync, []

  def full(file):
    count.append(file)
    sync(file)
    if len(count) > after:
      raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(storage.SpaceError,
                     match=r'no space left for .*full.*the same command resumes'):
    prepare.prepare(config, tmp_path / 'full')
  assert not [name for name in digests(tmp_path / 'full') if name.endswith('.tmp')]
  assert not (tmp_path / 'full/records.json').exists()
  monkeypatch.setattr(os, 'fsync', sync)
  assert prepare.prepare(config, tmp_path / 'full') == expected
  assert digests(tmp_path / 'full') == digests(tmp_path / 'whole')


def test_trained_tokenizer_is_kept(corpus, tmp_path):
  config = PrepareConfig(source=str(corpus), vocab=70, sample=2000, workers=1)
  meta = prepare.prepare(config, tmp_path)
  assert meta.vocab == 70
  assert tokenizers.load(tmp_path).hash == meta.tokenizer
  assert json.loads((tmp_path / 'tokenizer/tokenizer_config.json').read_text())[
      'do_lower_case'] is True


def test_sample_is_spread_over_the_source(corpus):
  every = list(prepare.read_paragraphs(PrepareConfig(source=str(corpus))))
  total = sum(map(len, every))
  for size in (total // 9, total // 2, total * 2 // 3, total * 9 // 10):
    config = PrepareConfig(source=str(corpus), sample=size)
    sample = list(prepare.sample_paragraphs(config))
    assert sample == list(prepare.sample_paragraphs(config)) and abs(
        sum(map(len, sample)) - size) < 500
    # Each quarter of the text has its share; copies of a paragraph may stand elsewhere.
    for quarter in range(4):
      part = every[quarter * len(every) // 4:(quarter + 1) * len(every) // 4]
      assert abs(sum(len(text) for text in part if text in sample) / sum(map(len, part)) - size
                 / total) < 0.35
  assert list(prepare.sample_paragraphs(PrepareConfig(source=str(corpus), sample=total))) == every


def test_sample_of_a_text_in_turns_and_of_a_long_line(tmp_path):
  """Of lines in two languages in turns both are sampled; a long line is sampled in parts, from its
  beginning to its end; a compressed text of which the estimate is wrong as well."""
  lines = [f'{"en" if n % 2 else "de"} line {n:04}' for n in range(1000)]
  text = tmp_path / 'turns.txt.gz'
  text.write_bytes(gzip.compress('\n\n'.join(lines).encode()))
  sample = list(prepare.sample_paragraphs(PrepareConfig(source=str(text), sample=6_000)))
  for part in (sample[:len(sample) // 2], sample[len(sample) // 2:]):
    assert 0.4 < sum(line.startswith('en') for line in part) / len(part) < 0.6
  assert sample[0] < 'en line 0010' and int(sample[-1][-4:]) > 980 and len(sample) == 500
  (tmp_path / 'long.txt').write_text(' '.join(f'{n:06}' for n in range(70_000)))
  sample = ''.join(prepare.sample_paragraphs(PrepareConfig(source=str(tmp_path / 'long.txt'),
                                                           sample=300_000)))
  assert abs(len(sample) - 300_000) < 10_000
  assert {number[:2] for number in re.findall(r'\d{6}', sample)} == {f'{n:02}' for n in range(7)}


@pytest.mark.parametrize(
    ('field', 'value'), [('heldout', 1.0), ('heldout', -0.1), ('shard_tokens', 0), ('workers', -1)])
def test_settings_are_checked(field, value):
  with pytest.raises(errors.UserError, match=f'{field} is .*, got {value}'):
    PrepareConfig(**{field: value})


@pytest.mark.parametrize(('content', 'expected'), [
    ('{"source": "x"', 'is damaged'), ('\0\xff', 'is damaged'),
    ('{"format": 2, "source": "x", "documents": 3, "check": "0"}',
     'is damaged or of another version'),
    (None, 'is damaged or of another version')])
def test_a_damaged_journal_begins_again(config, tmp_path, monkeypatch, capsys, content, expected):
  prepare.prepare(config, tmp_path / 'whole')
  interrupt(config, tmp_path / 'torn', monkeypatch)
  path = tmp_path / 'torn/journal.json'
  path.write_text(content or path.read_text().replace('"documents": ', '"documents": 1', 1))
  prepare.prepare(config, tmp_path / 'torn')
  assert f'{path} {expected}: the work begins again' in capsys.readouterr().out
  assert digests(tmp_path / 'whole') == digests(tmp_path / 'torn')


def interrupt(config, folder, monkeypatch, shards=3, rules=()):
  """Prepares, and stops when some shards are written."""
  write_shard, count = records.write_shard, []

  def killed(*args):
    count.append(args)
    if len(count) > shards:
      raise KeyboardInterrupt
    return write_shard(*args)

  with monkeypatch.context() as patch:
    patch.setattr(records, 'write_shard', killed)
    with pytest.raises(KeyboardInterrupt):
      prepare.prepare(config, folder, rules)
  assert (folder / 'journal.json').exists()


@pytest.mark.parametrize('damage', ['shard', 'sentences', 'tokenizer', 'no tokenizer'])
def test_damaged_beginnings_are_made_again(corpus, tmp_path, monkeypatch, capsys, damage):
  config = PrepareConfig(source=str(corpus), vocab=60, heldout=0.2, shard_tokens=300, workers=1)
  prepare.prepare(config, tmp_path / 'whole')
  interrupt(config, tmp_path / 'torn', monkeypatch)
  vocabulary = tmp_path / 'torn/tokenizer/vocab.txt'
  if damage == 'shard':
    (tmp_path / 'torn/train-00000.npy').write_bytes(b'')
  elif damage == 'sentences':
    (tmp_path / 'torn/train-00000.sentences.npy').unlink()
  elif damage == 'tokenizer':
    vocabulary.write_text(vocabulary.read_text().replace('t', 'q'))
  else:
    vocabulary.unlink()
  prepare.prepare(config, tmp_path / 'torn')
  assert ': the work begins again' in capsys.readouterr().out
  assert digests(tmp_path / 'whole') == digests(tmp_path / 'torn')


def test_two_at_once_both_end_well(config, tmp_path, capsys):
  expected = prepare.prepare(config, tmp_path / 'alone')
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    found = [pool.submit(prepare.prepare, config, tmp_path / 'shared') for _ in range(2)]
    assert [future.result() for future in found] == [expected, expected]
  assert digests(tmp_path / 'alone') == digests(tmp_path / 'shared')


@pytest.mark.slow
def test_killed_processes_leave_nothing_behind(tmp_path):
  """With one worker, then with three, neither of which outlives its parent; the third time it
  ends."""
  kill_prepare.write_text(tmp_path / 'text.txt', 1500, random.Random(0))
  (tmp_path / 'command.py').write_text(kill_prepare.COMMAND)
  kill_prepare.run(tmp_path, 'whole', 1)
  assert kill_prepare.kill(tmp_path, 'torn', 1, shards=1)
  assert kill_prepare.kill(tmp_path, 'torn', 3, shards=3)
  kill_prepare.run(tmp_path, 'torn', 1)
  assert digests(tmp_path / 'whole') == digests(tmp_path / 'torn')


def test_a_file_in_place_of_the_folder(config, tmp_path):
  (tmp_path / 'out').write_text('x')
  with pytest.raises(records.RecordsError, match='is a file, expected a folder'):
    prepare.prepare(config, tmp_path / 'out')
  with pytest.raises(errors.UserError, match=r'out/deeper cannot be written: .*Not a directory'):
    prepare.prepare(config, tmp_path / 'out/deeper')


def test_folders_and_texts_that_cannot_be(config, corpus, tmp_path):
  for folder in ('', ' '):
    with pytest.raises(records.RecordsError, match='no folder for the records is given'):
      prepare.prepare(config, folder)
  with pytest.raises(text_sources.SourceError, match='no text is given'):
    prepare.prepare(replace(config, source=' '), tmp_path)
  (tmp_path / 'text').mkdir()
  (tmp_path / 'text/a.txt').write_bytes(corpus.read_bytes())
  with pytest.raises(records.RecordsError, match='records among the text would be read as text'):
    prepare.prepare(replace(config, source=str(tmp_path / 'text')), tmp_path / 'text/records')


def test_what_may_not_be_written_is_one_line(config, tmp_path, monkeypatch):
  def denied(*_):
    raise PermissionError(errno.EACCES, 'Permission denied', str(tmp_path))

  monkeypatch.setattr(storage.os, 'fsync', denied)
  with pytest.raises(errors.UserError, match=r'out.* cannot be written: .*: Permission denied'):
    prepare.prepare(config, tmp_path / 'out')
  monkeypatch.undo()
  prepare.prepare(config, tmp_path / 'out')


def test_examples_without_tokens_on_a_side_are_left_out_and_named(tmp_path, caplog):
  rows = [('one', 'two'), ('\u200b', 'three'), ('four', '\u200b'), ('five', 'six')]
  (tmp_path / 'a.jsonl').write_text('\n'.join(json.dumps({'a': a, 'b': b}) for a, b in rows))
  config = PrepareConfig(source=f'task:columns-a-b:{tmp_path}/a.jsonl', vocab=60, heldout=0,
                         workers=1)
  meta = prepare.prepare(config, tmp_path / 'out')
  assert read(tmp_path / 'out', 'train') == [['|two', '|one'], ['|six', '|five']]
  assert meta.skipped == 2
  assert [f'a.jsonl:{line}: its target or its inputs have no tokens' in caplog.text
          for line in (1, 2, 3, 4)] == [
      False, True, True, False]


def test_identical_documents_come_in_units_and_still_two_are_told_apart(tmp_path, vocab):
  unit = ['The cat sat on the mat.'] * 10
  found = list(encode.batch_documents(text_sources.Document(unit, 'x') for _ in range(100)))
  assert max(map(len, found)) == 3  # of UNIT characters, and no more
  (tmp_path / 'a.txt').write_text('The cat sat on the mat.\n\n' * 100 + 'A dog.\n')
  meta = prepare_text(tmp_path, vocab)
  assert [sum(s.documents for s in shards) for shards in (meta.train, meta.heldout)] == [100, 1]


def test_one_document_is_prepared_with_what_to_do(vocab, tmp_path, caplog):
  (tmp_path / 'a.txt').write_text('The cat sat.\nThe dog ran.\n')
  prepare.prepare(PrepareConfig(source=f'{tmp_path}/a.txt', tokenizer=str(vocab), documents='files',
                                workers=1),
                  tmp_path / 'one')
  assert 'nothing is held out, as there is but one document' in caplog.text
  assert 'give documents=lines' in caplog.text


def test_text_without_a_blank_line_is_a_document_a_line(vocab, tmp_path, capsys):
  (tmp_path / 'a.txt').write_text('The cat sat.\nThe dog ran.\n')
  meta = prepare_text(tmp_path, vocab)
  assert [sum(s.documents for s in shards) for shards in (meta.train, meta.heldout)] == [1, 1]
  assert f"{tmp_path}/a.txt has no blank line: every line of it is a document. documents=files" in (
      capsys.readouterr().out)


def test_options_of_before_have_the_fingerprint_of_before(config):
  """So that records are found: what an option newly names was done before without it."""
  assert replace(config, text_field='text', documents='auto') == config
  found = {prepare.fingerprint(replace(config, **changes), None) for changes in (
      {}, {'workers': 3}, {'text_field': 'body'}, {'documents': 'lines'})}
  assert len(found) == 3


def test_a_worker_that_dies_is_one_line():
  with pytest.raises(workers_lib.WorkerError, match=r'a worker process died\. If memory was short'):
    die()


def die():
  with workers_lib.open_pool(1) as pool:
    pool.submit(os._exit, 3).result()


@pytest.mark.parametrize('segmenter', ['none', 'spaces'])
def test_sentences_encoded_a_few_at_a_time_are_those_encoded_at_once(corpus, vocab, monkeypatch,
                                                                     segmenter):
  tokenizer = tokenizers.load(vocab)
  unit = [*text_sources.read_documents(str(corpus)), Document([], '')]
  at_once = encode.encode_documents(unit, tokenizer, 'split', segmenter)
  monkeypatch.setattr(encode, 'BATCH_CHARACTERS', 50)
  for one, other in zip(at_once, encode.encode_documents(unit, tokenizer, 'split', segmenter),
                        strict=True):
    np.testing.assert_array_equal(one, other)
  assert len(encode.encode_documents([Document([], '')], tokenizer, 'split', segmenter).tokens) == 0
