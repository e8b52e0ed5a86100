"""Tasks that a language model is asked in words, with k examples before the question (Brown et al. 2020, section 2).

    task = TASKS['piqa']
    examples = task.examples('piqa/valid.jsonl.gz')
    result = evaluate(task, scoring.of(trained), examples, shots=5, pool=task.examples('piqa/train.jsonl.gz'))

Nothing is trained: of the answers to choose from, the one is taken that the model finds likeliest behind the question.
Prompts are those of the paper's appendix G. QASC and CommonsenseQA are not in it and are asked as its ARC is.
"""
import abc
import collections
from collections.abc import Iterable, Sequence
import dataclasses
import math
from typing import Any, Literal, NamedTuple
import zlib

import numpy as np

from plm_jax.checked import Checked, within
from plm_jax.config import ConfigError
from plm_jax.data import rows as rows_lib
from plm_jax.data.lines import SourceError
from plm_jax.data.rows import Row
from plm_jax.evaluation.scoring import Score, Scorer
from plm_jax.inference.prompts import filled

Normalise = Literal['sum', 'token', 'byte', 'calibrated']


@dataclasses.dataclass(frozen=True)
class FewShotConfig(Checked):
  """How a task is asked."""

  limits = within(seed='[0, 4294967295]')

  data: str = ''
  """the questions, .jsonl (plain, .gz, .xz) or tfds:NAME:SPLIT; empty: the task's own in TFDS"""
  pool: str = ''
  """where examples are drawn from, likewise; empty: the task's own in TFDS, or the other questions of data"""
  shots: int = 0
  """examples before each question"""
  seed: int = 0
  """of what is drawn"""
  normalise: Literal['sum', 'token', 'byte', 'calibrated', 'task'] = 'task'
  """how answers are compared: by probability, that a token, that a byte, calibrated; task: as its paper does"""
  template: str = ''
  """of a question up to its answer, columns in braces; empty: the task's own"""
  limit: int = 0
  """ask so many questions, drawn; 0: all"""

  def task(self, name: str) -> 'Task':
    """Returns the task of this name, as it is asked here."""
    task = TASKS[name]
    changes = {'template': self.template} if self.template else {}
    return dataclasses.replace(task, **changes) if self.normalise == 'task' else dataclasses.replace(
        task, normalise=self.normalise, **changes)

  def questions(self, name: str) -> tuple[list['Example'], list['Example']]:
    """Reads (the questions that are asked, those of which examples are drawn). Raises SourceError, and ConfigError for
    a task that has no data set of its own."""
    task = self.task(name)
    source, drawn = self.data or task.data, self.pool or ('' if self.data else task.pool)
    if not source:
      raise ConfigError(f'{name} has no data set in TFDS: give --data')
    every = task.examples(source)
    pool = task.examples(drawn) if self.shots and drawn else every
    return (subset(every, self.limit, self.seed) if self.limit else every), pool


