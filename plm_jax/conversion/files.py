"""Tensor files: safetensors, checkpoints of TensorFlow 1, and parameters that stay in them."""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import glob
import json
import math
import os
import pathlib
import re
from typing import Any

import numpy as np
import safetensors.numpy

from plm_jax import storage
from plm_jax.conversion.folders import child_path
from plm_jax.errors import describe_error, describe_lfs_pointer, parse_errors_as
from plm_jax.models.layouts import Index, Shape, index_shape, normalize_index, select
from plm_jax.models.rules import DTYPES, ConvertError, Rule, Source, raise_problems
from plm_jax.tokenizers.contract import abbreviate

SINGLE_FILE, INDEX_FILE = 'model.safetensors', 'model.safetensors.index.json'
DTYPE_NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
"""numpy's name of a type -> safetensors' name"""
UNSUPPORTED_SUFFIXES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl', '.pickle', '.h5', '.msgpack',
                        '.onnx', '.gguf', '.npz')


class SafeTensorsFolder:
  """The tensors of a folder of safetensors, sharded or not; tensors are read one at a time."""

  def __init__(self, folder: pathlib.Path):
    """Open the files. Raises ConvertError if any is missing, damaged, or outside the folder."""
    self.folder = folder
    self.shards: dict[str, list[str] | None]
    if (folder / SINGLE_FILE).exists():
      self.shards = {SINGLE_FILE: None}
    else:
      self.shards = dict(self.read_index())
    self.tensors: dict[str, tuple[Shape, str]] = {}
    self.shard_of: dict[str, str] = {}
    for shard, promised in self.shards.items():
      with open_shard(folder / shard) as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
          if name in self.shard_of:
            raise ConvertError(
                f'{folder}: {self.shard_of[name]} and {shard} both hold the tensor {name}')
          piece = file.get_slice(name)
          self.tensors[name] = tuple(piece.get_shape()), piece.get_dtype()
          self.shard_of[name] = shard
      absent = [name for name in promised or () if self.shard_of.get(name) != shard]
      missing = [f'{name} is not in {shard}' for name in absent]
      raise_problems(missing, f'{folder / INDEX_FILE} and the files disagree')

  def read_index(self) -> dict[str, list[str]]:
    """Read the index: shard -> the tensors that it should hold."""
    if not (self.folder / INDEX_FILE).exists():
      paths = self.folder.iterdir() if self.folder.is_dir() else ()
      others = sorted(path.name for path in paths if path.suffix in UNSUPPORTED_SUFFIXES)
      advice = f'. {describe_unsupported(", ".join(others))}' if others else ''
      raise ConvertError(f'{self.folder} has no {SINGLE_FILE}{advice}')
    return read_shards(self.folder / INDEX_FILE)

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index]; the rest of the tensor is not read."""
    with open_shard(self.folder / self.shard_of[name]) as file:
      if index is None:
        return file.get_tensor(name)
      return file.get_slice(name)[index]


class TensorFlowCheckpoint:
  """The variables of a checkpoint `PREFIX.index`, `PREFIX.data-...` of TensorFlow 1."""

  def __init__(self, prefix: pathlib.Path):
    """Open a checkpoint. Raises ConvertError if it is damaged or describes more than it has."""
    import tensorflow as tf  # takes seconds, and nothing else here needs it
    with parse_errors_as(prefix, 'a TensorFlow checkpoint', ConvertError):
      self.reader = tf.train.load_checkpoint(str(prefix))
      types = self.reader.get_variable_to_dtype_map()
      shapes = self.reader.get_variable_to_shape_map()
      shapes = {name: tuple(shape) for name, shape in shapes.items()}
      data = prefix.parent.glob(f'{glob.escape(prefix.name)}.data-*')
      there = sum(path.stat().st_size for path in data)
      described = sum(math.prod(shape) * max(types[name].size or 1, 1)
                      for name, shape in shapes.items())
    if described > there:
      raise ConvertError(
          f'{prefix}.index describes {described:,} bytes of variables, {prefix}.data-* have '
          f'{there:,}')
    self.tensors: dict[str, tuple[Shape, str]] = {}
    for name, shape in shapes.items():
      dtype = str(types[name].name)
      self.tensors[name] = shape, DTYPE_NAMES.get(dtype, dtype)

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read a whole tensor and return tensor[index]: TensorFlow's reader reads no parts."""
    return select(self.reader.get_tensor(name), index)


