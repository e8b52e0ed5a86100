"""Denoising autoencoder (BART, mBART): the encoder reads text with noise, the decoder writes the
text."""
import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.objectives import corruption
from plm_jax.objectives.seq2seq import SequenceToSequence, build_pair_row
from plm_jax.objectives.text_buffer import (
  TextBuffer,
  add_special_tokens,
  append_separators,
  ceil_share,
  draw_masks,
  insert_masks,
  keep_where,
  permute_sentences,
  rotate_text,
  text_mask,
  unit_starts,
)
from plm_jax.tokenizers.contract import boundary_ids
from plm_jax.tokenizers.fairseq_sentencepiece import MBART50_LANGUAGES
from plm_jax.validation import ValidatedConfig, intervals


class TextNoise(ValidatedConfig):
  """Base class of noises; `apply` maps (key, text, vocab) to the text with noise."""

  def max_noised_length(self, size: int) -> int:
    """Return the maximum length of a text of `size` tokens with this noise."""
    return size


@dataclasses.dataclass(frozen=True)
class TokenMasking(TextNoise):
  """Token masking: random tokens become [MASK] (BART: Lewis et al. 2020, section 2.2, after BERT).

  Of n tokens ceil(mask_rate n) are masked.
  """

  limits = intervals(mask_rate='[0, 1]', random='[0, 1]')

  mask_rate: float = 0.15
  """Mask rate: fraction of the tokens."""
  random: float = 0.0
  """Probability that a token becomes a random token instead."""

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Replace a fraction of the tokens with masks."""
    keys = jax.random.split(key, 2)
    number = ceil_share(self.mask_rate, text.size)
    chosen = corruption.choose_tokens(keys[0], text_mask(text), number)
    masks = draw_masks(keys[1], self.random, chosen.shape, vocab)
    return text._replace(tokens=jnp.where(chosen, masks, text.tokens))


@dataclasses.dataclass(frozen=True)
class TokenDeletion(TextNoise):
  """Token deletion: random tokens are removed without a mark (BART: Lewis et al. 2020, section
  2.2).

  Of n tokens ceil(rate n) are deleted.
  """

  limits = intervals(rate='[0, 1]')

  rate: float = 0.15
  """Fraction of the tokens."""

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Delete a fraction of the tokens."""
    del vocab
    real = text_mask(text)
    deleted = corruption.choose_tokens(key, real, ceil_share(self.rate, text.size))
    return keep_where(text, real & ~deleted)


