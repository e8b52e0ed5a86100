"""The stages of `clean`, with the same output byte for byte on one machine or many, in any order.

    split_pieces     a part of the source -> its documents, in pieces of about PIECE_CHARACTERS
    filter_piece     a piece -> files with its kept documents, their hashes, and its report
    plan_shards      how much is kept of all pieces, in order -> which documents are in which shard
    write_shard      a shard, with all results about its documents -> its output file and report
    gather_reports   all reports, in order -> a small file for the machine that started the stages

`duplicate_stages` has the stages between plan_shards and write_shard. A shard is the content of one
output file, and its end depends on everything before it. So one worker counts, with a few numbers
per million characters. `preparation.parallel_stages` describes stages and what runs them.

Every decision depends on the documents alone, so the output does not depend on the number of
workers or on interruptions: work resumes from the files of finished pieces. On this machine, memory
holds a few pieces of one batch and a part of the hashes, whatever the size of the text. The disk
holds, until the end, the text that the filters keep, and at most 900 bytes per document.
"""
from collections.abc import Iterable, Iterator
import dataclasses
import functools
import itertools
from typing import NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.corpora import batches, duplicate_stages
from plm_jax.corpora.batches import CleanReport, KeptDocument
from plm_jax.corpora.duplicate_stages import CorpusShard, DocumentRange
from plm_jax.corpora.filter_documents import CleanConfig, DocumentFilter, EvaluationNgrams
from plm_jax.errors import UserError
from plm_jax.preparation import encode, parallel_stages
from plm_jax.preparation.parallel_stages import (
  LocalRunner,
  PartSummary,
  PieceKey,
  Runner,
  RunStages,
  TextPiece,
  load_arrays,
  map_ahead,
  piece_path,
  read_fields,
  store_arrays,
)
from plm_jax.sources import lines
from plm_jax.sources.document_formats import Document
from plm_jax.sources.lines import SourceError
from plm_jax.storage import lock
from plm_jax.tokenizers import long_text

PIECE_CHARACTERS = 1 << 23  # on many machines; a worker has a piece in memory
# Raise it when pieces are cut or stored in another way: those of earlier versions are then made
# again.
FORMAT = 2
EVALUATION_FILE = 'evaluation.npz'
WORK_FOLDER = '.work'  # a name that a source of text ignores


class CleanError(UserError):
  """A folder that cannot take the documents."""


@dataclasses.dataclass(frozen=True)
class CleanJob:
  """What every stage knows."""

  config: CleanConfig
  source: str
  folder: epath.Path  # for files between the stages
  characters: int  # of a piece


class FilteredPiece(NamedTuple):
  """Counts of a piece that is filtered."""

  key: PieceKey
  left: list[tuple[int, int]]  # (kept documents, their characters) of each batch
  spans: int


def run_clean(
    run: RunStages | None, examiner: DocumentFilter, source: str, output: epath.Path, known: str,
    held: lock.Lock) -> tuple[CleanReport, epath.Path]:
  """Run the stages, and return the report and the folder with the remaining documents.

  Pieces that an interrupted run has left are not filtered again.

  Args:
    run: runs the stages; None: this machine does.
    examiner: filters documents.
    source: text.
    output: folder for the documents.
    known: fingerprint of everything that the output depends on.
    held: lock of the output folder.

  Raises:
    SourceError: the text is damaged, or there is none.
    CleanError: the workers do not see the output folder.
  """
  parent, characters = output, PIECE_CHARACTERS
  if run is None:
    run = LocalRunner('clean', source, examiner.config.workers, held)
    characters = encode.UNIT_CHARACTERS
    if storage.is_remote(output):
      parent = epath.Path(storage.cache_folder() / 'clean')
  folder = parallel_stages.make_stage_folder(
      parent, f'{WORK_FOLDER}-', FORMAT, known, characters, encode.UNIT_CHARACTERS)
  work = CleanJob(store_worker_inputs(examiner, folder), source, folder, characters)
  fields = parallel_stages.run_stages(
      run, functools.partial(build_stages, work), folder, held, CleanError)
  if not fields['report']['documents']:
    folder.rmtree()
    raise SourceError(f'{source} holds no documents'
                      f'{lines.describe_skipped(lines.ReadStats(**fields["stats"]))}')
  return CleanReport.from_json(fields['report']), folder