class RenamedSource:
  """A source whose tensors have other names."""

  def __init__(self, source: Source, rename: Callable[[str], str | None], label: pathlib.Path):
    """Rename the tensors. Raises ConvertError if two get the same name.

    Args:
      source: the tensors.
      rename: name -> new name, or None for a tensor that is no parameter.
      label: how error messages call the source.
    """
    self.source, self.label = source, label
    self.original: dict[str, str] = {}
    for name in source.tensors:
      new = rename(name)
      if new is None:
        continue
      if new in self.original:
        raise ConvertError(f'the tensors {self.original[new]} and {name} are both {new}')
      self.original[new] = name
    self.tensors = {new: source.tensors[name] for new, name in self.original.items()}

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index] under its original name. Raises ConvertError if it is damaged."""
    with parse_errors_as(self.label, 'a checkpoint', ConvertError):
      return self.source.read(self.original[name], index)


class RenamedPickle:
  """Base class of checkpoints whose pickle is read as data: tensors under transformers' names.

  A tensor that the pickle does not have, and `tensors` has, is zeros.
  """

  def __init__(self, source: Any, path: pathlib.Path):
    """Begin without tensors; source: the `TorchPickle` of the file."""
    self.source, self.path = source, path
    self.places: dict[str, tuple[str, Any]] = {}
    """transformers' name -> the pickle's name, and which part of that tensor; None: all of it"""
    self.tensors: dict[str, tuple[Shape, str]] = {}

  def add_tensor(
      self, name: str, patterns: Iterable[tuple[str, str]], place: tuple[str, Any],
      described: tuple[Shape, str],
  ) -> None:
    """Add a tensor, whose name `patterns` turn into transformers' name.

    Raises ConvertError for two of one name.
    """
    for pattern, replacement in patterns:
      name = re.sub(pattern, replacement, name)
    if name in self.places:
      raise ConvertError(f'{self.path}: the tensors {self.places[name][0]:.100} and '
                         f'{place[0]:.100} are both {name}')
    self.places[name], self.tensors[name] = place, described

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index]."""
    if name not in self.places:
      return select(np.zeros(self.tensors[name][0], np.float32), index)
    theirs, part = self.places[name]
    x = self.source.read(theirs)
    return select(x if part is None else self.read_part(x, part), index)

  def read_part(self, x: np.ndarray, part: Any) -> np.ndarray:
    """Return a part of a tensor of the pickle."""
    return x[part]

  def check_stated(
      self, stated: Mapping[str, Any], sizes: Mapping[str, int], fixed: Mapping[str, Any]) -> None:
    """Raise ConvertError where stated sizes are not those of the tensors, or are not supported.

    Args:
      stated: what the pickle states about the model.
      sizes: sizes of the tensors, by the names that the pickle has for them.
      fixed: attributes that are supported at these values only.
    """
    wrong = [f'{name} is {abbreviate(stated[name])}, the tensors make it {size}'
             for name, size in sizes.items() if stated.get(name) not in (None, size)]
    for name, value in fixed.items():
      if name in stated and stated[name] != value and (stated[name] or value):
        wrong.append(f'{name} is {abbreviate(stated[name])}, only {value!r} is supported')
    raise_problems(wrong, f'{self.path} cannot be converted')


