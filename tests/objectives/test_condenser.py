"""Condenser and coCondenser: losses computed by hand, spans of documents, and what is exported."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax import sharding
from plm_jax.errors import ConfigError
from plm_jax.models import modernbert
from plm_jax.objectives.condenser import CoCondenser, Condenser
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.training.step import compute_gradient

OBJECTIVE = Condenser()
PAIRED = CoCondenser()
ROOM = tiny.LENGTH - 2  # tokens of a span
CONFIG = tiny.config(layers=4, dropout=0.0, attention={'dropout': 0.0})


@functools.cache
def corrupted(objective=OBJECTIVE, rows=4, shortest=12):
  windows = tiny.windows(rows, objective.text_length(tiny.LENGTH), seed=3, shortest=shortest)
  corrupt = jax.jit(lambda key, w: objective.corrupt(key, w, tiny.VOCAB))
  return jax.device_get(corrupt(jax.random.key(5), windows))


@functools.cache
def params_of(objective=OBJECTIVE):
  module = objective.build(CONFIG, packed=False)
  shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), corrupted())['params'])
  return tiny.random_params(shapes)


def reference_loss(params, batch, depth):
  """Compute the loss of the head in numpy, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  states = numpy_bert.inside(p['backbone'], batch)
  layers = [states['embedded'], *states['hidden']]
  x = np.concatenate([layers[-1][:, :1], layers[depth][:, 1:]], 1)
  # The layers of the head, as an encoder whose embeddings are x.
  x = numpy_bert.run_layers(p['condenser']['layers']['block'], x, batch['segments'] > 0)
  h, mlm = np.take_along_axis(x, batch['positions'][..., None], 1), p['heads_mlm']
  h = numpy_bert.norm(numpy_bert.gelu(h @ mlm['dense']['kernel'] + mlm['dense']['bias']),
                      mlm['norm'])
  table = p['backbone']['embeddings']['tokens']
  logits = numpy_bert.log_softmax(h @ table.T + mlm['bias'])
  loss = -np.take_along_axis(logits, batch['labels'][..., None], -1)[..., 0]
  return (loss * batch['weights']).sum() / batch['weights'].sum()


@pytest.mark.parametrize(('early', 'depth'), [(0.5, 2), (0.0, 0), (1.0, 4)])
def test_the_loss_is_that_of_numpy(early, depth):
  objective = dataclasses.replace(OBJECTIVE, early=early)
  module, batch = objective.build(CONFIG, packed=False), corrupted()
  outputs = jax.jit(module.apply)({'params': params_of()}, batch)
  total, weight = objective.loss(outputs, batch)['condenser']
  np.testing.assert_allclose(total / weight, reference_loss(params_of(), batch, depth), rtol=2e-6)


def test_the_loss_of_the_encoder_can_be_left_out():
  assert dataclasses.replace(OBJECTIVE, late=0.0).terms == {'mlm': 0.0, 'condenser': 1.0}


def test_what_is_exported_is_an_encoder_with_its_head():
  assert {*params_of()} == {'backbone', 'heads_mlm', 'condenser'}
  assert {*OBJECTIVE.lifecycle.exported(params_of())} == {'backbone', 'heads_mlm'}


def test_encoders_with_norms_before_their_layers_are_refused():
  with pytest.raises(ConfigError, match='both after their norm'):
    OBJECTIVE.build(modernbert.base(), packed=False)


# coCondenser.


