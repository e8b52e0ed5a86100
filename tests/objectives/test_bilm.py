"""The bidirectional language model beside numpy that knows TensorFlow's layout alone, and what it
hands on."""
import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.config.run import ConfigError, check
from plm_jax.layers import char_ids, sampled_softmax
from plm_jax.layers.char_cnn import CharacterConfig
from plm_jax.layers.sampled_softmax import SampledWords
from plm_jax.models import elmo
from plm_jax.objectives import bilm
from plm_jax.objectives.bilm import BidirectionalLM
from plm_jax.optim.optimizers import Adagrad
from plm_jax.optim.transformations import make_optimizer
from plm_jax.recipes import find_recipe
from plm_jax.tokenizers.whole_words import WordTokenizer
from plm_jax.training.learner import make_learner
from plm_jax.training.step import Learner, init_state, train_step

WORDS = WordTokenizer(['<S>', '</S>', '<UNK>', *'abcdefg'])  # softmax does not know g
MODEL = dataclasses.replace(
    elmo.small(), vocab=10, words=9, width=3, cells=4, cell_clip=0.4, proj_clip=0.2, dropout=0.0,
    characters=CharacterConfig(size=2, filters=((1, 2), (2, 2)), highways=1, longest=5))
# What two rows read, three windows one behind another: the text between sentences' ends, |.
ROWS = 'ab|cad|ba', 'efg|a|cf'
# Of each window and row, for both directions: what is read ([ and ] begin and end a sentence), and
# what is predicted.
READ = ((('[ab', '[ef'), (']ab', ']f')), (('[ca', 'g[a'), (']da', 'c]a')),
        (('d[b', '[c'), ('c]b', ']gf')))
ASKED = ((('ab]', 'ef?'), ('ab[', 'fc')), (('cad', ']a]'), ('dac', '[a[')),
         ((']ba', 'cf'), ('[ba', '?fe')))
IDS = {'[': 0, ']': 1, '|': 1, '?': 2,
       **{letter: 3 + number for number, letter in enumerate('abcdefg')}}
# candidates, and draws for them
CHOSEN = np.array([[1, 3, 4, 8], [2, 5, 0, 3]]), np.array([6.5, 9.25], np.float32)


def windows(number):
  """Those of a step, as the pipeline gives them."""
  def part(number):
    texts = [row[3 * number:3 * number + 3] for row in ROWS]
    tokens = np.array([[*(IDS[x] for x in text), *[0] * (3 - len(text))] for text in texts],
                      np.int32)
    segments = np.array([[1] * len(text) + [0] * (3 - len(text)) for text in texts], np.int32)
    return {'tokens': tokens, 'segments': segments,
            'index': np.array([number, 10 + number], np.int32)}
  found = part(number) | {f'behind_{name}': x for name, x in part(2 - number).items()}
  return found | {f'{side}characters': WORDS.characters(found[f'{side}tokens'], 5)
                  for side in ('', 'behind_')}


def learner(accumulate=1, samples=4, fresh=0.0):
  objective = BidirectionalLM(samples=samples, fresh=fresh)
  optim = Adagrad(peak=0.2, warmup=0, schedule='constant', eps=1e-30, weight_decay=0.0, clip=10.0)
  return Learner(objective.build(MODEL, True), objective, make_optimizer(optim, 10), WORDS.vocab, 0,
                 accumulate,
                 carry=objective.carry(MODEL, 2))


@pytest.fixture(scope='module')
def start():
  """A fresh state, of larger parameters than fresh ones."""
  state = nn.unbox(jax.device_get(jax.jit(lambda: init_state(learner(), windows(0)))()))
  rng = np.random.default_rng(0)
  return state.replace(params=jax.tree.map(lambda x: rng.normal(0, 0.6, x.shape).astype(np.float32),
                                           state.params))


