"""word2vec and fastText: sampling, training, and updates of a batch's rows only."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.word_vectors import losses
from plm_jax.word_vectors import word_corpus as corpora
from plm_jax.word_vectors.contract import BlockShape, cut_blocks, split_points
from plm_jax.word_vectors.subwords import SubwordRows, Subwords
from plm_jax.word_vectors.train import make_update
from plm_jax.word_vectors.word2vec import Word2Vec
from plm_jax.word_vectors.word_corpus import Sentences, Vocabulary, huffman_paths

TEXT = [['a', 'b', 'a', 'c', 'd', 'e'], ['b'], ['c', 'a', 'f', 'g', 'b', 'a', 'e', 'h'],
        ['a', 'h']] * 3
SMALL = dict(width=6, window=2, blocks=2, words=4, noise=4, negatives=3, threshold=0.0, limit=0.0)
KINDS = [{}, {'kind': 'cbow'}, {'loss': 'hierarchical'}, {'kind': 'cbow', 'loss': 'hierarchical'},
         {'subwords': Subwords(2, 3, 5)}, {'kind': 'cbow', 'subwords': Subwords(2, 3, 5)}]


def small(**changes) -> Word2Vec:
  return Word2Vec(**{**SMALL, **changes})


@functools.cache
def text() -> corpora.WordCorpus:
  return corpora.corpus_from_words(TEXT)


def one(learner, number=0):
  """A small batch of the first call, and tables that are not zero."""
  batch = {name: jnp.asarray(array[number])
           for name, array in learner.sample_batches(0, 0).arrays.items()}
  params = learner.config.init(jax.random.key(1), text().vocabulary)['params']
  keys = jax.random.split(jax.random.key(2), len(params))
  params = {name: jax.random.normal(key, params[name].shape)
            for key, name in zip(keys, params, strict=True)}
  return batch, params


def test_windows_are_sampled_and_end_with_the_sentence():
  """Every word is in the middle once, in order; its neighbours are counted by a drawn window and
  the sentence."""
  sentences = Sentences(np.arange(10, dtype=np.int32), np.array([0, 3, 3, 10]))
  found = cut_blocks(sentences, BlockShape(2, 3, 2), np.ones(10), np.random.default_rng(0), room=3)
  assert found.count == 2 and found.ids.shape == (3, 2, 7) and found.left.shape == (3, 2, 3)
  np.testing.assert_array_equal(found.ids[:2, :, 2:-2].ravel()[:10], np.arange(10))
  np.testing.assert_array_equal(found.ids[0, 1], [1, 2, 3, 4, 5, 6, 7])
  left, right = (side.ravel()[:10].astype(int) for side in (found.left, found.right))
  room = np.array([[0, 1, 2, 0, 1, 2, 2, 2, 2, 2], [2, 1, 0, 2, 2, 2, 2, 2, 1, 0]])
  assert (left <= room[0]).all() and (right <= room[1]).all()
  long = cut_blocks(Sentences(np.zeros(90, np.int32), np.array([0, 90])), BlockShape(1, 90, 3),
                    np.ones(1),
             np.random.default_rng(0), room=1)
  drawn = long.left[0, 0, 3:-3]  # where nothing but the window counts, the same on either side
  assert np.bincount(drawn).min(initial=99,
                                where=[False, True, True, True]) > 18 and set(drawn) == {1, 2, 3}
  np.testing.assert_array_equal(drawn, long.right[0, 0, 3:-3])
  assert not found.left[2].any() and not found.right[2].any()
  shape = BlockShape(2, 3, 2, random_windows=False)
  whole = cut_blocks(sentences, shape, np.ones(10), np.random.default_rng(0), room=3)
  np.testing.assert_array_equal(whole.left.ravel()[:10], room[0])


def test_subsampling_brings_words_near():
  """Dropped words are removed before windows are sampled, and the kept share matches its
  probability."""
  sentences = Sentences(np.tile(np.array([0, 1], np.int32), 4000), np.array([0, 8000]))
  found = cut_blocks(sentences, BlockShape(1, 16, 1), np.array([0.25, 1.0]),
                     np.random.default_rng(0), room=500)
  middle = found.ids[..., 1:-1].ravel()[:found.count * 16]
  there = (found.left + found.right).ravel()[:len(middle)] > 0
  assert abs((middle[there] == 0).sum() - 1000) < 90 and (middle[there] == 1).sum() == 4000
  np.testing.assert_array_equal(found.ids[0, 0, 1:-1] == 1, middle[:16] == 1)
  assert (np.diff(middle[there]) == 0).any()  # two of one word next to each other


def test_parts_end_between_sentences():
  sentences = Sentences(np.zeros(20, np.int32), np.array([0, 7, 7, 12, 20]))
  assert split_points(sentences, 6).tolist() == [0, 1, 3, 4] and split_points(
      sentences, 100).tolist() == [0, 4]


@pytest.mark.parametrize('changes', KINDS)
def test_a_step_is_a_step_of_dense_gradient_descent(changes):
  """Rows move by the gradient of the whole tables, and only rows of the batch move, to the bit."""
  learner = small(**changes).make_learner(text(), 0)
  batch, params = one(learner)
  problem = jax.jit(lambda params: learner.loss({'params': params}, learner.constants, batch)[0])
  slopes = jax.jit(jax.grad(problem))(params)
  idle = {name: jnp.zeros(len(table)) for name, table in params.items()}
  after = jax.jit(lambda: learner.step({'params': params, 'idle': idle}, learner.constants, batch,
                                       0.1))()['params']
  for name, table in params.items():
    np.testing.assert_allclose(after[name], table - 0.1 * slopes[name], atol=2e-5)
    rows = set(np.asarray(learner.make_loss(learner.constants, batch).rows[name]).ravel())
    still = np.array([row for row in range(len(table)) if row not in rows], int)
    np.testing.assert_array_equal(after[name][still], table[still])
    assert (np.abs(after[name] - table).max(1) > 0).any()


def by_hand(config: Word2Vec, batch, params, paths) -> float:
  """The loss by the originals' loops, pair by pair."""
  softplus = lambda x: np.log1p(np.exp(-abs(x))) + max(x, 0)
  bags = SubwordRows.build(text().vocabulary.words, config.subwords)
  def vector(words):
    rows = [row for word in words for row in bags.rows[bags.starts[word]:bags.starts[word + 1]]]
    return params['input'][rows].mean(0)
  def predicted(hidden, word, noise):
    if config.loss == 'hierarchical':
      return sum(softplus(hidden @ params['output'][node] * (1 if code else -1))
                 for node, code in zip(paths.nodes[word], paths.codes[word], strict=True) if code
                 >= 0)
    false = sum(softplus(hidden @ params['output'][other]) for other in noise if other != word)
    return softplus(-hidden @ params['output'][word]) + false * config.negatives / config.noise
  total, window = 0.0, config.window
  outward = bool(config.subwords) and config.kind == 'skip-gram'
  for block, ids in enumerate(batch['ids']):
    for place in range(config.words):
      left, right = (int(batch[side][block, place]) for side in ('left', 'right'))
      middle = place + window
      near = [int(ids[at]) for at in range(middle - left, middle + right + 1) if at != middle]
      noise, word = batch.get('noise', {block: ()})[block], int(ids[middle])
      if config.kind == 'cbow' and near:
        total += predicted(vector(near), word, noise)
      elif config.kind == 'skip-gram':
        total += sum(predicted(vector([word]), other, noise) if outward
                     else predicted(vector([other]), word, noise)
                     for other in near)
  return total


