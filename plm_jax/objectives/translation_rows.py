"""Row builder for translation language modeling (XLM): pairs of translations, and running text."""
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.data.window_rules import PAIR_SPECIAL_TOKENS, RUNNING_SPECIAL_TOKENS
from plm_jax.errors import name_field
from plm_jax.objectives.row_builders import FullSentences, RowBuilder
from plm_jax.validation import intervals

RUNNING_TEXT = FullSentences()


@dataclasses.dataclass(frozen=True)
class Translations(RowBuilder):
  """Build sequences for translation language modeling, TLM (XLM: Lample and Conneau 2019, section
  3.3).

  A corpus of one language gives the sequences of FullSentences. A corpus of translations,
  task:columns-A-B:FILE, gives sequences of [CLS] text [SEP] [CLS] translation [SEP]. Both texts are
  masked, each begins at position 0, and each token has a language id. A sequence has as many
  pairs as fit, which do not attend to each other. XLM as released pads one pair, and has batches
  of pairs of about one length instead (facebookresearch/XLM, utils.py, concat_batches). A pair
  that is too long for a sequence is truncated, where XLM leaves it out.
  """

  limits = intervals(swapped='[0, 1]')

  languages: tuple[str, ...] = ('en',)
  """Language of each corpus in --data.path, or A-B for translations with the texts in columns A
  and B. Language ids follow the order in which languages are first named."""
  swapped: float = 0.5
  """Probability that the text of column B comes first. Both orders are steps of the released
  command."""

  document_separators = 1

  def conflict(self, option):
    for name in self.languages:
      parts = name.split('-')
      if not 1 <= len(parts) <= 2 or not all(parts) or len(parts) != len(set(parts)):
        return f'{option("languages")} are languages or pairs of two: en, en-de; got {name!r}'
    return None if self.languages else f'{option("languages")} is empty: one for each corpus'

  @property
  def language_names(self) -> tuple[str, ...]:
    """The languages, each once, in the order of their ids."""
    names: dict[str, None] = {}
    for name in self.languages:
      names |= dict.fromkeys(name.split('-'))
    return tuple(names)

  def has_text_pairs(self, corpus: int) -> bool:
    """Tell whether a corpus consists of translations."""
    return '-' in self.languages[min(corpus, len(self.languages) - 1)]

  def incompatibility(self, corpora: Sequence[str], model: Any) -> str | None:
    """Explain which corpora lack a language, or why positions of the model cannot restart at 0."""
    if len(corpora) != len(self.languages):
      return (f'{name_field("objective.pair.languages")} gives {self.languages} for {len(corpora)} '
              'corpora: one each')
    for corpus, path in enumerate(corpora):
      if path.startswith('task:') and not self.has_text_pairs(corpus):
        return (f'{name_field("data.path")}={path} is of two languages, and '
                f'{name_field("objective.pair.languages")} has {self.languages[corpus]} for it: '
                'give A-B')
    if model.padding >= 0 and any(self.has_text_pairs(corpus) for corpus in range(len(corpora))):
      return ('positions of each translation begin at 0, and those of the model after its padding: '
              f'give {name_field("model.padding")} -1')
    return None

  def text_length(self, length: int) -> int:
    """Return `length` without the special tokens of running text, which all corpora have room for.

    The texts of a window of pairs are shorter, as each pair has more special tokens.
    """
    return length - RUNNING_SPECIAL_TOKENS

  @property
  def which_have_pairs(self) -> list[bool]:
    """Whether each corpus consists of translations."""
    return [self.has_text_pairs(corpus) for corpus in range(len(self.languages))]

  def arrange(self, keys, windows, vocab):
    """Build sequences [batch, length]; place and languages are of the same shape."""
    usual = RUNNING_TEXT.arrange(keys, windows, vocab)
    # Language ids of columns A and B of each corpus; a corpus of one language has it twice.
    ids = []
    for name in self.languages:
      first, _, second = name.partition('-')
      ids.append([self.language_names.index(part) for part in (first, second or first)])
    languages, shape = jnp.array(ids)[windows['corpus']], usual['tokens'].shape
    usual |= dict(place=jnp.broadcast_to(jnp.arange(shape[1]), shape),
                  languages=jnp.broadcast_to(languages[:, :1], shape))
    if not any(self.which_have_pairs):
      return usual
    pairs = jax.vmap(functools.partial(self.build_row, vocab=vocab))(
        keys, windows['tokens'], windows['sentences'], windows['words'], languages)
    chosen = jnp.array(self.which_have_pairs)[windows['corpus'], None]
    return {name: jnp.where(chosen, pairs[name], usual[name]) for name in usual}

  def build_row(self, key, tokens, sentences, words, languages, vocab):
    """Build one sequence of pairs.

    Args:
      key: key of the example.
      tokens: of each pair B's text and then A's, as records have them, [text].
      sentences: text of each token, 1, 2, ..., [text].
      words: word of each token, [text].
      languages: language ids of A and of B, [2].
      vocab: the tokenizer's `Vocab`.
    """
    size = tokens.shape[0]
    at, length = jnp.arange(size), size + RUNNING_SPECIAL_TOKENS
    # A pair that is too long fills its window: what has no room in the row is left out.
    sentences = jnp.where(at < length - PAIR_SPECIAL_TOKENS, sentences, 0)
    sizes = jnp.zeros(size + 2, jnp.int32).at[sentences].add(1).at[0].set(0)
    before = jnp.cumsum(sizes) - sizes
    is_a = sentences % 2 == 0
    pair = (sentences + 1) // 2
    swapped = jax.random.bernoulli(key, self.swapped, (size + 1,))[pair]
    other = sizes[jnp.where(is_a, sentences - 1, sentences + 1)]
    # Where the text's [CLS] is: after the pairs before it, and the other text where that comes
    # first.
    second = (is_a == swapped) & (other > 0)
    begin = before[2 * pair - 1] + PAIR_SPECIAL_TOKENS * (pair - 1)
    begin += jnp.where(second, other + 2, 0)
    own = at - before[sentences]
    begin = jnp.where(sentences > 0, begin, length)
    first = jnp.where(own == 0, begin, length)
    last = jnp.where(own == sizes[sentences] - 1, begin + own + 2, length)

    def put(x, cls, sep, empty=0):
      row = jnp.full(length, empty, jnp.int32)
      for where, what in ((begin + 1 + own, x), (first, cls), (last, sep)):
        row = row.at[where].set(what, mode='drop')
      return row

    language = jnp.where(is_a, languages[0], languages[1])
    return dict(
        tokens=put(tokens, vocab.cls, vocab.sep, vocab.pad), segments=put(pair, pair, pair),
        types=jnp.zeros(length, jnp.int32), words=put(words, 0, 0),
        place=put(own + 1, 0, own + 2), languages=put(language, language, language))
