"""Few-shot evaluation: tasks as prompts, with k examples before the question (Brown et al. 2020).

    task = TASKS['piqa']
    examples, pool = task.examples('piqa/valid.jsonl.gz'), task.examples('piqa/train.jsonl.gz')
    result = evaluate_few_shot(task, make_scorer(trained), examples, shots=5, pool=pool)

Nothing is trained (section 2): among the answer choices, the one with the highest log-likelihood
after the question is the prediction. Prompts are those of appendix G. QASC and CommonsenseQA are
not in the paper and have the prompt of its ARC.
"""
import abc
import collections
from collections.abc import Iterable, Sequence
import dataclasses
import itertools
import math
from typing import Any, Literal, NamedTuple
import zlib

import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.evaluation.scoring import ContinuationScore, Scorer
from plm_jax.inference.prompts import fill_template
from plm_jax.sources import labeled_files as rows_lib
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.lines import SourceError
from plm_jax.validation import ValidatedConfig, intervals

Normalization = Literal['sum', 'token', 'byte', 'calibrated']


@dataclasses.dataclass(frozen=True)
class FewShotConfig(ValidatedConfig):
  """Options of few-shot evaluation."""

  limits = intervals(seed='[0, 4294967295]')

  data: str = ''
  """evaluation questions: .jsonl (plain, .gz or .xz) or tfds:NAME:SPLIT. Default: the data of the
  task in TFDS"""
  pool: str = ''
  """few-shot pool: source of the examples in the prompts, in the same formats. Default: the data of
  the task in TFDS, or the other questions of --data"""
  shots: int = 0
  """number of few-shot examples before each question"""
  seed: int = 0
  """random seed for sampling examples and questions"""
  normalize: Literal['sum', 'token', 'byte', 'calibrated', 'task'] = 'task'
  """normalization of the log-likelihood of an answer. sum: none; token, byte: by length;
  calibrated: by the likelihood without the question; task: as in the paper of the task"""
  template: str = ''
  """template of a question up to its answer, with columns in braces. Default: the template of the
  task"""
  limit: int = 0
  """number of questions to evaluate, sampled at random. 0: all"""

  def task(self, name: str) -> 'FewShotTask':
    """Return the task of this name, with the options applied."""
    task = TASKS[name]
    normalize = task.normalize if self.normalize == 'task' else self.normalize
    return dataclasses.replace(
        task, template=self.template or task.template, normalize=normalize)

  def questions(
      self, name: str) -> tuple[list['FewShotExample'], list['FewShotExample']]:
    """Read (the questions to evaluate, the pool of few-shot examples).

    Raises:
      SourceError: a source cannot be read.
      ConfigError: the task has no data set in TFDS, and none is given.
    """
    task = self.task(name)
    source = self.data or task.data
    pool_source = self.pool or ('' if self.data else task.pool)
    if not source:
      raise ConfigError(f'{name} has no data set in TFDS: give {name_field("data")}')
    every = task.examples(source)
    pool = task.examples(pool_source) if self.shots and pool_source else every
    return sample_subset(every, self.limit, self.seed) if self.limit else every, pool


class FewShotExample(NamedTuple):
  """A question with its answer choices."""

  context: str
  """the question, up to its answer"""
  choices: tuple[str, ...]
  """the possible answers"""
  label: int
  """index of the correct choice"""
  where: str
  """origin, as 'file:line'"""


@dataclasses.dataclass(frozen=True)
class FewShotTask(abc.ABC):
  """A few-shot task: how rows of data become questions, and how answers are compared."""

  template: str
  """template of a question up to its answer, with columns in braces"""
  normalize: Normalization = 'token'
  """default normalization of answers, see `normalize_score`"""
  header: str = ''
  """text before the first example"""
  separator: str = '\n\n'
  """separator between examples"""
  data: str = ''
  """default source of the questions, as for `sources.labeled_files`"""
  pool: str = ''
  """default source of the few-shot examples"""
  suppressed_words: tuple[str, ...] = ()
  """words with which greedy decoding may not begin an answer"""

  @abc.abstractmethod
  def read(self, row: LabeledRow) -> FewShotExample:
    """Convert a row of data to a question. Raises SourceError for a row without a needed column."""

  def examples(self, source: str) -> list[FewShotExample]:
    """Read all questions of a source. Raises SourceError."""
    return [self.read(row) for row in rows_lib.read_rows(source)]

  def prompt(self, example: FewShotExample, shots: Iterable[FewShotExample] = ()) -> str:
    """Write the prompt: the few-shot examples with their answers, then the question."""
    solved = [shot.context + format_answer(shot.choices[shot.label]) for shot in shots]
    return self.header + self.separator.join([*solved, example.context])

  def fill(self, row: LabeledRow, **columns: str) -> str:
    """Fill the template with the columns of a row, or with `columns`.

    Raises:
      SourceError: a column of the template does not exist.
      ConfigError: the template is malformed.
    """
    values = row.columns | columns
    try:
      return fill_template(self.template, values)
    except KeyError as error:
      raise SourceError(f'{row.where}: the template names a column {error}, there are '
                        f'{sorted(values)}') from error


