"""Encoder-decoders that start from decoders: which can be adapted, and where each weight goes."""
import dataclasses

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import recipes
from plm_jax.config.run import Phase
from plm_jax.errors import ConfigError
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.loading.loaded_model import load_model
from plm_jax.models import (
  gemma2,
  gemma3,
  glm,
  gpt,
  gpt2,
  gpt_neox,
  llama,
  modernbert,
  palm,
  qwen3,
  smollm3,
  t5gemma,
)
from plm_jax.models.families import boxed_parameter_shapes, flatten_tree
from plm_jax.runs.run import run
from plm_jax.training import decoder_adaptation
from plm_jax.training.decoder_adaptation import adapt_config, adapt_params
from plm_jax.validation import with_paths


def shrink(config, width=32, layers=2):
  block = with_paths(config.block, {
      'width': width, 'heads': 4, 'head_size': None, 'mlp_dim': 2 * width,
      'kv_heads': config.block.kv_heads and 2})
  return config.resize(block, layers, 53, 64)


def parameters(config):
  head = NextTokenHead(config.block, config.vocab, config.tied)
  shapes = boxed_parameter_shapes(ModelWithHeads(config.backbone(), {'lm': head}), {})
  return jax.tree.map(np.asarray, tiny.random_params(unbox(shapes)))


def test_gemma_2_becomes_t5gemma():
  small, large = gemma2.gemma2_2b(), gemma2.gemma2_9b()
  pairs = {(small, small): t5gemma.t5gemma_2b_2b(), (large, large): t5gemma.t5gemma_9b_9b(),
           (large, small): t5gemma.t5gemma_9b_2b()}
  for (encoder, decoder), expected in pairs.items():
    found = adapt_config(encoder, decoder)
    assert found.decoder_block == expected.decoder_block
    blank = dict.fromkeys(('decoder_kv_heads', 'decoder_head_size'))
    assert dataclasses.replace(found, last_dropout=True, **blank) == dataclasses.replace(
        expected, **blank)


@pytest.mark.parametrize('config', [
    gemma2.gemma2_2b(), gemma3.gemma3_270m(), llama.llama32_1b(), qwen3.qwen3_0_6b(),
    gpt.base(), gpt2.small(), gpt2.gpt3_small(), gpt2.gpt_neo_125m()])
def test_parameters_have_the_names_and_shapes_of_an_encoder_decoder(config):
  config = shrink(config)
  model, params = adapt_config(config, config), parameters(config)
  adapted = flatten_tree(adapt_params(params, params))
  shapes = boxed_parameter_shapes(
      ModelWithHeads(model.backbone(), {'lm': NextTokenHead(
          model.decoder_block, model.vocab, model.tied)}), {})
  wanted = {name: x.shape for name, x in flatten_tree(unbox(shapes)).items()}
  assert {name: x.shape for name, x in adapted.items()} == wanted
  layer = 'stack/layers/block'
  for part in ('query', 'out'):
    np.testing.assert_array_equal(
        adapted[f'backbone/decoder/{layer}/cross/{part}/kernel'],
        params['backbone']['stack']['layers']['block']['attention'][part]['kernel'])


def test_the_encoder_of_a_decoder_computes_the_same_where_nothing_is_behind_a_token():
  """The last token of a row without a decoder's causal mask: one layer of global attention."""
  config = with_paths(shrink(gemma2.gemma2_2b(), layers=1), {'windows': ()})
  params = parameters(config)
  tokens = np.random.default_rng(0).integers(1, 53, (2, 9))
  batch = {'tokens': jnp.asarray(tokens), 'segments': jnp.ones((2, 9), int)}
  before = config.backbone().apply({'params': params['backbone']}, batch)
  model = adapt_config(config, config)
  pair = batch | {'decoder_tokens': batch['tokens'], 'decoder_segments': batch['segments']}
  after = model.backbone().apply({'params': adapt_params(params, params)['backbone']}, pair)
  np.testing.assert_allclose(after.encoded[:, -1], before.hidden[:, -1], atol=1e-5)
  assert np.abs(after.encoded[:, 0] - before.hidden[:, 0]).max() > 0.01


