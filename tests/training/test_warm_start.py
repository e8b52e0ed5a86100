"""Parameters and moments that a run takes from a checkpoint."""
import json

from composer_files import write_checkpoint
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import small_decoders
import tiny
import torch_files

from plm_jax import conversion, recipes
from plm_jax.checkpoints.checkpoint import CheckpointError, Checkpoints
from plm_jax.checkpoints.restore import find_run_checkpoints
from plm_jax.config.run import FinetuneRun, Phase
from plm_jax.errors import ConfigError, write_plain
from plm_jax.layers.rope import Rope
from plm_jax.loading.loaded_model import find_tokenizer
from plm_jax.models import bert, gpt2, neobert
from plm_jax.optim.optimizers import AdamW, Lion, StableAdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.recipes import finetune
from plm_jax.runs.run import run
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tokenizers import (
  TokenizerError,
  add_special_tokens,
  load,
  train_byte_bpe,
  train_wordpiece,
)
from plm_jax.training.warm_start import (
  changed_model_options,
  extend_tables,
  has_more_ids,
  load_warm_start,
  make_replacement,
  take_over_moments,
)
from plm_jax.validation import with_paths

torch = torch_files.torch  # the fixture


def tree(rows, width=2, classes=3):
  return {'embeddings': {'tokens': np.arange(rows * width, dtype=np.float32).reshape(rows, width)},
          'dense': np.zeros((width, classes))}


def test_additional_ids_get_new_embeddings():
  own, theirs = tree(5), tree(3)
  theirs['embeddings']['tokens'] = theirs['embeddings']['tokens'] + 100
  assert has_more_ids(own, theirs)
  np.testing.assert_array_equal(
      extend_tables(own, theirs)['embeddings']['tokens'],
      [[100, 101], [102, 103], [104, 105], [6, 7], [8, 9]])


def test_only_a_larger_vocabulary_counts_as_more_ids():
  assert not has_more_ids(tree(3), tree(3))
  assert not has_more_ids(tree(3), tree(5))
  assert not has_more_ids(tree(5, width=4), tree(3))
  assert not has_more_ids(tree(5, classes=2), tree(3))


@pytest.mark.parametrize('direction', ['decoder to encoder', 'encoder to decoder'])
def test_the_head_stays_from_decoder_to_encoder_and_back(direction, tmp_path, capsys):
  """Ettin's cross-objective training: all parameters of one model are those of the other."""
  names = {'ettin_decoder_17m': ('modernbert-decoder', 'lm'), 'ettin_17m': ('modernbert', 'mlm')}
  order = list(names) if direction == 'decoder to encoder' else list(reversed(names))
  before, after = (recipes.find_recipe(name)('test') for name in order)
  family, head = names[order[0]]
  _, other = names[order[1]]
  theirs = jax.tree.map(
      np.asarray, tiny.random_params(small_decoders.parameters(family, before.model, head)))
  conversion.save(tmp_path, before.model, theirs, like=family)
  fresh = tiny.random_params(
      small_decoders.parameters(names[order[1]][0], after.model, other), seed=1)
  one = jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices()[:1], ('data',)), jax.sharding.PartitionSpec())
  found, parts = load_warm_start(
      with_paths(after, {'warm_start': str(tmp_path)}), fresh, jax.tree.map(lambda _: one, fresh))
  assert parts == [] and 'initialized at random' not in capsys.readouterr().out
  tiny.assert_same(found['backbone'], theirs['backbone'])
  tiny.assert_same(found[f'heads_{other}'], theirs[f'heads_{head}'])


def test_the_newest_checkpoint_is_used_without_a_best_one(tmp_path):
  (tmp_path / 'best').mkdir()
  assert find_run_checkpoints(tmp_path).name == 'checkpoints'
  (tmp_path / 'best' / '12').mkdir()
  assert find_run_checkpoints(tmp_path).name == 'best'


