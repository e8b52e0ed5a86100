"""Losses of a cross-encoder, which scores a query and a document together, as values.

Each is called as `loss(scores, group)` and returns (sum, weight). `scores` [B, C] float32 are
logits of a query with each of its documents.
"""
import abc
import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.objectives import Arrays
from plm_jax.tasks.contract import OutputUnit
from plm_jax.tasks.embedding_losses import LossPair, margin_mse, weighted_sum
from plm_jax.validation import ValidatedConfig, intervals

Activation = Literal['sigmoid', 'none']
MASKED = -1e9


class RankingGroup(NamedTuple):
  """What is known of the documents of a batch."""

  relevance: jax.Array
  """of each document, or a teacher's score [B, C]"""
  real: jax.Array
  """whether there is such a document [B, C]"""
  weight: jax.Array
  """of each query [B]"""


@dataclasses.dataclass(frozen=True)
class RankingLoss(ValidatedConfig, abc.ABC):
  """Base class of losses of scores."""

  output_unit: ClassVar[OutputUnit]
  """what a score belongs to: a text, or a row of a group"""
  teacher: ClassVar[bool] = False
  """whether a teacher's scores are learned, if they are given in addition to the relevance"""
  activation: ClassVar[Activation] = 'none'
  """what makes a score of a logit when the model is used"""

  @abc.abstractmethod
  def __call__(self, scores: jax.Array, group: RankingGroup) -> LossPair:
    """Compute (sum, weight) of the loss."""

  @abc.abstractmethod
  def group_documents(self, logits: jax.Array, batch: Arrays) -> tuple[jax.Array, RankingGroup]:
    """Arrange the logits of a batch as the loss takes them -> (scores [B, C], documents)."""


@dataclasses.dataclass(frozen=True)
class PairLoss(RankingLoss):
  """Base class of losses of single pairs of a query and a document, which may be packed."""

  output_unit = 'slot'

  def group_documents(self, logits, batch):
    """Make a list of one document of each slot."""
    scores = logits.astype(jnp.float32).reshape(-1, 1)
    label, weight = batch['label'].reshape(-1, 1), batch['weight'].reshape(-1)
    return scores, RankingGroup(label, jnp.ones_like(scores), weight)


@dataclasses.dataclass(frozen=True)
class ListLoss(RankingLoss):
  """Base class of losses that compare the documents of a query, a group of rows."""

  output_unit = 'row'
  positive_first: ClassVar[bool] = False
  """whether the first document of a list is relevant and the others are not"""
  random: ClassVar[int] = 0
  """documents of other queries per list"""

  def group_documents(self, logits, batch):
    """Take the documents of a query from the rows of its group."""
    scores = logits.astype(jnp.float32).reshape(batch['tokens'].shape[:2])
    real = jnp.arange(scores.shape[1]) < batch['real'][:, :1]
    return scores, RankingGroup(
        batch['label'][:, 0], real.astype(jnp.float32), batch['weight'][:, 0])


@dataclasses.dataclass(frozen=True)
class Binary(PairLoss):
  """Binary cross-entropy of each pair: whether the document is relevant (Nogueira and Cho 2019)."""

  activation = 'sigmoid'
  limits = intervals(full='(0, 1e6]')

  full: float = 1.0
  """relevance that stands for certainly relevant; graded relevance is divided by it"""

  def __call__(self, scores, group):
    target = group.relevance / self.full
    losses = target * jax.nn.softplus(-scores) + (1 - target) * jax.nn.softplus(scores)
    return weighted_sum(losses, group.real * group.weight[:, None])


@dataclasses.dataclass(frozen=True)
class Regression(PairLoss):
  """Squared error of each score against the given one, such as a teacher's."""

  teacher = True

  def __call__(self, scores, group):
    errors = jnp.square(scores - group.relevance)
    return weighted_sum(errors, group.real * group.weight[:, None])


@dataclasses.dataclass(frozen=True)
class Negatives(ListLoss):
  """Multiple negatives: cross-entropy of the relevant document among the documents of a query.

  Each list gets `random` documents of other queries in addition, which are taken for irrelevant
  (Henderson et al. 2017, section 4).
  """

  positive_first = True
  activation = 'sigmoid'
  limits = intervals(scale='(0, 1e3]', random='[0, 1000]')

  scale: float = 10.0
  """factor of the scores, which are probabilities from 0 to 1"""
  random: int = 4  # pyright: ignore[reportIncompatibleVariableOverride]
  """documents of other queries per list"""

  def __call__(self, scores, group):
    logits = jnp.where(group.real > 0, self.scale * jax.nn.sigmoid(scores), MASKED)
    losses = jax.nn.logsumexp(logits, -1) - logits[:, 0]
    return weighted_sum(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class ListNet(ListLoss):
  """ListNet: cross-entropy of the softmax of scores against that of relevance (Cao et al. 2007).

  Equation 6, for the probability that a document is ranked first.
  """

  def __call__(self, scores, group):
    target = jax.nn.softmax(jnp.where(group.real > 0, group.relevance, MASKED), -1)
    logs = jax.nn.log_softmax(jnp.where(group.real > 0, scores, MASKED), -1)
    losses = -(target * jnp.where(group.real > 0, logs, 0)).sum(-1)
    return weighted_sum(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class MarginMSE(ListLoss):
  """Distillation: the margin between two documents is a teacher's (Hofstätter et al. 2020, eq. 1).

  The margin is that of the first document of a list to each other one.
  """

  positive_first = True
  teacher = True

  def __call__(self, scores, group):
    return margin_mse(scores, group.relevance, group.real * group.weight[:, None])


RankingLosses = Binary | Regression | Negatives | ListNet | MarginMSE
RANKING_LOSSES: dict[str, RankingLosses] = {
    'binary': Binary(), 'regression': Regression(), 'negatives': Negatives(),
    'listnet': ListNet(), 'margin_mse': MarginMSE()}
"""losses by their names on the command line"""