def test_sides_of_two_sizes_have_no_cross_attention_yet():
  large, small = shrink(gemma2.gemma2_9b(), 48, 3), shrink(gemma2.gemma2_2b())
  model = adapt_config(large, small)
  assert (model.block.width, model.decoder_block.width, model.decoder.layers) == (48, 32, 2)
  first, second = parameters(large), parameters(small)
  adapted = adapt_params(first, second)['backbone']
  block = adapted['decoder']['stack']['layers']['block']
  assert not set(decoder_adaptation.CROSS) & set(block)
  assert adapted['tokens'].shape == (53, 48)
  np.testing.assert_array_equal(
      adapted['decoder']['embeddings']['tokens'], second['backbone']['embeddings']['tokens'])


@pytest.mark.parametrize(('config', 'message'), [
    (gpt_neox.pythia_14m(), r'block\.parallel is True'), (palm.palm_8b(), r'block\.parallel is'),
    (smollm3.smollm3_3b(), 'rotated is'), (glm.base(), 'types is'),
    (modernbert.DECODER.config, r'lm_head\.hidden is True'),
    (t5gemma.t5gemma_s_s(), 'of decoders, got a model of EncoderDecoderConfig')])
def test_other_decoders_are_refused(config, message):
  with pytest.raises(ConfigError, match=message):
    adapt_config(config, config)


def test_decoders_that_differ_in_more_than_sizes_are_refused():
  small = gemma2.gemma2_2b()
  for path, value in (('logit_cap', None), ('block.attention.scale', 0.1), ('embed_factor', 3.0)):
    with pytest.raises(ConfigError, match=rf'agree in all but their sizes.*{path}'):
      adapt_config(small, with_paths(small, {path: value}))


def make_run(folder, name, recipe, **values):
  (folder / 'text.txt').write_text(
      '\n\n'.join(f'the {n}th of many texts is {n * n} .\nIt is short.' for n in range(300)))
  return with_paths(recipes.find_recipe(recipe)('test'), {
      'data.path': (f'{folder}/text.txt',), 'data.prepare.workers': 1,
      'output': str(folder / name), 'train.phases': (Phase(1, 32, 8),), **values})


@pytest.mark.slow
@pytest.mark.parametrize('width', [32, 48])
def test_a_run_starts_from_decoders(width, tmp_path, capsys):
  """With a rate of zero, a run ends with the parameters that it started with."""
  frozen = {'optim.peak': 1e-30, 'optim.warmup': 0}
  run(make_run(tmp_path, 'encoder', 'llama_7b', **{'model.block.width': width, 'optim.warmup': 0}))
  other = str(tmp_path / 'encoder')
  if width != 32:
    other = str(tmp_path / 'decoder')
    run(make_run(tmp_path, 'decoder', 'llama_7b', **{
        'warm_start': '', 'data.prepare.tokenizer': str(tmp_path / 'encoder' / 'tokenizer'),
        'optim.warmup': 0}))
  after = make_run(tmp_path, 'after', 't5gemma_2b_2b', **frozen, **{
      'warm_start': str(tmp_path / 'encoder'), 'tuning.decoder': other})
  capsys.readouterr()
  run(after)
  printed = capsys.readouterr().out
  assert ('decoder/stack/layers/block/cross' in printed) == (width != 32)
  encoder, found = load_model(tmp_path / 'encoder'), load_model(tmp_path / 'after')
  decoder = encoder if width == 32 else load_model(other)
  adapted = flatten_tree(adapt_params(encoder.params, decoder.params)['backbone'])
  backbone = flatten_tree(found.params['backbone'])
  assert all(np.array_equal(backbone[name], x) for name, x in adapted.items())
  assert len(backbone) - len(adapted) == (0 if width == 32 else 5)
  run(after)  # it is finished
  assert found.model.decoder_block.width == 32 and found.model.block.width == width
