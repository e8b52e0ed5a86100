"""The bound of masked diffusion: its value by enumeration, its random masks, and masking by
frequency."""
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import validation
from plm_jax.models import deberta, gpt_bert, ltg_bert, modernbert
from plm_jax.objectives import PROGRESS
from plm_jax.objectives.masked_diffusion import (
  MaskedDiffusion,
  draw_times,
  frequency_probabilities,
  suppress_mask,
)
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.recipes.ltg_bert import mdlm_base
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.step import init_state, train_step

SMALL = Vocab(8, pad=0, unk=1, cls=2, sep=3, mask=4)  # and three words, 5 to 7
SIZE = 3
TEXT = np.array([5, 7, 5])


def table(seed=0):
  """Returns a random model of three tokens: logits [masked texts, position, vocabulary]."""
  return np.random.default_rng(seed).normal(scale=1.5, size=(4 ** SIZE, SIZE, SMALL.size))


def read_table(logits, tokens):
  """Looks texts up: [..., 3] -> logits [..., 3, vocabulary]. Works with numpy and JAX."""
  digits = (tokens == 6) + 2 * (tokens == 7) + 3 * (tokens == SMALL.mask)
  return logits[(digits * np.array([16, 4, 1])).sum(-1)]


def cross_entropy(logits, masked, text=TEXT):
  """Returns the cross-entropy of each token of a text whose tokens are masked, float64 [3]."""
  found = read_table(logits, np.where(masked, SMALL.mask, text)).copy()
  found[:, SMALL.mask] = -np.inf
  return np.log(np.exp(found).sum(-1)) - found[np.arange(SIZE), text]


def exact_bound(logits, text=TEXT):
  """Computes the bound in nats by all masks: each number of masked tokens, and each choice of so
  many."""
  total = 0.0
  for number in range(1, SIZE + 1):
    choices = list(itertools.combinations(range(SIZE), number))
    for choice in choices:
      masked = np.isin(np.arange(SIZE), choice)
      total += cross_entropy(logits, masked,
                             text)[masked].sum() * SIZE / number / SIZE / len(choices)
  return total


def order_losses(logits, text=TEXT):
  """Computes the negative log-likelihood of the text in each order of its tokens."""
  losses = []
  for order in itertools.permutations(range(SIZE)):
    nats = 0.0
    for place, token in enumerate(order):
      nats += cross_entropy(logits, np.isin(np.arange(SIZE), order[place:]), text)[token]
    losses.append(nats)
  return np.array(losses)


def small_windows(rows):
  zeros = np.zeros(rows, np.int32)
  return {'tokens': np.tile(TEXT, (rows, 1)).astype(np.int32),
          'segments': np.ones((rows, SIZE), np.int32),
          'sentences': np.ones((rows, SIZE), np.int32),
          'words': np.tile(np.arange(1, SIZE + 1), (rows, 1)),
          'document': zeros, 'corpus': zeros, 'index': np.arange(rows, dtype=np.int32),
          'epoch': zeros}


def sampled_loss(objective, windows, logits, key=0):
  """Returns the loss of the table's model on masks of the objective, in nats per text."""
  @jax.jit
  def compute(windows, logits):
    batch = objective.corrupt(jax.random.key(key), windows, SMALL)
    found = jnp.pad(read_table(logits, batch['tokens'][:, 1:-1]), ((0, 0), (1, 1), (0, 0)))
    total, weight = objective.loss({'mlm': found}, batch)['diffusion']
    return total / weight
  return SIZE * float(compute(windows, jnp.asarray(logits, jnp.float32)))


def test_the_bound_is_the_mean_over_orders_and_above_the_likelihood():
  """All by enumeration: the weights L / n, the integral over time, and the orders of the tokens."""
  logits = table()
  bound, losses = exact_bound(logits), order_losses(logits)
  assert bound == pytest.approx(losses.mean(), rel=1e-12)
  likelihood = -math.log(np.exp(-losses).mean())  # of the model that samples an order first
  assert bound > likelihood + 0.01
  # The likelihoods of all texts sum to 1.
  words = np.where(np.arange(SMALL.size) > SMALL.mask, logits, -np.inf)
  every = [np.exp(-order_losses(words, np.array(text))).mean()
           for text in itertools.product((5, 6, 7), repeat=SIZE)]
  assert sum(every) == pytest.approx(1, rel=1e-12)
  # The integral over time of 1/t times the loss, of every mask with its probability t^n (1 - t)^(L
  # - n).
  integral = 0.0
  for bits in itertools.product((False, True), repeat=SIZE):
    number = sum(bits)
    if number:
      beta = math.factorial(number - 1) * math.factorial(SIZE - number) / math.factorial(SIZE)
      integral += beta * cross_entropy(logits, np.array(bits))[np.array(bits)].sum()
  assert bound == pytest.approx(integral, rel=1e-12)
  # A model of independent tokens has one likelihood in all orders, and the bound is that.
  independent = np.tile(table(1)[:1], (4 ** SIZE, 1, 1))
  losses = order_losses(independent)
  np.testing.assert_allclose(losses, losses[0], rtol=1e-12)
  assert exact_bound(independent) == pytest.approx(losses[0], rel=1e-12)