@dataclasses.dataclass(frozen=True)
class MultipleChoice(FewShotTask):
  """A question with its own answer choices."""

  template: str = 'Question: {question}\nAnswer:'
  question: tuple[str, ...] = ('question.stem', 'question', 'goal')
  """names of the question column; the template calls it {question}"""
  choices: tuple[str, ...] = ('choices', 'question.choices', 'endings')
  """names of the column with all choices"""
  split: tuple[str, ...] = ()
  """columns with one choice each, where there is no column with all"""
  label: tuple[str, ...] = ('label', 'answerKey')
  """names of the label column: the index from 0 or the name of the correct choice"""

  def read(self, row: LabeledRow) -> FewShotExample:
    """Convert a row to a question with choices.

    Raises:
      SourceError: a choice is empty, or a column is missing or empty.
    """
    if self.split and all(name in row.columns for name in self.split):
      choices = [rows_lib.get_text(row, name) for name in self.split]
      names = [str(number) for number in range(len(choices))]
    else:
      choices, names = rows_lib.get_choices(row, *self.choices)
    question = rows_lib.get_text(row, *self.question).strip()
    choices = [choice.strip() for choice in choices]
    if not all(choices):
      raise SourceError(f'{row.where}: a choice is empty, got {choices!r:.80}')
    context = self.fill(row, question=question)
    label = rows_lib.get_label(row, names, *self.label)
    return FewShotExample(context, tuple(choices), label, row.where)


@dataclasses.dataclass(frozen=True)
class YesNo(FewShotTask):
  """A passage and a yes/no question about it."""

  template: str = '{passage}\nquestion: {question}?\nanswer:'
  answers: tuple[str, str] = ('no', 'yes')
  """answers for the labels 0 and 1"""
  label: tuple[str, ...] = ('label', 'answer')
  """names of the label column: 0 or 1, false or true"""

  def read(self, row: LabeledRow) -> FewShotExample:
    """Convert a row to a question, with the title of the passage if there is one.

    Raises:
      SourceError: a column is missing.
    """
    passage, question = rows_lib.get_text(row, 'passage'), rows_lib.get_text(row, 'question')
    if title := row.columns.get('title'):  # as in SuperGLUE, which the paper's figure shows
      passage = f'{title} -- {passage}'
    question = question.strip().removesuffix('?')
    context = self.fill(row, passage=passage.strip(), question=question)
    label = rows_lib.get_label(row, ('0', '1'), *self.label)
    return FewShotExample(context, self.answers, label, row.where)


@dataclasses.dataclass(frozen=True)
class LastWord(FewShotTask):
  """A passage whose last word is predicted; correct if greedy decoding gives that word."""

  template: str = '{text}'
  text: tuple[str, ...] = ('text', 'passage')
  """names of the column with the passage, including its last word"""

  def read(self, row: LabeledRow) -> FewShotExample:
    """Split the last word off a passage. Raises SourceError for a passage of one word."""
    passage = rows_lib.get_text(row, *self.text).strip()
    *text, word = passage.rsplit(maxsplit=1) or ['']
    if not text:
      raise SourceError(f'{row.where}: a passage of one word leaves nothing to guess it from: '
                        f'{passage!r}')
    return FewShotExample(self.fill(row, text=text[0]), (word,), 0, row.where)


