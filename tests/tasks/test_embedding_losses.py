"""Losses of sentence vectors: literal values, several devices and micro-steps, prefixes, what is
only there to fill."""
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import sharding
from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.tasks.embedding_losses import (
  Contrastive,
  CoSent,
  CosineRegression,
  ExampleGroup,
  GuidedInBatch,
  InBatch,
  InBatchProducts,
  ScoreDistribution,
  ScoreMargins,
  Softmax,
  TeacherVectors,
  Triplet,
)
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sentence_embedding import EmbeddingTask, number_texts
from plm_jax.training.step import Learner, compute_gradient

AXES = np.eye(3, dtype=np.float32)


def group(rows, texts, label=(), **more):
  label = jnp.asarray(label or [0.0] * rows, jnp.float32)
  return ExampleGroup(jnp.ones(rows), jnp.full(rows, texts), label, **more)


def test_in_batch_negatives_by_hand():
  """Two anchors on axes; each positive is on its anchor, the one hard negative on the first:
  cosines 1 and 0."""
  vectors = jnp.stack([AXES[[0, 0, 2]], AXES[[1, 1, 0]]])
  total, weight = InBatch(temperature=1.0)(3 * vectors, group(2, 3))
  # candidates: itself, the other, axis 2, axis 0
  first = -math.log(math.e / (math.e + 1 + 1 + math.e))
  second = -math.log(math.e / (1 + math.e + 1 + 1))
  np.testing.assert_allclose([total, weight], [first + second, 2], rtol=1e-6)


