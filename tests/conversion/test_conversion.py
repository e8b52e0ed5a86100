"""Checkpoints in and out, without the library that they belong to."""
import dataclasses
import json
import sys

from flax.linen import unbox
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from plm_jax import conversion, validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.cli import commands as cli
from plm_jax.conversion import ConvertError
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.loading import loaded_model
from plm_jax.models import bert, roberta, rules
from plm_jax.tokenizers import WordPiece
from plm_jax.tokenizers.wordpiece import SPECIALS

files = pytest.importorskip('safetensors.numpy')

CONFIG = EncoderConfig(
    vocab=40, max_length=12, block=BlockConfig(width=12, heads=3, mlp_dim=20),
    stack=StackConfig(layers=3))
IDS = {'tokens': jnp.arange(8)[None] % 7, 'segments': jnp.ones((1, 8), jnp.int32)}


def make(heads=('mlm', 'nsp'), config=CONFIG, dtype=np.float32):
  """Random parameters of a model with these heads, every one a number of `dtype`."""
  model = ModelWithHeads(Encoder(config),
                         {name: bert.FAMILY.heads[name].make(config, 2) for name in heads})
  shapes = jax.eval_shape(model.init, jax.random.key(0), IDS)['params']
  draw = np.random.default_rng(0)
  return jax.tree.map(lambda x: draw.normal(size=x.shape).astype(dtype).astype(np.float32),
                      unbox(shapes))


@pytest.fixture
def checkpoint(tmp_path):
  """A folder as transformers writes it."""
  conversion.save(tmp_path / 'in', CONFIG, make())
  return tmp_path / 'in'


def edit(folder, tensors=None, config=None):
  """Changes a checkpoint: functions of its tensors and of its configuration, in place."""
  for name, change in (('model.safetensors', tensors), ('config.json', config)):
    path = folder / name
    if change and name.endswith('.json'):
      path.write_text(json.dumps(change(json.loads(path.read_text()))))
    elif change:
      files.save_file(change(files.load_file(path)), path)


def all_tensors(folder):
  return {name: x for path in folder.glob('*.safetensors')
          for name, x in files.load_file(path).items()}


def assert_bits(got, want):
  assert got.keys() == want.keys()
  for name, x in want.items():
    assert got[name].dtype == x.dtype and got[name].shape == x.shape and got[name].tobytes(
        ) == x.tobytes(), name


def assert_params(got, want):
  assert_bits(flatten_dict(got, sep='/'), flatten_dict(want, sep='/'))


@pytest.mark.parametrize('heads', list(bert.FAMILY.classes.values()), ids=list(bert.FAMILY.classes))
def test_there_and_back(tmp_path, heads):
  pooled = any(name in heads for name in ('nsp', 'label', 'choice')) or not heads
  config = dataclasses.replace(CONFIG, pooler=pooled)
  params = make(heads, config)
  conversion.save(tmp_path / 'out', config, params)
  said = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert bert.FAMILY.classes[said['architectures'][0]] == heads
  imported = conversion.load(tmp_path / 'out')
  assert imported.config == config and tuple(imported.heads) == heads and imported.tokenizer is None
  assert_params(imported.params, params)


