import dataclasses
import importlib
import json
import pathlib
import re

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import plm_jax
from plm_jax import recipes
from plm_jax.cli import signatures
from plm_jax.cli.run import parse
from plm_jax.config import serialization
from plm_jax.errors import ConfigError
from plm_jax.models import bart, deberta, gpt2, llama, t5, xlnet
from plm_jax.optim.directions import decay_mask
from plm_jax.optim.optimizers import (
  OPTIMIZERS,
  Adafactor,
  Adagrad,
  AdamW,
  Lamb,
  StableAdamW,
  make_schedule,
)
from plm_jax.optim.trainable import ParameterError, match_parameters
from plm_jax.optim.transformations import clip_gradients, make_optimizer


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


def make_config(kind, **fields):
  """Make the configuration of a kind; Adafactor's factors matrices of any size."""
  return OPTIMIZERS[kind](**fields, **({'factored': 2} if kind == 'adafactor' else {}))


def stacked(leaves):
  """One tree with layers in the rows of arrays, and one with a module for each layer."""
  block = {'many': {'kernel': leaves}, 'one': {'kernel': leaves[:1]}}
  rows = {'layers': {'block': block}, 'head': {'kernel': leaves[0]}}
  alone = {str(n): {'kernel': x} for n, x in enumerate(leaves)}
  return rows, alone


@pytest.mark.parametrize('kind', ['lamb', 'adafactor', 'stable_adamw'])
def test_each_layer_of_a_stack_is_a_separate_tensor(kind):
  """Ratios, norms and factors of a layer do not depend on the other layers in the same array."""
  draw = np.random.default_rng(0)
  scale = np.array([1, 10, 0.1], np.float32)[:, None, None]
  params = stacked(scale * draw.normal(size=(3, 6, 5)).astype(np.float32))
  # Gradients [T, ...] of arrays [N, ...].
  grads = draw.normal(size=(4, 3, 6, 5)).astype(np.float32) / scale
  rows, alone = stacked(np.moveaxis(grads, 1, 0))
  rows = {**rows, 'layers': jax.tree.map(lambda x: np.moveaxis(x, 0, 1), rows['layers'])}
  config = make_config(kind, peak=0.1, warmup=0, schedule='constant', clip=0.0)
  got, want = run(config, params[0], rows, 4), run(config, params[1], alone, 4)
  for n in range(3):
    np.testing.assert_allclose(got['layers']['block']['many']['kernel'][:, n],
                               want[str(n)]['kernel'], rtol=1e-5)
  np.testing.assert_allclose(got['layers']['block']['one']['kernel'][:, 0], want['0']['kernel'],
                             rtol=1e-5)
  np.testing.assert_allclose(got['head']['kernel'], want['0']['kernel'], rtol=1e-5)


def test_stable_adamw_against_numpy():
  """Algorithm 2 of Wortsman et al. 2023: gradients that grow by 100 are shortened, decay with them;
  a gain has none."""
  config = StableAdamW(
      peak=0.1, warmup=0, schedule='constant', weight_decay=0.5, clip=0.0, b2=0.98, eps=1e-6,
      bias_correction=True)
  draw = np.random.default_rng(0)
  grads = {'kernel': draw.normal(size=(6, 3, 4)), 'scale': draw.normal(size=(6, 4))}
  for g in grads.values():
    g[3:] *= 100
  start = {'kernel': draw.normal(size=(3, 4)), 'scale': np.ones(4)}
  got = run(config, *jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (start, grads)))
  longest = []
  for name, decay in (('kernel', 0.5), ('scale', 0.0)):
    x, mean, square = start[name], 0.0, 0.0
    for t, g in enumerate(grads[name]):
      first, second = (b * (1 - b ** t) / (1 - b ** (t + 1)) for b in (0.9, 0.98))
      mean, square = first * mean + (1 - first) * g, second * square + (1 - second) * g * g
      longest.append(np.sqrt(np.mean(g * g / np.maximum(square, 1e-12))))
      rate = 0.1 / max(1, longest[-1])
      x = x - rate * decay * x - rate * mean / (np.sqrt(square) + 1e-6)
      np.testing.assert_allclose(got[name][t], x, rtol=1e-4, atol=1e-6)
  assert max(longest) > 1.5


