import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.dense import Dense, Dropout
from plm_jax.layers.kernels import cpu
from plm_jax.layers.kernels.cpu import keep_mask


def drop(x, rows, rate=0.25, key=0):
  return jax.jit(lambda x, rows: Dropout(rate).apply({}, x, rows,
                                                     rngs={'dropout': jax.random.key(key)}))(
                                                         x, rows)


def test_keep_mask_literal():
  mask = keep_mask(jax.random.key(0), (2, 7), 0.5)
  assert mask.astype(int).tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize('shape', [(1,), (7,), (2, 3, 5), (4, 1, 33)])
@pytest.mark.parametrize('key', [
    jax.random.key(7), jax.random.PRNGKey(7), jax.random.key(7, impl='rbg')],
    ids=['typed', 'raw', 'rbg'])
def test_random_words_equal_jax(key, shape):
  expected = jax.random.bits(key, shape, jnp.uint32)
  np.testing.assert_array_equal(cpu.draw_words(key, shape), expected)
  np.testing.assert_array_equal(jax.jit(cpu.draw_words, static_argnums=1)(key, shape), expected)


def test_random_words_of_many_keys_equal_jax():
  keys = jax.random.split(jax.random.key(5), 6)
  words = jax.jit(jax.vmap(lambda key: cpu.draw_words(key, (3, 4))))(keys)
  np.testing.assert_array_equal(
      words, jax.vmap(lambda key: jax.random.bits(key, (3, 4), jnp.uint32))(keys))


def test_random_words_without_partitionable_keys_equal_jax():
  with jax.threefry_partitionable(False):
    key = jax.random.key(2)
    np.testing.assert_array_equal(cpu.draw_words(key, (5, 3)),
                                  jax.random.bits(key, (5, 3), jnp.uint32))


def test_random_words_need_no_loop_over_rounds():
  draw = jax.jit(lambda key: keep_mask(key, (8, 16), 0.1))
  assert 'while' not in draw.lower(jax.random.key(0)).as_text()


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_rate_over_many_draws(rate):
  keep = np.asarray(jax.jit(lambda: keep_mask(jax.random.key(1), (1000, 301), rate))())
  sigma = (rate * (1 - rate) / keep.size) ** 0.5
  assert abs(keep.mean() - (1 - rate)) < 4 * sigma
  # The two halves of a row come from the same words: neither more alike nor less than by chance.
  together = (keep[:, :150] & keep[:, 151:]).mean()
  assert abs(together - (1 - rate) ** 2) < 5 * (together * (1 - together) / (1000 * 150)) ** 0.5


def test_survivors_are_scaled_up():
  y = np.asarray(drop(jnp.full((4, 5, 6), 3.0), jnp.arange(4)))
  assert set(np.unique(y).tolist()) == {0.0, 4.0}


def test_no_rows_no_dropout():
  x = jnp.ones((2, 3))
  assert Dropout(0.5).apply({}, x) is x
  assert Dropout(0.0).apply({}, x, jnp.arange(2)) is x


def test_dropout_of_a_row_does_not_depend_on_its_position():
  x = jax.random.normal(jax.random.key(3), (8, 5, 6))
  order = np.array([3, 0, 7, 5, 1, 2, 6, 4])
  whole = np.asarray(drop(x, jnp.arange(8)))
  np.testing.assert_array_equal(drop(x[order], jnp.array(order)), whole[order])
  np.testing.assert_array_equal(drop(x[2:4], jnp.arange(2, 4)), whole[2:4])
  mesh = jax.make_mesh((8,), ('data',))
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  np.testing.assert_array_equal(drop(jax.device_put(x, rows), jax.device_put(jnp.arange(8), rows)),
                                whole)


def test_rows_and_steps_differ():
  y = np.asarray(drop(jnp.ones((2, 40)), jnp.arange(2)))
  assert (y[0] != y[1]).any()
  assert (np.asarray(drop(jnp.ones((2, 40)), jnp.arange(2), key=1)) != y).any()


def test_dense_contracts_trailing_with_leading_axes():
  x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
  kernel, bias = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5), np.arange(
      5.0, dtype=np.float32)
  y = Dense((5,), ('heads', None, 'width')).apply({'params': {'kernel': kernel, 'bias': bias}}, x)
  np.testing.assert_allclose(y, np.einsum('bha,had->bd', x, kernel) + bias)


@pytest.mark.parametrize('workarounds', [True, False])
@pytest.mark.parametrize('features', [(2, 2), (3, 4)], ids=['fewer features than inputs', 'more'])
def test_dense_gradients(features, workarounds, monkeypatch):
  """Compared with the definition in float64, also second derivatives."""
  monkeypatch.setattr(cpu, 'WORKAROUNDS', workarounds)
  with jax.enable_x64(True):
    draw = np.random.default_rng(0).normal
    x, kernel, bias, pull = (draw(size=size)
                             for size in ((3, 2, 5), (5, *features), features, (3, 2, *features)))
    axes = (None,) * (1 + len(features))
    def ours(x, kernel, bias):
      return Dense(features, axes,
                   dtype=jnp.float64).apply({'params': {'kernel': kernel, 'bias': bias}}, x)
    def theirs(x, kernel, bias):
      return jnp.einsum('abi,ixy->abxy', x, kernel) + bias
    def gradients(f, *args):
      return jax.grad(lambda *args: (f(*args) ** 2 * pull).sum(), (0, 1, 2))(*args)
    def again(f, *args):
      return jax.grad(lambda *args: sum((y ** 2).sum() for y in gradients(f, *args)),
                      (0, 1, 2))(*args)
    for derive in (gradients, again):
      jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), *(
          jax.jit(lambda *args, f=f, derive=derive: derive(f, *args))(x, kernel, bias)
          for f in (ours, theirs)))
