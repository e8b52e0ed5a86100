"""Parallel stages of work on a corpus, in any order; for cleaning, and for `prepare` with Beam.

A stage may run twice, and in two processes at once: names and contents of files depend only on the
arguments, and files are written atomically. Stages run on a `Runner`: worker processes of this
machine (`LocalRunner`), Apache Beam (`BeamRunner`: Dataflow, Flink, Spark and others), or a test's.
Beam is an optional extra, imported only when it is used.

Both pipelines have the same plan. `read_source` reads the source in pieces. A stage works on each
piece alone, and leaves files in a folder (`make_stage_folder`) from which interrupted work resumes.
One worker plans the output files from counts of all pieces (`separate_summaries`). The last stage
writes RESULT_FILE, which `run_stages` reads.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import functools
import heapq
import io
import itertools
import logging
import operator
import os
import threading
from typing import Any, NamedTuple, Protocol, TypeVar

from etils import epath
import numpy as np
import tqdm

from plm_jax import storage
from plm_jax.distributed import worker_pool
from plm_jax.errors import SAVED, UserError, describe_error
from plm_jax.progress import is_terminal
from plm_jax.sources import lines, text_sources
from plm_jax.sources.document_formats import Document, TextReadConfig
from plm_jax.sources.lines import SourceError
from plm_jax.storage import lock
from plm_jax.storage.digests import compute_digest

log = logging.getLogger(__name__)

RESULT_FILE = 'seen.json'  # of the last stage; it has a field 'problem'
MAX_FILE_BYTES = 1 << 32  # of a file between stages
MAX_AHEAD = 32  # files of counts that are read ahead
# Numpy parses a header as a Python literal, and Python 3.11 counts the depth of all threads in one
# number. Two at once may, rarely, end with SystemError, "AST constructor recursion depth mismatch"
# (python/cpython#106905).
NUMPY_LOCK = threading.Lock()
PieceKey = tuple[int, int]  # number of the source's part, number of the piece in the part
CutDocuments = Callable[[Iterable[Document]], Iterator[list[Document]]]
X = TypeVar('X')
Y = TypeVar('Y')


class SourcePart(NamedTuple):
  """A part of a source that can be read separately, see `text_sources.list_parts`."""

  number: int
  name: str
  alone: bool  # it is the only part


class Runner(Protocol):
  """Runs stages. Collections are of the runner's own type, and have no order."""

  def read(self, function: Callable[[SourcePart], Iterable[Any]], parts: list[SourcePart]) -> Any:
    """Return a collection of everything that a function yields for each part of a source."""
    ...

  def flat_map(self, function: Callable[[Any], Iterable[Any]], items: Any) -> Any:
    """Return a collection of everything that a function yields for each item."""
    ...

  def call_once(self, function: Callable[..., Iterable[Any]], *items: Any) -> Any:
    """Return a collection of everything that a function yields for whole collections."""
    ...

  def group_by_key(self, function: Callable[[int, Iterable[Any]], Iterable[Any]], items: list[Any]
                   ) -> Any:
    """Return a collection of everything that a function yields for each key and its items.

    items: collections of (key, item).
    """
    ...


# Passes a runner to a function that adds stages, then runs them.
RunStages = Callable[[Callable[[Runner], None]], None]


class TextPiece(NamedTuple):
  """Documents that were read together."""

  key: PieceKey
  documents: list[Document]
  bytes: int  # of the part, read so far


class PartSummary(NamedTuple):
  """What happened while a part was read."""

  part: int
  stats: lines.ReadStats
  problem: str = ''  # of the text; if there is one, nothing is prepared

  @property
  def bytes(self) -> int:
    """Bytes of the part."""
    return self.stats.bytes


def make_stage_folder(parent: epath.Path, prefix: str, *content: Any) -> epath.Path:
  """Return the folder for files between stages.

  Args:
    parent: folder of the output.
    prefix: of its name.
    content: everything that the files depend on; other content has another folder.
  """
  return parent / f'{prefix}{compute_digest(repr(content))[:16]}'


def run_stages(
    run: RunStages, add_stages: Callable[[Runner], None], folder: epath.Path, held: lock.Lock,
    error: type[UserError]) -> dict[str, Any]:
  """Run stages, and read the file that the last of them writes.

  Args:
    run: runs the stages.
    add_stages: adds them to a runner.
    folder: of `make_stage_folder`.
    held: lock of the output.
    error: class of the error that is raised where the workers do not see the folder.

  Raises:
    SourceError: text is damaged; the folder is then removed.
  """
  result = folder / RESULT_FILE
  with storage.io_errors_as(folder, 'written'):
    result.unlink(missing_ok=True)
  run(add_stages)
  held.check()
  if not is_written(result):
    raise error(f'the workers have left nothing in {folder.parent}, expected a folder that all of '
                'them see, as one in a bucket')
  fields = read_fields(result)
  if fields['problem']:
    folder.rmtree()
    raise SourceError(fields['problem'])
  return fields