def test_lamb_moves_by_the_learning_rate_times_the_size_of_the_tensor():
  params = {'a': {'kernel': jnp.full((2, 2), 3.0), 'bias': jnp.full(2, 3.0)}}
  grads = jax.tree.map(lambda x: jnp.ones((1, *x.shape)), params)
  config = Lamb(peak=0.1, warmup=0, schedule='constant', weight_decay=0.0, clip=0.0, eps=0.0)
  after = run(config, params, grads)['a']
  np.testing.assert_allclose(after['kernel'][0], 3 - 0.1 * 3, rtol=1e-6)
  # No ratio: the plain update of a bias, 0.1 / sqrt(0.001).
  np.testing.assert_allclose(after['bias'][0], 3 - 0.1 * 0.1 / 0.001 ** 0.5, rtol=1e-6)


def test_adafactor_keeps_rows_and_columns_of_large_matrices_only():
  params = {'layers': {'block': {'kernel': jnp.ones((3, 256, 128))}},
            'head': {'kernel': jnp.ones((256, 64))}}
  sizes = {x.size for x in jax.tree.leaves(make_optimizer(Adafactor(), 10).init(params))}
  assert max(sizes) == 256 * 64 and {3 * 256, 3 * 128} <= sizes


def test_frozen_parameters_have_no_updates_and_no_state():
  params = {'student': {'kernel': jnp.ones(3)}, 'teacher': {'kernel': jnp.ones(7)}}
  optimizer = make_optimizer(AdamW(peak=0.1, warmup=0, schedule='constant'), 10,
                             frozen=('teacher',))
  state = optimizer.init(params)
  assert not any(x.shape == (7,) for x in jax.tree.leaves(state))
  updates, _ = optimizer.update(params, state, params)
  assert not updates['teacher']['kernel'].any() and updates['student']['kernel'].all()


def net():
  """Two stacks of three layers and a table, with negative zeros, which most sums would lose."""
  draw = np.random.default_rng(0)
  def stack():
    block = {'attention': {name: {'kernel': draw.normal(size=(3, 4, 4)),
                                  'bias': draw.normal(size=(3, 4))}
                           for name in ('query', 'out')},
                           'norm': {'scale': draw.normal(size=(3, 4))}}
    return {'stack': {'layers': {'block': block}}}
  tree = {'backbone': {'tokens': draw.normal(size=(6, 4)), 'encoder': stack(), 'decoder': stack()}}
  return jax.tree.map(lambda x: jnp.asarray(np.where(x < -1, -0.0, x), jnp.float32), tree)


def moved(config, frozen=()):
  """-> which numbers of `net` have other bits after three updates."""
  params = net()
  grads = jax.tree.map(lambda x: jnp.ones_like(x) * 0.3, params)
  optimizer = make_optimizer(config, 10, frozen)
  @jax.jit
  def after(params):
    state = optimizer.init(params)
    for _ in range(3):
      updates, state = optimizer.update(grads, state, params)
      params = optax.apply_updates(params, updates)
    return params
  bits = lambda x: np.asarray(x).view(np.int32)
  return tiny.flat(jax.tree.map(lambda old, new: bits(old) != bits(new), params, after(params)))


@pytest.mark.parametrize('kind', ['adamw', 'lamb', 'adafactor'])
def test_only_some_parameters_move(kind):
  only = ('backbone/tokens', 'backbone/encoder/stack/layers/block/attention/query[1]',
          'backbone/*/*/*/*/norm[2]')
  optim = make_config(kind, peak=0.1, warmup=0, schedule='constant', only=only)
  changed = moved(optim)
  first = {name: x.any(tuple(range(1, x.ndim))).tolist() for name, x in changed.items()}
  layers = 'stack/layers/block'
  want = {name: [False] * len(x) for name, x in changed.items()} | {
      'backbone/tokens': [True] * 6,
      f'backbone/encoder/{layers}/attention/query/kernel': [False, True, False],
      f'backbone/encoder/{layers}/attention/query/bias': [False, True, False],
      f'backbone/encoder/{layers}/norm/scale': [False, False, True],
      f'backbone/decoder/{layers}/norm/scale': [False, False, True]}
  assert first == want
  # All of a row that moves at all.
  assert all(x[yes].all() for name, x in changed.items() for yes in [np.array(want[name])])
  held = moved(optim, frozen=('backbone/encoder',))
  assert not any(x.any() for name, x in held.items() if '/encoder/' in name)
  assert held['backbone/tokens'].all()


