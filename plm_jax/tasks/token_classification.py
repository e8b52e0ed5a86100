"""Token classification: named entity recognition and part-of-speech tagging.

Devlin et al. 2019, section 5.3.
"""
from collections.abc import Sequence
import dataclasses
import itertools
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.metrics import tasks as metrics
from plm_jax.metrics.tag_schemes import find_invalid_tag
from plm_jax.objectives.mlm import classification_losses
from plm_jax.tasks.contract import Task, softmax
from plm_jax.tasks.examples import Example, Features, Ragged, row_offsets
from plm_jax.tasks.tagging_format import TAGGING
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import earlier_names, short_repr


class TagPrediction(NamedTuple):
  """The predicted tags of a sentence."""

  tags: list[int]
  """class index of each word"""
  probabilities: list[float]
  """of that class, per word"""


class SentencePart(NamedTuple):
  """Consecutive words of a sentence in one row: their ids, and each word's first id among them."""

  example: int
  words: range
  ids: list[int]
  first: list[int]


@dataclasses.dataclass(frozen=True)
class TaggingTask(Task):
  """Token classification: the first token of each word predicts the word's class.

  Other tokens have no loss.
  """

  head: ClassVar[str] = 'tags'
  output_unit: ClassVar = 'token'
  token_arrays: ClassVar = ('tags', 'marks')
  slot_arrays: ClassVar = ()
  renamed = earlier_names(measures='metric')

  context: Literal['sentence', 'document'] = 'sentence'
  """contents of a row: one sentence, or as many consecutive sentences of a document as fit, which
  attend to each other"""
  metric: Literal['entities', 'accuracy'] = 'entities'
  """F1 of entities in BIO, BIOES, BILOU or BMES (Tjong Kim Sang and De Meulder 2003), or
  accuracy of words"""

  @property
  def metric_names(self):
    """Accuracy of words, or F1, precision and recall of entities."""
    if self.metric == 'accuracy':
      return ('accuracy',)
    return ('f1', 'precision', 'recall')

  @property
  def example_format(self):
    """Words with tags."""
    return TAGGING

  @classmethod
  def from_spec(cls, spec, **fields):
    """Make a published task."""
    return cls(**fields, metric=spec.measures[0])

  @property
  def classes(self):
    """Number of classes."""
    return max(2, len(self.labels))

  def training_examples(self, examples):
    """Return the examples. Raises ConfigError if entity F1 is asked of tags without a scheme."""
    tag = find_invalid_tag(self.labels) if self.metric == 'entities' else ''
    if tag:
      raise ConfigError(
          f'the metric is F1 of entities, and the tag {tag!r} belongs to no tag scheme (such as '
          'B-PER and I-PER of BIO, or BIOES, BILOU, BMES): give --objective.metric=accuracy')
    return examples

  def features(self, examples, tokenizer, length):
    """Make rows of sentences. A sentence that is too long is split between words, not truncated.

    A word without tokens is read as an unknown one. Raises ConfigError if there is no unknown
    token, and for a word that is longer than a row.
    """
    vocab = tokenizer.vocab
    room = length - self.input_format.count_special(vocab, 1)
    parts, skipped = split_sentences(examples, tokenizer, room)
    rows = [[part] for part in parts]
    if self.context == 'document':
      rows = join_neighbors(parts, [example.document for example in examples], room)
    tokens, types, summaries, tags, marks, words = [], [], [], [], [], []
    words_before = row_offsets(len(example.texts) for example in examples)
    for row_parts in rows:
      ids = list(itertools.chain.from_iterable(part.ids for part in row_parts))
      row = self.input_format.make_row([ids], vocab, length, 'none')
      tag, mark, word = np.zeros((3, len(row.tokens)), np.int32)
      at = row.text_starts[0]
      for part in row_parts:
        example, first = examples[part.example], at + np.array(part.first)
        own = slice(part.words.start, part.words.stop)
        if isinstance(example.label, tuple):
          tag[first], mark[first] = example.label[own], 1
        word[first] = 1 + words_before[part.example] + np.arange(own.start, own.stop)
        at += len(part.ids)
      tokens.append(row.tokens)
      types.append(row.token_types)
      summaries.append(row.summary_position)
      tags.append(tag)
      marks.append(mark)
      words.append(word)
    aligned = {'types': Ragged.concat(types), 'tags': Ragged.concat(tags),
               'marks': Ragged.concat(marks, np.float32)}
    return Features(
        Ragged.concat(tokens), aligned, {'stand': np.array(summaries, np.int32)},
        np.array([row_parts[0].example for row_parts in rows], np.int32),
        {'words': Ragged.concat(words)}, skipped=tuple(skipped))

  def task_loss(self, outputs, batch):
    """Compute cross-entropy and accuracy of first tokens."""
    return classification_losses('tags', outputs['tags'], batch['tags'], batch['marks'])

  def accuracy_targets(self, outputs, batch):
    """Return the classes of first tokens."""
    del outputs
    return {'tags': (batch['tags'], batch['marks'])}

  def predict(self, examples, features, outputs):
    """Return the most likely class of every word."""
    words_before = row_offsets(len(example.texts) for example in examples)
    tags, probabilities = np.zeros(words_before[-1], np.int64), np.zeros(words_before[-1])
    for number, logits in enumerate(outputs):
      words = features.prediction_arrays['words'][number]
      first = np.flatnonzero(words)
      shares = softmax(logits[first])
      at = words[first] - 1
      tags[at], probabilities[at] = shares.argmax(-1), shares.max(-1)
    return [TagPrediction(tags[start:stop].tolist(), probabilities[start:stop].tolist())
            for start, stop in itertools.pairwise(words_before)]

  def compact_prediction(self, prediction):
    """Drop the probabilities."""
    return TagPrediction(prediction.tags, [])

  def scores(self, examples, predictions):
    """Compute entity F1, or accuracy of words."""
    truth, predicted = [], []
    for example in examples:
      if isinstance(example.label, tuple):
        truth.append([self.labels[tag] for tag in example.label])
    for prediction in predictions:
      predicted.append([self.labels[tag] for tag in prediction.tags])
    if self.metric == 'accuracy':
      flat_truth = np.array(list(itertools.chain.from_iterable(truth)))
      flat_predicted = np.array(list(itertools.chain.from_iterable(predicted)))
      return {'accuracy': float(metrics.accuracy(flat_truth, flat_predicted))}
    total = metrics.chunk_f1(truth, predicted).total
    return {'f1': total.f1, 'precision': total.precision, 'recall': total.recall}