# Articles, pronouns, prepositions, conjunctions, auxiliaries and a few adverbs of English.
STOP_WORDS = tuple("""
    a an the this that these those each every either neither some any no both all such
    i me my you your he him his she her it its we us our they them their who whom whose which what
    of in on at by for from to into onto upon with without within through across over under above
    below between among about against along around before behind beside beyond after during since
    until toward towards near off out up down
    and or but nor so yet if because although though while whereas unless than as whether
    am is are was were be been being have has had having do does did will would shall should can
    could may might must
    not never very too just only even also then there here where when why how again
    """.split())  # noqa: SIM905

TASKS: dict[str, FewShotTask] = {
    # Radford et al. 2019, section 3.3, and the paper's zero-shot setting, both on the original
    # text. TFDS has spaces around its punctuation, and the development set as the training split.
    'lambada': LastWord(data='tfds:lambada:test', pool='tfds:lambada:train'),
    # Radford et al. 2019 raise the accuracy by excluding words that seldom end a passage; their
    # list is not released.
    'lambada-filtered': LastWord(
        suppressed_words=STOP_WORDS, data='tfds:lambada:test', pool='tfds:lambada:train'),
    # Section 3.1.2 and figure G.21: a blank shows that a single word is expected.
    'lambada-blank': LastWord(
        '{text} ____. ->', header='Fill in blank:\n\n', separator='\n', data='tfds:lambada:test',
        pool='tfds:lambada:train'),
    # Figure G.4.
    'piqa': MultipleChoice(
        '{question}', split=('sol1', 'sol2'), data='tfds:piqa:validation', pool='tfds:piqa:train'),
    # Figure G.29.
    'boolq': YesNo(data='tfds:bool_q:validation', pool='tfds:bool_q:train'),
    # Like ARC, for which the paper calibrates (section 2.4).
    'qasc': MultipleChoice(
        normalize='calibrated', data='tfds:qasc:validation', pool='tfds:qasc:train'),
    'commonsense-qa': MultipleChoice(normalize='calibrated'),
    # Other data sets with these columns.
    'multiple-choice': MultipleChoice(),
    'yes-no': YesNo(),
    'cloze': LastWord(),
}
ANSWER_CONTEXT = 'Answer:'
"""context of calibration (section 2.4); the answer begins with the space after it"""


class FewShotPrediction(NamedTuple):
  """The prediction for one question."""

  example: FewShotExample
  prompt: str
  scores: tuple[ContinuationScore, ...]
  """scores of the choices"""
  normalized_scores: tuple[float, ...]
  """normalized scores of the choices"""
  predicted: int
  """index of the predicted choice"""
  right: bool
  """whether the prediction is correct"""


@dataclasses.dataclass(frozen=True)
class FewShotResult:
  """Predictions and metrics of a few-shot evaluation."""

  predictions: tuple[FewShotPrediction, ...]
  chance: float
  """chance accuracy; 0 where there is only one choice"""
  majority_baseline: float
  """accuracy of the majority-class baseline"""

  @property
  def accuracy(self) -> float:
    """Accuracy, from 0 to 1."""
    return sum(x.right for x in self.predictions) / len(self.predictions)

  @property
  def error(self) -> float:
    """Standard error of the accuracy."""
    variance = self.accuracy * (1 - self.accuracy)
    return math.sqrt(variance / max(1, len(self.predictions) - 1))

  @property
  def perplexity(self) -> float:
    """Perplexity of the correct answers, each as a whole (LAMBADA: last words)."""
    logprobs = [x.scores[x.example.label].logprob for x in self.predictions]
    return math.exp(-sum(logprobs) / len(logprobs))

  @property
  def truncated_prompts(self) -> int:
    """Number of questions whose prompt was truncated at its beginning."""
    return sum(any(score.truncated for score in one.scores) for one in self.predictions)


