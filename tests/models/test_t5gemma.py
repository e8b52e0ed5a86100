"""T5Gemma: published sizes, its configuration in files, and exports. Values of transformers' class
are in tests/golden/t5gemma."""
import json

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_decoders
import tiny

from plm_jax import conversion, validation
from plm_jax.errors import ConfigError
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.generation_config import read_generation_defaults
from plm_jax.models import t5gemma
from plm_jax.models.families import boxed_parameter_shapes
from plm_jax.models.rules import ConvertError

# A side of google/t5gemma-2b-2b-prefixlm.
SIDE = dict(
    attention_bias=False, attention_dropout=0.0, attn_logit_softcapping=50.0, bos_token_id=2,
    dropout_rate=0.0, eos_token_id=1, final_logit_softcapping=30.0, head_dim=256,
    hidden_activation='gelu_pytorch_tanh', hidden_size=2304, initializer_range=0.02,
    intermediate_size=9216, is_decoder=False,
    layer_types=['sliding_attention', 'full_attention'] * 13, max_position_embeddings=8192,
    model_type='t5_gemma_module', num_attention_heads=8, num_hidden_layers=26,
    num_key_value_heads=4, pad_token_id=0, query_pre_attn_scalar=256, rms_norm_eps=1e-6,
    rope_theta=10000.0, sliding_window=4096, torch_dtype='bfloat16', use_cache=True,
    vocab_size=256000)
RELEASED = dict(
    architectures=['T5GemmaForConditionalGeneration'], attention_dropout=0.0, bos_token_id=2,
    classifier_dropout_rate=0.0, encoder=SIDE,
    decoder={**SIDE, 'is_decoder': True, 'cross_attention_hidden_size': 2304}, dropout_rate=0.0,
    eos_token_id=1, initializer_range=0.02, is_encoder_decoder=True, model_type='t5gemma',
    pad_token_id=0, torch_dtype='bfloat16', transformers_version='4.53.0.dev0', use_cache=True,
    vocab_size=256000)


def parameters(config, head='lm'):
  heads = {head: conversion.build_head('t5gemma', head, config, 3)}
  model = ModelWithHeads(config.backbone(), heads)
  return unbox(boxed_parameter_shapes(model, {}))


def shrink(**changes):
  """Return a model of 3 + 3 layers of width 32, unbalanced with `decoder_width` among changes."""
  return small_decoders.shrink(t5gemma.t5gemma_2b_2b(), windows=(3, 0), **changes)


UNBALANCED = {'decoder_width': 24, 'decoder_heads': 2, 'decoder_kv_heads': 1,
              'decoder_head_size': 14, 'decoder_mlp_dim': 36, 'decoder.layers': 2}


@pytest.mark.parametrize(('size', 'number'), [
    ('s_s', 312_517_632), ('b_b', 591_490_560), ('xl_xl', 3_766_980_608),
    ('9b_2b', 12_292_375_296), ('9b_9b', 20_333_401_088)])
def test_parameters_of_released_checkpoints(size, number):
  config = getattr(t5gemma, f't5gemma_{size}')()
  assert count_parameters(parameters(config)) == number
  assert small_decoders.parse('t5gemma', small_decoders.write('t5gemma', config)) == config


def test_released_and_transformers_5_configurations_are_equal():
  assert small_decoders.parse('t5gemma', RELEASED) == t5gemma.t5gemma_2b_2b()
  assert small_decoders.parse('t5gemma', {'is_encoder_decoder': True}) == t5gemma.t5gemma_2b_2b()
  side: dict = {name: value for name, value in SIDE.items() if name != 'rope_theta'}
  side['rope_parameters'] = {'rope_theta': 10000.0, 'rope_type': 'default'}
  new = {**RELEASED, 'encoder': side, 'decoder': side, 'tie_word_embeddings': True}
  assert small_decoders.parse('t5gemma', new) == t5gemma.t5gemma_2b_2b()


def test_generation_begins_with_the_start_token():
  read = t5gemma.normalize_hf_config(RELEASED)['decoder_start_token_id']
  imported = conversion.load(small_decoders.GOLDEN / 't5gemma' / 'generate')
  assert (read, read_generation_defaults(imported).start_id) == (2, 50)


@pytest.mark.parametrize(('name', 'value'), [
    ('sliding_window', 128), ('query_pre_attn_scalar', 64), ('vocab_size', 9),
    ('attn_logit_softcapping', None), ('rms_norm_eps', 1e-5)])
