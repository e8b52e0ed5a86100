"""Rows of tables: tab-separated and comma-separated files, with or without quotes, and Parquet.

Parquet files are as datatrove and the Hugging Face hub have them.
"""
import collections
from collections.abc import Iterable, Iterator, Sequence
import csv
import re
from typing import Any, Literal

from etils import epath

from plm_jax import storage
from plm_jax.errors import add_advice, name_field, parse_errors_as
from plm_jax.sources.lines import (
  MAX_LINE,
  OnError,
  ReadStats,
  SourceError,
  TextFile,
  report_problem,
  strip_line_end,
)

BOM = '\ufeff'
PARQUET_ROWS = 256  # read at once: documents, each of some megabytes at most
QUOTED_CELL = re.compile(r'"((?:[^"]|"")*)"(?=[\t\r\n]|$)')
CSV_ERRORS = {  # part of the csv module's message -> a clearer one
    'unexpected end of data': 'a quote that is not closed',
    'new-line character': 'a carriage return inside the line',
    'expected after': 'a quote inside a cell that is not doubled'}


def read_table(opened: TextFile, lines: Iterator[tuple[int, str]], kind: Literal['tsv', 'csv'],
               on_error: OnError, stats: ReadStats) -> Iterator[tuple[int, list[str]]]:
  """Yield (number of its first line, cells) of every row of a table, from its numbered lines."""
  quoted = kind == 'csv'
  if kind == 'tsv' and b'"' in opened.beginning and looks_quoted(opened.beginning, opened.whole):
    quoted = True
    stats.notes.append(f'{opened.file}: cells are in quotes, quotes inside them doubled: the text '
                       'is read without these')
  delimiter = ',' if kind == 'csv' else '\t'
  return read_cells(lines, delimiter, str(opened.file), on_error, stats, quoted)


def name_columns(
    name: str, rows: Iterable[tuple[int, list[str]]], on_error: OnError, stats: ReadStats,
    named: bool = True, field: str = '') -> Iterator[tuple[dict[str, str], str]]:
  """Yield each row as ({column: cell}, 'file:line'); report rows of another length.

  Args:
    name: of the file.
    rows: of `read_table`.
    on_error: 'skip' counts invalid rows in `stats`.
    stats: is updated.
    named: the first line names the columns; False: columns are named by number, from '0'.
    field: the column that has the text; '': all are read.

  Raises:
    SourceError: a column that is read is named twice, or `field` is missing.
  """
  header: list[str] = []
  for number, cells in rows:
    if not header:
      header = cells if named else list(map(str, range(len(cells))))
      if named:
        if field:
          check_text_column(name, header, field)
        else:
          check_header(name, header)
        continue
    where = f'{name}:{number}'
    if named and cells == header:
      report_problem(f'{where}: the line repeats the names of the columns', on_error, stats)
    elif len(cells) == len(header):
      yield dict(zip(header, cells, strict=True)), where
    elif any(map(str.strip, cells)):
      has = 'names' if named else 'has'
      problem = f'{where}: {len(cells)} fields, but the first line {has} {len(header)} columns'
      if named and len(header) == 1 and not field:
        problem += f', {header[0]!r:.60}'
      report_problem(problem, on_error, stats)


def check_header(name: str, header: Sequence[str]) -> None:
  """Raise SourceError for a column that is named twice."""
  for column, count in collections.Counter(header).items():
    if column and count > 1:
      raise SourceError(f'{name}: there are two columns {column!r}: rename or remove one of them')


def check_text_column(name: str, header: list[str], field: str) -> None:
  """Raise SourceError unless exactly one column of a table is named `field`."""
  if header.count(field) == 1:
    return
  count = 'two columns' if field in header else 'no column'
  advice = add_advice(f'{name_field("text_field")}=NAME reads another; ')
  raise SourceError(
      f'{name} is a table with {count} {field!r}, its first line is: {", ".join(header)[:200]}. '
      f'{advice}task:columns-A-B:FILE (or task:sst2:FILE and the like) makes pairs of texts of '
      'columns')


