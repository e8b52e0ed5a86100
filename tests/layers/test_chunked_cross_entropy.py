"""Chunked cross-entropy compared with losses of full logits."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import validation
from plm_jax.layers import chunked_cross_entropy
from plm_jax.layers.chunked_cross_entropy import LogitScale, LogitStats
from plm_jax.models import gpt2, t5
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.text_to_text import TextToText

SIZE, FACTOR = 37, 0.5


def arrays(dtype=jnp.float32):
  draw = np.random.default_rng(0)
  h, table, bias = draw.normal(size=(2, 5, 8)), draw.normal(size=(SIZE, 8)), draw.normal(size=SIZE)
  labels = draw.integers(SIZE, size=(2, 5))
  labels[0, 0] = SIZE - 1  # in the block that is filled up
  return jnp.array(h, dtype), jnp.array(table, dtype), jnp.array(bias, jnp.float32), jnp.array(
      labels)


def read(h, table, bias, labels, blocks, cap):
  if blocks > 1:
    return chunked_cross_entropy.chunked_logit_stats(
        h, table, bias, labels, LogitScale(FACTOR, cap), blocks)
  logits = jnp.einsum('bmd,vd->bmv', h, table, preferred_element_type=jnp.float32) * FACTOR + bias
  if cap:
    logits = cap * jnp.tanh(logits / cap)
  return LogitStats.from_logits(logits, labels)


@pytest.mark.parametrize('blocks', [2, 4, SIZE])
@pytest.mark.parametrize(('dtype', 'cap'), [
    (jnp.float32, None), (jnp.bfloat16, None), (jnp.float32, 3.0)])
def test_chunks_give_the_losses_and_gradients_of_full_logits(blocks, dtype, cap):
  *inputs, labels = arrays(dtype)
  def total(blocks):
    def loss(h, table, bias):
      found = read(h, table, bias, labels, blocks, cap)
      return (found.log_total - found.label + 0.1 * found.log_total ** 2 + 0.3
              * found.mean).sum(), found
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*inputs)
  (_, found), gradients = total(blocks)
  (_, expected), right = total(1)
  close = dict(rtol=1e-5, atol=1e-5) if dtype == jnp.float32 else dict(rtol=2e-2, atol=2e-2)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a.astype(np.float32), b.astype(np.float32), **close), (found, gradients), (expected, right))
  logits = jnp.einsum('bmd,vd->bmv', *inputs[:2],
                      preferred_element_type=jnp.float32) * FACTOR + inputs[2]
  if cap:
    logits = cap * jnp.tanh(logits / cap)
  np.testing.assert_allclose(found.log_total - found.label,
                             optax.softmax_cross_entropy_with_integer_labels(logits, labels),
                             **close)


def test_logits_are_never_whole():
  rows, width, size = 256, 16, 8192
  shapes = [jax.ShapeDtypeStruct(shape, jnp.float32)
            for shape in ((1, rows, width), (size, width), (size,))]
  def temporaries(blocks):
    def loss(h, table, bias):
      return read(h, table, bias, jnp.zeros((1, rows), int), blocks, None).log_total.sum()
    return jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis(
        ).temp_size_in_bytes
  assert temporaries(16) < rows * size * 4 < temporaries(1)


@pytest.mark.parametrize(('objective', 'model'), [
    (CausalLM(z_loss=1e-2), gpt2.small), (TextToText(z_loss=1e-2, smoothing=0.1), t5.small)])
def test_chunked_objectives_have_the_same_metrics(objective, model):
  config = validation.with_paths(model(), {'vocab': SIZE, 'block.width': 24})
  draw = np.random.default_rng(0)
  batch = {'labels': jnp.array(draw.integers(config.vocab, size=(2, 6))),
           'weights': jnp.ones((2, 6)),
           'content': jnp.ones((2, 6))}
  output = type('Output', (),
                {'hidden': jnp.array(draw.normal(size=(2, 6, config.block.width)), jnp.float32),
                               'embedding': jnp.array(
                                   draw.normal(size=(config.vocab, config.block.width)))})
  def losses(objective):
    head = objective.heads(config)['lm']
    return objective.loss({'lm': head.apply({}, output, batch)}, batch)
  found, whole = losses(dataclasses.replace(objective, loss_blocks=3)), losses(objective)
  assert found.keys() == whole.keys()
  for name, pair in found.items():
    np.testing.assert_allclose(pair, whole[name], rtol=1e-5)
