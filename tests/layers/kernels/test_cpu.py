"""Computations that differ on a CPU, compared with the plain forms."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax.layers.attention import softmax
from plm_jax.layers.chunked_cross_entropy import LogitStats
from plm_jax.layers.kernels import cpu
from plm_jax.optim.transformations import clip_gradients, compute_global_norm


def assert_close(found, expected, **close):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      np.asarray(a, np.float64), np.asarray(b, np.float64), **close), found, expected)


def numbers(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_only_one_cpu_is_a_single_cpu(monkeypatch):
  assert cpu.is_single_cpu()
  with jax.set_mesh(jax.make_mesh((1,), ('data',), devices=jax.devices()[:1])):
    assert cpu.is_single_cpu()
  with jax.set_mesh(jax.make_mesh((8,), ('data',))):
    assert not cpu.is_single_cpu()
  monkeypatch.setattr(cpu, 'WORKAROUNDS', False)
  assert not cpu.is_single_cpu()


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ('letters', 'shape'), [('bld,dv->blv', (5, 37)), ('bld,vd->blv', (37, 5))], ids=['own', 'tied'])
def test_gradients_of_logits_match_float64(letters, shape, dtype):
  h, matrix, pull = jnp.array(numbers(2, 3, 5),
                              dtype), jnp.array(numbers(*shape, seed=1), dtype), numbers(2, 3, 37)
  def gradients(product, *args):
    return jax.jit(jax.grad(lambda h, matrix: (product(h, matrix) * pull).sum(), (0, 1)))(*args)
  found = gradients(lambda h, matrix: cpu.vocabulary_product(letters, h, matrix), h, matrix)
  assert [x.dtype for x in found] == [dtype, dtype]
  assert cpu.vocabulary_product(letters, h, matrix).dtype == jnp.float32
  with jax.enable_x64(True):
    expected = gradients(lambda h, matrix: jnp.einsum(letters, h, matrix),
                         *(np.asarray(x, np.float64) for x in (h, matrix)))
  close = dict(rtol=1e-5, atol=1e-5) if dtype == jnp.float32 else dict(rtol=1e-2, atol=1e-2)
  assert_close(found, expected, **close)


@pytest.mark.parametrize('size', [1, 7, 31, 32, 37, 64, 130, 1000, 30522])
def test_sums_and_maxima_of_rows(size):
  x = numbers(3, size)
  assert_close(jax.jit(cpu.sum_rows)(x), x.astype(np.float64).sum(-1), rtol=1e-5, atol=1e-4)
  np.testing.assert_array_equal(jax.jit(cpu.max_rows)(x), x.max(-1))
  x[0, -1], x[1, 0], x[2] = np.inf, np.nan, -np.inf
  np.testing.assert_array_equal(jax.jit(cpu.max_rows)(x), x.max(-1))


@pytest.mark.parametrize('classes', [2, 200])
def test_softmax_stats_have_the_values_and_gradients_of_the_plain_form(classes, monkeypatch):
  labels = np.random.default_rng(0).integers(classes, size=(3, 4))
  with jax.enable_x64(True):
    logits = np.random.default_rng(1).normal(size=(3, 4, classes)) * 30
    def read(workarounds):
      monkeypatch.setattr(cpu, 'WORKAROUNDS', workarounds)
      def loss(logits):
        stats = LogitStats.from_logits(logits, labels)
        return (stats.log_total ** 2 - 3 * stats.label + 0.3 * stats.mean).sum(), stats
      return jax.jit(jax.value_and_grad(loss, has_aux=True))(logits)
    assert_close(read(True), read(False), rtol=1e-12, atol=1e-12)


def test_attention_probabilities_have_the_gradient_of_the_plain_form(monkeypatch):
  logits, pull = numbers(2, 3, 50) * 9, numbers(2, 3, 50, seed=1)
  def read(workarounds):
    monkeypatch.setattr(cpu, 'WORKAROUNDS', workarounds)
    return jax.jit(jax.value_and_grad(lambda x: (softmax(x, jnp.float32) * pull).sum()))(logits)
  assert_close(read(True), read(False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e19, np.inf, np.nan], ids=str)
def test_gradients_are_clipped_as_optax_clips_them(scale):
  """1e19 is finite, and its square is not in float32: the norm is infinite, as with optax."""
  shapes = {'table': (300, 8), 'kernel': (8, 2, 66), 'bias': (8,), 'one': ()}
  grads = {name: numbers(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
  grads['kernel'][0, 0, 0] = scale
  grads = jax.tree.map(jnp.asarray, grads)
  assert_close(jax.jit(compute_global_norm)(grads), optax.tree.norm(grads), rtol=1e-6)
  ours, theirs = clip_gradients(1.0), optax.clip_by_global_norm(1.0)
  assert jax.tree.structure(ours.init(grads)) == jax.tree.structure(theirs.init(grads))
  assert_close(jax.jit(lambda g: ours.update(g, ours.init(g))[0])(grads),
               theirs.update(grads, theirs.init(grads))[0], rtol=1e-6)