class Example(NamedTuple):
  """A question."""

  context: str  # up to its answer
  choices: tuple[str, ...]  # what may follow
  label: int  # which of them is right
  where: str  # 'file:line'


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
  """The contract: rows to questions, and answers to a figure."""

  template: str
  """of a question, up to its answer; columns in braces"""
  normalise: Normalise = 'token'
  """how answers are compared, where nothing else is said: see `compared`"""
  header: str = ''
  """before all"""
  gap: str = '\n\n'
  """between an example and the next question"""
  data: str = ''
  """where the questions are, if nothing else is said: a source for `rows`"""
  pool: str = ''
  """where examples are drawn from, likewise"""
  barred: tuple[str, ...] = ()
  """words with which greedy decoding may not begin an answer"""

  @abc.abstractmethod
  def read(self, row: Row) -> Example:
    """Raises SourceError for a row that lacks something."""

  def examples(self, source: str) -> list[Example]:
    """Reads the questions in `source`. Raises SourceError."""
    return [self.read(row) for row in rows_lib.rows(source)]

  def prompt(self, example: Example, shots: Iterable[Example] = ()) -> str:
    """Writes what the model reads before an answer: examples with theirs, then the question."""
    solved = [shot.context + answer(shot.choices[shot.label]) for shot in shots]
    return self.header + self.gap.join([*solved, example.context])

  def fill(self, row: Row, **columns: str) -> str:
    """Fills the template with a row's columns, or those given. Raises SourceError for one that is not there,
    ConfigError for what is no template."""
    try:
      return filled(self.template, {**row.columns, **columns})
    except KeyError as error:
      raise SourceError(f'{row.where}: the template wants a column {error}, there are '
                        f'{sorted({*row.columns, *columns})}') from error


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Task):
  """A question with answers of its own."""

  template: str = 'Question: {question}\nAnswer:'
  question: tuple[str, ...] = ('question.stem', 'question', 'goal')
  """names of the column; the template has it as {question}"""
  choices: tuple[str, ...] = ('choices', 'question.choices', 'endings')
  """names of the column with the answers"""
  split: tuple[str, ...] = ()
  """columns with an answer each, where that one is missing"""
  label: tuple[str, ...] = ('label', 'answerKey')
  """names of the column that says which is right: its number from 0, or what it is called"""

  def read(self, row: Row) -> Example:
    """Reads a question and its answers. Raises SourceError for an empty answer, and a column that is not there or says
    nothing."""
    if self.split and all(name in row.columns for name in self.split):
      found = [rows_lib.text(row, name) for name in self.split]
      called = [str(number) for number in range(len(found))]
    else:
      found, called = rows_lib.choices(row, *self.choices)
    question, found = rows_lib.text(row, *self.question).strip(), [x.strip() for x in found]
    if not all(found):
      raise SourceError(f'{row.where}: a choice is empty, got {found!r:.80}')
    return Example(self.fill(row, question=question), tuple(found),
                   rows_lib.label(row, called, *self.label), row.where)


@dataclasses.dataclass(frozen=True)
class YesNo(Task):
  """A passage, and a question about it to which the answer is yes or no."""

  template: str = '{passage}\nquestion: {question}?\nanswer:'
  answers: tuple[str, str] = ('no', 'yes')
  """of label 0 and 1"""
  label: tuple[str, ...] = ('label', 'answer')
  """names of the column with the label, 0 or 1, false or true"""

  def read(self, row: Row) -> Example:
    """Reads a passage, with its title in front where it has one, and the question. Raises SourceError."""
    passage, question = rows_lib.text(row, 'passage'), rows_lib.text(row, 'question')
    # SuperGLUE, which the paper's figure shows, has the title in front.
    passage = f'{row.columns["title"]} -- {passage}' if row.columns.get('title') else passage
    context = self.fill(row, passage=passage.strip(), question=question.strip().removesuffix('?'))
    return Example(context, self.answers, rows_lib.label(row, ('0', '1'), *self.label), row.where)


@dataclasses.dataclass(frozen=True)
class Cloze(Task):
  """A passage whose last word is to be said. It is right where greedy decoding gives the word."""

  template: str = '{text}'
  text: tuple[str, ...] = ('text', 'passage')
  """names of the column with the passage, its last word included"""

  def read(self, row: Row) -> Example:
    """Cuts the last word off a passage. Raises SourceError for a passage of one word."""
    passage = rows_lib.text(row, *self.text).strip()
    *text, word = passage.rsplit(maxsplit=1) or ['']
    if not text:
      raise SourceError(f'{row.where}: a passage of one word leaves nothing to guess it from: {passage!r}')
    return Example(self.fill(row, text=text[0]), (word,), 0, row.where)


