"""Labeled examples of files and data sets.

    found = read_sources('classification', ['reviews.tsv'], Columns(label='stars'))
    found.examples[0].texts, found.labels[found.examples[0].label], found.report.lines()

A source is what `sources.labeled_files` reads: .jsonl, .tsv, .csv, .conll, .conllu or SQuAD's
.json, plain, .gz or .xz, or .parquet, several separated by commas or a glob; or tfds:NAME:SPLIT; or
embedded:KIND and embedded:KIND:dev, which are built in. For tagging, any other file and a .tsv hold
one word per line; IOB1 tags are converted to BIO. For embedding, a .txt holds one text per line.
"""
import collections
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import itertools
from typing import Any, Literal, NamedTuple

from plm_jax.errors import ConfigError, add_advice, name_field
from plm_jax.sources import builtin_tasks, charsets, labeled_files, row_readers, tfds
from plm_jax.sources.class_names import Classes, get_classes, is_missing
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.lines import (
  OnError,
  ReadStats,
  SourceError,
  describe_skipped,
  read_lines,
  report_problem,
)
from plm_jax.sources.row_readers import Columns, Example, RawExample, UnreadableRow
from plm_jax.sources.source_files import find_files
from plm_jax.tasks.example_formats import ExampleFormat, InputExample
from plm_jax.tasks.kinds import get_format
from plm_jax.validation import ValidatedConfig

Use = Literal['train', 'dev', 'predict']
PURPOSE = {'train': 'to learn from', 'dev': 'to measure by', 'predict': 'to predict'}
SAMPLE_ROWS = 100  # by which columns are chosen
MAX_UNREAD = 8  # names of columns in a note


@dataclasses.dataclass(frozen=True)
class SourceConfig(ValidatedConfig):
  """Sources of a task's examples; empty fields are the task's own, see `tasks.registry`."""

  train: tuple[str, ...] = ()
  """sources of training examples"""
  dev: tuple[str, ...] = ()
  """development sets, each evaluated separately; the first selects the best checkpoint"""
  columns: Columns = Columns()
  """columns that an example is read from"""
  on_error: OnError = 'refuse'
  """what to do with an invalid row. refuse: stop and report the row; skip: skip and count it"""
  encoding: str = 'utf-8'
  """character encoding of the files, by its Python name: gb18030, shift_jis, cp1251, utf-16, ..."""

  def conflict(self, option):
    problem = charsets.encoding_problem(self.encoding)
    if problem:
      return f'{option("encoding")} {problem}, got {self.encoding!r}'
    return super().conflict(option)


@dataclasses.dataclass
class ReadReport:
  """Counts and notes of reading sources."""

  examples: int = 0
  skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  """reason -> number of skipped rows"""
  problems: list[str] = dataclasses.field(default_factory=list)
  """the first ten of them, 'file:line: reason'"""
  moved_answers: int = 0
  """answers at another position of their context than the source states"""
  unknown_labels: int = 0
  """rows to predict whose labels cannot be used: they are read without them"""
  unknown_label: str = ''
  """why the first of these labels cannot be used"""
  notes: list[str] = dataclasses.field(default_factory=list)
  """values that were interpreted, such as converted tags"""

  def lines(self) -> list[str]:
    """Describe the report for the user; empty if nothing was unusual."""
    lines = list(dict.fromkeys(self.notes))
    if self.unknown_labels:
      lines.append(f'{self.unknown_labels:,} rows have labels that cannot be compared. They are '
                   f'predicted, and do not count in the scores. The first: {self.unknown_label}')
    if self.moved_answers:
      lines.append(f'{self.moved_answers:,} answers are not at the position that their source '
                   'states, and were found by their text')
    if self.skipped:
      reasons = [f'{count:,} {reason}' for reason, count in self.skipped.most_common()]
      lines.append(f'{sum(self.skipped.values()):,} rows were left out: {", ".join(reasons)}')
    return lines + [f'  {problem}' for problem in self.problems]

  def add_unknown(self, count: int, error: SourceError) -> None:
    """Count rows that are read without their labels; error: why."""
    self.unknown_labels += count
    self.unknown_label = self.unknown_label or error.marked

  def finish(self, stats: ReadStats) -> None:
    """Add the problems and notes of reading files, and drop reasons without rows."""
    self.problems = stats.examples
    self.notes += stats.notes
    self.skipped['unreadable lines'] += stats.skipped - self.skipped.total()
    self.skipped = +self.skipped


