"""Corruption that objectives share, one example at a time (vmap them) and keyed by example."""
import jax
import jax.numpy as jnp

# Choices that follow each other in one turn of a loop: each is so little work that the turns themselves cost more.
UNROLL = 4

def example_keys(key, windows, duplicates: int = 0):
  """Makes keys [B], a function of (key, corpus, index, epoch) and of nothing else.

  With `duplicates` = k > 0 the epoch counts modulo k: static corruption, as data written out k times would have it.
  """
  epoch = windows['epoch'] % duplicates if duplicates else windows['epoch']
  def fold(corpus, index, epoch):
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, corpus), index), epoch)
  return jax.vmap(fold)(windows['corpus'], windows['index'], epoch)


def draw_tokens(keys, windows, number: int):
  """Draws `number` tokens for each example, of keys [B] -> [B, number], every token of the batch's text as likely as
  any other.

  The batch stands for the corpus, of which facebookresearch/SpanBERT, data/masking.py, draws random tokens.
  """
  sizes = (windows['segments'] > 0).sum(-1)
  ends = jnp.cumsum(sizes)
  def draw(key):
    place = jax.random.randint(key, (number,), 0, jnp.maximum(ends[-1], 1))
    row = jnp.minimum(jnp.searchsorted(ends, place, side='right'), len(ends) - 1)
    return windows['tokens'][row, place - (ends - sizes)[row]]
  return jax.vmap(draw)(keys)


def choose_tokens(key, candidate, number):
  """Chooses `number` tokens uniformly where candidate [L] is True -> bool [L].

  Those of the lowest random scores, ties to the left. The `number`-th lowest score is found bit by bit: many times
  faster on a CPU than sorting, and other than `top_k` it needs nothing of rows on other devices.
  """
  bits = 23
  scores = jnp.where(candidate, jax.random.bits(key, candidate.shape, jnp.uint32) >> (32 - bits), 1 << bits)
  def refine(step, limit):
    higher = limit | (1 << (bits - 1)) >> step
    return jnp.where((scores < higher).sum() < number, higher, limit)
  limit = jax.lax.fori_loop(0, bits, refine, jnp.uint32(0))
  lower, equal = scores < limit, scores == limit
  return candidate & (lower | (equal & (jnp.cumsum(equal) <= number - lower.sum())))


def choose_repeatedly(key, candidate, number, most: int):
  """Makes `number` draws, `most` at most, of a token where candidate [L] is True, each from all of them -> how often it
  was drawn, float32 [L] (google-research/electra, pretrain/pretrain_helpers.py, mask)."""
  size = candidate.shape[0]
  places, _ = positions_of(candidate, size)
  count = candidate.sum()
  drawn = places[jax.random.randint(key, (most,), 0, jnp.maximum(count, 1))]
  return jnp.zeros(size).at[jnp.where(jnp.arange(most) < jnp.where(count > 0, number, 0), drawn, size)].add(
      1.0, mode='drop')


def choose_spans(key, units, number, lengths: tuple[float, ...] = (1.0,)):
  """Chooses spans of whole units, together at most `number` tokens -> bool [L].

  units [L] numbers words 1, 2, ... in the order of the text, 0 where nothing may be chosen. A span is n consecutive
  units with probability lengths[n - 1]. Starts are visited in random order; a span that would pass the end or the
  budget is cut by whole units, one that would touch a chosen unit is left out (google-research/albert,
  create_pretraining_data.py; with lengths (1.0,) google-research/bert's whole-word masking).
  """
  size = units.shape[0]
  ordinal, count, tokens = counted(units)
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(tokens)])  # [L + 1]
  order, wanted = visits(key, count, size, lengths)
  steps = jnp.arange(1, len(lengths) + 1)

  def visit(carry, start_wanted):
    chosen, left = carry
    start, want = start_wanted
    fits = (steps <= want) & (before[jnp.minimum(start + steps, size)] - before[start] <= left)
    units_taken = jnp.where(fits, steps, 0).max()
    span = (jnp.arange(size) >= start) & (jnp.arange(size) < start + units_taken)
    free = (start < count) & ~(span & chosen).any()
    taken = jnp.where(free, before[jnp.minimum(start + units_taken, size)] - before[start], 0)
    return (chosen | (span & free), left - taken), None

  (chosen, _), _ = jax.lax.scan(visit, (jnp.zeros(size, bool), number), (order, wanted), unroll=UNROLL)
  return jnp.where(units > 0, chosen[jnp.maximum(ordinal - 1, 0)], False)


