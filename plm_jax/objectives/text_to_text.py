"""Tasks as text to text: the inputs of an example are read, and its target is written."""
import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.objectives.seq2seq import SequenceToSequence, content, delimiters


@dataclasses.dataclass(frozen=True)
class TextToText(SequenceToSequence):
  """Raffel et al. 2020, section 3: rows of examples (`data.examples`) that do not see each other.

  Inputs and targets end with the end token, before which what is too long for its row is cut, as released. The decoder
  begins each target with padding (T5); or all begin with the start token, and the decoder with the end (BART).
  """

  limits = within(decoder_length='[4, inf)')

  decoder_length: int = 128
  """tokens of the decoder's rows, special tokens of targets included"""
  specials: Literal[1, 2] = 1
  """special tokens of each text: an end (T5, whose vocabulary has sentinels), or two (BART, mBART)"""

  @property
  def required_specials(self) -> tuple[str, ...]:
    """The tokens of T5's rows, or of BART's where three stand around texts."""
    return ('pad', 'eos', 'sentinel') if self.specials == 1 else ('pad', 'mask')

  @property
  def target_budget(self) -> tuple[int, int]:
    """Tokens of a window that are kept for targets, and special ones of each text."""
    return self.decoder_length, self.specials

  def window(self, length: int) -> int:
    """Returns the tokens of both rows together."""
    return length + self.decoder_length

  def predictions(self, length: int) -> int:
    """Returns the length of the decoder's row."""
    return self.decoder_length

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, place [B, L]; decoder_tokens, decoder_segments, decoder_place, labels, weights, content
    [B, M]."""
    del key
    return jax.vmap(lambda *row: self.row(*row, vocab=vocab))(
        windows['tokens'], windows['segments'], windows['sentences'])

  def row(self, tokens, segments, sentences, vocab):
    """Makes one row of each side of a window [T] of examples, of which the first sentence is the target, the second the
    inputs."""
    _, _, start = delimiters(vocab)
    # Of each document the first sentence is the target, the second are the inputs.
    written = (segments > 0) & (sentences % 2 == 1)
    read = (segments > 0) & ~written
    length = tokens.shape[0] - self.decoder_length
    def side(chosen, size):
      before, behind, _ = delimiters(vocab, chosen is written)
      return texts(tokens, segments, chosen, size, before, behind, max(vocab.pad, 0))
    inputs, examples, place = side(read, length)
    labels, of, where = side(written, self.decoder_length)
    first = (where == 0) & (of > 0)
    # An example of which nothing is read has nothing to teach.
    known = (of[:, None] == examples).any(1) & (of > 0)
    weights = known.astype(jnp.float32)
    before, behind, _ = delimiters(vocab, written=True)
    return dict(
        tokens=inputs, segments=examples, place=place,
        decoder_tokens=jnp.where(first, start, jnp.roll(labels, 1) * (of > 0) + vocab.pad * (of == 0)),
        decoder_segments=of, decoder_place=where, labels=jnp.where(known, labels, 0),
        weights=weights, content=content(labels, weights, (*before, *behind)))


def texts(tokens, segments, chosen, length, before, behind, pad):
  """Puts the chosen tokens of a window [W] as a row [length] of texts, one a segment, each between special tokens ->
  tokens, segments (0 padding), place (from 0 in each text). A text that ends behind the row ends with the row."""
  specials = len(before) + len(behind)
  chosen_segments = jnp.where(chosen, segments, 0)
  first = chosen & (chosen_segments != jax.lax.cummax(jnp.roll(chosen_segments, 1).at[0].set(0)))
  number = jnp.cumsum(first)  # of the text, from 1
  at = jnp.cumsum(chosen) - 1 + (number - 1) * specials + len(before)
  def put(row, place, value, where):
    return row.at[jnp.where(where, place, length)].set(value, mode='drop')
  inside = chosen & (at < length - len(behind))
  row = put(jnp.full(length, pad), at, tokens, inside)
  of = put(jnp.zeros(length, segments.dtype), at, segments, inside)
  for n, token in enumerate(before):
    row, of = (put(x, at - len(before) + n, value, first) for x, value in ((row, token), (of, segments)))
  # The last token of a text that is inside: the next chosen one is of another text, or outside.
  count = jnp.zeros(segments.shape[0] + 1, jnp.int32).at[jnp.where(inside, number, 0)].max(at + 1)
  ends = jnp.where(first, count[number], length)
  for n, token in enumerate(behind):
    row, of = (put(x, ends + n, value, first) for x, value in ((row, token), (of, segments)))
  slot = jnp.arange(length)
  begins = jax.lax.cummax(jnp.where((of > 0) & (of != jnp.roll(of, 1).at[0].set(0)), slot, 0))
  return row, of, jnp.where(of > 0, slot - begins, 0)
