"""Span corruption (T5) and its alternatives, and mixtures of denoisers (UL2).

A denoiser leaves parts of a text out of the encoder's inputs; the decoder writes these parts.
"""
import bisect
import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.objectives import corruption
from plm_jax.objectives.seq2seq import SequenceToSequence, append_token, build_pair_row
from plm_jax.tokenizers.contract import delimiters
from plm_jax.validation import ValidatedConfig, intervals

SentinelMode = Literal['unique', 'single', 'none']


@dataclasses.dataclass(frozen=True)
class SpanCorruption(ValidatedConfig):
  """Span corruption: random spans become sentinels (T5: Raffel et al. 2020, sections 3.1.4 and
  3.3.4).

  The target has the spans, separated by the same sentinels. A text of n tokens loses
  round(mask_rate n) tokens in round(these / mean_span_length) spans, at least one. As released,
  the spans and the text between them are uniform random partitions; pieces alternate, beginning
  with kept text and ending with a span. Numbers are rounded in float32, half to even.
  """

  limits = intervals(mask_rate='(0, 1)', mean_span_length='[1, inf)')

  mask_rate: float = 0.15
  """Mask rate: fraction of the tokens that is left out."""
  mean_span_length: float = 3.0
  """Mean span length in tokens."""
  sentinels: SentinelMode = 'unique'
  """What replaces a span on both sides: a sentinel of its own, the first sentinel for all, or
  nothing."""
  task_token: int = 0
  """Task token in front of the text: the n-th sentinel from the end (UL2). 0: none."""

  def counts(self, size, xp: Any = jnp):
    """Compute (tokens left out, spans) of a text of `size` tokens; xp: jnp or numpy."""
    size = xp.maximum(xp.asarray(size, np.float32), 2)
    number = xp.clip(xp.round(size * np.float32(self.mask_rate)), 1, size - 1)
    spans = xp.round(number / np.float32(self.mean_span_length))
    spans = xp.clip(spans, 1, xp.minimum(number, size - number))
    return number.astype(np.int32), spans.astype(np.int32)

  def max_spans(self, size: int) -> int:
    """Return the number of spans that a text of `size` tokens loses."""
    return int(self.counts(size, np)[1])

  def text_length(self, length: int) -> int:
    """Return the longest text whose inputs fit `length` tokens, the end token among them.

    This is `random_spans_helper`, as released.
    """
    room = length - (self.task_token > 0)
    # A text of room - 1 tokens always fits, and inputs never get shorter with the text.
    sizes = range(room - 1, math.ceil((room + 2) / (1 - self.mask_rate)) + 2)
    fitting = bisect.bisect_right(sizes, room, key=lambda size: self.row_lengths(size)[0])
    size = sizes[fitting - 1]
    # Where both sides are equally long the released code makes the target the shorter one.
    if self.mask_rate == 0.5 and self.row_lengths(size)[1] > room:
      size -= 1
    return size

  def target_length(self, length: int) -> int:
    """Return the length of the target for `text_length(length)` tokens, the end token among
    them."""
    return self.row_lengths(self.text_length(length))[1]

  def row_lengths(self, size: int) -> tuple[int, int]:
    """Return the lengths of inputs and target of a text of `size` tokens, with their end tokens."""
    number, spans = (int(x) for x in self.counts(size, np))
    marks = 0 if self.sentinels == 'none' else spans
    return size - number + marks + 1, number + marks + 1

  def split(self, key, tokens, size, sentinel):
    """Draw the spans that are left out of a text, and split it into inputs and target.

    Args:
      key: random key.
      tokens: [text].
      size: how many tokens count.
      sentinel: id of the first sentinel.

    Returns:
      (inputs, target), each (tokens [text + 2], how many of them count).
    """
    keys = jax.random.split(key)
    at = jnp.arange(tokens.shape[0])
    number, spans = self.counts(size)
    # T5's random_segmentation: `spans - 1` random cuts of the tokens left out, and of those kept.
    def breaks(key, items):
      return corruption.choose_tokens(key, (at >= 1) & (at < items), spans - 1)
    kept = jnp.maximum(size, 2) - number
    left_out = span_mask(breaks(keys[0], number), breaks(keys[1], kept), number, kept)
    return mark_spans(tokens, left_out, size, sentinel, self.sentinels)


