import json

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, recipes, validation
from plm_jax.architectures.encoder import Encoder, layer_inputs
from plm_jax.conversion import attributes
from plm_jax.errors import ConfigError
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.rope import LinearScaling, Rope, TwoRopes
from plm_jax.layers.stack import StackConfig
from plm_jax.models import modernbert
from plm_jax.models.families import boxed_parameter_shapes, parameter_shapes
from plm_jax.models.modernbert import DECODER, FAMILY, make_decoder_config
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.trainable import depths_below_head


def parameters(config, heads=None):
  batch = {name: jnp.zeros((1, size), jnp.int32)
           for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}
  model = ModelWithHeads(Encoder(config), MaskedLM(pair=Single()).heads(config) if heads is None
                         else heads)
  return unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params']))


def small(**changes):
  config = validation.with_paths(modernbert.make_config(4, 32, 4, 48),
                                 {'vocab': 64, 'windows': (0, 3, 3)})
  return validation.with_paths(config, changes)


@pytest.mark.parametrize(('config', 'backbone', 'whole'), [
    (modernbert.base(), 149_014_272, 149_655_232), (modernbert.large(), 394_781_696, 395_881_664),
    (modernbert.mmbert_small(), 140_493_696, 140_897_536),
    (modernbert.mmbert_base(), 306_939_648, 307_786_240)],
    ids=['base', 'large', 'mmbert_small', 'mmbert_base'])
def test_parameter_counts_of_modernbert_equal_transformers(config, backbone, whole):
  """ModernBertModel and ModernBertForMaskedLM; published as 149M and 395M, mmBERT as 140M and
  307M."""
  params = parameters(config)
  assert count_parameters(params['backbone']) == backbone and count_parameters(params) == whole
  assert params['backbone']['stack']['layers']['block']['attention_norm']['scale'].shape[
      0] == config.stack.layers - 1


def test_depths_of_norms_match_their_layers():
  """The first layer has no norm before its attention: the first such norm is the second
  layer's."""
  of = depths_below_head(parameters(small()))['backbone']['stack']['layers']['block']
  np.testing.assert_array_equal(of['mlp_norm']['scale'], [5, 4, 3, 2])
  np.testing.assert_array_equal(of['attention_norm']['scale'], [4, 3, 2])


def reach(config, batch, query: int, packed: bool = False):
  """-> of each place of the first row whether the states of a query there depend on its embedding,
  by gradient."""
  params = tiny.random_params(jax.eval_shape(Encoder(config).init, jax.random.key(0),
                                             batch)['params'])
  def state(noise):
    return Encoder(config, packed).apply({'params': params},
                                         {**batch, 'noise': noise}).hidden[0, query].sum()
  noise = jnp.zeros((*batch['tokens'].shape, config.block.width))
  return np.asarray(jnp.abs(jax.jit(jax.grad(state))(noise)).sum(-1)[0] > 0)


def rows(length=20, segments=None):
  tokens = jnp.arange(5, 5 + length)[None]
  return {'tokens': tokens, 'segments': jnp.ones_like(tokens) if segments is None
          else jnp.array([segments])}


@pytest.mark.parametrize(('windows', 'query', 'first', 'last'), [
    ((3,), 10, 4, 16), ((3, 3), 0, 0, 6), ((0, 3), 10, 0, 19), ((3, 0), 10, 0, 19),
    ((19,), 0, 0, 19)])
def test_bands_by_gradient(windows, query, first, last):
  """Two layers of 3 tokens to either side reach 6; one that sees all reaches everything."""
  config = small(**{'windows': windows, 'stack.layers': 2})
  np.testing.assert_array_equal(np.flatnonzero(reach(config, rows(), query)),
                                np.arange(first, last + 1))


@pytest.mark.parametrize('windows', [
    pytest.param((3,), id='bands'), pytest.param((0, 3, 3), id='in turn', marks=pytest.mark.slow)])
def test_packed_texts_do_not_attend_to_each_other(windows):
  """By gradient, at both ends of a text in the middle; and its states equal those of the text
  alone."""
  config, segments = small(**{'windows': windows, 'stack.layers': 3}), [1] * 6 + [2] * 7 + [
      3] * 5 + [0] * 2
  found = np.flatnonzero(reach(config, rows(segments=segments), 12, packed=True))
  np.testing.assert_array_equal(found, np.arange(6, 13))
  batch = rows(segments=segments)
  params = tiny.random_params(jax.eval_shape(Encoder(config).init, jax.random.key(0),
                                             batch)['params'])
  run = jax.jit(lambda packed, batch: Encoder(config, packed).apply({'params': params},
                                                                    batch).hidden,
                static_argnums=0)
  alone = {'tokens': batch['tokens'][:, 6:13], 'segments': jnp.ones((1, 7), jnp.int32)}
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(run(True, batch)[:, 6:13], run(False, alone), atol=1e-5)


