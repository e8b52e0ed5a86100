"""Rows of a task's data, as its makers, TFDS or others have laid them out.

    rows('piqa/valid.jsonl.gz')  rows('multi30k/train.tsv.gz')  rows('dev-v1.1.json')  rows('tfds:piqa:validation')
    rows('eng.train.conll')      a row is a sentence: {'words': [...], 'tags': [...], 'document': 0}

A row is a dictionary of JSON values. Where sources of one data set call a column by different names, a task names all:
the first that a row has is read. A dot goes inside: 'question.stem'.
"""
from collections.abc import Iterator, Sequence
import contextlib
import itertools
import json
import re
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import columns, tfds
from plm_jax.data.columns import Layout
from plm_jax.data.files import files, length_of
from plm_jax.data.lines import OnError, SourceError, Tally, cells, lines, parsed, report, whole

FORMATS = '.jsonl, .tsv, .csv, .conll, .conllu or SQuAD\'s .json, plain, .gz or .xz, or tfds:NAME:SPLIT'
KNOWN = re.compile(r'\.(jsonl|tsv|csv|json|conllu?)(\.gz|\.xz)?$')
HALF = re.compile('[\ud800-\udfff]')  # of a surrogate pair


class Row(NamedTuple):
  columns: dict[str, Any]
  where: str  # 'file:line'


def rows(source: str) -> list[Row]:
  """Reads the rows of a source, see `each`. Raises SourceError where there are none."""
  found = list(each(source))
  if not found:
    raise SourceError(f'{source} has no rows')
  return found


def each(source: str, on_error: OnError = 'refuse', tally: Tally | None = None,
         layout: Layout = Layout()) -> Iterator[Row]:
  """Yields the rows of .jsonl files, of .tsv and .csv files, whose first line names the columns (in a .tsv quotes are
  as any other character), of .json (SQuAD's, whose rows are questions; others: `whole_rows`), of .conll and .conllu
  (sentences), each plain, .gz or .xz, several by commas or a glob; or of tfds:NAME:SPLIT. What names of files do not
  say is in `layout`.

  Raises SourceError for what is missing or unreadable; with `skip`, lines that are no rows are counted in `tally`.
  """
  tally = Tally() if tally is None else tally
  if source.startswith('tfds:'):
    for number, row in enumerate(tfds.rows(source)):
      yield Row(plain(row), f'{source}[{number}]')
    return
  for file in files(source):
    kind, name, found = kind_of(file, layout), str(file), lines(file, on_error, tally)
    done = tally.bytes
    if kind == 'json':
      yield from whole_rows(file, found, on_error, tally)
    elif kind == 'jsonl':
      yield from json_rows(name, found, on_error, tally)
    elif kind == 'words':
      yield from map(Row._make, columns.rows(name, found, layout, on_error, tally))
    else:
      table = cells(found, '\t' if kind == 'tsv' else ',', name)
      yield from table_rows(name, table, on_error, tally, layout.header)
    tally.bytes = done + length_of(file)


def kind_of(file: epath.Path, layout: Layout) -> str:
  """Returns jsonl, json, tsv, csv or words, by a file's name and, where that does not say it, the layout. Raises
  SourceError."""
  named = KNOWN.search(file.name.lower())
  kind = named[1] if named else ''
  if kind.startswith('conll') or (layout.words and kind in ('', 'tsv')):
    return 'words'
  if not kind:
    raise SourceError(f'{file}: rows are read from {FORMATS}')
  return kind


def json_rows(name: str, lines: Iterator[tuple[int, str]], on_error: OnError, tally: Tally) -> Iterator[Row]:
  """Yields the object of every line that is not empty. Raises SourceError, or counts, as `on_error` has it."""
  for number, line in lines:
    if line.strip():
      row = parsed(line, f'{name}:{number}', on_error, tally)
      if row is not None:
        yield Row(row, f'{name}:{number}')


def table_rows(name: str, found: Iterator[tuple[int, list[str]]], on_error: OnError, tally: Tally,
               named: bool = True) -> Iterator[Row]:
  """Yields the rows of a table, by the columns that its first line names, or by their numbers from 0; one of another
  length is reported."""
  header: list[str] = []
  for number, fields in found:
    if not header:
      header = fields if named else list(map(str, range(len(fields))))
      if named:
        continue
    if len(fields) == len(header):
      yield Row(dict(zip(header, fields, strict=True)), f'{name}:{number}')
    elif any(map(str.strip, fields)):
      problem = f'{len(fields)} fields, but the first line {"names" if named else "has"} {len(header)} columns'
      report(f'{name}:{number}: {problem}', on_error, tally)