def truncated_bound(logits, alpha, first):
  """Integrates -alpha' / (1 - alpha) times the expected loss over times from `first` to 1, in nats
  per text."""
  points, weights = np.polynomial.legendre.leggauss(64)
  total = 0.0
  for point, weight in zip(points, weights, strict=True):
    time = first + (1 - first) * (point + 1) / 2
    rate, slope = 1 - alpha(time), (alpha(time + 1e-6) - alpha(time - 1e-6)) / 2e-6
    for bits in itertools.product((False, True), repeat=SIZE):
      probability = rate ** sum(bits) * (1 - rate) ** (SIZE - sum(bits))
      loss = cross_entropy(logits, np.array(bits))[np.array(bits)].sum()
      total += weight / 2 * -slope / rate * probability * loss
  return total


def test_random_masks_of_evaluation_converge_to_the_bound():
  logits = table()
  found = sampled_loss(MaskedDiffusion(held_out_samples=16), small_windows(1 << 13), logits)
  assert found == pytest.approx(exact_bound(logits), rel=3e-3)


@pytest.mark.parametrize(('schedule', 'stratified', 'alpha'), [
    ('linear', True, lambda t: 1 - t), ('linear', False, lambda t: 1 - t),
    ('cosine', True, lambda t: np.cos(np.pi / 2 * t))])
def test_random_masks_of_training_converge_to_the_integral(schedule, stratified, alpha):
  logits = table()
  assert truncated_bound(logits, alpha, 1e-5) == pytest.approx(exact_bound(logits), rel=1e-4)
  objective = MaskedDiffusion(schedule=schedule, low_discrepancy=stratified, min_time=0.1)
  windows = {**small_windows(1 << 15), PROGRESS: np.float32(0.5)}
  assert sampled_loss(objective, windows,
                      logits) == pytest.approx(truncated_bound(logits, alpha, 0.1), rel=0.01)


def test_mask_is_no_prediction_and_gradients_are_finite_at_small_times():
  objective = MaskedDiffusion(min_time=1e-7, schedule='cosine')
  windows = {**small_windows(4), PROGRESS: np.float32(0)}
  windows['segments'][3] = windows['words'][3] = 0  # a row without text
  windows['tokens'][2, 1] = SMALL.mask  # a mask in the text itself is left alone
  batch = jax.jit(lambda windows: objective.corrupt(jax.random.key(0), windows, SMALL))(windows)
  assert np.asarray(batch['text']).sum(1).tolist() == [3, 3, 2, 0]
  batch['masked'] = batch['text']
  batch['weights'] = batch['text'] * 1e7
  logits = jnp.zeros((4, SIZE + 2, SMALL.size)).at[..., SMALL.mask].set(9.0)
  def loss(logits):
    total, weight = objective.loss({'mlm': logits}, batch)['diffusion']
    return total / weight
  value, gradient = jax.jit(jax.value_and_grad(loss))(logits)
  assert float(value) == pytest.approx(1e7 * math.log(SMALL.size - 1), rel=1e-5)
  assert np.isfinite(gradient).all() and not np.asarray(gradient)[..., SMALL.mask].any()
  assert suppress_mask(logits, 4).argmax(-1).max() != 4


def test_times_are_one_per_stratum_whatever_the_order_of_rows():
  keys = jax.random.split(jax.random.key(0), 16)
  times = np.asarray(draw_times(keys, True))
  np.testing.assert_array_equal(np.sort(np.floor(times * 16)), np.arange(16))
  order = np.random.default_rng(0).permutation(16)
  np.testing.assert_array_equal(draw_times(keys[order], True), times[order])
  assert len(set(np.floor(np.asarray(draw_times(keys, False)) * 16))) < 16


