import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from plm_jax.models import bart, deberta, xlnet
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.optim.optimizers import AdamW, make_schedule
from plm_jax.optim.trainable import (
  ParameterError,
  ParameterSelection,
  count_trained,
  depths_below_head,
)
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training import step
from plm_jax.training.warm_start import reinitialize_top


def tree():
  """An encoder of three layers, as small as it gets."""
  block = {'attention': {'query': {'kernel': np.ones((3, 2)), 'bias': np.ones((3, 1))}}}
  embeddings, norm = {'tokens': np.ones(4), 'norm': {'scale': np.ones(1)}}, {'scale': np.ones(1)}
  return {'backbone': {'embeddings': embeddings, 'pooler': {'bias': np.ones(1)},
                       'stack': {'layers': {'block': block}, 'norm': norm}},
          'heads_label': {'dense': {'bias': np.ones(2)}}}


def factors(config, params):
  """Return the ratios of the update of a gradient of ones to the update without these
  settings."""
  def updates(config):
    optimizer = make_optimizer(dataclasses.replace(config, warmup=0, schedule='constant', clip=0.0),
                               10)
    return jax.jit(lambda: optimizer.update(jax.tree.map(np.ones_like, params),
                                            optimizer.init(params), params)[0])()
  plain = updates(dataclasses.replace(config, layer_decay=1.0))
  return {name: np.asarray(x).ravel().tolist() for name, x in tiny.flat(
      jax.tree.map(lambda got, want: np.round(got / want, 6), updates(config), plain)).items()}


def test_layer_wise_learning_rates_decay_as_in_electra():
  """_get_layer_lrs of three layers: heads are at depth 5, layers at 3, 2, 1, embeddings at 0."""
  got = factors(AdamW(layer_decay=0.5), tree())
  layers = 'backbone/stack/layers/block/attention/query'
  assert got == {
      'heads_label/dense/bias': [1, 1], 'backbone/pooler/bias': [1],
      f'{layers}/kernel': [1 / 16, 1 / 16, 1 / 8, 1 / 8, 1 / 4, 1 / 4],
      f'{layers}/bias': [1 / 16, 1 / 8, 1 / 4],
      'backbone/stack/norm/scale': [1 / 4], 'backbone/embeddings/tokens': [1 / 32] * 4,
      'backbone/embeddings/norm/scale': [1 / 32]}


def test_trained_parameters_are_counted_by_layer():
  assert [
    count_trained(select, tree())
    for select in (ParameterSelection(), ParameterSelection(top=1), ParameterSelection(top=0))
  ] == [18, 7, 2]


def shapes(model):
  batch = {name: np.ones((1, 8), np.int32)
           for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}
  backbone = model.backbone(False)
  return {'backbone': jax.eval_shape(lambda: tiny.unbox(
      backbone.init(jax.random.key(0), batch)['params']))}


def small(model, **more):
  return model.resize(tiny.block(**more), 2, 96, 16)


def test_depths_of_an_encoder_decoder_continue_from_encoder_to_decoder():
  got = tiny.flat(depths_below_head(shapes(bart.base().resize(bart.base().block, 2, 96, 16))))
  query = 'stack/layers/block/attention/query/kernel'
  assert {name: x.tolist() for name, x in got.items() if query in name or 'positions' in name} == {
      f'backbone/encoder/{query}': [5, 4], f'backbone/decoder/{query}': [3, 2],
      'backbone/encoder/embeddings/positions': 6, 'backbone/decoder/embeddings/positions': 6}
  assert got['backbone/tokens'] == 6


@pytest.mark.parametrize('model', [deberta.v3_small, xlnet.base])
def test_layers_are_found_in_every_wiring(model):
  model = model()
  model = dataclasses.replace(model, stack=dataclasses.replace(model.stack, layers=3), vocab=96)
  got = tiny.flat(depths_below_head(shapes(model)))
  own = {name: x.tolist() for name, x in got.items() if '/block/' in name}
  assert len(own) > 10 and set(map(tuple, own.values())) == {(4, 3, 2)}
  assert {int(x) for name, x in got.items() if '/block/' not in name
          and 'pooler' not in name} == {5}


def test_shared_layers_count_as_the_last_layer_that_uses_them():
  block = {'attention': np.ones((1, 2)), 'mlp': np.ones((4, 2))}
  got = depths_below_head({'backbone': {'stack': {'layers': {'block': block}}}})['backbone'][
      'stack']['layers']['block']
  assert got['attention'].tolist() == [2] and got['mlp'].tolist() == [5, 4, 3, 2]


def test_gradual_unfreezing_starts_from_the_top():
  params = tree()
  optimizer = make_optimizer(AdamW(peak=0.1, warmup=0, schedule='constant', unfreeze=2), 20)
  state, grads, moved = optimizer.init(params), jax.tree.map(np.ones_like, params), []
  update = jax.jit(optimizer.update)
  for _ in range(9):
    updates, state = update(grads, state, params)
    moved.append({name: np.asarray(x).astype(bool).reshape(len(x), -1).all(1).tolist()
                  for name, x in tiny.flat(updates).items()})
  layers = [at['backbone/stack/layers/block/attention/query/kernel'] for at in moved]
  assert all(at['heads_label/dense/bias'] == [True] * 2 for at in moved)
  want = [[False] * 3] * 2 + [[False, False, True]] * 2 + [[False, True, True]] * 2 + [
      [True] * 3] * 3
  assert layers == want
  assert [at['backbone/embeddings/tokens'][0] for at in moved] == [False] * 8 + [True]


