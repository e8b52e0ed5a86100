"""Corruption shared by objectives: sample and replace masked tokens and spans.

Functions work on one example at a time (vmap them) and are keyed by example.
"""
from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from plm_jax.layers.kernels import cpu, threefry

UNROLL = 4
"""Loop steps per iteration of sequential choices: a step is less work than an iteration costs."""


def example_keys(key, windows, duplicates: int = 0):
  """Derive one random key per example, a function of (key, corpus, index, epoch) alone.

  Args:
    key: random key of the run and purpose.
    windows: corpus, index and epoch of each example, [batch].
    duplicates: k > 0 counts the epoch modulo k: static corruption, as data written out k times
      has it.

  Returns:
    keys [batch]. On one CPU they are of a faster form of JAX's generator, which draws the same
    random numbers (`threefry.unroll_generator`).
  """
  epoch = windows['epoch'] % duplicates if duplicates else windows['epoch']
  if cpu.is_single_cpu():
    key = threefry.unroll_generator(key)
  def fold(corpus, index, epoch):
    folded = jax.random.fold_in(jax.random.fold_in(key, corpus), index)
    return jax.random.fold_in(folded, epoch)
  return jax.vmap(fold)(windows['corpus'], windows['index'], epoch)


def split_example_keys(key, windows, number: int, duplicates: int = 0):
  """Derive `number` random keys per example, keys [batch, number]; see `example_keys`."""
  keys = example_keys(key, windows, duplicates)
  return jax.vmap(lambda k: jax.random.split(k, number))(keys)


def most_predictions(length: int, *mask_rates: float | None) -> int:
  """Return the maximum number of predictions in `length` tokens at any of these mask rates."""
  return math.ceil(round(max(rate or 0 for rate in mask_rates) * length, 6))


def draw_tokens(keys, windows, number: int):
  """Sample `number` tokens per example, uniformly from all tokens of the batch's text.

  The batch stands for the corpus, from which facebookresearch/SpanBERT, data/masking.py, samples.

  Args:
    keys: one key per example, [batch].
    windows: tokens and segments, [batch, text].
    number: tokens to sample per example.

  Returns:
    token ids [batch, number].
  """
  sizes = (windows['segments'] > 0).sum(-1)
  ends = jnp.cumsum(sizes)
  def draw(key):
    place = jax.random.randint(key, (number,), 0, jnp.maximum(ends[-1], 1))
    row = jnp.minimum(jnp.searchsorted(ends, place, side='right'), len(ends) - 1)
    return windows['tokens'][row, place - (ends - sizes)[row]]
  return jax.vmap(draw)(keys)


def count_tokens(windows, size: int):
  """Count how often each of `size` token ids occurs in the batch's text, int32 [size].

  The batch stands for the corpus.
  """
  ids = jnp.where(windows['segments'] > 0, windows['tokens'], size)
  return jnp.zeros(size, jnp.int32).at[ids.reshape(-1)].add(1, mode='drop')


def choose_tokens(key, candidate, number, weights=None):
  """Sample `number` tokens without replacement where candidate is True.

  Tokens with the lowest random scores are chosen, ties to the left. The `number`-th lowest score is
  found bit by bit. This is many times faster on a CPU than sorting and, unlike `top_k`, needs
  nothing of rows on other devices. With weights, scores are the arrival times of exponential
  clocks, and positive floats are in the order of their bits.

  Args:
    key: random key.
    candidate: bool [length].
    number: how many tokens to choose.
    weights: positive relative weights, [length]: each choice is proportional to the weights of the
      tokens left. None: uniform.

  Returns:
    bool [length].
  """
  if weights is None:
    bits = 23
    drawn = jax.random.bits(key, candidate.shape, jnp.uint32) >> (32 - bits)
  else:
    bits = 31
    times = jax.random.exponential(key, candidate.shape, jnp.float32) / weights
    drawn = jax.lax.bitcast_convert_type(jnp.minimum(times, 3e38), jnp.uint32)
  scores = jnp.where(candidate, drawn, jnp.uint32(1 << bits))
  def refine(step, limit):
    higher = limit | (1 << (bits - 1)) >> step
    count = cpu.sum_rows((scores < higher).astype(jnp.int32))
    return jnp.where(count < number, higher, limit)
  limit = jax.lax.fori_loop(0, bits, refine, jnp.uint32(0))
  lower, equal = scores < limit, scores == limit
  return candidate & (lower | (equal & (jnp.cumsum(equal) <= number - lower.sum())))


