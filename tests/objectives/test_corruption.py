import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.objectives import corruption
from plm_jax.tokenizers.contract import Vocab


def many(function, number, *args):
  """`number` independent draws of function(key, *args)."""
  return np.asarray(jax.jit(jax.vmap(lambda key: function(key, *args)))(
      jax.random.split(jax.random.key(0), number)))


def identity(corpus=0, index=0, epoch=0):
  return dict(corpus=np.array([corpus]), index=np.array([index]), epoch=np.array([epoch]))


def key_data(key=0, duplicates=0, **parts):
  return tuple(
    jax.random.key_data(corruption.example_keys(jax.random.key(key), identity(**parts),
                                                duplicates))[0].tolist()
  )


def test_an_example_s_key_depends_on_corpus_index_and_epoch_and_on_nothing_else():
  parts = [dict(), dict(corpus=1), dict(index=1), dict(epoch=1), dict(key=1),
           dict(index=1, epoch=1),
           dict(corpus=1, index=1), dict(corpus=1, epoch=1)]
  assert len({key_data(**part) for part in parts}) == len(parts)
  alone = key_data(corpus=2, index=70_000, epoch=5)
  many = {'corpus': np.array([0, 2, 1]), 'index': np.array([3, 70_000, 9]),
          'epoch': np.array([5, 5, 0]),
          'tokens': np.ones((3, 4))}
  assert tuple(jax.random.key_data(corruption.example_keys(jax.random.key(0), many))[1].tolist(
      )) == alone


def test_duplicates_repeat_with_their_period():
  static = [key_data(epoch=epoch, duplicates=3) for epoch in range(7)]
  assert static[:3] == static[3:6] and static[0] == static[6] and len(set(static)) == 3
  assert static[0] == key_data(epoch=0)
  assert len({key_data(epoch=epoch) for epoch in range(7)}) == 7


def test_choose_tokens_literal():
  candidate = jnp.array([0, 1, 1, 1, 1, 0, 1, 1], bool)
  assert corruption.choose_tokens(jax.random.key(0), candidate,
                                  3).astype(int).tolist() == [0, 0, 1, 1, 0, 0, 1, 0]


@pytest.mark.parametrize('number', [0, 1, 4, 9])
def test_choose_tokens_is_uniform_and_exact(number):
  candidate = jnp.array([0, 1, 1, 1, 0, 1, 1, 1, 0], bool)
  chosen = many(corruption.choose_tokens, 4000, candidate, number)
  assert (chosen.sum(1) == min(number, 6)).all()
  assert not chosen[:, ~np.asarray(candidate)].any()
  np.testing.assert_allclose(chosen[:, np.asarray(candidate)].mean(0), min(number, 6) / 6,
                             atol=0.04)


UNITS = jnp.array([0, 1, 1, 1, 2, 3, 3, 0, 4, 5, 5, 5, 5, 6, 0, 0])


