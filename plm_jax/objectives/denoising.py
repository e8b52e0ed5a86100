"""A denoising autoencoder: the encoder reads text with noise, the decoder writes the text. BART, and its noises."""
from collections.abc import Callable
import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.objectives import noise
from plm_jax.objectives.clm import boundaries
from plm_jax.objectives.seq2seq import SequenceToSequence, pair
from plm_jax.tokenizers.languages import FIFTY


class Text(NamedTuple):
  """Tokens of running text, with room behind them."""

  tokens: jax.Array  # [N]
  sentences: jax.Array  # [N], the same number for neighbours of one sentence
  words: jax.Array  # [N], the same number for neighbours of one word
  size: jax.Array  # how many tokens count

  def moved(self, move: Callable[[jax.Array], jax.Array]) -> 'Text':
    """Applies `move` to all that is told of each token."""
    return Text(move(self.tokens), move(self.sentences), move(self.words), self.size)


@dataclasses.dataclass(frozen=True)
class TokenMasking(Checked):
  """Lewis et al. 2020, section 2.2, after BERT: random tokens become masks. A share of ceil(rate n) of n."""

  limits = within(rate='[0, 1]', random='[0, 1]')

  rate: float = 0.15
  """share of the tokens"""
  random: float = 0.0
  """probability that a token becomes a random one instead"""

  def grown(self, size: int) -> int:
    """Returns `size`: a mask stands for one token."""
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    """Replaces a share of the tokens with masks."""
    keys = jax.random.split(key, 2)
    chosen = noise.choose_tokens(keys[0], places(text), share(self.rate, text.size))
    return text._replace(tokens=jnp.where(chosen, masks(keys[1], self.random, chosen.shape, vocab), text.tokens))


@dataclasses.dataclass(frozen=True)
class TokenDeletion(Checked):
  """Lewis et al. 2020, section 2.2: random tokens are gone, and nothing says where. ceil(rate n) of n."""

  limits = within(rate='[0, 1]')

  rate: float = 0.15
  """share of the tokens"""

  def grown(self, size: int) -> int:
    """Returns `size`, which deletion does not exceed."""
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    """Deletes a share of the tokens."""
    del vocab
    real = places(text)
    return kept(text, real & ~noise.choose_tokens(key, real, share(self.rate, text.size)))


@dataclasses.dataclass(frozen=True)
class TextInfilling(Checked):
  """Lewis et al. 2020, section 2.2: spans of random length become one mask each; one without tokens is a mask more.

  As released (facebookresearch/fairseq, data/denoising_dataset.py, add_whole_word_mask): lengths are drawn until they
  reach ceil(rate n) of n units, where the last one is cut; spans begin at random units and may overlap, so that
  somewhat fewer are gone; a share of the masks of empty spans, one at least, is random tokens where `random` is above
  0. A span that would pass the end of the text ends with it. Units there are words where lengths are Poisson's
  (tasks/denoising.py, load_dataset).
  """

  limits = within(rate='[0, 1]', mean='(0, 100]', random='[0, 1]')

  rate: float = 0.3
  """share of the units that the lengths of spans reach (section 5.1)"""
  mean: float = 3.0
  """of the Poisson distribution of the length of spans, in units"""
  random: float = 0.0
  """probability that a span becomes a random token instead of a mask"""
  unit: Literal['token', 'word'] = 'token'
  """what is counted, and gone as a whole: tokens, or words (BART and mBART as released)"""

  @property
  def lengths(self) -> tuple[float, ...]:
    """Probabilities of spans of 0, 1, 2, ... tokens, up to the first below 1e-7 behind the mean."""
    found = []
    while len(found) <= self.mean or found[-1] >= 1e-7:
      found.append(math.exp(-self.mean) * self.mean ** len(found) / math.factorial(len(found)))
    return tuple(found)

  def grown(self, size: int) -> int:
    """Masks of empty spans take the room of what is gone; those that find none are left out."""
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    """Replaces spans, which together have a share of the text, with one mask each; those of length 0 insert one."""
    keys = jax.random.split(key, 5)
    room = text.tokens.shape[0]
    begins, count = units(text, self.unit == 'word')
    number = share(self.rate, count)
    most = math.ceil(self.rate * room) + 8  # so many empty ones do not happen
    lengths = noise.draw_lengths(keys[0], self.lengths, (most,)) - 1
    before = jnp.cumsum(lengths) - lengths
    used = before < number
    lengths = jnp.where(used, jnp.minimum(lengths, number - before), 0)
    empty = (used & (lengths == 0)).sum()

    order = jnp.argsort(jnp.where(jnp.arange(room) < count, jax.random.uniform(keys[1], (room,)), 2.0))
    first = order[jnp.cumsum(lengths > 0) - 1]
    starts = jnp.where(lengths > 0, begins[first], room)
    ends = begins[jnp.minimum(first + lengths, room)]
    edges = jnp.zeros(room + 1, jnp.int32).at[starts + 1].add(1, mode='drop').at[
        jnp.where(lengths > 0, ends, room + 1)].add(-1, mode='drop')
    gone = jnp.cumsum(edges)[:room] > 0  # all of a span but its first token
    masked = jnp.zeros(room, bool).at[starts].set(True, mode='drop')
    shown = text._replace(tokens=jnp.where(masked, masks(keys[2], self.random, (room,), vocab), text.tokens))
    return inserted(keys[3], kept(shown, places(text) & ~gone), empty, self.random, vocab)


