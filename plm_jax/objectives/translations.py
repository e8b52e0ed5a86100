"""Rows of two texts that say the same in two languages, beside rows of running text."""
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.data.cutting import PAIR_SPECIALS
from plm_jax.objectives.pairs import FullSentences

RUNNING = FullSentences()


@dataclasses.dataclass(frozen=True)
class Translations(Checked):
  """Translation language modelling (Lample and Conneau 2019, section 3.3), and running text by turns.

  A corpus of one language gives the rows of FullSentences. One of translations, task:columns-A-B:FILE, gives rows of
  [CLS] text [SEP] [CLS] the same in another language [SEP]: both are masked, each begins at position 0, and each token
  says its language. A row has as many pairs as fit, which do not see each other; XLM as released pads one pair, and has
  batches of pairs of about one length instead (facebookresearch/XLM, utils.py, concat_batches). A pair that is too long
  for a row loses its end, where XLM leaves it out.
  """

  limits = within(swapped='[0, 1]')

  languages: tuple[str, ...] = ('en',)
  """the language of each corpus in --data.path, or two, A-B, of the texts in column A and B; their numbers are those of
  the order in which they are first named"""
  swapped: float = 0.5
  """probability that the text of column B comes first: both orders are steps of the released command"""

  question: ClassVar[str | None] = None
  one_document: ClassVar[bool] = False

  def conflict(self, option):
    """Says which names are none of a language, or of two."""
    for name in self.languages:
      if not 1 <= len(parts := name.split('-')) <= 2 or not all(parts) or len(parts) != len({*parts}):
        return f'{option("languages")} are languages or pairs of two: en, en-de; got {name!r}'
    return None if self.languages else f'{option("languages")} is empty: one for each corpus'

  @property
  def names(self) -> tuple[str, ...]:
    """The languages, each once, by their numbers."""
    return tuple(dict.fromkeys(part for name in self.languages for part in name.split('-')))

  def of_pairs(self, corpus: int) -> bool:
    """Tells whether a corpus is of translations."""
    return '-' in self.languages[min(corpus, len(self.languages) - 1)]

  def unfit(self, corpora: Sequence[str], model: Any) -> str | None:
    """Says which corpora lack a language, or what of the model does not go with texts that begin at 0 again."""
    if len(corpora) != len(self.languages):
      return f'--objective.pair.languages gives {self.languages} for {len(corpora)} corpora: one each'
    for corpus, path in enumerate(corpora):
      if path.startswith('task:') and not self.of_pairs(corpus):
        return (f'--data.path={path} is of two languages, and --objective.pair.languages has '
                f'{self.languages[corpus]} for it: give A-B')
    if model.padding >= 0 and any(map(self.of_pairs, range(len(corpora)))):
      return ('positions of each translation are numbered from 0, and the model numbers them behind its padding: give '
              '--model.padding -1')
    return None

  def window(self, length: int) -> int:
    """Returns `length` less the special tokens of a pair; rows of running text may have as many separators."""
    return length - PAIR_SPECIALS

  def arrange(self, keys, windows, vocab):
    """Makes rows [B, L] of windows, L = T + 4; place and languages [B, L] too."""
    usual = RUNNING.arrange(keys, windows, vocab)
    spoken = jnp.array([[self.names.index(part) for part in (name.split('-') * 2)[:2]] for name in self.languages])
    spoken, shape = spoken[windows['corpus']], usual['tokens'].shape
    usual |= dict(place=jnp.broadcast_to(jnp.arange(shape[1]), shape),
                  languages=jnp.broadcast_to(spoken[:, :1], shape))
    of_pairs = [self.of_pairs(corpus) for corpus in range(len(self.languages))]
    if not any(of_pairs):
      return usual
    beside = jax.vmap(functools.partial(self.row, vocab=vocab))(
        keys, windows['tokens'], windows['sentences'], windows['words'], spoken)
    chosen = jnp.array(of_pairs)[windows['corpus'], None]
    return {name: jnp.where(chosen, beside[name], usual[name]) for name in usual}

  def row(self, key, tokens, sentences, words, spoken, vocab):
    """Makes one row of pairs: tokens, sentences, words [T], of each pair B's text and then A's, as records have them;
    spoken [2]: the languages of A and of B."""
    size = tokens.shape[0]
    at, length = jnp.arange(size), size + PAIR_SPECIALS
    sizes = jnp.zeros(size + 2, jnp.int32).at[sentences].add(1).at[0].set(0)
    before = jnp.cumsum(sizes) - sizes
    is_a = sentences % 2 == 0
    pair = (sentences + 1) // 2
    swapped = jax.random.bernoulli(key, self.swapped, (size + 1,))[pair]
    other = sizes[jnp.where(is_a, sentences - 1, sentences + 1)]
    # Where the row's [CLS] of the text is: behind the pairs before it, and the other text where that comes first.
    second = (is_a == swapped) & (other > 0)
    begin = before[2 * pair - 1] + PAIR_SPECIALS * (pair - 1) + jnp.where(second, other + 2, 0)
    own = at - before[sentences]
    begin = jnp.where(sentences > 0, begin, length)
    first, last = jnp.where(own == 0, begin, length), jnp.where(own == sizes[sentences] - 1, begin + own + 2, length)

    def put(x, cls, sep, empty=0):
      row = jnp.full(length, empty, jnp.int32)
      for where, what in ((begin + 1 + own, x), (first, cls), (last, sep)):
        row = row.at[where].set(what, mode='drop')
      return row

    language = jnp.where(is_a, spoken[0], spoken[1])
    return dict(tokens=put(tokens, vocab.cls, vocab.sep, vocab.pad), segments=put(pair, pair, pair),
                types=jnp.zeros(length, jnp.int32), words=put(words, 0, 0), place=put(own + 1, 0, own + 2),
                languages=put(language, language, language))
