"""`clean`: filter, deduplicate and decontaminate a corpus, once, before `prepare`.

One process reads documents, in batches of about a million characters. Workers filter them. The
first process appends the kept documents, and the hashes that find duplicates, to files in order.
After the last document, equal hashes are grouped on the disk, and workers write the documents that
remain, one file each.

Every decision depends on the documents alone, so the output does not depend on the number of
workers or on interruptions. A journal is kept: the same command resumes after the last complete
file. Memory holds a few batches and a piece of a table, whatever the size of the text. The disk
holds, until the end, the text that the filters keep, and about 600 bytes per document.
"""
from collections.abc import Callable, Iterable, Iterator
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import shutil

from etils import epath
import numpy as np
import tqdm

from plm_jax import storage
from plm_jax.corpora import batches, duplicates
from plm_jax.corpora.batches import CleanReport, FilteredBatch, KeptDocument
from plm_jax.corpora.duplicates import DiskTable
from plm_jax.corpora.filter_documents import CleanConfig, DocumentFilter
from plm_jax.distributed import worker_pool
from plm_jax.errors import UserError, name_field, print_line
from plm_jax.preparation import encode
from plm_jax.progress import is_terminal
from plm_jax.sources import charsets, lines, text_sources
from plm_jax.sources.document_formats import Document
from plm_jax.sources.lines import SourceError
from plm_jax.sources.source_files import content_digest, map_in_threads
from plm_jax.storage import journal as journal_file
from plm_jax.storage import lock
from plm_jax.storage.digests import compute_digest

# See `clean_locally`.
CleanWorker = Callable[
    [DocumentFilter, str, epath.Path, str, lock.Lock], tuple[CleanReport, epath.Path]]
FORMAT = 2  # raise it when documents are judged by another rule: work then begins again
# Names that a source of text ignores.
REPORT_FILE, DROPPED_FILE, WORK_FOLDER = '_clean.json', '_dropped.jsonl', '.work'


class CleanError(UserError):
  """A folder that cannot take the documents."""


@dataclasses.dataclass
class CleanJournal:
  """Progress of the filtering: what is not in it does not count."""

  source: str  # fingerprint of the text and of the options
  documents: int = 0  # of the source, read
  # Number of kept documents before each file, and in total.
  firsts: list[int] = dataclasses.field(default_factory=lambda: [0])
  rows: dict[str, int] = dataclasses.field(default_factory=dict)  # of each table
  report: CleanReport = dataclasses.field(default_factory=CleanReport)


def clean(
    config: CleanConfig, source: str, output: epath.PathLike,
    working: CleanWorker | None = None) -> CleanReport:
  """Filter, deduplicate and decontaminate a corpus, or resume that, or return the finished report.

  Args:
    config: of the filters.
    source: text files, globs, folders, tfds:NAME.
    output: folder for documents-*.jsonl.gz and the report.
    working: does the work; None: `clean_locally`, on this machine.

  Returns:
    How many documents were dropped, and why.

  Raises:
    SourceError: text is missing, empty or (unless skipped) damaged.
    CleanError: the folder holds other documents.
    StorageError: the folder cannot be written.
    SpaceError: the disk is full.
  """
  output = check_output(output, source)
  examiner = DocumentFilter(config)
  known = fingerprint(examiner, source)
  if finished := read_finished(output, known):
    return finished
  with lock.Lock(output, 'clean', wait=True) as held:
    if finished := read_finished(output, known):
      return finished
    storage.remove_drafts(output)
    evaluation = examiner.evaluation
    if evaluation.short:
      print_line(
          f'{evaluation.short:,} of {evaluation.texts:,} evaluation texts have fewer than '
          f'{config.ngram} words and are ignored: a smaller {name_field("ngram")} includes them')
    report, work = (working or clean_locally)(examiner, source, output, known, held)
    publish(config, report, known, work, output)
  return report


def clean_locally(
    examiner: DocumentFilter, source: str, output: epath.Path, known: str,
    held: lock.Lock) -> tuple[CleanReport, epath.Path]:
  """Do the work, or the rest of it, on this machine.

  Returns:
    The report, and the folder with the remaining documents.
  """
  work = work_folder(output, known)
  journal = read_journal(work, known, examiner.config)
  if journal is None:
    shutil.rmtree(work, ignore_errors=True)
    with storage.io_errors_as(work, 'written'):
      work.mkdir(parents=True)
    journal = CleanJournal(known)
  filter_all(examiner, source, work, journal, held)
  return write_kept(examiner.config, work, journal, held), epath.Path(work)