def evaluate_few_shot(
    task: FewShotTask,
    scorer: Scorer,
    examples: Sequence[FewShotExample],
    shots: int = 0,
    pool: Sequence[FewShotExample] = (),
    seed: int = 0,
) -> FewShotResult:
  """Evaluate all `examples`, each after `shots` examples sampled from `pool`.

  Raises:
    ConfigError: the pool is too small, there are no examples, or a number is negative.
  """
  if not examples or shots < 0 or seed < 0:
    raise ConfigError('there are questions, and shots and seed are not negative, got '
                      f'{len(examples):,} questions, {shots} and {seed}')

  # Score all choices of all questions in one call.
  prompts, pairs = [], []
  for example in examples:
    prompt = task.prompt(example, sample_shots(pool, example, shots, seed))
    prompts.append(prompt)
    pairs += [(prompt, format_answer(choice)) for choice in example.choices]
  suppressed = [format_answer(word) for word in task.suppressed_words]
  scores = iter(scorer.score(pairs, suppressed))

  # Score the choices without their questions, for calibration.
  unconditional: dict[str, ContinuationScore] = {}
  if task.normalize == 'calibrated':
    distinct = list(dict.fromkeys(
        itertools.chain.from_iterable(example.choices for example in examples)))
    alone = scorer.score([(ANSWER_CONTEXT, format_answer(choice)) for choice in distinct])
    unconditional = dict(zip(distinct, alone, strict=True))

  predictions = []
  for example, prompt in zip(examples, prompts, strict=True):
    own = [next(scores) for _ in example.choices]
    values = [normalize_score(task.normalize, score, choice, unconditional.get(choice))
              for score, choice in zip(own, example.choices, strict=True)]
    chosen = int(np.argmax(values))
    greedy = all(score.greedy for score in own)
    right = chosen == example.label if len(own) > 1 else greedy
    predictions.append(
        FewShotPrediction(example, prompt, tuple(own), tuple(values), chosen, right))
  chances = [1 / len(example.choices) for example in examples if len(example.choices) > 1]
  chance = sum(chances) / len(examples)
  # The majority-class baseline; of single choices, the share of the most frequent answer.
  answers = [one.label if len(one.choices) > 1 else one.choices[one.label] for one in examples]
  majority = max(collections.Counter(answers).values()) / len(answers)
  return FewShotResult(tuple(predictions), chance, majority)


def normalize_score(
    normalize: Normalization, score: ContinuationScore, choice: str,
    unconditional: ContinuationScore | None,
) -> float:
  """Normalize the log-likelihood of a choice (Brown et al. 2020, section 2.4).

  sum: no normalization; token, byte: divided by the length; calibrated: minus the log-likelihood
  after ANSWER_CONTEXT alone, `unconditional`.
  """
  if normalize == 'calibrated':
    assert unconditional
    return score.logprob - unconditional.logprob
  length: dict[str, int] = {'sum': 1, 'token': score.tokens, 'byte': len(choice.encode())}
  return score.logprob / length[normalize]


def sample_shots(
    pool: Sequence[FewShotExample], example: FewShotExample, shots: int, seed: int,
) -> list[FewShotExample]:
  """Sample few-shot examples for a question, in random order and without the question itself.

  The sample is a function of the seed and the text of the question.
  """
  if not shots:
    return []
  random = np.random.default_rng((seed, zlib.crc32(example.context.encode())))
  shuffled = (pool[place] for place in random.permutation(len(pool)))
  others = (shot for shot in shuffled if shot.context != example.context)
  found = list(itertools.islice(others, shots))
  if len(found) < shots:
    raise ConfigError(f'{shots} examples are needed before each question, there are {len(found)} '
                      'other ones')
  return found


def sample_subset(
    examples: Sequence[FewShotExample], number: int, seed: int) -> list[FewShotExample]:
  """Sample this number of examples, in their order: files are often sorted by the answer.

  Raises:
    ConfigError: the number is below 1 or the seed below 0.
  """
  if number < 1 or seed < 0:
    raise ConfigError(f'a limit is 1 or more and a seed not negative, got {number} and {seed}')
  chosen = np.random.default_rng(seed).permutation(len(examples))[:number]
  return [examples[place] for place in sorted(chosen)]


def format_answer(choice: str) -> str:
  """Format a choice as the continuation of a question."""
  return f' {choice}'


def prediction_record(prediction: FewShotPrediction) -> dict[str, Any]:
  """Convert a prediction to JSON values."""
  example, scores = prediction.example, prediction.scores
  return {
      'where': example.where, 'prompt': prediction.prompt, 'choices': list(example.choices),
      'label': example.label, 'chosen': prediction.predicted, 'right': prediction.right,
      'compared': list(prediction.normalized_scores),
      'logprobs': [score.logprob for score in scores],
      'tokens': [score.tokens for score in scores]}
