"""SpanBERT's objective: whole spans are hidden, and predicted from their place and, once more, from what is around."""
from collections.abc import Mapping
import dataclasses
import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.heads import BoundaryTokens, MaskedTokens
from plm_jax.objectives import Objective, noise
from plm_jax.objectives.mlm import classification
from plm_jax.objectives.pairs import Single


@dataclasses.dataclass(frozen=True)
class SpanBoundary(Objective):
  """Span masking and the span boundary objective, on single segments (Joshi et al. 2020, section 3).

  Differs from the released code in that no word is masked in part (`noise.draw_spans`), and in that the boundary loss
  is divided by the number of its tokens, where that adds one. As released, a span at an end of the text is not
  predicted from its boundary: [CLS] and [SEP] are none.
  """

  limits = within(
      rate='(0, 1)', p='(0, 1)', longest='[1, 1000]', mask_share='[0, 1]', random_share='[0, 1]', targets='[1, inf)',
      size='[1, inf)')

  rate: float = 0.15
  """share of a row's text to predict"""
  p: float = 0.2
  """of the geometric distribution of a span's length in words; the mean is 3.8 with longest 10"""
  longest: int = 10
  """words in the longest span; the distribution is cut there and sums to 1"""
  mask_share: float = 0.8
  """share of spans that become [MASK], token by token"""
  random_share: float = 0.1
  """share of spans that become random tokens"""
  random: Literal['vocabulary', 'text'] = 'vocabulary'
  """where these are from: any piece of the vocabulary, or any token of the batch's text (as released)"""
  targets: int = 20
  """tokens of a span that are predicted from its boundary, from its left end (max_pair_targets: 20, and 15 in the
  command of the released pretraining/README.md)"""
  size: int = 200
  """width of the embedding of a token's place in its span"""
  weight: float = 1.0
  """factor of the boundary loss (pair_loss_weight)"""

  def conflict(self, option):
    """Says that the shares of masked and random spans exceed 1 together."""
    if self.mask_share + self.random_share > 1 + 1e-9:
      return (f'{option("mask_share")} and {option("random_share")} are shares, together 1 at most, got '
              f'{self.mask_share} and {self.random_share}')
    return None

  @property
  def lengths(self) -> tuple[float, ...]:
    """Probabilities of spans of 1, 2, ... words."""
    weights = [(1 - self.p) ** n for n in range(self.longest)]
    return tuple(weight / sum(weights) for weight in weights)

  @property
  def terms(self) -> Mapping[str, float]:
    """Masked tokens, and the same from their spans' boundaries, which weigh `weight` times as much."""
    return {'mlm': 1.0, 'sbo': self.weight}

  @property
  def one_document(self) -> bool:
    """True: a row is of one document (section 3.3)."""
    return True

  def window(self, length: int) -> int:
    """Returns `length` less [CLS] and [SEP]."""
    return Single().window(length)

  def predictions(self, length: int) -> int:
    """Returns M, the most positions predicted in a row of `length` tokens (20 of 128, 77 of 512)."""
    return math.ceil(round(self.rate * self.window(length), 6))

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, types [B, L]; positions, labels, weights; left, right, offset, boundary, each [B, M].

    left and right are the positions around the span, offset is the place in it, boundary weighs the boundary loss.
    """
    keys = noise.example_keys(key, windows)
    rows = Single().arrange(keys, windows, vocab)
    most = self.predictions(rows['tokens'].shape[1])
    other = None
    if self.random == 'text':
      # Of the example's key, `mask` takes what `split` makes of it, which is fold_in of 0 and 1.
      other = noise.draw_tokens(
          jax.vmap(lambda k: jax.random.fold_in(k, 2))(keys), windows, rows['tokens'].shape[1])
    masked = jax.vmap(lambda k, t, w, o: self.mask(k, t, w, most, vocab, o))(
        keys, rows['tokens'], rows.pop('words'), other)
    return {**rows, **masked}

  def mask(self, key, tokens, words, most, vocab, other=None):
    """Masks one row [L] -> its corrupted tokens [L] and what `corrupt` says of its predictions [M]; other: as
    `replace`."""
    span_key, replace_key = jax.random.split(key)
    # Rounded first: in float32 0.15 of 200 is above 30.
    number = jnp.ceil(jnp.round((words > 0).sum() * self.rate, 4)).astype(jnp.int32)
    # Twice as many spans as it takes on average, and more for short rows.
    chosen = noise.draw_spans(span_key, words, number, self.lengths, most + 16)
    predicted = self.predict(tokens, words, chosen, most)
    return dict(tokens=self.replace(replace_key, tokens, chosen, vocab, other), **predicted)

  def predict(self, tokens, words, chosen, most):
    """Returns what is predicted in a row [L] whose chosen positions are hidden, [M] each."""
    positions, weights = noise.positions_of(chosen, most)
    first, last = (end[positions] for end in noise.runs(chosen))
    left, right = jnp.maximum(first - 1, 0), jnp.minimum(last + 1, tokens.shape[0] - 1)
    inside = (first > 0) & (last < tokens.shape[0] - 1) & (words[left] > 0) & (words[right] > 0)
    offset = jnp.where(weights > 0, positions - first, 0)
    boundary = weights * (inside & (offset < self.targets))
    return dict(positions=positions, labels=tokens[positions], weights=weights, left=left, right=right,
                offset=jnp.minimum(offset, self.targets - 1), boundary=boundary)

  def replace(self, key, tokens, chosen, vocab, other=None):
    """Returns tokens [L] with each run of chosen positions masked, random or kept as a whole; other [L]: the random
    ones, None: any pieces of the vocabulary."""
    draw_key, id_key = jax.random.split(key)
    draw = jax.random.uniform(draw_key, tokens.shape)[noise.runs(chosen)[0]]
    random_id = jax.random.randint(id_key, tokens.shape, 0, vocab.size) if other is None else other
    new = jnp.where(draw < self.mask_share, vocab.mask,
                    jnp.where(draw < self.mask_share + self.random_share, random_id, tokens))
    return jnp.where(chosen, new, tokens)

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns `mlm`, and `sbo`, which predicts a token from those around its span."""
    return {'mlm': MaskedTokens(model.block, model.tied, model.head),
            'sbo': BoundaryTokens(model.block, self.targets, self.size)}

  def loss(self, outputs, batch):
    """Returns cross-entropy and accuracy of both heads."""
    return {**classification('mlm', outputs['mlm'], batch['labels'], batch['weights']),
            **classification('sbo', outputs['sbo'], batch['labels'], batch['boundary'])}

  def answers(self, outputs, batch):
    """Returns the masked tokens, for both heads."""
    del outputs
    return {'mlm': (batch['labels'], batch['weights']), 'sbo': (batch['labels'], batch['boundary'])}