def filter_all(
    examiner: DocumentFilter, source: str, work: pathlib.Path, journal: CleanJournal,
    held: lock.Lock) -> None:
  """Filter the rest of the source after the journal.

  Raises:
    SourceError: the source has no documents.
  """
  config, tally = examiner.config, lines.ReadStats()
  parts = text_sources.read_parts(source, config.reading, tally)
  read = read_units(parts, journal.documents)
  tables = open_tables(work, config)
  for name, table in tables.items():
    table.truncate(journal.rows.get(name, 0))
  file = filtered_file(work, len(journal.firsts) - 1)
  file.unlink(missing_ok=True)
  size = documents = 0
  total = text_sources.source_bytes(source)
  workers = worker_pool.count_workers(config.workers, total)
  progress = tqdm.tqdm(
      total=total, unit='B', unit_scale=True, desc='clean', disable=not is_terminal())
  filter_batch = functools.partial(batches.filter_batch, examiner)
  filtered = worker_pool.map_ordered(filter_batch, read, workers)
  with progress, contextlib.closing(filtered):
    for batch in filtered:
      journal.documents += batch.report.documents
      journal.report.add(batch.report, config.samples)
      append_batch(batch, file, tables, journal.firsts[-1] + documents)
      documents += batch.report.kept_documents
      size += batch.report.kept_characters
      progress.update(tally.bytes - progress.n)
      if size >= config.shard_characters:
        held.check()
        commit_file(work, journal, documents, tables)
        file, size, documents = filtered_file(work, len(journal.firsts) - 1), 0, 0
  if not journal.documents:
    raise SourceError(f'{source} holds no documents{lines.describe_skipped(tally)}')
  journal.report.skipped = tally.skipped
  if documents:
    commit_file(work, journal, documents, tables)


def read_units(parts: Iterable[Iterator[Document]], behind: int) -> Iterator[list[Document]]:
  """Yield the documents of all parts after the first `behind` ones, in batches.

  No batch has documents of two parts: so it does not depend on the parts before.
  """
  for part in parts:
    while behind and next(part, None):
      behind -= 1
    yield from encode.batch_documents(part)


def append_batch(
    unit: FilteredBatch, file: pathlib.Path, kept: dict[str, DiskTable], first: int) -> None:
  """Append a batch to the files; its documents have places from `first` on."""
  with storage.io_errors_as(file, 'written'), open(file, 'ab') as out:
    out.write(unit.content)
  unit.spans['place'] += first
  for name, table in kept.items():
    table.append(getattr(unit, name))


def commit_file(
    work: pathlib.Path, journal: CleanJournal, documents: int, kept: dict[str, DiskTable]) -> None:
  """Record in the journal that a file of `documents` is complete, and the lengths of the tables."""
  journal.firsts.append(journal.firsts[-1] + documents)
  journal.rows = {name: len(table) for name, table in kept.items()}
  journal_file.write_journal(
      work, FORMAT, {**vars(journal), 'report': vars(journal.report)})


def open_tables(work: pathlib.Path, config: CleanConfig) -> dict[str, DiskTable]:
  """Return the tables of documents that the options need, by their names in `FilteredBatch`."""
  minhash, tables = config.minhash, {}
  if config.duplicates != 'none':
    tables['exact'] = DiskTable(work / 'exact', np.uint64)
  if config.duplicates == 'near':
    tables['sketches'] = DiskTable(work / 'sketches', np.uint8, minhash.values)
    tables['bands'] = DiskTable(work / 'bands', np.uint64, minhash.bands)
  if config.span:
    tables['spans'] = DiskTable(work / 'spans', duplicates.SPAN_DTYPE)
  return tables


def write_kept(
    config: CleanConfig, work: pathlib.Path, journal: CleanJournal,
    held: lock.Lock) -> CleanReport:
  """Find duplicates, and write the remaining documents, one output file from each filtered file."""
  tables, firsts = open_tables(work, config), journal.firsts
  report = journal.report
  if not firsts[-1]:
    return report
  marks = np.memmap(work / 'marks', np.uint8, 'w+', shape=(firsts[-1],))
  if 'exact' in tables:
    duplicates.mark_exact(tables['exact'], marks, work)
  if 'bands' in tables:
    duplicates.mark_near(config.minhash, tables['bands'], tables['sketches'], marks, work)
  if 'spans' in tables:
    duplicates.mark_spans(tables['spans'], marks, firsts[:-1], work)
  marks.flush()
  held.check()
  workers = min(config.workers or os.cpu_count() or 1, len(firsts) - 1)
  report.kept_documents = report.kept_characters = 0
  write = functools.partial(write_shard, config, work)
  for written in worker_pool.map_ordered(write, list(enumerate(firsts[:-1])), workers):
    report.add(written, config.samples)
  return report


def write_shard(config: CleanConfig, work: pathlib.Path, shard: tuple[int, int]) -> CleanReport:
  """Write the remaining documents of a filtered file.

  Args:
    config: of the filters.
    work: the folder.
    shard: the number of the file, and the place of its first document.
  """
  number, first = shard
  marks = np.memmap(work / 'marks', np.uint8, 'r')
  repeated = read_repeated_spans(work, number) if config.span else {}
  with open(filtered_file(work, number), encoding='utf-8') as file:
    documents = (KeptDocument(line, int(marks[place]), repeated.get(place, set()))
                 for place, line in enumerate(file, first))
    return batches.write_documents(config, work / batches.shard_name(number), documents)


