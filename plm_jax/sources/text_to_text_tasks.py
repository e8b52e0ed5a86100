"""Text-to-text tasks: each example is an input text and a target text (Raffel et al. 2020).

    read_documents('task:sst2:glue/sst2_train.tsv.gz', ...)
        'sst2 sentence: hide new secretions' -> 'negative'

Task names are the keys of TASKS; translate-de-en, with the prefix 'translate German to English: ',
for any two of LANGUAGES; and columns-A-B, with column A as inputs and column B as targets, without
changes. Prompts are those of the paper's appendix D and of its released code.

In token records an example is a document of two sentences: its target, then its inputs. This order
is used because truncation happens at the end of a row, and inputs may be truncated.
"""
from collections.abc import Iterator
import dataclasses
import re
from typing import Any, NamedTuple

from plm_jax.sources import labeled_files
from plm_jax.sources.conll import FileLayout
from plm_jax.sources.document_formats import Document, TextReadConfig
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.lines import OnError, ReadStats, SourceError, report_problem

TASK_PREFIX = 'task:'


class TextToTextExample(NamedTuple):
  """Input text and acceptable target texts; the first target is learned."""

  inputs: str
  targets: tuple[str, ...]
  where: str  # 'file:line'


@dataclasses.dataclass(frozen=True)
class TextTask:
  """A task that converts labeled rows to text.

  Its repr is part of the fingerprint of records: do not rename the class or its fields.
  """

  inputs: str
  """Template of the inputs: names of columns in braces; of alternatives `{a|b}` a row has one."""
  targets: tuple[str, ...] = ('label',)
  """Names of the target's column: a text, or several of which each is correct."""
  answers: tuple[str, ...] = ()
  """Target texts for the labels 0, 1, ...; a label may also be one of these names."""
  step: float = 0.0
  """If not 0, the column is a number, and rounded to the nearest multiple of this."""
  metrics: tuple[str, ...] = ('accuracy',)
  """Names of functions in `tasks.text_to_text` by which predictions are evaluated."""

  def make_example(self, row: LabeledRow) -> TextToTextExample:
    """Convert a row. Raises SourceError for a row with a missing column or an empty side."""
    def fill(match):
      return labeled_files.get_text(row, *match[1].split('|')).strip()

    inputs = re.sub(r'\{([^}]+)\}', fill, self.inputs)
    targets = tuple(text.strip() for text in self.read_targets(row))
    if not inputs.strip() or not targets or not all(targets):
      raise SourceError(f'{row.where}: inputs and targets must not be empty, got {inputs[:40]!r} '
                        f'and {targets[:3]}')
    return TextToTextExample(inputs, targets, row.where)

  def read_targets(self, row: LabeledRow) -> list[str]:
    """Return the targets of a row, at least one: an answer, a number, or texts.

    Raises:
      SourceError: the column has another type.
    """
    value = labeled_files.get_column(row, *self.targets)
    if self.answers:
      # In a file of text, numbers are text.
      if isinstance(value, str) and re.fullmatch('[0-9]{1,9}', value):
        value = int(value)
      label = LabeledRow({'label': value}, row.where)
      return [self.answers[labeled_files.get_label(label, self.answers, 'label')]]
    if self.step:
      return [format_number(value, self.step, row.where)]
    given = value.get('text', []) if isinstance(value, dict) else value
    items = given if isinstance(given, list) else [given]
    texts: list[Any] = list(dict.fromkeys(
        item['text'] if isinstance(item, dict) and 'text' in item else item for item in items))
    if not texts or not all(map(labeled_files.is_valid_text, texts)):
      raise SourceError(f'{row.where}: the column {self.targets[0]!r} must be a text or several, '
                        f'got {value!r:.80}')
    return texts


def read_documents(source: str, config: TextReadConfig, stats: ReadStats) -> Iterator[Document]:
  """Yield the examples of task:NAME:SOURCE as documents of two paragraphs. Raises SourceError."""
  for example in read_examples(source, config.on_error, stats, config.encoding):
    yield Document([example.targets[0], example.inputs], example.where)


def read_examples(source: str, on_error: OnError = 'refuse', stats: ReadStats | None = None,
                  encoding: str = 'utf-8') -> Iterator[TextToTextExample]:
  """Yield the examples of task:NAME:SOURCE.

  Raises:
    SourceError: a row is invalid; 'skip' counts it in `stats`.
  """
  task = parse_task(source)
  stats = ReadStats() if stats is None else stats
  layout = FileLayout(encoding=encoding)
  for row in labeled_files.iterate_rows(strip_task(source), on_error, stats, layout):
    try:
      yield task.make_example(row)
    except SourceError as error:
      report_problem(error.marked, on_error, stats)


