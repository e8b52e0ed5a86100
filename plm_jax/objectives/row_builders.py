"""Row builders: turn windows of raw text into encoder input sequences with special tokens.

Each row builder is a value. `arrange` makes tokens, segments, types and words [batch, length].
Words are 0 at special tokens and padding, so that whatever is not 0 may be masked.
"""
import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from plm_jax.validation import ValidatedConfig, intervals


class RowBuilder(ValidatedConfig):
  """Base class of row builders."""

  pair_task: ClassVar[str | None] = None
  """Sentence-pair task (next-sentence or sentence-order prediction), whose labels [batch] `arrange`
  puts under this name."""
  one_document: ClassVar[bool] = False
  """Whether sequences are made of sentences, so that windows must not cross documents."""
  document_separators: ClassVar[int] = 0
  """Special tokens between two documents of a window, 0 or 1."""

  def text_length(self, length: int) -> int:
    """Return the raw text tokens of a sequence: `length` without [CLS] and [SEP]."""
    return length - 2


@dataclasses.dataclass(frozen=True)
class Single(RowBuilder):
  """Build single segments: [CLS] text [SEP], without a sentence-pair task (RoBERTa, SpanBERT)."""

  limits = intervals(short='[0, 1]')

  short: float = 0.0
  """Fraction of sequences that are cut to a random length (LTG-BERT: short_p, 0.1)."""

  def arrange(self, keys, windows, vocab):
    """Build sequences of text + 2 tokens, [batch, length]."""
    segments = windows['segments']
    if self.short:
      sizes = jax.vmap(self.draw_size, (0, None))(keys, segments.shape[1])
      segments = jnp.where(jnp.arange(segments.shape[1]) < sizes[:, None], segments, 0)
    return jax.vmap(lambda tokens, segments, words: self.build_row(tokens, segments, words, vocab))(
        windows['tokens'], segments, windows['words'])

  def draw_size(self, key, room: int):
    """Sample the number of text tokens of a sequence with room for `room`.

    The size is `room`, or with probability `short` uniform in 1 to `room` - 1 (ltgoslo/ltg-bert,
    babylm/train/dataset.py).
    """
    keys = jax.random.split(key)
    short = jax.random.bernoulli(keys[0], self.short)
    return jnp.where(short, jax.random.randint(keys[1], (), 1, room), room)

  def build_row(self, tokens, segments, words, vocab):
    """Build one sequence of tokens, segments and words [text]."""
    size = (segments > 0).sum()
    at = jnp.arange(tokens.shape[0] + 2)
    inside = (at >= 1) & (at <= size)
    row = jnp.where(inside, jnp.pad(tokens, 1), vocab.pad)
    row = jnp.where(at == 0, vocab.cls, jnp.where(at == size + 1, vocab.sep, row))
    # The special tokens belong to the first and to the last document of the row.
    ends = jnp.where(at == 0, segments[0], segments.max())
    segment = jnp.where(inside, jnp.pad(segments, 1), ends)
    return dict(
        tokens=row, segments=jnp.where((at <= size + 1) & (size > 0), segment, 0),
        types=jnp.zeros_like(row), words=jnp.where(inside, jnp.pad(words, 1), 0))


@dataclasses.dataclass(frozen=True)
class FullSentences(RowBuilder):
  """Build [CLS] text [SEP] from all documents that fill a sequence, with a [SEP] between two.

  RoBERTa's FULL-SENTENCES on windows of `sentences` (Liu et al. 2019, section 4.2). Documents
  attend to each other, and positions continue from one to the next. On windows of `document`
  there is nothing to separate: DOC-SENTENCES.
  """

  together: bool = True
  """Whether the documents of a sequence attend to each other, as in RoBERTa. False: each document
  attends only to itself."""

  document_separators = 1

  def arrange(self, keys, windows, vocab):
    """Build sequences of text + 2 tokens, [batch, length].

    Windows leave room for separators between documents; what has no room is left out.
    """
    del keys
    return jax.vmap(lambda tokens, segments, words: self.build_row(tokens, segments, words, vocab))(
        windows['tokens'], windows['segments'], windows['words'])

  def build_row(self, tokens, segments, words, vocab):
    """Build one sequence of tokens, segments and words [text]."""
    length = tokens.shape[0] + 2
    at = jnp.arange(length)
    # A token moves by [CLS] and by the separators before it; past the last [SEP] it is dropped.
    place = jnp.arange(tokens.shape[0]) + jnp.maximum(segments, 1)
    place = jnp.where((segments > 0) & (place < length - 1), place, length)
    def put(x, elsewhere):
      return jnp.broadcast_to(elsewhere, length).at[place].set(x, mode='drop')
    end = jnp.minimum((segments > 0).sum() + jnp.maximum(segments.max(), 1), length - 1)
    specials = jnp.where(at == 0, vocab.cls, jnp.where(at <= end, vocab.sep, vocab.pad))
    row = put(tokens, specials)
    # Special tokens belong to the document before them, [CLS] to the first.
    segment = jnp.maximum(jax.lax.cummax(put(segments, 0)), segments[0])
    segment = jnp.minimum(segment, 1) if self.together else segment
    return dict(
        tokens=row, segments=jnp.where(at <= end, segment, 0), types=jnp.zeros_like(row),
        words=put(words, 0))