@dataclasses.dataclass(frozen=True)
class TokenInsertion(Checked):
  """fairseq's denoising_dataset.py, not in the paper: masks between the tokens, ceil(rate (n + 2)) for n of them."""

  limits = within(rate='[0, 10]', random='[0, 1]')

  rate: float = 0.15
  """masks for each token"""
  random: float = 0.0
  """share of the masks that are random tokens instead, rounded up"""

  def grown(self, size: int) -> int:
    """Returns the most tokens that a text of `size` has with what is inserted."""
    return size + math.ceil(round(self.rate * (size + 2), 4))

  def apply(self, key, text: Text, vocab) -> Text:
    """Inserts masks, as many as a share of the text."""
    number = jnp.where(text.size > 0, share(self.rate, text.size + 2), 0)
    return inserted(key, text, number, self.random, vocab)


@dataclasses.dataclass(frozen=True)
class SentencePermutation(Checked):
  """Lewis et al. 2020, section 2.2: whole sentences in random order."""

  limits = within(rate='[0, 1]')

  rate: float = 1.0
  """share of the sentences that change places with each other, rounded up"""

  def grown(self, size: int) -> int:
    """Returns `size`: tokens only move."""
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    """Shuffles a share of the sentences among their places."""
    del vocab
    keys = jax.random.split(key)
    real = places(text)
    first = real & (text.sentences != jnp.roll(text.sentences, 1).at[0].set(-1))
    count = first.sum()
    at = jnp.arange(real.shape[0])
    moved = noise.choose_tokens(keys[0], at < count, share(self.rate, count))
    # The moved ones in random order, on the places of the moved ones.
    mixed = jnp.argsort(jnp.where(moved, jax.random.uniform(keys[1], at.shape), 2.0))
    ordering = jnp.where(moved, mixed[jnp.cumsum(moved) - 1], at)
    return permuted(text, first, ordering)


@dataclasses.dataclass(frozen=True)
class DocumentRotation(Checked):
  """Lewis et al. 2020, section 2.2: the text begins with a random token, and goes on with its beginning at its end."""

  limits = within(share='[0, 1]')

  share: float = 1.0
  """of the texts"""

  def grown(self, size: int) -> int:
    """Returns `size`: tokens only move."""
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    """Begins a share of the texts at a random token, and goes on with what was before it."""
    del vocab
    keys = jax.random.split(key)
    begin = jax.random.randint(keys[0], (), 0, jnp.maximum(text.size, 1))
    return rotated(text, jnp.where(jax.random.bernoulli(keys[1], self.share), begin, 0))


Noise = TokenMasking | TokenDeletion | TextInfilling | TokenInsertion | SentencePermutation | DocumentRotation


