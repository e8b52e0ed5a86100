"""Masked diffusion language modeling (MDLM, LLaDA): an evidence bound from random mask rates."""
from collections.abc import Mapping
import dataclasses
import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.chunked_cross_entropy import MIN_LOGIT
from plm_jax.layers.heads import MaskedLMHead
from plm_jax.objectives import (
  PROGRESS,
  Objective,
  Requirements,
  StepTraits,
  TextLayout,
  corruption,
)
from plm_jax.objectives.mlm import ENCODERS, classification_losses
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.validation import intervals

NoiseSchedule = Literal['linear', 'cosine']


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(Objective):
  """Masked diffusion (MDLM: Sahoo et al. 2024, section 3; LLaDA: Nie et al. 2025, section 2).

  Each sequence has a time t in (0, 1]. Each of its tokens becomes [MASK] with probability
  1 - alpha(t), independently of the others. The loss is the cross-entropy of the masked tokens
  times -alpha'(t) / (1 - alpha(t)), divided by the number of tokens that may be masked. Its
  expectation is an upper bound of the negative log-likelihood, in nats per token. The sequences,
  and the tokens that are never masked, are those of `MaskedLM`. [MASK] is never predicted
  (MDLM's zero masking probabilities).

  Held-out text is evaluated with the form of the bound that has less variance (LLaDA, equation
  14): the number of masked tokens is uniform from 1 to the length L, and the weight of n masked
  tokens is L / n. It depends neither on the schedule nor on `frequency_power`.

  As in LLaDA, and in MDLM without time conditioning, the model does not read the time.
  """

  limits = intervals(min_time='(0, 0.5]', frequency_power='[0, 10]', held_out_samples='[1, 1024]')

  pair: Single | FullSentences = Single()
  """How text becomes sequences."""
  schedule: NoiseSchedule = 'linear'
  """Noise schedule: alpha(t), the probability that a token is not masked. linear: 1 - t (called
  log-linear in MDLM); cosine: cos(pi t / 2), with a mean mask rate of 36%."""
  low_discrepancy: bool = True
  """Stratified sampling of the times of a batch: each of n sequences has its time in another n-th
  of (0, 1] (MDLM, section 3.5)."""
  min_time: float = 1e-3
  """Smallest time, which limits the weight of a token (MDLM's and LLaDA's code: 1e-3)."""
  frequency_power: float = 0.0
  """Frequency-informed masking: rarer tokens are masked with a higher probability. It is the power
  of the rank weights; smaller values are closer to uniform masking, and 0 turns it off
  (Kosmopoulou et al. 2025: 0.02). With it, the training loss is not a bound; the held-out loss
  is."""
  frequency_curriculum: bool = True
  """Whether this power grows from 0 over the run, or has its value from the start."""
  held_out_samples: int = 1
  """Number of random masks per held-out sequence (Monte Carlo samples)."""

  @property
  def terms(self) -> Mapping[str, float]:
    """The evidence bound, with factor 1."""
    return {'diffusion': 1.0}

  @property
  def requirements(self) -> Requirements:
    return Requirements(ENCODERS, ('mask',), frequency_ranks=self.frequency_power > 0)

  @property
  def step_traits(self) -> StepTraits:
    """Progress, which tells training from evaluation and sets the power of the curriculum."""
    return StepTraits(
        needs_progress=True,
        changes_over_run=self.frequency_power > 0 and self.frequency_curriculum)

  @property
  def layout(self) -> TextLayout:
    return TextLayout(separators=self.pair.document_separators)

  def text_length(self, length: int) -> int:
    return self.pair.text_length(length)

  def shapes(self, rows, length, layout=None):
    shapes = super().shapes(rows, length, layout)
    if self.requirements.frequency_ranks:
      shapes['frequency_ranks'] = shapes['tokens']
    return shapes

  def corrupt(self, key, windows, vocab):
    """Build sequences and mask them.

    Returns:
      tokens, segments, types, labels [batch, length]; weights [batch, length], the weight of each
      masked token in the loss; text and masked [batch, length], 1.0 at tokens that may be masked,
      and at those that are; mask_token [batch]. In evaluation, batch counts each sequence
      `held_out_samples` times.
    """
    progress = windows.get(PROGRESS)
    samples = self.held_out_samples if progress is None else 1
    keys = corruption.split_example_keys(key, windows, 3)
    times = draw_times(keys[:, 1], self.low_discrepancy)

    # Sequences with special tokens, and the same sequences of ranks in place of tokens.
    rows = self.pair.arrange(keys[:, 0], windows, vocab)
    text = (rows.pop('words') > 0) & (rows['tokens'] != vocab.mask)
    if progress is None:
      # The samples of a sequence have evenly spaced times.
      times = ((times[:, None] + jnp.arange(samples) / samples) % 1).reshape(-1)
      mask_keys = jax.vmap(lambda k: jax.random.split(k, samples))(keys[:, 2]).reshape(-1)
      rows, text = jax.tree.map(lambda x: jnp.repeat(x, samples, 0), (rows, text))
      masked, weights = jax.vmap(mask_number)(mask_keys, text, times)
    else:
      times = self.min_time + (1 - self.min_time) * times
      rates = jnp.broadcast_to(mask_probability(self.schedule, times)[:, None], text.shape)
      if self.requirements.frequency_ranks:
        ranks = self.pair.arrange(
            keys[:, 0], {**windows, 'tokens': windows['frequency_ranks']}, vocab)['tokens']
        power = self.frequency_power * (progress if self.frequency_curriculum else 1)
        rates = jax.vmap(frequency_probabilities, (0, 0, 0, None))(ranks, text, rates[:, 0], power)
      draws = jax.vmap(lambda k: jax.random.uniform(k, text.shape[1:]))(keys[:, 2])
      masked = text & (draws < rates)
      weights = bound_weight(self.schedule, times)

    masked, text = masked.astype(jnp.float32), text.astype(jnp.float32)
    tokens = rows['tokens']
    return {
        **rows, 'tokens': jnp.where(masked > 0, vocab.mask, tokens), 'labels': tokens,
        'weights': masked * weights[:, None], 'masked': masked, 'text': text,
        'mask_token': jnp.full(len(tokens), vocab.mask, jnp.int32)}

  def build(self, model, packed):
    """Build the model. Raises ConfigError for one that predicts a token from the position before
    it."""
    if model.head.shifted:
      raise ConfigError(
          'the model predicts a token at the position before it, and masked diffusion predicts it '
          f'at its own: give {name_field("model.head.shifted")}=False')
    return super().build(model, packed)

  def heads(self, model) -> dict[str, nn.Module]:
    return {'mlm': MaskedLMHead(model.block, model.tied, model.head)}

  def loss(self, outputs, batch):
    """Compute the bound per token, and the accuracy of masked tokens."""
    logits = suppress_mask(outputs['mlm'], batch['mask_token'][:, None])
    losses = classification_losses(
        'diffusion', logits, batch['labels'], batch['weights'], batch['masked'])
    return {**losses, 'diffusion': (losses['diffusion'][0], batch['text'].sum())}

  def accuracy_targets(self, outputs, batch):
    del outputs
    return {'diffusion': (batch['labels'], batch['masked'])}

  @property
  def generates(self) -> bool:
    """The masked-LM head generates text by iterative unmasking."""
    return True


