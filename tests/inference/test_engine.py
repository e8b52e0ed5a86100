"""The loop and the searches on a model that is a table: the next token depends on the two before
it."""
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.inference import engine
from plm_jax.inference.search import OutputVocab
from plm_jax.loading.generation_config import GenerationConfig

V, END, PAD = 5, 4, 0
IDS = OutputVocab(V, (END,), PAD)


@dataclasses.dataclass(frozen=True)
class TableSteps:
  """params [V, V, V]: logits by the token before the last and the last one, which is all that the
  cache holds."""

  def prefill(self, params, batch, slots):
    del slots
    return params[batch['tokens'][:, -2], batch['tokens'][:, -1]], {'last': batch['tokens'][:, -1]}

  def decode_step(self, params, tokens, cache):
    return params[cache['last'], tokens], {'last': tokens}

  def reorder_cache(self, cache, rows):
    return {'last': cache['last'][rows]}


@pytest.fixture(scope='module')
def table():
  return np.random.default_rng(1).normal(size=(V, V, V)).astype(np.float32) * 1.5


def batch(*prompts):
  longest = max(map(len, prompts))
  tokens = np.array([[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts],
                    np.int32)
  segments = np.array([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts],
                      np.int32)
  return {'tokens': jnp.asarray(tokens), 'segments': jnp.asarray(segments)}


def run(table, prompts, seed=0, ids=IDS, **settings):
  """-> for each prompt its sequences as lists; and the scores, where there are any."""
  found = jax.device_get(engine.generate_tokens(
      TableSteps(), jnp.asarray(table), batch(*prompts), GenerationConfig(**settings), ids, seed))
  texts = [[some[:length].tolist() for some, length in zip(*row, strict=True)]
           for row in zip(found['tokens'], found['lengths'], strict=True)]
  return texts, found.get('scores')


def logprobs(table, text):
  logits = table[text[-2], text[-1]].astype(np.float64)
  return logits - np.log(np.exp(logits).sum())


def test_greedy(table):
  def slowly(prompt, most):
    text = list(prompt)
    while len(text) < len(prompt) + most and (len(text) == len(prompt) or text[-1] != END):
      text.append(int(np.argmax(logprobs(table, text))))
    return text[len(prompt):]
  prompts = [[a, b] for a in range(V) for b in range(V)] + [[1, 2, 3]]
  found, _ = run(table, prompts, max_new=9)
  assert found == [[slowly(prompt, 9)] for prompt in prompts]
  assert len({len(row[0]) for row in found}) > 2


def exhaustively(table, prompt, most, penalty, best):
  """All texts that end, or have the greatest length; (score, text), the best first."""
  found = []
  for size in range(1, most + 1):
    for text in itertools.product(range(V), repeat=size):
      if END not in text[:-1] and (text[-1] == END or size == most):
        whole = [*prompt, *text]
        total = sum(logprobs(table, whole[:len(prompt) + k])[text[k]] for k in range(size))
        found.append((total / size ** penalty, list(text)))
  return sorted(found, reverse=True)[:best]


@pytest.mark.parametrize('penalty',
                         [1.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.0, 2.0))])
def test_wide_beams_find_the_most_likely_text(table, penalty):
  prompts = [[1, 2], [3, 0], [0, 1, 1]]
  found, scores = run(table, prompts, max_new=3, beams=25, number=4, length_penalty=penalty,
                      early_stopping='never')
  for row, score, prompt in zip(found, scores, prompts, strict=True):
    expected = exhaustively(table, prompt, 3, penalty, 4)
    assert row == [text for _, text in expected]
    np.testing.assert_allclose(score, [s for s, _ in expected], rtol=1e-5)


@pytest.mark.slow
def test_early_stopping_ends_beams(table):
  likely_end = table.copy()
  likely_end[..., END] += 2
  lengths = {stopping: [len(text) for row in run(
      likely_end, [[1, 2], [2, 2]], max_new=12, beams=2, number=2, length_penalty=3.0,
      early_stopping=stopping)[0]
      for text in row] for stopping in ('full', 'heuristic', 'never')}
  assert max(lengths['full']) < max(lengths['never']) == 12


@pytest.mark.slow
def test_a_beam_is_never_worse_than_greedy(table):
  prompts = [[a, b] for a in range(V) for b in range(V)]
  greedy, _ = run(table, prompts, max_new=6)
  _, scores = run(table, prompts, max_new=6, beams=8, length_penalty=0.0, early_stopping='never')
  for prompt, (text,), score in zip(prompts, greedy, scores, strict=True):
    whole = [*prompt, *text]
    own = sum(logprobs(table, whole[:2 + k])[token] for k, token in enumerate(text))
    assert score[0] >= own - 1e-5


@pytest.mark.parametrize(('settings', 'change'), [
    (dict(temperature=1.0), lambda p: p), (dict(temperature=0.5), lambda p: p ** 2),
    (dict(temperature=1.0, top_k=2), lambda p: p * (p >= 0.2)),
    (dict(temperature=1.0, top_p=0.69), lambda p: p * (p > 0.15)),
    (dict(temperature=1.0, min_p=0.3), lambda p: p * (p >= 0.15))])