@dataclasses.dataclass(frozen=True)
class DenoisingAutoencoder(SequenceToSequence):
  """Lewis et al. 2020, section 2.2: <s> text with noise </s> is read, <s> text </s> is written behind a </s>.

  Noises are applied one after another, sentences first as released; documents of a row are one text, which released
  rows do not have: their windows are of one document (sample_break_mode complete_doc in fairseq's tasks/denoising.py;
  for mBART section 2.2). Of a tokenizer that names languages, text </s> LANGUAGE is read, and text </s> LANGUAGE is
  written behind a LANGUAGE (Liu et al. 2020, section 2.2).
  """

  noises: tuple[Noise, ...] = (SentencePermutation(), TextInfilling())
  """what is done to the text, in this order; those of section 5.1"""
  languages: tuple[str, ...] = ()
  """of each corpus, such as de_DE; none: of all of them that of the tokenizer, where it names one (mBART)"""
  reserve: int = 0
  """tokens of a row kept free for the </s> that then stands behind each of its sentences, a word of its own (mBART,
  section 2.2), beside that behind the last; a row that needs more loses its end. 0: one </s> behind all of them"""

  def conflict(self, option):
    """Says which languages mBART does not have."""
    if unknown := {*self.languages} - {*FIFTY}:
      return (f'{option("languages")}: {", ".join(sorted(unknown))} is no language of mBART, which has '
              f'{", ".join(FIFTY)}')
    return None

  @property
  def required_specials(self) -> tuple[str, ...]:
    """Padding and masks; languages where the text has some."""
    return 'pad', 'mask', *['language'] * bool(self.languages)

  def grown(self, size: int) -> int:
    """Returns the most tokens that a text of `size` has behind all noises."""
    for some in self.noises:
      size = some.grown(size)
    return size

  def text(self, window: int) -> int:
    """Returns the tokens of a text of `window` tokens with what stands between them."""
    return window + (self.reserve + 1 if self.reserve else 0)

  @property
  def specials(self) -> int:
    """Tokens around a text."""
    return 1 if self.reserve else 2

  def window(self, length: int) -> int:
    """Returns the longest text that fits the encoder's row whatever the noises do to it."""
    most = length - self.specials
    return max((size for size in range(length - 1) if self.grown(self.text(size)) <= most), default=0)

  def predictions(self, length: int) -> int:
    """Returns the tokens of the whole text, with what stands around and between: the decoder writes all of it."""
    return self.text(self.window(length)) + self.specials

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments [B, L]; decoder_tokens, decoder_segments, labels, weights, content [B, M]."""
    keys = noise.example_keys(key, windows)
    names = [vocab.language + FIFTY.index(name) for name in self.languages] or [vocab.source]
    if self.languages and max(names) >= vocab.mask > vocab.language:
      raise ValueError(f'the tokenizer is of {vocab.mask - vocab.language} languages, without '
                       f'{self.languages[names.index(max(names))]}: train one with --layout=mbart50')
    language = jnp.array(names)[windows['corpus'] if self.languages else jnp.zeros_like(windows['corpus'])]
    size = (windows['segments'] > 0).sum(-1)
    texts = Text(windows['tokens'], windows['sentences'], windows['words'], size)
    return jax.vmap(lambda *row: self.row(*row, vocab=vocab))(keys, texts, language)

  def row(self, key, text: Text, language, vocab):
    """Makes a row of the batch of one text [T] and its language's id: see `seq2seq.pair`."""
    begin, end = boundaries(vocab)
    before, behind, start = ((begin,), (), end) if vocab.source < 0 else ((), (language,), language)
    if self.reserve:
      text = separated(text, end, self.text(text.tokens.shape[0]))
    else:
      behind = (end, *behind)
    length, size = text.tokens.shape[0], text.size
    room = self.grown(length)
    noised = text.moved(lambda x: jnp.pad(x, (0, room - length)))
    for number, some in enumerate(self.noises):
      noised = some.apply(jax.random.fold_in(key, number), noised, vocab)
    return pair(framed(noised.tokens, noised.size, before, behind, size),
                framed(text.tokens, size, before, behind, size),
                room + self.specials, length + self.specials, start, (*before, end, *behind), vocab.pad)


def separated(text: Text, end: int, room: int) -> Text:
  """Returns the text with the token `end` behind each sentence, a word of its own, cut to `room` tokens of which the
  last is one too. Sentences of `text` are numbered 1, 2, ..."""
  real = places(text)
  at = jnp.arange(room)
  total = jnp.minimum(text.size + jnp.max(jnp.where(real, text.sentences, 0)), room)
  place = jnp.where(real, jnp.arange(real.shape[0]) + text.sentences - 1, room)
  def put(x, elsewhere):
    return jnp.broadcast_to(elsewhere, room).at[place].set(x, mode='drop')
  ends = (at < total) & (~put(real, False) | (at == total - 1))
  # The one behind a token is of its sentence, and a word between its own and the next.
  before = jax.lax.cummax(put(jnp.arange(real.shape[0]), 0))
  return Text(jnp.where(ends, end, put(text.tokens, 0)), text.sentences[before], 2 * text.words[before] + ends, total)