@pytest.mark.parametrize('changes', KINDS)
def test_the_loss_equals_plain_loops(changes):
  learner = small(**changes).make_learner(text(), 3)
  batch, params = one(learner)
  given, tables = jax.tree.map(np.asarray, (batch, params))
  want = by_hand(learner.config, given, tables, huffman_paths(text().vocabulary.counts))
  got, number = jax.jit(lambda params: learner.loss({'params': params}, learner.constants,
                                                    batch))(params)
  assert want > 10 and float(number) > 5
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_every_row_of_a_mean_gets_its_whole_gradient():
  """word2vec.c and fastText add the same to every word of a context: the plain gradient times how
  many there are."""
  inputs, pairs = jax.random.normal(jax.random.key(0),
                                    (1, 3, 2)), jnp.array([[[1.0], [0.0], [1.0]]])
  ours = jax.grad(lambda x: (losses.mean_inputs(x, pairs, jnp.ones((1, 3))) ** 2).sum())(inputs)
  plain = jax.grad(lambda x: (x[0, jnp.array([0, 2])].mean(0) ** 2).sum())(inputs)
  np.testing.assert_allclose(ours, 2 * plain, rtol=1e-6)


def test_rows_of_a_mean_are_damped_by_their_share():
  """A context of two rows moves its mean by half of what one of them moves, so the bound on a row
  is half the word's
  and the noise's squares: 1 + 0.5 * 3, counted 0.5, of one prediction."""
  rows, one_word = jnp.ones((1, 2, 1)), jnp.ones((1, 1, 1))
  def bound(inputs):
    return losses.cbow_loss(inputs, one_word, jnp.full((1, 1, 1), 3.0), jnp.ones((1, 2, 1)),
                            jnp.full((1, 1, 1), 0.5),
                        jnp.ones((1, 2)), losses.LINEAR).sum()
  np.testing.assert_allclose(jax.grad(bound)(rows), np.full((1, 2, 1), 2.5 / 2))


