from concurrent.futures import ThreadPoolExecutor
import errno
import os
import pathlib
import threading
import time

import numpy as np
import pytest

from plm_jax import storage
from plm_jax.data import records, shards, window_counts, window_rules
from plm_jax.data.records import RecordsError
from plm_jax.data.windows import Windows

# The worked example of windows.py: two documents, three sentences, `purrs` of two tokens.
EXAMPLE = {'ids': [5, 6, 7, 8, 9, 10, 11, 12], 'continues': [5],
           'sentences': [(0, 0), (3, 0), (6, 1)]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))


def write(folder, *shards, split='train', tokenizer='hash', vocab=100):
  """A folder of records with the shards, each a dict like EXAMPLE."""
  folder.mkdir(exist_ok=True)
  written = []
  for number, shard in enumerate(shards):
    tokens = np.zeros(len(shard['ids']), records.token_dtype(vocab))
    tokens['token'], tokens['flags'] = shard['ids'], records.WORD_START
    tokens['flags'][shard.get('continues', [])] = 0
    sentences = np.array(shard['sentences'], records.SENTENCE_DTYPE)
    written.append(records.write_shard(folder, f'{split}-{number:05d}', tokens, sentences))
  parts = {'train': (), 'heldout': (), split: tuple(written)}
  records.write_meta(folder, records.RecordsMeta(vocab, tokenizer, source='test', **parts))
  return folder


def read(folder, assembly, length=5):
  all_windows = Windows(folder, 'train', length, assembly)
  return {name: array.tolist()
          for name, array in all_windows.read(np.arange(len(all_windows))).items()}


def test_document_windows_of_the_worked_example(tmp_path):
  assert read(write(tmp_path / 'r', EXAMPLE), 'document') == {
      'tokens': [[5, 6, 7, 0, 0], [8, 9, 10, 0, 0], [11, 12, 0, 0, 0]],
      'segments': [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
      'sentences': [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
      'words': [[1, 2, 3, 0, 0], [1, 2, 2, 0, 0], [1, 2, 0, 0, 0]],
      'document': [0, 0, 1], 'corpus': [0, 0, 0], 'index': [0, 1, 2], 'epoch': [0, 0, 0]}


def test_sentences_windows_of_the_worked_example(tmp_path):
  assert read(write(tmp_path / 'r', EXAMPLE), 'sentences') == {
      'tokens': [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]],
      'segments': [[1, 1, 1, 0, 0], [1, 1, 1, 2, 2]],
      'sentences': [[1, 1, 1, 0, 0], [1, 1, 1, 2, 2]],
      'words': [[1, 2, 3, 0, 0], [1, 2, 2, 3, 4]],
      'document': [0, 0], 'corpus': [0, 0], 'index': [0, 1], 'epoch': [0, 0]}


def test_packed_windows_of_the_worked_example(tmp_path):
  assert read(write(tmp_path / 'r', EXAMPLE), 'packed') == {
      'tokens': [[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]],
      'segments': [[1, 1, 1, 1, 1], [1, 2, 2, 0, 0]],
      'sentences': [[1, 1, 1, 2, 2], [1, 2, 2, 0, 0]],
      'words': [[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]],
      'document': [0, 0], 'corpus': [0, 0], 'index': [0, 1], 'epoch': [0, 0]}


def test_a_document_that_fits_is_one_window(tmp_path):
  got = read(write(tmp_path / 'r', EXAMPLE), 'document', 6)
  assert got['tokens'] == [[5, 6, 7, 8, 9, 10], [11, 12, 0, 0, 0, 0]]
  assert got['sentences'] == [[1, 1, 1, 2, 2, 2], [1, 1, 0, 0, 0, 0]]
  assert got['document'] == [0, 1]


def test_a_sentence_longer_than_a_window_is_cut(tmp_path):
  folder = write(tmp_path / 'r', {'ids': range(1, 13),
                                  'sentences': [(0, 0), (2, 0), (9, 0), (10, 1)]})
  got = read(folder, 'document', 4)
  assert got['tokens'] == [[1, 2, 0, 0], [3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 0, 0]]
  assert got['sentences'] == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 0, 0]]
  assert got['document'] == [0, 0, 0, 1]
  assert read(folder, 'sentences', 4)['tokens'] == got['tokens']
  assert read(folder, 'document', 1)['tokens'] == [[token] for token in range(1, 13)]


