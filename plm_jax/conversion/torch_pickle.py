"""Tensors of a torch checkpoint, whose pickle is read as data: nothing in it is imported or run.

A pickle names functions and calls them. Here the few names that describe a tensor mean functions of this file, and any
other name is an error, whatever it is; or, in a file that is known to hold more, nothing at all. Both forms are read:
the zip file of torch 1.6 and later, and the one before it. What a file says of sizes is compared with the file before
memory is asked for, and what it says of tensors with the numbers that are there.
"""
import collections
from collections.abc import Iterator, Mapping, Sequence
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

from plm_jax.conversion.rules import ConvertError
from plm_jax.conversion.slices import Index, Shape
from plm_jax.errors import understood

PICKLED = 'pytorch_model.bin'
TYPES = {
    'FloatStorage': ('F32', np.float32), 'HalfStorage': ('F16', np.float16), 'DoubleStorage': ('F64', np.float64),
    'BFloat16Storage': ('BF16', ml_dtypes.bfloat16), 'LongStorage': ('I64', np.int64), 'IntStorage': ('I32', np.int32),
    'ShortStorage': ('I16', np.int16), 'CharStorage': ('I8', np.int8), 'ByteStorage': ('U8', np.uint8),
    'BoolStorage': ('BOOL', np.bool_)}
DEEPEST = 20  # tuples, or dictionaries
MOST = 1 << 16  # tensors in dictionaries within one another
PACKED = 100  # times that a file may be larger than what it is packed into
MAGIC = 0x1950a86a20f9469cfc6c  # what the older form begins with


@dataclasses.dataclass(frozen=True)
class Storage:
  """A run of numbers that tensors are views of."""

  kind: str  # a key of TYPES
  key: str
  size: int  # numbers


@dataclasses.dataclass(frozen=True)
class View:
  """A tensor."""

  storage: Storage
  offset: int
  shape: Shape
  strides: tuple[int, ...]


