"""clean: documents -> fewer documents, once, before `prepare`.

One process reads documents, in units of about a million characters; workers examine them; the first process appends
what is left, and the numbers by which documents meet, to files, in order. When all are read, equal numbers meet on the
disk, and workers write what stays, a file each. Every decision depends on the documents alone, so that the number of
workers and where work was killed leave no trace in the output. A journal is kept: the same command goes on behind the
last whole file. Memory holds a few units and a piece of a table, however long the text; the disk, until the end, the
text that the rules leave, and for each document about 600 bytes.
"""
import collections
from collections.abc import Callable, Generator, Iterable, Iterator
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
from typing import Any, TypeVar

from etils import epath
import numpy as np
import tqdm

from plm_jax import storage
from plm_jax.corpora import duplicates, tables, units
from plm_jax.corpora import report as report_lib
from plm_jax.corpora.examine import CleanConfig, Examiner
from plm_jax.corpora.report import Report
from plm_jax.corpora.tables import Table
from plm_jax.corpora.units import Left, Unit
from plm_jax.data import encode, lines, sources
from plm_jax.data import workers as workers_lib
from plm_jax.data.files import content_of, each
from plm_jax.data.formats import Document
from plm_jax.data.lines import SourceError
from plm_jax.errors import Expected
from plm_jax.storage import lock

X = TypeVar('X')
Y = TypeVar('Y')
Working = Callable[[Examiner, str, epath.Path, str, lock.Lock], tuple[Report, epath.Path]]  # see `work_here`
FORMAT = 1  # raise it when documents are judged by another rule: work then begins again
REPORT, DROPPED, WORK = '_clean.json', '_dropped.jsonl', '.work'  # names that a source of text passes over


class CleanError(Expected):
  """A folder that cannot be where the documents go."""


@dataclasses.dataclass
class Journal:
  """How far the examination has come: what is not in it does not count."""

  source: str  # fingerprint of the text and of the settings
  documents: int = 0  # of the source, read
  firsts: list[int] = dataclasses.field(default_factory=lambda: [0])  # how many are kept before each file, and in all
  rows: dict[str, int] = dataclasses.field(default_factory=dict)  # of each table
  report: Report = dataclasses.field(default_factory=Report)


def clean(config: CleanConfig, source: str, output: epath.PathLike, working: Working | None = None) -> Report:
  """Writes the documents of `source` that the rules leave to documents-*.jsonl.gz in the folder `output`, with the
  numbers of what was dropped and why; or continues, or finds them finished.

  working: what does the work, by default `work_here`, which does it on this machine.

  Raises SourceError for text that is missing, empty or (unless skipped) damaged, CleanError for a folder with other
  documents in it, StorageError for one that cannot be written, SpaceError for a full disk.
  """
  output = place_of(output, source)
  examiner = Examiner(config)
  known = fingerprint(examiner, source)
  if found := finished(output, known):
    return found
  with lock.Lock(output, 'clean', wait=True) as held:
    if found := finished(output, known):
      return found
    if examiner.evaluation.short:
      print(f'{examiner.evaluation.short:,} of {examiner.evaluation.texts:,} evaluation texts have fewer than '
            f'{config.ngram} words and cannot be found: --ngram makes runs shorter', flush=True)
    report, work = (working or work_here)(examiner, source, output, known, held)
    publish(config, report, known, work, output)
  return report


def work_here(examiner: Examiner, source: str, output: epath.Path, known: str, held: lock.Lock
              ) -> tuple[Report, epath.Path]:
  """Does the work, or the rest of it -> what happened, and the folder with the documents that stay."""
  work = work_of(output, known)
  journal = begun(work, known, examiner.config)
  if journal is None:
    shutil.rmtree(work, ignore_errors=True)
    with storage.explained(work, 'written'):
      work.mkdir(parents=True)
    journal = Journal(known)
  examine_all(examiner, source, work, journal, held)
  return write_all(examiner.config, work, journal, held), epath.Path(work)


