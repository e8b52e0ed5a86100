"""Tensors in files: safetensors in one piece or sharded, and checkpoints of TensorFlow 1."""
from collections.abc import Callable, Iterable, Mapping
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
from plm_jax.conversion.folders import inside
from plm_jax.conversion.rules import DTYPES, ConvertError, refuse
from plm_jax.conversion.slices import Index
from plm_jax.errors import outside, understood
from plm_jax.tokenizers.contract import brief

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
FOREIGN = ('.bin', '.pt', '.pth', '.ckpt', '.pkl', '.pickle', '.h5', '.msgpack', '.onnx', '.gguf', '.npz')


class SafeTensors:
  """The tensors of a folder, whichever shards they are in. Nothing is read before it is asked for."""

  def __init__(self, folder: pathlib.Path):
    """Raises ConvertError for files that are missing, damaged, or outside the folder."""
    self.folder = folder
    self.shards = dict.fromkeys([SINGLE]) if (folder / SINGLE).exists() else self.index()
    self.tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    self.where: dict[str, str] = {}
    for shard, promised in self.shards.items():
      with open_shard(folder / shard) as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
          if name in self.where:
            raise ConvertError(f'{folder}: {self.where[name]} and {shard} both hold the tensor {name}')
          piece = file.get_slice(name)
          self.tensors[name], self.where[name] = (tuple(piece.get_shape()), piece.get_dtype()), shard
      refuse([f'{name} is not in {shard}' for name in promised or () if self.where.get(name) != shard],
             f'{folder / INDEX} and the files disagree')

  def index(self) -> dict[str, list[str]]:
    """Reads the index, shard -> the tensors it should hold."""
    if not (self.folder / INDEX).exists():
      raise ConvertError(no_tensors(self.folder))
    shards: dict[str, list[str]] = {}
    where = self.folder / INDEX
    said = read_json(where).get('weight_map')
    if not isinstance(said, dict) or not all(isinstance(shard, str) for shard in said.values()):
      raise ConvertError(f'{where}: weight_map is {brief(said)}, expected an object of tensors and their files')
    for name, shard in said.items():
      shards.setdefault(shard, []).append(name)
    refuse([brief(shard)[1:-1] for shard in shards if not inside(self.folder, shard).is_file()],
           f'{where} names files that are not there')
    return shards

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads tensor[index]; the rest of it is not read."""
    with open_shard(self.folder / self.where[name]) as file:
      return file.get_tensor(name) if index is None else file.get_slice(name)[index]


class TensorFlow:
  """The variables of a checkpoint `PREFIX.index`, `PREFIX.data-...` of TensorFlow 1."""

  def __init__(self, prefix: pathlib.Path):
    import tensorflow as tf  # seconds, and only needed here
    with understood(prefix, 'a TensorFlow checkpoint', ConvertError):
      self.reader = tf.train.load_checkpoint(str(prefix))
      types = self.reader.get_variable_to_dtype_map()
      shapes = {name: tuple(shape) for name, shape in self.reader.get_variable_to_shape_map().items()}
      there = sum(path.stat().st_size for path in prefix.parent.glob(f'{glob.escape(prefix.name)}.data-*'))
      said = sum(math.prod(shape) * max(types[name].size or 1, 1) for name, shape in shapes.items())
    if said > there:
      raise ConvertError(f'{prefix}.index describes {said:,} bytes of variables, {prefix}.data-* have {there:,}')
    self.tensors: dict[str, tuple[tuple[int, ...], str]] = {
        name: (shape, NAMES.get(str(types[name].name), str(types[name].name))) for name, shape in shapes.items()}

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads a tensor whole, and returns tensor[index]: TensorFlow's reader reads no parts."""
    return self.reader.get_tensor(name)[... if index is None else index]


