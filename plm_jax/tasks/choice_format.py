"""Example format of multiple choice: a context, a question, and choices."""
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import re
from typing import Any, NamedTuple

from plm_jax.sources import labeled_files, row_readers
from plm_jax.sources.class_names import is_missing
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.row_readers import (
  Columns,
  Example,
  RawExample,
  UnreadableRow,
  are_texts,
  input_parts,
)
from plm_jax.tasks.example_formats import ExampleFormat, InputExample

# Names of columns with a choice each: a prefix, and the numbers or letters that follow it.
CHOICE_PREFIXES = ('ending', 'answer', 'sol', 'choice', 'option', '')
CHOICE_SUFFIXES = ('0123456789', '123456789', 'ABCDEFGHIJ')
# The questions of COPA, as jiant words them.
COPA_QUESTIONS = {
    'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
CHOICE_READINGS = ('keys', 'texts', 'numbers from 0', 'letters', 'numbers from 1')
"""what labels of choices may be, in the order of preference"""


class ChoiceLabel(NamedTuple):
  """The label of a multiple-choice row as in the file, and the names of its choices."""

  value: Any
  keys: tuple[str, ...]


class Choices(ExampleFormat):
  """A context and a question with choices, one of which is correct."""

  name = 'choice'
  columns = Columns(
      'context|article|passage|sent1|startphrase|premise|ctx|content',
      'question.stem|question|sent2|goal', 'label|answerKey|answer|answers',
      'choices|question.choices|endings|options|candidates|choice')
  expected_input = 'a context and a list of choices, between them a question if there is one'
  has_class_names = False

  def split_row(self, row, columns):
    """Split a passage with several questions into a row per question."""
    return split_questions(row)

  def guess_columns(self, columns, row):
    """Fill in the columns; choices may have a column each."""
    usual = self.columns
    if row_readers.column_value(row, usual.choices) is None:
      for prefix, suffixes in itertools.product(CHOICE_PREFIXES, CHOICE_SUFFIXES):
        names = [f'{prefix}{suffix}' for suffix in suffixes]
        found = list(itertools.takewhile(row.columns.__contains__, names))
        if len(found) > 1 and (prefix or suffixes[0] == 'A'):
          usual = dataclasses.replace(usual, choices=','.join(found))
          break
    return columns.fill_from(usual)

  def read(self, row, columns):
    return read_choice(row, columns)

  def normalize_labels(self, source, part, names, notes):
    """Replace labels by indices of choices, in the one way in which most of a source can be read.

    A label that cannot be read in this way is left as it is.
    """
    labels: list[Any] = [
        (*item.label, item.example.choices) for item in part if item.label is not None]
    found = {reading: [index_choice(reading, *label) for label in labels]
             for reading in CHOICE_READINGS}
    best = max(found, key=lambda reading: sum(index >= 0 for index in found[reading]))
    def differs(reading):
      pairs = zip(found[reading], found[best], strict=True)
      return any(0 <= index != chosen for index, chosen in pairs)
    others = list(filter(differs, CHOICE_READINGS[:-1]))  # all numbers could be numbers from 1
    if others or best == CHOICE_READINGS[-1]:
      also = f'; some could also be {" or ".join(others)}' if others else ''
      notes.append(f'{source}: labels are {best} of choices in all rows{also}')
    indices = iter(found[best])
    normalized = []
    for item in part:
      index = -1 if item.label is None else next(indices)
      normalized.append(item if index < 0 else item._replace(label=index))
    return normalized

  def parse_label(self, item, classes):
    if isinstance(item.label, int):
      return item.label
    raise UnreadableRow(
        'unknown label', f'{item.example.where}: the label is a number below '
        f'{len(item.example.choices)}, a letter, or one of the choices, as in the other rows, got '
        f'{item.label.value!r:.80}')

  def parse_parts(self, given, where):
    """Make an example of (context, choices) or (context, question, choices)."""
    parts = input_parts(given)
    if not 2 <= len(parts) <= 3 or not are_texts(parts[:-1]):
      return None
    choices = parts[-1]
    is_list = isinstance(choices, Sequence) and not isinstance(choices, str)
    if not is_list or len(choices) < 2 or not are_texts(choices):
      return None
    question = parts[1] if len(parts) == 3 else ''
    return InputExample(Example((parts[0], question), choices=tuple(choices), where=where))

  def split_line(self, line):
    """Return the context and the choices, separated by tabs."""
    fields = line.split('\t')
    return fields[0], fields[1:]

  def sample_input(self, text):
    return text, [text.split()[0]] * 2

  def input_fields(self, example):
    return dict(zip(('context', 'question'), example.texts, strict=True))

  def table_fields(self, one, named, truth):
    cells = {'number': named.number, 'probability': named.probability, 'choice': named.choice,
             'truth': truth}
    return cells | self.input_fields(one.example)


CHOICE = Choices()


def read_choice(row: LabeledRow, columns: Columns) -> RawExample:
  """Read a context, a question and its choices; a question without context is the context."""
  names = columns.choices.split(',')
  if len(names) > 1:
    choices = [row_readers.read_text(row, name, 'choices') for name in names]
    keys = [str(number) for number in range(len(choices))]
  elif row_readers.column_value(row, columns.choices) is None:
    raise row_readers.missing_column(row, columns.choices, 'choices')
  else:
    choices, keys = labeled_files.get_choices(row, *columns.choices.split('|'))
  if not all(map(str.strip, choices)):
    raise UnreadableRow('empty text', f'{row.where}: an empty choice')
  texts = [row_readers.read_text(row, name) for name in (columns.first, columns.second)
           if name and row_readers.column_value(row, name.split('+')[0]) is not None]
  if not texts:
    row_readers.read_text(row, columns.first)  # raises
  question = COPA_QUESTIONS.get(texts[1], texts[1]) if len(texts) == 2 else ''
  example = Example(
      (texts[0], question), choices=tuple(choice.strip() for choice in choices), where=row.where,
      key=row_readers.row_key(row))
  label = row_readers.column_value(row, columns.label)
  if is_missing(label) or label == -1:
    return RawExample(example)
  return RawExample(example, ChoiceLabel(label, tuple(keys)))


def index_choice(reading: str, label: Any, keys: Sequence[str], choices: Sequence[str]) -> int:
  """Return the index of the choice that a label means in one of CHOICE_READINGS; -1: none."""
  if isinstance(label, float) and label.is_integer():
    label = int(label)  # pandas writes integers as floats in a column with missing values
  text, found = str(label).strip(), -1
  if reading == 'keys' and text in keys and list(keys) != list(map(str, range(len(keys)))):
    found = list(keys).index(text)
  elif reading == 'texts' and isinstance(label, str) and choices.count(text) == 1:
    found = choices.index(text)
  elif reading == 'letters' and re.fullmatch('[A-Z]', text):
    found = ord(text) - ord('A')
  elif reading.startswith('numbers') and re.fullmatch('[0-9]{1,4}', text):
    found = int(text) - (reading == 'numbers from 1')
  return found if found < len(choices) else -1


def split_questions(row: LabeledRow) -> Iterator[LabeledRow]:
  """Yield a row per question of a passage, such as RACE's; other rows unchanged.

  RACE's columns are 'article', 'questions', 'options' and 'answers'.
  """
  lists = ('questions', 'options', 'answers')
  values: Any = [row.columns.get(name) for name in lists]
  questions, options, answers = values
  are_lists = isinstance(questions, list) and isinstance(options, list)
  if not are_lists or len(questions) != len(options):
    yield row
    return
  if not isinstance(answers, list) or len(answers) != len(questions):
    answers = [None] * len(questions)
  shared = {name: value for name, value in row.columns.items() if name not in lists}
  for number, question in enumerate(questions):
    own = {'question': question, 'options': options[number], 'answer': answers[number]}
    yield LabeledRow(shared | own, f'{row.where}.{number}')
