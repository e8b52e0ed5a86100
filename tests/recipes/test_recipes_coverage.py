"""One epoch over long documents trains every position, segment type, language and token of the
text: all objectives, and every family of recipes."""
import dataclasses
import fnmatch
import types
from typing import Any, get_args

from flax.linen import unbox
import jax
import numpy as np
import pytest
import tiny

from plm_jax import recipes, validation
from plm_jax.config.run import Objectives, PretrainRun
from plm_jax.data import records
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.translation_rows import Translations
from plm_jax.training import feed, step
from plm_jax.training.learner import make_learner, placeholder_vocab

SPECIALS, TOKENS = 12, 60  # special ids, and ids of the text
VOCAB = SPECIALS + TOKENS + 41  # no other axis of a parameter has this length
TABLES = 'positions', 'types', 'languages', 'offsets'  # next to tables with a row for each token
# rows are one text; the second type is for pairs of texts in fine-tuning
ONE_TYPE = {'types': range(1, 2)}
# Masks for spans make the encoder's row shorter, as in the published models. Position p is row p +
# 2.
SHORTER = {'backbone/encoder/embeddings/positions': range(56, 66)}
# Rows that an epoch does not train, by pattern of recipes and end of the parameter's name.
UNTRAINED = {
    'roberta_wwm_ext': ONE_TYPE, 'spanbert_base': ONE_TYPE, 'tinybert_4l': ONE_TYPE,
    'minilm_*': ONE_TYPE, 'retromae_*': ONE_TYPE,
    'condenser_base': ONE_TYPE, 'dupmae_base': ONE_TYPE, 'cocondenser_base': ONE_TYPE,
    # Nothing follows the last [SEP], and nothing else reads it.
    'tsdae_base': {**ONE_TYPE, 'positions': (63,)},
    'mosaicbert_base': ONE_TYPE,
    # The released table has 20 rows, for spans of up to 10 tokens.
    'spanbert_*': {'heads_sbo/offsets': range(10, 20)},
    # Two sentences are short: that is why this format has larger batches (section 4.2).
    'roberta_sentence_pair': {'positions': range(29, 66)},
    # Only masked tokens have absolute positions: [CLS] and [SEP] are never masked.
    'deberta_base': {'positions': (0, 63)}, 'deberta_v2_*': {'positions': (0, 63)},
    # As released, also: one token of every 6 is masked, from the front, until 15% are.
    'deberta_v3_*': {'generator/backbone/positions': (0, 61, 62, 63)},
    # Positions and types count the text and the tokens of a blank; the row has both. Blanks of
    # words are short.
    'glm_*': {'positions': range(46, 64), 'types': range(11, 64)},
    'bart_base': SHORTER, 'bart_large': SHORTER, 'bart_chinese_*': SHORTER, 'mbart_*': SHORTER,
    # Targets are of up to 32 tokens.
    'bart_translation*': {'decoder/embeddings/positions': range(34, 66)}}
QUICK = ['gpt2_small', 'bert_base', 'roberta_base']


def distinct_recipes() -> list[str]:
  """Name one recipe for each family, objective, way of reading text, and kind of embeddings."""
  found = {}
  for name, recipe in recipes.all_recipes().items():
    config = recipe('test')
    phase, model = config.train.phases[-1], config.model
    positions = [getattr(model, field, None) for field in ('embeddings', 'absolute', 'padding')]
    text = config.rule(phase), phase.length, config.data.path
    key = recipe.family, config.objective, text, positions, config.optim.only
    found.setdefault(repr(key), name)
  return list(found.values())


def smallest(name: str) -> PretrainRun:
  """Return a recipe at test scale with a small vocabulary, one phase, a teacher and a corpus of
  each language."""
  config = recipes.find_recipe(name)('test')
  phase = validation.with_paths(config.train.phases[-1], {'batch': 16, 'steps': 1})
  config = validation.with_paths(config, {'model.vocab': VOCAB, 'train.phases': (phase,)})
  if config.model.kind == 'recurrent':
    config = validation.with_paths(config, {'model.words': VOCAB})
  objective, paths = config.objective, config.data.path
  if isinstance(objective, Distillation):
    objective = dataclasses.replace(objective, model=config.model)
  languages = getattr(getattr(config.model, 'embeddings', None), 'languages', 0)
  if languages:
    names = [chr(ord('a') + number) for number in range(languages)]
    if isinstance(getattr(objective, 'pair', None), Translations):
      names[-2:] = [f'{names[-2]}-{names[-1]}']
      objective = validation.with_paths(objective, {'pair.languages': tuple(names)})
    paths = paths[:1] * len(names)
  return validation.with_paths(config, {'objective': objective, 'data.path': paths})


def write_records(folder, lengths) -> None:
  """Write documents of random tokens. lengths: of the sentences of each document."""
  draw, count = np.random.default_rng(0), sum(map(len, lengths))
  ends = np.cumsum(np.concatenate(lengths))
  sentences = np.zeros(count, records.SENTENCE_DTYPE)
  sentences['start'][1:] = ends[:-1]
  sentences['document'] = np.repeat(np.arange(len(lengths)), [len(of) for of in lengths])
  text = np.zeros(ends[-1], records.token_dtype(1000))
  text['token'] = draw.integers(SPECIALS, SPECIALS + TOKENS, len(text))
  text['flags'] = (draw.random(len(text)) < 0.7) * records.WORD_START
  text['flags'][sentences['start']] = records.WORD_START
  shard = records.write_shard(folder, 'train-00000', text, sentences)
  records.write_meta(folder, records.RecordsMeta(1000, 'untrained', (shard,), (), 'test'))


