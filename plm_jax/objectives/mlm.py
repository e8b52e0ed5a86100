"""Masked language modeling (MLM), alone or with next-sentence or sentence-order prediction."""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.chunked_cross_entropy import LogitStats
from plm_jax.layers.heads import MaskedLMHead, PooledClassifier
from plm_jax.layers.kernels import cpu
from plm_jax.objectives import (
    PROGRESS,
    STATISTICS,
    Objective,
    Requirements,
    StepTraits,
    TextLayout,
    corruption,
    synonyms,
)
from plm_jax.objectives.masking import Adaptive, Distinct, Masking, Windowed
from plm_jax.objectives.row_builders import (
    Consecutive,
    FullSentences,
    NextSentence,
    SentenceOrder,
    Single,
)
from plm_jax.objectives.translation_rows import Translations
from plm_jax.validation import intervals

ENCODERS = 'EncoderConfig', 'DebertaConfig'
"""Class names of encoders of one text, without a decoder."""


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
  """Masked language modeling (BERT: Devlin et al. 2019, section 3.1).

  By default 15% of the tokens are predicted. Of these, 80% become [MASK], 10% a random token, and
  10% stay as they are.
  """

  limits = intervals(
      mask_rate='(0, 1)', final_mask_rate='(0, 1)', held_out_mask_rate='(0, 1)',
      mask_share='[0, 1]', random_share='[0, 1]')

  pair: (Single | FullSentences | NextSentence | SentenceOrder | Consecutive |
         Translations) = NextSentence()
  """How text becomes sequences, and the sentence-pair task that is trained on them."""
  mask_rate: float = 0.15
  """Mask rate: fraction of a sequence's tokens to predict."""
  final_mask_rate: float | None = None
  """Mask rate at the end of the run, which `mask_rate` approaches linearly. None: the rate is
  constant."""
  held_out_mask_rate: float | None = None
  """Mask rate of the evaluation on held-out text. None: the rate at the end of the run."""
  masking: Masking = Distinct()
  """How the tokens to predict are sampled."""
  mask_share: float = 0.8
  """Fraction of predicted tokens that become [MASK]."""
  random_share: float = 0.1
  """Fraction of predicted tokens that become a random token."""
  language_ids: bool = False
  """Whether every token has a language id, for which the model has an embedding table (XLM). The
  id is the number of the corpus, or the one that a `pair` of translations gives."""
  pooled: Literal['dropped', 'whole'] = 'dropped'
  """Whether the classifier of the sentence-pair task reads the pooler's output with dropout, or
  whole (google-research/bert, run_pretraining.py, get_next_sentence_output: only fine-tuning has
  dropout there)."""
  z_loss: float = 0.0
  """Factor of the z-loss: the squared log of the softmax denominator of masked tokens (GPT-BERT:
  1e-4)."""
  duplicates: int = 0
  """Static masking: use k fixed sets of masks in turn (BERT's dupe_factor was 10). 0: dynamic
  masking, with new masks in every epoch."""

  def conflict(self, option):
    if self.step_traits.needs_progress and isinstance(self.masking, Windowed):
      return (f'{option("masking.kind")} windows is of one {option("mask_rate")}: leave out '
              f'{option("final_mask_rate")} and {option("held_out_mask_rate")}')
    return corruption.describe_excess(option, self.mask_share, self.random_share)

  @property
  def terms(self) -> Mapping[str, float]:
    terms = {'mlm': 1.0}
    if self.pair.pair_task:
      terms[self.pair.pair_task] = 1.0
    if self.z_loss:
      terms['z'] = self.z_loss
    return terms

  @property
  def layout(self) -> TextLayout:
    if isinstance(self.pair, Translations):
      return TextLayout(
          separators=self.pair.document_separators, has_text_pairs=self.pair.has_text_pairs)
    return TextLayout(self.pair.one_document, separators=self.pair.document_separators)

  @property
  def requirements(self) -> Requirements:
    return Requirements(ENCODERS, incompatibility=self.find_incompatibility)

  @property
  def step_traits(self) -> StepTraits:
    changes = self.final_mask_rate is not None or self.held_out_mask_rate is not None
    return StepTraits(
        needs_progress=changes, changes_over_run=self.final_mask_rate is not None,
        keeps_statistics=isinstance(self.masking, Adaptive))

  def find_incompatibility(self, corpora: Sequence[str], model: Any) -> str | None:
    """Explain that the model has too few languages, or cannot learn from translations."""
    names = self.pair.language_names if isinstance(self.pair, Translations) else corpora
    room = model.embeddings.languages if isinstance(model, EncoderConfig) else 0
    if self.language_ids and len(names) > room:
      return (f'{name_field("data.path")} has {len(corpora)} corpora of {len(names)} languages, '
              f'and {name_field("model.embeddings.languages")} is {room}')
    if isinstance(self.pair, Translations):
      return self.pair.incompatibility(corpora, model)
    return None

  def text_length(self, length: int) -> int:
    return self.pair.text_length(length)

  def max_predictions(self, length: int) -> int:
    """Return the maximum number of predicted positions per sequence (20 of 128, 77 of 512)."""
    return corruption.most_predictions(
        length, self.mask_rate, self.final_mask_rate, self.held_out_mask_rate)

  def corrupt(self, key, windows, vocab):
    """Build sequences and mask them.

    Returns:
      tokens, segments, types [batch, length]; positions, labels, weights [batch, predictions]; the
      label of the sentence-pair task [batch] under its name, and languages [batch, length], if any.
    """
    keys = corruption.split_example_keys(key, windows, 2, self.duplicates)
    row_keys, mask_keys = keys[:, 0], keys[:, 1]

    # Sequences with special tokens.
    rows = self.pair.arrange(row_keys, windows, vocab)
    if not self.language_ids:
      rows.pop('languages', None)
    elif 'languages' not in rows:
      rows['languages'] = jnp.broadcast_to(windows['corpus'][:, None], rows['tokens'].shape)
    words = rows.pop('words')

    # Masks: uniform, by inverse frequency, by difficulty, or with synonyms.
    most = self.max_predictions(rows['tokens'].shape[1])
    rate = scheduled_mask_rate(self, windows.get(PROGRESS))
    token_weights, others = self.masking.weigh_tokens(windows, vocab), None
    if self.masking.synonyms:
      # The same sequences of other words: where tokens go does not depend on which they are.
      others = jax.vmap(draw_synonyms)(mask_keys, windows['similar'], windows['words'])
      others = self.pair.arrange(row_keys, {**windows, 'tokens': others}, vocab)['tokens']
    def mask(key, tokens, segments, words, others):
      weights = None if token_weights is None else token_weights[tokens]
      return self.mask_row(key, tokens, segments, words, (most, rate), vocab, others, weights)
    masked = jax.vmap(mask)(mask_keys, rows['tokens'], rows['segments'], words, others)
    return {**rows, **masked}

  def add_token_info(self, windows, tokenizer):
    """Add similar [batch, text, CANDIDATES]: token ids of the synonyms of each word."""
    if not self.masking.synonyms:
      return windows
    similar = synonyms.lookup_synonyms(self.masking.synonyms, windows, tokenizer)
    return {**windows, 'similar': similar}

  def shapes(self, rows, length, layout=None):
    shapes = super().shapes(rows, length, layout)
    if not self.masking.synonyms:
      return shapes
    shape = (rows, self.text_length(length), synonyms.CANDIDATES)
    return shapes | {'similar': jax.ShapeDtypeStruct(shape, jnp.int32, sharding=layout)}

  def mask_row(self, key, tokens, segments, words, number, vocab, others=None, weights=None):
    """Mask one sequence.

    Args:
      key: key of the example.
      tokens: token ids, [length].
      segments: document of each token, 0 at padding, [length].
      words: word of each token, 0 where nothing is masked, [length].
      number: (maximum number of predictions, mask rate).
      vocab: the tokenizer's `Vocab`.
      others: synonyms that replace [MASK], [length]; -1 for a random token. The tokens of a word
        are then replaced together. None: no synonyms.
      weights: relative sampling weight of each token, [length]; None: uniform.

    Returns:
      the corrupted tokens [length], and positions, labels and weights [predictions]; with adaptive
      masking by loss, `hidden` [predictions], 1.0 where [MASK] replaces the token.
    """
    choose_key, replace_key = jax.random.split(key)
    most, rate = number
    times = self.masking.choose(choose_key, segments > 0, words, most, rate, weights)
    positions, weights = corruption.select_positions(times > 0, most)
    spans = None if others is None else words
    if self.masking.replaced == 'span':
      spans, times = times, times > 0
    labels = tokens[positions]
    tokens = corruption.replace_tokens(
        replace_key, tokens, (positions, weights), vocab, (self.mask_share, self.random_share),
        spans, others)
    masked = dict(
        tokens=tokens, positions=positions, labels=labels, weights=weights * times[positions])
    if isinstance(self.masking, Adaptive) and self.masking.difficulty == 'loss':
      masked['hidden'] = (tokens[positions] == vocab.mask).astype(jnp.float32)
    return masked

  def build(self, model, packed):
    """Build the model. Raises ConfigError for one that predicts a token from the position before
    it."""
    if model.head.shifted:
      raise ConfigError(
          'the model predicts a token where the one before it stands, which the objective '
          'MaskedNextToken asks for (recipe gpt_bert_strict_small): give '
          f'{name_field("model.head.shifted")}=False')
    task = self.pair.pair_task
    if task and not getattr(model, 'pooler', True):
      raise ConfigError(f'{task} is predicted from the pooler, and the model has none: give '
                        f'{name_field("model.pooler")}=True, or another '
                        f'{name_field("objective.pair")}')
    return super().build(model, packed)

  def heads(self, model) -> dict[str, nn.Module]:
    heads: dict[str, nn.Module] = {'mlm': MaskedLMHead(model.block, model.tied, model.head)}
    if self.pair.pair_task:
      dropout = 0.0 if self.pooled == 'whole' else None
      heads[self.pair.pair_task] = PooledClassifier(model.block, 2, dropout)
    return heads

  def loss(self, outputs, batch):
    losses = {}
    for name, (labels, weights) in self.accuracy_targets(outputs, batch).items():
      losses |= classification_losses(name, outputs[name], labels, weights)
    if self.z_loss:
      stats = LogitStats.from_logits(outputs['mlm'], batch['labels'])
      losses['z'] = compute_z_loss(stats, batch['weights'])
    return losses

  def losses(self, passes, batch):
    """Compute the losses of a training step, and with adaptive masking the difficulty of each
    prediction."""
    outputs = passes(batch)
    losses = self.loss(outputs, batch)
    if not isinstance(self.masking, Adaptive):
      return losses
    stats = LogitStats.from_logits(jax.lax.stop_gradient(outputs['mlm']), batch['labels'])
    return {**losses, STATISTICS: self.masking.measure_difficulty(stats, batch)}

  def statistics(self, vocab):
    """Return the statistics of adaptive masking: every token of the vocabulary has the same weight.

    Returns:
      float32 [vocab] each: `weights`, relative mask rates with mean 1; `difficulty`, the sum of
      errors or losses of each token since the last update of the weights; `count`, how many there
      were.
    """
    zeros = jnp.zeros(vocab, jnp.float32)
    return {'weights': jnp.ones(vocab, jnp.float32), 'difficulty': zeros, 'count': zeros}

  def update_statistics(self, statistics, seen, step):
    assert isinstance(self.masking, Adaptive)
    return self.masking.update_statistics(statistics, seen, step, self.mask_rate)

  def accuracy_targets(self, outputs, batch):
    """Return the masked tokens, and the labels of the sentence-pair task; an empty row has weight
    0."""
    del outputs
    targets = {'mlm': (batch['labels'], batch['weights'])}
    if task := self.pair.pair_task:
      targets[task] = batch[task], batch['segments'].any(-1).astype(jnp.float32)
    return targets