def choose_repeatedly(key, candidate, number, most: int):
  """Sample tokens with replacement (google-research/electra, pretrain/pretrain_helpers.py, mask).

  Args:
    key: random key.
    candidate: bool [length], True where a token may be chosen.
    number: how many samples to take, at most `most`.
    most: static bound of `number`.

  Returns:
    how often each token was sampled, float32 [length].
  """
  size = candidate.shape[0]
  places, _ = select_positions(candidate, size)
  count = candidate.sum()
  drawn = places[jax.random.randint(key, (most,), 0, jnp.maximum(count, 1))]
  used = jnp.arange(most) < jnp.where(count > 0, number, 0)
  return jnp.zeros(size).at[jnp.where(used, drawn, size)].add(1.0, mode='drop')


def number_spans(key, units, number, lengths: tuple[float, ...] = (1.0,)):
  """Sample spans of whole units for n-gram or whole-word masking, at most `number` tokens in all.

  Starts are visited in random order. A span that would pass the end or the budget is cut by whole
  units; one that would touch a chosen unit is left out (google-research/albert,
  create_pretraining_data.py; with lengths (1.0,) google-research/bert's whole-word masking).

  Args:
    key: random key.
    units: number of each token's word, 1, 2, ... in the order of the text; 0 where nothing may be
      chosen, [length].
    number: budget of tokens.
    lengths: a span is n consecutive units with probability lengths[n - 1].

  Returns:
    the number of each token's span, 1 or more, 0 elsewhere, int32 [length].
  """
  size = units.shape[0]
  ordinal, count, tokens = number_units(units)
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(tokens)])  # [length + 1]
  order, wanted = draw_span_order(key, count, size, lengths)
  steps = jnp.arange(1, len(lengths) + 1)

  def visit(carry, start_wanted):
    chosen, left = carry
    start, want = start_wanted
    fits = (steps <= want) & (before[jnp.minimum(start + steps, size)] - before[start] <= left)
    units_taken = jnp.where(fits, steps, 0).max()
    span = (jnp.arange(size) >= start) & (jnp.arange(size) < start + units_taken)
    free = (start < count) & ~(span & (chosen > 0)).any()
    end = jnp.minimum(start + units_taken, size)
    taken = jnp.where(free, before[end] - before[start], 0)
    return (jnp.where(span & free, start + 1, chosen), left - taken), None

  (chosen, _), _ = jax.lax.scan(
      visit, (jnp.zeros(size, jnp.int32), number), (order, wanted), unroll=UNROLL)
  return jnp.where(units > 0, chosen[jnp.maximum(ordinal - 1, 0)], 0)


def draw_span_order(key, count, size: int, lengths: tuple[float, ...]):
  """Sample the order in which spans start at `count` units, and their lengths in units.

  A span has n units with probability lengths[n - 1] among the lengths that fit before the end.

  Returns:
    (first unit of each span, its length in units), both [size].
  """
  order_key, length_key = jax.random.split(key)
  scores = jnp.where(jnp.arange(size) < count, jax.random.uniform(order_key, (size,)), 2.0)
  order = jnp.argsort(scores)
  fits = order[:, None] + jnp.arange(1, len(lengths) + 1) <= count
  weights = jnp.where(fits, jnp.log(jnp.array(lengths)), -jnp.inf)
  return order, 1 + jax.random.categorical(length_key, weights, axis=-1)