class Renamed:
  """A source under other names; rename gives None for what is no parameter. where: what to call it when it cannot be
  read."""

  def __init__(self, source: Any, rename: Callable[[str], str | None], where: pathlib.Path):
    self.source, self.original, self.where = source, {}, where
    for name in source.tensors:
      if (new := rename(name)) is not None:
        if new in self.original:
          raise ConvertError(f'the tensors {self.original[new]} and {name} are both {new}')
        self.original[new] = name
    self.tensors: dict[str, tuple[tuple[int, ...], str]] = {
        new: source.tensors[name] for new, name in self.original.items()}

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads tensor[index] under its original name. Raises ConvertError."""
    with understood(self.where, 'a checkpoint', ConvertError):
      return self.source.read(self.original[name], index)


def renamer(aliases: Iterable[tuple[str, str]]) -> Callable[[str], str]:
  """Applies regular expressions, one after another."""
  def rename(name: str) -> str:
    for pattern, replacement in aliases:
      name = re.sub(pattern, replacement, name)
    return name
  return rename


def write_safetensors(folder: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int) -> None:
  """Writes (name, array) pairs, in files of at most `shard_bytes` unless one tensor is larger."""
  shards: list[dict[str, np.ndarray]] = [{}]
  held, total, where = 0, 0, []
  def flush():
    name = f'shard-{len(where)}'
    save_shard(shards[-1], folder / name)
    where.append((name, list(shards[-1])))
  for name, x in tensors:
    if held and held + x.nbytes > shard_bytes:
      flush()
      shards[-1], held = {}, 0
    shards[-1][name] = np.ascontiguousarray(x).reshape(x.shape)
    held, total = held + x.nbytes, total + x.nbytes
  flush()
  if len(where) == 1:
    (folder / where[0][0]).rename(folder / SINGLE)
    return
  weight_map = {}
  for number, (name, names) in enumerate(where, 1):
    shard = f'model-{number:05}-of-{len(where):05}.safetensors'
    (folder / name).rename(folder / shard)
    weight_map |= dict.fromkeys(names, shard)
  write_json(folder / INDEX, {'metadata': {'total_size': total}, 'weight_map': weight_map})


def save_shard(tensors: dict[str, np.ndarray], path: pathlib.Path) -> None:
  """Writes a file with the mode of any new one: the library leaves it to its owner alone. Raises OSError."""
  path.touch()
  mode = path.stat().st_mode & 0o777
  try:
    safetensors.numpy.save_file(tensors, path, metadata={'format': 'pt'})
  except safetensors.SafetensorError as error:
    found = re.search(r'os error (\d+)', str(error))
    raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) if found else OSError(str(error)) from error
  path.chmod(mode)


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads the object in a JSON file. Raises ConvertError, also for numbers that are none or infinite."""
  said = storage.read_json(path, error=ConvertError)
  if name := endless(said):
    raise ConvertError(f'{path}: {name:.100} is not a finite number')
  return said


def endless(value: Any, name: str = '') -> str:
  """Finds the name of the first number in a JSON value that is none, or infinite; '' where there is no such."""
  if isinstance(value, float):
    return '' if math.isfinite(value) else name
  inner = value.items() if isinstance(value, dict) else ((name, x) for x in value) if isinstance(value, list) else ()
  return next((found for key, x in inner if (found := endless(x, str(key) or 'a number'))), '')


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes a JSON object as transformers does, indented by two."""
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n')


def no_tensors(folder: pathlib.Path) -> str:
  """Says what a folder without safetensors has instead."""
  found = sorted(path.name for path in folder.iterdir() if path.suffix in FOREIGN) if folder.is_dir() else []
  text = f'{folder} has no {SINGLE}'
  return f'{text}. {advice(", ".join(found))}' if found else text


def advice(names: str) -> str:
  """Says what to do about files that are not read."""
  return (f'{names} is not read: a pickle can run any program when it is opened, and other formats are not known here. '
          'Most models have a safetensors file beside it; otherwise load it with its own library where you trust it, '
          'and save it again with save_pretrained(FOLDER, safe_serialization=True).')


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
      raise ConvertError(f'{self.path} cannot be read as safetensors: {outside(error)}') from error

  def __exit__(self, kind, error, trace):
    self.file.__exit__(kind, error, trace)
    if kind is not None and issubclass(kind, safetensors.SafetensorError):
      raise ConvertError(f'{self.path} cannot be read as safetensors: {outside(error)}') from error


def cast(name: str, x: np.ndarray, dtype: str) -> np.ndarray:
  """Returns x in the type of that name, 'F16'. Raises ConvertError where a number does not fit."""
  if dtype not in DTYPES:
    return x
  with np.errstate(over='ignore'):
    y = x.astype(DTYPES[dtype])
  if dtype == 'F16' and not np.array_equal(np.isfinite(y), np.isfinite(x)):
    raise ConvertError(f'{name} has numbers beyond the range of float16: use bfloat16 or float32')
  return y