def store_worker_inputs(examiner: DocumentFilter, folder: epath.Path) -> CleanConfig:
  """Store what workers need: bad words, the language model, evaluation n-grams.

  Returns:
    The configuration with which workers find them.
  """
  config = examiner.config
  store_arrays(folder / EVALUATION_FILE, grams=examiner.evaluation.ngrams)
  if config.bad_words:
    path = folder / 'bad_words.txt'
    storage.write(path, '\n'.join(examiner.rule_filter.bad_words))
    config = dataclasses.replace(config, bad_words=str(path))
  if config.language_model:
    path = folder / 'languages.bin'
    with storage.open_stream(config.language_model) as file, storage.atomic_writer(path) as out:
      while part := file.read(storage.READ_SIZE):
        out.write(part)
    config = dataclasses.replace(config, language_model=str(path))
  return config


@functools.lru_cache(1)
def load_filter(work: CleanJob) -> DocumentFilter:
  """Load the document filter, once per process."""
  ngrams = load_arrays(work.folder / EVALUATION_FILE)['grams']
  return DocumentFilter(work.config, EvaluationNgrams(ngrams, 0, 0))


def build_stages(work: CleanJob, runner: Runner) -> None:
  """Build the stages."""
  split = functools.partial(split_pieces, characters=work.characters)
  read = parallel_stages.read_sources(runner, [work.source], work.config.reading, split)
  filtered = runner.flat_map(functools.partial(filter_piece, work), read)
  shards = runner.call_once(functools.partial(plan_shards, work), filtered)
  if isinstance(runner, LocalRunner):
    results = [duplicate_stages.mark_locally(work.config, work.folder, shards)]
  else:
    results = duplicate_stages.build_stages(work.config, work.folder, runner, shards)
  written = runner.group_by_key(functools.partial(write_shard, work), [shards] + results)
  runner.call_once(functools.partial(gather_reports, work), filtered, written)


def split_pieces(documents: Iterable[Document], characters: int) -> Iterator[list[Document]]:
  """Yield documents in pieces of whole batches and about as many characters."""
  def count_batch(batch: list[Document]) -> int:
    return sum(map(encode.count_characters, batch))

  units = encode.batch_documents(documents)
  for group in long_text.group_by_size(units, count_batch, characters):
    yield list(itertools.chain.from_iterable(group))


def filter_piece(
    work: CleanJob, item: TextPiece | PartSummary) -> Iterator[FilteredPiece | PartSummary]:
  """Filter a piece, and store its kept documents. Summaries of parts are passed on."""
  if isinstance(item, PartSummary):
    yield item
    return
  done = piece_path(work.folder, item.key, '.json')
  if not parallel_stages.is_written(done):
    filtered = [batches.filter_batch(load_filter(work), batch)
                for batch in encode.batch_documents(item.documents)]
    report, left, first = CleanReport(), [], 0
    for batch in filtered:
      report.add(batch.report, work.config.samples)
      left.append((batch.report.kept_documents, batch.report.kept_characters))
      batch.spans['place'] += first
      first += batch.report.kept_documents
    arrays = {name: concat_arrays([getattr(batch, name) for batch in filtered])
              for name in duplicate_stages.ARRAY_NAMES}
    content = b''.join(batch.content for batch in filtered)
    storage.write(piece_path(work.folder, item.key, '.jsonl'), content)
    store_arrays(piece_path(work.folder, item.key, '.npz'), **arrays)
    storage.write_json(
        done, {'left': left, 'spans': len(arrays['spans']), 'report': vars(report)})
  fields = read_fields(done)
  yield FilteredPiece(item.key, [tuple(counts) for counts in fields['left']], fields['spans'])


