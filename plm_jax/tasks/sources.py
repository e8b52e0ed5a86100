"""Labelled examples of files and data sets.

    found = examples('classification', ['reviews.tsv'], Columns(label='stars'))
    found.examples[0].texts, found.labels[found.examples[0].label], found.report.lines()

A source is what `data.rows` reads (.jsonl, .tsv, .csv, .conll, .conllu, SQuAD's .json, plain, .gz or .xz, several by
commas or a glob; tfds:NAME:SPLIT), or embedded:KIND and embedded:KIND:dev, which every machine has. Of tagging any
other file, and a .tsv, holds a word a line; its tags in IOB1 are made BIO. Of embedding a .txt holds a text a line.
"""
import collections
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import re
from typing import Any, Literal, NamedTuple

from plm_jax.checked import Checked
from plm_jax.data import rows as rows_lib
from plm_jax.data import tfds
from plm_jax.data.columns import Layout
from plm_jax.data.files import files
from plm_jax.data.lines import OnError, SourceError, Tally, lines
from plm_jax.data.lines import report as refuse_or_count
from plm_jax.data.rows import Row
from plm_jax.tasks import embedded, reading, tags
from plm_jax.tasks.examples import Example
from plm_jax.tasks.reading import Columns, Kind, Unlabelled, Unreadable

Use = Literal['train', 'dev', 'predict']
PURPOSE = {'train': 'to learn from', 'dev': 'to measure by', 'predict': 'to predict'}
SHOWN = 20  # names of labels in a message


@dataclasses.dataclass(frozen=True)
class SourceConfig(Checked):
  """Where the examples of a task are; what is empty is the task's own, see `tasks.table`."""

  train: tuple[str, ...] = ()
  """sources that are learned from"""
  dev: tuple[str, ...] = ()
  """sources that it is measured on, each by itself; by the first the best checkpoint is chosen"""
  columns: Columns = Columns()
  """which columns an example is read from"""
  on_error: OnError = 'refuse'
  """what becomes of a row that is no example: refuse the source, or skip and count the row"""


@dataclasses.dataclass
class Report:
  """What was found besides examples."""

  examples: int = 0
  skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  """reason -> rows that were left out for it"""
  problems: list[str] = dataclasses.field(default_factory=list)
  """the first ten of them, 'file:line: reason'"""
  moved: int = 0
  """answers that stand elsewhere in their context than the source says"""
  notes: list[str] = dataclasses.field(default_factory=list)
  """what was taken in another way than it was written"""

  def lines(self) -> list[str]:
    """Says it, for people: nothing where all was as it should be."""
    moved = [f'{self.moved:,} answers stand elsewhere than their source says, and were found by their text']
    left_out = [f'{sum(self.skipped.values()):,} rows were left out: '
                + ', '.join(f'{count:,} {reason}' for reason, count in self.skipped.most_common())]
    return [*self.notes, *(moved if self.moved else ()), *(left_out if self.skipped else ()),
            *(f'  {problem}' for problem in self.problems)]


class Found(NamedTuple):
  """Examples, and how their labels are called."""

  examples: list[Example]
  labels: tuple[str, ...]
  report: Report


def examples(kind: Kind, sources: Sequence[str], columns: Columns = Columns(), labels: Sequence[str] = (),
             use: Use = 'train', on_error: OnError = 'refuse') -> Found:
  """Reads the examples of sources.

  labels: names of the classes, or of the tags, in the order of their numbers; empty: those that the examples have,
    by their names, numbers by their size. A file may also have the numbers.
  use: to train and dev every example needs a label; to predict it may have one.

  Raises SourceError, with file and line, for a row that lacks a column, an empty text, an unknown label, an answer
  that is not in its context; with `skip` such rows are counted in the report. Raises it always for a source without
  examples, or without labels where they are needed.
  """
  if not sources:
    raise SourceError(f'no examples {PURPOSE[use]}: name a file, or tfds:NAME:SPLIT')
  report, tally = Report(), Tally()
  read: list[Unlabelled] = []
  for source in sources:
    part = list(of_source(kind, source, columns, on_error, tally, report))
    if not part:
      raise SourceError(f'{source} has no examples' + (f': {tally.examples[-1]}' if tally.examples else ''))
    if use != 'predict' and kind != 'embedding' and all(unknown(kind, item.label, labels) for item in part):
      wanted = ' or '.join(map(repr, columns.over(reading.GUESSES[kind]).label.split('|')))
      raise SourceError(f'{source} has no labels {PURPOSE[use]}: no row has one in {wanted}')
    read += in_bio(source, part, tuple(labels), report) if kind == 'tagging' else part
  names = tuple(labels) or names_of(kind, read)
  kept = with_labels(kind, read, names, use, on_error, tally, report)
  if not kept:
    raise SourceError(f'{", ".join(sources)}: no examples are left: {tally.examples[0]}')
  note_numbers(kind, read, names, report)
  report.examples, report.problems = len(kept), tally.examples
  report.skipped['unreadable lines'] += tally.skipped - report.skipped.total()
  report.skipped = +report.skipped
  return Found(kept, names, report)


