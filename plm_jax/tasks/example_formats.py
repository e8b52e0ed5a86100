"""Example formats: how the examples of a kind of task are read, labeled, predicted and printed.

`ExampleFormat` is the contract; its defaults suit texts with one label. A kind of task that needs
another format defines it next to the task. `tasks.kinds` registers formats by name.
"""
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re
from typing import Any, ClassVar, NamedTuple

import numpy as np

from plm_jax.errors import ConfigError, add_advice, name_field
from plm_jax.metrics.tasks import (
  AnswerScript,
  ClassScore,
  answer_metrics,
  confusion_matrix,
  per_class_scores,
)
from plm_jax.sources import row_readers
from plm_jax.sources.class_names import WHOLE_NUMBER, Classes, format_label, name_classes
from plm_jax.sources.conll import FileLayout
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.row_readers import (
  Columns,
  Example,
  RawExample,
  UnreadableRow,
  are_texts,
  input_parts,
)
from plm_jax.tasks.outputs import Label, Value
from plm_jax.validation import short_repr

Predictions = Sequence[tuple[Example, Any]]
"""examples, each with its prediction"""
TWO_WORDS = re.compile(r'[^\W\d]\s+[^\W\d]')
TEXT_FILE = re.compile(r'\.txt(\.gz|\.xz)?$')


class InputExample(NamedTuple):
  """An example; for tagging, also the text that was split into its words."""

  example: Example
  text: str = ''
  """'': the words were given"""
  starts: tuple[int, ...] = ()
  """position in the text at which each word begins"""