def test_frozen_parameters_do_not_count_in_the_clipped_norm():
  params = {'a': {'layers': {'block': jnp.zeros((2, 1))}}, 'b': jnp.zeros(1)}
  grads = {'a': {'layers': {'block': jnp.array([[3.0], [100.0]])}}, 'b': jnp.array([1000.0])}
  config = Adafactor(clip=1.0, only=('a[0]',))
  optimizer = make_optimizer(config, 10)
  _, state = optimizer.update(grads, optimizer.init(params), params)
  sizes = [x for x in jax.tree.leaves(state) if getattr(x, 'shape', None) == (2, 1)]
  # The mean of squares at the first step is the squared gradient, clipped to norm 1.
  seen = [np.asarray(x).ravel().tolist() for x in sizes]
  assert [1.0, 0.0] in np.round(seen, 5).tolist()


def test_a_pattern_without_a_match_lists_the_parameters():
  for pattern in ('backbone/encode', 'encoder', 'backbone/tokens[0]',
                  'backbone/encoder/stack/layers/block/norm[3]'):
    with pytest.raises(ParameterError) as error:
      make_optimizer(AdamW(only=(pattern,)), 10).init(net())
    assert repr(pattern) in str(error.value)
    assert '  backbone/tokens' in str(error.value) and 'block/norm/scale[0..2]' in str(error.value)
  found = tiny.flat(match_parameters(('backbone/encoder[0]',), net()))
  assert found['backbone/encoder/stack/layers/block/norm/scale'].tolist() == [True, False, False]


def test_an_exempt_name_without_a_match_lists_the_names():
  """Default names are optional: a model without biases is no error, with or without frozen
  parameters."""
  for config in (AdamW(exempt=('bias', 'scales')),
                 AdamW(exempt=('scales',), only=('backbone/tokens',))):
    with pytest.raises(ParameterError,
                       match=r"^optim\.exempt: no parameter has the name 'scales' .*: .*\bscale\b"):
      make_optimizer(config, 10).init(net())
  make_optimizer(AdamW(exempt=('bias', 'scale', 'encoder'), only=('backbone/tokens',)),
                 10).init(net())
  make_optimizer(AdamW(), 10).init({'kernel': jnp.ones(2)})


def test_the_paper_s_schedule():
  rate = make_schedule(AdamW(), 1_000_000)
  assert [round(float(rate(step)) * 1e6, 3)
          for step in (0, 5000, 9999, 10_000, 500_000, 999_999)] == [
      0, 50, 99.99, 99, 50, 0]


def test_tokens_that_no_int32_holds():
  """ModernBERT's: 3 billion up, flat, 50 billion of 1,700 down."""
  billion = 1_000_000_000
  config = AdamW(peak=1.0, warmup=3 * billion, cooldown=50 * billion, clock='tokens',
                 schedule='wsd')
  rate = jax.jit(make_schedule(config, 400_000, ((400_000, 4_250_000),)))
  tokens = np.array([0, 1.5, 3, 850, 1650, 1662.5, 1687.5]) * billion
  np.testing.assert_allclose([rate(int(n / 4_250_000)) for n in tokens],
                             [0, 0.5, 1, 1, 1, 0.5, 1 - 0.75 ** 0.5],
                             atol=2e-3)  # of a step


def test_no_warmup_starts_at_the_peak():
  assert float(make_schedule(AdamW(peak=0.5, warmup=0), 10)(0)) == 0.5


def test_biases_and_norms_do_not_decay():
  params = {'block': {'query': {'kernel': 1, 'bias': 1}, 'norm': {'scale': 1, 'bias': 1}},
            'tokens': 1}
  assert decay_mask(params, AdamW.exempt) == {
      'block': {'query': {'kernel': True, 'bias': False}, 'norm': {'scale': False, 'bias': False}},
      'tokens': True}


def test_which_parameters_of_bert_decay(params):
  decay = tiny.flat(decay_mask(params, AdamW.exempt))
  plain = {name for name, value in decay.items() if value}
  assert {name.rsplit('/', 1)[1] for name in plain} == {'kernel', 'tokens', 'positions', 'types'}
  assert all(name.endswith(('bias', 'scale')) for name in set(decay) - plain)


