"""How raw text becomes the input rows of an encoder, with special tokens. Each way is a value.

`arrange` gives tokens, segments, types and words [B, L]; words are 0 at special tokens and padding, so whatever is not
0 may be masked. A way with a question about the row (are these two halves neighbours?) names it in `question` and puts
the answer [B] under that name. `one_document`: rows are made of sentences, so windows must not join documents.
"""
import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within


@dataclasses.dataclass(frozen=True)
class Single(Checked):
  """[CLS] text [SEP]: no question asked (RoBERTa, SpanBERT)."""

  question: ClassVar[str | None] = None
  one_document: ClassVar[bool] = False

  def window(self, length: int) -> int:
    """Returns `length` less [CLS] and [SEP]."""
    return length - 2

  def arrange(self, keys, windows, vocab):
    """Makes rows [B, L] of windows, L = T + 2."""
    del keys
    return jax.vmap(lambda tokens, segments, words: self.row(tokens, segments, words, vocab))(
        windows['tokens'], windows['segments'], windows['words'])

  def row(self, tokens, segments, words, vocab):
    """Makes one row of tokens, segments, words [T]."""
    size = (segments > 0).sum()
    at = jnp.arange(tokens.shape[0] + 2)
    inside = (at >= 1) & (at <= size)
    row = jnp.where(inside, jnp.pad(tokens, 1), vocab.pad)
    row = jnp.where(at == 0, vocab.cls, jnp.where(at == size + 1, vocab.sep, row))
    # The special tokens belong to the first and to the last document of the row.
    segment = jnp.where(inside, jnp.pad(segments, 1), jnp.where(at == 0, segments[0], segments.max()))
    return dict(tokens=row, segments=jnp.where((at <= size + 1) & (size > 0), segment, 0),
                types=jnp.zeros_like(row), words=jnp.where(inside, jnp.pad(words, 1), 0))


@dataclasses.dataclass(frozen=True)
class FullSentences(Checked):
  """[CLS] text [SEP] of whatever documents fill a row, with one more [SEP] between two: no question asked.

  RoBERTa's FULL-SENTENCES on windows of `sentences` (Liu et al. 2019, section 4.2). Its documents see each other, and
  positions run on from one to the next. On windows of `document` there is nothing to separate: DOC-SENTENCES.
  """

  together: bool = True
  """documents of a row see each other, as RoBERTa's do; else each sees only itself"""
  reserve: int = 2
  """tokens of a row kept free for separators; a row that needs more and is full loses as many at its end"""

  question: ClassVar[str | None] = None
  one_document: ClassVar[bool] = False

  def window(self, length: int) -> int:
    """Returns `length` less [CLS], [SEP] and what is kept free for separators."""
    return length - 2 - self.reserve

  def arrange(self, keys, windows, vocab):
    """Makes rows [B, L] of windows, L = T + 2 + reserve."""
    del keys
    return jax.vmap(lambda tokens, segments, words: self.row(tokens, segments, words, vocab))(
        windows['tokens'], windows['segments'], windows['words'])

  def row(self, tokens, segments, words, vocab):
    """Makes one row of tokens, segments, words [T]; what would reach the last [SEP] is dropped."""
    length = tokens.shape[0] + 2 + self.reserve
    at = jnp.arange(length)
    # A token moves by [CLS] and by the separators before it; what would reach the last [SEP] is dropped.
    place = jnp.arange(tokens.shape[0]) + jnp.maximum(segments, 1)
    place = jnp.where((segments > 0) & (place < length - 1), place, length)
    def put(x, elsewhere):
      return jnp.broadcast_to(elsewhere, length).at[place].set(x, mode='drop')
    end = jnp.minimum((segments > 0).sum() + jnp.maximum(segments.max(), 1), length - 1)
    row = put(tokens, jnp.where(at == 0, vocab.cls, jnp.where(at <= end, vocab.sep, vocab.pad)))
    # Special tokens belong to the document before them, [CLS] to the first.
    apart = jnp.maximum(jax.lax.cummax(put(segments, 0)), segments[0])
    segment = jnp.minimum(apart, 1) if self.together else apart
    return dict(tokens=row, segments=jnp.where(at <= end, segment, 0), types=jnp.zeros_like(row), words=put(words, 0))


