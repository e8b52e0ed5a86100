"""Example format of multiple choice: a context, a question, and choices."""
from collections.abc import Sequence
from typing import Any

from plm_jax.tasks import row_readers
from plm_jax.tasks.example_formats import ExampleFormat, InputExample
from plm_jax.tasks.examples import Example, are_texts, input_parts
from plm_jax.tasks.outputs import Choice
from plm_jax.tasks.row_readers import Columns, UnreadableRow


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
    del columns
    return row_readers.split_questions(row)

  def guess_columns(self, columns, row):
    """Fill in the columns; choices may have a column each."""
    return columns.fill_from(row_readers.find_choice_columns(self.columns, row))

  def read(self, row, columns):
    """Read a context, a question and its choices."""
    return row_readers.read_choice(row, columns)

  def normalize_labels(self, source, part, names, notes):
    """Replace labels by indices of choices, in the one way in which most of a source can be read.

    A label that cannot be read in this way is left as it is.
    """
    del names
    labels: list[Any] = []
    for item in part:
      if item.label is not None:
        labels.append((*item.label, item.example.choices))
    found = {}
    for reading in row_readers.CHOICE_READINGS:
      found[reading] = [row_readers.index_choice(reading, *label) for label in labels]
    best = max(found, key=lambda reading: sum(index >= 0 for index in found[reading]))
    others = []
    for reading in row_readers.CHOICE_READINGS[:-1]:  # all numbers could be numbers from 1
      pairs = zip(found[reading], found[best], strict=True)
      if any(0 <= index != chosen for index, chosen in pairs):
        others.append(reading)
    if others or best == row_readers.CHOICE_READINGS[-1]:
      also = f'; some could also be {" or ".join(others)}' if others else ''
      notes.append(f'{source}: labels are {best} of choices in all rows{also}')
    indices = iter(found[best])
    normalized = []
    for item in part:
      index = -1 if item.label is None else next(indices)
      normalized.append(item if index < 0 else item._replace(label=index))
    return normalized

  def parse_label(self, item, classes):
    """Return the index of the choice."""
    del classes
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
    """Return the text with two choices."""
    return text, [text.split()[0]] * 2

  def name_prediction(self, task, example, prediction, text, starts):
    """Return the predicted choice."""
    del task, text, starts
    number = prediction.label
    probabilities = [float(share) for share in prediction.probabilities]
    return Choice(example.choices[number], number, probabilities[number], probabilities)

  def input_fields(self, example):
    """Return context and question."""
    return dict(zip(('context', 'question'), example.texts, strict=True))

  def table_fields(self, one, named, truth):
    """Return the cells of the choice, the truth and the texts."""
    cells = {'number': named.number, 'probability': named.probability, 'choice': named.choice,
             'truth': truth}
    return cells | self.input_fields(one.example)


CHOICE = Choices()
