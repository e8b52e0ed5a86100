import dataclasses
import functools

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax.optim.optimizers import AdamW
from plm_jax.training import step
from plm_jax.training.step import TrainState, init_state, train_step


@functools.cache
def compiled(learner):
  return jax.jit(lambda params, batch: step.compute_gradient(learner, params, batch,
                                                             learner.key('dropout')))


def gradient(learner, params, batch):
  """-> (gradient, (sum, weight) pairs)."""
  return jax.device_get(compiled(learner)(params, batch))


def close_losses(got, want):
  for name, pair in want.items():
    np.testing.assert_allclose(got[name], pair, rtol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('accumulate', [2, 4])
def test_accumulation_changes_nothing_dropout_included(learner, params, batch, accumulate):
  want, want_losses = gradient(learner, params, batch)
  grads, losses = gradient(tiny.learner(accumulate=accumulate), params, batch)
  tiny.assert_close(grads, want)
  close_losses(losses, want_losses)


STILL = {'dropout': 0.0, 'attention.dropout': 0.0}


@pytest.mark.slow
def test_rows_may_be_shuffled_across_micro_steps(params, batch):
  """Rows weigh as they weigh in the whole batch: a mean of means of micro-steps would differ."""
  want, want_losses = gradient(tiny.learner(**STILL), params, batch)
  # Micro-steps take every fourth row: those with the most to predict come together.
  order = np.argsort(batch['weights'].sum(1), kind='stable').reshape(4, 4).T.ravel()
  parts = batch['weights'].sum(1)[order].reshape(4, 4).sum(0)
  assert parts.max() > 3 * parts.min()
  for accumulate in (1, 4):
    grads, losses = gradient(tiny.learner(accumulate=accumulate, **STILL), params,
                             tiny.take(batch, order))
    tiny.assert_close(grads, want)
    close_losses(losses, want_losses)


@pytest.mark.slow
def test_dropout_follows_the_number_of_a_row(learner, params, batch):
  order = np.array([3, 1, 15, 0, 8, 2, 9, 14, 4, 13, 12, 7, 6, 10, 11, 5])
  run = jax.jit(lambda *inputs, key: learner.model.apply({'params': params}, *inputs,
                                                         rngs={'dropout': key})['mlm'])
  whole = np.asarray(run(batch, np.arange(16), key=learner.key('dropout')))
  np.testing.assert_allclose(run(tiny.take(batch, order), order, key=learner.key('dropout')),
                             whole[order], atol=1e-5)
  assert np.abs(run(batch, np.arange(16), key=jax.random.key(9)) - whole).max() > 0.1


def test_loss_and_gradient_against_float64_differences(params, batch):
  still = tiny.learner(**STILL)
  grads, losses = gradient(still, params, batch)
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(params))
  loss = sum(total / weight for total, weight in (losses['mlm'], losses['nsp']))
  np.testing.assert_allclose(loss, numpy_bert.loss(exact, batch), rtol=1e-5)
  largest = max(np.abs(g).max() for g in jax.tree.leaves(grads))
  for (path, leaf), g in zip(jax.tree_util.tree_flatten_with_path(exact)[0], jax.tree.leaves(grads),
                             strict=True):
    place = np.unravel_index(np.abs(g).argmax(), g.shape)
    value, h, around = leaf[place], 1e-5, []
    for moved in (value + h, value - h):
      leaf[place] = moved
      around.append(numpy_bert.loss(exact, batch))
    leaf[place] = value
    slope = (around[0] - around[1]) / (2 * h)
    np.testing.assert_allclose(g[place], slope, rtol=1e-3, atol=1e-6 * largest, err_msg=path)


@functools.cache
def update(learner):
  return jax.jit(functools.partial(train_step, learner), donate_argnums=0)


def fresh(learner, params):
  # Copies, for the state is given away.
  params = jax.tree.map(np.array, params)
  return TrainState(np.int32(0), params, jax.device_get(learner.optimizer.init(params)),
                    np.int32(0), np.int32(0))


@pytest.mark.slow
def test_training_learns_and_counts(learner, params, windows):
  state, losses = fresh(learner, params), []
  for _ in range(12):
    state, numbers = update(learner)(state, windows)
    losses.append(float(numbers['loss']))
  assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.5
  assert (int(state.step), int(state.skipped), int(state.streak)) == (12, 0, 0)


def test_metrics_match_the_loss_of_the_gradient(learner, params, windows):
  _, numbers = update(learner)(fresh(learner, params), windows)
  assert set(numbers) == {'mlm', 'mlm_accuracy', 'nsp', 'nsp_accuracy', 'loss', 'grad_norm',
                          'skipped', 'streak'}
  np.testing.assert_allclose(
      numbers['loss'], sum(total / weight for total, weight in (numbers['mlm'], numbers['nsp'])),
      rtol=1e-6)
  assert float(numbers['nsp'][1]) == 14


def test_each_step_draws_its_own_dropout(learner, params, windows):
  def loss(step):
    return float(update(learner)(fresh(learner, params).replace(step=np.int32(step)),
                                 windows)[1]['loss'])
  assert loss(0) == loss(0) != loss(1)


