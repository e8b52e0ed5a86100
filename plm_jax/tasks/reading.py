"""A row of a file as an example: which columns it is read from, and what cannot be one.

Each kind of task has a reader, (row, columns) -> `Unlabelled`: the example, and its label as the row has it.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import math
import re
from typing import Any, NamedTuple

from plm_jax.checked import Checked
from plm_jax.data import rows as rows_lib
from plm_jax.data.lines import SourceError
from plm_jax.data.rows import Row
from plm_jax.tasks.examples import Answer, Example, Kind


class Unreadable(SourceError):
  """A row that is no example; `reason` in a word or two, for counting."""

  def __init__(self, reason: str, problem: str):
    super().__init__(problem)
    self.reason = reason


class Unlabelled(NamedTuple):
  """An example whose label is not a number yet."""

  example: Example
  label: Any = None
  """what the row has: a name, a number, names of tags; None: nothing"""
  document: Any = None
  """what the row calls its document; None: nothing"""
  moved: int = 0
  """answers that stand elsewhere than the row says"""


@dataclasses.dataclass(frozen=True)
class Columns(Checked):
  """Which columns an example is read from.

  'a|b' is the first of two that a row has, 'a+b' both, joined by a space; a dot goes inside: 'question.stem'. Numbers
  count the columns of a table without a header, and of words in columns. Empty: the usual names, see `GUESSES`.
  """

  first: str = ''
  """the text, or the first of two; of tagging the words; of answers the question; of a choice the context; of embedding
  the anchor"""
  second: str = ''
  """the second text; of answers the context; of a choice the question; of embedding what belongs to the anchor"""
  label: str = ''
  """what is to be said of it"""
  choices: str = ''
  """of a choice: the column with all of them, or a column for each, by commas; of embedding the same of negatives"""

  def over(self, other: 'Columns') -> 'Columns':
    """Returns these columns, and where one is empty the other's. The two texts go together."""
    texts = self if self.first or self.second else other
    return Columns(texts.first, texts.second, self.label or other.label, self.choices or other.choices)

  @property
  def numbered(self) -> bool:
    """Whether columns are called by numbers alone, as those of a table without a header are."""
    names = re.split(r'[|+,]', '+'.join(filter(None, dataclasses.astuple(self))))
    return all(re.fullmatch(r'-?\d+', name) for name in names)  # '' where no column is named


PAIRS = (
    ('sentence1', 'sentence2'), ('premise', 'hypothesis'), ('question1', 'question2'), ('sentence_A', 'sentence_B'),
    ('text_a', 'text_b'), ('text1', 'text2'), ('question', 'sentence'), ('question', 'passage'), ('query', 'passage'))
GUESSES: Mapping[Kind, Columns] = {
    'classification': Columns(
        'sentence|text|review|content|title|question', label='label|gold_label|labels|class|category|sentiment'),
    'regression': Columns('sentence|text|review|content|title', label='label|score|similarity|relatedness|labels'),
    'tagging': Columns('words|tokens', label='tags|ner_tags|labels|ner|pos_tags|pos'),
    'answers': Columns('question', 'context|passage', 'answers|answer'),
    'choice': Columns(
        'context|article|passage|sent1|startphrase|premise|ctx|content',
        'question.stem|question|sent2|goal', 'label|answerKey|answer|answers',
        'choices|question.choices|endings|options|candidates|choice'),
    'embedding': Columns(
        'anchor|query|sent0|sentence1|premise|question1|question|sentence|text',
        'positive|passage|answer|sent1|sentence2|hypothesis|question2|translation', '',
        'negatives|negative|hard_neg'),
}
SPLIT = ('ending0,ending1,ending2,ending3', 'answer0,answer1,answer2,answer3', 'sol1,sol2', 'choice1,choice2',
         'option1,option2')
KEYS = ('id', 'idx', 'guid', 'example_id', 'index')
COPA = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}  # as jiant asks its questions


def guessed(kind: Kind, columns: Columns, row: Row) -> Columns:
  """Fills in the columns that were not named, by those that a row has."""
  usual = GUESSES[kind]
  if kind in ('classification', 'regression'):
    usual = next((dataclasses.replace(usual, first=first, second=second) for first, second in PAIRS
                  if first in row.columns and second in row.columns), usual)
  elif kind == 'tagging' and 'words' in row.columns:  # words in columns, which were numbers until they were read
    return Columns('words', label='tags')
  elif kind == 'embedding':  # a text alone, and texts without negatives, are examples too
    lacking = [name for name in ('second', 'choices') if value(row, getattr(usual, name)) is None]
    usual = dataclasses.replace(usual, **dict.fromkeys(lacking, ''))
  elif kind == 'choice' and value(row, usual.choices) is None:
    usual = dataclasses.replace(usual, choices=next(
        (names for names in SPLIT if all(name in row.columns for name in names.split(','))), usual.choices))
  return columns.over(usual)


