import dataclasses

from flax.linen import unbox
import jax
import jax.numpy as jnp
import pytest

from plm_jax.conversion import ConvertError, attributes
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.rope import DynamicScaling, LinearScaling, Llama3Scaling, Rope, YarnScaling
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM


def parameters(config):
  ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  model = ModelWithHeads(config.backbone(), CausalLM().heads(config))
  return count_parameters(
    unbox(jax.eval_shape(model.init, jax.random.key(0), dict(tokens=ids, segments=ids))['params'])
  )


@pytest.mark.parametrize(('size', 'number'), [
    ('llama_7b', 6_738_415_616), ('llama_13b', 13_015_864_320), ('llama_33b', 32_528_943_616),
    ('llama_65b', 65_285_660_672), ('llama2_7b', 6_738_415_616), ('llama2_13b', 13_015_864_320),
    ('llama2_70b', 68_976_648_192), ('llama3_8b', 8_030_261_248), ('llama3_70b', 70_553_706_496),
    ('llama31_8b', 8_030_261_248), ('llama31_70b', 70_553_706_496),
    ('llama31_405b', 405_853_388_800),
    ('llama32_1b', 1_235_814_400), ('llama32_3b', 3_212_749_824)])
def test_parameters_of_released_models(size, number):
  """Of transformers' LlamaForCausalLM, tied matrices counted once."""
  config = getattr(llama, size)()
  assert parameters(config) == number
  assert (
    attributes.parse_hf_config(
      llama.FAMILY, llama.normalize_hf_config(attributes.build_hf_attributes(llama.FAMILY, config))
    )
    == config
  )


def test_sizes_of_llama_match_the_paper():
  """Touvron et al. 2023, table 2: width, heads, layers."""
  configs = [llama.llama_7b(), llama.llama_13b(), llama.llama_33b(), llama.llama_65b()]
  assert [(c.block.width, c.block.heads, c.stack.layers) for c in configs] == [
      (4096, 32, 32), (5120, 40, 40), (6656, 52, 60), (8192, 64, 80)]


YARN = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=2048)
WAYS = [
    (dict(), Rope()),
    (dict(rope_theta=1e6), Rope(1e6)),
    (dict(rope_theta=1e6, rope_scaling=None), Rope(1e6)),
    (dict(rope_parameters=dict(rope_theta=5e5, rope_type='default')), Rope(5e5)),
    (dict(rope_theta=1.0, rope_parameters=dict(rope_theta=5e5, rope_type='default')), Rope(5e5)),
    (dict(rope_scaling=dict(type='linear', factor=4.0)), Rope(scaling=LinearScaling(4.0))),
    (dict(rope_scaling=dict(type='dynamic', rope_type='dynamic', factor=2.0)),
     Rope(scaling=DynamicScaling(2.0, 2048))),
    (dict(rope_parameters=dict(rope_type='llama3', rope_theta=5e5, factor=32.0, low_freq_factor=1.0,
                               high_freq_factor=4.0, original_max_position_embeddings=8192)),
     Rope(5e5, scaling=Llama3Scaling(32.0))),
    (dict(max_position_embeddings=8192, rope_scaling=YARN), Rope(scaling=YarnScaling(4.0, 2048))),
    (dict(rope_scaling={**YARN, 'beta_fast': 16, 'truncate': False, 'attention_factor': 1.5}),
     Rope(scaling=YarnScaling(4.0, 2048, 16.0, 1.0, False, 1.5))),
    (dict(rope_scaling={**YARN, 'mscale': 0.5, 'mscale_all_dim': 1.0}),
     Rope(scaling=YarnScaling(4.0, 2048, temperature=0.9391244))),
]


@pytest.mark.parametrize(('said', 'rope'), WAYS, ids=str)
def test_ways_to_write_rope(said, rope):
  found = llama.normalize_hf_config(said)['rope']
  assert found.theta == rope.theta and type(found.scaling) is type(rope.scaling)
  assert dataclasses.asdict(found.scaling) == pytest.approx(dataclasses.asdict(rope.scaling),
                                                            abs=1e-6)
  config = attributes.parse_hf_config(llama.FAMILY, llama.normalize_hf_config(said))
  assert (
    attributes.parse_hf_config(
      llama.FAMILY, llama.normalize_hf_config(attributes.build_hf_attributes(llama.FAMILY, config))
    )
    == config
  )


@pytest.mark.parametrize(('scaling', 'complaint'), [
    (dict(type='linear'), 'without factor'), (dict(type='longrope', factor=2.0), 'longrope'),
    (dict(type='linear', factor=2.0, turns=3), 'turns'),
    (dict(type='default', partial_rotary_factor=0.5), 'partial')])
def test_unknown_rope_types_are_refused(scaling, complaint):
  with pytest.raises(ConvertError, match=complaint):
    llama.normalize_hf_config(dict(rope_scaling=scaling))


def test_head_size_and_biases_are_read():
  said = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
              intermediate_size=96,
              attention_bias=True, mlp_bias=True)
  config = attributes.parse_hf_config(llama.FAMILY, llama.normalize_hf_config(said))
  block = config.block
  assert (block.head_dim, block.key_heads, block.attention.bias,
          block.mlp.bias) == (32, 2, llama.PROJECTIONS, True)
  assert said.items() <= attributes.build_hf_attributes(llama.FAMILY, config).items()