def write_safetensors(
    folder: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int,
) -> None:
  """Write (name, array) pairs to safetensors files, sharded with an index if need be.

  Args:
    folder: an existing folder.
    tensors: pairs; only one shard of them is in memory at a time.
    shard_bytes: limit of a file's size, unless one tensor is larger.
  """
  written: list[list[str]] = []
  def flush():
    save_shard(shard, folder / f'shard-{len(written)}')
    written.append(list(shard))

  shard: dict[str, np.ndarray] = {}
  held, total = 0, 0
  for name, x in tensors:
    if held and held + x.nbytes > shard_bytes:
      flush()
      shard, held = {}, 0
    shard[name] = np.ascontiguousarray(x).reshape(x.shape)
    held, total = held + x.nbytes, total + x.nbytes
  flush()
  if len(written) == 1:
    (folder / 'shard-0').rename(folder / SINGLE_FILE)
    return
  # The names of shards state their number, which is known only now.
  weight_map = {}
  for number, names in enumerate(written):
    final = f'model-{number + 1:05}-of-{len(written):05}.safetensors'
    (folder / f'shard-{number}').rename(folder / final)
    weight_map |= dict.fromkeys(names, final)
  index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
  write_json(folder / INDEX_FILE, index)


def save_shard(tensors: dict[str, np.ndarray], path: pathlib.Path) -> None:
  """Write a safetensors file with the mode of any new file. Raises OSError.

  The library would make the file readable by its owner only.
  """
  path.touch()
  mode = path.stat().st_mode & 0o777
  try:
    safetensors.numpy.save_file(tensors, path, metadata={'format': 'pt'})
  except safetensors.SafetensorError as error:
    found = re.search(r'os error (\d+)', str(error))
    if not found:
      raise OSError(str(error)) from error
    raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
  path.chmod(mode)


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Read the object in a JSON file. Raises ConvertError, also for NaN and infinity."""
  content = storage.read_json(path, error=ConvertError)
  for name in find_nonfinite(content):
    raise ConvertError(f'{path}: {name:.100} is not a finite number')
  return content


def find_nonfinite(value: Any, name: str = '') -> Iterator[str]:
  """Yield the names of numbers in a JSON value that are NaN or infinite."""
  if isinstance(value, float):
    if not math.isfinite(value):
      yield name
  elif isinstance(value, dict):
    for key, x in value.items():
      yield from find_nonfinite(x, str(key) or 'a number')
  elif isinstance(value, list):
    for x in value:
      yield from find_nonfinite(x, name or 'a number')


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Write a JSON object as transformers does, indented by two."""
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n')


def read_shards(path: pathlib.Path) -> dict[str, list[str]]:
  """Read an index of shards: file -> the tensors that it should hold.

  Raises ConvertError for files that are missing or outside the folder.
  """
  weight_map = read_json(path).get('weight_map')
  if not isinstance(weight_map, dict) or not all(
      isinstance(shard, str) for shard in weight_map.values()):
    raise ConvertError(f'{path}: weight_map is {abbreviate(weight_map)}, expected an object of '
                       'tensors and their files')
  shards: dict[str, list[str]] = {}
  for name, shard in weight_map.items():
    shards.setdefault(shard, []).append(name)
  missing = [abbreviate(shard)[1:-1] for shard in shards
             if not child_path(path.parent, shard).is_file()]
  raise_problems(missing, f'{path} names files that are not there')
  return shards


def describe_unsupported(names: str) -> str:
  """Return an error message for files that are not read: what to do about them."""
  return (
      f'{names} is not read: of pickles only those that transformers calls pytorch_model.bin are '
      'read, as data; other formats are not known. Most models have a safetensors file; otherwise '
      'load it with its own library where you trust it, and save it again with '
      'save_pretrained(FOLDER, safe_serialization=True).')


