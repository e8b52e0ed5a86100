"""Tensors of a torch checkpoint, whose pickle is read as data: nothing in it is imported or run.

A pickle names functions and calls them. Here the few names that describe a tensor stand for
functions of this file. Any other name is an error; or, in a file that is known to hold more, an
object that ignores everything.

Both formats are read: the zip file of torch 1.6 and later, and the one before it. Sizes that a file
states are compared with the file before memory is allocated, and tensors with the numbers that are
there.
"""
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import io
import math
import pathlib
import pickle
import types
from typing import Any, ClassVar
import zipfile

import ml_dtypes
import numpy as np

from plm_jax.conversion.files import read_shards
from plm_jax.conversion.folders import child_path
from plm_jax.errors import parse_errors_as
from plm_jax.models.layouts import Index, Shape, select
from plm_jax.models.rules import ConvertError, raise_problems

PICKLED, PICKLED_INDEX = 'pytorch_model.bin', 'pytorch_model.bin.index.json'
STORAGE_TYPES = {
    'FloatStorage': ('F32', np.float32), 'HalfStorage': ('F16', np.float16),
    'DoubleStorage': ('F64', np.float64), 'BFloat16Storage': ('BF16', ml_dtypes.bfloat16),
    'LongStorage': ('I64', np.int64), 'IntStorage': ('I32', np.int32),
    'ShortStorage': ('I16', np.int16), 'CharStorage': ('I8', np.int8),
    'ByteStorage': ('U8', np.uint8), 'BoolStorage': ('BOOL', np.bool_)}
"""torch's classes of storages -> (safetensors' name of the type, numpy's type)"""
MAX_DEPTH = 20
"""limit of tuples, or dictionaries, in one another"""
MAX_NAMES = 1 << 16
"""limit of tensors in nested dictionaries"""
MAX_COMPRESSION = 100
"""limit of a file's size in the zip file, relative to its compressed size"""
MAGIC = 0x1950a86a20f9469cfc6c
"""the number at the start of the older format"""


@dataclasses.dataclass(frozen=True)
class TorchStorage:
  """A run of numbers that tensors are views of."""

  kind: str
  """a key of STORAGE_TYPES"""
  key: str
  size: int
  """how many numbers"""


@dataclasses.dataclass(frozen=True)
class TensorView:
  """A tensor: a view of a storage."""

  storage: TorchStorage
  offset: int
  shape: Shape
  strides: tuple[int, ...]


