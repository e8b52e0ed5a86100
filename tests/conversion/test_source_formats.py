"""Checkpoint formats older than safetensors, made from the tensors of golden cases: the loaded
parameters must be equal to the bit."""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil

from flax import serialization
from flax.traverse_util import unflatten_dict
import numpy as np
import pytest
import torch_files as pickles

from plm_jax import conversion, validation
from plm_jax.conversion import ConvertError, fairseq
from plm_jax.models import electra, families
from plm_jax.models.rules import export_arrays

library = pytest.importorskip('safetensors.numpy')
torch = pickles.torch  # the fixture
GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'


def tensors_of(case):
  return {name: x.astype(np.float32)
          for name, x in library.load_file(GOLDEN / case / 'model.safetensors').items()}


def assert_same(got, want):
  """Of trees of parameters."""
  flat = lambda tree: conversion.flatten_tree(tree)
  assert {*flat(got)} == {*flat(want)}
  for name, x in flat(want).items():
    np.testing.assert_array_equal(np.asarray(flat(got)[name], np.float32),
                                  np.asarray(x, np.float32), err_msg=name)


def to_flax(name, x):
  """A parameter as transformers 4 has it (modeling_flax_pytorch_utils.py)."""
  before, _, leaf = name.rpartition('.')
  if leaf != 'weight':
    return name, x
  if re.search('embed', before) and x.ndim == 2 and 'project' not in before:
    return f'{before}.embedding', x
  return (f'{before}.scale', x) if x.ndim == 1 else (f'{before}.kernel', np.ascontiguousarray(x.T))


def write_flax(folder, case, shards=1, edit=to_flax):
  folder.mkdir()
  shutil.copy(GOLDEN / case / 'config.json', folder)
  flat = dict(edit(name, x) for name, x in tensors_of(case).items())
  if shards == 1:
    tree = unflatten_dict(flat, sep='.')
    (folder / 'flax_model.msgpack').write_bytes(serialization.msgpack_serialize(tree))
    return
  names, where = sorted(flat), {}
  for number in range(shards):
    file = f'flax_model-{number + 1:05}-of-{shards:05}.msgpack'
    mine = {name.replace('.', '/'): flat[name] for name in names[number::shards]}
    (folder / file).write_bytes(serialization.msgpack_serialize(mine))
    where |= dict.fromkeys(mine, file)
  (folder / 'flax_model.msgpack.index.json').write_text(
      json.dumps({'metadata': {}, 'weight_map': where}))


@pytest.mark.parametrize(('case', 'shards'), [
    ('bert/pretraining_mlm_nsp', 1), ('roberta/sequence_classification', 3),
    ('gpt2/kv_cache_steps', 1),
    ('bart/kv_cache_steps', 1)])
def test_flax(tmp_path, case, shards):
  write_flax(tmp_path / 'flax', case, shards)
  assert conversion.is_checkpoint(tmp_path / 'flax')
  assert_same(conversion.load(tmp_path / 'flax').params, conversion.load(GOLDEN / case).params)


def old_names(name, x):
  """As transformers 4.0 wrote BERT: heads apart, gamma and beta, the output of attention within
  it."""
  heads, width = 4, 32
  part = re.search(r'attention\.(self\.(query|key|value)|output\.dense)\.(weight|bias)$', name)
  if part and part[2]:
    if part[3] == 'bias':
      return name, x.reshape(heads, -1)
    return name.replace('weight', 'kernel'), x.reshape(heads, -1, width).transpose(2, 0, 1)
  if part:
    name = name.replace('attention.output.dense', 'attention.self.out')
    return (name, x) if part[3] == 'bias' else (
        name.replace('weight', 'kernel'), x.reshape(width, heads, -1).transpose(1, 2, 0))
  name = name.replace('attention.output.LayerNorm', 'attention.LayerNorm')
  if 'LayerNorm' in name:
    return name.replace('weight', 'gamma').replace('LayerNorm.bias', 'LayerNorm.beta'), x
  return to_flax(name, x)


def test_flax_of_before(tmp_path):
  case = 'bert/pretraining_mlm_nsp'
  config = json.loads((GOLDEN / case / 'config.json').read_text())
  assert (config['num_attention_heads'], config['hidden_size']) == (4, 32)
  write_flax(tmp_path / 'flax', case, edit=old_names)
  assert_same(conversion.load(tmp_path / 'flax').params, conversion.load(GOLDEN / case).params)