@dataclasses.dataclass(frozen=True)
class TokenCorruption(ValidatedConfig):
  """I.i.d. denoising: random tokens are left out, neighbors as one span (T5: Raffel et al. 2020,
  3.1.4).

  There are two differences from the released code: exactly round(mask_rate n) of n tokens are
  chosen, and a span at the beginning of the text has its sentinel in front of it in the target
  too.
  """

  limits = intervals(mask_rate='(0, 1)')

  mask_rate: float = 0.15
  """Mask rate: fraction of the tokens that is left out."""
  sentinels: SentinelMode = 'unique'
  """What replaces a span on both sides: a sentinel of its own, the first sentinel for all, or
  nothing."""
  task_token: int = 0
  """Task token in front of the text: the n-th sentinel from the end. 0: none."""

  def count(self, size, xp: Any = jnp):
    """Compute how many tokens a text of `size` loses, at least one; xp: jnp or numpy."""
    number = xp.round(xp.asarray(size, np.float32) * np.float32(self.mask_rate))
    return xp.clip(number, 1, size).astype(np.int32)

  def max_spans(self, size: int) -> int:
    """Return the maximum number of runs of neighbors that the tokens left out can make."""
    number = int(self.count(size, np))
    return min(number, size - number + 1)

  def text_length(self, length: int) -> int:
    """Return `length` without the end and the task token: inputs are no longer than the text."""
    return length - 1 - (self.task_token > 0)

  def target_length(self, length: int) -> int:
    """Return the length of the longest target: tokens, a sentinel per run, and the end token."""
    size = self.text_length(length)
    marks = 0 if self.sentinels == 'none' else self.max_spans(size) + 1
    return int(self.count(size, np)) + marks + 1

  def split(self, key, tokens, size, sentinel):
    """Split a text into inputs and target as `SpanCorruption.split` does."""
    text = jnp.arange(tokens.shape[0]) < size
    chosen = corruption.choose_tokens(key, text, self.count(size))
    return mark_spans(tokens, chosen, size, sentinel, self.sentinels)


@dataclasses.dataclass(frozen=True)
class PrefixLM(ValidatedConfig):
  """Prefix language modeling: the end of a text is predicted from its beginning (Raffel et al.
  2020, 3.3.1).

  The target's length is uniform, from one token to twice its mean or to all but one (Tay et al.
  2023, section 3.1), or fixed (Zhang et al. 2025: half of the text).
  """

  limits = intervals(share='(0, 0.5]')

  share: float = 0.5
  """Mean fraction of the text in the target."""
  sentinels: SentinelMode = 'none'
  """Whether a sentinel replaces the target at the end of the text and precedes the target, or
  nothing."""
  task_token: int = 0
  """Task token in front of the text: the n-th sentinel from the end (UL2). 0: none."""
  fixed: bool = False
  """Every target has the mean fraction of its text; False: the length is random."""

  def max_spans(self, size: int) -> int:
    """Return 1: the rest of the text."""
    return 1

  def longest(self, size, xp: Any = jnp):
    """Compute the maximum number of tokens of the rest; xp: jnp or numpy."""
    share = self.share if self.fixed else 2 * self.share
    number = xp.round(xp.asarray(size, np.float32) * np.float32(share))
    return xp.clip(number, 1, size - 1).astype(np.int32)

  def text_length(self, length: int) -> int:
    """Return the longest text whose inputs fit `length` tokens, without the end token if random."""
    room = length - (self.sentinels != 'none') - (self.task_token > 0)
    if not self.fixed:
      return room
    sizes = range(room - 1, 2 * room + 1)  # with the end token
    return sizes[bisect.bisect_right(
        sizes, room - 1, key=lambda size: size - int(self.longest(size, np))) - 1]

  def target_length(self, length: int) -> int:
    """Return the length of the longest target, with its sentinel if any, and the end token."""
    longest = int(self.longest(self.text_length(length), np))
    return longest + (self.sentinels != 'none') + 1

  def split(self, key, tokens, size, sentinel):
    """Split a text into inputs and target as `SpanCorruption.split` does."""
    number = self.longest(jnp.maximum(size, 2))
    if not self.fixed:
      number = jax.random.randint(key, (), 1, number + 1)
    at = jnp.arange(tokens.shape[0])
    # Of one token nothing is left out.
    left_out = (at >= size - number) & (at < size) & (size > 1)
    return mark_spans(tokens, left_out, size, sentinel, self.sentinels)


