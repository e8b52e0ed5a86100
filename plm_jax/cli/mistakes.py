"""What a report shows of a task that was learned: where predictions go, scores by class, and the worst mistakes."""
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plm_jax.cli.report import el
from plm_jax.inference.loading import Trained
from plm_jax.tasks import metrics
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Example
from plm_jax.tasks.metrics import ClassScore
from plm_jax.tasks.predict import predict, task_of
from plm_jax.tasks.results import entities

MOST = 10_000  # examples that are asked
CARDS = 12
CLASSES = 25  # more are no table that can be read
AROUND = 120  # characters of a context on each side of an answer
Found = Sequence[tuple[Example, Any]]


def sections(trained: Trained, examples: Sequence[Example]) -> list[Element]:
  """Asks a model the examples of a development set, thousands at most, and makes the sections on what it says."""
  task = task_of(trained)
  known = [example for example in examples if example.label is not None or example.answers is not None][:MOST]
  found = list(zip(known, predict(trained, known), strict=True))
  if not found:
    return []
  made = [*tables(task, found), cards(task, worst(task, found))]
  if len(known) < len(examples):
    made[0].insert(1, el('p', f'Of the first {len(known):,} development examples.', class_='lead'))
  return made


def tables(task: Task, found: Found) -> Iterator[Element]:
  """Yields the tables of a kind of task: of classes, or of types of chunks."""
  if task.reads == 'classification':
    truth, said = [example.label for example, _ in found], [prediction.label for _, prediction in found]
    if len(task.labels) <= CLASSES:
      yield confusion(metrics.confusion(truth, said, len(task.labels)), task.labels)
    yield by_class(metrics.by_class(truth, said, task.labels))
  elif task.reads == 'tagging':
    truth, said = [tags_of(task, example.label) for example, _ in found], [tags_of(task, one.tags) for _, one in found]
    if getattr(task, 'measures', '') == 'entities':
      yield by_class(metrics.chunks(truth, said).types)
    else:
      flat = [[task.labels.index(tag) for tags in some for tag in tags] for some in (truth, said)]
      yield by_class(metrics.by_class(flat[0], flat[1], task.labels))


def confusion(counts: np.ndarray, names: Sequence[str]) -> Element:
  """Makes the table of how often each class (a row) was taken for which (a column)."""
  most = max(1, int(counts.max()))
  rows = [el('tr', el('th', name, scope='row'), *(
      el('td', f'{count:,}', style=f'background:rgba(90,140,220,{0.6 * count / most:.2f})') for count in row))
          for name, row in zip(names, counts.tolist(), strict=True)]
  return el('section', el('h2', 'Where predictions go'),
            el('p', 'A row for each class as it is, a column for each as it was predicted.', class_='lead'),
            el('table', el('tr', el('th', ''), *(el('th', name, scope='col') for name in names)), *rows,
               class_='counts'))


def by_class(scores: Mapping[str, ClassScore]) -> Element:
  """Makes the table of scores by class."""
  head = el('tr', *(el('th', name, scope='col') for name in ('', 'precision', 'recall', 'F1', 'examples')))
  rows = [el('tr', el('th', name, scope='row'), *(el('td', f'{value:.2f}') for value in score[:3]),
             el('td', f'{score.support:,}')) for name, score in scores.items()]
  return el('section', el('h2', 'Scores by class'), el('table', head, *rows, class_='counts'))


def worst(task: Task, found: Found) -> Found:
  """Returns mistakes, those that the model is surest of first; of a regression the largest."""
  if task.reads == 'regression':
    return sorted(found, key=lambda one: -abs(one[1].label - one[0].label))[:CARDS]
  wrong = [(example, said) for example, said in found if not right(task, example, said)]
  return sorted(wrong, key=lambda one: -certainty(task, *one))[:CARDS]


def right(task: Task, example: Example, said: Any) -> bool:
  """Tells whether a prediction is right; an answer is by the exact match of its script."""
  if task.reads == 'tagging':
    return list(example.label) == said.tags  # pyright: ignore
  if task.reads != 'answers':
    return example.label == said.label
  golds = [answer.text for answer in example.answers or ()]
  if not golds or not said.text:
    return not golds and not said.text
  return metrics.answers([golds], [said.text], getattr(task, 'script', 'squad'))['exact'] > 0


