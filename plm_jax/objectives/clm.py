"""Causal language modelling: each token is predicted from those before it."""
from collections.abc import Mapping
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.heads import NextTokens
from plm_jax.layers.vocabulary import Scores
from plm_jax.objectives import Objective
from plm_jax.objectives.mlm import classification, partition


@dataclasses.dataclass(frozen=True)
class CausalLM(Objective):
  """Radford et al. 2018, section 3.1, on rows of whatever documents fill them.

  A row begins with the start token, also where its text begins inside a document, and between two documents the end of
  one is predicted and the start of the next is read: so every token of the text is predicted once. Start and end are
  the tokenizer's; those of GPT-2 are one.
  """

  limits = within(loss_blocks='[1, inf)')

  isolated: bool = True
  """documents of a row do not see each other, and positions begin anew with each; else the row is one text (GPT-3)"""
  reserve: int = 4
  """tokens of a row kept free for ends of documents; a row that needs more and is full loses as many at its end"""
  z_loss: float = 0.0
  """factor on the square of the logarithm of softmax's denominator (Chowdhery et al. 2022, section 5: 1e-4)"""
  loss_blocks: int = 1
  """parts of the vocabulary that the loss goes through one after another: logits are never whole, which saves memory,
  and are made twice; 1: whole"""

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy, and with `z_loss` the square of softmax's denominator."""
    return {'clm': 1.0, **({'z': self.z_loss} if self.z_loss else {})}

  def window(self, length: int) -> int:
    """Returns `length` less what is kept free for the ends of documents."""
    return length - self.reserve

  def predictions(self, length: int) -> int:
    """Returns `length`: every position is predicted."""
    return length

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, place, labels, weights [B, L]: what is read, and what is to be predicted from it."""
    del key
    return jax.vmap(lambda tokens, segments: self.row(tokens, segments, vocab))(windows['tokens'], windows['segments'])

  def row(self, tokens, segments, vocab):
    """Makes a row of a window [T]: documents one behind another, each of them begun by the start and followed by the
    end."""
    start, end = boundaries(vocab)
    length = tokens.shape[0] + self.reserve
    at = jnp.arange(length)
    # A token moves by the ends of documents before it.
    place = jnp.arange(tokens.shape[0]) + segments - 1
    place = jnp.where(segments > 0, place, length)
    def put(x, elsewhere):
      return jnp.full(length, elsewhere).at[place].set(x, mode='drop')
    size = jnp.minimum((segments > 0).sum() + jnp.maximum(segments.max() - 1, 0), length)
    real = at < size
    labels = jnp.where(real, put(tokens, end), 0)
    # The end is of the document before it; its place in the row of inputs, where it is the start, of the one behind it.
    documents = jnp.where(real, jax.lax.cummax(put(segments, 0)), 0)
    first = (at == 0) | (documents != jnp.roll(documents, 1))
    inputs = jnp.where(first, start, jnp.roll(labels, 1))
    begins = jax.lax.cummax(jnp.where(first, at, 0))
    return dict(
        tokens=jnp.where(real, inputs, max(vocab.pad, 0)), labels=labels, weights=real.astype(jnp.float32),
        segments=documents if self.isolated else real.astype(jnp.int32),
        place=jnp.where(real, at - begins if self.isolated else at, 0))

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the head of the next token, `lm`."""
    return {'lm': NextTokens(model.block, model.vocab, model.tied, model.logit_factor, blocks=self.loss_blocks)}

  def loss(self, outputs, batch):
    """Returns clm, clm_accuracy, and z where it counts."""
    logits, weights = outputs['lm'], batch['weights']
    losses = classification('clm', logits, batch['labels'], weights)
    if self.z_loss:
      losses['z'] = partition(Scores.read(logits, batch['labels']), weights)
    return losses

  def answers(self, outputs, batch):
    """Returns the labels of clm: every next token."""
    del outputs
    return {'clm': (batch['labels'], batch['weights'])}


def boundaries(vocab) -> tuple[int, int]:
  """Returns the ids of the tokens that begin and end a text. Raises ValueError where the tokenizer has none."""
  start = next((x for x in (vocab.bos, vocab.eos, vocab.cls, vocab.sep) if x >= 0), -1)
  end = next((x for x in (vocab.eos, vocab.sep) if x >= 0), -1)
  if min(start, end) < 0:
    raise ValueError('a language model needs a token that ends a text (eos or sep); the tokenizer has none')
  return start, end
