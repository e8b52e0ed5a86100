"""Objectives of sentence vectors, as values (Reimers and Gurevych 2019, section 3; Gao et al. 2021; Su 2022).

Each is asked `loss(vectors, group)` and returns (sum, weight): vectors [B, C, W] float32 are those of the C texts of B
examples, and `Group` says which of them are there. All means are those of the whole batch, over all its devices.
"""
import abc
import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from plm_jax.checked import Checked, within
from plm_jax.layers.pooling import unit

Learns = Literal['classification', 'regression', 'embedding']
"""which kind of examples a loss takes: pairs with a class, pairs with a number, or texts that belong together"""
Pair = tuple[jax.Array, jax.Array]
EPS = 1e-6  # what torch adds to each difference of a euclidean distance


class Group(NamedTuple):
  """What is known of the examples of a batch."""

  weight: jax.Array
  """[B] 1.0, or 0.0 of a row that is only there to fill the batch"""
  real: jax.Array
  """[B] texts of each example; those behind are empty"""
  label: jax.Array
  """[B] class, or number"""
  relation: Any = None
  """[B, K] logits of the classes of a pair, where these are learned"""
  target: Any = None
  """[B, W] vector that the texts are to have, where a teacher says it"""


@dataclasses.dataclass(frozen=True)
class VectorLoss(Checked, abc.ABC):
  """Base of the losses."""

  learns: ClassVar[Learns] = 'embedding'
  texts: ClassVar[tuple[int, int]] = (2, 2)
  """least and most texts of an example"""
  whole: ClassVar[bool] = False
  """whether an example's loss depends on the other examples of its batch"""

  @abc.abstractmethod
  def __call__(self, vectors: jax.Array, group: Group) -> Pair:
    """Returns (sum, weight) of vectors [B, C, W]."""


