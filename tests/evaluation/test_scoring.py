"""Scores of a hand-made model of letter pairs, whose probabilities are known."""
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import scoring
from plm_jax.evaluation.scoring import ContinuationScore, Span
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.clm import CausalLM
from plm_jax.sharding import MeshConfig, make_mesh, shardings
from plm_jax.tokenizers.contract import Vocab


class Letters:
  """a .. i are 1 .. 9, others 10, a space is 11, 'ab' is one piece, 12; a text begins with 13."""

  vocab = Vocab(14, pad=0, bos=13, eos=13)
  spaced = True

  def encode(self, text):
    ids = []
    while text:
      size = 2 if text.startswith('ab') else 1
      ids.append(12 if size == 2 else 11 if text[0] == ' '
                 else min(ord(text[0]) - ord('a') + 1, 10))
      text = text[size:]
    return ids

  def encode_batch(self, texts):
    return [self.encode(text) for text in texts]


@pytest.fixture(scope='module')
def table():
  return np.random.default_rng(0).normal(size=(14, 14)).astype(np.float32)


@pytest.fixture(scope='module')
def scorer(table):
  """The next token depends on the last token and on the number of tokens before it, so that lost
  context is detected."""
  def logits(params, batch):
    before = jnp.cumsum(batch['segments'], 1) * (batch['segments'] > 0)
    both = params[batch['tokens']] * (1 + before[..., None] / 100)
    return jnp.take_along_axis(both, batch['positions'][..., None], 1)
  return scoring.Scorer(logits, jnp.asarray(table), Letters(), length=20)  # pyright: ignore


def by_hand(table, ids, first):
  """Return the log-probability of ids[first:], and whether they are the most likely tokens."""
  logprob, greedy = 0.0, True
  for place in range(first, len(ids)):
    logits = table[ids[place - 1]].astype(np.float64) * (1 + place / 100)
    logprob += logits[ids[place]] - math.log(np.exp(logits).sum())
    greedy &= int(logits.argmax()) == ids[place]
  return logprob, greedy


def test_score(scorer, table):
  scores = scorer.score([('cd', 'e'), ('', 'cde'), ('cd', 'f'), ('cd ', 'e'), ('cd', ' e'),
                         ('cd' * 9, 'eh')])
  for score, ids, first in zip(
      scores, ([13, 3, 4, 5], [13, 3, 4, 5], [13, 3, 4, 6], [13, 3, 4, 11, 5], [13, 3, 4, 11, 5],
               [13, *[3, 4] * 9, 5, 8]), (3, 1, 3, 3, 3, 19), strict=True):
    logprob, greedy = by_hand(table, ids, first)
    assert score == ContinuationScore(pytest.approx(logprob, rel=1e-5), greedy, len(ids) - first, 0)


def test_greedy_is_the_most_likely_token_at_each_step(scorer, table):
  ids = [13]
  for place in range(1, 5):
    ids.append(int((table[ids[-1]] * (1 + place / 100)).argmax()))
  answers = scorer.predict([Span(ids, 1), Span([*ids[:-1], (ids[-1] + 1) % 14], 1)])
  assert [greedy for _, greedy in answers] == [True, False]
  assert answers[0][0] > answers[1][0]


def test_a_continuation_does_not_start_with_excluded_tokens(scorer, table):
  """If the most likely letter is excluded, greedy decoding starts with the next one; later
  letters are not restricted."""
  for context in 'cdeghi':
    order = [i for i in np.argsort(-table[Letters().encode(context)[0]]) if 1 <= i <= 9][:3]
    first, second, third = (chr(ord('a') + i - 1) for i in order)
    others = [chr(ord('a') + i - 1) for i in range(1, 10)] + [' ', 'z', 'ab']
    barred = [x for x in others if x not in (second, third)]
    pairs = [(context, x) for x in (first, second, third)]
    bare, filtered = scorer.score(pairs), scorer.score(pairs, [*barred, 'cd'])
    assert [score.logprob for score in bare] == [score.logprob for score in filtered]
    free = table[Letters().encode(context)[0]][[0, 13]].max() > table[Letters().encode(context)[0]][
        order[1]]
    assert [score.greedy for score in filtered] == [False, not free, False]


