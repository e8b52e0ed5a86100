"""What several phases of a run read: phases that cut the text alike continue one order, in text and in masks."""
import collections
import dataclasses
import math
import random
import types

import numpy as np
import pytest

from plm_jax import recipes
from plm_jax.config.run import Phase, PretrainRun
from plm_jax.data import records
from plm_jax.training import feed


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))


def write(folder, tokens):
  """Records of one long document in each split."""
  folder.mkdir()
  def shard(name, size):
    array = np.zeros(size, records.token_dtype(100))
    array['flags'] = records.WORD_START
    return records.write_shard(folder, name, array, np.zeros(1, records.SENTENCE_DTYPE))
  records.write_meta(folder, records.RecordsMeta(
      100, 'hash', (shard('train-00000', tokens),), (shard('heldout-00000', 100),), 'test'))
  return folder


def experiment(phases, folders=('text',), block=64, recipe='gpt2_small', **data):
  config = recipes.find_recipe(recipe, '')('test')
  return dataclasses.replace(
      config, data=dataclasses.replace(config.data, path=tuple(map(str, folders)), block=block, **data),
      train=dataclasses.replace(config.train, phases=tuple(Phase(*phase) for phase in phases)))


def read(config, folders, dealt=None):
  """Reads the whole run -> of each phase (corpus, index, epoch) of all windows, in order."""
  pipelines = feed.open_phases(config, folders, types.SimpleNamespace(hash='hash'), dealt)
  found = []
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    part = pipeline.read(0, phase.steps)
    assert part['index'].shape == (phase.steps, phase.batch)
    found.append(list(zip(*(part[name].ravel().tolist() for name in ('corpus', 'index', 'epoch')), strict=True)))
  return found


def random_phases(draw):
  lengths = draw.sample([8, 16, 32], 2)
  return [(draw.randint(1, 30), draw.choice(lengths), draw.choice([1, 2, 3, 8])) for _ in range(draw.randint(2, 6))]


TABLES = [
    [(20, 8, 4), (20, 8, 4), (20, 8, 4)],  # equal
    [(20, 8, 4), (10, 16, 4), (20, 8, 4)],  # A, B, A
    [(10, 8, 1), (10, 8, 2), (10, 8, 3), (40, 8, 8)],  # the batch grows
    [(10, 8, 8), (30, 8, 3)],  # the batch shrinks
    *(random_phases(random.Random(seed)) for seed in range(12))]


@pytest.mark.parametrize('phases', TABLES)
@pytest.mark.parametrize('block', [1, 8])
def test_no_window_is_read_twice_before_all_are_read_once_and_none_repeats_its_masks(phases, block, tmp_path):
  folder = write(tmp_path / 'records', 2048)
  config = experiment(phases, [folder], block)
  found = read(config, [folder])
  orders = collections.defaultdict(list)
  for phase, windows in zip(config.train.phases, found, strict=True):
    orders[phase.length] += windows
  for length, windows in orders.items():
    # Masks are a function of corpus, index and epoch.
    assert len(set(windows)) == len(windows)
    total = math.ceil(2048 / config.objective.text_length(length))
    times = np.bincount([index for _, index, _ in windows], minlength=total)
    if block == 1:
      assert times.max() - times.min() <= 1
  every = [(index, epoch) for windows in orders.values() for _, index, epoch in windows]
  assert len(set(every)) == len(every)  # short texts are cut alike at each length: their masks differ too


def test_phases_of_one_batch_size_read_what_one_long_phase_reads(tmp_path):
  folder = write(tmp_path / 'records', 4096)
  one, = read(experiment([(60, 8, 4)], [folder], 8), [folder])
  parts = read(experiment([(7, 8, 4), (20, 8, 4), (33, 8, 4)], [folder], 8), [folder])
  assert [window for part in parts for window in part] == one
  a, b, c = read(experiment([(7, 8, 4), (5, 16, 4), (53, 8, 4)], [folder], 8), [folder])
  assert a + c == one and not set(b) & set(one)


