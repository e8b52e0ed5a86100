"""Labeled rows of a task's data: JSON Lines, tables, Parquet, SQuAD's JSON, CoNLL, or TFDS.

    read_rows('piqa/valid.jsonl.gz')    read_rows('multi30k/train.tsv.gz')
    read_rows('dev-v1.1.json')          read_rows('tfds:piqa:validation')
    read_rows('eng.train.conll')        a row is a sentence: {'words', 'tags', 'document'}

A row is a dictionary of JSON values. Where sources of one data set have different names for a
column, a task gives all of them: the first that a row has is read. A dot leads to a nested value:
'question.stem'.
"""
from collections.abc import Iterator, Sequence
import contextlib
import itertools
import json
import math
import re
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.sources import conll, tfds
from plm_jax.sources.conll import FileLayout
from plm_jax.sources.lines import (
  OnError,
  ReadStats,
  SourceError,
  TextFile,
  join_lines,
  number_lines,
  open_text_file,
  parse_json_line,
)
from plm_jax.sources.source_files import file_length, find_files
from plm_jax.sources.table_rows import check_header, name_columns, read_parquet, read_table

SUPPORTED_FORMATS = ('.jsonl, .tsv, .csv, .conll, .conllu or SQuAD\'s .json, plain, .gz or .xz, '
                     '.parquet, or tfds:NAME:SPLIT')
FILE_ENDING = re.compile(r'\.(jsonl|tsv|csv|json|conllu?|parquet)(\.gz|\.xz)?$')
DECIMAL = re.compile(r'[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?')
SEVERAL_NAMES = re.compile(r'"?[\w.-]+"?([;\t,|])(?! )[^;\t,|]+(\1(?! )[^;\t,|]+)*')
LONE_SURROGATE = re.compile('[\ud800-\udfff]')


class LabeledRow(NamedTuple):
  """A row of a task's data."""

  columns: dict[str, Any]
  where: str  # 'file:line'


def read_rows(source: str) -> list[LabeledRow]:
  """Read the rows of a source, see `iterate_rows`. Raises SourceError where there are none."""
  found = list(iterate_rows(source))
  if not found:
    raise SourceError(f'{source} has no rows')
  return found


def iterate_rows(source: str, on_error: OnError = 'refuse', stats: ReadStats | None = None,
                 layout: FileLayout = FileLayout()) -> Iterator[LabeledRow]:
  """Yield the rows of files, or of a TFDS data set.

  .jsonl; .tsv and .csv, whose first line names the columns (in a .tsv, quotes are normal characters
  unless it `looks_quoted`); .json (SQuAD's, whose rows are questions; others: `json_file_rows`);
  .conll and .conllu, whose rows are sentences. Each is plain, .gz or .xz. And .parquet.

  Args:
    source: files, separated by commas, or globs; or tfds:NAME:SPLIT.
    on_error: 'skip' counts invalid lines in `stats`.
    stats: is updated; None: not needed.
    layout: what the names of files do not determine.

  Raises:
    SourceError: files are missing or unreadable.
  """
  stats = ReadStats() if stats is None else stats
  if source.startswith('tfds:'):
    for number, row in enumerate(tfds.iterate_examples(source)):
      yield LabeledRow(to_json_value(row), f'{source}[{number}]')
    return
  for file in find_files(source):
    kind, name, before = file_kind(file, layout), str(file), stats.bytes
    if kind == 'parquet':
      for columns, where in read_parquet(file):
        yield LabeledRow(to_json_value(columns), where)
      stats.bytes = before + file_length(file)
      continue
    with open_text_file(file, layout.encoding) as opened:
      lines = number_lines(opened, on_error, stats)
      if kind == 'json':
        rows = json_file_rows(file, lines, on_error, stats)
      elif kind == 'jsonl':
        rows = json_rows(name, lines, on_error, stats)
      elif kind == 'words':
        rows = conll.read_conll_rows(name, lines, layout, on_error, stats)
      else:
        if layout.header:
          check_separator(opened, kind)
        cells = read_table(opened, lines, 'csv' if kind == 'csv' else 'tsv', on_error, stats)
        rows = name_columns(name, cells, on_error, stats, layout.header)
      yield from itertools.starmap(LabeledRow, rows)
    stats.bytes = before + file_length(file)