@dataclasses.dataclass(frozen=True)
class Deshuffling(ValidatedConfig):
  """Deshuffling: shuffled tokens are read, the text is the target (Raffel et al. 2020, 3.3.1; Liu
  et al. 2019)."""

  task_token: int = 0
  """Task token in front of the text: the n-th sentinel from the end. 0: none."""

  def max_spans(self, size: int) -> int:
    """Return 0: nothing is left out."""
    return 0

  def text_length(self, length: int) -> int:
    """Return `length` without the end and the task token."""
    return length - 1 - (self.task_token > 0)

  def target_length(self, length: int) -> int:
    """Return the tokens of the whole text, and the end token."""
    return self.text_length(length) + 1

  def split(self, key, tokens, size, sentinel):
    """Split a text as `SpanCorruption.split` does: the inputs are the text shuffled."""
    del sentinel
    at = jnp.arange(tokens.shape[0])
    order = jnp.argsort(jnp.where(at < size, jax.random.uniform(key, at.shape), 2.0))
    return (jnp.pad(tokens[order], (0, 2)), size), (jnp.pad(tokens, (0, 2)), size)


Denoiser = SpanCorruption | TokenCorruption | PrefixLM | Deshuffling
UL2_DENOISERS = (
    SpanCorruption(task_token=1), SpanCorruption(mean_span_length=8.0, task_token=1),
    PrefixLM(0.25, 'unique', task_token=2),
    SpanCorruption(0.5, task_token=3), SpanCorruption(0.5, 8.0, task_token=3),
    SpanCorruption(mean_span_length=64.0, task_token=3), SpanCorruption(0.5, 64.0, task_token=3))
"""UL2's R, S and X denoisers (Tay et al. 2023, table 1). The paper's mode tokens are the last
sentinels here."""


@dataclasses.dataclass(frozen=True)
class MixtureOfDenoisers(SequenceToSequence):
  """One denoiser (T5's span corruption), or a mixture of denoisers (UL2: Tay et al. 2023, section
  3.1).

  In a mixture each sequence has a random denoiser, which reads as much of the window as fills the
  sequence, from a random token on. Sentinels are the ids from the tokenizer's first one
  downwards, in the order of the text. Both sides end with the end token. The decoder starts with
  padding, as released, or, without sentinels in the tokenizer, as `delimiters` tells. Documents of
  a sequence are one text.
  """

  limits = intervals(sentinels='[1, inf)')

  denoisers: tuple[Denoiser, ...] = (SpanCorruption(),)
  """Denoisers, which choose the tokens that are removed from a sequence and become its target."""
  shares: tuple[float, ...] = ()
  """Mixture weights of the denoisers. Empty: uniform."""
  sentinels: int = 100
  """Number of ids reserved for sentinels."""

  def conflict(self, option):
    if not self.denoisers or (self.shares and len(self.shares) != len(self.denoisers)):
      return (f'{option("denoisers")} are one at least, and {option("shares")} are one for each or '
              f'none, got {len(self.denoisers)} and {len(self.shares)}')
    if self.shares and not sum(self.shares):
      return f'{option("shares")} are not all 0, got {self.shares}'
    return None

  @property
  def special_tokens(self) -> tuple[str, ...]:
    return ('pad', 'eos', 'sentinel') if self.marking_denoisers else ('eos',)

  @property
  def marking_denoisers(self) -> list[Denoiser]:
    """Denoisers with sentinels or a task token."""
    return [one for one in self.denoisers
            if one.task_token or getattr(one, 'sentinels', 'none') != 'none']

  def text_length(self, length: int) -> int:
    """Return the text tokens of a sequence.

    Where sequences of `length` - 1 take as much text, it is one token more than fills a sequence:
    sequences are made of windows alone, whose length has to tell theirs.
    """
    longest = max(denoiser.text_length(length) for denoiser in self.denoisers)
    before = max(denoiser.text_length(length - 1) for denoiser in self.denoisers)
    return longest + (longest == before)

  def max_predictions(self, length: int) -> int:
    """Return the length of the longest target of all denoisers."""
    return max(denoiser.target_length(length) for denoiser in self.denoisers)

  def row_length(self, window: int) -> int:
    """Return the sequence length of a window: the inverse of `text_length`."""
    return bisect.bisect_left(range(window + 4), window, key=self.text_length)

  def corrupt(self, key, windows, vocab):
    """Build the sequences of encoder and decoder.

    Returns:
      tokens, segments [batch, length]; decoder_tokens, decoder_segments, labels, weights, content
      [batch, predictions].

    Raises:
      ConfigError: there are fewer sentinels than sequences need.
    """
    keys = corruption.example_keys(key, windows)
    length = self.row_length(windows['tokens'].shape[1])
    needed, marking = 0, self.marking_denoisers
    if marking:
      spans = max(denoiser.max_spans(denoiser.text_length(length)) for denoiser in marking)
      needed = spans + 1 + max(denoiser.task_token for denoiser in marking)
    if needed > self.sentinels:
      raise ConfigError(
          f'rows of {length} tokens need {needed} sentinels, and there are {self.sentinels}')
    if needed and vocab.sentinels < self.sentinels:
      raise ConfigError(f'the tokenizer has {vocab.sentinels} sentinels, and the objective expects '
                       f'{self.sentinels}')
    def build(key, tokens, segments):
      return self.build_row(key, tokens, (segments > 0).sum(), length, vocab)
    return jax.vmap(build)(keys, windows['tokens'], windows['segments'])

  def build_row(self, key, tokens, size, length, vocab):
    """Build one row of the batch from tokens [text], by a random denoiser."""
    which_key, key = jax.random.split(key)
    rows = [self.denoise_row(denoiser, key, tokens, size, length, vocab)
            for denoiser in self.denoisers]
    if len(rows) == 1:
      return rows[0]
    shares = jnp.array(self.shares or [1.0] * len(rows))
    kind = jax.random.categorical(which_key, jnp.log(shares))
    return jax.tree.map(lambda *x: jnp.stack(x)[kind], *rows)

  def denoise_row(self, denoiser, key, tokens, size, length, vocab):
    """Build one row by a denoiser, of as much text as it takes, from a random place on."""
    place_key, key = jax.random.split(key)
    taken = denoiser.text_length(length)
    begin = jax.random.randint(place_key, (), 0, jnp.maximum(size - taken, 0) + 1)
    text = jax.lax.dynamic_slice_in_dim(tokens, begin, taken)
    inputs, targets = denoiser.split(key, text, jnp.minimum(size, taken), vocab.sentinel)
    inputs, count = append_token(*inputs, vocab.eos)
    targets = append_token(*targets, vocab.eos)
    if denoiser.task_token:
      task_token = vocab.sentinel - self.sentinels + denoiser.task_token
      inputs, count = jnp.concatenate([jnp.full(1, task_token), inputs]), count + 1
    count = jnp.where(size > 0, count, 0)
    return build_pair_row(
        (inputs, count), targets, length, self.max_predictions(length), delimiters(vocab)[2],
        (vocab.eos,), max(vocab.pad, 0))