def cut(sentences, objective=PAIRED, seeds=200):
  """Cut a text whose tokens are numbered from 10 at random -> its spans, [seeds, 2, ROOM]."""
  room = ROOM * objective.reach
  sentences = np.pad(np.asarray(sentences, np.int32), (0, room - len(sentences)))
  real = sentences > 0
  at = np.arange(room, dtype=np.int32)
  text = jax.tree.map(jnp.asarray, dict(
      tokens=np.where(real, at + 10, 0), segments=real.astype(np.int32), sentences=sentences,
      words=np.where(real, at // 3 + 1, 0)))
  keys = jax.random.split(jax.random.key(2), seeds)
  return jax.device_get(jax.jit(jax.vmap(lambda key: objective.cut_spans(key, text)))(keys))


def starts_and_sizes(spans):
  return spans['tokens'][..., 0] - 10, (spans['segments'] > 0).sum(-1)


def test_spans_are_of_both_halves_of_a_text_which_meet_between_sentences():
  """100 tokens in sentences of 20, 35 and 45: the middle is in the second, which ends at 55."""
  spans = cut(np.repeat([1, 2, 3], [20, 35, 45]))
  starts, sizes = starts_and_sizes(spans)
  assert (sizes == ROOM).all()
  assert {*starts[:, 0]} == {*range(55 - ROOM + 1)}
  assert {*starts[:, 1]} == {*range(55, 100 - ROOM + 1)}
  # Consecutive tokens; words are numbered from 1, also where the first one is cut.
  np.testing.assert_array_equal(spans['tokens'] - spans['tokens'][..., :1],
                                np.broadcast_to(np.arange(ROOM), spans['tokens'].shape))
  first = (spans['tokens'][..., :1] - 10) // 3
  np.testing.assert_array_equal(spans['words'], (spans['tokens'] - 10) // 3 - first + 1)


@pytest.mark.parametrize(('sentences', 'expected'), [
    ([1] * 5 + [2] * 12, [5, 12]),  # the middle is in the last sentence: the halves meet before it
    ([1] * 8 + [2] * 3, [8, 3]),
    ([1] * ROOM, [ROOM, 0]),  # one sentence, as long as a span
    ([1] * (ROOM + 1), [16, 15]),
    ([], [0, 0])])
def test_short_texts_and_texts_of_one_sentence(sentences, expected):
  starts, sizes = starts_and_sizes(cut(sentences, seeds=3))
  assert (sizes == expected).all()
  if all(expected):
    assert (starts == [0, expected[0]]).all()


def test_both_spans_of_a_document_are_neighbors_in_the_batch_and_masked_apart():
  batch = corrupted(PAIRED, 256, 1)
  assert batch['tokens'].shape == (512, tiny.LENGTH)
  np.testing.assert_array_equal(batch['window'], np.repeat(np.arange(256), 2))
  np.testing.assert_array_equal(batch['document'], np.repeat(np.arange(256), 2))
  full = (batch['segments'] > 0).any(-1)
  np.testing.assert_array_equal(batch['paired'], full & full[np.arange(512) ^ 1])
  assert 0.8 < batch['paired'].mean() < 1
  long = (batch['segments'].sum(-1) == tiny.LENGTH).reshape(256, 2).all(-1)
  positions = batch['positions'].reshape(256, 2, -1)[long]
  assert len(positions) > 80 and (positions[:, 0] != positions[:, 1]).any(-1).mean() > 0.9


def reference_contrast(params, batch):
  """Compute compute_contrastive_loss of modeling.py in numpy, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  cls = numpy_bert.hidden(p['backbone'], batch)[:, 0]
  scores = cls @ cls.T
  np.fill_diagonal(scores, -np.inf)
  target = np.arange(len(cls)).reshape(-1, 2)[:, ::-1].ravel()
  return -np.take_along_axis(numpy_bert.log_softmax(scores), target[:, None], 1).mean()


def total(objective, params, batch):
  outputs = objective.build(CONFIG, packed=False).apply({'params': params}, batch)
  losses = objective.loss(outputs, batch)
  return sum(factor * losses[name][0] / losses[name][1]
             for name, factor in objective.terms.items())


def reference_total(params, batch):
  """Compute the sum of the three losses in numpy, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  h = np.take_along_axis(
      numpy_bert.hidden(p['backbone'], batch), batch['positions'][..., None], 1)
  mlm = p['heads_mlm']
  h = numpy_bert.norm(numpy_bert.gelu(h @ mlm['dense']['kernel'] + mlm['dense']['bias']),
                      mlm['norm'])
  logits = numpy_bert.log_softmax(h @ p['backbone']['embeddings']['tokens'].T + mlm['bias'])
  tokens = -np.take_along_axis(logits, batch['labels'][..., None], -1)[..., 0]
  tokens = (tokens * batch['weights']).sum() / batch['weights'].sum()
  return tokens + reference_loss(params, batch, 2) + reference_contrast(params, batch)


def test_the_losses_of_cocondenser_are_those_of_numpy_and_its_gradient_that_of_differences():
  batch, params = corrupted(PAIRED), params_of()
  assert batch['paired'].all()
  value, gradient = jax.jit(jax.value_and_grad(lambda p: total(PAIRED, p, batch)))(params)
  np.testing.assert_allclose(value, reference_total(params, batch), rtol=2e-6)
  draw = np.random.default_rng(1)
  step = jax.tree.map(lambda x: draw.normal(size=x.shape), params)
  slope = sum(jax.tree.leaves(jax.tree.map(
      lambda g, s: (np.asarray(g, np.float64) * s).sum(), gradient, step)))
  ends = [reference_total(jax.tree.map(lambda x, s, e=e: np.asarray(x, np.float64) + e * s,
                                       params, step), batch) for e in (1e-6, -1e-6)]
  np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=2e-4)


def test_spans_of_one_document_and_empty_rows_are_no_negatives():
  """Vectors on four axes: scores are 1 or 0."""
  axes = np.eye(4, dtype=np.float32)
  batch = dict(corrupted(PAIRED))
  outputs = {name: np.zeros((8, 5, 96), np.float32) for name in ('mlm', 'condenser')}
  def contrast(**changes):
    sums = PAIRED.loss({**outputs, 'cls': axes[[0, 0, 0, 0, 1, 1, 2, 2]]}, {**batch, **changes})
    return float(sums['contrast'][0]), float(sums['contrast'][1])
  def own(others, zeros):
    return -np.log(np.e / ((1 + others) * np.e + zeros))
  assert contrast() == pytest.approx((4 * own(2, 4) + 4 * own(0, 6), 8), rel=1e-6)
  # The first four rows are of one document.
  document = np.repeat([7, 7, 2, 3], 2)
  expected = 4 * own(0, 4) + 4 * own(0, 6)
  assert contrast(document=document) == pytest.approx((expected, 8), rel=1e-5)
  # Or of documents of the same number in two corpora.
  expected = 4 * own(2, 4) + 4 * own(0, 6)
  corpus = np.repeat([0, 1, 0, 0], 2)
  assert contrast(document=document, corpus=corpus) == pytest.approx((expected, 8), rel=1e-5)
  # The last row is empty: its partner has none.
  segments = batch['segments'].copy()
  segments[7] = 0
  paired = np.array([1.0] * 6 + [0.0] * 2, np.float32)
  expected = 4 * own(2, 3) + 2 * own(0, 5)
  assert contrast(segments=segments, paired=paired) == pytest.approx((expected, 6), rel=1e-5)


@pytest.mark.slow
def test_devices_and_gradient_accumulation_change_neither_loss_nor_gradient():
  """All spans are candidates, on all devices and whatever fits in memory at once (gradient
  caching)."""
  windows = tiny.windows(8, PAIRED.text_length(tiny.LENGTH), seed=3, shortest=12)
  def gradient(accumulate, params, windows):
    learner = dataclasses.replace(
        tiny.learner(PAIRED, accumulate), model=PAIRED.build(CONFIG, packed=False))
    def compute(params, windows):
      batch = PAIRED.corrupt(jax.random.key(5), windows, tiny.VOCAB)
      return compute_gradient(learner, params, batch, jax.random.key(0))
    return jax.jit(compute)(params, windows)
  grads, losses = gradient(1, params_of(), windows)
  mesh = make_mesh(MeshConfig(data=8))
  with jax.set_mesh(mesh):
    spread = gradient(1, jax.device_put(params_of(), jax.NamedSharding(mesh, jax.P())),
                      sharding.shard_batch(windows, 8, mesh))
  for other in (spread, gradient(4, params_of(), windows)):
    tiny.assert_close(other[0], grads, 2e-5)
    assert other[1].keys() == losses.keys() and 'contrast' in losses
    np.testing.assert_allclose(jax.tree.leaves(other[1]), jax.tree.leaves(losses), rtol=2e-6,
                               atol=1e-6)


def test_cocondenser_continues_condenser_with_its_head():
  """The parameters have the same names and shapes, and all count in a step."""
  shapes = [jax.tree.map(np.shape, params_of(objective)) for objective in (OBJECTIVE, PAIRED)]
  assert shapes[0] == shapes[1]
  assert PAIRED.step_flops(CONFIG, 32) == 2 * OBJECTIVE.step_flops(CONFIG, 32)
