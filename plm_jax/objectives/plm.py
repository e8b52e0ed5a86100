"""Permutation language modelling: tokens predicted one after another, in an order that is drawn anew for every row."""
from collections.abc import Mapping
import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.heads import TiedTokens
from plm_jax.objectives import Objective, noise
from plm_jax.objectives.mlm import classification
from plm_jax.objectives.pairs import other_document


@dataclasses.dataclass(frozen=True)
class PermutationLM(Objective):
  """Yang et al. 2019, sections 2.2 to 2.5, by the released data_utils.py where the paper leaves it open.

  A row of 512 is 256 tokens of text, then A [SEP] B [SEP] [CLS]. A goes on where the first part ends and stops at the
  end of a sentence; B goes on from A or, half of the time, comes from another document. In each of the two parts one
  of six tokens is predicted: spans of 1 to 5 tokens that begin with a word, in a stretch of text six times as long,
  and single tokens up to the number. Tokens that are not predicted come first in the order of factorisation and see
  each other; predicted and special tokens follow in random order. The first part sees nothing of the second. Of half
  of the rows the text runs backwards, special tokens excepted, with distances of the other sign.

  Memory. The released code keeps the hidden states of the last 384 tokens of the previous row, computed with older
  parameters, with that row's order and its memory in turn, and reads its corpus in order. Here a window holds the text
  that the memory is of, and the model computes it in the same step, in one stream and without gradient: a batch stays a
  function of seed and step, and there is no state to save. The memory is of the parameters of the step, all of its
  tokens see each other, none sees a memory further back, and it is of the row's document alone. It costs a forward pass
  over 384 tokens more, about a seventh of a step. Rows begin where their text fits behind the memory, which comes first
  in text that runs forwards and last in text that runs backwards: so every token is predicted in some epoch.
  """

  limits = within(
      group='[2, inf)', lengths='[0, 1]', reuse='(0, 1)', order='[1, inf)', memory='[0, 100]', random='[0, 1]',
      backward='[0, 1]')

  group: int = 6
  """K, one of so many tokens is predicted; and how many times as long the text is that a span is drawn from"""
  lengths: tuple[float, ...] = (60 / 137, 30 / 137, 20 / 137, 15 / 137, 12 / 137)
  """probabilities of spans of 1, 2, ... tokens; proportional to 1/n as released, where the paper names none"""
  reuse: float = 0.5
  """share of a row that is the first part (reuse_len, 256 of 512)"""
  order: int = 256
  """tokens whose order is drawn together; the next ones follow behind (perm_size)"""
  memory: float = 0.75
  """tokens of memory, as a share of the row (mem_len, 384 of 512); 0: none"""
  random: float = 0.5
  """probability that B comes from another document"""
  backward: float = 0.5
  """probability that the text runs backwards (bi_data)"""

  def conflict(self, option):
    """Says that the probabilities of lengths do not sum to 1."""
    if not math.isclose(sum(self.lengths), 1, abs_tol=1e-3):
      return f'{option("lengths")} are probabilities and sum to 1, got {self.lengths}'
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    """Cross-entropy of the predicted tokens."""
    return {'plm': 1.0}

  @property
  def one_document(self) -> bool:
    """True: both parts of a row are sentences of one document, or of two."""
    return True

  def window(self, length: int) -> int:
    """Returns the tokens of memory and of the row, less its three special ones."""
    return self.remembered(length) + length - 3

  def remembered(self, length: int) -> int:
    """Returns the tokens of memory before a row of `length` tokens."""
    return int(self.memory * length)

  def predictions(self, length: int) -> int:
    """Returns M, the most positions predicted in a row of `length` tokens (85 of 512)."""
    return max(1, length // self.group)

  def corrupt(self, key, windows, vocab):
    """Makes tokens, segments, types, ranks [B, L]; positions, labels, weights [B, M]; backward [B]; memory_tokens and
    memory_segments [B, K'], which end where the row begins. Types are 0 up to A's [SEP], 1 up to B's, 2 for [CLS]."""
    full = (windows['segments'] > 0).any(-1)
    keys = jax.vmap(lambda k: jax.random.split(k, 3))(noise.example_keys(key, windows))
    other, found = other_document(keys[:, 0], windows['document'], full)
    own = {name: windows[name] for name in ('tokens', 'sentences', 'words')}
    foreign = {name: x[other] for name, x in own.items()}
    # The inverse of `window`.
    length = math.ceil(round((windows['tokens'].shape[1] + 3) / (1 + self.memory), 6))
    row = functools.partial(self.row, length=length, vocab=vocab)
    rows = jax.vmap(row)(keys[:, 1], own, foreign, found)
    targets = functools.partial(self.targets, most=self.predictions(length))
    return rows | jax.vmap(targets)(
        keys[:, 2], rows['tokens'], rows['segments'], rows['backward'], rows.pop('words'), rows.pop('first'))

  def row(self, key, own, foreign, found, length, vocab):
    """Makes one row, in the order in which it is read; own and foreign hold tokens, sentences, words [T]. -> what
    `corrupt` gives, with words [L], 0 at special tokens, and `first`, the length of the first part."""
    keys = jax.random.split(key, 4)
    backward = jax.random.bernoulli(keys[0], self.backward)
    own, size = reading_order(own, backward)
    foreign, foreign_size = reading_order(foreign, backward)
    window, budget, remembered = own['tokens'].shape[0], length - 3, self.remembered(length)
    text = jnp.minimum(size, budget)
    start = size - text
    first = text * int(self.reuse * length) // budget

    # A ends at the end of a sentence; in the middle of its text where there is but one.
    at = jnp.arange(window)
    sentences = own['sentences']
    cuts = (at > start + first) & (at < size) & (sentences != jnp.roll(sentences, 1))
    drawn = jax.random.categorical(keys[1], jnp.where(cuts, 0.0, -jnp.inf))
    a = jnp.where(cuts.any(), drawn - start, first + (text - first + 1) // 2)
    random = found & jax.random.bernoulli(keys[2], self.random)
    place = jax.random.randint(keys[3], (), 0, jnp.maximum(foreign_size, 1))
    foreign_start = jnp.argmax(foreign['sentences'] == foreign['sentences'][place])
    b = jnp.where(random, jnp.minimum(budget - a, foreign_size - foreign_start), text - a)

    at = jnp.arange(length)
    end = a + 1 + b  # of B: its [SEP], which [CLS] follows
    in_b = (at > a) & (at < end)
    inside = (at < a) | in_b
    place = jnp.where(in_b, at - a - 1 + jnp.where(random, window + foreign_start, start + a), start + at)
    def pick(name):
      return jnp.concatenate([own[name], foreign[name]])[place]
    tokens = jnp.where(inside, pick('tokens'), vocab.pad)
    tokens = jnp.where((at == a) | (at == end), vocab.sep, jnp.where(at == end + 1, vocab.cls, tokens))
    full = size > 0
    row = dict(
        tokens=tokens, segments=((at <= end + 1) & full).astype(jnp.int32),
        types=(at > a).astype(jnp.int32) + (at > end), backward=backward, first=first,
        # Words of a foreign B count on behind all words of the row's own text.
        words=jnp.where(inside & full, pick('words') + jnp.where(in_b & random, window, 0), 0))
    if not remembered:
      return row
    before = start - remembered + jnp.arange(remembered)
    return row | dict(memory_tokens=jnp.where(before >= 0, own['tokens'][before], vocab.pad),
                      memory_segments=(before >= 0).astype(jnp.int32))

  def targets(self, key, tokens, segments, backward, words, first, most):
    """Chooses, in one row [L], its ranks [L], and positions, labels and weights [M]."""
    keys = jax.random.split(key, 3)
    at, size, text = jnp.arange(tokens.shape[0]), (segments > 0).sum(), words > 0
    second = at >= first
    number = jnp.where(first > 0, jnp.clip(jnp.round(first / self.group), 1, most - 1), 0).astype(jnp.int32)
    rest = (text & second).sum()
    others = jnp.where(rest > 0, jnp.clip(jnp.round(rest / self.group), 1, most - number), 0).astype(jnp.int32)

    # Spans are laid in the direction of the text, whichever way it is read: words begin with their first token.
    place = jnp.where(backward, (size - 1 - at) % tokens.shape[0], at)
    starts = words[place] != jnp.where(at > 0, words[jnp.roll(place, 1)], 0)
    bounds = jnp.stack([jnp.stack([jnp.zeros_like(first), first]), jnp.stack([first, size])])
    bounds = jnp.where(backward, size - bounds[:, ::-1], bounds)

    def choose(key, inside, wanted, begin, end):
      span_key, fill_key = jax.random.split(key)
      spans = self.spans(span_key, starts, begin, end, wanted, most)[place] & inside
      return spans | noise.choose_tokens(fill_key, inside & ~spans, wanted - spans.sum())

    parts = jnp.stack([text & ~second, text & second])
    chosen = jax.vmap(choose)(keys[:2], parts, jnp.stack([number, others]), bounds[:, 0], bounds[:, 1]).any(0)

    orders = jax.vmap(lambda k: jax.random.permutation(k, min(self.order, tokens.shape[0])))(
        jax.random.split(keys[2], 2))
    ranks = jnp.where(second, 2 * tokens.shape[0] + ranks_of(chosen | ~text, orders[1], at - first),
                      ranks_of(chosen | ~text, orders[0], at))
    positions, weights = noise.positions_of(chosen, most)
    return dict(ranks=ranks, positions=positions, labels=tokens[positions], weights=weights)

  def spans(self, key, starts, begin, end, number, most):
    """Chooses spans, of starts [L], True where a word begins, in the text from `begin` to `end` -> bool [L], at most
    `number` tokens.

    One span after another: its length n, then where it lies in the next `group` times n tokens, then the next word's
    first token from there on. It ends with the text, so that the last tokens are reached by single ones alone.
    """
    size = starts.shape[0]
    following = jax.lax.cummin(jnp.where(starts, jnp.arange(size), size), reverse=True)
    following = jnp.append(following, size)
    length_key, place_key = jax.random.split(key)
    lengths = 1 + jax.random.categorical(length_key, jnp.log(jnp.array(self.lengths)), shape=(most,))
    shares = jax.random.uniform(place_key, (most,))

    def lay(carry, drawn):
      at, left = carry
      length, share = drawn
      length = jnp.minimum(length, left)
      before = (share * length * self.group).astype(jnp.int32)
      start = following[jnp.minimum(at + before, size)]
      stop = start + length
      fits = (length > 0) & (stop < end)
      carry = jnp.where(fits, stop + length * self.group - before, size), jnp.where(fits, left - length, 0)
      return carry, (start, jnp.where(fits, length, 0))

    _, (begins, taken) = jax.lax.scan(lay, (begin, number), (lengths, shares))
    # A span of no tokens ends where it begins.
    return jnp.cumsum(jnp.zeros(size + 1, jnp.int32).at[begins].add(1).at[begins + taken].add(-1))[:size] > 0

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns `mlm`, the token table as output matrix."""
    del model
    return {'mlm': TiedTokens()}

  def loss(self, outputs, batch):
    """Returns plm and plm_accuracy."""
    return classification('plm', outputs['mlm'], batch['labels'], batch['weights'])

  def answers(self, outputs, batch):
    """Returns the predicted tokens."""
    del outputs
    return {'plm': (batch['labels'], batch['weights'])}

  def step_flops(self, model, length: int) -> int:
    """Counts the FLOPs forward and twice that for the row, and the forward pass that makes its memory, for which the
    last layer is not needed."""
    memory, layers = self.remembered(length), model.stack.layers
    past = model.forward_flops(memory, 0) * (layers - 1) // layers
    return 3 * model.forward_flops(length, self.predictions(length), memory) + past


def ranks_of(late, order, at):
  """Returns the places in the order of factorisation: 0 where late [L] is False, which comes first; else from 1 on, by
  the permutation order [P] of every P tokens. at [L]: places in the text, from 0."""
  return jnp.where(late, 1 + order[at % order.shape[0]] + at // order.shape[0] * order.shape[0], 0)


def reading_order(text, backward):
  """Turns arrays [T], sentences 0 behind the end, backwards up to the end if `backward` -> the arrays, and their
  length."""
  size = (text['sentences'] > 0).sum()
  at = jnp.arange(text['sentences'].shape[0])
  order = jnp.where(backward & (at < size), size - 1 - at, at)
  return {name: x[order] for name, x in text.items()}, size
