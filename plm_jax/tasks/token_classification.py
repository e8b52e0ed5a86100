"""Token classification: named entity recognition and part-of-speech tagging.

Devlin et al. 2019, section 5.3.
"""
from collections.abc import Sequence
import dataclasses
import itertools
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.metrics import tasks as metrics
from plm_jax.metrics.calibration import log_probabilities
from plm_jax.metrics.tag_schemes import find_invalid_tag
from plm_jax.objectives.mlm import classification_losses
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import PER_TOKEN, CalibratedTask, Decisions
from plm_jax.tasks.features import Features, Ragged, row_offsets
from plm_jax.tasks.tagging_format import TAGGING
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import short_repr


class TagPrediction(NamedTuple):
  """The predicted tags of a sentence."""

  tags: list[int]
  """class index of each word"""
  probabilities: list[float]
  """of that class, per word"""
  all_probabilities: np.ndarray = np.zeros((0, 0))
  """of all classes [words, C]; empty if they are not known"""


class SentencePart(NamedTuple):
  """Consecutive words of a sentence in one row: their ids, and each word's first id among them."""

  example: int
  words: range
  ids: list[int]
  first: list[int]
  tagged: range
  """the words that are learned and predicted in this row"""


@dataclasses.dataclass(frozen=True)
class TaggingTask(CalibratedTask):
  """Token classification: the first token of each word predicts the word's class.

  Other tokens have no loss.
  """

  head: ClassVar[str] = 'tags'
  output_unit: ClassVar = 'token'

  context: Literal['sentence', 'document'] = 'sentence'
  """contents of a row: one sentence, or as many consecutive sentences of a document as fit, which
  attend to each other"""
  metric: Literal['entities', 'accuracy'] = 'entities'
  """F1 of entities in BIO, BIOES, BILOU or BMES (Tjong Kim Sang and De Meulder 2003), or
  accuracy of words"""
  stride: int = 0
  """tokens between the starts of consecutive windows of a sentence that is longer than a row. A
  word is learned and predicted once, in the window with the most context on both sides. 0: windows
  do not overlap"""

  @property
  def metric_names(self):
    return ('accuracy',) if self.metric == 'accuracy' else ('f1', 'precision', 'recall')

  @property
  def example_format(self):
    return TAGGING

  @classmethod
  def from_spec(cls, spec, **fields):
    return cls(**fields, metric=spec.measures[0])

  @property
  def loss_arrays(self):
    return {'tags': (PER_TOKEN,), 'marks': (PER_TOKEN,)}

  def training_examples(self, examples):
    """Return the examples. Raises ConfigError if entity F1 is asked of tags without a scheme."""
    tag = find_invalid_tag(self.labels) if self.metric == 'entities' else ''
    if tag:
      raise ConfigError(
          f'the metric is F1 of entities, and the tag {tag!r} belongs to no tag scheme (such as '
          'B-PER and I-PER of BIO, or BIOES, BILOU, BMES): give '
          f'{name_field("objective.metric")}=accuracy')
    return examples

  def features(self, examples, tokenizer, length):
    """Make rows of sentences. A sentence that is too long is split between words, not truncated.

    A word without tokens is read as an unknown one. Raises ConfigError if there is no unknown
    token, and for a word that is longer than a row.
    """
    vocab = tokenizer.vocab
    room = length - self.input_format.count_special(vocab, 1)
    parts, skipped = split_sentences(examples, tokenizer, room, self.stride)
    documents = [example.document for example in examples]
    rows = (join_neighbors(parts, documents, room) if self.context == 'document'
            else [[part] for part in parts])
    tokens, types, summaries, tags, marks, words = [], [], [], [], [], []
    words_before = row_offsets(len(example.texts) for example in examples)
    for row_parts in rows:
      ids = list(itertools.chain.from_iterable(part.ids for part in row_parts))
      row = self.input_format.make_row([ids], vocab, length, 'none')
      tag, mark, word = np.zeros((3, len(row.tokens)), np.int32)
      at = row.text_starts[0]
      for part in row_parts:
        example, own = examples[part.example], slice(part.tagged.start, part.tagged.stop)
        at_words = [part.first[number - part.words.start] for number in part.tagged]
        first = at + np.array(at_words, np.int32)
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

  def loss(self, outputs, batch):
    return classification_losses('tags', outputs['tags'], batch['tags'], batch['marks'])

  def predict(self, examples, features, outputs):
    words_before = row_offsets(len(example.texts) for example in examples)
    tags = np.zeros(words_before[-1], np.int64)
    probabilities = np.zeros((len(tags), self.classes))
    for number, logits in enumerate(outputs):
      words = features.prediction_arrays['words'][number]
      first = np.flatnonzero(words)
      at = words[first] - 1
      probabilities[at] = self.class_probabilities(logits[first])
      tags[at] = logits[first].argmax(-1)
    best = probabilities.max(-1).tolist()
    return [TagPrediction(tags[start:stop].tolist(), best[start:stop], probabilities[start:stop])
            for start, stop in itertools.pairwise(words_before.tolist())]

  def decisions(self, examples, predictions):
    logs, labels = [np.zeros((0, self.classes))], []
    for example, prediction in zip(examples, predictions, strict=True):
      if isinstance(example.label, tuple):
        logs.append(log_probabilities(prediction.all_probabilities))
        labels += example.label
    return Decisions(np.concatenate(logs), np.array(labels, int))

  def compact_prediction(self, prediction):
    return TagPrediction(prediction.tags, [])

  def scores(self, examples, predictions):
    truth = [[self.labels[tag] for tag in example.label]
             for example in examples if isinstance(example.label, tuple)]
    predicted = [[self.labels[tag] for tag in prediction.tags] for prediction in predictions]
    if self.metric == 'accuracy':
      flat = [list(itertools.chain.from_iterable(side)) for side in (truth, predicted)]
      return {'accuracy': metrics.accuracy(*flat)}
    total = metrics.chunk_f1(truth, predicted).total
    return {'f1': total.f1, 'precision': total.precision, 'recall': total.recall}


