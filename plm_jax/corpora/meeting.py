"""What documents have in common, found by stages that many machines work on in any order; see `duplicates`.

    number_exact     a shard -> its documents, by the first bits of their numbers
    meet_exact       all with the same first bits -> which of them another is before
    number_bands     what is left of a shard -> its bands, by their first bits
    meet_bands       all with the same first bits -> those that several documents have, by shard
    sketch           a shard -> the sketches of these documents, by the same bits
    link             all with the same first bits -> edges among documents that are similar
    join             all edges -> which documents hang together with one before them
    number_spans     what is left of a shard -> its spans, by their first bits
    meet_spans       all with the same first bits -> those that came before, by shard

Only numbers travel, and of documents that share a band with others 256 bytes. Edges meet in one worker, which has eight
bytes on its disk for each document. A place is the number of a shard and, in the last 32 bits, a place in the shard.
"""
from collections.abc import Iterable, Iterator
import functools
import pathlib
import tempfile
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax.corpora import duplicates, tables
from plm_jax.corpora.duplicates import EXACT, KEPT, NEAR
from plm_jax.corpora.examine import CleanConfig
from plm_jax.corpora.minhash import MinHash
from plm_jax.corpora.tables import MEETING
from plm_jax.data.stages import Key, Runner, load, stem

NUMBERS = 'exact', 'sketches', 'bands', 'spans'  # arrays of a piece, see `units.Unit`
BITS = 32  # of a place in a shard


class Stretch(NamedTuple):
  """Documents in a row."""

  key: Key  # of the piece
  first: int  # in the piece
  stop: int


class Shard(NamedTuple):
  """Documents that go to one file, those that are left out here included."""

  number: int
  first: int  # place of its first document in the corpus
  stretches: list[Stretch]
  of_documents: int  # in the corpus
  of_spans: int

  @property
  def documents(self) -> int:
    """Counts its documents."""
    return sum(stop - first for _, first, stop in self.stretches)


class Marked(NamedTuple):
  """Documents of a shard that are left out."""

  mark: int  # EXACT or NEAR
  places: np.ndarray  # [M]


class Candidates(NamedTuple):
  """Documents of a shard that share a band with others."""

  part: int  # first bits of the bands
  rows: np.ndarray  # of tables.MEETING


class Sketched(NamedTuple):
  """Candidates with their sketches."""

  rows: np.ndarray
  places: np.ndarray  # [M] of the documents, ascending
  sketches: np.ndarray  # [M, values]


class Repeated(NamedTuple):
  """Spans of a shard that came before."""

  rows: np.ndarray  # of tables.SPAN


OfShard = Shard | Marked | Candidates | Repeated


class Known(NamedTuple):
  """What has been found out about the documents of a shard."""

  shard: Shard
  marks: np.ndarray  # [documents] uint8
  repeated: dict[int, set[int]]  # place -> first sentences of spans that came before
  candidates: list[Candidates]


def describe(config: CleanConfig, folder: epath.Path, runner: Runner, shards: Any) -> list[Any]:
  """Describes the stages that the settings ask for -> collections of (number of a shard, Marked or Repeated)."""
  of, found = functools.partial, []
  if config.duplicates != 'none':
    numbered = runner.grouped(of(number_exact, folder), shards)
    found.append(runner.grouped(meet_exact, numbered))
  if config.duplicates == 'near':
    minhash = config.minhash
    numbered = runner.grouped(of(number_bands, minhash, folder), shards, *found)
    candidates = runner.grouped(meet_bands, numbered)
    sketched = runner.grouped(of(sketch, folder), shards, candidates)
    found.append(runner.together(join, shards, runner.grouped(of(link, minhash), sketched)))
  if config.span:
    numbered = runner.grouped(of(number_spans, folder), shards, *found)
    found.append(runner.grouped(meet_spans, numbered))
  return found


def known_of(items: Iterable[OfShard]) -> Known:
  """Puts together what has been found out about a shard, in whatever order it comes."""
  items = list(items)
  shard = next(item for item in items if isinstance(item, Shard))
  marks, repeated = np.full(shard.documents, KEPT, np.uint8), {}
  for item in items:
    if isinstance(item, Marked):
      marks[item.places] = item.mark
    elif isinstance(item, Repeated):
      for row in item.rows:
        repeated.setdefault(int(row['place']), set()).add(int(row['start']))
  return Known(shard, marks, repeated, [item for item in items if isinstance(item, Candidates)])


def number_exact(folder: epath.Path, number: int, items: Iterable[OfShard]) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the first bits of numbers, and the documents of a shard that have them."""
  shard = known_of(items).shard
  exact = arrays_of(folder, shard, 'exact')
  rows = tables.rows_of(MEETING, number=exact, place=number << BITS | np.arange(len(exact)))
  yield from tables.parted(rows, tables.bits_of(shard.of_documents))


def meet_exact(part: int, rows: Iterable[np.ndarray]) -> Iterator[tuple[int, Marked]]:
  """Yields, by shard, documents whose number another has before them."""
  del part
  found = in_order(rows)
  yield from marked(EXACT, found['place'][tables.again(found)])


def number_bands(minhash: MinHash, folder: epath.Path, number: int, items: Iterable[OfShard]
                 ) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the first bits of bands, and the documents of a shard that have them."""
  known = known_of(items)
  places = np.flatnonzero(known.marks == KEPT)
  bands = arrays_of(folder, known.shard, 'bands')[places]
  rows = tables.rows_of(MEETING, number=bands.ravel(), place=(number << BITS | places).repeat(bands.shape[1]))
  yield from tables.parted(rows, tables.bits_of(known.shard.of_documents * minhash.bands))


