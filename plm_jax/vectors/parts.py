"""A learner that goes through the text part by part, and draws what it learns from in each."""
import abc
from typing import Any

import numpy as np

from plm_jax.vectors.blocks import Shape
from plm_jax.vectors.contract import Batches, Learner
from plm_jax.vectors.corpus import Corpus, Sentences

HELDOUT = 1 << 32  # the epoch that is measured on


class TextLearner(Learner):
  """Base of the models that learn from blocks of words, whose configurations have a `call`: words of a part."""

  def __init__(self, config: Any, corpus: Corpus, seed: int, shape: Shape):
    self.config, self.corpus, self.seed, self.shape, self.fixed = config, corpus, seed, shape, {}
    self.firsts = edges(corpus.train, config.call)
    self.calls = len(self.firsts) - 1
    held = corpus.heldout
    self.held = held.part(0, int(np.searchsorted(held.starts, config.call, 'right')) - 1)
    longest = max(int(np.diff(corpus.train.starts[self.firsts]).max()), len(self.held.ids), 1)
    self.room = -(-longest // shape.size)

  def batches(self, epoch: int, call: int) -> Batches:
    """Draws the blocks of a part of the text."""
    part = self.corpus.train.part(*self.firsts[call:call + 2])
    return self.drawn(part, np.random.default_rng([self.seed, epoch, call]))

  def heldout(self) -> Batches:
    """Draws the blocks of what was held out, of a large text the beginning, the same each time."""
    return self.drawn(self.held, np.random.default_rng([self.seed, HELDOUT]))

  @abc.abstractmethod
  def drawn(self, part: Sentences, random: np.random.Generator) -> Batches:
    """Draws what is learned from in a part of the text."""


def edges(sentences: Sentences, size: int) -> np.ndarray:
  """Cuts a text between sentences, where it comes to another multiple of `size` words -> numbers of the first sentences
  of the parts, and of all."""
  marks = np.arange(0, max(int(sentences.starts[-1]), 1), size)
  firsts = np.searchsorted(sentences.starts, marks)
  return np.unique([*firsts, len(sentences.starts) - 1])