@dataclasses.dataclass(frozen=True)
class Softmax(VectorLoss):
  """Classes of pairs, by a layer on (u, v, |u - v|) (Reimers and Gurevych 2019, section 3: SBERT's on NLI)."""

  learns = 'classification'

  def __call__(self, vectors, group):
    """Takes the cross-entropy of group.relation."""
    del vectors
    losses = optax.softmax_cross_entropy_with_integer_labels(group.relation, group.label.astype(jnp.int32))
    return mean(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class CosineRegression(VectorLoss):
  """The squared error of cosines against numbers (Reimers and Gurevych 2019, section 3: SBERT's on STS)."""

  learns = 'regression'
  limits = within(full='(0, 1e6]')

  full: float = 5.0
  """number of pairs that mean the same: a cosine of 1"""

  def __call__(self, vectors, group):
    """Takes (cosine - label / full) ** 2."""
    return mean(jnp.square(cosines(vectors) - group.label / self.full), group.weight)


@dataclasses.dataclass(frozen=True)
class Contrastive(VectorLoss):
  """Pairs that mean the same (label 1) draw near, others (0) part up to a margin (Hadsell et al. 2006, equation 4; the
  distance is 1 - cosine, as in sentence-transformers)."""

  learns = 'regression'
  limits = within(margin='(0, 2]')

  margin: float = 0.5
  """distance beyond which pairs of label 0 are far enough"""

  def __call__(self, vectors, group):
    """Takes half the square of the distance, or of what it lacks of the margin."""
    distance = 1 - cosines(vectors)
    apart = jax.nn.relu(self.margin - distance)
    losses = 0.5 * (group.label * jnp.square(distance) + (1 - group.label) * jnp.square(apart))
    return mean(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class Triplet(VectorLoss):
  """An anchor is nearer to its positive than to its negative, by a margin (Reimers and Gurevych 2019, section 3)."""

  texts = (3, 3)
  limits = within(margin='(0, 1e6]')

  margin: float = 5.0
  """of euclidean distances"""

  def __call__(self, vectors, group):
    """Takes what the difference of both distances lacks of the margin."""
    anchor, positive, negative = (vectors[:, place] for place in range(3))
    def distance(a, b):
      return jnp.sqrt(jnp.square(a - b + EPS).sum(-1))
    return mean(jax.nn.relu(distance(anchor, positive) - distance(anchor, negative) + self.margin), group.weight)


@dataclasses.dataclass(frozen=True)
class InBatch(VectorLoss):
  """Among all second and later texts of a batch, over all devices, an anchor's own second text is the likeliest
  (Henderson et al. 2017, section 4; Gao et al. 2021, equations 1 and 5).

  Third and later texts of an example are hard negatives, of all anchors. An example of one text is its own positive,
  with another dropout (SimCSE without labels).
  """

  texts = (1, 16)
  whole = True
  limits = within(temperature='(0, 1e3]')

  temperature: float = 0.05
  """that cosines are divided by; 0.05 is the scale 20"""

  def __call__(self, vectors, group):
    """Takes the cross-entropy of each anchor's positive among the candidates."""
    x = unit(vectors)
    count = x.shape[1]
    candidates = x[:, 1:].swapaxes(0, 1).reshape(-1, x.shape[-1])  # all positives, then all first negatives, ...
    there = (jnp.arange(1, count)[:, None] < group.real) & (group.weight > 0)
    scores = jnp.einsum('bd,cd->bc', x[:, 0], candidates, precision='highest') / self.temperature
    scores = jnp.where(there.ravel(), scores, -1e9)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(x)))
    return mean(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class CoSent(VectorLoss):
  """Of two pairs that with the larger number has the larger cosine (Su 2022, CoSENT): the logarithm of 1 + the sum of
  exp((cosine of the lesser - cosine of the larger) / temperature), over all pairs of pairs in the batch."""

  learns = 'regression'
  whole = True
  limits = within(temperature='(0, 1e3]')

  temperature: float = 0.05
  """that cosines are divided by"""

  def __call__(self, vectors, group):
    """Takes that of the batch, which weighs as much as its examples."""
    scores, label, count = cosines(vectors) / self.temperature, group.label, group.weight.sum()
    wrong = (label[:, None] < label) & (group.weight[:, None] * group.weight > 0)
    differences = jnp.where(wrong, scores[:, None] - scores, -1e9)
    loss = jax.nn.logsumexp(jnp.concatenate([jnp.zeros(1), differences.ravel()]))
    return loss * count, count


@dataclasses.dataclass(frozen=True)
class TeacherVectors(VectorLoss):
  """Texts get the vector that a teacher gives the first of them, by the squared error (Reimers and Gurevych 2020,
  equation 1): a text alone, or a text and its translations, which come to lie where it lies."""

  texts = (1, 16)

  teacher: str = ''
  """folder of the model whose vectors are learned: of a run, of sentence-transformers, or of another checkpoint"""

  def __call__(self, vectors, group):
    """Takes the mean square of differences, of all texts of an example."""
    there = (jnp.arange(vectors.shape[1]) < group.real[:, None]) * group.weight[:, None]
    return mean(jnp.square(vectors - group.target[:, None]).mean(-1), there)


def mean(losses: jax.Array, weight: jax.Array) -> Pair:
  """Returns (sum, weight) of losses that weigh `weight`."""
  return (losses * weight).sum(), weight.sum()


def cosines(vectors: jax.Array) -> jax.Array:
  """Computes the cosine of the first two vectors of each example: [B, C, W] -> [B]."""
  x = unit(vectors[:, :2])
  return (x[:, 0] * x[:, 1]).sum(-1)


Loss = Softmax | CosineRegression | Contrastive | Triplet | InBatch | CoSent | TeacherVectors
LOSSES: dict[str, Loss] = {
    'softmax': Softmax(), 'cosine': CosineRegression(), 'contrastive': Contrastive(), 'triplet': Triplet(),
    'in_batch': InBatch(), 'cosent': CoSent(), 'teacher': TeacherVectors()}
"""by the names that the command line has for them"""