def is_written(path: epath.Path) -> bool:
  """Return whether a stage, or an earlier attempt at it, has written a file."""
  with storage.io_errors_as(path, 'read'):
    return path.exists()


def separate_summaries(items: Iterable[Any]) -> tuple[list[Any], list[PartSummary], str]:
  """Separate the results of pieces from the summaries of parts, which come in any order.

  Args:
    items: PartSummary, and results with a field `key`.

  Returns:
    (results of pieces, summaries, the first problem of the text or ''), all in the order of the
    source.
  """
  pieces: list[Any] = []
  summaries: list[PartSummary] = []
  for item in items:
    if isinstance(item, PartSummary):
      summaries.append(item)
    else:
      pieces.append(item)
  pieces.sort(key=lambda piece: piece.key)
  summaries.sort(key=lambda summary: summary.part)
  problem = ''
  for summary in summaries:
    problem = problem or summary.problem
  return pieces, summaries, problem


def read_sources(
    runner: Runner, texts: Sequence[str], config: TextReadConfig, cut: CutDocuments) -> Any:
  """Read sources -> a collection of TextPiece and PartSummary.

  cut: divides the documents of a part into pieces.
  """
  parts: list[SourcePart] = []
  for text in texts:
    names = text_sources.list_parts(text)
    for name in names:
      parts.append(SourcePart(len(parts), name, len(names) == 1))
  return runner.read(functools.partial(read_part, config, cut), parts)


def read_part(config: TextReadConfig, cut: CutDocuments, part: SourcePart
              ) -> Iterator[TextPiece | PartSummary]:
  """Yield the pieces of a part of the source, and a summary at the end."""
  stats = lines.ReadStats()
  documents = text_sources.read_part_documents(part.name, config, stats, part.alone)
  try:
    for number, unit in enumerate(cut(documents)):
      yield TextPiece((part.number, number), unit, stats.bytes)
  except SourceError as error:
    if error.__cause__ and storage.is_storage_error(error.__cause__):
      raise  # another attempt may succeed
    yield PartSummary(part.number, stats, error.marked)
  else:
    stats.bytes = text_sources.source_bytes(part.name) or stats.bytes  # readers may count less
    yield PartSummary(part.number, stats)


def sum_stats(parts: Iterable[PartSummary]) -> lines.ReadStats:
  """Return what happened while all parts were read."""
  stats = lines.ReadStats()
  for part in parts:
    stats.bytes += part.stats.bytes
    stats.skipped += part.stats.skipped
    stats.split_documents += part.stats.split_documents
    stats.line_divided += part.stats.line_divided
    stats.notes += part.stats.notes
    for example in part.stats.examples:
      stats.add_example(example)
  return stats


def piece_path(folder: epath.Path, key: PieceKey, ending: str) -> epath.Path:
  """Return the path of a piece's file."""
  return folder / f'{key[0]:05d}-{key[1]:06d}{ending}'


def store_arrays(path: epath.Path, **arrays: Any) -> None:
  """Write named arrays to a file. Raises StorageError."""
  with storage.atomic_writer(path) as file:
    np.savez(file, **arrays)


def load_arrays(path: epath.Path) -> dict[str, np.ndarray]:
  """Read a file of `store_arrays`. Raises StorageError."""
  content = io.BytesIO(storage.read_bytes(path, MAX_FILE_BYTES))
  with NUMPY_LOCK, np.load(content) as found:
    return dict(found)


def read_fields(path: epath.Path) -> dict[str, Any]:
  """Read a file of JSON that a stage has written."""
  return storage.read_json(path, limit=MAX_FILE_BYTES)


def map_ahead(function: Callable[[X], Y], items: Iterable[X]) -> Iterator[Y]:
  """Yield the result of a function for each item, in order, with about MAX_AHEAD calls at once."""
  with ThreadPoolExecutor(MAX_AHEAD) as pool:
    yield from worker_pool.submit_ahead(pool, function, items, MAX_AHEAD)