def test_shards_continue_the_numbers_but_share_no_window(tmp_path):
  empty = {'ids': [], 'sentences': []}
  folder = write(tmp_path / 'r', EXAMPLE, empty, {'ids': [20, 21], 'sentences': [(0, 0), (1, 1)]},
                 empty)
  got = read(folder, 'packed')
  assert got['tokens'] == [[5, 6, 7, 8, 9], [10, 11, 12, 0, 0], [20, 21, 0, 0, 0]]
  assert got['segments'] == [[1, 1, 1, 1, 1], [1, 2, 2, 0, 0], [1, 2, 0, 0, 0]]
  assert got['document'] == [0, 0, 2]
  assert read(folder, 'document')['document'] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize('assembly', ['document', 'sentences', 'packed'])
def test_windows_agree_with_a_slow_reading_of_random_records(tmp_path, assembly):
  shards = [random_shard(np.random.default_rng(seed)) for seed in range(3)]
  got = read(write(tmp_path / 'r', *shards, vocab=1000), assembly, 16)
  expected = [window for shard in shards for window in slow_windows(shard, 16, assembly)]
  assert len(got['tokens']) == len(expected)
  for row, (tokens, segments, sentences) in enumerate(expected):
    pad = [0] * (16 - len(tokens))
    assert got['tokens'][row] == tokens + pad
    assert got['segments'][row] == segments + pad
    assert got['sentences'][row] == sentences + pad


def test_read_keeps_the_order_asked_for_and_repeats(tmp_path):
  w = Windows(write(tmp_path / 'r', EXAMPLE, EXAMPLE), 'train', 5, 'document')
  got = w.read(np.array([4, 0, 4, 2]), epoch=np.array([1, 2, 3, 4]), corpus=7)
  assert got['tokens'][:, 0].tolist() == [8, 5, 8, 11]
  assert got['index'].tolist() == [4, 0, 4, 2] and got['epoch'].tolist() == [1, 2, 3, 4]
  assert got['corpus'].tolist() == [7] * 4 and got['document'].tolist() == [2, 0, 2, 1]
  assert all(array.dtype == np.int32 for array in got.values())
  assert w.read(np.array([], int))['tokens'].shape == (0, 5)


@pytest.fixture
def requests(monkeypatch):
  """Folders below one that is called bucket are in a bucket -> the byte ranges that are asked of
  it, by file name."""
  asked = []

  def read_range(path, start, stop, error):
    asked.append((path.rpartition('/')[2], start, stop))
    with open(path, 'rb') as file:
      return file.read()[start:stop]

  write_file = storage.write

  def write(path, content, error=storage.StorageError):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content, error)

  monkeypatch.setattr(storage, 'is_remote', lambda path: '/bucket' in str(path))
  monkeypatch.setattr(storage, 'read_range', read_range)
  monkeypatch.setattr(storage, 'write', write)
  return asked


@pytest.mark.parametrize('assembly', ['document', 'sentences', 'packed'])
def test_records_in_a_bucket_read_the_same_by_byte_ranges(tmp_path, monkeypatch, requests,
                                                          assembly):
  parts = [random_shard(np.random.default_rng(seed), 2000) for seed in range(3)]
  local = Windows(write(tmp_path / 'r', *parts, vocab=1000), 'train', 16, assembly)
  monkeypatch.setattr(shards, 'SMALL_BYTES', 0)
  remote = Windows(write(tmp_path / 'bucket', *parts, vocab=1000), 'train', 16, assembly)
  assert assembly != 'packed' or not requests  # that is arithmetic
  index = np.random.default_rng(0).integers(0, len(local), 50)
  for asked in (index, np.arange(10)):
    requests.clear()
    expected, got = local.read(asked), remote.read(asked)
    for name in expected:
      np.testing.assert_array_equal(got[name], expected[name])
  (name, start, stop), = requests  # ten neighbours, one request
  assert name == 'train-00000.npy' and start % 4096 == 0 and stop - start == 4096
  assert list((tmp_path / 'cache').rglob('*.sentences.npy')) and not list(
      (tmp_path / 'cache').rglob('train-00000.npy'))


def test_little_text_in_a_bucket_is_copied_whole(tmp_path, requests):
  folder = write(tmp_path / 'bucket', EXAMPLE)
  first = read(folder, 'sentences')
  assert first['tokens'] == [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]] and not requests
  assert list((folder / 'windows').rglob('train-sentences-5.json'))  # for other hosts
  for path in folder.glob('train-*'):
    path.unlink()
  assert read(folder, 'sentences') == first


def test_a_damaged_copy_is_made_again(tmp_path, requests):
  folder = write(tmp_path / 'bucket', EXAMPLE)
  first = read(folder, 'sentences')
  copy, = (tmp_path / 'cache').rglob('train-00000.npy')
  flip(copy, 140)
  with pytest.raises(RecordsError, match='It was a copy: the same command makes another'):
    Windows(folder)
  assert read(folder, 'sentences') == first


