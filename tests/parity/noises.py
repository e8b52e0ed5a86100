"""Runs the cases of what T5 and BART do to text: given randomness exactly, statistics over draws of
our own."""
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.objectives.denoising import (
    TextInfilling,
    TokenDeletion,
    TokenInsertion,
    TokenMasking,
)
from plm_jax.objectives.span_corruption import SpanCorruption, mark_spans, span_mask
from plm_jax.objectives.text_buffer import TextBuffer, permute_sentences, rotate_text
from plm_jax.tokenizers.contract import Vocab


def spans(case) -> dict[str, np.ndarray]:
  """Texts and where their pieces begin are given; sizes and marginals follow from rate and mean
  alone."""
  inputs, got = case.inputs, {}
  inputs.asked.add('n_examples')  # as many as there are
  sentinel, room = int(inputs['vocab']) - 1, max(len(x) for x in inputs.values() if x.ndim)
  mask = jax.jit(span_mask)
  split = jax.jit(mark_spans, static_argnums=4)
  for k, (rate, mean) in enumerate(zip(inputs['density'], inputs['mean_span'], strict=True)):
    text = inputs[f'tokens.{k}']
    number, _ = SpanCorruption(float(rate), float(mean)).counts(len(text), np)
    breaks = [filled(np.pad(inputs[f'{name}.{k}'], (1, 0)), room) > 0 for name in (
        'noise_indicator', 'nonnoise_indicator')]
    left_out = mask(*breaks, number, len(text) - number)
    got[f'noise_mask.{k}'] = np.asarray(left_out)[:len(text)].astype(np.int64)
    for marks, names in (('unique', ('inputs_unique', 'targets_unique')),
                         ('single', ('inputs_single_sentinel', '')),
                         ('none', ('inputs_drop_noise', 'targets_drop_nonnoise'))):
      sides = jax.device_get(split(filled(text, room), left_out, len(text), sentinel, marks))
      got |= {f'{name}.{k}': tokens[:count]
              for name, (tokens, count) in zip(names, sides, strict=True) if name}
  for name, want in case.outputs.items():
    if name.startswith('num_noise_tokens_spans/'):
      rate, mean = (float(x) for x in name.partition('density')[2].split('_mean'))
      got[name] = np.stack(SpanCorruption(rate, mean).counts(np.arange(1, len(want) + 1), np), 1)
    if name.startswith('marginal/'):
      rate, mean = (float(x) for x in name.partition('density')[2].split('_mean'))
      got[name] = marginal(mask, SpanCorruption(rate, mean), len(want), room)
  settings = [SpanCorruption(*some) for some in ((0.15, 3), (0.5, 3), (0.15, 10), (0.25, 5))]
  lengths = sorted(set(case.outputs['helper'][:, 0].tolist()))
  got['helper'] = np.array([(length, some.text_length(length), some.target_length(length))
                            for length in lengths for some in settings])
  return got


def marginal(mask, objective, size, room):
  """How often each token of a text is left out, over all ways to cut it."""
  number, count = (int(x) for x in objective.counts(size, np))
  def cuts(items):
    for some in itertools.combinations(range(1, items), count - 1):
      yield np.isin(np.arange(room), some)
  ways = [np.asarray(mask(jnp.array(a), jnp.array(b), number, size - number))[:size]
          for a, b in itertools.product(cuts(number), cuts(size - number))]
  return np.mean(ways, 0)


FULL_STOP = 13  # of the case's sentences