@dataclasses.dataclass(frozen=True)
class TextInfilling(TextNoise):
  """Text infilling: spans of random length become one mask each (BART: Lewis et al. 2020, section
  2.2).

  A span of length 0 inserts a mask. As released (facebookresearch/fairseq,
  data/denoising_dataset.py, add_whole_word_mask): lengths are sampled until they reach
  ceil(mask_rate n) of n units, where the last one is cut. Spans begin at random units and may
  overlap, so that somewhat fewer units are removed. A fraction of the masks of empty spans, at
  least one, is random tokens where `random` is above 0. Units there are words where lengths have
  a Poisson distribution (tasks/denoising.py, load_dataset).
  """

  limits = intervals(mask_rate='[0, 1]', mean_span_length='(0, 100]', random='[0, 1]')

  mask_rate: float = 0.3
  """Mask rate: fraction of the units that the lengths of spans reach (section 5.1)."""
  mean_span_length: float = 3.0
  """Mean of the Poisson distribution of span lengths, in units."""
  random: float = 0.0
  """Probability that a span becomes a random token instead of a mask."""
  unit: Literal['token', 'word'] = 'token'
  """Unit that is counted and removed as a whole: tokens, or words (BART and mBART as released)."""

  @property
  def lengths(self) -> tuple[float, ...]:
    """Probabilities of spans of 0, 1, 2, ... units, up to the first below 1e-7 after the mean."""
    found = []
    mean = self.mean_span_length
    while len(found) <= mean or found[-1] >= 1e-7:
      n = len(found)
      found.append(math.exp(-mean) * mean ** n / math.factorial(n))
    return tuple(found)

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Replace spans with one mask each; spans of length 0 insert one."""
    keys = jax.random.split(key, 5)
    room = text.tokens.shape[0]
    begins, count = unit_starts(text, self.unit == 'word')

    # Lengths of spans, until they have a fraction of the text.
    number = ceil_share(self.mask_rate, count)
    most = math.ceil(self.mask_rate * room) + 8  # more empty spans than that do not happen
    lengths = corruption.draw_lengths(keys[0], self.lengths, (most,)) - 1
    before = jnp.cumsum(lengths) - lengths
    used = before < number
    lengths = jnp.where(used, jnp.minimum(lengths, number - before), 0)
    empty = (used & (lengths == 0)).sum()

    # Where they are: a mask at the first token, and nothing at the others.
    scores = jnp.where(jnp.arange(room) < count, jax.random.uniform(keys[1], (room,)), 2.0)
    order = jnp.argsort(scores)
    first = order[jnp.cumsum(lengths > 0) - 1]
    starts = jnp.where(lengths > 0, begins[first], room)
    ends = begins[jnp.minimum(first + lengths, room)]
    edges = jnp.zeros(room + 1, jnp.int32).at[starts + 1].add(1, mode='drop')
    edges = edges.at[jnp.where(lengths > 0, ends, room + 1)].add(-1, mode='drop')
    removed = jnp.cumsum(edges)[:room] > 0  # all of a span but its first token
    masked = jnp.zeros(room, bool).at[starts].set(True, mode='drop')
    masks = draw_masks(keys[2], self.random, (room,), vocab)
    text = text._replace(tokens=jnp.where(masked, masks, text.tokens))
    text = keep_where(text, text_mask(text) & ~removed)
    return insert_masks(keys[3], text, empty, self.random, vocab)


@dataclasses.dataclass(frozen=True)
class WordMasking(TextNoise):
  """Whole-word masking of Chinese BART: some words become one mask each (CPT: Shao et al. 2021).

  As released (fastnlp/CPT, pretrain/megatron/data/bart_dataset.py, add_whole_word_mask): of n
  words of Chinese characters alone, ceil(mask_rate n) become one mask each. Of
  ceil(mask_rate characters n) more words the first character becomes a mask and the others stay.
  Other words, punctuation and the ends of sentences stay.
  """

  limits = intervals(mask_rate='[0, 1]', characters='[0, 1]', random='[0, 1]')

  mask_rate: float = 0.3
  """Mask rate: fraction of the words that become one mask."""
  characters: float = 0.1
  """Fraction of `mask_rate`, of words whose first character alone becomes a mask."""
  random: float = 0.1
  """Probability that a random token replaces a mask."""

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Replace words with one mask each, and first characters of other words with a mask."""
    keys = jax.random.split(key)
    real = text_mask(text)
    first = real & (text.words != jnp.roll(text.words, 1)).at[0].set(True)
    room = real.shape[0]
    word = jnp.where(real, jnp.cumsum(first) - 1, room)

    # Words of Chinese characters alone, in random order.
    not_chinese = 0 if text.chinese is None else 1 - text.chinese
    other = jnp.zeros(room, jnp.int32).at[word].add(not_chinese, mode='drop')
    maskable = (jnp.arange(room) < first.sum()) & (other == 0)
    count = maskable.sum()
    order = jnp.argsort(jnp.where(maskable, jax.random.uniform(keys[0], (room,)), 2.0))
    rank = jnp.zeros(room, jnp.int32).at[order].set(jnp.arange(room))
    rank = jnp.where(maskable, rank, room)[jnp.minimum(word, room - 1)]

    whole_words = ceil_share(self.mask_rate, count)
    first_characters = ceil_share(self.mask_rate * self.characters, count)
    whole = real & (rank < whole_words)
    masked = first & (rank < whole_words + first_characters)
    masks = draw_masks(keys[1], self.random, (room,), vocab)
    shown = text._replace(tokens=jnp.where(masked, masks, text.tokens))
    return keep_where(shown, real & ~(whole & ~first))