class LocalRunner:
  """A `Runner` on this machine. Collections are iterables in the order of the source.

  This process reads the source and shows the progress, worker processes do the rest.
  """

  def __init__(self, name: str, source: str, workers: int, held: lock.Lock):
    """Count the processes.

    Args:
      name: of the command, for the progress bar.
      source: text that is read.
      workers: wanted number of processes; 0: one per core.
      held: lock of the output.
    """
    self.name, self.held, self.size = name, held, text_sources.source_bytes(source)
    self.workers = worker_pool.count_workers(workers, self.size)

  def __call__(self, add_stages: Callable[[Runner], None]) -> None:
    """Run stages (`RunStages`)."""
    add_stages(self)

  def read(self, function: Callable[[SourcePart], Iterable[Any]], parts: list[SourcePart]
           ) -> Iterator[Any]:
    """Yield what a function yields for each part; nothing after a problem of the text."""
    progress = tqdm.tqdm(
        total=self.size, unit='B', unit_scale=True, desc=self.name, disable=not is_terminal())
    with progress:
      for part in parts:
        before = progress.n
        for item in function(part):
          yield item
          progress.update(before + item.bytes - progress.n)
          if isinstance(item, PartSummary) and item.problem:
            return

  def flat_map(self, function: Callable[[Any], Iterable[Any]], items: Iterable[Any]) -> list[Any]:
    """Call a function for each item in worker processes."""
    return self.call_in_workers(function, zip(items))

  def call_once(self, function: Callable[..., Iterable[Any]], *items: Iterable[Any]) -> list[Any]:
    """Call a function in this process."""
    return list(function(*items))

  def group_by_key(self, function: Callable[[int, Iterable[Any]], Iterable[Any]],
                   items: list[Iterable[Any]]) -> list[Any]:
    """Call a function for each key in worker processes; the keys of each collection ascend."""
    get_key = operator.itemgetter(0)
    groups = itertools.groupby(heapq.merge(*items, key=get_key), get_key)
    listed = ((key, [item for _, item in group]) for key, group in groups)
    return self.call_in_workers(function, listed)

  def call_in_workers(
      self, function: Callable[..., Iterable[Any]], arguments: Iterable[tuple[Any, ...]]
  ) -> list[Any]:
    """Call a function with each of some arguments, and return everything that it yields."""
    found, call = [], functools.partial(list_results, function)
    with contextlib.closing(worker_pool.map_ordered(call, arguments, self.workers)) as results:
      for result in results:
        self.held.check()
        SAVED.append(os.fspath(self.held.folder))
        found += result
    return found


def list_results(function: Callable[..., Iterable[X]], arguments: tuple[Any, ...]) -> list[X]:
  """Call a function that yields results."""
  return list(function(*arguments))


class BeamError(UserError):
  """Beam that is not installed, or a pipeline that failed."""


def make_runner(options: Sequence[str]) -> RunStages:
  """Return a function that runs stages with Beam.

  Args:
    options: Beam's own, such as '--runner=DirectRunner'.

  Raises:
    BeamError: Beam is not installed.
  """
  try:
    import apache_beam  # pyright: ignore[reportMissingImports]  # noqa: F401
  except ImportError as error:
    raise BeamError('Apache Beam is not installed: pip install "plm_jax[beam]", in an environment '
                    f'of its own ({describe_error(error)})') from error
  return functools.partial(run_pipeline, options)


def run_pipeline(options: Sequence[str], describe: Callable[[Runner], None]) -> None:
  """Run the stages that `describe` adds, and return when all are done. Raises BeamError."""
  import apache_beam as beam  # pyright: ignore[reportMissingImports]
  from apache_beam.options.pipeline_options import (  # pyright: ignore[reportMissingImports]
    PipelineOptions,
  )
  try:
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
      describe(BeamRunner(beam, pipeline))
  except UserError:
    raise
  except Exception as error:
    log.debug('the pipeline failed', exc_info=True)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raise BeamError('the pipeline failed, and the same command resumes from the finished parts: '
                    f'{lines[-1][:500]}') from error


class BeamRunner:
  """A `Runner` that builds a Beam pipeline.

  Functions are sent to the workers with their bound arguments, and without annotations, which Beam
  would enforce as types.
  """

  def __init__(self, beam: Any, pipeline: Any):
    self.beam, self.pipeline = beam, pipeline

  def read(self, function: Callable[[SourcePart], Iterable[Any]], parts: list[SourcePart]) -> Any:
    """Call a function for each part, on any worker."""
    begin = self.reshuffle(self.pipeline | 'begin' >> self.beam.Create(parts), 'begin')
    return self.flat_map(function, begin)

  def flat_map(self, function: Callable[[Any], Iterable[Any]], items: Any) -> Any:
    """Call a function for each item, on any worker."""
    name = function_name(function)
    mapped = items | name >> self.beam.FlatMap(lambda item: function(item))
    return self.reshuffle(mapped, name)

  def call_once(self, function: Callable[..., Iterable[Any]], *items: Any) -> Any:
    """Call a function once, with all items of some collections."""
    name = function_name(function)
    once = self.pipeline | f'once: {name}' >> self.beam.Create([None])
    sides = [self.beam.pvalue.AsIter(some) for some in items]
    called = once | name >> self.beam.FlatMap(lambda _, *some: function(*some), *sides)
    return self.reshuffle(called, name)

  def group_by_key(self, function: Callable[[int, Iterable[Any]], Iterable[Any]], items: list[Any]
                   ) -> Any:
    """Call a function for each key, with all items of some collections that have it."""
    name = function_name(function)
    flat = tuple(items) | f'all: {name}' >> self.beam.Flatten()
    grouped = flat | f'by number: {name}' >> self.beam.GroupByKey()
    mapped = grouped | name >> self.beam.FlatMap(lambda group: function(*group))
    return self.reshuffle(mapped, name)

  def reshuffle(self, items: Any, name: str) -> Any:
    """Allow other workers than those that made the items to continue with them."""
    return items | f'spread: {name}' >> self.beam.Reshuffle()


def function_name(function: Any) -> str:
  """Return the name of a function, or of the function inside a partial."""
  return getattr(function, 'func', function).__name__