class open_shard:
  """`safetensors.safe_open` whose errors name the file."""

  def __init__(self, path: pathlib.Path):
    self.path = path

  def __enter__(self) -> Any:
    if not self.path.is_file():
      raise ConvertError(f'{self.path} is not there, or no ordinary file')
    try:
      self.file = safetensors.safe_open(self.path, framework='numpy')
      return self.file.__enter__()
    except (OSError, safetensors.SafetensorError) as error:
      problem = f'{self.path} cannot be read as safetensors: {describe_error(error)}'
      raise ConvertError(describe_lfs_pointer(self.path) or problem) from error

  def __exit__(self, kind, error, trace):
    self.file.__exit__(kind, error, trace)
    if kind is not None and issubclass(kind, safetensors.SafetensorError):
      raise ConvertError(
          f'{self.path} cannot be read as safetensors: {describe_error(error)}') from error


def cast_array(name: str, x: np.ndarray, dtype: str) -> np.ndarray:
  """Cast an array to the type with safetensors' name, such as 'F16'; other types: unchanged.

  Raises ConvertError where a number overflows float16.
  """
  if dtype not in DTYPES:
    return x
  with np.errstate(over='ignore'):
    y = x.astype(DTYPES[dtype])
  if dtype == 'F16' and not np.array_equal(np.isfinite(y), np.isfinite(x)):
    raise ConvertError(
        f'{name} has numbers beyond the range of float16: use bfloat16 or float32')
  return y


class LazyParameter:
  """Looks like a float32 array of `shape`.

  `x[index]`, with slices, reads that part; `np.asarray(x)` reads all of it.
  """

  dtype = np.dtype(np.float32)

  def __init__(self, rule: Rule, source: Source, shape: Shape, copies: Sequence[Rule] = ()):
    """Make the parameter without reading it.

    Args:
      rule: where `source` has the parameter.
      source: the file.
      shape: of the parameter.
      copies: rules of tied weights, which have to be equal and are compared as they are read.
    """
    self.rule, self.source, self.shape, self.copies = rule, source, shape, copies

  def __getitem__(self, index: Any) -> np.ndarray:
    """Read a part. Raises ConvertError where a copy differs."""
    index = normalize_index(index, self.shape)
    x = np.empty(index_shape(index), self.dtype)
    for part, name, inner in self.iterate_layers(self.rule, x, index):
      part[...] = self.read_layer(self.rule, name, inner)
    for copy in self.copies:
      for part, name, inner in self.iterate_layers(copy, x, index):
        if name not in self.source.tensors:
          continue
        if not np.array_equal(self.read_layer(copy, name, inner), part):
          raise ConvertError(f'{name} differs from what it has to equal, {self.rule.theirs}')
    return x

  def __array__(self, dtype=None, copy=None):
    x = self[...]
    return x if dtype is None else x.astype(dtype, copy=False)

  def iterate_layers(
      self, rule: Rule, x: np.ndarray, index: Index,
  ) -> Iterator[tuple[np.ndarray, str, Index]]:
    """Yield (part of x, name of the tensor, index within a layer) for every layer.

    x: the part of this parameter that `index` selects.
    """
    names = rule.names(self.shape)
    if not rule.is_stacked:
      yield x, names[0], index
      return
    for part, name in zip(x, names[index[0]], strict=True):
      yield part, name, index[1:]

  def read_layer(self, rule: Rule, name: str, index: Index) -> np.ndarray:
    """Read the part of one layer that `index` selects."""
    shape = self.shape[1:] if rule.is_stacked else self.shape
    theirs, box = rule.layout.export_index(index, shape)
    x = rule.layout.import_array(self.source.read(name, theirs), index_shape(box))
    # The file's part may be larger than the index: cut it.
    pairs = zip(index, box, strict=True)
    return x[tuple(slice(i.start - b.start, i.stop - b.start) for i, b in pairs)]


def write_module(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Create the folder of a module with its configuration."""
  folder.mkdir()
  write_json(folder / 'config.json', config)
