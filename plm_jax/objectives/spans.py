"""Text with parts left out, which are the target: T5's span corruption and what it was compared with, UL2's mixture."""
import bisect
import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import Checked, within
from plm_jax.objectives import noise
from plm_jax.objectives.seq2seq import SequenceToSequence, ended, pair

Marks = Literal['unique', 'single', 'none']


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Checked):
  """Raffel et al. 2020, section 3.1.4 and 3.3.4: random spans become sentinels, which part them in the target.

  A text of n tokens loses round(rate n) of them in round(of these / mean) spans, one at least, as released: both the
  spans and the text between them are a uniform choice of so many pieces of so many tokens, text first and span last.
  Numbers are rounded in float32, half to even.
  """

  limits = within(rate='(0, 1)', mean='[1, inf)')

  rate: float = 0.15
  """share of the tokens that are left out"""
  mean: float = 3.0
  """tokens in a span"""
  marks: Marks = 'unique'
  """what stands for a span on both sides: a sentinel of its own, the first one for all, or nothing"""
  mode: int = 0
  """the last sentinel but so many, from 1, stands in front of the text and says what is asked (UL2); 0: none does"""

  def counts(self, size, xp: Any = jnp):
    """Returns the tokens left out, and the spans, of a text of `size` tokens."""
    size = xp.maximum(xp.asarray(size, np.float32), 2)
    number = xp.clip(xp.round(size * np.float32(self.rate)), 1, size - 1)
    spans = xp.clip(xp.round(number / np.float32(self.mean)), 1, xp.minimum(number, size - number))
    return number.astype(np.int32), spans.astype(np.int32)

  def spans(self, size: int) -> int:
    """Returns how many spans a text of `size` tokens loses."""
    return int(self.counts(size, np)[1])

  def window(self, length: int) -> int:
    """Returns the longest text whose inputs fit `length` tokens, their end among them: `random_spans_helper`, as
    released."""
    room = length - (self.mode > 0)
    # A text of room - 1 tokens always fits, and inputs never get shorter with the text.
    sizes = range(room - 1, math.ceil((room + 2) / (1 - self.rate)) + 2)
    size = sizes[bisect.bisect_right(sizes, room, key=lambda size: self.sizes(size)[0]) - 1]
    # Where both sides are as good as equal the released code makes the target the shorter one.
    return size - (self.rate == 0.5 and self.sizes(size)[1] > room)

  def targets(self, length: int) -> int:
    """Returns the tokens of the target of a text of `window(length)` tokens, its end among them."""
    return self.sizes(self.window(length))[1]

  def sizes(self, size: int) -> tuple[int, int]:
    """Returns the tokens of inputs and target of a text of `size` tokens, their ends among them."""
    number, spans = (int(x) for x in self.counts(size, np))
    marks = spans * (self.marks != 'none')
    return size - number + marks + 1, number + marks + 1

  def split(self, key, tokens, size, sentinel):
    """Splits text [N], of which `size` tokens count, into inputs and target, each (tokens [N + 2], how many of them
    count)."""
    keys = jax.random.split(key)
    at = jnp.arange(tokens.shape[0])
    number, spans = self.counts(size)
    def breaks(key, items):
      return noise.choose_tokens(key, (at >= 1) & (at < items), spans - 1)
    text = jnp.maximum(size, 2) - number
    return marked(tokens, span_mask(breaks(keys[0], number), breaks(keys[1], text), number, text), size, sentinel,
                  self.marks)


@dataclasses.dataclass(frozen=True)
class TokenCorruption(Checked):
  """Raffel et al. 2020, section 3.1.4: i.i.d. denoising. Random tokens are left out, neighbours as one span.

  Differs from the released code in that exactly round(rate n) of n tokens are chosen, and in that a span at the
  beginning of the text has its sentinel in front of it in the target too.
  """

  limits = within(rate='(0, 1)')

  rate: float = 0.15
  """share of the tokens that are left out"""
  marks: Marks = 'unique'
  """what stands for a span on both sides: a sentinel of its own, the first one for all, or nothing"""
  mode: int = 0
  """the last sentinel but so many, from 1, stands in front of the text and says what is asked; 0: none does"""

  def count(self, size, xp: Any = jnp):
    """Returns how many tokens a text of `size` loses, at least one. xp: jnp or numpy."""
    return xp.clip(xp.round(xp.asarray(size, np.float32) * np.float32(self.rate)), 1, size).astype(np.int32)

  def spans(self, size: int) -> int:
    """Returns the most runs of neighbours that the tokens left out can make."""
    number = int(self.count(size, np))
    return min(number, size - number + 1)

  def window(self, length: int) -> int:
    """Returns `length` less the end and the mode: inputs are no longer than the text."""
    return length - 1 - (self.mode > 0)

  def targets(self, length: int) -> int:
    """Returns the tokens of the longest target, with a sentinel for each run where they are marked, and the end."""
    size = self.window(length)
    return int(self.count(size, np)) + (self.spans(size) + 1) * (self.marks != 'none') + 1

  def split(self, key, tokens, size, sentinel):
    """Splits text as `SpanCorruption.split` does."""
    chosen = noise.choose_tokens(key, jnp.arange(tokens.shape[0]) < size, self.count(size))
    return marked(tokens, chosen, size, sentinel, self.marks)


