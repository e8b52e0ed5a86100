"""Names of corpora, and the windows of several phases: phases that cut the text alike continue one
order, in text and in masks."""
import collections
import dataclasses
import math
import random
import types

import numpy as np
import pytest
import tiny

from plm_jax import recipes
from plm_jax.config.run import ConfigError, DataConfig, Phase, PretrainRun, check, phase_objective
from plm_jax.data import records
from plm_jax.objectives import count_mask_rates
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.objectives.translation_rows import Translations
from plm_jax.training import feed
from plm_jax.training.feed import corpus_names
from plm_jax.training.learner import make_learner, phase_learner, placeholder_vocab
from plm_jax.training.step import corrupt_windows


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
      config, data=dataclasses.replace(config.data, path=tuple(map(str, folders)), block=block,
                                       **data),
      train=dataclasses.replace(config.train, phases=tuple(Phase(*phase) for phase in phases)))


def read(config, folders, dealt=None):
  """Reads the whole run -> of each phase (corpus, index, epoch) of all windows, in order."""
  pipelines = feed.open_phases(config, folders, types.SimpleNamespace(hash='hash'), dealt)
  found = []
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    part = pipeline.read(0, phase.steps)
    assert part['index'].shape == (phase.steps, phase.batch)
    found.append(list(zip(*(part[name].ravel().tolist() for name in ('corpus', 'index', 'epoch')),
                          strict=True)))
  return found


def random_phases(draw):
  lengths = draw.sample([8, 16, 32], 2)
  return [(draw.randint(1, 30), draw.choice(lengths), draw.choice([1, 2, 3, 8]))
          for _ in range(draw.randint(2, 6))]


TABLES = [
    [(20, 8, 4), (20, 8, 4), (20, 8, 4)],  # equal
    [(20, 8, 4), (10, 16, 4), (20, 8, 4)],  # A, B, A
    [(10, 8, 1), (10, 8, 2), (10, 8, 3), (40, 8, 8)],  # the batch grows
    [(10, 8, 8), (30, 8, 3)],  # the batch shrinks
    *(random_phases(random.Random(seed)) for seed in range(12))]


@pytest.mark.parametrize('phases', TABLES)
@pytest.mark.parametrize('block', [1, 8])
def test_all_windows_are_read_before_any_repeats_with_new_masks(
    phases, block, tmp_path):
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
  # short texts are cut alike at each length: their masks differ too
  assert len(set(every)) == len(every)


def test_phases_of_one_batch_size_equal_one_long_phase(tmp_path):
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


def test_unimax_of_a_run_of_two_lengths(tmp_path, caplog):
  """The run reads 3,072 + 6,144 tokens in sequences of 8 and 16."""
  folders = [write(tmp_path / 'a', 36_864), write(tmp_path / 'b', 576)]
  config = experiment([(48, 8, 8), (48, 16, 8)], folders, 1, unimax_epochs=4.0)
  assert config.text_tokens == 9216
  tokenizer = types.SimpleNamespace(hash='hash', byte_lengths=None)
  opened = feed.TextFeed(config, folders, tokenizer, FakeMesh())
  # 4 x 576 of 9,216
  assert [pipeline.schedule.share(1) for pipeline in opened.pipelines] == [0.25, 0.25]
  epochs = feed.corpus_epochs(config.train.phases, opened.pipelines)
  assert epochs[1] == pytest.approx(4, rel=0.01) and not caplog.messages
  few = experiment([(200, 8, 8)], folders[1:], 1, unimax_epochs=2.0)
  feed.TextFeed(few, folders[1:], tokenizer, FakeMesh())
  message, = caplog.messages
  assert message.startswith(
      'data.unimax_epochs is 2, and the run reads b 22.2 times: the text is too little')


def test_a_longer_run_with_a_larger_batch_keeps_its_order(tmp_path, monkeypatch):
  # blocks whose size depends on the batch
  monkeypatch.setattr('plm_jax.data.pipeline.MIN_BLOCKS', 1)
  folder = write(tmp_path / 'records', 4096)
  tokenizer = types.SimpleNamespace(hash='hash', byte_lengths=None)
  short = feed.TextFeed(experiment([(20, 8, 2), (20, 8, 4)], [folder], 8), [folder], tokenizer,
                        FakeMesh())
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


@pytest.mark.parametrize(('name', 'table'), several_phases(),
                         ids=lambda value: value if isinstance(value, str) else '')