@pytest.mark.parametrize(('config', 'kinds'), [
    (deberta.v2_xlarge(), {'kernel', 'tokens', 'positions', 'relative'}),
    (xlnet.base(), {'kernel', 'tokens', 'mask', 'types', 'content_bias', 'position_bias',
                    'type_bias'}),
    (gpt2.small(), {'kernel', 'tokens', 'positions'}), (llama.llama_7b(), {'kernel', 'tokens'}),
    (t5.base(), {'kernel', 'tokens', 'buckets'}), (bart.base(), {'kernel', 'tokens', 'positions'})],
    ids=['deberta', 'xlnet', 'gpt2', 'llama', 't5', 'bart'])
def test_which_parameters_decay_in_each_architecture(config, kinds):
  """No bias and no gain of a norm; but XLNet's three that are added to queries, as released."""
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments', 'types', 'ranks')}
  batch |= {'decoder_tokens': batch['tokens'], 'decoder_segments': batch['segments'],
            'positions': batch['tokens']}
  params = unbox(jax.eval_shape(lambda: config.backbone(False).init(jax.random.key(0),
                                                                    batch)['params']))
  decay = tiny.flat(decay_mask(params, AdamW.exempt))
  assert {name.rsplit('/', 1)[-1] for name, value in decay.items() if value} == kinds
  assert {name.rsplit('/', 1)[-1] for name, value in decay.items()
          if not value} <= {'bias', 'scale'}


def test_a_zero_gradient_leaves_only_weight_decay():
  params = {'a': {'kernel': jnp.full(3, 2.0), 'bias': jnp.full(3, 2.0)}}
  grads = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), params)
  config = AdamW(peak=0.5, warmup=0, weight_decay=0.1, schedule='constant')
  after = run(config, params, grads)['a']
  np.testing.assert_allclose(after['kernel'][0], 2 - 0.5 * 0.1 * 2)
  np.testing.assert_array_equal(after['bias'][0], 2)


def test_first_step_by_hand():
  """Without bias correction the first update is 0.1 g / (sqrt(0.001) |g| + eps), of the clipped
  gradient."""
  params, grads = {'a': {'bias': jnp.zeros(2)}}, {'a': {'bias': jnp.array([[30.0, -40.0]])}}
  config = AdamW(peak=1.0, warmup=0, schedule='constant')
  clipped = np.array([0.6, -0.8])
  want = -0.1 * clipped / (np.sqrt(0.001) * np.abs(clipped) + 1e-6)
  np.testing.assert_allclose(run(config, params, grads)['a']['bias'][0], want, rtol=1e-5)
  free = AdamW(peak=1.0, warmup=0, schedule='constant', clip=0.0, bias_correction=True)
  np.testing.assert_allclose(run(free, params, grads)['a']['bias'][0], [-1, 1], rtol=1e-5)


def test_decay_by_the_square_of_the_learning_rate():
  """Chowdhery et al. 2022, section 5: with a gradient of zero, lr^2 of the parameter is
  subtracted."""
  params = {'a': {'kernel': jnp.full(3, 2.0), 'bias': jnp.full(3, 2.0)}}
  grads = jax.tree.map(lambda x: jnp.zeros((2, *x.shape)), params)
  config = AdamW(peak=0.5, warmup=1, weight_decay=1.0, decay_power=2.0, schedule='linear', clip=0.0)
  after = run(config, params, grads, steps=3)['a']
  rates = [float(make_schedule(config, 3)(step)) for step in (0, 1)]
  assert rates == [0, 0.5]
  np.testing.assert_allclose(after['kernel'], [[2.0] * 3, [2 - 0.25 * 2] * 3], rtol=1e-6)
  np.testing.assert_array_equal(after['bias'], 2)


def test_adafactor_with_a_mean_of_updates_and_nothing_factored():
  """Like PaLM's: the first update is g / |g| times the norm of the parameter, and the mean takes
  a tenth of it."""
  params = {'a': {'kernel': jnp.full((2, 2), 3.0)}}
  grads = jax.tree.map(lambda x: jnp.ones((2, *x.shape)), params)
  config = Adafactor(peak=0.1, warmup=0, schedule='constant', weight_decay=0.0, clip=0.0,
                       factored=0, momentum=0.9)
  after = run(config, params, grads)['a']['kernel']
  first = 3 - 0.1 * 0.1 * 3
  np.testing.assert_allclose(after[0], first, rtol=1e-5)
  np.testing.assert_allclose(after[1], first - 0.1 * (0.9 * 0.1 * 3 + 0.1 * first), rtol=1e-5)
  large = {'a': {'kernel': jnp.ones((256, 128))}}
  assert 256 not in {x.size for x in jax.tree.leaves(make_optimizer(config, 10).init(large))}