class TorchPickle:
  """The tensors of a state dict."""

  def __init__(
      self, path: pathlib.Path, inside: str = '', nested: bool = False,
      choose: Callable[[Any], Any] | None = None,
  ):
    """Open a file.

    Args:
      path: of the file.
      inside: key of the state dict in a dictionary, whose other entries may be anything and are
        ignored; '': the file is the state dict.
      nested: whether the state dict may hold dictionaries, whose keys are joined by dots. Then
        `metadata` has the numbers and strings next to it, and those of a command's arguments.
      choose: function from the file's content to the tensors by name, in place of `inside`.

    Raises:
      ConvertError: for a file that is no state dict, and for pickles that name anything else.
    """
    self.path, self.allow_other = path, bool(inside or choose)
    self.places: dict[str, int] = {}
    """older format: key of a storage -> where its numbers begin"""
    if not path.is_file():
      raise ConvertError(f'{path} is no ordinary file')
    with parse_errors_as(path, 'a torch checkpoint', ConvertError):
      self.size = path.stat().st_size
      self.root = ''
      if zipfile.is_zipfile(path):
        self.root = self.find_zip_root()
      state = self.read_zip() if self.root else self.read_stream()
    self.metadata = {}
    if nested:
      self.metadata = collect_metadata(state)
    if inside and isinstance(state, dict):
      state = state.get(inside)
    if nested and isinstance(state, dict):
      state = dict(flatten_nested(state, path))
    if choose:
      state = choose(state)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(view, TensorView) for name, view in state.items()):
      raise ConvertError(f'{path} holds more than named tensors: save its state_dict alone')
    for name, view in state.items():
      problem = describe_problem(view)
      if problem:
        raise ConvertError(f'{path}: the tensor {name:.100} {problem}')
    self.views: dict[str, TensorView] = state
    self.tensors = {}
    for name, view in state.items():
      self.tensors[name] = view.shape, STORAGE_TYPES[view.storage.kind][0]

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index]. Raises ConvertError where the file has fewer numbers than the tensor."""
    view = self.views[name]
    dtype = np.dtype(STORAGE_TYPES[view.storage.kind][1])
    with parse_errors_as(self.path, 'a torch checkpoint', ConvertError):
      numbers = self.read_storage(view.storage, dtype)
    if len(numbers) != view.storage.size:
      raise ConvertError(f'{self.path}: the tensor {name} is of {view.storage.size:,} numbers, of '
                         f'which the file has {len(numbers):,}')
    if not math.prod(view.shape):
      return select(np.zeros(view.shape, dtype), index)
    steps = [step * dtype.itemsize for step in view.strides]
    x = np.lib.stride_tricks.as_strided(
        numbers[view.offset:], view.shape, steps, writeable=False)
    return select(x, index).copy()

  def find_zip_root(self) -> str:
    """Find the folder in the zip file that everything is in."""
    with zipfile.ZipFile(self.path) as file:
      found = []
      for name in file.namelist():
        if name.endswith('/data.pkl'):
          found.append(name)
    if len(found) != 1:
      raise ConvertError(f'{self.path} is a zip file, but not of torch: it has no data.pkl')
    return found[0].removesuffix('data.pkl')

  def read_zip(self) -> Any:
    """Read the pickle of the newer format, a zip file.

    Raises ConvertError for another order of bytes.
    """
    with zipfile.ZipFile(self.path) as file:
      order = f'{self.root}byteorder'
      if order in file.namelist() and self.read_member(file, order) != b'little':
        raise ConvertError(f'{self.path} is of a machine with the other order of bytes')
      content = self.read_member(file, f'{self.root}data.pkl')
      return DataUnpickler(io.BytesIO(content), self.path, self.allow_other).load()

  def read_member(self, file: zipfile.ZipFile, name: str) -> bytes:
    """Read a file in a zip file.

    torch does not compress. A file that is far larger than its compressed form is refused before it
    is unpacked, with a ConvertError.
    """
    found = file.getinfo(name)
    limit = MAX_COMPRESSION * found.compress_size + (1 << 20)
    if found.file_size > limit or found.compress_size > self.size:
      raise ConvertError(f'{self.path}: {name} is {found.file_size:,} bytes, packed into '
                         f'{found.compress_size:,}, which no checkpoint is')
    return file.read(found)

  def read_stream(self) -> Any:
    """Read the older format: several pickles, the last of which names the storages after it."""
    with self.path.open('rb') as opened:
      file: Any = BoundedFile(opened, self.size)
      magic, _, machine = (DataUnpickler(file, self.path).load() for _ in range(3))
      data = DataUnpickler(file, self.path, self.allow_other)
      state = data.load()
      if magic != MAGIC or not machine.get('little_endian', True):
        raise ConvertError(
            f'{self.path} is no torch checkpoint, or of a machine with the other order of bytes')
      for key in DataUnpickler(file, self.path).load():
        size = int.from_bytes(opened.read(8), 'little')
        self.places[key] = opened.tell()
        dtype = np.dtype(STORAGE_TYPES[data.kinds[key]][1])
        end = self.places[key] + size * dtype.itemsize
        if end > self.size:
          raise ConvertError(
              f'{self.path} ends at byte {self.size:,}, expected {end:,} at least: it was cut')
        opened.seek(end)
      return state

  def read_storage(self, storage: TorchStorage, dtype: np.dtype) -> np.ndarray:
    """Read all numbers of a storage. Raises ConvertError if the file is truncated."""
    if self.root:
      with zipfile.ZipFile(self.path) as file:
        return np.frombuffer(self.read_member(file, f'{self.root}data/{storage.key}'), dtype)
    start = self.places[storage.key]
    if start + storage.size * dtype.itemsize > self.size:
      raise ConvertError(f'{self.path} ends before the numbers of its tensors do: it was cut')
    return np.fromfile(self.path, dtype, storage.size, offset=start)


class PytorchBin:
  """The tensors of a pytorch_model.bin of transformers, in one file or sharded."""

  def __init__(self, folder: pathlib.Path):
    """Open the files.

    Raises ConvertError as `TorchPickle` does, and where an index and the files disagree.
    """
    promised: dict[str, list[str]] = {}
    if (folder / PICKLED).exists():
      self.shards = {PICKLED: TorchPickle(folder / PICKLED)}
    else:
      promised = read_shards(folder / PICKLED_INDEX)
      self.shards = {name: TorchPickle(child_path(folder, name)) for name in promised}
    self.shard_of: dict[str, TorchPickle] = {}
    for name, shard in self.shards.items():
      twice = self.shard_of.keys() & shard.tensors.keys()
      if twice:
        raise ConvertError(
            f'{folder}: {name} and another file both hold the tensor {min(twice):.100}')
      self.shard_of |= dict.fromkeys(shard.tensors, shard)
    for name, tensors in promised.items():
      missing = []
      for tensor in tensors:
        if self.shard_of.get(tensor) is not self.shards[name]:
          missing.append(f'{tensor:.100} is not in {name}')
      raise_problems(missing, f'{folder / PICKLED_INDEX} and the files disagree')
    self.tensors = {}
    for name, shard in self.shard_of.items():
      self.tensors[name] = shard.tensors[name]

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index]."""
    return self.shard_of[name].read(name, index)


