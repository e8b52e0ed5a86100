import dataclasses
import functools
from typing import Any

from flax.linen import Partitioned
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.layers.dense import Dense, count_parameters
from plm_jax.models import t5
from plm_jax.optim import adapters
from plm_jax.optim.adapters import AdapterConfig
from plm_jax.optim.trainable import ParameterError, ParameterSelection
from plm_jax.optim.tuning import freeze_lower_layers
from plm_jax.training import step

KINDS = 'lora', 'rslora', 'dora'
ALL = 'query', 'key', 'value', 'out', 'up', 'down'


@functools.cache
def learner(kind, dropout=0.0, **changes):
  config = AdapterConfig(kind=kind, rank=2, alpha=6.0, targets=ALL, dropout=dropout)
  still = {'dropout': 0.0, 'attention.dropout': 0.0}
  return dataclasses.replace(
      tiny.learner(**still, **changes), adapter=config,
      select=ParameterSelection(adapters=kind != 'none'))


@functools.cache
def setting(kind, dropout=0.0):
  """Return (learner, random parameters, a batch)."""
  one, windows = learner(kind, dropout), tiny.windows(4)
  shapes = jax.eval_shape(lambda: step.init_state(one, windows).params)
  batch = jax.jit(lambda windows: one.objective.corrupt(one.key('corruption'), windows,
                                                        tiny.VOCAB))(windows)
  drawn = tiny.random_params(shapes)
  def factors(path, x):
    name = path[-1].key
    fixed = {'factor': one.adapter.factor, 'dropout': dropout}
    return jnp.full_like(x, fixed[name]) if name in fixed else 3 + x if name == 'magnitude' else x
  return one, jax.tree_util.tree_map_with_path(factors, drawn), batch


@pytest.mark.parametrize('kind', KINDS)
def test_dense_by_hand(kind):
  draw = np.random.default_rng(0)
  x, kernel, down, up = (draw.normal(size=size)
                         for size in ((5, 4, 3), (4, 3, 7), (4, 3, 2), (2, 7)))
  adapter = {'down': down, 'up': up, 'factor': np.array(1.5)}
  whole = kernel + 1.5 * np.einsum('abr,rc->abc', down, up)
  if kind == 'dora':
    adapter['magnitude'] = draw.normal(size=7)
    whole *= adapter['magnitude'] / np.sqrt((whole ** 2).sum((0, 1)))
  dense = Dense((7,), ('heads', None, 'width'), bias=True)
  params = jax.tree.map(jnp.asarray, {'kernel': kernel, 'bias': np.arange(7.0), 'adapter': adapter})
  want = np.einsum('xab,abc->xc', x, whole) + np.arange(7)
  got: Any = dense.apply({'params': params}, x)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['lora', 'dora'])  # rslora is lora with another factor
def test_merged_parameters_answer_as_those_with_adapters(kind):
  one, params, batch = setting(kind)
  run = jax.jit(lambda params: one.model.apply({'params': params}, batch))
  plain = adapters.merge(params)
  assert not any('adapter' in name for name in tiny.flat(plain))
  tiny.assert_close(run(params), run(plain), 2e-5)
  assert np.abs(run(params)['mlm'] - run(adapters.remove(params))['mlm']).max() > 0.1


@pytest.mark.parametrize('kind', KINDS)
def test_a_model_begins_as_it_was(kind):
  params = {'backbone': {'stack': {'layers': {'block': {'attention': {'query': {
      'kernel': jax.random.normal(jax.random.key(0), (3, 8, 2, 4))}}}}}}}
  with_some = adapters.add(params, AdapterConfig(kind=kind, rank=4, targets=('query',)),
                           jax.random.key(1))
  tiny.assert_close(adapters.merge(with_some), params, 1e-6)
  tiny.assert_same(adapters.remove(with_some), params)
  tiny.assert_same(adapters.attach(params, with_some), with_some)
  query = with_some['backbone']['stack']['layers']['block']['attention']['query']['adapter']
  assert query['down'].shape == (3, 8, 4) and query['up'].shape == (3, 4, 2, 4) and not query[
      'up'].any()
  # Kaiming's uniform draw with a = sqrt(5): sqrt(6 / (1 + 5) / inputs); each layer its own.
  assert 0.9 * 8 ** -0.5 < np.abs(query['down']).max() <= 8 ** -0.5 and (
      query['down'][0] != query['down'][1]).all()
  assert query['factor'].tolist() == [{'rslora': 4.0}.get(kind, 2.0)] * 3


