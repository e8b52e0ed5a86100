"""torch's files, written by a helper without torch."""
import collections
import json
import os
import pathlib
import shutil
import sys

import jax
import numpy as np
import pytest
import tiny
import torch_files
from torch_files import write

import plm_jax
from plm_jax import conversion
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.conversion.torch_pickle import TorchPickle

torch = torch_files.torch  # the fixture
library = pytest.importorskip('safetensors.numpy')

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'deberta' / 'v1_seqcls_c2p_only'


@pytest.mark.parametrize('older', [False, True], ids=['zip', 'stream'])
def test_tensors_come_back(older, torch, tmp_path):
  draw = np.random.default_rng(0)
  matrix = draw.normal(size=(3, 4)).astype(np.float32)
  state = collections.OrderedDict(
      plain=matrix, turned=matrix.T[1:], half=draw.normal(size=5).astype(np.float16),
      ids=np.arange(3),
      number=np.array(2, np.float32))
  write(tmp_path / 'x.bin', state, torch, older)
  read = TorchPickle(tmp_path / 'x.bin')
  assert read.tensors == {'plain': ((3, 4), 'F32'), 'turned': ((3, 3), 'F32'),
                          'half': ((5,), 'F16'),
                          'ids': ((3,), 'I64'), 'number': ((), 'F32')}
  for name, x in state.items():
    np.testing.assert_array_equal(read.read(name), x)


@pytest.mark.parametrize('older', [False, True], ids=['zip', 'stream'])
def test_nothing_in_a_pickle_is_run(older, torch, tmp_path):
  class Evil:
    def __reduce__(self):
      return os.system, (f'touch {tmp_path}/ran',)
  write(tmp_path / 'x.bin', {'a': Evil()}, torch, older)
  with pytest.raises(conversion.ConvertError,
                     match=r'names posix\.system, which is not part of a tensor'):
    TorchPickle(tmp_path / 'x.bin')
  assert not (tmp_path / 'ran').exists()


def test_files_without_a_state_dict_are_refused(torch, tmp_path):
  write(tmp_path / 'x.bin', {'epoch': 3, 'model': {}}, torch)
  with pytest.raises(conversion.ConvertError, match='more than named tensors'):
    TorchPickle(tmp_path / 'x.bin')
  (tmp_path / 'x.bin').write_bytes(b'no torch at all')
  with pytest.raises(conversion.ConvertError, match='damaged, or not a torch checkpoint'):
    TorchPickle(tmp_path / 'x.bin')


def test_the_original_deberta(torch, tmp_path):
  """Its pytorch_model.bin gives the same as a safetensors file with the same tensors."""
  safetensors = pytest.importorskip('safetensors.numpy')
  shutil.copy(GOLDEN / 'config.json', tmp_path)
  state = safetensors.load_file(GOLDEN / 'model.safetensors')
  write(tmp_path / 'pytorch_model.bin', state, torch)
  ours, theirs = conversion.load(tmp_path), conversion.load(GOLDEN)
  assert ours.config == theirs.config and list(ours.heads) == list(theirs.heads) == ['label']
  tiny.assert_same(ours.params, theirs.params)


@pytest.mark.parametrize('older', [False, True], ids=['zip', 'stream'])
def test_the_original_glm(older, torch, tmp_path):
  """Its parameters are among other saved objects, which are ignored, and there is no
  configuration."""
  safetensors = pytest.importorskip('safetensors.numpy')
  case = pathlib.Path(__file__).parents[1] / 'golden' / 'glm' / 'blank_infilling_2d'
  class Evil:
    def __reduce__(self):
      return os.system, (f'touch {tmp_path}/ran',)
  class Arguments(dict):
    def __reduce__(self):
      return Arguments, (1,), {'lr': 0.1}, iter([1, 2]), iter([('a', 1)])
  module = sys.modules['torch']
  Arguments.__module__, Arguments.__qualname__, module.Arguments = 'torch', 'Arguments', Arguments
  (tmp_path / '2000').mkdir()
  (tmp_path / 'latest_checkpointed_iteration.txt').write_text('2000\n')
  state = dict(safetensors.load_file(case / 'model.safetensors'))
  everything = {'iteration': 2000, 'args': Arguments(), 'rng': [np.arange(3), Evil()],
                'module': state, 'skipped': {1}}
  write(tmp_path / '2000' / 'mp_rank_00_model_states.pt', everything, torch, older)
  shutil.copy(case / 'config.json', tmp_path / '2000')
  assert conversion.is_checkpoint(tmp_path)
  ours, theirs = conversion.load(tmp_path), conversion.load(case)
  assert ours.config == theirs.config and list(ours.heads) == ['lm']
  tiny.assert_same(ours.params, theirs.params)
  assert not (tmp_path / 'ran').exists()
  (tmp_path / '2000' / 'config.json').unlink()
  with pytest.raises(conversion.ConvertError, match='heads of 64, which all released sizes have'):
    conversion.load(tmp_path)
  (tmp_path / '2000' / 'mp_rank_01_model_states.pt').touch()
  with pytest.raises(conversion.ConvertError, match=r'split between processes.*change_mp\.py'):
    conversion.load(tmp_path)