@pytest.mark.slow
def test_number_spans_literal():
  spans = corruption.number_spans(jax.random.key(0), UNITS, 4)
  assert (spans > 0).astype(int).tolist() == [
      0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize('lengths', [(1.0,), (0.5, 0.3, 0.2), (0.0, 0.0, 1.0)])
def test_spans_are_whole_units_within_the_budget(lengths):
  units = np.asarray(UNITS)
  draws = jax.jit(jax.vmap(lambda key, budget: corruption.number_spans(key, UNITS, budget, lengths),
                           (0, None)))
  for budget in 1, 3, 6, 100:
    chosen = np.asarray(draws(jax.random.split(jax.random.key(budget), 300), budget)) > 0
    assert not chosen[:, units == 0].any()
    for unit in range(1, 7):
      part = chosen[:, units == unit]
      assert (part.all(1) | ~part.any(1)).all()
    assert (chosen.sum(1) <= budget).all()
    assert chosen.any(1).all()  # a word of one token always fits
    if lengths == (1.0,) and budget == 100:
      assert (chosen.sum(1) == 12).all()


def test_words_are_chosen_alike_whatever_their_number_or_the_gaps_between_numbers():
  gaps = jnp.array([0, 11, 11, 11, 12, 40, 40, 0, 41, 50, 50, 50, 50, 90, 0, 0])
  np.testing.assert_array_equal(many(corruption.number_spans, 50, gaps, 5),
                                many(corruption.number_spans, 50, UNITS, 5))


@pytest.mark.slow
def test_span_lengths_have_their_shares():
  """A budget of three units is spent as 3, as 2 + 1 or as 1 + 1 + 1, with a last span cut to what
  is left."""
  p = np.array([6, 3, 2]) / 11
  chosen = many(corruption.number_spans, 3000, jnp.arange(1, 129), 3, tuple(p.tolist())) > 0
  assert (chosen.sum(1) == 3).all()
  runs = chosen[:, 0] + (chosen[:, 1:] & ~chosen[:, :-1]).sum(1)
  want = [p[2], p[1] + p[0] * (p[1] + p[2]), p[0] ** 2]
  # Spans that happen to lie side by side count as one: about 1 in 60.
  np.testing.assert_allclose(np.bincount(runs, minlength=4)[1:] / 3000, want, atol=0.035)


def test_no_unit_at_all():
  assert not many(corruption.number_spans, 3, jnp.zeros(8, int), 3, (0.5, 0.5)).any()


def test_positions_of():
  chosen = jnp.array([0, 1, 0, 0, 1, 1], bool)
  positions, weights = corruption.select_positions(chosen, 5)
  assert positions.tolist() == [1, 4, 5, 0, 0] and weights.tolist() == [1, 1, 1, 0, 0]
  positions, weights = corruption.select_positions(chosen, 2)
  assert positions.tolist() == [1, 4] and weights.tolist() == [1, 1]
  assert corruption.select_positions(~chosen & False, 2)[1].tolist() == [0, 0]


def test_replace_tokens_touches_only_positions_of_weight():
  tokens, vocab = jnp.arange(10, 18), Vocab(size=20, mask=4)
  positions, weights = jnp.array([2, 5, 0]), jnp.array([1.0, 1.0, 0.0])
  run = lambda *shares: corruption.replace_tokens(
    jax.random.key(0), tokens, (positions, weights), vocab, shares
  ).tolist()
  assert run(1.0, 0.0) == [10, 11, 4, 13, 14, 4, 16, 17]
  assert run(0.0, 0.0) == tokens.tolist()
  assert [a for n, a in enumerate(run(0.0, 1.0)) if n not in (2, 5)] == [10, 11, 13, 14, 16, 17]


def test_shares_of_mask_random_and_kept():
  tokens, vocab = jnp.full(100, 50), Vocab(size=60, mask=4)
  new = many(lambda key: corruption.replace_tokens(
      key, tokens, (jnp.arange(100), jnp.ones(100)), vocab, (0.8, 0.1)), 1500)
  share = np.bincount(new.ravel(), minlength=60) / new.size
  assert new.size == 150_000
  sigma = lambda p: 4 * (p * (1 - p) / new.size) ** 0.5
  assert abs(share[4] - (0.8 + 0.1 / 60)) < sigma(0.8)
  assert abs(share[50] - (0.1 + 0.1 / 60)) < sigma(0.1)
  # Every id alike, 0 and the last one included.
  others = np.delete(share, [4, 50])
  assert np.abs(others - 0.1 / 60).max() < 1.2 * sigma(0.1 / 60) and others.size == 58


def released_windows(units, number, window, shares, sizes):
  """The released NGramMaskGenerator.mask_tokens, told in our own words, with given randomness."""
  words = [np.flatnonzero(units == unit) for unit in np.unique(units[units > 0])]
  chosen, offset, drawn = np.zeros(len(words), bool), 0, iter(zip(shares, sizes, strict=True))
  while offset < len(words):
    share, n = next(drawn)
    room = min(n * window, len(words) - offset)
    start = offset + int(share * room)
    chosen[start:start + n] = True
    offset = max(offset + room, min(start + n, len(words)))
  found = np.zeros(len(units), bool)
  for word in np.array(words, object)[chosen] if len(set(map(len, words))) > 1 else np.array(words)[
      chosen]:
    if found.sum() + len(word) > number:
      break
    found[word.astype(int)] = True
  return found


@pytest.mark.parametrize('lengths', [(1.0,), (6 / 11, 3 / 11, 2 / 11), (0.0, 0.0, 1.0)])
def test_windows_are_chosen_from_as_released(lengths):
  draw = np.random.default_rng(0)
  units = np.repeat(np.arange(1, 101), draw.integers(1, 4, 100))
  units = np.concatenate([[0], units, [0, 0]])
  @jax.jit
  @jax.vmap
  def all_of_it(key):
    keys = jax.random.split(key)
    steps = -(-len(units) // 6)
    return (corruption.choose_windows(key, jnp.array(units), 30, 6, lengths),
            jax.random.uniform(keys[1], (steps,)),
            corruption.draw_lengths(keys[0], lengths, (steps,)))
  for chosen, shares, sizes in zip(
      *jax.device_get(all_of_it(jax.random.split(jax.random.key(1), 100))), strict=True):
    np.testing.assert_array_equal(chosen, released_windows(units, 30, 6, shares, sizes))
    assert 20 < chosen.sum() <= 30


def test_one_token_of_six_until_the_share_is_reached():
  """DeBERTa v3's generator: 77 of the 512 tokens of a row (max_gram 1), so that none is chosen
  behind window 77."""
  chosen = many(corruption.choose_windows, 2000, jnp.arange(1, 511), 77, 6)
  assert (chosen[:, :462].reshape(2000, 77, 6).sum(2) == 1).all() and not chosen[:, 462:].any()
  assert np.abs(chosen[:, :462].reshape(-1, 6).mean(0) - 1
                / 6).max() < 4 * (5 / 36 / 154_000) ** 0.5
  assert not many(corruption.choose_windows, 3, jnp.zeros(8, int), 3, 6).any()


def test_draws_with_replacement_count_as_often_as_they_come():
  """ELECTRA: 19 draws of 126 tokens find 17.7 of them on average."""
  candidate = jnp.pad(jnp.ones(126, bool), 1)
  times = many(corruption.choose_repeatedly, 3000, candidate, 19, 20)
  assert (times.sum(1) == 19).all() and not times[:, [0, -1]].any() and times.max() >= 3
  assert abs((times > 0).sum(1).mean() - 126 * (1 - (125 / 126) ** 19)) < 0.1
  assert not many(corruption.choose_repeatedly, 3, candidate & False, 19, 20).any()
