"""clean, in parallel: the same documents, byte for byte, by stages that many machines work on in any order.

    read_part       a part of the source -> its documents, in pieces of about PIECE characters
    examine_piece   a piece -> files with what the rules leave of it, its numbers, and what happened
    plan            how much is left of all pieces, in order -> which documents are in which shard
    write_shard     a shard, and all that was found out about its documents -> its file, and what happened
    gather          what happened, in order -> a small file for who has launched all this

and between the last but two, in `meeting`, what documents have in common. A shard is what goes to one file of the
output, and where it ends depends on all that is before it: what is counted goes through one worker, a few numbers for a
million characters. What a stage has to be, and what works on it, is in `data.stages`.
"""
from collections.abc import Iterable, Iterator
import dataclasses
import functools
import hashlib
import itertools
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.corpora import clean, meeting, units
from plm_jax.corpora.clean import CleanError
from plm_jax.corpora.contamination import Evaluation
from plm_jax.corpora.examine import CleanConfig, Examiner
from plm_jax.corpora.meeting import Shard, Stretch
from plm_jax.corpora.report import Report
from plm_jax.corpora.units import Left
from plm_jax.data import encode, stages
from plm_jax.data.formats import Document
from plm_jax.data.lines import SourceError
from plm_jax.data.stages import Key, Read, Run, Runner, Text, ahead, load, stem, store
from plm_jax.storage import lock

PIECE = 1 << 23  # characters; a worker has a piece in memory
FORMAT = 1  # raise it when pieces are cut or stored in another way: those of before are then made again


@dataclasses.dataclass(frozen=True)
class Work:
  """What every stage knows."""

  config: CleanConfig
  source: str
  folder: epath.Path  # for what is between the stages
  characters: int  # of a piece


class Piece(NamedTuple):
  """A piece that is examined."""

  key: Key
  left: list[tuple[int, int]]  # of each unit: documents that the rules leave, and their characters
  spans: int


def work_with(run: Run, examiner: Examiner, source: str, output: epath.Path, known: str, held: lock.Lock
              ) -> tuple[Report, epath.Path]:
  """Works as `clean.work_here` does, with workers that `run` has. Pieces that an interrupted one has left are not
  examined again.

  Raises SourceError for damaged text, CleanError for a folder that the workers do not see.
  """
  name = hashlib.sha256(repr((FORMAT, known, PIECE, encode.UNIT)).encode()).hexdigest()[:16]
  folder = output / f'{clean.WORK}-{name}'
  work = Work(settled(examiner, folder), source, folder, PIECE)
  with storage.explained(folder, 'written'):
    (folder / SEEN).unlink(missing_ok=True)
  run(functools.partial(describe, work))
  held.check()
  with storage.explained(folder, 'read'):
    if not (folder / SEEN).exists():
      raise CleanError(f'the workers have left nothing in {output}, expected a folder that all of them see, as one in '
                       'a bucket')
  found = fields_of(folder / SEEN)
  if found['problem'] or not found['report']['documents']:
    folder.rmtree()
    raise SourceError(found['problem'] or f'{source} holds no documents')
  return Report.of(found['report']), folder


def settled(examiner: Examiner, folder: epath.Path) -> CleanConfig:
  """Stores what workers need, lists and models and what is not to be learned -> the settings with which they find
  it."""
  config = examiner.config
  store(folder / EVALUATION, grams=examiner.evaluation.grams)
  if config.bad_words:
    storage.write(folder / 'bad_words.txt', '\n'.join(examiner.filter.bad_words))
    config = dataclasses.replace(config, bad_words=str(folder / 'bad_words.txt'))
  if config.language_model:
    with storage.open_text(config.language_model) as file, storage.drafted(folder / 'languages.bin') as out:
      while part := file.read(storage.READ):
        out.write(part)
    config = dataclasses.replace(config, language_model=str(folder / 'languages.bin'))
  return config


@functools.lru_cache(1)
def examiner_of(work: Work) -> Examiner:
  """Makes what examines documents, once a process."""
  grams = load(work.folder / EVALUATION)['grams']
  return Examiner(work.config, Evaluation(grams, 0, 0))


def describe(work: Work, runner: Runner) -> None:
  """Describes the stages."""
  cut = functools.partial(pieces, characters=work.characters)
  read = stages.read(runner, work.source, work.config.reading, cut)
  examined = runner.each(functools.partial(examine_piece, work), read)
  shards = runner.together(functools.partial(plan, work), examined)
  found = meeting.describe(work.config, work.folder, runner, shards)
  written = runner.grouped(functools.partial(write_shard, work), shards, *found)
  runner.together(functools.partial(gather, work), examined, written)


def pieces(documents: Iterable[Document], characters: int) -> Iterator[list[Document]]:
  """Yields documents in lists of about as many characters, in each some whole units."""
  piece, length = [], 0
  for unit in encode.units(documents):
    piece += unit
    length += sum(len(paragraph) for document in unit for paragraph in document.paragraphs)
    if length >= characters:
      yield piece
      piece, length = [], 0
  if piece:
    yield piece