@dataclasses.dataclass(frozen=True)
class TokenInsertion(TextNoise):
  """Token insertion: masks between the tokens (fairseq's denoising_dataset.py, not in the paper).

  There are ceil(rate (n + 2)) masks for n tokens.
  """

  limits = intervals(rate='[0, 10]', random='[0, 1]')

  rate: float = 0.15
  """Number of masks per token."""
  random: float = 0.0
  """Fraction of the masks that are random tokens instead, rounded up."""

  def max_noised_length(self, size: int) -> int:
    return size + math.ceil(round(self.rate * (size + 2), 4))

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Insert masks, as many as a fraction of the text."""
    number = jnp.where(text.size > 0, ceil_share(self.rate, text.size + 2), 0)
    return insert_masks(key, text, number, self.random, vocab)


@dataclasses.dataclass(frozen=True)
class SentencePermutation(TextNoise):
  """Sentence permutation: whole sentences in random order (BART: Lewis et al. 2020, section
  2.2)."""

  limits = intervals(rate='[0, 1]')

  rate: float = 1.0
  """Fraction of the sentences that are shuffled among their places, rounded up."""

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Shuffle a fraction of the sentences among their places."""
    del vocab
    keys = jax.random.split(key)
    real = text_mask(text)
    first = real & (text.sentences != jnp.roll(text.sentences, 1).at[0].set(-1))
    count = first.sum()
    at = jnp.arange(real.shape[0])
    moved = corruption.choose_tokens(keys[0], at < count, ceil_share(self.rate, count))
    # The moved ones in random order, on the places of the moved ones.
    mixed = jnp.argsort(jnp.where(moved, jax.random.uniform(keys[1], at.shape), 2.0))
    ordering = jnp.where(moved, mixed[jnp.cumsum(moved) - 1], at)
    return permute_sentences(text, first, ordering)


@dataclasses.dataclass(frozen=True)
class DocumentRotation(TextNoise):
  """Document rotation: the text starts at a random token and wraps around (BART: Lewis et al.
  2020, 2.2)."""

  limits = intervals(share='[0, 1]')

  share: float = 1.0
  """Fraction of the texts that are rotated."""

  def apply(self, key, text: TextBuffer, vocab) -> TextBuffer:
    """Rotate a fraction of the texts to start at a random token."""
    del vocab
    keys = jax.random.split(key)
    begin = jax.random.randint(keys[0], (), 0, jnp.maximum(text.size, 1))
    rotates = jax.random.bernoulli(keys[1], self.share)
    return rotate_text(text, jnp.where(rotates, begin, 0))


Noise = (TokenMasking | TokenDeletion | TextInfilling | WordMasking | TokenInsertion |
         SentencePermutation | DocumentRotation)