def test_false_negatives_are_no_candidates():
  """Texts 0 to 3 are on axes of four; numbers say which are equal. Candidates of others are left
  out one by one."""
  axes = np.eye(4, dtype=np.float32)
  def loss(*texts):
    numbers = jnp.array(texts)
    vectors = jnp.asarray(axes[np.array(texts)])
    total, weight = InBatch(temperature=1.0)(vectors, group(*numbers.shape)._replace(texts=numbers))
    assert weight == len(texts)
    return float(total)
  def own(score, *others):
    return -math.log(math.exp(score) / (math.exp(score) + sum(map(math.exp, others))))
  # All are different; then the second positive is equal to the first, to the first anchor, and the
  # anchors are equal.
  np.testing.assert_allclose(loss((0, 1), (2, 3)), own(0, 0) + own(0, 0), rtol=1e-6)
  np.testing.assert_allclose(loss((0, 1), (2, 1)), 0, atol=1e-6)
  np.testing.assert_allclose(loss((0, 1), (2, 0)), own(0) + own(0, 0), rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(loss((0, 1), (0, 3)), 0, atol=1e-6)
  # A hard negative of another example that is equal to the positive is left out; an example's own
  # is not, nor are the negatives of an equal anchor.
  np.testing.assert_allclose(loss((0, 1, 2), (3, 2, 1)), 2 * own(0, 0, 0), rtol=1e-6)
  np.testing.assert_allclose(loss((0, 1, 2), (0, 1, 3)), 2 * own(0, 0, 0), rtol=1e-6)
  # A text alone is its own positive, also where it comes twice.
  np.testing.assert_allclose(loss((0, 0), (0, 0), (1, 1)), 2 * own(1, 0) + own(1, 0, 0), rtol=1e-6)


@pytest.mark.parametrize('seed', range(6))
def test_equal_texts_in_a_batch_are_never_negatives(seed):
  """Of few distinct texts, with equal vectors: the loss is that of candidates which are picked one
  by one."""
  draw = np.random.default_rng(seed)
  texts = draw.integers(0, 7, (5, 3))
  table = draw.normal(size=(7, 4))
  vectors = table / np.linalg.norm(table, axis=1, keepdims=True)
  expected = 0.0
  for row, (anchor, positive, _) in enumerate(texts):
    scores = [vectors[anchor] @ vectors[positive]]
    for other, (their_anchor, *candidates) in enumerate(texts):
      for place, text in enumerate(candidates):
        if (other, place) == (row, 0):
          continue
        relevant = text in (anchor, positive) or (place == 0 and their_anchor == anchor)
        if other == row or not relevant:  # the negatives of an example are given
          scores.append(vectors[anchor] @ vectors[text])
    expected -= np.log(np.exp(scores[0]) / np.exp(scores).sum())
  found, weight = InBatch(temperature=1.0)(jnp.asarray(table[texts], jnp.float32),
                                           group(5, 3)._replace(texts=jnp.asarray(texts)))
  assert float(found) == pytest.approx(expected, rel=1e-5) and weight == 5


@pytest.mark.parametrize('loss', [ScoreMargins(), ScoreDistribution(temperature=2.0)])
def test_scores_of_a_teacher_by_hand(loss):
  """Dot products of a query with documents; the second example has one document less."""
  draw = np.random.default_rng(0)
  vectors, scores = draw.normal(size=(2, 4, 5)), draw.normal(size=(2, 3))
  real, weight = [4, 3], [1.0, 1.0]
  def expected(x):
    parts = []
    for row, count in enumerate(real):
      own, wanted = x[row, 1:count] @ x[row, 0], scores[row, :count - 1]
      if isinstance(loss, ScoreMargins):
        parts += list(np.square((own[0] - own[1:]) - (wanted[0] - wanted[1:])))
      else:
        p, q = np.exp(wanted / 2) / np.exp(wanted / 2).sum(), np.exp(own / 2) / np.exp(own / 2).sum(
            )
        parts.append(4 * (p * np.log(p / q)).sum())
    return np.mean(parts)
  group = ExampleGroup(jnp.asarray(weight), jnp.asarray(real), jnp.zeros(2),
                       scores=jnp.asarray(scores, jnp.float32))
  def mean(x):
    total, count = loss(x, group)
    return total / count
  x = jnp.asarray(vectors, jnp.float32)
  assert float(mean(x)) == pytest.approx(expected(vectors), rel=1e-5)
  gradient = jax.grad(mean)(x)
  for place in np.ndindex(vectors.shape):
    step = np.zeros(vectors.shape)
    step[place] = 1e-6
    assert gradient[place] == pytest.approx((expected(vectors + step) - expected(vectors - step))
                                            / 2e-6, abs=1e-4)


def test_texts_of_examples_are_numbered():
  found = number_texts([('a', 'b'), ('b', 'c', 'a'), ('d', 'd')], 3)
  np.testing.assert_array_equal(found, [[0, 1, -1], [1, 2, 0], [3, 3, -1]])


def test_triplets_on_prefixes_are_normalized_again():
  """By hand: the first two numbers of a vector have the length 1 again, as in
  sentence-transformers."""
  vectors = jnp.asarray([[[3.0, 4.0, 9.0], [1.0, 0.0, 2.0], [0.0, 5.0, 7.0]]])
  batch = {'weight': jnp.ones((1, 1)), 'real': jnp.full((1, 1), 3), 'label': jnp.zeros((1, 1))}
  losses = EmbeddingTask(vector_loss=Triplet(margin=1.0),
                         prefixes=(2,)).loss({'embedding': vectors}, batch)
  def distance(a, b):
    return math.dist(a, b)
  short = 1 + distance((.6, .8), (1, 0)) - distance((.6, .8), (0, 1))
  whole = max(0.0, 1 + distance((3, 4, 9), (1, 0, 2)) - distance((3, 4, 9), (0, 5, 7)))
  np.testing.assert_allclose([losses['embedding_2'][0], losses['embedding'][0]], [short, whole],
                             rtol=1e-4)


def test_what_only_fills_a_batch_is_no_candidate():
  vectors = jax.random.normal(jax.random.key(0), (4, 3, 5))
  short = InBatch()(vectors[:2], group(2, 3))
  weight = jnp.array([1.0, 1.0, 0.0, 0.0])
  np.testing.assert_allclose(InBatch()(vectors, group(4, 3)._replace(weight=weight)), short,
                             rtol=1e-6)
  # Nor is a negative that an example does not have.
  lacking = group(2, 3)._replace(real=jnp.array([3, 2]))
  moved = vectors.at[1, 2].add(7.0)
  np.testing.assert_array_equal(InBatch()(vectors[:2], lacking), InBatch()(moved[:2], lacking))


def cosine(left, right):
  return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


@pytest.mark.parametrize('margin', [0.0, 0.2])
def test_a_guide_excludes_false_negatives(margin):
  """Equal to a loop over candidates; a fourth example only fills the batch, and the third has no
  negative."""
  random = np.random.default_rng(0)
  vectors, guide = random.normal(size=(4, 3, 5)), random.normal(size=(4, 3, 7))
  real, weight = np.array([3, 3, 2, 3]), np.array([1.0, 1, 1, 0])
  def cells(x):  # of each anchor: the cosine of each candidate, its positive first
    for n in range(3):
      found = [(n, 1, x[n, 0], x[n, 1])]
      for other in range(3):
        found += [(other, 1, x[n, 0], x[other, 1])] * (other != n)
        found += [(other, 2, x[n, 0], x[other, 2])] * int(real[other] > 2)
        found += [(other, 0, x[n, 0], x[other, 0]), (other, 3, x[n, 1], x[other, 1])] * (other != n)
      yield [cosine(left, right) for *_, left, right in found]
  expected, excluded = 0.0, 0
  for ours, theirs in zip(cells(vectors), cells(guide), strict=True):
    kept = [ours[0]] + [own for own, seen in zip(ours[1:], theirs[1:], strict=True) if seen
                        <= theirs[0] - margin]
    excluded += len(ours) - len(kept)
    scores = np.array(kept) / 0.5
    expected += np.log(np.exp(scores).sum()) - scores[0]
  loss = GuidedInBatch(temperature=0.5, margin=margin)
  total, count = loss(jnp.asarray(vectors, jnp.float32), ExampleGroup(
      jnp.asarray(weight), jnp.asarray(real), jnp.zeros(4), guide=jnp.asarray(guide, jnp.float32)))
  assert count == 3 and 0 < excluded < 24
  np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_cosent_is_over_pairs_of_pairs():
  vectors = jax.random.normal(jax.random.key(1), (4, 2, 5))
  label, weight = [1.0, 3.0, 3.0, 9.0], [1, 1, 1, 0]
  x = np.asarray(vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True), np.float64)
  cosines = (x[:, 0] * x[:, 1]).sum(-1) / 0.05
  terms = sum(math.exp(cosines[i] - cosines[j]) for i in range(3)
              for j in range(3) if label[i] < label[j])
  got = CoSent()(vectors, group(4, 2, label)._replace(weight=jnp.array(weight, jnp.float32)))
  np.testing.assert_allclose(got, [3 * math.log1p(terms), 3], rtol=1e-4)


