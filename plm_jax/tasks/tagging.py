"""A class for each word: named entities, parts of speech (Devlin et al. 2019, section 5.3)."""
from collections.abc import Sequence
import dataclasses
import itertools
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from plm_jax.checked import shortened
from plm_jax.errors import ConfigError
from plm_jax.objectives.mlm import classification
from plm_jax.tasks import metrics
from plm_jax.tasks.contract import Task, softmax
from plm_jax.tasks.examples import Example, Features, Ragged
from plm_jax.tokenizers import Tokenizer


class Tagged(NamedTuple):
  """What is said of the words of a sentence."""

  tags: list[int]
  """number of the class of each word"""
  probabilities: list[float]
  """of that class, a word"""


class Piece(NamedTuple):
  """Words of a sentence that stand together in a row: their ids, and where each begins among these."""

  example: int
  words: range
  ids: list[int]
  first: list[int]


@dataclasses.dataclass(frozen=True)
class TaggingTask(Task):
  """The first token of a word is read for it; others weigh nothing."""

  head: ClassVar[str] = 'tags'
  per: ClassVar = 'token'
  of_tokens: ClassVar = ('tags', 'marks')
  of_rows: ClassVar = ()

  context: Literal['sentence', 'document'] = 'sentence'
  """a row is a sentence, or as many neighbours in a document as it has room for, which see each other"""
  measures: Literal['entities', 'accuracy'] = 'entities'
  """F1 of whole entities (Tjong Kim Sang and De Meulder 2003), of classes O, B-X and I-X; or accuracy of words"""

  @property
  def reads(self):
    """Words with tags."""
    return 'tagging'

  @property
  def classes(self):
    """A number a class."""
    return max(2, len(self.labels))

  def features(self, examples, tokenizer, length):
    """Makes rows of sentences. One that is longer than a row is divided between words, and none of it is left out.

    A word of which the tokenizer makes nothing is read as an unknown one. Raises ConfigError where there is no such
    token, and for a word that is longer than a row.
    """
    room, vocab = length - self.form.specials(tokenizer.vocab, 1), tokenizer.vocab
    pieces, skipped = divided(examples, tokenizer, room)
    rows = [[piece] for piece in pieces]
    if self.context == 'document':
      rows = neighbours(pieces, [example.document for example in examples], room)
    tokens, types, stand, tags, marks, words = [], [], [], [], [], []
    before = np.cumsum([0, *(len(example.texts) for example in examples)])
    for pieces in rows:
      row = self.form.row([[i for piece in pieces for i in piece.ids]], vocab, length, 'none')
      tag, mark, word = np.zeros((3, len(row.tokens)), np.int32)
      at = row.starts[0]
      for piece in pieces:
        example, first = examples[piece.example], at + np.array(piece.first)
        if isinstance(example.label, tuple):
          tag[first], mark[first] = example.label[piece.words.start:piece.words.stop], 1
        word[first] = 1 + before[piece.example] + np.arange(piece.words.start, piece.words.stop)
        at += len(piece.ids)
      tokens.append(row.tokens)
      types.append(row.types)
      stand.append(row.stand)
      tags.append(tag)
      marks.append(mark)
      words.append(word)
    return Features(
        Ragged.of(tokens),
        {'types': Ragged.of(types), 'tags': Ragged.of(tags), 'marks': Ragged.of(marks, np.float32)},
        {'stand': np.array(stand, np.int32)}, np.array([pieces[0].example for pieces in rows], np.int32),
        {'words': Ragged.of(words)}, skipped=tuple(skipped))

  def judged(self, outputs, batch):
    """Returns the cross-entropy and accuracy of first tokens."""
    return classification('tags', outputs['tags'], batch['tags'], batch['marks'])

  def answers(self, outputs, batch):
    """Returns the classes of first tokens."""
    del outputs
    return {'tags': (batch['tags'], batch['marks'])}

  def predict(self, examples, features, outputs):
    """Returns the likeliest class of every word."""
    before = np.cumsum([0, *(len(example.texts) for example in examples)])
    tags, probabilities = np.zeros(before[-1], np.int64), np.zeros(before[-1])
    for number, logits in enumerate(outputs):
      words = features.beside['words'][number]
      first = np.flatnonzero(words)
      said = softmax(logits[first])
      tags[words[first] - 1], probabilities[words[first] - 1] = said.argmax(-1), said.max(-1)
    return [Tagged(tags[start:stop].tolist(), probabilities[start:stop].tolist())
            for start, stop in itertools.pairwise(before)]

  def scores(self, examples, predictions):
    """Measures whole entities, or words."""
    truth = [[self.labels[tag] for tag in example.label] for example in examples if isinstance(example.label, tuple)]
    found = [[self.labels[tag] for tag in prediction.tags] for prediction in predictions]
    if self.measures == 'accuracy':
      flat = [np.array([tag for of in some for tag in of]) for some in (truth, found)]
      return {'accuracy': float(metrics.accuracy(*flat))}
    total = metrics.chunks(truth, found).total
    return {'f1': total.f1, 'precision': total.precision, 'recall': total.recall}


def divided(examples: Sequence[Example], tokenizer: Tokenizer, room: int) -> tuple[list[Piece], list[str]]:
  """Encodes sentences -> pieces of at most `room` ids, and what is said of words without any."""
  joint = ' '  # between words, as in running text
  ids, counts, characters = tokenizer.encode_places([joint.join(example.texts) for example in examples])
  ends, pieces, skipped = np.cumsum(counts), [], []
  for number, example in enumerate(examples):
    own = slice(ends[number] - counts[number], ends[number])
    borders = np.cumsum([len(word) + 1 for word in example.texts]) - 1
    of_word = np.searchsorted(borders, characters[own], 'right')
    groups = [[] for _ in example.texts]
    for word, token in zip(of_word.tolist(), ids[own].tolist(), strict=True):
      groups[min(word, len(groups) - 1)].append(token)
    for word, group in enumerate(groups):
      if not group:
        if tokenizer.vocab.unk < 0:
          raise ConfigError(f'{example.where}: the tokenizer makes nothing of the word '
                            f'{shortened(example.texts[word])}, and has no token for unknown ones')
        group.append(tokenizer.vocab.unk)
        skipped.append(f'{example.where}: the tokenizer makes nothing of the word {shortened(example.texts[word])}, '
                       'which is read as an unknown one')
      if len(group) > room:
        raise ConfigError(f'{example.where}: the word {shortened(example.texts[word])} has {len(group)} tokens, a row '
                          f'has room for {room}')
    start, used = 0, 0
    for word, group in enumerate([*groups, [0] * (room + 1)]):
      if used + len(group) > room and word > start:
        some = groups[start:word]
        first = np.cumsum([0, *map(len, some)])[:-1]
        pieces.append(Piece(number, range(start, word), [i for group in some for i in group], first.tolist()))
        start, used = word, 0
      used += len(group)
  return pieces, skipped


def neighbours(pieces: Sequence[Piece], documents: Sequence[int], room: int) -> list[list[Piece]]:
  """Puts pieces that follow each other in a document together, as many as there is room for."""
  rows: list[list[Piece]] = []
  used, document = room + 1, None
  for piece in pieces:
    if used + len(piece.ids) > room or documents[piece.example] != document:
      rows.append([])
      used, document = 0, documents[piece.example]
    rows[-1].append(piece)
    used += len(piece.ids)
  return rows
