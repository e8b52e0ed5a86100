"""A denoising autoencoder: the encoder reads text with noise, the decoder writes the text. BART, and its noises."""
import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.objectives import noise
from plm_jax.objectives.clm import boundaries
from plm_jax.objectives.seq2seq import SequenceToSequence, pair
from plm_jax.tokenizers.languages import LANGUAGES


class Text(NamedTuple):
  """Tokens of running text, with room behind them."""

  tokens: jax.Array  # [N]
  sentences: jax.Array  # [N], the same number for neighbours of one sentence
  size: jax.Array  # how many tokens count


@dataclasses.dataclass(frozen=True)
class TokenMasking(Checked):
  """Lewis et al. 2020, section 2.2, after BERT: random tokens become masks. A share of ceil(rate n) of n."""

  limits = within(rate='[0, 1]', random='[0, 1]')

  rate: float = 0.15
  """share of the tokens"""
  random: float = 0.0
  """probability that a token becomes a random one instead"""

  def grown(self, size: int) -> int:
    return size

  def apply(self, key, text: Text, vocab) -> Text:
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
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    del vocab
    real = places(text)
    return kept(text, real & ~noise.choose_tokens(key, real, share(self.rate, text.size)))


@dataclasses.dataclass(frozen=True)
class TextInfilling(Checked):
  """Lewis et al. 2020, section 2.2: spans of random length become one mask each; one without tokens is a mask more.

  As released: lengths are drawn until they reach ceil(rate n) of n tokens, where the last one is cut; spans begin at
  random tokens and may overlap, so that somewhat fewer are gone; a share of the masks of empty spans, one at least, is
  random tokens where `random` is above 0. A span that would pass the end of the text ends with it.
  """

  limits = within(rate='[0, 1]', mean='(0, 100]', random='[0, 1]')

  rate: float = 0.3
  """share of the tokens that the lengths of spans reach (section 5.1)"""
  mean: float = 3.0
  """of the Poisson distribution of the length of spans, in tokens"""
  random: float = 0.0
  """probability that a span becomes a random token instead of a mask"""

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
    keys = jax.random.split(key, 5)
    room = text.tokens.shape[0]
    number = share(self.rate, text.size)
    most = math.ceil(self.rate * room) + 8  # so many empty ones do not happen
    lengths = noise.draw_lengths(keys[0], self.lengths, (most,)) - 1
    before = jnp.cumsum(lengths) - lengths
    used = before < number
    lengths = jnp.where(used, jnp.minimum(lengths, number - before), 0)
    empty = (used & (lengths == 0)).sum()

    order = jnp.argsort(jnp.where(places(text), jax.random.uniform(keys[1], (room,)), 2.0))
    starts = jnp.where(lengths > 0, order[jnp.cumsum(lengths > 0) - 1], room)
    ends = jnp.minimum(starts + lengths, text.size)
    edges = jnp.zeros(room + 1, jnp.int32).at[starts + 1].add(1, mode='drop').at[
        jnp.where(lengths > 0, ends, room + 1)].add(-1, mode='drop')
    gone = jnp.cumsum(edges)[:room] > 0  # all of a span but its first token
    first = jnp.zeros(room, bool).at[starts].set(True, mode='drop')
    shown = text._replace(tokens=jnp.where(first, masks(keys[2], self.random, (room,), vocab), text.tokens))
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
    return size + math.ceil(round(self.rate * (size + 2), 4))

  def apply(self, key, text: Text, vocab) -> Text:
    number = jnp.where(text.size > 0, share(self.rate, text.size + 2), 0)
    return inserted(key, text, number, self.random, vocab)


@dataclasses.dataclass(frozen=True)
class SentencePermutation(Checked):
  """Lewis et al. 2020, section 2.2: whole sentences in random order."""

  limits = within(rate='[0, 1]')

  rate: float = 1.0
  """share of the sentences that change places with each other, rounded up"""

  def grown(self, size: int) -> int:
    return size

  def apply(self, key, text: Text, vocab) -> Text:
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
    return size

  def apply(self, key, text: Text, vocab) -> Text:
    del vocab
    keys = jax.random.split(key)
    begin = jax.random.randint(keys[0], (), 0, jnp.maximum(text.size, 1))
    return rotated(text, jnp.where(jax.random.bernoulli(keys[1], self.share), begin, 0))


Noise = TokenMasking | TokenDeletion | TextInfilling | TokenInsertion | SentencePermutation | DocumentRotation