def test_a_clock_of_tokens():
  """Two phases, of 10 steps with 2 tokens each and of 20 with 4: the warmup ends at step 5, the
  cosine at step 20."""
  config = AdamW(peak=1.0, warmup=10, horizon=60, clock='tokens', schedule='cosine', floor=0.1)
  rate = jax.vmap(make_schedule(config, 30, ((10, 2), (20, 4))))(jnp.arange(30))
  want = [n / 5 for n in range(5)]
  seen = np.array([*range(10, 20, 2), *range(20, 60, 4), *[60] * 10])
  want += list(0.55 + 0.45 * np.cos(np.pi * (seen - 10) / 50))
  np.testing.assert_allclose(rate, want, atol=1e-6)


def test_in_fairseq_all_parameters_decay():
  params = {'a': {'kernel': jnp.full(3, 2.0), 'bias': jnp.full(3, 2.0), 'scale': jnp.full(3, 2.0)}}
  grads = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), params)
  for power in (1.0, 2.0):
    config = AdamW(
        peak=0.5, warmup=0, weight_decay=0.1, decay_power=power, schedule='constant', exempt=())
    after = run(config, params, grads)['a']
    assert {name: x[0].tolist() for name, x in after.items()} == dict.fromkeys(
        params['a'], [pytest.approx(2 - 0.5 ** power * 0.1 * 2)] * 3)
  assert decay_mask(params, ('bias',)) == {'a': {'kernel': True, 'bias': False, 'scale': True}}


@pytest.mark.parametrize(('config', 'steps', 'points'), [
    # THUDM/GLM, config/ds_block_large.sh: --lr-decay-iters 160000 --lr-decay-ratio 0.05 --warmup
    # .05 (of these), and ds_block_large_chinese.sh; learning_rates.py subtracts the warmup from
    # where the cosine ends.
    (AdamW(peak=2e-4, warmup=8000, schedule='cosine', horizon=160_000, floor=0.05), 200_000,
     {4000: 1e-4, 8000: 2e-4, 84_000: 1.05e-4, 160_000: 1e-5, 199_999: 1e-5}),
    (AdamW(peak=4e-4, warmup=8000, schedule='cosine', horizon=200_000, floor=0.1), 250_000,
     {8000: 4e-4, 104_000: 2.2e-4, 200_000: 4e-5, 249_999: 4e-5}),
    # google-research/electra, model/optimization.py: the warmup is a factor of the line from step 0
    # on.
    (AdamW(peak=2e-4, warmup=10_000, schedule='electra'), 766_000,
     {0: 0, 5000: 1e-4 * 761 / 766, 10_000: 2e-4 * 756 / 766, 383_000: 1e-4}),
    # AnswerDotAI/ModernBERT, src/scheduler.py: OneMinusSqrtScheduler and
    # WarmupStableDecayScheduler.
    (AdamW(peak=4e-4, warmup=0, schedule='wsd', cooldown=100, floor=0.04), 100,
     {0: 4e-4, 25: 2.08e-4, 49: 4e-4 * (0.04 + 0.96 * 0.3)}),
    (AdamW(peak=8e-4, warmup=10, schedule='trapezoid', cooldown=50, floor=0.02), 100,
     {5: 4e-4, 10: 8e-4, 50: 8e-4, 75: 8e-4 * 0.51, 99: 8e-4 * (1 - 0.98 * 0.98)}),
    # JonasGeiping/cramming, backend/optimizers/schedulers.py: get_budget_triangle, from 0.25,
    # falling over 0.25.
    (AdamW(peak=1e-3, warmup=75, warmup_start=0.25, schedule='linear'), 100,
     {0: 2.5e-4, 30: 5.5e-4, 75: 1e-3, 80: 8e-4, 95: 2e-4})],
    ids=['glm', 'glm_chinese', 'electra', 'one_minus_sqrt', 'warmup_stable_decay', 'triangle'])
def test_schedules_of_released_code(config, steps, points):
  rate = make_schedule(config, steps)
  np.testing.assert_allclose([rate(step) for step in points], list(points.values()), rtol=1e-5)