# Articles, pronouns, prepositions, conjunctions, auxiliaries and a few adverbs of English.
STOP_WORDS = tuple("""
    a an the this that these those each every either neither some any no both all such
    i me my you your he him his she her it its we us our they them their who whom whose which what
    of in on at by for from to into onto upon with without within through across over under above below between among
    about against along around before behind beside beyond after during since until toward towards near off out up down
    and or but nor so yet if because although though while whereas unless than as whether
    am is are was were be been being have has had having do does did will would shall should can could may might must
    not never very too just only even also then there here where when why how again
    """.split())  # noqa: SIM905

TASKS: dict[str, Task] = {
    # Radford et al. 2019, section 3.3, and the paper's zero-shot setting, both on the text as printed. TFDS has it with
    # spaces around punctuation, and the development set as its training split.
    'lambada': Cloze(data='tfds:lambada:test', pool='tfds:lambada:train'),
    # Radford et al. 2019 raise the accuracy by leaving out words that seldom end a passage; their list is not released.
    'lambada-filtered': Cloze(barred=STOP_WORDS, data='tfds:lambada:test', pool='tfds:lambada:train'),
    # Section 3.1.2 and figure G.21: that a single word is wanted is told by a blank.
    'lambada-blank': Cloze(
        '{text} ____. ->', header='Fill in blank:\n\n', gap='\n', data='tfds:lambada:test',
        pool='tfds:lambada:train'),
    # Figure G.4.
    'piqa': MultipleChoice(
        '{question}', split=('sol1', 'sol2'), data='tfds:piqa:validation', pool='tfds:piqa:train'),
    # Figure G.29.
    'boolq': YesNo(data='tfds:bool_q:validation', pool='tfds:bool_q:train'),
    # As ARC, for which the paper calibrates (section 2.4).
    'qasc': MultipleChoice(normalise='calibrated', data='tfds:qasc:validation', pool='tfds:qasc:train'),
    'commonsense-qa': MultipleChoice(normalise='calibrated'),
    # Other sets of these forms.
    'multiple-choice': MultipleChoice(),
    'yes-no': YesNo(),
    'cloze': Cloze(),
}
ANSWER_CONTEXT = 'Answer:'  # section 2.4; the space behind it begins the answer


class Prediction(NamedTuple):
  """What became of a question."""

  example: Example
  prompt: str
  scores: tuple[Score, ...]  # of its choices
  compared: tuple[float, ...]  # the same, as they were compared
  chosen: int
  right: bool


@dataclasses.dataclass(frozen=True)
class Result:
  """Figures of an evaluation."""

  predictions: tuple[Prediction, ...]
  chance: float
  """accuracy of guessing among the choices; 0 where there is nothing to choose from"""
  majority: float
  """accuracy of the one answer that is right most often"""

  @property
  def accuracy(self) -> float:
    """Share of the predictions that are right, of 1."""
    return sum(x.right for x in self.predictions) / len(self.predictions)

  @property
  def error(self) -> float:
    """Standard error of the accuracy."""
    return math.sqrt(self.accuracy * (1 - self.accuracy) / max(1, len(self.predictions) - 1))

  @property
  def perplexity(self) -> float:
    """Of the right answers, each as a whole (of LAMBADA's last words)."""
    return math.exp(-sum(x.scores[x.example.label].logprob for x in self.predictions) / len(self.predictions))

  @property
  def cut(self) -> int:
    """Questions whose prompt lost its beginning for want of room."""
    return sum(any(score.cut for score in x.scores) for x in self.predictions)


