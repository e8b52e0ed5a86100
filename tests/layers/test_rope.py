import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.errors import ConfigError
from plm_jax.layers.attention import Attention, AttentionMask
from plm_jax.layers.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Rope,
    Unscaled,
    YarnScaling,
    rotate,
)

PLACE = jnp.arange(6)[None]


def test_pairs_turn_as_complex_numbers():
  """Su et al. 2021, equation 34: features a and a + A/2 are a number that is multiplied by e^(i m
  theta^(-2a/A))."""
  x = np.random.default_rng(0).normal(size=(1, 6, 2, 8))
  context = jax.jit(lambda place: Rope().context(None, tiny.block(width=16, heads=2), place,
                                                 place))(PLACE)
  found = rotate(jnp.asarray(x, jnp.float32), **context)
  angle = np.arange(6)[:, None] * 10_000.0 ** (-np.arange(4) / 4)
  number = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angle)[None, :, None]
  np.testing.assert_allclose(found, np.concatenate([number.real, number.imag], -1), atol=1e-6)


def test_only_distance_counts():
  """Probabilities do not change if all positions shift; partial rotation does not change the
  other features."""
  cfg = tiny.block(attention=dict(position=Rope(share=0.5), dropout=0.0))
  module = Attention(cfg.attention, cfg)
  x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 6, 32)), jnp.float32)
  def probs(params, place):
    context = cfg.attention.position.context(None, cfg, place, place)
    _, seen = module.apply({'params': params}, x, x, AttentionMask(None, context),
                           mutable='intermediates')
    return seen['intermediates']['probs'][0]
  context = cfg.attention.position.context(None, cfg, PLACE, PLACE)
  params = tiny.random_params(jax.eval_shape(
      lambda: module.init(jax.random.key(0), x, x, AttentionMask(None, context))['params']))
  probs = jax.jit(probs)
  np.testing.assert_allclose(probs(params, PLACE), probs(params, PLACE + 1000), atol=1e-4)
  assert np.abs(probs(params, PLACE) - probs(params, PLACE * 2)).max() > 1e-3
  np.testing.assert_array_equal(rotate(x[:, :, None], **context)[..., 4:], x[:, :, None, 4:])


def test_numbers_keep_their_type():
  context = Rope().context(None, tiny.block(), PLACE, PLACE)
  assert rotate(jnp.ones((1, 6, 4, 8), jnp.bfloat16), **context).dtype == jnp.bfloat16


# Of heads of 16 features, for rows of so many tokens; by ROPE_INIT_FUNCTIONS of transformers 5.23,
# in float32.
SCALED = {
    'linear': (LinearScaling(4.0), 1e4, 1, 1.0, [
        0.25, 0.07905694, 0.025, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05]),
    'dynamic': (DynamicScaling(2.0, 4096), 1e4, 9000, 1.0, [
        1.0, 0.2655671, 0.0705259, 0.01872936, 0.004973902, 0.001320905, 0.0003507889,
        9.315801e-05]),
    'dynamic, short': (DynamicScaling(2.0, 4096), 1e4, 100, 1.0, [
        1.0, 0.3162278, 0.1, 0.03162278, 0.01, 0.003162278, 0.001, 0.0003162278]),
    'llama3': (Llama3Scaling(8.0), 5e5, 1, 1.0, [
        1.0, 0.1939228, 0.03760603, 0.007292665, 0.000524846, 3.428102e-05, 6.64787e-06,
        1.289173e-06]),
    'yarn': (YarnScaling(16.0, 4096), 1e4, 1, 1.2772588722239782, [
        1.0, 0.3162278, 0.1, 0.02421119, 0.0053125, 0.0009388012, 6.25e-05, 1.976424e-05]),
    'yarn, all said': (YarnScaling(4.0, 32768, 16.0, 2.0, False, 1.5), 1e6, 1, 1.5, [
        1.0, 0.1778279, 0.03162278, 0.005623413, 0.00059568, 4.445699e-05, 7.905694e-06,
        1.405853e-06]),
}


@pytest.mark.parametrize('name', SCALED)
def test_scalings(name):
  scaling, theta, length, attention, frequencies = SCALED[name]
  found = scaling.frequencies(theta, 16, jnp.arange(length)[None])
  np.testing.assert_allclose(np.ravel(found), frequencies, rtol=1e-6)
  assert scaling.attention_factor == pytest.approx(attention)
  context = Rope(theta, scaling=scaling).context(None, tiny.block(width=16, heads=1), PLACE, PLACE)
  angle = np.outer(np.arange(6), scaling.frequencies(theta, 16, PLACE))
  np.testing.assert_allclose(context['cos'][0, :, 0], attention * np.cos(angle), atol=1e-6)


def test_a_row_stretches_by_its_own_length():
  place = jnp.stack([jnp.arange(8), jnp.arange(8) + 20])
  found = jax.jit(lambda place: DynamicScaling(2.0, 16).frequencies(1e4, 8, place))(place)
  np.testing.assert_allclose(found[0, 0], Unscaled().frequencies(1e4, 8, place), rtol=1e-6)
  assert (found[1, 0, 1:] < found[0, 0, 1:]).all()


def test_scalings_that_divide_by_zero_are_refused():
  with pytest.raises(ConfigError, match='high differs from '):
    Llama3Scaling(low=4.0, high=4.0)
  with pytest.raises(ConfigError, match='theta is not 1 with YaRN scaling'):
    Rope(theta=1.0, scaling=YarnScaling())
  cfg = tiny.block(heads=16, attention=dict(position=Rope(scaling=DynamicScaling())))
  place = jnp.zeros((1, 4), int)
  with pytest.raises(ConfigError,
                     match='dynamic RoPE scaling rotates more than 2 features per head, got 2'):
    cfg.attention.position.context(None, cfg, place, place)
