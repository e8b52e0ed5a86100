"""GPT, GPT-2, GPT-3 and GPT-Neo: published sizes, and export and import."""
import dataclasses
import json

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import gpt, gpt2

BATCH = {'tokens': jnp.zeros((1, 8), jnp.int32), 'segments': jnp.ones((1, 8), jnp.int32)}


def parameters(config) -> int:
  return count_parameters(
      unbox(jax.eval_shape(lambda: config.backbone().init(jax.random.key(0), BATCH)['params'])))


@pytest.mark.parametrize(('config', 'number'), [
    (gpt.base(), 116_534_784), (gpt2.small(), 124_439_808), (gpt2.medium(), 354_823_168),
    (gpt2.large(), 774_030_080),
    (gpt2.xl(), 1_557_611_200), (gpt2.gpt_neo_125m(), 125_198_592),
    (gpt2.gpt_neo_1_3b(), 1_315_575_808),
    (gpt2.gpt_neo_2_7b(), 2_651_307_520)])
def test_parameters_of_released_checkpoints(config, number):
  assert parameters(config) == number


@pytest.mark.parametrize(('config', 'millions'), [
    (gpt2.gpt3_small(), 125), (gpt2.gpt3_medium(), 356), (gpt2.gpt3_large(), 760),
    (gpt2.gpt3_xl(), 1_320),
    (gpt2.gpt3_2_7b(), 2_650),
    (gpt2.gpt3_6_7b(), 6_660), (gpt2.gpt3_13b(), 12_850), (gpt2.gpt3_175b(), 174_600)])
def test_parameters_of_gpt3(config, millions):
  """Brown et al. 2020, table D.1, which has three digits, or four."""
  assert abs(parameters(config) / 1e6 / millions - 1) < 0.004


def small(family: str, **changes):
  """The family's configuration, so small that its arrays can be looked at."""
  config = conversion.get_family(family).config
  block = dataclasses.replace(config.block, width=16, heads=2, mlp_dim=64)
  stack = dataclasses.replace(config.stack, layers=4)
  return dataclasses.replace(config, vocab=30, max_length=24, block=block, stack=stack, **changes)


def parameters_of(family: str, config, heads):
  kind = conversion.get_family(family)
  model = ModelWithHeads(config.backbone(),
                         {name: kind.heads[name].make(config, 3) for name in heads})
  return tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), BATCH)['params'])


@pytest.mark.slow
@pytest.mark.parametrize(('family', 'heads', 'cls'), [
    ('openai-gpt', ('lm',), 'OpenAIGPTLMHeadModel'),
    ('openai-gpt', ('lm', 'choice'), 'OpenAIGPTDoubleHeadsModel'),
    ('gpt2', ('lm',), 'GPT2LMHeadModel'), ('gpt2', ('lm', 'choice'), 'GPT2DoubleHeadsModel'),
    ('gpt2', ('label',), 'GPT2ForSequenceClassification'), ('gpt3', ('lm',), 'GPT2LMHeadModel'),
    ('gpt_neo', ('lm',), 'GPTNeoForCausalLM'),
    ('gpt_neo', ('tags',), 'GPTNeoForTokenClassification')])
def test_there_and_back(family, heads, cls, tmp_path):
  """A tied head has no parameters, so only the class shows that it exists."""
  files = pytest.importorskip('safetensors.numpy')
  config = small(family)
  params = parameters_of(family, config, heads)
  conversion.save(tmp_path / 'out', config, params, like=family)
  said = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert (said['model_type'], said['architectures']) == (family, [cls])
  names = files.load_file(tmp_path / 'out' / 'model.safetensors').keys()
  assert 'lm_head.weight' not in names and all(
      name.startswith(('transformer.h.', 'transformer.')) or name.split('.')[0] in (
          'score', 'classifier', 'multiple_choice_head') for name in names)
  back = conversion.load(tmp_path / 'out')
  assert set(back.heads) == set(heads) and back.config == config
  tiny.assert_same(back.params, params)


