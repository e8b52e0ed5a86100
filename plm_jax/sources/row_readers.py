"""Labeled examples: read a row of a labeled file as an example, and check each value.

A reader is a function (row, columns) -> `RawExample`: the example, and its label as the row has
it. `tasks.example_formats` has the default columns and names the reader of each kind of task.
"""
from collections.abc import Sequence
import dataclasses
import re
from typing import Any, NamedTuple, TypeGuard

from plm_jax.errors import add_advice, name_field
from plm_jax.sources import labeled_files
from plm_jax.sources.class_names import Classes, format_label, is_missing
from plm_jax.sources.document_formats import describe_type
from plm_jax.sources.labeled_files import LabeledRow, is_valid_text
from plm_jax.sources.lines import SourceError
from plm_jax.validation import ValidatedConfig


class Answer(NamedTuple):
  """A gold answer of extractive QA."""

  text: str
  start: int
  """its first character in the context; -1: its first occurrence"""


@dataclasses.dataclass(frozen=True)
class Example:
  """A labeled or unlabeled example of a task."""

  texts: tuple[str, ...]
  """inputs: one text or two; the words of a sentence (tagging); question and context (answers);
  context and question, which may be '' (choice); related texts, then negatives (embedding); the
  query (rerank)"""
  label: int | float | tuple[int, ...] | None = None
  """index of the class or choice; indices of classes (multilabel); value (regression); class of
  each word (tagging); relevance of each document (rerank); None: unknown, and always for answers"""
  choices: tuple[str, ...] = ()
  """the choices (multiple choice); the documents (rerank)"""
  answers: tuple[Answer, ...] | None = None
  """gold answers; (): the context has none; None: unknown"""
  where: str = ''
  """'file:line', for messages"""
  key: str = ''
  """id of the example in prediction files"""
  document: int = 0
  """index of the document of a tagged sentence"""
  scores: tuple[float, ...] | None = None
  """a teacher's score of each document (rerank), if it is given in addition to the relevance"""


def input_parts(given: Any) -> tuple[Any, ...]:
  """Return the parts of an input: a text alone, or the items of a list; () for anything else."""
  if isinstance(given, str):
    return (given,)
  return tuple(given) if isinstance(given, Sequence) else ()


def are_texts(parts: Sequence[Any]) -> TypeGuard[tuple[str, ...]]:
  """Tell whether these are one or more texts, none of them empty."""
  return bool(parts) and all(is_valid_text(part) and part.strip() for part in parts)


class UnreadableRow(SourceError):
  """A row that is not an example; `reason` in a word or two, for counting."""

  def __init__(
      self, reason: str, problem: str, remedy: str = '', unlabeled: 'RawExample | None' = None):
    """Store the reason and the remedy.

    Args:
      reason: a word or two.
      problem: the message.
      remedy: what to do if all rows of a source have the same problem.
      unlabeled: the example without its label, if only the label cannot be read.
    """
    super().__init__(problem)
    self.reason = reason
    self.remedy = remedy
    self.unlabeled = unlabeled

  @property
  def full_message(self) -> str:
    """The message, with the remedy if there is one."""
    return f'{self.marked}: {self.remedy}' if self.remedy else self.marked


class RawExample(NamedTuple):
  """An example whose label is not yet a class index."""

  example: Example
  label: Any = None
  """label as in the row: a name, a number, tag names; None: missing"""
  document: Any = None
  """document id as in the row; None: missing"""
  moved_answers: int = 0
  """answers found at another position than the row states"""


@dataclasses.dataclass(frozen=True)
class Columns(ValidatedConfig):
  """Names of the columns that an example is read from.

  'a|b' is the first of two columns that a row has; 'a+b' joins both by a space. A dot goes into
  objects: 'question.stem'. Numbers count the columns of a table without a header, and of CoNLL
  files. Empty: the usual names, see `tasks.example_formats`.
  """

  first: str = ''
  """column of the first text: the words (tagging), question (answers), context (choice) or anchor
  (embedding)"""
  second: str = ''
  """column of the second text: the context (answers), question (choice) or positive (embedding)"""
  label: str = ''
  """column of the label; for multilabel also a column of 0 and 1 per label, separated by commas"""
  choices: str = ''
  """column with all choices, or one column per choice, separated by commas; for embedding, the same
  of negatives"""
  separator: str = ''
  """what separates several labels in a text (multi-label). Default: `|`, `;` or `,`, the first of
  them that occurs"""

  def fill_from(self, other: 'Columns') -> 'Columns':
    """Fill empty names from other columns; with a first text alone, there is no second one."""
    second = self.second if self.first or self.second else other.second
    return Columns(self.first or other.first, second, self.label or other.label,
                   self.choices or other.choices, self.separator or other.separator)

  @property
  def are_numbers(self) -> bool:
    """Whether all columns are numbered, as in a table without a header."""
    named = filter(None, (self.first, self.second, self.label, self.choices))
    names = re.split(r'[|+,]', '+'.join(named))
    return all(re.fullmatch('-?[0-9]+', name) for name in names)  # '' if no column is named


