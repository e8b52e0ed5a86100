"""Gemma 3: published sizes, its configuration in files, and exports. Values of transformers' class
are in tests/golden/gemma3."""
import pytest
import small_decoders

from plm_jax.layers.rope import LinearScaling, Rope, TwoRopes
from plm_jax.models import gemma3
from plm_jax.models.rules import ConvertError

# config.json of google/gemma-3-1b-pt.
RELEASED = dict(
    architectures=['Gemma3ForCausalLM'], attention_bias=False, attention_dropout=0.0,
    attn_logit_softcapping=None, bos_token_id=2, cache_implementation='hybrid',
    eos_token_id=[1, 106], final_logit_softcapping=None, head_dim=256,
    hidden_activation='gelu_pytorch_tanh', hidden_size=1152, initializer_range=0.02,
    intermediate_size=6912, max_position_embeddings=32768, model_type='gemma3_text',
    num_attention_heads=4, num_hidden_layers=26, num_key_value_heads=1, pad_token_id=0,
    query_pre_attn_scalar=256, rms_norm_eps=1e-6, rope_local_base_freq=10000, rope_scaling=None,
    rope_theta=1000000, sliding_window=512, sliding_window_pattern=6, torch_dtype='bfloat16',
    transformers_version='4.50.0.dev0', use_cache=True, vocab_size=262144)
FULL, SLIDING = 'full_attention', 'sliding_attention'


@pytest.mark.parametrize(('size', 'number', 'others'), [
    ('gemma3_270m', 268_098_176, 100_326_016), ('gemma3_1b', 999_885_952, 697_896_064)])
def test_parameters_as_published(size, number, others):
  """Gemma Team 2025, table 1: 302M of embeddings and 698M others; 270M: 170M and 100M."""
  config = getattr(gemma3, size)()
  assert small_decoders.count('gemma3_text', config) == (number, others)
  assert small_decoders.parse('gemma3_text', small_decoders.write('gemma3_text', config)) == config


def test_released_and_transformers_5_configurations_are_equal():
  assert small_decoders.parse('gemma3_text', RELEASED) == gemma3.gemma3_1b()
  old = ('rope_theta', 'rope_local_base_freq', 'rope_scaling', 'sliding_window_pattern')
  new = {name: value for name, value in RELEASED.items() if name not in old}
  new |= dict(layer_types=([SLIDING] * 5 + [FULL]) * 4 + [SLIDING] * 2, rope_parameters={
      FULL: {'rope_theta': 1000000, 'rope_type': 'default'},
      SLIDING: {'rope_theta': 10000, 'rope_type': 'default'}}, use_bidirectional_attention=False)
  found = small_decoders.parse('gemma3_text', new)
  assert found == gemma3.gemma3_1b() and found.windows == (512,) * 5 + (0,)
  scaled = {**RELEASED, 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}}
  position = small_decoders.parse('gemma3_text', scaled).block.attention.position
  assert position == TwoRopes(Rope(1e6, scaling=LinearScaling(8.0)), Rope())
  # Defaults of transformers.
  assert small_decoders.parse('gemma3_text', {}).embed_factor == 2304 ** 0.5


def test_windows_of_a_small_model_have_two_tokens_at_least():
  model = gemma3.gemma3_270m()
  assert model.resize(model.block, 2, 64, 64).windows == (2, 2, 2, 2, 2, 0)
  assert model.resize(model.block, 2, 64, 256).windows == (4, 4, 4, 4, 4, 0)


def test_logits_have_their_own_factor():
  said = {**RELEASED, 'query_pre_attn_scalar': 168}
  found = small_decoders.parse('gemma3_text', said)
  assert found.block.attention.scale == 168 ** -0.5
  assert small_decoders.write('gemma3_text', found)['query_pre_attn_scalar'] == 168


@pytest.mark.parametrize(('said', 'message'), [
    (dict(is_causal=False), 'is_causal is False'),
    (dict(attn_logit_softcapping=50.0), r'attn_logit_softcapping is 50\.0'),
    (dict(final_logit_softcapping=30.0), r'final_logit_softcapping is 30\.0'),
    (dict(layer_types=[SLIDING] * 26, sliding_window=None), 'sliding_window is None')])
def test_unsupported_attributes_of_gemma3_are_refused(said, message):
  with pytest.raises(ConvertError, match=message):
    small_decoders.parse('gemma3_text', {**RELEASED, **said})


def test_models_that_their_class_cannot_hold_are_refused():
  small = gemma3.gemma3_270m()
  for changes, message in (
      ({'embed_factor': 2.0}, 'embed_factor is the root of the hidden size there'),
      ({'block.attention.scale': 0.3}, r'block\.attention\.scale is 0\.3'),
      ({'block.norm_at': 'pre'}, r'block\.norm_at'),
      ({'block.norm.kind': 'rms'}, r'block\.norm\.kind')):
    with pytest.raises(ConvertError, match=message):
      small_decoders.write('gemma3_text', small_decoders.shrink(small, **changes))


@pytest.mark.parametrize(('head', 'changes'), [
    ('lm', {'windows': (4, 0)}),
    ('lm', {'tied': False, 'block.head_size': 6, 'block.attention.scale': 20 ** -0.5}),
    ('label', {})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  config = small_decoders.shrink(gemma3.gemma3_270m(), **{'windows': (4, 4, 0), **changes})
  names = small_decoders.assert_there_and_back(tmp_path, 'gemma3_text', config, head)
  assert 'model.layers.2.post_feedforward_layernorm.weight' in names


@pytest.mark.slow
def test_transformers_reads_exports_of_gemma3(tmp_path):
  config = small_decoders.shrink(gemma3.gemma3_270m(), **{
      'windows': (4, 0, 4), 'block.head_size': 6, 'block.attention.scale': 20 ** -0.5})
  small_decoders.assert_transformers_agrees(tmp_path, 'gemma3_text', config)


def test_bfloat16_is_within_its_error():
  """The same model in transformers has an error of 0.0120 in bfloat16."""
  assert small_decoders.bfloat16_error('gemma3/generate') < 0.024
