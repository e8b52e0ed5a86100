"""Why learned positions stay on a plateau: arms, biases and the signal-to-noise ratio."""
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import plateau
from plm_jax import validation
from plm_jax.config import run as config_lib

TOKENS = 2_048_000
BIAS = 'model.block.attention.position: NoPosition() -> '


@pytest.mark.parametrize(('arm', 'changes'), {
    'none': {'model.embeddings.absolute: learned -> none'},
    'sinusoidal': {'model.embeddings.absolute: learned -> scaled'},
    'pair_bias': {'model.embeddings.absolute: learned -> none',
                  f'{BIAS}TableBias(shared=False, length=128, factor=30.0)'},
    'shared_bias': {'model.embeddings.absolute: learned -> none',
                    f'{BIAS}TableBias(shared=True, length=128, factor=30.0)'},
    'muon': {'optim.kind: adamw -> muon', 'optim.peak: 0.001 -> 0.002'}}.items())
def test_an_arm_changes_only_the_settings_in_its_name(arm, changes):
  learned, other = (plateau.make_run(name, 'text.txt', 'out', TOKENS) for name in ('learned', arm))
  assert {*validation.differences(learned, other, {'name'})} == changes


@pytest.mark.parametrize('arm', plateau.ARMS)
def test_all_arms_are_runs_of_equally_many_tokens(arm):
  run = plateau.make_run(arm, 'text.txt', 'out', TOKENS)
  config_lib.check(run)
  phase, = run.train.phases
  assert phase.steps * phase.batch * phase.length == TOKENS


@pytest.mark.parametrize(('shared', 'expected'), [
    (True, [[2, 3, 4], [1, 2, 3], [0, 1, 2]]), (False, [[0, 1, 2], [3, 4, 5], [6, 7, 8]])])
def test_a_bias_is_read_by_distance_or_by_pair(shared, expected):
  scheme = plateau.TableBias(shared=shared, length=3, factor=2.0)
  class Holder(nn.Module):
    @nn.compact
    def __call__(self, positions):
      return scheme.context(self, types.SimpleNamespace(heads=1), positions, positions)['bias']
  table = jnp.arange(5.0 if shared else 9.0)[None]
  bias = Holder().apply({'params': {'bias_table': table}}, jnp.arange(3)[None])
  np.testing.assert_array_equal(bias, [[2 * np.array(expected)]])


def test_a_shared_gradient_has_less_noise():
  # 100 pairs at distance 1 with a signal of 0.1 and independent noise of 1: a ratio of 0.1 each,
  # and of 1 for the sum.
  noise = jax.random.normal(jax.random.key(0), (400, 2, 101, 101))
  gradients = np.array(noise) + 0.1 * np.eye(101, k=1)
  ratios = plateau.signal_to_noise(gradients)
  assert ratios['pair'][1] == pytest.approx(0.1, abs=0.02)
  assert ratios['distance'][1] == pytest.approx(1, abs=0.15)
  assert ratios['distance'][2] < 0.2