def value(row: Row, names: str) -> Any:
  """Returns what the first column of 'a|b' holds that the row has, None where it has none."""
  for name in names.split('|'):
    found: Any = row.columns
    for part in [name] if name in row.columns else name.split('.'):
      found = found.get(part) if isinstance(found, dict) else None
    if found is not None:
      return found
  return None


def there(row: Row, names: str) -> str:
  """Returns the first of the columns 'a|b' that the row has."""
  return next((name for name in names.split('|') if value(row, name) is not None), names)


def key_of(row: Row) -> str:
  """Returns what a row calls itself, '' where it does not."""
  return next((str(row.columns[name]) for name in KEYS if row.columns.get(name) is not None), '')


def text(row: Row, names: str) -> str:
  """Returns the text of the columns `names`; several texts are lines. Raises Unreadable where there is none."""
  parts = []
  for name in names.split('+'):
    found = value(row, name)
    if found is None:
      raise Unreadable('no such column', f'{row.where}: no column {" or ".join(map(repr, name.split("|")))}, only '
                       f'{sorted(row.columns)}')
    if isinstance(found, list) and found and all(map(rows_lib.is_text, found)):  # turns of a dialogue
      found = '\n'.join(found)
    if not isinstance(found, str) or not rows_lib.is_text(found):
      raise Unreadable('no text', f'{row.where}: the column {there(row, name)!r} is to be a text, got {found!r:.80}')
    if not found.strip():
      raise Unreadable('empty text', f'{row.where}: the column {there(row, name)!r} is empty')
    parts.append(found.strip())
  return ' '.join(parts)


def sequence(row: Row, columns: Columns) -> Unlabelled:
  """Reads a text, or two."""
  texts = tuple(text(row, names) for names in (columns.first, columns.second) if names)
  return Unlabelled(Example(texts, where=row.where, key=key_of(row)), value(row, columns.label))


def tagging(row: Row, columns: Columns) -> Unlabelled:
  """Reads words and their tags."""
  words, tags = value(row, columns.first), value(row, columns.label)
  if not isinstance(words, list) or not words or not all(map(rows_lib.is_text, words)):
    raise Unreadable('no words', f'{row.where}: the column {columns.first!r} is to be a list of words, got '
                     f'{words!r:.80}; there are {sorted(row.columns)}')
  if not all(map(str.strip, words)):
    raise Unreadable('empty word', f'{row.where}: word {list(map(str.strip, words)).index("") + 1} is empty')
  if tags is not None and (not isinstance(tags, list) or len(tags) != len(words)):
    raise Unreadable('tags that do not fit', f'{row.where}: {len(words)} words need a tag each, got {tags!r:.80}')
  return Unlabelled(Example(tuple(words), where=row.where, key=key_of(row)), tags, row.columns.get('document'))


def answers(row: Row, columns: Columns) -> Unlabelled:
  """Reads a question, its context and its answers: SQuAD's list, lists of texts and starts, or a text.

  An answer that stands elsewhere than it is said to is found by its text, where it is nearest; one that is nowhere goes
  behind the others, and if all are it is Unreadable.
  """
  question, context = text(row, columns.first), value(row, columns.second)
  if not rows_lib.is_text(context) or not context.strip():
    raise Unreadable('empty text', f'{row.where}: the column {there(row, columns.second)!r} is to be a text, got '
                     f'{context!r:.80}')
  given = value(row, columns.label)
  if given is None:
    given = [] if row.columns.get('is_impossible') else None
  if given is None:
    return Unlabelled(Example((question, context), where=row.where, key=key_of(row)))
  found = []
  moved = 0
  for said, start in answers_of(given, row.where):
    place = found_at(context, said, start)
    if place < 0 and (trimmed := said.strip()) != said:
      said, place = trimmed, found_at(context, trimmed, start)
    moved += place not in (-1, start) and start >= 0
    found.append(Answer(said, place))
  if found and all(answer.start < 0 for answer in found):
    raise Unreadable('answer not in its context', f'{row.where}: the answer {found[0].text!r:.80} is not in '
                     'its context')
  found.sort(key=lambda answer: answer.start < 0)
  example = Example((question, context), answers=tuple(found), where=row.where, key=key_of(row))
  return Unlabelled(example, given, moved=moved)


def answers_of(given: Any, where: str) -> list[tuple[str, int]]:
  """Returns (text, start or -1) of answers. Raises Unreadable for what are none."""
  if isinstance(given, dict) and isinstance(given.get('text'), list):
    texts = given['text']
    starts = given.get('answer_start') or [-1] * len(texts)
    given = [{'text': x, 'answer_start': y} for x, y in zip(texts, starts, strict=False)] if isinstance(
        starts, list) and len(starts) == len(texts) else None
  given = [given] if isinstance(given, str) and given else given
  found = [x if isinstance(x, dict) else {'text': x} for x in given] if isinstance(given, list) else [{}]
  pairs: list[tuple[Any, Any]] = [(x.get('text'), x.get('answer_start', -1)) for x in found]
  for said, start in pairs:
    if not rows_lib.is_text(said) or not said.strip() or not isinstance(start, int):
      raise Unreadable('no answers', f"{where}: answers are texts with their 'answer_start', got {given!r:.80}")
  return pairs