@dataclasses.dataclass(frozen=True)
class DenoisingAutoencoder(SequenceToSequence):
  """Lewis et al. 2020, section 2.2: <s> text with noise </s> is read, <s> text </s> is written behind a </s>.

  Noises are applied one after another, sentences first as released; documents of a row are one text. Of a tokenizer
  that names languages, text </s> LANGUAGE is read, and text </s> LANGUAGE is written behind a LANGUAGE (Liu et al.
  2020, section 2.2).
  """

  noises: tuple[Noise, ...] = (SentencePermutation(), TextInfilling())
  """what is done to the text, in this order; those of section 5.1"""
  languages: tuple[str, ...] = ()
  """of each corpus, such as de_DE; none: of all of them that of the tokenizer, where it names one (mBART)"""

  def conflict(self, option):
    if unknown := {*self.languages} - {*LANGUAGES}:
      return (f'{option("languages")}: {", ".join(sorted(unknown))} is no language of mBART, which has '
              f'{", ".join(LANGUAGES)}')
    return None

  @property
  def needs(self) -> tuple[str, ...]:
    return 'pad', 'mask', *['language'] * bool(self.languages)

  def grown(self, size: int) -> int:
    for some in self.noises:
      size = some.grown(size)
    return size

  def window(self, length: int) -> int:
    return max((size for size in range(length - 1) if self.grown(size) <= length - 2), default=0)

  def predictions(self, length: int) -> int:
    return self.window(length) + 2

  def corrupt(self, key, windows, vocab):
    """-> tokens, segments [B, L]; decoder_tokens, decoder_segments, labels, weights, content [B, M]."""
    keys = noise.example_keys(key, windows)
    names = [vocab.language + LANGUAGES.index(name) for name in self.languages] or [vocab.source]
    language = jnp.array(names)[windows['corpus'] if self.languages else jnp.zeros_like(windows['corpus'])]
    return jax.vmap(lambda *row: self.row(*row, vocab=vocab))(
        keys, windows['tokens'], windows['segments'], windows['sentences'], language)

  def row(self, key, tokens, segments, sentences, language, vocab):
    begin, end = boundaries(vocab)
    size, window = (segments > 0).sum(), tokens.shape[0]
    room = self.grown(window)
    more = room - window
    text = Text(jnp.pad(tokens, (0, more)), jnp.pad(sentences, (0, more)), size)
    for number, some in enumerate(self.noises):
      text = some.apply(jax.random.fold_in(key, number), text, vocab)
    around, start = (((begin,), (end,)), end) if vocab.source < 0 else (((), (end, language)), language)
    return pair(framed(text.tokens, text.size, *around, size), framed(tokens, size, *around, size),
                room + 2, window + 2, start, (*around[0], *around[1]), vocab.pad)


def framed(tokens, count, before, behind, size):
  """`count` of tokens [N] with special ones around them -> (tokens [N and these], how many count); of a text of size 0:
  none."""
  row = jnp.pad(tokens, (len(before), len(behind)))
  for number, some in enumerate(before):
    row = row.at[number].set(some)
  for number, some in enumerate(behind):
    row = row.at[len(before) + count + number].set(some)
  return row, jnp.where(size > 0, len(before) + count + len(behind), 0)


def places(text: Text):
  """bool [N]: where there is text."""
  return jnp.arange(text.tokens.shape[0]) < text.size


def share(rate: float, size):
  """ceil(rate size); rounded first, because 0.3 of 200 is above 60 in float32."""
  return jnp.ceil(jnp.round(size * rate, 4)).astype(jnp.int32)


def masks(key, random: float, shape, vocab):
  """Masks, of which a share is random tokens."""
  keys = jax.random.split(key)
  other = jax.random.randint(keys[0], shape, 0, vocab.size)
  return jnp.where(jax.random.bernoulli(keys[1], random, shape), other, vocab.mask)


def kept(text: Text, keep) -> Text:
  """What is kept, close together; keep: bool [N], False behind the text."""
  tokens, size = noise.keep_tokens(text.tokens, keep, keep.shape[0])
  return Text(tokens, noise.keep_tokens(text.sentences, keep, keep.shape[0])[0], size)


def inserted(key, text: Text, number, random: float, vocab) -> Text:
  """The text with `number` masks at random places, as many as there is room for; of these a share, rounded up, is
  random tokens. A mask is of the sentence before it."""
  keys = jax.random.split(key, 3)
  at = jnp.arange(text.tokens.shape[0])
  number = jnp.minimum(number, at.shape[0] - text.size)
  new = noise.choose_tokens(keys[0], at < text.size + number, number)
  other = noise.choose_tokens(keys[1], new, share(random, number))
  old = jnp.cumsum(~new) - 1
  tokens = jnp.where(other, jax.random.randint(keys[2], at.shape, 0, vocab.size), vocab.mask)
  return Text(jnp.where(new, tokens, text.tokens[old]), text.sentences[jnp.maximum(old, 0)], text.size + number)


def permuted(text: Text, first, ordering) -> Text:
  """first: bool [N], True at the first token of each sentence; ordering [N]: which sentence comes first, second, ..."""
  at = jnp.arange(first.shape[0])
  real = places(text)
  which = jnp.where(real, jnp.cumsum(first) - 1, at.shape[0] - 1)
  sizes = jnp.zeros(at.shape, jnp.int32).at[which].add(jnp.where(real, 1, 0))
  starts = jnp.zeros(at.shape, jnp.int32).at[ordering].set(jnp.cumsum(sizes[ordering]) - sizes[ordering])
  offset = at - jax.lax.cummax(jnp.where(first, at, 0))
  place = jnp.where(real, starts[which] + offset, at)
  return text._replace(tokens=text.tokens.at[place].set(text.tokens), sentences=text.sentences.at[place].set(
      text.sentences))


def rotated(text: Text, begin) -> Text:
  """The text from its token `begin` on, then what was before."""
  at = jnp.arange(text.tokens.shape[0])
  place = jnp.where(places(text), (at + begin) % jnp.maximum(text.size, 1), at)
  return text._replace(tokens=text.tokens[place], sentences=text.sentences[place])
