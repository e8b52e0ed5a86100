import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.models import xlnet
from plm_jax.objectives.plm import PermutationLM, factorization_ranks

OBJECTIVE = PermutationLM()


@functools.cache
def compiled(objective):
  return jax.jit(lambda key, w: objective.corrupt(key, w, tiny.VOCAB))


def corrupt(windows, objective=OBJECTIVE, key=0):
  return jax.device_get(compiled(objective)(jax.random.key(key), windows))


@pytest.fixture(scope='module')
def large():
  """1280 rows of 512 tokens, each of another document, most of them full."""
  windows = tiny.windows(64, OBJECTIVE.text_length(512), shortest=400)
  windows = {name: np.tile(x, (20,) + (1,) * (x.ndim - 1)) for name, x in windows.items()}
  windows['index'] = np.arange(1280, dtype=np.int32)
  return windows, corrupt(windows)


@pytest.mark.slow
def test_sizes_are_those_of_the_released_code():
  assert [(OBJECTIVE.text_length(length), OBJECTIVE.memory_length(length),
           OBJECTIVE.max_predictions(length))
          for length in (512, 128, 32)] == [(893, 384, 85), (221, 96, 21), (53, 24, 5)]
  # Every length is found again from its window.
  for length in (8, 9, 33, 64, 511):
    shapes = jax.eval_shape(lambda w: OBJECTIVE.corrupt(jax.random.key(0), w, tiny.VOCAB),
                            tiny.windows(2, OBJECTIVE.text_length(length)))
    assert shapes['tokens'].shape == (2, length)
    assert shapes['memory_tokens'].shape == (2, OBJECTIVE.memory_length(length))


