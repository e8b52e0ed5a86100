"""Deduplication in stages: on one machine (`mark_locally`), or on many in any order.

On one machine, rows of the pieces' hashes are sorted on its disk, see `duplicates`. On many
(`build_stages`):

    partition_exact        a shard -> its documents, by the first bits of their hashes
    find_exact_duplicates  all with the same first bits -> those that come after an equal one
    partition_bands        the rest of a shard -> its bands, by their first bits
    find_shared_bands      all with the same first bits -> those that several documents have, by
                           shard
    collect_sketches       a shard -> the sketches of these documents, by the same bits
    link_similar           all with the same first bits -> edges among similar documents
    join_similar           all edges -> documents that are in a tree with an earlier one
    partition_spans        the rest of a shard -> its spans, by their first bits
    find_repeated_spans    all with the same first bits -> those that came before, by shard

Only hashes are sent between machines, and 256 bytes for each document that shares a band with
others. One worker joins all edges; it has eight bytes per document on its disk. A place is the
number of a shard and, in the last 32 bits, a place in the shard.
"""
from collections.abc import Iterable, Iterator
import functools
import pathlib
import tempfile
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax.corpora import duplicates
from plm_jax.corpora.duplicates import EXACT, KEPT, NEAR, PLACE_DTYPE, DiskTable
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.corpora.word_hashes import MinHash
from plm_jax.preparation.parallel_stages import PieceKey, Runner, load_arrays, piece_path

# Arrays of a piece, see `batches.FilteredBatch`.
ARRAY_NAMES = 'exact', 'sketches', 'bands', 'spans'
PLACE_BITS = 32  # of a place in a shard
PLACE_MASK = (1 << PLACE_BITS) - 1


class DocumentRange(NamedTuple):
  """Consecutive documents of a piece."""

  key: PieceKey
  first: int  # in the piece
  stop: int


class CorpusShard(NamedTuple):
  """Documents that go to one output file, including those that deduplication drops."""

  number: int
  first: int  # place of its first document in the corpus
  ranges: list[DocumentRange]
  corpus_documents: int
  corpus_spans: int

  @property
  def documents(self) -> int:
    """Number of documents."""
    return sum(stop - first for _, first, stop in self.ranges)


class MarkedDocuments(NamedTuple):
  """Documents of a shard that are dropped."""

  mark: int  # EXACT or NEAR
  places: np.ndarray  # [M]


class BandCandidates(NamedTuple):
  """Documents of a shard that share a band with others."""

  part: int  # first bits of the bands
  rows: np.ndarray  # of PLACE_DTYPE


class SketchedDocuments(NamedTuple):
  """Candidates with their sketches."""

  rows: np.ndarray
  places: np.ndarray  # [M] of the documents, ascending
  sketches: np.ndarray  # [M, values]


class RepeatedSpans(NamedTuple):
  """Spans of a shard that came before."""

  rows: np.ndarray  # of SPAN_DTYPE


ShardItem = CorpusShard | MarkedDocuments | BandCandidates | RepeatedSpans


class ShardState(NamedTuple):
  """The results of deduplication about a shard."""

  shard: CorpusShard
  marks: np.ndarray  # [documents] uint8
  repeated: dict[int, set[int]]  # place -> first sentences of spans that came before
  candidates: list[BandCandidates]


def build_stages(
    config: CleanConfig, folder: epath.Path, runner: Runner, shards: Any) -> list[Any]:
  """Build the stages that the options ask for.

  Returns:
    Collections of (number of a shard, MarkedDocuments or RepeatedSpans).
  """
  results = []
  if config.duplicates != 'none':
    numbered = runner.group_by_key(functools.partial(partition_exact, folder), [shards])
    results.append(runner.group_by_key(find_exact_duplicates, [numbered]))
  if config.duplicates == 'near':
    minhash = config.minhash
    numbered = runner.group_by_key(
        functools.partial(partition_bands, minhash, folder), [shards] + results)
    candidates = runner.group_by_key(find_shared_bands, [numbered])
    sketched = runner.group_by_key(
        functools.partial(collect_sketches, folder), [shards, candidates])
    edges = runner.group_by_key(functools.partial(link_similar, minhash), [sketched])
    results.append(runner.call_once(join_similar, shards, edges))
  if config.span:
    numbered = runner.group_by_key(
        functools.partial(partition_spans, folder), [shards] + results)
    results.append(runner.group_by_key(find_repeated_spans, [numbered]))
  return results


