"""Parameters that are read by slices: layouts, the bytes read, and errors found while reading."""
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, sharding, tokenizers
from plm_jax.conversion import files
from plm_jax.inference import generate
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading import loaded_model
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.models import gpt2, llama
from plm_jax.models.layouts import Axes, Linear, Packed, RopePairs, Same, index_shape
from plm_jax.objectives.clm import CausalLM
from plm_jax.sharding import MeshConfig, make_mesh


@pytest.mark.parametrize(('layout', 'shape'), [
    (Same(), (6, 4)), (Same(flat=True), (6, 4)), (Linear(), (6, 4, 2)), (Linear(2), (4, 2, 6)),
    (Linear(transposed=False), (6, 4, 2)), (Linear(2, transposed=False), (4, 2, 6)),
    (RopePairs(), (6, 4, 4)),
    (Axes((2, 0, 1)), (6, 4, 2)),
    *((Packed(part, by_head=by_head, layout=alone), shape) for part in (0, 2)
      for by_head in (False, True)
      for alone, shape in ((Linear(), (6, 4, 2)), (Linear(transposed=False), (6, 4, 2)),
                           (Same(flat=True), (4, 2))))],
    ids=str)
def test_a_slice_equals_the_slice_of_the_whole(layout, shape):
  """Of the foreign array only the part is read, with the axes that are merged with it."""
  parts = [np.arange(math.prod(shape)).reshape(shape) + 1000 * n
           for n in range(getattr(layout, 'parts', 1))]
  ours, theirs = parts[getattr(layout, 'part', 0)], layout.export_array(*parts)
  for index in itertools.product(*[(slice(0, n), slice(n // 2, n)) for n in shape]):
    where, box = layout.export_index(index, shape)
    found = layout.import_array(theirs[where], index_shape(box))
    inner = tuple(slice(i.start - b.start, i.stop - b.start)
                  for i, b in zip(index, box, strict=True))
    np.testing.assert_array_equal(found[inner], ours[index])
    times = layout.parts if getattr(layout, 'by_head', False) else 1
    assert theirs[where].size == times * math.prod(index_shape(box))


def made(family):
  """A small model of two layers -> (its configuration, parameters)."""
  config = {'llama': llama.make_config(2, 32, 4, 64), 'gpt2': gpt2.make_config(2, 64)}[family]
  block = dataclasses.replace(config.block, heads=4, kv_heads=2 if family == 'llama' else None,
                              dropout=0.0)
  config = dataclasses.replace(config, vocab=96, max_length=32, block=block)
  ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  model = ModelWithHeads(config.backbone(), CausalLM().heads(config))
  boxed = jax.eval_shape(model.init, jax.random.key(0), dict(tokens=ids, segments=ids))['params']
  return config, boxed, jax.tree.map(np.asarray, tiny.random_params(boxed))


@pytest.fixture(scope='module', params=['llama', 'gpt2'])
def checkpoint(request, tmp_path_factory):
  config, boxed, params = made(request.param)
  folder = tmp_path_factory.mktemp(request.param) / 'in'
  conversion.save(folder, config, params, like=request.param, dtype='bfloat16', shard_bytes=20_000)
  assert len(list(folder.glob('*.safetensors'))) > 2
  return folder, boxed, conversion.load(folder).params


@pytest.fixture
def bytes_read(monkeypatch):
  """Bytes that come out of safetensors, one number a read."""
  read, seen = files.SafeTensorsFolder.read, []
  def counted(self, name, index=None):
    x = read(self, name, index)
    seen.append(x.nbytes)
    return x
  monkeypatch.setattr(files.SafeTensorsFolder, 'read', counted)
  return seen


def test_on_a_mesh_each_byte_is_read_once(checkpoint, bytes_read):
  """Eight devices of one host: data 2 x fsdp 2 x tensor 2."""
  folder, boxed, params = checkpoint
  lazy = conversion.load(folder, lazy=True).params
  assert not bytes_read
  mesh = make_mesh(MeshConfig(2, 2, 2))
  placed = jax.tree.map(sharding.shard_array, dict(lazy), sharding.shardings(boxed, mesh))
  tiny.assert_same(placed, params)
  assert sum(bytes_read) == sum(x.size for x in jax.tree.leaves(params)) * 2
  kernel = placed['backbone']['stack']['layers']['block']['mlp']['up']['kernel']
  assert {shard.data.size for shard in kernel.addressable_shards} == {kernel.size // 4}


def test_a_device_needs_its_own_bytes(checkpoint, bytes_read):
  """One device reads only the bytes that it stores, in bfloat16."""
  folder, boxed, params = checkpoint
  lazy = conversion.load(folder, lazy=True).params
  layout = sharding.shardings(boxed, make_mesh(MeshConfig(1, 4, 2)))
  device = jax.devices()[5]
  held = jax.tree.map(lambda x, where: x[where.addressable_devices_indices_map(x.shape)[device]],
                      dict(lazy), layout)
  tiny.assert_same(held, jax.tree.map(
      lambda x, where: x[where.addressable_devices_indices_map(x.shape)[device]], params, layout))
  assert sum(bytes_read) == sum(x.size for x in jax.tree.leaves(held)) * 2
  assert sum(bytes_read) < 0.2 * sum(x.size for x in jax.tree.leaves(params)) * 2


def test_tied_copies_are_compared_where_they_are_read(tmp_path):
  config, _, params = made('gpt2')
  conversion.save(tmp_path / 'in', config, params, like='gpt2')
  tensors = {
    name: files.SafeTensorsFolder(tmp_path / 'in').read(name)
    for name in files.SafeTensorsFolder(tmp_path / 'in').tensors
  }
  tensors['lm_head.weight'] = tensors['transformer.wte.weight'] + (np.arange(96) == 90)[:, None]
  files.write_safetensors(tmp_path / 'in', tensors.items(), 1 << 30)
  tokens = conversion.load(tmp_path / 'in', lazy=True).params['backbone']['embeddings']['tokens']
  np.testing.assert_array_equal(tokens[:48], params['backbone']['embeddings']['tokens'][:48])
  with pytest.raises(conversion.ConvertError,
                     match=r'lm_head\.weight differs from what it has to equal'):
    tokens[48:]


def test_a_truncated_shard_is_named(tmp_path):
  config, _, params = made('llama')
  conversion.save(tmp_path / 'in', config, params, like='llama', shard_bytes=20_000)
  shard = sorted((tmp_path / 'in').glob('model-*'))[2]
  shard.write_bytes(shard.read_bytes()[:-100])
  with pytest.raises(conversion.ConvertError, match=f'{shard.name} cannot be read'):
    conversion.load(tmp_path / 'in', lazy=True)
  shard.unlink()
  with pytest.raises(conversion.ConvertError,
                     match=f'names files that are not there:\n  {shard.name}'):
    conversion.load(tmp_path / 'in', lazy=True)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A LLaMA with a tokenizer, in a folder."""
  config, _, _ = made('llama')
  config = dataclasses.replace(config, vocab=330, max_length=64)
  ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  whole = ModelWithHeads(config.backbone(), CausalLM().heads(config))
  params = tiny.random_params(jax.eval_shape(whole.init, jax.random.key(0),
                                             dict(tokens=ids, segments=ids))['params'])
  tokenizer = tokenizers.train_sentencepiece(
      [f'The cat number {i} sat on the mat.' for i in range(60)], 310, 'bpe', layout='llama')
  folder = tmp_path_factory.mktemp('model') / 'in'
  conversion.save(folder, config, params, tokenizer, like='llama')
  return folder


@pytest.mark.slow
def test_generation_on_a_mesh(model, bytes_read):
  """The same tokens as on one device; tensors are split, and each byte is read once."""
  prompts, config = ['The cat', 'sat on the'], GenerationConfig(max_new=8)
  alone = generate.generate(loaded_model.load_model(model), prompts, config)
  bytes_read.clear()
  mesh = make_mesh(MeshConfig(1, 2, 2))
  with jax.set_mesh(mesh):
    trained = loaded_model.load_model(model, mesh)
    together = generate.generate(trained, prompts, config)
  assert [[x.tokens for x in some] for some in together] == [[x.tokens for x in some]
                                                             for some in alone]
  assert sum(bytes_read) == sum(x.nbytes for x in jax.tree.leaves(trained.params))
  kernel = trained.params['backbone']['stack']['layers']['block']['mlp']['up']['kernel']
  assert {shard.data.size for shard in kernel.addressable_shards} == {kernel.size // 4}
