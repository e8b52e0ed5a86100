"""Checkpoints of transformers' Flax models: `flax_model.msgpack`, in one piece or several, read as data.

What Flax calls otherwise has torch's names here, and kernels are transposed as a Linear is (transformers 4,
modeling_flax_pytorch_utils.py). The first of these files (transformers 3.5 to 4.0) kept heads apart in the kernels of
BERT's attention, whose output had no layer of its own.
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
from plm_jax.conversion.files import NAMES, read_json
from plm_jax.conversion.folders import inside
from plm_jax.conversion.rules import ConvertError, refuse
from plm_jax.conversion.slices import Index
from plm_jax.errors import understood
from plm_jax.tokenizers.contract import brief

SINGLE, INDEX = 'flax_model.msgpack', 'flax_model.msgpack.index.json'
LARGEST = 64 << 30  # bytes of a file, which is read whole
LEAVES = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'gamma': 'weight', 'beta': 'bias'}
# Of the first files: where attention's output and its norm are.
OLD = ((r'attention\.self\.out\.', 'attention.output.dense.'),
       (r'attention\.LayerNorm\.', 'attention.output.LayerNorm.'))


class FlaxMsgpack:
  """The tensors of a folder, under torch's names and in its layout."""

  def __init__(self, folder: pathlib.Path):
    """Raises ConvertError for files that are missing, damaged, or outside the folder, and for what is no array."""
    flat = {name: x for path in shards(folder) for name, x in arrays(path)}
    old = any('.attention.self.out.' in name for name in flat)
    self.arrays: dict[str, np.ndarray] = {}
    for name, x in flat.items():
      new = renamed(name, old)
      if new in self.arrays:
        raise ConvertError(f'{folder}: two arrays are both {new}')
      self.arrays[new] = laid_out(name, x)
    self.tensors: dict[str, tuple[tuple[int, ...], str]] = {
        name: (x.shape, NAMES.get(x.dtype.name, x.dtype.name)) for name, x in self.arrays.items()}

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Returns tensor[index]."""
    return self.arrays[name][... if index is None else index]


def is_flax(folder: pathlib.Path) -> bool:
  """Tells whether a folder has such a file."""
  return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def shards(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a checkpoint. Raises ConvertError for an index that names others than those there."""
  if (folder / SINGLE).is_file():
    return [folder / SINGLE]
  said = read_json(folder / INDEX).get('weight_map')
  if not isinstance(said, dict) or not all(isinstance(shard, str) for shard in said.values()):
    raise ConvertError(f'{folder / INDEX}: weight_map is {brief(said)}, expected an object of arrays and their files')
  found = [inside(folder, shard) for shard in dict.fromkeys(said.values())]
  refuse([path.name for path in found if not path.is_file()], f'{folder / INDEX} names files that are not there')
  return found


def arrays(path: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, array) of a file, parts of names with dots between them."""
  content = storage.read_bytes(path, limit=LARGEST, error=ConvertError)
  with understood(path, "a file of transformers' Flax models", ConvertError):
    tree: Any = serialization.msgpack_restore(content)
    if not isinstance(tree, Mapping):
      raise ConvertError(f'{path} holds {brief(tree)}, expected named arrays')
    tree = tree['params'] if {*tree} == {'params'} else tree
    flat: Mapping[Any, Any] = flatten_dict(tree)
    for parts, x in flat.items():
      if not isinstance(x, np.ndarray):
        raise ConvertError(f'{path}: {"/".join(map(str, parts))!r:.100} is {brief(x)}, expected an array of numbers')
      # Pieces of a checkpoint have flat names.
      yield '.'.join('/'.join(map(str, parts)).split('/')), x


def renamed(name: str, old: bool) -> str:
  """Returns torch's name; old: of the first files."""
  for pattern, replacement in OLD if old else ():
    name = re.sub(pattern, replacement, name)
  before, dot, leaf = name.rpartition('.')
  return f'{before}{dot}{LEAVES.get(leaf, leaf)}'


def laid_out(name: str, x: np.ndarray) -> np.ndarray:
  """Returns an array as torch has it: kernels transposed, heads and their sizes one axis, a bias of heads flat."""
  leaf = name.rpartition('.')[2]
  if leaf == 'kernel':
    inputs = 2 if x.ndim == 3 and name.endswith('.out.kernel') else 1
    return x.reshape(math.prod(x.shape[:inputs]), -1).T if x.ndim in (2, 3) else x
  return x.reshape(-1) if leaf == 'bias' and x.ndim == 2 else x