class LabeledExamples(NamedTuple):
  """Examples, the class names of their labels, and a report."""

  examples: list[Example]
  labels: tuple[str, ...]
  report: ReadReport


def read_sources(
    kind: str, sources: Sequence[str], columns: Columns = Columns(),
    labels: Sequence[str] = (), use: Use = 'train', on_error: OnError = 'refuse',
    encoding: str = charsets.UTF_8) -> LabeledExamples:
  """Read the labeled examples of sources.

  Args:
    kind: kind of task, a name in `tasks.kinds`.
    sources: files and data sets.
    columns: columns that an example is read from.
    labels: names of the classes or tags in the order of their indices; empty: those that occur,
      numbers in numeric order, others sorted. A file may also hold the indices.
    use: for train and dev, every example needs a label; for predict, labels are optional, and those
      that cannot be used are dropped and counted.
    on_error: refuse or skip unreadable rows.
    encoding: of the files.

  Raises:
    SourceError: with file and line, for a row with a missing column, an empty text, an unknown
      label, or an answer that is not in its context; `skip` counts such rows in the report.
      Always, for a source without examples, or without labels if they are needed.
  """
  if not sources:
    raise SourceError(f'no examples {PURPOSE[use]}: name a file, or tfds:NAME:SPLIT')
  example_format, report = get_format(kind), ReadReport()
  reader = SourceReader(example_format, columns, use, on_error, encoding, report)
  raw: list[RawExample] = []
  for source in sources:
    part = list(reader.read_raw_examples(source))
    if not part:
      raise SourceError(f'{source} has no examples{describe_skipped(reader.stats)}')
    needs_labels = use != 'predict' and example_format.is_labeled
    if needs_labels and all(is_unlabeled(example_format, item.label, labels) for item in part):
      names = columns.fill_from(example_format.columns).label.split('|')
      wanted, there = ' or '.join(map(repr, names)), ', '.join(map(repr, reader.found_columns))
      raise SourceError(f'{source} has no labels {PURPOSE[use]}: no row has one in {wanted}. Its '
                        f'columns are {there}: {name_field("columns.label")} names one')
    raw += reader.normalize_labels(source, part, labels)
  class_names = tuple(labels) or example_format.list_labels(raw, report.notes)
  examples = reader.number_labels(raw, class_names)
  if not examples:
    raise SourceError(f'{", ".join(sources)}: no examples are left{describe_skipped(reader.stats)}')
  example_format.note_labels(raw, class_names, report.notes)
  report.examples = len(examples)
  report.finish(reader.stats)
  return LabeledExamples(examples, class_names, report)


def read_chunks(
    kind: str, source: str, columns: Columns = Columns(), labels: Sequence[str] = (),
    on_error: OnError = 'refuse', size: int = 4096, report: ReadReport | None = None,
    encoding: str = charsets.UTF_8) -> Iterator[list[Example]]:
  """Stream the examples of a source in chunks of `size`, so that only one chunk is in memory.

  Labels are optional. IOB1 tags are converted to BIO chunk by chunk. Arguments and errors are
  those of `read_sources` with use='predict'.
  """
  report, empty = report or ReadReport(), True
  reader = SourceReader(get_format(kind), columns, 'predict', on_error, encoding, report)
  raw = reader.read_raw_examples(source)
  while part := list(itertools.islice(raw, size)):
    chunk = reader.number_labels(reader.normalize_labels(source, part, labels), labels)
    if chunk:
      report.examples += len(chunk)
      empty = False
      yield chunk
  if empty:
    raise SourceError(f'{source} has no examples{describe_skipped(reader.stats)}')
  report.finish(reader.stats)


