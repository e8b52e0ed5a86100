"""Predictions and vectors as files, which are written as they come, and are there when they are whole."""
from collections.abc import Callable, Iterable, Iterator
import contextlib
import dataclasses
import importlib.util
import itertools
import json
import shutil
import tempfile
from typing import Any, TypeVar
import zipfile

import numpy as np

from plm_jax import storage
from plm_jax.errors import ConfigError
from plm_jax.tasks.asked import Asked
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Kind

X = TypeVar('X')
Write = Callable[[Any], None]


@dataclasses.dataclass(frozen=True)
class Layout:
  """How predictions are written."""

  row: Callable[[Task, Asked, Any], str]
  head: Callable[[Task], str] = lambda task: ''


def layout(output: str, kind: Kind) -> Layout:
  """Returns the layout that the name of a file asks for. Raises ConfigError for another."""
  ending = output.rpartition('.')[2].lower() if output else 'jsonl'
  if kind == 'tagging' and ending in ('conll', 'tsv'):
    return Layout(columns)
  known = {'jsonl': Layout(json_row), 'tsv': Layout(table_row, lambda task: '\t'.join(HEADS[task.reads]) + '\n')}
  if ending not in known:
    raise ConfigError(f'--output is .jsonl or .tsv{" or .conll" * (kind == "tagging")}, got {output}')
  return known[ending]


@contextlib.contextmanager
def text(output: str) -> Iterator[Callable[[str], None]]:
  """Opens a file for texts, standard output for ''."""
  if not output:
    yield lambda line: print(line, end='', flush=True)
    return
  with storage.drafted(output) as file:
    yield lambda line: file.write(line.encode())


def json_row(task: Task, one: Asked, said: Any) -> str:
  """Writes a prediction as a line of JSON."""
  return json.dumps(fields(task, one, said), ensure_ascii=False) + '\n'


def fields(task: Task, one: Asked, said: Any) -> dict[str, Any]:
  """Returns what is written of a prediction: what it is of, what is said, and the truth where that is known."""
  example = one.example
  found: dict[str, Any] = {'id': example.key} if example.key else {}
  truth = {'truth': truth_of(task, one)} if truth_of(task, one) is not None else {}
  if task.reads == 'answers':
    candidates = [candidate._asdict() for candidate in said.candidates]
    return found | {'question': example.texts[0], 'answer': said.text, 'start': said.start, 'end': said.end,
                    'probability': said.probability} | truth | {'candidates': candidates}
  if task.reads == 'tagging':
    entities = [entity._asdict() for entity in said.entities]
    return found | ({'text': one.text} if one.text else {}) | said._asdict() | truth | {'entities': entities}
  names = ('context', 'question') if task.reads == 'choice' else ('text',) if len(example.texts) == 1 else (
      'text_a', 'text_b')
  return found | dict(zip(names, example.texts, strict=True)) | said._asdict() | truth


def truth_of(task: Task, one: Asked) -> Any:
  """Returns the label of an example by its name, None where it has none."""
  label, answers = one.example.label, one.example.answers
  if task.reads == 'answers':
    return None if answers is None else [answer.text for answer in answers]
  if label is None or task.reads in ('choice', 'regression', 'embedding'):
    return label
  return [task.labels[tag] for tag in label] if isinstance(label, tuple) else task.labels[int(label)]


def table_row(task: Task, one: Asked, said: Any) -> str:
  """Writes a prediction as a row of a table; tabs and line breaks of texts are spaces there."""
  if task.reads == 'answers':
    cells = (one.example.key, one.example.texts[0], said.text, said.probability, said.start, said.end)
  elif task.reads == 'choice':
    cells = (said.number, said.probability, said.choice, *one.example.texts)
  elif task.reads in ('regression', 'embedding'):
    cells = (said.value, '\t'.join(map(flat, one.example.texts)))
  else:
    cells = (said.label, said.probability, *one.example.texts)
  return '\t'.join(f'{cell:.6g}' if isinstance(cell, float) else flat(str(cell)) for cell in cells) + '\n'


def flat(cell: str) -> str:
  """Returns a text on one line, without tabs."""
  return ' '.join(cell.split())


