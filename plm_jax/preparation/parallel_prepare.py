"""`prepare` on many machines: the same records, byte for byte, from parallel stages.

    read_part      a part of the source -> its documents, in pieces of about PIECE_CHARACTERS
    encode_piece   a piece -> files with its tokens, and its token counts per document and split
    plan_shards    the counts of all pieces, in order -> which documents are in which shard
    write_shards   the shards that begin in a piece -> their files, and entries of records.json
    gather_results entries of pieces and shards -> two small files for the process that started all

The end of a shard depends on everything before it. So counts go through one worker, in order: two
numbers per document, read a few pieces at a time. Text and tokens are never all in one place. See
`parallel_stages` for the requirements on a stage, and for what runs it.
"""
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import itertools
import time
from typing import NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage, tokenizers
from plm_jax.data import records
from plm_jax.data.records import SPLITS, RecordsError
from plm_jax.data.window_rules import WindowRule
from plm_jax.preparation import encode, finalize, parallel_stages
from plm_jax.preparation import journal as journal_lib
from plm_jax.preparation.encode import SplitBounds
from plm_jax.preparation.journal import PendingShard, PrepareJournal
from plm_jax.preparation.parallel_stages import (
  PartSummary,
  PieceKey,
  Runner,
  RunStages,
  TextPiece,
  load_arrays,
  map_ahead,
  piece_path,
  store_arrays,
)
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import lines, text_sources
from plm_jax.storage import lock

PIECE_CHARACTERS = 1 << 23  # a worker has a few pieces in memory
FORMAT = 2  # raise it when pieces are divided or stored in another way: old ones are then ignored


@dataclasses.dataclass(frozen=True)
class PrepareJob:
  """Arguments of all stages."""

  config: PrepareConfig
  folder: epath.Path
  pieces: epath.Path  # folder for the tokenizer and the files between stages
  bounds: SplitBounds
  rules: tuple[WindowRule, ...]
  characters: int  # per piece
  source_parts: int  # of `text_sources.list_parts`; later parts are of the held-out text


class EncodedPiece(NamedTuple):
  """Summary of a tokenized piece."""

  key: PieceKey
  documents: int
  tokens: int
  unknown: int
  empty: list[str]  # where examples begin that are left out


class ShardGroup(NamedTuple):
  """Documents that form shards: one shard of each split that they contain."""

  shards: list[tuple[records.Split, int]]  # split, number
  document_ranges: list[tuple[PieceKey, int, int]]  # piece, first document, end (exclusive)


class WrittenShard(NamedTuple):
  """A shard that was written."""

  split: records.Split
  number: int
  shard: records.Shard
  windows: list[tuple[int, int]]  # by rule: `WindowRule.count_windows`


def prepare_in_parallel(
    run: RunStages, config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer,
    journal: PrepareJournal, held: lock.Lock, rules: Sequence[WindowRule]) -> records.RecordsMeta:
  """Prepare records like `prepare.write_records`, with the workers of `run`.

  Pieces that an interrupted preparation tokenized are used again.

  Args:
    run: runs the stages.
    config, folder, tokenizer, journal, held, rules: as in `prepare.write_records`.

  Raises:
    SourceError: text is damaged.
    RecordsError: the workers do not see the folder.
  """
  stats = finalize.PrepareStats(lines.ReadStats(), time.monotonic())
  pieces = parallel_stages.make_stage_folder(
      folder, finalize.PIECES_PREFIX, FORMAT, journal.source, tokenizer.hash, PIECE_CHARACTERS)
  tokenizer.save(pieces / 'tokenizer')
  bounds = find_bounds(config, tokenizer)
  source_parts = len(text_sources.list_parts(config.source))
  job = PrepareJob(
      config, folder, pieces, bounds, tuple(rules), PIECE_CHARACTERS, source_parts)
  found = parallel_stages.run_stages(
      run, functools.partial(describe_stages, job), pieces, held, RecordsError)
  done = journal_lib.journal_from_json(found['journal'])
  if done.train:
    tokenizer.save(folder / 'tokenizer')
  else:
    pieces.rmtree()  # text without a token leaves no files
  done.source = journal.source
  stats.read = lines.ReadStats(**found['stats'])
  stats.tokens, stats.unknown = found['tokens'], found['unknown']
  return finalize.finalize_records(config, folder, tokenizer, done, rules, stats)


