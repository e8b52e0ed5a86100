"""Masked next-token prediction (GPT-BERT, LLM2Vec): masked and causal sequences in one batch."""
from collections.abc import Mapping
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.chunked_cross_entropy import LogitStats
from plm_jax.layers.heads import MaskedLMHead
from plm_jax.objectives import (
  PROGRESS,
  Objective,
  Requirements,
  StepTraits,
  TextLayout,
  corruption,
)
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import classification_losses, compute_z_loss, scheduled_mask_rate
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(Objective):
  """Masked next-token prediction (GPT-BERT: Charpentier and Samuel 2024, section 3).

  A token is always predicted from the position before it, by an encoder whose head is `shifted`,
  or by a decoder with bidirectional attention (LLM2Vec: BehnamGhader et al. 2024, section 2). In
  masked sequences the token is masked and attention is bidirectional. In causal sequences it is the
  next token.

  Sequences are those of `CausalLM`: packed documents that do not attend to each other, each after a
  start token. Whether a sequence is causal or masked is random by example and epoch. Both losses
  are means of their own, weighted by the fractions of sequences. The released
  pretraining/dataset.py has three differences: it prefers tokens that were masked less often in
  earlier epochs, its causal sequences do not predict the ends of documents, and it fills
  sequences up with other pieces of text.
  """

  limits = intervals(
      causal='[0, 1]', mask_rate='(0, 1)', final_mask_rate='(0, 1)', held_out_mask_rate='(0, 1)',
      lengths='[0, 1]', mask_share='[0, 1]', random_share='[0, 1]')

  causal: float = 1 / 16
  """Fraction of the sequences that are causal."""
  mask_rate: float = 0.3
  """Mask rate: fraction of the other sequences' tokens to predict."""
  final_mask_rate: float | None = 0.15
  """Mask rate at the end of the run, which `mask_rate` approaches linearly. None: the rate is
  constant."""
  held_out_mask_rate: float | None = None
  """Mask rate of the evaluation on held-out text. None: the rate at the end of the run."""
  lengths: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 3)
  """Probabilities of masking 1, 2, ... consecutive tokens together."""
  mask_share: float = 0.8
  """Fraction of masked tokens that become [MASK]."""
  random_share: float = 0.1
  """Fraction of masked tokens that become a random token."""
  mask_token: str = ''
  """Token that takes the place of [MASK]: decoders have none (LLM2Vec: `_`). Empty: [MASK]."""
  replaced: Literal['token', 'span'] = 'token'
  """Whether these fractions are sampled for each masked token, or once for all tokens of a span
  (the released code)."""
  z_loss: float = 0.0
  """Factor of the z-loss: the squared log of the softmax denominator (GPT-BERT: 1e-4)."""

  def conflict(self, option):
    return (corruption.describe_distribution(option, self.lengths)
            or corruption.describe_excess(option, self.mask_share, self.random_share))

  @property
  def row_kinds(self) -> Mapping[str, float]:
    """The two kinds of sequences with their fractions, where these are not 0."""
    shares = {'mntp': 1 - self.causal, 'clm': self.causal}
    return {name: share for name, share in shares.items() if share}

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy of masked tokens (mntp) and of next tokens (clm), and the z-loss of both."""
    terms = dict(self.row_kinds)
    if self.z_loss:
      terms |= {f'{name}_z': self.z_loss * share for name, share in self.row_kinds.items()}
    return terms

  @property
  def requirements(self) -> Requirements:
    tokens = () if self.mask_token else ('mask',)
    return Requirements(('EncoderConfig', 'DecoderConfig'), tokens)

  @property
  def step_traits(self) -> StepTraits:
    changes = self.final_mask_rate is not None or self.held_out_mask_rate is not None
    return StepTraits(
        needs_progress=changes, changes_over_run=self.final_mask_rate is not None)

  @property
  def layout(self) -> TextLayout:
    return CausalLM().layout

  def add_token_info(self, windows, tokenizer):
    """Add mask [batch]: the id of `mask_token`. Raises ConfigError if the tokenizer lacks it."""
    if not self.mask_token:
      return windows
    if self.mask_token not in tokenizer.pieces:
      raise ConfigError(f'{name_field("objective.mask_token")} is {self.mask_token!r}, which is no '
                        'token of the tokenizer: give one that is')
    mask = tokenizer.pieces.index(self.mask_token)
    return {**windows, 'mask': np.full(len(windows['tokens']), mask, np.int32)}

  def shapes(self, rows, length, layout=None):
    shapes = super().shapes(rows, length, layout)
    return shapes | {'mask': shapes['index']} if self.mask_token else shapes

  def corrupt(self, key, windows, vocab):
    """Build causal and masked sequences; the label of a position is the next token.

    Returns:
      tokens, segments, place, ranks, labels, weights [batch, length]; causal [batch], 1 for a
      causal sequence. Ranks are 0 in a masked sequence, 0, 1, 2, ... in a causal one.
    """
    rows = CausalLM().corrupt(key, windows, vocab)
    keys = corruption.split_example_keys(key, windows, 2)
    causal = jax.vmap(lambda k: jax.random.bernoulli(k, float(self.causal)))(keys[:, 0])
    rate = scheduled_mask_rate(self, windows.get(PROGRESS))
    def mask(key, tokens, segments, place, mask_id):
      own_vocab = dataclasses.replace(vocab, mask=mask_id)
      return self.mask_row(key, tokens, segments, place, rate, own_vocab)
    mask_ids = windows['mask'] if self.mask_token else jnp.full(len(keys), vocab.mask)
    tokens, weights = jax.vmap(mask)(
        keys[:, 1], rows['tokens'], rows['segments'], rows['place'], mask_ids)
    is_causal = causal[:, None]
    return rows | {
        'tokens': jnp.where(is_causal, rows['tokens'], tokens),
        'weights': jnp.where(is_causal, rows['weights'], weights),
        'ranks': jnp.where(is_causal, jnp.arange(tokens.shape[1]), 0),
        'causal': causal.astype(jnp.int32)}

  def mask_row(self, key, tokens, segments, place, rate, vocab):
    """Mask one sequence [length].

    Returns:
      (the masked tokens, 1.0 at the position before each masked token, both [length]).
    """
    choose_key, replace_key = jax.random.split(key)
    most = corruption.most_predictions(
        tokens.shape[0], self.mask_rate, self.final_mask_rate, self.held_out_mask_rate)
    text = (segments > 0) & (place > 0)  # not the start of a document
    number = jnp.clip(jnp.round(text.sum() * rate).astype(jnp.int32), 1, most)
    units = jnp.where(text, jnp.arange(1, tokens.shape[0] + 1), 0)
    spans = corruption.number_spans(choose_key, units, number, self.lengths)
    chosen = spans > 0
    positions, weights = corruption.select_positions(chosen, most)
    tokens = corruption.replace_tokens(
        replace_key, tokens, (positions, weights), vocab, (self.mask_share, self.random_share),
        spans if self.replaced == 'span' else None)
    # The first token is a start, and never masked.
    return tokens, jnp.roll(chosen, -1).astype(jnp.float32)

  def build(self, model, packed):
    """Build the model. Raises ConfigError for one that predicts a token from its own position."""
    if isinstance(model, DecoderConfig):
      if model.causal:
        raise ConfigError('the objective MaskedNextToken trains decoders with bidirectional '
                          f'attention: give {name_field("model.causal")}=False')
    elif not model.head.shifted:
      raise ConfigError(
          'the objective MaskedNextToken predicts a token where the one before it stands: give '
          f'{name_field("model.head.shifted")}=True, as the recipe gpt_bert_strict_small does')
    return super().build(model, packed)

  def heads(self, model) -> dict[str, nn.Module]:
    if isinstance(model, DecoderConfig):
      return CausalLM().heads(model)
    return {'mlm': MaskedLMHead(model.block, model.tied, model.head)}

  def loss(self, outputs, batch):
    logits, = outputs.values()
    losses = {}
    for name, (labels, weights) in self.accuracy_targets(outputs, batch).items():
      losses |= classification_losses(name, logits, labels, weights)
      if self.z_loss:
        stats = LogitStats.from_logits(logits, labels)
        losses[f'{name}_z'] = compute_z_loss(stats, weights)
    return losses

  def accuracy_targets(self, outputs, batch):
    del outputs
    causal = batch['causal'][:, None].astype(jnp.float32)
    weights = {'mntp': batch['weights'] * (1 - causal), 'clm': batch['weights'] * causal}
    return {name: (batch['labels'], weights[name]) for name in self.row_kinds}
