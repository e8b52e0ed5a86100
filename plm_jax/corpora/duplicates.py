"""Exact duplicates, near-duplicates and repeated spans of a corpus, from hashes only.

Documents are identified by their place in the corpus. Duplicates form a disjoint-set forest
(union-find): an array in which a document points to one before it, or to itself. It is a file that
is mapped to memory, like all arrays with an entry for each document.
"""
from collections.abc import Callable, Iterator
import pathlib

import numpy as np

from plm_jax.corpora import disk_tables
from plm_jax.corpora.disk_tables import PLACE_DTYPE, DiskTable
from plm_jax.corpora.minhash import MinHash

# Documents of a band that others are compared with: very many may share only a header.
MAX_LEADERS = 16
PAIRS_AT_ONCE = 1 << 12  # sketches that are compared at once
KEPT, EXACT, NEAR = range(3)
REASONS = {EXACT: 'exact duplicate', NEAR: 'near-duplicate'}


def mark_exact(exact: DiskTable, marks: np.ndarray, folder: pathlib.Path) -> None:
  """Mark documents [N] whose hash an earlier document has; folder: for temporary files."""
  def entries():
    for start, numbers in exact.chunks():
      places = np.arange(start, start + len(numbers))
      yield disk_tables.make_rows(PLACE_DTYPE, number=numbers, place=places)

  for rows in disk_tables.group_equal(entries(), len(exact), folder):
    marks[rows['place'][disk_tables.repeats_previous(rows)]] = EXACT


def mark_near(
    minhash: MinHash, bands: DiskTable, sketches: DiskTable, marks: np.ndarray,
    folder: pathlib.Path) -> None:
  """Mark near-duplicates [N] of earlier documents among those that are not marked yet."""
  forest = make_forest(len(marks), folder)

  def kept_bands():
    for start, numbers in bands.chunks():
      kept = np.flatnonzero(marks[start:start + len(numbers)] == KEPT)
      places = (start + kept).repeat(numbers.shape[1])
      yield disk_tables.make_rows(PLACE_DTYPE, number=numbers[kept].ravel(), place=places)

  for rows in disk_tables.group_equal(kept_bands(), len(bands) * minhash.bands, folder):
    edges = similar_edges(minhash, rows['number'], rows['place'], sketches.read_at)
    union_trees(forest, edges)
  for places in find_duplicates(forest):
    marks[places] = NEAR


def make_forest(size: int, folder: pathlib.Path) -> np.ndarray:
  """Make a forest of documents that each are a tree of their own."""
  forest = np.memmap(folder / 'forest', np.int64, 'w+', shape=(size,))
  for start in range(0, size, disk_tables.CHUNK_ROWS):
    stop = min(start + disk_tables.CHUNK_ROWS, size)
    forest[start:stop] = np.arange(start, stop)
  return forest


def find_duplicates(forest: np.ndarray) -> Iterator[np.ndarray]:
  """Yield the places [M] of documents that are in a tree with an earlier document."""
  for start in range(0, len(forest), disk_tables.CHUNK_ROWS):
    parents = forest[start:start + disk_tables.CHUNK_ROWS]
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
    spans: DiskTable, marks: np.ndarray, firsts: list[int],
    folder: pathlib.Path) -> list[DiskTable]:
  """Write the repeated spans of documents that are not marked.

  Args:
    spans: of all documents.
    marks: of documents [N].
    firsts: place of the first document of each shard.
    folder: for the tables and temporary files.

  Returns:
    A table for each shard.
  """
  tables = []
  for shard in range(len(firsts)):
    tables.append(DiskTable(folder / f'repeated-{shard:05d}', disk_tables.SPAN_DTYPE))
    tables[-1].path.unlink(missing_ok=True)
  parts = (rows[marks[rows['place']] == KEPT] for _, rows in spans.chunks())
  for rows in disk_tables.group_equal(parts, len(spans), folder):
    repeated = rows[disk_tables.repeats_previous(rows)]
    shards = np.searchsorted(firsts, repeated['place'], 'right') - 1
    for shard in np.unique(shards):
      tables[shard].append(repeated[shards == shard])
  return tables
