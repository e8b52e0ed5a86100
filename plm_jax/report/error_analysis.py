"""Analyze the errors of a fine-tuned model: confusion matrix, scores per class, worst mistakes."""
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plm_jax.metrics.calibration import Bin, calibration_error
from plm_jax.metrics.tasks import ClassScore
from plm_jax.report.html import el, value_table
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import CalibratedTask, Task
from plm_jax.tasks.example_formats import Predictions
from plm_jax.tasks.outputs import find_entities
from plm_jax.tasks.ranking_format import relevance_errors

MAX_CARDS = 12
MAX_CLASSES = 25
"""largest number of classes for which a confusion matrix is readable"""
CONTEXT_CHARACTERS = 120
"""characters of a context on each side of an answer"""
MAX_DOCUMENT = 400
"""characters of a document"""


def labeled_pairs(examples: Sequence[Example], predictions: Sequence[Any]) -> Predictions:
  """Return the examples that have labels with their predictions."""
  pairs = zip(examples, predictions, strict=True)
  return [pair for pair in pairs if pair[0].label is not None or pair[0].answers is not None]


def error_sections(task: Task, found: Predictions) -> list[Element]:
  """Return the sections on the errors among labeled examples with predictions."""
  if not found:
    return []
  mistakes = task.example_format.rank_mistakes(task, found)[:MAX_CARDS]
  examples, predictions = zip(*found, strict=True)
  bins = task.calibration_bins(examples, predictions) if isinstance(task, CalibratedTask) else []
  sections = list(score_tables(task, found))
  if bins:
    sections.append(calibration_table(bins))
  sections.append(mistake_cards(task, mistakes))
  return sections


def calibration_table(bins: Sequence[Bin]) -> Element:
  """Return the confidence and the accuracy of decisions of similar confidence as a table."""
  names = 'probability', 'correct', 'decisions'
  head = el('tr', *(el('th', name, scope='col') for name in names))
  rows = [el('tr', el('td', f'{one.confidence:.1%}'), el('td', f'{one.accuracy:.1%}'),
             el('td', f'{one.count:,}')) for one in bins]
  table = el('table', head, *rows, class_='counts')
  lead = (f'Expected calibration error: {calibration_error(list(bins)):.2f}%, the mean distance '
          'between the probability of predictions and the share that is correct.')
  return el('section', el('h2', 'Calibration'), el('p', lead, class_='lead'), table)


def score_tables(task: Task, found: Predictions) -> Iterator[Element]:
  """Yield the confusion matrix, and scores per class or entity type, if the task has any."""
  form = task.example_format
  if len(task.labels) <= MAX_CLASSES:
    counts = form.count_confusion(task, found)
    if counts is not None:
      yield confusion_table(counts, task.labels)
  if scores := form.score_classes(task, found):
    yield class_table(scores)


def confusion_table(counts: np.ndarray, names: Sequence[str]) -> Element:
  """Return the confusion matrix [true class, predicted class] as a table."""
  most = max(1, int(counts.max()))
  texts = [[f'{count:,}' for count in row] for row in counts.tolist()]
  table = value_table(names, dict(zip(names, texts, strict=True)))
  for line, row in zip(table[1:], counts.tolist(), strict=True):
    for cell, count in zip(line[1:], row, strict=True):
      cell.set('style', f'background:rgba(90,140,220,{0.6 * count / most:.2f})')
  lead = 'One row per true class, one column per predicted class.'
  return el('section', el('h2', 'Confusion matrix'), el('p', lead, class_='lead'), table)


def class_table(scores: Mapping[str, ClassScore]) -> Element:
  """Return the table of precision, recall and F1 per class."""
  rows = {}
  for name, score in scores.items():
    rows[name] = [*(f'{value:.2f}' for value in score[:3]), f'{score.support:,}']
  table = value_table(('precision', 'recall', 'F1', 'examples'), rows)
  return el('section', el('h2', 'Scores by class'), table)


def mistake_cards(task: Task, mistakes: Predictions) -> Element:
  """Return the section of mistakes, one card each."""
  title = task.example_format.mistakes_title
  if not mistakes:
    return el('section', el('h2', title), el('p', 'There are none.', class_='lead'))
  make_card = CARDS.get(task.example_kind, label_card)
  cards = [el('article', *make_card(task, *mistake)) for mistake in mistakes]
  return el('section', el('h2', title), el('div', *cards, class_='cards'))