def read_repeated_spans(work: pathlib.Path, number: int) -> dict[int, set[int]]:
  """Return the first sentences of repeated spans by place, of the documents of a file."""
  spans: dict[int, set[int]] = {}
  for row in DiskTable(work / f'repeated-{number:05d}', duplicates.SPAN_DTYPE).read():
    spans.setdefault(int(row['place']), set()).add(int(row['start']))
  return spans


def publish(
    config: CleanConfig, report: CleanReport, known: str, work: epath.Path,
    output: epath.Path) -> None:
  """Move the documents to the output folder, then write the report, which marks them as complete.

  The folders for work are removed.
  """
  with storage.io_errors_as(output, 'written', CleanError):
    for path in output.glob('documents-*.jsonl.gz'):
      path.unlink()  # of a publication that was interrupted, with other options perhaps
    documents = sorted(work.glob('documents-*.jsonl.gz'))
    map_in_threads(functools.partial(move_file, output=output), documents)
  if config.samples:
    samples = itertools.chain.from_iterable(report.samples.values())
    rows = ''.join(json.dumps(sample, ensure_ascii=False) + '\n' for sample in samples)
    storage.write(output / DROPPED_FILE, rows, CleanError)
  batches.write_report(report, output / REPORT_FILE, source=known)
  for folder in [work] + list(output.glob(f'{WORK_FOLDER}*')):
    with contextlib.suppress(storage.StorageError), storage.io_errors_as(folder, 'removed'):
      folder.rmtree()


def move_file(path: epath.Path, output: epath.Path) -> None:
  """Move a file to a folder."""
  if storage.is_remote(path) == storage.is_remote(output):
    path.replace(output / path.name)
  else:
    with path.open('rb') as file, storage.atomic_writer(output / path.name, CleanError) as out:
      shutil.copyfileobj(file, out)


def check_output(output: epath.PathLike, source: str) -> epath.Path:
  """Return the path of the output folder. Raises CleanError for an unusable one."""
  output = storage.resolve_path(output)
  with storage.io_errors_as(output, 'read', CleanError):
    if output.exists() and not output.is_dir():
      raise CleanError(f'{output} is a file, expected a folder for the documents')
  for text in text_sources.source_folders(source):
    if text == output or text in output.parents:
      raise CleanError(f'{output} lies in {text}: what is written would be read again')
  return output


def work_folder(output: epath.Path, known: str) -> pathlib.Path:
  """Return the folder for work: in the output folder, or in the cache if that is in a bucket."""
  if storage.is_remote(output):
    return storage.cache_folder() / 'clean' / known[:16]
  return pathlib.Path(output) / WORK_FOLDER


def filtered_file(work: pathlib.Path, number: int) -> pathlib.Path:
  """Return the path of a file of documents that the filters kept."""
  return work / f'left-{number:05d}.jsonl'


def read_finished(output: epath.Path, known: str) -> CleanReport | None:
  """Return the report of finished work, None where there is none.

  Raises:
    CleanError: it is of another source, or of other options.
  """
  with storage.io_errors_as(output, 'read', CleanError):
    if not (output / REPORT_FILE).exists():
      if (not storage.is_remote(output) and list(output.glob('documents-*.jsonl.gz'))
          and not list(output.glob(f'{WORK_FOLDER}*'))):
        raise CleanError(
            f'{output} holds documents without {REPORT_FILE}: choose another folder')
      return None
  fields = storage.read_json(output / REPORT_FILE, error=CleanError)
  if fields.pop('source', '') != known:
    raise CleanError(f'{output} holds documents of another source, or by other settings. Choose '
                     'another folder, or delete this one')
  return CleanReport.from_json(fields)


def read_journal(work: pathlib.Path, known: str, config: CleanConfig) -> CleanJournal | None:
  """Read the journal of interrupted work.

  None where there is none, where it is of other work, or where files are shorter than it states.
  """
  try:
    fields = journal_file.read_journal(work, FORMAT)
  except storage.StorageError:
    return None
  if not isinstance(fields, dict) or fields['source'] != known:
    return None
  fields['report'] = CleanReport.from_json(fields['report'])
  journal = CleanJournal(**fields)
  for name, table in open_tables(work, config).items():
    if len(table) < journal.rows.get(name, 0):
      return None
  for number in range(len(journal.firsts) - 1):
    if not filtered_file(work, number).exists():
      return None
  return journal


def fingerprint(examiner: DocumentFilter, source: str) -> str:
  """Return the sha256 of everything that the output depends on, as hex."""
  config = dataclasses.asdict(examiner.config)
  del config['workers']
  if config['encoding'] == charsets.UTF_8:
    del config['encoding']  # so that work of versions without other encodings resumes
  model = ''
  if config['language_model']:
    model = content_digest(storage.resolve_path(config['language_model']))
  fields = [FORMAT, config, examiner.rule_filter.bad_words, model]
  return compute_digest(
      json.dumps(fields, sort_keys=True), examiner.evaluation.ngrams.tobytes(),
      text_sources.fingerprint(source))