@dataclasses.dataclass(frozen=True)
class DenoisingAutoencoder(SequenceToSequence):
  """Denoising autoencoder (BART: Lewis et al. 2020, section 2.2; mBART: Liu et al. 2020, section
  2.2).

  The encoder reads <s> text with noise </s>, and the decoder writes <s> text </s> after a </s>.
  With a tokenizer that names languages (mBART), the encoder reads text </s> LANGUAGE, and the
  decoder writes text </s> LANGUAGE after a LANGUAGE.

  Noises are applied one after another, sentences first as released. Documents of a sequence are one
  text, which released sequences do not have: their windows are of one document (sample_break_mode
  complete_doc in fairseq's tasks/denoising.py; for mBART section 2.2).
  """

  noises: tuple[Noise, ...] = (SentencePermutation(), TextInfilling())
  """Noises that are applied to the text, in this order. The defaults are those of section 5.1."""
  languages: tuple[str, ...] = ()
  """Language of each corpus, such as de_DE. Empty: the language of the tokenizer, where it names
  one (mBART)."""
  reserve: int = 0
  """Tokens of a sequence reserved for the </s> after each of its sentences, a word of its own
  (mBART, section 2.2), next to the one after the last. A sequence that needs more is truncated.
  0: one </s> after all of them."""

  def conflict(self, option):
    unknown = set(self.languages) - set(MBART50_LANGUAGES)
    if unknown:
      return (f'{option("languages")}: {", ".join(sorted(unknown))} is no language of mBART, which '
              f'has {", ".join(MBART50_LANGUAGES)}')
    return None

  @property
  def special_tokens(self) -> tuple[str, ...]:
    return ('pad', 'mask', 'language') if self.languages else ('pad', 'mask')

  @property
  def needs_chinese_flags(self) -> bool:
    """Whether a noise has to know which tokens are Chinese."""
    return any(isinstance(noise, WordMasking) for noise in self.noises)

  @property
  def specials(self) -> int:
    """Number of special tokens around a text."""
    return 1 if self.reserve else 2

  def max_noised_length(self, size: int) -> int:
    """Return the maximum length of a text of `size` tokens after all noises."""
    for noise in self.noises:
      size = noise.max_noised_length(size)
    return size

  def add_token_info(self, windows, tokenizer):
    """Add chinese [batch, text], 1 for tokens of Chinese characters alone, where a noise needs
    it."""
    if not self.needs_chinese_flags:
      return windows
    return {**windows, 'chinese': chinese_token_flags(tokenizer)[windows['tokens']]}

  def shapes(self, rows, length, layout=None):
    shapes = super().shapes(rows, length, layout)
    return {**shapes, 'chinese': shapes['words']} if self.needs_chinese_flags else shapes

  def separated_length(self, window: int) -> int:
    """Return the length of a text of `window` tokens with the separators of its sentences."""
    return window + self.reserve + 1 if self.reserve else window

  def text_length(self, length: int) -> int:
    """Return the longest text that fits the encoder's sequence whatever the noises do to it."""
    most = length - self.specials
    fitting = 0
    for size in range(length - 1):
      if self.max_noised_length(self.separated_length(size)) <= most:
        fitting = size
    return fitting

  def max_predictions(self, length: int) -> int:
    """Return the length of the whole text with its special tokens: the decoder writes all of it."""
    return self.separated_length(self.text_length(length)) + self.specials

  def corrupt(self, key, windows, vocab):
    """Build the sequences of encoder and decoder.

    Returns:
      tokens, segments [batch, length]; decoder_tokens, decoder_segments, labels, weights, content
      [batch, predictions].

    Raises:
      ConfigError: the tokenizer lacks a language.
    """
    keys = corruption.example_keys(key, windows)
    if self.languages:
      ids = [vocab.language + MBART50_LANGUAGES.index(name) for name in self.languages]
      if max(ids) >= vocab.mask > vocab.language:
        raise ConfigError(
            f'the tokenizer is of {vocab.mask - vocab.language} languages, without '
            f'{self.languages[ids.index(max(ids))]}: train one with {name_field("layout")}=mbart50')
      language = jnp.array(ids)[windows['corpus']]
    else:
      language = jnp.array([vocab.source])[jnp.zeros_like(windows['corpus'])]
    size = (windows['segments'] > 0).sum(-1)
    texts = TextBuffer(
        windows['tokens'], windows['sentences'], windows['words'], size, windows.get('chinese'))
    def build(key, text, language):
      return self.build_row(key, text, language, vocab)
    return jax.vmap(build)(keys, texts, language)

  def build_row(self, key, text: TextBuffer, language, vocab):
    """Build one row of the batch (`seq2seq.build_pair_row`) from a text and its language's id."""
    # Special tokens around the text.
    begin, end = boundary_ids(vocab)
    if vocab.source < 0:
      before, after, start = (begin,), (), end
    else:
      before, after, start = (), (language,), language
    if self.reserve:
      text = append_separators(text, end, self.separated_length(text.tokens.shape[0]))
    else:
      after = (end, *after)

    # Noise, in a buffer with room for what it inserts.
    length, size = text.tokens.shape[0], text.size
    room = self.max_noised_length(length)
    noised = text.map_tokens(lambda x: jnp.pad(x, (0, room - length)))
    for number, noise in enumerate(self.noises):
      noised = noise.apply(jax.random.fold_in(key, number), noised, vocab)

    inputs = add_special_tokens(noised.tokens, noised.size, before, after, size)
    targets = add_special_tokens(text.tokens, size, before, after, size)
    return build_pair_row(
        inputs, targets, room + self.specials, length + self.specials, start,
        (*before, end, *after), vocab.pad)


CHINESE_FLAGS_CACHE: dict[str, np.ndarray] = {}
"""Hash of a tokenizer -> flags of its tokens."""
IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
"""First and last code points of the blocks of CJK ideographs that BERT's tokenizer separates."""


def chinese_token_flags(tokenizer: Any) -> np.ndarray:
  """Return 1 for each token id that has Chinese characters alone, int32 [vocabulary]."""
  if tokenizer.hash not in CHINESE_FLAGS_CACHE:
    flags = [bool(token) and all(map(is_chinese, token)) for token in tokenizer.pieces]
    CHINESE_FLAGS_CACHE[tokenizer.hash] = np.array(flags, np.int32)
  return CHINESE_FLAGS_CACHE[tokenizer.hash]


def is_chinese(char: str) -> bool:
  """Tell whether a character is a CJK ideograph."""
  return any(first <= ord(char) <= last for first, last in IDEOGRAPHS)