@pytest.mark.slow
def test_literal():
  objective = PermutationLM(memory=0.5, group=4)
  at = np.arange(1, 22)
  windows = dict(
      tokens=np.stack([10 + at, 40 + at, 70 + at]) * np.array([[1], [1], [0]]),
      segments=np.array([[1] * 21, [1] * 21, [0] * 21]),
      sentences=np.array([[1] * 14 + [2] * 5 + [3] * 2] * 2 + [[0] * 21]),
      words=np.stack([at, (at + 1) // 2, 0 * at]), document=np.arange(3), corpus=np.zeros(3, int),
      index=np.arange(3),
      epoch=np.zeros(3, int))
  batch = corrupt(windows, objective, key=9)
  assert {name: x[:2].tolist() for name, x in batch.items()} == LITERAL
  assert not batch['weights'][2].any() and not batch['segments'][2].any() and not batch[
      'memory_segments'][2].any()


# Memory of 8, a first part of 8, A of 3 up to the end of a sentence, B of 2: in the first row it
# goes on, in the second, which is read backwards, it is of the first row's document. Of 8 and of 5
# tokens 2 and 1 are predicted.
LITERAL = dict(
    backward=[False, True],
    memory_tokens=[[11, 12, 13, 14, 15, 16, 17, 18], [61, 60, 59, 58, 57, 56, 55, 54]],
    memory_segments=[[1] * 8] * 2,
    tokens=[[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 3, 30, 31, 3, 2],
            [53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 3, 24, 23, 3, 2]],
    segments=[[1] * 16] * 2,
    types=[[0] * 12 + [1] * 3 + [2]] * 2,
    ranks=[[5, 0, 0, 0, 0, 0, 0, 11, 33, 32, 32, 43, 32, 32, 47, 37],
           [0, 0, 0, 0, 15, 0, 9, 0, 32, 32, 32, 33, 32, 34, 47, 42]],
    positions=[[0, 7, 8, 0], [4, 6, 13, 0]], labels=[[19, 26, 27, 19], [49, 47, 23, 53]],
    weights=[[1, 1, 1, 0]] * 2)


def test_order_within_windows():
  late = jnp.array([1, 0, 1, 1, 0, 1, 1], bool)
  assert factorization_ranks(late, jnp.array([2, 0, 1]),
                             jnp.arange(7)).tolist() == [3, 0, 2, 6, 0, 5, 9]


def filled(windows, batch):
  """Full rows of documents that fill one."""
  return ((windows['segments'] > 0).sum(1) >= 509) & (batch['segments'] > 0).all(1)


@pytest.mark.slow
def test_one_of_six_tokens_is_predicted(large):
  windows, batch = large
  text = (batch['segments'] > 0) & (batch['tokens']
                                    != tiny.VOCAB.cls) & (batch['tokens'] != tiny.VOCAB.sep)
  number = batch['weights'].sum(1)
  assert number.sum() > 100_000
  full = filled(windows, batch)
  assert full.mean() > 0.5 and set(number[full]) == {85} and set(text.sum(1)[full]) == {509}
  assert abs(number.sum() / text.sum() - 1 / 6) < 0.002
  np.testing.assert_array_equal(
      batch['labels'], np.take_along_axis(batch['tokens'], batch['positions'], 1))
  assert batch['labels'][batch['weights'] > 0].min() >= 5
  # 43 of the first 256 tokens, 42 of the rest.
  assert {(p < 256).sum() for p in batch['positions'][full]} == {43}


def test_spans(large):
  """Runs of predicted tokens, as the released sampler gives them (see the case of the
  permutation)."""
  _, batch = large
  chosen = np.zeros((1280, 514), int)
  row, column = np.nonzero(batch['weights'])
  chosen[row, batch['positions'][row, column] + 1] = 1
  edges = np.diff(chosen, axis=1)
  sizes = np.nonzero(edges < 0)[1] - np.nonzero(edges > 0)[1]
  share = np.bincount(sizes, minlength=13)[1:] / len(sizes)
  np.testing.assert_allclose(share[:6], [0.56, 0.18, 0.115, 0.082, 0.061, 0.0045], atol=0.03)


def test_who_comes_first(large):
  """Tokens that are not predicted; then the others in random order; the second part after the
  first."""
  windows, batch = large
  ranks, full = batch['ranks'], filled(windows, batch)
  special = (batch['tokens'] == tiny.VOCAB.cls) | (batch['tokens'] == tiny.VOCAB.sep)
  late = special.copy()
  row, column = np.nonzero(batch['weights'])
  late[row, batch['positions'][row, column]] = True
  first, second = ranks[full][:, :256], ranks[full][:, 256:]
  assert (first[~late[full][:, :256]] == 0).all() and (second[~late[full][:, 256:]] == 1024).all()
  assert (first[late[full][:, :256]] > 0).all() and first.max() <= 256 and second[
      late[full][:, 256:]].min() > 1024
  for part, marks in ((first, late[full][:, :256]), (second, late[full][:, 256:])):
    assert all(len(set(ranks[mark])) == mark.sum() for ranks, mark in zip(part, marks, strict=True))
  # As often before as after each other.
  pairs = [np.diff(ranks[mark][:2])[0] > 0
           for ranks, mark in zip(first, late[full][:, :256], strict=True)]
  assert abs(np.mean(pairs) - 0.5) < 0.06


def test_rows_and_their_memory_are_text_in_reading_order(large):
  windows, batch = large
  assert abs(batch['backward'].mean() - 0.5) < 0.06
  assert {tuple(row[row > 0][-2:]) == (tiny.VOCAB.sep, tiny.VOCAB.cls)
          for row in batch['tokens']} == {True}
  random = 0
  for row in range(200):
    size = (windows['segments'][row] > 0).sum()
    text = windows['tokens'][row, :size]
    text = text[::-1] if batch['backward'][row] else text
    tokens, types = (batch[name][row][batch['segments'][row] > 0] for name in ('tokens', 'types'))
    memory = batch['memory_tokens'][row][batch['memory_segments'][row] > 0]
    a, b = tokens[types == 0][:-1], tokens[types == 1][:-1]
    np.testing.assert_array_equal(np.concatenate([memory, a]), text[:len(memory) + len(a)])
    assert len(memory) == max(0, size - 509) and types[-1] == 2
    assert batch['memory_segments'][row, 384 - len(memory):].all()
    following = text[len(memory) + len(a):]
    own = len(following) == len(b) and (following == b).all()
    random += not own
    # A ends where a sentence does.
    sentences = windows['sentences'][row, :size]
    sentences = sentences[::-1] if batch['backward'][row] else sentences
    assert sentences[len(memory) + len(a) - 1] != sentences[len(memory) + len(a)]
  assert 70 < random < 130


@pytest.mark.slow
def test_every_token_is_predicted_in_some_epoch():
  windows = tiny.windows(1, OBJECTIVE.text_length(32), shortest=OBJECTIVE.text_length(32))
  windows = {name: np.repeat(x, 400, 0)
             for name, x in windows.items()} | dict(epoch=np.arange(400, dtype=np.int32))
  windows['tokens'] = np.broadcast_to(np.arange(5, 58, dtype=np.int32), (400, 53))
  batch = corrupt(windows)
  assert set(batch['labels'][batch['weights'] > 0]) == set(range(5, 58))


@pytest.mark.slow
def test_corruption_follows_the_example():
  windows = tiny.windows(8, OBJECTIVE.text_length(32), shortest=40)
  alone = PermutationLM(random=0.0)
  want = corrupt(windows, alone)
  order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
  tiny.assert_same(corrupt(tiny.take(windows, order), alone), tiny.take(want, order))
  assert (corrupt(windows | dict(epoch=windows['epoch'] + 1), alone)['ranks']
          != want['ranks']).any()


def test_what_memory_costs():
  """To make it about a seventh of a step; to read it as much again, as with any memory."""
  model = xlnet.large()
  step, without = (objective.step_flops(model, 512)
                   for objective in (OBJECTIVE, PermutationLM(memory=0.0)))
  past = model.forward_flops(384, 0) * 23 / 24
  assert 0.13 < past / step < 0.16 and 1.35 < step / without < 1.4


def test_settings_that_cannot_be():
  with pytest.raises(ValueError, match='sum to 1'):
    PermutationLM(lengths=(0.5, 0.2))
  with pytest.raises(ValueError, match=r'reuse is a number between 0 and 1, got 1\.0'):
    PermutationLM(reuse=1.0)
