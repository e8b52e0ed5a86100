"""SmolLM2 and SmolLM3: published sizes, the configuration in files, and exports. Values of
transformers' class are in tests/golden/smollm3."""
import dataclasses

import pytest
import small_decoders

from plm_jax.models import smollm3
from plm_jax.models.rules import ConvertError

# config.json of HuggingFaceTB/SmolLM2-135M.
SMOLLM2 = dict(
    architectures=['LlamaForCausalLM'], attention_bias=False, attention_dropout=0.0, bos_token_id=0,
    eos_token_id=0, hidden_act='silu', hidden_size=576, initializer_range=0.041666666666666664,
    intermediate_size=1536, is_llama_config=True, max_position_embeddings=8192, model_type='llama',
    num_attention_heads=9, num_hidden_layers=30, num_key_value_heads=3, pretraining_tp=1,
    rms_norm_eps=1e-5, rope_interleaved=False, rope_scaling=None, rope_theta=100000,
    tie_word_embeddings=True, torch_dtype='bfloat16', transformers_version='4.40.1', use_cache=True,
    vocab_size=49152)
# config.json of HuggingFaceTB/SmolLM3-3B-Base.
SMOLLM3 = dict(
    architectures=['SmolLM3ForCausalLM'], attention_bias=False, attention_dropout=0.0,
    bos_token_id=128000, eos_token_id=128001, hidden_act='silu', hidden_size=2048,
    initializer_range=0.02, intermediate_size=11008, layer_types=['full_attention'] * 36,
    max_position_embeddings=65536, max_window_layers=28, mlp_bias=False, model_type='smollm3',
    no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9, num_attention_heads=16,
    num_hidden_layers=36, num_key_value_heads=4, pad_token_id=128004, pretraining_tp=2,
    rms_norm_eps=1e-6, rope_scaling=None, rope_theta=5000000.0, sliding_window=None,
    tie_word_embeddings=True, torch_dtype='bfloat16', transformers_version='4.54.0',
    use_cache=True, use_sliding_window=False, vocab_size=128256)


def with_plain_init(config):
  """Return a configuration with the initialization that files state: the deviation alone."""
  init = dataclasses.replace(smollm3.FAMILY.config.block.init, std=config.block.init.std)
  return dataclasses.replace(config, block=dataclasses.replace(config.block, init=init))


@pytest.mark.parametrize(('family', 'size', 'number'), [
    ('llama', 'smollm2_135m', 134_515_008), ('llama', 'smollm2_360m', 361_821_120),
    ('llama', 'smollm2_1_7b', 1_711_376_384), ('smollm3', 'smollm3_3b', 3_075_098_624)])
def test_parameters_of_released_models(family, size, number):
  config = getattr(smollm3, size)()
  assert small_decoders.count(family, config)[0] == number
  found = small_decoders.parse(family, small_decoders.write(family, config))
  assert with_plain_init(found) == with_plain_init(config)


def test_released_configurations_are_the_sizes():
  for family, said, size in (('llama', SMOLLM2, smollm3.smollm2_135m()),
                             ('smollm3', SMOLLM3, smollm3.smollm3_3b())):
    assert with_plain_init(small_decoders.parse(family, said)) == with_plain_init(size)
  # Defaults of transformers.
  assert small_decoders.parse('smollm3', {}).rotated == (True, True, True, False)
  assert small_decoders.parse('smollm3', {}).block.attention.position.theta == 2_000_000


def test_layers_without_positions_and_their_windows():
  """By default, the sliding window is that of layers without positions."""
  said = dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=512,
              no_rope_layer_interval=2)
  found = small_decoders.parse('smollm3', said)
  assert (found.rotated, found.windows) == ((True, False), (0, 512))
  written = small_decoders.write('smollm3', found)
  assert written['no_rope_layers'] == [1, 0, 1, 0]
  assert small_decoders.parse('smollm3', written) == found
  every = small_decoders.parse('smollm3', {**said, 'no_rope_layers': [1] * 4})
  assert (every.rotated, every.windows) == ((), ())


@pytest.mark.parametrize(('said', 'message'), [
    (dict(no_rope_layers=[1, 0]), 'no_rope_layers is'),
    (dict(no_rope_layers=[2] * 36), 'no_rope_layers is'),
    (dict(layer_types=['sliding_attention'] * 36), 'sliding_window is None')])
def test_unsupported_attributes_of_smollm3_are_refused(said, message):
  with pytest.raises(ConvertError, match=message):
    small_decoders.parse('smollm3', {**SMOLLM3, **said})


@pytest.mark.parametrize(('head', 'changes'), [
    ('lm', {'rotated': (True, False), 'windows': (0, 4)}),
    ('lm', {'tied': False, 'rotated': ()}), ('label', {'block.mlp.bias': True}), ('tags', {})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  config = small_decoders.shrink(
      smollm3.smollm3_3b(), **{'rotated': (True, True, False), **changes})
  small_decoders.assert_there_and_back(tmp_path, 'smollm3', config, head)


@pytest.mark.slow
def test_transformers_reads_exports_of_smollm3(tmp_path):
  config = small_decoders.shrink(
      smollm3.smollm3_3b(), rotated=(False, True), windows=(5, 0), tied=False)
  small_decoders.assert_transformers_agrees(tmp_path, 'smollm3', config)


def test_bfloat16_is_within_its_error():
  """The same model in transformers has an error of 0.0140 in bfloat16."""
  assert small_decoders.bfloat16_error('smollm3/generate') < 0.028