def squares(grads, decay):
  """Mean squares of gradients [T, R, C] as Adafactor keeps them: of rows and columns, by numpy."""
  rows, columns = np.zeros(grads.shape[1]), np.zeros(grads.shape[2])
  for t, grad in enumerate(grads):
    keep = 1 - (t + 1.0) ** -decay
    rows = keep * rows + (1 - keep) * np.square(grad).mean(1)
    columns = keep * columns + (1 - keep) * np.square(grad).mean(0)
  return np.outer(rows, columns) / rows.mean()


@pytest.mark.slow
@pytest.mark.parametrize('layers', [0, 2])
def test_adafactor_merges_attention_heads_into_one_matrix(layers):
  """[D, H, A] and, on the way out, [H, A, D]; at rate 1 and size 1 an update is the gradient by the
  root of its mean square, as long as its own root mean square stays below 1."""
  draw = np.random.default_rng(0)
  shapes = {'query': (12, 3, 4), 'out': (3, 4, 12)}
  grads = {name: np.stack([[draw.normal(size=shape) for _ in range(max(layers, 1))]
                           for _ in range(3)])
           for name, shape in shapes.items()}
  if not layers:
    grads = {name: x[:, 0] for name, x in grads.items()}
  def tree(arrays):
    kernels = {'attention': {name: {'kernel': jnp.asarray(x, jnp.float32)}
                             for name, x in arrays.items()}}
    return {'layers': {'block': kernels}} if layers else {'block': kernels}
  params = tree({name: np.ones(x.shape[1:]) for name, x in grads.items()})
  config = Adafactor(
      peak=1.0, warmup=0, schedule='constant', weight_decay=0.0, clip=0.0, factored=12,
      heads='joined')
  optimizer = make_optimizer(config, 10)
  state = optimizer.init(params)
  sizes = sorted(x.size for x in jax.tree.leaves(state) if x.size >= 12)
  assert sizes == [12 * max(layers, 1)] * 4  # rows and columns of two kernels
  assert max(x.size for x in jax.tree.leaves(make_optimizer(
      Adafactor(factored=12), 10).init(params))) == 144 * max(layers, 1)
  for t in range(3):
    updates, state = optimizer.update(tree({name: x[t] for name, x in grads.items()}), state,
                                      params)
  got = updates['layers' if layers else 'block']
  got = (got['block'] if layers else got)['attention']
  for name, shape in shapes.items():
    for n in range(max(layers, 1)):
      all_of_it = grads[name][:, n] if layers else grads[name]
      matrices = all_of_it.reshape(3, 12, 12)
      update = matrices[-1] / np.sqrt(squares(matrices, 0.8))
      update /= max(1, np.sqrt(np.square(update).mean()))
      mine = got[name]['kernel'][n] if layers else got[name]['kernel']
      np.testing.assert_allclose(mine, -update.reshape(shape), rtol=1e-4)


def test_parts_are_clipped_each_by_itself():
  grads = {'generator': {'a': jnp.array([3.0, 4.0])}, 'backbone': jnp.array([0.6]),
           'heads_rtd': jnp.array([0.8])}
  clip = clip_gradients(1.0, (('generator',), ('backbone', 'heads_rtd')))
  got, _ = clip.update(grads, clip.init(grads))
  np.testing.assert_allclose(got['generator']['a'], [0.6, 0.8], rtol=1e-6)
  np.testing.assert_allclose([got['backbone'][0], got['heads_rtd'][0]], [0.6, 0.8], rtol=1e-6)
  together, _ = clip_gradients(1.0).update(grads, clip_gradients(1.0).init(grads))
  np.testing.assert_allclose(together['generator']['a'], np.array([3, 4]) / 26 ** 0.5, rtol=1e-6)


def test_each_parameter_is_clipped_by_itself():
  """TinyBERT's BertAdam: every tensor of every layer, here a row of a stacked one, has a norm of 1
  at most."""
  grads = {'layers': {'block': {'kernel': jnp.array([[3.0, 4.0], [0.3, 0.4]])}},
           'head': {'bias': jnp.array([0.0, 2.0])}}
  clip = clip_gradients(1.0, by='parameter')
  got, _ = clip.update(grads, clip.init(grads))
  np.testing.assert_allclose(got['layers']['block']['kernel'], [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
  np.testing.assert_allclose(got['head']['bias'], [0.0, 1.0], rtol=1e-6)
  zero = jax.tree.map(jnp.zeros_like, grads)
  jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0),
               clip.update(zero, clip.init(grads))[0])