def test_dora_begins_with_the_kernel_of_a_warm_start():
  kernel = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
  module = {'kernel': kernel, 'adapter': {'magnitude': np.ones((2, 4), np.float32)}}
  got = adapters.init_magnitudes({'backbone': {'up': module}})['backbone']['up']['adapter'][
      'magnitude']
  np.testing.assert_allclose(got, np.sqrt((kernel ** 2).sum(1)), rtol=1e-6)


def test_boxes_name_the_axes_of_adapters():
  one = learner('dora')
  params = jax.eval_shape(lambda: step.init_state(one, tiny.windows(2)).params)
  attention = params['backbone']['stack']['layers']['block']['attention']
  names = {name: {part: box.names for part, box in attention[name]['adapter'].items()}
           for name in ('query', 'out')}
  assert names == {
      'query': {'down': (None, 'width', None), 'up': (None, None, 'heads', None), 'factor': (None,),
                'magnitude': (None, 'heads', None)},
      'out': {'down': (None, 'heads', None, None), 'up': (None, None, 'width'), 'factor': (None,),
              'magnitude': (None, 'width')}}
  boxed = lambda x: isinstance(x, Partitioned)
  assert all(map(boxed, jax.tree.leaves(attention, is_leaf=boxed)))


def test_numbers_of_parameters():
  """By hand: width 32, mlp 64, two layers; rank 2. LoRA's default is queries and values."""
  def trained(config):
    one = dataclasses.replace(learner('lora'), adapter=config)
    params = jax.eval_shape(lambda: step.init_state(one, tiny.windows(2)).params)
    chosen = ParameterSelection(adapters=True)(tiny.unbox(params))
    return sum(x.size for yes, x in zip(jax.tree.leaves(chosen['backbone']), jax.tree.leaves(
        tiny.unbox(params)['backbone']), strict=True) if yes.all()), count_parameters(params)
  square, oblong = 2 * (32 + 32), 2 * (32 + 64)
  plain = count_parameters(jax.eval_shape(lambda: step.init_state(learner('none'),
                                                                  tiny.windows(2)).params))
  # One factor a layer and projection is no number that is trained.
  assert trained(AdapterConfig(kind='lora', rank=2)) == (2 * 2 * square,
                                                         plain + 2 * 2 * square + 2 * 2)
  assert trained(AdapterConfig(kind='dora', rank=2,
                               targets=ALL))[0] == 2 * (4 * (square + 32) + 2 * oblong + 64 + 32)


def test_only_projections_of_layers_are_targets():
  with pytest.raises(ParameterError, match='no projection of a layer is called pooler'):
    adapters.add({'backbone': {'pooler': {'kernel': np.ones((2, 2))}}},
                 AdapterConfig(targets=('pooler',)), None)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['lora', 'dora'])  # rslora is lora with another factor
def test_adapters_and_heads_alone_have_a_gradient(kind):
  one, params, batch = setting(kind)
  grads = jax.jit(lambda params: step.compute_gradient(one, params, batch, one.key('dropout'))[0])(
      params)
  moved = {name for name, g in tiny.flat(grads).items() if np.any(g)}
  of_adapters = {name for name in tiny.flat(params) if '/adapter/' in name
                 and not name.endswith('factor')}
  assert {name for name in moved if name.startswith('backbone')} == of_adapters
  assert all('heads_' in name for name in moved - of_adapters)


@pytest.mark.slow
def test_adapter_dropout_follows_the_example():
  one, params, batch = setting('lora', 0.5)
  @jax.jit
  def run(key, batch, rows):
    outputs: Any = one.model.apply({'params': params}, batch, rows, rngs={'dropout': key})
    return outputs['mlm']
  rows = np.arange(4)
  first = run(one.key('dropout'), batch, rows)
  assert np.abs(first - run(jax.random.key(5), batch, rows)).max() > 0.1
  order = np.array([2, 0, 3, 1])
  np.testing.assert_allclose(run(one.key('dropout'), tiny.take(batch, order), order), first[order],
                             atol=1e-4)


def test_gradients_stop_below_the_lowest_trained_layer():
  model = tiny.config(layers=4)
  assert [freeze_lower_layers(model, top).stack.frozen
          for top in (-1, 0, 1, 3, 4, 9)] == [0, 0, 3, 1, 0, 0]
  both = [freeze_lower_layers(t5.small(), top) for top in (2, 8)]
  assert [(one.stack.frozen, one.decoder.frozen) for one in both] == [(0, 4), (4, 0)]
  assert freeze_lower_layers(tiny.config(layers=4, groups=1), 2).stack.frozen == 0
