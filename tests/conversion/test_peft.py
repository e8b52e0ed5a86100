"""Adapters as peft keeps them: names and shapes as its own files have them (peft 0.21), products as
the run's own."""
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.conversion import peft
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import gpt2
from plm_jax.optim import adapters
from plm_jax.optim.adapters import AdapterConfig

files = pytest.importorskip('safetensors.numpy')

QUERY, OUT, DOWN = (f'base_model.model.bert.encoder.layer.{{}}.{name}' for name in (
    'attention.self.query', 'attention.output.dense', 'output.dense'))


def adapted(family, model, config):
  """Random parameters of a classifier, with an adapter."""
  heads = {'label': conversion.build_head(family, 'label', model, 3)}
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), heads).init, jax.random.key(0),
                          batch)['params']
  shapes = jax.eval_shape(lambda: adapters.add(jax.tree.map(lambda x: jnp.zeros(x.shape), shapes),
                                               config,
                                               jax.random.key(0)))
  def fixed(path, x):
    return jnp.full_like(x, config.factor) if path[-1].key == 'factor' else x
  return jax.tree_util.tree_map_with_path(fixed, tiny.random_params(shapes))


def saved(folder, params, config, family='bert', model=None):
  peft.save_adapter(folder, family, model or tiny.config(), params, config, 'base')
  return files.load_file(folder / 'adapter_model.safetensors'), json.loads(
      (folder / 'adapter_config.json').read_text())


def test_names_shapes_and_products(tmp_path):
  config = AdapterConfig(kind='rslora', rank=2, alpha=6.0, targets=('query', 'out', 'down'))
  params = adapted('bert', tiny.config(), config)
  found, said = saved(tmp_path / 'a', params, config)
  shapes = {name: x.shape for name, x in found.items() if '.1.' in name}
  assert shapes == {
      f'{QUERY.format(1)}.lora_A.weight': (2, 32), f'{QUERY.format(1)}.lora_B.weight': (32, 2),
      f'{OUT.format(1)}.lora_A.weight': (2, 32), f'{OUT.format(1)}.lora_B.weight': (32, 2),
      f'{DOWN.format(1)}.lora_A.weight': (2, 64), f'{DOWN.format(1)}.lora_B.weight': (32, 2)}
  assert sorted(name for name in found if '.layer.' not in name) == [
      'base_model.model.bert.pooler.dense.bias', 'base_model.model.bert.pooler.dense.weight',
      'base_model.model.classifier.bias', 'base_model.model.classifier.weight']
  assert said['target_modules'] == sorted(
      name.format(layer).removeprefix('base_model.model.') for name in (QUERY, OUT, DOWN)
      for layer in (0, 1))
  assert said['modules_to_save'] == ['bert.pooler', 'classifier'] and said['task_type'] == 'SEQ_CLS'
  assert (said['peft_type'], said['r'], said['lora_alpha'], said['use_rslora'], said['use_dora'],
          said['bias'],
          said['fan_in_fan_out'], said['base_model_name_or_path']) == (
              'LORA', 2, 6.0, True, False, 'none', False, 'base')
  # The difference between the merged and the plain kernel is the adapter's product in torch.
  whole, plain = (
      dict(conversion.export_tensors(conversion.get_family('bert').specialize(tiny.config()), tree))
                  for tree in (adapters.merge(params), adapters.remove(params)))
  for name in (QUERY, OUT, DOWN):
    place = name.format(1)
    more = 6.0 / 2 ** 0.5 * found[f'{place}.lora_B.weight'] @ found[f'{place}.lora_A.weight']
    weight = f'{place.removeprefix("base_model.model.")}.weight'
    np.testing.assert_allclose(plain[weight] + more, whole[weight], rtol=1e-4, atol=1e-5)


def test_lengths_of_dora(tmp_path):
  config = AdapterConfig(kind='dora', rank=2, alpha=6.0, targets=('query',))
  params = adapted('bert', tiny.config(), config)
  found, said = saved(tmp_path / 'a', params, config)
  own = params['backbone']['stack']['layers']['block']['attention']['query']['adapter']['magnitude']
  np.testing.assert_array_equal(found[f'{QUERY.format(1)}.lora_magnitude_vector'],
                                np.asarray(own)[1].ravel())
  assert said['use_dora'] and not said['use_rslora']


@pytest.mark.parametrize(('kind', 'targets'), [
    ('lora', ('query', 'value', 'up')), ('rslora', ('query', 'key', 'value')),
    ('dora', ('value',))])
def test_kernels_in_one_matrix_share_an_adapter(tmp_path, kind, targets):
  """GPT-2 stores query, key and value in one Conv1D, whose adapter has the sum of their ranks."""
  model = gpt2.small().resize(tiny.block(), 2, 96, 32)
  config = AdapterConfig(kind=kind, rank=2, alpha=6.0, targets=targets)
  params = adapted('gpt2', model, config)
  found, said = saved(tmp_path / 'b', params, config, 'gpt2', model)
  parts = len({*targets} - {'up'})
  whole, plain = (dict(conversion.export_tensors(conversion.get_family('gpt2').specialize(model),
                                                 tree))
                  for tree in (adapters.merge(params), adapters.remove(params)))
  for layer in range(2):
    name = f'transformer.h.{layer}.attn.c_attn'
    place = f'base_model.model.{name}'
    assert found[f'{place}.lora_A.weight'].shape == (2 * parts, 32)
    assert found[f'{place}.lora_B.weight'].shape == (96, 2 * parts)
    rank, alpha = said['rank_pattern'].get(name, said['r']), said['alpha_pattern'].get(
        name, said['lora_alpha'])
    assert rank == 2 * parts
    scale = alpha / (rank ** 0.5 if kind == 'rslora' else rank)
    got = plain[f'{name}.weight'] + scale * (
        found[f'{place}.lora_B.weight'] @ found[f'{place}.lora_A.weight']).T
    if kind == 'dora':
      got = got / np.linalg.norm(got, axis=0) * found[f'{place}.lora_magnitude_vector']
    np.testing.assert_allclose(got, whole[f'{name}.weight'], rtol=1e-4, atol=1e-5)
  assert said['fan_in_fan_out'] and said['modules_to_save'] == ['score']
  assert ('transformer.h.1.mlp.c_fc' in said['target_modules']) is ('up' in targets)