def split_sentences(
    examples: Sequence[Example], tokenizer: Tokenizer, room: int, stride: int = 0
) -> tuple[list[SentencePart], list[str]]:
  """Encode sentences, and split long ones between words -> (parts, notes on words without tokens).

  Args:
    examples: sentences, as words.
    tokenizer: encodes each sentence as running text, words joined by spaces.
    room: maximum ids per part.
    stride: ids between the starts of parts of a sentence; 0: parts do not overlap.
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
    windows = split_words([len(word_ids) for word_ids in words], room, stride)
    for window, tagged in zip(windows, assign_words(windows), strict=True):
      part_ids, first = [], []
      for word in window:
        first.append(len(part_ids))
        part_ids += words[word]
      parts.append(SentencePart(number, window, part_ids, first, tagged))
  return parts, skipped


def split_words(sizes: Sequence[int], room: int, stride: int = 0) -> list[range]:
  """Split words into windows of as many as fit.

  >>> split_words([1, 1, 1, 1, 1], 3), split_words([1, 1, 1, 1, 1], 3, 1)
  ([range(0, 3), range(3, 5)], [range(0, 3), range(1, 4), range(2, 5)])

  Args:
    sizes: ids of each word, at most `room`.
    room: maximum ids per window.
    stride: ids between the starts of windows; 0: windows do not overlap. With a stride, the last
      window has as many words before its first one as fit.
  """
  starts, windows = row_offsets(sizes), []
  start = 0
  while start < len(sizes):
    stop = int(np.searchsorted(starts, starts[start] + room, 'right')) - 1
    if stride and stop == len(sizes) and windows:
      full = int(np.searchsorted(starts, starts[stop] - room, 'left'))
      start = max(full, windows[-1].start + 1)
    windows.append(range(start, stop))
    if stop == len(sizes):
      break
    if stride:
      step = int(np.searchsorted(starts, starts[start] + stride, 'right')) - 1
      start = min(max(step, start + 1), stop)
    else:
      start = stop
  return windows


def assign_words(windows: Sequence[range]) -> list[range]:
  """Return the words that each window tags: overlaps are divided in their middle.

  >>> assign_words([range(0, 4), range(2, 6)])
  [range(0, 3), range(3, 6)]
  """
  borders = [(left.stop + right.start) // 2 for left, right in itertools.pairwise(windows)]
  if not windows:
    return []
  ends = [windows[0].start, *borders, windows[-1].stop]
  return [range(start, stop) for start, stop in itertools.pairwise(ends)]


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
