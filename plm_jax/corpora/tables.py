"""Tables of numbers in files: rows are appended, cut off again where work was interrupted, and met by equal numbers.

Nothing here grows with a table but the files: rows are parted by their numbers into pieces of about PIECE bytes, which
are sorted one by one.
"""
from collections.abc import Iterable, Iterator
import os
import pathlib

import numpy as np

from plm_jax import storage

PIECE = 1 << 24  # bytes that are sorted at once
CHUNK = 1 << 18  # rows that are read at once
MEETING = np.dtype([('number', np.uint64), ('place', np.int64)])  # a document has the number
SPAN = np.dtype([('number', np.uint64), ('place', np.int64), ('start', np.int64)])  # and where in the document


class Table:
  """Rows of one kind in a file."""

  def __init__(self, path: pathlib.Path, dtype: np.dtype | type, width: int = 1):
    """width: numbers in a row."""
    self.path, self.dtype, self.width = path, np.dtype(dtype), width

  def __len__(self) -> int:
    return self.path.stat().st_size // self.row if self.path.exists() else 0

  @property
  def row(self) -> int:
    """Counts the bytes of a row."""
    return self.dtype.itemsize * self.width

  def append(self, rows: np.ndarray) -> None:
    """Adds rows [M, width]. Raises StorageError."""
    with storage.explained(self.path, 'written'), open(self.path, 'ab') as file:
      np.ascontiguousarray(rows, self.dtype).tofile(file)

  def cut(self, length: int) -> None:
    """Keeps the first rows only, which were there before an interruption."""
    with storage.explained(self.path, 'written'), open(self.path, 'ab') as file:
      file.truncate(length * self.row)

  def read(self) -> np.ndarray:
    """Maps all rows [N, width] to memory; of width 1, [N]."""
    shape = (len(self), self.width) if self.width > 1 else (len(self),)
    return np.memmap(self.path, self.dtype, 'r', shape=shape) if len(self) else np.empty(shape, self.dtype)

  def at(self, places: np.ndarray) -> np.ndarray:
    """Reads the rows [M, width] at places [M], one by one: were they mapped, all around them would take memory."""
    with open(self.path, 'rb') as file:
      rows = [os.pread(file.fileno(), self.row, place * self.row) for place in places.tolist()]
    return np.frombuffer(b''.join(rows), self.dtype).reshape(-1, self.width)

  def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (number of the first, rows) of parts of the table."""
    step = max(CHUNK // self.width, 1)
    for start in range(0, len(self), step):  # not mapped: pages that were seen once would count as memory
      rows = np.fromfile(self.path, self.dtype, step * self.width, offset=start * self.row)
      yield start, rows.reshape(-1, self.width) if self.width > 1 else rows


def met(parts: Iterable[np.ndarray], size: int, folder: pathlib.Path) -> Iterator[np.ndarray]:
  """Yields rows in which equal numbers stand together, in the order in which they came; all of a number at once.

  parts: rows with a field 'number', about `size` of them. folder: for the pieces, which are removed.
  """
  bits = bits_of(size)
  pieces: dict[int, Table] = {}
  for rows in parts:
    for name, some in parted(rows, bits):
      pieces.setdefault(name, Table(folder / f'piece-{name:05d}', rows.dtype)).append(some)
  for _, table in sorted(pieces.items()):
    rows = np.fromfile(table.path, table.dtype)
    table.path.unlink()
    yield rows[np.argsort(rows['number'], kind='stable')]


def bits_of(size: int) -> int:
  """Returns by how many bits of their numbers so many rows are parted."""
  return max(size * MEETING.itemsize // PIECE, 1).bit_length() - 1


def parted(rows: np.ndarray, bits: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the first bits of numbers, and the rows with such a number, in the order in which they came."""
  piece = rows['number'] >> np.uint64(64 - bits) if bits else np.zeros(len(rows), np.uint64)
  order = np.argsort(piece, kind='stable')
  names, starts = np.unique(piece[order], return_index=True)
  yield from zip(names.tolist(), np.split(rows[order], starts[1:]), strict=True) if len(names) else ()


def again(rows: np.ndarray) -> np.ndarray:
  """Tells [M] which rows have the number of the row before them."""
  return np.concatenate([[False], rows['number'][1:] == rows['number'][:-1]])[:len(rows)]


def rows_of(dtype: np.dtype, **columns: np.ndarray) -> np.ndarray:
  """Makes rows of columns [M]."""
  rows = np.empty(len(columns['number']), dtype)
  for name, column in columns.items():
    rows[name] = column
  return rows
