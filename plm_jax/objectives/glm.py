"""Autoregressive blank infilling (GLM): spans of a text are masked, and generated after it."""
from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.heads import NextTokenHead
from plm_jax.objectives import Requirements, TextLayout, corruption
from plm_jax.objectives.mlm import TokenPrediction
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.tokenizers.contract import end_of_text_id
from plm_jax.validation import intervals

MULTIPLE = 8
"""Sequence lengths are a multiple of this number of tokens."""


@dataclasses.dataclass(frozen=True)
class BlankInfilling(TokenPrediction):
  """Autoregressive blank infilling (GLM: Du et al. 2022, sections 2.1 and 2.2).

  Follows the released blocklm_utils.py where the paper leaves a choice open.

  A sequence is part A, the text with a mask in place of each span, then part B, the spans in random
  order, each after a start token and predicted up to an end token. A attends to all of A, B to A
  and to what comes before in B. A token of B has the position of its span's mask, and a second
  position in its span. Short spans have text between them. A fraction of the sequences has whole
  sentences as blanks, or a single blank of at least half of the text. Where that reaches the end
  of the text, the text's end token is part of it, and nothing is predicted after it.

  There are four differences from the released code. The kind of blanks is sampled per sequence, not
  per batch. No span crosses from one document to another. A sequence has at most `max_spans`
  blanks, four standard deviations above what the mask rate takes, because sequences are of one
  length. And there is no [dBLOCK] noise (block_mask_prob), which the paper does not have either.
  """

  predictions = ('blank', 'lm', 'weights'),
  limits = intervals(
      mask_rate='(0, 1)', mean_span_length='(0, 100]', max_span_length='[1, 170]',
      sentences='[0, 1]', documents='[0, 1]', shortest='[0, 1]', inside='[0, 1]')

  pair: Single | FullSentences = Single()
  """How text becomes sequences, with [CLS] in front and an end token after each document."""
  mask_rate: float = 0.15
  """Mask rate: fraction of the sequence in short spans or in sentences, which the last of them may
  exceed."""
  mean_span_length: float = 3.0
  """Mean of the Poisson distribution of the length of short spans, in tokens. No span is empty."""
  max_span_length: int = 39
  """Number of tokens in the longest short span."""
  sentences: float = 0.0
  """Fraction of sequences whose blanks are sentences (gap_sentence_prob)."""
  documents: float = 0.0
  """Fraction of sequences with one long blank. The others have short spans."""
  shortest: float = 0.5
  """Minimum fraction of the text in a long blank (gpt_min_ratio). Its length is uniform from
  there on."""
  inside: float = 0.5
  """Fraction of long blanks that are anywhere in the text. The others reach its end
  (gpt_infill_prob)."""

  def conflict(self, option):
    if self.sentences + self.documents > 1:
      return (f'{option("sentences")} and {option("documents")} are shares of the rows, together 1 '
              f'at most, got {self.sentences} and {self.documents}')
    return None

  @property
  def lengths(self) -> tuple[float, ...]:
    """Probabilities of spans of 1, 2, ... tokens."""
    mean = self.mean_span_length
    weights = [mean ** n / math.factorial(n) for n in range(1, self.max_span_length + 1)]
    return tuple(weight / sum(weights) for weight in weights)

  @property
  def terms(self) -> Mapping[str, float]:
    return {'blank': 1.0}

  @property
  def layout(self) -> TextLayout:
    return TextLayout(self.pair.one_document, separators=self.pair.document_separators)

  @property
  def requirements(self) -> Requirements:
    return Requirements(('DecoderConfig',), ('cls', 'mask', 'sop', 'eop'))

  def text_length(self, length: int) -> int:
    """Return the raw text tokens of a sequence, which is longer because it repeats its blanks."""
    return self.pair.text_length(self.part_a_length(length))

  def part_a_length(self, length: int) -> int:
    """Return the tokens of text, special ones included, from which `length` tokens are made."""
    return max((size for size in range(length) if self.row_length(size) <= length), default=0)

  def row_length(self, size: int) -> int:
    """Return the sequence length for a text of `size` tokens, special ones included."""
    return -(-(size + 2 * self.max_spans(size)) // MULTIPLE) * MULTIPLE

  def max_spans(self, size: int) -> int:
    """Return the maximum number of blanks in a text of `size` tokens."""
    lengths = list(enumerate(self.lengths, 1))
    mean = sum(n * p for n, p in lengths)
    deviation = math.sqrt(sum((n - mean) ** 2 * p for n, p in lengths))
    target = self.masked_tokens(size)
    expected = target / mean
    most = math.ceil(1 + expected + 4 * math.sqrt(expected) * deviation / mean)
    return min(target, most)

  def masked_tokens(self, size: int) -> int:
    """Return the number of tokens to mask in a text of `size`, where the last span does not
    exceed them."""
    return max(1, math.floor(round(self.mask_rate * size, 6)))

  def max_predictions(self, length: int) -> int:
    """Return the maximum number of tokens of blanks per sequence, with an end token for each."""
    size = self.part_a_length(length)
    if self.sentences or self.documents:
      return size + self.max_spans(size)
    return min(size, self.masked_tokens(size) + self.max_span_length) + self.max_spans(size)

  def corrupt(self, key, windows, vocab):
    """Build sequences of part A and part B.

    Returns:
      tokens, segments, place, types, ranks [batch, length]; positions, labels, weights [batch,
      predictions]. place is the position in part A, or that of the span's mask. types are 0 in
      part A and 1, 2, ... in a span, its start token first. ranks are 0 in part A and 1, 2, ...
      in part B.
    """
    keys = corruption.split_example_keys(key, windows, 2)
    # The row builder separates with the end token, and numbers sentences in place of words: 0 is
    # special.
    ended = dataclasses.replace(vocab, sep=end_of_text_id(vocab))
    rows = self.pair.arrange(keys[:, 0], windows | {'words': windows['sentences']}, ended)
    length = self.row_length(rows['tokens'].shape[1])
    most = self.max_predictions(length)

    def build(key, tokens, segments, sentences):
      blanks = self.draw_blanks(key, segments, sentences, vocab)
      return infill(tokens, segments, blanks, length, most, vocab)

    return jax.vmap(build)(keys[:, 1], rows['tokens'], rows['segments'], rows['words'])

  def draw_blanks(self, key, segments, sentences, vocab) -> 'BlankSpans':
    """Sample the blanks of a text.

    Args:
      key: key of the example.
      segments: document of each token, 0 at padding, [text].
      sentences: sentence of each token, 0 at special tokens, [text].
      vocab: the tokenizer's `Vocab`.
    """
    keys = jax.random.split(key, 4)
    most = self.max_spans(segments.shape[0])
    # Rounded first: in float32 0.15 of 200 is above 30.
    number = jnp.floor(jnp.round((segments > 0).sum() * self.mask_rate, 4))
    number = jnp.maximum(number, 1).astype(jnp.int32)
    documents = number_documents(segments, sentences)

    # Each kind of blanks with its fraction of sequences and its mask token.
    lengths = corruption.draw_lengths(keys[1], self.lengths, (most,))
    shares = [1 - self.sentences - self.documents]
    masks = [vocab.mask]
    spans = [draw_short_spans(keys[0], documents, number, lengths)]
    if self.sentences:
      shares.append(self.sentences)
      masks.append(vocab.mask if vocab.smask < 0 else vocab.smask)
      spans.append(draw_sentences(keys[0], sentences, number, most))
    if self.documents:
      shares.append(self.documents)
      masks.append(vocab.mask if vocab.gmask < 0 else vocab.gmask)
      spans.append(
          draw_long_span(keys[0], documents, segments, self.shortest, self.inside, most))
    kind = jax.random.categorical(keys[2], jnp.log(jnp.array(shares)))
    starts = jnp.stack([starts for starts, _ in spans])[kind]
    sizes = jnp.stack([sizes for _, sizes in spans])[kind]
    order = jax.random.permutation(keys[3], most)
    return BlankSpans(starts[order], sizes[order], jnp.array(masks)[kind])

  def mask_tokens(self, model):
    """Return the masks of a span, of a sentence, and of the rest of a text."""
    del model
    return '[MASK]', '[sMASK]', '[gMASK]'

  def heads(self, model) -> dict[str, nn.Module]:
    head = NextTokenHead(
        model.block, model.vocab, model.tied, model.logit_factor, cap=model.logit_cap)
    return {'lm': head}


class BlankSpans(NamedTuple):
  """Spans of a text that are masked, in the order in which they are generated."""

  starts: Any  # [spans]
  sizes: Any  # [spans] in tokens, 0: none
  mask: Any  # id of the mask token


def infill(tokens, segments, blanks: BlankSpans, length: int, most: int, vocab):
  """Write the blanks of a text after it.

  Args:
    tokens: [text].
    segments: [text].
    blanks: the spans.
    length: length of the sequence.
    most: number of predictions.
    vocab: the tokenizer's `Vocab`.

  Returns:
    the row [length] and its predictions [predictions], as `BlankInfilling.corrupt` returns them.
  """
  starts, sizes, mask = blanks
  size, real = tokens.shape[0], segments > 0
  at = jnp.arange(size)

  # The span of each token: the one that began last, where the token is inside it.
  span = jnp.full(size, -1).at[jnp.where(sizes > 0, starts, size)].set(
      jnp.arange(starts.shape[0]), mode='drop')
  first = span >= 0
  begun = jax.lax.cummax(jnp.where(first, at, -1))
  span = jnp.where(begun >= 0, span[begun], -1)
  offset = at - begun
  inside = (span >= 0) & (offset < sizes[span])

  # Places in part A, where a span is at its mask, and in part B.
  kept = real & (first | ~inside)
  place = jnp.cumsum(kept) - 1
  end = kept.sum()  # of part A
  taken = jnp.where(sizes > 0, sizes + 1, 0)
  begins = end + jnp.cumsum(taken) - taken  # of the spans in part B

  # Part A, the spans' tokens, their start tokens: where each goes, and what is there.
  def entries(part_a, inner, start):
    return jnp.concatenate([
        jnp.broadcast_to(part_a, size), jnp.broadcast_to(inner, size),
        jnp.broadcast_to(start, starts.shape)])
  slots = entries(
      jnp.where(kept, place, length), jnp.where(inside, begins[span] + 1 + offset, length),
      jnp.where(sizes > 0, begins, length))
  def put(part_a, inner, start, elsewhere=0):
    row = jnp.full(length, elsewhere)
    return row.at[slots].set(entries(part_a, inner, start), mode='drop')
  row = put(jnp.where(first, mask, tokens), tokens, vocab.sop, max(vocab.pad, 0))
  types = put(0, offset + 2, 1)
  slot = jnp.arange(length)
  in_b = (slot >= end) & (slot < end + taken.sum())

  # Labels: a span continues where the next token has the next number in it, else it ends.
  continues = jnp.roll(types, -1) == types + 1
  labels = jnp.where(continues, jnp.roll(row, -1), vocab.eop)
  ended = (types > 1) & (row == end_of_text_id(vocab))
  predicted_slots = end + jnp.arange(most)
  positions = jnp.minimum(predicted_slots, length - 1)
  predicted = (predicted_slots < length) & (in_b & ~ended)[positions]
  return dict(
      tokens=row, segments=put(segments, segments, segments[starts]), types=types,
      place=put(place, place, place[starts]), ranks=jnp.where(in_b, slot - end + 1, 0),
      positions=positions, labels=jnp.where(predicted, labels[positions], 0),
      weights=predicted.astype(jnp.float32))


def draw_short_spans(key, documents, number, lengths):
  """Sample positions of short spans anywhere in the text, with at least one token between them.

  Args:
    key: random key.
    documents: document of each token, 0 where nothing may be masked, [text].
    number: tokens to reach.
    lengths: lengths of spans, of which as many are used as it takes, [spans].

  Returns:
    (starts, sizes) [spans].
  """
  place_key, order_key = jax.random.split(key)
  most, at = lengths.shape[0], jnp.arange(lengths.shape[0])
  places, real = corruption.select_positions(documents > 0, documents.shape[0])
  text = real.sum().astype(jnp.int32)
  lengths = jnp.minimum(lengths, text)
  used = (jnp.cumsum(lengths) - lengths < number) & (jnp.cumsum(lengths) + at <= text)
  # Shuffled: the last span is more often than not the longest, because it exceeds the number.
  order = jnp.argsort(jnp.where(used, jax.random.uniform(order_key, (most,)), 2.0))
  sizes = jnp.where(used, lengths, 0)[order]
  count = used.sum()
  room = text - sizes.sum() - count + 1
  gaps = jax.random.randint(place_key, (most,), 0, room + 1)
  gaps = jnp.sort(jnp.where(at < count, gaps, documents.shape[0]))
  offsets = gaps + jnp.cumsum(sizes + 1) - sizes - 1
  starts = places[jnp.minimum(offsets, documents.shape[0] - 1)]
  ends = document_ends(documents)[starts]
  sizes = jnp.where(at < count, jnp.minimum(sizes, ends - starts), 0)
  return jnp.where(at < count, starts, 0), sizes


def draw_sentences(key, sentences, number, most):
  """Sample random sentences that reach `number` tokens.

  Args:
    key: random key.
    sentences: sentence of each token, 0 where nothing may be masked, [text].
    number: tokens to reach.
    most: maximum number of sentences.

  Returns:
    (starts, sizes) [spans].
  """
  size = sentences.shape[0]
  counts = jnp.zeros(size + 1, jnp.int32).at[sentences].add(1).at[0].set(0)
  first = jnp.full(size + 1, size).at[sentences].min(jnp.arange(size))
  scores = jnp.where(counts > 0, jax.random.uniform(key, counts.shape), 2.0)
  order = jnp.argsort(scores)[:most]
  counts = counts[order]
  used = (counts > 0) & (jnp.cumsum(counts) - counts < number)
  return jnp.where(used, first[order], 0), jnp.where(used, counts, 0)


def draw_long_span(key, documents, segments, shortest, inside, most):
  """Sample one long blank in the document of a random token.

  Args:
    key: random key.
    documents: document of each token, 0 at special tokens, [text].
    segments: [text].
    shortest: minimum fraction of the document.
    inside: probability that it is anywhere; else it reaches the end of the document.
    most: size of the result.

  Returns:
    (starts, sizes) [spans], of which the first is the blank.
  """
  keys = jax.random.split(key, 4)
  places, real = corruption.select_positions(documents > 0, documents.shape[0])
  text = real.sum().astype(jnp.int32)
  token = places[jax.random.randint(keys[0], (), 0, jnp.maximum(text, 1))]
  begin = jnp.argmax(documents == documents[token])
  end = document_ends(documents)[token]
  share = jax.random.uniform(keys[1], minval=shortest)
  size = jnp.clip(jnp.round(share * (end - begin)).astype(jnp.int32), 1, end - begin)
  anywhere = jax.random.bernoulli(keys[2], inside)
  random_start = jax.random.randint(keys[3], (), begin, end - size + 1)
  start = jnp.where(anywhere, random_start, end - size)
  # A blank at the end of the text includes the end token.
  after = jnp.minimum(end, documents.shape[0] - 1)
  has_end = (end < documents.shape[0]) & (documents[after] == 0) & (segments[after] > 0)
  more = ~anywhere & has_end
  only = (jnp.arange(most) == 0) & (text > 0)
  return jnp.where(only, start, 0), jnp.where(only, size + more, 0)


def number_documents(segments, sentences):
  """Number the documents of a text 1, 2, ... at each token, 0 at special tokens, [text].

  Args:
    segments: [text].
    sentences: 0 at special tokens, [text].
  """
  text = sentences > 0
  before = jnp.roll(text, 1).at[0].set(False) & (segments == jnp.roll(segments, 1))
  return jnp.where(text, jnp.cumsum(text & ~before), 0)


def document_ends(documents):
  """Return for each token the position after the last token of its document, [text]."""
  at = jnp.arange(documents.shape[0])
  last = documents != jnp.roll(documents, -1).at[-1].set(0)
  return jax.lax.cummin(jnp.where(last, at + 1, documents.shape[0]), reverse=True)


