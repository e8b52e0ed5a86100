"""Format of tagged sentences: words in columns, tags of several schemes, texts split into words."""
from collections.abc import Iterable, Sequence
import functools
import itertools
import logging
import re
from typing import Any, cast

from plm_jax import unicode_words
from plm_jax.errors import ConfigError, name_field
from plm_jax.metrics import tag_schemes
from plm_jax.metrics import tasks as metrics
from plm_jax.preparation import tokenizer_fit
from plm_jax.sources import row_readers
from plm_jax.sources.class_names import format_label
from plm_jax.sources.conll import FileLayout
from plm_jax.sources.labeled_files import is_valid_text
from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import Columns, Example, RawExample, are_texts, input_parts
from plm_jax.tasks.example_formats import ExampleFormat, InputExample
from plm_jax.tasks.outputs import Tags, find_entities

log = logging.getLogger(__name__)
UNSEGMENTED = re.compile(
    f'(?:[{unicode_words.DICTIONARY_SCRIPTS}][{unicode_words.MARK}]*)'
    f'{{{tokenizer_fit.LONG_RUN_LETTERS + 1},}}')


class Tagging(ExampleFormat):
  """A sentence, as its words, with a tag per word."""

  name = 'tagging'
  has_probabilities = True
  columns = Columns('words|tokens', label='tags|ner_tags|labels|ner|pos_tags|pos')
  expected_input = 'a text, or a list of its words'
  measures = ('entities',)
  function = 'tag'
  other_columns = ('document',)
  writes_columns = True

  def file_layout(self, columns, encoding):
    """Return the layout of files with words in columns, which may be numbered."""
    if not columns.are_numbers:
      return FileLayout(header=True, words=True, encoding=encoding)
    word = int(columns.first) if columns.first else None
    tag = int(columns.label) if columns.label else None
    return FileLayout(header=False, words=True, word=word, tag=tag, encoding=encoding)

  def guess_columns(self, columns, row):
    """Fill in the columns. CoNLL columns were numbers until the file was read."""
    if 'words' in row.columns:
      return Columns('words', label='tags')
    return super().guess_columns(columns, row)

  def read(self, row, columns):
    return row_readers.read_tagging(row, columns)

  def normalize_labels(self, source, part, names, notes):
    return normalize_tags(source, part, names, notes)

  def list_labels(self, raw, notes):
    return tag_schemes.list_tag_names([item.label for item in raw if item.label])

  def parse_label(self, item, classes):
    return tuple(row_readers.parse_class(tag, classes, item.example.where) for tag in item.label)

  def parse_parts(self, given, where):
    """Make an example of a text, which is split into words, or of a list of words."""
    if isinstance(given, str):
      words = unicode_words.split_words(given) if is_valid_text(given) else []
      if not words:
        return None
      phrase = UNSEGMENTED.search(given)
      if phrase:
        warn_unsegmented(tokenizer_fit.script_name(phrase[0]))
      example = Example(tuple(word.text for word in words), where=where)
      return InputExample(example, given, tuple(word.start for word in words))
    parts = input_parts(given)
    return InputExample(Example(parts, where=where)) if are_texts(parts) else None

  def join_texts(self, example):
    return ' '.join(example.texts)

  def split_line(self, line):
    return line

  def name_prediction(self, task, example, prediction, text, starts):
    words, tags = list(example.texts), [task.labels[tag] for tag in prediction.tags]
    probabilities = [float(share) for share in prediction.probabilities]
    entities = list(find_entities(words, tags, probabilities, text, starts))
    return Tags(words, tags, probabilities, entities)

  def name_truth(self, task, example):
    labels: Any = example.label
    return None if labels is None else [task.labels[tag] for tag in labels]

  def json_fields(self, one, named, truth):
    """Return the text if it was split into words, the tags, the truth and the entities."""
    fields = {'text': one.text} if one.text else {}
    fields |= named._asdict() | truth
    fields['entities'] = [entity._asdict() for entity in named.entities]
    if not named.all_probabilities:
      del fields['all_probabilities']
    return fields

  def all_probabilities(self, task, named, prediction):
    if len(prediction.all_probabilities) != len(prediction.tags):
      raise ConfigError(f'{name_field("probabilities")} needs probabilities of single tags, and a '
                        'CRF predicts whole rows of tags')
    shares = prediction.all_probabilities.tolist()
    return named._replace(
        all_probabilities=[dict(zip(task.labels, row, strict=True)) for row in shares])

  def is_correct(self, task, example, prediction):
    truths: Any = example.label
    return list(truths) == prediction.tags

  def score_classes(self, task, found):
    """Compute precision, recall and F1 of each kind of entity, or of each tag."""
    if task.metric == 'entities':
      truth = [self.name_truth(task, example) for example, _ in found]
      tags = [[task.labels[tag] for tag in prediction.tags] for _, prediction in found]
      return metrics.chunk_f1(truth, tags).types  # pyright: ignore[reportArgumentType]
    truth, predicted = [], []
    for example, prediction in found:
      truth += cast('tuple[int, ...]', example.label)
      predicted += prediction.tags
    return metrics.per_class_scores(truth, predicted, task.labels)

  def confidence(self, example, prediction):
    """Return the highest probability of a wrong tag."""
    truths: Any = example.label
    words = zip(truths, prediction.tags, prediction.probabilities, strict=True)
    return max(probability for truth, tag, probability in words if truth != tag)


