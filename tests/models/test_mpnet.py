"""MPNet: its configuration, files and tokenizer. Values of transformers' classes are in
tests/golden/mpnet."""
import json

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, tokenizers, validation
from plm_jax.architectures.encoder import Encoder
from plm_jax.conversion import attributes
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.rope import Rope
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.models import mpnet
from plm_jax.models.mpnet import FAMILY
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.masked_permuted import MaskedPermutedLM
from plm_jax.recipes import hyperparameters

# config.json of microsoft/mpnet-base.
RELEASED = dict(
    architectures=['MPNetForMaskedLM'], attention_probs_dropout_prob=0.1, bos_token_id=0,
    eos_token_id=2,
    hidden_act='gelu', hidden_dropout_prob=0.1, hidden_size=768, initializer_range=0.02,
    intermediate_size=3072,
    layer_norm_eps=1e-5, max_position_embeddings=514, model_type='mpnet', num_attention_heads=12,
    num_hidden_layers=12,
    pad_token_id=1, relative_attention_num_buckets=32, vocab_size=30527)


def parameters(config, heads):
  batch = {name: jnp.zeros((1, size), jnp.int32)
           for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}
  return unbox(jax.eval_shape(lambda: ModelWithHeads(Encoder(config),
                                                     heads).init(jax.random.key(0),
                                                                 batch)['params']))


def small(**changes):
  return validation.with_paths(mpnet.base(), {
      'vocab': 64, 'max_length': 20, 'stack.layers': 2, 'block.width': 32, 'block.heads': 4,
      'block.mlp_dim': 48,
      **changes})


def parse(hf_config):
  return attributes.parse_hf_config(FAMILY, hf_config)


def test_parameter_counts_of_mpnet_equal_transformers():
  """MPNetForMaskedLM; published as 110M."""
  params = parameters(mpnet.base(), MaskedPermutedLM().heads(mpnet.base()))
  assert count_parameters(params) == 109_518_527
  assert params['backbone']['embeddings']['positions'].shape == (514, 768)
  assert params['backbone']['stack']['buckets'].shape == (32, 12)


def test_released_configuration():
  assert parse(RELEASED) == mpnet.base()
  written = attributes.build_hf_attributes(FAMILY, mpnet.base())
  assert {name: written[name] for name in RELEASED if name in written} == {
      name: value for name, value in RELEASED.items() if name in written}
  assert parse(written) == mpnet.base()
  # Defaults of transformers' MPNetConfig.
  assert parse({}).block.norm.eps == 1e-12 and parse({}).max_length == 510


@pytest.mark.parametrize(('changes', 'message'), [
    (dict(relative_attention_num_buckets=64),
     'relative_attention_num_buckets is 64, only 32 is supported'),
    (dict(pad_token_id=0), 'pad_token_id is 0, only 1 is supported')])
def test_attributes_that_their_code_ignores_are_refused(changes, message):
  with pytest.raises(ConvertError, match=message):
    parse({**RELEASED, **changes})


@pytest.mark.parametrize('changes', [
    {'block.attention.position': Buckets(64)}, {'block.attention.position': Buckets(32, 256)},
    {'block.attention.position': Rope()}, {'padding': 0}, {'embeddings.types': 1}])
def test_models_that_transformers_cannot_hold(tmp_path, changes):
  config = small(**changes)
  heads = {'mlm': conversion.build_head('mpnet', 'mlm', config, 0)}
  with pytest.raises(ConvertError):
    conversion.save(tmp_path / 'a', config, tiny.random_params(parameters(config, heads)),
                    like='mpnet')


@pytest.mark.parametrize(('head', 'changes'), [
    ('mlm', {}), ('label', {}), ('tags', {}), ('span', {}), ('choice', {'pooler': True})])