def describe_stages(job: PrepareJob, runner: Runner) -> None:
  """Add the stages to a runner."""
  cut = functools.partial(encode.batch_documents, characters=job.characters)
  read = parallel_stages.read_sources(runner, job.config.texts, job.config.read_config, cut)
  encoded = runner.flat_map(functools.partial(encode_piece, job), read)
  groups = runner.call_once(functools.partial(plan_shards, job), encoded)
  written = runner.flat_map(functools.partial(write_shards, job), groups)
  runner.call_once(functools.partial(gather_results, job), encoded, written)


def find_bounds(config: PrepareConfig, tokenizer: tokenizers.Tokenizer) -> SplitBounds:
  """Find the two documents with a fixed split, from the first units like `write_records`."""
  bounds = SplitBounds()
  if not config.heldout_share:
    return bounds
  documents = text_sources.read_documents(config.source, config.read_config)
  for unit in encode.batch_documents(documents):
    encoded = encode.encode_documents(
        unit, tokenizer, config.sentence_rule, config.segmenter, config.holes)
    bounds = encode.update_bounds(bounds, encoded, config.min_sentences)
    if bounds.lowest >= 0:
      break
  return bounds


def encode_piece(job: PrepareJob, item: TextPiece | PartSummary
                 ) -> Iterator[EncodedPiece | PartSummary]:
  """Tokenize a piece, and store its tokens and counts. A summary passes through."""
  if isinstance(item, PartSummary):
    yield item
    return
  counts_path = piece_path(job.pieces, item.key, '.counts.npz')
  if not parallel_stages.is_written(counts_path):
    tokenizer = load_job_tokenizer(job.pieces)
    unit = encode.encode_documents(
        item.documents, tokenizer, job.config.sentence_rule, job.config.segmenter,
        job.config.holes)
    counts = np.zeros((len(unit.hashes), len(SPLITS)), '<u4')
    documents = encode.iterate_documents(unit)
    for row, (text_hash, lengths, tokens, _) in zip(counts, documents, strict=True):
      if len(lengths) >= job.config.min_sentences:
        split = 'heldout'
        if item.key[0] < job.source_parts:
          split = encode.choose_split(text_hash, job.config.heldout_share, job.bounds)
        row[SPLITS.index(split)] = len(tokens)
    unknown = np.count_nonzero(unit.tokens['token'] == tokenizer.vocab.unk)
    store_arrays(piece_path(job.pieces, item.key, '.npz'), tokens=unit.tokens,
                 lengths=unit.lengths, sentences=unit.sentences, follows=unit.follows)
    store_arrays(counts_path, counts=counts, seen=np.array([len(unit.tokens), unknown]))
  found = load_arrays(counts_path)
  empty = []
  if job.config.has_pairs:
    empty = [item.documents[n].where for n in np.flatnonzero(found['counts'].sum(1) == 0)]
  tokens, unknown = map(int, found['seen'])
  yield EncodedPiece(item.key, len(item.documents), tokens, unknown, empty)


def plan_shards(job: PrepareJob, encoded: Iterable[EncodedPiece | PartSummary]
                ) -> Iterator[list[ShardGroup]]:
  """Assign documents to shards -> groups that begin in the same piece; none if text is damaged."""
  pieces, _, problem = parallel_stages.separate_summaries(encoded)
  if problem:
    return
  keys = [piece.key for piece in pieces]

  def load_counts(key: PieceKey) -> np.ndarray:
    return load_arrays(piece_path(job.pieces, key, '.counts.npz'))['counts']

  counts = zip(keys, map_ahead(load_counts, keys), strict=True)
  groups = group_into_shards(counts, job.config.shard_tokens)
  for _, together in itertools.groupby(groups, lambda group: group.document_ranges[0][0]):
    yield list(together)