@dataclasses.dataclass
class SourceReader:
  """Reads the examples of sources of a kind of task; arguments are those of `read_sources`."""

  example_format: ExampleFormat
  columns: Columns
  use: Use
  on_error: OnError
  encoding: str
  report: ReadReport
  stats: ReadStats = dataclasses.field(default_factory=ReadStats)
  found_columns: tuple[str, ...] = ()
  """columns of the first row of the source that was read last"""

  def read_raw_examples(self, source: str) -> Iterator[RawExample]:
    """Yield the raw examples of a source.

    Columns that are not named are guessed from its first rows. Those that are not read are noted.
    """
    rows = self.read_rows(source)
    head = list(itertools.islice(rows, SAMPLE_ROWS))
    if not head:
      return
    self.found_columns = tuple(head[0].columns)
    chosen = self.choose_columns(source, head)
    class_names: tuple[str, ...] = ()
    if source.startswith('tfds:') and self.example_format.has_class_names:
      found = (tfds.class_names(source, name) for name in chosen.label.split('|'))
      class_names = next(filter(None, found), ())
    for row in itertools.chain(head, rows):
      try:
        item = self.example_format.read(row, chosen)
      except SourceError as error:
        unlabeled = error.unlabeled if isinstance(error, UnreadableRow) else None
        if not unlabeled or self.use != 'predict':
          self.refuse_or_skip(error, row is head[0])
          continue
        item = unlabeled
        self.report.add_unknown(1, error)
      if class_names:
        item = item._replace(label=name_tfds_labels(item.label, class_names))
      yield item

  def read_rows(self, source: str) -> Iterator[LabeledRow]:
    """Yield the rows of a source; a passage with several questions becomes one row per question."""
    if source.startswith('embedded'):
      yield from builtin_tasks.builtin_rows(source)
      return
    if self.example_format.has_text_lines(source):
      for file in find_files(source):
        for number, line in read_lines(file, self.on_error, self.stats, self.encoding):
          if line.strip():
            yield LabeledRow({'text': line}, f'{file}:{number}')
      return
    layout = self.example_format.file_layout(self.columns, self.encoding)
    for row in labeled_files.iterate_rows(source, self.on_error, self.stats, layout):
      yield from self.example_format.split_row(row, self.columns)

  def choose_columns(self, source: str, rows: Sequence[LabeledRow]) -> Columns:
    """Return the columns to read, and note those that are not read.

    Raises SourceError if an example would be read without what its row has: the second text, or a
    label by which pairs differ.
    """
    row, example_format, columns = row_readers.merge_rows(rows), self.example_format, self.columns
    try:
      chosen = example_format.guess_columns(columns, row)
    except UnreadableRow as error:
      raise SourceError(error.full_message) from error
    unread = row_readers.find_unread_columns(row, chosen, example_format.other_columns)
    if not unread or (columns.are_numbers and columns.first):
      return chosen
    are_pairs = chosen.second and not chosen.choices and not columns.first
    for name in unread if are_pairs and self.use != 'predict' else ():
      values = sorted({str(one.columns.get(name)) for one in rows})
      if example_format.ignored_labels and name in row_readers.RELATION_COLUMNS and len(values) > 1:
        names = [row_readers.find_column(row, name) for name in (chosen.first, chosen.second)]
        advice = (f'. {name_field("columns.first")}={names[0]} with {name_field("columns.second")}='
                  f'{names[1]} reads the texts without labels')
        raise SourceError(
            f'{source}: the labels in the column {name!r}, such as {values[0]} and {values[1]}, '
            f'are not read, {example_format.ignored_labels}{add_advice(advice)}')
    shown = ', '.join(map(repr, unread[:MAX_UNREAD]))
    more = f' and {len(unread) - MAX_UNREAD} more' if len(unread) > MAX_UNREAD else ''
    self.report.notes.append(f'{source}: columns that are not read: {shown}{more}')
    return chosen

  def normalize_labels(
      self, source: str, part: list[RawExample], names: Sequence[str]) -> list[RawExample]:
    """Rewrite the labels of examples in the common form; to predict, drop those that have none.

    Raises SourceError.
    """
    try:
      return self.example_format.normalize_labels(source, part, tuple(names), self.report.notes)
    except SourceError as error:
      if self.use != 'predict':
        raise
      self.report.add_unknown(len(part), error)
      return [item._replace(label=None) for item in part]

  def number_labels(self, raw: Sequence[RawExample], names: Sequence[str]) -> list[Example]:
    """Convert raw labels to indices into `names`, and number the documents of the examples."""
    classes = get_classes(tuple(names))
    numbers = itertools.count()
    documents = collections.defaultdict(lambda: next(numbers))
    examples = []
    for position, item in enumerate(raw):
      try:
        label = self.parse_label(item, classes)
      except UnreadableRow as error:
        if self.use != 'predict':
          self.refuse_or_skip(error)
          continue
        label = None
        self.report.add_unknown(1, error)
      file = item.example.where.rpartition(':')[0]
      # Without a document id, every example is a document.
      own_number = position if item.document is None else None
      document = documents[file, item.document, own_number]
      examples.append(dataclasses.replace(item.example, label=label, document=document))
      self.report.moved_answers += item.moved_answers
    return examples

  def parse_label(self, item: RawExample, classes: Classes) -> Any:
    """Convert a raw label to what the task learns; None: there is none. Raises UnreadableRow."""
    if not self.example_format.is_labeled:
      return None
    label = item.label
    # Test sets of benchmarks have negative classes for hidden labels.
    is_negative = self.example_format.hides_labels and type(label) is int and label < 0
    if is_missing(label) or (is_negative and '-1' not in classes.numbers):
      if self.use != 'predict':
        raise UnreadableRow('no label', f'{item.example.where}: no label {PURPOSE[self.use]}')
      return None
    return self.example_format.parse_label(item, classes)

  def refuse_or_skip(self, error: SourceError, first: bool = False) -> None:
    """Raise the error of a row with its remedy, or count the row under its reason.

    first: the row is the first of its source, so that an error about columns holds for all rows.
    """
    message = error.marked
    if isinstance(error, UnreadableRow) and first and error.remedy:
      message = error.full_message
      if self.on_error == 'refuse':
        raise SourceError(message) from error
    report_problem(message, self.on_error, self.stats)
    reason = error.reason if isinstance(error, UnreadableRow) else 'unreadable rows'
    self.report.skipped[reason] += 1