def test_an_export_is_read_as_the_same(tmp_path, head, changes):
  pytest.importorskip('safetensors')
  config = small(**changes)
  params = tiny.random_params(
      parameters(config, {head: conversion.build_head('mpnet', head, config, 3)}))
  conversion.save(tmp_path / 'a', config, params, like='mpnet')
  imported = conversion.load(tmp_path / 'a')
  assert list(imported.heads) == [head] and imported.config == config
  jax.tree.map(np.testing.assert_array_equal, imported.params, params)
  assert json.loads((tmp_path / 'a' / 'config.json').read_text())['model_type'] == 'mpnet'


def test_tokenizer_has_robertas_special_tokens(tmp_path):
  """The released vocabulary has BERT's special tokens too, which are ordinary tokens there."""
  names = ['<s>', '<pad>', '</s>', '<unk>', '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the',
           'cat', 'sat', '##s',
           '<mask>']
  special = [dict(id=names.index(name), content=name, lstrip=name == '<mask>', rstrip=False,
                  normalized=False,
                  single_word=False, special=True)
                  for name in ('<s>', '<pad>', '</s>', '[UNK]', '<mask>')]
  model = dict(type='WordPiece', unk_token='[UNK]', continuing_subword_prefix='##',
               max_input_chars_per_word=100,
               vocab={name: number for number, name in enumerate(names)})
  content = dict(
      version='1.0', added_tokens=special, model=model, pre_tokenizer={'type': 'BertPreTokenizer'},
      normalizer=dict(type='BertNormalizer', clean_text=True, handle_chinese_chars=True,
                      strip_accents=None,
                      lowercase=True),
      decoder=dict(type='WordPiece', prefix='##', cleanup=True))
  roles = dict(bos='<s>', cls='<s>', eos='</s>', sep='</s>', mask='<mask>', pad='<pad>',
               unk='[UNK]')
  (tmp_path / 'tokenizer.json').write_text(json.dumps(content))
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
      {f'{role}_token': name for role, name in roles.items()} | dict(
          tokenizer_class='MPNetTokenizer', do_lower_case=True)))
  tokenizer = tokenizers.load(tmp_path)
  vocab = tokenizer.vocab
  assert (vocab.cls, vocab.pad, vocab.sep, vocab.mask, vocab.unk) == (0, 1, 2, 13, 5)
  # Ids of transformers' MPNetTokenizer, without <s> and </s>.
  assert tokenizer.encode('The Cats  <mask> sat', specials=True) == [9, 10, 12, 13, 11]
  assert tokenizer.encode('[MASK]', specials=True) == [5, 5, 5]


def test_roles_of_a_file_that_declares_none(tmp_path):
  names = ['<s>', '<pad>', '</s>', '<unk>', '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the',
           '<mask>']
  def write(special):
    tokens = [dict(id=names.index(name), content=name, lstrip=False, rstrip=False, normalized=False,
                   single_word=False, special=True) for name in special]
    model = dict(type='WordPiece', unk_token='[UNK]', continuing_subword_prefix='##',
                 max_input_chars_per_word=100,
                 vocab={name: number for number, name in enumerate(names)})
    (tmp_path / 'tokenizer.json').write_text(json.dumps(dict(
        version='1.0', added_tokens=tokens, model=model, pre_tokenizer={'type': 'BertPreTokenizer'},
        normalizer=dict(type='BertNormalizer', clean_text=True, handle_chinese_chars=True,
                        strip_accents=None,
                        lowercase=True))))
    vocab = tokenizers.load(tmp_path).vocab
    return vocab.cls, vocab.pad, vocab.sep, vocab.mask
  assert write(['<s>', '<pad>', '</s>', '[UNK]', '<mask>']) == (0, 1, 2, 10)
  assert write(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']) == write([]) == (6, 4, 7, 8)


def test_fine_tuning_settings_equal_roberta_except_for_qa():
  of = hyperparameters.published_hyperparameters
  assert of('rte', 'mpnet') == of('rte', 'roberta')
  assert of('squad_v2', 'mpnet')['peak'] == 2e-5 and of('squad_v2', 'mpnet')['batch'] == 48
