"""Permutation language modeling (XLNet): tokens predicted in a random factorization order."""
from collections.abc import Mapping
import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.heads import TiedLMHead
from plm_jax.objectives import Requirements, TextLayout, corruption
from plm_jax.objectives.mlm import TokenPrediction
from plm_jax.objectives.row_builders import draw_other_document
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class PermutationLM(TokenPrediction):
  """Permutation language modeling (XLNet: Yang et al. 2019, sections 2.2 to 2.5).

  Follows the released data_utils.py where the paper leaves a choice open.

  Sequences. A sequence of 512 is 256 tokens of text, then A [SEP] B [SEP] [CLS]. A continues
  where the first part ends, and stops at the end of a sentence. B continues from A or, half of
  the time, comes from another document. In half of the sequences the text runs backwards, except
  for special tokens, with relative distances of the other sign.

  Targets. In each of the two parts one of six tokens is predicted: spans of 1 to 5 tokens that
  begin with a word, in a stretch of text six times as long, and single tokens up to the number.

  Factorization order. Tokens that are not predicted come first and attend to each other.
  Predicted and special tokens follow in random order. The first part does not attend to the
  second.

  Memory. The released code caches the hidden states of the last 384 tokens of the previous sequence
  (segment recurrence). These are computed with older parameters and with that sequence's order and
  memory, and the corpus is read in order. Here a window holds the text of the memory too. The model
  computes it in the same step, in one stream and without gradient. A batch stays a function of seed
  and step, and there is no state to save. The memory has the parameters of the step, all of its
  tokens attend to each other, none attends to an earlier memory, and it is of the sequence's
  document alone. It costs a forward pass over 384 more tokens, about a seventh of a step.
  Sequences begin where their text fits after the memory. The memory comes first in text that runs
  forwards and last in text that runs backwards, so every token is predicted in some epoch.
  """

  predictions = ('plm', 'mlm', 'weights'),
  limits = intervals(
      group='[2, inf)', lengths='[0, 1]', reuse='(0, 1)', order='[1, inf)', memory='[0, 100]',
      random='[0, 1]', backward='[0, 1]')

  group: int = 6
  """K: one of K tokens is predicted, and a span is sampled from text K times as long."""
  lengths: tuple[float, ...] = (60 / 137, 30 / 137, 20 / 137, 15 / 137, 12 / 137)
  """Probabilities of spans of 1, 2, ... tokens. They are proportional to 1/n as released; the paper
  names none."""
  reuse: float = 0.5
  """Fraction of a sequence that is the first part (reuse_len, 256 of 512)."""
  order: int = 256
  """Number of tokens whose order is sampled together; the next ones follow after them
  (perm_size)."""
  memory: float = 0.75
  """Tokens of memory, as a fraction of the sequence (mem_len, 384 of 512). 0: no memory."""
  random: float = 0.5
  """Probability that B comes from another document."""
  backward: float = 0.5
  """Probability that the text runs backwards (bi_data)."""

  def conflict(self, option):
    return corruption.describe_distribution(option, self.lengths)

  @property
  def terms(self) -> Mapping[str, float]:
    return {'plm': 1.0}

  @property
  def layout(self) -> TextLayout:
    return TextLayout(one_document=True)

  @property
  def requirements(self) -> Requirements:
    return Requirements(('XLNetConfig',))

  def text_length(self, length: int) -> int:
    """Return the tokens of memory and of the sequence without its three special tokens."""
    return self.memory_length(length) + length - 3

  def memory_length(self, length: int) -> int:
    """Return the number of tokens of memory before a sequence of `length` tokens."""
    return int(self.memory * length)

  def max_predictions(self, length: int) -> int:
    """Return the maximum number of predicted positions per sequence (85 of 512)."""
    return max(1, length // self.group)

  def corrupt(self, key, windows, vocab):
    """Build sequences, their factorization order and their targets.

    Returns:
      tokens, segments, types, ranks [batch, length]; positions, labels, weights [batch,
      predictions]; backward [batch]; memory_tokens and memory_segments [batch, memory], which end
      where the sequence begins. Types are 0 up to A's [SEP], 1 up to B's, 2 for [CLS].
    """
    full = (windows['segments'] > 0).any(-1)
    keys = corruption.split_example_keys(key, windows, 3)
    other, found = draw_other_document(keys[:, 0], windows['document'], full)
    own = {name: windows[name] for name in ('tokens', 'sentences', 'words')}
    foreign = {name: x[other] for name, x in own.items()}
    # The inverse of `text_length`.
    length = math.ceil(round((windows['tokens'].shape[1] + 3) / (1 + self.memory), 6))
    build = functools.partial(self.build_row, length=length, vocab=vocab)
    rows = jax.vmap(build)(keys[:, 1], own, foreign, found)
    words, first = rows.pop('words'), rows.pop('first')
    choose = functools.partial(self.choose_targets, most=self.max_predictions(length))
    targets = jax.vmap(choose)(
        keys[:, 2], rows['tokens'], rows['segments'], rows['backward'], words, first)
    return rows | targets

  def build_row(self, key, own, foreign, found, length, vocab):
    """Build one sequence, in the order in which it is read.

    Args:
      key: key of the example.
      own: tokens, sentences and words of the window, [text].
      foreign: the same of another window.
      found: whether `foreign` is of another document.
      length: sequence length.
      vocab: the tokenizer's `Vocab`.

    Returns:
      what `corrupt` returns, with words [length], 0 at special tokens, and `first`, the length of
      the first part.
    """
    keys = jax.random.split(key, 4)
    backward = jax.random.bernoulli(keys[0], self.backward)
    own, size = orient_text(own, backward)
    foreign, foreign_size = orient_text(foreign, backward)
    window, budget, remembered = own['tokens'].shape[0], length - 3, self.memory_length(length)
    text = jnp.minimum(size, budget)
    start = size - text
    first = text * int(self.reuse * length) // budget

    # A ends at the end of a sentence; in the middle of its text where there is but one.
    at = jnp.arange(window)
    sentences = own['sentences']
    cuts = (at > start + first) & (at < size) & (sentences != jnp.roll(sentences, 1))
    drawn = jax.random.categorical(keys[1], jnp.where(cuts, 0.0, -jnp.inf))
    a = jnp.where(cuts.any(), drawn - start, first + (text - first + 1) // 2)

    # B continues from A, or is of the other document, from a random sentence on.
    random = found & jax.random.bernoulli(keys[2], self.random)
    place = jax.random.randint(keys[3], (), 0, jnp.maximum(foreign_size, 1))
    foreign_start = jnp.argmax(foreign['sentences'] == foreign['sentences'][place])
    b = jnp.where(random, jnp.minimum(budget - a, foreign_size - foreign_start), text - a)

    # A [SEP] B [SEP] [CLS].
    at = jnp.arange(length)
    end = a + 1 + b  # of B: its [SEP], which [CLS] follows
    in_b = (at > a) & (at < end)
    inside = (at < a) | in_b
    b_place = at - a - 1 + jnp.where(random, window + foreign_start, start + a)
    place = jnp.where(in_b, b_place, start + at)
    def pick(name):
      return jnp.concatenate([own[name], foreign[name]])[place]
    tokens = jnp.where(inside, pick('tokens'), vocab.pad)
    specials = jnp.where(at == end + 1, vocab.cls, tokens)
    tokens = jnp.where((at == a) | (at == end), vocab.sep, specials)
    full = size > 0
    # Words of a foreign B are numbered after all words of the sequence's own text.
    words = pick('words') + jnp.where(in_b & random, window, 0)
    row = dict(
        tokens=tokens, segments=((at <= end + 1) & full).astype(jnp.int32),
        types=(at > a).astype(jnp.int32) + (at > end), backward=backward, first=first,
        words=jnp.where(inside & full, words, 0))
    if not remembered:
      return row
    before = start - remembered + jnp.arange(remembered)
    memory = jnp.where(before >= 0, own['tokens'][before], vocab.pad)
    return row | dict(memory_tokens=memory, memory_segments=(before >= 0).astype(jnp.int32))

  def choose_targets(self, key, tokens, segments, backward, words, first, most):
    """Sample the targets and the factorization order of one sequence [length].

    Returns:
      ranks [length]; positions, labels and weights [predictions].
    """
    keys = jax.random.split(key, 3)
    at, size, text = jnp.arange(tokens.shape[0]), (segments > 0).sum(), words > 0
    second = at >= first
    number = jnp.clip(jnp.round(first / self.group), 1, most - 1)
    number = jnp.where(first > 0, number, 0).astype(jnp.int32)
    rest = (text & second).sum()
    others = jnp.clip(jnp.round(rest / self.group), 1, most - number)
    others = jnp.where(rest > 0, others, 0).astype(jnp.int32)

    # Spans follow the direction of the text, whichever way it is read: words begin with their first
    # token.
    place = jnp.where(backward, (size - 1 - at) % tokens.shape[0], at)
    starts = words[place] != jnp.where(at > 0, words[jnp.roll(place, 1)], 0)
    bounds = jnp.stack([jnp.stack([jnp.zeros_like(first), first]), jnp.stack([first, size])])
    bounds = jnp.where(backward, size - bounds[:, ::-1], bounds)

    def choose(key, inside, wanted, begin, end):
      span_key, fill_key = jax.random.split(key)
      spans = self.choose_spans(span_key, starts, begin, end, wanted, most)[place] & inside
      return spans | corruption.choose_tokens(fill_key, inside & ~spans, wanted - spans.sum())

    parts = jnp.stack([text & ~second, text & second])
    numbers = jnp.stack([number, others])
    chosen = jax.vmap(choose)(keys[:2], parts, numbers, bounds[:, 0], bounds[:, 1]).any(0)

    orders = jax.vmap(lambda k: jax.random.permutation(k, min(self.order, tokens.shape[0])))(
        jax.random.split(keys[2], 2))
    late = chosen | ~text
    second_ranks = 2 * tokens.shape[0] + factorization_ranks(late, orders[1], at - first)
    ranks = jnp.where(second, second_ranks, factorization_ranks(late, orders[0], at))
    positions, weights = corruption.select_positions(chosen, most)
    return dict(ranks=ranks, positions=positions, labels=tokens[positions], weights=weights)

  def choose_spans(self, key, starts, begin, end, number, most):
    """Sample spans in the text from `begin` to `end`, at most `number` tokens in all.

    One span follows another: its length n is sampled, then where it lies in the next `group`
    times n tokens, then it moves to the next word's first token. The last one ends with the text,
    so that the last tokens are reached by single ones alone.

    Args:
      key: random key.
      starts: True where a word begins, [length].
      begin: first position.
      end: position after the last.
      number: budget of tokens.
      most: maximum number of spans.

    Returns:
      bool [length].
    """
    size = starts.shape[0]
    following = jax.lax.cummin(jnp.where(starts, jnp.arange(size), size), reverse=True)
    following = jnp.append(following, size)
    length_key, place_key = jax.random.split(key)
    log_lengths = jnp.log(jnp.array(self.lengths))
    lengths = 1 + jax.random.categorical(length_key, log_lengths, shape=(most,))
    shares = jax.random.uniform(place_key, (most,))

    def lay(carry, drawn):
      at, left = carry
      length, share = drawn
      length = jnp.minimum(length, left)
      before = (share * length * self.group).astype(jnp.int32)
      start = following[jnp.minimum(at + before, size)]
      stop = start + length
      fits = (length > 0) & (stop < end)
      at = jnp.where(fits, stop + length * self.group - before, size)
      return (at, jnp.where(fits, left - length, 0)), (start, jnp.where(fits, length, 0))

    _, (begins, taken) = jax.lax.scan(lay, (begin, number), (lengths, shares))
    # A span of no tokens ends where it begins.
    edges = jnp.zeros(size + 1, jnp.int32).at[begins].add(1).at[begins + taken].add(-1)
    return jnp.cumsum(edges)[:size] > 0

  def heads(self, model) -> dict[str, nn.Module]:
    del model
    return {'mlm': TiedLMHead()}

  def step_flops(self, model, length: int) -> int:
    """Count the FLOPs of a step: forward and backward of the sequence, and forward of its memory.

    The memory does not need the last layer.
    """
    memory, layers = self.memory_length(length), model.stack.layers
    past = model.forward_flops(memory, 0) * (layers - 1) // layers
    return 3 * model.forward_flops(length, self.max_predictions(length), memory) + past


def factorization_ranks(late, order, at):
  """Compute the place of each token in the factorization order.

  Args:
    late: False for tokens that come first, at rank 0, [length].
    order: permutation of every P late tokens, [P].
    at: position in the text, from 0, [length].

  Returns:
    ranks [length].
  """
  size = order.shape[0]
  return jnp.where(late, 1 + order[at % size] + at // size * size, 0)


def orient_text(text, backward):
  """Reverse a text up to its end if `backward`.

  Args:
    text: arrays [text], of which sentences are 0 after the end.
    backward: scalar bool.

  Returns:
    (the arrays, the length of the text).
  """
  size = (text['sentences'] > 0).sum()
  at = jnp.arange(text['sentences'].shape[0])
  order = jnp.where(backward & (at < size), size - 1 - at, at)
  return {name: x[order] for name, x in text.items()}, size