PAIR_COLUMNS = (
    ('sentence1', 'sentence2'), ('premise', 'hypothesis'), ('question1', 'question2'),
    ('sentence_A', 'sentence_B'), ('text_a', 'text_b'), ('text1', 'text2'),
    ('question', 'sentence'), ('question', 'passage'), ('query', 'passage'),
    ('query', 'document'))
NEGATIVE_COLUMN = re.compile(r'(hard_)?neg(ative)?_?\d+')
MAX_VALUE = 1e18  # of a regression label
MAX_SHOWN = 20  # class names in a message
# Default columns of labels, of all kinds of tasks.
LABEL_COLUMNS = {
    'label', 'gold_label', 'labels', 'class', 'category', 'sentiment', 'score', 'similarity',
    'relatedness', 'tags', 'ner_tags', 'ner', 'pos_tags', 'pos', 'answers', 'answer', 'answerKey',
    'is_duplicate'}
# Of these, the columns that say how two texts are related.
RELATION_COLUMNS = {
    'label', 'gold_label', 'labels', 'score', 'similarity', 'relatedness', 'is_duplicate'}
KEY_COLUMNS = ('id', 'idx', 'guid', 'example_id', 'index')
# Names of columns without content.
KEY_NAME = re.compile(r'|Unnamed.*|(.*_|doc|q|p)?(id|idx|index|guid)|.*(ID|Id)|__index_level_\d+__')


def find_negative_columns(usual: Columns, row: LabeledRow) -> Columns:
  """Return default columns, with a column per negative where a row has them in place of a list."""
  names = [name for name in row.columns if NEGATIVE_COLUMN.fullmatch(name)]
  if column_value(row, usual.choices) is not None or not names:
    return usual
  return dataclasses.replace(usual, choices=','.join(names))


def merge_rows(rows: Sequence[LabeledRow]) -> LabeledRow:
  """Return the first row, with all columns of the rows; of each, the first value that is no gap."""
  merged: dict[str, Any] = {}
  for row in rows:
    for name, value in row.columns.items():
      if merged.get(name) in (None, '', []):
        merged[name] = value
  return LabeledRow(merged, rows[0].where)


def find_unread_columns(row: LabeledRow, columns: Columns, others: Sequence[str]) -> list[str]:
  """List the columns with content that an example is not read from.

  Args:
    row: the columns, from `merge_rows`.
    columns: columns that are read.
    others: columns that are read in another way, or have no content for the kind of task.
  """
  read = set(others)
  for names in (columns.first, columns.second, columns.label, columns.choices):
    for name in re.split('[+,]', names):
      found = find_column(row, name)
      read.add(found if found in row.columns else found.split('.')[0])
  return [name for name, value in row.columns.items()
          if name not in read and value not in (None, '', []) and not KEY_NAME.fullmatch(name)]


def drop_missing_columns(usual: Columns, row: LabeledRow, *names: str) -> Columns:
  """Return default columns without those of second texts or choices that a row does not have.

  names: fields of the columns.
  """
  for name in names:
    if column_value(row, getattr(usual, name).split(',')[0]) is None:
      usual = dataclasses.replace(usual, **{name: ''})
  return usual


def column_value(row: LabeledRow, names: str) -> Any:
  """Return the value of the first column of 'a|b' that the row has, None if it has none."""
  for name in names.split('|'):
    path = [name] if name in row.columns else name.split('.')
    value: Any = row.columns
    for part in path:
      value = value.get(part) if isinstance(value, dict) else None
    if value is not None:
      return value
  return None


def find_column(row: LabeledRow, names: str) -> str:
  """Return the first of the columns 'a|b' that the row has, `names` if it has none."""
  found = (name for name in names.split('|') if column_value(row, name) is not None)
  return next(found, names)


def row_key(row: LabeledRow) -> str:
  """Return the id that a row states, '' if there is none."""
  stated = (row.columns[name] for name in KEY_COLUMNS if row.columns.get(name) is not None)
  return str(next(stated, ''))


