import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.layers.heads import ModelWithHeads, PooledClassifier
from plm_jax.objectives.sift import Sift, symmetric_divergence

LENGTH, WIDTH = 8, 32
MODEL = ModelWithHeads(tiny.config(layers=1).backbone(),
                       {'label': PooledClassifier(tiny.block(), 3)})


@pytest.fixture(scope='module')
def setting():
  draw = np.random.default_rng(0)
  tokens = draw.integers(5, 90, (4, LENGTH)).astype(np.int32)
  batch = {'tokens': tokens,
           'segments': (np.arange(LENGTH) < np.array([[8], [5], [8], [7]])).astype(np.int32)}
  return tiny.random_params(jax.eval_shape(lambda: MODEL.init(jax.random.key(0),
                                                              batch)['params'])), batch


def apply(params, batch, perturbation):
  return MODEL.apply({'params': params}, {**batch, 'perturbation': perturbation})['label']


def test_divergence_by_hand():
  p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
  want = ((p - q) * (np.log(p) - np.log(q))).sum()
  np.testing.assert_allclose(symmetric_divergence(jnp.log(p), jnp.log(q) + 3), want, rtol=1e-6)
  assert symmetric_divergence(jnp.log(p), jnp.log(p) - 1) < 1e-6
  # Of the two cross-entropies, each against a target that is given: softmax minus target.
  one, other = jax.grad(symmetric_divergence, (0, 1))(jnp.log(p), jnp.log(q))
  np.testing.assert_allclose(one, p - q, atol=1e-6)
  np.testing.assert_allclose(other, q - p, atol=1e-6)


def test_one_step_by_hand():
  """Two classes whose logits are the perturbation itself and 0: the step has its size, towards more
  change."""
  sift = Sift(step=0.25, noise=0.1)
  key = jax.random.split(jax.random.key(3), 1)
  noise = float(np.clip(jax.random.normal(key[0], (1, 1)), -2, 2)[0, 0] * 0.1)
  clean, change = sift.perturbed_divergence(lambda x: jnp.stack([x[:, 0, 0], 0 * x[:, 0, 0]], -1),
                                            key, (1, 1))
  np.testing.assert_array_equal(clean, [[0, 0]])
  moved = noise + 0.25 * np.sign(noise)
  p = 1 / (1 + np.exp(-moved))
  # The logits differ by `moved` in one class, so both divergences together are (p - 1/2) times it.
  np.testing.assert_allclose(change, [(p - 0.5) * moved], rtol=1e-3)


@pytest.mark.slow
def test_the_perturbation_changes_most_where_it_is_allowed_to(setting):
  params, batch = setting
  keys = jax.random.split(jax.random.key(1), 4)
  seen = []
  def logits(perturbation):
    seen.append(perturbation)
    return apply(params, batch, perturbation)
  sift = Sift(step=0.05, noise=0.3)
  _, change = sift.perturbed_divergence(logits, keys, (LENGTH, WIDTH))
  zero, worst = seen[0], seen[-1]
  assert not zero.any()
  noise = jax.vmap(lambda key: jnp.clip(jax.random.normal(key, (LENGTH, WIDTH)), -2, 2) * 0.3)(keys)
  largest = np.abs(worst - noise).max(-1)
  real = batch['segments'] > 0
  # A little less where the gradient is so small that the 1e-6 beside it counts.
  np.testing.assert_allclose(largest[real], 0.05, rtol=3e-2)
  assert largest[~real].max() < 1e-6  # nothing sees padding
  plain = apply(params, batch, zero)
  assert (change > symmetric_divergence(apply(params, batch, noise), plain)).all()


@pytest.mark.slow
def test_gradients_reach_every_parameter(setting):
  params, batch = setting
  keys = jax.random.split(jax.random.key(1), 4)
  @jax.jit
  @jax.grad
  def gradient(params):
    return Sift().perturbed_divergence(lambda x: apply(params, batch, x), keys,
                                       (LENGTH, WIDTH))[1].mean()
  found = tiny.flat(gradient(params))
  # Softmax does not feel a bias of keys, and the two divergences move a bias of the logits against
  # each other: both gradients are zero but for rounding.
  for name, x in found.items():
    assert name.endswith(('key/bias', 'label/dense/bias')) or np.abs(x).max() > 0, name
  assert all(np.isfinite(x).all() for x in found.values())


@pytest.mark.slow
def test_rows_do_not_depend_on_each_other(setting):
  params, batch = setting
  keys = jax.random.split(jax.random.key(1), 4)
  def change(batch, keys):
    return jax.jit(lambda b: Sift().perturbed_divergence(lambda x: apply(params, b, x), keys,
                                                         (LENGTH, WIDTH))[1])(
      batch
    )

  order = np.array([2, 0, 3, 1])
  np.testing.assert_allclose(
      change(tiny.take(batch, order), keys[order]), np.asarray(change(batch, keys))[order],
      rtol=1e-4, atol=1e-9)


def test_all_embeddings_are_of_one_size_under_it(setting):
  """Scaled tables change nothing, which is what the method is named for."""
  params, batch = setting
  def scaled(by):
    embeddings = {name: x * by if name != 'norm' else x
                  for name, x in params['backbone']['embeddings'].items()}
    return {**params, 'backbone': {**params['backbone'], 'embeddings': embeddings}}
  run = jax.jit(lambda params, x: apply(params, batch, x))
  x = jnp.asarray(np.random.default_rng(1).normal(0, 0.3, (4, LENGTH, WIDTH)), jnp.float32)
  np.testing.assert_allclose(run(scaled(8.0), x), run(params, x), atol=1e-4)
  assert np.abs(run(params, x) - run(params, 0 * x)).max() > 0.01