def test_different_options_without_parameters_are_listed():
  """Parameters of BERT fit a model with another activation; dropout and the like change no
  output."""
  before = bert.base()
  free = with_paths(before, {
      'block.dropout': 0.3, 'block.attention.dropout': 0.0, 'block.mlp.dropout': 0.1,
      'block.dtype': 'bfloat16',
      'block.init.std': 0.5, 'stack.remat': 'full', 'stack.scan': False, 'max_length': 128,
      'pooler': False})
  assert changed_model_options(before, before) == changed_model_options(before, free) == []
  other = with_paths(before, {'block.mlp.activation': 'relu', 'block.norm.eps': 1e-5, 'padding': 1})
  assert [*map(write_plain, changed_model_options(before, other))] == [
      'model.block.norm.eps: 1e-12 -> 1e-05', 'model.block.mlp.activation: gelu -> relu',
      'model.padding: -1 -> 1']
  rotary = neobert.base()
  slow = with_paths(rotary, {'block.attention.position': Rope(160_000.0)})
  changed = changed_model_options(rotary, slow) + changed_model_options(before, gpt2.small())
  assert [*map(write_plain, changed)] == [
      'model.block.attention.position.theta: 10000.0 -> 160000.0',
      'model: EncoderConfig -> DecoderConfig']


def test_a_damaged_tokenizer_is_no_missing_one(tmp_path):
  """A run that starts from a model never trains a new tokenizer in place of one that cannot be
  read."""
  assert find_tokenizer(tmp_path) is None
  train_wordpiece(['the cat sat on the mat'] * 20, 60).save(tmp_path / 'tokenizer')
  assert find_tokenizer(tmp_path).vocab.size > 5
  (tmp_path / 'tokenizer' / 'vocab.txt').write_text('the\nthe\n')
  with pytest.raises(TokenizerError):
    find_tokenizer(tmp_path)


def fresh_state(optim, params):
  """Make the fresh state of an optimizer, and its layout on one device."""
  state = make_optimizer(optim, 10).init(params)
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return state, jax.tree.map(lambda _: device, state)


def adam_of(state) -> optax.ScaleByAdamState:
  is_adam = lambda node: isinstance(node, optax.ScaleByAdamState)
  found, = filter(is_adam, jax.tree.leaves(state, is_leaf=is_adam))
  return found


def saved_state(folder):
  """Read the training state of a run's newest checkpoint."""
  saved = Checkpoints(folder / 'checkpoints', keep=None)
  what = ocp.args.Composite(state=ocp.args.PyTreeRestore())
  try:
    return saved.manager.restore(saved.latest(), args=what)['state']
  finally:
    saved.close()


def starting_from(folder):
  return with_paths(recipes.find_recipe('bert_base')('test'), {
      'warm_start': str(folder), 'tuning.moments': True})


def test_moments_of_composer_are_taken_over(tmp_path, torch):
  """The rest of the state, such as the number of steps of the schedule, stays fresh."""
  path = write_checkpoint(tmp_path, torch, step=np.array(7))
  params = conversion.load(path).params
  fresh, layout = fresh_state(StableAdamW(), params)
  taken = take_over_moments(starting_from(path), fresh, layout)
  assert jax.tree.structure(taken) == jax.tree.structure(fresh)
  count, first, second = conversion.load_moments(path)
  adam = adam_of(taken)
  assert adam.count == count == 7 and adam.count.dtype == np.int32
  jax.tree.map(np.testing.assert_array_equal, (adam.mu, adam.nu), (first, second))
  rest = [x for x in jax.tree.leaves(taken) if x.ndim == 0]
  assert sorted(map(int, rest)) == [0] * (len(rest) - 1) + [7]