TAGGING = Tagging()


@functools.cache
def warn_unsegmented(script: str) -> None:
  """Warn, once per script, that its phrases are not split into words."""
  log.warning('a text has phrases without a space (%s), and each is tagged as one word: give text '
              'with spaces between words, or lists of words', script)


def normalize_tags(
    source: str, part: list[RawExample], labels: Sequence[str], notes: list[str]
) -> list[RawExample]:
  """Rewrite the tags of sentences as names such as B-PER, and convert IOB1 to BIO.

  Args:
    source: for notes.
    part: sentences.
    labels: names of the tags if they are known.
    notes: receives notes.

  Raises:
    SourceError: tags of several schemes.
  """
  def name_tag(tag):
    is_index = isinstance(tag, int) and 0 <= tag < len(labels)
    return labels[tag] if is_index else format_label(tag)
  part = map_tags(part, name_tag)
  distinct = set(itertools.chain.from_iterable(item.label or () for item in part))
  if not distinct <= set(labels) and (rewrite := tag_schemes.find_rewrite(distinct)):
    example = next(tag for tag in sorted(distinct) if rewrite(tag) != tag)
    notes.append(f'{source}: tags such as {example} are read as {rewrite(example)}')
    part = map_tags(part, rewrite)
  try:
    scheme = tag_schemes.find_scheme([item.label for item in part if item.label])
  except ValueError as error:
    raise SourceError(f'{source}: {error}') from error
  if scheme.conflicts:
    notes.append(f'{source}: {scheme.conflicts:,} tags of {scheme.name} do not fit those '
                 'before them; they are left as they are')
  if not scheme.begun_by_i or scheme.name != 'BIO':
    return part
  if not scheme.iob1:
    notes.append(f'{source}: {scheme.begun_by_i:,} chunks begin with I- and '
                 f'{scheme.needless_b:,} with B-; tags are left as they are. In BIO every '
                 'chunk begins with B-: check the file')
    return part
  notes.append(f'{source}: tags are IOB1 and are made BIO: {scheme.begun_by_i:,} chunks '
               'that began with I-')
  return [item._replace(label=item.label and tag_schemes.convert_to_bio(item.label))
          for item in part]


def map_tags(items: Iterable[RawExample], function) -> list[RawExample]:
  """Apply a function to each tag of sentences that have tags."""
  return [item if item.label is None else item._replace(label=tuple(map(function, item.label)))
          for item in items]