def units(text: Text, words: bool):
  """Returns (where tokens, or words, begin in a text of N tokens [N + 1], its end behind the last; how many there
  are)."""
  size = text.tokens.shape[0]
  first = places(text)
  if words:
    first &= (text.words != jnp.roll(text.words, 1)).at[0].set(True)
  number = jnp.where(first, jnp.cumsum(first) - 1, size + 1)
  return jnp.full(size + 1, text.size).at[number].set(jnp.arange(size), mode='drop'), first.sum()


def framed(tokens, count, before, behind, size):
  """Puts special tokens around `count` of tokens [N] -> (tokens [N and these], how many count); of a text of size 0:
  none."""
  row = jnp.pad(tokens, (len(before), len(behind)))
  for number, some in enumerate(before):
    row = row.at[number].set(some)
  for number, some in enumerate(behind):
    row = row.at[len(before) + count + number].set(some)
  return row, jnp.where(size > 0, len(before) + count + len(behind), 0)


def places(text: Text):
  """Tells where there is text, bool [N]."""
  return jnp.arange(text.tokens.shape[0]) < text.size


def share(rate: float, size):
  """Returns ceil(rate size); rounded first, because 0.3 of 200 is above 60 in float32."""
  return jnp.ceil(jnp.round(size * rate, 4)).astype(jnp.int32)


def masks(key, random: float, shape, vocab):
  """Masks, of which a share is random tokens."""
  keys = jax.random.split(key)
  other = jax.random.randint(keys[0], shape, 0, vocab.size)
  return jnp.where(jax.random.bernoulli(keys[1], random, shape), other, vocab.mask)


def kept(text: Text, keep) -> Text:
  """Moves what is kept close together; keep: bool [N], False behind the text."""
  return text.moved(lambda x: noise.keep_tokens(x, keep, keep.shape[0])[0])._replace(size=keep.sum())


def inserted(key, text: Text, number, random: float, vocab) -> Text:
  """Inserts `number` masks into the text at random places, as many as there is room for; of these a share, rounded up,
  is random tokens. A mask is of the sentence and the word before it."""
  keys = jax.random.split(key, 3)
  at = jnp.arange(text.tokens.shape[0])
  number = jnp.minimum(number, at.shape[0] - text.size)
  new = noise.choose_tokens(keys[0], at < text.size + number, number)
  other = noise.choose_tokens(keys[1], new, share(random, number))
  old = jnp.cumsum(~new) - 1
  tokens = jnp.where(other, jax.random.randint(keys[2], at.shape, 0, vocab.size), vocab.mask)
  text = text.moved(lambda x: x[jnp.maximum(old, 0)])
  return text._replace(tokens=jnp.where(new, tokens, text.tokens), size=text.size + number)


def permuted(text: Text, first, ordering) -> Text:
  """Puts the sentences of a text in another order. first: bool [N], True at the first token of each sentence; ordering
  [N]: which sentence comes first, second, ..."""
  at = jnp.arange(first.shape[0])
  real = places(text)
  which = jnp.where(real, jnp.cumsum(first) - 1, at.shape[0] - 1)
  sizes = jnp.zeros(at.shape, jnp.int32).at[which].add(jnp.where(real, 1, 0))
  starts = jnp.zeros(at.shape, jnp.int32).at[ordering].set(jnp.cumsum(sizes[ordering]) - sizes[ordering])
  offset = at - jax.lax.cummax(jnp.where(first, at, 0))
  place = jnp.where(real, starts[which] + offset, at)
  return text.moved(lambda x: x.at[place].set(x))


def rotated(text: Text, begin) -> Text:
  """Rotates the text: from its token `begin` on, then what was before."""
  at = jnp.arange(text.tokens.shape[0])
  place = jnp.where(places(text), (at + begin) % jnp.maximum(text.size, 1), at)
  return text.moved(lambda x: x[place])
