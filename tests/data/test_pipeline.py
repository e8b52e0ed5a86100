import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from plm_jax.config.run import DataConfig
from plm_jax.data import pipeline, records
from plm_jax.data.mixtures import MixtureSchedule, MixtureShares, unimax_weights
from plm_jax.data.pipeline import (
  Pipeline,
  ReadingOrder,
  choose_block_size,
  heldout_batches,
  open_pipeline,
  permute,
)
from plm_jax.data.records import RecordsError
from plm_jax.data.window_rules import WindowRule
from plm_jax.data.windows import Windows
from plm_jax.errors import ConfigError

PAIRS = WindowRule('document', 2)  # windows of two tokens


@pytest.fixture(autouse=True)
def blocks_of_small_corpora(monkeypatch):
  monkeypatch.setattr(pipeline, 'MIN_BLOCKS', 1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))


def write(folder, count, tokenizer='hash', first=0):
  """Records with `count` windows of 2 tokens, (first, first + 1), ...: each a document, in two
  shards."""
  folder.mkdir()
  shards = []
  for number, size in enumerate((count // 2, count - count // 2)):
    tokens = np.zeros(2 * size, records.token_dtype(1 << 20))
    tokens['token'] = first + 2 * sum(shard.documents for shard in shards) + np.arange(2 * size)
    tokens['flags'] = records.WORD_START
    sentences = np.zeros(size, records.SENTENCE_DTYPE)
    sentences['start'], sentences['document'] = 2 * np.arange(size), np.arange(size)
    shards.append(records.write_shard(folder, f'train-{number:05d}', tokens, sentences))
  records.write_meta(folder, records.RecordsMeta(1 << 20, tokenizer, tuple(shards), (), 'test'))
  return folder


def same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], name)


@pytest.fixture
def mixture(tmp_path):
  return open_pipeline(
      [write(tmp_path / 'a', 200), write(tmp_path / 'b', 90, first=1000)], PAIRS, 8, 5, 4,
      MixtureShares([3, 1]))


@pytest.mark.parametrize('n', [1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 1021])
def test_permute_is_a_bijection(n):
  for key in range(5):
    x = permute(np.arange(n), n, np.full(n, key, np.uint64))
    np.testing.assert_array_equal(np.sort(x), np.arange(n))
  assert n < 10 or (permute(np.arange(n), n, np.full(n, 5)) != x).any()