def read_cells(lines: Iterator[tuple[int, str]], delimiter: str, where: str, on_error: OnError,
               stats: ReadStats, quoted: bool = True) -> Iterator[tuple[int, list[str]]]:
  """Yield (number of its first line, cells) of every row of a table.

  A line with unbalanced quotes is reported by itself: the following rows, which its open quote
  would include, are read.

  Args:
    lines: (number, text) of the lines, which may have their line ends; the first row names the
      columns.
    delimiter: between cells.
    where: name of the file.
    on_error: 'skip' counts invalid rows in `stats`.
    stats: is updated.
    quoted: cells may be in quotes, with tabs, commas, quotes and line breaks inside; False: quotes
      are normal characters.
  """
  csv.field_size_limit(MAX_LINE)
  waiting: collections.deque[tuple[int, str]] = collections.deque()  # lines that are read again
  row_lines: list[tuple[int, str]] = []  # of the row that is being read

  def next_line() -> tuple[int, str] | None:
    return waiting.popleft() if waiting else next(lines, None)

  def feed_reader() -> Iterator[str]:
    """Yield lines to the CSV reader until its row is complete."""
    nonlocal complete
    length = 0
    while line := next_line():
      if row_lines:
        # A line that could not be read is missing here.
        follows = line[0] == row_lines[-1][0] + 1
        complete = complete and follows and '\0' not in line[1]
      row_lines.append(line)
      length = len(line[1]) + (length if len(row_lines) > 1 else 0)
      if length > MAX_LINE:
        raise csv.Error(f'a quote that is not closed within {MAX_LINE >> 20} MiB')
      yield line[1] if line[1].endswith(('\n', '\r')) else line[1] + '\n'

  reader, width, complete, noted = None, 0, True, False
  while found := next_line():
    number, line = found
    line = line.removeprefix(BOM)  # of files that were concatenated
    if '\0' in line:
      report_problem(f'{where}:{number}: not a row of a table: it has a zero byte', on_error, stats)
      continue
    if not quoted or '"' not in line:
      line = strip_line_end(line)
      row = line.split(delimiter) if line else []
      width = width or len(row)
      yield number, row
      continue

    # Read a row with quotes, which may have several lines.
    row_lines.clear()
    waiting.appendleft((number, line))
    problem, row, complete, again = '', [], True, False
    try:
      reader = reader or csv.reader(feed_reader(), delimiter=delimiter, strict=True)
      row = next(reader)
    except csv.Error as error:
      problem = next((text for part, text in CSV_ERRORS.items() if part in str(error)), str(error))
      again = True

    inner = count_rows(row_lines[1:], delimiter, width)
    if not problem:
      problem, again = find_quote_problem(len(row) == width, len(row_lines), inner, complete)
    if problem:
      report_problem(f'{where}:{number}: not a row of a table: {problem}', on_error, stats)
      if again:
        reader = None
        waiting.extendleft(reversed(row_lines[1:]))
      continue
    if not noted and len(row_lines) > 2 and inner >= len(row_lines) - 2:
      noted = True
      stats.notes.append(f'{where}:{number}: the lines up to {row_lines[-1][0]} are one row in '
                         'quotes, and look like rows: is a quote closed too late?')
    width = width or len(row)
    yield number, row


def find_quote_problem(
    fits: bool, lines: int, inner: int, complete: bool) -> tuple[str, bool]:
  """Find out whether the quotes of a row include other rows, or a line that cannot be read.

  Args:
    fits: whether the row has as many cells as the table has columns.
    lines: number of its lines.
    inner: how many of them, after the first, look like rows.
    complete: whether all its lines could be read.

  Returns:
    (what is wrong, '' for nothing; whether its lines are rows that have to be read again).
  """
  if not complete:
    return 'a line inside its quotes cannot be read', False
  if not fits and 2 * inner > max(lines - 1, 0):
    return 'a quote that is closed in another row', True
  return '', False


def count_rows(lines: list[tuple[int, str]], delimiter: str, width: int) -> int:
  """Count the lines that are rows of a table by themselves."""
  if width <= 1:
    return 0
  return sum(line.count(delimiter) == width - 1 for _, line in lines)


def looks_quoted(beginning: bytes, whole: bool) -> bool:
  """Return whether cells of a tab-separated table are in quotes, as pandas and spreadsheets write.

  Files of benchmarks have quotes as normal characters. In a quoted table a quote inside a cell is
  doubled, and a cell that begins with a quote ends with one. The table is quoted if more cells have
  doubled quotes than break this rule.

  Args:
    beginning: of the file.
    whole: the beginning is the whole file.
  """
  text = beginning.decode(errors='replace')
  text = text if whole else text[:text.rfind('\n') + 1]
  header = text.partition('\n')[0].rstrip('\r').split('\t')
  if all(re.fullmatch('"[^"]+"', name) for name in header):
    return True
  doubled = broken = 0
  at = text.find('"')
  while at >= 0:
    if at and text[at - 1] not in '\t\n':  # inside a cell without quotes: skip its line
      broken += 1
      at = text.find('"', text.find('\n', at)) if '\n' in text[at:] else -1
      continue
    cell = QUOTED_CELL.match(text, at)
    if cell:
      doubled += '""' in cell[1]
      at = text.find('"', cell.end())
    else:
      broken += 1
      end = text.find('\n', at)
      at = text.find('"', end) if end >= 0 else -1
  return doubled > broken


def read_parquet(file: epath.Path, field: str = '') -> Iterator[tuple[dict[str, Any], str]]:
  """Yield ({column: value}, 'file[row]') of each row of a Parquet file.

  field: the only column to read; '': all are read.

  Raises:
    SourceError: the file is damaged, does not have the column, or has a column twice.
  """
  from pyarrow import parquet  # a dependency of tensorflow-datasets

  with (storage.io_errors_as(file, 'read', SourceError), file.open('rb') as opened,
        parse_errors_as(file, 'a Parquet file', SourceError)):
    table = parquet.ParquetFile(opened)
    names = table.schema_arrow.names
    if field and field not in names:
      advice = add_advice(f'. {name_field("text_field")}=NAME reads another')
      raise SourceError(
          f'{file} has no column {field!r}, only {", ".join(names)[:200]}{advice}')
    for name in [field] if field else names:
      if names.count(name) > 1:
        raise SourceError(f'{file} has two columns {name!r}: rename one of them')
    number = 0
    for batch in table.iter_batches(PARQUET_ROWS, columns=[field] if field else None):
      for row in batch.to_pylist():
        yield row, f'{file}[{number}]'
        number += 1
