"""The forms that a GPU computes otherwise give the same losses and gradients: here on a CPU, in
float32."""
import dataclasses
import functools

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import learner_of, text
from plm_jax import recipes
from plm_jax.layers import norm
from plm_jax.layers.kernels import cpu, gpu
from plm_jax.training.step import compute_gradient, init_state, total_loss


@pytest.fixture
def on_gpu(monkeypatch):
  """on_gpu() makes later traces use the forms for a GPU, without its attention kernel."""
  def pretend():
    for module in (cpu, gpu):
      monkeypatch.setattr(module, 'target_platform', lambda: 'gpu')
    jax.clear_caches()
  yield pretend
  jax.clear_caches()


@pytest.mark.parametrize('name', [
    'bert_base', 'gpt2_small', *(pytest.param(name, marks=pytest.mark.slow)
                                 for name in ('modernbert_base', 't5_v1_1_base')),
    *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.release]) for name in (
        'albert_base', 'llama_7b', 'bart_base', 'xlnet_base', 'deberta_v3_small'))])
def test_gpu_forms_give_the_same_loss_and_gradient(name, on_gpu):
  recipe = recipes.find_recipe(name)('test')
  learner, windows = learner_of(recipe), text(
      recipe, dataclasses.replace(recipe.train.phases[0], batch=4))
  params = jax.jit(lambda: unbox(init_state(learner, windows)).params)()

  def find():
    def loss_and_gradient(params, windows):
      batch = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)
      grads, metrics = compute_gradient(learner, params, batch, learner.key('dropout'))
      return total_loss(learner.objective.terms, metrics), grads
    return jax.jit(loss_and_gradient)(params, windows)

  loss, grads = find()
  on_gpu()
  other, others = find()
  np.testing.assert_allclose(other, loss, rtol=1e-5)
  floor = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads)) / 100
  for path, ours in jax.tree.leaves_with_path(grads):
    theirs = functools.reduce(lambda tree, key: tree[key.key], path, others)
    assert jnp.abs(ours - theirs).max() <= 1e-4 * max(jnp.abs(ours).max(), floor), path


def test_layers_are_unrolled_and_initialized_in_a_loop(on_gpu):
  recipe = recipes.find_recipe('gpt2_small')('test')
  learner, windows = learner_of(recipe), text(
      recipe, dataclasses.replace(recipe.train.phases[0], batch=2))
  batch = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)

  def scans(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count(' unroll=1\n')

  params = unbox(learner.model.init(learner.key('init'), batch))['params']
  layers = scans(lambda p: learner.model.apply({'params': p}, batch), params)
  start = scans(lambda: learner.model.init(learner.key('init'), batch))
  on_gpu()
  assert gpu.unrolls(48) and not gpu.unrolls(49)
  assert scans(lambda p: learner.model.apply({'params': p}, batch), params) == layers - 1
  assert scans(lambda: learner.model.init(learner.key('init'), batch)) == start


@pytest.mark.parametrize('kind', ['layer', 'layer_scale', 'plain', 'rms'])
def test_gradients_of_norms(kind):
  x, weight = jax.random.normal(jax.random.key(0), (2, 3, 5, 8))
  scale, bias = jax.random.normal(jax.random.key(1), (2, 8))
  if kind in ('plain', 'layer_scale'):
    bias = jnp.zeros(())
  if kind == 'plain':
    scale = jnp.ones(())
  arguments = (x, scale) if kind == 'rms' else (x, scale, bias)

  def total(form, *arguments):
    x, scale, bias = (*arguments, None)[:3]
    return (form(x, scale, bias, 1e-5) * weight).sum()

  places = range(len(arguments))
  ours, theirs = (jax.grad(functools.partial(total, form), places)(*arguments)
                  for form in (norm.normalize, gpu.normalize))
  for one, other in zip(ours, theirs, strict=True):
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(('letters', 'shape'), [('bld,dv->blv', (8, 67)), ('bld,vd->blv', (67, 8))])
def test_vocabulary_is_padded_and_gradients_are_products_in_the_dtype_of_the_operands(
    letters, shape):
  h, matrix = jax.random.normal(jax.random.key(0),
                                (2, 3, 8)), jax.random.normal(jax.random.key(1), shape)
  h, matrix = h.astype(jnp.bfloat16), matrix.astype(jnp.bfloat16)
  logits = gpu.vocabulary_product(letters, h, matrix)
  assert logits.shape == (2, 3, 67) and logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, jnp.einsum(letters, h, matrix,
                                                preferred_element_type=jnp.float32), rtol=1e-6)

  gradient = jax.make_jaxpr(
      jax.grad(lambda h, m: (gpu.vocabulary_product(letters, h, m) ** 2).sum(),
                                     (0, 1)))(h, matrix)
  lines = [line.strip() for line in str(gradient).splitlines()]
  # _: not used
  products = [line for line in lines if 'dot_general' in line and not line.startswith('_:')]
  assert len(products) == 3
  assert all(':bf16' in line for line in products[1:])
  assert '128' in products[0] and ':f32' in products[0]


def test_loss_statistics_and_their_gradient():
  logits, labels = jax.random.normal(jax.random.key(0),
                                     (2, 3, 7)), jnp.array([[0, 6, 2], [1, 1, 5]])

  def plain(logits):
    label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1), label, jax.lax.stop_gradient(logits.max(-1))

  def total(stats, logits):
    log_total, label, largest = stats(logits)
    return (2 * log_total - 3 * label + largest).sum()

  ours = functools.partial(gpu.softmax_stats, labels=labels)
  for one, other in zip(ours(logits), plain(logits), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
  np.testing.assert_allclose(
      jax.grad(functools.partial(total, ours))(logits),
      jax.grad(functools.partial(total, plain))(logits), atol=1e-6)