def read_text(row: LabeledRow, names: str, field: str = 'first') -> str:
  """Read the text of the columns 'a+b'; a list of texts becomes lines.

  Args:
    row: the row.
    names: columns.
    field: field of `Columns`, by which messages name the option for another column.

  Raises:
    UnreadableRow: a column is missing, is not a text, or is empty.
  """
  parts = []
  for name in names.split('+'):
    value = column_value(row, name)
    if value is None:
      raise missing_column(row, name, field)
    if isinstance(value, list) and value and all(map(is_valid_text, value)):
      value = '\n'.join(value)  # turns of a dialogue
    if not isinstance(value, str) or not is_valid_text(value):
      raise invalid_column(
          row, name, 'no text', f'must be a text, got {describe_type(value)}, {value!r:.80}')
    if not value.strip():
      raise invalid_column(row, name, 'empty text', 'is empty')
    parts.append(value.strip())
  return ' '.join(parts)


def invalid_column(row: LabeledRow, names: str, reason: str, problem: str) -> UnreadableRow:
  """Make the error of a row whose column, of 'a|b', has an invalid value."""
  return UnreadableRow(reason, f'{row.where}: the column {find_column(row, names)!r} {problem}')


def missing_column(row: LabeledRow, names: str, field: str) -> UnreadableRow:
  """Make the error of a row that has none of the columns 'a|b', or in which they are null."""
  several = names.split('|')
  for name in several:
    if name in row.columns:
      return UnreadableRow('no text', f'{row.where}: the column {name!r} is null')
  wanted = ' or '.join(map(repr, several))
  others = [name for name, value in row.columns.items()
            if is_valid_text(value) and name not in LABEL_COLUMNS]
  example = others[0] if len(others) == 1 else 'NAME'
  remedy = 'rename the column that is meant'
  for name in ('column', f'columns.{field}') if field == 'first' else (f'columns.{field}',):
    remedy = add_advice(f'{name_field(name)}={example} reads another', remedy)
  return UnreadableRow('no such column',
                       f'{row.where}: no column {wanted}, only {sorted(row.columns)}', remedy)


def read_sequence(row: LabeledRow, columns: Columns) -> RawExample:
  """Read a text, or a pair of texts, and its label."""
  chosen = ('first', columns.first), ('second', columns.second)
  texts = tuple(read_text(row, names, field) for field, names in chosen if names)
  label = column_value(row, columns.label)
  return RawExample(Example(texts, where=row.where, key=row_key(row)), label)


def read_text_list(row: LabeledRow, names: str, field: str) -> list[str]:
  """Read a text, or a list of texts or of passages, objects with a text and perhaps a title.

  Raises UnreadableRow, as `read_text`.
  """
  value = column_value(row, names)
  if not isinstance(value, list):
    return [read_text(row, names, field)]
  texts = []
  for one in value:
    is_passage = isinstance(one, dict) and isinstance(one.get('text'), str)
    text: Any = f'{one.get("title") or ""} {one["text"]}' if is_passage else one
    if not is_valid_text(text) or not text.strip():
      break
    texts.append(text.strip())
  if not texts or len(texts) < len(value):
    raise invalid_column(row, names, 'no text', f'must hold texts, got {value!r:.80}')
  return texts


def read_tagging(row: LabeledRow, columns: Columns) -> RawExample:
  """Read words and their tags."""
  words, tags = column_value(row, columns.first), column_value(row, columns.label)
  if words is None:
    raise missing_column(row, columns.first, 'first')
  if not isinstance(words, list) or not words or not all(map(is_valid_text, words)):
    raise invalid_column(
        row, columns.first, 'no words', f'must be a list of words, got {words!r:.80}')
  stripped = [word.strip() for word in words]
  if not all(stripped):
    raise UnreadableRow('empty word', f'{row.where}: word {stripped.index("") + 1} is empty')
  example = Example(tuple(words), where=row.where, key=row_key(row))
  item = RawExample(example, None, row.columns.get('document'))
  if tags is None or (isinstance(tags, list) and all(map(is_missing, tags))):
    return item
  if not isinstance(tags, list) or len(tags) != len(words):
    raise UnreadableRow(
        'tags that do not fit', f'{row.where}: {len(words)} words need a tag each, got '
        f'{tags!r:.80}', unlabeled=item)
  for number, tag in enumerate(tags, 1):
    if type(tag) not in (str, int) or is_missing(tag):
      raise UnreadableRow(
          'tags that do not fit', f'{row.where}: a tag must be a text or a number, got '
          f'{describe_type(tag)}, {tag!r:.60}, for word {number}', unlabeled=item)
  return item._replace(label=tags)


