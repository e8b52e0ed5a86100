"""Masked and causal language modelling at once: in some rows hidden tokens are predicted, in others all that follow."""
from collections.abc import Mapping
import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.heads import MaskedTokens
from plm_jax.layers.vocabulary import Scores
from plm_jax.objectives import PROGRESS, Objective, noise
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import classification, partition, share_at


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(Objective):
  """GPT-BERT (Charpentier and Samuel 2024, section 3), whose model is `shifted`: a token is always predicted where the
  one before it stands, whether it is masked and all of the text is seen, or whether it is what comes next.

  Rows are those of `CausalLM`: documents one behind another, which do not see each other, each begun by the start
  token. By chance of the example and the epoch a row is causal or masked. The two losses are means of their own, which
  count by the shares of rows. Differs from the released pretraining/dataset.py in that tokens that were masked less
  often in earlier epochs are not preferred, in that causal rows predict the ends of documents, too, and in that rows
  are not filled up with other pieces of text.
  """

  limits = within(causal='[0, 1]', rate='(0, 1)', last_rate='(0, 1)', held_out_rate='(0, 1)', lengths='[0, 1]',
                  mask_share='[0, 1]', random_share='[0, 1]')

  causal: float = 1 / 16
  """share of the rows that are read from left to right"""
  rate: float = 0.3
  """share of the other rows' tokens to predict"""
  last_rate: float | None = 0.15
  """share at the end of the run, to which `rate` changes in a line; None: it stays"""
  held_out_rate: float | None = None
  """share in evaluation on held-out text; None: that of the end of the run"""
  lengths: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 3)
  """probabilities of masking 1, 2, ... consecutive tokens together"""
  mask_share: float = 0.8
  """share of hidden tokens that become [MASK]"""
  random_share: float = 0.1
  """share of hidden tokens that become a random token"""
  reserve: int = 4
  """tokens of a row kept free for starts of documents; a row that needs more and is full loses as many at its end"""
  z_loss: float = 0.0
  """factor on the square of the logarithm of softmax's denominator (GPT-BERT: 1e-4)"""

  def conflict(self, option):
    """Says which probabilities do not go together."""
    if not math.isclose(sum(self.lengths), 1, abs_tol=1e-3):
      return f'{option("lengths")} are probabilities and sum to 1, got {self.lengths}'
    if self.mask_share + self.random_share > 1 + 1e-9:
      return (f'{option("mask_share")} and {option("random_share")} are shares, together 1 at most, got '
              f'{self.mask_share} and {self.random_share}')
    return None

  @property
  def kinds(self) -> Mapping[str, float]:
    """The two questions with their shares of rows, where these are not 0."""
    return {name: share for name, share in (('mntp', 1 - self.causal), ('clm', self.causal)) if share}

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy of hidden tokens (mntp) and of next tokens (clm), and with `z_loss` both denominators."""
    return dict(self.kinds) | {f'{name}_z': self.z_loss * share for name, share in self.kinds.items() if self.z_loss}

  @property
  def required_specials(self) -> tuple[str, ...]:
    """What hides a token."""
    return ('mask',)

  @property
  def paced(self) -> bool:
    """Whether the share of masks is not the same everywhere."""
    return self.last_rate is not None or self.held_out_rate is not None

  def window(self, length: int) -> int:
    """Returns `length` less what is kept free for the starts of documents."""
    return length - self.reserve

  def predictions(self, length: int) -> int:
    """Returns `length`: in a causal row every position is predicted."""
    return length

  def hidden(self, length: int) -> int:
    """Returns the most tokens that are hidden in a row of `length` tokens."""
    return math.ceil(round(max(self.rate, self.last_rate or 0, self.held_out_rate or 0) * length, 6))

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, place, ranks, labels, weights [B, L]; causal [B], 1 where a row is.

    What is to be predicted at a token is the one behind it. ranks are 0 in a masked row, 0, 1, 2, ... in a causal one.
    """
    rows = CausalLM(reserve=self.reserve).corrupt(key, windows, vocab)
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(noise.example_keys(key, windows))
    causal = jax.vmap(lambda k: jax.random.bernoulli(k, float(self.causal)))(keys[:, 0])
    share = share_at(windows.get(PROGRESS), self.rate, self.last_rate, self.held_out_rate)
    tokens, weights = jax.vmap(lambda k, tokens, segments, place: self.mask(k, tokens, segments, place, share, vocab))(
        keys[:, 1], rows['tokens'], rows['segments'], rows['place'])
    alone = causal[:, None]
    return rows | {
        'tokens': jnp.where(alone, rows['tokens'], tokens), 'weights': jnp.where(alone, rows['weights'], weights),
        'ranks': jnp.where(alone, jnp.arange(tokens.shape[1]), 0), 'causal': causal.astype(jnp.int32)}

  def mask(self, key, tokens, segments, place, share, vocab):
    """Hides a share of the tokens [L] of a row -> the row with them hidden, and 1 where the token before such a one
    stands, float32 [L]."""
    choose_key, replace_key = jax.random.split(key)
    most = self.hidden(tokens.shape[0])
    text = (segments > 0) & (place > 0)  # not the start of a document
    number = jnp.clip(jnp.round(text.sum() * share).astype(jnp.int32), 1, most)
    units = jnp.where(text, jnp.arange(1, tokens.shape[0] + 1), 0)
    chosen = noise.choose_spans(choose_key, units, number, self.lengths)
    positions, weights = noise.positions_of(chosen, most)
    tokens = noise.replace_tokens(
        replace_key, tokens, positions, weights, vocab, self.mask_share, self.random_share)
    return tokens, jnp.roll(chosen, -1).astype(jnp.float32)  # the first is a start, and never chosen

  def build(self, model, packed):
    """Builds the model. Raises ValueError for one that predicts tokens elsewhere."""
    if not getattr(model, 'shifted', False):
      raise ValueError('the objective MaskedNextToken predicts a token where the one before it stands: give '
                       '--model.shifted=True, as the recipe gpt_bert_strict_small does')
    return super().build(model, packed)

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns `mlm`, which predicts hidden and next tokens alike."""
    return {'mlm': MaskedTokens(model.block, model.tied, model.head)}

  def loss(self, outputs, batch):
    """Returns cross-entropy and accuracy of hidden tokens and of next ones."""
    losses = {}
    for name, (labels, weights) in self.answers(outputs, batch).items():
      losses |= classification(name, outputs['mlm'], labels, weights)
      if self.z_loss:
        losses[f'{name}_z'] = partition(Scores.read(outputs['mlm'], labels), weights)
    return losses

  def answers(self, outputs, batch):
    """Returns what stands behind each token, which weighs in the rows of its kind."""
    del outputs
    causal = batch['causal'][:, None].astype(jnp.float32)
    weights = {'mntp': batch['weights'] * (1 - causal), 'clm': batch['weights'] * causal}
    return {name: (batch['labels'], weights[name]) for name in self.kinds}