def test_an_untied_head_has_a_matrix(tmp_path):
  files = pytest.importorskip('safetensors.numpy')
  config = small('gpt2', tied=False)
  params = parameters_of('gpt2', config, ('lm',))
  conversion.save(tmp_path / 'out', config, params, like='gpt2')
  matrix = files.load_file(tmp_path / 'out' / 'model.safetensors')['lm_head.weight']
  np.testing.assert_array_equal(matrix, np.asarray(params['heads_lm']['kernel']).T)
  tiny.assert_same(conversion.load(tmp_path / 'out').params, params)


def test_a_tied_matrix_under_its_other_name(tmp_path):
  """Some files have only the output matrix, some both: the export equals the import."""
  files = pytest.importorskip('safetensors.numpy')
  config, table = small('gpt2'), 'transformer.wte.weight'
  params = parameters_of('gpt2', config, ('lm',))
  conversion.save(tmp_path / 'in', config, params, like='gpt2')
  path = tmp_path / 'in' / 'model.safetensors'
  tensors = files.load_file(path)
  for number, names in enumerate((('lm_head.weight',), ('lm_head.weight', table))):
    given = {name: x for name, x in tensors.items() if name
             != table} | dict.fromkeys(names, tensors[table])
    files.save_file(given, path)
    imported = conversion.load(tmp_path / 'in')
    tiny.assert_same(imported.params, params)
    conversion.save(tmp_path / f'out{number}', imported.config, imported.params, like=imported)
    assert files.load_file(tmp_path / f'out{number}' / 'model.safetensors').keys() == given.keys()


def test_names_of_the_hub(tmp_path):
  """Released files: no prefix, and the mask of every layer among the tensors."""
  files = pytest.importorskip('safetensors.numpy')
  config = small('gpt2')
  params = parameters_of('gpt2', config, ('lm',))
  conversion.save(tmp_path / 'in', config, params, like='gpt2')
  path = tmp_path / 'in' / 'model.safetensors'
  tensors = {name.removeprefix('transformer.'): x for name, x in files.load_file(path).items()}
  files.save_file(tensors | {f'h.{n}.attn.bias': np.tril(np.ones((1, 1, 24, 24), np.float32))
                             for n in range(4)}, path)
  said = json.loads((tmp_path / 'in' / 'config.json').read_text())
  (tmp_path / 'in' / 'config.json').write_text(json.dumps({**said, 'n_ctx': 24}))
  imported = conversion.load(tmp_path / 'in')
  tiny.assert_same(imported.params, params)
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  assert files.load_file(tmp_path / 'out' / 'model.safetensors').keys() == tensors.keys()


@pytest.mark.slow
def test_repeating_window_patterns_are_exported_compactly(tmp_path):
  pytest.importorskip('safetensors')
  for number, windows in enumerate(((), (0, 6), (6, 6, 0, 0), (0, 6, 6, 6))):
    config = small('gpt_neo', windows=windows)
    conversion.save(tmp_path / f'{number}', config, parameters_of('gpt_neo', config, ()),
                    like='gpt_neo')
    assert conversion.load(tmp_path / f'{number}').config.windows == windows
  said = json.loads((tmp_path / '2' / 'config.json').read_text())
  assert said['attention_layers'] == ['local', 'local', 'global',
                                      'global'] and said['window_size'] == 6
  with pytest.raises(conversion.ConvertError, match='windows of several sizes'):
    conversion.save(tmp_path / 'x', small('gpt_neo', windows=(3, 6)),
                    parameters_of('gpt_neo', config, ()),
                    like='gpt_neo')


def test_settings_without_a_counterpart_in_gpt_are_not_exported(tmp_path):
  config = small('openai-gpt')
  config = dataclasses.replace(config, block=dataclasses.replace(config.block, mlp_dim=48))
  with pytest.raises(conversion.ConvertError,
                     match=r'block\.mlp_dim is 48, which they have at 64 only'):
    conversion.save(tmp_path / 'x', config, parameters_of('openai-gpt', config, ()),
                    like='openai-gpt')
