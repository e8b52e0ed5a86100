"""The unrolled generator next to JAX's own: the same numbers."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.kernels import cpu, threefry
from plm_jax.objectives import corruption

DRAWS = {
    'bits': lambda key: jax.random.bits(key, (3, 5)),
    'narrow bits': lambda key: jax.random.bits(key, (4,), 'uint8'),
    'one word': lambda key: jax.random.bits(key),
    'uniform': lambda key: jax.random.uniform(key, (7,)),
    'integers': lambda key: jax.random.randint(key, (9,), 0, 1000),
    'permutation': lambda key: jax.random.permutation(key, 10),
    'categorical': lambda key: jax.random.categorical(key, jnp.zeros((3, 4))),
    'split': lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    'fold_in': lambda key: jax.random.key_data(jax.random.fold_in(key, 0xFFFFFFFF)),
    'many keys': lambda key: jax.vmap(lambda key: jax.random.randint(key, (3,), 0, 5))(
        jax.random.split(key, 4)),
    'many numbers': lambda key: jax.vmap(
        lambda number: jax.random.bits(jax.random.fold_in(key, number), (2,)))(
        jnp.arange(3))}


@pytest.mark.parametrize('draw', DRAWS.values(), ids=DRAWS)
def test_random_numbers_equal_jax(draw):
  key = jax.random.fold_in(jax.random.key(3), 5)
  unrolled = threefry.unroll_generator(key)
  assert str(unrolled.dtype) == 'key<unrolled>'
  np.testing.assert_array_equal(jax.jit(draw)(unrolled), jax.jit(draw)(key))


def test_seeds_equal_jax():
  unrolled = jax.random.key_data(jax.random.key(7, impl=threefry.UNROLLED))
  np.testing.assert_array_equal(unrolled, jax.random.key_data(jax.random.key(7)))


def test_other_generators_stay():
  for key in (jax.random.key(1, impl='rbg'), jax.random.PRNGKey(1),
              threefry.unroll_generator(jax.random.key(1))):
    assert threefry.unroll_generator(key) is key
  with jax.threefry_partitionable(False):
    key = jax.random.key(1)
    assert threefry.unroll_generator(key) is key


def test_keys_of_examples_have_no_loop_over_rounds(monkeypatch):
  windows = {name: jnp.arange(4) for name in ('corpus', 'index', 'epoch')}
  def draw():
    return jax.jit(jax.vmap(lambda key: jax.random.randint(key, (6,), 0, 99)))(
        corruption.example_keys(jax.random.key(2), windows))
  fast = draw()
  lowered = jax.jit(corruption.example_keys).lower(jax.random.key(2), windows).as_text()
  assert 'while' not in lowered
  monkeypatch.setattr(cpu, 'WORKAROUNDS', False)
  jax.clear_caches()
  np.testing.assert_array_equal(draw(), fast)