@pytest.mark.parametrize('n', [3, 4, 6, 64, 100])
def test_permute_sends_each_number_everywhere_alike(n):
  keys = np.arange(20_000).astype(np.uint64)
  for x in (0, n // 2, n - 1):
    counts = np.bincount(permute(np.full(len(keys), x), n, keys), minlength=n)
    expected = len(keys) / n
    # chi squared, 5 sigma
    assert ((counts - expected) ** 2 / expected).sum() < n - 1 + 5 * np.sqrt(2 * (n - 1))


def test_permute_gives_all_orders_of_three_alike():
  keys = np.arange(12_000).astype(np.uint64)
  orders = zip(*(permute(np.full(len(keys), x), 3, keys).tolist() for x in range(3)), strict=True)
  counts = np.bincount([a * 9 + b * 3 + c for a, b, c in orders])
  counts = counts[counts > 0]
  assert len(counts) == 6 and (abs(counts - 2000) < 200).all()


@pytest.mark.parametrize(('count', 'batch'), [(40, 8), (37, 8), (5, 8), (1, 4)])
def test_without_blocks_an_epoch_has_each_window_once(tmp_path, count, batch):
  p = open_pipeline([write(tmp_path / 'r', count)], PAIRS, batch=batch, block=1)
  dealt = [p.batch(step) for step in range(3 * count // batch + 1)]
  index = np.concatenate([batch['index'] for batch in dealt])
  epoch = np.concatenate([batch['epoch'] for batch in dealt])
  for number in range(3):
    np.testing.assert_array_equal(np.sort(index[epoch == number]), np.arange(count))
  assert count < 10 or (index[:count] != index[count : 2 * count]).any()


def test_blocks_leave_out_only_what_fills_no_block_and_other_windows_each_epoch():
  order = ReadingOrder(windows=107, batch=4, block=5, seed=0, corpus=0, ordered=False)
  steps, rows = np.divmod(np.arange(4 * 500), 4)
  window, epoch = order(steps, rows)
  counts = [np.bincount(window[epoch == number], minlength=107) for number in range(10)]
  assert all(count.max() == 1 and count.sum() == 105 for count in counts)
  assert (sum(counts) >= 7).all()
  assert len({tuple(np.flatnonzero(count == 0)) for count in counts}) > 5


def test_a_row_reads_the_windows_of_a_block_in_its_steps():
  for ordered in (True, False):
    order = ReadingOrder(windows=400, batch=4, block=8, seed=0, corpus=0, ordered=ordered)
    window, _ = order(np.arange(80), np.full(80, 2))
    inside = np.diff(window.reshape(10, 8), axis=1) % 400
    assert (inside == 1).all() == ordered
    assert all(max((w - w[i]) % 400) == 7 for w in window.reshape(10, 8)
               for i in [((w - w[0] + 8) % 400).argmin()])


def test_an_ordered_pipeline_reads_each_block_from_both_ends(tmp_path):
  pipeline = Pipeline([Windows(write(tmp_path / 'r', 400), 'train', 2, 'packed')], None, 4, 0, 8,
                      ordered=True)
  steps = list(pipeline.stream(0, 16))
  index, behind = (np.stack([step[name] for step in steps]).reshape(2, 8, 4)
                   for name in ('index', 'behind_index'))
  assert (behind[:, ::-1] == index).all() and (np.diff(index, axis=1) % len(pipeline.corpora[0])
                                               == 1).all()
  for step, row in ((0, 1), (13, 3)):
    same_window = pipeline.corpora[0].read(steps[step]['behind_index'])
    np.testing.assert_array_equal(steps[step]['behind_tokens'][row], same_window['tokens'][row])


def test_a_small_corpus_has_smaller_blocks(tmp_path, monkeypatch):
  monkeypatch.setattr(pipeline, 'MIN_BLOCKS', 1 << 12)
  folder = write(tmp_path / 'r', 100)
  assert open_pipeline([folder], PAIRS, batch=4, block=64).orders[0].block == 1
  # Of a million characters, a batch does not come from a few places; large corpora are read by
  # whole blocks.
  sizes = [choose_block_size(windows, 12, 64) for windows in (4000, 15_700, 262_144, 10 ** 9)]
  assert sizes == [1, 3, 64, 64] and choose_block_size(262_144, 4096, 64) == 16
  # Windows in the order of the text stay together: a row reads a block from its beginning to its
  # end.
  assert [choose_block_size(100, rows, 64, ordered=True) for rows in (4, 64)] == [6, 1]


@pytest.mark.parametrize('hosts', [1, 2, 4, 8])
def test_any_number_of_hosts_reads_the_same_global_batch(mixture, hosts):
  share = 8 // hosts
  for step in (0, 3, 1_000_000):
    parts = [mixture.batch(step, slice(host * share, (host + 1) * share)) for host in range(hosts)]
    same({name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
         mixture.batch(step))


def test_seeking_is_replaying(mixture):
  replayed = list(itertools.islice(mixture.stream(), 40))
  for start in (0, 1, 7, 33):
    for step, batch in zip(range(start, 40), mixture.stream(start, 40), strict=True):
      same(batch, replayed[step])
      same(batch, mixture.batch(step))


def test_seeds_and_components_have_orders_of_their_own(tmp_path):
  corpus = Windows(write(tmp_path / 'r', 200), length=2)
  one, other = Pipeline([corpus], batch=8, seed=1), Pipeline([corpus], batch=8, seed=2)
  assert (one.batch(0)['index'] != other.batch(0)['index']).any()
  same(one.batch(3), Pipeline([corpus], batch=8, seed=1).batch(3))
  twice = Pipeline([corpus, corpus], batch=200, seed=1, block=1).batch(0)
  assert set(twice['index'][twice['corpus'] == 0]) != set(twice['index'][twice['corpus'] == 1])


def test_shares_of_a_mixture_are_exact(tmp_path, mixture):
  for step in range(20):
    batch = mixture.batch(step)
    assert np.bincount(batch['corpus']).tolist() == [6, 2]
    np.testing.assert_array_equal(batch['tokens'][:, 0],
                                  1000 * batch['corpus'] + 2 * batch['index'])
  steps = np.arange(1024)
  for row in (0, 5):
    component, time = MixtureSchedule.from_weights([0.2, 0.5, 0.3], 3)(steps, np.full(1024, row))
    assert np.bincount(component).tolist() == [205, 512, 307]
    for number in range(3):
      np.testing.assert_array_equal(time[component == number],
                                    np.arange((component == number).sum()))
    later, later_time = MixtureSchedule.from_weights([0.2, 0.5, 0.3],
                                                     3)(steps + 1024, np.full(1024, row))
    np.testing.assert_array_equal(later, component)
    np.testing.assert_array_equal(later_time - time, np.array([205, 512, 307])[component])


def test_any_weight_above_none_is_seen():
  schedule = MixtureSchedule.from_weights([1, 1e-9, 0, 1e-9], 4)
  assert np.bincount(schedule.slots, minlength=4).tolist() == [1022, 1, 0, 1]


def test_every_component_of_a_mixture_is_read_whole(mixture):
  part = mixture.read(0, 400)
  for component, count in ((0, 200), (1, 90)):
    mine = part['corpus'] == component
    seen = part['index'][mine & (part['epoch'] == 0)]
    assert len(set(seen.tolist())) == len(seen) == count // mixture.orders[
        component].block * mixture.orders[
        component].block


def test_sizes_are_the_default_weights(tmp_path):
  p = open_pipeline([write(tmp_path / 'a', 30), write(tmp_path / 'b', 10)], PAIRS, batch=8)
  assert np.bincount(p.batch(0)['corpus']).tolist() == [6, 2]


class Task(list):
  """Windows of a task, and how many examples they hold."""

  target_tokens = (5, 1)

  def __init__(self, windows, documents):
    super().__init__([0] * windows)
    self.documents = documents


@pytest.mark.parametrize(('cap', 'temperature', 'shares'), [
    (0, 1, [3, 1]), (100, 1, [1, 1]), (200, 1, [2, 1]), (0, 2, [3 ** 0.5, 1]),
    (0, math.inf, [1, 1])])
def test_rates_of_examples(cap, temperature, shares):
  """Of two tasks of 300 and 100 examples, 10 of the first in a window, and 5 of the second."""
  tasks = [Task(30, 300), Task(20, 100)]
  rates = MixtureShares(cap=cap, temperature=temperature).compute_weights(tasks)
  read = np.array([rate * task.documents / len(task)
                   for rate, task in zip(rates, tasks, strict=True)])
  np.testing.assert_allclose(read / read.sum(), np.array(shares) / sum(shares), rtol=1e-6)


@pytest.mark.parametrize(('sizes', 'budget', 'epochs', 'read'), [
    ([50, 50], 60, 1, [30, 30]),  # enough text: equal parts
    ([1000, 10, 100], 300, 1, [190, 10, 100]),  # the largest takes what the others leave
    ([1000, 10, 100], 300, 4, [130, 40, 130]),
    ([40, 10], 1000, 2, [80, 20])])  # too little text: in proportion to size
def test_unimax_by_hand(sizes, budget, epochs, read):
  assert unimax_weights(sizes, budget, epochs) == read
  shares = MixtureShares(unimax_epochs=epochs, budget=budget)
  assert shares.compute_weights([Task(size, size) for size in sizes]) == read


def test_unimax_reads_no_corpus_too_often(tmp_path):
  """400 windows, of which the small corpus has at most 2 x 20; counted in the batches that are
  read."""
  folders = [write(tmp_path / 'large', 2000), write(tmp_path / 'small', 20, first=10_000)]
  reading = open_pipeline(folders, PAIRS, 8, 5, 4, MixtureShares(unimax_epochs=2, budget=400))
  small = sum((reading.batch(step)['tokens'] >= 10_000).all(-1).sum() for step in range(50))
  assert small == pytest.approx(40, abs=2)


def test_the_lowest_temperature_gives_numbers():
  class Largest:
    target_tokens = None

    def __len__(self):
      return (1 << 31) - 1
  assert math.isfinite(MixtureShares(temperature=0.05).compute_weights([Largest()])[0])
  with pytest.raises(ConfigError,
                     match=r'DataConfig\.temperature is a number of 0\.05 or more, got 0\.01'):
    DataConfig(temperature=0.01)


def test_weights_that_are_none_are_refused(tmp_path):
  corpus = Windows(write(tmp_path / 'r', 10), length=2)
  for weights in ([1, 2], [0], [-1], [float('nan')], []):
    with pytest.raises(ValueError, match='1 corpora need as many weights'):
      Pipeline([corpus], weights)


@pytest.mark.parametrize('with_tensorflow', [True, False])
def test_stream_has_the_batches(mixture, monkeypatch, with_tensorflow):
  if with_tensorflow:
    pytest.importorskip('tensorflow')
  else:
    monkeypatch.setitem(sys.modules, 'tensorflow', None)
    assert pipeline.import_tensorflow() is None
  rows = slice(2, 6)
  batches = list(mixture.stream(3, 12, rows))
  assert len(batches) == 9
  for step, batch in zip(range(3, 12), batches, strict=True):
    same(batch, mixture.batch(step, rows))
  assert list(mixture.stream(4, 4)) == []
  monkeypatch.setattr(pipeline, 'READ_BYTES', 1)  # one step at a time
  same(next(mixture.stream(11)), mixture.batch(11))


@pytest.mark.parametrize('with_tensorflow', [True, False])
def test_an_error_of_reading_comes_through_as_it_was(mixture, monkeypatch, with_tensorflow):
  if not with_tensorflow:
    monkeypatch.setitem(sys.modules, 'tensorflow', None)
  read = mixture.read

  def fail_late(start, stop, rows=None):
    if start >= 20:
      raise RecordsError('shard 7 is gone')
    return read(start, stop, rows)

  monkeypatch.setattr(mixture, 'read', fail_late)
  monkeypatch.setattr(pipeline, 'READ_STEPS', 5)
  stream = mixture.stream()
  for step in range(20):
    same(next(stream), mixture.batch(step))
  with pytest.raises(RecordsError, match='shard 7 is gone'):
    next(stream)


def test_another_tokenizer_is_refused(tmp_path):
  a, b = write(tmp_path / 'a', 4, 'old'), write(tmp_path / 'b', 4, 'new')
  with pytest.raises(RecordsError, match=r'tokenizer old, but that of this run is new'):
    open_pipeline([a], vocab_hash='new')
  with pytest.raises(RecordsError,
                     match=r'b were made with the tokenizer new, but that of .*a is old'):
    open_pipeline([a, b])
  open_pipeline([a], vocab_hash='old')


def test_heldout_batches_have_each_window_once_and_empty_rows_at_the_end(tmp_path):
  w = Windows(write(tmp_path / 'r', 7), length=2)
  batches = list(heldout_batches(w, 4))
  assert [batch['index'].tolist() for batch in batches] == [[0, 2, 4, 6], [1, 3, 5, 0]]
  assert [batch['segments'].tolist() for batch in batches] == [[[1, 1]] * 4,
                                                               [[1, 1]] * 3 + [[0, 0]]]
  halves = [list(heldout_batches(w, 4, rows)) for rows in (slice(0, 2), slice(2, 4))]
  for whole, low, high in zip(batches, *halves, strict=True):
    same(whole, {name: np.concatenate([low[name], high[name]]) for name in whole})
  assert len(list(heldout_batches(w, 4, batches=1))) == 1
  assert [batch['corpus'].tolist() for batch in heldout_batches(w, 4, corpus=3)] == [[3] * 4] * 2


@pytest.mark.slow
@pytest.mark.parametrize('hide', ['', 'sys.modules["tensorflow"] = None'])
def test_a_program_ends_quietly_with_a_stream_open(tmp_path, hide):
  program = f'''
import sys
{hide}
from plm_jax.data.window_rules import WindowRule
from plm_jax.data.pipeline import open_pipeline
assert sys.modules.get('tensorflow') is None  # nothing imports it before it is needed
folder = {str(write(tmp_path / 'r', 2000))!r}
stream = open_pipeline([folder], WindowRule('document', 2), batch=16).stream()
next(stream)
'''
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                        timeout=120)
  assert done.returncode == 0 and 'Traceback' not in done.stderr, done.stderr