def span_mask(breaks, text_breaks, number, text):
  """Compute the mask of spans from two random partitions.

  Pieces of kept text and of text left out alternate, kept text first.

  Args:
    breaks: True where a new piece of the tokens left out begins, False at 0, bool [text].
    text_breaks: the same of the kept tokens.
    number: how many tokens are left out.
    text: how many are kept.

  Returns:
    True where a token is left out, bool [text].
  """
  at = jnp.arange(breaks.shape[0])
  def lengths(breaks, items):
    return jnp.zeros(at.shape, jnp.int32).at[jnp.cumsum(breaks)].add(at < items)
  left_out, kept = lengths(breaks, number), lengths(text_breaks, text)
  starts = jnp.cumsum(kept + left_out) - left_out
  piece = jnp.where(left_out > 0, 1, 0)
  edges = jnp.zeros(at.shape, jnp.int32)
  edges = edges.at[starts].add(piece, mode='drop').at[starts + left_out].add(-piece, mode='drop')
  return jnp.cumsum(edges) > 0


def mark_spans(tokens, left_out, size, sentinel, sentinels: SentinelMode):
  """Make inputs and target of a text, with sentinels in place of spans.

  In both a span is where its sentinel is. In the target one more sentinel stands for the text after
  the last span.

  Args:
    tokens: [text].
    left_out: True where a token is left out of the inputs, bool [text].
    size: how many tokens count.
    sentinel: id of the first sentinel.
    sentinels: what replaces a span.

  Returns:
    (inputs, target), as `SpanCorruption.split`.
  """
  at = jnp.arange(tokens.shape[0])
  real = at < size
  left_out = left_out & real
  first = left_out & ~jnp.roll(left_out, 1).at[0].set(False)
  number = jnp.cumsum(first)
  def sign(number):
    return jnp.broadcast_to(sentinel - (number if sentinels == 'unique' else 0), at.shape)
  shown = first & (sentinels != 'none')
  rest = (at == size - 1) & ~left_out & (sentinels != 'none')
  room = tokens.shape[0] + 2
  marked = jnp.where(first, sign(number - 1), tokens)
  inputs = corruption.keep_tokens(marked, real & (~left_out | shown), room)
  # At each token: the sentinel of its span, the token, and the sentinel after the last span.
  entries = jnp.stack([sign(number - 1), tokens, sign(number)], 1)
  kept = jnp.stack([shown, left_out, rest], 1)
  return inputs, corruption.keep_tokens(entries.ravel(), kept.ravel(), room)
