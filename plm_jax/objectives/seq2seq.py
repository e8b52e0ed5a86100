"""Sequence-to-sequence learning, shared by objectives of encoder-decoders (T5, BART).

The encoder reads one sequence, and the decoder predicts another token by token (teacher forcing).
"""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.layers.chunked_cross_entropy import LogitStats
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.objectives import Objective, Requirements
from plm_jax.objectives.mlm import classification_losses, compute_z_loss
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceToSequence(Objective):
  """Cross-entropy of the decoder's sequence, with label smoothing and z-loss.

  Sequences of `length` tokens are the encoder's; the decoder's have `max_predictions(length)`.
  """

  limits = intervals(smoothing='[0, 1)', loss_blocks='[1, inf)')

  smoothing: float = 0.0
  """Label smoothing: fraction of the targets that is spread evenly over the vocabulary (Szegedy
  et al. 2016; Vaswani et al. 2017: 0.1)."""
  z_loss: float = 0.0
  """Factor of the z-loss: the squared log of the softmax denominator (T5 as released: 1e-4)."""
  loss_blocks: int = 1
  """Number of vocabulary chunks that the loss processes one after another (chunked
  cross-entropy). More chunks save memory, because logits are never whole, and compute the logits
  twice. 1: whole logits."""

  @property
  def terms(self) -> Mapping[str, float]:
    factors = {'seq2seq': 1 - self.smoothing, 'even': self.smoothing, 'z': self.z_loss}
    return {name: factor for name, factor in factors.items() if factor}

  @property
  def requirements(self) -> Requirements:
    return Requirements(('EncoderDecoderConfig',), self.special_tokens)

  @property
  def special_tokens(self) -> tuple[str, ...]:
    """Special tokens that the tokenizer must have."""
    return ()

  def heads(self, model) -> dict[str, nn.Module]:
    head = NextTokenHead(
        model.decoder_block, model.vocab, model.tied, model.logit_factor, model.logit_bias,
        self.loss_blocks, cap=model.logit_cap)
    return {'lm': head}

  def build(self, model, packed: bool) -> nn.Module:
    """Build the module; sequences hold several texts only where windows are of examples."""
    backbone = model.backbone(packed and bool(self.layout.target_tokens))
    return ModelWithHeads(backbone, self.heads(model))

  def loss(self, outputs, batch):
    """Compute seq2seq, cross-entropy with the labels, even, with the uniform distribution, and z.

    The accuracy is of the text alone. Where targets are short, end tokens are most of what is
    written, and easily predicted.
    """
    logits, weights = outputs['lm'], batch['weights']
    losses = classification_losses('seq2seq', logits, batch['labels'], weights, batch['content'])
    stats = LogitStats.from_logits(logits, batch['labels'])
    if self.smoothing:
      losses['even'] = ((stats.log_total - stats.mean) * weights).sum(), weights.sum()
    if self.z_loss:
      losses['z'] = compute_z_loss(stats, weights)
    return losses

  def accuracy_targets(self, outputs, batch):
    """Return the labels, without special tokens around texts."""
    del outputs
    return {'seq2seq': (batch['labels'], batch['content'])}


def build_pair_row(
    inputs, targets, length: int, predicted: int, start: int, marks: Sequence[Any], pad: int):
  """Build one row of the batch: encoder inputs, shifted decoder inputs, labels and loss mask.

  The decoder reads `start`, then its own targets without the last. Without inputs there is
  nothing to predict.

  Args:
    inputs: (tokens, how many of them count).
    targets: the same of the target.
    length: length of the encoder's sequence.
    predicted: length of the decoder's sequence.
    start: the decoder's start token.
    marks: ids of special tokens around a text, which do not count in `content`.
    pad: id of padding.

  Returns:
    tokens, segments [length]; decoder_tokens, decoder_segments, labels, weights, content
    [predicted].
  """
  tokens, segments = pad_row(inputs, length, pad)
  labels, real = pad_row(targets, predicted, pad)
  real *= segments[0]
  weights = real.astype(jnp.float32)
  shifted = jnp.roll(labels, 1).at[0].set(start)
  return dict(
      tokens=tokens, segments=segments, decoder_tokens=jnp.where(real > 0, shifted, pad),
      decoder_segments=real, labels=jnp.where(real > 0, labels, 0), weights=weights,
      content=content_weights(labels, weights, marks))


def content_weights(labels, weights, marks: Sequence[Any]):
  """Return the weights [predicted], with 0 where the label is a special token around a text."""
  ids = jnp.stack([jnp.asarray(mark) for mark in marks])
  return jnp.where(jnp.isin(labels, ids), 0.0, weights)


def pad_row(side, length: int, pad: int):
  """Pad or truncate (tokens [any], how many count) to (tokens, segments) [length]."""
  tokens, size = side
  tokens = jnp.pad(tokens[:length], (0, max(0, length - tokens.shape[0])))
  real = jnp.arange(length) < size
  return jnp.where(real, tokens, pad), real.astype(jnp.int32)


def append_token(tokens, size, end: int):
  """Append the token `end` to tokens [any], of which `size` count; returns (tokens, size + 1)."""
  return tokens.at[size].set(end), size + 1