def split_sentences(
    examples: Sequence[Example], tokenizer: Tokenizer, room: int
) -> tuple[list[SentencePart], list[str]]:
  """Encode sentences, and split long ones between words -> (parts, notes on words without tokens).

  Args:
    examples: sentences, as words.
    tokenizer: encodes each sentence as running text, words joined by spaces.
    room: maximum ids per part.
  """
  sentences = [' '.join(example.texts) for example in examples]
  ids, counts, characters = tokenizer.encode_with_offsets(sentences)
  ends, parts, skipped = np.cumsum(counts), [], []
  for number, example in enumerate(examples):
    # Ids of each word.
    own = slice(ends[number] - counts[number], ends[number])
    borders = np.cumsum([len(word) + 1 for word in example.texts]) - 1
    word_of_token = np.searchsorted(borders, characters[own], 'right')
    words = [[] for _ in example.texts]
    for word, token in zip(word_of_token.tolist(), ids[own].tolist(), strict=True):
      words[min(word, len(words) - 1)].append(token)
    for text, word_ids in zip(example.texts, words, strict=True):
      if not word_ids:
        note = f'{example.where}: the tokenizer has no tokens for the word {short_repr(text)}'
        if tokenizer.vocab.unk < 0:
          raise ConfigError(f'{note}, and has no unknown token')
        word_ids.append(tokenizer.vocab.unk)
        skipped.append(f'{note}, which is read as an unknown token')
      if len(word_ids) > room:
        raise ConfigError(f'{example.where}: the word {short_repr(text)} has {len(word_ids)} '
                          f'tokens, a row has room for {room}')
    # Parts of as many words as fit.
    start = 0
    while start < len(words):
      stop, part_ids, first = start, [], []
      while stop < len(words) and len(part_ids) + len(words[stop]) <= room:
        first.append(len(part_ids))
        part_ids += words[stop]
        stop += 1
      parts.append(SentencePart(number, range(start, stop), part_ids, first))
      start = stop
  return parts, skipped


def join_neighbors(
    parts: Sequence[SentencePart], documents: Sequence[int], room: int
) -> list[list[SentencePart]]:
  """Join consecutive parts of a document into rows of at most `room` ids."""
  rows: list[list[SentencePart]] = []
  used, document = room + 1, None
  for part in parts:
    if used + len(part.ids) > room or documents[part.example] != document:
      rows.append([])
      used, document = 0, documents[part.example]
    rows[-1].append(part)
    used += len(part.ids)
  return rows
