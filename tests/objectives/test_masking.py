"""Adaptive masking: mask rates by what the model finds difficult, next to numpy and on several
devices."""
import dataclasses
import functools

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import sharding
from plm_jax.checkpoints.checkpoint import Checkpoints
from plm_jax.errors import ConfigError
from plm_jax.objectives import STATISTICS
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.masking import Adaptive
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.training.step import eval_step, init_state, make_sharded_init, train_step

ADAPTIVE = MaskedLM(pair=Single(), masking=Adaptive(steps=2))
LENGTH = ADAPTIVE.text_length(tiny.LENGTH)
STILL = {'dropout': 0.0, 'attention.dropout': 0.0}


def start(learner, windows):
  return jax.jit(lambda: unbox(init_state(learner, windows)))()


@functools.cache
def update(learner):
  return jax.jit(functools.partial(train_step, learner))


def test_weights_follow_the_share_of_errors():
  """Three tokens of the vocabulary: one always right, one always wrong, one not seen."""
  seen = {'labels': jnp.array([[0, 0, 0, 1, 1]]), 'difficulty': jnp.array([[0.0, 0, 0, 1, 1]]),
          'count': jnp.ones((1, 5))}
  statistics, masking = ADAPTIVE.statistics(3), Adaptive(steps=2)
  kept = masking.update_statistics(statistics, seen, jnp.int32(0), 0.4)
  assert kept['weights'].tolist() == [1, 1, 1]
  assert kept['difficulty'].tolist() == [0, 2, 0] and kept['count'].tolist() == [3, 2, 0]
  changed = masking.update_statistics(statistics, seen, jnp.int32(1), 0.4)
  # (errors + 0.5) / (count + 1), and a fifth of the weight before; the mean is 1.
  want = 0.2 + 0.8 * np.array([0.5 / 4, 2.5 / 3, 0.5])
  np.testing.assert_allclose(changed['weights'], want / want.mean(), rtol=1e-6)
  assert not changed['difficulty'].any() and not changed['count'].any()


def test_weights_follow_the_loss():
  seen = {'labels': jnp.array([[0, 0, 1, 2]]), 'difficulty': jnp.array([[0.25, 0.25, 4.0, 0.0]]),
          'count': jnp.array([[1.0, 1, 1, 0]])}
  masking = Adaptive('loss', steps=1)
  changed = masking.update_statistics(ADAPTIVE.statistics(4), seen, jnp.int32(0), 0.4)
  uniform = np.log(4)
  mean = np.array([(0.5 + uniform) / 3, (4 + uniform) / 2, uniform, uniform])
  want = 0.2 + 0.8 * (mean - mean.min()) / (mean.max() - mean.min())
  np.testing.assert_allclose(changed['weights'], want / want.mean(), rtol=1e-6)


def test_no_token_is_left_out():
  """A token that is always right keeps a mask rate of 0.5%."""
  seen = {'labels': jnp.zeros((1, 4), int), 'difficulty': jnp.zeros((1, 4)),
          'count': jnp.full((1, 4), 1e6)}
  statistics = ADAPTIVE.statistics(2)
  for step in range(20):
    statistics = Adaptive(steps=1).update_statistics(statistics, seen, jnp.int32(step), 0.2)
  assert statistics['weights'][0] / statistics['weights'].sum() > 0.5 * 0.005 / 0.2


def test_difficult_tokens_are_masked_more_often():
  """One token of 19 has the weight of 16 others together: half of the masks are its own."""
  windows = tiny.windows_with_a_rare_token(2000, 17)
  weights = np.ones(tiny.VOCAB.size, np.float32)
  weights[30] = 16
  objective = dataclasses.replace(ADAPTIVE, mask_rate=0.05)
  mask = jax.jit(lambda windows: objective.corrupt(jax.random.key(0), windows, tiny.VOCAB))
  adapted = mask({**windows, STATISTICS: {'weights': weights}})
  assert (adapted['weights'].sum(1) == 1).all()
  assert (adapted['labels'][:, 0] == 30).mean() == pytest.approx(0.5, abs=0.03)
  # Evaluation masks all tokens alike.
  assert (mask(windows)['labels'][:, 0] == 30).mean() == pytest.approx(1 / 17, abs=0.03)