def file_kind(file: epath.Path, layout: FileLayout) -> str:
  """Return the kind of a file, from its name or, failing that, from the layout.

  Returns:
    'jsonl', 'json', 'tsv', 'csv', 'parquet' or 'words'.

  Raises:
    SourceError: the kind is unknown.
  """
  ending = FILE_ENDING.search(file.name.lower())
  kind = ending[1] if ending else ''
  if kind.startswith('conll') or (layout.words and kind in ('', 'tsv')):
    return 'words'
  if not kind:
    raise SourceError(f'{file}: rows are read from {SUPPORTED_FORMATS}')
  return kind


def json_rows(name: str, lines: Iterator[tuple[int, str]], on_error: OnError, stats: ReadStats
              ) -> Iterator[LabeledRow]:
  """Yield the object of every line that is not empty.

  Raises:
    SourceError: a line is invalid ('skip' counts it), or the first object has a field twice.
  """
  first = True
  for number, line in lines:
    if first and re.match(r'\s*\[\s*(\{|$)', line):
      raise SourceError(f'{name} is one JSON list, and .jsonl has an object on each line: rename '
                        'it to .json')
    if line.strip():
      row = parse_json_line(line, f'{name}:{number}', on_error, stats)
      if row is None:
        continue
      if first:
        json.loads(line, object_pairs_hook=lambda pairs: check_header(
            name, [key for key, _ in pairs]))
        first = False
      yield LabeledRow(row, f'{name}:{number}')


def check_separator(opened: TextFile, kind: str) -> None:
  """Raise SourceError if the first line of a table has names with another separator."""
  line = opened.beginning.removeprefix(b'\xef\xbb\xbf').partition(b'\n')[0].decode(errors='replace')
  several = SEVERAL_NAMES.fullmatch(line.rstrip('\r'))
  if several and (',' if kind == 'csv' else '\t') not in line:
    raise SourceError(
        f'{opened.file}:1: the first line names one column, {several[0]!r}, which looks like '
        f'several separated by {several[1]!r}: columns of .csv are separated by commas, those of '
        '.tsv by tabs')


def json_file_rows(file: epath.Path, lines: Iterator[tuple[int, str]], on_error: OnError,
                   stats: ReadStats) -> Iterator[LabeledRow]:
  """Yield the rows of a .json file.

  SQuAD's layout, a list of objects, the passages of DREAM and C3, or one object per line, as CLUE
  has it. Raises SourceError for others.
  """
  first = next(lines, (1, ''))
  lines = itertools.chain([first], lines)
  head: Any = None
  with contextlib.suppress(ValueError, RecursionError):
    head = json.loads(first[1])
  if isinstance(head, dict) and 'data' not in head:
    yield from json_rows(str(file), lines, on_error, stats)
    return
  try:
    value = storage.parse_json(join_lines(file, lines), file, (dict, list), SourceError)
    rows = squad_rows(file, value) if isinstance(value, dict) else list_rows(file, value)
  except (TypeError, KeyError, AttributeError, ValueError, SourceError) as error:
    raise SourceError(
        f'{file}: a .json file is laid out as SQuAD, data[].paragraphs[].qas[], or is a list of '
        f'objects; got {type(error).__name__}: {error}') from error
  yield from rows


def squad_rows(file: epath.Path, value: dict[str, Any]) -> list[LabeledRow]:
  """Return one row per question of SQuAD: its entry, the `context`, and the article's `title`."""
  rows = []
  for article in value['data']:
    title = article.get('title', '')
    for paragraph in article['paragraphs']:
      for question in paragraph['qas']:
        columns = {**question, 'title': title, 'context': paragraph['context']}
        rows.append(LabeledRow(columns, f'{file}:{question.get("id", "")}'))
  return rows


def list_rows(file: epath.Path, value: list[Any]) -> list[LabeledRow]:
  """Return the objects of a list, or one row per question of passages.

  A passage is [turns, [questions], id], as in DREAM and C3 (Sun et al. 2019 and 2020).
  """
  rows = []
  for number, item in enumerate(value):
    if isinstance(item, dict):
      rows.append(LabeledRow(item, f'{file}:[{number}]'))
      continue
    context, questions, name = item
    for place, question in enumerate(questions):
      columns = {**question, 'context': context, 'id': f'{name}-{place}'}
      rows.append(LabeledRow(columns, f'{file}:{name}'))
  return rows