def certainty(task: Task, example: Example, said: Any) -> float:
  """Returns the probability of what was predicted; of tags the highest of a wrong one."""
  if task.reads == 'answers':
    return said.probability
  if task.reads == 'tagging':
    pairs: Any = zip(example.label, said.tags, said.probabilities, strict=True)  # pyright: ignore
    return max(share for truth, tag, share in pairs if truth != tag)
  return float(said.probabilities[said.label])


def cards(task: Task, mistakes: Found) -> Element:
  """Makes the section of mistakes, a card each."""
  title = 'Largest errors' if task.reads == 'regression' else 'Most confident mistakes'
  if not mistakes:
    return el('section', el('h2', title), el('p', 'There are none.', class_='lead'))
  shown = {'tagging': tagged, 'answers': answered}.get(task.reads, classified)
  return el('section', el('h2', title),
            el('div', *(el('article', *shown(task, *mistake)) for mistake in mistakes), class_='cards'))


def classified(task: Task, example: Example, said: Any) -> Iterator[Element]:
  """Yields the texts, what was predicted and what is true."""
  yield from (el('p', text, class_='prompt') for text in example.texts if text)
  if task.reads == 'regression':
    predicted, truth = f'{said.label:.2f}', f'{example.label:.2f}'
  else:
    names = example.choices or task.labels
    predicted, truth = f'{names[said.label]} ({certainty(task, example, said):.1%})', names[int(example.label or 0)]  # pyright: ignore
  yield el('p', 'Predicted ', el('b', predicted), ', is ', el('b', truth), class_='missed')
  yield where(example)


def tagged(task: Task, example: Example, said: Any) -> Iterator[Element]:
  """Yields the words with the chunks, or classes, that are true, and with those that were predicted."""
  for title, tags in (('Is', tags_of(task, example.label)), ('Predicted', tags_of(task, said.tags))):
    other = tags_of(task, said.tags if title == 'Is' else example.label)
    yield el('p', f'{title}: ', *marks(example.texts, tags, other), class_='prompt')
  yield where(example)


def marks(words: Sequence[str], tags: Sequence[str], other: Sequence[str]) -> Iterator[Element | str]:
  """Yields words with their chunks marked; where there are none, words whose tags are others on the other side."""
  text, at = ' '.join(words), 0
  found = [one[:4] for one in entities(words, tags, [1.0] * len(words))]
  if not found and not {*tags} & {'O'}:
    starts = [sum(len(word) + 1 for word in words[:n]) for n in range(len(words))]
    found = [(word, tag, start, start + len(word))
             for word, tag, theirs, start in zip(words, tags, other, starts, strict=True) if tag != theirs]
  for name, kind, start, end in found:
    yield text[at:start]
    yield el('mark', name, el('small', f' {kind}'))
    at = end
  yield text[at:]


def answered(task: Task, example: Example, said: Any) -> Iterator[Element]:
  """Yields the question, and the context around the right answer and around the one that was predicted."""
  del task
  question, context = example.texts
  yield el('p', question, class_='prompt')
  gold = next(iter(example.answers or ()), None)
  for title, text, start in (('Is', gold.text if gold else '', gold.start if gold else -1),
                             ('Predicted', said.text, said.start)):
    if not text:
      yield el('p', f'{title}: ', el('b', 'no answer'), class_='missed')
      continue
    start = start if start >= 0 else max(0, context.find(text))
    end = start + len(text)
    yield el('p', f'{title}: ', '…' * (start > AROUND), context[max(0, start - AROUND):start], el('mark', text),
             context[end:end + AROUND], '…' * (end + AROUND < len(context)), class_='missed')
  yield el('p', f'Predicted with {said.probability:.1%}', class_='missed')
  yield where(example)


def where(example: Example) -> Element:
  """Names the place of an example."""
  return el('p', example.key or example.where, class_='unit')


def tags_of(task: Task, numbers: Any) -> list[str]:
  """Returns the names of tags."""
  return [task.labels[number] for number in numbers]
