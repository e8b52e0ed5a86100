"""Gemma 2: published sizes, its configuration in files, and exports. Values of transformers' class
are in tests/golden/gemma2."""
import pytest
import small_decoders

from plm_jax.models import gemma2
from plm_jax.models.rules import ConvertError

# config.json of google/gemma-2-2b.
RELEASED = dict(
    architectures=['Gemma2ForCausalLM'], attention_bias=False, attention_dropout=0.0,
    attn_logit_softcapping=50.0, bos_token_id=2, cache_implementation='hybrid', eos_token_id=1,
    final_logit_softcapping=30.0, head_dim=256, hidden_act='gelu_pytorch_tanh',
    hidden_activation='gelu_pytorch_tanh', hidden_size=2304, initializer_range=0.02,
    intermediate_size=9216, max_position_embeddings=8192, model_type='gemma2',
    num_attention_heads=8, num_hidden_layers=26, num_key_value_heads=4, pad_token_id=0,
    query_pre_attn_scalar=256, rms_norm_eps=1e-6, rope_theta=10000.0, sliding_window=4096,
    torch_dtype='float32', transformers_version='4.42.4', use_cache=True, vocab_size=256000)


@pytest.mark.parametrize(('size', 'number', 'others'), [
    ('gemma2_2b', 2_614_341_888, 2_024_517_888), ('gemma2_9b', 9_241_705_984, 8_324_201_984),
    ('gemma2_27b', 27_227_128_320, 26_047_480_320)])
def test_parameters_as_published(size, number, others):
  """Gemma Team 2024, table 2."""
  config = getattr(gemma2, size)()
  assert small_decoders.count('gemma2', config) == (number, others)
  assert small_decoders.parse('gemma2', small_decoders.write('gemma2', config)) == config


def test_released_and_transformers_5_configurations_are_equal():
  assert small_decoders.parse('gemma2', RELEASED) == gemma2.gemma2_2b()
  new = {name: value for name, value in RELEASED.items() if name != 'rope_theta'}
  new |= dict(layer_types=['sliding_attention', 'full_attention'] * 13,
              rope_parameters={'rope_theta': 10000.0, 'rope_type': 'default'})
  assert small_decoders.parse('gemma2', new) == gemma2.gemma2_2b()
  assert small_decoders.parse('gemma2', {}) == gemma2.gemma2_2b()
  uncapped = small_decoders.parse('gemma2', {
      **RELEASED, 'attn_logit_softcapping': None, 'final_logit_softcapping': None})
  assert (uncapped.block.attention.logit_cap, uncapped.logit_cap) == (None, None)
  assert small_decoders.write('gemma2', uncapped)['final_logit_softcapping'] is None


def test_a_cap_that_gemma3_lacks_is_not_lost():
  config = small_decoders.shrink(gemma2.gemma2_2b())
  with pytest.raises(ConvertError, match='logit_cap'):
    small_decoders.write('gemma3_text', config)


@pytest.mark.parametrize('head', ['lm', 'label', 'tags'])
def test_an_export_is_read_as_the_same(tmp_path, head):
  config = small_decoders.shrink(gemma2.gemma2_2b(), windows=(4, 0))
  names = small_decoders.assert_there_and_back(tmp_path, 'gemma2', config, head)
  assert 'model.layers.2.post_feedforward_layernorm.weight' in names


@pytest.mark.slow
def test_transformers_reads_exports_of_gemma2(tmp_path):
  config = small_decoders.shrink(gemma2.gemma2_2b(), **{
      'windows': (4, 0), 'block.head_size': 6, 'block.attention.scale': 20 ** -0.5,
      'block.attention.logit_cap': 3.0, 'logit_cap': 5.0})
  small_decoders.assert_transformers_agrees(tmp_path, 'gemma2', config)


def test_bfloat16_of_gemma2_is_within_its_error():
  """The same model in transformers has an error of 0.0115 in bfloat16."""
  assert small_decoders.bfloat16_error('gemma2/lm_steps') < 0.023