@dataclasses.dataclass(frozen=True)
class PrefixLM(Checked):
  """Raffel et al. 2020, section 3.3.1: the end of the text is predicted from its beginning.

  The target is uniformly long, from one token to twice its mean or to all but one (Tay et al. 2023, section 3.1).
  """

  limits = within(share='(0, 0.5]')

  share: float = 0.5
  """of the text in the target, on average"""
  marks: Marks = 'none'
  """what stands for the target at the end of the text, and in front of itself: a sentinel, or nothing"""
  mode: int = 0
  """the last sentinel but so many, from 1, stands in front of the text and says what is asked (UL2); 0: none does"""

  def spans(self, size: int) -> int:
    """Returns 1: the rest of the text."""
    return 1

  def longest(self, size, xp: Any = jnp):
    """Returns the most tokens of the rest, twice their mean. xp: jnp or numpy."""
    return xp.clip(xp.round(xp.asarray(size, np.float32) * np.float32(2 * self.share)), 1, size - 1).astype(np.int32)

  def window(self, length: int) -> int:
    """Returns `length` less the sentinel and the mode."""
    return length - (self.marks != 'none') - (self.mode > 0)

  def targets(self, length: int) -> int:
    """Returns the tokens of the longest target, with its sentinel where it is marked, and the end."""
    return int(self.longest(self.window(length), np)) + (self.marks != 'none') + 1

  def split(self, key, tokens, size, sentinel):
    """Splits text as `SpanCorruption.split` does."""
    number = jax.random.randint(key, (), 1, self.longest(jnp.maximum(size, 2)) + 1)
    at = jnp.arange(tokens.shape[0])
    # Of one token nothing is left out.
    return marked(tokens, (at >= size - number) & (at < size) & (size > 1), size, sentinel, self.marks)


@dataclasses.dataclass(frozen=True)
class Deshuffling(Checked):
  """Raffel et al. 2020, section 3.3.1, after Liu et al. 2019: the tokens in random order; the target is the text."""

  mode: int = 0
  """the last sentinel but so many, from 1, stands in front of the text and says what is asked; 0: none does"""

  def spans(self, size: int) -> int:
    """Returns 0: nothing is left out."""
    return 0

  def window(self, length: int) -> int:
    """Returns `length` less the end and the mode."""
    return length - 1 - (self.mode > 0)

  def targets(self, length: int) -> int:
    """Returns the whole text's tokens, and the end."""
    return self.window(length) + 1

  def split(self, key, tokens, size, sentinel):
    """Splits text as `SpanCorruption.split` does: the inputs are the text shuffled."""
    del sentinel
    at = jnp.arange(tokens.shape[0])
    order = jnp.argsort(jnp.where(at < size, jax.random.uniform(key, at.shape), 2.0))
    return (jnp.pad(tokens[order], (0, 2)), size), (jnp.pad(tokens, (0, 2)), size)


Denoiser = SpanCorruption | TokenCorruption | PrefixLM | Deshuffling
# Tay et al. 2023, table 1: R, S and X. The paper's mode tokens are the last sentinels here.
UL2 = (
    SpanCorruption(mode=1), SpanCorruption(mean=8.0, mode=1), PrefixLM(0.25, 'unique', mode=2),
    SpanCorruption(0.5, mode=3), SpanCorruption(0.5, 8.0, mode=3), SpanCorruption(mean=64.0, mode=3),
    SpanCorruption(0.5, 64.0, mode=3))


