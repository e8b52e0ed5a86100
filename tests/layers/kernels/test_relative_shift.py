"""Relative shifts by rotated tiles, compared with look-ups."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.kernels.relative_shift import shift_to_distances, shift_to_keys

SIZE = 256


@pytest.mark.parametrize('means', [
    'look-ups', pytest.param('rolls', marks=pytest.mark.slow),
    pytest.param('strides', marks=pytest.mark.slow)])
def test_tiles_are_lined_up_and_taken_back(means):
  x = np.random.default_rng(0).normal(size=(128, SIZE + 128)).astype(np.float32)
  at = 128 - np.arange(128)[:, None] + np.arange(SIZE)
  want = np.take_along_axis(x, at, 1)
  np.testing.assert_array_equal(jax.jit(lambda x: shift_to_keys(x, means))(x), want)
  back = np.zeros_like(x)
  np.put_along_axis(back, at, want, 1)
  np.testing.assert_array_equal(jax.jit(lambda x: shift_to_distances(x, means))(jnp.asarray(want)),
                                back)
