"""Text-to-text tasks (T5): the encoder reads the inputs of an example, the decoder writes its
target."""
import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError, name_field
from plm_jax.objectives import TextLayout
from plm_jax.objectives.seq2seq import SequenceToSequence, content_weights
from plm_jax.tokenizers.contract import delimiters
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class TextToText(SequenceToSequence):
  """Text-to-text learning (T5: Raffel et al. 2020, section 3) on packed examples.

  Examples (`sources.text_to_text_tasks`) of one sequence do not attend to each other. Inputs and
  targets end with the end token; text that is too long for its row is truncated before it, as
  released. The decoder starts each target with padding (T5). Or all texts begin with the start
  token, and the decoder with the end token (BART).
  """

  limits = intervals(decoder_length='[4, inf)')

  decoder_length: int = 128
  """Length of the decoder's sequences in tokens, special tokens of targets included."""
  specials: Literal[1, 2] = 1
  """Number of special tokens of each text: an end (T5, Marian), or two (BART, mBART)."""

  @property
  def special_tokens(self) -> tuple[str, ...]:
    return ('pad', 'eos') if self.specials == 1 else ('pad', 'mask')

  @property
  def layout(self) -> TextLayout:
    """Windows of examples, with tokens reserved for targets, and special tokens of each text."""
    return TextLayout(target_tokens=(self.decoder_length, self.specials))

  def text_length(self, length: int) -> int:
    return length + self.decoder_length

  def max_predictions(self, length: int) -> int:
    return self.decoder_length

  def corrupt(self, key, windows, vocab):
    """Build the sequences of encoder and decoder.

    Returns:
      tokens, segments, place [batch, length]; decoder_tokens, decoder_segments, decoder_place,
      labels, weights, content [batch, decoder_length].
    """
    del key
    before, after, _ = delimiters(vocab)
    if len(before + after) != self.specials:
      raise ConfigError(f'{name_field("objective.specials")} is {self.specials}, and texts of this '
                        f'tokenizer have {len(before + after)} special tokens around them')
    def build(tokens, segments, sentences):
      return self.build_row(tokens, segments, sentences, vocab)
    return jax.vmap(build)(windows['tokens'], windows['segments'], windows['sentences'])

  def build_row(self, tokens, segments, sentences, vocab):
    """Build one sequence of each side from a window [text] of examples.

    In each document the first sentence is the target, the second is the inputs.
    """
    target_mask = (segments > 0) & (sentences % 2 == 1)
    input_mask = (segments > 0) & ~target_mask
    length = tokens.shape[0] - self.decoder_length
    pad = max(vocab.pad, 0)

    before, after, start = delimiters(vocab)
    inputs, examples, place = pack_texts(
        tokens, segments, input_mask, length, before, after, pad)
    before, after, _ = delimiters(vocab, written=True)
    labels, of, where = pack_texts(
        tokens, segments, target_mask, self.decoder_length, before, after, pad)

    # An example without inputs has nothing to teach.
    known = (of[:, None] == examples).any(1) & (of > 0)
    weights = known.astype(jnp.float32)
    first = (where == 0) & (of > 0)
    shifted = jnp.roll(labels, 1) * (of > 0) + vocab.pad * (of == 0)
    return dict(
        tokens=inputs, segments=examples, place=place,
        decoder_tokens=jnp.where(first, start, shifted), decoder_segments=of, decoder_place=where,
        labels=jnp.where(known, labels, 0), weights=weights,
        content=content_weights(labels, weights, (*before, *after)))


def pack_texts(tokens, segments, chosen, length, before, after, pad):
  """Pack the chosen tokens into a sequence of texts, one per segment, each between special tokens.

  A text that would end after the sequence ends with it.

  Args:
    tokens: [text].
    segments: document of each token, [text].
    chosen: bool [text].
    length: length of the sequence.
    before: special tokens before each text.
    after: special tokens after each text.
    pad: id of padding.

  Returns:
    tokens, segments (0 at padding) and place (from 0 in each text), [length] each.
  """
  specials = len(before) + len(after)
  chosen_segments = jnp.where(chosen, segments, 0)
  first = chosen & (chosen_segments != jax.lax.cummax(jnp.roll(chosen_segments, 1).at[0].set(0)))
  number = jnp.cumsum(first)  # of the text, from 1
  at = jnp.cumsum(chosen) - 1 + (number - 1) * specials + len(before)
  def put(row, place, value, where):
    return row.at[jnp.where(where, place, length)].set(value, mode='drop')
  inside = chosen & (at < length - len(after))
  row = put(jnp.full(length, pad), at, tokens, inside)
  of = put(jnp.zeros(length, segments.dtype), at, segments, inside)
  for n, token in enumerate(before):
    place = at - len(before) + n
    row, of = put(row, place, token, first), put(of, place, segments, first)
  # The last token of a text that is inside: the next chosen one is of another text, or outside.
  texts = jnp.where(inside, number, 0)
  count = jnp.zeros(segments.shape[0] + 1, jnp.int32).at[texts].max(at + 1)
  ends = jnp.where(first, count[number], length)
  for n, token in enumerate(after):
    row, of = put(row, ends + n, token, first), put(of, ends + n, segments, first)
  slot = jnp.arange(length)
  begins = jax.lax.cummax(
      jnp.where((of > 0) & (of != jnp.roll(of, 1).at[0].set(0)), slot, 0))
  return row, of, jnp.where(of > 0, slot - begins, 0)