class BoundedFile:
  """A file that is never asked for bytes after its end.

  The file object would allocate memory for them before it notices that they are missing.
  """

  def __init__(self, file: Any, size: int):
    self.file, self.size, self.readline = file, size, file.readline

  def read(self, count: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the file."""
    return self.file.read(max(0, min(count, self.size - self.file.tell())))


def describe_problem(view: TensorView) -> str:
  """Return what is wrong with a tensor, '' if nothing is.

  Sizes, strides and offsets have to be numbers and lie within the storage.
  """
  storage, every = view.storage, (view.offset, *view.shape, *view.strides)
  if not isinstance(storage, TorchStorage):
    return 'is described in another way than torch does'
  if not all(type(number) is int for number in (*every, storage.size)):
    return 'is described in another way than torch does'
  shape, strides = f'{list(view.shape)!r:.100}', f'{list(view.strides)!r:.100}'
  dims = len(view.shape)
  if dims != len(view.strides) or dims > 32 or min(every, default=0) < 0 or storage.size < 0:
    return f'has the shape {shape} and strides {strides}'
  last = view.offset
  for size, step in zip(view.shape, view.strides, strict=True):
    last += (size - 1) * step
  count = math.prod(view.shape)
  if count and (last >= storage.size or count > storage.size):
    return f'reaches beyond its numbers: {shape} of {storage.size:,}, up to {last:,}'
  if max(view.shape, default=0) < 1 << 40:
    return ''
  return f'has the shape {shape}'


# Not the unpickler in C, which allocates whatever sizes a pickle states.
PythonUnpickler: Any = getattr(pickle, '_Unpickler')  # noqa: B009


class DataUnpickler(PythonUnpickler):
  """Reads a pickle in which only the names in `find_class` mean anything."""

  def __init__(self, file: Any, path: pathlib.Path, allow_other: bool = False):
    """Make the unpickler.

    Args:
      file: a binary file.
      path: named in error messages.
      allow_other: whether other names become `IgnoredObject` instead of an error.
    """
    super().__init__(file)
    self.path, self.allow_other = path, allow_other
    self.kinds: dict[str, str] = {}
    """key of a storage -> its class"""
    self.depths: dict[int, tuple[int, Any]] = {}
    """id of a tuple -> (how deep it is nested, the tuple)"""

  def find_class(self, module: str, name: str) -> Any:
    """Return what stands for a class; nothing is imported.

    Raises ConvertError for a class that is no part of a tensor.
    """
    if module == 'torch' and name in STORAGE_TYPES:
      return name
    known = {
        ('collections', 'OrderedDict'): collections.OrderedDict,
        ('torch._utils', '_rebuild_tensor_v2'): rebuild_tensor,
        ('torch._utils', '_rebuild_parameter'): rebuild_parameter}
    if self.allow_other:
      known['argparse', 'Namespace'] = NamespaceStub
    if (module, name) in known:
      return known[module, name]
    if self.allow_other:
      return IgnoredObject
    raise ConvertError(
        f'{self.path} names {module}.{name}, which is not part of a tensor: it is not read')

  def persistent_load(self, pid: Any) -> TorchStorage:
    """Note a storage, which is read when its tensor is. Raises ConvertError for other objects."""
    kind, name, key, _, size = pid[:5]
    is_view = len(pid) > 5 and pid[5] is not None
    if kind != 'storage' or type(name) is not str or name not in STORAGE_TYPES or is_view:
      raise ConvertError(
          f'{self.path} has a storage of a kind that is not known: {pid[:2]!r:.100}')
    self.kinds[str(key)] = name
    return TorchStorage(name, str(key), int(size))

  def build(self) -> None:
    """Ignore the state of an object, except the arguments of a command."""
    state = self.stack.pop()
    if type(self.stack[-1]) is NamespaceStub and isinstance(state, dict):
      self.stack[-1].values = select_scalars(state)

  def nest(self, items: list[Any]) -> None:
    """Make a tuple. Raises ConvertError for tuples nested more than MAX_DEPTH deep.

    Shapes and strides are in the tuple that describes a tensor, and that is in none. Python would
    crash when it compared tuples that are nested a hundred thousand deep.
    """
    made = tuple(items)
    depth = 1 + max((self.depths.get(id(item), (0,))[0] for item in made), default=0)
    self.depths[id(made)] = depth, made  # it is kept, so that no other object gets its id
    if depth > MAX_DEPTH:
      raise ConvertError(f'{self.path} has tuples too deep inside one another')
    self.append(made)

  def nest_last(self, count: int) -> None:
    """Make a tuple of the last `count` objects."""
    self.nest([self.stack.pop() for _ in range(count)][::-1])

  dispatch: ClassVar = {
      **PythonUnpickler.dispatch,
      pickle.BUILD[0]: build,
      pickle.TUPLE[0]: lambda self: self.nest(self.pop_mark()),
      pickle.TUPLE1[0]: lambda self: self.nest_last(1),
      pickle.TUPLE2[0]: lambda self: self.nest_last(2),
      pickle.TUPLE3[0]: lambda self: self.nest_last(3)}


class IgnoredObject:
  """An object that is no tensor: it accepts whatever a pickle does to it, and keeps nothing."""

  def __new__(cls, *args, **kwargs):
    return super().__new__(cls)

  def __init__(self, *args, **kwargs):
    pass

  def __call__(self, *args, **kwargs):
    return self

  def __setitem__(self, key, value):
    pass

  def take(self, value):
    """Ignore a value that a pickle puts into the object."""

  append = extend = add = update = __setstate__ = take


class NamespaceStub(IgnoredObject):
  """The arguments of a command (argparse.Namespace): those that are numbers and strings."""

  values: Mapping[str, Any] = types.MappingProxyType({})


def select_scalars(values: Mapping[Any, Any]) -> dict[str, Any]:
  """Return the entries that are numbers and strings."""
  scalars = (bool, int, float, str)
  kept = {}
  for name, value in values.items():
    if isinstance(name, str) and type(value) in scalars:
      kept[name] = value
  return kept


def collect_metadata(state: Any, depth: int = 0) -> dict[str, Any]:
  """Return the numbers, strings and arguments of a pickle's content, arguments as dictionaries.

  Of a configuration, `cfg`, the sections are dictionaries, too.
  """
  if not isinstance(state, dict):
    return {}
  found = select_scalars(state)
  for name, value in state.items():
    if type(value) is NamespaceStub:
      found[str(name)] = dict(value.values)
    elif isinstance(value, dict) and depth < 2 and (depth or name == 'cfg'):
      found[str(name)] = collect_metadata(value, depth + 1)
  return found


def flatten_nested(
    state: Mapping[Any, Any], path: pathlib.Path, prefix: str = '',
) -> Iterator[tuple[Any, Any]]:
  """Yield the values of nested dictionaries, with keys joined by dots.

  Raises ConvertError for too many values, or too deep ones: a dictionary may contain itself.
  """
  if prefix.count('.') > MAX_DEPTH:
    raise ConvertError(f'{path} has dictionaries too deep inside one another')
  found = 0
  for name, value in state.items():
    inner = (flatten_nested(value, path, f'{prefix}{name!s:.200}.') if isinstance(value, dict)
             else [(f'{prefix}{name}', value)])
    for item in inner:
      found += 1
      if found > MAX_NAMES:
        raise ConvertError(f'{path} has more than {MAX_NAMES:,} names')
      yield item


def rebuild_tensor(
    storage: TorchStorage, offset: int, shape: Sequence[int], strides: Sequence[int], *rest: Any,
) -> TensorView:
  """Stand in for torch's function that makes a tensor of a storage."""
  return TensorView(storage, offset, tuple(shape), tuple(strides))


def rebuild_parameter(view: TensorView, *rest: Any) -> TensorView:
  """Stand in for torch's function that makes a parameter of a tensor."""
  return view
