"""Tables of numbers in files: append rows, truncate after an interruption, group equal numbers.

Memory does not grow with a table. Rows are partitioned by their numbers into files of about
PIECE_BYTES, which are sorted one by one.
"""
from collections.abc import Iterable, Iterator
import os
import pathlib

import numpy as np

from plm_jax import storage

PIECE_BYTES = 1 << 24  # bytes that are sorted at once
CHUNK_ROWS = 1 << 18  # rows that are read at once
# A hash, and the document that has it.
PLACE_DTYPE = np.dtype([('number', np.uint64), ('place', np.int64)])
# A hash of sentences, the document that has it, and the first sentence in it.
SPAN_DTYPE = np.dtype([('number', np.uint64), ('place', np.int64), ('start', np.int64)])


class DiskTable:
  """Rows of one kind in a file."""

  def __init__(self, path: pathlib.Path, dtype: np.dtype | type, width: int = 1):
    """Describe a table; width: numbers per row."""
    self.path, self.dtype, self.width = path, np.dtype(dtype), width

  def __len__(self) -> int:
    if not self.path.exists():
      return 0
    return self.path.stat().st_size // self.row_bytes

  @property
  def row_bytes(self) -> int:
    """Size of a row in bytes."""
    return self.dtype.itemsize * self.width

  def append(self, rows: np.ndarray) -> None:
    """Append rows [M, width]. Raises StorageError."""
    with storage.io_errors_as(self.path, 'written'), open(self.path, 'ab') as file:
      np.ascontiguousarray(rows, self.dtype).tofile(file)

  def truncate(self, length: int) -> None:
    """Keep only the first rows, which were there before an interruption."""
    with storage.io_errors_as(self.path, 'written'), open(self.path, 'ab') as file:
      file.truncate(length * self.row_bytes)

  def read(self) -> np.ndarray:
    """Map all rows [N, width] to memory; [N] for width 1."""
    shape = (len(self), self.width) if self.width > 1 else (len(self),)
    if not len(self):
      return np.empty(shape, self.dtype)
    return np.memmap(self.path, self.dtype, 'r', shape=shape)

  def read_at(self, places: np.ndarray) -> np.ndarray:
    """Read the rows [M, width] at places [M], one by one.

    With a memory map, the pages around them would take memory.
    """
    with open(self.path, 'rb') as file:
      rows = [os.pread(file.fileno(), self.row_bytes, place * self.row_bytes)
              for place in places.tolist()]
    return np.frombuffer(b''.join(rows), self.dtype).reshape(-1, self.width)

  def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of the first row, rows) for parts of the table."""
    step = max(CHUNK_ROWS // self.width, 1)
    # Not mapped: pages that were read once would count as memory.
    for start in range(0, len(self), step):
      offset = start * self.row_bytes
      rows = np.fromfile(self.path, self.dtype, step * self.width, offset=offset)
      if self.width > 1:
        rows = rows.reshape(-1, self.width)
      yield start, rows


def group_equal(
    parts: Iterable[np.ndarray], size: int, folder: pathlib.Path) -> Iterator[np.ndarray]:
  """Yield rows with equal numbers next to each other, in their original order.

  All rows of a number are in one array.

  Args:
    parts: rows with a field 'number'.
    size: number of rows, about.
    folder: for temporary files, which are removed.
  """
  bits = partition_bits(size)
  pieces: dict[int, DiskTable] = {}
  for rows in parts:
    for name, piece_rows in partition_rows(rows, bits):
      if name not in pieces:
        pieces[name] = DiskTable(folder / f'piece-{name:05d}', rows.dtype)
      pieces[name].append(piece_rows)
  for _, table in sorted(pieces.items()):
    rows = np.fromfile(table.path, table.dtype)
    table.path.unlink()
    yield rows[np.argsort(rows['number'], kind='stable')]


def partition_bits(size: int) -> int:
  """Return the number of bits of their numbers by which `size` rows are partitioned."""
  return max(size * PLACE_DTYPE.itemsize // PIECE_BYTES, 1).bit_length() - 1


def partition_rows(rows: np.ndarray, bits: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yield the first bits of numbers, and the rows with such numbers, in their original order."""
  if not len(rows):
    return
  piece = rows['number'] >> np.uint64(64 - bits) if bits else np.zeros(len(rows), np.uint64)
  order = np.argsort(piece, kind='stable')
  names, starts = np.unique(piece[order], return_index=True)
  yield from zip(names.tolist(), np.split(rows[order], starts[1:]), strict=True)


def repeats_previous(rows: np.ndarray) -> np.ndarray:
  """Return [M] whether a row has the number of the row before it."""
  return np.concatenate([[False], rows['number'][1:] == rows['number'][:-1]])[:len(rows)]


def make_rows(dtype: np.dtype, **columns: np.ndarray) -> np.ndarray:
  """Make rows [M] of columns [M]."""
  rows = np.empty(len(columns['number']), dtype)
  for name, column in columns.items():
    rows[name] = column
  return rows