def test_a_token_across_the_boundary_belongs_to_the_continuation(scorer, table):
  logprob, greedy = by_hand(table, [13, 3, 12, 4], 2)
  assert scorer.score([('ca', 'bd')]) == [ContinuationScore(pytest.approx(logprob, rel=1e-5),
                                                            greedy, 2, 0)]


def test_a_long_context_loses_its_beginning(scorer, table):
  """Twenty tokens are read, and the twenty-first predicted."""
  [score] = scorer.score([('cd' * 15, 'ef')])
  logprob, greedy = by_hand(table, [*[3, 4] * 15, 5, 6][-21:], 19)
  assert score == ContinuationScore(pytest.approx(logprob, rel=1e-5), greedy, 2, 12)


def test_a_continuation_longer_than_a_row_is_scored_in_parts(scorer, table):
  ids = [13, *[3, 4] * 30]
  [score] = scorer.score([('cd' * 5, 'cd' * 25)])
  # A window of 21 tokens begins ten tokens before the predicted ones and advances by ten; each
  # token has at least half a window of context.
  parts = [(ids[1:22], 10), (ids[11:32], 11), (ids[21:42], 11), (ids[31:52], 11), (ids[41:], 11)]
  assert sum(len(some) - first for some, first in parts) == 50
  assert score.tokens == 50 and score.truncated == 1
  assert score.logprob == pytest.approx(sum(by_hand(table, *part)[0] for part in parts), rel=1e-5)


def test_answers_of_one_token_share_a_row(table):
  """And rows of one length a compiled call, however many there are."""
  seen = []
  def logits(params, batch):
    seen.append((batch['tokens'].shape, batch['positions'].shape))
    return jnp.take_along_axis(params[batch['tokens']], batch['positions'][..., None], 1)
  scorer = scoring.Scorer(logits, jnp.asarray(table), Letters(), 0, tokens=64)  # pyright: ignore
  pairs = [('cd' * (i % 7), x) for i in range(50) for x in 'efgh']
  one = scorer.score(pairs)
  assert seen == [((4, 16), (4, 1))]
  assert one == [scorer.score([pair])[0] for pair in pairs]


def test_few_rows_of_one_length_are_batched_with_longer_ones(table):
  """A batch has 64 tokens: four rows of 16 fill one batch, three do not."""
  for short, want in ((3, [(2, 24)]), (4, [(4, 16), (1, 24)])):
    seen = []
    def logits(params, batch, seen=seen):
      seen.append(batch['tokens'].shape)
      return jnp.take_along_axis(params[batch['tokens']], batch['positions'][..., None], 1)
    scorer = scoring.Scorer(logits, jnp.asarray(table), Letters(), 0, tokens=64)  # pyright: ignore
    spans = [Span([13, i + 1, 2], 2) for i in range(short)] + [Span([13, *[3] * 18, i], 19)
                                                               for i in range(1, 3)]
    together = scorer.predict(spans)
    assert seen == want
    assert together == [scorer.predict([span])[0] for span in spans]


@pytest.mark.parametrize(('ids', 'first', 'length', 'stride', 'want'), [
    (range(6), 1, 10, 5, [(0, 6, 1)]),
    (range(10), 1, 4, 2, [(0, 4, 1), (2, 6, 2), (4, 8, 2), (6, 10, 2)]),
    (range(9), 1, 4, 2, [(0, 4, 1), (2, 6, 2), (4, 8, 2), (6, 9, 2)]),
    (range(9), 1, 4, 3, [(0, 4, 1), (3, 7, 1), (6, 9, 1)]),
])
def test_strided(ids, first, length, stride, want):
  spans = scoring.strided_spans(ids, first, length, stride)
  assert [(span.ids[0], span.ids[-1] + 1, span.first) for span in spans] == want


def test_nothing_to_score(scorer):
  with pytest.raises(ConfigError, match="nothing to score: '' after 'cd'"):
    scorer.score([('cd', '')])