@pytest.mark.parametrize('kind', ['accuracy', 'loss'])
def test_statistics_of_training_steps(kind):
  """What a step adds is what the model did with the masked tokens, whatever the number of
  micro-batches."""
  objective = dataclasses.replace(ADAPTIVE, masking=Adaptive(kind, steps=2))
  learner, windows = tiny.learner(objective, **STILL), tiny.windows(16, LENGTH)
  state = start(learner, windows)
  assert (state.statistics['weights'] == 1).all() and state.carry is None
  params = jax.device_get(state.params)
  batch = jax.device_get(jax.jit(lambda windows: objective.corrupt(learner.key('corruption'),
                                                                   windows, tiny.VOCAB))(windows))
  logits = np.asarray(jax.jit(learner.model.apply)({'params': params}, batch)['mlm'], np.float64)
  after, metrics = update(learner)(state, windows)
  assert STATISTICS not in metrics

  counted = batch['weights'] > 0
  if kind == 'loss':
    counted &= np.take_along_axis(batch['tokens'], batch['positions'], 1) == tiny.VOCAB.mask
  count, difficulty = np.zeros((2, tiny.VOCAB.size))
  for row, place in zip(*np.nonzero(counted), strict=True):
    label, one = batch['labels'][row, place], logits[row, place]
    count[label] += 1
    if kind == 'accuracy':
      difficulty[label] += one[label] < one.max()
    else:
      difficulty[label] += np.log(np.exp(one - one.max()).sum()) + one.max() - one[label]
  assert 20 < count.sum() < 80
  np.testing.assert_array_equal(after.statistics['count'], count)
  np.testing.assert_allclose(after.statistics['difficulty'], difficulty, rtol=1e-4, atol=1e-5)

  split = tiny.learner(objective, accumulate=4, **STILL)
  same, _ = update(split)(start(learner, windows), windows)
  tiny.assert_close(same.statistics, after.statistics)


def test_statistics_are_those_of_the_trained_parameters_next_to_an_ema():
  learner, windows = tiny.learner(ADAPTIVE), tiny.windows(16, LENGTH)
  averaged = dataclasses.replace(learner, ema=0.9)
  plain, state = start(learner, windows), start(averaged, windows)
  for _ in range(3):
    plain, _ = update(learner)(plain, windows)
    state, _ = update(averaged)(state, windows)
  assert plain.trained is None
  tiny.assert_close(state.statistics, plain.statistics)
  tiny.assert_close(state.trained, plain.params)
  assert any((x != y).any() for x, y in zip(
      jax.tree.leaves(state.params), jax.tree.leaves(state.trained), strict=True))


def test_mask_rates_change_after_so_many_steps_and_survive_a_checkpoint(tmp_path):
  learner, windows = tiny.learner(ADAPTIVE), tiny.windows(16, LENGTH)
  step, state = update(learner), start(learner, windows)
  state, _ = step(state, windows)
  assert (state.statistics['weights'] == 1).all() and state.statistics['count'].any()
  state, _ = step(state, windows)
  weights = state.statistics['weights']
  assert np.ptp(weights) > 0.1 and float(weights.mean()) == pytest.approx(1, abs=1e-5)
  assert not state.statistics['count'].any()
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(2, state, {})
  checkpoints.wait()
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  tiny.assert_same(checkpoints.restore(2, shapes, jax.tree.map(lambda x: device, shapes)), state)
  checkpoints.close()
  # A step that is skipped leaves them as they are.
  broken = state.replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))
  after, metrics = step(broken, windows)
  assert metrics['skipped'] == 1
  tiny.assert_same(after.statistics, state.statistics)
  # Evaluation knows nothing of them.
  assert 'mlm' in eval_step(learner, state.params, windows)[0]


@pytest.mark.release
@pytest.mark.slow
def test_the_same_on_eight_devices():
  learner, windows = tiny.learner(ADAPTIVE), tiny.windows(16, LENGTH)
  results = []
  for mesh in (sharding.MeshConfig(1), sharding.MeshConfig(8)):
    mesh = sharding.make_mesh(mesh)
    with jax.set_mesh(mesh):
      make, _, layout = make_sharded_init(learner, windows, mesh)
      step = jax.jit(functools.partial(train_step, learner), out_shardings=(layout, None))
      state = make()
      for _ in range(3):
        state, _ = step(state, windows)
      assert state.statistics['weights'].sharding.is_fully_replicated
      results.append(jax.device_get(state.statistics))
  tiny.assert_close(*results)


def test_options_that_exclude_it():
  with pytest.raises(ConfigError, match='adaptive is for masked language modeling alone'):
    ReplacedTokenDetection(mlm=ADAPTIVE)
  with pytest.raises(ConfigError, match='adaptive is for masked language modeling alone'):
    Distillation(task=ADAPTIVE)