def test_a_mixture_continues_too(tmp_path):
  folders = [write(tmp_path / 'a', 1024), write(tmp_path / 'b', 512)]
  phases = [(10, 8, 2), (10, 16, 4), (20, 8, 4), (12, 8, 8)]
  found = read(experiment(phases, folders, 1, weights=(2.0, 1.0)), folders)
  windows = found[0] + found[2] + found[3]
  assert len(set(windows)) == len(windows) == 196
  shares = collections.Counter(corpus for corpus, *_ in windows)
  assert shares[0] == pytest.approx(2 / 3 * 196, abs=3)


def test_a_run_that_is_made_longer_by_a_larger_batch_keeps_its_order(tmp_path):
  folder = write(tmp_path / 'records', 4096)
  tokenizer = types.SimpleNamespace(hash='hash', byte_lengths=None)
  short = feed.TextFeed(experiment([(20, 8, 2), (20, 8, 4)], [folder], 8), [folder], tokenizer, FakeMesh())
  recorded = short.record()
  assert recorded['digests'] == {'records': records.read_meta(folder).content_digest}
  longer = experiment([(20, 8, 2), (20, 8, 4), (20, 8, 16)], [folder], 8)
  longer = feed.TextFeed(longer, [folder], tokenizer, FakeMesh())
  assert (longer.read_batch(30)['index'] != short.read_batch(30)['index']).any()
  longer.resume(recorded)
  for step in (0, 30):
    np.testing.assert_array_equal(longer.read_batch(step)['index'], short.read_batch(step)['index'])
  windows = [tuple(map(tuple, np.stack([part['index'], part['epoch']], 1).tolist()))
             for part in map(longer.read_batch, range(60))]
  every = [window for batch in windows for window in batch]
  assert len(set(every)) == len(every)


class FakeMesh:
  """A mesh of one device, as far as the rows of a batch are dealt to it."""

  def __init__(self):
    self.shape = {'data': 1, 'fsdp': 1, 'tensor': 1}


def several_phases():
  found = {}
  for name in recipes.all_recipes():
    config = recipes.find_recipe(name, '')('paper')
    if isinstance(config, PretrainRun) and len(config.train.phases) > 1:
      table = tuple((phase.steps, phase.length, phase.batch) for phase in config.train.phases)
      found.setdefault(table, name)
  return [(name, table) for table, name in found.items()]


@pytest.mark.parametrize(('name', 'table'), several_phases(), ids=lambda value: value if isinstance(value, str) else '')
def test_recipes_read_a_text_as_long_as_the_run_once(name, table):
  """The phases of every recipe, with batches and steps divided so that a run has some 50,000 windows."""
  config = recipes.find_recipe(name, '')('paper')
  divisor = math.gcd(*(batch for *_, batch in table))
  batches = [batch // divisor for *_, batch in table]
  scale = min(1, 50_000 / sum(steps * batch for (steps, *_), batch in zip(table, batches, strict=True)))
  phases = [(max(1, round(steps * scale)), length, batch)
            for (steps, length, _), batch in zip(table, batches, strict=True)]
  config = dataclasses.replace(
      config, train=dataclasses.replace(config.train, phases=tuple(Phase(*phase) for phase in phases)))
  readings = feed.plan_read_order(config)
  for order in dict.fromkeys(reading.name for reading in readings):
    mine = [(phase, reading) for phase, reading in zip(config.train.phases, readings, strict=True)
            if reading.name == order]
    windows = sum(phase.steps * phase.batch for phase, _ in mine)
    whole = feed.Pipeline([FakeCorpus(windows)], batch=mine[0][0].batch, order_batch_size=mine[0][1].order_batch_size, block=1)
    index = [whole.with_batch_size(phase.batch, reading.start).read(0, phase.steps)['index'].ravel()
             for phase, reading in mine]
    assert (np.bincount(np.concatenate(index), minlength=windows) == 1).all()


class FakeCorpus:
  """As many windows, which are nothing but their numbers."""

  length, target_tokens = 8, None

  def __init__(self, windows):
    self.windows = windows

  def __len__(self):
    return self.windows

  def read(self, index, epoch=0, corpus=0):
    return {'index': index, 'epoch': np.broadcast_to(epoch, index.shape), 'corpus': np.full(len(index), corpus)}
