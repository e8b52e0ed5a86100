"""Masking strategies of masked language modeling: which tokens of a sequence are predicted."""
import abc
from collections.abc import Mapping
import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from plm_jax.objectives import STATISTICS, corruption
from plm_jax.validation import Choice, intervals

KEEP = 0.2
"""Share of the old weights in an update of adaptive masking."""
FLOOR = 0.005
"""Smallest mask rate of a token in adaptive masking."""


@dataclasses.dataclass(frozen=True)
class Masking(Choice):
  """Base class of masking strategies."""

  title = 'Masking strategy'
  replaced, synonyms = 'token', ''  # fields of `Distinct`

  @classmethod
  def kinds(cls) -> Mapping[str, type['Masking']]:
    return MASKINGS

  def weigh_tokens(self, windows, vocab) -> jax.Array | None:
    """Return the relative sampling weight of each token of the vocabulary; None: uniform."""
    del windows, vocab
    return None

  @abc.abstractmethod
  def choose(self, key, real, words, most: int, rate, weights=None) -> jax.Array:
    """Sample how often each token is predicted, [length], at most `most` in all.

    Args:
      key: random key.
      real: True at tokens that are not padding, [length].
      words: word of each token, 0 at special tokens, [length].
      most: maximum number of predictions.
      rate: mask rate.
      weights: relative sampling weights, [length]; None: uniform.
    """


@dataclasses.dataclass(frozen=True)
class SpanMasking(Masking):
  """Base class of strategies that may mask several tokens together."""

  limits = intervals(lengths='[0, 1]')

  unit: Literal['token', 'word', 'either'] = 'token'
  """Unit that is masked as a whole: tokens, or words (whole-word masking). With `either`, half of
  the sequences mask words and the others mask tokens (ERNIE: Sun et al. 2019, section 3.2, whose
  words are phrases and named entities)."""
  lengths: tuple[float, ...] = (1.0,)
  """Probabilities of masking 1, 2, ... consecutive units together (n-gram masking). ALBERT has
  6/11 3/11 2/11."""

  def conflict(self, option):
    return corruption.describe_distribution(option, self.lengths)

  @property
  def masks_spans(self) -> bool:
    """Whether several tokens may be masked together."""
    return self.unit != 'token' or self.lengths != (1.0,)

  def number_units(self, key, words):
    """Return (a new key, the unit of each token [length], 0 at special tokens)."""
    tokens = jnp.where(words > 0, jnp.arange(1, words.shape[0] + 1), 0)
    if self.unit == 'either':
      key, which = jax.random.split(key)
      words = jnp.where(jax.random.bernoulli(which), words, tokens)
    return key, tokens if self.unit == 'token' else words


@dataclasses.dataclass(frozen=True)
class Distinct(SpanMasking):
  """Sampling without replacement and without special tokens (BERT, ALBERT)."""

  replaced: Literal['token', 'span'] = 'token'
  """Whether the fractions of [MASK] and random tokens are sampled for each predicted token, or once
  for all tokens of a span (LTG-BERT, with `lengths`)."""
  synonyms: str = ''
  """Synonym file (MacBERT): a synonym replaces a whole word instead of [MASK], or random tokens
  where the word has no synonym. `objectives/synonyms.py` has the format."""

  def conflict(self, option):
    if self.replaced == 'span' and (self.synonyms or not self.masks_spans):
      return (f'{option("replaced")} span is of spans of several tokens, without similar words: '
              f'see {option("lengths")}')
    if self.synonyms and self.unit != 'word':
      return f'{option("synonyms")} are words, so that {option("unit")} is word, got {self.unit}'
    return super().conflict(option)

  def choose(self, key, real, words, most, rate, weights=None):
    """Sample tokens or spans. Where `replaced` is span, return the number of the span that each
    token is in, 0 for none."""
    number = count_masked(real, rate, most)
    if not self.masks_spans:
      return corruption.choose_tokens(key, words > 0, number)
    spans = corruption.number_spans(*self.number_units(key, words), number, self.lengths)
    return spans if self.replaced == 'span' else spans > 0


@dataclasses.dataclass(frozen=True)
class Repeated(Masking):
  """Sampling with replacement, where a token counts as often as it is sampled (ELECTRA as
  released)."""

  def choose(self, key, real, words, most, rate, weights=None):
    return corruption.choose_repeatedly(key, words > 0, count_masked(real, rate, most), most)


@dataclasses.dataclass(frozen=True)
class Everywhere(Masking):
  """Sampling without replacement that includes special tokens (RoBERTa: fairseq,
  data/mask_tokens_dataset.py).

  The number of masked tokens is rounded up or down at random.
  """

  def choose(self, key, real, words, most, rate, weights=None):
    keys = jax.random.split(key)
    number = jnp.floor(real.sum() * rate + jax.random.uniform(keys[1])).astype(jnp.int32)
    return corruption.choose_tokens(keys[0], real, jnp.minimum(number, most))


