"""Checkpoints of transformers' Flax models: `flax_model.msgpack`, one file or sharded.

The files are read as data. Arrays get torch's names, and kernels are transposed as those of a
Linear (transformers 4, modeling_flax_pytorch_utils.py). The first of these files (transformers 3.5
to 4.0) have an axis of heads in the kernels of BERT's attention, and no layer of its own for
attention's output.
"""
from collections.abc import Iterator, Mapping
import math
import pathlib
import re
from typing import Any

from flax import serialization
from flax.traverse_util import flatten_dict
import numpy as np

from plm_jax import storage
from plm_jax.conversion.files import DTYPE_NAMES, read_shards
from plm_jax.conversion.folders import child_path
from plm_jax.errors import parse_errors_as
from plm_jax.models.layouts import Index, Shape, select
from plm_jax.models.rules import ConvertError
from plm_jax.tokenizers.contract import abbreviate

SINGLE_FILE, INDEX_FILE = 'flax_model.msgpack', 'flax_model.msgpack.index.json'
MAX_FILE_BYTES = 64 << 30
"""limit of a file, which is read as a whole"""
LEAVES = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'gamma': 'weight',
          'beta': 'bias'}
"""Flax's names of parameters -> torch's"""
OLD_NAMES = ((r'attention\.self\.out\.', 'attention.output.dense.'),
             (r'attention\.LayerNorm\.', 'attention.output.LayerNorm.'))
"""in the first files: where attention's output projection and its norm are -> torch's names"""


class FlaxCheckpoint:
  """The tensors of a folder, under torch's names and in its layout."""

  def __init__(self, folder: pathlib.Path):
    """Read all files.

    Raises ConvertError for files that are missing, damaged, or outside the folder, and for content
    other than arrays.
    """
    flat: dict[str, np.ndarray] = {}
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    paths = ([single] if single.is_file()
             else [child_path(folder, shard) for shard in read_shards(index)])
    for path in paths:
      flat |= read_arrays(path)
    old = any('.attention.self.out.' in name for name in flat)
    self.arrays: dict[str, np.ndarray] = {}
    self.tensors: dict[str, tuple[Shape, str]] = {}
    for name, x in flat.items():
      new = torch_name(name, old)
      if new in self.arrays:
        raise ConvertError(f'{folder}: two arrays are both {new}')
      x = torch_array(name, x)
      self.arrays[new] = x
      self.tensors[new] = x.shape, DTYPE_NAMES.get(x.dtype.name, x.dtype.name)

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Return tensor[index]."""
    return select(self.arrays[name], index)


def is_flax(folder: pathlib.Path) -> bool:
  """Tell whether a folder has such a file."""
  return (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()


def read_arrays(path: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (name, array) of a file, the parts of names joined by dots."""
  content = storage.read_bytes(path, limit=MAX_FILE_BYTES, error=ConvertError)
  with parse_errors_as(path, "a file of transformers' Flax models", ConvertError):
    tree: Any = serialization.msgpack_restore(content)
    if not isinstance(tree, Mapping):
      raise ConvertError(f'{path} holds {abbreviate(tree)}, expected named arrays')
    if {*tree} == {'params'}:
      tree = tree['params']
    flat: Mapping[Any, Any] = flatten_dict(tree)
    for parts, x in flat.items():
      # Shards have flat names with slashes.
      name = '/'.join(map(str, parts))
      if not isinstance(x, np.ndarray):
        raise ConvertError(
            f'{path}: {name!r:.100} is {abbreviate(x)}, expected an array of numbers')
      yield name.replace('/', '.'), x


def torch_name(name: str, old: bool) -> str:
  """Return torch's name of an array; old: of one in the first files."""
  if old:
    for pattern, replacement in OLD_NAMES:
      name = re.sub(pattern, replacement, name)
  module, dot, leaf = name.rpartition('.')
  return f'{module}{dot}{LEAVES.get(leaf, leaf)}'


def torch_array(name: str, x: np.ndarray) -> np.ndarray:
  """Return an array in torch's layout.

  Kernels are transposed, heads and their sizes become one axis, and a bias of heads is flat.
  """
  leaf = name.rpartition('.')[2]
  if leaf == 'kernel' and x.ndim in (2, 3):
    inputs = 2 if x.ndim == 3 and name.endswith('.out.kernel') else 1
    return x.reshape(math.prod(x.shape[:inputs]), -1).T
  if leaf == 'bias' and x.ndim == 2:
    return x.reshape(-1)
  return x