def released_probabilities(ranks, rate, power):
  """Computes the formula of frequency-informed masking step by step in float64."""
  weights = ((ranks - ranks.min()) / (ranks.max() - ranks.min())) ** power
  mean = weights.mean()
  return weights * rate / mean if mean > rate else 1 - (1 - weights) * (1 - rate) / (1 - mean)


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize('power', [0.02, 1.0])
def test_rarer_tokens_are_masked_more_often_and_as_many_in_all(rate, power):
  ranks = np.array([3, 900, 0, 17, 40, 40, 5, 7])
  text = np.arange(10) < 8
  padded = np.append(ranks, [5000, 0])
  found = np.asarray(frequency_probabilities(jnp.array(padded), jnp.array(text), rate, power))
  np.testing.assert_allclose(found[:8], released_probabilities(ranks.astype(float), rate, power),
                             rtol=2e-4, atol=1e-6)
  assert not found[8:].any() and found[:8].mean() == pytest.approx(rate, rel=1e-4)
  assert (np.diff(found[np.argsort(ranks)]) >= -1e-6).all() and found.max() <= 1 + 1e-5
  np.testing.assert_allclose(frequency_probabilities(jnp.array(padded), jnp.array(text), rate,
                                                     0.0)[:8], rate, rtol=1e-5)


def test_training_masks_by_frequency_and_evaluation_does_not():
  objective = MaskedDiffusion(pair=FullSentences(), frequency_power=1.0, frequency_curriculum=False)
  assert objective.requirements.frequency_ranks and 'frequency_ranks' in objective.shapes(2, 12)
  windows = tiny.windows(512, 8, shortest=8)
  windows['frequency_ranks'] = np.tile(np.arange(8, dtype=np.int32), (512, 1))
  def shares(objective, windows):
    batch = jax.device_get(jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, tiny.VOCAB))(
        windows))
    assert (batch['tokens'][batch['masked'] > 0] == tiny.VOCAB.mask).all()
    np.testing.assert_array_equal(batch['tokens'][batch['masked'] == 0],
                                  batch['labels'][batch['masked'] == 0])
    assert not batch['masked'][batch['text'] == 0].any()
    return batch['masked'][:, 1:9].mean(0)
  trained = shares(objective, {**windows, PROGRESS: np.float32(0)})
  assert trained[0] < 0.35 and trained[-1] > 0.65 and trained.mean() == pytest.approx(0.5, abs=0.03)
  grown = dataclasses.replace(objective, frequency_curriculum=True)
  for found in shares(grown, {**windows, PROGRESS: np.float32(0)}), shares(objective, windows):
    np.testing.assert_allclose(found, found.mean(), atol=0.08)


def shapes_of_a_step(model):
  """Traces a training step of a small model."""
  objective = MaskedDiffusion()
  small = validation.with_paths(model, {
      'block.width': 32, 'block.heads': 2, 'block.mlp_dim': 16, 'stack.layers': 2,
      'vocab': tiny.VOCAB.size,
      'max_length': tiny.LENGTH})
  learner = dataclasses.replace(tiny.learner(), model=objective.build(small, packed=False),
                                objective=objective)
  windows = tiny.windows(2, objective.text_length(16))
  state = jax.eval_shape(lambda: init_state(learner, windows))
  return jax.eval_shape(lambda state: train_step(learner, state, windows), state)


@pytest.mark.parametrize('model', [
    pytest.param(tiny.config(), id='bert'),
    pytest.param(modernbert.base(), id='modernbert', marks=pytest.mark.slow),
    pytest.param(deberta.base(), id='deberta', marks=pytest.mark.slow),
    pytest.param(ltg_bert.base(), id='ltg-bert', marks=pytest.mark.slow),
    pytest.param(mdlm_base(), id='gpt-bert', marks=pytest.mark.slow)])
def test_encoders_of_every_kind_learn_it(model):
  _, metrics = shapes_of_a_step(model)
  assert {'diffusion', 'diffusion_accuracy', 'grad_norm'} <= metrics.keys()


def test_a_shifted_model_is_refused():
  with pytest.raises(ValueError, match=r'give model\.head\.shifted=False'):
    MaskedDiffusion().build(gpt_bert.base(), packed=False)
  with pytest.raises(ValueError, match='min_time'):
    validation.check(MaskedDiffusion(min_time=0.0))
