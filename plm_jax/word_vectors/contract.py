"""The interface between word-vector models and the training loop: `WordModel` and `WordLearner`."""
import abc
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax.validation import ValidatedConfig
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.vocabulary import Vocabulary
from plm_jax.word_vectors.word_corpus import WordCorpus

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
