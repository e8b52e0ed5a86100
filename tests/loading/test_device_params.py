"""Parameters are copied to the device once, and results never use parameters that were replaced."""
import copy
import dataclasses
import gc
import pickle
from typing import Any
import weakref

from flax.core import freeze
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ready

import plm_jax
from plm_jax.loading import device_params
from plm_jax.sharding import MeshConfig

TEXTS = ['ana came home', 'bo had a dull book']
CALLS = {
    'encode': ('bert', lambda model: plm_jax.encode(model, TEXTS)),
    'fill_mask': ('bert', lambda model: [
        p for row in plm_jax.fill_mask(model, 'ana [MASK] home')[0] for _, p in row]),
    'likelihood': ('bert', lambda model: plm_jax.likelihood(model, TEXTS)),
    'generate': ('gpt2', lambda model: plm_jax.generate(model, TEXTS, max_new=4,
                                                        beams=2)[0][0].score),
    'score': ('gpt2', lambda model: plm_jax.score(model, [('ana came', ' home')])),
    'elmo': ('elmo', lambda model: plm_jax.encode(model, TEXTS)),
    'predict': ('classification',
                lambda model: plm_jax.predict(model, 'a fine film')[0].probability),
}


def halved(params):
  return jax.tree.map(lambda x: np.asarray(x) * 0.5, params)


@pytest.mark.parametrize('name', CALLS)
def test_replaced_parameters_are_used(name):
  """A new tree, new subtrees, and new arrays in the tree: each gives the results of a new
  model."""
  kind, call = CALLS[name]
  model = ready.model(kind)
  before = call(model)
  want = call(dataclasses.replace(model, params=halved(model.params)))
  assert not np.allclose(before, want)
  np.testing.assert_array_equal(call(model), before)
  model.params.update(halved(model.params))
  np.testing.assert_array_equal(call(model), want)
  replace_arrays(model.params, lambda x: x * 2)
  np.testing.assert_array_equal(call(model), before)


def replace_arrays(tree, change):
  for name, value in tree.items():
    if isinstance(value, dict):
      replace_arrays(value, change)
    else:
      tree[name] = change(value)


def test_host_arrays_move_once_and_stay():
  model = ready.model('gpt2')
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(model.params))
  tree = model.params
  plm_jax.generate(model, 'ana', max_new=2)
  assert model.params is tree
  leaves = jax.tree.leaves(model.params)
  forms = device_params.CACHES[model].forms
  made = {key: id(form) for key, form in forms.items()}
  plm_jax.generate(model, 'ana', max_new=2)
  plm_jax.encode(model, 'ana')
  assert all(old is new for old, new in zip(leaves, jax.tree.leaves(model.params), strict=True))
  assert {key: id(form) for key, form in forms.items()} == made


def test_later_writes_to_an_array_do_not_change_the_model():
  model = ready.model('bert')
  arrays = jax.tree.leaves(model.params)
  before = plm_jax.encode(model, TEXTS)
  for array in arrays:
    array[...] = 0
  np.testing.assert_array_equal(plm_jax.encode(model, TEXTS), before)
  with pytest.raises((TypeError, ValueError)):
    jax.tree.leaves(model.params)[0][...] = 0


def test_load_gives_device_arrays(tmp_path):
  plm_jax.export(ready.model('bert'), tmp_path / 'bert')
  model: Any = plm_jax.load(tmp_path / 'bert')
  assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(model.params))


@pytest.mark.parametrize('kind', ['bert', 'gpt2', 'classification'])
def test_memory_is_released_with_the_model(kind):
  model = ready.model(kind)
  call = {'bert': CALLS['likelihood'], 'gpt2': CALLS['generate'],
          'classification': CALLS['predict']}[kind][1]
  call(model)
  if kind != 'classification':
    plm_jax.encode(model, TEXTS)
  arrays = [weakref.ref(x) for x in jax.tree.leaves(model.params)]
  arrays += [weakref.ref(x) for form in device_params.CACHES[model].forms.values()
             for x in jax.tree.leaves(form)]
  gone = weakref.ref(model)
  del model
  gc.collect()
  assert gone() is None
  assert not any(array() is not None for array in arrays)


def test_forms_of_replaced_parameters_are_released():
  model = ready.model('gpt2')
  plm_jax.generate(model, 'ana', max_new=2)
  form, = device_params.CACHES[model].forms.values()
  old = [weakref.ref(x) for x in jax.tree.leaves(form)]
  del form
  model.params.update(halved(model.params))
  plm_jax.encode(model, 'ana')
  gc.collect()
  assert not any(array() is not None for array in old)


def test_models_can_be_copied_and_pickled():
  model = ready.model('classification')
  want = plm_jax.predict(model, 'a fine film')
  for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    assert plm_jax.predict(other, 'a fine film') == want


def test_other_mappings_and_types():
  model = ready.model('bert')
  want = plm_jax.encode(model, TEXTS)
  frozen = dataclasses.replace(model, params=freeze(jax.tree.map(np.asarray, model.params)))
  np.testing.assert_array_equal(plm_jax.encode(frozen, TEXTS), want)
  half = dataclasses.replace(model, params=jax.tree.map(
      lambda x: np.asarray(x).astype(jnp.bfloat16), model.params))
  found = plm_jax.encode(half, TEXTS)
  assert {x.dtype for x in jax.tree.leaves(half.params)} == {jnp.dtype(jnp.bfloat16)}
  np.testing.assert_allclose(found, want, atol=0.1)


@pytest.mark.parametrize(('kind', 'call'), [
    ('bert', lambda model: plm_jax.encode(model, TEXTS)),
    pytest.param('bert', lambda model: plm_jax.likelihood(model, TEXTS), marks=pytest.mark.slow),
    pytest.param('gpt2', lambda model: [row[0].tokens
                                        for row in plm_jax.generate(model, TEXTS, max_new=4)],
                 marks=pytest.mark.slow)])
def test_a_sharded_model_stays_sharded(kind, call, tmp_path):
  plm_jax.export(ready.model(kind), tmp_path / 'model')
  whole: Any = plm_jax.load(tmp_path / 'model')
  model: Any = plm_jax.load(tmp_path / 'model', MeshConfig(1, fsdp=2, tensor=2))
  before = [(x, x.sharding) for x in jax.tree.leaves(model.params)]
  assert any(not sharding.is_fully_replicated for _, sharding in before)
  for _ in range(2):
    np.testing.assert_allclose(call(model), call(whole), rtol=1e-3, atol=1e-4)
  assert all(old is new for (old, _), new in zip(before, jax.tree.leaves(model.params),
                                                 strict=True))
  model.params.update(halved(model.params))  # host arrays, which go to all devices
  whole.params.update(halved(whole.params))
  np.testing.assert_allclose(call(model), call(whole), rtol=1e-3, atol=1e-4)