@pytest.mark.parametrize('dtype', [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize('shard_bytes', [5 << 30, 3000])
def test_export_of_an_import_is_the_same(tmp_path, dtype, shard_bytes):
  params = make(dtype=dtype)
  conversion.save(tmp_path / 'a', CONFIG, params, dtype=np.dtype(dtype).name,
                  shard_bytes=shard_bytes)
  assert (len(list((tmp_path / 'a').glob('model-*'))) > 3) == (shard_bytes == 3000)
  imported = conversion.load(tmp_path / 'a')
  assert_params(imported.params, params)
  conversion.save(tmp_path / 'b', imported.config, imported.params, like=imported)
  assert {x.dtype for x in all_tensors(tmp_path / 'b').values()} == {np.dtype(dtype)}
  assert_bits(all_tensors(tmp_path / 'b'), all_tensors(tmp_path / 'a'))
  assert [json.loads((tmp_path / name / 'config.json').read_text()) for name in 'ab'] == 2 * [
      json.loads((tmp_path / 'a' / 'config.json').read_text())]


def legacy(tensors):
  """As files of 2019 have it: other names of the norms, the tied matrix and bias twice, a buffer,
  two types."""
  old = {name.replace('LayerNorm.weight',
                      'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'): x
         for name, x in tensors.items()}
  old['cls.predictions.decoder.weight'] = tensors['bert.embeddings.word_embeddings.weight'].copy()
  old['cls.predictions.decoder.bias'] = tensors['cls.predictions.bias'].copy()
  old['bert.embeddings.position_ids'] = np.arange(12)[None]
  old['bert.pooler.dense.bias'] = np.zeros(12, np.float16)
  return old


def test_legacy_names(checkpoint, tmp_path):
  edit(checkpoint, legacy)
  imported = conversion.load(checkpoint)
  assert 'backbone/embeddings/tokens' in flatten_dict(imported.params, sep='/')
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  assert_bits(all_tensors(tmp_path / 'out'), all_tensors(checkpoint))
  conversion.save(tmp_path / 'new', imported.config, imported.params)
  assert not {name for name in all_tensors(tmp_path / 'new') if 'gamma' in name
              or 'decoder' in name or 'ids' in name}


@pytest.mark.parametrize('name', [
    'cls.predictions.decoder.weight', 'cls.predictions.decoder.bias',
    'bert.embeddings.position_ids'])
def test_copy_that_disagrees(checkpoint, name):
  def change(tensors):
    tensors = legacy(tensors)
    tensors[name].flat[0] += 1
    return tensors
  edit(checkpoint, change)
  with pytest.raises(ConvertError, match=f'{name} differs from'):
    conversion.load(checkpoint)


def test_no_prefix(checkpoint):
  """The bare class leaves `bert.` out."""
  edit(checkpoint, lambda tensors: {
      name.removeprefix('bert.'): x for name, x in tensors.items() if not name.startswith('cls.')})
  assert_params(conversion.load(checkpoint).params, {'backbone': make()['backbone']})


@pytest.mark.parametrize('prefix', ['module.', '_orig_mod.', 'model.', 'module.net._orig_mod.'])
@pytest.mark.parametrize('bare', [False, True], ids=['with heads', 'bare'])
def test_prefix_of_a_wrapping_module(checkpoint, tmp_path, prefix, bare):
  """DataParallel, torch.compile and Lightning's modules: an export has the names without their
  prefix."""
  before = conversion.load(checkpoint, heads=() if bare else None)
  def wrap(tensors):
    names = [name for name in tensors if not bare or name.startswith('bert.')]
    return {prefix + (name.removeprefix('bert.') if bare else name): tensors[name]
            for name in names}
  plain = all_tensors(checkpoint)
  edit(checkpoint, wrap)
  imported = conversion.load(checkpoint)
  assert_params(imported.params, before.params)
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  if not bare:
    assert_bits(all_tensors(tmp_path / 'out'), plain)


def test_alternative_model_types_of_a_family_are_read(tmp_path):
  """CamemBERT is RoBERTa: its files have the same tensors, and classes of another name."""
  config = dataclasses.replace(roberta.base(), vocab=40, max_length=12, block=CONFIG.block,
                               stack=CONFIG.stack)
  heads = {'tags': roberta.FAMILY.heads['tags'].make(config, 2)}
  shapes = jax.eval_shape(ModelWithHeads(Encoder(config), heads).init, jax.random.key(0),
                          IDS)['params']
  params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), unbox(shapes))
  conversion.save(tmp_path / 'in', config, params, like='roberta')
  stated = {'model_type': 'camembert', 'architectures': ['CamembertForTokenClassification']}
  edit(tmp_path / 'in', config=lambda said: {**said, **stated})
  imported = conversion.load(tmp_path / 'in')
  assert imported.family == 'roberta' and list(imported.heads) == ['tags']
  assert_params(imported.params, params)
  stated = {'model_type': 'mistral', 'architectures': ['MistralForCausalLM'],
            'sliding_window': 4096}
  edit(tmp_path / 'in', config=lambda said: {**said, **stated})
  with pytest.raises(ConvertError, match='unknown attribute sliding_window: 4096'):
    conversion.load(tmp_path / 'in')


def test_other_tensors_next_to_wrapped_ones_are_named(checkpoint):
  edit(checkpoint, lambda tensors: {
      'loss.weight': np.ones(2, np.float32), **{f'model.{name}': x for name, x in tensors.items()}})
  with pytest.raises(ConvertError, match=r'cannot convert:\s+unknown tensor loss.weight \[2\]$'):
    conversion.load(checkpoint)


