"""One epoch over long documents trains every position, segment type and token of the text, for every kind of objective."""
from flax.linen import unbox
import jax
import numpy as np
import pytest
import tiny

from plm_jax import recipes, validation
from plm_jax.config.run import PretrainRun
from plm_jax.data import records
from plm_jax.data.windows import Windows
from plm_jax.training import step
from plm_jax.training.learner import make_learner, placeholder_vocab

SPECIALS, TOKENS = 12, 60  # ids before those of the text, and of the text
POSITIONS, TYPES = 'embeddings/positions', 'embeddings/types'
# Rows that an epoch does not train, by recipe and table, next to the positions up to the padding id, which number none.
UNTRAINED = {
    # Masks for spans make the encoder's sequence shorter, as in the published models.
    'bart_base': {f'backbone/encoder/{POSITIONS}': range(56, 66)},
    # Positions and types count the text and the tokens of a blank; the sequence has both. Blanks are short.
    'glm_large': {f'backbone/{POSITIONS}': range(47, 64), f'backbone/{TYPES}': range(11, 64)},
    # Absolute positions are those of masked tokens alone: [CLS] and [SEP] are never masked.
    'deberta_base': {'backbone/positions': (0, 63)}}
QUICK = ['gpt2_small', 'bert_base', 'roberta_base']
SLOW = ['gpt_base', 'gpt2_chinese', 'roberta_full_sentences', 'mpnet_base', 'xlm_xnli15', 'albert_base', 'bart_base',
        'glm_large', 'deberta_base']


def smallest(name: str) -> PretrainRun:
  """Return a recipe at test scale with a small vocabulary and one phase."""
  config = recipes.find_recipe(name)('test')
  phase = validation.with_paths(config.train.phases[-1], {'batch': 16, 'steps': 1})
  return validation.with_paths(config, {'model.vocab': SPECIALS + TOKENS + 40, 'train.phases': (phase,)})


def write_long_documents(folder) -> None:
  """Write records of two documents of 3,000 random tokens, in sentences of 3 to 12."""
  draw, tokens = np.random.default_rng(0), 3000
  ends = np.cumsum(draw.integers(3, 13, tokens))
  starts = np.concatenate([[0], ends[ends < tokens]])
  sentences = np.zeros(2 * len(starts), records.SENTENCE_DTYPE)
  sentences['start'] = np.concatenate([starts, starts + tokens])
  sentences['document'] = np.repeat([0, 1], len(starts))
  text = np.zeros(2 * tokens, records.token_dtype(1000))
  text['token'] = draw.integers(SPECIALS, SPECIALS + TOKENS, 2 * tokens)
  text['flags'] = (draw.random(2 * tokens) < 0.7) * records.WORD_START
  text['flags'][sentences['start']] = records.WORD_START
  shard = records.write_shard(folder, 'train-00000', text, sentences)
  records.write_meta(folder, records.RecordsMeta(1000, 'hash', (shard,), (), 'test'))


def sum_gradients(config: PretrainRun, folder) -> dict[str, np.ndarray]:
  """Sum the absolute gradients of all batches of an epoch, by parameter."""
  vocab, phase = placeholder_vocab(config), config.train.phases[0]
  learner = make_learner(config, vocab)
  rule = config.rule(phase)
  windows = Windows(folder, 'train', rule.length, rule.assembly, rule.target_tokens, rule.separators)
  order = np.random.default_rng(0).permutation(len(windows))
  total, params = None, None

  @jax.jit
  def gradient(params, batch):
    batch = step.corrupt_windows(learner, batch, 0)
    return step.compute_gradient(learner, params, batch, jax.random.key(0))[0]

  for at in range(0, len(order) - phase.batch + 1, phase.batch):
    batch = windows.read(order[at:at + phase.batch])
    if params is None:
      shapes = jax.eval_shape(lambda w: step.init_state(learner, w), batch)
      params = tiny.random_params(unbox(shapes.params))
    found = jax.tree.map(lambda x: np.abs(np.asarray(x)), gradient(params, batch))
    total = found if total is None else jax.tree.map(np.add, total, found)
  return tiny.flat(total)


@pytest.mark.parametrize('name', [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_epoch_trains_every_row(name, tmp_path):
  """Tables of relative positions are left out: they have rows for distances of longer sequences."""
  config = smallest(name)
  write_long_documents(tmp_path)
  tables = 0
  for parameter, gradient in sum_gradients(config, tmp_path).items():
    table = parameter.rpartition('/')[2]
    if table not in ('positions', 'types', 'tokens'):
      continue
    rows = {*np.flatnonzero(gradient.reshape(gradient.shape[0], -1).max(1) == 0).tolist()}
    if table == 'tokens':
      rows &= {*range(SPECIALS, SPECIALS + TOKENS)}
    if table == 'positions':
      rows -= {*range(getattr(config.model, 'first_position', config.model.padding + 1))}
    assert rows <= {*UNTRAINED.get(name, {}).get(parameter, ())}, parameter
    tables += 1
  assert tables