@pytest.mark.slow
def test_rows_of_many_predictions_are_damped():
  """Loads of one row are summed over the batch, and the buffer is empty afterwards; the curvature
  bound of a row is that of its second derivatives: learning rate * slope of the slope is below
  the limit, where it is 1."""
  rows, loads = {'t': jnp.array([3, 1, 3, 3])}, {'t': jnp.array([5.0, 2.0, 5.0, 6.0])}
  damping, idle = losses.damp_rows({'t': jnp.zeros(5)}, rows, loads, 4.0)
  np.testing.assert_allclose(damping['t'], [0.25, 1, 0.25, 0.25])
  np.testing.assert_array_equal(idle['t'], 0)
  learner = small().make_learner(text(), 0)
  batch, params = one(learner)
  asked = learner.make_loss({}, batch)
  found = losses.gather_rows(params, asked.rows)
  bound = jax.grad(asked.bound)({name: (rows ** 2).sum(-1, keepdims=True)
                                 for name, rows in found.items()})
  for name in 'input', 'output':
    block, place = 1, 3
    def of_row(row, name=name, block=block, place=place):
      return asked.loss(found | {name: found[name].at[block, place].set(row)})
    curvature = jnp.trace(jax.hessian(of_row)(found[name][block, place]))
    assert 0 < curvature <= bound[name][block, place, 0] / 4
  idle = {name: jnp.zeros(len(table)) for name, table in params.items()}
  after = {limit: small(limit=limit).make_learner(text(), 0).step({'params': params, 'idle': idle},
                                                                  {}, batch, 0.1)
           for limit in (0.1, 1e9, 0.0)}
  moved = {limit: np.linalg.norm(state['params']['output'] - params['output'], axis=1)
           for limit, state in after.items()}
  assert (moved[0.1] <= moved[0.0] + 1e-6).all() and moved[0.1].max() < 0.7 * moved[0.0].max()
  np.testing.assert_allclose(moved[1e9], moved[0.0], rtol=1e-5)
  np.testing.assert_array_equal(after[0.1]['idle']['output'], 0)


