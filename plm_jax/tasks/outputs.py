"""Outputs of prediction for users: predictions with the names of labels, and their metrics."""
from collections.abc import Iterator, Sequence
import itertools
import math
from typing import Any, NamedTuple

from plm_jax.metrics.tag_schemes import find_chunks
from plm_jax.sources.row_readers import Example


class Label(NamedTuple):
  """The predicted class of a text, or of a pair of texts."""

  label: str
  """name of the most likely class"""
  probability: float
  probabilities: dict[str, float]
  """of each class"""


class Labels(NamedTuple):
  """The predicted labels of a text, or of a pair of texts (multi-label classification)."""

  labels: list[str]
  """names of the labels whose probability is above their threshold"""
  probabilities: dict[str, float]
  """of each label"""


class Value(NamedTuple):
  """The predicted number of a text, or of a pair of texts (regression)."""

  value: float


class Relevance(NamedTuple):
  """The scores of documents for a query (reranking)."""

  scores: list[float]
  """of each document, in the order in which they were given"""


class Choice(NamedTuple):
  """The predicted choice (multiple choice)."""

  choice: str
  number: int
  """its index among the choices, from 0"""
  probability: float
  probabilities: list[float]
  """of each choice"""

  @property
  def label(self) -> int:
    """Index of the choice, which metrics read."""
    return self.number


class Entity(NamedTuple):
  """The words of a predicted chunk: text[start:end]."""

  text: str
  type: str
  """such as PER"""
  start: int
  end: int
  probability: float
  """minimum over its words"""


class Tags(NamedTuple):
  """The predicted tags of the words of a text (token classification)."""

  words: list[str]
  tags: list[str]
  probabilities: list[float]
  """of each tag"""
  entities: list[Entity]
  """the chunks, if tags are B-X, I-X and O; empty if they are classes of words"""
  all_probabilities: Sequence[dict[str, float]] = ()
  """probability of every tag, per word; `predict --probabilities` writes them"""


def name_labels(
    task: Any, example: Example, prediction: Any, text: str = '', starts: Sequence[int] = ()
) -> Any:
  """Convert a prediction of a task to label names; answers of extractive QA stay unchanged.

  Args:
    task: the task (`tasks.contract.Task`).
    example: what was predicted.
    prediction: as `Task.predict` returns it.
    text: for tagging, the text that was split into words; '': the words, joined by spaces.
    starts: position at which each word begins in `text`.
  """
  return task.example_format.name_prediction(task, example, prediction, text, starts)


def prediction_fields(task: Any, one: Any, prediction: Any) -> dict[str, Any]:
  """Return the JSON fields of a prediction: its input, the prediction, and the truth if known.

  Args:
    task: the task (`tasks.contract.Task`).
    one: the input (`tasks.example_formats.InputExample`).
    prediction: from `name_labels`.
  """
  example_format, example = task.example_format, one.example
  label = example_format.name_truth(task, example)
  key = {'id': example.key} if example.key else {}
  truth = {} if label is None else {'truth': label}
  return key | example_format.json_fields(one, prediction, truth)


def find_entities(
    words: Sequence[str], tags: Sequence[str], probabilities: Sequence[float], text: str = '',
    starts: Sequence[int] = ()) -> Iterator[Entity]:
  """Yield the entities of tags; `text` and `starts` as for `name_labels`."""
  if not text:
    text = ' '.join(words)
    starts = [0, *itertools.accumulate(len(word) + 1 for word in words)]
  for first, last, kind in find_chunks(tags):
    start, end = starts[first], starts[last] + len(words[last])
    probability = min(probabilities[first:last + 1], default=math.nan)
    yield Entity(text[start:end], kind, start, end, probability)


def bracket_entities(text: str, entities: Sequence[Entity]) -> str:
  """Write a text with its entities in brackets: '[Angela Merkel PER] came.'"""
  parts, at = [], 0
  for entity in entities:
    parts += [text[at:entity.start], f'[{entity.text} {entity.type}]']
    at = entity.end
  parts.append(text[at:])
  return ''.join(parts)


class StreamingMetrics:
  """Evaluates predictions that arrive in chunks, keeping only what the task's metrics read."""

  def __init__(self, task: Any):
    self.task = task
    self.num_predictions = 0
    self.examples: list[Example] = []
    self.predictions: list[Any] = []
    self.unique: dict[Example, Example] = {}  # one object for all equal ones

  @property
  def num_labeled(self) -> int:
    """Number of examples with a label."""
    return len(self.examples)

  def add(self, examples: Sequence[Example], predictions: Sequence[Any]) -> list[Any]:
    """Add a chunk; examples without labels are only counted.

    Returns:
      The predictions that are kept, from which `restore` adds the chunk again.
    """
    pairs = zip(examples, predictions, strict=True)
    kept = [self.task.compact_prediction(found) for one, found in pairs if is_labeled(one)]
    self.restore(examples, kept)
    return kept

  def restore(self, examples: Sequence[Example], kept: Sequence[Any]) -> None:
    """Add a chunk whose predictions `add` has returned, perhaps in another process."""
    self.num_predictions += len(examples)
    labeled = filter(is_labeled, examples)
    for example, prediction in zip(labeled, kept, strict=True):
      compact = self.task.example_format.compact_example(example)
      self.examples.append(self.unique.setdefault(compact, compact))
      # Again, for one object for all equal predictions.
      self.predictions.append(self.task.compact_prediction(prediction))

  def compute(self) -> dict[str, float]:
    """Compute the task's metrics."""
    return self.task.scores(self.examples, self.predictions)


def is_labeled(example: Example) -> bool:
  """Return whether metrics can be computed from an example."""
  return example.label is not None or example.answers is not None