def suppress_mask(logits, mask):
  """Suppress the logit of [MASK], which is no token of a text.

  Args:
    logits: [..., vocab].
    mask: id of [MASK], of any shape that broadcasts to that of the logits without the vocabulary.
  """
  is_mask = jnp.arange(logits.shape[-1]) == jnp.asarray(mask)[..., None]
  return jnp.where(is_mask, MIN_LOGIT, logits)


def draw_times(keys, stratified: bool):
  """Sample a time in [0, 1) per example, float32 [batch].

  Stratified times are one in each n-th of the interval. An example has the stratum of its rank
  among the random numbers of the batch, so its time depends on the other examples of the batch, and
  not on its row.
  """
  draws = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
  if not stratified:
    return draws[:, 0]
  ranks = jnp.argsort(jnp.argsort(draws[:, 0]))
  return (ranks + draws[:, 1]) / len(draws)


def mask_probability(schedule: NoiseSchedule, times):
  """Compute 1 - alpha(t), the probability that a token is masked at these times."""
  if schedule == 'cosine':
    return 2 * jnp.square(jnp.sin(math.pi / 4 * times))  # 1 - cos, exact for small times
  return times


def bound_weight(schedule: NoiseSchedule, times):
  """Compute -alpha'(t) / (1 - alpha(t)), the weight of a masked token (MDLM, equation 10)."""
  return math.pi / 2 / jnp.tan(math.pi / 4 * times) if schedule == 'cosine' else 1 / times


def mask_number(key, text, time):
  """Mask a uniformly distributed number of tokens (LLaDA, equation 14).

  Args:
    key: random key.
    text: True where a token may be masked, [length].
    time: uniform in [0, 1); the number is 1 + floor(time * size of the text).

  Returns:
    (True at masked tokens [length], weight of each of them: size of the text / their number).
  """
  size = text.sum()
  number = jnp.clip(jnp.floor(time * size).astype(jnp.int32) + 1, 1, jnp.maximum(size, 1))
  return corruption.choose_tokens(key, text, number), size / number


def frequency_probabilities(ranks, text, rate, power):
  """Compute the mask probability of each token by its frequency (frequency-informed masking).

  Kosmopoulou et al. 2025, and DespoinaKK/babylm-diffusion, masking/masking_processor.py: ranks by
  frequency are scaled to 0 to 1 in each sequence, and softened by a power. Then they are scaled to
  a mean of `rate`: the probabilities if they are too high, else the complements. Here all of this
  is of tokens that may be masked; there, special tokens and padding count too.

  Args:
    ranks: 0 for the most frequent token of the corpus, [length].
    text: True where a token may be masked, [length].
    rate: mean mask probability.
    power: exponent; 0 masks all tokens with the same probability.

  Returns:
    probabilities [length]; 0 where no token may be masked.
  """
  ranks = ranks.astype(jnp.float32)
  low, high = jnp.where(text, ranks, jnp.inf).min(), jnp.where(text, ranks, -jnp.inf).max()
  spread = jnp.maximum(high - low, 1)
  scaled = jnp.where(text, (ranks - low) / spread, 0)
  weights = jnp.where(text, scaled ** power, 0)
  mean = weights.sum() / jnp.maximum(text.sum(), 1)
  lowered = weights * (rate / jnp.maximum(mean, 1e-8))
  raised = 1 - (1 - weights) * ((1 - rate) / jnp.maximum(1 - mean, 1e-8))
  return jnp.where(text, jnp.where(mean > rate, lowered, raised), 0)
