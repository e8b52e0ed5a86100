"""What a model says of texts, by the names of its labels."""
from collections.abc import Iterator, Sequence
import math
from typing import Any, NamedTuple

from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Example
from plm_jax.tasks.tags import chunks


class Label(NamedTuple):
  """What is said of a text, or of a pair of texts."""

  label: str
  """name of the likeliest class"""
  probability: float
  probabilities: dict[str, float]
  """of each class"""


class Value(NamedTuple):
  """The number that is said of a text, or of a pair of texts."""

  value: float


class Choice(NamedTuple):
  """Which of several texts is chosen."""

  choice: str
  number: int
  """its place among the choices, from 0"""
  probability: float
  probabilities: list[float]
  """of each choice"""


class Entity(NamedTuple):
  """Words that a chunk of tags stands for: text[start:end]."""

  text: str
  type: str
  """such as PER"""
  start: int
  end: int
  probability: float
  """the least of its words'"""


class Tags(NamedTuple):
  """What is said of the words of a text."""

  words: list[str]
  tags: list[str]
  probabilities: list[float]
  """of each tag"""
  entities: list[Entity]
  """the chunks, where tags are B-X, I-X and O; none where they are classes of words"""


def named(task: Task, example: Example, prediction: Any, text: str = '', starts: Sequence[int] = ()) -> Any:
  """Says a prediction of a task by names; an answer, which has none, as it is.

  text, starts: of tagging what the words were divided from, and where each begins; '': the words joined by spaces.
  """
  if task.reads == 'answers':
    return prediction
  if task.reads in ('regression', 'embedding'):
    return Value(prediction.label)
  shares = [float(share) for share in getattr(prediction, 'probabilities', ())]
  if task.reads == 'choice':
    return Choice(example.choices[prediction.label], prediction.label, shares[prediction.label], shares)
  if task.reads == 'classification':
    names = task.labels or tuple(map(str, range(len(shares))))
    return Label(names[prediction.label], shares[prediction.label], dict(zip(names, shares, strict=True)))
  words, tags = list(example.texts), [task.labels[tag] for tag in prediction.tags]
  return Tags(words, tags, shares, list(entities(words, tags, shares, text, starts)))


def entities(words: Sequence[str], tags: Sequence[str], shares: Sequence[float], text: str = '',
             starts: Sequence[int] = ()) -> Iterator[Entity]:
  """Yields the chunks of tags."""
  if not text:
    text, starts = ' '.join(words), [sum(len(word) + 1 for word in words[:n]) for n in range(len(words))]
  for first, last, kind in chunks(tags):
    start, end = starts[first], starts[last] + len(words[last])
    yield Entity(text[start:end], kind, start, end, min(shares[first:last + 1], default=math.nan))


def marked(text: str, found: Sequence[Entity]) -> str:
  """Writes a text with its entities in brackets: '[Angela Merkel PER] came.'"""
  parts, at = [], 0
  for entity in found:
    parts += [text[at:entity.start], f'[{entity.text} {entity.type}]']
    at = entity.end
  return ''.join([*parts, text[at:]])