def test_windows_are_counted_once_and_the_numbers_kept_with_the_records(tmp_path, monkeypatch):
  folder = write(tmp_path / 'r', EXAMPLE)
  first = read(folder, 'document')
  assert sorted(path.name for path in (folder / 'windows').rglob('*.*')) == [
      'train-document-5.cuts', 'train-document-5.json']
  monkeypatch.setattr(window_rules, 'chain_sentences', lambda *_: pytest.fail('computed again'))
  assert read(folder, 'document') == first


def test_stored_cuts_of_other_records_are_not_used(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLE)
  read(folder, 'document')
  write(folder, {'ids': [1, 2, 3], 'sentences': [(0, 0), (1, 1)]})
  assert read(folder, 'document')['tokens'] == [[1, 0, 0, 0, 0], [2, 3, 0, 0, 0]]


@pytest.mark.parametrize('suffix', ['json', 'cuts'])
def test_damaged_cuts_are_made_again(tmp_path, caplog, suffix):
  folder = write(tmp_path / 'r', EXAMPLE, EXAMPLE)
  first = read(folder, 'document')
  (stored,) = (folder / 'windows').rglob(f'*.{suffix}')
  content = stored.read_bytes()
  for place in range(0, len(content), 7):
    caplog.clear()
    flip(stored, place)
    assert read(folder, 'document') == first
    assert 'train-document-5' in caplog.text and 'again' in caplog.text
    assert stored.read_bytes() == content
  stored.write_bytes(content[:-5])
  assert read(folder, 'document') == first


def test_an_unwritable_folder_has_its_cuts_in_the_cache(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLE)
  first = read(folder, 'document')
  other = write(tmp_path / 'other', EXAMPLE)
  (other / 'windows').write_text('a file where the folder would be')
  assert read(other, 'document') == first
  assert {path.name for path in (tmp_path / 'cache').rglob('train-document-5.*')} == {
      'train-document-5.cuts', 'train-document-5.json'}
  (tmp_path / 'cache').rename(tmp_path / 'gone')
  (tmp_path / 'cache').write_text('no place left')
  assert read(other, 'document') == first


def test_cuts_that_find_no_room_on_the_disk_stay_in_memory(tmp_path, monkeypatch):
  folder = write(tmp_path / 'r', EXAMPLE, EXAMPLE, EXAMPLE)
  first = read(folder, 'document')
  (stored,) = (folder / 'windows').rglob('*.cuts')
  stored.unlink()
  some = Windows(folder, 'train', 5, 'document')
  some.read(np.arange(3))
  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')
  monkeypatch.setattr(os, 'pwrite', full)
  assert some.read(np.arange(9))['tokens'].tolist() == first['tokens']


def test_a_process_whose_cuts_another_has_replaced_reads_its_own(tmp_path):
  """Two that open records for the first time both find no file of cuts, and the later one's takes
  the place of the other's, which has begun at every window by then, or at none."""
  folder = write(tmp_path / 'r', EXAMPLE, EXAMPLE)
  first = Windows(folder, 'train', 5, 'document')
  want = first.read(np.arange(1))['tokens'].tolist()
  (cuts,) = (folder / 'windows').rglob('*.cuts')
  inode = cuts.stat().st_ino
  cuts.unlink()
  second = Windows(folder, 'train', 5, 'document')
  assert cuts.stat().st_ino != inode
  for index in (range(1), range(len(first))):
    got, other = (windows.read(np.array(index)) for windows in (first, second))
    np.testing.assert_array_equal(got['tokens'], other['tokens'])
    np.testing.assert_array_equal(got['segments'], other['segments'])
  assert got['tokens'][:1].tolist() == want and (got['segments'] > 0).any(1).all()


def test_a_truncated_shard_is_named(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLE)
  path = folder / 'train-00000.npy'
  path.write_bytes(path.read_bytes()[:-3])
  with pytest.raises(RecordsError, match=r'train-00000.npy is truncated .* 8 items'):
    Windows(folder)


def test_sentences_that_do_not_divide_the_tokens_are_refused(tmp_path):
  folder = write(tmp_path / 'r', {'ids': [1, 2, 3], 'sentences': [(0, 0), (7, 0)]})
  with pytest.raises(RecordsError, match=r'train-00000.sentences.npy is damaged: .* the 3 tokens'):
    Windows(folder)


def test_a_shard_of_another_vocabulary_is_refused(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLE)
  meta = records.read_meta(folder)
  records.write_meta(folder, records.RecordsMeta(100_000, meta.tokenizer, meta.train, meta.heldout,
                                                 'test'))
  with pytest.raises(RecordsError, match=r'train-00000.npy holds .* another vocabulary'):
    Windows(folder)