def scheduled_mask_rate(objective: Any, progress):
  """Compute the mask rate, which changes linearly over the run (mask-rate schedule).

  Args:
    objective: with `mask_rate`, `final_mask_rate` and `held_out_mask_rate`.
    progress: fraction of the run that is done; None in evaluation.
  """
  rate, last, held_out = (
      objective.mask_rate, objective.final_mask_rate, objective.held_out_mask_rate)
  last = rate if last is None else last
  if progress is None:
    return last if held_out is None else held_out
  return rate + (last - rate) * progress


def compute_z_loss(stats: LogitStats, weights):
  """Compute the z-loss, the squared log of the softmax denominator, as a (sum, weight) pair."""
  return (jnp.square(stats.log_total) * weights).sum(), weights.sum()


def draw_synonyms(key, candidates, words):
  """Sample one synonym per word, for all of its tokens.

  Args:
    key: key of the example.
    candidates: token ids of the synonyms of each token's word, [text, candidates].
    words: word of each token, [text].

  Returns:
    token ids [text].
  """
  size = candidates.shape[1]
  key = jax.random.fold_in(key, 2)
  chosen = jax.random.randint(key, (words.shape[0] + 1,), 0, size)[words]
  return jnp.take_along_axis(candidates, chosen[:, None], 1)[:, 0]