def test_the_slanted_triangle_of_ulmfit():
  """Equation 3 with T 100, cut_frac 0.1, ratio 32."""
  config = AdamW(peak=0.01, schedule='slanted', warmup=10, floor=1 / 32)
  def theirs(t):
    cut = 10
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / 0.1 - 1))
    return 0.01 * (1 + p * (32 - 1)) / 32
  steps = np.arange(100)
  np.testing.assert_allclose(make_schedule(config, 100)(steps), [theirs(t) for t in steps],
                             rtol=1e-5)


def chosen(select, params):
  return {name: x.tolist() for name, x in tiny.flat(select(params)).items()}


def test_top_layers_are_trained_with_the_head():
  layers = 'backbone/stack/layers/block/attention/query'
  none = chosen(ParameterSelection(top=0), tree())
  assert {name for name, x in none.items() if np.any(x)} == {'heads_label/dense/bias'}
  two = chosen(ParameterSelection(top=2), tree())
  assert two[f'{layers}/kernel'] == two[f'{layers}/bias'] == [False, True, True]
  assert two['backbone/pooler/bias'] and two['backbone/stack/norm/scale'] and not two[
      'backbone/embeddings/tokens']
  assert all(np.all(x) for x in chosen(ParameterSelection(top=-1), tree()).values())


def test_biases_alone_by_a_pattern():
  """BitFit (Ben Zaken et al. 2022)."""
  got = chosen(ParameterSelection(only=('**/bias', 'heads_*')), tree())
  assert {name for name, x in got.items() if np.any(x)} == {
      'heads_label/dense/bias', 'backbone/pooler/bias',
      'backbone/stack/layers/block/attention/query/bias'}
  with pytest.raises(ParameterError, match=r'no parameter is called \'\*\*/gain\''):
    ParameterSelection(only=('**/gain',))(tree())


STILL: dict[str, Any] = {'dropout': 0.0, 'attention.dropout': 0.0}


def learner(select, frozen=0, **changes):
  one = tiny.learner(layers=2, scan=False, **STILL, **changes)
  model = tiny.config(layers=2, scan=False, **STILL)
  model = dataclasses.replace(model, stack=dataclasses.replace(model.stack, frozen=frozen))
  return dataclasses.replace(one, select=select, model=MaskedLM().build(model, packed=False))


def flops(learner, params, batch):
  gradient = jax.jit(lambda params: step.compute_gradient(learner, params, batch,
                                                          learner.key('dropout'))[0])
  counted: Any = gradient.lower(params).compile().cost_analysis()
  return counted['flops']


@functools.cache
def setting():
  windows = tiny.windows(4)
  one = learner(ParameterSelection())
  batch = jax.device_get(jax.jit(lambda windows: one.objective.corrupt(one.key('corruption'),
                                                                       windows, tiny.VOCAB))(
                                                                           windows))
  params = tiny.random_params(jax.eval_shape(lambda: step.init_state(one, windows).params))
  return params, batch


@pytest.mark.slow
def test_what_stays_costs_no_gradient():
  """A third of the products is left, or less, where a head alone learns; with one of two layers it
  is between."""
  params, batch = setting()
  whole = flops(learner(ParameterSelection()), params, batch)
  heads = flops(learner(ParameterSelection(only=('heads_nsp',))), params, batch)
  half = flops(learner(ParameterSelection(top=1), frozen=1), params, batch)
  assert 0.25 < heads / whole < 0.36
  assert 0.55 < half / whole < 0.75


@pytest.mark.slow
@pytest.mark.parametrize('accumulate', [1, 2])
def test_the_rest_of_the_gradient_does_not_change(accumulate):
  params, batch = setting()
  def gradient(learner):
    return jax.device_get(jax.jit(lambda: step.compute_gradient(learner, params, batch,
                                                                learner.key('dropout'))[0])())

  whole, top = (
    gradient(learner(ParameterSelection())),
    gradient(learner(ParameterSelection(top=1), frozen=1, accumulate=accumulate)),
  )
  rows = ParameterSelection(top=1)(params)
  want = jax.tree.map(lambda rows, g: g * rows.reshape(-1, *[1] * (g.ndim - 1)) if rows.ndim else g
                      * rows, rows, whole)
  tiny.assert_close(top, want)
  assert all(not np.any(g[~np.broadcast_to(r.reshape(-1, *[1] * (g.ndim - 1)) if r.ndim else r,
                                           g.shape)])
             for r, g in zip(jax.tree.leaves(rows), jax.tree.leaves(top), strict=True))




def test_top_layers_and_the_pooler_are_reinitialized():
  """Zhang et al. 2021, section 4; the head is always new, and lower layers are kept."""
  old, new = tree(), jax.tree.map(lambda x: -x, tree())
  got = tiny.flat(reinitialize_top(old, new, 2))
  layers = 'backbone/stack/layers/block/attention/query'
  assert {name: np.asarray(x).ravel().tolist() for name, x in got.items()} == {
      'heads_label/dense/bias': [1, 1], 'backbone/pooler/bias': [-1],
      'backbone/stack/norm/scale': [-1],
      f'{layers}/kernel': [1, 1, -1, -1, -1, -1], f'{layers}/bias': [1, -1, -1],
      'backbone/embeddings/tokens': [1] * 4, 'backbone/embeddings/norm/scale': [1]}
