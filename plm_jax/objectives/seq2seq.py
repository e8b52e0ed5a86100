"""What objectives of encoder-decoders share: a row is read, and another is predicted from it token by token."""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.heads import NextTokens, WithHeads
from plm_jax.layers.vocabulary import Scores
from plm_jax.objectives import Objective
from plm_jax.objectives.clm import boundaries
from plm_jax.objectives.mlm import classification, partition


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceToSequence(Objective):
  """Cross-entropy of the decoder's row, each token from those before it and from all of the encoder's.

  Rows of `length` tokens are the encoder's; the decoder's have `predictions(length)`.
  """

  limits = within(smoothing='[0, 1)', loss_blocks='[1, inf)')

  smoothing: float = 0.0
  """share of the targets that is spread evenly over the vocabulary (Szegedy et al. 2016; Vaswani et al. 2017: 0.1)"""
  z_loss: float = 0.0
  """factor on the square of the logarithm of softmax's denominator (T5 as released: 1e-4)"""
  loss_blocks: int = 1
  """parts of the vocabulary that the loss goes through one after another: logits are never whole, which saves memory,
  and are made twice; 1: whole"""

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy, smoothing and softmax's denominator, but for factors of 0."""
    factors = {'seq2seq': 1 - self.smoothing, 'even': self.smoothing, 'z': self.z_loss}
    return {name: factor for name, factor in factors.items() if factor}

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the decoder's head of the next token, `lm`."""
    return {'lm': NextTokens(
        model.block, model.vocab, model.tied, model.logit_factor, model.logit_bias, self.loss_blocks)}

  def build(self, model, packed: bool) -> nn.Module:
    """Builds the module; rows hold several texts only where windows are of examples."""
    return WithHeads(model.backbone(packed and bool(self.target_budget)), self.heads(model))

  def loss(self, outputs, batch):
    """Returns seq2seq, cross-entropy against the labels, even, against the uniform distribution, and z.

    The accuracy is of the text alone: where targets are short, ends are most of what is written, and easily guessed.
    """
    logits, weights = outputs['lm'], batch['weights']
    losses = classification('seq2seq', logits, batch['labels'], weights, batch['content'])
    scores = Scores.read(logits, batch['labels'])
    if self.smoothing:
      losses['even'] = ((scores.log_total - scores.mean) * weights).sum(), weights.sum()
    if self.z_loss:
      losses['z'] = partition(scores, weights)
    return losses

  def answers(self, outputs, batch):
    """Returns the labels, without special tokens around texts."""
    del outputs
    return {'seq2seq': (batch['labels'], batch['content'])}


def delimiters(vocab, written: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], int]:
  """Returns the ids before and behind a text that is read, or `written`, and the one with which the decoder begins.

  T5, whose vocabulary has sentinels: the end behind, and padding begins. mBART, whose vocabulary has languages: the end
  and the text's language behind, and the language of what is written begins. Else as BART: start and end, and the end
  begins. ValueError where the tokenizer has no such tokens.
  """
  first, end = boundaries(vocab)
  if vocab.source >= 0:
    return (), (end, vocab.target if written else vocab.source), vocab.target
  return ((), (end,), vocab.pad) if vocab.sentinel >= 0 else ((first,), (end,), end)


def pair(inputs, targets, length: int, predicted: int, start: int, marks: Sequence[Any], pad: int):
  """Makes a row of the batch: inputs and targets are tokens and how many of them count ->

  tokens, segments [L]; decoder_tokens, decoder_segments, labels, weights, content [M]. The decoder reads `start`, then
  its own targets but the last. Content is the weights without the ids of `marks`, which stand around a text. Without
  inputs there is nothing to predict.
  """
  tokens, segments = padded(inputs, length, pad)
  labels, real = padded(targets, predicted, pad)
  real *= segments[0]
  weights = real.astype(jnp.float32)
  return dict(
      tokens=tokens, segments=segments, decoder_tokens=jnp.where(real > 0, jnp.roll(labels, 1).at[0].set(start), pad),
      decoder_segments=real, labels=jnp.where(real > 0, labels, 0), weights=weights,
      content=content(labels, weights, marks))


def content(labels, weights, marks: Sequence[Any]):
  """Returns weights [M], but 0 where the label is one of the ids that stand around a text."""
  return jnp.where(jnp.isin(labels, jnp.stack([jnp.asarray(mark) for mark in marks])), 0.0, weights)


def padded(side, length: int, pad: int):
  """Pads tokens [any], of which a count is given -> (tokens, segments) [length]."""
  tokens, size = side
  tokens = jnp.pad(tokens[:length], (0, max(0, length - tokens.shape[0])))
  real = jnp.arange(length) < size
  return jnp.where(real, tokens, pad), real.astype(jnp.int32)


def ended(tokens, size, end: int):
  """Puts `end` behind tokens [N], of which `size` < N count -> the same, and one more."""
  return tokens.at[size].set(end), size + 1