def whole_rows(file: epath.Path, found: Iterator[tuple[int, str]], on_error: OnError, tally: Tally) -> Iterator[Row]:
  """Yields the rows of a .json file: SQuAD's, a list of objects, DREAM's and C3's passages, or a line for each object,
  as CLUE has it. Raises SourceError for another."""
  first = next(found, (1, ''))
  found = itertools.chain([first], found)
  head: Any = None
  with contextlib.suppress(ValueError, RecursionError):
    head = json.loads(first[1])
  if isinstance(head, dict) and 'data' not in head:
    yield from json_rows(str(file), found, on_error, tally)
    return
  try:
    value = storage.parse_json(whole(file, found), file, (dict, list), SourceError)
    rows = squad_rows(file, value) if isinstance(value, dict) else list_rows(file, value)
  except (TypeError, KeyError, AttributeError, ValueError, SourceError) as error:
    raise SourceError(f'{file}: a .json file is laid out as SQuAD, data[].paragraphs[].qas[], or is a list of objects; '
                      f'got {type(error).__name__}: {error}') from error
  yield from rows


def squad_rows(file: epath.Path, value: dict[str, Any]) -> list[Row]:
  """Returns SQuAD's articles, a row for each question: what its entry has, with its `context` and the article's
  `title`."""
  return [Row({**question, 'title': article.get('title', ''), 'context': paragraph['context']},
              f'{file}:{question.get("id", "")}')
          for article in value['data'] for paragraph in article['paragraphs'] for question in paragraph['qas']]


def list_rows(file: epath.Path, value: list[Any]) -> list[Row]:
  """Returns the objects of a list, or a row for each question of passages: [turns, [questions], id], as DREAM and C3
  have them (Sun et al. 2019 and 2020)."""
  rows = []
  for number, item in enumerate(value):
    if isinstance(item, dict):
      rows.append(Row(item, f'{file}:[{number}]'))
      continue
    context, questions, name = item
    rows += [Row({**question, 'context': context, 'id': f'{name}-{place}'}, f'{file}:{name}')
             for place, question in enumerate(questions)]
  return rows


def plain(value: Any) -> Any:
  """Turns what TFDS gives into JSON values."""
  if isinstance(value, dict):
    return {name: plain(x) for name, x in value.items()}
  if isinstance(value, np.ndarray):
    return [plain(x) for x in value.tolist()]
  if hasattr(value, 'to_list'):  # lists of lists of different lengths, such as RACE's choices
    value = value.to_list()
  if isinstance(value, list):
    return [plain(x) for x in value]
  if isinstance(value, np.generic):
    value = value.item()
  return value.decode() if isinstance(value, bytes) else value


def column(row: Row, *names: str) -> Any:
  """Returns the first of `names` that the row has. Raises SourceError where it has none of them."""
  for name in names:
    value: Any = row.columns
    for part in name.split('.'):
      value = value.get(part) if isinstance(value, dict) else None
    if value is not None:
      return value
  wanted = ' or '.join(map(repr, names))
  raise SourceError(f'{row.where}: no column {wanted}, only {sorted(row.columns)}')


def text(row: Row, *names: str) -> str:
  """Returns the first of the columns `names` that the row has. Raises SourceError where it is no text, or none is
  there."""
  value = column(row, *names)
  if not is_text(value):
    raise SourceError(f'{row.where}: the column {names[0]!r} is to be a text, got {value!r:.80}')
  return value


def is_text(value: Any) -> bool:
  """Tells whether it is a string without half a surrogate pair, which JSON can hold and UTF-8 cannot."""
  return isinstance(value, str) and not HALF.search(value)


def choices(row: Row, *names: str) -> tuple[list[str], list[str]]:
  """Returns the answers to choose from, and what each is called: its letter, or its number from 0.

  Texts; objects with 'text' and 'label'; or lists of both. Raises SourceError.
  """
  value = column(row, *names)
  if isinstance(value, dict) and isinstance(value.get('text'), list):
    found, labels = value['text'], value.get('label') or range(len(value['text']))
  elif isinstance(value, list) and value and all(isinstance(x, dict) and 'text' in x for x in value):
    found, labels = [x['text'] for x in value], [x.get('label', number) for number, x in enumerate(value)]
  else:
    found, labels = value, range(len(value)) if isinstance(value, list) else ()
  if not isinstance(found, list) or len(found) < 2 or not all(map(is_text, found)):
    raise SourceError(f'{row.where}: expected two or more choices, got {value!r:.80}')
  if not isinstance(labels, list | range) or len(labels) != len(found):
    raise SourceError(f'{row.where}: expected a label for each of {len(found)} choices, got {labels!r:.80}')
  return found, [str(label) for label in labels]


def label(row: Row, called: Sequence[str], *names: str) -> int:
  """Returns which of the choices is right: a number from 0, or a text that is what it is called. Raises SourceError."""
  value = column(row, *names)
  if isinstance(value, str) and value in called:
    return list(called).index(value)
  if isinstance(value, int) and 0 <= value < len(called):
    return int(value)
  raise SourceError(f'{row.where}: the label is a number below {len(called)} or one of {", ".join(called)}, '
                    f'got {value!r}')