def test_the_other_losses_by_hand():
  near, far = AXES[[0, 0]], AXES[[0, 1]]
  both = jnp.stack([near, far])
  np.testing.assert_allclose(CosineRegression()(both, group(2, 2, [5, 2.5])), [0.25, 2])
  np.testing.assert_allclose(Contrastive(margin=1.5)(both, group(2, 2, [0, 0])),
                             [0.5 * 1.5 ** 2 + 0.5 * 0.5 ** 2, 2])
  triple = jnp.asarray(AXES[None, [0, 0, 1]])
  np.testing.assert_allclose(Triplet(margin=5.0)(triple, group(1, 3)), [5 - math.sqrt(2), 1],
                             rtol=1e-5)
  target = jnp.asarray(AXES[[0]])
  np.testing.assert_allclose(TeacherVectors()(triple, group(1, 3, target=target)), [2 / 3, 3],
                             rtol=1e-6)
  logits = jnp.log(jnp.array([[1.0, 3.0]]))
  np.testing.assert_allclose(Softmax()(triple, group(1, 2, [1], relation=logits)),
                             [-math.log(0.75), 1], rtol=1e-6)


def test_a_vector_of_zeros_has_a_gradient():
  """Of padding rows, whose vectors may be all zeros."""
  grad = jax.grad(lambda x: InBatch()(x, group(2, 2))[0])(jnp.zeros((2, 2, 3)))
  assert np.isfinite(grad).all()


