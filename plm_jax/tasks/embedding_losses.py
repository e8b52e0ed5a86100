"""Losses of sentence embeddings, as values (Reimers and Gurevych 2019, section 3).

Contrastive, triplet, in-batch negatives (SimCSE, Gao et al. 2021), CoSENT (Su 2022) and others.
Each is called as `loss(vectors, group)` and returns (sum, weight). `vectors` [B, C, W] float32 are
the vectors of C texts of B examples; `ExampleGroup` says which of them are real. Losses of scores
also take the token vectors of late interaction, which MaxSim compares. All means are over the whole
batch, across all devices.
"""
import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.layers.pooling import l2_normalize
from plm_jax.layers.splade import Penalty
from plm_jax.layers.token_vectors import InteractionVectors, all_maxsim, own_maxsim
from plm_jax.metrics.nearest import Similarity
from plm_jax.tasks.example_formats import CLASSIFICATION, EMBEDDING, REGRESSION, ExampleFormat
from plm_jax.tasks.ranking_format import RERANK
from plm_jax.validation import ValidatedConfig, intervals

LossPair = tuple[jax.Array, jax.Array]  # (sum, weight)
EPS = 1e-6  # torch adds it to each difference of a Euclidean distance


class ExampleGroup(NamedTuple):
  """Labels of the examples of a batch."""

  weight: jax.Array
  """[B] 1.0, or 0.0 for a padding row of the batch"""
  real: jax.Array
  """[B] number of texts of each example; later texts are empty"""
  label: jax.Array
  """[B] class, or number"""
  relation: Any = None
  """[B, K] logits of the classes of a pair, if these are learned"""
  target: Any = None
  """[B, W] teacher's vector, if there is a teacher"""
  texts: Any = None
  """[B, C] ids of the texts, equal for equal texts; None: all count as different"""
  scores: Any = None
  """[B, C - 1] teacher's score of each text but the first, if there are any"""
  guide: Any = None
  """[B, C, V] the guide's vector of each text, if there is a guide"""


@dataclasses.dataclass(frozen=True)
class VectorLoss(ValidatedConfig, abc.ABC):
  """Base class of losses of sentence embeddings."""

  train_format: ClassVar[ExampleFormat] = EMBEDDING
  """training examples: pairs with a class, pairs with a number, related texts, or queries with
  scored documents"""
  texts: ClassVar[tuple[int, int]] = (2, 2)
  """minimum and maximum number of texts of an example"""
  cross_row: ClassVar[bool] = False
  """whether an example's loss depends on the other examples of its batch"""
  euclidean: ClassVar[bool] = False
  """whether it depends on the length of vectors; if so, prefixes of vectors are normalized"""
  similarity: ClassVar[Similarity] = 'cosine'
  """similarity that it trains"""
  interacts: ClassVar[bool] = False
  """whether it takes `InteractionVectors` (late interaction), too"""

  @abc.abstractmethod
  def __call__(self, vectors: Any, group: ExampleGroup) -> LossPair:
    """Return (sum, weight) of the loss of vectors [B, C, W]."""