def concat_arrays(arrays: list[np.ndarray]) -> np.ndarray:
  """Concatenate the arrays of batches; those of a batch without kept documents have no shape."""
  return np.concatenate([rows for rows in arrays if len(rows)] or arrays[:1])


def plan_shards(
    work: CleanJob,
    examined: Iterable[FilteredPiece | PartSummary]) -> Iterator[tuple[int, CorpusShard]]:
  """Assign the documents to shards; none where text is damaged."""
  pieces, _, problem = parallel_stages.separate_summaries(examined)
  if problem:
    return
  documents = spans = 0
  for piece in pieces:
    documents += sum(number for number, _ in piece.left)
    spans += piece.spans
  first = 0
  for number, ranges in enumerate(cut_shards(pieces, work.config.shard_characters)):
    shard = CorpusShard(number, first, ranges, documents, spans)
    yield number, shard
    first += shard.documents


def cut_shards(
    examined: Iterable[FilteredPiece], characters: int) -> Iterator[list[DocumentRange]]:
  """Cut kept documents into shards: each ends after the batch with which it is full.

  characters: of a full shard.
  """
  ranges, size = [], 0
  for key, left, _ in examined:
    first = last = 0
    for documents, length in left:
      last += documents
      size += length
      if size >= characters:
        ranges.append(DocumentRange(key, first, last))
        yield ranges
        ranges, size, first = [], 0, last
    if last > first:
      ranges.append(DocumentRange(key, first, last))
  if ranges:
    yield ranges


def write_shard(
    work: CleanJob, number: int,
    items: Iterable[duplicate_stages.ShardItem]) -> Iterator[int]:
  """Write the documents of a shard that are kept, and yield its number."""
  done = report_path(work, number)
  if not parallel_stages.is_written(done):
    state = duplicate_stages.collect_state(items)
    marked = zip(read_documents(work, state.shard), state.marks, strict=True)
    documents = (KeptDocument(line, int(mark), state.repeated.get(place, set()))
                 for place, (line, mark) in enumerate(marked))
    target = work.folder / batches.shard_name(number)
    report = batches.write_documents(work.config, target, documents)
    storage.write_json(done, vars(report))
  yield number


def read_documents(work: CleanJob, shard: CorpusShard) -> Iterator[str]:
  """Yield the documents of a shard as lines of JSON."""
  for key, first, stop in shard.ranges:
    path = piece_path(work.folder, key, '.jsonl')
    content = storage.read_bytes(path, parallel_stages.MAX_FILE_BYTES)
    for line in content.split(b'\n')[first:stop]:
      yield line.decode() + '\n'


def gather_reports(
    work: CleanJob, examined: Iterable[FilteredPiece | PartSummary],
    written: Iterable[int]) -> Iterator[None]:
  """Store the sum of all reports. Yields nothing."""
  pieces, summaries, problem = parallel_stages.separate_summaries(examined)
  report, samples = CleanReport(), work.config.samples
  paths = [piece_path(work.folder, piece.key, '.json') for piece in pieces]
  for fields in map_ahead(read_fields, paths):
    report.add(CleanReport.from_json(fields['report']), samples)
  stats = parallel_stages.sum_stats(summaries)
  report.skipped = stats.skipped
  report.kept_documents = report.kept_characters = 0
  paths = [report_path(work, number) for number in sorted(written)]
  for fields in map_ahead(read_fields, paths):
    report.add(CleanReport.from_json(fields), samples)
  result = {'problem': problem, 'stats': dataclasses.asdict(stats), 'report': vars(report)}
  storage.write_json(work.folder / parallel_stages.RESULT_FILE, result)
  yield from ()


def report_path(work: CleanJob, number: int) -> epath.Path:
  """Return the path of a shard's report."""
  return work.folder / f'report-{number:05d}.json'