def characters(tokens):
  """Spell each token with three characters, as `tokenizers.words` does: [..., 50]."""
  spelled = np.zeros((*tokens.shape, 50), np.int32)
  spelled[..., :3] = np.stack([1 + tokens % 7, 20 + tokens % 50, 100 + tokens // 10], -1)
  return spelled * (tokens > 0)[..., None]


def sum_gradients(config: PretrainRun, folders) -> dict[str, np.ndarray]:
  """Sum the absolute gradients of all batches of an epoch, by trainable parameter."""
  vocab = placeholder_vocab(config)
  learner, phase = make_learner(config, vocab), config.train.phases[0]
  tokenizer: Any = types.SimpleNamespace(hash='untrained', characters=characters,
                                         pieces=['中'] * VOCAB)
  chosen = []
  for corpus in range(len(config.data.path)):
    chosen.append(folders[config.rule(phase, corpus).assembly in ('examples', 'pairs')])
  pipeline = feed.open_phase(config, chosen, tokenizer, phase, 0)
  add_token_info = feed.make_token_info(config, chosen, tokenizer)

  @jax.jit
  def add_gradient(total, params, batch):
    batch = step.corrupt_windows(learner, batch, 0)
    gradient = step.compute_gradient(learner, params, batch, jax.random.key(0))[0]
    return jax.tree.map(lambda x, y: x + abs(y), total, gradient)

  steps = -(-sum(map(len, pipeline.corpora)) // phase.batch)
  shapes = jax.eval_shape(lambda w: step.init_state(learner, w), add_token_info(pipeline.batch(0)))
  params = tiny.random_params(unbox(shapes.params))
  total = jax.tree.map(np.zeros_like, params)
  for number in range(steps):
    total = add_gradient(total, params, dict(add_token_info(pipeline.batch(number))))
  chosen = tiny.flat(learner.select(params))
  return {name: np.asarray(x) for name, x in tiny.flat(total).items() if chosen[name].any()}


def find_untrained(config: PretrainRun, name: str, gradient: np.ndarray) -> list[int] | None:
  """List the rows of a table without gradient; None: the parameter has no rows that text
  selects."""
  if config.model.vocab in gradient.shape:
    axis, rows = gradient.shape.index(config.model.vocab), range(SPECIALS, SPECIALS + TOKENS)
  elif name.endswith('/table'):  # of characters, from 1 on
    axis, rows = 0, np.setdiff1d(characters(np.arange(SPECIALS, SPECIALS + TOKENS)), 0) - 1
  elif name.rpartition('/')[2] in TABLES:
    axis = int('/layers/' in name)
    rows = range(gradient.shape[axis])
    if name.endswith('positions'):  # after the id of padding, as in RoBERTa
      rows = rows[getattr(config.model, 'first_position',
                          getattr(config.model, 'padding', -1) + 1):]
  else:
    return None
  largest = np.moveaxis(gradient, axis, 0).reshape(gradient.shape[axis], -1).max(1)
  return [row for row in rows if not largest[row]]


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """Records of two documents of 3,000 tokens, and of 150 examples, each a target and its inputs."""
  draw, folders = np.random.default_rng(0), [tmp_path_factory.mktemp(name)
                                             for name in ('text', 'examples')]
  write_records(folders[0], [draw.integers(3, 13, 400) for _ in range(2)])
  write_records(folders[1], np.stack([draw.integers(1, 40, 150), draw.integers(1, 80, 150)], 1))
  return folders


EVERY = 't5_small', 'gpt_base', 'xlnet_base', 'elmo_small', 'xlm_xnli15_tlm', 'glm_base'


def mark_recipes() -> list:
  """Of each objective one recipe at most is slow; the others wait for a release."""
  params, objectives = [], set()
  for name in distinct_recipes():
    objective = recipes.find_recipe(name)('test').objective
    kind = type(objective), type(getattr(objective, 'pair', None))
    marks = [] if name in QUICK else [pytest.mark.slow]
    if marks and (kind in objectives or name not in EVERY):
      marks.append(pytest.mark.release)
    objectives.add(kind)
    params.append(pytest.param(name, marks=marks))
  return params


@pytest.mark.parametrize('name', mark_recipes())
def test_an_epoch_trains_every_row(name, folders):
  """Tables of relative positions are excluded: they have rows for distances of longer sequences.
  So are frozen parameters and a teacher's."""
  config = smallest(name)
  untrained, tables = {}, 0
  for parameter, gradient in sum_gradients(config, folders).items():
    rows = find_untrained(config, parameter, gradient)
    tables += rows is not None
    listed = {row for pattern, listing in UNTRAINED.items() if fnmatch.fnmatch(name, pattern)
              for end, rows in listing.items() if parameter.endswith(end) for row in rows}
    if unlisted := sorted({*(rows or ())} - listed):
      untrained[parameter] = unlisted
  assert tables
  assert not untrained


def test_a_recipe_of_every_objective_is_tested():
  tested = {type(recipes.find_recipe(name)('test').objective) for name in distinct_recipes()}
  assert tested == {*get_args(Objectives)}
