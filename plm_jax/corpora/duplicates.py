"""Which documents of a corpus meet others, by numbers alone. Documents are known by their place in the corpus.

What hangs together is a forest, an array in which a document points to one before it, or to itself. It is in a file
that is mapped to memory, as is all that has a place for each document.
"""
from collections.abc import Callable, Iterator
import pathlib

import numpy as np
from scipy.sparse import coo_matrix, csgraph

from plm_jax.corpora import tables
from plm_jax.corpora.minhash import MinHash
from plm_jax.corpora.tables import MEETING, Table

LEADERS = 16  # documents of a band that others are compared with: there is no end of what shares a header only
KEPT, EXACT, NEAR = range(3)
REASONS = {EXACT: 'exact duplicate', NEAR: 'near-duplicate'}


def mark_exact(exact: Table, marks: np.ndarray, folder: pathlib.Path) -> None:
  """Marks [N] documents whose number another has before them. folder: for what is sorted."""
  parts = (tables.rows_of(MEETING, number=numbers, place=np.arange(start, start + len(numbers)))
           for start, numbers in exact.chunks())
  for rows in tables.met(parts, len(exact), folder):
    marks[rows['place'][tables.again(rows)]] = EXACT


def mark_near(minhash: MinHash, bands: Table, sketches: Table, marks: np.ndarray, folder: pathlib.Path) -> None:
  """Marks [N] what is not marked yet and hangs together with a document before it."""
  forest = forest_of(len(marks), folder)
  def parts():
    for start, numbers in bands.chunks():
      places = start + np.flatnonzero(marks[start:start + len(numbers)] == KEPT)
      yield tables.rows_of(MEETING, number=numbers[places - start].ravel(), place=places.repeat(numbers.shape[1]))
  for rows in tables.met(parts(), len(bands) * minhash.bands, folder):
    join(forest, linked(minhash, rows['number'], rows['place'], sketches.at))
  for places in hanging(forest):
    marks[places] = NEAR


def forest_of(size: int, folder: pathlib.Path) -> np.ndarray:
  """Makes a forest of documents each of which is a tree of its own."""
  forest = np.memmap(folder / 'forest', np.int64, 'w+', shape=(size,))
  for start in range(0, size, tables.CHUNK):
    forest[start:start + tables.CHUNK] = np.arange(start, min(start + tables.CHUNK, size))
  return forest


def hanging(forest: np.ndarray) -> Iterator[np.ndarray]:
  """Yields the places [M] of documents that hang together with one before them."""
  for start in range(0, len(forest), tables.CHUNK):
    pointing = forest[start:start + tables.CHUNK]
    yield start + np.flatnonzero(pointing != np.arange(start, start + len(pointing)))


def linked(minhash: MinHash, numbers: np.ndarray, places: np.ndarray,
           sketches: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
  """Returns edges [E, 2] among documents that have a band in common: each with the first of them that is similar.

  numbers: [M] of bands, equal ones together; places: [M] of the documents, ascending where numbers are equal;
  sketches: gives those [..., values] of documents at places [...].
  """
  found = [np.empty((0, 2), np.int64)]
  for _ in range(LEADERS):
    first = np.concatenate([[True], numbers[1:] != numbers[:-1]])[:len(numbers)]
    leader = places[np.maximum.accumulate(np.where(first, np.arange(len(places)), 0))]
    pairs = np.stack([leader, places], 1)[~first]
    if not len(pairs):
      break
    alike = np.concatenate([minhash.similar(sketches(some[:, 0]), sketches(some[:, 1]))
                            for some in np.array_split(pairs, len(pairs) // COMPARED + 1)])
    found.append(pairs[alike])
    numbers, places = numbers[~first][~alike], places[~first][~alike]
  return np.concatenate(found)


def join(forest: np.ndarray, edges: np.ndarray) -> None:
  """Joins the trees of documents between which there are edges [E, 2]; the first document of a tree is its root."""
  if not len(edges):
    return
  roots, ends = np.unique(root(forest, edges.ravel()), return_inverse=True)
  ends = ends.reshape(-1, 2)
  graph = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), (len(roots), len(roots)))
  _, component = csgraph.connected_components(graph, directed=False)
  _, first = np.unique(component, return_index=True)  # roots ascend: the first of a component is the least
  forest[roots] = roots[first[component]]


def root(forest: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Follows documents [M] to the roots of their trees."""
  while True:
    above = forest[places]
    if (above == places).all():
      return places
    places = above


def mark_spans(spans: Table, marks: np.ndarray, firsts: list[int], folder: pathlib.Path) -> list[Table]:
  """Writes which spans of documents that are not marked came before -> a table for each shard of documents, the first
  of which are `firsts`."""
  found = [Table(folder / f'repeated-{shard:05d}', tables.SPAN) for shard in range(len(firsts))]
  for table in found:
    table.path.unlink(missing_ok=True)
  parts = (rows[marks[rows['place']] == KEPT] for _, rows in spans.chunks())
  for rows in tables.met(parts, len(spans), folder):
    repeated = rows[tables.again(rows)]
    shards = np.searchsorted(firsts, repeated['place'], 'right') - 1
    for shard in np.unique(shards):
      found[shard].append(repeated[shards == shard])
  return found


COMPARED = 1 << 12  # sketches that are compared at once