def test_draws_have_their_frequencies(settings, change):
  probs = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
  table, number = np.broadcast_to(np.log(probs).astype(np.float32), (V, V, V)), 20_000
  found, _ = run(table, [[1, 1]], max_new=1, number=number, ids=OutputVocab(V, (), PAD), **settings)
  expected = change(probs) / change(probs).sum()
  counts = np.bincount(np.ravel(found[0]), minlength=V)
  assert not counts[expected == 0].any()
  assert (np.abs(counts / number - expected) <= 4
          * np.sqrt(expected * (1 - expected) / number)).all()


def test_samples_do_not_depend_on_the_batch(table):
  alone, _ = run(table, [[1, 2]], seed=3, temperature=1.0, max_new=20, number=2)
  among, _ = run(table, [[1, 2], [0, 1, 2, 3], [3, 3]], seed=3, temperature=1.0, max_new=20,
                 number=2)
  other, _ = run(table, [[1, 2]], seed=4, temperature=1.0, max_new=20, number=2)
  assert among[0] == alone[0] != other[0]
  assert alone[0][0] != alone[0][1]


def test_no_ngram_comes_twice(table):
  for settings in ({}, dict(beams=3), dict(temperature=1.0)):
    prompts = [[1, 2, 1], [3, 0, 3, 3], [2, 2]]
    found, _ = run(table, prompts, max_new=12, no_repeat_ngram=2, **settings)
    for prompt, (text,) in zip(prompts, found, strict=True):
      whole = [*prompt, *text]
      new = [tuple(whole[i - 1:i + 1]) for i in range(len(prompt), len(whole))]
      said = [tuple(whole[i - 1:i + 1]) for i in range(1, len(prompt))]
      assert len(set(new)) == len(new) and not set(new) & set(said), settings


@pytest.mark.parametrize('beams', [1, 3])
def test_lengths_and_forced_tokens(table, beams):
  prompts = [[1, 2], [0, 3], [2, 2]]
  found, _ = run(table, prompts, max_new=7, min_new=5, beams=beams)
  assert all(5 < len(text) <= 7 and END not in text[:5] for text, in found)
  found, _ = run(table, prompts, max_new=4, min_new=3, forced_first=3, forced_last=END, beams=beams)
  assert all(text[0] == 3 and text[-1] == END and len(text) == 4 for text, in found)


def test_repetition_penalty(table):
  flat = np.zeros((V, V, V), np.float32)
  flat[...] = [0.5, 0.4, 0.3, 0.2, 0.1]
  assert run(flat, [[0, 1]], max_new=4, ids=OutputVocab(V, (), PAD))[0] == [[[0, 0, 0, 0]]]
  # 0.5 / 1.5 is still the maximum; 0.5 / 6 is less than the tokens that were not generated.
  assert run(flat, [[2, 1]], max_new=4, repetition_penalty=1.5,
             ids=OutputVocab(V, (), PAD))[0] == [[[0, 0, 0, 0]]]
  assert run(flat, [[2, 1]], max_new=4, repetition_penalty=6.0,
             ids=OutputVocab(V, (), PAD))[0] == [[[0, 3, 4, 0]]]


def test_token_by_token_is_all_at_once(table):
  config = GenerationConfig(12, temperature=1.0)
  whole = engine.generate_tokens(TableSteps(), jnp.asarray(table), batch([1, 2], [3, 0]), config,
                                 IDS, 5)
  state = engine.initial_state(TableSteps(), config, IDS, jnp.asarray(table), batch([1, 2], [3, 0]),
                               5)
  for until in range(2, 13):
    state = engine.advance(TableSteps(), config, IDS, jnp.asarray(table), state, until)
  for name, x in engine.searching.collect_result(config, state.search).items():
    np.testing.assert_array_equal(x, whole[name])


@pytest.mark.parametrize(('length', 'longest', 'expected'), [
    (1, 0, 16), (16, 0, 16), (17, 0, 32), (600, 1024, 1024), (600, 700, 700), (3, 10, 10)])
def test_buckets(length, longest, expected):
  assert engine.padded_length(length, longest) == expected


@pytest.mark.parametrize(('settings', 'said'), [
    (dict(max_new=0), 'max_new'), (dict(min_new=9, max_new=8), 'min_new'),
    (dict(temperature=-1.0), 'temperature'),
    (dict(temperature=1.0, top_p=0.0), 'top_p'), (dict(top_k=3), r'give .*temperature'),
    (dict(beams=0), 'beams'),
    (dict(beams=3, temperature=1.0), 'beam search does not sample'),
    (dict(beams=2, number=3), '2 beams'),
    (dict(number=2), r'give .*temperature'),
    (dict(stop=('',)), 'stop'), (dict(repetition_penalty=0.0), 'repetition_penalty')])
def test_settings_that_cannot_be(settings, said):
  with pytest.raises(ValueError, match=said):
    GenerationConfig(**settings)