@dataclasses.dataclass(frozen=True)
class Softmax(VectorLoss):
  """Softmax loss: classify pairs by a layer on (u, v, |u - v|), as SBERT does on NLI.

  Reimers and Gurevych 2019, section 3.
  """

  train_format = CLASSIFICATION

  def __call__(self, vectors, group):
    labels = group.label.astype(jnp.int32)
    import optax
    losses = optax.softmax_cross_entropy_with_integer_labels(group.relation, labels)
    return weighted_sum(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class CosineRegression(VectorLoss):
  """Cosine regression: the squared error of cosines against numbers, as SBERT does on STS.

  Reimers and Gurevych 2019, section 3.
  """

  train_format = REGRESSION
  limits = intervals(full='(0, 1e6]')

  full: float = 5.0
  """label of pairs with the same meaning, which corresponds to a cosine of 1"""

  def __call__(self, vectors, group):
    errors = jnp.square(pair_cosines(vectors) - group.label / self.full)
    return weighted_sum(errors, group.weight)


@dataclasses.dataclass(frozen=True)
class Contrastive(VectorLoss):
  """Contrastive loss: pull pairs of label 1 together, push pairs of label 0 apart up to a margin.

  Hadsell et al. 2006, equation 4; the distance is 1 - cosine, as in sentence-transformers.
  """

  train_format = REGRESSION
  limits = intervals(margin='(0, 2]')

  margin: float = 0.5
  """distance beyond which pairs of label 0 contribute no loss"""

  def __call__(self, vectors, group):
    distance = 1 - pair_cosines(vectors)
    shortfall = jax.nn.relu(self.margin - distance)
    losses = 0.5 * (
        group.label * jnp.square(distance) + (1 - group.label) * jnp.square(shortfall))
    return weighted_sum(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class Triplet(VectorLoss):
  """Triplet loss: an anchor is nearer to its positive than to its negative, by a margin.

  Reimers and Gurevych 2019, section 3.
  """

  texts = (3, 3)
  euclidean = True
  limits = intervals(margin='(0, 1e6]')

  margin: float = 5.0
  """margin between the two Euclidean distances"""

  def __call__(self, vectors, group):
    anchor, positive, negative = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    def distance(a, b):
      return jnp.sqrt(jnp.square(a - b + EPS).sum(-1))
    difference = distance(anchor, positive) - distance(anchor, negative)
    return weighted_sum(jax.nn.relu(difference + self.margin), group.weight)


@dataclasses.dataclass(frozen=True)
class InBatch(VectorLoss):
  """In-batch negatives (InfoNCE, multiple negatives ranking): find each anchor's positive.

  The candidates are all second and later texts of a batch, across all devices (Henderson et al.
  2017, section 4; Gao et al. 2021, equations 1 and 5). Third and later texts of an example are
  hard negatives, of all anchors. An example of one text is its own positive, with another dropout
  (unsupervised SimCSE). False negatives are excluded: texts of other examples that equal the
  anchor or its positive, and positives of an equal anchor.
  """

  texts = (1, 16)
  cross_row = True
  interacts = True
  limits = intervals(temperature='(0, 1e3]')

  temperature: float = 0.05
  """temperature that cosines are divided by; 0.05 is the scale 20. MaxSim, a sum of cosines, has 1
  (task colbert)"""

  def __call__(self, vectors, group):
    scores = candidate_scores(vectors, self.similarity != 'dot')  # [B, candidates]
    scores = scores / self.temperature
    count = scores.shape[1] // len(scores)
    real = (jnp.arange(1, count + 1)[:, None] < group.real) & (group.weight > 0)
    allowed = real.ravel() & ~false_negative_mask(group.texts, *real.shape)
    scores = jnp.where(allowed, scores, -1e9)
    import optax
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(scores)))
    return weighted_sum(losses, group.weight)


@dataclasses.dataclass(frozen=True)
class InBatchProducts(InBatch):
  """In-batch negatives by dot products, for sparse vectors (Formal et al. 2021a, equation 5)."""

  euclidean = True
  similarity = 'dot'

  temperature: float = 1.0
  """temperature that dot products are divided by"""


@dataclasses.dataclass(frozen=True)
class GuidedInBatch(InBatch):
  """Guided in-batch negatives: a guide model excludes false negatives (GIST, Solatorio 2024).

  The candidates are those of `InBatch`, the other anchors (compared with the anchor), and the other
  positives once more (compared with the positive), as in section 3 and in GISTEmbedLoss of
  sentence-transformers. A candidate is excluded if the guide's cosine for it is higher than for the
  anchor and its positive.
  """

  texts = (2, 16)
  interacts = False
  limits = intervals(margin='[0, 1]')

  temperature: float = 0.01
  """temperature that cosines are divided by"""
  guide: str = ''
  """folder of the guide model: a run, a sentence-transformers folder, or another checkpoint"""
  margin: float = 0.0
  """a candidate is also excluded if the guide's cosine for it is lower by less than this"""

  def __call__(self, vectors, group):
    count, size = vectors.shape[1], len(vectors)
    real = (jnp.arange(1, count)[:, None] < group.real) & (group.weight > 0)
    not_self = ~jnp.eye(size, dtype=bool) & (group.weight > 0)
    known = jnp.broadcast_to(
        real.ravel() & ~false_negative_mask(group.texts, *real.shape), (size, real.size))
    allowed = jnp.concatenate([known, not_self, not_self], 1)
    guide = guided_cosines(group.guide)
    own = jnp.diagonal(guide)[:, None]
    is_positive = jnp.arange(guide.shape[1]) == jnp.arange(size)[:, None]
    allowed &= (guide <= own - self.margin) | is_positive
    scores = jnp.where(allowed, guided_cosines(vectors) / self.temperature, -1e9)
    import optax
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(size))
    return weighted_sum(losses, group.weight)


def candidate_scores(
    vectors: jax.Array | InteractionVectors, normalize: bool = True) -> jax.Array:
  """Compute the scores of anchors and `all_candidates` -> [B, B * (C - 1)].

  They are cosines, without `normalize` dot products, or MaxSim.
  """
  if isinstance(vectors, InteractionVectors):
    return all_maxsim(vectors)
  x = l2_normalize(vectors) if normalize else vectors
  return jnp.einsum('bd,cd->bc', x[:, 0], all_candidates(x), precision='highest')


