"""Causal language modeling (CLM): each token is predicted from those before it (GPT)."""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.errors import name_field
from plm_jax.layers.chunked_cross_entropy import LogitStats
from plm_jax.layers.heads import NextTokenHead
from plm_jax.objectives import Requirements, TextLayout
from plm_jax.objectives.mlm import TokenPrediction, compute_z_loss
from plm_jax.tokenizers.contract import boundary_ids
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class CausalLM(TokenPrediction):
  """Causal language modeling (GPT: Radford et al. 2018, section 3.1) on packed documents.

  By default, a sequence begins with the start token, also where its text begins inside a document.
  Between two documents the end of one is predicted and the start of the next is read, so that every
  token of the text is predicted once. Start and end are the tokenizer's; those of GPT-2 are the
  same token.
  """

  predictions = ('clm', 'lm', 'weights'),
  limits = intervals(loss_blocks='[1, inf)')

  isolated: bool = True
  """Whether documents of a sequence do not attend to each other, and positions restart with each.
  False: the sequence is one text (GPT-3)."""
  starts_every_row: bool = True
  """Whether every sequence begins with the start token. False: it begins with its text, whose first
  token is read and not predicted, as in nanoGPT."""
  z_loss: float = 0.0
  """Factor of the z-loss: the squared log of the softmax denominator (Chowdhery et al. 2022,
  section 5: 1e-4)."""
  loss_blocks: int = 1
  """Number of vocabulary chunks that the loss processes one after another (chunked
  cross-entropy). More chunks save memory, because logits are never whole, and compute the logits
  twice. 1: whole logits."""

  @property
  def terms(self) -> Mapping[str, float]:
    terms = {'clm': 1.0}
    if self.z_loss:
      terms['z'] = self.z_loss
    return terms

  @property
  def requirements(self) -> Requirements:
    def incompatibility(corpora: Sequence[str], model: Any) -> str | None:
      if getattr(model, 'causal', True):
        return None
      return (f'{name_field("model.causal")} is False, and the next token would be read: the '
              'objective of decoders with bidirectional attention is MaskedNextToken')
    return Requirements(('DecoderConfig',), incompatibility=incompatibility)

  @property
  def layout(self) -> TextLayout:
    return TextLayout(separators=1)

  def text_length(self, length):
    return length if self.starts_every_row else length + 1

  def corrupt(self, key, windows, vocab):
    """Build inputs and shifted labels: tokens, segments, place, labels, weights [batch, length]."""
    del key
    def build(tokens, segments):
      return self.build_row(tokens, segments, vocab)
    return jax.vmap(build)(windows['tokens'], windows['segments'])

  def build_row(self, tokens, segments, vocab):
    """Build one sequence of packed documents, each between a start and an end token.

    Windows leave room for the ends between documents (`layout`); what has no room is left out.

    Args:
      tokens: token ids of the window, [text].
      segments: document of each token, 0 at padding, [text].
      vocab: the tokenizer's `Vocab`.
    """
    start, end = boundary_ids(vocab)
    length = tokens.shape[0]
    at = jnp.arange(length)

    # A token moves by the ends of the documents before it.
    place = at + segments - 1
    place = jnp.where(segments > 0, place, length)
    def put(x, elsewhere):
      return jnp.full(length, elsewhere).at[place].set(x, mode='drop')
    ends = jnp.maximum(segments.max() - 1, 0)
    size = jnp.minimum((segments > 0).sum() + ends, length)
    real = at < size
    labels = jnp.where(real, put(tokens, end), 0)

    # The end belongs to the document before it. Its place among the inputs holds the start of the
    # document after it.
    documents = jnp.where(real, jax.lax.cummax(put(segments, 0)), 0)
    first = (at == 0) | (documents != jnp.roll(documents, 1))
    inputs = jnp.where(first, start, jnp.roll(labels, 1))
    if not self.starts_every_row:
      # The window has one token more. Its first token is the first input, and no label.
      inputs, labels, real, documents, first = (
          x[1:] for x in (inputs, labels, real, documents, first))
      at = at[:-1]
      first = first | (at == 0)
    if self.isolated:
      segments, position = documents, at - jax.lax.cummax(jnp.where(first, at, 0))
    else:
      segments, position = real.astype(jnp.int32), at
    return dict(
        tokens=jnp.where(real, inputs, max(vocab.pad, 0)), labels=labels,
        weights=real.astype(jnp.float32), segments=segments, place=jnp.where(real, position, 0))

  def heads(self, model) -> dict[str, nn.Module]:
    head = NextTokenHead(
        model.block, model.vocab, model.tied, model.logit_factor, blocks=self.loss_blocks,
        head=model.lm_head, cap=model.logit_cap)
    return {'lm': head}

  def loss(self, outputs, batch):
    losses = super().loss(outputs, batch)
    if self.z_loss:
      stats = LogitStats.from_logits(outputs['lm'], batch['labels'])
      losses['z'] = compute_z_loss(stats, batch['weights'])
    return losses