@pytest.mark.slow
def test_layers_use_their_own_rope_base():
  """A change of one base changes only layers of its kind."""
  ropes = [TwoRopes(), TwoRopes(whole=Rope(50.0)), TwoRopes(band=Rope(50.0))]
  batch, found = rows(), {}
  for windows in ((0,), (3,), (0, 3)):
    configs = [small(**{'windows': windows, 'stack.layers': 2, 'block.attention.position': rope})
               for rope in ropes]
    params = tiny.random_params(jax.eval_shape(Encoder(configs[0]).init, jax.random.key(0),
                                               batch)['params'])
    plain, *others = [np.asarray(jax.jit(Encoder(config).apply)({'params': params}, batch).hidden)
                      for config in configs]
    found[windows] = [bool(np.abs(other - plain).max() > 1e-3) for other in others]
  assert found == {(0,): [True, False], (3,): [False, True], (0, 3): [True, True]}


def test_the_first_layer_has_no_norm_before_attention():
  config = small()
  assert layer_inputs(config).skip_norm.tolist() == [True, False, False, False]
  batch = rows()
  params = tiny.random_params(jax.eval_shape(Encoder(config).init, jax.random.key(0),
                                             batch)['params'])
  def state(params):
    return jnp.square(Encoder(config).apply({'params': params}, batch).hidden).sum()
  of = jax.jit(jax.grad(state))(params)['stack']['layers']['block']['attention_norm']['scale']
  assert of.shape == (3, 32) and (jnp.abs(of).max(1) > 0).all()
  with pytest.raises(ConfigError,
                     match='first_norm False is for two layers or more, which share nothing'):
    StackConfig(4, groups=1, first_norm=False)


OLD = dict(model_type='modernbert', global_attn_every_n_layers=3, global_rope_theta=160000.0,
           local_rope_theta=10000.0,
           local_attention=128, norm_eps=1e-5, layer_norm_eps=1e-5,
           position_embedding_type='absolute',
           reference_compile=None, sparse_prediction=False, classifier_pooling='mean',
           pad_token_id=50283)


def test_older_and_newer_configurations_are_equal():
  """The released configuration, and the one of transformers 5."""
  config = attributes.parse_hf_config(FAMILY, modernbert.normalize_hf_config(OLD))
  assert config == validation.with_paths(modernbert.base(), {'head.pooling': 'mean'})
  said = attributes.build_hf_attributes(FAMILY, config)
  for name in ('global_attn_every_n_layers', 'local_attention', 'global_rope_theta',
               'local_rope_theta'):
    assert said[name] == OLD[name]
  assert said['layer_types'][:4] == ['full_attention', 'sliding_attention', 'sliding_attention',
                                     'full_attention']
  assert said['rope_parameters']['full_attention'] == {'rope_theta': 160000.0,
                                                       'rope_type': 'default'}
  assert attributes.parse_hf_config(FAMILY, modernbert.normalize_hf_config(said)) == config


def test_mmberts_file():
  """Its attributes as released: padding is 0, cls_token_id is the end of a text, and both ropes
  have one base."""
  said = dict(
      OLD, _name_or_path='mmBERT-base', bos_token_id=2, cls_token_id=1, eos_token_id=1,
      mask_token_id=4, pad_token_id=0,
      sep_token_id=1, global_rope_theta=160000, local_rope_theta=160000, hidden_size=384,
      num_attention_heads=6,
      position_embedding_type='sans_pos', tie_word_embeddings=True, vocab_size=256000)
  assert attributes.parse_hf_config(FAMILY, modernbert.normalize_hf_config(
      said)) == modernbert.mmbert_small()


@pytest.mark.parametrize(('said', 'message'), [
    (dict(local_attention=1), 'local_attention is 1, expected a number from 2 on'),
    (dict(num_hidden_layers=2, layer_types=['full_attention', 'causal']), 'layer_types is'),
    (dict(rope_parameters={'full_attention': {'rope_type': 'dynamic', 'factor': 2.0}}),
     'scaling dynamic is not known'),
    (dict(embedding_dropout=0.1), 'embedding_dropout is 0.1, only 0.0 is supported')])
def test_unsupported_attributes_of_modernbert_are_refused(said, message):
  with pytest.raises(ConvertError, match=message):
    attributes.parse_hf_config(FAMILY, modernbert.normalize_hf_config({**OLD, **said}))


def test_dropout_after_attention_is_trained_but_not_exported():
  """transformers' attribute also drops probabilities: the paper's dropout has no attribute
  there."""
  config = recipes.find_recipe('modernbert_base')().model
  assert (config.block.attention.dropout, config.block.attention.out_dropout) == (0.0, 0.1)
  assert attributes.build_hf_attributes(FAMILY, config)['attention_dropout'] == 0.0
  both = attributes.parse_hf_config(
    FAMILY, modernbert.normalize_hf_config({**OLD, 'attention_dropout': 0.1})
  ).block.attention
  assert both.dropout == both.out_dropout == 0.1


