"""Masked language modelling, alone or with a question about two texts: which is next (BERT), which first (ALBERT)."""
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from plm_jax.checked import within
from plm_jax.layers.heads import MaskedTokens, PooledClasses
from plm_jax.layers.vocabulary import Scores
from plm_jax.objectives import PROGRESS, Objective, noise, similar
from plm_jax.objectives.pairs import Consecutive, FullSentences, NextSentence, SentenceOrder, Single
from plm_jax.objectives.translations import Translations


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
  """Devlin et al. 2019, section 3.1: 15% of tokens are predicted; 80% of them are masked, 10% random, 10% kept."""

  limits = within(rate='(0, 1)', last_rate='(0, 1)', held_out_rate='(0, 1)', lengths='[0, 1]',
                  mask_share='[0, 1]', random_share='[0, 1]')

  pair: Single | FullSentences | NextSentence | SentenceOrder | Consecutive | Translations = NextSentence()
  """how text becomes rows, and what is asked about them"""
  rate: float = 0.15
  """share of a row's tokens to predict"""
  last_rate: float | None = None
  """share at the end of the run, to which `rate` changes in a line; None: it stays"""
  held_out_rate: float | None = None
  """share in evaluation on held-out text; None: that of the end of the run"""
  unit: Literal['token', 'word', 'either'] = 'token'
  """what is masked as a whole: tokens, or words (whole-word masking); either: words in half of the rows, tokens in the
  others (ERNIE: Sun et al. 2019, section 3.2, whose words are phrases and names)"""
  lengths: tuple[float, ...] = (1.0,)
  """probabilities of masking 1, 2, ... consecutive units together; ALBERT's n-grams: 6/11 3/11 2/11"""
  choice: Literal['distinct', 'repeated', 'everywhere', 'windows'] = 'distinct'
  """how the share is reached: by other tokens each time, none of them special (BERT, ALBERT); by tokens drawn again and
  again, which count as often as they come (ELECTRA as released); by other tokens each time, special ones too, and a
  number that is rounded up or down at random (RoBERTa: fairseq, data/mask_tokens_dataset.py); or by one span in each of
  successive windows of as many units as one is chosen of, from the left (DeBERTa as released)"""
  mask_share: float = 0.8
  """share of predicted tokens that become [MASK]"""
  random_share: float = 0.1
  """share of predicted tokens that become a random token"""
  similar: str = ''
  """a file of words with others like them, one of which takes the place of [MASK], or random tokens where there is none
  (MacBERT; `similar` has the form of it): then a word as a whole is replaced, or kept"""
  says_language: bool = False
  """every token says its language (XLM, whose model has a table of them): the number of its corpus, or what a `pair` of
  translations says"""
  pooled: Literal['dropped', 'whole'] = 'dropped'
  """what a question about a pair is answered from: the pooler's output with the layers' dropout, or as it is
  (google-research/bert, run_pretraining.py, get_next_sentence_output: only fine-tuning has dropout there)"""
  z_loss: float = 0.0
  """factor on the square of the logarithm of softmax's denominator, of masked tokens (GPT-BERT: 1e-4)"""
  duplicates: int = 0
  """0: new masks in every epoch (dynamic); k: k fixed sets of masks in turn (static; BERT's dupe_factor was 10)"""

  def conflict(self, option):
    """Says which probabilities, shares or choices do not go together."""
    if not math.isclose(sum(self.lengths), 1, abs_tol=1e-3):
      return f'{option("lengths")} are probabilities and sum to 1, got {self.lengths}'
    if self.choice in ('repeated', 'everywhere') and (self.unit != 'token' or self.lengths != (1.0,)):
      return f'{option("choice")} {self.choice} is of single tokens, got {option("unit")} {self.unit}, {self.lengths}'
    if self.similar and self.unit != 'word':
      return f'{option("similar")} are words, so that {option("unit")} is word, got {self.unit}'
    if self.paced and self.choice not in ('distinct', 'everywhere'):
      return (f'{option("choice")} {self.choice} is of one {option("rate")}: leave out {option("last_rate")} and '
              f'{option("held_out_rate")}')
    if self.mask_share + self.random_share > 1 + 1e-9:
      return (f'{option("mask_share")} and {option("random_share")} are shares, together 1 at most, got '
              f'{self.mask_share} and {self.random_share}')
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    """Masked tokens, and the question about the row where there is one, alike; with `z_loss` softmax's denominator."""
    return {'mlm': 1.0, **({self.pair.question: 1.0} if self.pair.question else {}),
            **({'z': self.z_loss} if self.z_loss else {})}

  @property
  def one_document(self) -> bool:
    """Whether the way to make rows takes sentences of one document."""
    return self.pair.one_document

  def of_pairs(self, corpus: int) -> bool:
    """Tells whether a corpus is of translations."""
    return isinstance(self.pair, Translations) and self.pair.of_pairs(corpus)

  def unfit(self, corpora: Sequence[str], model: Any) -> str | None:
    """Says how many languages the model has no room for, or what does not go with translations."""
    names = self.pair.names if isinstance(self.pair, Translations) else corpora
    room = getattr(model, 'languages', 0)
    if self.says_language and len(names) > room:
      return f'--data.path has {len(corpora)} corpora of {len(names)} languages, and --model.languages is {room}'
    return self.pair.unfit(corpora, model) if isinstance(self.pair, Translations) else None

  def window(self, length: int) -> int:
    """Returns the tokens of raw text that the way to make rows takes."""
    return self.pair.window(length)

  def predictions(self, length: int) -> int:
    """Returns M, the most positions predicted in a row of `length` tokens (20 of 128, 77 of 512)."""
    return math.ceil(round(max(self.rate, self.last_rate or 0, self.held_out_rate or 0) * length, 6))

  @property
  def paced(self) -> bool:
    """Whether the share of masks is not the same everywhere."""
    return self.last_rate is not None or self.held_out_rate is not None

  def share(self, windows):
    """Returns the share of tokens to predict: by how far the run is, or for evaluation where windows do not say."""
    return share_at(windows.get(PROGRESS), self.rate, self.last_rate, self.held_out_rate)

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, types [B, L]; positions, labels, weights [B, M]; the pair's answer [B] and its weight."""
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(noise.example_keys(key, windows, self.duplicates))
    rows = self.pair.arrange(keys[:, 0], windows, vocab)
    if not self.says_language:
      rows.pop('languages', None)
    elif 'languages' not in rows:
      rows['languages'] = jnp.broadcast_to(windows['corpus'][:, None], rows['tokens'].shape)
    most, share = self.predictions(rows['tokens'].shape[1]), self.share(windows)
    if not self.similar:
      masked = jax.vmap(lambda k, t, s, w: self.mask(k, t, s, w, (most, share), vocab))(
          keys[:, 1], rows['tokens'], rows['segments'], rows.pop('words'))
      return {**rows, **masked}
    # The same rows of other words: where tokens go does not depend on which they are.
    others = jax.vmap(one_of)(keys[:, 1], windows['similar'], windows['words'])
    others = self.pair.arrange(keys[:, 0], {**windows, 'tokens': others}, vocab)['tokens']
    masked = jax.vmap(lambda k, t, s, w, o: self.mask(k, t, s, w, (most, share), vocab, o))(
        keys[:, 1], rows['tokens'], rows['segments'], rows.pop('words'), others)
    return {**rows, **masked}

  def described(self, windows, tokenizer):
    """Adds similar [B, T, CANDIDATES], where words have others that are like them."""
    return {**windows, 'similar': similar.of_windows(self.similar, windows, tokenizer)} if self.similar else windows

  def shapes(self, rows, length, layout=None):
    """Returns windows without their content."""
    found = super().shapes(rows, length, layout)
    if not self.similar:
      return found
    shape = (rows, self.window(length), similar.CANDIDATES)
    return found | {'similar': jax.ShapeDtypeStruct(shape, jnp.int32, sharding=layout)}

  def mask(self, key, tokens, segments, words, number, vocab, others=None):
    """Masks one row [L] -> its corrupted tokens [L], positions, labels and weights [M]; number: M, and a share.
    others [L]: what takes the place of [MASK], -1 where that is a random token; then a word's tokens are replaced
    together."""
    choose_key, replace_key = jax.random.split(key)
    most, share = number
    times = self.choose(choose_key, segments > 0, words, most, share)
    positions, weights = noise.positions_of(times > 0, most)
    labels = tokens[positions]
    shares = self.mask_share, self.random_share
    if others is None:
      tokens = noise.replace_tokens(replace_key, tokens, positions, weights, vocab, *shares)
    else:
      tokens = noise.replace_words(replace_key, tokens, (positions, weights), words, others, vocab.size, shares)
    return dict(tokens=tokens, positions=positions, labels=labels, weights=weights * times[positions])

  def choose(self, key, real, words, most, share):
    """Tells, of real bool [L] and words [L], how often each token is to be predicted, float32 [L]; a share of them, and
    at most so many."""
    if self.choice == 'everywhere':
      keys = jax.random.split(key)
      number = jnp.floor(real.sum() * share + jax.random.uniform(keys[1])).astype(jnp.int32)
      return noise.choose_tokens(keys[0], real, jnp.minimum(number, most)).astype(jnp.float32)
    if self.unit == 'either':
      key, which = jax.random.split(key)
      alone = jnp.where(words > 0, jnp.arange(1, words.shape[0] + 1), 0)
      words = jnp.where(jax.random.bernoulli(which), words, alone)
    number = jnp.clip(jnp.round(real.sum() * share).astype(jnp.int32), 1, most)
    if self.choice == 'repeated':
      return noise.choose_repeatedly(key, words > 0, number, most)
    units = words if self.unit != 'token' else jnp.where(words > 0, jnp.arange(1, words.shape[0] + 1), 0)
    if self.choice == 'windows':
      chosen = noise.choose_windows(key, units, number, int(1 / self.rate), self.lengths)
    elif self.unit == 'token' and self.lengths == (1.0,):
      chosen = noise.choose_tokens(key, words > 0, number)
    else:
      chosen = noise.choose_spans(key, units, number, self.lengths)
    return chosen.astype(jnp.float32)

  def build(self, model, packed):
    """Builds the model. Raises ValueError for one that predicts tokens elsewhere."""
    if getattr(model, 'shifted', False):
      raise ValueError('the model predicts a token where the one before it stands, which the objective MaskedNextToken '
                       'asks for (recipe gpt_bert_strict_small): give --model.shifted=False')
    return super().build(model, packed)

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns `mlm`, and the classifier of the question about the row, `nsp` or `sop`, where there is one."""
    heads: dict[str, nn.Module] = {'mlm': MaskedTokens(model.block, model.tied, model.head)}
    if self.pair.question:
      heads[self.pair.question] = PooledClasses(model.block, 2, 0.0 if self.pooled == 'whole' else None)
    return heads

  def loss(self, outputs, batch):
    """Returns cross-entropy and accuracy of masked tokens and of the question."""
    losses = {}
    for name, (labels, weights) in self.answers(outputs, batch).items():
      losses |= classification(name, outputs[name], labels, weights)
    if self.z_loss:
      losses['z'] = partition(Scores.read(outputs['mlm'], batch['labels']), batch['weights'])
    return losses

  def answers(self, outputs, batch):
    """Returns the masked tokens, and the question's answers; of an empty row it weighs 0."""
    del outputs
    answers = {'mlm': (batch['labels'], batch['weights'])}
    if question := self.pair.question:
      answers[question] = batch[question], batch['segments'].any(-1).astype(jnp.float32)
    return answers


