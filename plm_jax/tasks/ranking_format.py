"""Format of queries with documents, each with its relevance or with a teacher's score."""
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.metrics.ranking import RANKING_METRICS
from plm_jax.sources import row_readers
from plm_jax.sources.class_names import is_missing
from plm_jax.sources.row_readers import (
  Columns,
  Example,
  RawExample,
  UnreadableRow,
  are_texts,
  input_parts,
)
from plm_jax.tasks.contract import sigmoid
from plm_jax.tasks.example_formats import ExampleFormat, InputExample

RELEVANCE_COLUMNS = 'relevance', 'labels', 'label'


class QueryDocuments(ExampleFormat):
  """A query with documents; a document's label is its relevance."""

  name = 'rerank'
  columns = Columns(
      'query|question|anchor|sentence1|text_a',
      'documents|docs|document|passages|passage|positive|pos|positives|positive_passages|'
      'positive_ctxs|answer|sentence2|text_b|text',
      'relevance|labels|label|scores|score',
      'negatives|negative|neg|hard_neg|negative_passages|hard_negative_ctxs')
  expected_input = 'a query and a document, or a list of documents'
  text_counts = (2,)
  measures = RANKING_METRICS
  has_class_names = False
  mistakes_title = 'Largest errors'

  def guess_columns(self, columns, row):
    """Fill in the columns; negatives may have a column each."""
    usual = row_readers.find_negative_columns(self.columns, row)
    return columns.fill_from(row_readers.drop_missing_columns(usual, row, 'choices'))

  def read(self, row, columns):
    query = row_readers.read_text(row, columns.first)
    documents = row_readers.read_text_list(row, columns.second, 'second')
    negatives: list[str] = []
    for name in filter(None, columns.choices.split(',')):
      if row_readers.column_value(row, name) not in (None, '', []):
        negatives += row_readers.read_text_list(row, name, 'choices')
    choices, scores = tuple(documents + negatives), None
    label = row_readers.column_value(row, columns.label)
    is_relevance = row_readers.find_column(row, columns.label) in RELEVANCE_COLUMNS and (
        isinstance(label, list) and len(label) == len(choices))
    if columns.choices and not is_relevance:
      # The columns tell which documents are relevant; numbers are a teacher's scores or margins.
      if not is_missing(label):
        scores = parse_scores(label, len(choices), row.where)
      label = [1.0] * len(documents) + [0.0] * len(negatives)
    example = Example(
        (query,), choices=choices, scores=scores, where=row.where, key=row_readers.row_key(row))
    return RawExample(example, label)

  def parse_label(self, item, classes):
    return parse_scores(item.label, len(item.example.choices), item.example.where)

  def parse_parts(self, given, where):
    """Make an example of (query, document) or (query, documents)."""
    parts = input_parts(given)
    if len(parts) != 2:
      return None
    documents = parts[1:] if isinstance(parts[1], str) else input_parts(parts[1])
    if not are_texts(parts[:1]) or not are_texts(documents):
      return None
    return InputExample(Example(parts[:1], choices=tuple(documents), where=where))

  def compact_example(self, example):
    """Keep the query, by which documents are ranked."""
    return Example(example.texts, example.label)

  def sample_input(self, text):
    return text, text

  def name_truth(self, task, example):
    label: Any = example.label
    return None if label is None else list(label)

  def json_fields(self, one, named, truth):
    example = one.example
    fields: dict[str, Any] = {'query': example.texts[0]}
    documents = list(example.choices)
    if len(documents) > 1:
      return fields | {'documents': documents, 'scores': named.scores} | truth
    single = {name: value[0] if isinstance(value, list) else value
              for name, value in truth.items()}
    return fields | {'document': documents[0], 'score': named.scores[0]} | single

  def table_fields(self, one, named, truth):
    fields: dict[str, Any] = self.json_fields(one, named, {'truth': truth})
    key = {'id': one.example.key} if one.example.key else {}
    return key | {name: ' '.join(map(str, value)) if isinstance(value, list) else value
                  for name, value in fields.items()}

  def is_correct(self, task, example, prediction):
    """Tell whether no document is on the wrong side."""
    return bool(relevance_errors(task, example, prediction).max(initial=0) < 0.5)

  def rank_mistakes(self, task, found):
    """Return all examples, those with the largest error of a document first."""
    return sorted(found, key=lambda one: -relevance_errors(task, *one).max(initial=0))

  def describe_label(self, task, example, label):
    return ', '.join(f'{value:g}' for value in label)

  def describe_prediction(self, task, example, prediction):
    return ', '.join(f'{score:.3f}' for score in prediction.scores)


RERANK = QueryDocuments()


def parse_scores(given: Any, count: int, where: str) -> tuple[float, ...]:
  """Parse the number of each document. Margins of the first to the others become scores.

  Raises UnreadableRow.
  """
  listed = given if isinstance(given, list) else [given]
  values = tuple(row_readers.parse_value(value, where) for value in listed)
  if len(values) == count:
    return values
  if len(values) == count - 1:
    return (0.0,) + tuple(-value for value in values)
  raise UnreadableRow(
      'scores that do not fit', f'{where}: {count} documents need a relevance each, or '
      f'{count - 1} margins of the first to the others, got {len(values)}')


def get_teacher_scores(examples: Sequence[Example]) -> list[Example]:
  """Return examples whose labels are a teacher's scores of their documents.

  Raises ConfigError if there are none: all numbers are 0 or 1, which is relevance.
  """
  scored, numbers = [], set()
  for example in examples:
    label: Any = example.scores or example.label
    scored.append(dataclasses.replace(example, label=label))
    numbers |= set(label or ())
  if numbers <= {0.0, 1.0}:
    raise ConfigError(
        'the loss learns a teacher\'s scores, and the examples have none: all relevance is 0 or 1. '
        'mine-negatives with a judge writes scores')
  return scored


def relevance_errors(task: Any, example: Example, prediction: Any) -> np.ndarray:
  """Return how far the score of each document is from its relevance, from 0 to 1."""
  scores = np.asarray(prediction.scores, np.float64)
  scores = sigmoid(scores) if task.activation == 'none' else scores
  truth = np.asarray(example.label or [0.0] * len(scores), np.float64)
  return np.abs(scores - np.clip(truth / max(1.0, truth.max(initial=0)), 0, 1))
