"""Sampled softmax: cross-entropy over a large vocabulary from a few sampled words.

Jean et al. 2015; TensorFlow's sampled_softmax_loss.
"""
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.layers.common import Dtype
from plm_jax.layers.dense import with_logical_axes
from plm_jax.layers.init import make_initializer
from plm_jax.sharding import gather_parameter

UNKNOWN_ID = 2  # id of <UNK> in a list of words (`tokenizers.words`)


class SampledWords(flax.struct.PyTreeNode):
  """Negative samples of sampled softmax, drawn without repetition for each stream."""

  ids: jax.Array
  """[streams, samples]."""
  tries: jax.Array
  """[streams], number of draws, repetitions included."""


class WordLosses(flax.struct.PyTreeNode):
  """Cross-entropies of next words, and the state of the backbone."""

  losses: jax.Array
  """[batch, streams, length]."""
  state: Any
  """State after the last word."""


class SampledSoftmaxHead(nn.Module):
  """Word-level LM head with sampled softmax: cross-entropies of batch['labels'].

  One softmax over `words` words for all streams; labels beyond it count as <UNK>. With
  batch['candidates'] (`SampledWords`), the softmax is over the label and the candidates. Each logit
  is reduced by the log of the expected count of its word, and a candidate that is the label does
  not count.
  """

  words: int
  dtype: Dtype = 'float32'

  @nn.compact
  def __call__(self, output, batch, row_ids=None) -> WordLosses:
    """Compute losses of output.hidden [batch, streams, length, projection]."""
    del row_ids
    hidden = output.hidden
    labels = jnp.where(batch['labels'] < self.words, batch['labels'], UNKNOWN_ID)
    width = hidden.shape[-1]
    kernel_init = with_logical_axes(make_initializer('normal', width ** -0.5), ('vocab', 'width'))
    kernel = self.param('kernel', kernel_init, (self.words, width))
    bias_init = with_logical_axes(nn.initializers.zeros, ('vocab',))
    bias = self.param('bias', bias_init, (self.words,))
    kernel = gather_parameter(kernel.astype(self.dtype), 'vocab', 'width')
    h = hidden.astype(self.dtype)

    # Complete softmax.
    if 'candidates' not in batch:
      logits = jnp.einsum('bslp,kp->bslk', h, kernel, preferred_element_type=jnp.float32) + bias
      label_logit = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
      return WordLosses(jax.nn.logsumexp(logits, -1) - label_logit, output.state)

    # Sampled softmax.
    sampled = batch['candidates']
    tries = sampled.tries[:, None]
    label_logit = jnp.einsum(
        'bslp,bslp->bsl', h, kernel[labels], preferred_element_type=jnp.float32) + bias[labels]
    label_logit -= jnp.log(expected_count(labels, tries, self.words))
    others = jnp.einsum(
        'bslp,skp->bslk', h, kernel[sampled.ids], preferred_element_type=jnp.float32)
    sampled_bias = bias[sampled.ids]
    sampled_bias -= jnp.log(expected_count(sampled.ids, tries, self.words))
    others += sampled_bias[:, None]
    others = jnp.where(sampled.ids[:, None] == labels[..., None], -jnp.inf, others)
    total = jnp.logaddexp(jax.nn.logsumexp(others, -1), label_logit)
    return WordLosses(total - label_logit, output.state)


def log_uniform_probability(ids, words: int):
  """Compute the log-uniform (nearly Zipfian) probability of words by their rank.

  It is log((k + 2) / (k + 1)) / log(V + 1), as in TensorFlow's log_uniform_candidate_sampler.
  """
  return jnp.log1p(1 / (jnp.asarray(ids, jnp.float32) + 1)) / jnp.log(words + 1.0)


def expected_count(ids, tries, words: int):
  """Compute the expected count of words among the samples: the probability that `tries` draw
  them."""
  return -jnp.expm1(tries * jnp.log1p(-log_uniform_probability(ids, words)))


def sample_words(key, words: int, samples: int, streams: int = 2) -> SampledWords:
  """Draw `samples` of `words` words per stream log-uniformly, without repetition.

  Drawn one after another, words first occur in the order of exponential clocks with their
  probabilities as rates. The time of the last one is the number of draws, repetitions included
  (Efraimidis and Spirakis 2006); TensorFlow counts them.
  """
  rates = log_uniform_probability(jnp.arange(words), words)
  clocks = jnp.log(jax.random.exponential(key, (streams, words))) - jnp.log(rates)
  latest, ids = jax.lax.top_k(-clocks, samples)
  return SampledWords(ids, jnp.exp(-latest[:, -1]))