def test_windows_of_two_widths_are_not_exported():
  with pytest.raises(ConvertError, match=r'sliding windows of one size, not \[2, 3\]'):
    attributes.build_hf_attributes(FAMILY, small(windows=(0, 2, 3)))
  ropes = TwoRopes(Rope(9.0, scaling=LinearScaling(2.0)))
  said = attributes.build_hf_attributes(FAMILY, small(**{'block.attention.position': ropes}))
  assert attributes.parse_hf_config(FAMILY, modernbert.normalize_hf_config(
      said)).block.attention.position == ropes


@pytest.mark.parametrize('head', ['mlm', 'label', 'tags', 'choice', 'span'])
def test_an_export_is_read_as_the_same(tmp_path, head):
  """Every head, by the class in config.json, because tensor names begin alike; without a class
  where the head is unambiguous."""
  pytest.importorskip('safetensors')
  config = small(**{'head.pooling': 'mean'})
  heads = {head: conversion.build_head('modernbert', head, config, 3)}
  params = tiny.random_params(parameters(config, heads))
  conversion.save(tmp_path / 'a', config, params, like=conversion.ExportTemplate('modernbert'))
  imported = conversion.load(tmp_path / 'a')
  assert list(imported.heads) == [head]
  assert imported.config == validation.with_paths(
      config, {'block.init': modernbert.base().block.init})
  jax.tree.map(np.testing.assert_array_equal, imported.params, params)
  said = json.loads((tmp_path / 'a' / 'config.json').read_text())
  (tmp_path / 'a' / 'config.json').write_text(json.dumps({**said, 'architectures': None}))
  if head == 'mlm':
    assert list(conversion.load(tmp_path / 'a').heads) == ['mlm']
    assert conversion.load(tmp_path / 'a', heads=('label',)).missing_heads == ('label',)
  else:
    with pytest.raises(ConvertError, match='names no class that tells'):
      conversion.load(tmp_path / 'a')


# Decoders, against transformers where it and torch are installed.


@pytest.mark.parametrize(('config', 'number'), [
    (make_decoder_config(7, 256, 4, 384), 16_913_600),
    (make_decoder_config(22, 768, 12, 1152), 149_655_232)],
    ids=['17m', '150m'])
def test_parameter_counts_of_decoders_equal_those_of_encoders(config, number):
  """Ettin's encoders and decoders have the same sizes (Weller et al. 2025, table 1)."""
  shapes = parameter_shapes(DECODER, config, CausalLM().heads(config))
  assert sum(int(np.prod(shape)) for shape in shapes.values()) == number


@pytest.mark.slow
@pytest.mark.parametrize('changes',
                         [{}, {'tie_word_embeddings': False, 'norm_bias': True,
                               'attention_bias': True,
                                          'global_attn_every_n_layers': 2,
                                          'classifier_bias': True}])
def test_a_decoder_of_transformers_is_imported_and_exported(tmp_path, changes):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  pytest.importorskip('safetensors')
  torch.manual_seed(0)
  config = transformers.ModernBertDecoderConfig(
      vocab_size=60, hidden_size=32, intermediate_size=40, num_hidden_layers=4,
      num_attention_heads=4,
      max_position_embeddings=64, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
      cls_token_id=1,
      sep_token_id=2, **changes)
  model = transformers.ModernBertDecoderForCausalLM(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  model.save_pretrained(tmp_path / 'theirs')
  tokens = np.random.default_rng(0).integers(3, 60, (2, 20))
  def logits(model):
    with torch.no_grad():
      return model(input_ids=torch.tensor(tokens)).logits.numpy()

  imported = conversion.load(tmp_path / 'theirs')
  own, batch = imported.model(), {'tokens': tokens, 'segments': np.ones_like(tokens)}
  with jax.default_matmul_precision('highest'):
    got = jax.jit(lambda params: own.apply({'params': params}, batch))(imported.params)
  np.testing.assert_allclose(got['lm'], logits(model), atol=1e-5)

  conversion.save(tmp_path / 'ours', imported.config, imported.params,
                  like=conversion.ExportTemplate('modernbert-decoder'))
  again = transformers.ModernBertDecoderForCausalLM.from_pretrained(tmp_path / 'ours').eval()
  np.testing.assert_array_equal(logits(again), logits(model))


@pytest.mark.parametrize('head', ['lm', 'label'])
def test_an_export_of_a_decoder_is_read_as_the_same(tmp_path, head):
  pytest.importorskip('safetensors')
  config = validation.with_paths(
      make_decoder_config(4, 32, 4, 48), {'vocab': 64, 'windows': (0, 4, 4)})
  heads = {head: conversion.build_head('modernbert-decoder', head, config, 3)}
  shapes = unbox(boxed_parameter_shapes(ModelWithHeads(DECODER.backbone(config), heads), {}))
  params = tiny.random_params(shapes)
  conversion.save(tmp_path, config, params, like=conversion.ExportTemplate('modernbert-decoder'))
  imported = conversion.load(tmp_path)
  assert list(imported.heads) == [head]
  assert imported.config == validation.with_paths(config, {'block.init': DECODER.config.block.init})
  jax.tree.map(np.testing.assert_array_equal, imported.params, params)
