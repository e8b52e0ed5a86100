"""Work on a corpus by stages that many machines work on in any order: what `parallel`, and cleaning, have in common.

A stage may be worked on twice, and by two at once: names of files, and the bytes in them, follow from the arguments,
and a file appears whole or not at all. What works on stages is a `Runner`: Beam's (`beam`), or a test's.
"""
import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
import functools
import io
import threading
from typing import Any, NamedTuple, Protocol, TypeVar

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import encode, lines, sources
from plm_jax.data.formats import Document, Reading
from plm_jax.data.lines import SourceError

AHEAD = 32  # files of counts that are asked for before they are needed
# Numpy reads a header as a literal, and Python 3.11 counts the depth of that for all threads in one number: two at once
# may, rarely, end with SystemError, "AST constructor recursion depth mismatch" (of that number: python/cpython#106905).
PARSING = threading.Lock()
Key = tuple[int, int]  # of a piece: number of its part of the source, number in the part
Cutting = Callable[[Iterable[Document]], Iterator[list[Document]]]
X = TypeVar('X')
Y = TypeVar('Y')


class Runner(Protocol):
  """What works on stages. Collections are the runner's own, and have no order."""

  def of(self, items: Iterable[Any]) -> Any:
    """Returns a collection of the items."""
    ...

  def each(self, function: Callable[[Any], Iterable[Any]], items: Any) -> Any:
    """Returns a collection of what a function yields for each item."""
    ...

  def together(self, function: Callable[..., Iterable[Any]], *items: Any) -> Any:
    """Returns a collection of what a function yields for the whole of some collections."""
    ...

  def grouped(self, function: Callable[[int, Iterable[Any]], Iterable[Any]], *items: Any) -> Any:
    """Returns a collection of what a function yields for each number and all that has it, of collections of (number,
    item)."""
    ...


Run = Callable[[Callable[[Runner], None]], None]  # gives a runner to what describes stages, and works on them


class Part(NamedTuple):
  """What is read by itself, see `sources.parts`."""

  number: int
  name: str
  alone: bool


class Text(NamedTuple):
  """A piece that is read."""

  key: Key
  texts: list[list[str]]  # paragraphs of each document
  places: list[str]  # where each document begins


class Read(NamedTuple):
  """A part that is read."""

  part: int
  tally: lines.Tally
  problem: str = ''  # of the text, for which nothing is prepared


def read(runner: Runner, source: str, reading: Reading, cut: Cutting) -> Any:
  """Reads a source -> a collection of Text and Read. cut: cuts the documents of a part into pieces."""
  parts = sources.parts(source)
  return runner.each(functools.partial(read_part, reading, cut), runner.of(
      [Part(number, name, len(parts) == 1) for number, name in enumerate(parts)]))


def read_part(reading: Reading, cut: Cutting, part: Part) -> Iterator[Text | Read]:
  """Reads a part of the source: its pieces, and behind them what was seen."""
  tally = lines.Tally()
  documents = sources.of_part(part.name, reading, tally, part.alone)
  try:
    for number, unit in enumerate(cut(documents)):
      yield Text((part.number, number), encode.texts(unit), encode.places(unit))
  except SourceError as error:
    if error.__cause__ and storage.of_storage(error.__cause__):
      raise  # another attempt may go well
    yield Read(part.number, tally, str(error))
  else:
    yield Read(part.number, tally)


def stem(folder: epath.Path, key: Key, ending: str) -> epath.Path:
  """Returns the path of a piece's file."""
  return folder / f'{key[0]:05d}-{key[1]:06d}{ending}'


def store(path: epath.Path, **arrays: Any) -> None:
  """Writes arrays to a file. Raises StorageError."""
  with storage.drafted(path) as file:
    np.savez(file, **arrays)


def load(path: epath.Path) -> dict[str, np.ndarray]:
  """Reads what `store` has written. Raises StorageError."""
  content = io.BytesIO(storage.read_bytes(path, 1 << 32))
  with PARSING, np.load(content) as found:
    return dict(found)


def ahead(function: Callable[[X], Y], items: Iterable[X]) -> Iterator[Y]:
  """Calls a function for each item, in order, AHEAD of them at a time."""
  with ThreadPoolExecutor(AHEAD) as pool:
    pending = collections.deque()
    for item in items:
      pending.append(pool.submit(function, item))
      if len(pending) == AHEAD:
        yield pending.popleft().result()
    while pending:
      yield pending.popleft().result()