def test_prefix_of_another_family_is_no_wrapper(checkpoint):
  edit(checkpoint, lambda tensors: {name.replace('bert.', 'roberta.', 1): x
                                    for name, x in tensors.items()})
  with pytest.raises(ConvertError, match=r'missing tensor bert\.embeddings'):
    conversion.load(checkpoint)


def test_all_that_is_wrong_is_named(checkpoint):
  def change(tensors):
    del tensors['bert.encoder.layer.2.output.dense.bias'], tensors['cls.predictions.bias']
    tensors['bert.encoder.layer.1.attention.self.query.weight'] = np.zeros((12, 11), np.float32)
    tensors['bert.encoder.layer.0.output.dense.bias'] = np.zeros(12, np.int8)
    return {**tensors, 'bert.encoder.layer.3.output.dense.bias': np.zeros(12, np.float32),
            'adapter.up': np.zeros(2)}
  edit(checkpoint, change)
  with pytest.raises(ConvertError) as caught:
    conversion.load(checkpoint)
  for part in ('missing tensor bert.encoder.layer.2.output.dense.bias [12]',
               'missing tensor cls.predictions.bias [40]',
               'unknown tensor bert.encoder.layer.3.output.dense.bias [12]',
               'unknown tensor adapter.up [2]',
               'query.weight is [12, 11], the configuration makes it [12, 12]',
               '0.output.dense.bias is of type I8'):
    assert part in str(caught.value)


@pytest.mark.parametrize(('attribute', 'value'), [
    ('is_decoder', True), ('position_embedding_type', 'relative_key'),
    ('tie_encoder_decoder', True),
    ('rotary_dim', 8), ('hidden_act', 'quick_gelu'), ('pruned_heads', {'1': [0]}),
    ('quantization_config', {'bits': 8})])
def test_attribute_is_refused_by_name(checkpoint, attribute, value):
  edit(checkpoint, config=lambda said: {**said, attribute: value})
  with pytest.raises(ConvertError, match=f'attribute {attribute}'):
    conversion.load(checkpoint)


@pytest.mark.parametrize('value', [False, None, 0, 0.0, '', [], {}])
def test_disabled_unknown_attributes_are_ignored(checkpoint, value):
  edit(checkpoint, config=lambda said: {**said, 'causal_mask': value, 'is_causal': value})
  assert conversion.load(checkpoint).config == CONFIG


def test_attributes_at_their_defaults(checkpoint):
  edit(checkpoint, config=lambda said: {
      **said, 'is_decoder': False, 'pruned_heads': {}, 'position_embedding_type': 'absolute',
      'torch_dtype': 'float16',
      'directionality': 'bidi', 'pooler_fc_size': 768, 'gradient_checkpointing': False})
  assert conversion.load(checkpoint).config == CONFIG


@pytest.mark.parametrize(('theirs', 'ours', 'back'), [
    ('gelu', 'gelu', 'gelu'), ('gelu_new', 'gelu_tanh', 'gelu_new'),
    ('gelu_pytorch_tanh', 'gelu_tanh', 'gelu_new'),
    ('relu', 'relu', 'relu')])
def test_activations(checkpoint, tmp_path, theirs, ours, back):
  edit(checkpoint, config=lambda said: {**said, 'hidden_act': theirs})
  imported = conversion.load(checkpoint)
  assert imported.config.block.mlp.activation == ours
  conversion.save(tmp_path / 'out', imported.config, imported.params)
  assert json.loads((tmp_path / 'out' / 'config.json').read_text())['hidden_act'] == back


def test_wanted_heads(checkpoint):
  imported = conversion.load(checkpoint, heads=('nsp', 'label'))
  assert list(imported.heads) == ['nsp'] and imported.missing_heads == (
      'label',) and 'heads_mlm' not in imported.params
  with pytest.raises(ConvertError, match="no such head:\n  'sop'"):
    conversion.load(checkpoint, heads=('sop',))


def test_classifier_of_an_unnamed_class(tmp_path):
  conversion.save(tmp_path / 'in', CONFIG, make(('label',)))
  edit(tmp_path / 'in', config=lambda said: {**said, 'architectures': None})
  with pytest.raises(ConvertError, match='may be of the heads label, tags, choice'):
    conversion.load(tmp_path / 'in')
  assert list(conversion.load(tmp_path / 'in', heads=('tags',)).heads) == ['tags']
  assert list(conversion.load(tmp_path / 'in', heads=()).heads) == []