def choose_windows(key, units, number, window: int, lengths: tuple[float, ...] = (1.0,)):
  """Sample one span of whole units in each of consecutive windows (DeBERTa's masking).

  Windows are visited from the left until the spans have `number` tokens. A span of n units starts
  at a random one of n times `window` units, and the next window starts where these or the span
  end (microsoft/DeBERTa, apps/tasks/mlm_task.py, NGramMaskGenerator; there the unit that reaches
  the number may pass it, here it is left out).

  Args:
    key: random key.
    units: as for `number_spans`, [length].
    number: budget of tokens.
    window: units per window and unit of the span.
    lengths: as for `number_spans`.

  Returns:
    bool [length].
  """
  size = units.shape[0]
  ordinal, count, tokens = number_units(units)
  keys = jax.random.split(key)
  steps = -(-size // window)
  sizes = draw_lengths(keys[0], lengths, (steps,))

  def span(offset, drawn):
    share, length = drawn
    room = jnp.minimum(length * window, count - offset)
    start = offset + jnp.floor(share * room).astype(jnp.int32)
    end = jnp.minimum(start + length, count)
    return jnp.maximum(offset + room, end), (start, end)

  shares = jax.random.uniform(keys[1], (steps,))
  _, (starts, ends) = jax.lax.scan(span, jnp.int32(0), (shares, sizes), unroll=UNROLL)
  edges = jnp.zeros(size + 1, jnp.int32).at[starts].add(1).at[ends].add(-1)
  chosen = jnp.cumsum(edges)[:size] > 0
  chosen &= jnp.cumsum(jnp.where(chosen, tokens, 0)) <= number
  return (ordinal > 0) & chosen[jnp.maximum(ordinal - 1, 0)]


def number_units(units):
  """Number units without gaps, and count their tokens.

  Args:
    units: numbers in the order of the text, 0 for none, [length].

  Returns:
    (units numbered 1, 2, ... without gaps [length], number of units, tokens of the first, second,
    ... unit [length]).
  """
  first = (units > 0) & (units != jnp.concatenate([jnp.zeros(1, units.dtype), units[:-1]]))
  ordinal = jnp.where(units > 0, jnp.cumsum(first), 0)
  tokens = jnp.zeros(units.shape[0] + 1, jnp.int32).at[ordinal].add(1)[1:]
  return ordinal, ordinal.max(), tokens


def draw_spanbert_spans(
    key, words, number, lengths: tuple[float, ...], tries: int, whole: bool = True):
  """Sample spans of words as SpanBERT does, at most `number` tokens in all.

  A span starts with the word of a token sampled uniformly from all that are not chosen yet. Spans
  may overlap and touch: then they are one. The last span is cut where the budget ends.

  Args:
    key: random key.
    words: number of each token's word, 1, 2, ... in the order of the text; 0 where nothing may be
      chosen, [length].
    number: budget of tokens.
    lengths: a span has n words with probability lengths[n - 1].
    tries: maximum number of spans.
    whole: cut the last span between two words; what is left goes to other spans. False: cut inside
      a word, as facebookresearch/SpanBERT, masking.py.

  Returns:
    bool [length].
  """
  size = words.shape[0]
  at = jnp.arange(size)
  places, real = select_positions(words > 0, size)
  # The last token of each word.
  last = jnp.zeros(size + 1, at.dtype).at[words].max(at)[words]
  anchor_key, length_key = jax.random.split(key)
  count = jnp.maximum(real.sum().astype(jnp.int32), 1)
  anchors = places[jax.random.randint(anchor_key, (tries,), 0, count)]
  wanted = draw_lengths(length_key, lengths, (tries,))

  def add(chosen, drawn):
    anchor, length = drawn
    first = words[anchor]
    span = (words >= first) & (words < first + length) & (first > 0) & ~chosen[anchor]
    spent = chosen.sum() + jnp.cumsum(span & ~chosen)
    spent = spent[last] if whole else spent
    return chosen | (span & (spent <= number)), None

  return jax.lax.scan(add, jnp.zeros(size, bool), (anchors, wanted), unroll=UNROLL)[0]


def draw_lengths(key, lengths: tuple[float, ...], shape: tuple[int, ...]):
  """Sample span lengths, n with probability lengths[n - 1], int32 `shape`."""
  return 1 + jax.random.choice(key, len(lengths), shape, p=jnp.array(lengths))


def run_bounds(chosen):
  """Find the bounds of each run of chosen neighbors.

  Args:
    chosen: bool [length].

  Returns:
    (first, last) position of the run that each chosen position is in, [length] each.
  """
  at = jnp.arange(chosen.shape[0])
  first = chosen & ~jnp.roll(chosen, 1).at[0].set(False)
  last = chosen & ~jnp.roll(chosen, -1).at[-1].set(False)
  begins = jax.lax.cummax(jnp.where(first, at, 0))
  ends = jax.lax.cummin(jnp.where(last, at, chosen.shape[0] - 1), reverse=True)
  return begins, ends


def select_positions(chosen, most: int):
  """Return the first `most` chosen positions in order, and the loss mask of predictions.

  Args:
    chosen: bool [length].
    most: number of predictions.

  Returns:
    (positions [most], 0 where there are fewer; weights float32 [most], 1.0 at a position, else
    0.0).
  """
  size = chosen.shape[0]
  place = jnp.where(chosen, jnp.cumsum(chosen) - 1, most)  # among the chosen; past the end: dropped
  positions = jnp.full(most, size).at[place].set(jnp.arange(size), mode='drop')
  weights = (positions < size).astype(jnp.float32)
  return jnp.where(positions < size, positions, 0), weights


def keep_tokens(tokens, keep, length: int):
  """Move the kept tokens close together.

  Args:
    tokens: [text].
    keep: bool [text].
    length: size of the result; tokens past it are dropped.

  Returns:
    (tokens [length], 0 behind the kept ones; how many there are).
  """
  place = jnp.where(keep, jnp.cumsum(keep) - 1, length)
  kept = jnp.zeros(length, tokens.dtype).at[place].set(tokens, mode='drop')
  return kept, jnp.minimum(keep.sum(), length)


def describe_distribution(
    option: Callable[[str], str], lengths: tuple[float, ...]) -> str | None:
  """Explain that the probabilities of span lengths do not sum to 1; None: they do.

  option: function from the name of a field to the option that users know.
  """
  if math.isclose(sum(lengths), 1, abs_tol=1e-3):
    return None
  return f'{option("lengths")} are probabilities and sum to 1, got {lengths}'


def describe_excess(
    option: Callable[[str], str], mask_share: float, random_share: float) -> str | None:
  """Explain that the fractions of [MASK] and of random tokens exceed 1 together; None: they do not.

  option: function from the name of a field to the option that users know.
  """
  if mask_share + random_share <= 1 + 1e-9:
    return None
  return (f'{option("mask_share")} and {option("random_share")} are shares, together 1 at most, '
          f'got {mask_share} and {random_share}')


def replace_tokens(
    key, tokens, chosen, vocab, shares: tuple[float, float], spans=None, others=None):
  """Replace predicted tokens: [MASK], a random token, or unchanged (BERT's 80/10/10).

  Args:
    key: random key.
    tokens: [length].
    chosen: predicted positions and their weights, 0 where a position does not count, [predictions]
      each.
    vocab: the tokenizer's `Vocab`.
    shares: fraction that becomes [MASK], fraction that becomes a random token.
    spans: number of each token's span, or word, up to length, [length]: one sample decides for a
      whole span. None: one sample per token.
    others: synonym at each place, in place of [MASK] (MacBERT), [length]; -1 where there is none,
      for a random token. None: no synonyms.

  Returns:
    tokens [length].
  """
  positions, weights = chosen
  draw_key, id_key = jax.random.split(key)
  draw = (jax.random.uniform(draw_key, positions.shape) if spans is None
          else jax.random.uniform(draw_key, (tokens.shape[0] + 1,))[spans[positions]])
  random_id = jax.random.randint(id_key, positions.shape, 0, vocab.size)
  mask = (vocab.mask if others is None
          else jnp.where(others[positions] < 0, random_id, others[positions]))
  changed = jnp.where(draw < sum(shares), random_id, tokens[positions])
  new = jnp.where(draw < shares[0], mask, changed)
  return tokens.at[jnp.where(weights > 0, positions, tokens.shape[0])].set(new, mode='drop')