HEADS: dict[Kind, tuple[str, ...]] = {
    'answers': ('id', 'question', 'answer', 'probability', 'start', 'end'),
    'choice': ('number', 'probability', 'choice', 'context', 'question'), 'regression': ('value', 'text', 'text_b'),
    'embedding': ('value', 'text', 'text_b'),
    'classification': ('label', 'probability', 'text', 'text_b'), 'tagging': ()}


def columns(task: Task, one: Asked, said: Any) -> str:
  """Writes a sentence in columns, as conlleval reads them: word, the truth where it is known, what is said."""
  truth = truth_of(task, one)
  rows = zip(said.words, *([truth] if truth else []), said.tags, strict=True)
  return ''.join('\t'.join(row) + '\n' for row in rows) + '\n'


def vectors(output: str, ragged: bool) -> contextlib.AbstractContextManager[Write]:
  """Opens a file for vectors, which come as arrays [n, D], or as lists of arrays [L, D] where they are ragged.

  Raises ConfigError for a name that says no format, or one that cannot hold them.
  """
  ending = output.rpartition('.')[2].lower()
  if ending == 'parquet' and importlib.util.find_spec('pyarrow') is None:
    raise ConfigError(f'--output={output}: .parquet is written by pyarrow, which is not installed: pip install pyarrow')
  if ending == 'npy' and ragged:
    raise ConfigError('--pooling=none gives texts vectors in different numbers: write .npz or .parquet')
  if ending not in ('npy', 'npz', 'parquet'):
    raise ConfigError(f'--output is .npy, .npz or .parquet, got {output}')
  return npy(output) if ending == 'npy' else npz(output, ragged) if ending == 'npz' else parquet(output, ragged)


@contextlib.contextmanager
def npy(output: str) -> Iterator[Write]:
  """Writes an array [N, D] as it comes."""
  with storage.drafted(output) as file, array(file) as write:
    yield write


@contextlib.contextmanager
def npz(output: str, ragged: bool) -> Iterator[Write]:
  """Writes `vectors` as they come, to a file of their own first: an archive says the length of what it holds before
  it."""
  lengths: list[int] = []
  with storage.drafted(output) as file, tempfile.TemporaryFile() as draft:
    with array(draft) as write:
      def add(some: Any) -> None:
        if ragged:
          lengths.extend(map(len, some))
          some = np.concatenate(some)
        write(some)
      yield add
    with zipfile.ZipFile(file, 'w') as archive:
      draft.seek(0)
      with archive.open('vectors.npy', 'w', force_zip64=True) as entry:
        shutil.copyfileobj(draft, entry)
      if ragged:
        with archive.open('lengths.npy', 'w') as entry:
          np.lib.format.write_array(entry, np.array(lengths, np.int64))


@contextlib.contextmanager
def array(file: Any) -> Iterator[Write]:
  """Writes an array [N, D] in numpy's format, whose header has room for any N and is written again at the end."""
  shape = [0, 0]
  def head() -> None:
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {'descr': '<f4', 'fortran_order': False, 'shape': tuple(shape)})
  def write(some: np.ndarray) -> None:
    if not shape[0]:
      shape[1] = some.shape[1]
      head()
    shape[0] += len(some)
    file.write(np.ascontiguousarray(some, '<f4').tobytes())
  yield write
  end = file.tell()
  head()
  file.seek(end)


@contextlib.contextmanager
def parquet(output: str, ragged: bool) -> Iterator[Write]:
  """Writes a column `vector`, or `vectors`, a list of one for each token, with their number in `length`."""
  pa = importlib.import_module('pyarrow')
  with storage.drafted(output) as file, contextlib.ExitStack() as stack:
    writer: Any = None
    def write(some: Any) -> None:
      nonlocal writer
      flat = np.concatenate(some) if ragged else some
      rows = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
      table = {'vector': rows}
      if ragged:
        lengths = np.array([len(one) for one in some], np.int32)
        ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        table = {'length': pa.array(lengths), 'vectors': pa.ListArray.from_arrays(pa.array(ends), rows)}
      if writer is None:
        schema = pa.table(table).schema
        writer = stack.enter_context(importlib.import_module('pyarrow.parquet').ParquetWriter(file, schema))
      writer.write_table(pa.table(table))
    yield write


def several(items: Iterable[X], size: int) -> Iterator[list[X]]:
  """Yields items, `size` at a time."""
  every = iter(items)
  while chunk := list(itertools.islice(every, size)):
    yield chunk
