"""Conditional random field (CRF) over the tags of a sentence.

Lafferty et al. 2001; Lample et al. 2016, section 2.2.
"""
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class CRF(nn.Module):
  """Linear-chain CRF: scores of tag sequences from scores per word and of transitions.

  Rows begin with their first word: mask [batch, length] is True for words, and False after the last
  word.
  """

  tags: int

  def setup(self):
    """Make the scores of transitions, of first tags and of last tags."""
    init = nn.initializers.zeros
    self.follow: Any = self.param('follow', init, (self.tags, self.tags), jnp.float32)  # [from, to]
    self.first: Any = self.param('first', init, (self.tags,), jnp.float32)
    self.last: Any = self.param('last', init, (self.tags,), jnp.float32)

  def __call__(self, scores, tags, mask):
    """Compute the log-likelihood of tags.

    Args:
      scores: [batch, length, tags] of words.
      tags: [batch, length].
      mask: [batch, length].

    Returns:
      [batch]; 0 for a row without words.
    """
    word_scores = jnp.take_along_axis(scores, tags[..., None], 2)[..., 0]
    word_score = jnp.where(mask, word_scores, 0).sum(1)
    transitions = jnp.where(mask[:, 1:], self.follow[tags[:, :-1], tags[:, 1:]], 0).sum(1)
    end = jnp.take_along_axis(tags, jnp.maximum(mask.sum(1) - 1, 0)[:, None], 1)[:, 0]
    path = word_score + transitions + self.first[tags[:, 0]] + self.last[end]
    return jnp.where(mask[:, 0], path - self.log_partition(scores, mask), 0)

  def log_partition(self, scores, mask):
    """Compute the log partition function [batch], the logsumexp of all tag sequences' scores."""
    def step(alpha, inputs):
      score, real = inputs
      new = jax.nn.logsumexp(alpha[:, :, None] + self.follow, 1) + score
      return jnp.where(real[:, None], new, alpha), None

    inputs = scores[:, 1:].swapaxes(0, 1), mask[:, 1:].T
    alpha, _ = jax.lax.scan(step, self.first + scores[:, 0], inputs)
    return jax.nn.logsumexp(alpha + self.last, 1)

  def marginals(self, scores, mask):
    """Compute the marginal probability of each tag of each word, [batch, length, tags].

    It is the gradient of the log partition function.
    """
    return jax.grad(lambda x: self.log_partition(x, mask).sum())(scores) * mask[..., None]

  def decode(self, scores, mask):
    """Find the most likely tag sequences [batch, length] (Viterbi); 0 where there is no word."""
    def forward(best, inputs):
      score, real = inputs
      candidates = best[:, :, None] + self.follow
      new = jnp.where(real[:, None], candidates.max(1) + score, best)
      same = jnp.broadcast_to(jnp.arange(self.tags), new.shape)
      return new, jnp.where(real[:, None], candidates.argmax(1), same)

    def backward(tag, previous):
      return jnp.take_along_axis(previous, tag[:, None], 1)[:, 0], tag

    inputs = scores[:, 1:].swapaxes(0, 1), mask[:, 1:].T
    best, previous = jax.lax.scan(forward, self.first + scores[:, 0], inputs)
    end = (best + self.last).argmax(1)
    first, rest = jax.lax.scan(backward, end, previous, reverse=True)
    return jnp.where(mask, jnp.concatenate([first[:, None], rest.T], 1), 0)