def loss_by_hand(arrays, kernel, bias, step, state):
  """The loss of a step, with TensorFlow's arrays; state: {(direction, layer, row): (cell, hidden)}
  -> the next."""
  sigmoid = lambda x: 1 / (1 + np.exp(-x))
  def vector(sign):
    word = {'[': chr(256), ']': chr(257)}.get(sign)
    ids = np.array([258, ord(word or sign), 259, 260, 260])  # of bilm-tf
    x, found = arrays['char_embed'][ids], []
    for number, (size, _) in enumerate(MODEL.characters.filters):
      seen = [np.einsum('wc,wcf->f', x[at:at + size], arrays[f'CNN/W_cnn_{number}'][0])
              for at in range(6 - size)]
      found.append(np.maximum(np.max(seen, 0) + arrays[f'CNN/b_cnn_{number}'], 0))
    h = np.concatenate(found)
    carry = sigmoid(h @ arrays['CNN_high_0/W_carry'] + arrays['CNN_high_0/b_carry'])
    transform = np.maximum(h @ arrays['CNN_high_0/W_transform'] + arrays['CNN_high_0/b_transform'],
                           0)
    return (carry * transform + (1 - carry) * h) @ arrays['CNN_proj/W_proj'] + arrays[
        'CNN_proj/b_proj']
  vectors = {sign: vector(sign) for sign in ''.join(map(''.join, READ[step]))}
  chance = lambda k: np.log((k + 2) / (k + 1)) / np.log(10)
  new, totals = {}, []
  for side in range(2):
    losses = []
    ids, tries = CHOSEN[0][side], CHOSEN[1][side]
    often = lambda k, tries=tries: 1 - (1 - chance(k)) ** tries
    for row in range(2):
      now = {layer: state.get((side, layer, row), (np.zeros(4), np.zeros(3))) for layer in range(2)}
      for sign, label in zip(READ[step][side][row], ASKED[step][side][row], strict=True):
        x = vectors[sign]
        for layer in range(2):
          cell, hidden = now[layer]
          name = f'RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/'
          i, j, f, o = np.split(np.concatenate([x, hidden]) @ arrays[name + 'W_0']
                                + arrays[name + 'B'], 4)
          cell = np.clip(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j), -0.4, 0.4)
          hidden = np.clip((sigmoid(o) * np.tanh(cell)) @ arrays[name + 'W_P_0'], -0.2, 0.2)
          now[layer] = cell, hidden
          x = hidden + x if layer else hidden
        k = IDS[label]
        logits = kernel[ids] @ x + bias[ids] - np.log(often(ids))
        right = kernel[k] @ x + bias[k] - np.log(often(k))
        losses.append(np.log(np.exp(right) + np.exp(logits[ids != k]).sum()) - right)
      new |= {(side, layer, row): now[layer] for layer in now}
    totals.append(np.mean(losses))
  return 20 * np.mean(totals), new


def slopes(function, arrays):
  """The gradient of function(arrays), by differences."""
  found = {}
  for name, x in arrays.items():
    found[name] = np.zeros_like(x)
    used = range(x.size)
    if name == 'char_embed':  # most characters do not come
      used = [2 * ids + part for ids in (*range(97, 104), *range(256, 261)) for part in range(2)]
    for at in used:
      before, ends = x.flat[at], []
      for move in (1e-5, -1e-5):
        x.flat[at] = before + move
        ends.append(function(arrays))
      x.flat[at] = before
      found[name].flat[at] = (ends[0] - ends[1]) / 2e-5
  return found