def meet_bands(part: int, rows: Iterable[np.ndarray]) -> Iterator[tuple[int, Candidates]]:
  """Yields, by shard, what has a band in common with others."""
  found = in_order(rows)
  again = tables.again(found)
  shared = found[again | np.append(again[1:], False)[:len(again)]]
  for number, some in by_shard(shared):
    yield number, Candidates(part, some)


def sketch(folder: epath.Path, number: int, items: Iterable[OfShard]) -> Iterator[tuple[int, Sketched]]:
  """Yields the first bits of bands, and the documents of a shard that may have others like them."""
  known = known_of(items)
  if not known.candidates:
    return
  sketches = arrays_of(folder, known.shard, 'sketches')
  for part, rows in known.candidates:
    places = np.unique(rows['place'])
    yield part, Sketched(rows, places, sketches[places - (number << BITS)])


def link(minhash: MinHash, part: int, items: Iterable[Sketched]) -> Iterator[np.ndarray]:
  """Yields edges [E, 2] between similar documents, see `duplicates.linked`."""
  del part
  items = sorted(items, key=lambda item: item.places[0])
  rows = in_order(item.rows for item in items)
  places, sketches = (np.concatenate([getattr(item, name) for item in items]) for name in ('places', 'sketches'))
  edges = duplicates.linked(minhash, rows['number'], rows['place'],
                            lambda wanted: sketches[np.searchsorted(places, wanted)])
  if len(edges):
    yield np.unique(edges, axis=0)


def join(shards: Iterable[tuple[int, Shard]], edges: Iterable[np.ndarray]) -> Iterator[tuple[int, Marked]]:
  """Yields, by shard, documents that hang together with one before them."""
  found = [shard for _, shard in sorted(shards)]
  if not found:
    return
  firsts = np.array([shard.first for shard in found])
  with tempfile.TemporaryDirectory() as folder:
    forest = duplicates.forest_of(found[0].of_documents, pathlib.Path(folder))
    for some in edges:
      duplicates.join(forest, firsts[some >> BITS] + (some & LOW))
    for places in duplicates.hanging(forest):
      numbers = np.searchsorted(firsts, places, 'right') - 1
      yield from marked(NEAR, numbers << BITS | places - firsts[numbers])


def number_spans(folder: epath.Path, number: int, items: Iterable[OfShard]) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the first bits of spans, and the spans of a shard that have them."""
  known = known_of(items)
  rows = spans_of(folder, known.shard)
  rows = rows[known.marks[rows['place']] == KEPT]
  rows['place'] |= number << BITS
  yield from tables.parted(rows, tables.bits_of(known.shard.of_spans))


def meet_spans(part: int, rows: Iterable[np.ndarray]) -> Iterator[tuple[int, Repeated]]:
  """Yields, by shard, spans that came before."""
  del part
  found = in_order(rows)
  for number, some in by_shard(found[tables.again(found)]):
    some['place'] &= LOW
    yield number, Repeated(some)


def in_order(parts: Iterable[np.ndarray]) -> np.ndarray:
  """Puts rows together, equal numbers beside each other, in the order of the corpus."""
  rows = np.concatenate([*parts])
  keys = [rows['place'], rows['number']]
  return rows[np.lexsort([rows['start'], *keys] if 'start' in (rows.dtype.names or ()) else keys)]


def marked(mark: int, places: np.ndarray) -> Iterator[tuple[int, Marked]]:
  """Yields the shards of places [M], and in each the places of the shard."""
  rows = tables.rows_of(MEETING, number=np.zeros(len(places), np.uint64), place=places)
  for number, some in by_shard(rows):
    yield number, Marked(mark, some['place'] & LOW)


def by_shard(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the shards of rows, and the rows of each, in the order in which they stand."""
  shards = rows['place'] >> BITS
  for number in np.unique(shards).tolist():
    yield number, rows[shards == number]


def arrays_of(folder: epath.Path, shard: Shard, name: str) -> np.ndarray:
  """Reads the numbers [documents, ...] of a shard."""
  return np.concatenate([load(stem(folder, key, '.npz'))[name][first:stop] for key, first, stop in shard.stretches])


def spans_of(folder: epath.Path, shard: Shard) -> np.ndarray:
  """Reads the spans of a shard, with places in it."""
  found, before = [], 0
  for key, first, stop in shard.stretches:
    rows = load(stem(folder, key, '.npz'))['spans']
    rows = rows[slice(*np.searchsorted(rows['place'], [first, stop]))]
    rows['place'] += before - first
    found.append(rows)
    before += stop - first
  return np.concatenate(found)


LOW = (1 << BITS) - 1