def in_chunks(kind: Kind, source: str, columns: Columns = Columns(), labels: Sequence[str] = (),
              on_error: OnError = 'refuse', size: int = 4096, report: Report | None = None) -> Iterator[list[Example]]:
  """Yields the examples of a source, which may have labels, `size` at a time: no more of it is in memory.

  Tags in IOB1 are made BIO where those of a chunk are. Args and errors are those of `examples`, to predict.
  """
  report, tally, empty = report or Report(), Tally(), True
  found = of_source(kind, source, columns, on_error, tally, report)
  while part := list(itertools.islice(found, size)):
    part = in_bio(source, part, tuple(labels), report) if kind == 'tagging' else part
    if chunk := with_labels(kind, part, labels, 'predict', on_error, tally, report):
      report.examples += len(chunk)
      empty = False
      yield chunk
  if empty:
    raise SourceError(f'{source} has no examples' + (f': {tally.examples[-1]}' if tally.examples else ''))
  report.problems = tally.examples
  report.skipped['unreadable lines'] += tally.skipped - report.skipped.total()
  report.skipped = +report.skipped


def with_labels(kind: Kind, found: Sequence[Unlabelled], names: Sequence[str], use: Use, on_error: OnError,
                tally: Tally, report: Report) -> list[Example]:
  """Returns examples with their labels as numbers of `names`, and the documents that they are of."""
  numbers = itertools.count()
  documents = collections.defaultdict(lambda: next(numbers))
  kept = []
  for position, item in enumerate(found):
    try:
      label = label_of(kind, item, names, use)
    except Unreadable as error:
      skip(error, on_error, tally, report)
      continue
    place = item.example.where.rpartition(':')[0]
    document = documents[place, item.document, None if item.document is not None else position]
    kept.append(dataclasses.replace(item.example, label=label, document=document))
    report.moved += item.moved
  return kept


def of_source(kind: Kind, source: str, columns: Columns, on_error: OnError, tally: Tally,
              report: Report) -> Iterator[Unlabelled]:
  """Yields the examples of a source; the columns that were not named are guessed by its first row."""
  chosen: Columns | None = None
  called: tuple[str, ...] = ()
  for row in rows_of(kind, source, columns, on_error, tally):
    if chosen is None:
      chosen = reading.guessed(kind, columns, row)
      if source.startswith('tfds:') and kind in ('classification', 'tagging'):
        called = next(filter(None, (tfds.class_names(source, name) for name in chosen.label.split('|'))), ())
    try:
      item = reading.READERS[kind](row, chosen)
    except SourceError as error:
      skip(error, on_error, tally, report)
      continue
    yield item._replace(label=with_names(item.label, called)) if called else item


def rows_of(kind: Kind, source: str, columns: Columns, on_error: OnError, tally: Tally) -> Iterator[Row]:
  """Yields the rows of a source, of a passage with several questions a row for each."""
  if source.startswith('embedded'):
    yield from embedded.rows(source)
    return
  if kind == 'embedding' and PLAIN.search(source.lower()):
    for file in files(source):
      for number, line in lines(file, on_error, tally):
        if line.strip():
          yield Row({'text': line}, f'{file}:{number}')
    return
  numbers = kind == 'tagging' and columns.numbered
  layout = Layout(header=not columns.numbered, words=kind == 'tagging',
                  word=int(columns.first) if numbers and columns.first else None,
                  tag=int(columns.label) if numbers and columns.label else None)
  found = rows_lib.each(source, on_error, tally, layout)
  yield from itertools.chain.from_iterable(map(reading.asked, found)) if kind == 'choice' else found


