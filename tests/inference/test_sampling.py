"""Transformations of logits on literal arrays."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.inference import sampling as of

NO = -np.inf
PROBS = np.array([[0.5, 0.25, 0.125, 0.0625, 0.0625], [0.1, 0.6, 0.05, 0.05, 0.2]], np.float32)


def kept(processor, *args, logits=None):
  found = jax.jit(lambda x: processor(x, *args))(jnp.log(PROBS) if logits is None
                                                 else jnp.array(logits))
  return np.isfinite(found).astype(int).tolist()


def rows(*lists):
  return jnp.array(lists, jnp.int32)


def test_pieces():
  assert kept(of.mask_unused_ids, 3) == [[1, 1, 1, 0, 0]] * 2


@pytest.mark.parametrize(('k', 'expected'), [
    (1, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]), (3, [[1, 1, 1, 0, 0], [1, 1, 0, 0, 1]]),
    (4, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]), (9, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]])])
def test_top_k_keeps_equals(k, expected):
  assert kept(of.keep_top_k, k) == expected


@pytest.mark.parametrize(('p', 'expected'), [
    (0.4, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]),
    (0.51, [[1, 1, 0, 0, 0], [0, 1, 0, 0, 0]]),
    (0.74, [[1, 1, 0, 0, 0], [0, 1, 0, 0, 1]]),
    (0.76, [[1, 1, 1, 0, 0], [0, 1, 0, 0, 1]]),
    (0.88, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 1]]),
    (0.95, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]])])
def test_top_p(p, expected):
  assert kept(of.keep_top_p, p) == expected


def test_top_p_equals_sorting():
  draw = np.random.default_rng(0)
  logits = draw.normal(size=(64, 300)).astype(np.float32) * 4
  probs = np.exp(logits.astype(np.float64))
  probs /= probs.sum(-1, keepdims=True)
  order = np.argsort(-probs)
  before = np.cumsum(np.take_along_axis(probs, order, 1), 1) - np.take_along_axis(probs, order, 1)
  expected = np.zeros(probs.shape, int)
  np.put_along_axis(expected, order, (before < 0.9).astype(int), 1)
  assert kept(of.keep_top_p, 0.9, logits=logits) == expected.tolist()


@pytest.mark.parametrize(('p', 'expected'), [
    (0.3, [[1, 1, 0, 0, 0], [0, 1, 0, 0, 1]]), (0.1, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 1]]),
    (1.0, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]])])
def test_min_p(p, expected):
  assert kept(of.keep_min_p, p) == expected


def test_repetition_makes_less_likely_whatever_the_sign():
  logits = jnp.array([[2.0, -2.0, 0.0, 1.0], [2.0, -2.0, 0.0, 1.0]])
  tokens, seen = rows([3, 0, 1], [3, 3, 2]), jnp.array([[False, True, True], [True, True, False]])
  found = jax.jit(lambda x: of.penalize_repetition(x, tokens, seen, 2.0))(logits)
  np.testing.assert_array_equal(found, [[1.0, -4.0, 0.0, 1.0], [2.0, -2.0, 0.0, 0.5]])


@pytest.mark.parametrize(('n', 'length', 'expected'), [
    # 1 2 3 1 2 . .: no 3 after '1 2'; '3 1 2' is new; after another '3', no 1 after '2 3'.
    (3, 5, [1, 1, 1, 0, 1]), (4, 5, [1, 1, 1, 1, 1]), (2, 5, [1, 1, 1, 0, 1]),
    (1, 5, [1, 0, 0, 0, 1]),
    (2, 4, [1, 1, 0, 1, 1]), (3, 2, [1, 1, 1, 1, 1]), (3, 1, [1, 1, 1, 1, 1]),
    (9, 5, [1, 1, 1, 1, 1])])
def test_ngrams(n, length, expected):
  tokens = rows([1, 2, 3, 1, 2, 0, 0])
  seen = jnp.arange(7)[None] < length
  found = jax.jit(lambda x, end: of.block_repeated_ngrams(x, tokens, seen, end, n))(
      jnp.zeros((1, 5)), length)
  assert np.isfinite(found).astype(int).tolist() == [expected]


def test_ngrams_do_not_see_padding():
  tokens = rows([0, 0, 0, 4, 0, 0], [0, 4, 0, 4, 0, 0])
  seen = jnp.array([[False, False, False, True, False, False], [True] * 4 + [False] * 2])
  assert kept(of.block_repeated_ngrams, tokens, seen, 4, 2,
              logits=np.zeros((2, 5), np.float32)) == [
      [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]


def test_forbid_and_force():
  both = jax.jit(lambda x, when: (of.suppress_tokens(x, (1, 3), when), of.force_token(x, 2, when)))
  logits = jnp.arange(5.0)[None]
  forbidden, forced = both(logits, True)
  np.testing.assert_array_equal(forbidden, [[0, NO, 2, NO, 4]])
  np.testing.assert_array_equal(forced, [[NO, NO, 0, NO, NO]])
  for same in both(logits, False):
    np.testing.assert_array_equal(same, logits)