def found_at(context: str, said: str, start: int) -> int:
  """Returns where a text stands in a context, at `start` or nearest to it; -1: nowhere."""
  if start < 0:
    return context.find(said)
  after, before = context.find(said, start), context.rfind(said, 0, start + len(said))
  places = [place for place in (after, before) if place >= 0]
  return min(places, key=lambda place: abs(place - start), default=-1)


def choice(row: Row, columns: Columns) -> Unlabelled:
  """Reads a context, a question, and what is chosen from; a question alone is the context of its choices."""
  names = columns.choices.split(',')
  if len(names) > 1:
    found = [text(row, name) for name in names]
    called = list(map(str, range(len(found))))
  elif value(row, columns.choices) is None:
    raise Unreadable('no such column', f'{row.where}: no column {columns.choices!r} with the choices, only '
                     f'{sorted(row.columns)}')
  else:
    found, called = rows_lib.choices(row, *columns.choices.split('|'))
  if not all(map(str.strip, found)):
    raise Unreadable('empty text', f'{row.where}: an empty choice')
  texts = [text(row, name) for name in (columns.first, columns.second)
           if name and (value(row, name.split('+')[0]) is not None)]
  if not texts:
    text(row, columns.first)
  context, question = texts if len(texts) == 2 else (texts[0], '')
  example = Example((context, COPA.get(question, question)), choices=tuple(x.strip() for x in found), where=row.where,
                    key=key_of(row))
  label = value(row, columns.label)
  return Unlabelled(example, None if label in (None, '', -1) else chosen(label, example, called))


def chosen(label: Any, example: Example, called: Sequence[str]) -> int:
  """Returns which choice is right: by what it is called, its text, its number from 0 or its letter. Raises
  Unreadable."""
  said, count = str(label).strip(), len(example.choices)
  if said in called and list(called) != list(map(str, range(count))):
    return list(called).index(said)
  if isinstance(label, str) and example.choices.count(said) == 1:
    return example.choices.index(said)
  if re.fullmatch(r'\d{1,4}', said) and int(said) < count:
    return int(said)
  if re.fullmatch('[A-Z]', said) and ord(said) - ord('A') < count:
    return ord(said) - ord('A')
  raise Unreadable('unknown label', f'{example.where}: the label is a number below {count}, a letter, or one of the '
                   f'choices, got {label!r:.80}')


def together(row: Row, columns: Columns) -> Unlabelled:
  """Reads texts that belong together: an anchor, its positive, and negatives, as far as there are columns for them."""
  found = [text(row, names) for names in (columns.first, columns.second) if names]
  for name in filter(None, columns.choices.split(',')):
    given = value(row, name)
    if isinstance(given, list):
      if not all(rows_lib.is_text(one) and one.strip() for one in given):
        raise Unreadable('no text', f'{row.where}: the column {there(row, name)!r} is to hold texts, got {given!r:.80}')
      found += [one.strip() for one in given]
    else:
      found.append(text(row, name))
  return Unlabelled(Example(tuple(found), where=row.where, key=key_of(row)))


def asked(row: Row) -> Iterator[Row]:
  """Yields a row for each question of a passage, such as RACE's {'article', 'questions', 'options', 'answers'}; of
  others the row."""
  questions, options, right = (row.columns.get(name) for name in ('questions', 'options', 'answers'))
  if not isinstance(questions, list) or not isinstance(options, list) or len(questions) != len(options):
    yield row
    return
  right = right if isinstance(right, list) and len(right) == len(questions) else [None] * len(questions)
  kept = {name: x for name, x in row.columns.items() if name not in ('questions', 'options', 'answers')}
  for number, (question, found, answer) in enumerate(zip(questions, options, right, strict=True)):
    yield Row({**kept, 'question': question, 'options': found, 'answer': answer}, f'{row.where}.{number}')


def number(label: Any, where: str) -> float:
  """Reads the value of a regression. Raises Unreadable for what is no finite number."""
  try:
    found = math.nan if isinstance(label, bool) else float(label)
  except (TypeError, ValueError, OverflowError):
    found = math.nan
  if not math.isfinite(found):
    raise Unreadable('no number', f'{where}: the label is to be a number, got {label!r:.80}')
  return found


READERS: Mapping[Kind, Callable[[Row, Columns], Unlabelled]] = {
    'classification': sequence, 'regression': sequence, 'tagging': tagging, 'answers': answers, 'choice': choice,
    'embedding': together}