@pytest.mark.slow
def test_three_steps_are_those_of_numpy(start, monkeypatch):
  """Losses, and parameters behind them: two directions, two rows, one of which ends, state that is
  carried, a word that
  softmax does not know, given candidates, clipping and Adagrad (bilm-tf: 0.2, accumulators of
  1)."""
  monkeypatch.setattr(bilm, 'sample_words',
                      lambda *_: SampledWords(jnp.asarray(CHOSEN[0]), jnp.asarray(CHOSEN[1])))
  given = start.params['heads_next']
  arrays = {name: np.float64(x)
            for name, x in elmo.export_arrays(MODEL, start.params['backbone']).items()}
  arrays |= {'softmax/W': np.float64(given['kernel']), 'softmax/b': np.float64(given['bias'])}
  sums = {name: np.ones_like(x) for name, x in arrays.items()}
  update = jax.jit(functools.partial(train_step, learner()))
  state, carried = start, {}
  with jax.default_matmul_precision('highest'):
    for step in range(3):
      run = lambda arrays, step=step, carried=carried: loss_by_hand(
          arrays, arrays['softmax/W'], arrays['softmax/b'], step, carried)
      (loss, after), gradient = run(arrays), slopes(lambda arrays, run=run: run(arrays)[0], arrays)
      norm = np.sqrt(sum((x ** 2).sum() for x in gradient.values()))
      state, numbers = update(state, windows(step))
      np.testing.assert_allclose(numbers['loss'], loss, rtol=2e-6)
      np.testing.assert_allclose(numbers['grad_norm'], norm, rtol=1e-4)
      carried = after
      for name, x in gradient.items():
        x = x * min(1, 10 / norm)
        sums[name] += x ** 2
        arrays[name] -= 0.2 * x / np.sqrt(sums[name])
  params: Any = jax.device_get(state.params)
  for name, x in elmo.export_arrays(MODEL, params['backbone']).items():
    np.testing.assert_allclose(x, arrays[name], atol=2e-5, err_msg=name)
  np.testing.assert_allclose(params['heads_next']['kernel'], arrays['softmax/W'], atol=2e-5)


def test_what_is_read_and_what_is_predicted():
  """As literals say, for both directions; after a jump in the text a sentence begins."""
  objective, carry = learner().objective, {}
  spell = {letter: WORDS.characters(np.array(number), 5).tolist() for letter, number in IDS.items()}
  for step in range(3):
    batch: Any = objective.corrupt(None, {**windows(step), **carry}, WORDS.vocab)
    for row in range(2):
      for side in range(2):
        read, asked = READ[step][side][row], ASKED[step][side][row].replace('?', 'g')
        assert batch['streams'][row, side, :len(read)].tolist() == [spell[sign] for sign in read]
        assert batch['labels'][row, side, :len(asked)].tolist() == [IDS[sign] for sign in asked]
        assert batch['valid'][row, side].tolist() == [True] * len(read) + [False] * (3 - len(read))
    carry = {'carry': batch['kept']}
  jumped = objective.corrupt(None, {**windows(0), **carry}, WORDS.vocab)
  assert jumped['streams'][0, 0, 0].tolist() == spell['['] and jumped['streams'][0, 1, 0].tolist(
      ) == spell[']']


@pytest.mark.slow
def test_rows_that_are_fresh_begin_without_a_state(start, monkeypatch):
  """The text goes on, LSTMs do not: with all rows fresh losses are those behind a state of
  zeros."""
  monkeypatch.setattr(bilm, 'sample_words',
                      lambda *_: SampledWords(jnp.asarray(CHOSEN[0]), jnp.asarray(CHOSEN[1])))
  update = {fresh: jax.jit(functools.partial(train_step, learner(fresh=fresh)))
            for fresh in (0.0, 1.0)}
  behind, _ = update[0.0](start, windows(0))
  emptied = behind.replace(carry={**behind.carry,
                                  'state': jax.tree.map(jnp.zeros_like, behind.carry['state'])})
  losses = [float(update[fresh](state, windows(1))[1]['loss']) for fresh, state in (
      (1.0, behind), (0.0, emptied), (0.0, behind))]
  assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_micro_steps_hand_on_what_one_step_does(start, monkeypatch):
  monkeypatch.setattr(bilm, 'sample_words',
                      lambda *_: SampledWords(jnp.asarray(CHOSEN[0]), jnp.asarray(CHOSEN[1])))
  (one, first), (two, second) = (jax.jit(functools.partial(train_step, learner(n)))(
      start, windows(0)) for n in (1, 2))
  assert one.carry['due'].tolist() == [[2, 2], [12, 12]]
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), one, two)
  np.testing.assert_allclose(first['loss'], second['loss'], rtol=1e-6)