def test_moments_of_other_parameters_are_refused(tmp_path, torch):
  path = write_checkpoint(tmp_path, torch, step=np.array(7))
  params = conversion.load(path).params
  params['heads_mlm']['bias'] = np.zeros(3, np.float32)
  with pytest.raises(CheckpointError, match=r'heads_mlm/bias: \[\d+\], here \[3\]'):
    take_over_moments(starting_from(path), *fresh_state(AdamW(), params))
  with pytest.raises(ConfigError, match='moments of Adam'):
    take_over_moments(starting_from(path), *fresh_state(Lion(), params))
  with pytest.raises(ConfigError, match='leave out'):
    with_paths(recipes.find_recipe('bert_base')('test'), {
        'warm_start': 'x', 'tuning.moments': True, 'tuning.reinitialize': 1})


@pytest.mark.slow
def test_a_run_takes_over_the_moments_of_another(tmp_path):
  """With a rate of zero, a run ends with the parameters of the other one, and its moments go on."""
  text = tmp_path / 'text.txt'
  text.write_text('\n\n'.join(f'the {n}th of many texts is {n * n} , or {n % 7} .\nIt is short.'
                              for n in range(300)))
  values = {'data.path': (str(text),), 'data.prepare.workers': 1,
            'train.phases': (Phase(6, 32, 8),)}
  before = with_paths(recipes.find_recipe('bert_base')('test'), values | {
      'output': str(tmp_path / 'before')})
  run(before)
  first = saved_state(tmp_path / 'before')
  after = with_paths(before, {
      'output': str(tmp_path / 'after'), 'warm_start': str(tmp_path / 'before'),
      'tuning.moments': True, 'train.phases': (Phase(2, 32, 8),), 'optim.peak': 1e-30,
      'optim.warmup': 0})
  run(after)
  second = saved_state(tmp_path / 'after')
  jax.tree.map(np.testing.assert_array_equal, first['params'], second['params'])
  counts = [[int(x) for x in jax.tree.leaves(state['opt_state']) if np.ndim(x) == 0]
            for state in (first, second)]
  assert 6 in counts[0] and {8, 2} <= {*counts[1]}  # Adam's updates go on, the schedule begins anew