def mark_locally(
    config: CleanConfig, folder: epath.Path,
    shards: list[tuple[int, CorpusShard]]) -> Iterator[tuple[int, ShardItem]]:
  """Find duplicates on this machine, with tables in the folder.

  Yields:
    (number of a shard, MarkedDocuments or RepeatedSpans), in the order of shards.
  """
  if not shards:
    return
  ordered, disk = [shard for _, shard in shards], pathlib.Path(folder)
  marks = np.memmap(disk / 'marks', np.uint8, 'w+', shape=(ordered[0].corpus_documents,))

  def read_rows(name: str) -> duplicates.PlacedRows:
    for shard in ordered:
      first = shard.first
      for rows in iterate_arrays(folder, shard, name):
        yield first, rows
        first += len(rows)

  def read_all_spans() -> Iterator[np.ndarray]:
    for shard in ordered:
      for rows in iterate_spans(folder, shard):
        rows['place'] += shard.first
        yield rows

  if config.duplicates != 'none':
    duplicates.mark_exact(read_rows('exact'), marks, disk)
  if config.duplicates == 'near':
    sketches = DiskTable(disk / 'sketches', np.uint8, config.minhash.values)
    sketches.path.unlink(missing_ok=True)
    for _, rows in read_rows('sketches'):
      sketches.append(rows)
    duplicates.mark_near(config.minhash, read_rows('bands'), sketches, marks, disk)
  repeated = []
  if config.span:
    firsts, size = [shard.first for shard in ordered], ordered[0].corpus_spans
    repeated = duplicates.mark_spans(read_all_spans(), size, marks, firsts, disk)
  for shard in ordered:
    own = marks[shard.first:shard.first + shard.documents]
    for mark in EXACT, NEAR:
      yield shard.number, MarkedDocuments(mark, np.flatnonzero(own == mark))
    if repeated:
      rows = np.array(repeated[shard.number].read())
      rows['place'] -= shard.first
      yield shard.number, RepeatedSpans(rows)


def collect_state(items: Iterable[ShardItem]) -> ShardState:
  """Combine the results about a shard, which come in any order."""
  items = list(items)
  shard = next(item for item in items if isinstance(item, CorpusShard))
  marks, repeated, candidates = np.full(shard.documents, KEPT, np.uint8), {}, []
  for item in items:
    if isinstance(item, MarkedDocuments):
      marks[item.places] = item.mark
    elif isinstance(item, RepeatedSpans):
      for row in item.rows:
        repeated.setdefault(int(row['place']), set()).add(int(row['start']))
    elif isinstance(item, BandCandidates):
      candidates.append(item)
  return ShardState(shard, marks, repeated, candidates)


def partition_exact(
    folder: epath.Path, number: int,
    items: Iterable[ShardItem]) -> Iterator[tuple[int, np.ndarray]]:
  """Yield the first bits of hashes, and the documents of a shard that have them."""
  shard = collect_state(items).shard
  exact = read_arrays(folder, shard, 'exact')
  places = number << PLACE_BITS | np.arange(len(exact))
  rows = duplicates.make_rows(PLACE_DTYPE, number=exact, place=places)
  yield from duplicates.partition_rows(rows, duplicates.partition_bits(shard.corpus_documents))


def find_exact_duplicates(
    part: int, rows: Iterable[np.ndarray]) -> Iterator[tuple[int, MarkedDocuments]]:
  """Yield, by shard, documents whose hash an earlier document has."""
  del part
  entries = sort_rows(rows)
  yield from mark_places(EXACT, entries['place'][duplicates.repeats_previous(entries)])


def partition_bands(
    minhash: MinHash, folder: epath.Path, number: int,
    items: Iterable[ShardItem]) -> Iterator[tuple[int, np.ndarray]]:
  """Yield the first bits of bands, and the documents of a shard that have them."""
  state = collect_state(items)
  kept = np.flatnonzero(state.marks == KEPT)
  bands = read_arrays(folder, state.shard, 'bands')[kept]
  places = (number << PLACE_BITS | kept).repeat(bands.shape[1])
  rows = duplicates.make_rows(PLACE_DTYPE, number=bands.ravel(), place=places)
  bits = duplicates.partition_bits(state.shard.corpus_documents * minhash.bands)
  yield from duplicates.partition_rows(rows, bits)


def find_shared_bands(
    part: int, rows: Iterable[np.ndarray]) -> Iterator[tuple[int, BandCandidates]]:
  """Yield, by shard, documents that share a band with others."""
  entries = sort_rows(rows)
  repeats = duplicates.repeats_previous(entries)
  is_repeated = np.append(repeats[1:], False)[:len(repeats)]
  for number, shard_rows in split_by_shard(entries[repeats | is_repeated]):
    yield number, BandCandidates(part, shard_rows)


def collect_sketches(
    folder: epath.Path, number: int,
    items: Iterable[ShardItem]) -> Iterator[tuple[int, SketchedDocuments]]:
  """Yield the first bits of bands, and the sketches of a shard's candidates."""
  state = collect_state(items)
  if not state.candidates:
    return
  sketches = read_arrays(folder, state.shard, 'sketches')
  for part, rows in state.candidates:
    places = np.unique(rows['place'])
    yield part, SketchedDocuments(rows, places, sketches[places - (number << PLACE_BITS)])


