"""ELMo's released files: export, import, and files of another format."""
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import conversion
from plm_jax.architectures.elmo import Elmo
from plm_jax.config.run import ConfigError
from plm_jax.conversion import elmo_hdf5 as files
from plm_jax.inference.elmo import word_layers
from plm_jax.layers.char_cnn import CharacterConfig
from plm_jax.loading.loaded_model import LoadedModel, read_model_config
from plm_jax.models.elmo import ElmoConfig, WeightsError

pytest.importorskip('h5py', reason='needs the extra: pip install "plm_jax[convert]"')
TINY = ElmoConfig(characters=CharacterConfig(size=3, filters=((1, 4), (3, 6)), highways=1,
                                             longest=9), width=5, cells=7)


@pytest.fixture(scope='module')
def trained():
  batch = {'characters': jnp.zeros((1, 2, 9), jnp.int32)}
  shapes = nn.unbox(jax.eval_shape(lambda: Elmo(TINY).init(jax.random.key(0), batch)['params']))
  rng = np.random.default_rng(0)
  return LoadedModel('elmo', TINY, {}, {'backbone': jax.tree.map(
      lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes)}, None)


@pytest.fixture
def folder(trained, tmp_path):
  plm_jax.export(trained, tmp_path / 'out')
  return tmp_path / 'out'


def test_exported_files_are_read_again(trained, folder):
  again = plm_jax.load(folder)
  assert again.model == TINY and {path.name
                                  for path in folder.iterdir()} == {'options.json', 'weights.hdf5'}
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), again.params,
               trained.params)


def test_exported_folders_have_the_released_format(trained, folder, tmp_path):
  assert conversion.is_checkpoint(folder) and read_model_config(folder) == ('elmo', TINY)
  imported = conversion.load(folder, heads=('lm',), lazy=True)
  assert (imported.family, imported.tokenizer, imported.missing_heads) == ('elmo', None, ('lm',))
  shapes = jax.tree.map(np.shape, nn.unbox(imported.shapes()))
  assert shapes == jax.tree.map(np.shape, imported.params)
  assert f"AllenNLP reads it with Elmo('{tmp_path}/again/opt" in plm_jax.convert(
      folder, tmp_path / 'again').how
  assert (tmp_path / 'again' / 'options.json').read_bytes() == (folder / 'options.json').read_bytes(
      )
  with pytest.raises(conversion.ConvertError, match='holds float32, got bfloat16'):
    plm_jax.export(trained, tmp_path / 'none', dtype='bfloat16')
  with pytest.raises(conversion.ConvertError, match='labels name the classes of a head, and none'):
    plm_jax.export(trained, tmp_path / 'none', labels=('a', 'b'))


def test_word_vectors_do_not_depend_on_the_rest_of_the_batch(trained):
  one, two, none = word_layers(trained, [['a', 'b', 'c'], ['b'], []], rows=4)
  assert one.shape == (3, 3, 10) and two.shape == (3, 1, 10) and none.shape == (3, 0, 10)
  np.testing.assert_allclose(word_layers(trained, [['b']], rows=4)[0], two, atol=1e-6)
  np.testing.assert_allclose(plm_jax.encode(trained, ['a b c', 'b'])[0], one[2].mean(0), atol=1e-6)
  with pytest.raises(ConfigError, match='text 2 has no words'):
    plm_jax.encode(trained, ['a', ' '])


def test_files_of_something_else_are_refused(folder):
  options = json.loads((folder / 'options.json').read_text())
  options['lstm']['dim'] = 8
  (folder / 'options.json').write_text(json.dumps(options))
  with pytest.raises(WeightsError,
                     match=r'W_0 of the weights is \[10, 28\], and options.json makes it \[10, 32'):
    files.load(folder)
  (folder / 'weights.hdf5').write_bytes(b'none')
  with pytest.raises(WeightsError, match='cannot be read as HDF5'):
    files.load(folder)
  (folder / 'weights.hdf5').unlink()
  with pytest.raises(WeightsError, match=r'has 0 files \*.hdf5, expected one'):
    files.load(folder)


def test_damaged_weights_are_refused_or_differ_in_a_single_number(trained, folder):
  """A flipped or missing byte of the layout is noticed; one of a number, where it is no longer
  plausible."""
  path = folder / 'weights.hdf5'
  content, whole = path.read_bytes(), files.load(folder)[1]
  h5py = files.import_h5py()
  with h5py.File(path, 'r') as file:
    table = file['char_embed'].id.get_offset()
  random = np.random.default_rng(0)
  for place in [*range(100), *random.integers(0, len(content), 100), table, table + 3]:
    for damaged in (content[:place] + content[place + 1:],
                    content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1:]):
      path.write_bytes(damaged)
      try:
        found = files.load(folder)[1]
      except WeightsError:
        continue
      assert len(damaged) == len(content)
      changed = sum(int((x != y).sum())
                    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True))
      assert changed <= 1
  path.write_bytes(content[:table + 3] + bytes([content[table + 3] ^ 0x40]) + content[table + 4:])
  with pytest.raises(WeightsError,
                     match=r'char_embed has values that are not finite, or beyond 1e\+09'):
    files.load(folder)
