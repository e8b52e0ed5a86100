"""Damaged checkpoints of every form: each is read, or refused with one message that names the file,
in little time and memory."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import stat
import struct
import zipfile

import mutate
import numpy as np
import pytest
from test_conversion import CONFIG, make, write_tensorflow
import test_t5x
from torch_files import Numbers, torch, write  # noqa: F401  (a fixture)

from plm_jax import conversion
from plm_jax.conversion import ConvertError
from plm_jax.conversion.torch_pickle import TorchPickle
from plm_jax.errors import UserError
from plm_jax.models import t5

pytest.importorskip('safetensors.numpy')
GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
COUNT = 12  # cases a file
# One case per family with separate code for its configuration.
CASES = ('gpt_neo/*', 'llama/*', 'xlnet/*', 'deberta/v1*', 'deberta/v2*', 'glm/*', 't5/*',
         'albert/*', 'palm/*',
         'bart/*', 'distilbert/*', 'gpt2/*', 'gpt3/*', 'gpt1/*', 'roberta/*')


def golden(pattern):
  return next(iter(sorted(path.parent for path in GOLDEN.glob(f'{pattern}/config.json'))), None)


def load(folder):
  """Load without the tensors' values, which takes longer than reading their headers."""
  return lambda: conversion.load(folder, lazy=True)


@pytest.mark.parametrize('case', [
    *CASES[:3], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[3:])])
def test_configurations(case, tmp_path):
  found = golden(case)
  if not found:
    pytest.skip('no such case')
  for name in ('config.json', 'model.safetensors'):
    shutil.copy(found / name, tmp_path)
  path = tmp_path / 'config.json'
  said = [mutate.attempt(path, damage, load(tmp_path))
          for damage in mutate.jsons(json.loads(path.read_text()), COUNT, seed=CASES.index(case))]
  assert any(said)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp('damage') / 'in'
  conversion.save(folder, CONFIG, make(), shard_bytes=6000)
  return folder


def test_files_of_tensors(checkpoint):
  path = sorted(checkpoint.glob('model-*'))[0]
  read_all = lambda: conversion.load(checkpoint)
  header = struct.unpack('<Q', path.read_bytes()[:8])[0]
  said = [mutate.attempt(path, damage, read_all)
          for damage in mutate.contents(path.read_bytes(), COUNT)]
  for damage in mutate.jsons(json.loads(path.read_bytes()[8:8 + header]), COUNT):
    said.append(mutate.attempt(
        path, struct.pack('<Q', len(damage)) + damage + path.read_bytes()[8 + header:], read_all))
  index = checkpoint / 'model.safetensors.index.json'
  said += [mutate.attempt(index, damage, load(checkpoint))
           for damage in mutate.jsons(json.loads(index.read_text()), COUNT)]
  assert sum(map(bool, said)) > COUNT


@pytest.mark.parametrize('older', [False, True], ids=['zip', 'stream'])
def test_pickles(older, torch, tmp_path):  # noqa: F811
  path, matrix = tmp_path / 'x.bin', np.arange(12, dtype=np.float32).reshape(3, 4)
  write(path, {'plain': matrix, 'turned': matrix.T[1:], 'ids': np.arange(3),
               'one': np.array(2, np.float32)}, torch,
        older)
  def read_all():
    read = TorchPickle(path)
    return [read.read(name) for name in read.tensors]
  assert len(read_all()) == 4
  said = [mutate.attempt(path, damage, read_all)
          for damage in mutate.contents(path.read_bytes(), 15 * COUNT)]
  if not older:
    # A zip file knows its members' checksums: damage inside, under right ones.
    with zipfile.ZipFile(path) as file:
      held = {name: file.read(name) for name in file.namelist()}
    inner = next(name for name in held if name.endswith('data.pkl'))
    for damage in mutate.contents(held[inner], 15 * COUNT):
      other = tmp_path / 'y.bin'
      with zipfile.ZipFile(other, 'w') as file:
        for name, content in {**held, inner: damage}.items():
          file.writestr(name, content)
      said.append(mutate.attempt(path, other.read_bytes(), read_all))
  assert sum(map(bool, said)) > COUNT


@pytest.mark.parametrize(('offset', 'shape', 'strides'), [
    (0, (3, 4), (4, 2)), (0, (2, 2), (-4, 5)), (5, (2, 2), (5, -4)), (1 << 62, (1,), (1,)),
    (-1, (2,), (1,)),
    (0, (1 << 20, 1 << 20), (0, 0)), (0, (2, 2), (1 << 63, -(1 << 63))), (0, (2,), (1, 1)),
    (0, (-1,), (1,)),
    (0, (0, 1 << 62), (1, 1)), (0, ('a',), (1,)), (0.0, (2,), (1,)), (None, (2,), (1,)),
    (0, (1,) * 40, (1,) * 40)])