def read_question(row: LabeledRow, columns: Columns) -> RawExample:
  """Read a question, its context and its answers (extractive QA).

  Answers are SQuAD's list, lists of texts and starts, or a text. An answer that is not at the
  position that the row states is moved to the nearest occurrence of its text. Answers that do not
  occur go last; if none occurs, the row is unreadable.
  """
  question, context = read_text(row, columns.first), column_value(row, columns.second)
  if context is None:
    raise missing_column(row, columns.second, 'second')
  if not is_valid_text(context) or not context.strip():
    raise invalid_column(
        row, columns.second, 'empty text', f'must be a text, got {context!r:.80}')
  label = column_value(row, columns.label)
  label = [] if label is None and row.columns.get('is_impossible') else label
  example = Example((question, context), where=row.where, key=row_key(row))
  if label is None:
    return RawExample(example)
  answers, moved = [], 0
  try:
    given = parse_answers(label, row.where)
  except UnreadableRow as error:
    error.unlabeled = RawExample(example)
    raise
  for text, start in given:
    place = find_nearest(context, text, start)
    if place < 0 and (trimmed := text.strip()) != text:
      text, place = trimmed, find_nearest(context, trimmed, start)
    moved += place not in (-1, start) and start >= 0
    answers.append(Answer(text, place))
  if answers and all(answer.start < 0 for answer in answers):
    raise UnreadableRow(
        'answer not in its context', f'{row.where}: the answer {answers[0].text!r:.80} is not in '
        'its context', unlabeled=RawExample(example))
  answers.sort(key=lambda answer: answer.start < 0)
  example = dataclasses.replace(example, answers=tuple(answers))
  return RawExample(example, label, moved_answers=moved)


def parse_answers(label: Any, where: str) -> list[tuple[str, int]]:
  """Parse answers -> (text, start; -1: unknown) of each. Raises UnreadableRow for other values."""
  given = label
  if isinstance(given, dict) and isinstance(given.get('text'), list):
    texts = given['text']
    starts = given.get('answer_start') or [-1] * len(texts)
    given = None
    if isinstance(starts, list) and len(starts) == len(texts):
      given = [{'text': text, 'answer_start': start}
               for text, start in zip(texts, starts, strict=True)]
  shown = given
  if isinstance(given, str) and given:
    given = shown = [given]
  if not isinstance(given, list):
    given = [{}]
  pairs = []
  for item in given:
    fields = item if isinstance(item, dict) else {'text': item}
    text: Any = fields.get('text')
    start = fields.get('answer_start', -1)
    if not is_valid_text(text) or not text.strip() or not isinstance(start, int):
      raise UnreadableRow(
          'no answers', f"{where}: answers are texts with their 'answer_start', got {shown!r:.80}")
    pairs.append((text, start))
  return pairs


def find_nearest(context: str, text: str, start: int) -> int:
  """Find the occurrence of a text in a context that is nearest to `start`; -1: none.

  start: -1 returns the first occurrence.
  """
  if start < 0:
    return context.find(text)
  after, before = context.find(text, start), context.rfind(text, 0, start + len(text))
  places = [place for place in (after, before) if place >= 0]
  return min(places, key=lambda place: abs(place - start), default=-1)


def parse_value(label: Any, where: str) -> float:
  """Parse the value of a regression.

  Raises UnreadableRow if it is not a finite number, or too large for its squared error in float32.
  """
  try:
    value = labeled_files.parse_number(label)
  except ValueError as error:
    raise UnreadableRow(
        'no number', f'{where}: the label must be a number in decimal notation, such as 2.5, got '
        f'{label!r:.80}') from error
  if abs(value) > MAX_VALUE:
    raise UnreadableRow(
        'number too large', f'{where}: the label is a number of {MAX_VALUE:g} at most, got '
        f'{label!r:.80}: divide all labels by a power of ten')
  return value


def parse_class(label: Any, classes: Classes, where: str) -> int:
  """Return the index of a class, by its name, or by its index if names are not numbers.

  Raises UnreadableRow.
  """
  try:
    number = classes.class_id(label)
  except ValueError as error:
    raise UnreadableRow('not one label', f'{where}: the label {error}') from error
  if number < 0:
    known = ', '.join(classes.names[:MAX_SHOWN])
    if len(classes.names) > MAX_SHOWN:
      known += ', ...'
    if classes.numeric:
      known += add_advice(f'; {name_field("objective.labels")} names all steps of a scale, also '
                          'those without a training example')
    raise UnreadableRow('unknown label', f'{where}: the label {format_label(label)[:60]!r} is none '
                        f'of those that are learned: {known}')
  return number