@pytest.mark.parametrize('name', ['model.bin', 'model.pt', 'tf_model.h5', 'weights.pkl'])
def test_pickles_are_refused_by_name(checkpoint, name):
  (checkpoint / 'model.safetensors').rename(checkpoint / name)
  for path in (checkpoint, checkpoint / name):
    with pytest.raises(ConvertError, match=f'{name} is not read.*safe_serialization'):
      conversion.load(path)


def test_damaged_files(checkpoint, tmp_path):
  path = checkpoint / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(ConvertError, match=r'model\.safetensors cannot be read'):
    conversion.load(checkpoint)
  (checkpoint / 'config.json').write_text('{')
  with pytest.raises(ConvertError, match=r'config\.json cannot be read'):
    conversion.load(checkpoint)
  with pytest.raises(ConvertError, match='there is no folder'):
    conversion.load(tmp_path / 'nothing')


def test_shards_that_are_not_there(tmp_path):
  conversion.save(tmp_path / 'in', CONFIG, make(), shard_bytes=8000)
  sorted((tmp_path / 'in').glob('model-*'))[1].unlink()
  with pytest.raises(ConvertError, match=r'names files that are not there:\n  model-00002-of'):
    conversion.load(tmp_path / 'in')


@pytest.mark.parametrize('changes', [
    {'norm_at': 'pre'}, {'mlp.gated': True}, {'norm.kind': 'rms'}, {'attention.bias': ()},
    {'mlp.bias': False},
    {'kv_heads': 1}, {'attention.scale': 0.1}])
def test_settings_without_a_counterpart_are_not_exported(tmp_path, changes):
  config = dataclasses.replace(CONFIG, block=validation.with_paths(CONFIG.block, changes))
  with pytest.raises(ConvertError, match=f'block.{next(iter(changes))}: .* has no counterpart'):
    conversion.save(tmp_path / 'out', config, make(config=config))
  assert not list(tmp_path.iterdir())


def test_all_or_nothing(tmp_path, monkeypatch):
  def fail(*args):
    raise OSError('disk full')
  monkeypatch.setattr('plm_jax.conversion.files.write_json', fail)
  with pytest.raises(ConvertError, match=r'/out cannot be written: disk full'):
    conversion.save(tmp_path / 'out', CONFIG, make())
  assert not list(tmp_path.iterdir())


def test_other_refusals_of_save(tmp_path):
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full' / 'file').touch()
  cases = (('not empty', dict(folder=tmp_path / 'full')),
           ('beyond the range of float16', dict(dtype='float16')),
           ('dtype is one of', dict(dtype='int8')))
  params = make()
  params['backbone']['pooler']['bias'][0] = 1e6
  for message, changes in cases:
    with pytest.raises(ConvertError, match=message):
      conversion.save(**{'folder': tmp_path / 'out', 'config': CONFIG, 'params': params, **changes})
  with pytest.raises(ConvertError,
                     match=r'not those of the configuration:\n  backbone/embeddings/positions'):
    conversion.save(tmp_path / 'out', dataclasses.replace(CONFIG, max_length=8), params)


def write_tensorflow(folder, params, extra=()):
  """A checkpoint as google-research/bert released them, with what its optimizer left."""
  import tensorflow as tf
  variables = dict(rules.export_arrays(
      [*bert.ORIGINAL.rules, *bert.ORIGINAL.heads['mlm'].rules, *bert.ORIGINAL.heads['nsp'].rules],
      flatten_dict(params, sep='/')))
  variables |= {f'{name}/adam_{m}': 0 * x for name, x in variables.items() for m in 'mv'}
  variables |= {'global_step': np.int64(7), **dict(extra)}
  folder.mkdir()
  tf.raw_ops.SaveV2(prefix=str(folder / 'bert_model.ckpt'), tensor_names=list(variables),
                    shape_and_slices=[''] * len(variables),
                    tensors=[tf.constant(x) for x in variables.values()])
  (folder / 'bert_config.json').write_text(json.dumps({
      'attention_probs_dropout_prob': 0.1, 'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1,
      'hidden_size': 12,
      'initializer_range': 0.02, 'intermediate_size': 20, 'max_position_embeddings': 12,
      'num_attention_heads': 3,
      'num_hidden_layers': 3, 'type_vocab_size': 2, 'vocab_size': 40}))
  return variables