def visits(key, count, size: int, lengths: tuple[float, ...]):
  """Draws, of `count` units and at most `size`, (the order in which spans begin at them, units that each is to have)
  [size] both: n with probability lengths[n - 1] among those that still fit between a start and the end."""
  order_key, length_key = jax.random.split(key)
  order = jnp.argsort(jnp.where(jnp.arange(size) < count, jax.random.uniform(order_key, (size,)), 2.0))
  fits = order[:, None] + jnp.arange(1, len(lengths) + 1) <= count
  weights = jnp.where(fits, jnp.log(jnp.array(lengths)), -jnp.inf)
  return order, 1 + jax.random.categorical(length_key, weights, axis=-1)


def choose_windows(key, units, number, window: int, lengths: tuple[float, ...] = (1.0,)):
  """Chooses a span of whole units in each of successive windows, from the left until they have `number` tokens -> bool
  [L].

  units and lengths are those of `choose_spans`. A span of n units begins at a random one of n times `window` units, and
  the next window where these or the span end (microsoft/DeBERTa, apps/tasks/mlm_task.py, NGramMaskGenerator; there the
  unit that reaches the number may pass it, here it is left out).
  """
  size = units.shape[0]
  ordinal, count, tokens = counted(units)
  keys = jax.random.split(key)
  steps = -(-size // window)
  sizes = draw_lengths(keys[0], lengths, (steps,))

  def span(offset, drawn):
    share, length = drawn
    room = jnp.minimum(length * window, count - offset)
    start = offset + jnp.floor(share * room).astype(jnp.int32)
    end = jnp.minimum(start + length, count)
    return jnp.maximum(offset + room, end), (start, end)

  _, (starts, ends) = jax.lax.scan(
      span, jnp.int32(0), (jax.random.uniform(keys[1], (steps,)), sizes), unroll=UNROLL)
  chosen = jnp.cumsum(jnp.zeros(size + 1, jnp.int32).at[starts].add(1).at[ends].add(-1))[:size] > 0
  chosen &= jnp.cumsum(jnp.where(chosen, tokens, 0)) <= number
  return (ordinal > 0) & chosen[jnp.maximum(ordinal - 1, 0)]


def counted(units):
  """Numbers units [L], which are in the order of the text, 0 for none, anew -> (the same numbered 1, 2, ... without
  gaps [L], how many there are, tokens of the first, second, ... [L])."""
  first = (units > 0) & (units != jnp.concatenate([jnp.zeros(1, units.dtype), units[:-1]]))
  ordinal = jnp.where(units > 0, jnp.cumsum(first), 0)
  return ordinal, ordinal.max(), jnp.zeros(units.shape[0] + 1, jnp.int32).at[ordinal].add(1)[1:]


def draw_spans(key, words, number, lengths: tuple[float, ...], tries: int, whole: bool = True):
  """Chooses spans of words as SpanBERT does, together at most `number` tokens -> bool [L].

  words [L] numbers words 1, 2, ... in the order of the text, 0 where nothing may be chosen. A span begins with the word
  of a token drawn uniformly from all that are not chosen yet, and has n words with probability lengths[n - 1]. Spans
  may overlap and touch: then they are one. The last is cut where the budget ends, `whole`: between two words, and what
  is left goes to other spans (facebookresearch/SpanBERT, masking.py, cuts inside a word). At most `tries` are drawn.
  """
  size = words.shape[0]
  at = jnp.arange(size)
  places, real = positions_of(words > 0, size)
  # The last token of each word.
  last = jnp.zeros(size + 1, at.dtype).at[words].max(at)[words]
  anchor_key, length_key = jax.random.split(key)
  anchors = places[jax.random.randint(anchor_key, (tries,), 0, jnp.maximum(real.sum().astype(jnp.int32), 1))]
  wanted = draw_lengths(length_key, lengths, (tries,))

  def add(chosen, drawn):
    anchor, length = drawn
    first = words[anchor]
    span = (words >= first) & (words < first + length) & (first > 0) & ~chosen[anchor]
    spent = chosen.sum() + jnp.cumsum(span & ~chosen)
    return chosen | (span & ((spent[last] if whole else spent) <= number)), None

  return jax.lax.scan(add, jnp.zeros(size, bool), (anchors, wanted), unroll=UNROLL)[0]


def draw_lengths(key, lengths: tuple[float, ...], shape: tuple[int, ...]):
  """Draws n with probability lengths[n - 1] -> int32 `shape`."""
  return 1 + jax.random.choice(key, len(lengths), shape, p=jnp.array(lengths))


def runs(chosen):
  """Returns, of bool [L], (first, last) [L]: the ends of the run of neighbours that a chosen position is in."""
  at = jnp.arange(chosen.shape[0])
  first = chosen & ~jnp.roll(chosen, 1).at[0].set(False)
  last = chosen & ~jnp.roll(chosen, -1).at[-1].set(False)
  return (jax.lax.cummax(jnp.where(first, at, 0)),
          jax.lax.cummin(jnp.where(last, at, chosen.shape[0] - 1), reverse=True))


def positions_of(chosen, most: int):
  """Returns, of bool [L], the first `most` chosen positions in order, 0 where there are fewer, and their weights
  float32 [most]."""
  size = chosen.shape[0]
  place = jnp.where(chosen, jnp.cumsum(chosen) - 1, most)  # among the chosen; past the end: dropped
  positions = jnp.full(most, size).at[place].set(jnp.arange(size), mode='drop')
  return jnp.where(positions < size, positions, 0), (positions < size).astype(jnp.float32)


def keep_tokens(tokens, keep, length: int):
  """Moves the tokens [L] that are kept, by bool [L], close together, then 0 [length]; and counts them. Past length:
  none."""
  place = jnp.where(keep, jnp.cumsum(keep) - 1, length)
  return jnp.zeros(length, tokens.dtype).at[place].set(tokens, mode='drop'), jnp.minimum(keep.sum(), length)


def replace_tokens(key, tokens, positions, weights, vocab, mask_share: float, random_share: float):
  """Replaces tokens [L] with [MASK] at a share of the positions [M], with a uniform random id at another; the rest are
  kept."""
  draw_key, id_key = jax.random.split(key)
  draw = jax.random.uniform(draw_key, positions.shape)
  random_id = jax.random.randint(id_key, positions.shape, 0, vocab.size)
  new = jnp.where(draw < mask_share, vocab.mask,
                  jnp.where(draw < mask_share + random_share, random_id, tokens[positions]))
  return tokens.at[jnp.where(weights > 0, positions, tokens.shape[0])].set(new, mode='drop')


def replace_words(key, tokens, chosen, words, others, size: int, shares: tuple[float, float]):
  """Replaces words at `chosen`, positions and weights [M] of tokens, words, others [L]: a share by what `others` has at
  their places, a random id below `size` where that is -1, another share by random ids; the rest are kept."""
  positions, weights = chosen
  draw_key, id_key = jax.random.split(key)
  draw = jax.random.uniform(draw_key, (words.shape[0] + 1,))[words[positions]]  # one for all tokens of a word
  random_id = jax.random.randint(id_key, positions.shape, 0, size)
  other = jnp.where(others[positions] < 0, random_id, others[positions])
  new = jnp.where(draw < shares[0], other, jnp.where(draw < sum(shares), random_id, tokens[positions]))
  return tokens.at[jnp.where(weights > 0, positions, tokens.shape[0])].set(new, mode='drop')
