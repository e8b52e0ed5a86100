"""Checkpoints written here as T5X writes them: arrays in zarr, small ones in the msgpack file
itself."""
import dataclasses

from flax import serialization
import flax.linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np
import pytest

from plm_jax import conversion, validation
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.models import t5

tensorstore = pytest.importorskip('tensorstore')


def small(config):
  block = dataclasses.replace(config.block, width=12, heads=3, head_size=5, mlp_dim=20)
  tied = dict(logit_factor=12 ** -0.5) if config.tied else {}
  return dataclasses.replace(config, vocab=40, block=block, stack=StackConfig(2),
                             decoder=StackConfig(3), **tied)


@pytest.fixture(scope='module', params=['v1.0', 'v1.1'])
def model(request):
  """(configuration, our parameters)."""
  config = small(t5.small() if request.param == 'v1.0' else t5.v1_1_small())
  return config, model_of(config)


def model_of(config):
  """Parameters, numbers at random."""
  ids = np.ones((1, 4), np.int32)
  batch = {name: ids for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}
  whole = ModelWithHeads(config.backbone(),
                         {'lm': NextTokenHead(config.block, config.vocab, config.tied)})
  shapes = nn.unbox(jax.eval_shape(whole.init, jax.random.key(0), batch))['params']
  draw = np.random.default_rng(0)
  return jax.tree.map(lambda x: draw.standard_normal(x.shape).astype(np.float32), shapes)


def theirs(params):
  """Ours -> {T5X's name: array}, layers one by one."""
  found = {'token_embedder/embedding': params['backbone']['tokens']}
  if 'heads_lm' in params:
    found['decoder/logits_dense/kernel'] = params['heads_lm']['kernel']
  for side in ('encoder', 'decoder'):
    stack = params['backbone'][side]['stack']
    block = stack['layers']['block']
    found[f'{side}/relpos_bias/rel_embedding'] = stack['buckets'].T
    found[f'{side}/{side}_norm/scale'] = stack['norm']['scale']
    names = {'attention': ('attention', 'pre_attention_layer_norm')} if side == 'encoder' else {
        'attention': ('self_attention', 'pre_self_attention_layer_norm'),
        'cross': ('encoder_decoder_attention', 'pre_cross_attention_layer_norm')}
    for n in range(len(block['mlp_norm']['scale'])):
      at = f'{side}/layers_{n}'
      for ours, (attention, norm) in names.items():
        found[f'{at}/{norm}/scale'] = block[f'{ours}_norm']['scale'][n]
        for name in ('query', 'key', 'value'):
          found[f'{at}/{attention}/{name}/kernel'] = block[ours][name]['kernel'][n].reshape(12, 15)
        found[f'{at}/{attention}/out/kernel'] = block[ours]['out']['kernel'][n].reshape(15, 12)
      mlp = block['mlp']
      found[f'{at}/pre_mlp_layer_norm/scale'] = block['mlp_norm']['scale'][n]
      found[f'{at}/mlp/wo/kernel'] = mlp['down']['kernel'][n]
      found[f'{at}/mlp/{"wi_0" if "gate" in mlp else "wi"}/kernel'] = mlp['up']['kernel'][n]
      if 'gate' in mlp:
        found[f'{at}/mlp/wi_1/kernel'] = mlp['gate']['kernel'][n]
  return found


def scanned(arrays, by_head):
  """Layers along axis 1; by_head: heads and their sizes are two axes."""
  stacked = {}
  for name, x in arrays.items():
    if 'layers_' not in name:
      stacked[name] = x
      continue
    if by_head and 'attention/' in name and 'kernel' in name:
      x = x.reshape((3, 5, 12) if 'out/' in name else (12, 3, 5))
    side, _, rest = name.split('/', 2)
    stacked.setdefault(f'{side}/{side}/{rest}', []).append(x)
  return {name: np.stack(x, 1) if isinstance(x, list) else x for name, x in stacked.items()}


def write(folder, arrays, bucket='gs'):
  """`bucket`: the storage driver in the file's metadata."""
  tree = {}
  for name, x in arrays.items():
    if name.endswith('scale'):
      tree[name] = x
      continue
    path = f'target.{name.replace("/", ".")}'
    store = tensorstore.open(
        {'driver': 'zarr', 'kvstore': {'driver': 'file', 'path': f'{folder / path}/'},
         'dtype': 'float32'}, create=True,
        shape=x.shape).result()
    store.write(x).result()
    tree[name] = {'driver': 'zarr', 'dtype': 'float32', 'metadata': {'shape': list(x.shape)},
                  'kvstore': {'driver': 'gcs', 'bucket': bucket,
                              'path': f'run/checkpoint_5/{path}'}}
  target = unflatten_dict({tuple(name.split('/')): x for name, x in tree.items()})
  content = {'version': 3, 'optimizer': {'target': target, 'state': {'step': np.int32(5)}}}
  (folder / 'checkpoint').write_bytes(serialization.msgpack_serialize(content))


@pytest.mark.parametrize('form', ['layers', 'scanned', 'by head'])
def test_in(model, form, tmp_path):
  config, params = model
  arrays = theirs(params)
  write(tmp_path, arrays if form == 'layers' else scanned(arrays, form == 'by head'))
  assert conversion.is_checkpoint(tmp_path)
  imported = conversion.load(tmp_path)
  assert imported.family == 't5' and set(imported.heads) == {'lm'}
  plain = validation.with_paths(imported.config.block,
                                {'dropout': 0.0, 'attention.dropout': 0.0, 'mlp.dropout': 0.0})
  said = validation.with_paths(config.block,
                               {'dropout': 0.0, 'attention.dropout': 0.0, 'mlp.dropout': 0.0})
  assert dataclasses.replace(imported.config,
                             block=plain) == dataclasses.replace(config, block=said)
  got, want = (flatten_dict(x, sep='/') for x in (imported.params, params))
  assert got.keys() == want.keys()
  assert all((got[name] == x).all() for name, x in want.items())
  lazy = flatten_dict(conversion.load(tmp_path, lazy=True).params, sep='/')
  name = 'backbone/encoder/stack/layers/block/attention/query/kernel'
  assert (lazy[name][1:, 2:5] == want[name][1:, 2:5]).all()


def test_unsupported_t5_variants_are_refused(model, tmp_path):
  _, params = model
  arrays = theirs(params)
  arrays['encoder/layers_0/relpos_bias/rel_embedding'] = arrays.pop(
      'encoder/relpos_bias/rel_embedding')
  write(tmp_path, arrays)
  with pytest.raises(conversion.ConvertError,
                     match=r'share their positions:\s+encoder/layers_0/relpos_bias'):
    conversion.load(tmp_path)
  (tmp_path / 'checkpoint').write_bytes(b'\x93\x01\x02\x03')
  with pytest.raises(conversion.ConvertError, match='not a checkpoint of T5X'):
    conversion.load(tmp_path)
  (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "model.ckpt-5"\n')
  assert not conversion.is_checkpoint(tmp_path)