def test_what_no_tensor_is(offset, shape, strides, torch, tmp_path):  # noqa: F811
  class Made:
    def __reduce__(self):
      return torch['torch._utils']._rebuild_tensor_v2, (Numbers(np.zeros(12, np.float32)), offset,
                                                        shape, strides)
  write(tmp_path / 'x.bin', {'a': Made()}, torch)
  with pytest.raises(ConvertError,
                     match=r'x\.bin: the tensor a (reaches beyond|has the shape|is described)'):
    TorchPickle(tmp_path / 'x.bin')


def test_bombs(torch, tmp_path):  # noqa: F811
  path = tmp_path / 'x.bin'
  write(path, {'a': np.zeros(4, np.float32)}, torch)
  with zipfile.ZipFile(path) as file:
    held = {name: file.read(name) for name in file.namelist()}
  def rewritten(**changes):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as file:
      for name, content in held.items():
        file.writestr(name, changes.get(name.rpartition('/')[2].replace('.', '_'), content))
  rewritten(data_pkl=b'\0' * (64 << 20))
  with mutate.limits(memory=1 << 29), pytest.raises(ConvertError,
                                                    match='67,108,864 bytes, packed into'):
    TorchPickle(path)
  for content, message in (
      (b'\x80\x02r\xff\xff\xff\x7f.', 'damaged'),
      (b'\x80\x02N' + b'\x85' * 200_000 + b'0}.', 'tuples too deep'),
      (b'\x80\x04\x8e' + b'\xff' * 7 + b'\x7f.', 'damaged')):
    rewritten(data_pkl=content)
    with mutate.limits(memory=1 << 29), pytest.raises(ConvertError, match=message):
      TorchPickle(path)