def parse_lines(
    example_format: ExampleFormat, lines: Iterable[tuple[int, str]], name: str,
    on_error: OnError = 'refuse', stats: ReadStats | None = None) -> Iterator[InputExample]:
  """Yield an example per line: a text, or texts separated by tabs.

  For multiple choice, the context comes first, then the choices. Raises SourceError, with the line,
  for a line that is not an example; `skip` counts it in `stats`.
  """
  for number, line in lines:
    try:
      yield example_format.parse_input(example_format.split_line(line), f'{name}:{number}')
    except ConfigError as error:
      message = f'{error.marked}; a line is one text, or several texts separated by tabs'
      report_problem(message, on_error, stats or ReadStats())


def name_tfds_labels(label: Any, names: Sequence[str]) -> Any:
  """Convert class indices of TFDS to names; None for indices without a class."""
  if isinstance(label, list):
    return [name_tfds_labels(one, names) for one in label]
  if not isinstance(label, int):
    return label
  return names[label] if 0 <= label < len(names) else None


def is_unlabeled(example_format: ExampleFormat, label: Any, names: Sequence[str]) -> bool:
  """Tell whether a row has no label: it is missing, or is the class -1 of hidden test labels."""
  is_minus_one = example_format.hides_labels and type(label) is int and label == -1
  return is_missing(label) or (is_minus_one and bool(names) and '-1' not in names)
