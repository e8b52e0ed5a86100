"""Conditional random fields over the tags of a sentence (Lafferty et al. 2001; Lample et al. 2016, section 2.2)."""
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class CRF(nn.Module):
  """Scores of whole rows of tags: what each word says of its tag, and how tags follow each other.

  Rows begin with their first word: mask [B, L] is True for words, and False behind the last.
  """

  tags: int  # C

  def setup(self):
    """Makes what is scored of tags besides: which follow each other, begin a row, end one."""
    init = nn.initializers.zeros
    self.follow: Any = self.param('follow', init, (self.tags, self.tags), jnp.float32)  # [from, to]
    self.first: Any = self.param('first', init, (self.tags,), jnp.float32)
    self.last: Any = self.param('last', init, (self.tags,), jnp.float32)

  def __call__(self, scores, tags, mask):
    """Returns the log-likelihoods [B] of tags [B, L], by the scores [B, L, C] of words; 0 for a row without words."""
    at = lambda table, *index: table[index]
    steps = mask[:, 1:]
    own = jnp.where(mask, jnp.take_along_axis(scores, tags[..., None], 2)[..., 0], 0).sum(1)
    moves = jnp.where(steps, at(self.follow, tags[:, :-1], tags[:, 1:]), 0).sum(1)
    end = jnp.take_along_axis(tags, jnp.maximum(mask.sum(1) - 1, 0)[:, None], 1)[:, 0]
    path = own + moves + self.first[tags[:, 0]] + self.last[end]
    return jnp.where(mask[:, 0], path - self.total(scores, mask), 0)

  def total(self, scores, mask):
    """Returns the logarithms [B] of what all rows of tags weigh together."""
    def step(alpha, now):
      score, real = now
      new = jax.nn.logsumexp(alpha[:, :, None] + self.follow, 1) + score
      return jnp.where(real[:, None], new, alpha), None
    alpha, _ = jax.lax.scan(step, self.first + scores[:, 0], (scores[:, 1:].swapaxes(0, 1), mask[:, 1:].T))
    return jax.nn.logsumexp(alpha + self.last, 1)

  def marginals(self, scores, mask):
    """Returns the probability of each tag of each word [B, L, C], whatever the others are: how `total` grows with its
    score."""
    return jax.grad(lambda x: self.total(x, mask).sum())(scores) * mask[..., None]

  def decode(self, scores, mask):
    """Returns the likeliest tags [B, L] of scores [B, L, C] (Viterbi); 0 where there is no word."""
    def forward(best, now):
      score, real = now
      every = best[:, :, None] + self.follow
      new = jnp.where(real[:, None], every.max(1) + score, best)
      stay = jnp.broadcast_to(jnp.arange(self.tags), new.shape)
      return new, jnp.where(real[:, None], every.argmax(1), stay)
    best, came = jax.lax.scan(forward, self.first + scores[:, 0], (scores[:, 1:].swapaxes(0, 1), mask[:, 1:].T))
    def backward(tag, came):
      return jnp.take_along_axis(came, tag[:, None], 1)[:, 0], tag
    first, rest = jax.lax.scan(backward, (best + self.last).argmax(1), came, reverse=True)
    return jnp.where(mask, jnp.concatenate([first[:, None], rest.T], 1), 0)