def evaluate(
    task: Task,
    scorer: Scorer,
    examples: Sequence[Example],
    shots: int = 0,
    pool: Sequence[Example] = (),
    seed: int = 0,
    normalise: Normalise | None = None,
) -> Result:
  """Asks all `examples`, each behind `shots` others drawn from `pool`. Raises ConfigError for a pool too small, for no
  examples, and for numbers below 0."""
  if not examples or shots < 0 or seed < 0:
    raise ConfigError(f'there are questions, and shots and seed are not negative, got {len(examples):,} questions, '
                      f'{shots} and {seed}')
  prompts = [task.prompt(example, draw(pool, example, shots, seed)) for example in examples]
  pairs = [(prompt, answer(choice)) for example, prompt in zip(examples, prompts, strict=True)
           for choice in example.choices]
  scores = iter(scorer.score(pairs, [answer(word) for word in task.barred]))
  normalise = normalise or task.normalise
  unconditional: dict[str, Score] = {}
  if normalise == 'calibrated':
    distinct = list(dict.fromkeys(choice for example in examples for choice in example.choices))
    alone = scorer.score([(ANSWER_CONTEXT, answer(choice)) for choice in distinct])
    unconditional = dict(zip(distinct, alone, strict=True))
  predictions = []
  for example, prompt in zip(examples, prompts, strict=True):
    own = tuple(next(scores) for _ in example.choices)
    values = tuple(compared(normalise, score, choice, unconditional.get(choice))
                   for score, choice in zip(own, example.choices, strict=True))
    chosen = int(np.argmax(values))
    right = chosen == example.label if len(own) > 1 else all(score.greedy for score in own)
    predictions.append(Prediction(example, prompt, own, values, chosen, right))
  several = [example for example in examples if len(example.choices) > 1]
  return Result(tuple(predictions), sum(1 / len(x.choices) for x in several) / len(examples), majority(examples))


def compared(normalise: Normalise, score: Score, choice: str, unconditional: Score | None) -> float:
  """Returns a choice's score, to be compared with those of the others (Brown et al. 2020, section 2.4).

  sum: the logarithm of its probability; token, byte: that, divided by its length; calibrated: less that of the choice
  behind ANSWER_CONTEXT alone.
  """
  if normalise == 'calibrated':
    assert unconditional
    return score.logprob - unconditional.logprob
  length: dict[str, int] = {'sum': 1, 'token': score.tokens, 'byte': len(choice.encode())}
  return score.logprob / length[normalise]


def draw(pool: Sequence[Example], example: Example, shots: int, seed: int) -> list[Example]:
  """Draws `shots` examples for a question, in random order and never itself: a function of the seed and its text."""
  if not shots:
    return []
  found = []
  for place in np.random.default_rng((seed, zlib.crc32(example.context.encode()))).permutation(len(pool)):
    if pool[place].context != example.context:
      found.append(pool[place])
    if len(found) == shots:
      return found
  raise ConfigError(f'{shots} examples are wanted before each question, there are {len(found)} besides it')


def subset(examples: Sequence[Example], number: int, seed: int) -> list[Example]:
  """Draws so many examples, in their order: files are often sorted by the answer. Raises ConfigError for a number below
  1 or a seed below 0."""
  if number < 1 or seed < 0:
    raise ConfigError(f'a limit is 1 or more and a seed not negative, got {number} and {seed}')
  chosen = np.random.default_rng(seed).permutation(len(examples))[:number]
  return [examples[place] for place in sorted(chosen)]


def answer(choice: str) -> str:
  """Writes a choice as it stands behind a question."""
  return f' {choice}'


def majority(examples: Sequence[Example]) -> float:
  """Returns the share of the most frequent label; of the most frequent word, where there is but one choice."""
  right = [x.label if len(x.choices) > 1 else x.choices[x.label] for x in examples]
  return max(collections.Counter(right).values()) / len(right)


def record(prediction: Prediction) -> dict[str, Any]:
  """Returns the JSON values that stand for a prediction."""
  example = prediction.example
  return {'where': example.where, 'prompt': prediction.prompt, 'choices': list(example.choices), 'label': example.label,
          'chosen': prediction.chosen, 'right': prediction.right, 'compared': list(prediction.compared),
          'logprobs': [score.logprob for score in prediction.scores],
          'tokens': [score.tokens for score in prediction.scores]}