@dataclasses.dataclass(frozen=True)
class Windowed(SpanMasking):
  """One span in each of consecutive windows, from the left (DeBERTa as released).

  A window has as many units as one is chosen of.
  """

  def choose(self, key, real, words, most, rate, weights=None):
    key, units = self.number_units(key, words)
    number = count_masked(real, rate, most)
    return corruption.choose_windows(key, units, number, int(1 / rate), self.lengths)


@dataclasses.dataclass(frozen=True)
class WeightedMasking(Masking):
  """Base class of strategies that sample single tokens with weights."""

  def choose(self, key, real, words, most, rate, weights=None):
    return corruption.choose_tokens(key, words > 0, count_masked(real, rate, most), weights)


@dataclasses.dataclass(frozen=True)
class Smoothed(WeightedMasking):
  """Sampling frequent tokens less often (XLM, DistilBERT)."""

  limits = intervals(smoothing='(0, 10]')

  smoothing: float = 0.5
  """Exponent that masks frequent tokens less often: a token has the weight frequency ** -smoothing.
  Frequencies are those of the batch, as an estimate of the corpus (XLM: 0.5; DistilBERT: 0.7)."""

  def weigh_tokens(self, windows, vocab):
    counts = corruption.count_tokens(windows, vocab.size)
    return jnp.maximum(counts, 1).astype(jnp.float32) ** -self.smoothing


@dataclasses.dataclass(frozen=True)
class Adaptive(WeightedMasking):
  """Sampling a token type more often, the worse the model predicts it (adaptive masking: Edman and
  Fraser 2025).

  The number of masked tokens stays the same. Evaluation masks all tokens alike.
  """

  limits = intervals(steps='[1, inf)')

  difficulty: Literal['accuracy', 'loss'] = 'accuracy'
  """What makes a token type difficult in adaptive masking: the share of errors in the steps before
  (`accuracy`, hard), or the mean `loss` (soft)."""
  steps: int = 200
  """Number of steps between updates of the mask rates of adaptive masking."""

  def weigh_tokens(self, windows, vocab):
    return windows[STATISTICS]['weights'] if STATISTICS in windows else None

  def measure_difficulty(self, stats, batch):
    """Measure the difficulty of each prediction of a batch, an error (1) or a loss in nats.

    Args:
      stats: `LogitStats` of the masked tokens.
      batch: the batch.

    Returns:
      `labels`, `difficulty` and `count` [batch, predictions], of which `update_statistics` makes
      sums.
    """
    weights = batch['weights']
    if self.difficulty == 'accuracy':
      difficulty = (stats.label < stats.max_logit).astype(jnp.float32)
    else:
      # Only [MASK] hides a token.
      weights = weights * batch['hidden']
      difficulty = stats.log_total - stats.label
    return {'labels': batch['labels'], 'difficulty': difficulty * weights, 'count': weights}

  def update_statistics(self, statistics, seen, step, mask_rate: float):
    """Add the predictions of a batch, and update the weights if that is due.

    The weights are updated as in the released code of Edman and Fraser 2025
    (serdardoesml/babylm25, train_mask.py): a fifth of the old weight, and four fifths of the new
    one. With `accuracy`, the new weight is the share of errors, (errors + 0.5) / (count + 1). With
    `loss`, it is the mean loss, scaled to 0 for the easiest token and 1 for the hardest.

    Args:
      statistics: see `MaskedLM.statistics`.
      seen: what `measure_difficulty` returned for the whole batch, [batch, predictions].
      step: number of steps before this one.
      mask_rate: mask rate of the run; `FLOOR` divided by it is the smallest weight.
    """
    labels = seen['labels'].reshape(-1)
    def add(name):
      return statistics[name].at[labels].add(seen[name].reshape(-1))
    difficulty, count = add('difficulty'), add('count')

    if self.difficulty == 'accuracy':
      new = (difficulty + 0.5) / (count + 1)
    else:
      # Before it is seen, a token has the loss of a uniform guess, once.
      mean = (difficulty + jnp.log(float(len(count)))) / (count + 1)
      new = (mean - mean.min()) / jnp.maximum(mean.max() - mean.min(), 1e-6)
    weights = KEEP * statistics['weights'] + (1 - KEEP) * new
    weights = jnp.maximum(weights, FLOOR / mask_rate)
    due = (step + 1) % self.steps == 0
    return {
        'weights': jnp.where(due, weights / weights.mean(), statistics['weights']),
        'difficulty': jnp.where(due, 0.0, difficulty), 'count': jnp.where(due, 0.0, count)}


MASKINGS: Mapping[str, type[Masking]] = {
    'distinct': Distinct, 'repeated': Repeated, 'everywhere': Everywhere, 'windows': Windowed,
    'smoothed': Smoothed, 'adaptive': Adaptive}
"""Classes of masking strategies by `kind`."""


def count_masked(real, rate, most: int):
  """Compute the number of tokens to predict: `rate` of the real ones, from 1 to `most`."""
  return jnp.clip(jnp.round(real.sum() * rate).astype(jnp.int32), 1, most)
