"""Files of torch, written without torch: the modules that they name are made up for as long as it
takes."""
import collections
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest

from plm_jax.conversion.torch_pickle import MAGIC

NAMES = {np.dtype(np.float32): 'FloatStorage', np.dtype(np.float16): 'HalfStorage',
         np.dtype(np.int64): 'LongStorage'}


@pytest.fixture
def torch(monkeypatch):
  """Modules with the names that a pickle looks up when it is written."""
  made = {name: types.ModuleType(name) for name in ('torch', 'torch._utils')}
  def named(name, module):
    item = type(name, (), {'__module__': module})
    setattr(made[module], name, item)
    return item
  for name in NAMES.values():
    named(name, 'torch')
  named('_rebuild_tensor_v2', 'torch._utils')
  for name, module in made.items():
    monkeypatch.setitem(sys.modules, name, module)
  return made


class Pickler(pickle.Pickler):
  """Arrays as torch pickles tensors; the storages they ask for are in `storages`."""

  def __init__(self, file, torch):
    super().__init__(file, 2)
    self.torch, self.storages = torch, {}

  def persistent_id(self, item):
    if not isinstance(item, Numbers):
      return None
    key = str(len(self.storages))
    self.storages[key] = item.array
    return ('storage', getattr(self.torch['torch'], NAMES[item.array.dtype]), key, 'cpu',
            item.array.size)

  def reducer_override(self, item):
    if not isinstance(item, np.ndarray):
      return NotImplemented
    base = item if item.base is None else item.base
    steps = tuple(step // item.itemsize for step in item.strides)
    offset = (item.ctypes.data - base.ctypes.data) // item.itemsize
    rebuild = self.torch['torch._utils']._rebuild_tensor_v2
    return rebuild, (Numbers(np.ravel(base)), offset, item.shape, steps, False,
                     collections.OrderedDict())


class Numbers:
  def __init__(self, array):
    self.array = array


def write(path, state, torch, older=False):
  if older:
    with path.open('wb') as file:
      for item in (MAGIC, 1001, {'little_endian': True}):
        pickle.dump(item, file, 2)
      pickler = Pickler(file, torch)
      pickler.dump(state)
      pickle.dump(list(pickler.storages), file, 2)
      for numbers in pickler.storages.values():
        file.write(numbers.size.to_bytes(8, 'little') + numbers.tobytes())
    return
  with zipfile.ZipFile(path, 'w') as file:
    with file.open('archive/data.pkl', 'w') as data:
      pickler = Pickler(data, torch)
      pickler.dump(state)
    for key, numbers in pickler.storages.items():
      file.writestr(f'archive/data/{key}', numbers.tobytes())