@dataclasses.dataclass(frozen=True)
class NextSentence(RowBuilder):
  """Build [CLS] A [SEP] B [SEP] for next-sentence prediction, NSP (Devlin et al. 2019, section
  3.1, A.2).

  The task is whether B follows A. RoBERTa's SEGMENT-PAIR and, with unit 'sentence', SENTENCE-PAIR
  (Liu et al. 2019, section 4.2), with two separators between A and B. A and B are whole sentences
  of one document, cut between two sentences at random. In half of the sequences B comes from
  another document. Sequences that are too long lose tokens at random ends, the longer half first.

  The released create_pretraining_data.py reads text once, in order. There are two differences. The
  other document is that of another sequence in the same batch. Where B is replaced, the sentences
  that would have followed are not put back: another epoch reads them.
  """

  limits = intervals(random='[0, 1]', short='[0, 1]', separators='[1, 16]')

  random: float = 0.5
  """Probability that B comes from another document."""
  short: float = 0.1
  """Probability of a random shorter target length (short_seq_prob)."""
  slack: int = 16
  """Tokens of text read beyond the sequence length, so that sequences are filled and cut instead of
  padded."""
  unit: Literal['segment', 'sentence'] = 'segment'
  """Whether A and B are as many sentences as fill the sequence, or one sentence each, anywhere in
  the window."""
  separators: int = 1
  """Number of separator tokens between A and B. RoBERTa has 2."""

  pair_task = 'nsp'
  one_document = True

  def text_length(self, length: int) -> int:
    """Return `length` without special tokens, plus `slack` tokens in which a sequence may begin
    later."""
    return length - 2 - self.separators + self.slack

  def arrange(self, keys, windows, vocab):
    """Build sequences [batch, length], and nsp [batch]: 1 where B is of another row's document."""
    full = (windows['segments'] > 0).any(-1)
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(keys)
    other, found = draw_other_document(keys[:, 0], windows['document'], full)
    names = ('tokens', 'sentences', 'words')
    own = {name: windows[name] for name in names}
    foreign = {name: windows[name][other] for name in names}
    return jax.vmap(lambda *args: self.build_row(*args, vocab=vocab))(
        keys[:, 1], own, foreign, found & full)

  def build_row(self, key, own, foreign, found, vocab):
    """Build one sequence.

    Args:
      key: key of the example.
      own: tokens, sentences and words of the window, [text].
      foreign: the same of another window.
      found: whether `foreign` is of another document.
      vocab: the tokenizer's `Vocab`.
    """
    length = own['tokens'].shape[0]
    budget = length - self.slack
    keys = jax.random.split(key, 7)
    if self.unit != 'sentence':
      own = crop_at_random_sentence(keys[6], own, budget)
    target, stop, sentences, cut = draw_split(keys[:3], own['sentences'], budget, self.short)
    begin = 0
    if self.unit == 'sentence':
      sentences = own['sentences'].max()
      first = jax.random.randint(keys[2], (), 1, jnp.maximum(sentences, 2))
      begin = sentence_end(own['sentences'], first - 1)
      cut = sentence_end(own['sentences'], first)
      stop = sentence_end(own['sentences'], first + 1)
    # Without a second sentence B has to be foreign; without a foreign document A is halved.
    cut = jnp.where(sentences > 1, cut, jnp.where(found, stop, (stop + 1) // 2))
    a = cut - begin
    random = found & ((sentences == 1) | jax.random.bernoulli(keys[3], self.random))

    # B of the foreign text: whole sentences from a random one on, as many tokens as are missing.
    wanted = 1 if self.unit == 'sentence' else jnp.maximum(target - a, 1)
    foreign_size = (foreign['sentences'] > 0).sum()
    foreign_sentences = foreign['sentences'].max()
    before = jax.random.randint(keys[4], (), 0, jnp.maximum(foreign_sentences, 1))
    start = sentence_end(foreign['sentences'], before)
    reached = foreign['sentences'][jnp.clip(start + wanted - 1, 0, foreign_size - 1)]
    b_start = jnp.where(random, length + start, cut)
    b = jnp.where(random, sentence_end(foreign['sentences'], reached) - start, stop - cut)
    # Both texts in one array: one look-up instead of two.
    both = {name: jnp.concatenate([own[name], foreign[name]]) for name in ('tokens', 'words')}
    row = join_pair(keys[5], both, (begin, a), (b_start, b), budget, vocab, self.separators)
    return {**row, 'nsp': random.astype(jnp.int32)}


@dataclasses.dataclass(frozen=True)
class SentenceOrder(RowBuilder):
  """Build [CLS] A [SEP] B [SEP] for sentence-order prediction, SOP (Lan et al. 2020, section 3.1).

  The task is whether B comes before A in the text. A and B are whole consecutive sentences, cut
  as for NextSentence, and swapped in half of the sequences. The released
  create_pretraining_data.py differs where text has no second sentence: it takes B from another
  document and labels the pair as swapped. Here the sentence is halved, so that the label is
  always about order.
  """

  limits = intervals(swapped='[0, 1]', short='[0, 1]')

  swapped: float = 0.5
  """Probability that B comes before A."""
  short: float = 0.1
  """Probability of a random shorter target length (short_seq_prob)."""
  slack: int = 16
  """Tokens of text read beyond the sequence length, so that sequences are filled and cut instead of
  padded."""

  pair_task = 'sop'
  one_document = True

  def text_length(self, length: int) -> int:
    """Return `length` without special tokens, plus `slack` tokens in which a sequence may begin
    later."""
    return length - 3 + self.slack

  def arrange(self, keys, windows, vocab):
    """Build sequences [batch, length], and sop [batch]: 1 where the two parts are swapped."""
    own = {name: windows[name] for name in ('tokens', 'sentences', 'words')}
    return jax.vmap(lambda *args: self.build_row(*args, vocab=vocab))(keys, own)

  def build_row(self, key, own, vocab):
    """Build one sequence; own: tokens, sentences and words of the window, [text]."""
    budget = own['tokens'].shape[0] - self.slack
    keys = jax.random.split(key, 6)
    own = crop_at_random_sentence(keys[5], own, budget)
    target, size, sentences, a = draw_split(keys[:3], own['sentences'], budget, self.short)
    a = jnp.where(sentences > 1, a, (size + 1) // 2)
    a = self.first_size(key, own['sentences'], target, sentences, a)
    swap = jax.random.bernoulli(keys[3], self.swapped)
    head, tail = jnp.array([0, a]), jnp.stack([a, size - a])
    first, second = jnp.where(swap, tail, head), jnp.where(swap, head, tail)
    row = join_pair(keys[4], own, first, second, budget, vocab)
    return {**row, 'sop': swap.astype(jnp.int32)}

  def first_size(self, key, sentences, target, number, cut):
    """Return the number of tokens of the first text: `cut`, between any two sentences.

    Args:
      key: key of the example.
      sentences: sentence of each token, [text].
      target: length to aim at.
      number: how many sentences of the text are used.
      cut: tokens of the first text by default.
    """
    del key, sentences, target, number
    return cut


@dataclasses.dataclass(frozen=True)
class Consecutive(SentenceOrder):
  """Build [CLS] A [SEP] B [SEP] of two consecutive texts in order, without a task (ELECTRA).

  With `cut` half and `whole` 0.1 the two texts are those of google-research/electra,
  build_pretraining_dataset.py. There are two differences: there a later sentence that is short
  enough still joins the first text, and text that is too long loses its end.
  """

  limits = intervals(whole='[0, 1]')

  swapped: float = 0.0
  """Probability that B comes before A."""
  short: float = 0.05
  """Probability of a random shorter target length."""
  cut: Literal['anywhere', 'half'] = 'anywhere'
  """Where the first text ends: after any sentence, or at the sentence that reaches half of the
  length, with or without that sentence."""
  whole: float = 0.0
  """Probability of one text instead of two: [CLS] A [SEP]."""

  pair_task = None

  def first_size(self, key, sentences, target, number, cut):
    """Return the number of tokens of the first text, or with probability `whole` of all of the
    text."""
    keys = jax.random.split(jax.random.fold_in(key, 6))  # fold_in of 0 to 5 gives the other keys
    size = sentence_end(sentences, number)
    if self.cut == 'half':
      # Whole sentences below half of the length, and by chance the next.
      full = sentences[jnp.clip(target // 2 - 1, 0, sentences.shape[0] - 1)] - 1
      full = jnp.where(target // 2 > size, number, full)
      cut = sentence_end(sentences, jnp.maximum(full + jax.random.bernoulli(keys[0]), 1))
      cut = jnp.minimum(cut, size)
    return jnp.where(jax.random.bernoulli(keys[1], self.whole), size, cut)

  def build_row(self, key, own, vocab):
    """Build one sequence of two parts in their order, without a label."""
    row = super().build_row(key, own, vocab)
    del row['sop']
    return row


def crop_at_random_sentence(key, text, budget: int):
  """Start a text of more than `budget` tokens at one of its first sentences, at random.

  The last choice is the end of the text, whatever sentence that cuts: what a sequence leaves out is
  read in another epoch.

  Args:
    key: random key.
    text: tokens, sentences and words, [text].
    budget: tokens of text of a sequence.

  Returns:
    the same arrays from the chosen sentence on; sentences are numbered from 1 again.
  """
  sentences = text['sentences']
  spare = jnp.maximum((sentences > 0).sum() - budget, 0)
  last = jnp.where(spare > 0, jnp.minimum(sentences[spare - 1] + 1, sentences.max()), 1)
  first = jax.random.randint(key, (), 1, last + 1)
  offset = jnp.minimum(sentence_end(sentences, first - 1), spare)
  place = jnp.arange(sentences.shape[0]) + offset
  text = {name: x.at[place].get(mode='fill', fill_value=0) for name, x in text.items()}
  later = text['sentences']
  return {**text, 'sentences': jnp.where(later > 0, later - later[0] + 1, 0)}


def draw_split(keys, sentences, budget: int, short: float):
  """Sample a target length, and the sentence boundary that splits the text into two parts.

  The sentence in which the target length is reached is the last. The cut is between two sentences
  at random.

  Args:
    keys: three random keys.
    sentences: sentence of each token, [text].
    budget: tokens of text of a sequence.
    short: probability of a shorter target length.

  Returns:
    (target length, tokens of the whole sentences that reach it, number of these sentences, tokens
    of the first of two parts of them).
  """
  shorter = jax.random.bernoulli(keys[0], short)
  target = jnp.where(shorter, jax.random.randint(keys[1], (), 2, budget + 1), budget)
  size, number = (sentences > 0).sum(), sentences.max()
  number = jnp.where(size > target, sentences[target - 1], number)
  cut = jax.random.randint(keys[2], (), 1, jnp.maximum(number, 2))
  return target, sentence_end(sentences, number), number, sentence_end(sentences, cut)


def join_pair(key, text, first, second, budget: int, vocab, separators: int = 1):
  """Join two texts as [CLS] first [SEP] second [SEP], and truncate them to fit.

  Where they are too long, the longer one loses tokens, at either end at random.

  Args:
    key: random key.
    text: tokens and words, [text].
    first: (start, size) of the first text in `text`.
    second: the same of the second; of size 0: one text alone.
    budget: tokens of text of a sequence.
    vocab: the tokenizer's `Vocab`.
    separators: number of separators between the two.

  Returns:
    tokens, segments, types and words [budget + 2 + separators].
  """
  (a_start, a), (b_start, b) = first, second
  shorter_a = jnp.minimum(a, jnp.maximum(budget - b, (budget + 1) // 2))
  keep_a = jnp.where(a + b > budget, shorter_a, a)
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
  # Words of the second text are numbered after all those of the first.
  words = text['words'][place] + jnp.where(in_b, text['words'].shape[0], 0)
  return dict(
      tokens=row, segments=((at <= end) & full).astype(jnp.int32),
      types=((at >= middle) & (at <= end)).astype(jnp.int32),
      words=jnp.where(inside & full, words, 0))


def sentence_end(sentences, last):
  """Count the tokens up to the end of sentence `last`; sentences [text]: 1, 2, ..., 0 at the
  end."""
  return ((sentences > 0) & (sentences <= last)).sum()


def draw_other_document(keys, documents, full):
  """Sample for each row another row of the batch that is of another document.

  The first of four random rows that is suitable is taken: batch x batch comparisons would be too
  many for large batches.

  Args:
    keys: [batch].
    documents: document of each row, [batch].
    full: whether a row has text, [batch].

  Returns:
    (another row for each row [batch], whether it has text of another document [batch]).
  """
  rows = documents.shape[0]
  def draw(key, row):
    others = (row + jax.random.randint(key, (4,), 1, max(rows, 2))) % rows
    good = (documents[others] != documents[row]) & full[others]
    return others[jnp.argmax(good)], good.any()
  return jax.vmap(draw)(keys, jnp.arange(rows))