def test_a_split_without_text_is_refused(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLE)
  with pytest.raises(RecordsError, match=r"no text in their 'heldout' split"):
    Windows(folder, 'heldout')
  with pytest.raises(RecordsError, match='Run prepare'):
    Windows(tmp_path / 'nothing')
  with pytest.raises(RecordsError, match=r"no text in their 'train' split"):
    Windows(write(tmp_path / 'empty', {'ids': [], 'sentences': []}))


def test_a_length_or_an_assembly_that_is_none_is_refused(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLE)
  with pytest.raises(ValueError, match='at least 1 token'):
    Windows(folder, length=0)
  with pytest.raises(ValueError, match="not 'sentence'"):
    Windows(folder, assembly='sentence')


def flip(path, place, bit=0):
  content = bytearray(path.read_bytes())
  content[place] ^= 1 << bit
  path.write_bytes(content)


def random_shard(rng, sentences=60):
  starts = np.unique(np.append(0, np.cumsum(rng.integers(1, 30, sentences))))
  documents = np.cumsum(rng.random(len(starts)) < 0.3)
  size = int(starts[-1]) + 5
  return {'ids': rng.integers(1, 1000, size),
          'sentences': list(zip(starts, documents - documents[0], strict=True))}


def slow_windows(shard, length, assembly):
  """(tokens, segments, sentences) of each window, token by token as the specification says it."""
  starts = dict(shard['sentences'])
  # pieces of sentences, each a list of (token, document, sentence)
  units, document, sentence = [], -1, -1
  for position, token in enumerate(shard['ids'].tolist()):
    if position in starts:
      document, sentence = starts[position], sentence + 1
    if position in starts or assembly == 'packed' or len(units[-1]) == length:
      units.append([])
    units[-1].append((token, document, sentence))
  result = []
  for unit in units:
    crosses = assembly == 'document' and result and result[-1][-1][1] != unit[0][1]
    if not result or crosses or len(result[-1]) + len(unit) > length:
      result.append([])
    result[-1].extend(unit)
  for window in result:
    tokens, documents, sentences = zip(*window, strict=True)
    yield list(tokens), [d - documents[0] + 1
                         for d in documents], [s - sentences[0] + 1 for s in sentences]


# Three examples: a target of 2 tokens and inputs of 3, of 1 and 2, and one that is too long of 3
# and 9.
EXAMPLES = {'ids': list(range(10, 30)),
            'sentences': [(0, 0), (2, 0), (5, 1), (6, 1), (8, 2), (11, 2)]}


def test_windows_of_whole_examples(tmp_path):
  folder = write(tmp_path / 'r', EXAMPLES)
  some = Windows(folder, 'train', 12, 'examples', (5, 1))
  found = some.read(np.arange(len(some)))
  assert found['tokens'].tolist() == [[*range(10, 18), 0, 0, 0, 0], [*range(18, 30)]]
  assert found['segments'].tolist() == [[1] * 5 + [2] * 3 + [0] * 4, [1] * 12]
  assert found['sentences'].tolist() == [[1, 1, 2, 2, 2, 3, 4, 4, 0, 0, 0, 0], [1] * 3 + [2] * 9]
  assert found['document'].tolist() == [0, 2]
  assert (some.clipped_examples, some.documents) == (1, 3)
  # Two special tokens a text, and the first two do not fit together any more: neither side has
  # room.
  assert len(Windows(folder, 'train', 12, 'examples', (5, 2))) == 3
  # A target that fills the window leaves nothing to read.
  cut = Windows(folder, 'train', 3, 'examples', (2, 1))
  assert cut.read(np.array([2]))['sentences'].tolist() == [[1, 1, 1]]


def test_windows_of_whole_pairs(tmp_path):
  """The first two pairs, of 5 and 3 tokens, fill a row of 14 + 2 tokens with four special tokens
  each."""
  folder = write(tmp_path / 'r', EXAMPLES)
  some = Windows(folder, 'train', 14, 'pairs')
  assert some.read(np.arange(len(some)))['sentences'].tolist() == [
      [1, 1, 2, 2, 2, 3, 4, 4] + [0] * 6, [1] * 3 + [2] * 9 + [0] * 2]
  assert some.clipped_examples == 0 and len(Windows(folder, 'train', 13, 'pairs')) == 3
  cut = Windows(folder, 'train', 11, 'pairs')
  assert cut.read(np.array([2]))['tokens'].tolist() == [
      [*range(18, 29)]] and cut.clipped_examples == 1
  assert window_rules.WindowRule.parse('pairs-11') == window_rules.WindowRule('pairs', 11)


