"""Checkpoints of Composer: parameters and moments."""
import shutil

from composer_files import CASE, library, moments_of, write_checkpoint
import numpy as np
import pytest
import torch_files

from plm_jax import conversion
from plm_jax.conversion import ConvertError

torch = torch_files.torch  # the fixture
UPDATES = 7


def test_parameters_are_those_of_the_released_format(tmp_path, torch):
  path = write_checkpoint(tmp_path, torch)
  assert conversion.is_checkpoint(path)
  got, expected = conversion.load(path), conversion.load(CASE)
  assert got.config == expected.config and [*got.heads] == ['mlm']
  ours, theirs = map(conversion.flatten_tree, (got.params, expected.params))
  assert ours.keys() == theirs.keys()
  for name, x in ours.items():
    np.testing.assert_array_equal(x, theirs[name], err_msg=name)


@pytest.mark.parametrize('debiased', [False, True], ids=['torch', 'optimi'])
def test_moments_are_in_the_tree_of_the_parameters(tmp_path, torch, debiased):
  """optimi's moments have been divided by 1 - rate ** updates, which Adam does at each update."""
  rates = {'beta1': 0.9, 'beta2': 0.98} if debiased else {'betas': (0.9, 0.98)}
  path = write_checkpoint(tmp_path, torch, step=np.array(UPDATES), **rates)
  count, first, second = conversion.load_moments(path)
  assert count == UPDATES
  # The same moments as parameters of a folder of transformers.
  for kind, tree, rate in (('exp_avg', first, 0.9), ('exp_avg_sq', second, 0.98)):
    other = tmp_path / kind
    other.mkdir()
    shutil.copy(CASE / 'config.json', other)
    tensors = library.load_file(CASE / 'model.safetensors')
    library.save_file({name: moments_of(name, x)[kind] for name, x in tensors.items()},
                      other / 'model.safetensors')
    factor = np.float32(1 - rate ** UPDATES if debiased else 1)
    expected = conversion.flatten_tree(conversion.load(other).params)
    got = conversion.flatten_tree(tree)
    assert got.keys() == expected.keys()
    for name, x in got.items():
      np.testing.assert_allclose(np.asarray(x), expected[name] * factor, rtol=1e-6, err_msg=name)


def test_the_number_of_updates_may_be_with_each_parameter(tmp_path, torch):
  """As torch's AdamW has it."""
  def moments(name, x):
    return moments_of(name, x) | {'step': np.array(9.0, np.float32)}
  assert conversion.load_moments(write_checkpoint(tmp_path, torch, moments=moments))[0] == 9


def test_what_is_lacking_is_named(tmp_path, torch):
  path = write_checkpoint(tmp_path, torch)
  with pytest.raises(ConvertError, match='does not state the number of updates'):
    conversion.load_moments(path)
  path = write_checkpoint(tmp_path, torch, names=None)
  assert conversion.load(path).heads
  with pytest.raises(ConvertError, match='numbers in place of the names of parameters'):
    conversion.load_moments(path)
  torch_files.write(path, {'state': {'model': {'model.bert.norm': np.ones(3, np.float32)}}}, torch)
  with pytest.raises(ConvertError, match=r'rank0\.pt has no moments of an optimizer'):
    conversion.load_moments(path)
  torch_files.write(path, {'model': {'x': np.ones(3, np.float32)}}, torch)
  with pytest.raises(ConvertError, match=r'rank0\.pt is no checkpoint of Composer: it has no'):
    conversion.load(path)
  with pytest.raises(ConvertError, match=r'give a file \.pt of Composer'):
    conversion.load_moments(CASE)