def test_without_a_start(table):
  """The first token of a text is then given, but where there is no context."""
  def logits(params, batch):
    return jnp.take_along_axis(params[batch['tokens']], batch['positions'][..., None], 1)
  bare = scoring.Scorer(logits, jnp.asarray(table), Letters(), 20, start=False)  # pyright: ignore
  assert [tuple(span) for span in bare.encode([('cd', 'e'), ('', 'e')])] == [([3, 4, 5], 2),
                                                                             ([13, 5], 1)]


def test_no_head():
  trained = LoadedModel('bert', tiny.config(), {}, {}, None)
  with pytest.raises(CheckpointError, match='no language model head'):
    scoring.make_scorer(trained)


def test_rows_of_several_lengths_and_padding(scorer, table):
  """Against one row at a time, by hand."""
  draw = np.random.default_rng(1)
  spans = [Span(draw.integers(1, 14, size).tolist(), int(draw.integers(1, size)))
           for size in range(2, 22)]
  want = [by_hand(table, *span)[0] for span in spans]
  np.testing.assert_allclose([logprob for logprob, _ in scorer.predict(spans)], want, rtol=1e-5)


@pytest.mark.parametrize(('tied', 'shape'), [
    (False, (1, 4, 2)), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (True, None), (False, None), (True, (2, 2, 2))))])
def test_a_decoder_against_its_full_forward(tied, shape):
  """Of a row at a time, on one device, without padding, all logits; with copies of the model, and
  with parts of it."""
  cfg = DecoderConfig(14, tiny.block(norm_at='pre'), StackConfig(2), max_length=20, tied=tied)
  heads = CausalLM().heads(cfg)
  model = ModelWithHeads(cfg.backbone(), heads)
  batch = lambda ids: {'tokens': jnp.array([ids]), 'segments': jnp.ones((1, len(ids)), jnp.int32)}
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch([1, 2]))['params']
  params, mesh, lie = tiny.random_params(shapes), None, None
  if shape:
    mesh = make_mesh(MeshConfig(*shape))
    lie = jax.device_put(params, shardings(shapes, mesh))
  scorer = scoring.make_scorer(LoadedModel('gpt2', cfg, heads, lie or params, Letters()),
                               mesh=mesh)  # pyright: ignore
  assert scorer.mesh.size == 8 and scorer.devices == (8 // shape[2] if shape
                                                      else 8)  # pyright: ignore
  query = scorer.params['backbone']['stack']['layers']['block']['attention']['query']['kernel']
  assert query.addressable_data(0).nbytes == query.nbytes // (shape[1] * shape[2] if shape else 1)
  spans = [Span([13, 3, 4, 5], 3), Span([13, 3, 4, 6], 3), Span([2, 7, 1, 9, 9, 8, 11], 2),
           Span([*range(1, 14)], 6)]
  for (ids, first), (logprob, greedy) in zip(spans, scorer.predict(spans), strict=True):
    odds = jax.nn.log_softmax(model.apply({'params': params},
                                          batch(ids))['lm'][0])[first - 1:-1]  # pyright: ignore
    targets = np.array(ids[first:])
    assert logprob == pytest.approx(float(odds[np.arange(len(targets)), targets].sum()), rel=1e-5)
    assert greedy == bool((odds.argmax(-1) == targets).all())


def test_parameters_are_arguments_of_the_compiled_function(scorer):
  """Parameters are an argument: constants of their size would be compiled in."""
  batch = {name: np.zeros((1, 16), np.int32) for name in ('tokens', 'segments', 'positions')}
  targets, barred = np.zeros((1, 16, 1), np.int32), np.zeros(2, np.int32)
  lowered = scoring.compute_target_scores.lower(scorer.logits, scorer.params, batch, targets,
                                                barred)
  assert len(jax.tree.leaves(lowered.args_info)) == 6


def test_a_glm_is_refused():
  cfg = DecoderConfig(14, tiny.block(norm_at='pre'), StackConfig(1), max_length=20, types=8)
  trained = LoadedModel('glm', cfg, CausalLM().heads(cfg), {}, Letters())  # pyright: ignore
  with pytest.raises(CheckpointError,
                     match=r'a GLM fills blanks .*: plm_jax.inference.glm_infill scores'):
    scoring.make_scorer(trained)