def test_a_step_costs_what_its_words_cost():
  """A vocabulary of fifty times as many words takes as many operations, and nothing as large as it
  is computed."""
  costs = []
  for size in 1000, 50_000:
    vocabulary = Vocabulary(tuple(map(str, range(size))), np.full(size, 5))
    sentences = Sentences(np.arange(500, dtype=np.int32), np.array([0, 500]))
    nothing = Sentences(np.zeros(0, np.int32), np.zeros(1, np.int64))
    learner = Word2Vec(width=8, blocks=1,
                       words=16).make_learner(corpora.WordCorpus(vocabulary, sentences, nothing), 0)
    state = learner.config.init(jax.random.key(0), vocabulary)
    arrays = learner.sample_batches(0, 0).arrays
    compiled = make_update(learner).lower(state, {}, arrays, 2, np.ones(2, np.float32)).compile()
    cost = compiled.cost_analysis()
    assert cost
    costs.append(cost['flops'])
    program = compiled.as_text()
    large = [line for line in program.splitlines() if f'f32[{size},8]'
             in line.partition(' = ')[2].partition('(')[0]]
    made = {line.partition(' = ')[2].split('(')[0].split()[-1] for line in large}
    assert not made & {'copy', 'add', 'multiply', 'subtract', 'broadcast', 'convert'}, made
  assert costs[0] == costs[1] > 0


def test_huffman():
  """What word2vec.c's CreateBinaryTree, compiled, gives: code@point from the root."""
  found = huffman_paths(np.array([9, 7, 7, 5, 4, 4, 3, 1, 1, 1]))
  written = [' '.join(f'{code}@{node}' for node, code in zip(*path, strict=True) if code >= 0)
             for path in zip(found.nodes, found.codes, strict=True)]
  assert written == [
      '0@8 1@6', '1@8 1@7 1@5', '1@8 1@7 0@5', '1@8 0@7 0@4', '0@8 0@6 1@3', '0@8 0@6 0@3',
      '1@8 0@7 1@4 1@2',
      '1@8 0@7 1@4 0@2 0@1', '1@8 0@7 1@4 0@2 1@1 1@0', '1@8 0@7 1@4 0@2 1@1 0@0']
  counts = np.sort(np.random.default_rng(0).zipf(1.5, 300))[::-1]
  lengths = (huffman_paths(counts).codes >= 0).sum(1)
  assert sum(0.5 ** lengths) == 1 and (np.diff(lengths) >= 0).all()
  assert huffman_paths(np.array([3, 1])).codes.tolist() == [[1], [0]]


def test_batches_are_functions_of_seed_and_call():
  learner = small(call=8, threshold=0.01).make_learner(text(), 5)
  assert learner.calls_per_epoch > 2
  again = small(call=8, threshold=0.01).make_learner(text(), 5)
  for name, array in learner.sample_batches(1, 2).arrays.items():
    np.testing.assert_array_equal(again.sample_batches(1, 2).arrays[name], array)
    if name == 'noise':
      assert (again.sample_batches(2, 2).arrays[name] != array).any()
  examples = [learner.sample_batches(0, call).examples for call in range(learner.calls_per_epoch)]
  assert sum(examples) == text().vocabulary.total


@pytest.mark.parametrize('limit', [Word2Vec().limit, 0.0])
def test_few_words_are_damped_enough(limit):
  """Five words, each in hundreds of predictions of a small batch, which add up: without a limit
  they run away."""
  random = np.random.default_rng(0)
  texts = [[f'w{number}' for number in random.integers(5, size=20)] for _ in range(300)]
  corpus = corpora.corpus_from_words(texts, least=1)
  model = Word2Vec('cbow', width=8, threshold=0.0, limit=limit, call=6000)
  learner = model.make_learner(corpus, 0)
  state, step = model.init(jax.random.key(0), corpus.vocabulary), make_update(learner)
  for epoch in range(10):
    batches = learner.sample_batches(epoch, 0)
    state = step(state, learner.constants, batches.arrays, batches.count,
                 np.array([0.05, 0.05], np.float32))
  largest = float(np.abs(state['params']['input']).max())
  assert largest < 10 if limit else not largest < 1e6