def test_recipes_read_a_text_of_the_length_of_the_run_once(name, table):
  """The phases of every recipe, with batches and steps divided so that a run has some 50,000
  windows."""
  config = recipes.find_recipe(name, '')('paper')
  divisor = math.gcd(*(batch for *_, batch in table))
  batches = [batch // divisor for *_, batch in table]
  scale = min(1, 50_000 / sum(steps * batch
                              for (steps, *_), batch in zip(table, batches, strict=True)))
  phases = [(max(1, round(steps * scale)), length, batch)
            for (steps, length, _), batch in zip(table, batches, strict=True)]
  config = dataclasses.replace(
      config, train=dataclasses.replace(config.train,
                                        phases=tuple(Phase(*phase) for phase in phases)))
  readings = feed.plan_read_order(config)
  for order in dict.fromkeys(reading.name for reading in readings):
    mine = [(phase, reading) for phase, reading in zip(config.train.phases, readings, strict=True)
            if reading.name == order]
    windows = sum(phase.steps * phase.batch for phase, _ in mine)
    whole = feed.Pipeline([FakeCorpus(windows)], batch=mine[0][0].batch,
                          order_batch_size=mine[0][1].order_batch_size, block=1)
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
    return {'index': index, 'epoch': np.broadcast_to(epoch, index.shape),
            'corpus': np.full(len(index), corpus)}


MIXED = [
    dict(corpora=1), dict(corpora=2, temperature=math.inf), dict(temperature=1 / 0.5),
    dict(weights=(0.0, 1.0, 3.0)), {}]


def test_each_phase_has_a_separate_mixture(tmp_path):
  folders = [write(tmp_path / f'records-{size}', size) for size in (1024, 2048, 8192)]
  config = experiment([], folders)
  phases = tuple(Phase(1024, 8, 2, **mixture) for mixture in MIXED)
  config = dataclasses.replace(config, train=dataclasses.replace(config.train, phases=phases))
  check(config)
  shares = [np.bincount([corpus for corpus, _, _ in windows], minlength=3) / len(windows)
            for windows in read(config, folders)]
  roots = np.sqrt([1024, 2048, 8192])
  expected = [[1, 0, 0], [0.5, 0.5, 0], roots / roots.sum(), [0, 0.25, 0.75],
              np.array([1, 2, 8]) / 11]
  np.testing.assert_allclose(shares, expected, atol=2 / 1024)


@pytest.mark.parametrize('block', [1, 8])
@pytest.mark.parametrize('seed', range(8))
def test_each_corpus_continues_through_phases_of_any_mixture(seed, block, tmp_path):
  """Every reading of a window has different masks, and with single windows all are read equally
  often."""
  draw = random.Random(seed)
  folders = [write(tmp_path / f'records-{size}', size) for size in (1024, 2048, 4096)]
  config = experiment([], folders, block)
  phases = tuple(Phase(draw.randint(1, 120), draw.choice([8, 16]), draw.choice([2, 3, 8]),
                       **draw.choice(MIXED))
                 for _ in range(6))
  config = dataclasses.replace(config, train=dataclasses.replace(config.train, phases=phases))
  found = read(config, folders)
  for length in {phase.length for phase in phases}:
    windows = [window for phase, part in zip(phases, found, strict=True) if phase.length == length
               for window in part]
    assert len({*windows}) == len(windows)
    for corpus, size in enumerate((1024, 2048, 4096)):
      total = math.ceil(size / config.objective.text_length(length))
      index = [index for number, index, _ in windows if number == corpus]
      times = np.bincount(index, minlength=total)
      # Rows of a batch differ in how many windows of a corpus they have had.
      if block == 1:
        spread = len(index) / total
        assert (times >= math.floor(spread - 0.1)).all() and (times <= math.ceil(spread + 0.1)).all(
            )


@pytest.mark.parametrize('name', ['mmbert_small_long', 'mmbert_base_long'])
def test_the_long_stages_of_mmbert_continue_each_language(name):
  first, second = feed.plan_read_order(recipes.find_recipe(name, '')('paper'))
  assert first.first == second.first == 0 and first.name == second.name


def test_phases_of_one_mixture_continue_its_order(tmp_path):
  folders = [write(tmp_path / f'records-{size}', size) for size in (2048, 4096)]
  config = experiment([], folders)
  phases = tuple(Phase(60, 8, 2, corpora=corpora) for corpora in (1, 2, 1))
  config = dataclasses.replace(config, train=dataclasses.replace(config.train, phases=phases))
  first, _, third = read(config, folders)
  assert not set(first) & set(third)


@pytest.mark.parametrize(('changes', 'message'), [
    (dict(corpora=3), 'train.phases.1.corpora is 3, and data.path has 2'),
    (dict(weights=(1.0,)),
     'train.phases.1.weights gives (1.0,) for 2 corpora: one share each, not all 0'),
    (dict(weights=(1.0, 2.0), temperature=2.0),
     'train.phases.1.weights are shares as they are: leave out train.phases.1.temperature and '
     'train.phases.1.corpora'),
    (dict(mask_rate=0.3),
     'train.phases.1.mask_rate: the objective CausalLM has no mask rate: leave it out')])
def test_a_phase_that_does_not_fit_is_refused(changes, message):
  config = experiment([], ['a', 'b'])
  phases = Phase(10, 8, 2), Phase(10, 8, 2, **changes)
  with pytest.raises(ConfigError) as error:
    check(dataclasses.replace(config, train=dataclasses.replace(config.train, phases=phases)))
  assert str(error.value) == message


@pytest.mark.parametrize(('recipe', 'name'), [
    ('bert_base', 'bert'), ('electra_small', 'electra'), ('t5_small', 't5'),
    ('spanbert_base', 'span'),
    ('gpt_bert_strict', 'gpt_bert'), ('bart_base', 'bart')])
def test_a_phase_sets_the_mask_rate_of_every_family(recipe, name):
  config = recipes.find_recipe(recipe, '')('test')
  phases = Phase(4, 64, 8), Phase(4, 64, 8, mask_rate=0.4)
  objective = config.objective
  if name == 'gpt_bert':
    objective = dataclasses.replace(objective, final_mask_rate=None)
  config = dataclasses.replace(
      config, objective=objective, train=dataclasses.replace(config.train, phases=phases))
  check(config)
  learner = make_learner(config, placeholder_vocab(config))
  corrupted = []
  for phase in phases:
    objective = phase_learner(config, learner, phase).objective
    assert count_mask_rates(objective) == 1
    corrupted.append(objective.step_flops(config.model, 64))
  # which have logits at all positions
  assert corrupted[0] != corrupted[1] or name in ('gpt_bert', 'bart')
  assert learner.objective == phase_objective(config, phases[1])  # the objective of evaluation


def test_the_mask_rate_of_a_phase_is_its_share_of_masked_tokens():
  config = recipes.find_recipe('bert_base', '')('test')
  phases = Phase(1, 32, 8), Phase(1, 32, 8, mask_rate=0.4)
  config = dataclasses.replace(
      config, objective=MaskedLM(pair=Single()),
      train=dataclasses.replace(config.train, phases=phases))
  learner = make_learner(config, tiny.VOCAB)
  windows = tiny.windows(8, 30, shortest=30)
  for phase, predictions in zip(phases, (5, 13), strict=True):
    batch = corrupt_windows(phase_learner(config, learner, phase), windows, 0)
    assert batch['positions'].shape == (8, predictions)
    np.testing.assert_array_equal(batch['weights'].sum(1), predictions)


@pytest.mark.parametrize('rates', [(0.15, 0.5), (0.5, 0.15)])
def test_evaluations_use_the_rows_of_their_phase_and_the_last_mask_rate(
    rates, tmp_path):
  """Losses of two mask rates cannot be compared, as the best checkpoint and early stopping do."""
  folder = write(tmp_path / 'records', 2048)
  config = experiment([(4, 64, 2, rates[0]), (4, 32, 2, rates[1])], [folder], recipe='t5_small')
  objective = make_learner(config, placeholder_vocab(config)).objective
  for phase in config.train.phases:
    windows = feed.open_heldout(config, [folder], phase)[0]
    assert objective.row_length(windows.length) == phase.length


def test_a_separate_held_out_text_is_evaluated_completely(tmp_path, monkeypatch):
  folders = [write(tmp_path / 'a', 4096), write(tmp_path / 'b', 4096)]
  meta = records.read_meta(folders[1])
  records.write_meta(folders[1], dataclasses.replace(meta, heldout_path='valid.txt'))
  config, seen = experiment([(20, 8, 2)], folders), []
  config = dataclasses.replace(config, train=dataclasses.replace(config.train, eval_batches=6))
  monkeypatch.setattr(feed.sharding, 'host_rows', lambda *_: None)
  monkeypatch.setattr(feed, 'heldout_batches',
                      lambda windows, batch, rows, batches, *_: seen.append(batches) or [])
  for mode in ('train', 'evaluate'):
    opened = types.SimpleNamespace(config=dataclasses.replace(config, mode=mode), records=folders)
    assert not list(feed.stream_heldout(opened, config.train.phases[0], FakeMesh()))
  assert seen == [3, None, 3, 3]


def test_epochs_count_the_finished_steps(tmp_path):
  """Early stopping ends a run before its planned steps."""
  folder = write(tmp_path / 'records', 4096)
  config = experiment([(20, 8, 2), (20, 8, 8)], [folder])
  opened = feed.TextFeed(config, [folder], types.SimpleNamespace(hash='hash', byte_lengths=None),
                         FakeMesh())
  windows = len(opened.pipelines[0].corpora[0])
  assert [round(opened.epochs(done) * windows)
          for done in (0, 10, 20, 25, 40)] == [0, 20, 40, 80, 200]


def named(*path, **run):
  return corpus_names(PretrainRun('run', data=DataConfig(path=path), **run))


def test_corpora_have_unique_names_for_metrics():
  """Languages if they are given, otherwise the ends of the paths; each name once."""
  assert named('gs://bucket/de', 'text/sw.txt.gz', 'wiki/zh/*.txt',
               'embedded') == ('de', 'sw', 'zh', 'embedded')
  assert named('task:sst2:a.tsv', 'task:columns-de-en:b.tsv') == ('sst2', 'columns-de-en')
  assert named('tfds:wiki40b/en:train', 'tfds:imdb') == ('en', 'imdb')
  assert named('a/train.txt,b.txt', 'b/train.txt', 'c/train') == ('train', 'train-2', 'train-3')
  assert named('x', 'y', objective=DenoisingAutoencoder(languages=('de_DE', 'ro_RO'))) == (
      'de_DE', 'ro_RO')
  pair = MaskedLM(pair=Translations(languages=('de', 'de-en')))
  assert named('x', 'y', objective=pair) == ('de', 'de-en')
  assert named('x.txt', objective=pair) == ('x',)
