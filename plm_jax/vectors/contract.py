"""What a model of words is to the loop."""
import abc
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax.checked import Checked
from plm_jax.vectors.corpus import Corpus
from plm_jax.vectors.vocabulary import Vocabulary
from plm_jax.vectors.words import WordVectors

State = dict[str, dict[str, jax.Array]]
"""'params' and whatever an optimizer keeps beside them ('squares'), each a table by its name"""


class Batches(NamedTuple):
  """What one call of the compiled step learns from: many small batches, one after another."""

  arrays: dict[str, np.ndarray]  # leading axis: the batches
  count: int  # batches that are filled
  examples: int  # words, or pairs of words, that are in them


class Learner(abc.ABC):
  """A model that learns from one corpus. What it draws is a function of the seed and of the number of the call."""

  calls: int
  """of the compiled step, to go through the corpus once"""
  fixed: dict[str, jax.Array]
  """tables that are read and not trained"""

  @abc.abstractmethod
  def batches(self, epoch: int, call: int) -> Batches:
    """Draws what the model learns from in a call of an epoch."""

  @abc.abstractmethod
  def heldout(self) -> Batches:
    """Draws what the model is measured on; with `count` 0 where nothing was held out."""

  @abc.abstractmethod
  def step(self, state: State, fixed: dict[str, jax.Array], batch: dict[str, jax.Array], rate: Any) -> State:
    """Learns from one small batch, in the rows of the tables that are in it."""

  @abc.abstractmethod
  def loss(
      self, state: State, fixed: dict[str, jax.Array], batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Measures the loss of a batch -> (sum, number of predictions)."""


@dataclasses.dataclass(frozen=True)
class WordModel(Checked, abc.ABC):
  """Base of the configurations of models."""

  @abc.abstractmethod
  def init(self, key: jax.Array, vocabulary: Vocabulary) -> State:
    """Draws the tables that a run begins with."""

  @abc.abstractmethod
  def learner(self, corpus: Corpus, seed: int) -> Learner:
    """Makes what learns from a corpus."""

  @abc.abstractmethod
  def vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Makes the vectors that people use."""
