"""Tasks as text to text: each example a text that is read and one that is to be written (Raffel et al. 2020).

    documents('task:sst2:glue/sst2_train.tsv.gz', ...)    'sst2 sentence: hide new secretions' -> 'negative'

Names are those of TASKS; translate-de-en, with the prefix 'translate German to English: ', for any two of LANGUAGES;
and columns-A-B, whose inputs are column A and targets column B as they are. A task is asked in the words of the paper's
appendix D and of its released code.

Among records an example is a document of two sentences: its target, then its inputs. In this order, because rows cut
what is too long at its end, and inputs are what may be cut.
"""
from collections.abc import Iterator
import dataclasses
import re
from typing import Any, NamedTuple

from plm_jax.data import rows as rows_lib
from plm_jax.data.formats import Document
from plm_jax.data.lines import OnError, SourceError, Tally, report
from plm_jax.data.rows import Row

TASK = 'task:'


class Example(NamedTuple):
  """What is read, and what may be written: the first of the targets is learned."""

  inputs: str
  targets: tuple[str, ...]
  where: str  # 'file:line'


@dataclasses.dataclass(frozen=True)
class TextTask:
  """Rows as texts."""

  inputs: str
  """template: in braces the names of a column, of which the row has one"""
  targets: tuple[str, ...] = ('label',)
  """names of the column with what is to be written: a text, or several of which each is right"""
  answers: tuple[str, ...] = ()
  """what is written for the labels 0, 1, ...; a label may also be one of them by name"""
  step: float = 0.0
  """the column is a number, and written to the nearest multiple of this; 0: it is not"""
  metrics: tuple[str, ...] = ('accuracy',)
  """names of functions in `tasks.text_to_text`, by which it is judged"""

  def read(self, row: Row) -> Example:
    """Raises SourceError for a row that lacks something, or in which one side is empty."""
    def filled(match):
      return rows_lib.text(row, *match[1].split('|')).strip()
    inputs = re.sub(r'\{([^}]+)\}', filled, self.inputs)
    targets = tuple(text.strip() for text in self.written(row))
    if not inputs.strip() or not targets or not all(targets):
      raise SourceError(f'{row.where}: inputs and targets must not be empty, got {inputs[:40]!r} and {targets[:3]}')
    return Example(inputs, targets, row.where)

  def written(self, row: Row) -> list[str]:
    """Returns the targets of a row, one at least: an answer, a number, or texts. Raises SourceError."""
    value = rows_lib.column(row, *self.targets)
    if self.answers:
      # A file of text has numbers as text too.
      value = int(value) if isinstance(value, str) and value.isdecimal() else value
      return [self.answers[rows_lib.label(Row({'label': value}, row.where), self.answers, 'label')]]
    if self.step:
      return [number(value, self.step, row.where)]
    texts = texts_of(value)
    if not texts or not all(map(rows_lib.is_text, texts)):
      raise SourceError(f'{row.where}: the column {self.targets[0]!r} is to be a text or several, got {value!r:.80}')
    return texts


def documents(source: str, on_error: OnError, tally: Tally) -> Iterator[Document]:
  """Yields the examples of task:NAME:SOURCE as documents of two paragraphs. Raises SourceError."""
  for example in examples(source, on_error, tally):
    yield Document([example.targets[0], example.inputs], example.where)


def examples(source: str, on_error: OnError = 'refuse', tally: Tally | None = None) -> Iterator[Example]:
  """Yields the examples of task:NAME:SOURCE. Raises SourceError; with `skip`, rows that are none are counted in
  `tally`."""
  task = task_of(source)
  tally = Tally() if tally is None else tally
  for row in rows_lib.each(untasked(source), on_error, tally):
    try:
      yield task.read(row)
    except SourceError as error:
      report(str(error), on_error, tally)


def untasked(source: str) -> str:
  """Returns SOURCE of task:NAME:SOURCE, and any other source as it is."""
  return source.split(':', 2)[-1] if source.startswith(TASK) else source