@pytest.mark.parametrize('poison', [np.nan, np.inf, 1e30])
def test_a_step_that_is_not_finite_changes_no_parameter(learner, params, windows, poison):
  state, _ = update(learner)(fresh(learner, params), windows)
  good = jax.device_get(state)
  bad = jax.tree.map(np.array, good)
  bad.params['heads_mlm']['dense']['kernel'][3, 4] = poison
  bad.params['heads_mlm']['norm']['scale'][:] = poison
  state = jax.tree.map(np.array, bad)
  for streak in (1, 2):
    state, numbers = update(learner)(state, windows)
    assert not np.isfinite(numbers['loss']) or not np.isfinite(numbers['grad_norm'])
    assert (int(numbers['skipped']), int(numbers['streak']),
            int(state.step)) == (streak, streak, 1 + streak)
  tiny.assert_same((state.params, state.opt_state), (bad.params, bad.opt_state))
  state, numbers = update(learner)(jax.device_get(state).replace(
      params=jax.tree.map(np.array, good.params)), windows)
  assert np.isfinite(numbers['loss'])
  assert (int(state.skipped), int(state.streak), int(state.step)) == (2, 0, 4)
  assert any((a != b).any() for a, b in zip(jax.tree.leaves(state.params),
                                            jax.tree.leaves(good.params), strict=True))


@pytest.mark.slow
def test_parameters_that_are_not_finite_are_not_kept():
  """Without eps Adam divides 0 by 0 if a gradient is zero, as at positions after every row; loss
  and gradient are finite."""
  learner = tiny.learner(optim=AdamW(warmup=0, schedule='constant', eps=0.0), layers=1)
  windows = tiny.windows(16, learner.objective.text_length(tiny.LENGTH - 8))
  params = tiny.random_params(jax.eval_shape(lambda: init_state(learner, windows).params))
  state, numbers = update(learner)(fresh(learner, params), windows)
  assert np.isfinite(numbers['loss']) and np.isfinite(numbers['grad_norm'])
  assert (int(state.skipped), int(state.streak), int(state.step)) == (0, 0, 1)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, state.opt_state)))
  new, old = (tiny.flat(tree)['backbone/embeddings/positions'] for tree in (state.params, params))
  np.testing.assert_array_equal(new[-8:], old[-8:])
  assert (new[:-8] != old[:-8]).mean() > 0.99


def test_the_old_state_is_given_away(learner, params, windows):
  state, _ = update(learner)(fresh(learner, params), windows)
  following, _ = update(learner)(state, windows)
  assert all(x.is_deleted() for x in jax.tree.leaves((state.params, state.opt_state)))
  assert not any(x.is_deleted() for x in jax.tree.leaves(following))


@pytest.mark.slow
@pytest.mark.parametrize('accumulate', [1, 4])
def test_nothing_to_predict_is_no_nan(params, batch, accumulate):
  learner = tiny.learner(accumulate=accumulate)
  untouched = {**batch, 'weights': np.zeros_like(batch['weights'])}
  grads, losses = gradient(learner, params, untouched)
  assert losses['mlm'] == (0, 0) and losses['nsp'][1] == 14
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads)) and not tiny.flat(grads)[
      'heads_mlm/bias'].any()
  grads, losses = gradient(learner, params,
                           {**untouched, 'segments': np.zeros_like(batch['segments'])})
  assert losses['mlm'] == (0, 0) == losses['nsp']
  assert not any(g.any() for g in jax.tree.leaves(grads))


def test_windows_of_padding_alone_are_left_out(learner, params, windows):
  nothing = {name: x if x.ndim == 1 else np.zeros_like(x) for name, x in windows.items()}
  _, numbers = update(learner)(fresh(learner, params), nothing)
  assert numbers['mlm'] == (0, 0) == numbers['nsp'] and numbers['loss'] == numbers['skipped'] == 0


@pytest.mark.slow
def test_a_fresh_state_has_the_initial_values_of_the_paper(learner, windows):
  state = jax.jit(lambda: init_state(learner, windows))()
  flat = tiny.flat(jax.device_get(tiny.unbox(state.params)))
  for name, x in flat.items():
    if name.endswith('bias'):
      assert not x.any(), name
    elif name.endswith('scale'):
      assert (x == 1).all(), name
    else:
      assert abs(x.std() / (0.2 * 0.88) - 1) < 0.2 and np.abs(x).max() <= 0.4 + 1e-6, name
  query = flat['backbone/stack/layers/block/attention/query/kernel']
  assert (query[0] != query[1]).any()


@pytest.mark.slow
def test_evaluation_has_no_dropout_and_other_masks_than_training(learner, params, windows, batch):
  run = jax.jit(functools.partial(step.eval_step, learner))
  first, second = jax.device_get((run(params, windows), run(params, windows)))
  tiny.assert_same(first, second)
  assert (first[1]['mlm'][0] != batch['labels']).any()


@pytest.mark.slow
def test_ema_follows_the_trained_parameters(learner, windows):
  """The trained parameters are the same without EMA; a skipped step changes neither."""
  averaged = dataclasses.replace(learner, ema=0.75)
  plain, state = (jax.jit(lambda learner=one: jax.tree.map(jnp.copy,
                                                           unbox(init_state(learner, windows))))()
                  for one in (learner, averaged))
  assert plain.trained is None
  tiny.assert_same(state.params, plain.params)
  tiny.assert_same(state.trained, plain.params)
  steps = [jax.jit(functools.partial(train_step, one)) for one in (learner, averaged)]
  for number in range(3):
    mean, batch = state.params, windows
    plain, (state, _) = steps[0](plain, batch)[0], steps[1](state, batch)
    tiny.assert_close(state.trained, plain.params)
    tiny.assert_close(state.params, jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, mean,
                                                 state.trained))
    # The first step of a warmup is of rate 0.
    assert not number or any((x != y).any() for x, y in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(state.trained), strict=True))
  broken = state.replace(trained=jax.tree.map(lambda x: x * jnp.nan, state.trained))
  after, numbers = steps[1](broken, windows)
  assert numbers['skipped'] == 1
  tiny.assert_same(after.params, state.params)