def strip_task(source: str) -> str:
  """Return SOURCE of task:NAME:SOURCE; return any other source unchanged."""
  return source.split(':', 2)[-1] if source.startswith(TASK_PREFIX) else source


def parse_task(source: str) -> TextTask:
  """Return the task of task:NAME:SOURCE. Raises SourceError for an unknown one."""
  name = where = ''
  if source.count(':') > 1:
    name, where = source.removeprefix(TASK_PREFIX).split(':', 1)
  if name in TASKS and where:
    return TASKS[name]
  kind, _, rest = name.partition('-')
  pair = rest.split('-')
  if len(pair) == 2 and where:
    first, second = pair
    if kind == 'translate' and first in LANGUAGES and second in LANGUAGES:
      prompt = f'translate {LANGUAGES[first]} to {LANGUAGES[second]}: '
      return TextTask(f'{prompt}{{{first}|translation.{first}}}', (second, f'translation.{second}'),
                      metrics=('bleu', 'chrf'))
    if kind == 'columns' and first and second:
      metrics = ('accuracy', 'bleu', 'chrf', 'rouge')
      return TextTask(f'{{{first}}}', (second,), metrics=metrics)
  raise SourceError(
      f'{source!r} names no task: expected task:NAME:SOURCE, NAME one of {", ".join(TASKS)}, or '
      f'translate-A-B for languages of {", ".join(LANGUAGES)}, or columns-A-B')


def format_number(value: Any, step: float, where: str) -> str:
  """Format a number rounded to a multiple of `step`, such as 2.6.

  T5 does this for STS-B (Raffel et al. 2020, section 2.4). Raises SourceError.
  """
  try:
    return f'{round(labeled_files.parse_number(value) / step) * step:.1f}'
  except ValueError as error:
    raise SourceError(f'{where}: the column must be a number, got {value!r:.80}') from error


LANGUAGES = {
    'cs': 'Czech', 'de': 'German', 'en': 'English', 'es': 'Spanish', 'fi': 'Finnish',
    'fr': 'French', 'it': 'Italian', 'ja': 'Japanese', 'nl': 'Dutch', 'pl': 'Polish',
    'pt': 'Portuguese', 'ro': 'Romanian', 'ru': 'Russian', 'tr': 'Turkish', 'zh': 'Chinese'}
ENTAILMENT_LABELS = ('entailment', 'not_entailment')
TASKS = {
    'cola': TextTask('cola sentence: {sentence}', answers=('unacceptable', 'acceptable'),
                     metrics=('matthews',)),
    'sst2': TextTask('sst2 sentence: {sentence}', answers=('negative', 'positive')),
    'mrpc': TextTask('mrpc sentence1: {sentence1} sentence2: {sentence2}',
                     answers=('not_equivalent', 'equivalent'), metrics=('f1', 'accuracy')),
    'stsb': TextTask('stsb sentence1: {sentence1} sentence2: {sentence2}', ('label', 'score'),
                     step=0.2, metrics=('pearson', 'spearman')),
    'qqp': TextTask('qqp question1: {question1} question2: {question2}',
                    answers=('not_duplicate', 'duplicate'), metrics=('f1', 'accuracy')),
    'mnli': TextTask('mnli hypothesis: {hypothesis|sentence2} premise: {premise|sentence1}',
                     answers=('entailment', 'neutral', 'contradiction')),
    'qnli': TextTask('qnli question: {question|sentence1} sentence: {sentence|sentence2}',
                     answers=ENTAILMENT_LABELS),
    'rte': TextTask('rte sentence1: {sentence1} sentence2: {sentence2}', answers=ENTAILMENT_LABELS),
    'wnli': TextTask('wnli sentence1: {sentence1} sentence2: {sentence2}',
                     answers=ENTAILMENT_LABELS[::-1]),
    'sick': TextTask('sick premise: {sentence1|sentence_A} hypothesis: {sentence2|sentence_B}',
                     ('entailment', 'entailment_label'),
                     answers=('entailment', 'neutral', 'contradiction')),
    'boolq': TextTask('boolq question: {question} passage: {passage}', ('label', 'answer'),
                      answers=('False', 'True')),
    'squad': TextTask('question: {question} context: {context}', ('answers',),
                      metrics=('exact_match', 'token_f1')),
    'summarize': TextTask(
        'summarize: {article|document|dialogue|source|text}',
        ('highlights', 'summary', 'summaries', 'target'), metrics=('rouge',)),
}