def skip(error: SourceError, on_error: OnError, tally: Tally, report: Report) -> None:
  """Raises an error of a row with a hint, or counts it under its reason."""
  refuse_or_count(str(error), on_error, tally)
  report.skipped[error.reason if isinstance(error, Unreadable) else 'unreadable rows'] += 1


def with_names(label: Any, called: Sequence[str]) -> Any:
  """Returns the names of classes that TFDS has numbers of; below 0 it has no label."""
  if isinstance(label, list):
    return [with_names(one, called) for one in label]
  if not isinstance(label, int):
    return label
  return called[label] if 0 <= label < len(called) else None


def in_bio(source: str, part: list[Unlabelled], labels: Sequence[str], report: Report) -> list[Unlabelled]:
  """Returns the sentences of a source with tags by name, and of IOB1 in BIO."""
  named = [item._replace(label=None if item.label is None else tuple(
      labels[tag] if isinstance(tag, int) and 0 <= tag < len(labels) else str(tag) for tag in item.label))
           for item in part]
  scheme = tags.scheme_of(item.label for item in named if item.label)
  if not scheme.inside:
    return named
  if not scheme.iob1:
    report.notes.append(f'{source}: {scheme.inside:,} chunks begin with I- and {scheme.begun:,} with B-; tags are left '
                        'as they are')
    return named
  report.notes.append(f'{source}: tags are IOB1 and are made BIO: {scheme.inside:,} chunks that began with I-')
  return [item._replace(label=item.label and tags.to_bio(item.label)) for item in named]


def names_of(kind: Kind, found: Sequence[Unlabelled]) -> tuple[str, ...]:
  """Lists the labels of examples: numbers by their size, others by their names; () for what has no classes."""
  given = [item.label for item in found if item.label not in (None, '')]
  if kind == 'tagging':
    return tags.names_of(given)
  if kind != 'classification':
    return ()
  names = {str(label).strip() for label in given}
  numeric = all(NUMBER.fullmatch(name) for name in names)
  return tuple(sorted(names, key=(lambda name: (float(name), name)) if numeric else str))


def label_of(kind: Kind, item: Unlabelled, names: Sequence[str], use: Use) -> Any:
  """Returns the label of an example as a number, or numbers of tags; None: it has none. Raises Unreadable."""
  label, where = item.label, item.example.where
  if kind == 'embedding':
    return None
  hidden = kind == 'classification' and '-1' not in names and type(label) is int and label < 0
  if label is None or label == '' or hidden:
    if use != 'predict':
      raise Unreadable('no label', f'{where}: no label {PURPOSE[use]}')
    return None
  if kind == 'classification':
    return class_of(label, names, where)
  if kind == 'tagging':
    return tuple(class_of(tag, names, where) for tag in item.label)
  return reading.number(label, where) if kind == 'regression' else label if kind == 'choice' else None


def unknown(kind: Kind, label: Any, names: Sequence[str]) -> bool:
  """Tells whether a row has no label: nothing, or as the test sets of benchmarks the class -1, where that is none."""
  hidden = kind == 'classification' and type(label) is int and label == -1 and bool(names) and '-1' not in names
  return label is None or label == '' or hidden


def class_of(label: Any, names: Sequence[str], where: str) -> int:
  """Returns the number of a class, by its name, or where names are no numbers by its number. Raises Unreadable."""
  said = str(label).strip()
  if said in names:
    return names.index(said)
  place = int(said) if re.fullmatch(r'\d{1,9}', said) else int(label) if isinstance(label, bool) else -1
  if 0 <= place < len(names) and not all(map(NUMBER.fullmatch, names)):
    return place
  shown = ', '.join(names[:SHOWN]) + (', ...' if len(names) > SHOWN else '')
  raise Unreadable('unknown label', f'{where}: the label {said[:60]!r} is none of those that are learned: {shown}')


def note_numbers(kind: Kind, found: Sequence[Unlabelled], names: Sequence[str], report: Report) -> None:
  """Notes that a source has numbers where labels have names, and which is which."""
  if kind == 'classification' and any(
      str(item.label).strip() not in names and isinstance(item.label, str | int) and str(item.label).strip().isdigit()
      for item in found):
    report.notes.append('labels are numbers: ' + ', '.join(
        f'{number} is {name!r}' for number, name in enumerate(names[:SHOWN])))


PLAIN = re.compile(r'\.txt(\.gz|\.xz)?$')
NUMBER = re.compile(r'-?\d{1,9}(\.\d{1,9})?')