def test_the_state_of_the_lstms_continues_next_to_an_ema(start, monkeypatch):
  monkeypatch.setattr(bilm, 'sample_words',
                      lambda *_: SampledWords(jnp.asarray(CHOSEN[0]), jnp.asarray(CHOSEN[1])))
  plain, averaged = start, start.replace(trained=start.params)
  updates = [jax.jit(functools.partial(train_step, one))
             for one in (learner(), dataclasses.replace(learner(), ema=0.9))]
  for number in range(2):
    plain, _ = updates[0](plain, windows(number))
    averaged, _ = updates[1](averaged, windows(number))
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6),
               (averaged.trained, averaged.carry),
               (plain.params, plain.carry))


def test_candidates_are_drawn_as_often_as_is_expected():
  """With which probability each word is among 5 of 30, over 4,000 draws, within 4 standard errors;
  of expected counts
  those of TensorFlow: p(k) = log((k + 2) / (k + 1)) / log(31)."""
  drawn = jax.jit(jax.vmap(lambda key: sampled_softmax.sample_words(key, 30, 5, streams=1)))(
      jax.random.split(jax.random.key(0), 4000))
  assert all(len({*row}) == 5 for row in drawn.ids[:, 0].tolist())
  often = np.bincount(np.ravel(drawn.ids), minlength=30) / 4000
  believed = np.asarray(sampled_softmax.expected_count(jnp.arange(30), drawn.tries, 30)).mean(0)
  assert np.abs(often - believed).max() < 4 * (0.25 / 4000) ** 0.5
  np.testing.assert_allclose(
      sampled_softmax.expected_count(np.array([0, 7]), 3.0, 30),
      [1 - (1 - np.log(2) / np.log(31)) ** 3,
                                                    1 - (1 - np.log(9 / 8) / np.log(31)) ** 3],
                                                    rtol=1e-5)


@pytest.mark.slow
def test_a_softmax_over_all_words_is_that_of_evaluation(start):
  """Of as many candidates as there are words none are drawn."""
  numbers = jax.jit(functools.partial(train_step, learner(samples=9)))(start, windows(0))[1]
  model, batch = learner().model, learner().objective.corrupt(None, windows(0), WORDS.vocab)
  outputs: Any = model.apply({'params': start.params}, batch)
  losses = learner().objective.loss(outputs, batch)
  np.testing.assert_allclose([float(x) for x in numbers['forward']],
                             [float(x) for x in losses['forward']], rtol=1e-5)


@pytest.mark.parametrize(('change', 'message'), [
    ({'assembly': 'document'}, 'give data.assembly packed and one data.path'),
    ({'path': ('a', 'b')}, 'give data.assembly packed and one data.path')])
def test_what_cannot_be_read_on_and_on_is_refused(change, message):
  config = find_recipe('elmo_small')('test')
  with pytest.raises(ConfigError, match=message):
    check(dataclasses.replace(config, data=dataclasses.replace(config.data, **change)))


def test_a_recipe_has_the_published_settings():
  config = find_recipe('elmo_original')()
  optim, model = config.optim, config.model
  assert (optim.kind, optim.peak, optim.accumulator, optim.clip) == ('adagrad', 0.2, 1, 10)
  assert isinstance(
      model, ElmoConfig)
  assert model.dropout == 0.1 and model.characters.longest == char_ids.MAX_CHARACTERS
  assert config.train.steps == 1_000_840 and config.objective == BidirectionalLM(samples=8192)
  assert make_learner(config, dataclasses.replace(WORDS.vocab,
                                                  size=793_471)).carry['word'].shape == (384, 2)
