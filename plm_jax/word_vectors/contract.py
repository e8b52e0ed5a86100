"""The interface between word-vector models and the training loop: `WordModel` and `WordLearner`.

`TextLearner` is the base class of learners on context windows, which are cut in blocks of words
from sentences on the host (word2vec's loops). A block has T center words, which predict or are
predicted, and W more words on either side, with W the window. Every word is the center of exactly
one block with all its neighbors, so no pair is lost at an edge.
"""
import abc
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax.validation import ValidatedConfig
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word_corpus import Sentences, Vocabulary, WordCorpus

TableState = dict[str, dict[str, jax.Array]]
"""Training state: 'params' and the optimizer's tables ('squares'), each by name."""


class WordBatches(NamedTuple):
  """Many small batches for one call of the compiled step, which takes one after another."""

  arrays: dict[str, np.ndarray]  # leading axis: the batches
  count: int  # number of batches that are filled
  examples: int  # number of words, or pairs of words, in them


class WordLearner(abc.ABC):
  """Training of a model on one corpus.

  Samples are a function of the seed and the call's number.
  """

  calls_per_epoch: int
  """Calls of the compiled step per epoch."""
  constants: dict[str, jax.Array]
  """Tables that are read and not trained."""

  @abc.abstractmethod
  def sample_batches(self, epoch: int, call: int) -> WordBatches:
    """Sample the training batches of a call."""

  @abc.abstractmethod
  def heldout_batches(self) -> WordBatches:
    """Sample the batches of the held-out text; `count` is 0 where there is none."""

  @abc.abstractmethod
  def step(
      self, state: TableState, fixed: dict[str, jax.Array], batch: dict[str, jax.Array],
      rate: Any) -> TableState:
    """Make a training step on one small batch, which changes the table rows in it."""

  @abc.abstractmethod
  def loss(
      self, state: TableState, fixed: dict[str, jax.Array],
      batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Compute the loss of a small batch as (sum, number of predictions)."""


@dataclasses.dataclass(frozen=True)
class WordModel(ValidatedConfig, abc.ABC):
  """Base class of the configurations of word-vector models."""

  @abc.abstractmethod
  def init(self, key: jax.Array, vocabulary: Vocabulary) -> TableState:
    """Initialize the training state."""

  @abc.abstractmethod
  def make_learner(self, corpus: WordCorpus, seed: int) -> WordLearner:
    """Make the learner of this model on a corpus."""

  @abc.abstractmethod
  def make_vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Compute the word vectors from trained tables."""


HELDOUT_EPOCH = 1 << 32  # epoch number that seeds the samples of the held-out text


@dataclasses.dataclass(frozen=True)
class BlockShape:
  """Sizes of a small batch."""

  blocks: int
  words: int  # center words of a block
  window: int
  random_windows: bool = True  # whether the window of each word is sampled; otherwise all are full

  @property
  def padded_words(self) -> int:
    """Number of words of a block, including those on either side."""
    return self.words + 2 * self.window

  @property
  def center_words(self) -> int:
    """Number of center words of all blocks."""
    return self.blocks * self.words


@dataclasses.dataclass(frozen=True)
class WordBlocks:
  """Blocks of a part of a text: `count` small batches, padded to S batches."""

  ids: np.ndarray  # int32 [S, B, T + 2 W]
  left: np.ndarray  # uint8 [S, B, T], number of neighbors to the left of each center word
  right: np.ndarray  # uint8 [S, B, T]
  count: int


def cut_blocks(
    sentences: Sentences, shape: BlockShape, keep: np.ndarray, random: np.random.Generator,
    room: int) -> WordBlocks:
  """Subsample sentences, sample a window for each word, and cut blocks.

  A window is sampled uniformly from 1 to W for each word (word2vec.c's `b`), and ends with the
  sentence.

  Args:
    sentences: the text.
    shape: sizes of a small batch.
    keep: probability [V] that subsampling keeps an occurrence of a word. It comes before windows,
      so that dropped words bring others closer (word2vec.c, fastText).
    random: source of randomness.
    room: number of small batches S to pad to.
  """
  ids = sentences.ids
  number = np.repeat(np.arange(len(sentences.starts) - 1), sentences.lengths)
  kept = random.random(len(ids), np.float32) < keep.astype(np.float32)[ids]
  ids, number = ids[kept], number[kept]
  place = np.arange(len(ids))
  first = np.searchsorted(number, np.arange(len(sentences.starts)))  # of each sentence, and the end
  smallest = 1 if shape.random_windows else shape.window
  reach = random.integers(smallest, shape.window + 1, len(ids))
  left = np.minimum(reach, place - first[number])
  right = np.minimum(reach, first[number + 1] - 1 - place)
  size = room * shape.center_words
  padded = np.zeros(size + 2 * shape.window, np.int32)
  padded[shape.window:shape.window + len(ids)] = ids
  neighbors = np.zeros((2, size), np.uint8)
  neighbors[0, :len(ids)], neighbors[1, :len(ids)] = left, right
  wide = np.lib.stride_tricks.sliding_window_view(padded, shape.padded_words)[::shape.words]
  return WordBlocks(
      ids=np.ascontiguousarray(wide).reshape(room, shape.blocks, shape.padded_words),
      left=neighbors[0].reshape(room, shape.blocks, shape.words),
      right=neighbors[1].reshape(room, shape.blocks, shape.words),
      count=-(-len(ids) // shape.center_words))


class TextLearner(WordLearner):
  """Base class of learners on blocks of words, which go through the text part by part.

  The model's configuration has the field `call`, the number of words of a part.
  """

  def __init__(self, config: Any, corpus: WordCorpus, seed: int, shape: BlockShape):
    self.config, self.corpus, self.seed, self.shape = config, corpus, seed, shape
    self.constants = {}
    self.part_starts = split_points(corpus.train, config.call)
    self.calls_per_epoch = len(self.part_starts) - 1
    heldout = corpus.heldout
    last = int(np.searchsorted(heldout.starts, config.call, 'right')) - 1
    self.heldout_sentences = heldout.select(0, last)
    longest = int(np.diff(corpus.train.starts[self.part_starts]).max())
    longest = max(longest, len(self.heldout_sentences.ids), 1)
    self.max_batches = -(-longest // shape.center_words)

  def sample_batches(self, epoch: int, call: int) -> WordBatches:
    """Sample the blocks of a part of the text."""
    first, last = self.part_starts[call:call + 2]
    part = self.corpus.train.select(first, last)
    return self.sample_part(part, np.random.default_rng([self.seed, epoch, call]))

  def heldout_batches(self) -> WordBatches:
    """Sample the blocks of the held-out text, of a large one the beginning; the same each time."""
    random = np.random.default_rng([self.seed, HELDOUT_EPOCH])
    return self.sample_part(self.heldout_sentences, random)

  @abc.abstractmethod
  def sample_part(self, part: Sentences, random: np.random.Generator) -> WordBatches:
    """Sample the batches of a part of the text."""


def split_points(sentences: Sentences, size: int) -> np.ndarray:
  """Split a text between sentences into parts of about `size` words.

  Returns:
    Numbers of the first sentences of the parts, and the number of sentences.
  """
  marks = np.arange(0, max(int(sentences.starts[-1]), 1), size)
  firsts = np.searchsorted(sentences.starts, marks)
  return np.unique(np.append(firsts, len(sentences.starts) - 1))
