"""Softmax over many words, of which training looks at a few (Jean et al. 2015; TensorFlow's sampled_softmax_loss)."""
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.layers.common import Dtype
from plm_jax.layers.dense import named
from plm_jax.layers.init import drawn
from plm_jax.sharding import gathered

UNKNOWN = 2  # the id of <UNK> in a list of words (`tokenizers.words`)


class Candidates(flax.struct.PyTreeNode):
  """Words that a label is told from: ids [S, K], drawn without repetition for each of S streams, and the number of
  draws that it took [S]."""

  ids: jax.Array
  tries: jax.Array


class Predicted(flax.struct.PyTreeNode):
  """Cross-entropies [B, S, L] of the labels, and the state of the backbone, to go on from."""

  losses: jax.Array
  state: Any


class NextWords(nn.Module):
  """Cross-entropies of batch['labels'] [B, S, L] under one softmax over `words` words for all streams, from the
  backbone's hidden [B, S, L, P]; a label that it does not know is <UNK>.

  Where the batch has `candidates`, the softmax is over the label and these, each logit less the logarithm of how often
  its word is expected among them; a candidate that is the label does not count.
  """

  words: int
  dtype: Dtype = 'float32'

  @nn.compact
  def __call__(self, output, batch, rows=None) -> Predicted:
    del rows
    hidden, labels = output.hidden, jnp.where(batch['labels'] < self.words, batch['labels'], UNKNOWN)
    width = hidden.shape[-1]
    kernel = self.param('kernel', named(drawn('normal', width ** -0.5), ('vocab', 'width')), (self.words, width))
    bias = self.param('bias', named(nn.initializers.zeros, ('vocab',)), (self.words,))
    kernel, h = gathered(kernel.astype(self.dtype), 'vocab', 'width'), hidden.astype(self.dtype)
    if 'candidates' not in batch:
      logits = jnp.einsum('bslp,kp->bslk', h, kernel, preferred_element_type=jnp.float32) + bias
      right = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
      return Predicted(jax.nn.logsumexp(logits, -1) - right, output.state)
    chosen = batch['candidates']
    right = jnp.einsum('bslp,bslp->bsl', h, kernel[labels], preferred_element_type=jnp.float32) + bias[labels]
    right -= jnp.log(expected(labels, chosen.tries[:, None], self.words))
    others = jnp.einsum('bslp,skp->bslk', h, kernel[chosen.ids], preferred_element_type=jnp.float32)
    others += (bias[chosen.ids] - jnp.log(expected(chosen.ids, chosen.tries[:, None], self.words)))[:, None]
    others = jnp.where(chosen.ids[:, None] == labels[..., None], -jnp.inf, others)
    return Predicted(jnp.logaddexp(jax.nn.logsumexp(others, -1), right) - right, output.state)


def log_uniform(ids, words: int):
  """Returns the probabilities of words by their rank, Zipf's nearly: log((k + 2) / (k + 1)) / log(V + 1) (TensorFlow's
  log_uniform_candidate_sampler)."""
  return jnp.log1p(1 / (jnp.asarray(ids, jnp.float32) + 1)) / jnp.log(words + 1.0)


def expected(ids, tries, words: int):
  """Returns how often words are expected among candidates: with which probability `tries` draws have them."""
  return -jnp.expm1(tries * jnp.log1p(-log_uniform(ids, words)))


def candidates(key, words: int, samples: int, streams: int = 2) -> Candidates:
  """Draws `samples` of `words` words for each stream by `log_uniform`, repeated draws left out.

  Drawn one after another, words come first in the order of exponential clocks with these rates, whose time at the last
  one is how many draws it took, all repetitions counted (Efraimidis and Spirakis 2006): TensorFlow counts them.
  """
  rates = log_uniform(jnp.arange(words), words)
  clocks = jnp.log(jax.random.exponential(key, (streams, words))) - jnp.log(rates)
  latest, ids = jax.lax.top_k(-clocks, samples)
  return Candidates(ids, jnp.exp(-latest[:, -1]))