class TorchPickle:
  """The tensors of a state dict. Raises ConvertError for what is not one, and for pickles that name anything else.

  inside: the entry of a dictionary in which the state dict lies; the others may be anything, and are left alone.
  nested: there may be dictionaries in it, whose names are joined by dots; numbers and texts beside it, and those of the
  arguments of a command, are in `beside`.
  """

  def __init__(self, path: pathlib.Path, inside: str = '', nested: bool = False):
    self.path, self.inside = path, inside
    self.places: dict[str, int] = {}  # older form: key -> where its numbers begin
    if not path.is_file():
      raise ConvertError(f'{path} is no ordinary file')
    with understood(path, 'a torch checkpoint', ConvertError):
      self.size = path.stat().st_size
      self.root = self.zipped() if zipfile.is_zipfile(path) else ''
      state = self.from_zip() if self.root else self.from_stream()
    self.beside = beside(state) if nested else {}
    state = state.get(inside) if inside and isinstance(state, dict) else state
    state = dict(flat(state, path)) if nested and isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(view, View) for name, view in state.items()):
      raise ConvertError(f'{path} holds more than named tensors: save its state_dict alone')
    for name, view in state.items():
      if problem := wrong(view):
        raise ConvertError(f'{path}: the tensor {name:.100} {problem}')
    self.views: dict[str, View] = state
    self.tensors = {name: (view.shape, TYPES[view.storage.kind][0]) for name, view in state.items()}

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads tensor[index]. Raises ConvertError where the file has fewer numbers than the tensor."""
    view = self.views[name]
    dtype = np.dtype(TYPES[view.storage.kind][1])
    with understood(self.path, 'a torch checkpoint', ConvertError):
      numbers = self.numbers(view.storage, dtype)
    if len(numbers) != view.storage.size:
      raise ConvertError(f'{self.path}: the tensor {name} is of {view.storage.size:,} numbers, of which the file has '
                         f'{len(numbers):,}')
    if not math.prod(view.shape):
      return np.zeros(view.shape, dtype)[... if index is None else index]
    steps = [step * dtype.itemsize for step in view.strides]
    return np.lib.stride_tricks.as_strided(numbers[view.offset:], view.shape, steps, writeable=False)[
        ... if index is None else index].copy()

  def zipped(self) -> str:
    """Finds the folder in the zip file that all is in."""
    with zipfile.ZipFile(self.path) as file:
      found = [name for name in file.namelist() if name.endswith('/data.pkl')]
    if len(found) != 1:
      raise ConvertError(f'{self.path} is a zip file, but not of torch: it has no data.pkl')
    return found[0].removesuffix('data.pkl')

  def from_zip(self) -> Any:
    """Reads the newer form, a zip file -> what its pickle says. Raises ConvertError for another order of bytes."""
    with zipfile.ZipFile(self.path) as file:
      order = f'{self.root}byteorder'
      if order in file.namelist() and self.member(file, order) != b'little':
        raise ConvertError(f'{self.path} is of a machine with the other order of bytes')
      content = self.member(file, f'{self.root}data.pkl')
      return Data(io.BytesIO(content), self.path, bool(self.inside)).load()

  def member(self, file: zipfile.ZipFile, name: str) -> bytes:
    """Reads what a zip file holds under a name. torch does not compress; what is far larger unpacked than packed is
    refused before it is unpacked."""
    found = file.getinfo(name)
    if found.file_size > PACKED * found.compress_size + (1 << 20) or found.compress_size > self.size:
      raise ConvertError(f'{self.path}: {name} is {found.file_size:,} bytes, packed into {found.compress_size:,}, '
                         'which no checkpoint is')
    return file.read(found)

  def from_stream(self) -> Any:
    """Reads the older form: pickles one behind another, the last of which names the storages that follow it."""
    with self.path.open('rb') as opened:
      file: Any = Bounded(opened, self.size)
      magic, _, machine = (Data(file, self.path).load() for _ in range(3))
      data = Data(file, self.path, bool(self.inside))
      state = data.load()
      if magic != MAGIC or not machine.get('little_endian', True):
        raise ConvertError(f'{self.path} is no torch checkpoint, or of a machine with the other order of bytes')
      for key in Data(file, self.path).load():
        size = int.from_bytes(opened.read(8), 'little')
        self.places[key] = opened.tell()
        end = self.places[key] + size * np.dtype(TYPES[data.kinds[key]][1]).itemsize
        if end > self.size:
          raise ConvertError(f'{self.path} ends at byte {self.size:,}, expected {end:,} at least: it was cut')
        opened.seek(end)
      return state

  def numbers(self, storage: Storage, dtype: np.dtype) -> np.ndarray:
    """Reads all numbers of a storage. Raises ConvertError where the file was cut."""
    if not self.root:
      start = self.places[storage.key]
      if start + storage.size * dtype.itemsize > self.size:
        raise ConvertError(f'{self.path} ends before the numbers of its tensors do: it was cut')
      return np.fromfile(self.path, dtype, storage.size, offset=start)
    with zipfile.ZipFile(self.path) as file:
      return np.frombuffer(self.member(file, f'{self.root}data/{storage.key}'), dtype)


class Bounded:
  """A file of which nothing behind its end is asked for: memory is asked for before the bytes are there."""

  def __init__(self, file: Any, size: int):
    self.file, self.size, self.readline = file, size, file.readline

  def read(self, count: int) -> bytes:
    """Reads `count` bytes, and none behind the end."""
    return self.file.read(max(0, min(count, self.size - self.file.tell())))


def wrong(view: View) -> str:
  """Says what no tensor is: sizes, strides and places that are no numbers, or lead out of the storage at one end."""
  storage, every = view.storage, (view.offset, *view.shape, *view.strides)
  if not isinstance(storage, Storage) or not all(type(number) is int for number in (*every, storage.size)):
    return 'is described in another way than torch does'
  if len(view.shape) != len(view.strides) or len(view.shape) > 32 or min(every, default=0) < 0 or storage.size < 0:
    return f'has the shape {list(view.shape)!r:.100} and strides {list(view.strides)!r:.100}'
  last = view.offset + sum((size - 1) * step for size, step in zip(view.shape, view.strides, strict=True))
  if math.prod(view.shape) and (last >= storage.size or math.prod(view.shape) > storage.size):
    return f'reaches beyond its numbers: {list(view.shape)!r:.100} of {storage.size:,}, up to {last:,}'
  return '' if max(view.shape, default=0) < 1 << 40 else f'has the shape {list(view.shape)!r:.100}'


IN_PYTHON: Any = getattr(pickle, '_Unpickler')  # noqa: B009  that in C makes room for what a pickle says that it has


class Data(IN_PYTHON):
  """A pickle in which names mean what is below, and nothing else. more: other names are Nothing instead of an error."""

  def __init__(self, file: Any, path: pathlib.Path, more: bool = False):
    super().__init__(file)
    self.path, self.more = path, more
    self.kinds: dict[str, str] = {}  # of storages, by their keys
    self.depths: dict[int, tuple[int, Any]] = {}  # of tuples

  def find_class(self, module: str, name: str) -> Any:
    """Returns what stands in for a class. Raises ConvertError for one that is no part of a tensor: nothing is
    imported."""
    if module == 'torch' and name in TYPES:
      return name
    known = {('collections', 'OrderedDict'): collections.OrderedDict, ('torch._utils', '_rebuild_tensor_v2'): view_of,
             ('torch._utils', '_rebuild_parameter'): of_parameter}
    if self.more:
      known['argparse', 'Namespace'] = Arguments
    if (module, name) not in known:
      if self.more:
        return Nothing
      raise ConvertError(f'{self.path} asks for {module}.{name}, which is no part of a tensor: it is not read')
    return known[module, name]

  def persistent_load(self, pid: Any) -> Storage:
    """Notes a storage, which is read when its tensor is. Raises ConvertError for what is none."""
    kind, name, key, _, size = pid[:5]
    if kind != 'storage' or type(name) is not str or name not in TYPES or (len(pid) > 5 and pid[5] is not None):
      raise ConvertError(f'{self.path} has a storage of a kind that is not known: {pid[:2]!r:.100}')
    self.kinds[str(key)] = name
    return Storage(name, str(key), int(size))

  def build(self) -> None:
    """Drops the state of an object, but for the arguments of a command."""
    state = self.stack.pop()
    if type(self.stack[-1]) is Arguments and isinstance(state, dict):
      self.stack[-1].values = plain(state)

  def nest(self, items: list[Any]) -> None:
    """Makes a tuple. Shapes and strides lie in what describes a tensor, and that in nothing; of some that lie a hundred
    thousand deep in one another Python would die when it compared them."""
    made = tuple(items)
    depth = 1 + max((self.depths.get(id(item), (0,))[0] for item in made), default=0)
    self.depths[id(made)] = depth, made  # which stays, so that no other object gets its number
    if depth > DEEPEST:
      raise ConvertError(f'{self.path} has tuples too deep inside one another')
    self.append(made)

  dispatch: ClassVar = {
      **IN_PYTHON.dispatch, pickle.BUILD[0]: build, pickle.TUPLE[0]: lambda self: self.nest(self.pop_mark()),
      **{opcode[0]: lambda self, count=count: self.nest([self.stack.pop() for _ in range(count)][::-1])
         for count, opcode in enumerate((pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3), 1)}}


class Nothing:
  """What is no tensor: it takes whatever a pickle does to an object, and keeps none of it."""

  def __new__(cls, *args, **kwargs):
    del args, kwargs
    return super().__new__(cls)

  def __init__(self, *args, **kwargs):
    pass

  def __call__(self, *args, **kwargs):
    return self

  def __setitem__(self, key, value):
    pass

  def take(self, value):
    """Takes what a pickle puts into an object that does not matter here."""

  append = extend = add = update = __setstate__ = take


class Arguments(Nothing):
  """The arguments of a command, those that are numbers and texts."""

  values: Mapping[str, Any] = types.MappingProxyType({})


def plain(values: Mapping[Any, Any]) -> dict[str, Any]:
  """Returns those of the values that are numbers and texts."""
  return {name: value for name, value in values.items()
          if isinstance(name, str) and type(value) in (bool, int, float, str)}


def beside(state: Any) -> dict[str, Any]:
  """Returns, of what a pickle holds, the numbers, the texts and the arguments, these as dictionaries."""
  if not isinstance(state, dict):
    return {}
  return plain(state) | {name: dict(value.values) for name, value in state.items() if type(value) is Arguments}


def flat(state: Mapping[Any, Any], path: pathlib.Path, before: str = '') -> Iterator[tuple[Any, Any]]:
  """Yields what lies in dictionaries within dictionaries, by names joined by dots. Raises ConvertError for too many, or
  too deep ones: one that holds itself is without end."""
  if before.count('.') > DEEPEST:
    raise ConvertError(f'{path} has dictionaries too deep inside one another')
  found = 0
  for name, value in state.items():
    inner = flat(value, path, f'{before}{name!s:.200}.') if isinstance(value, dict) else [(f'{before}{name}', value)]
    for item in inner:
      found += 1
      if found > MOST:
        raise ConvertError(f'{path} has more than {MOST:,} names')
      yield item


def view_of(storage: Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *rest: Any) -> View:
  """Stands in for torch's function that makes a tensor of a storage."""
  del rest  # whether it needs a gradient, hooks, metadata
  return View(storage, offset, tuple(shape), tuple(strides))


def of_parameter(view: View, *rest: Any) -> View:
  """Stands in for torch's function that makes a parameter of a tensor."""
  del rest
  return view