def examine_all(examiner: Examiner, source: str, work: pathlib.Path, journal: Journal, held: lock.Lock) -> None:
  """Reads on from the journal to the end of the source. Raises SourceError for one without documents."""
  config, tally = examiner.config, lines.Tally()
  read = units_of(sources.apart(source, config.reading, tally), journal.documents)
  kept = table_of(work, config)
  for name, table in kept.items():
    table.cut(journal.rows.get(name, 0))
  file = left_in(work, len(journal.firsts) - 1)
  file.unlink(missing_ok=True)
  size = documents = 0
  total = sources.size(source)
  workers = min(config.workers or os.cpu_count() or 1, 1 + (total or 1 << 62) // WORTH_A_WORKER)
  progress = tqdm.tqdm(total=total, unit='B', unit_scale=True, desc='clean', disable=None)
  examined = in_order(functools.partial(units.examine_unit, examiner), read, workers)
  with progress, contextlib.closing(examined):
    for unit in examined:
      journal.documents += unit.report.documents
      journal.report.add(unit.report, config.samples)
      append(unit, file, kept, journal.firsts[-1] + documents)
      documents, size = documents + unit.report.kept_documents, size + unit.report.kept_characters
      progress.update(tally.bytes - progress.n)
      if size >= config.shard_characters:
        held.check()
        commit(work, journal, documents, kept)
        file, size, documents = left_in(work, len(journal.firsts) - 1), 0, 0
  if not journal.documents:
    raise SourceError(f'{source} holds no documents')
  journal.report.skipped = tally.skipped
  if documents:
    commit(work, journal, documents, kept)


def units_of(parts: Iterable[Iterator[Document]], behind: int) -> Iterator[list[Document]]:
  """Yields the documents of all parts behind the first ones in units, none with documents of two parts: what one is
  does not depend on what is before its part."""
  for part in parts:
    while behind and next(part, None):
      behind -= 1
    yield from encode.units(part)


def in_order(function: Callable[[X], Y], work: Iterable[X], workers: int) -> Generator[Y, None, None]:
  """Calls a function for each item, in workers; about two a worker are under way at a time."""
  if workers == 1:
    yield from map(function, work)
    return
  with workers_lib.pool(workers, remember, function) as pool:
    pending = collections.deque()
    for item in work:
      pending.append(pool.submit(call, item))
      if len(pending) > 2 * workers:
        yield pending.popleft().result()
    while pending:
      yield pending.popleft().result()


def remember(function) -> None:
  """Keeps in a worker process what it calls: evaluation sets do not travel with every unit."""
  WORKER['function'] = function


def call(item):
  """Calls what `remember` has kept."""
  return WORKER['function'](item)


def append(unit: Unit, file: pathlib.Path, kept: dict[str, Table], first: int) -> None:
  """Adds a unit to the files, whose documents have places from `first` on."""
  with storage.explained(file, 'written'), open(file, 'ab') as out:
    out.write(unit.content)
  unit.spans['place'] += first
  for name, table in kept.items():
    table.append(getattr(unit, name))


def commit(work: pathlib.Path, journal: Journal, documents: int, kept: dict[str, Table]) -> None:
  """Notes that a file of as many documents is whole, and how long the tables are by now."""
  journal.firsts.append(journal.firsts[-1] + documents)
  journal.rows = {name: len(table) for name, table in kept.items()}
  storage.write_json(work / 'journal.json', {'format': FORMAT, **vars(journal), 'report': vars(journal.report)})


def table_of(work: pathlib.Path, config: CleanConfig) -> dict[str, Table]:
  """Returns the tables of documents that the settings ask for, by the names that they have in `Unit`."""
  minhash, found = config.minhash, {}
  if config.duplicates != 'none':
    found['exact'] = Table(work / 'exact', np.uint64)
  if config.duplicates == 'near':
    found['sketches'] = Table(work / 'sketches', np.uint8, minhash.values)
    found['bands'] = Table(work / 'bands', np.uint64, minhash.bands)
  if config.span:
    found['spans'] = Table(work / 'spans', tables.SPAN)
  return found


def write_all(config: CleanConfig, work: pathlib.Path, journal: Journal, held: lock.Lock) -> Report:
  """Lets documents meet, and writes those that stay, a file of the work folder from each file of it."""
  kept, firsts = table_of(work, config), journal.firsts
  report = journal.report
  if not firsts[-1]:
    return report
  marks = np.memmap(work / 'marks', np.uint8, 'w+', shape=(firsts[-1],))
  if 'exact' in kept:
    duplicates.mark_exact(kept['exact'], marks, work)
  if 'bands' in kept:
    duplicates.mark_near(config.minhash, kept['bands'], kept['sketches'], marks, work)
  if 'spans' in kept:
    duplicates.mark_spans(kept['spans'], marks, firsts[:-1], work)
  marks.flush()
  held.check()
  workers = min(config.workers or os.cpu_count() or 1, len(firsts) - 1)
  shards = [(shard, first) for shard, first in enumerate(firsts[:-1])]
  report.kept_documents = report.kept_characters = 0
  for written in in_order(functools.partial(write_shard, config, work), shards, workers):
    report.add(written, config.samples)
  return report


def write_shard(config: CleanConfig, work: pathlib.Path, shard: tuple[int, int]) -> Report:
  """Writes the documents of a file that stay. shard: its number, and the place of its first document."""
  number, first = shard
  marks = np.memmap(work / 'marks', np.uint8, 'r')
  repeated = repeated_of(work, number) if config.span else {}
  with open(left_in(work, number), encoding='utf-8') as file:
    return units.write_documents(config, work / units.shard_name(number), (
        Left(line, int(marks[place]), repeated.get(place, set())) for place, line in enumerate(file, first)))


def repeated_of(work: pathlib.Path, number: int) -> dict[int, set[int]]:
  """Returns place -> first sentences of its repeated spans, of the documents of a file."""
  found: dict[int, set[int]] = {}
  for row in Table(work / f'repeated-{number:05d}', tables.SPAN).read():
    found.setdefault(int(row['place']), set()).add(int(row['start']))
  return found


def publish(config: CleanConfig, report: Report, known: str, work: epath.Path, output: epath.Path) -> None:
  """Moves what is finished to its place, then the report, without which it does not count; folders for work go."""
  with storage.explained(output, 'written', CleanError):
    for path in output.glob('documents-*.jsonl.gz'):
      path.unlink()  # of a publication that was interrupted, by other settings perhaps
    each(functools.partial(move, output=output), sorted(work.glob('documents-*.jsonl.gz')))
  if config.samples:
    shown = itertools.chain.from_iterable(report.samples.values())
    storage.write(output / DROPPED, ''.join(json.dumps(one, ensure_ascii=False) + '\n' for one in shown), CleanError)
  report_lib.write(report, output / REPORT, source=known)
  for left in (work, *output.glob(f'{WORK}*')):
    with contextlib.suppress(storage.StorageError), storage.explained(left, 'removed'):
      left.rmtree()


def move(path: epath.Path, output: epath.Path) -> None:
  """Moves a file to a folder."""
  if storage.remote(path) == storage.remote(output):
    path.replace(output / path.name)
  else:
    with path.open('rb') as file, storage.drafted(output / path.name, CleanError) as out:
      shutil.copyfileobj(file, out)


def place_of(output: epath.PathLike, source: str) -> epath.Path:
  """Returns the folder of the documents. Raises CleanError for one that cannot be it."""
  output = storage.path_of(output)
  with storage.explained(output, 'read', CleanError):
    if output.exists() and not output.is_dir():
      raise CleanError(f'{output} is a file, expected a folder for the documents')
  for text in sources.folders(source):
    if text in (output, *output.parents):
      raise CleanError(f'{output} lies in {text}: what is written would be read again')
  return output


def work_of(output: epath.Path, known: str) -> pathlib.Path:
  """Returns the folder for work: in the output's own, or for a bucket's in the cache."""
  return storage.cache_folder() / 'clean' / known[:16] if storage.remote(output) else pathlib.Path(output) / WORK


def left_in(work: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of documents that the rules left."""
  return work / f'left-{number:05d}.jsonl'


def finished(output: epath.Path, known: str) -> Report | None:
  """Returns the report of work that is finished, None where there is none. Raises CleanError where it is of another
  source, or of other settings."""
  with storage.explained(output, 'read', CleanError):
    if not (output / REPORT).exists():
      if not storage.remote(output) and list(output.glob('documents-*.jsonl.gz')) and not list(output.glob(f'{WORK}*')):
        raise CleanError(f'{output} holds documents without {REPORT}: choose another folder')
      return None
  fields = storage.read_json(output / REPORT, error=CleanError)
  if fields.pop('source', '') != known:
    raise CleanError(f'{output} holds documents of another source, or by other settings. Choose another folder, or '
                     'delete this one')
  return Report.of(fields)


def begun(work: pathlib.Path, known: str, config: CleanConfig) -> Journal | None:
  """Reads the journal of work that was interrupted; None where there is none, one of other work, or more in it than in
  the files."""
  try:
    fields: dict[str, Any] = storage.read_json(work / 'journal.json')
  except storage.StorageError:
    return None
  if fields.pop('format', None) != FORMAT or fields['source'] != known:
    return None
  fields['report'] = Report.of(fields['report'])
  journal = Journal(**fields)
  whole = all(len(table) >= journal.rows.get(name, 0) for name, table in table_of(work, config).items())
  return journal if whole and all(left_in(work, n).exists() for n in range(len(journal.firsts) - 1)) else None


def fingerprint(examiner: Examiner, source: str) -> str:
  """Returns sha256 hex over all that the output depends on."""
  config = dataclasses.asdict(examiner.config)
  del config['workers']
  model = content_of(storage.path_of(config['language_model'])) if config['language_model'] else ''
  digest = hashlib.sha256(json.dumps([FORMAT, config, examiner.filter.bad_words, model], sort_keys=True).encode())
  digest.update(examiner.evaluation.grams.tobytes() + sources.fingerprint(source).encode())
  return digest.hexdigest()


WORTH_A_WORKER = 1 << 24  # bytes on disk; below, starting another process costs more than it saves
WORKER: dict[str, Callable] = {}  # in a worker: what it calls