def test_tensorflow(tmp_path):
  write_tensorflow(tmp_path / 'tf', make())
  said = []
  for path in sorted((tmp_path / 'tf').iterdir()):
    damages = [*mutate.contents(path.read_bytes(), COUNT // 2)]
    if path.suffix == '.json':
      damages += mutate.jsons(json.loads(path.read_text()), COUNT)
    said += [mutate.attempt(path, damage, lambda: conversion.load(tmp_path / 'tf'))
             for damage in damages]
  assert any(said)


@pytest.fixture(scope='module')
def t5x(tmp_path_factory):
  folder = tmp_path_factory.mktemp('t5x')
  config = test_t5x.small(t5.small())
  test_t5x.write(folder, test_t5x.theirs(test_t5x.model_of(config)))
  return folder


def test_t5x_files(t5x):
  paths = [t5x / 'checkpoint', t5x / 'target.token_embedder.embedding' / '.zarray']
  said = []
  for path in paths:
    damages = [*mutate.contents(path.read_bytes(), COUNT)]
    if path.name == '.zarray':
      damages += mutate.jsons(json.loads(path.read_text()), COUNT)
    said += [mutate.attempt(path, damage, lambda: conversion.load(t5x)) for damage in damages]
  assert any(said)


def test_an_array_that_is_not_there(t5x, tmp_path):
  """Read as zeros, a terabyte of them."""
  shutil.copytree(t5x, tmp_path / 'in')
  path = tmp_path / 'in' / 'target.token_embedder.embedding' / '.zarray'
  said = json.loads(path.read_text())
  path.write_text(json.dumps({**said, 'shape': [1 << 19, 1 << 19]}))
  with mutate.limits(memory=1 << 29), pytest.raises(ConvertError,
                                                    match=r'the configuration makes it|describes'):
    conversion.load(tmp_path / 'in')
  path.write_text(json.dumps({**said, 'chunks': [1 << 19, 1 << 19]}))
  with mutate.limits(memory=1 << 29), pytest.raises(ConvertError,
                                                    match='in chunks of 1,099,511,627,776 bytes'):
    conversion.load(tmp_path / 'in')
  path.write_text(json.dumps(said))
  for chunk in path.parent.iterdir():
    if chunk != path:
      chunk.unlink()
  with pytest.raises(ConvertError, match='describes 1,920 bytes of numbers, in files of 0 bytes'):
    conversion.load(tmp_path / 'in')


@pytest.mark.parametrize(('changes', 'message'), [
    ({'num_hidden_layers': 10**7}, 'num_hidden_layers is 10000000, expected at most 1,000'),
    ({'num_hidden_layers': 900}, 'makes 900 layers, the file has'),
    ({'vocab_size': 10**12}, 'vocab_size is 1000000000000, expected at most'),
    ({'num_attention_heads': 0}, 'got 0'),
    ({'hidden_size': True}, 'hidden_size is True, expected a number'),
    ({'hidden_act': []}, 'hidden_act is'), ({'layer_norm_eps': 'a'}, 'layer_norm_eps is'),
    ({'architectures': 3}, 'architectures is 3, expected a list'),
    ({'id2label': 4}, 'id2label is 4, expected'),
    ({'id2label': {'x': 'a'}}, 'id2label is .*, expected an object with a name for each'),
    ({'id2label': {'0': 'a', '2': 'b'}}, 'id2label is .*, expected'),
    ({'id2label': {'01': 'a'}}, 'id2label is .*, expected'),
    ({'model_type': ['bert']}, "models of type .* are not known"), ({'hidden_size': -12}, 'in:')])
def test_sizes_and_types(checkpoint, tmp_path, changes, message):
  shutil.copytree(checkpoint, tmp_path / 'in')
  path = tmp_path / 'in' / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with mutate.limits(memory=1 << 29), pytest.raises(ConvertError, match=message):
    conversion.load(tmp_path / 'in')


@pytest.mark.parametrize('name', ['model.safetensors', 'config.json', 'tokenizer.json',
                                  'spiece.model', 'vocab.txt'])
def test_git_lfs_pointers_are_reported(checkpoint, tmp_path, name):
  folder = tmp_path / 'in'
  shutil.copytree(checkpoint, folder)
  for other in folder.glob('*token*'):
    other.unlink()
  (folder / name).write_text(
      'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n')
  with pytest.raises(UserError,
                     match=rf'{name} is a pointer of Git LFS: `git lfs pull` downloads the file '
                           rf'itself'):
    conversion.load(folder)


@pytest.mark.parametrize(('text', 'message'), [
    ('{"a": ' * 100_000 + '1' + '}' * 100_000, 'too deep'),
    ('{"vocab_size": ' + '9' * 5000 + '}', '5000 digits'),
    ('{"initializer_range": NaN}', 'initializer_range is not a finite number'),
    ('', 'cannot be read as JSON'),
    ('[]', 'holds a list, expected an object'), ('\ud800', 'not UTF-8')])
def test_json_of_any_form(text, message, tmp_path):
  (tmp_path / 'config.json').write_bytes(text.encode(errors='surrogatepass'))
  with pytest.raises(ConvertError, match=f'config.json.*{message}'):
    conversion.load(tmp_path)


@pytest.mark.parametrize('name', ['../out', '/etc', '..', ''])
def test_no_name_leads_out_of_the_folder(name, checkpoint, tmp_path):
  shutil.copytree(checkpoint, tmp_path / 'in')
  index = tmp_path / 'in' / 'model.safetensors.index.json'
  said = json.loads(index.read_text())
  index.write_text(json.dumps({**said, 'weight_map': {**said['weight_map'], 'a': name}}))
  with pytest.raises(ConvertError, match='expected something in this folder'):
    conversion.load(tmp_path / 'in')
  (tmp_path / 'glm').mkdir()
  (tmp_path / 'glm' / 'latest').write_text(name)
  with pytest.raises(ConvertError, match=re.escape(str(tmp_path / 'glm'))):
    conversion.load(tmp_path / 'glm')


def test_folders_and_pipes_in_place_of_files_are_refused(checkpoint, tmp_path):
  for name in ('config.json', 'model.safetensors'):
    for make_one in (os.mkdir, os.mkfifo):
      folder = tmp_path / f'{name}-{make_one.__name__}'
      shutil.copytree(checkpoint, folder)
      (folder / name).unlink(missing_ok=True)
      make_one(folder / name)
      message = f'{re.escape(str(folder))}.*(folder|ordinary)'
      with mutate.limits(seconds=3), pytest.raises(ConvertError, match=message):
        conversion.load(folder)


def test_exported_files_have_the_usual_permissions(tmp_path):
  old = os.umask(0o027)
  try:
    conversion.save(tmp_path / 'out', CONFIG, make())
  finally:
    os.umask(old)
  modes = {path.name: stat.S_IMODE(path.stat().st_mode)
           for path in [tmp_path / 'out', *(tmp_path / 'out').iterdir()]}
  assert modes == {'out': 0o750, 'config.json': 0o640, 'model.safetensors': 0o640}


def test_a_full_disk(tmp_path, monkeypatch):
  """The library reports a full disk with its own message."""
  library = conversion.files.safetensors
  def full(*args, **kwargs):
    raise library.SafetensorError(
        'Error while serializing: I/O error: No space left on device (os error 28)')
  monkeypatch.setattr(library.numpy, 'save_file', full)
  with pytest.raises(UserError, match=r'no space left for .*/out \(No space left on device\)'):
    conversion.save(tmp_path / 'out', CONFIG, make())
  assert not list(tmp_path.iterdir())


def test_heads_of_a_small_t5_have_a_size(tmp_path):
  config = dataclasses.replace(test_t5x.small(t5.small()), block=dataclasses.replace(
      test_t5x.small(t5.small()).block, head_size=None))
  conversion.save(tmp_path / 'out', config, test_t5x.model_of(config), like='t5')
  assert json.loads((tmp_path / 'out' / 'config.json').read_text())['d_kv'] == 4
  assert conversion.load(tmp_path / 'out').config.block.head_size == 4