class TokenPrediction(Objective):
  """Base class of objectives whose losses are cross-entropies of batch['labels']."""

  predictions: ClassVar[tuple[tuple[str, str, str], ...]]
  """(Loss, head with its logits, field of the batch with the weights of the labels) of each."""

  def loss(self, outputs, batch):
    losses = {}
    for name, head, weights in self.predictions:
      losses |= classification_losses(name, outputs[head], batch['labels'], batch[weights])
    return losses

  def accuracy_targets(self, outputs, batch):
    del outputs
    return {name: (batch['labels'], batch[weights]) for name, _, weights in self.predictions}


def classification_losses(name: str, logits, labels, weights, counted=None):
  """Compute cross-entropy and accuracy as (sum, weight) pairs `name` and `name`_accuracy.

  A prediction counts as correct where no logit is above that of the label: ties count.

  Args:
    name: name of the loss.
    logits: [..., classes], or what was read of them (`chunked_cross_entropy.LogitStats`).
    labels: [...].
    weights: weight of each label in the loss, [...].
    counted: weights of the accuracy, where they differ from those of the loss, [...].
  """
  if cpu.is_single_cpu():
    logits = LogitStats.from_logits(logits, labels)
  if isinstance(logits, LogitStats):
    loss, correct = logits.log_total - logits.label, logits.label >= logits.max_logit
  else:
    import optax
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    # The maximum is known from the loss; argmax would be another pass, and a slow one on a CPU.
    correct = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0] >= logits.max(-1)
  counted = weights if counted is None else counted
  return {
      name: ((loss * weights).sum(), weights.sum()),
      f'{name}_accuracy': ((correct * counted).sum(), counted.sum())}
