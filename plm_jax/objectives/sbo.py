"""Span masking and the span boundary objective, SBO (SpanBERT)."""
from collections.abc import Mapping
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.heads import MaskedLMHead, SpanBoundaryHead
from plm_jax.objectives import Requirements, TextLayout, corruption
from plm_jax.objectives.mlm import ENCODERS, TokenPrediction
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class SpanBoundary(TokenPrediction):
  """Span masking and the span boundary objective on single segments (SpanBERT: Joshi et al. 2020,
  section 3).

  Masked spans are predicted from their own positions and, once more, from the tokens at their
  boundaries. There are two differences from the released code: no word is masked in part
  (`corruption.draw_spanbert_spans`), and the boundary loss is divided by the number of its tokens,
  to which that code adds one. As released, a span at an end of the text is not predicted from its
  boundary: [CLS] and [SEP] are none.
  """

  predictions = ('mlm', 'mlm', 'weights'), ('sbo', 'sbo', 'boundary')
  limits = intervals(
      mask_rate='(0, 1)', p='(0, 1)', max_span_length='[1, 1000]', mask_share='[0, 1]',
      random_share='[0, 1]', targets='[1, inf)', size='[1, inf)')

  mask_rate: float = 0.15
  """Mask rate: fraction of a sequence's text to predict."""
  p: float = 0.2
  """Parameter of the geometric distribution of span lengths in words. The mean is 3.8 with
  max_span_length 10."""
  max_span_length: int = 10
  """Number of words in the longest span. The distribution is truncated there and normalized."""
  mask_share: float = 0.8
  """Fraction of spans that become [MASK], token by token."""
  random_share: float = 0.1
  """Fraction of spans that become random tokens."""
  random: Literal['vocabulary', 'text'] = 'vocabulary'
  """Where random tokens come from: the vocabulary, or the text of the batch (as released)."""
  targets: int = 20
  """Number of tokens of a span, from its left end, that are predicted from its boundary
  (max_pair_targets: 20, and 15 in the command of the released pretraining/README.md)."""
  size: int = 200
  """Width of the embedding of a token's position in its span."""
  weight: float = 1.0
  """Factor of the boundary loss (pair_loss_weight)."""

  def conflict(self, option):
    return corruption.describe_excess(option, self.mask_share, self.random_share)

  @property
  def lengths(self) -> tuple[float, ...]:
    """Probabilities of spans of 1, 2, ... words."""
    weights = [(1 - self.p) ** n for n in range(self.max_span_length)]
    return tuple(weight / sum(weights) for weight in weights)

  @property
  def terms(self) -> Mapping[str, float]:
    """The masked-LM loss, and the boundary loss with factor `weight`."""
    return {'mlm': 1.0, 'sbo': self.weight}

  @property
  def layout(self) -> TextLayout:
    """A sequence is of one document (section 3.3)."""
    return TextLayout(one_document=True)

  @property
  def requirements(self) -> Requirements:
    return Requirements(ENCODERS)

  def text_length(self, length: int) -> int:
    return Single().text_length(length)

  def max_predictions(self, length: int) -> int:
    """Return the maximum number of predicted positions per sequence (20 of 128, 77 of 512)."""
    return corruption.most_predictions(self.text_length(length), self.mask_rate)

  def corrupt(self, key, windows, vocab):
    """Build sequences and mask spans.

    Returns:
      tokens, segments, types [batch, length]; positions, labels, weights, left, right, offset,
      boundary [batch, predictions]. left and right are the positions next to the span, offset is
      the position in it, boundary is the weight in the boundary loss.
    """
    keys = corruption.example_keys(key, windows)
    rows = Single().arrange(keys, windows, vocab)
    words = rows.pop('words')
    most = self.max_predictions(rows['tokens'].shape[1])
    other = None
    if self.random == 'text':
      # `mask_row` takes what `split` makes of the example's key, which is fold_in of 0 and 1.
      other_keys = jax.vmap(lambda k: jax.random.fold_in(k, 2))(keys)
      other = corruption.draw_tokens(other_keys, windows, rows['tokens'].shape[1])
    def mask(key, tokens, words, other):
      return self.mask_row(key, tokens, words, most, vocab, other)
    return {**rows, **jax.vmap(mask)(keys, rows['tokens'], words, other)}

  def mask_row(self, key, tokens, words, most, vocab, other=None):
    """Mask spans of one sequence [length]; other: random tokens, as for `replace`.

    Returns:
      the corrupted tokens [length], and what `corrupt` returns of the predictions.
    """
    span_key, replace_key = jax.random.split(key)
    # Rounded first: in float32 0.15 of 200 is above 30.
    number = jnp.ceil(jnp.round((words > 0).sum() * self.mask_rate, 4)).astype(jnp.int32)
    # Twice as many spans as it takes on average, and more for short sequences.
    chosen = corruption.draw_spanbert_spans(span_key, words, number, self.lengths, most + 16)
    predicted = self.predict(tokens, words, chosen, most)
    return dict(tokens=self.replace(replace_key, tokens, chosen, vocab, other), **predicted)

  def predict(self, tokens, words, chosen, most):
    """Return the predictions of one sequence whose chosen positions are masked, [predictions]
    each."""
    positions, weights = corruption.select_positions(chosen, most)
    first, last = (bound[positions] for bound in corruption.run_bounds(chosen))
    left, right = jnp.maximum(first - 1, 0), jnp.minimum(last + 1, tokens.shape[0] - 1)
    has_text = (words[left] > 0) & (words[right] > 0)
    inside = (first > 0) & (last < tokens.shape[0] - 1) & has_text
    offset = jnp.where(weights > 0, positions - first, 0)
    boundary = weights * (inside & (offset < self.targets))
    return dict(
        positions=positions, labels=tokens[positions], weights=weights, left=left, right=right,
        offset=jnp.minimum(offset, self.targets - 1), boundary=boundary)

  def replace(self, key, tokens, chosen, vocab, other=None):
    """Replace each run of chosen positions as a whole: masked, random or unchanged.

    Args:
      key: random key.
      tokens: [length].
      chosen: bool [length].
      vocab: the tokenizer's `Vocab`.
      other: the random tokens, [length]; None: any tokens of the vocabulary.
    """
    draw_key, id_key = jax.random.split(key)
    draw = jax.random.uniform(draw_key, tokens.shape)[corruption.run_bounds(chosen)[0]]
    if other is None:
      other = jax.random.randint(id_key, tokens.shape, 0, vocab.size)
    changed = jnp.where(draw < self.mask_share + self.random_share, other, tokens)
    new = jnp.where(draw < self.mask_share, vocab.mask, changed)
    return jnp.where(chosen, new, tokens)

  def heads(self, model) -> dict[str, nn.Module]:
    return {'mlm': MaskedLMHead(model.block, model.tied, model.head),
            'sbo': SpanBoundaryHead(model.block, self.targets, self.size)}
