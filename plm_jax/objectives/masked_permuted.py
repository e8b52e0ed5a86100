"""Masked and permuted language modeling (MPNet): tokens predicted in a random order."""
from collections.abc import Mapping
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.heads import MaskedLMHead
from plm_jax.objectives import Requirements, TextLayout, corruption
from plm_jax.objectives.mlm import TokenPrediction
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class MaskedPermutedLM(TokenPrediction):
  """Masked and permuted language modeling (MPNet: Song et al. 2020, section 2).

  A share of the tokens is predicted, in random order. The prediction of a token attends to the
  tokens that are not predicted, to the predicted tokens before it in this order, and to a mask
  token at its own position and at the positions of the predicted tokens after it. So it attends to
  as many tokens as the sequence has, at all positions (position compensation).

  A sequence of n tokens, k of them predicted, is computed as a row of n + 2 k tokens in one pass
  through an encoder: the text, the mask tokens, and the queries, to which no token attends
  (two-stream attention). The predictions are those of the queries. Masks and queries have the
  positions of their tokens, and the same inputs: of both, 80% are [MASK], 10% a random token, and
  10% the token itself. `visible_tokens` describes the attention.

  As in the released code, special tokens are predicted too. The words are put in random order, and
  the last tokens of that order are predicted, so that one word may be cut. Unlike there, padding is
  not predicted, and no token attends to it.
  """

  predictions = ('mpnet', 'mlm', 'weights'),
  limits = intervals(mask_rate='(0, 1)', mask_share='[0, 1]', random_share='[0, 1]')

  pair: Single | FullSentences = FullSentences()
  """How text becomes sequences."""
  mask_rate: float = 0.15
  """Fraction of a sequence's tokens to predict (pred_prob)."""
  unit: Literal['token', 'word'] = 'word'
  """Whether tokens are chosen one by one, or as whole words."""
  mask_share: float = 0.8
  """Fraction of predicted tokens whose mask token is [MASK]."""
  random_share: float = 0.1
  """Fraction of predicted tokens whose mask token is a random token."""

  def conflict(self, option):
    return corruption.describe_excess(option, self.mask_share, self.random_share)

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy of the predicted tokens."""
    return {'mpnet': 1.0}

  @property
  def requirements(self) -> Requirements:
    return Requirements(('EncoderConfig',), ('mask',))

  @property
  def layout(self) -> TextLayout:
    return TextLayout(separators=self.pair.document_separators)

  def text_length(self, length: int) -> int:
    return self.pair.text_length(length)

  def max_predictions(self, length: int) -> int:
    return corruption.most_predictions(length, self.mask_rate)

  def step_flops(self, model: Any, length: int) -> int:
    """Count the FLOPs of a step: rows hold mask tokens and queries after the text."""
    most = self.max_predictions(length)
    return 3 * model.forward_flops(length + 2 * most, most)

  def corrupt(self, key, windows, vocab):
    """Build rows of text, mask tokens and queries.

    Returns:
      tokens, segments, types [batch, row], where row is length + 2 predictions; position_of
      [batch, row], the index of the token of the text whose position each token has; visible
      [batch, row, row]; positions, labels, weights [batch, predictions].
    """
    keys = corruption.split_example_keys(key, windows, 2)
    rows = self.pair.arrange(keys[:, 0], windows, vocab)
    most = self.max_predictions(rows['tokens'].shape[1])
    def build(key, row):
      return self.build_row(key, row, most, vocab)
    return jax.vmap(build)(keys[:, 1], rows)

  def build_row(self, key, row, most: int, vocab):
    """Build one row.

    Args:
      key: key of the example.
      row: tokens, segments, types and words of the text, [length].
      most: maximum number of predictions.
      vocab: the tokenizer's `Vocab`.
    """
    choose_key, order_key, replace_key = jax.random.split(key, 3)
    tokens, segments = row['tokens'], row['segments']
    length = tokens.shape[0]
    words = row['words'] if self.unit == 'word' else jnp.zeros_like(tokens)
    chosen = choose_last_words(choose_key, segments > 0, words, self.mask_rate, most)
    places, weights = draw_order(order_key, chosen, most)

    # Masks and queries follow the text.
    masked = corruption.replace_tokens(
        replace_key, tokens, (places, weights), vocab, (self.mask_share, self.random_share))[places]
    used = weights > 0
    own_segments = jnp.where(used, segments[places], 0)
    def extend(text, own):
      return jnp.concatenate([text, own, own])
    all_segments = extend(segments, own_segments)
    order = jnp.zeros(length, jnp.int32).at[jnp.where(used, places, length)].set(
        jnp.arange(1, most + 1), mode='drop')
    return {
        'tokens': extend(tokens, jnp.where(used, masked, max(vocab.pad, 0))),
        'segments': all_segments, 'types': extend(row['types'], row['types'][places]),
        'position_of': extend(jnp.arange(length), places),
        'visible': visible_tokens(order, all_segments),
        'positions': length + most + jnp.arange(most), 'labels': tokens[places],
        'weights': weights}

  def build(self, model, packed):
    """Build the model.

    Raises ConfigError for a model with causal or sliding-window attention, with a shifted head, or
    whose position scheme ignores the positions that masks and queries have.
    """
    if model.head.shifted or model.causal or model.windows:
      raise ConfigError(
          'MaskedPermutedLM trains an encoder whose tokens attend to the whole sequence and are '
          f'predicted at their own position: give {name_field("model.head.shifted")}=False '
          f'{name_field("model.causal")}=False {name_field("model.windows")}')
    scheme = model.block.attention.position
    if scheme.uses_row_order:
      raise ConfigError(
          'MaskedPermutedLM gives masks the positions of their tokens, and '
          f'{type(scheme).__name__} positions follow the order of the row: train another model')
    return super().build(model, packed)

  def heads(self, model) -> dict[str, nn.Module]:
    return {'mlm': MaskedLMHead(model.block, model.tied, model.head)}


def choose_last_words(key, real, words, rate: float, most: int):
  """Choose the last tokens of a text whose words are in random order.

  Args:
    key: random key.
    real: True at tokens that are not padding, [length].
    words: word of each token, [length]; a token with 0 is a word of its own.
    rate: fraction of the tokens to choose, rounded.
    most: maximum number of tokens.

  Returns:
    bool [length].
  """
  length = real.shape[0]
  number = jnp.clip(jnp.round(real.sum() * rate).astype(jnp.int32), 1, most)
  first = (words == 0) | (words != jnp.concatenate([jnp.zeros(1, words.dtype), words[:-1]]))
  word = jnp.cumsum(first) - 1
  # All tokens of a word have its random score; sorting keeps their order. Padding comes first.
  scores = jnp.where(real, jax.random.uniform(key, (length,))[word], -1.0)
  order = jnp.argsort(scores, stable=True)
  rank = jnp.zeros(length, jnp.int32).at[order].set(jnp.arange(length, dtype=jnp.int32))
  return real & (rank >= length - number)


def draw_order(key, chosen, most: int):
  """Put chosen tokens in random order.

  Args:
    key: random key.
    chosen: bool [length], True at `most` tokens at most.
    most: size of the results.

  Returns:
    (places of the chosen tokens in the order of their prediction [most], 0 where there are fewer;
    weights float32 [most], 1.0 where there is a token, else 0.0).
  """
  scores = jnp.where(chosen, jax.random.uniform(key, chosen.shape), 2.0)
  used = jnp.arange(most) < chosen.sum()
  return jnp.where(used, jnp.argsort(scores)[:most], 0), used.astype(jnp.float32)


def visible_tokens(order, segments):
  """Compute which tokens of a row of text, masks and queries attend to which.

  A token of the text with the number r attends to the text up to number r and to the masks after
  it. Masks attend to the tokens that are not predicted, and to all masks. The query with the number
  r attends to the text before r, and to the masks from r on.

  Args:
    order: number 1, 2, ... of each predicted token of the text in the order of prediction, else 0,
      [length].
    segments: document of each token of the row, 0 at padding, [length + 2 predictions].

  Returns:
    bool [row, row], True where the token of the first axis attends to that of the second.
  """
  length, row = order.shape[0], segments.shape[0]
  most = (row - length) // 2
  numbers = jnp.arange(1, most + 1)
  at = jnp.arange(row)
  seen_up_to = jnp.concatenate([order, jnp.zeros(most, order.dtype), numbers - 1])[:, None]
  number = jnp.concatenate([order, numbers, numbers])
  in_text, in_masks = at < length, (at >= length) & (at < length + most)
  visible = (in_text & (number <= seen_up_to)) | (in_masks & (number > seen_up_to))
  return visible & (segments[:, None] == segments) & (segments > 0)
