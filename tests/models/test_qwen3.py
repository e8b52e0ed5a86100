"""Qwen3: published sizes, its configuration in files, and exports. Values of transformers' class
are in tests/golden/qwen3."""
import pytest
import small_decoders

from plm_jax.layers.rope import Rope, YarnScaling
from plm_jax.models import qwen3
from plm_jax.models.rules import ConvertError

# config.json of Qwen/Qwen3-0.6B-Base.
RELEASED = dict(
    architectures=['Qwen3ForCausalLM'], attention_bias=False, attention_dropout=0.0,
    bos_token_id=151643, eos_token_id=151643, head_dim=128, hidden_act='silu', hidden_size=1024,
    initializer_range=0.02, intermediate_size=3072, max_position_embeddings=32768,
    max_window_layers=28, model_type='qwen3', num_attention_heads=16, num_hidden_layers=28,
    num_key_value_heads=8, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000,
    sliding_window=None, tie_word_embeddings=True, torch_dtype='bfloat16',
    transformers_version='4.51.0', use_cache=True, use_sliding_window=False, vocab_size=151936)
FULL, SLIDING = 'full_attention', 'sliding_attention'


@pytest.mark.parametrize(('size', 'number', 'billions'), [
    ('qwen3_0_6b', 596_049_920, 0.44), ('qwen3_1_7b', 1_720_574_976, 1.4),
    ('qwen3_4b', 4_022_468_096, 3.6), ('qwen3_8b', 8_190_735_360, 6.95)])
def test_parameters_as_published(size, number, billions):
  """Model cards: parameters, and those outside of the embeddings."""
  config = getattr(qwen3, size)()
  found, others = small_decoders.count('qwen3', config)
  assert found == number and abs(others / 1e9 - billions) < 0.05
  assert small_decoders.parse('qwen3', small_decoders.write('qwen3', config)) == config


def test_released_and_transformers_5_configurations_are_equal():
  assert small_decoders.parse('qwen3', RELEASED) == qwen3.qwen3_0_6b()
  new = {name: value for name, value in RELEASED.items() if not name.startswith('rope')}
  new |= dict(rope_parameters={'rope_theta': 1000000, 'rope_type': 'default'},
              layer_types=[FULL] * 28)
  assert small_decoders.parse('qwen3', new) == qwen3.qwen3_0_6b()
  longer = {**RELEASED, 'max_position_embeddings': 131072, 'rope_scaling': {
      'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32768}}
  position = small_decoders.parse('qwen3', longer).block.attention.position
  assert position == Rope(1e6, scaling=YarnScaling(4.0, 32768))
  # Defaults of transformers: heads of 128, whatever the hidden size.
  block = small_decoders.parse('qwen3', {'hidden_size': 1024}).block
  assert (block.head_dim, block.heads, block.key_heads) == (128, 32, 32)


def test_windows_are_of_the_layers_that_have_them():
  windowed = {**RELEASED, 'num_hidden_layers': 4, 'use_sliding_window': True,
              'sliding_window': 512}
  assert small_decoders.parse('qwen3', windowed).windows == ()
  later = small_decoders.parse('qwen3', {**windowed, 'max_window_layers': 1})
  assert later.windows == (0, 512, 512, 512)
  written = small_decoders.write('qwen3', later)
  assert written['layer_types'] == [FULL] + [SLIDING] * 3
  assert (written['use_sliding_window'], written['sliding_window'],
          written['max_window_layers']) == (True, 512, 1)
  own = small_decoders.parse('qwen3', {**windowed, 'layer_types': [SLIDING, FULL] * 2})
  assert own.windows == (512, 0)


@pytest.mark.parametrize(('said', 'message'), [
    (dict(layer_types=[FULL]), 'layer_types is'),
    (dict(layer_types=[SLIDING] * 28), 'sliding_window is None'),
    (dict(rope_scaling={'rope_type': 'longrope'}), "rope of type 'longrope'"),
    (dict(mlp_bias=True), 'unknown attribute mlp_bias')])
def test_unsupported_attributes_of_qwen3_are_refused(said, message):
  with pytest.raises(ConvertError, match=message):
    small_decoders.parse('qwen3', {**RELEASED, **said})


def test_models_that_their_class_cannot_hold_are_refused():
  small = small_decoders.shrink(qwen3.qwen3_0_6b())
  for changes, message in (
      ({'windows': (2, 3)}, r'sliding windows of one size, not \[2, 3\]'),
      ({'block.attention.qk_norm': False}, r'block\.attention\.qk_norm'),
      ({'rotated': (True, False)}, 'rotated')):
    with pytest.raises(ConvertError, match=message):
      small_decoders.write('qwen3', small_decoders.shrink(small, **changes))


@pytest.mark.parametrize(('head', 'changes'), [
    ('lm', {}), ('lm', {'tied': False, 'block.head_size': 6, 'windows': (0, 4)}),
    ('tags', {'block.attention.bias': ('query', 'key', 'value', 'out')}), ('span', {})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  config = small_decoders.shrink(qwen3.qwen3_0_6b(), **changes)
  names = small_decoders.assert_there_and_back(tmp_path, 'qwen3', config, head)
  prefix = 'transformer' if head == 'span' else 'model'
  assert f'{prefix}.layers.2.self_attn.q_norm.weight' in names


@pytest.mark.slow
def test_transformers_reads_exports_of_qwen3(tmp_path):
  config = small_decoders.shrink(
      qwen3.qwen3_0_6b(), **{'tied': False, 'block.head_size': 6, 'windows': (0, 4)})
  small_decoders.assert_transformers_agrees(tmp_path, 'qwen3', config)


def test_bfloat16_is_within_its_error():
  """The same model in transformers has an error of 0.0125 in bfloat16."""
  assert small_decoders.bfloat16_error('qwen3/generate') < 0.025