TEXT = [f'the {n}th of many texts is {n * n} , or {n % 7} .\nIt is short.' for n in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize('how', ['mean', 'focus', 'wechsel'])
def test_a_run_starts_from_a_model_with_another_tokenizer(how, tmp_path, capsys):
  """With a rate of zero, a run ends with the parameters that it started with."""
  (tmp_path / 'text.txt').write_text('\n\n'.join(TEXT))
  train_byte_bpe(TEXT, 320).save(tmp_path / 'new')
  values = {'data.path': (f'{tmp_path}/text.txt',), 'data.prepare.workers': 1,
            'train.phases': (Phase(4, 32, 8),)}
  before = with_paths(recipes.find_recipe('bert_base')('test'), values | {
      'output': str(tmp_path / 'before')})
  run(before)
  vectors = {}
  if how == 'wechsel':  # the vectors are aligned already
    (tmp_path / 'old.vec').write_text('1 2\nit 3 0\n')
    (tmp_path / 'new.vec').write_text('1 2\nmany 2 0\n')
    vectors = {'tuning.source_vectors': str(tmp_path / 'old.vec'),
               'tuning.target_vectors': str(tmp_path / 'new.vec')}
  after = with_paths(before, {
      'output': str(tmp_path / 'after'), 'warm_start': str(tmp_path / 'before'), **vectors,
      'data.prepare.tokenizer': str(tmp_path / 'new'), 'model.vocab': 330,
      'tuning.vocabulary': how, 'train.phases': (Phase(1, 32, 8),), 'optim.peak': 1e-30,
      'optim.warmup': 0})
  capsys.readouterr()
  run(after)
  assert f'tuning.vocabulary={how}): ' in write_plain(capsys.readouterr().out)
  first, second = (saved_state(tmp_path / name)['params'] for name in ('before', 'after'))
  old, new = find_tokenizer(tmp_path / 'before'), find_tokenizer(tmp_path / 'after')
  assert old and new and new.pieces == load(tmp_path / 'new').pieces
  tables = [params['backbone']['embeddings'].pop('tokens') for params in (first, second)]
  biases = [params['heads_mlm'].pop('bias') for params in (first, second)]
  jax.tree.map(np.testing.assert_array_equal, first, second)
  assert tables[1].shape == (330, tables[0].shape[1])
  ids = {piece: i for i, piece in enumerate(old.pieces)}
  many = 'it' if how == 'wechsel' else 'many'
  for name, same in {'▁of': 'of', '▁many': many, 't': '##t', '▁,': ',', '<mask>': '[MASK]',
                     '<s>': '[CLS]'}.items():
    n, i = new.pieces.index(name), ids[same]
    # Of WECHSEL, nine tokens without a vector have weights of exp(-10).
    for first, second in (tables, biases):
      np.testing.assert_allclose(second[n], first[i], atol=1e-4 if same == 'it' else 0)
  # Capital letters are not in a lower-cased vocabulary, but their small letters are.
  n = new.pieces.index('It')
  np.testing.assert_array_equal(tables[1][n], tables[0][ids['it']])
  assert np.abs(tables[1][new.vocab.size:]).max() < 1e-20 and np.isfinite(tables[1]).all()


def test_another_tokenizer_is_for_pre_training_without_moments(tmp_path):
  train_wordpiece(TEXT, 60).save(tmp_path / 'tokenizer')
  tokenizer = train_wordpiece(TEXT, 61)
  config = with_paths(starting_from(tmp_path), {'tuning.moments': False})
  found = make_replacement(config, tokenizer, None)
  assert found and len(found.mixtures) == 61
  assert make_replacement(config, load(tmp_path), None) is None
  with pytest.raises(ConfigError, match=r'moments.* is for the same tokenizer'):
    make_replacement(starting_from(tmp_path), tokenizer, None)
  tuned = FinetuneRun('x', objective=SequenceTask(labels=('a', 'b')), warm_start=str(tmp_path))
  with pytest.raises(CheckpointError, match='has another tokenizer than the text of this run'):
    make_replacement(tuned, train_wordpiece(TEXT, 59), None)
  assert make_replacement(tuned, add_special_tokens(load(tmp_path), ('[unused0]',)), None) is None


@pytest.mark.slow
def test_tokens_that_a_task_adds_are_new_rows(tmp_path):
  """ColBERT's markers, which a tokenizer of this project does not have."""
  (tmp_path / 'text.txt').write_text('\n\n'.join(TEXT))
  before = tmp_path / 'before'
  run(with_paths(recipes.find_recipe('bert_base')('test'), {
      'data.path': (f'{tmp_path}/text.txt',), 'data.prepare.workers': 1,
      'train.phases': (Phase(4, 32, 8),), 'output': str(before)}))
  (tmp_path / 'pairs.jsonl').write_text('\n'.join(
      json.dumps({'query': f'the {n}th', 'positive': text}) for n, text in enumerate(TEXT)))
  start = finetune.read_initial_model(str(before))
  run(with_paths(finetune.recipe('colbert', start, 'test', (f'{tmp_path}/pairs.jsonl',)), {
      'output': str(tmp_path / 'after'), 'data.epochs': 0.0, 'train.phases': (Phase(1, 32, 8),),
      'optim.peak': 1e-30, 'optim.warmup': 0, 'data.baseline': False}))
  old, new = find_tokenizer(before), find_tokenizer(tmp_path / 'after')
  assert old and new and new.pieces == [*old.pieces, '[unused0]', '[unused1]']
  first, second = (saved_state(folder)['params']['backbone']['embeddings']['tokens']
                   for folder in (before, tmp_path / 'after'))
  np.testing.assert_array_equal(second[:len(old.pieces)], first[:len(old.pieces)])
  assert np.isfinite(second).all() and second[len(old.pieces):].any()
