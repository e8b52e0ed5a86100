import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.objectives import ForwardPass
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.regularizers import FGM, FreeLB, Plain, RDrop, ScaleInvariant, symmetric_kl
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.training import step
from plm_jax.training.step import Learner

LENGTH = 8
EVERY = [RDrop(2.0), FGM(0.5), FreeLB(2, 0.3, 1.0, 0.2), ScaleInvariant(step=0.01)]


Task = functools.partial(SequenceTask, labels=('a', 'b', 'c'))


@functools.cache
def setting(rate=0.1):
  """-> (model, parameters, batch of four rows)."""
  model = TaskObjective(Task()).build(tiny.config(layers=1, dropout=rate,
                                                  attention=dict(dropout=rate)), False)
  draw = np.random.default_rng(0)
  segments = (np.arange(LENGTH) < np.array([[8], [5], [8], [7]])).astype(np.int32)
  batch = {'tokens': draw.integers(5, 90, (4, LENGTH)).astype(np.int32) * segments,
           'segments': segments,
           'extract': np.zeros((4, 1), np.int32),
           'label': np.array([[0], [2], [1], [2]], np.int32),
           'weight': np.array([[1], [1], [0], [1]], np.float32)}
  params = tiny.random_params(jax.eval_shape(lambda: model.init(jax.random.key(0),
                                                                batch)['params']))
  return model, params, jax.tree.map(jnp.asarray, batch)


def passes(rate=0.1, params=None):
  model, own, _ = setting(rate)
  return ForwardPass(model, own if params is None else params, jnp.arange(4), jax.random.key(7))


@functools.cache
def losses(regularizer, rate=0.1):
  task, (_, params, batch) = Task(regularizer=regularizer), setting(rate)
  return jax.device_get(
      jax.jit(lambda params: TaskObjective(task).losses(passes(rate, params), batch))(params))


def test_divergence_by_hand():
  p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
  want = ((p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()) / 2
  np.testing.assert_allclose(symmetric_kl(jnp.log(p), jnp.log(q) + 3), want, rtol=1e-5)
  assert symmetric_kl(jnp.array([2.0]), jnp.array([5.0])) == 9


@pytest.mark.slow
def test_rdrop_by_hand():
  _, _, batch = setting()
  one, two = (np.asarray(jax.nn.log_softmax(passes()(batch, key)['label'][:, 0]), np.float64)
              for key in (
      None, jax.random.fold_in(jax.random.key(7), 1)))
  weight, label = batch['weight'][:, 0], batch['label'][:, 0]
  entropy = sum(-(x[np.arange(4), label] * weight).sum() for x in (one, two)) / 2
  apart = ((np.exp(one) * (one - two)).sum(1) + (np.exp(two) * (two - one)).sum(1)) / 2 * weight
  got = losses(RDrop(2.0))
  np.testing.assert_allclose(got['label'], (entropy + 2 * apart.sum(), 3), rtol=1e-4)
  np.testing.assert_allclose(got['rdrop'], (apart.sum(), 3), rtol=1e-3)
  assert apart.sum() > 0.01


@pytest.mark.parametrize('regularizer', [RDrop(2.0), RDrop(0.0), FreeLB(1)])
def test_nothing_to_add_is_the_plain_loss(regularizer):
  """R-Drop without dropout, and a walk of one step from where the vectors are."""
  got, want = losses(regularizer, 0.0), losses(Plain(), 0.0)
  for name, pair in want.items():
    np.testing.assert_allclose(got[name], pair, rtol=1e-5)


@pytest.mark.slow
def test_fgm_moves_vectors_so_far_and_uphill():
  task, (_, _, batch) = Task(), setting(0.0)
  noise = FGM(0.5).make_noise(TaskObjective(task), passes(0.0), batch)
  lengths = np.sqrt(np.square(noise).sum((1, 2)))
  np.testing.assert_allclose(lengths, [0.5, 0.5, 0, 0.5], rtol=1e-5)  # the third row weighs nothing
  assert not np.asarray(noise)[batch['segments'] == 0].any()
  plain, got = losses(Plain(), 0.0), losses(FGM(0.5), 0.0)
  assert got['fgm'][0] > plain['label'][0] + 0.05
  np.testing.assert_allclose(got['label'], (plain['label'][0] + got['fgm'][0], 3), rtol=1e-5)
  assert got['label_accuracy'] == plain['label_accuracy']


@pytest.mark.slow
def test_a_longer_walk_climbs():
  one, three = losses(FreeLB(1), 0.0)['label'][0], losses(FreeLB(3, 0.3), 0.0)['label'][0]
  assert three > one + 0.05
  short = losses(FreeLB(3, 0.3, largest=1e-4), 0.0)['label'][0]
  assert one < short < one + 0.01


def test_the_walk_begins_with_noise_of_a_size():
  _, _, batch = setting(0.0)
  noise = FreeLB(init=0.6).initial_noise(passes(0.0), batch, (4, LENGTH, 32))
  lengths = np.sqrt(np.square(noise).sum((1, 2)))
  # uniform numbers have a third of the square
  np.testing.assert_allclose(lengths, 0.6 / 3 ** 0.5, rtol=0.1)
  assert not np.asarray(noise)[batch['segments'] == 0].any()
  cut = FreeLB(init=0.6, largest=0.1).initial_noise(passes(0.0), batch, (4, LENGTH, 32))
  np.testing.assert_allclose(np.sqrt(np.square(cut).sum((1, 2))), 0.1, rtol=1e-5)


def test_sift_adds_the_change():
  plain, got = losses(Plain(), 0.0), losses(ScaleInvariant(step=0.01), 0.0)
  np.testing.assert_allclose(got['label'][0], plain['label'][0] + 5 * got['sift'][0], rtol=2e-2)
  assert got['sift'][0] > 0


@pytest.mark.slow
@pytest.mark.parametrize('regularizer',
                         [EVERY[0], *(pytest.param(one, marks=pytest.mark.release)
                                      for one in EVERY[1:])])
def test_micro_steps_change_nothing(regularizer):
  model, params, batch = setting()
  task = Task(regularizer=regularizer)
  def gradient(accumulate):
    learner = Learner(model, TaskObjective(task), make_optimizer(AdamW(), 10), None, 0, accumulate)
    def compute(params):
      return step.compute_gradient(learner, params, batch, jax.random.key(7))
    return jax.device_get(jax.jit(compute)(params))
  (want, one), (got, two) = gradient(1), gradient(2)
  tiny.assert_close(got, want, 1e-3)
  for name, pair in one.items():
    np.testing.assert_allclose(two[name], pair, rtol=1e-3)