def all_candidates(x: jax.Array) -> jax.Array:
  """Return all positives, then all first negatives, and so on: [B, C, W] -> [B * (C - 1), W]."""
  return x[:, 1:].swapaxes(0, 1).reshape(-1, x.shape[-1])


def guided_cosines(vectors: jax.Array) -> jax.Array:
  """Compute the cosines that `GuidedInBatch` compares: [B, C, W] -> [B, B * (C + 1)].

  They are those of anchors and `all_candidates`, of anchors, and of positives.
  """
  x = l2_normalize(vectors)
  pairs = (x[:, 0], all_candidates(x)), (x[:, 0], x[:, 0]), (x[:, 1], x[:, 1])
  return jnp.concatenate(
      [jnp.einsum('bd,cd->bc', left, right, precision='highest') for left, right in pairs], 1)


@dataclasses.dataclass(frozen=True)
class CoSent(VectorLoss):
  """CoSENT: of two pairs, the one with the larger label has the larger cosine (Su 2022).

  The loss is log(1 + sum(exp((cosine of lower label - cosine of higher label) / temperature))),
  over all pairs of pairs in the batch.
  """

  train_format = REGRESSION
  cross_row = True
  limits = intervals(temperature='(0, 1e3]')

  temperature: float = 0.05
  """temperature that cosines are divided by"""

  def __call__(self, vectors, group):
    scores, label = pair_cosines(vectors) / self.temperature, group.label
    count = group.weight.sum()
    ordered = (label[:, None] < label) & (group.weight[:, None] * group.weight > 0)
    differences = jnp.where(ordered, scores[:, None] - scores, -1e9)
    loss = jax.nn.logsumexp(jnp.concatenate([jnp.zeros(1), differences.ravel()]))
    return loss * count, count


@dataclasses.dataclass(frozen=True)
class TeacherVectors(VectorLoss):
  """Distillation: all texts of an example learn the teacher's vector of its first text.

  The loss is the mean squared error (Reimers and Gurevych 2020, equation 1). An example is one
  text, or a text and its translations, whose vectors then match the text's.
  """

  texts = (1, 16)

  teacher: str = ''
  """folder of the teacher model: a run, a sentence-transformers folder, or another checkpoint"""

  def __call__(self, vectors, group):
    real = (jnp.arange(vectors.shape[1]) < group.real[:, None]) * group.weight[:, None]
    return weighted_sum(jnp.square(vectors - group.target[:, None]).mean(-1), real)


@dataclasses.dataclass(frozen=True)
class ScoreMargins(VectorLoss):
  """Margin-MSE: the margin between a query's documents is a teacher's (Hofstätter et al. 2020).

  Scores are dot products; the margin is that of the first document to each other one, equation 1.
  """

  train_format = RERANK
  texts = (3, 65)
  euclidean = True
  similarity = 'dot'
  interacts = True

  def __call__(self, vectors, group):
    scores, real = document_scores(vectors, group)
    return margin_mse(scores, group.scores, real * group.weight[:, None])


@dataclasses.dataclass(frozen=True)
class ScoreDistribution(VectorLoss):
  """Distillation of a teacher's distribution over a query's documents (Lin et al. 2020).

  The loss is the Kullback-Leibler divergence of the softmax of dot products from that of the
  teacher's scores, times the squared temperature. With MaxSim, ColBERTv2 has it too (Santhanam et
  al. 2022, section 3.2).
  """

  train_format = RERANK
  texts = (3, 65)
  euclidean = True
  similarity = 'dot'
  interacts = True
  limits = intervals(temperature='(0, 1e3]')

  temperature: float = 1.0
  """temperature that both scores are divided by"""
  min_max: bool = False
  """scale the scores of a query's documents to 0 to 1 before, not the teacher's (min-max), as
  Distillation of PyLate does by default"""

  def __call__(self, vectors, group):
    scores, real = document_scores(vectors, group)
    if self.min_max:
      lowest = jnp.where(real, scores, jnp.inf).argmin(-1, keepdims=True)
      highest = jnp.where(real, scores, -jnp.inf).argmax(-1, keepdims=True)
      least, most = (jnp.take_along_axis(scores, at, -1) for at in (lowest, highest))
      scores = (scores - least) / (most - least + 1e-8)
    def logs(x):
      return jax.nn.log_softmax(jnp.where(real, x / self.temperature, -1e9), -1)
    student, teacher = logs(scores), logs(group.scores)
    terms = jnp.where(real, jnp.exp(teacher) * (teacher - student), 0.0)
    return weighted_sum(terms.sum(-1) * self.temperature ** 2, group.weight)


