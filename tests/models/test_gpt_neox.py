"""GPT-NeoX and Pythia: published sizes, the configuration in files, and exports. Values of
transformers' class are in tests/golden/gpt_neox."""
import dataclasses

import pytest
import small_decoders

from plm_jax.layers.rope import DynamicScaling, Rope
from plm_jax.models import gpt_neox
from plm_jax.models.rules import ConvertError

# config.json of EleutherAI/pythia-160m.
RELEASED = dict(
    architectures=['GPTNeoXForCausalLM'], bos_token_id=0, eos_token_id=0, hidden_act='gelu',
    hidden_size=768, initializer_range=0.02, intermediate_size=3072, layer_norm_eps=1e-5,
    max_position_embeddings=2048, model_type='gpt_neox', num_attention_heads=12,
    num_hidden_layers=12, rotary_emb_base=10000, rotary_pct=0.25, tie_word_embeddings=False,
    torch_dtype='float16', transformers_version='4.24.0', use_cache=True,
    use_parallel_residual=True, vocab_size=50304)


@pytest.mark.parametrize(('size', 'number', 'others'), [
    ('14m', 14_067_712, 1_189_888), ('31m', 30_494_720, 4_739_072),
    ('70m', 70_426_624, 18_915_328), ('160m', 162_322_944, 85_056_000),
    ('410m', 405_334_016, 302_311_424), ('1b', 1_011_781_632, 805_736_448),
    ('1_4b', 1_414_647_808, 1_208_602_624), ('2_8b', 2_775_208_960, 2_517_652_480),
    ('6_9b', 6_857_302_016, 6_444_163_072), ('12b', 11_846_072_320, 11_327_027_200)])
def test_parameters_as_published(size, number, others):
  """Biderman et al. 2023, table 1: those outside of the embeddings. 14M and 31M came later."""
  config = getattr(gpt_neox, f'pythia_{size}')()
  assert small_decoders.count('gpt_neox', config) == (number, others)
  assert small_decoders.parse('gpt_neox', small_decoders.write('gpt_neox', config)) == (
      dataclasses.replace(config, block=dataclasses.replace(
          config.block, init=dataclasses.replace(
              gpt_neox.FAMILY.config.block.init, std=config.block.init.std))))


def test_gpt_neox_20b_has_20_billion_parameters():
  assert small_decoders.count('gpt_neox', gpt_neox.gpt_neox_20b())[0] == 20_554_567_680


def test_initial_weights_are_small_and_wang():
  """gpt-neox, init_functions.py: sqrt(2 / (5 D)) and 2 / (L sqrt(D))."""
  init = gpt_neox.pythia_410m().block.init
  assert init.std == pytest.approx((2 / (5 * 1024)) ** 0.5)
  assert init.out_std == pytest.approx(2 / 24 / 1024 ** 0.5)


def test_released_and_transformers_5_configurations_are_equal():
  found = small_decoders.parse('gpt_neox', RELEASED)
  assert found.block.init.std == 0.02  # of released files, whatever the training had
  assert dataclasses.replace(
      found, block=dataclasses.replace(found.block, init=gpt_neox.pythia_160m().block.init)
  ) == gpt_neox.pythia_160m()
  new = {name: value for name, value in RELEASED.items() if not name.startswith('rotary')}
  new |= dict(attention_bias=True, hidden_dropout=0.0, attention_dropout=0.0, is_decoder=False,
              rope_parameters={'rope_theta': 10000, 'rope_type': 'default',
                               'partial_rotary_factor': 0.25})
  assert small_decoders.parse('gpt_neox', new) == found
  # Defaults of transformers.
  assert small_decoders.parse('gpt_neox', {}).block.attention.position == Rope(share=0.25)


def test_scaled_rope_is_written_as_it_is_read():
  said = {**RELEASED, 'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}
  found = small_decoders.parse('gpt_neox', said)
  assert found.max_length == 4096
  assert found.block.attention.position == Rope(
      share=0.25, scaling=DynamicScaling(2.0, 2048))
  written = small_decoders.write('gpt_neox', found)
  assert (written['max_position_embeddings'], written['rotary_pct']) == (2048, 0.25)
  assert small_decoders.parse('gpt_neox', written) == found


@pytest.mark.parametrize(('said', 'message'), [
    (dict(rotary_pct=0.0), 'share is a number above 0'),
    (dict(hidden_act='quick_gelu'), 'hidden_act'),
    (dict(num_key_value_heads=2), 'unknown attribute num_key_value_heads')])
def test_unsupported_attributes_of_gpt_neox_are_refused(said, message):
  with pytest.raises((ConvertError, ValueError), match=message):
    small_decoders.parse('gpt_neox', {**RELEASED, **said})


def test_parallel_blocks_with_one_norm_are_refused():
  """Those of PaLM."""
  small = small_decoders.shrink(gpt_neox.pythia_160m(), **{'block.parallel_norms': False})
  with pytest.raises(ConvertError, match=r'block\.parallel_norms'):
    small_decoders.write('gpt_neox', small)


@pytest.mark.parametrize(('head', 'changes'), [
    ('lm', {}), ('lm', {'tied': True, 'block.parallel': False}),
    ('tags', {'block.attention.bias': ()}), ('span', {}), ('label', {})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  config = small_decoders.shrink(gpt_neox.pythia_160m(), **changes)
  names = small_decoders.assert_there_and_back(tmp_path, 'gpt_neox', config, head)
  assert 'gpt_neox.layers.2.attention.query_key_value.weight' in names
  # Versions of transformers before 5 look for this name.
  assert ('embed_out.weight' in names) == (head == 'lm' and not config.tied)


@pytest.mark.slow
@pytest.mark.parametrize('parallel', [True, False])
def test_transformers_reads_exports_of_gpt_neox(tmp_path, parallel):
  config = small_decoders.shrink(gpt_neox.pythia_160m(), **{
      'block.parallel': parallel, 'block.attention.position': Rope(500.0, 0.5)})
  small_decoders.assert_transformers_agrees(tmp_path, 'gpt_neox', config)


def test_bfloat16_is_within_its_error():
  """The same model in transformers has an error of 0.0085 in bfloat16."""
  assert small_decoders.bfloat16_error('gpt_neox/generate') < 0.017