def task_of(source: str) -> TextTask:
  """Returns the task of task:NAME:SOURCE. Raises SourceError for one that is not known."""
  name, where = source.removeprefix(TASK).split(':', 1) if source.count(':') > 1 else ('', '')
  if name in TASKS and where:
    return TASKS[name]
  kind, _, rest = name.partition('-')
  pair = rest.split('-')
  if kind == 'translate' and len(pair) == 2 and where and all(code in LANGUAGES for code in pair):
    read, written = pair
    return TextTask(f'translate {LANGUAGES[read]} to {LANGUAGES[written]}: {{{read}|translation.{read}}}',
                    (written, f'translation.{written}'), metrics=('bleu', 'chrf'))
  if kind == 'columns' and len(pair) == 2 and where and all(pair):
    return TextTask(f'{{{pair[0]}}}', (pair[1],), metrics=('accuracy', 'bleu', 'chrf', 'rouge'))
  raise SourceError(
      f'{source!r} names no task: expected task:NAME:SOURCE, NAME one of {", ".join(TASKS)}, or translate-A-B for '
      f'languages of {", ".join(LANGUAGES)}, or columns-A-B')


def texts_of(value: Any) -> list[Any]:
  """Returns the texts, each once, of a text, several, or objects with a 'text'."""
  value = value.get('text', []) if isinstance(value, dict) else value
  found = value if isinstance(value, list) else [value]
  return list(dict.fromkeys(item['text'] if isinstance(item, dict) and 'text' in item else item for item in found))


def number(value: Any, step: float, where: str) -> str:
  """Writes a number rounded to a multiple of `step`, as T5 does for STS-B (Raffel et al. 2020, section 2.4): 2.6.
  Raises SourceError."""
  try:
    return f'{round(float(value) / step) * step:.1f}'
  except (TypeError, ValueError) as error:
    raise SourceError(f'{where}: the column is to be a number, got {value!r:.80}') from error


LANGUAGES = {
    'cs': 'Czech', 'de': 'German', 'en': 'English', 'es': 'Spanish', 'fi': 'Finnish', 'fr': 'French', 'it': 'Italian',
    'ja': 'Japanese', 'nl': 'Dutch', 'pl': 'Polish', 'pt': 'Portuguese', 'ro': 'Romanian', 'ru': 'Russian',
    'tr': 'Turkish', 'zh': 'Chinese'}
ENTAILED = ('entailment', 'not_entailment')
TASKS = {
    'cola': TextTask('cola sentence: {sentence}', answers=('unacceptable', 'acceptable'), metrics=('matthews',)),
    'sst2': TextTask('sst2 sentence: {sentence}', answers=('negative', 'positive')),
    'mrpc': TextTask('mrpc sentence1: {sentence1} sentence2: {sentence2}', answers=('not_equivalent', 'equivalent'),
                     metrics=('f1', 'accuracy')),
    'stsb': TextTask('stsb sentence1: {sentence1} sentence2: {sentence2}', ('label', 'score'), step=0.2,
                     metrics=('pearson', 'spearman')),
    'qqp': TextTask('qqp question1: {question1} question2: {question2}', answers=('not_duplicate', 'duplicate'),
                    metrics=('f1', 'accuracy')),
    'mnli': TextTask('mnli hypothesis: {hypothesis|sentence2} premise: {premise|sentence1}',
                     answers=('entailment', 'neutral', 'contradiction')),
    'qnli': TextTask('qnli question: {question|sentence1} sentence: {sentence|sentence2}', answers=ENTAILED),
    'rte': TextTask('rte sentence1: {sentence1} sentence2: {sentence2}', answers=ENTAILED),
    'wnli': TextTask('wnli sentence1: {sentence1} sentence2: {sentence2}', answers=ENTAILED[::-1]),
    'sick': TextTask('sick premise: {sentence1|sentence_A} hypothesis: {sentence2|sentence_B}',
                     ('entailment', 'entailment_label'), answers=('entailment', 'neutral', 'contradiction')),
    'boolq': TextTask('boolq question: {question} passage: {passage}', ('label', 'answer'), answers=('False', 'True')),
    'squad': TextTask('question: {question} context: {context}', ('answers',), metrics=('exact_match', 'token_f1')),
    'summarize': TextTask(
        'summarize: {article|document|dialogue|source|text}', ('highlights', 'summary', 'summaries', 'target'),
        metrics=('rouge',)),
}