@dataclasses.dataclass(frozen=True)
class ScoreDistributionInBatch(ScoreDistribution):
  """ColBERTv2's loss: `ScoreDistribution`, and in-batch negatives with weight 1.

  The candidates of the second loss are a query's first document, and the documents of all other
  queries (`use_ib_negatives` of the authors' code).
  """

  cross_row = True

  def __call__(self, vectors, group):
    total, weight = super().__call__(vectors, group)
    scores = candidate_scores(vectors, normalize=False)  # [B, candidates]
    size, count = len(scores), scores.shape[1] // len(scores)
    real = (jnp.arange(1, count + 1)[:, None] < group.real) & (group.weight > 0)
    own_negative = jnp.tile(jnp.eye(size, dtype=bool), count).at[:, :size].set(False)
    scores = jnp.where(real.ravel() & ~own_negative, scores, -1e9)
    import optax
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(size))
    return total + weighted_sum(losses, group.weight)[0], weight


def document_scores(
    vectors: jax.Array | InteractionVectors, group: ExampleGroup) -> tuple[jax.Array, jax.Array]:
  """Return the scores of each query's documents, and whether these exist, [B, C - 1].

  Scores are dot products, or MaxSim.
  """
  if isinstance(vectors, InteractionVectors):
    scores = own_maxsim(vectors)
  else:
    scores = jnp.einsum('bw,bcw->bc', vectors[:, 0], vectors[:, 1:], precision='highest')
  return scores, jnp.arange(1, scores.shape[1] + 1) < group.real[:, None]


def false_negative_mask(texts: jax.Array | None, columns: int, rows: int) -> jax.Array:
  """Mask the false negatives among in-batch candidates: [B, columns * B], column by column.

  Args:
    texts: [B, 1 + columns] ids of the anchor, its positive and its negatives; None: no candidate
      is a false negative.
    columns: candidates per example.
    rows: B.
  """
  if texts is None:
    return jnp.zeros((1, columns * rows), bool)
  candidates = texts[:, 1:].T.ravel()
  anchor, positive = texts[:, :1], texts[:, 1:2]
  same = (candidates == anchor) | (candidates == positive)
  is_positive = jnp.arange(columns * rows) < rows
  same |= is_positive & (jnp.tile(texts[:, 0], columns) == anchor)
  return same & (jnp.tile(jnp.arange(rows), columns) != jnp.arange(rows)[:, None])


def weighted_sum(losses: jax.Array, weight: jax.Array) -> LossPair:
  """Return (sum, weight) of losses with the given weights."""
  return (losses * weight).sum(), weight.sum()


def margin_mse(scores: jax.Array, wanted: jax.Array, weight: jax.Array) -> LossPair:
  """Compute the squared errors of the margins of the first score to the others [B, C]."""
  errors = (scores[:, :1] - scores) - (wanted[:, :1] - wanted)
  return weighted_sum(jnp.square(errors)[:, 1:], weight[:, 1:])


def sparsity_penalty(kind: Penalty, vectors: jax.Array, real: jax.Array) -> jax.Array:
  """Compute the regularizer of sparse vectors.

  Args:
    kind: flops: the sum of the squared means of each weight over the vectors (Paria et al. 2020,
      equation 4); l1: the mean of the sum of the weights. As FLOPS and L1 of naver/splade 8dcd33a,
      splade/losses/regularization.py, lines 4-8 and 20-26.
    vectors: [..., V].
    real: [...] 1.0, or 0.0 for vectors that do not count.
  """
  count = jnp.maximum(real.sum(), 1)
  means = jnp.einsum('...v,...->v', jnp.abs(vectors), real, precision='highest') / count
  return jnp.square(means).sum() if kind == 'flops' else means.sum()


def pair_cosines(vectors: jax.Array) -> jax.Array:
  """Compute the cosine of the first two vectors of each example: [B, C, W] -> [B]."""
  x = l2_normalize(vectors[:, :2])
  return (x[:, 0] * x[:, 1]).sum(-1)


Loss = (
    Softmax | CosineRegression | Contrastive | Triplet | InBatch | InBatchProducts |
    GuidedInBatch | CoSent | TeacherVectors | ScoreMargins | ScoreDistribution |
    ScoreDistributionInBatch)
LOSSES: dict[str, Loss] = {
    'softmax': Softmax(), 'cosine': CosineRegression(), 'contrastive': Contrastive(),
    'triplet': Triplet(), 'in_batch': InBatch(), 'in_batch_dot': InBatchProducts(),
    'gist': GuidedInBatch(), 'cosent': CoSent(),
    'teacher': TeacherVectors(),
    'margin_mse': ScoreMargins(), 'kl': ScoreDistribution(),
    'kl_in_batch': ScoreDistributionInBatch()}
"""losses by their names on the command line"""