def to_json_value(value: Any) -> Any:
  """Convert a value of TFDS into JSON values."""
  if isinstance(value, dict):
    return {name: to_json_value(x) for name, x in value.items()}
  if isinstance(value, np.ndarray):
    return [to_json_value(x) for x in value.tolist()]
  if hasattr(value, 'to_list'):  # lists of lists of different lengths, such as RACE's choices
    value = value.to_list()
  if isinstance(value, list):
    return [to_json_value(x) for x in value]
  if isinstance(value, np.generic):
    value = value.item()
  return value.decode() if isinstance(value, bytes) else value


def get_column(row: LabeledRow, *names: str) -> Any:
  """Return the first of the columns `names` that the row has. Raises SourceError for none."""
  for name in names:
    value: Any = row.columns
    for part in name.split('.'):
      value = value.get(part) if isinstance(value, dict) else None
    if value is not None:
      return value
  for name in names:
    if name and name in row.columns:
      raise SourceError(f'{row.where}: the column {name!r} is null')
  expected = ' or '.join(map(repr, names))
  raise SourceError(f'{row.where}: no column {expected}, only {sorted(row.columns)}')


def get_text(row: LabeledRow, *names: str) -> str:
  """Return the first of the columns `names` that the row has.

  Raises:
    SourceError: it is not text, or the row has none of them.
  """
  value = get_column(row, *names)
  if not is_valid_text(value):
    raise SourceError(f'{row.where}: the column {names[0]!r} must be a text, got {value!r:.80}')
  return value


def parse_number(value: Any) -> float:
  """Return a number of JSON, or of text in decimal notation with an optional exponent.

  Python's float would also accept 1_5, digits of other scripts, and the names of infinity and NaN.
  Raises ValueError.
  """
  found = math.nan
  if isinstance(value, str):
    found = float(value) if DECIMAL.fullmatch(value.strip()) else math.nan
  elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
    found = float(value)  # which fails for larger integers
  if not math.isfinite(found):
    raise ValueError(f'expected a number, got {value!r:.80}')
  return found


def is_valid_text(value: Any) -> bool:
  """Return whether this is a string without lone surrogates, which JSON can hold but not UTF-8."""
  return isinstance(value, str) and not LONE_SURROGATE.search(value)


def get_choices(row: LabeledRow, *names: str) -> tuple[list[str], list[str]]:
  """Return the choices of a multiple-choice row, and their names: letters, or numbers from 0.

  The column holds texts, objects with 'text' and 'label', or an object with lists of both.
  Raises SourceError.
  """
  value = get_column(row, *names)
  if isinstance(value, dict) and isinstance(value.get('text'), list):
    found, labels = value['text'], value.get('label') or range(len(value['text']))
  elif (isinstance(value, list) and value
        and all(isinstance(x, dict) and 'text' in x for x in value)):
    found = [x['text'] for x in value]
    labels = [x.get('label', number) for number, x in enumerate(value)]
  else:
    found, labels = value, range(len(value)) if isinstance(value, list) else ()
  if not isinstance(found, list) or len(found) < 2 or not all(map(is_valid_text, found)):
    raise SourceError(f'{row.where}: expected two or more choices, got {value!r:.80}')
  if not isinstance(labels, list | range) or len(labels) != len(found):
    raise SourceError(
        f'{row.where}: expected a label for each of {len(found)} choices, got {labels!r:.80}')
  return found, [str(label) for label in labels]


def get_label(row: LabeledRow, choice_names: Sequence[str], *names: str) -> int:
  """Return the number of the correct choice, from 0.

  The column holds the number, or one of `choice_names`. Raises SourceError.
  """
  value = get_column(row, *names)
  if isinstance(value, str) and value in choice_names:
    return list(choice_names).index(value)
  if isinstance(value, int) and 0 <= value < len(choice_names):
    return int(value)
  raise SourceError(f'{row.where}: the label is a number below {len(choice_names)} or one of '
                    f'{", ".join(choice_names)}, got {value!r}')