def bart(case) -> dict[str, np.ndarray]:
  """Take order and rotation of the examples from the case; compare statistics over 200 tokens,
  two of them special. As in the reference, the random token of a span counts as text, and an
  inserted token as random."""
  case.about['hparams'].asked |= {'seed', 'n'}  # of draws, which are given or counted
  length = 200
  got = {'poisson3_probs': np.array(TextInfilling(mean_span_length=3.0).lengths, np.float32)}
  got |= given_order(case.outputs)
  size = length - 2
  infilled = drawn(TextInfilling(0.3, 3.0, 0.1), size, 4000)
  text = infilled['size'] - infilled['masks'] - infilled['inserted']
  got |= {'infilling_masks_per_200': infilled['masks'].mean(),
          'infilling_out_len_per_200': infilled['size'].mean() + 2,
          'infilling_random_tokens_per_200': infilled['inserted'].mean(),
          'infilling_fraction_tokens_removed': 1 - text.mean() / size}
  got['deletion_mean_out_len_200_p03'] = drawn(TokenDeletion(0.3), size, 64)['size'].mean() + 2
  masked = drawn(TokenMasking(0.3, 0.1), size, 400)
  got |= {'token_mask_masks_per_200': masked['masks'].mean(),
          'token_mask_out_len': np.unique(masked['size'] + 2)}
  more = drawn(TokenInsertion(0.2, 0.1), size, 64, room=2 * size)
  return got | {'insertion_out_len_p02': np.unique(more['size'] + 2),
                'insertion_mask_fraction': (more['masks'] / (more['size'] - size)).mean()}


def drawn(some, size, draws, room=0):
  """Corrupt a text that contains no token that can be sampled at random, and return the counts of
  each sample. Every token is a sentence; the random token of a span belongs to the sentence of
  the token that it replaces, an inserted one to another."""
  vocab = Vocab(1000, mask=1000)
  tokens = filled(np.arange(2000, 2000 + size), room or size)
  text = TextBuffer(tokens, tokens, tokens, jnp.int32(size))
  @jax.jit
  @jax.vmap
  def draw(key):
    after = some.apply(key, text, vocab)
    real = jnp.arange(after.tokens.shape[0]) < after.size
    twice = after.sentences == jnp.roll(after.sentences, 1).at[0].set(-1)
    return dict(size=after.size, masks=(real & (after.tokens == vocab.mask)).sum(),
                inserted=(real & twice & (after.tokens < vocab.mask)).sum())
  return jax.device_get(draw(jax.random.split(jax.random.key(0), draws)))


def given_order(outputs) -> dict[str, np.ndarray]:
  """Return the reference's text in the order that it sampled. A sentence ends with the first full
  stop of a run; tokens after the last full stop stay at the end."""
  source = outputs['permute_example_in']
  inner = source[1:-1]
  stops = inner == FULL_STOP
  stops[-1] = True
  ends = np.flatnonzero(stops & ~np.pad(stops, (1, 0))[:-1]) + 1
  sentences = [some for some in np.split(inner, ends) if len(some)]
  order, rest = [], outputs['permute_example_out'][1:-1]
  longest = sorted(range(len(sentences)), key=lambda n: -len(sentences[n]))
  while len(rest):
    order.append(next(n for n in longest if n not in order
                      and rest[:len(sentences[n])].tolist() == sentences[n].tolist()))
    rest = rest[len(sentences[order[-1]]):]
  first = np.isin(np.arange(len(inner)), np.append(ends, 0))
  ordering = np.arange(len(inner))
  ordering[:len(order)] = order
  tokens, sentences = (jnp.asarray(x, jnp.int32) for x in (inner, np.cumsum(first)))
  text = TextBuffer(tokens, sentences, sentences, jnp.int32(len(inner)))
  rolled = outputs['rolling_example_out'][1:-1]
  begin = next(n for n in range(len(inner)) if (np.roll(inner, -n) == rolled).all())
  def ended(text):
    return np.concatenate([source[:1], np.asarray(text.tokens), source[-1:]])
  return {'permute_example_in': np.ma.masked_all_like(source),
          'permute_example_out': ended(jax.jit(permute_sentences)(text, jnp.array(first),
                                                                  jnp.array(ordering))),
          'rolling_example_out': ended(jax.jit(rotate_text)(text, begin))}


def filled(x, room):
  return jnp.asarray(np.pad(x, (0, room - len(x))), jnp.int32)