def share_at(progress, rate: float, last: float | None, held_out: float | None):
  """Returns the share of tokens to predict where so much of the run is done, or in evaluation (None): it goes from
  `rate` to `last` in a line, or stays, and is `held_out` in evaluation, or that of the end."""
  last = rate if last is None else last
  if progress is None:
    return last if held_out is None else held_out
  return rate + (last - rate) * progress


def partition(scores: Scores, weights):
  """Returns the square of the logarithm of softmax's denominator as a (sum, weight) pair."""
  return (jnp.square(scores.log_total) * weights).sum(), weights.sum()


def one_of(key, candidates, words):
  """Draws one of a word's candidates [T, C] for all of its tokens -> [T]; words [T]."""
  size = candidates.shape[1]
  drawn = jax.random.randint(jax.random.fold_in(key, 2), (words.shape[0] + 1,), 0, size)[words]
  return jnp.take_along_axis(candidates, drawn[:, None], 1)[:, 0]


def classification(name: str, logits, labels, weights, counted=None):
  """Measures cross-entropy and accuracy of logits [..., C], or of what is read of them (`vocabulary.Scores`), against
  labels [...], as (sum, weight) pairs.

  A label is right where no logit is above its own: one that shares the first place counts. counted: weights of the
  accuracy, where they are others than those of the loss.
  """
  if isinstance(logits, Scores):
    loss, correct = logits.log_total - logits.label, logits.label >= logits.greatest
  else:
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    # The greatest is known from the loss; argmax would be a pass of its own, and a slow one on a CPU.
    correct = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0] >= logits.max(-1)
  counted = weights if counted is None else counted
  return {name: ((loss * weights).sum(), weights.sum()), f'{name}_accuracy': ((correct * counted).sum(), counted.sum())}