@dataclasses.dataclass(frozen=True)
class NextSentence(Checked):
  """[CLS] A [SEP] B [SEP], and whether B follows A (Devlin et al. 2019, section 3.1 and appendix A.2).

  RoBERTa's SEGMENT-PAIR and, with unit 'sentence', SENTENCE-PAIR (Liu et al. 2019, section 4.2), where two separators
  part A and B. A and B are whole sentences of one document, cut between two sentences at random; half of the time B
  comes from another document. Rows that are too long lose tokens at random ends, the longer half first. Differs from
  the released create_pretraining_data.py, which reads text once in order, in this: the other document is that of
  another row of the same batch, and where B is replaced the sentences that would have followed are not put back but met
  in another epoch.
  """

  limits = within(random='[0, 1]', short='[0, 1]', separators='[1, 16]')

  random: float = 0.5
  """probability that B comes from another document"""
  short: float = 0.1
  """probability of aiming at a random shorter length (short_seq_prob)"""
  slack: int = 16
  """tokens of text read beyond the row's length, so that rows are filled and cut instead of padded"""
  unit: Literal['segment', 'sentence'] = 'segment'
  """A and B are as many sentences as fill the row, or one sentence each, anywhere in the text of the window"""
  separators: int = 1
  """separator tokens between A and B; RoBERTa has 2"""

  question: ClassVar[str | None] = 'nsp'
  one_document: ClassVar[bool] = True

  def window(self, length: int) -> int:
    """Returns `length` less special tokens, and `slack` tokens more, in which a row may begin later."""
    return length - 2 - self.separators + self.slack

  def arrange(self, keys, windows, vocab):
    """Makes rows [B, L], and nsp [B]: 1 where the second part is of another row's document."""
    full = (windows['segments'] > 0).any(-1)
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(keys)
    other, found = other_document(keys[:, 0], windows['document'], full)
    names = ('tokens', 'sentences', 'words')
    own = {name: windows[name] for name in names}
    foreign = {name: windows[name][other] for name in names}
    return jax.vmap(lambda *args: self.row(*args, vocab=vocab))(keys[:, 1], own, foreign, found & full)

  def row(self, key, own, foreign, found, vocab):
    """Makes one row; own and foreign hold tokens, sentences, words [T]; found: foreign is of another document."""
    length = own['tokens'].shape[0]
    budget = length - self.slack
    keys = jax.random.split(key, 7)
    if self.unit != 'sentence':
      own = from_some_sentence(keys[6], own, budget)
    target, stop, sentences, cut = chunk(keys[:3], own['sentences'], budget, self.short)
    begin = 0
    if self.unit == 'sentence':
      sentences = own['sentences'].max()
      first = jax.random.randint(keys[2], (), 1, jnp.maximum(sentences, 2))
      begin, cut, stop = (ends(own['sentences'], number) for number in (first - 1, first, first + 1))
    # Without a second sentence B has to be foreign; without a foreign document A is halved.
    cut = jnp.where(sentences > 1, cut, jnp.where(found, stop, (stop + 1) // 2))
    a = cut - begin
    random = found & ((sentences == 1) | jax.random.bernoulli(keys[3], self.random))

    wanted = 1 if self.unit == 'sentence' else jnp.maximum(target - a, 1)
    foreign_size, foreign_sentences = (foreign['sentences'] > 0).sum(), foreign['sentences'].max()
    start = ends(foreign['sentences'], jax.random.randint(keys[4], (), 0, jnp.maximum(foreign_sentences, 1)))
    reached = foreign['sentences'][jnp.clip(start + wanted - 1, 0, foreign_size - 1)]
    b_start = jnp.where(random, length + start, cut)
    b = jnp.where(random, ends(foreign['sentences'], reached) - start, stop - cut)
    # Both texts in one array: one look-up instead of two.
    both = {name: jnp.concatenate([own[name], foreign[name]]) for name in ('tokens', 'words')}
    row = join(keys[5], both, (begin, a), (b_start, b), budget, vocab, self.separators)
    return {**row, 'nsp': random.astype(jnp.int32)}


@dataclasses.dataclass(frozen=True)
class SentenceOrder(Checked):
  """[CLS] A [SEP] B [SEP], and whether B comes before A in the text (Lan et al. 2020, section 3.1).

  A and B are whole sentences that follow each other, cut as for NextSentence, swapped half of the time. Differs from
  the released create_pretraining_data.py in this: of text without a second sentence it takes B from another document
  and says that they are swapped; here the sentence is halved, so that order stays all that is asked.
  """

  limits = within(swapped='[0, 1]', short='[0, 1]')

  swapped: float = 0.5
  """probability that B comes before A"""
  short: float = 0.1
  """probability of aiming at a random shorter length (short_seq_prob)"""
  slack: int = 16
  """tokens of text read beyond the row's length, so that rows are filled and cut instead of padded"""

  question: ClassVar[str | None] = 'sop'
  one_document: ClassVar[bool] = True

  def window(self, length: int) -> int:
    """Returns `length` less special tokens, and `slack` tokens more, in which a row may begin later."""
    return length - 3 + self.slack

  def arrange(self, keys, windows, vocab):
    """Makes rows [B, L], and sop [B]: 1 where the two parts have changed places."""
    own = {name: windows[name] for name in ('tokens', 'sentences', 'words')}
    return jax.vmap(lambda *args: self.row(*args, vocab=vocab))(keys, own)

  def row(self, key, own, vocab):
    """Makes one row; own holds tokens, sentences, words [T]."""
    budget = own['tokens'].shape[0] - self.slack
    keys = jax.random.split(key, 6)
    own = from_some_sentence(keys[5], own, budget)
    target, size, sentences, a = chunk(keys[:3], own['sentences'], budget, self.short)
    a = self.first(key, own['sentences'], target, sentences, jnp.where(sentences > 1, a, (size + 1) // 2))
    swap = jax.random.bernoulli(keys[3], self.swapped)
    first, second = jnp.array([0, a]), jnp.stack([a, size - a])
    return {**join(keys[4], own, jnp.where(swap, second, first), jnp.where(swap, first, second), budget, vocab),
            'sop': swap.astype(jnp.int32)}

  def first(self, key, sentences, target, number, cut):
    """Returns the tokens of the first text: `cut`, between any two of the first `number` sentences [T]."""
    del key, sentences, target, number
    return cut


@dataclasses.dataclass(frozen=True)
class Consecutive(SentenceOrder):
  """[CLS] A [SEP] B [SEP], two texts that follow each other in this order: no question asked (ELECTRA).

  With `cut` half and `whole` 0.1 the two are those of google-research/electra, build_pretraining_dataset.py, but for
  this: there a later sentence that is short enough still joins the first text, and what is too long loses its end.
  """

  limits = within(whole='[0, 1]')

  swapped: float = 0.0
  """probability that B comes before A"""
  short: float = 0.05
  """probability of aiming at a random shorter length"""
  cut: Literal['anywhere', 'half'] = 'anywhere'
  """where the first text ends: behind any sentence, or where half of the length is reached, with or without the
  sentence in which it is"""
  whole: float = 0.0
  """probability of one text in place of two: [CLS] A [SEP]"""

  question: ClassVar[str | None] = None

  def first(self, key, sentences, target, number, cut):
    """Returns the tokens of the first text, all of them for a share `whole` of the rows: then there is no second."""
    keys = jax.random.split(jax.random.fold_in(key, 6))  # of fold_in of 0 to 5 are the other keys
    size = ends(sentences, number)
    if self.cut == 'half':
      # Whole sentences below half of the length, and by chance the next.
      full = sentences[jnp.clip(target // 2 - 1, 0, sentences.shape[0] - 1)] - 1
      full = jnp.where(target // 2 > size, number, full)
      cut = ends(sentences, jnp.maximum(full + jax.random.bernoulli(keys[0]), 1))
      cut = jnp.minimum(cut, size)
    return jnp.where(jax.random.bernoulli(keys[1], self.whole), size, cut)

  def row(self, key, own, vocab):
    """Makes one row of two parts in their order, with nothing to ask about them."""
    row = super().row(key, own, vocab)
    del row['sop']
    return row


def from_some_sentence(key, text, budget: int):
  """Cuts tokens, sentences, words [T] of more than `budget` tokens: the same from a random one of its first sentences
  on.

  The last choice is the end of the text, whatever sentence that cuts: what a row leaves out is met in another epoch.
  """
  sentences = text['sentences']
  spare = jnp.maximum((sentences > 0).sum() - budget, 0)
  last = jnp.where(spare > 0, jnp.minimum(sentences[spare - 1] + 1, sentences.max()), 1)
  first = jax.random.randint(key, (), 1, last + 1)
  place = jnp.arange(sentences.shape[0]) + jnp.minimum(ends(sentences, first - 1), spare)
  text = {name: x.at[place].get(mode='fill', fill_value=0) for name, x in text.items()}
  later = text['sentences']
  return {**text, 'sentences': jnp.where(later > 0, later - later[0] + 1, 0)}


def chunk(keys, sentences, budget: int, short: float):
  """Draws, of sentences [T], (length to aim at, tokens of the whole sentences that reach it, how many sentences these
  are, tokens of the first of two parts of them).

  keys: three. The sentence in which the length is reached is the last; the cut is between two sentences at random.
  """
  target = jnp.where(jax.random.bernoulli(keys[0], short), jax.random.randint(keys[1], (), 2, budget + 1), budget)
  size, number = (sentences > 0).sum(), sentences.max()
  number = jnp.where(size > target, sentences[target - 1], number)
  cut = jax.random.randint(keys[2], (), 1, jnp.maximum(number, 2))
  return target, ends(sentences, number), number, ends(sentences, cut)


def join(key, text, first, second, budget: int, vocab, separators: int = 1):
  """Joins [CLS] first [SEP] second [SEP], the two being (start, size) in text: tokens and words [T] -> arrays [L].

  L is budget + 2 + separators, which stand between the two, unless the second is empty. Where they are too long the
  longer one loses tokens, at either end at random.
  """
  (a_start, a), (b_start, b) = first, second
  keep_a = jnp.where(a + b > budget, jnp.minimum(a, jnp.maximum(budget - b, (budget + 1) // 2)), a)
  keep_b = jnp.minimum(b, budget - keep_a)
  front = jax.random.bernoulli(key, 0.5, (2, text['tokens'].shape[0]))
  lost_a = jnp.where(jnp.arange(front.shape[1]) < a - keep_a, front[0], False).sum()
  lost_b = jnp.where(jnp.arange(front.shape[1]) < b - keep_b, front[1], False).sum()

  at = jnp.arange(budget + 2 + separators)
  middle = keep_a + 1 + separators  # where the second begins
  end = jnp.where(b > 0, middle + keep_b, keep_a + 1)
  in_a = (at >= 1) & (at <= keep_a)
  in_b = (at >= middle) & (at < end)
  inside = in_a | in_b
  place = jnp.where(in_a, at - 1 + a_start + lost_a, at - middle + b_start + lost_b)
  row = jnp.where(inside, text['tokens'][place], vocab.pad)
  between = (at > keep_a) & (at < jnp.minimum(middle, end))
  row = jnp.where(at == 0, vocab.cls, jnp.where(between | (at == end), vocab.sep, row))
  full = a + b > 0
  return dict(
      tokens=row, segments=((at <= end) & full).astype(jnp.int32),
      types=((at >= middle) & (at <= end)).astype(jnp.int32),
      # Words of the second text count on behind all those of the first.
      words=jnp.where(inside & full, text['words'][place] + jnp.where(in_b, text['words'].shape[0], 0), 0))


def ends(sentences, last):
  """Counts the tokens of sentences [T], numbered 1.. with 0 at the end, up to the end of sentence `last`."""
  return ((sentences > 0) & (sentences <= last)).sum()


def other_document(keys, documents, full, tries: int = 4):
  """Finds, of keys, documents, full [B], (for each row another row [B], whether it is a full one of another document
  [B]).

  A few random draws, of which the first that will do is taken: B x B comparisons would not do for large batches.
  """
  rows = documents.shape[0]
  def draw(key, row):
    others = (row + jax.random.randint(key, (tries,), 1, max(rows, 2))) % rows
    good = (documents[others] != documents[row]) & full[others]
    return others[jnp.argmax(good)], good.any()
  return jax.vmap(draw)(keys, jnp.arange(rows))
