"""Adapters as peft keeps them: names and shapes as its own files have them (peft 0.21), products as the run's own."""
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.conversion import peft
from plm_jax.layers.heads import WithHeads
from plm_jax.models import gpt2
from plm_jax.training import adapters
from plm_jax.training.adapters import AdapterConfig

files = pytest.importorskip('safetensors.numpy')

QUERY, OUT, DOWN = (f'base_model.model.bert.encoder.layer.{{}}.{name}' for name in (
    'attention.self.query', 'attention.output.dense', 'output.dense'))


def adapted(family, model, config):
  """Random parameters of a classifier, with an adapter."""
  heads = {'label': conversion.head_of(family, 'label', model, 3)}
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(WithHeads(model.backbone(), heads).init, jax.random.key(0), batch)['params']
  shapes = jax.eval_shape(lambda: adapters.add(jax.tree.map(lambda x: jnp.zeros(x.shape), shapes), config,
                                               jax.random.key(0)))
  def fixed(path, x):
    return jnp.full_like(x, config.factor) if path[-1].key == 'factor' else x
  return jax.tree_util.tree_map_with_path(fixed, tiny.random_params(shapes))


def saved(folder, params, config, family='bert', model=None):
  peft.save(folder, family, model or tiny.config(), params, config, 'base')
  return files.load_file(folder / 'adapter_model.safetensors'), json.loads((folder / 'adapter_config.json').read_text())


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
      name.format(layer).removeprefix('base_model.model.') for name in (QUERY, OUT, DOWN) for layer in (0, 1))
  assert said['modules_to_save'] == ['bert.pooler', 'classifier'] and said['task_type'] == 'SEQ_CLS'
  assert (said['peft_type'], said['r'], said['lora_alpha'], said['use_rslora'], said['use_dora'], said['bias'],
          said['fan_in_fan_out'], said['base_model_name_or_path']) == (
              'LORA', 2, 6.0, True, False, 'none', False, 'base')
  # What torch's Linear adds to its weight is what the merged kernel has more.
  whole, plain = (dict(conversion.tensors(conversion.family_of('bert').of(tiny.config()), tree))
                  for tree in (adapters.merged(params), adapters.without(params)))
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
  np.testing.assert_array_equal(found[f'{QUERY.format(1)}.lora_magnitude_vector'], np.asarray(own)[1].ravel())
  assert said['use_dora'] and not said['use_rslora']


def test_a_part_of_a_matrix_is_refused(tmp_path):
  """GPT-2 keeps query, key and value in one."""
  model = gpt2.small().resized(tiny.block(), 2, 96, 32)
  config = AdapterConfig(kind='lora', targets=('query', 'up'))
  with pytest.raises(conversion.ConvertError, match='attention/query/kernel: gpt2 keeps it in one matrix with others'):
    peft.save(tmp_path / 'a', 'gpt2', model, adapted('gpt2', model, config), config)
  assert not (tmp_path / 'a').exists()
  config = AdapterConfig(kind='lora', rank=2, targets=('up',))
  found, said = saved(tmp_path / 'b', adapted('gpt2', model, config), config, 'gpt2', model)
  assert found['base_model.model.transformer.h.1.mlp.c_fc.lora_B.weight'].shape == (model.block.mlp_dim, 2)
  assert said['fan_in_fan_out'] and said['modules_to_save'] == ['score']