@dataclasses.dataclass(frozen=True)
class MixtureOfDenoisers(SequenceToSequence):
  """One denoiser, or of several a random one for each row: T5, or UL2's mixture (Tay et al. 2023, section 3.1).

  Sentinels are the ids from the tokenizer's first one downwards, in the order of the text. Both sides end with the end
  token, and the decoder begins with padding, as released. Documents of a row are one text. In a mixture each reads as
  much of the window as fills its row, from a random token on.
  """

  limits = within(sentinels='[1, inf)')

  denoisers: tuple[Denoiser, ...] = (SpanCorruption(),)
  """what is left out of a row, and is its target"""
  shares: tuple[float, ...] = ()
  """of the rows, for each denoiser; none: as many for each"""
  sentinels: int = 100
  """ids that are kept for sentinels"""

  def conflict(self, option):
    """Says which denoisers or shares are missing."""
    if not self.denoisers or (self.shares and len(self.shares) != len(self.denoisers)):
      return (f'{option("denoisers")} are one at least, and {option("shares")} are one for each or none, got '
              f'{len(self.denoisers)} and {len(self.shares)}')
    if self.shares and not sum(self.shares):
      return f'{option("shares")} are not all 0, got {self.shares}'
    return None

  @property
  def required_specials(self) -> tuple[str, ...]:
    """Padding, the end, and sentinels."""
    return 'pad', 'eos', 'sentinel'

  def window(self, length: int) -> int:
    """Returns one token more than fills a row, where rows of `length` - 1 are filled by as much text: rows are made of
    windows alone, which have to tell their length."""
    longest, before = (max(some.window(size) for some in self.denoisers) for size in (length, length - 1))
    return longest + (longest == before)

  def predictions(self, length: int) -> int:
    """Returns the longest target of all denoisers."""
    return max(some.targets(length) for some in self.denoisers)

  def length(self, window: int) -> int:
    """Returns the row's length of a window: the inverse of `window`."""
    return bisect.bisect_left(range(window + 4), window, key=self.window)

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments [B, L]; decoder_tokens, decoder_segments, labels, weights, content [B, M]."""
    keys = noise.example_keys(key, windows)
    length = self.length(windows['tokens'].shape[1])
    spans = max(some.spans(some.window(length)) for some in self.denoisers)
    most = max(some.mode for some in self.denoisers)
    if spans + 1 + most > self.sentinels:
      raise ValueError(f'rows of {length} tokens need {spans + 1 + most} sentinels, and there are {self.sentinels}')
    if vocab.sentinels < self.sentinels:
      raise ValueError(f'the tokenizer has {vocab.sentinels} sentinels, and the objective expects {self.sentinels}')
    return jax.vmap(lambda key, tokens, segments: self.row(key, tokens, (segments > 0).sum(), length, vocab))(
        keys, windows['tokens'], windows['segments'])

  def row(self, key, tokens, size, length, vocab):
    """Makes one row of the batch of tokens [T], by a denoiser that is drawn by its share."""
    which_key, key = jax.random.split(key)
    rows = [self.denoised(some, key, tokens, size, length, vocab) for some in self.denoisers]
    if len(rows) == 1:
      return rows[0]
    shares = jnp.array(self.shares or [1.0] * len(rows))
    kind = jax.random.categorical(which_key, jnp.log(shares))
    return jax.tree.map(lambda *x: jnp.stack(x)[kind], *rows)

  def denoised(self, denoiser, key, tokens, size, length, vocab):
    """Makes one row by a denoiser, of as much text as it takes, from a random place on."""
    place_key, key = jax.random.split(key)
    some = denoiser.window(length)
    begin = jax.random.randint(place_key, (), 0, jnp.maximum(size - some, 0) + 1)
    text = jax.lax.dynamic_slice_in_dim(tokens, begin, some)
    inputs, targets = denoiser.split(key, text, jnp.minimum(size, some), vocab.sentinel)
    (inputs, count), targets = (ended(*side, vocab.eos) for side in (inputs, targets))
    if denoiser.mode:
      mode = vocab.sentinel - self.sentinels + denoiser.mode
      inputs, count = jnp.concatenate([jnp.full(1, mode), inputs]), count + 1
    full = size > 0
    return pair((inputs, jnp.where(full, count, 0)), targets, length, self.predictions(length), vocab.pad, (vocab.eos,),
                vocab.pad)


def span_mask(breaks, text_breaks, number, text):
  """Joins two bool [N] each, True where a new piece of the `number` tokens left out, and of the `text` others, begins,
  False at 0 -> bool [N], True where a token is left out: pieces of both in turn, of the text first."""
  at = jnp.arange(breaks.shape[0])
  def lengths(breaks, items):
    return jnp.zeros(at.shape, jnp.int32).at[jnp.cumsum(breaks)].add(at < items)
  left_out, kept = lengths(breaks, number), lengths(text_breaks, text)
  starts = jnp.cumsum(kept + left_out) - left_out
  piece = jnp.where(left_out > 0, 1, 0)
  edges = jnp.zeros(at.shape, jnp.int32)
  edges = edges.at[starts].add(piece, mode='drop').at[starts + left_out].add(-piece, mode='drop')
  return jnp.cumsum(edges) > 0


def marked(tokens, left_out, size, sentinel, marks: Marks):
  """Makes inputs and target, as `split` gives them, of text [N] and what is left out of it, bool [N].

  In both a span is where its sentinel stands. In the target a sentinel more stands for text behind the last span.
  """
  at = jnp.arange(tokens.shape[0])
  real = at < size
  left_out = left_out & real
  first = left_out & ~jnp.roll(left_out, 1).at[0].set(False)
  number = jnp.cumsum(first)
  def sign(number):
    return jnp.broadcast_to(sentinel - (number if marks == 'unique' else 0), at.shape)
  shown = first & (marks != 'none')
  rest = (at == size - 1) & ~left_out & (marks != 'none')
  room = tokens.shape[0] + 2
  inputs = noise.keep_tokens(jnp.where(first, sign(number - 1), tokens), real & (~left_out | shown), room)
  entries = jnp.stack([sign(number - 1), tokens, sign(number)], 1)
  return inputs, noise.keep_tokens(entries.ravel(), jnp.stack([shown, left_out, rest], 1).ravel(), room)