def link_similar(
    minhash: MinHash, part: int, items: Iterable[SketchedDocuments]) -> Iterator[np.ndarray]:
  """Yield edges [E, 2] between similar documents, see `duplicates.similar_edges`."""
  del part
  items = sorted(items, key=lambda item: item.places[0])
  rows = sort_rows(item.rows for item in items)
  places = np.concatenate([item.places for item in items])
  sketches = np.concatenate([item.sketches for item in items])

  def find_sketches(wanted: np.ndarray) -> np.ndarray:
    return sketches[np.searchsorted(places, wanted)]

  edges = duplicates.similar_edges(minhash, rows['number'], rows['place'], find_sketches)
  if len(edges):
    yield np.unique(edges, axis=0)


def join_similar(
    shards: Iterable[tuple[int, CorpusShard]],
    edges: Iterable[np.ndarray]) -> Iterator[tuple[int, MarkedDocuments]]:
  """Yield, by shard, documents that are in a tree with an earlier one."""
  ordered = [shard for _, shard in sorted(shards)]
  if not ordered:
    return
  firsts = np.array([shard.first for shard in ordered])
  with tempfile.TemporaryDirectory() as folder:
    forest = duplicates.make_forest(ordered[0].corpus_documents, pathlib.Path(folder))
    for pairs in edges:
      duplicates.union_trees(forest, firsts[pairs >> PLACE_BITS] + (pairs & PLACE_MASK))
    for places in duplicates.find_duplicates(forest):
      numbers = np.searchsorted(firsts, places, 'right') - 1
      yield from mark_places(NEAR, numbers << PLACE_BITS | places - firsts[numbers])


def partition_spans(
    folder: epath.Path, number: int,
    items: Iterable[ShardItem]) -> Iterator[tuple[int, np.ndarray]]:
  """Yield the first bits of spans, and the spans of a shard that have them."""
  state = collect_state(items)
  rows = np.concatenate(list(iterate_spans(folder, state.shard)))
  rows = rows[state.marks[rows['place']] == KEPT]
  rows['place'] |= number << PLACE_BITS
  bits = duplicates.partition_bits(state.shard.corpus_spans)
  yield from duplicates.partition_rows(rows, bits)


def find_repeated_spans(
    part: int, rows: Iterable[np.ndarray]) -> Iterator[tuple[int, RepeatedSpans]]:
  """Yield, by shard, spans that came before."""
  del part
  entries = sort_rows(rows)
  repeated = entries[duplicates.repeats_previous(entries)]
  for number, shard_rows in split_by_shard(repeated):
    shard_rows['place'] &= PLACE_MASK
    yield number, RepeatedSpans(shard_rows)


def sort_rows(parts: Iterable[np.ndarray]) -> np.ndarray:
  """Concatenate rows, and sort them by number, then in the order of the corpus."""
  rows = np.concatenate(list(parts))
  keys = [rows['place'], rows['number']]  # the last key is the first to sort by
  if 'start' in (rows.dtype.names or ()):
    keys.insert(0, rows['start'])
  return rows[np.lexsort(keys)]


def mark_places(mark: int, places: np.ndarray) -> Iterator[tuple[int, MarkedDocuments]]:
  """Yield the shards of places [M], with the marked places in each shard."""
  rows = duplicates.make_rows(
      PLACE_DTYPE, number=np.zeros(len(places), np.uint64), place=places)
  for number, shard_rows in split_by_shard(rows):
    yield number, MarkedDocuments(mark, shard_rows['place'] & PLACE_MASK)


def split_by_shard(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  """Yield the shards of rows, and the rows of each, in their original order."""
  shards = rows['place'] >> PLACE_BITS
  for number in np.unique(shards).tolist():
    yield number, rows[shards == number]


def read_arrays(folder: epath.Path, shard: CorpusShard, name: str) -> np.ndarray:
  """Read an array [documents, ...] of a shard."""
  return np.concatenate(list(iterate_arrays(folder, shard, name)))


def iterate_arrays(folder: epath.Path, shard: CorpusShard, name: str) -> Iterator[np.ndarray]:
  """Yield the parts [documents, ...] of an array of a shard, one from each piece."""
  for key, first, stop in shard.ranges:
    yield load_arrays(piece_path(folder, key, '.npz'))[name][first:stop]


def iterate_spans(folder: epath.Path, shard: CorpusShard) -> Iterator[np.ndarray]:
  """Yield the spans of a shard, from each piece, with places in the shard."""
  before = 0
  for key, first, stop in shard.ranges:
    rows = load_arrays(piece_path(folder, key, '.npz'))['spans']
    begin, end = np.searchsorted(rows['place'], [first, stop])
    rows = rows[begin:end]
    rows['place'] += before - first
    yield rows
    before += stop - first
