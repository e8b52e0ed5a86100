"""Sparse vectors of masked-LM logits: literal values, and gradients by finite differences."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.architectures import Output
from plm_jax.layers.splade import SpladeConfig, SpladeVector

SIZES = [4, 2, 0]
"""tokens of each row, of 5"""
CONFIGS = [SpladeConfig(), SpladeConfig(pooling='sum'), SpladeConfig(activation='log1p_relu'),
           SpladeConfig(pooling='sum', activation='log1p_relu')]


def expected(logits, cfg, skip=0):
  found = np.zeros((len(SIZES), logits.shape[-1]))
  for row, size in enumerate(SIZES):
    for token in logits[row, skip:size]:
      weights = np.log(1 + np.maximum(token, 0))
      if cfg.activation == 'log1p_relu':
        weights = np.log(1 + weights)
      found[row] = np.maximum(found[row], weights) if cfg.pooling == 'max' else found[row] + weights
  return found


def vectors(logits, cfg, skip=0):
  segments = jnp.asarray(np.arange(5) < np.array(SIZES)[:, None], jnp.int32)
  output = Output(hidden=logits)
  return SpladeVector(cfg, 7).apply({}, output, {'segments': segments}, None, skip)


@pytest.mark.parametrize('cfg', CONFIGS)
@pytest.mark.parametrize('skip', [0, 1])
def test_weights_by_hand(cfg, skip):
  """Padding, whose logits are largest, has no weight; a row without tokens has none at all."""
  logits = np.random.default_rng(0).normal(size=(3, 5, 7), scale=3)
  logits[0, 4] = logits[1, 2:] = logits[2] = 100
  found = vectors(jnp.asarray(logits, jnp.float32), cfg, skip)
  np.testing.assert_allclose(found, expected(logits, cfg, skip), atol=1e-6)
  assert not found[2].any() and (found[0] == 0).any()


@pytest.mark.parametrize('cfg', CONFIGS)
def test_gradients_by_finite_differences(cfg):
  draw = np.random.default_rng(1)
  logits, factors = draw.normal(size=(3, 5, 4), scale=3), draw.normal(size=(3, 4))
  found = jax.grad(lambda x: (vectors(x, cfg) * factors).sum())(jnp.asarray(logits, jnp.float32))
  for place in np.ndindex(logits.shape):
    step = np.zeros(logits.shape)
    step[place] = 1e-6
    difference = expected(logits + step, cfg) - expected(logits - step, cfg)
    assert found[place] == pytest.approx((difference * factors).sum() / 2e-6, abs=1e-5)


def test_queries_by_token_weights():
  """Each distinct token counts once; -1 is none."""
  head, weights = SpladeVector(SpladeConfig(queries='idf'), 5), jnp.arange(5.0) + 1
  found = head.apply({'params': {'query_weights': weights}}, jnp.array([[3, 1, 3], [4, -1, -1]]),
                     method='encode_queries')
  np.testing.assert_array_equal(found, [[0, 2, 0, 4, 0], [0, 0, 0, 0, 5]])