def test_sides_differ_in_sizes_only(name, value):
  said = {**RELEASED, 'decoder': {**SIDE, name: value}}
  with pytest.raises(ConvertError, match='of the decoder, which have to agree'):
    small_decoders.parse('t5gemma', said)


def test_sizes_of_a_decoder_have_to_fit():
  model = t5gemma.t5gemma_2b_2b()
  for changes, message in (
      ({'decoder_width': 24, 'separate_embeddings': False}, 'needs .*separate_embeddings'),
      ({'decoder_heads': 6}, 'decoder_kv_heads 4 does not divide 6 heads')):
    with pytest.raises(ConfigError, match=message):
      validation.check(validation.with_paths(model, changes))


def test_a_small_model_keeps_its_balance():
  small = t5gemma.t5gemma_9b_2b()
  small = small.resize(small_decoders.shrink(t5gemma.t5gemma_2b_2b()).block, 2, 53, 64)
  assert (small.decoder_width, small.decoder_heads, small.decoder_kv_heads) == (16, 2, 1)
  assert (small.windows, small.decoder_block.head_dim, small.decoder_embed_factor) == (
      (32, 0), 8, 4.0)
  assert t5gemma.t5gemma_2b_2b().resize(small.block, 2, 53, 64).decoder_width is None


@pytest.mark.parametrize(('head', 'changes'), [
    ('lm', {}), ('lm', {**UNBALANCED, 'tied': False}), ('label', UNBALANCED), ('tags', {})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  files = pytest.importorskip('safetensors.numpy')
  config = shrink(**changes)
  params = jax.tree.map(np.asarray, tiny.random_params(parameters(config, head)))
  conversion.save(tmp_path, config, params, like='t5gemma')
  found = conversion.load(tmp_path)
  assert found.config == config and list(found.heads) == [head]
  tiny.assert_same(found.params, params)
  names = set(files.load_file(tmp_path / 'model.safetensors'))
  assert 'model.decoder.layers.1.cross_attn.k_proj.weight' in names
  assert ('lm_head.out_proj.weight' in names) == (not config.tied)
  sides = json.loads((tmp_path / 'config.json').read_text())
  assert sides['decoder']['cross_attention_hidden_size'] == 32
  assert sides['encoder']['pad_token_id'] == sides['pad_token_id']


def run(imported, batch, dtype='float32'):
  """Compute the logits of an imported model in a compute dtype."""
  config = validation.with_paths(imported.config, {'block.dtype': dtype})
  model = ModelWithHeads(
      config.backbone(), {'lm': conversion.build_head('t5gemma', 'lm', config, 2)})
  with jax.default_matmul_precision('highest'):
    return np.asarray(jax.jit(model.apply)({'params': imported.params}, batch)['lm'], np.float32)


def make_batch(tokens, decoder_tokens, segments=None):
  segments = np.ones_like(tokens) if segments is None else segments
  arrays = dict(tokens=tokens, segments=segments, decoder_tokens=decoder_tokens,
                decoder_segments=np.ones_like(decoder_tokens))
  return {name: jnp.asarray(x, jnp.int32) for name, x in arrays.items()}


@pytest.mark.slow
def test_transformers_reads_exports_of_t5gemma(tmp_path):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  config = shrink(**UNBALANCED, **{
      'block.attention.scale': 20 ** -0.5, 'block.attention.logit_cap': 3.0, 'logit_cap': 5.0})
  params = jax.tree.map(np.asarray, tiny.random_params(parameters(config)))
  conversion.save(tmp_path, config, params, like='t5gemma')
  theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      tmp_path, attn_implementation='eager', dtype=torch.float32).eval()
  draw = np.random.default_rng(0)
  tokens, decoder_tokens = draw.integers(1, 53, (2, 14)), draw.integers(1, 53, (2, 11))
  with torch.no_grad():
    want = theirs(input_ids=torch.tensor(tokens),
                  decoder_input_ids=torch.tensor(decoder_tokens)).logits.numpy()
  got = run(conversion.load(tmp_path), make_batch(tokens, decoder_tokens))
  assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_bfloat16_of_t5gemma_is_within_its_error():
  """The same model in transformers has an error of 0.0205 in bfloat16."""
  folder = small_decoders.GOLDEN / 't5gemma' / 'unbalanced_steps'
  imported, inputs = conversion.load(folder), np.load(folder / 'inputs.npz')
  batch = make_batch(inputs['input_ids'], inputs['decoder_input_ids'], inputs['attention_mask'])
  exact = run(imported, batch)
  error = np.sqrt(np.square(run(imported, batch, 'bfloat16') - exact).mean()
                  / np.square(exact).mean())
  assert error < 0.041
