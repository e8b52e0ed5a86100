"""EuroBERT: its configuration in released files and in transformers, its heads, and late pooling by
hand. Values of transformers' classes are in tests/golden/eurobert."""
import json

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf
import tiny

from plm_jax import conversion, validation
from plm_jax.architectures import Output
from plm_jax.architectures.encoder import Encoder
from plm_jax.conversion import attributes
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import HeadConfig, ModelWithHeads, PoolingClassifier
from plm_jax.models import eurobert
from plm_jax.models.eurobert import FAMILY
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single

# config.json of EuroBERT/EuroBERT-210m, and of a model fine-tuned with the released code.
RELEASED = dict(
    architectures=['EuroBertForMaskedLM'], attention_bias=False, attention_dropout=0.0,
    bos_token='<|begin_of_text|>',
    auto_map={'AutoModel': 'modeling_eurobert.EuroBertModel'}, bos_token_id=128000,
    eos_token='<|end_of_text|>',
    eos_token_id=128001, hidden_act='silu', hidden_dropout=0.0, hidden_size=768,
    initializer_range=0.02,
    intermediate_size=3072, is_decoder=False, mask_token='<|mask|>', mask_token_id=128002,
    max_position_embeddings=8192,
    model_type='eurobert', num_attention_heads=12, num_hidden_layers=12, num_key_value_heads=12,
    pad_token='<|end_of_text|>', pad_token_id=128001, pretraining_tp=1, rms_norm_eps=1e-5,
    rope_scaling=None,
    rope_theta=250000, tie_word_embeddings=False, torch_dtype='bfloat16',
    transformers_version='4.40.0.dev0',
    vocab_size=128256)


def parameters(config, heads):
  batch = {name: jnp.zeros((1, size), jnp.int32)
           for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}
  model = ModelWithHeads(Encoder(config), heads)
  return unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params']))


def small(**changes):
  config = validation.with_paths(eurobert.make_config(2, 32, 4, 2, 48),
                                 {'vocab': 64, 'max_length': 64})
  return validation.with_paths(config, changes)


def parse(hf_config):
  return attributes.parse_hf_config(FAMILY, eurobert.normalize_hf_config(hf_config))


@pytest.mark.parametrize(('config', 'backbone', 'whole'), [
    (eurobert.eurobert_210m(), 211_766_016, 310_266_624),
    (eurobert.eurobert_610m(), 607_874_688, 755_625_600),
    (eurobert.eurobert_2b(), 2_107_590_912, 2_403_092_736)], ids=['210m', '610m', '2b'])
def test_parameters_as_published(config, backbone, whole):
  """EuroBertModel and EuroBertForMaskedLM, whose embeddings are not tied; published as 210M, 610M
  and 2.1B."""
  params = parameters(config, MaskedLM(pair=Single()).heads(config))
  assert count_parameters(params['backbone']) == backbone and count_parameters(params) == whole


def test_released_and_transformers_5_configurations_are_equal():
  assert parse(RELEASED) == eurobert.eurobert_210m()
  new = {name: value for name, value in RELEASED.items() if not name.startswith('rope')}
  new |= dict(rope_parameters={'rope_theta': 250000, 'rope_type': 'default'},
              classifier_pooling='late', head_dim=64,
              is_causal=False, mlp_bias=False, use_cache=False)
  assert parse(new) == eurobert.eurobert_210m()
  # Released code has clf_pooling, transformers classifier_pooling; if both are set, the second
  # counts.
  assert [parse({**RELEASED, **said}).head.pooling for said in (
      {'clf_pooling': 'mean'}, {'clf_pooling': 'late', 'classifier_pooling': 'bos'})] == [
          'mean', 'first']
  written = attributes.build_hf_attributes(FAMILY, eurobert.eurobert_610m())
  assert (written['num_key_value_heads'], written['rope_theta']) == (6, 250_000)
  assert written['clf_pooling'] == written['classifier_pooling'] == 'late'
  assert parse(written) == eurobert.eurobert_610m()
  # Defaults of transformers.
  assert parse({}).block.attention.position.theta == 10_000


@pytest.mark.parametrize(('said', 'message'), [
    (dict(classifier_pooling='max'),
     "classifier_pooling is 'max', known are 'late', 'mean', 'bos'"),
    (dict(hidden_dropout=0.1), 'hidden_dropout is 0.1, only 0.0 is supported'),
    (dict(is_causal=True), 'is_causal is True, only False is supported'),
    (dict(rope_scaling={'rope_type': 'longrope'}), "rope of type 'longrope'")])
def test_unsupported_attributes_of_eurobert_are_refused(said, message):
  with pytest.raises(ConvertError, match=message):
    parse({**RELEASED, **said})


def test_one_attribute_sets_both_biases():
  assert parse({**RELEASED, 'mlp_bias': True}).head.output_bias
  with pytest.raises(ConvertError, match=r'block\.mlp\.bias and head\.output_bias differ'):
    attributes.build_hf_attributes(FAMILY, small(**{'block.mlp.bias': True}))


@pytest.mark.parametrize(('head', 'changes'), [
    ('mlm', {}), ('mlm', {'tied': True}),
    ('mlm', {'block.mlp.bias': True, 'head.output_bias': True}),
    ('label', {'head.pooling': 'mean'}), ('tags', {'tied': True}), ('span', {})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  """A tied masked-LM head without a bias has no tensors: only the class in config.json shows
  it."""
  pytest.importorskip('safetensors')
  config = small(**changes)
  heads = {head: conversion.build_head('eurobert', head, config, 3)}
  params = tiny.random_params(parameters(config, heads))
  conversion.save(tmp_path / 'a', config, params, like='eurobert')
  imported = conversion.load(tmp_path / 'a')
  assert list(imported.heads) == [head]
  assert imported.config == config
  jax.tree.map(np.testing.assert_array_equal, imported.params, params)
  said = json.loads((tmp_path / 'a' / 'config.json').read_text())
  assert said['tie_word_embeddings'] == config.tied and said['mlp_bias'] == config.block.mlp.bias


def test_late_pooling_by_hand():
  """Mean over the tokens of a text of their logits: of a padded row, and of two texts in one row;
  gelu is exact."""
  draw = np.random.default_rng(0)
  config = small()
  head = PoolingClassifier(config.block, HeadConfig(activation='gelu', pooling='late'), 3,
                           norm=False)
  hidden = draw.normal(size=(2, 6, 32))
  segments = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 2, 2, 2, 0]])
  output = Output(hidden.astype(np.float32), None, None)
  batch = {'segments': segments, 'extract': np.array([[0, 0], [0, 2]])}
  params = tiny.random_params(unbox(jax.eval_shape(head.init, jax.random.key(0), output,
                                                   batch)['params']))
  w = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  h = hidden @ w['hidden']['kernel'] + w['hidden']['bias']
  logits = h * (1 + erf(h / np.sqrt(2))) / 2 @ w['dense']['kernel'] + w['dense']['bias']
  with jax.default_matmul_precision('highest'):
    got = jax.jit(head.apply)({'params': params}, output, batch)
  want = [[logits[0, :4].mean(0)] * 2, [logits[1, :2].mean(0), logits[1, 2:5].mean(0)]]
  np.testing.assert_allclose(got, want, atol=1e-5)
