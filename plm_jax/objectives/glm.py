"""Autoregressive blank infilling: spans of the text are blanks, and are written out behind it one after another."""
from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.heads import NextTokens
from plm_jax.objectives import Objective, noise
from plm_jax.objectives.mlm import classification
from plm_jax.objectives.pairs import FullSentences, Single

MULTIPLE = 8  # rows are of a multiple of so many tokens


@dataclasses.dataclass(frozen=True)
class BlankInfilling(Objective):
  """Du et al. 2022, sections 2.1 and 2.2, by the released blocklm_utils.py where the paper leaves it open.

  A row is part A, the text with a mask in place of each span, then part B, the spans in random order, each behind a
  start token and predicted up to an end token. A sees all of A, B sees A and what comes before it in B. A token of B
  stands at the place of its span's mask, and has a number in its span beside it. Spans of a few tokens are parted by
  text. A share of the rows has whole sentences as its blanks, or a single one of at least half of the text; where that
  reaches the end of the text, the text's end token is part of it, and nothing is predicted behind.

  Differs from the released code in that the kind is drawn for each row, not for each batch, in that no span crosses
  from one document to another, and in that a row has at most `spans` blanks, four standard deviations above what a
  share of `rate` takes: rows are of one length. It has no [dBLOCK] noise (block_mask_prob), which the paper does not.
  """

  limits = within(
      rate='(0, 1)', mean='(0, 100]', longest='[1, 170]', sentences='[0, 1]', documents='[0, 1]', shortest='[0, 1]',
      inside='[0, 1]')

  pair: Single | FullSentences = Single()
  """how text becomes rows, with [CLS] in front and an end token behind each document"""
  rate: float = 0.15
  """share of the row in short spans or in sentences, which the last of them may exceed"""
  mean: float = 3.0
  """of the Poisson distribution of the length of short spans, in tokens; no span is empty"""
  longest: int = 39
  """tokens in the longest short span"""
  sentences: float = 0.0
  """share of rows whose blanks are sentences (gap_sentence_prob)"""
  documents: float = 0.0
  """share of rows with one long blank; the others have short spans"""
  shortest: float = 0.5
  """share of the text that a long blank has at least (gpt_min_ratio); its length is uniform from there on"""
  inside: float = 0.5
  """share of long blanks that lie anywhere in the text; the others reach its end (gpt_infill_prob)"""

  def conflict(self, option):
    """Says that the shares of rows exceed 1 together."""
    if self.sentences + self.documents > 1:
      return (f'{option("sentences")} and {option("documents")} are shares of the rows, together 1 at most, got '
              f'{self.sentences} and {self.documents}')
    return None

  @property
  def lengths(self) -> tuple[float, ...]:
    """Probabilities of spans of 1, 2, ... tokens."""
    weights = [self.mean ** n / math.factorial(n) for n in range(1, self.longest + 1)]
    return tuple(weight / sum(weights) for weight in weights)

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy of the blanks' tokens."""
    return {'blank': 1.0}

  @property
  def required_specials(self) -> tuple[str, ...]:
    """The start of a row, the mask of a blank, and what begins and ends what fills it."""
    return 'cls', 'mask', 'sop', 'eop'

  @property
  def one_document(self) -> bool:
    """Whether the way to make rows takes sentences of one document."""
    return self.pair.one_document

  def window(self, length: int) -> int:
    """Returns the tokens of raw text of a row, which is longer by what its blanks repeat."""
    return self.pair.window(self.text(length))

  def text(self, length: int) -> int:
    """Returns the tokens of text, special ones included, that rows of `length` tokens are made of."""
    return max((size for size in range(length) if self.row_length(size) <= length), default=0)

  def row_length(self, size: int) -> int:
    """Returns the tokens of a row for a text of `size` tokens, special ones included."""
    return -(-(size + 2 * self.spans(size)) // MULTIPLE) * MULTIPLE

  def spans(self, size: int) -> int:
    """Returns the most blanks in a text of `size` tokens."""
    mean = sum(n * p for n, p in enumerate(self.lengths, 1))
    deviation = math.sqrt(sum((n - mean) ** 2 * p for n, p in enumerate(self.lengths, 1)))
    target = self.target(size)
    return min(target, math.ceil(1 + target / mean + 4 * math.sqrt(target / mean) * deviation / mean))

  def target(self, size: int) -> int:
    """Returns the tokens to blank out of `size`, where the last span does not exceed them."""
    return max(1, math.floor(round(self.rate * size, 6)))

  def predictions(self, length: int) -> int:
    """Returns the most tokens of blanks in a row, with an end for each."""
    size = self.text(length)
    if self.sentences or self.documents:
      return size + self.spans(size)
    return min(size, self.target(size) + self.longest) + self.spans(size)

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, place, types, ranks [B, L]; positions, labels, weights [B, M].

    place is the position in part A, or that of the span's mask; types are 0 in part A and 1, 2, ... in a span, its
    start token first; ranks are 0 in part A and 1, 2, ... in part B.
    """
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(noise.example_keys(key, windows))
    ended = dataclasses.replace(vocab, sep=end_of_text(vocab))
    # Sentences in place of words: what is 0 is special.
    rows = self.pair.arrange(keys[:, 0], windows | {'words': windows['sentences']}, ended)
    length = self.row_length(rows['tokens'].shape[1])
    most = self.predictions(length)

    def row(key, tokens, segments, sentences):
      return infill(tokens, segments, self.draw(key, segments, sentences, vocab), length, most, vocab)

    return jax.vmap(row)(keys[:, 1], rows['tokens'], rows['segments'], rows['words'])

  def draw(self, key, segments, sentences, vocab) -> 'Blanks':
    """Draws what is blank of a text: segments and sentences [T], sentences 0 at special tokens."""
    keys = jax.random.split(key, 4)
    most = self.spans(segments.shape[0])
    # Rounded first: in float32 0.15 of 200 is above 30.
    number = jnp.maximum(jnp.floor(jnp.round((segments > 0).sum() * self.rate, 4)), 1).astype(jnp.int32)
    documents = documents_of(segments, sentences)
    kinds = [(1 - self.sentences - self.documents, vocab.mask,
              short_spans(keys[0], documents, number, noise.draw_lengths(keys[1], self.lengths, (most,))))]
    if self.sentences:
      kinds.append((self.sentences, vocab.mask if vocab.smask < 0 else vocab.smask,
                    whole_sentences(keys[0], sentences, number, most)))
    if self.documents:
      kinds.append((self.documents, vocab.mask if vocab.gmask < 0 else vocab.gmask,
                    long_span(keys[0], documents, segments, self.shortest, self.inside, most)))
    shares, masks, spans = zip(*kinds, strict=True)
    kind = jax.random.categorical(keys[2], jnp.log(jnp.array(shares)))
    starts, sizes = (jnp.stack(some)[kind] for some in zip(*spans, strict=True))
    order = jax.random.permutation(keys[3], most)
    return Blanks(starts[order], sizes[order], jnp.array(masks)[kind])

  def blanks(self, model):
    """Returns the masks of a word, of a sentence, and of the rest of a text."""
    del model
    return '[MASK]', '[sMASK]', '[gMASK]'

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the head of the next token, `lm`."""
    return {'lm': NextTokens(model.block, model.vocab, model.tied, model.logit_factor)}

  def loss(self, outputs, batch):
    """Returns blank and blank_accuracy."""
    return classification('blank', outputs['lm'], batch['labels'], batch['weights'])

  def answers(self, outputs, batch):
    """Returns the labels of the blanks."""
    del outputs
    return {'blank': (batch['labels'], batch['weights'])}


class Blanks(NamedTuple):
  """Spans of a text that are hidden, in the order in which they are written."""

  starts: Any  # [S]
  sizes: Any  # [S] in tokens, 0: none
  mask: Any  # id of the token that stands for each


def infill(tokens, segments, blanks: Blanks, length: int, most: int, vocab):
  """Writes the blanks of a text, tokens and segments [T], out behind it.

  Returns the row [L] of `length` and its predictions [M], `most` of them, as `corrupt` gives them.
  """
  starts, sizes, mask = blanks
  size, real = tokens.shape[0], segments > 0
  at = jnp.arange(size)
  span = jnp.full(size, -1).at[jnp.where(sizes > 0, starts, size)].set(jnp.arange(starts.shape[0]), mode='drop')
  first = span >= 0
  # The blank that began last, wherever that is.
  begun = jax.lax.cummax(jnp.where(first, at, -1))
  span = jnp.where(begun >= 0, span[begun], -1)
  offset = at - begun
  inside = (span >= 0) & (offset < sizes[span])
  kept = real & (first | ~inside)
  place = jnp.cumsum(kept) - 1  # a span is where its mask is
  end = kept.sum()  # of part A
  taken = jnp.where(sizes > 0, sizes + 1, 0)
  begins = end + jnp.cumsum(taken) - taken  # of the spans in part B

  # Part A, the spans' tokens, their start tokens: where each goes, and what is there.
  def entries(a, inner, start):
    return jnp.concatenate([jnp.broadcast_to(x, size) for x in (a, inner)] + [jnp.broadcast_to(start, starts.shape)])
  slots = entries(jnp.where(kept, place, length), jnp.where(inside, begins[span] + 1 + offset, length),
                  jnp.where(sizes > 0, begins, length))
  def put(a, inner, start, elsewhere=0):
    return jnp.full(length, elsewhere).at[slots].set(entries(a, inner, start), mode='drop')
  row = put(jnp.where(first, mask, tokens), tokens, vocab.sop, max(vocab.pad, 0))
  types = put(0, offset + 2, 1)
  slot = jnp.arange(length)
  inner = (slot >= end) & (slot < end + taken.sum())

  # A span goes on where the next token has the next number in it.
  goes_on = jnp.roll(types, -1) == types + 1
  labels = jnp.where(goes_on, jnp.roll(row, -1), vocab.eop)
  ended = (types > 1) & (row == end_of_text(vocab))
  positions = jnp.minimum(end + jnp.arange(most), length - 1)
  predicted = (end + jnp.arange(most) < length) & (inner & ~ended)[positions]
  return dict(
      tokens=row, segments=put(segments, segments, segments[starts]), types=types,
      place=put(place, place, place[starts]), ranks=jnp.where(inner, slot - end + 1, 0),
      positions=positions, labels=jnp.where(predicted, labels[positions], 0), weights=predicted.astype(jnp.float32))


def short_spans(key, documents, number, lengths):
  """Draws, of documents [T], 0 where nothing may be blank, starts, sizes [S] of as many of the spans of `lengths` [S]
  as it takes to reach `number` tokens, parted by one token at least, that lie anywhere."""
  place_key, order_key = jax.random.split(key)
  most, at = lengths.shape[0], jnp.arange(lengths.shape[0])
  places, real = noise.positions_of(documents > 0, documents.shape[0])
  text = real.sum().astype(jnp.int32)
  lengths = jnp.minimum(lengths, text)
  used = (jnp.cumsum(lengths) - lengths < number) & (jnp.cumsum(lengths) + at <= text)
  # The last one is longer than the others: that which exceeds the number is, more often than not.
  order = jnp.argsort(jnp.where(used, jax.random.uniform(order_key, (most,)), 2.0))
  sizes = jnp.where(used, lengths, 0)[order]
  count = used.sum()
  room = text - sizes.sum() - count + 1
  gaps = jax.random.randint(place_key, (most,), 0, room + 1)
  gaps = jnp.sort(jnp.where(at < count, gaps, documents.shape[0]))
  starts = places[jnp.minimum(gaps + jnp.cumsum(sizes + 1) - sizes - 1, documents.shape[0] - 1)]
  ends = ends_of(documents)[starts]
  return jnp.where(at < count, starts, 0), jnp.where(at < count, jnp.minimum(sizes, ends - starts), 0)


def whole_sentences(key, sentences, number, most):
  """Draws, of sentences [T], 0 where nothing may be blank, starts, sizes [S] of random ones that reach `number`
  tokens."""
  size = sentences.shape[0]
  counts = jnp.zeros(size + 1, jnp.int32).at[sentences].add(1).at[0].set(0)
  first = jnp.full(size + 1, size).at[sentences].min(jnp.arange(size))
  order = jnp.argsort(jnp.where(counts > 0, jax.random.uniform(key, counts.shape), 2.0))[:most]
  counts = counts[order]
  used = (counts > 0) & (jnp.cumsum(counts) - counts < number)
  return jnp.where(used, first[order], 0), jnp.where(used, counts, 0)


def long_span(key, documents, segments, shortest, inside, most):
  """Draws, of documents [T], 0 at special tokens, starts, sizes [S] of one blank, in the document of a random token."""
  keys = jax.random.split(key, 4)
  places, real = noise.positions_of(documents > 0, documents.shape[0])
  text = real.sum().astype(jnp.int32)
  token = places[jax.random.randint(keys[0], (), 0, jnp.maximum(text, 1))]
  begin = jnp.argmax(documents == documents[token])
  end = ends_of(documents)[token]
  share = jax.random.uniform(keys[1], minval=shortest)
  size = jnp.clip(jnp.round(share * (end - begin)).astype(jnp.int32), 1, end - begin)
  anywhere = jax.random.bernoulli(keys[2], inside)
  start = jnp.where(anywhere, jax.random.randint(keys[3], (), begin, end - size + 1), end - size)
  # The end of the text goes with it.
  after = jnp.minimum(end, documents.shape[0] - 1)
  more = ~anywhere & (end < documents.shape[0]) & (documents[after] == 0) & (segments[after] > 0)
  only = (jnp.arange(most) == 0) & (text > 0)
  return jnp.where(only, start, 0), jnp.where(only, size + more, 0)


def documents_of(segments, sentences):
  """Numbers the tokens [T] of each document 1, 2, ..., 0 at special tokens, where `sentences` has 0."""
  text = sentences > 0
  before = jnp.roll(text, 1).at[0].set(False) & (segments == jnp.roll(segments, 1))
  return jnp.where(text, jnp.cumsum(text & ~before), 0)


def ends_of(documents):
  """Returns of each token where its document ends: the place behind its last token [T]."""
  at = jnp.arange(documents.shape[0])
  last = documents != jnp.roll(documents, -1).at[-1].set(0)
  return jax.lax.cummin(jnp.where(last, at + 1, documents.shape[0]), reverse=True)


def end_of_text(vocab) -> int:
  """Returns the id that ends a text: padding in BERT's vocabulary, which has no token for it; so do released models."""
  return vocab.eos if vocab.eos >= 0 else vocab.pad
