import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from plm_jax.optim import OptimConfig, decayed, make_optimizer, schedule

GOLDEN = pathlib.Path(__file__).parent / 'golden/optimizers'
# Names decide what decays: those of the traces -> ours.
NAMES = {'layer/kernel': ('layer', 'kernel'), 'layer/bias': ('layer', 'bias'),
         'layer/LayerNorm/gamma': ('norm', 'scale'), 'layer/LayerNorm/beta': ('norm', 'bias'),
         'out/kernel': ('out', 'kernel'), 'zero/kernel': ('zero', 'kernel')}
BERT = OptimConfig(peak=0.01, warmup=5)
TORCH = OptimConfig(peak=0.01, warmup=5, schedule='linear', eps=1e-8, bias_correction=True)


def tree(arrays, prefix):
  result = {}
  for name, (module, leaf) in NAMES.items():
    result.setdefault(module, {})[leaf] = jnp.asarray(arrays[prefix + name])
  return result


def run(config, params, grads, steps=20):
  """-> parameters after each of the given gradients [T, ...]."""
  optimizer = make_optimizer(config, steps)
  @jax.jit
  def all_steps(params, grads):
    def step(carry, grads):
      params, state = carry
      updates, state = optimizer.update(grads, state, params)
      params = optax.apply_updates(params, updates)
      return (params, state), params
    return jax.lax.scan(step, (params, optimizer.init(params)), grads)[1]
  return jax.device_get(all_steps(params, grads))


@pytest.mark.parametrize(('case', 'config'), [('bert_adamw', BERT), ('torch_adamw_linear', TORCH)])
def test_trace_of_the_reference(case, config):
  inputs, outputs = np.load(GOLDEN / case / 'inputs.npz'), np.load(GOLDEN / case / 'outputs.npz')
  np.testing.assert_allclose(jax.vmap(schedule(config, 20))(jnp.arange(20)), outputs['lr'], atol=1e-5 * 0.01)
  got = run(config, tree(inputs, 'params/'), tree(inputs, 'grads/'))
  for name, (module, leaf) in NAMES.items():
    np.testing.assert_allclose(got[module][leaf], outputs[f'params/{name}'], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(('name', 'kind'), [
    ('bert_tf_warmup10_total100', 'bert'), ('linear_warmup10_total100', 'linear'), ('constant_warmup10', 'constant')])
def test_schedule_of_the_reference(name, kind):
  rate = schedule(OptimConfig(peak=2.0, warmup=10, schedule=kind), 100)
  np.testing.assert_allclose(jax.vmap(rate)(jnp.arange(120)), 2 * np.load(GOLDEN / 'schedules.npz')[name], atol=1e-5)


def test_the_paper_s_schedule():
  rate = schedule(OptimConfig(), 1_000_000)
  assert [round(float(rate(step)) * 1e6, 3) for step in (0, 5000, 9999, 10_000, 500_000, 999_999)] == [
      0, 50, 99.99, 99, 50, 0]


def test_no_warmup_starts_at_the_peak():
  assert float(schedule(OptimConfig(peak=0.5, warmup=0), 10)(0)) == 0.5


def test_biases_and_norms_do_not_decay():
  params = {'block': {'query': {'kernel': 1, 'bias': 1}, 'norm': {'scale': 1, 'bias': 1}}, 'tokens': 1}
  assert decayed(params) == {
      'block': {'query': {'kernel': True, 'bias': False}, 'norm': {'scale': False, 'bias': False}}, 'tokens': True}


def test_which_parameters_of_bert_decay(params):
  decay = tiny.flat(decayed(params))
  plain = {name for name, value in decay.items() if value}
  assert {name.rsplit('/', 1)[1] for name in plain} == {'kernel', 'tokens', 'positions', 'types'}
  assert all(name.endswith(('bias', 'scale')) for name in set(decay) - plain)


def test_decay_and_nothing_else_where_the_gradient_is_zero():
  params = {'a': {'kernel': jnp.full(3, 2.0), 'bias': jnp.full(3, 2.0)}}
  grads = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), params)
  config = OptimConfig(peak=0.5, warmup=0, weight_decay=0.1, schedule='constant')
  after = run(config, params, grads)['a']
  np.testing.assert_allclose(after['kernel'][0], 2 - 0.5 * 0.1 * 2)
  np.testing.assert_array_equal(after['bias'][0], 2)


def test_first_step_by_hand():
  """Without bias correction the first update is 0.1 g / (sqrt(0.001) |g| + eps), of the clipped gradient."""
  params, grads = {'a': {'bias': jnp.zeros(2)}}, {'a': {'bias': jnp.array([[30.0, -40.0]])}}
  config = OptimConfig(peak=1.0, warmup=0, schedule='constant')
  clipped = np.array([0.6, -0.8])
  want = -0.1 * clipped / (np.sqrt(0.001) * np.abs(clipped) + 1e-6)
  np.testing.assert_allclose(run(config, params, grads)['a']['bias'][0], want, rtol=1e-5)
  free = OptimConfig(peak=1.0, warmup=0, schedule='constant', clip=0.0, bias_correction=True)
  np.testing.assert_allclose(run(free, params, grads)['a']['bias'][0], [-1, 1], rtol=1e-5)