def examine_piece(work: Work, item: Text | Read) -> Iterator[Piece | Read]:
  """Examines a piece, and stores what is left of it. What was seen of a part goes by."""
  if isinstance(item, Read):
    yield item
    return
  done = stem(work.folder, item.key, '.json')
  with storage.explained(done, 'read'):
    there = done.exists()
  if not there:
    documents = itertools.starmap(Document, zip(item.texts, item.places, strict=True))
    report, left, first = Report(), [], 0
    found = [units.examine_unit(examiner_of(work), unit) for unit in encode.units(documents)]
    for unit in found:
      report.add(unit.report, work.config.samples)
      left.append((unit.report.kept_documents, unit.report.kept_characters))
      unit.spans['place'] += first
      first += unit.report.kept_documents
    arrays = {name: together([getattr(unit, name) for unit in found]) for name in meeting.NUMBERS}
    storage.write(stem(work.folder, item.key, '.jsonl'), b''.join(unit.content for unit in found))
    store(stem(work.folder, item.key, '.npz'), **arrays)
    storage.write_json(done, {'left': left, 'spans': len(arrays['spans']), 'report': vars(report)})
  fields = fields_of(done)
  yield Piece(item.key, [tuple(unit) for unit in fields['left']], fields['spans'])


def together(arrays: list[np.ndarray]) -> np.ndarray:
  """Puts numbers of units together; those of a unit of which nothing is left have no shape."""
  return np.concatenate([rows for rows in arrays if len(rows)] or arrays[:1])


def plan(work: Work, examined: Iterable[Piece | Read]) -> Iterator[tuple[int, Shard]]:
  """Shares out the documents to shards; none where text is damaged."""
  examined = list(examined)
  if any(item.problem for item in examined if isinstance(item, Read)):
    return
  found = sorted(item for item in examined if isinstance(item, Piece))
  corpus = sum(documents for piece in found for documents, _ in piece.left), sum(piece.spans for piece in found)
  first = 0
  for number, stretches in enumerate(cuts(found, work.config.shard_characters)):
    shard = Shard(number, first, stretches, *corpus)
    yield number, shard
    first += shard.documents


def cuts(examined: Iterable[Piece], characters: int) -> Iterator[list[Stretch]]:
  """Cuts what is left of pieces as `clean.examine_all` does: behind the unit with which there are so many characters
  since the last cut."""
  stretches, size = [], 0
  for key, left, _ in examined:
    first = last = 0
    for documents, length in left:
      last += documents
      size += length
      if size >= characters:
        yield [*stretches, Stretch(key, first, last)]
        stretches, size, first = [], 0, last
    if last > first:
      stretches.append(Stretch(key, first, last))
  if stretches:
    yield stretches


def write_shard(work: Work, number: int, items: Iterable[meeting.OfShard]) -> Iterator[int]:
  """Writes the documents of a shard that stay -> its number."""
  done = report_of(work, number)
  with storage.explained(done, 'read'):
    there = done.exists()
  if not there:
    known = meeting.known_of(items)
    report = units.write_documents(work.config, work.folder / units.shard_name(number), (
        Left(line, int(mark), known.repeated.get(place, set()))
        for place, (line, mark) in enumerate(zip(lines_of(work, known.shard), known.marks, strict=True))))
    storage.write_json(done, vars(report))
  yield number


def lines_of(work: Work, shard: Shard) -> Iterator[str]:
  """Yields the documents of a shard, lines of JSON."""
  for key, first, stop in shard.stretches:
    content = storage.read_bytes(stem(work.folder, key, '.jsonl'), LARGE)
    for line in content.split(b'\n')[first:stop]:
      yield line.decode() + '\n'


def gather(work: Work, examined: Iterable[Piece | Read], written: Iterable[int]) -> Iterator[None]:
  """Stores what happened to all documents. Yields nothing."""
  examined = list(examined)
  read = sorted((item for item in examined if isinstance(item, Read)), key=lambda item: item.part)
  keys = sorted(item.key for item in examined if isinstance(item, Piece))
  report, samples = Report(), work.config.samples
  for fields in ahead(fields_of, [stem(work.folder, key, '.json') for key in keys]):
    report.add(Report.of(fields['report']), samples)
  report.skipped = sum(part.tally.skipped for part in read)
  report.kept_documents = report.kept_characters = 0
  for fields in ahead(fields_of, [report_of(work, number) for number in sorted(written)]):
    report.add(Report.of(fields), samples)
  storage.write_json(work.folder / SEEN, {
      'problem': next((part.problem for part in read if part.problem), ''), 'report': vars(report)})
  yield from ()


def fields_of(path: epath.Path) -> dict[str, Any]:
  """Reads what happened, as a stage has stored it."""
  return storage.read_json(path, limit=LARGE)


def report_of(work: Work, number: int) -> epath.Path:
  """Returns the path of what happened to a shard."""
  return work.folder / f'report-{number:05d}.json'


SEEN, EVALUATION = 'seen.json', 'evaluation.npz'
LARGE = 1 << 32  # bytes of a file between stages, at most