def label_card(task: Task, example: Example, prediction: Any) -> Iterator[Element]:
  """Yield the texts, and the predicted and the true class, choice or value."""
  for text in filter(None, example.texts):
    yield el('p', text, class_='prompt')
  predicted = task.example_format.describe_prediction(task, example, prediction)
  truth = task.example_format.describe_label(task, example, example.label)
  yield el('p', 'Predicted ', el('b', predicted), ', is ', el('b', truth), class_='missed')
  yield example_place(example)


def tagging_card(task: Task, example: Example, prediction: Any) -> Iterator[Element]:
  """Yield the words with the true entities (or classes), and with the predicted ones."""
  truth, predicted = tag_names(task, example.label), tag_names(task, prediction.tags)
  for title, tags, other in (('Is', truth, predicted), ('Predicted', predicted, truth)):
    yield el('p', f'{title}: ', *mark_chunks(example.texts, tags, other), class_='prompt')
  yield example_place(example)


def mark_chunks(
    words: Sequence[str], tags: Sequence[str], other: Sequence[str]) -> Iterator[Element | str]:
  """Yield words with marked entities; without entities, words whose tags are wrong are marked."""
  text, at = ' '.join(words), 0
  found = [one[:4] for one in find_entities(words, tags, [1.0] * len(words))]
  if not found and 'O' not in tags:
    start = 0
    for word, tag, theirs in zip(words, tags, other, strict=True):
      if tag != theirs:
        found.append((word, tag, start, start + len(word)))
      start += len(word) + 1
  for name, kind, start, end in found:
    yield text[at:start]
    yield el('mark', name, el('small', f' {kind}'))
    at = end
  yield text[at:]


def answer_card(task: Task, example: Example, prediction: Any) -> Iterator[Element]:
  """Yield the question, and the context around the true and around the predicted answer."""
  del task
  question, context = example.texts
  yield el('p', question, class_='prompt')
  gold = next(iter(example.answers or ()), None)
  truth, place = '', -1
  if gold:
    truth, place = gold.text, gold.start
  answers = ('Is', truth, place), ('Predicted', prediction.text, prediction.start)
  for title, text, start in answers:
    if not text:
      yield el('p', f'{title}: ', el('b', 'no answer'), class_='missed')
      continue
    if start < 0:
      start = max(0, context.find(text))
    end = start + len(text)
    before = context[max(0, start - CONTEXT_CHARACTERS):start]
    after = context[end:end + CONTEXT_CHARACTERS]
    if start > CONTEXT_CHARACTERS:
      before = f'…{before}'
    if end + CONTEXT_CHARACTERS < len(context):
      after = f'{after}…'
    yield el('p', f'{title}: ', before, el('mark', text), after, class_='missed')
  yield el('p', f'Predicted with {prediction.probability:.1%}', class_='missed')
  yield example_place(example)


def ranking_card(task: Task, example: Example, prediction: Any) -> Iterator[Element]:
  """Yield the query, and the document whose score is furthest from its relevance."""
  errors = relevance_errors(task, example, prediction)
  worst = int(errors.argmax())
  yield el('p', example.texts[0], class_='prompt')
  text = example.choices[worst]
  yield el('p', text[:MAX_DOCUMENT] + ('…' if len(text) > MAX_DOCUMENT else ''), class_='prompt')
  truth: Any = example.label
  yield el('p', 'Score ', el('b', f'{prediction.scores[worst]:.3f}'), ', relevance ',
           el('b', f'{truth[worst]:g}'), class_='missed')
  yield example_place(example)


def example_place(example: Example) -> Element:
  """Return the key of an example, or its file and line."""
  return el('p', example.key or example.where, class_='unit')


def tag_names(task: Task, numbers: Any) -> list[str]:
  """Return the names of tags."""
  return [task.labels[number] for number in numbers]


CARDS = {'tagging': tagging_card, 'answers': answer_card, 'rerank': ranking_card}
"""cards of kinds of task whose mistakes are no single label (`label_card`)"""