def test_records_of_running_text_are_no_examples(tmp_path):
  with pytest.raises(RecordsError, match='not of examples'):
    Windows(write(tmp_path / 'r', EXAMPLE), 'train', 12, 'examples', (5, 1))
  with pytest.raises(ValueError, match='keep room for targets'):
    Windows(tmp_path / 'r', 'train', 12, 'examples')


def test_of_many_who_want_to_know_one_counts(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(window_counts, 'LOCK_SENTENCES', 0)
  folder, chain, counted = write(tmp_path / 'r', EXAMPLE, EXAMPLE), window_rules.chain_sentences, []

  def slow(*args):
    counted.append(args)
    time.sleep(0.3)
    return chain(*args)

  monkeypatch.setattr(window_rules, 'chain_sentences', slow)
  with ThreadPoolExecutor(2) as pool:
    first, second = pool.map(lambda _: len(Windows(folder, 'train', 5, 'document')), range(2))
  assert first == second == 6 and len(counted) == 2
  assert not list((folder / 'windows').rglob('.lock/*'))


def test_a_reader_never_sees_cuts_that_another_thread_is_moving(tmp_path, monkeypatch):
  """The pipeline reads in two threads. The first cannot write to the file and moves what is known
  to memory."""
  folder = write(tmp_path / 'r', EXAMPLE, EXAMPLE)
  # stores the cuts of the first shard alone
  Windows(folder, 'train', 5, 'document').read(np.arange(3))
  cuts = Windows(folder, 'train', 5, 'document')._offsets
  want, path = cuts.window_starts(0).tolist(), cuts._path
  assert len(want) == 3 and path
  moving, seen = threading.Event(), threading.Event()
  open_file = cuts._open
  def slow_open(memory=False):
    open_file(memory)
    moving.set()
    seen.wait(0.3)
  def full(*_):
    raise OSError(errno.EROFS, 'Read-only file system')
  monkeypatch.setattr(cuts, '_open', slow_open)
  monkeypatch.setattr(os, 'pwrite', full)
  with ThreadPoolExecutor(1) as pool:
    other = pool.submit(cuts.window_starts, 1)
    assert moving.wait(10)
    found = cuts.window_starts(0).tolist()
    seen.set()
    assert found == want and other.result().tolist() == want
  assert cuts.window_starts(0).tolist() == want and cuts._path is None


@pytest.mark.parametrize('assembly', ['packed', 'sentences'])
def test_separators_between_documents_have_room_in_a_sequence(tmp_path, assembly):
  """Every token is in one window, and no sequence has more tokens and separators than its
  length."""
  rng = np.random.default_rng(0)
  for trial in range(20):
    sizes = [rng.integers(1, 9, rng.integers(1, 4)) for _ in range(rng.integers(1, 9))]
    starts = np.cumsum([0, *np.concatenate(sizes)])
    numbers = np.repeat(np.arange(len(sizes)), [len(size) for size in sizes])
    shard = {'ids': np.arange(1, starts[-1] + 1),
             'sentences': list(zip(starts[:-1], numbers, strict=True))}
    folder, length = write(tmp_path / f'{trial}', shard, vocab=1000), int(rng.integers(2, 12))
    found = Windows(folder, 'train', length, assembly, separators=1)
    batch = found.read(np.arange(len(found)))
    inside = batch['segments'] > 0
    assert batch['tokens'][inside].tolist() == list(shard['ids'])
    used = inside.sum(1) + batch['segments'].max(1) - 1
    assert used.max() <= length and used.min() > 0
    # a window is full, but for a separator after it or the end of the text
    if assembly == 'packed':
      borders = set(starts[1:][np.append(np.diff(numbers) > 0, False)])
      last = [int(row[row > 0][-1]) for row in batch['tokens'][:-1]]
      assert [length - 1 + (end not in borders) for end in last] <= used[:-1].tolist()
    counts = window_rules.WindowRule(assembly, length, separators=1).count_windows(
        np.array(shard['sentences'], records.SENTENCE_DTYPE), found.meta.train[0])
    assert counts == (len(found), 0)


def test_rules_are_read_back_from_their_names():
  for rule in (window_rules.WindowRule('packed', 128, separators=1),
               window_rules.WindowRule('packed', 128),
               window_rules.WindowRule('examples', 40, (10, 1))):
    assert window_rules.WindowRule.parse(str(rule)) == rule
  with pytest.raises(ValueError):
    window_rules.WindowRule.parse('packed-128-1-1')