@pytest.mark.parametrize(('content', 'message'), [
    (b'', r'flax_model.msgpack'), (b'\x93\x01\x02\x03', 'expected named arrays'),
    (serialization.msgpack_serialize({'a': 'text'}),
     "'a'.* is 'text', expected an array of numbers"),
    (serialization.msgpack_serialize({'a': {'b': 3}}),
     "'a/b'.* is 3, expected an array of numbers"),
    (b'cposix\nsystem\n(S"touch never"\ntR.', 'flax_model.msgpack')],
    ids=['empty', 'list', 'text', 'number', 'pickle'])
def test_hostile_flax(tmp_path, content, message):
  shutil.copy(GOLDEN / 'bert/pretraining_mlm_nsp/config.json', tmp_path)
  (tmp_path / 'flax_model.msgpack').write_bytes(content)
  with pytest.raises(ConvertError, match=message):
    conversion.load(tmp_path)


def test_a_cut_or_another_flax(tmp_path):
  case = 'bert/pretraining_mlm_nsp'
  write_flax(tmp_path / 'flax', case)
  file = tmp_path / 'flax' / 'flax_model.msgpack'
  whole = file.read_bytes()
  file.write_bytes(whole[:len(whole) // 2])
  with pytest.raises(ConvertError, match=r'flax_model.msgpack'):
    conversion.load(tmp_path / 'flax')
  tree = serialization.msgpack_restore(whole)
  tree['bert']['pooler']['dense']['kernel'] = np.zeros((3, 5), np.float32)
  file.write_bytes(serialization.msgpack_serialize(tree))
  with pytest.raises(ConvertError,
                     match=r'tensor bert.pooler.dense.weight is \[5, 3\], the configuration makes '
                           r'it'):
    conversion.load(tmp_path / 'flax')


def write_tensorflow(folder, prefix, case, family, config):
  """The golden case as the authors' code would have it; -> its variables."""
  imported = conversion.load(GOLDEN / case)
  original = families.get_family(family, original=True).specialize(imported.config)
  variables = save_tensorflow(folder, prefix, original, conversion.flatten_tree(imported.params))
  for name, said in config.items():
    (folder / name).write_text(json.dumps(said))
  return imported, variables


def save_tensorflow(folder, prefix, original, flat, more=None):
  """Parameters 'a/b/c' as variables of the authors' names, and a counter that is none; -> the
  variables."""
  import tensorflow as tf
  rules = [*original.rules, *(rule for head in original.heads.values() for rule in head.rules)]
  variables = dict(export_arrays(rules, {name: np.asarray(x) for name, x in flat.items()})) | (
      more or {})
  folder.mkdir()
  saved = {**variables, 'global_step': np.int64(7)}
  tf.raw_ops.SaveV2(prefix=str(folder / prefix), tensor_names=list(saved),
                    shape_and_slices=[''] * len(saved),
                    tensors=[tf.constant(x) for x in saved.values()])
  return variables


def test_albert_of_tensorflow(tmp_path):
  case = 'albert/groups2_inner2'
  said = json.loads((GOLDEN / case / 'config.json').read_text())
  own = {name: said[name] for name in (
      'attention_probs_dropout_prob', 'hidden_dropout_prob', 'embedding_size', 'hidden_size',
      'initializer_range',
      'intermediate_size', 'max_position_embeddings', 'num_attention_heads', 'num_hidden_layers',
      'num_hidden_groups',
      'inner_group_num', 'type_vocab_size', 'vocab_size')}
  own |= {'hidden_act': 'gelu', 'down_scale_factor': 1, 'net_structure_type': 0,
          'layers_to_keep': [], 'gap_size': 0,
          'num_memory_blocks': 0, 'ln_type': 'postln'}
  imported, variables = write_tensorflow(
      tmp_path / 'tf', 'model.ckpt-best', case, 'albert', {'albert_config.json': own})
  inner = 'bert/encoder/transformer/group_1/inner_group_0'
  assert {f'{inner}/attention_1/self/query/kernel', f'{inner}/attention_1/output/dense/bias',
          f'{inner}/LayerNorm/beta',
          f'{inner}/LayerNorm_1/gamma', f'{inner}/ffn_1/intermediate/dense/kernel',
          f'{inner}/ffn_1/intermediate/output/dense/kernel', 'bert/embeddings/LayerNorm/gamma',
          'bert/encoder/embedding_hidden_mapping_in/kernel',
          'bert/pooler/dense/kernel'} <= {*variables}
  got = conversion.load(tmp_path / 'tf')
  assert_same(got.params, imported.params)
  assert (got.family, got.config.block.mlp.activation) == ('albert', 'gelu_tanh')


def test_xlnet_of_tensorflow(tmp_path):
  case = 'xlnet/two_stream_perm_labels'
  config = conversion.load(GOLDEN / case).config
  block = config.block
  own = {'d_head': block.head_dim, 'd_inner': block.mlp_dim, 'd_model': block.width,
         'ff_activation': 'gelu',
         'n_head': block.heads, 'n_layer': config.stack.layers, 'n_token': config.vocab,
         'untie_r': True}
  imported, variables = write_tensorflow(
      tmp_path / 'tf', 'xlnet_model.ckpt', case, 'xlnet', {'xlnet_config.json': own})
  transformer = 'model/transformer'
  assert {f'{transformer}/word_embedding/lookup_table', f'{transformer}/mask_emb/mask_emb',
          f'{transformer}/r_w_bias',
          f'{transformer}/seg_embed', f'{transformer}/layer_0/rel_attn/o/kernel',
          'model/lm_loss/bias',
          f'{transformer}/layer_1/rel_attn/LayerNorm/gamma',
          f'{transformer}/layer_1/ff/layer_1/kernel',
          f'{transformer}/layer_1/ff/LayerNorm/beta'} <= {*variables}
  assert variables[f'{transformer}/r_s_bias'].shape == (config.stack.layers, block.heads,
                                                        block.head_dim)
  got = conversion.load(tmp_path / 'tf' / 'xlnet_model.ckpt')
  assert_same(got.params, imported.params)
  (tmp_path / 'tf' / 'xlnet_config.json').write_text(json.dumps(own | {'untie_r': False}))
  with pytest.raises(ConvertError, match='untie_r is False, only True is supported'):
    conversion.load(tmp_path / 'tf')


def test_electra_of_tensorflow(tmp_path):
  """It has no configuration file; the generator next to it is ignored."""
  config = validation.with_paths(electra.small(), {
      'block.width': 128, 'block.heads': 2, 'block.mlp_dim': 48, 'stack.layers': 2, 'vocab': 50,
      'max_length': 16,
      'embeddings.width': 24})
  heads = {'rtd': electra.FAMILY.heads['rtd'].make(config, 2)}
  shapes = families.parameter_shapes(electra.FAMILY, config, heads)
  draw = np.random.default_rng(0)
  flat = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
  variables = save_tensorflow(tmp_path / 'tf', 'electra_small', electra.ORIGINAL.specialize(config),
                              flat, {
      'generator/encoder/layer_0/output/dense/bias': np.zeros(3, np.float32),
      'generator_predictions/output_bias': np.zeros(50, np.float32)})
  assert {'electra/embeddings_project/kernel', 'discriminator_predictions/dense_1/bias',
          'electra/encoder/layer_1/attention/output/LayerNorm/gamma'} <= {*variables}
  assert conversion.is_checkpoint(tmp_path / 'tf')
  got = conversion.load(tmp_path / 'tf')
  assert got.config == validation.with_paths(config, {'block.mlp.activation': 'gelu_tanh'}) and {
      *got.heads} == {'rtd'}
  assert_same(got.params, unflatten_dict(flat, sep='/'))


# transformers' names -> fairseq's.
BACK = (
    (r'^roberta\.embeddings\.word_embeddings', 'embed_tokens'),
    (r'^roberta\.embeddings\.position_embeddings', 'embed_positions'),
    (r'^roberta\.embeddings\.LayerNorm', 'emb_layer_norm'),
    (r'^roberta\.encoder\.layer\.', 'layers.'),
    (r'attention\.self\.(.)\w+\.', r'self_attn.\1_proj.'),
    (r'attention\.output\.dense', 'self_attn.out_proj'),
    (r'attention\.output\.LayerNorm', 'self_attn_layer_norm'),
    (r'output\.LayerNorm', 'final_layer_norm'),
    (r'intermediate\.dense', 'fc1'), (r'output\.dense', 'fc2'))


def to_fairseq(name):
  if name.startswith('lm_head.'):
    return 'decoder.' + name.replace('lm_head.decoder.weight', 'lm_head.weight')
  if name.startswith('classifier.'):
    return name.replace('classifier', 'classification_heads.mnli')
  for pattern, replacement in BACK:
    name = re.sub(pattern, replacement, name)
  return f'decoder.sentence_encoder.{name}'


def roberta_of_64(case):
  """Widen the tensors of a golden case to heads of size 64 by repeating them, and remove token
  types."""
  found = tensors_of(case)
  found.pop('roberta.embeddings.token_type_embeddings.weight', None)
  found['roberta.embeddings.word_embeddings.weight'] = found['lm_head.decoder.weight']
  def wide(name, x):
    once = {32: 4, 40: 3}
    for axis, size in enumerate(x.shape):
      rows = axis == 0 and re.search('embeddings.weight|decoder|lm_head.bias|out_proj', name)
      if size in once and not rows:
        x = np.concatenate([x * (1 + number / 8) for number in range(once[size])], axis)
    return x
  return {name: wide(name, x) for name, x in found.items()}


@pytest.mark.parametrize('joined', [False, True], ids=['apart', 'joined'])
def test_roberta_of_fairseq(tmp_path, torch, joined):
  """Queries, keys and values are separate, or in one matrix as in early versions; other content
  of the file is ignored."""
  tensors = roberta_of_64('xlm_roberta/masked_lm')
  state = {to_fairseq(name): x for name, x in tensors.items()}
  if joined:
    for layer in range(3):
      for kind in ('weight', 'bias'):
        each = [state.pop(f'decoder.sentence_encoder.layers.{layer}.self_attn.{part}_proj.{kind}')
                for part in 'qkv']
        state[f'decoder.sentence_encoder.layers.{layer}.self_attn.in_proj_{kind}'] = np.concatenate(
            each)
  state['decoder.sentence_encoder.embed_positions._float_tensor'] = np.zeros(1, np.float32)
  (tmp_path / 'fairseq').mkdir()
  path = tmp_path / 'fairseq' / 'model.pt'
  pickles.write(path, {'args': Never(), 'model': collections.OrderedDict(state)}, torch)
  got = conversion.load(tmp_path / 'fairseq')
  assert conversion.is_checkpoint(tmp_path / 'fairseq') and got.family == 'roberta'
  assert (got.config.block.width, got.config.block.heads, got.config.stack.layers) == (128, 2, 3)
  flat = conversion.flatten_tree(got.params)
  assert (flat.pop('backbone/embeddings/types') == 0).all()
  conversion.save(tmp_path / 'out', got.config, got.params, like='roberta')
  theirs = library.load_file(tmp_path / 'out' / 'model.safetensors')
  for name, x in tensors.items():
    if name in theirs:
      np.testing.assert_array_equal(theirs[name], x, err_msg=name)
  assert {*tensors} - {*theirs} <= {'lm_head.decoder.weight',
                                    'roberta.embeddings.word_embeddings.weight',
                                    'lm_head.decoder.bias'}
  (tmp_path / 'fairseq' / 'sentencepiece.bpe.model').touch()
  assert fairseq.FairseqCheckpoint(path).hf_config['model_type'] == 'xlm-roberta'


class Never:
  """Arguments of a pickle whose class does not exist when the pickle is read."""

  def __reduce__(self):
    return os.mkdir, ('never-made',)


def test_a_pickle_with_code_is_not_executed(tmp_path, torch, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pickles.write(tmp_path / 'model.pt', {'args': Never(), 'model': {'weight': Never()}}, torch)
  with pytest.raises(ConvertError, match='holds more than named tensors'):
    conversion.load(tmp_path / 'model.pt')
  pickles.write(tmp_path / 'model.pt', {'model': {'decoder.fc1': np.zeros((2, 3), np.float32)}},
                torch)
  with pytest.raises(ConvertError,
                     match=r'model.pt is no RoBERTa and no BART of fairseq: it has no tensor'):
    conversion.load(tmp_path)
  assert not (tmp_path / 'never-made').exists()


def test_bart_of_fairseq(tmp_path, torch):
  case = 'bart/kv_cache_steps'
  tensors = tensors_of(case)
  state = {name.removeprefix('model.'): x for name, x in tensors.items() if name
           != 'final_logits_bias'}
  shared = state.pop('shared.weight')
  state |= {'encoder.embed_tokens.weight': shared, 'decoder.embed_tokens.weight': shared,
            'decoder.output_projection.weight': shared, 'encoder.version': np.ones(1, np.float32)}
  state.pop('lm_head.weight', None)
  stated = argparse.Namespace(encoder_attention_heads=4, decoder_attention_heads=4,
                              no_scale_embedding=True)
  pickles.write(tmp_path / 'model.pt', {'args': stated, 'model': state}, torch)
  said = fairseq.FairseqCheckpoint(tmp_path / 'model.pt').hf_config
  config = json.loads((GOLDEN / case / 'config.json').read_text())
  for name in ('d_model', 'encoder_layers', 'decoder_layers', 'encoder_ffn_dim', 'decoder_ffn_dim',
               'encoder_attention_heads', 'decoder_attention_heads', 'max_position_embeddings'):
    assert said[name] == config[name], name
  assert said['model_type'] == 'bart' and said['scale_embedding'] is False
  got = conversion.load(tmp_path)
  want = conversion.flatten_tree(conversion.load(GOLDEN / case).params)
  for name, x in conversion.flatten_tree(got.params).items():
    np.testing.assert_array_equal(np.ravel(x), np.ravel(want[name]), err_msg=name)


def small_roberta(**stated):
  """A state dict of fairseq, 2 layers of width 32, with what its pickle states -> the contents of
  the file."""
  draw = np.random.default_rng(0)
  sizes = {'self_attn.q_proj': (32, 32), 'self_attn.k_proj': (32, 32), 'self_attn.v_proj': (32, 32),
           'self_attn.out_proj': (32, 32), 'fc1': (48, 32), 'fc2': (32, 48)}
  state = {'embed_tokens.weight': draw.normal(size=(40, 32)),
           'embed_positions.weight': draw.normal(size=(18, 32)),
           'emb_layer_norm.weight': np.ones(32), 'emb_layer_norm.bias': np.zeros(32)}
  for layer in range(2):
    for name, size in sizes.items():
      state[f'layers.{layer}.{name}.weight'] = draw.normal(size=size)
      state[f'layers.{layer}.{name}.bias'] = draw.normal(size=size[0])
    for name in ('self_attn_layer_norm', 'final_layer_norm'):
      state[f'layers.{layer}.{name}.weight'], state[f'layers.{layer}.{name}.bias'] = np.ones(
          32), np.zeros(32)
  model = {f'decoder.sentence_encoder.{name}': x.astype(np.float32) for name, x in state.items()}
  return {'args': argparse.Namespace(**stated), 'model': model}


@pytest.mark.parametrize('form', ['args', 'cfg', 'namespace in cfg'])
def test_settings_in_a_fairseq_pickle_are_used(tmp_path, torch, form):
  stated = dict(encoder_attention_heads=4, encoder_layers=2, encoder_embed_dim=32,
                encoder_ffn_embed_dim=48,
                max_positions=16, activation_fn='relu', dropout=0.2, attention_dropout=0.3,
                encoder_normalize_before=False)
  content = small_roberta(**stated)
  if form != 'args':
    section = stated if form == 'cfg' else argparse.Namespace(**stated)
    content |= {'args': None, 'cfg': {'_name': None, 'model': section, 'optimizer': {'lr': [0.1]}}}
  pickles.write(tmp_path / 'model.pt', content, torch)
  config = conversion.load(tmp_path).config
  assert (config.block.heads, config.stack.layers, config.max_length) == (4, 2, 16)
  assert (config.block.mlp.activation, config.block.dropout,
          config.block.attention.dropout) == ('relu', 0.2, 0.3)


@pytest.mark.parametrize(
  ('stated', 'message'),
  [
    ({}, 'states no encoder_attention_heads, and heads of 64 do not divide a width of 32'),
    (dict(encoder_attention_heads=5),
     r'5 heads \(encoder_attention_heads\) do not divide a width of 32'),
    (dict(encoder_attention_heads=4, encoder_layers=3),
     'encoder_layers is 3, the tensors make it 2'),
    (dict(encoder_attention_heads=4, activation_fn='tanh'),
     "activation_fn is 'tanh', known are relu, gelu"),
    (dict(encoder_attention_heads=4, encoder_normalize_before=True),
     'encoder_normalize_before is True'),
    (
      dict(encoder_attention_heads=4, encoder_learned_pos=False),
      'encoder_learned_pos is False, only True is supported',
    ),
    (dict(encoder_attention_heads=4, dropout=1.5), r'dropout is 1\.5, expected a share below 1'),
  ],
)
def test_settings_in_a_fairseq_pickle_are_checked(tmp_path, torch, stated, message):
  pickles.write(tmp_path / 'model.pt', small_roberta(**stated), torch)
  with pytest.raises(ConvertError, match=message):
    conversion.load(tmp_path)
