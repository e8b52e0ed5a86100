"""Write predictions and vectors to files in chunks; a file appears when it is complete."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import importlib.util
import itertools
import json
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from plm_jax import storage
from plm_jax.errors import ConfigError
from plm_jax.sources.lines import SourceError
from plm_jax.tasks.outputs import prediction_fields

if TYPE_CHECKING:
  from plm_jax.tasks.contract import Task
  from plm_jax.tasks.example_formats import ExampleFormat, InputExample

X = TypeVar('X')
ROW_GROUP = 4096
"""texts of a row group of .parquet files"""


class PredictionFormat:
  """How predictions are written."""

  def __init__(self, row: Callable[[Task, InputExample, Any], str], probabilities: bool = False):
    """Make a format.

    Args:
      row: (task, input, prediction) -> text of the file.
      probabilities: whether predictions have the probabilities of all classes.
    """
    self.row, self.probabilities = row, probabilities


def prediction_format(
    output: str, example_format: ExampleFormat, probabilities: bool = False) -> PredictionFormat:
  """Return the format for the ending of a file.

  Args:
    output: the file; '': standard output.
    example_format: format of the examples.
    probabilities: whether the probabilities of all classes are written.

  Raises:
    ConfigError: an unknown ending, or probabilities that do not exist or have no place.
  """
  if probabilities and not example_format.has_probabilities:
    raise ConfigError('--probabilities is for classes, labels and tags, and the model predicts '
                      f'{example_format.name}')
  ending = output.rpartition('.')[2].lower() if output else 'jsonl'
  if example_format.writes_columns and ending in ('conll', 'tsv'):
    if probabilities:
      raise ConfigError('--probabilities of tags are written to .jsonl, got --output='
                        f'{output}')
    return PredictionFormat(format_conll)
  if ending == 'jsonl':
    return PredictionFormat(format_json, probabilities=probabilities)
  if ending == 'tsv':
    return TableFormat(probabilities)
  conll = ' or .conll' if example_format.writes_columns else ''
  raise ConfigError(f'--output is .jsonl or .tsv{conll}, got {output}')


@contextlib.contextmanager
def open_text(output: str) -> Iterator[Callable[[str], None]]:
  """Open a file for text, which appears when it is complete; standard output for ''."""
  if not output:
    yield lambda line: print(line, end='', flush=True)
    return
  with storage.atomic_writer(output) as file:
    yield lambda line: file.write(line.encode())


def write_json_lines(output: str, records: Iterable[Any]) -> None:
  """Write predictions to a .jsonl file, one per line, and print its name."""
  storage.write(output, ''.join(map(json_line, records)))
  print(f'predictions in {output}')


def json_line(record: Any) -> str:
  """Return a record as a line of a .jsonl file."""
  return json.dumps(record, ensure_ascii=False) + '\n'


def format_json(task: Task, one: InputExample, prediction: Any) -> str:
  """Return a prediction as a line of JSON."""
  return json_line(prediction_fields(task, one, prediction))


class TableFormat(PredictionFormat):
  """Writes predictions as rows of a table, with tabs between columns.

  The columns are those of the first prediction: with `text_b` if it has two texts, and with
  `truth`, which is empty where it is unknown. Tabs and line breaks in texts become spaces.
  """

  def __init__(self, probabilities: bool = False):
    """Make a table. probabilities: with a column p(NAME) for each class."""
    super().__init__(self.format_row, probabilities)
    self.head: tuple[str, ...] = ()

  def format_row(self, task: Task, one: InputExample, prediction: Any) -> str:
    """Return a row, and before the first one the head.

    Raises:
      SourceError: an example has more texts than the first one.
    """
    cells = table_cells(task, one, prediction)
    if self.probabilities:
      for name, share in prediction.probabilities.items():
        cells[f'p({one_line(name)})'] = format_cell(share)
    text = ''
    if not self.head:
      self.head = tuple(cells)
      text = '\t'.join(cells) + '\n'
    if more := [name for name in cells if name not in self.head]:
      raise SourceError(f'{one.example.where}: a column {more[0]} is needed, which the first row '
                        'does not have: write .jsonl, or give all rows as many texts')
    return text + '\t'.join(cells.get(name, '') for name in self.head) + '\n'


def table_cells(task: Task, one: InputExample, prediction: Any) -> dict[str, str]:
  """Return the cells of a prediction by the names of their columns."""
  truth = task.example_format.name_truth(task, one.example)
  if isinstance(truth, list):  # several correct answers
    truth = json.dumps(truth, ensure_ascii=False)
  found = task.example_format.table_fields(one, prediction, truth)
  return {name: format_cell(cell) for name, cell in found.items()}


def format_cell(cell: Any) -> str:
  """Return the text of a table cell; '' for None."""
  if cell is None:
    return ''
  return f'{cell:.6g}' if isinstance(cell, float) else one_line(str(cell))


def one_line(cell: str) -> str:
  """Return a text on one line, without tabs."""
  return ' '.join(cell.split())


def format_conll(task: Task, one: InputExample, prediction: Any) -> str:
  """Return a sentence in columns for conlleval: word, true tag if known, predicted tag."""
  truth = task.example_format.name_truth(task, one.example)
  columns = [prediction.words, prediction.tags]
  if truth:
    columns.insert(1, truth)
  rows = zip(*columns, strict=True)
  return ''.join('\t'.join(row) + '\n' for row in rows) + '\n'


def check_vector_output(output: str, ragged: bool) -> None:
  """Check that a file can hold vectors.

  Args:
    output: a file .npy, .npz or .parquet.
    ragged: whether texts have vectors in different numbers.

  Raises:
    ConfigError: an unknown ending, or a format that cannot hold the vectors.
  """
  ending = output.rpartition('.')[2].lower()
  if ending not in ('npy', 'npz', 'parquet'):
    raise ConfigError(f'--output is .npy, .npz or .parquet, got {output}')
  if ending == 'parquet' and importlib.util.find_spec('pyarrow') is None:
    raise ConfigError(f'--output={output}: .parquet is written by pyarrow, which is not installed: '
                      'pip install pyarrow')
  if ending == 'npy' and ragged:
    raise ConfigError('token vectors differ in number from text to text: write .npz or .parquet')


def write_vectors(output: str, vectors: np.ndarray, lengths: Sequence[int] | None) -> None:
  """Write a file for vectors, piece by piece: they may be larger than the memory.

  A .parquet file has the column `vector`. For token vectors the columns are `vectors`, a list with
  one vector per token, and `length`, their number.

  Args:
    output: a file .npy, .npz or .parquet.
    vectors: [N, D], memory-mapped.
    lengths: number of vectors of each text; None: one.
  """
  ending = output.rpartition('.')[2].lower()
  with storage.atomic_writer(output) as file:
    if ending == 'parquet':
      write_parquet(file, vectors, lengths)
    elif ending == 'npy':
      np.save(file, vectors)
    elif lengths is None:
      np.savez(file, vectors=vectors)
    else:
      np.savez(file, vectors=vectors, lengths=np.array(lengths, np.int64))


def write_sparse_vectors(
    output: str, weights: np.ndarray, tokens: np.ndarray, lengths: Sequence[int], size: int
) -> None:
  """Write sparse vectors to a .npz file, which scipy.sparse.load_npz reads.

  Args:
    output: the file.
    weights: of all texts.
    tokens: token of each weight.
    lengths: number of weights of each text.
    size: size of the vocabulary.
  """
  from scipy import sparse
  ends = np.cumsum([0, *lengths])
  vectors = sparse.csr_array((weights, tokens, ends), (len(lengths), size))
  with storage.atomic_writer(output) as file:
    sparse.save_npz(file, vectors)


def write_parquet(file: Any, vectors: np.ndarray, lengths: Sequence[int] | None) -> None:
  """Write vectors to a .parquet file; see `write_vectors`."""
  pa = importlib.import_module('pyarrow')
  rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
  table = {'vector': rows}
  if lengths is not None:
    ends = pa.array(np.cumsum([0, *lengths], dtype=np.int32))
    table = {'length': pa.array(np.array(lengths, np.int32)),
             'vectors': pa.ListArray.from_arrays(ends, rows)}
  parquet = importlib.import_module('pyarrow.parquet')
  parquet.write_table(pa.table(table), file, row_group_size=ROW_GROUP)


def split_chunks(items: Iterable[X], size: int) -> Iterator[list[X]]:
  """Yield items in lists of `size`; the last one may be shorter."""
  rest = iter(items)
  while chunk := list(itertools.islice(rest, size)):
    yield chunk