def test_clipping_by_parameter_reaches_the_optimizer():
  """Adagrad's first step is g / sqrt(1 + g^2): of clipped gradients 1 and 0.5, each alone."""
  config = Adagrad(peak=1.0, warmup=0, schedule='constant', weight_decay=0.0, clip=1.0, eps=0.0,
                       clip_by='parameter')
  params = {'a': jnp.zeros(1), 'b': jnp.zeros(1)}
  got = run(config, params, {'a': jnp.array([[7.0]]), 'b': jnp.array([[0.5]])})
  np.testing.assert_allclose([got['a'][0, 0], got['b'][0, 0]], [-1 / 2 ** 0.5, -0.5 / 1.25 ** 0.5],
                             rtol=1e-5)


def test_lamb_of_ltg_bert_against_numpy():
  """ltgoslo/ltg-bert, babylm/train/lamb.py: bias correction; a ratio, with the decay, for what
  decays alone."""
  config = Lamb(peak=0.1, warmup=0, schedule='constant', b2=0.98, eps=1e-6, bias_correction=True,
                       weight_decay=0.1, clip=0.0)
  draw = np.random.default_rng(0)
  start = {'kernel': draw.normal(size=(3, 4)), 'bias': draw.normal(size=4)}
  grads = {name: draw.normal(size=(5, *x.shape)) for name, x in start.items()}
  got = run(config, *jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (start, grads)))
  for name, x in start.items():
    mean = square = 0.0
    for t, g in enumerate(grads[name]):
      mean, square = 0.9 * mean + 0.1 * g, 0.98 * square + 0.02 * g * g
      update = mean / (1 - 0.9 ** (t + 1)) / (np.sqrt(square / (1 - 0.98 ** (t + 1))) + 1e-6)
      if name == 'kernel':
        update = update + 0.1 * x
        update *= np.linalg.norm(x) / np.linalg.norm(update)
      x = x - 0.1 * update
      np.testing.assert_allclose(got[name][t], x, rtol=1e-4, atol=1e-6)


def test_an_optimizer_is_one_file_and_one_line(tmp_path, monkeypatch):
  """The example of docs/howto/adding.md: its options, help, stored configuration and updates."""
  page = (pathlib.Path(__file__).parents[2] / 'docs/howto/adding.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```', page, re.S)
  block = next(one for one in blocks if 'OptimConfig' in one)
  (tmp_path / 'signum.py').write_text(block)
  monkeypatch.syspath_prepend(tmp_path)
  signum = importlib.import_module('signum').Signum
  recipe = recipes.find_recipe('bert_base')
  with pytest.raises(ConfigError, match=r'optim\.kind is adamw, .* or muon, got'):
    parse(recipe, ['--optim.kind=signum'])

  monkeypatch.setitem(OPTIMIZERS, 'signum', signum)
  args = ['--scale=test', '--optim.kind=signum', '--optim.momentum=0.5', '--optim.peak=0.1']
  config = parse(recipe, args)
  assert config.optim == signum(momentum=0.5, peak=0.1, warmup=2, schedule='bert')
  assert config == plm_jax.recipe('bert_base', 'test',
                                  optim={'kind': 'signum', 'momentum': 0.5, 'peak': 0.1})
  assert serialization.from_json(json.loads(serialization.dump(config))) == config
  shown = {option.name: option for option in signatures.config_options(config)}
  assert 'signum: Sign of the momentum' in shown['optim.kind'].text
  assert shown['optim.momentum'].default == '0.5'
  with pytest.raises(ConfigError,
                     match=r'optim\.b2 would change nothing: optim\.kind is signum, not adamw'):
    parse(recipe, [*args, '--optim.b2=0.9'])
  after = run(dataclasses.replace(config.optim, warmup=0, schedule='constant', weight_decay=0.0,
                                  clip=0.0),
              {'kernel': jnp.zeros(2)},
              {'kernel': jnp.array([[4.0, -2.0], [-1.0, -1.0], [-8.0, 2.0]])})
  np.testing.assert_allclose(after['kernel'], [[-0.1, 0.1], [-0.2, 0.2], [-0.1, 0.1]], rtol=1e-6)