def test_tensorflow(tmp_path):
  """Names and axes are as in the released checkpoints; matrices are transposed between the two
  libraries."""
  params = make()
  variables = write_tensorflow(tmp_path / 'tf', params)
  imported = conversion.load(tmp_path / 'tf')
  assert_params(imported.params, params)
  assert imported.config == bert.use_tanh_gelu(CONFIG)
  assert_params(conversion.load(tmp_path / 'tf' / 'bert_model.ckpt').params, params)

  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  theirs = all_tensors(tmp_path / 'out')
  for name, torch_name, transposed in (
      ('bert/embeddings/word_embeddings', 'bert.embeddings.word_embeddings.weight', False),
      ('bert/embeddings/LayerNorm/gamma', 'bert.embeddings.LayerNorm.weight', False),
      ('bert/encoder/layer_2/attention/self/query/kernel',
       'bert.encoder.layer.2.attention.self.query.weight', True),
      ('bert/encoder/layer_0/output/dense/kernel', 'bert.encoder.layer.0.output.dense.weight',
       True),
      ('bert/encoder/layer_1/intermediate/dense/bias',
       'bert.encoder.layer.1.intermediate.dense.bias', False),
      ('bert/pooler/dense/kernel', 'bert.pooler.dense.weight', True),
      ('cls/predictions/transform/LayerNorm/beta', 'cls.predictions.transform.LayerNorm.bias',
       False),
      ('cls/predictions/output_bias', 'cls.predictions.bias', False),
      ('cls/seq_relationship/output_weights', 'cls.seq_relationship.weight', False),
      ('cls/seq_relationship/output_bias', 'cls.seq_relationship.bias', False)):
    np.testing.assert_array_equal(variables[name].T if transposed else variables[name],
                                  theirs[torch_name])
  assert json.loads((tmp_path / 'out' / 'config.json').read_text())['hidden_act'] == 'gelu_new'


def test_tensorflow_unknown_variable(tmp_path):
  write_tensorflow(tmp_path / 'tf', make(), {'bert/adapter/kernel': np.zeros((2, 3), np.float32)})
  with pytest.raises(ConvertError, match=r'unknown tensor bert/adapter/kernel \[2, 3\]'):
    conversion.load(tmp_path / 'tf')


@pytest.mark.slow
def test_command_line(tmp_path, monkeypatch, capsys):
  """fill-mask takes an imported checkpoint; export writes one that gives the same answers."""
  tokenizer = WordPiece([*SPECIALS, *(chr(97 + n) for n in range(26)),
                         *(f'##{n}' for n in range(9))])
  conversion.save(tmp_path / 'in', CONFIG, make(), tokenizer)
  assert conversion.is_checkpoint(tmp_path / 'in')
  def run(*args):
    monkeypatch.setattr(sys, 'argv', ['plm_jax', *map(str, args)])
    cli.main()
    return capsys.readouterr().out
  answer = run('fill-mask', tmp_path / 'in', 'a [MASK] c')
  assert answer.count('%') == 5
  run('export', tmp_path / 'in', tmp_path / 'out')
  assert_bits(all_tensors(tmp_path / 'out'), all_tensors(tmp_path / 'in'))
  assert run('fill-mask', tmp_path / 'out', 'a [MASK] c') == answer
  run('export', tmp_path / 'in', tmp_path / 'half', '--dtype=bfloat16')
  assert {x.dtype.name for x in all_tensors(tmp_path / 'half').values()} == {'bfloat16'}
  with pytest.raises(SystemExit, match=r'error: .* not empty'):
    run('export', tmp_path / 'in', tmp_path / 'out')
  loaded = loaded_model.load_model(tmp_path / 'out').tokenizer
  assert loaded.hash == tokenizer.hash


def test_untied_output_matrices_are_exported(tmp_path):
  config = dataclasses.replace(CONFIG, tied=False)
  params = make(config=config)
  conversion.save(tmp_path / 'out', config, params)
  assert json.loads((tmp_path / 'out' / 'config.json').read_text())['tie_word_embeddings'] is False
  imported = conversion.load(tmp_path / 'out')
  assert imported.config == config
  np.testing.assert_array_equal(imported.params['heads_mlm']['kernel'],
                                params['heads_mlm']['kernel'])
  assert all_tensors(tmp_path / 'out')['cls.predictions.decoder.weight'].shape == (40, 12)
