"""Exact duplicates, near-duplicates and repeated spans of a corpus, from hashes only.

Memory does not grow with the corpus: rows are partitioned by their numbers into files of about
PIECE_BYTES (`DiskTable`), which are sorted one by one (`group_equal`).

Documents are identified by their place in the corpus. Duplicates form a disjoint-set forest
(union-find): an array in which a document points to one before it, or to itself. It is a file that
is mapped to memory, like all arrays with an entry for each document.
"""
from collections.abc import Callable, Iterable, Iterator
import os
import pathlib

import numpy as np

from plm_jax import storage
from plm_jax.corpora.word_hashes import MinHash

PIECE_BYTES = 1 << 24  # bytes that are sorted at once
CHUNK_ROWS = 1 << 18  # documents of a forest that are handled at once
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
        pieces[name].path.unlink(missing_ok=True)  # of work that was interrupted
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


# Documents of a band that others are compared with: very many may share only a header.
MAX_LEADERS = 16
PAIRS_AT_ONCE = 1 << 12  # sketches that are compared at once
KEPT, EXACT, NEAR = range(3)
PlacedRows = Iterable[tuple[int, np.ndarray]]  # (place of the first document, a row per document)
REASONS = {EXACT: 'exact duplicate', NEAR: 'near-duplicate'}


def mark_exact(exact: PlacedRows, marks: np.ndarray, folder: pathlib.Path) -> None:
  """Mark documents [N] whose hash an earlier document has; folder: for temporary files."""
  def entries():
    for start, numbers in exact:
      places = np.arange(start, start + len(numbers))
      yield make_rows(PLACE_DTYPE, number=numbers, place=places)

  for rows in group_equal(entries(), len(marks), folder):
    marks[rows['place'][repeats_previous(rows)]] = EXACT


def mark_near(
    minhash: MinHash, bands: PlacedRows, sketches: DiskTable, marks: np.ndarray,
    folder: pathlib.Path) -> None:
  """Mark near-duplicates [N] of earlier documents among those that are not marked yet."""
  forest = make_forest(len(marks), folder)

  def kept_bands():
    for start, numbers in bands:
      kept = np.flatnonzero(marks[start:start + len(numbers)] == KEPT)
      places = (start + kept).repeat(minhash.bands)
      yield make_rows(PLACE_DTYPE, number=numbers[kept].ravel(), place=places)

  for rows in group_equal(kept_bands(), len(marks) * minhash.bands, folder):
    edges = similar_edges(minhash, rows['number'], rows['place'], sketches.read_at)
    union_trees(forest, edges)
  for places in find_duplicates(forest):
    marks[places] = NEAR


def make_forest(size: int, folder: pathlib.Path) -> np.ndarray:
  """Make a forest of documents that each are a tree of their own."""
  forest = np.memmap(folder / 'forest', np.int64, 'w+', shape=(size,))
  for start in range(0, size, CHUNK_ROWS):
    stop = min(start + CHUNK_ROWS, size)
    forest[start:stop] = np.arange(start, stop)
  return forest


def find_duplicates(forest: np.ndarray) -> Iterator[np.ndarray]:
  """Yield the places [M] of documents that are in a tree with an earlier document."""
  for start in range(0, len(forest), CHUNK_ROWS):
    parents = forest[start:start + CHUNK_ROWS]
    yield start + np.flatnonzero(parents != np.arange(start, start + len(parents)))


def similar_edges(
    minhash: MinHash, numbers: np.ndarray, places: np.ndarray,
    sketches: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
  """Find edges [E, 2] among documents that share a band: each with the first similar one.

  Args:
    minhash: parameters of the comparison.
    numbers: hashes of bands [M], equal ones next to each other.
    places: of the documents [M], ascending where numbers are equal.
    sketches: returns the sketches [..., values] of documents at places [...].
  """
  edges = [np.empty((0, 2), np.int64)]
  for _ in range(MAX_LEADERS):
    first = np.concatenate([[True], numbers[1:] != numbers[:-1]])[:len(numbers)]
    leader = places[np.maximum.accumulate(np.where(first, np.arange(len(places)), 0))]
    pairs = np.stack([leader, places], 1)[~first]
    if not len(pairs):
      break
    similar = [minhash.are_similar(sketches(chunk[:, 0]), sketches(chunk[:, 1]))
               for chunk in np.array_split(pairs, len(pairs) // PAIRS_AT_ONCE + 1)]
    similar = np.concatenate(similar)
    edges.append(pairs[similar])
    numbers, places = numbers[~first][~similar], places[~first][~similar]
  return np.concatenate(edges)


def union_trees(forest: np.ndarray, edges: np.ndarray) -> None:
  """Join the trees of documents with edges [E, 2]; the first document of a tree is its root."""
  if not len(edges):
    return
  from scipy.sparse import coo_matrix, csgraph
  roots, ends = np.unique(find_roots(forest, edges.ravel()), return_inverse=True)
  ends = ends.reshape(-1, 2)
  shape = len(roots), len(roots)
  graph = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape)
  _, component = csgraph.connected_components(graph, directed=False)
  _, first = np.unique(component, return_index=True)  # roots ascend: the first is the least
  forest[roots] = roots[first[component]]


def find_roots(forest: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Return the roots of the trees of documents [M]."""
  while True:
    parents = forest[places]
    if (parents == places).all():
      return places
    places = parents


def mark_spans(
    spans: Iterable[np.ndarray], size: int, marks: np.ndarray, firsts: list[int],
    folder: pathlib.Path) -> list[DiskTable]:
  """Write the repeated spans of documents that are not marked.

  Args:
    spans: of all documents, in parts.
    size: number of spans.
    marks: of documents [N].
    firsts: place of the first document of each shard.
    folder: for the tables and temporary files.

  Returns:
    A table for each shard.
  """
  tables = []
  for shard in range(len(firsts)):
    tables.append(DiskTable(folder / f'repeated-{shard:05d}', SPAN_DTYPE))
    tables[-1].path.unlink(missing_ok=True)
  parts = (rows[marks[rows['place']] == KEPT] for rows in spans)
  for rows in group_equal(parts, size, folder):
    repeated = rows[repeats_previous(rows)]
    shards = np.searchsorted(firsts, repeated['place'], 'right') - 1
    for shard in np.unique(shards):
      tables[shard].append(repeated[shards == shard])
  return tables
