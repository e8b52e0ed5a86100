"""Edit running text in a buffer of static shape: keep, insert, permute and rotate its tokens."""
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.objectives import corruption


class TextBuffer(NamedTuple):
  """Tokens of running text in a buffer with room after them; arrays are [text]."""

  tokens: jax.Array
  sentences: jax.Array  # the same number for neighbors of one sentence
  words: jax.Array  # the same number for neighbors of one word
  size: jax.Array  # how many tokens count
  chinese: jax.Array | None = None  # 1 for a token of Chinese characters alone; None: not known

  def map_tokens(self, move: Callable[[jax.Array], jax.Array]) -> 'TextBuffer':
    """Apply `move` to all arrays of tokens."""
    chinese = None if self.chinese is None else move(self.chinese)
    return TextBuffer(
        move(self.tokens), move(self.sentences), move(self.words), self.size, chinese)


def append_separators(text: TextBuffer, end: int, room: int) -> TextBuffer:
  """Append the token `end` to each sentence, as a word of its own.

  The result is truncated to `room` tokens, of which the last is a separator too. Sentences of
  `text` are numbered 1, 2, ...
  """
  real = text_mask(text)
  at = jnp.arange(room)
  sentences = jnp.max(jnp.where(real, text.sentences, 0))
  total = jnp.minimum(text.size + sentences, room)
  place = jnp.where(real, jnp.arange(real.shape[0]) + text.sentences - 1, room)
  def put(x, elsewhere):
    return jnp.broadcast_to(elsewhere, room).at[place].set(x, mode='drop')
  ends = (at < total) & (~put(real, False) | (at == total - 1))
  # A separator belongs to the sentence before it, and is a word between its own and the next.
  before = jax.lax.cummax(put(jnp.arange(real.shape[0]), 0))
  chinese = jnp.where(ends, 0, put(text.chinese, 0)) if text.chinese is not None else None
  return TextBuffer(
      jnp.where(ends, end, put(text.tokens, 0)), text.sentences[before],
      2 * text.words[before] + ends, total, chinese)


def unit_starts(text: TextBuffer, words: bool):
  """Find where tokens, or words, begin in a text.

  Returns:
    (first token of each unit [text + 1], the end of the text after the last; number of units).
  """
  size = text.tokens.shape[0]
  first = text_mask(text)
  if words:
    first &= (text.words != jnp.roll(text.words, 1)).at[0].set(True)
  number = jnp.where(first, jnp.cumsum(first) - 1, size + 1)
  starts = jnp.full(size + 1, text.size).at[number].set(jnp.arange(size), mode='drop')
  return starts, first.sum()


def add_special_tokens(tokens, count, before, after, size):
  """Put special tokens around a text.

  Args:
    tokens: [text].
    count: how many tokens count.
    before: special tokens before the text.
    after: special tokens after it.
    size: size of the text without noise; 0: an empty row, without special tokens.

  Returns:
    (tokens [text + special tokens], how many count).
  """
  row = jnp.pad(tokens, (len(before), len(after)))
  for number, token in enumerate(before):
    row = row.at[number].set(token)
  for number, token in enumerate(after):
    row = row.at[len(before) + count + number].set(token)
  return row, jnp.where(size > 0, len(before) + count + len(after), 0)


def text_mask(text: TextBuffer):
  """Return True where the buffer has text, bool [text]."""
  return jnp.arange(text.tokens.shape[0]) < text.size


def ceil_share(rate: float, size):
  """Compute ceil(rate size), rounded first because 0.3 of 200 is above 60 in float32."""
  return jnp.ceil(jnp.round(size * rate, 4)).astype(jnp.int32)


def draw_masks(key, random: float, shape, vocab):
  """Return mask tokens, of which the fraction `random` is random tokens instead."""
  keys = jax.random.split(key)
  other = jax.random.randint(keys[0], shape, 0, vocab.size)
  return jnp.where(jax.random.bernoulli(keys[1], random, shape), other, vocab.mask)


def keep_where(text: TextBuffer, keep) -> TextBuffer:
  """Move the kept tokens close together; keep: bool [text], False after the text."""
  moved = text.map_tokens(lambda x: corruption.keep_tokens(x, keep, keep.shape[0])[0])
  return moved._replace(size=keep.sum())


def insert_masks(key, text: TextBuffer, number, random: float, vocab) -> TextBuffer:
  """Insert `number` masks at random places, as many as there is room for.

  The fraction `random` of them, rounded up, is random tokens. A mask belongs to the sentence and
  the word before it.
  """
  keys = jax.random.split(key, 3)
  at = jnp.arange(text.tokens.shape[0])
  number = jnp.minimum(number, at.shape[0] - text.size)
  new = corruption.choose_tokens(keys[0], at < text.size + number, number)
  other = corruption.choose_tokens(keys[1], new, ceil_share(random, number))
  old = jnp.cumsum(~new) - 1
  random_ids = jax.random.randint(keys[2], at.shape, 0, vocab.size)
  tokens = jnp.where(other, random_ids, vocab.mask)
  text = text.map_tokens(lambda x: x[jnp.maximum(old, 0)])
  return text._replace(tokens=jnp.where(new, tokens, text.tokens), size=text.size + number)


def permute_sentences(text: TextBuffer, first, ordering) -> TextBuffer:
  """Put the sentences of a text in another order.

  Args:
    text: the text.
    first: True at the first token of each sentence, bool [text].
    ordering: which sentence comes first, second, ..., [text].
  """
  at = jnp.arange(first.shape[0])
  real = text_mask(text)
  which = jnp.where(real, jnp.cumsum(first) - 1, at.shape[0] - 1)
  sizes = jnp.zeros(at.shape, jnp.int32).at[which].add(jnp.where(real, 1, 0))
  new_starts = jnp.cumsum(sizes[ordering]) - sizes[ordering]
  starts = jnp.zeros(at.shape, jnp.int32).at[ordering].set(new_starts)
  offset = at - jax.lax.cummax(jnp.where(first, at, 0))
  place = jnp.where(real, starts[which] + offset, at)
  return text.map_tokens(lambda x: x.at[place].set(x))


def rotate_text(text: TextBuffer, begin) -> TextBuffer:
  """Rotate a text to start at its token `begin`."""
  at = jnp.arange(text.tokens.shape[0])
  place = jnp.where(text_mask(text), (at + begin) % jnp.maximum(text.size, 1), at)
  return text.map_tokens(lambda x: x[place])