def group_into_shards(counts: Iterable[tuple[PieceKey, np.ndarray]], shard_tokens: int
                      ) -> Iterator[ShardGroup]:
  """Divide documents into groups that form shards.

  A group ends after every document with which a split has `shard_tokens` tokens in the group.

  Args:
    counts: of each piece, the tokens [documents, splits] of its documents.
    shard_tokens: tokens per shard.
  """
  numbers = [0] * len(SPLITS)
  pending, ranges = np.zeros(len(numbers), np.int64), []

  def end_group() -> ShardGroup:
    nonlocal pending, ranges
    group = ShardGroup([], ranges)
    for n in np.flatnonzero(pending):
      group.shards.append((SPLITS[n], numbers[n]))
      numbers[n] += 1
    pending, ranges = np.zeros_like(pending), []
    return group

  for key, tokens in counts:
    zeros = np.zeros((1, len(numbers)), np.int64)
    before = np.concatenate([zeros, np.cumsum(tokens, 0, np.int64)])
    first = 0
    while first < len(tokens):
      needed = before[first] + shard_tokens - pending
      last = min(int(np.searchsorted(before[:, n], needed[n])) for n in range(len(numbers)))
      stop = min(last, len(tokens))
      pending += before[stop] - before[first]
      ranges.append((key, first, stop))
      first = stop
      if last <= len(tokens):
        yield end_group()
  if pending.any():
    yield end_group()


def write_shards(job: PrepareJob, groups: list[ShardGroup]) -> Iterator[WrittenShard]:
  """Write the shards of some consecutive groups."""
  # Shards may be smaller than a piece.
  cached_open = functools.lru_cache(1)(functools.partial(open_piece, job))
  for group in groups:
    shards, number = {split: PendingShard() for split in SPLITS}, 0
    for key, first, stop in group.document_ranges:
      unit, counts = cached_open(key)
      documents = zip(encode.iterate_documents(unit), counts, strict=True)
      for (_, lengths, tokens, follows), row in itertools.islice(documents, first, stop):
        number += 1
        for n in np.flatnonzero(row):
          shards[SPLITS[n]].add_document(lengths, tokens, number, follows)
    for split, number in group.shards:
      name = journal_lib.shard_name(split, number)
      shard, sentences = shards[split].write(job.folder, name)
      windows = [rule.count_windows(sentences, shard) for rule in job.rules]
      yield WrittenShard(split, number, shard, windows)


def gather_results(job: PrepareJob, encoded: Iterable[EncodedPiece | PartSummary],
                   written: Iterable[WrittenShard]) -> Iterator[None]:
  """Store what `finalize_records` needs: statistics and a journal. Yields nothing."""
  pieces, parts, problem = parallel_stages.separate_summaries(encoded)
  stats, done = parallel_stages.sum_stats(parts), PrepareJournal('')
  tokens = unknown = 0
  for piece in pieces:
    done.documents += piece.documents
    done.empty += len(piece.empty)
    tokens += piece.tokens
    unknown += piece.unknown
    for place in piece.empty:
      stats.add_example(finalize.EMPTY_EXAMPLE.format(place))
  for one in sorted(written, key=lambda one: one.number):
    done.shards(one.split).append(one.shard)
    for rule, count in zip(job.rules, one.windows, strict=True):
      done.windows.setdefault(f'{one.split}-{rule}', []).append(count)

  result = {
      'problem': problem, 'stats': dataclasses.asdict(stats), 'tokens': tokens,
      'unknown': unknown, 'journal': dataclasses.asdict(done)}
  storage.write_json(job.pieces / parallel_stages.RESULT_FILE, result, RecordsError)
  yield from ()


def open_piece(job: PrepareJob, key: PieceKey) -> tuple[encode.EncodedUnit, np.ndarray]:
  """Read a piece -> its unit, without hashes, and the tokens [documents, splits]."""
  found = load_arrays(piece_path(job.pieces, key, '.npz'))
  counts = load_arrays(piece_path(job.pieces, key, '.counts.npz'))['counts']
  hashes = [0] * len(counts)
  unit = encode.EncodedUnit(
      found['tokens'], found['lengths'], found['sentences'], hashes, found['follows'])
  return unit, counts


@functools.lru_cache(1)
def load_job_tokenizer(pieces: epath.Path) -> tokenizers.Tokenizer:
  """Load the tokenizer, once per process."""
  return tokenizers.load(pieces / 'tokenizer')