class ExampleFormat:
  """Contract of an example format: texts with one label, where a method says nothing else.

  A format has no state. Arguments called `task` are the task (`tasks.contract.Task`) whose
  examples and predictions have the format.
  """

  name: ClassVar[str]
  """name of the kind, as in --task"""
  columns: ClassVar[Columns]
  """default columns of a row"""
  expected_input: ClassVar[str]
  """what a user gives to have an example predicted"""
  text_counts: ClassVar[tuple[int, ...]] = (1, 2)
  """number of texts that an input may have"""
  measures: ClassVar[tuple[str, ...]] = ('accuracy',)
  """default metrics"""
  has_class_names: ClassVar[bool] = True
  """whether labels are names of classes, which the training examples list"""
  is_labeled: ClassVar[bool] = True
  """whether examples to learn from and to evaluate on need a label"""
  hides_labels: ClassVar[bool] = False
  """whether a negative number is a hidden label, as in test sets of benchmarks"""
  other_columns: ClassVar[tuple[str, ...]] = ()
  """columns that are not named as unread: they are read in another way, or have no content"""
  ignored_labels: ClassVar[str] = ''
  """what follows from labels that pairs of texts have and the format does not read, and what to do;
  empty: nothing"""
  function: ClassVar[str] = 'predict'
  """function of the API whose compiled programs predict examples"""
  writes_columns: ClassVar[bool] = False
  """whether predictions are written as words in columns, too"""
  has_probabilities: ClassVar[bool] = False
  """whether predictions can be written with the probabilities of all classes"""
  mistakes_title: ClassVar[str] = 'Most confident mistakes'
  """title of `rank_mistakes` in the report"""

  # Reading rows.

  def file_layout(self, columns: Columns, encoding: str) -> FileLayout:
    """Return the layout of files whose names do not determine it."""
    return FileLayout(header=not columns.are_numbers, encoding=encoding)

  def has_text_lines(self, source: str) -> bool:
    """Tell whether a source holds one text per line, without columns."""
    return False

  def split_row(self, row: LabeledRow, columns: Columns) -> Iterable[LabeledRow]:
    """Split a row of a file into rows of one example each; columns: those that the user names."""
    return (row,)

  def guess_columns(self, columns: Columns, row: LabeledRow) -> Columns:
    """Fill in the columns that were not named from the default names that a row has.

    Raises UnreadableRow.
    """
    return columns.fill_from(self.columns)

  def read(self, row: LabeledRow, columns: Columns) -> RawExample:
    """Read an example and its label. Raises UnreadableRow."""
    return row_readers.read_sequence(row, columns)

  def join_texts(self, example: Example) -> str:
    """Join the texts of an example, to train a tokenizer on."""
    return '\n'.join((*example.texts, *example.choices))

  # Labels.

  def normalize_labels(
      self, source: str, part: list[RawExample], names: Sequence[str], notes: list[str]
  ) -> list[RawExample]:
    """Rewrite the labels of a source in the common form; adds to `notes`. Raises SourceError."""
    return part

  def list_labels(self, raw: Sequence[RawExample], notes: list[str]) -> tuple[str, ...]:
    """List the class names of examples in the order of their indices; () if there are none."""
    return ()

  def parse_label(self, item: RawExample, classes: Classes) -> Any:
    """Convert a label that is not missing to what the task learns. Raises UnreadableRow."""
    return item.label

  def note_labels(
      self, raw: Sequence[RawExample], names: Sequence[str], notes: list[str]) -> None:
    """Add to `notes` how labels were interpreted."""

  # Inputs of users.

  def parse_input(self, given: Any, where: str) -> InputExample:
    """Make an example of a text, or of several in a tuple or list.

    Raises ConfigError, which names `where`, for an input that does not fit.
    """
    if isinstance(given, Example):
      return InputExample(given)
    found = self.parse_parts(given, where)
    if found is None:
      raise ConfigError(f'{where}: expected {self.expected_input}, none of them empty, got '
                        f'{short_repr(given)}')
    return found

  def parse_parts(self, given: Any, where: str) -> InputExample | None:
    """Make an example of one or several texts; None for an input that does not fit."""
    parts = input_parts(given)
    if len(parts) not in self.text_counts or not are_texts(parts):
      return None
    return InputExample(Example(parts, where=where))

  def split_line(self, line: str) -> Any:
    """Return the input that a line of a text file holds: a text, or texts separated by tabs."""
    fields = line.split('\t')
    return line if len(fields) == 1 else tuple(fields)

  def compact_example(self, example: Example) -> Example:
    """Reduce an example to what metrics read; examples of a large file are kept."""
    return Example((), example.label, answers=example.answers)

  def sample_input(self, text: str) -> Any:
    """Return an input made of a text, to compile programs for its length."""
    return text

  # Predictions.

  def name_prediction(
      self, task: Any, example: Example, prediction: Any, text: str, starts: Sequence[int]) -> Any:
    """Convert a prediction to label names, if it has indices; arguments as in `name_labels`."""
    return prediction

  def name_truth(self, task: Any, example: Example) -> Any:
    """Return the label of an example by name; None if it has none."""
    return example.label

  def input_fields(self, example: Example) -> dict[str, Any]:
    """Return the texts of an example by name, for a line of JSON."""
    if len(example.texts) == 1:
      return {'text': example.texts[0]}
    return dict(zip(('text_a', 'text_b'), example.texts, strict=True))

  def json_fields(self, one: InputExample, named: Any, truth: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a line of JSON: the input, the named prediction, and the truth."""
    return self.input_fields(one.example) | named._asdict() | truth

  def table_fields(self, one: InputExample, named: Any, truth: Any) -> dict[str, Any]:
    """Return the cells of a row of a table by column: key, prediction, truth, texts."""
    key = {'id': one.example.key} if one.example.key else {}
    texts = dict(zip(('text', 'text_b'), one.example.texts, strict=False))
    return key | self.prediction_cells(named) | {'truth': truth} | texts

  def prediction_cells(self, named: Any) -> dict[str, Any]:
    """Return the cells of a named prediction."""
    return {'label': named.label, 'probability': named.probability}

  def all_probabilities(self, task: Any, named: Any, prediction: Any) -> Any:
    """Return a named prediction with the probabilities of all classes. Raises ConfigError."""
    return named

  # Analysis of errors.

  def is_correct(self, task: Any, example: Example, prediction: Any) -> bool:
    """Tell whether a prediction is correct."""
    return example.label == prediction.label

  def rank_mistakes(self, task: Any, found: Predictions) -> Predictions:
    """Return the mistakes among examples with predictions, the most confident ones first."""
    wrong = [one for one in found if not self.is_correct(task, *one)]
    return sorted(wrong, key=lambda one: -self.confidence(*one))

  def count_confusion(self, task: Any, found: Predictions) -> np.ndarray | None:
    """Count examples by [true class, predicted class]; None for examples without classes."""
    return None

  def score_classes(self, task: Any, found: Predictions) -> Mapping[str, ClassScore]:
    """Compute precision, recall and F1 of each class or kind of entity; {}: there are none."""
    return {}

  def confidence(self, example: Example, prediction: Any) -> float:
    """Return the probability of a prediction."""
    return float(prediction.probabilities[prediction.label])

  def describe_label(self, task: Any, example: Example, label: Any) -> str:
    """Describe a true or predicted label for the report."""
    names = example.choices or task.labels
    return names[int(label or 0)]

  def describe_prediction(self, task: Any, example: Example, prediction: Any) -> str:
    """Describe a prediction for the report."""
    label = self.describe_label(task, example, prediction.label)
    return f'{label} ({self.confidence(example, prediction):.1%})'


class SequenceFormat(ExampleFormat):
  """A text or a pair of texts."""

  expected_input = 'a text, or a pair of texts'

  def guess_columns(self, columns, row):
    """Fill in the columns; two texts come from the usual pairs of columns."""
    pairs = (pair for pair in row_readers.PAIR_COLUMNS if set(pair) <= row.columns.keys())
    first, second = next(pairs, (self.columns.first, self.columns.second))
    return columns.fill_from(dataclasses.replace(self.columns, first=first, second=second))


class Classification(SequenceFormat):
  """A text or a pair of texts with a class."""

  name = 'classification'
  columns = Columns(
      'sentence|text|review|content|title|question',
      label='label|gold_label|labels|class|category|sentiment|is_duplicate')
  hides_labels = True
  has_probabilities = True

  def list_labels(self, raw, notes):
    """List the class names: numbers in numeric order, others sorted."""
    names, found = name_classes(item.label for item in raw)
    notes += found
    return names

  def parse_label(self, item, classes):
    return row_readers.parse_class(item.label, classes, item.example.where)

  def note_labels(self, raw, names, notes):
    """Note which number stands for which class if a source has numbers instead of names."""
    known = set(names)
    for item in raw:
      if not isinstance(item.label, str | int):
        continue
      text = format_label(item.label)
      if WHOLE_NUMBER.fullmatch(text) and text not in known:
        shown = names[:row_readers.MAX_SHOWN]
        pairs = [f'{number} is {name!r}' for number, name in enumerate(shown)]
        notes.append('labels are numbers: ' + ', '.join(pairs))
        return

  def name_prediction(self, task, example, prediction, text, starts) -> Any:
    probabilities = [float(share) for share in prediction.probabilities]
    names = task.labels or tuple(map(str, range(len(probabilities))))
    number = prediction.label
    by_name = dict(zip(names, probabilities, strict=True))
    return Label(names[number], probabilities[number], by_name)

  def name_truth(self, task, example):
    return None if example.label is None else task.labels[int(example.label)]  # pyright: ignore

  def count_confusion(self, task, found):
    truth, predicted = split_labels(found)
    return confusion_matrix(truth, predicted, len(task.labels))

  def score_classes(self, task, found):
    truth, predicted = split_labels(found)
    return per_class_scores(truth, predicted, task.labels)


class Regression(SequenceFormat):
  """A text or a pair of texts with a number."""

  name = 'regression'
  columns = Columns(
      'sentence|text|review|content|title',
      label='score|label|similarity|relatedness|labels|is_duplicate')
  measures = ('pearson', 'spearman')
  has_class_names = False
  mistakes_title = 'Largest errors'

  def parse_label(self, item, classes):
    return row_readers.parse_value(item.label, item.example.where)

  def name_prediction(self, task, example, prediction, text, starts):
    return Value(prediction.value)

  def prediction_cells(self, named):
    return {'value': named.value}

  def rank_mistakes(self, task, found):
    """Return all examples with predictions, the largest errors first."""
    return sorted(found, key=lambda one: -abs(one[1].value - one[0].label))

  def describe_label(self, task, example, label):
    return f'{label:.2f}'

  def describe_prediction(self, task, example, prediction):
    return self.describe_label(task, example, prediction.value)


class Answers(ExampleFormat):
  """A question and its context, with the answers (extractive QA)."""

  name = 'answers'
  columns = Columns('question', 'context|passage', 'answers|answer')
  expected_input = 'a question and its context'
  text_counts = (2,)
  measures = ('f1', 'exact')
  has_class_names = False
  other_columns = ('title', 'is_impossible', 'plausible_answers')
  function = 'answer'

  def read(self, row, columns):
    return row_readers.read_question(row, columns)

  def parse_label(self, item, classes):
    """Return None: the example has the answers."""

  def name_truth(self, task, example):
    return None if example.answers is None else [answer.text for answer in example.answers]

  def json_fields(self, one, named, truth):
    fields = {'question': one.example.texts[0], 'answer': named.text, 'start': named.start,
              'end': named.end, 'probability': named.probability}
    candidates = [candidate._asdict() for candidate in named.candidates]
    return fields | truth | {'candidates': candidates}

  def table_fields(self, one, named, truth):
    return {'id': one.example.key, 'question': one.example.texts[0], 'answer': named.text,
            'probability': named.probability, 'start': named.start, 'end': named.end,
            'truth': truth}

  def is_correct(self, task, example, prediction):
    """Tell whether the answer is an exact match by the task's evaluation script."""
    golds = [answer.text for answer in example.answers or ()]
    if not golds or not prediction.text:
      return not golds and not prediction.text
    script: AnswerScript = getattr(task, 'script', 'squad')
    return answer_metrics([golds], [prediction.text], script)['exact'] > 0

  def confidence(self, example, prediction):
    return prediction.probability


class RelatedTexts(ExampleFormat):
  """Related texts: an anchor, its positive, and negatives. A prediction compares the first two."""

  name = 'embedding'
  columns = Columns(
      'anchor|query|sent0|sentence1|premise|question1|question|sentence|text',
      'positive|pos|positives|passage|document|answer|sent1|sentence2|hypothesis|question2|'
      'translation|positive_passages|positive_ctxs', '',
      'negatives|negative|neg|hard_neg|negative_passages|hard_negative_ctxs')
  expected_input = 'two texts'
  text_counts = (2,)
  measures = ('spearman',)
  has_class_names = False
  is_labeled = False
  ignored_labels = (
      f'and every pair would be a positive one. {name_field("loss")}=softmax learns classes of '
      f'pairs, {name_field("loss")}=cosent numbers, and {name_field("objective.entailment")}=NAME '
      'takes the pairs of one class')
  function = 'encode'

  def has_text_lines(self, source):
    return bool(TEXT_FILE.search(source.lower()))

  def guess_columns(self, columns, row):
    """Fill in the columns; texts without negatives are examples too, as are texts alone."""
    usual = row_readers.find_negative_columns(self.columns, row)
    found = columns.fill_from(row_readers.drop_missing_columns(
        usual, row, 'second', 'choices'))
    others = row_readers.find_unread_columns(row, found, ())
    values = [row.columns[name] for name in others]
    if columns.first or found.second or not any(
        isinstance(value, list) or TWO_WORDS.search(str(value)) for value in values):
      return found
    first = row_readers.find_column(row, found.first)
    raise UnreadableRow(
        'no such column', f'{row.where}: no column with the positive of {first!r}, only {others}',
        add_advice(f'{name_field("columns.second")}=NAME reads one, {name_field("columns.first")}='
                   f'{first} alone pairs each text with itself'))

  def split_row(self, row, columns):
    """Split a row with several positives into a row per positive."""
    names = columns.fill_from(self.columns).second
    value, name = row_readers.column_value(row, names), row_readers.find_column(row, names)
    if not isinstance(value, list) or name not in row.columns:
      return [row]
    return [LabeledRow(row.columns | {name: one and [one]}, row.where) for one in value or [None]]

  def read(self, row, columns):
    """Read an anchor, its positive and its negatives, as far as there are columns for them."""
    texts = [row_readers.read_text(row, columns.first)]
    if columns.second:
      texts += row_readers.read_text_list(row, columns.second, 'second')[:1]
    for name in filter(None, columns.choices.split(',')):
      if row_readers.column_value(row, name) not in (None, '', []):
        texts += row_readers.read_text_list(row, name, 'choices')
    return RawExample(Example(tuple(texts), where=row.where, key=row_readers.row_key(row)))

  def name_prediction(self, task, example, prediction, text, starts):
    return Value(prediction.value)

  def prediction_cells(self, named):
    return {'value': named.value}


CLASSIFICATION, REGRESSION = Classification(), Regression()
ANSWERS, EMBEDDING = Answers(), RelatedTexts()


def split_labels(found: Predictions) -> tuple[list[int], list[int]]:
  """Split examples with predictions into true labels and predicted labels."""
  truth: Any = [example.label for example, _ in found]
  return truth, [prediction.label for _, prediction in found]