@pytest.fixture
def checkpoint(tmp_path):
  """A BERT as transformers 4 wrote it, without its tensors -> the folder, the tensors."""
  config = tiny.config(layers=2)
  params = tiny.random_params(jax.eval_shape(config.backbone().init, jax.random.key(0), {
      name: np.ones((1, 8), np.int32) for name in ('tokens', 'segments')})['params'])
  conversion.save(tmp_path / 'new', config, {'backbone': jax.device_get(params)})
  tensors = library.load_file(tmp_path / 'new' / 'model.safetensors')
  (tmp_path / 'new' / 'model.safetensors').unlink()
  return tmp_path / 'new', tensors | {'embeddings.position_ids': np.arange(32)[None]}, params


def sharded(folder, tensors, torch, wrong=()):
  names = sorted(tensors)
  shards = {'pytorch_model-00001-of-00002.bin': names[::2],
            'pytorch_model-00002-of-00002.bin': names[1::2]}
  for shard, some in shards.items():
    write(folder / shard, collections.OrderedDict((name, tensors[name]) for name in some), torch)
  where = {name: shard for shard, some in shards.items() for name in some} | dict(wrong)
  (folder / 'pytorch_model.bin.index.json').write_text(json.dumps({'weight_map': where}))
  return names


@pytest.mark.parametrize('older', [False, True], ids=['zip', 'stream'])
def test_a_pytorch_model_of_transformers_is_read_as_data(older, checkpoint, torch):
  folder, tensors, params = checkpoint
  write(folder / 'pytorch_model.bin', collections.OrderedDict(tensors), torch, older)
  tiny.assert_same(conversion.load(folder).params['backbone'], params)


def test_shards_of_a_pytorch_model(checkpoint, torch):
  folder, tensors, params = checkpoint
  names = sharded(folder, tensors, torch)
  tiny.assert_same(conversion.load(folder).params['backbone'], params)
  sharded(folder, tensors, torch, {names[0]: 'pytorch_model-00002-of-00002.bin'})
  with pytest.raises(conversion.ConvertError, match=f'{names[0]} is not in pytorch_model-00002'):
    conversion.load(folder)
  sharded(folder, tensors, torch, {names[0]: '../elsewhere.bin'})
  with pytest.raises(conversion.ConvertError, match='expected something in this folder'):
    conversion.load(folder)


def test_a_pytorch_model_with_code_is_refused(checkpoint, torch, monkeypatch):
  folder, tensors, _ = checkpoint
  monkeypatch.chdir(folder)
  write(folder / 'pytorch_model.bin',
        collections.OrderedDict(tensors | {'pooler.dense.bias': Hostile()}), torch)
  with pytest.raises(conversion.ConvertError, match='mkdir, which is not part of a tensor'):
    conversion.load(folder)
  assert not (folder / 'never-made').exists()


class Hostile:
  def __reduce__(self):
    return os.mkdir, ('never-made',)


def test_adapter_folders_are_recognized(tmp_path):
  (tmp_path / 'adapter_config.json').write_text(
      '{"base_model_name_or_path": "bert", "peft_type": "LORA"}')
  (tmp_path / 'adapter_model.safetensors').touch()
  message = "is an adapter of peft for 'bert', not a model .*merge_and_unload"
  with pytest.raises(conversion.ConvertError, match=message):
    conversion.load(tmp_path)
  with pytest.raises(CheckpointError, match=message):
    plm_jax.load(tmp_path)


def test_a_model_with_the_weights_of_an_adapter_is_refused(tmp_path):
  shutil.copytree(GOLDEN, tmp_path / 'model')
  (tmp_path / 'model' / 'adapter_config.json').write_text('{"peft_type": "LORA"}')
  conversion.load(tmp_path / 'model')  # merging leaves only the configuration of the adapter
  (tmp_path / 'model' / 'adapter_model.bin').touch()
  with pytest.raises(conversion.ConvertError,
                     match=r'a model and an adapter of peft '
                           r'.*adapter_model\.bin.*merge_and_unload'):
    conversion.load(tmp_path / 'model')