TASKS = {
    'in_batch': EmbeddingTask(vector_loss=InBatch()), 'cosent': EmbeddingTask(vector_loss=CoSent()),
    'prefixes': EmbeddingTask(vector_loss=InBatch(), prefixes=(8, 16)),
    'gist': EmbeddingTask(vector_loss=GuidedInBatch()),
    'softmax': EmbeddingTask(vector_loss=Softmax(), prefixes=(8,), labels=('a', 'b', 'c')),
    'splade': EmbeddingTask(vector_loss=InBatchProducts(), vector=SpladeConfig(
        query_weight=0.1, document_weight=0.1)),
    'dense': EmbeddingTask(vector_loss=CosineRegression(),
                           vector=VectorConfig(('first', 'max'), dense=12, normalize=True))}


def batch_of(rows: int, texts: int = 3, length: int = 12):
  draw = np.random.default_rng(0)
  tokens = draw.integers(5, 96, (rows, texts, length)).astype(np.int32)
  sizes = draw.integers(3, length + 1, (rows, texts, 1))
  segments = (np.arange(length) < sizes).astype(np.int32)
  values = {'label': draw.integers(0, 3, (rows, 1)).astype(np.float32),
            'real': np.full((rows, 1), texts, np.int32),
            'weight': np.ones((rows, 1), np.float32),
            'extract': np.zeros((rows, texts, 1), np.int32),
            'texts': draw.integers(0, 30, (rows, 1, texts)).astype(np.int32),
            'guide': draw.normal(size=(rows, texts, 1, 6)).astype(np.float32)}
  values['weight'][-1] = 0
  return {'tokens': tokens * segments, 'segments': segments, 'types': 0 * tokens, **values}


def learner_of(task: EmbeddingTask, accumulate: int = 1) -> Learner:
  model = tiny.config(layers=1, dropout=0.1)
  objective = TaskObjective(task)
  optimizer = make_optimizer(AdamW(warmup=1), 10)
  return Learner(objective.build(model, False), objective, optimizer, tiny.VOCAB, 0, accumulate)


def gradients(learner: Learner, params, batch):
  @jax.jit
  def run(params, windows):
    made = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)
    return compute_gradient(learner, params, made, learner.key('dropout'))
  with jax.default_matmul_precision('highest'):
    return jax.device_get(run(params, batch))


def params_of(learner: Learner, batch):
  made = jax.eval_shape(lambda b: learner.objective.corrupt(learner.key('corruption'), b,
                                                            learner.vocab), batch)
  return tiny.random_params(jax.eval_shape(learner.model.init, jax.random.key(0), made)['params'])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['in_batch', 'gist', 'splade', *(
    pytest.param(name, marks=pytest.mark.release)
    for name in ('cosent', 'prefixes', 'softmax', 'dense'))])
def test_several_devices_and_cached_gradients(name):
  """The batch of all eight devices, and of all micro-steps, is what one device has at once; dropout
  too."""
  task, batch = TASKS[name], batch_of(16)
  learner = learner_of(task)
  params = params_of(learner, batch)
  grads, losses = gradients(learner, params, batch)
  mesh = make_mesh(MeshConfig(data=8))
  with jax.set_mesh(mesh):
    spread = gradients(learner, jax.device_put(params, jax.NamedSharding(mesh, jax.P())),
                       sharding.shard_batch(batch, 16, mesh))
  cached = gradients(learner_of(task, 4), params, batch)
  for other in (spread, cached):
    tiny.assert_close(other[0], grads, 1e-5)
    np.testing.assert_allclose(jax.tree.leaves(other[1]), jax.tree.leaves(losses), rtol=1e-6,
                               atol=1e-6)


def test_prefixes_have_losses_of_their_own():
  task, batch = TASKS['prefixes'], batch_of(4)
  assert task.terms == ('embedding', 'embedding_8', 'embedding_16')
  vectors = jax.random.normal(jax.random.key(0), (4, 3, 32))
  losses = task.loss({'embedding': vectors}, batch)
  plain = dataclasses.replace(task, prefixes=())
  for name, size in (('embedding', 32), ('embedding_8', 8), ('embedding_16', 16)):
    np.testing.assert_array_equal(losses[name],
                                  plain.loss({'embedding': vectors[..., :size]},
                                             batch)['embedding'])
