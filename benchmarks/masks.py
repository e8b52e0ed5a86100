"""Compare masking statistics over 100,000 sequences or samples with the papers, or with values derived from them.

    python -m benchmarks.masks [--rows=100000] [--only T5 BART]

- BERT: 15% of the tokens; 80% of them masked, 10% random, 10% kept (Devlin et al. 2019, section 3.1).
- ALBERT: n-grams of 1 to 3 words with probabilities proportional to 1/n (Lan et al. 2020, section 3.1).
- SpanBERT: spans of 1 to 10 words, geometric with p = 0.2, 3.8 words on average. Each is masked, random or kept as a
  whole (Joshi et al. 2020, section 3.1).
- XLNet: one of K = 6 tokens (Yang et al. 2019, section 2.3).
- GLM: span lengths from a Poisson distribution with mean 3, without empty spans, until 15% of the tokens are covered;
  or one span of uniform length that covers half of the document or more (Du et al. 2022, section 2.1). How far the
  short spans exceed 15% was measured with the released code on 480 sequences of 128 tokens.
- T5: 15% of the tokens in spans of 3 on average, sampled uniformly from all ways to split the masked tokens into the
  given number of spans; or single tokens, where adjacent tokens form one span (Raffel et al. 2020, section 3.1.4 and
  the released code).
- UL2: seven denoisers, all equally frequent: two with short spans, one with the end of the text (a quarter of it on
  average), four with long or many spans (Tay et al. 2023, table 1).
- BART: span lengths from a Poisson distribution with mean 3, including empty spans; spans start at random and overlap.
  The remaining length, masks included, was measured with the released code on 400 texts of 198 tokens. 15% of the
  tokens are masked or deleted; all sentence orders and all first tokens are equally likely (Lewis et al. 2020,
  section 2.2).

Sequences have 512 tokens; one in four continues a word. The exit status is 1 if a statistic deviates from its expected
value by more than 2%.
"""
import argparse
from collections.abc import Callable
from math import comb
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.objectives import corruption
from plm_jax.objectives.denoising import (
  DenoisingAutoencoder,
  DocumentRotation,
  SentencePermutation,
  TextInfilling,
  TokenDeletion,
  TokenMasking,
)
from plm_jax.objectives.glm import BlankInfilling, draw_short_spans
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.plm import PermutationLM
from plm_jax.objectives.row_builders import Single
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.objectives.span_corruption import (
  UL2_DENOISERS,
  MixtureOfDenoisers,
  SpanCorruption,
  TokenCorruption,
)
from plm_jax.objectives.text_buffer import TextBuffer
from plm_jax.tokenizers.contract import Vocab

LENGTH, CHUNK = 512, 1000
VOCAB = Vocab(30_000, pad=0, cls=1, sep=2, mask=3, sop=29_996, eop=29_997, gmask=29_998, smask=29_999)
MARKS = 150  # number of sentinel tokens, whose ids start at VOCAB.sop
SENTINELS = Vocab(VOCAB.sop + MARKS, pad=0, eos=1, unk=2, sentinel=VOCAB.sop + MARKS - 1)
Figures = dict[str, tuple[float, float]]  # {name: (measured here, expected from the paper)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--rows', type=int, default=100_000)
  figures_of = {'BERT': bert, 'ALBERT': albert, 'SpanBERT': spanbert, 'XLNet': xlnet, 'GLM': glm, 'T5': t5, 'UL2': ul2,
                'BART': bart}
  parser.add_argument('--only', nargs='*', choices=figures_of, default=list(figures_of))
  args = parser.parse_args()
  rows, off = args.rows, 0.0
  print(f'{rows:,} rows{"":26}{"here":>9}{"paper":>9}')
  for name in args.only:
    for about, (here, paper) in figures_of[name](rows).items():
      print(f'{name:10}{about:27}{here:9.4f}{paper:9.4f}', flush=True)
      off = max(off, abs(here / paper - 1))
  sys.exit(int(off > 0.02))


def bert(rows: int) -> Figures:
  objective = MaskedLM(Single())
  def counts(key):
    text, batch = corrupted(objective, key)
    old, new = (jnp.take_along_axis(x, batch['positions'], 1) for x in (text, batch['tokens']))
    asked = batch['weights'] > 0
    masked, kept = asked & (new == VOCAB.mask), asked & (new == old)
    return dict(chosen=asked.sum(), masked=masked.sum(), kept=kept.sum(), text=text[:, 1:-1].size)
  total = summed(counts, rows)
  masked, kept = total['masked'] / total['chosen'], total['kept'] / total['chosen']
  return {'tokens predicted': (total['chosen'] / total['text'], 0.15), 'of these masked': (masked, 0.8),
          'random': (1 - masked - kept, 0.1), 'kept': (kept, 0.1)}


def albert(rows: int) -> Figures:
  """Measure how often three masked words form one 3-gram, a 2-gram and a single word, or three separate words.

  With n-gram probabilities p1, p2 and p3, the expected shares are p3, p2 + p1 (p2 + p3), and p1 p1: an n-gram that does
  not fit is truncated. Spans are rarely adjacent by chance in sequences of this length.
  """
  lengths = (6 / 11, 3 / 11, 2 / 11)
  words = jnp.arange(1, LENGTH + 1)
  def counts(key):
    keys = jax.random.split(key, CHUNK)
    chosen = jax.vmap(lambda k: corruption.number_spans(k, words, 3, lengths))(keys) > 0
    spans = (chosen & ~jnp.pad(chosen, ((0, 0), (1, 0)))[:, :-1]).sum(1)
    return {str(number): (spans == number).sum() for number in (1, 2, 3)}
  total = summed(counts, rows)
  share = {number: total[number] / sum(total.values()) for number in total}
  one, two, three = lengths
  return {'one 3-gram': (share['1'], three), 'a 2-gram and a word': (share['2'], two + one * (two + three)),
          'three words apart': (share['3'], one * one)}


def spanbert(rows: int) -> Figures:
  objective = SpanBoundary()
  def counts(key):
    """Classify each span by its first token; a random replacement almost always differs from the original."""
    length_key, key = jax.random.split(key)
    text, batch = corrupted(objective, key)
    old, new = (jnp.take_along_axis(x, batch['positions'], 1) for x in (text, batch['tokens']))
    before = jnp.pad(batch['positions'], ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    first = (batch['weights'] > 0) & (batch['positions'] != before + 1)
    masked, kept = first & (new == VOCAB.mask), first & (new == old)
    drawn = corruption.draw_lengths(length_key, objective.lengths, (CHUNK * 16,))
    return dict(drawn=jnp.bincount(drawn, length=objective.max_span_length + 1), chosen=batch['weights'].sum(),
                text=text[:, 1:-1].size, spans=first.sum(), masked=masked.sum(), kept=kept.sum())
  total = summed(counts, rows)
  drawn = total['drawn'][1:] / total['drawn'].sum()
  masked, kept = total['masked'] / total['spans'], total['kept'] / total['spans']
  return {
      **{f'spans of {n + 1} words': (share, objective.lengths[n]) for n, share in enumerate(drawn)},
      'words a span': (drawn @ np.arange(1, len(drawn) + 1), 3.797),
      'tokens predicted': (total['chosen'] / total['text'], 0.15), 'spans masked': (masked, 0.8),
      'spans of random tokens': (1 - masked - kept, 0.1), 'spans kept': (kept, 0.1)}


def xlnet(rows: int) -> Figures:
  objective = PermutationLM()
  def counts(key):
    _, batch = corrupted(objective, key)
    return dict(chosen=batch['weights'].sum(), text=batch['tokens'].size)
  total = summed(counts, min(rows, 10_000))  # 85 samples per sequence
  return {'tokens predicted': (total['chosen'] / total['text'], 1 / 6)}


def glm(rows: int) -> Figures:
  objective, size = BlankInfilling(), 128
  def counts(key):
    """Find long blanks by their mask token; all tokens of a text except two belong to one document."""
    keys = jax.random.split(key, 3)
    documents, most = jnp.ones(size - 2, jnp.int32), objective.max_spans(size)
    drawn = corruption.draw_lengths(keys[0], objective.lengths, (CHUNK, most))
    sizes = jax.vmap(lambda key, lengths: draw_short_spans(key, documents, objective.masked_tokens(size), lengths)[1])(
        jax.random.split(keys[1], CHUNK), drawn)
    _, batch = corrupted(BlankInfilling(documents=0.5), keys[2])
    long = (batch['tokens'] == VOCAB.gmask).any(1)
    hidden = (batch['types'] > 1).sum(1)
    text = objective.part_a_length(LENGTH) - 2
    ended = ((batch['tokens'] == VOCAB.pad) & (batch['types'] > 1)).any(1)
    return dict(drawn=jnp.bincount(drawn.ravel(), length=40), spans=(sizes > 0).sum(), tokens=sizes.sum(),
                rows=CHUNK, long=long.sum(), share=jnp.where(long, (hidden - ended) / text, 0).sum(),
                ended=(long & ended).sum())
  total = summed(counts, rows)
  drawn = total['drawn'][1:] / total['drawn'].sum()
  poisson = np.array(objective.lengths)
  return {
      **{f'spans of {n + 1} tokens': (drawn[n], poisson[n]) for n in range(8)},
      'tokens a span': (drawn @ np.arange(1, len(drawn) + 1), 3 / (1 - np.exp(-3))),
      'tokens in spans, of 128': (total['tokens'] / total['rows'] / size, 0.1606),
      'spans a row of 128': (total['spans'] / total['rows'], 6.496),
      'rows with a long blank': (total['long'] / total['rows'], 0.5),
      'its share of the document': (total['share'] / total['long'], 0.75),
      'it reaches the end': (total['ended'] / total['long'], 0.5)}


def t5(rows: int) -> Figures:
  whole, apart = SpanCorruption(), TokenCorruption()
  spans, tokens = MixtureOfDenoisers((whole,)), MixtureOfDenoisers((apart,))
  size, alone = spans.text_length(LENGTH), tokens.text_length(LENGTH)
  (number, count), single = (int(x) for x in whole.counts(size, np)), int(apart.count(alone, np))
  def counts(key):
    _, batch = corrupted(spans, key, SENTINELS)
    _, other = corrupted(tokens, key, SENTINELS)
    return dict(drawn=lengths_of(batch), single=lengths_of(other), rows=CHUNK)
  total = summed(counts, rows)
  at = np.arange(len(total['drawn']))
  drawn, iid = (total[name] / total[name].sum() for name in ('drawn', 'single'))
  def pieces(n):  # share of spans of n tokens, of `number` tokens in `count` spans
    return comb(number - n - 1, count - 2) / comb(number - 1, count - 1)
  def runs(n):  # share of runs of n adjacent tokens, of `single` among `alone`
    ways = comb(alone, single), comb(alone - 1, single), comb(alone - n - 1, single - n)
    return ways[2] / (ways[0] - ways[1])
  return {
      'tokens left out': (total['drawn'] @ at / total['rows'] / size, 0.15), 'tokens a span': (drawn @ at, 3.0),
      'spans a row': (total['drawn'].sum() / total['rows'], count),
      **{f'spans of {n} tokens': (drawn[n], pieces(n)) for n in range(1, 8)},
      'i.i.d.: tokens left out': (total['single'] @ at / total['rows'] / alone, 0.15),
      **{f'i.i.d.: runs of {n}': (iid[n], runs(n)) for n in range(1, 4)}}


def lengths_of(batch):
  """Return the number of spans of 0, 1, 2, ... tokens in the targets of a batch, [LENGTH]; the first entry is 0."""
  labels, most = batch['labels'], batch['labels'].shape[1]
  mark = (labels >= VOCAB.sop) | (labels == SENTINELS.eos)
  following = jax.lax.cummin(jnp.where(mark, jnp.arange(most), most), axis=1, reverse=True)
  size = jnp.roll(following, -1, 1).at[:, -1].set(0) - jnp.arange(most) - 1
  found = (labels >= VOCAB.sop) & (size > 0)  # no span follows the last sentinel
  return jnp.bincount(jnp.where(found, size, 0).ravel(), length=LENGTH).at[0].set(0)


def ul2(rows: int) -> Figures:
  objective = MixtureOfDenoisers(UL2_DENOISERS, sentinels=MARKS)
  end = objective.denoisers[2].text_length(LENGTH)
  def counts(key):
    _, batch = corrupted(objective, key, SENTINELS)
    mode = batch['tokens'][:, 0] - VOCAB.sop + 1
    target = (batch['weights'] * (batch['labels'] < VOCAB.sop)).sum(1) - 1
    return dict(rows=CHUNK, mode=jnp.bincount(mode, length=4), target=jnp.where(mode == 2, target, 0).sum())
  total = summed(counts, rows)
  share = total['mode'] / total['rows']
  return {'R, short spans': (share[1], 2 / 7), 'S, the end': (share[2], 1 / 7), 'X, long or many': (share[3], 4 / 7),
          'S: share of the text': (total['target'] / total['mode'][2] / end, 0.25)}


def bart(rows: int) -> Figures:
  infilling, size = TextInfilling(), DenoisingAutoencoder().text_length(LENGTH)
  three, longer = (TextBuffer(jnp.arange(n) + 10, jnp.arange(n) // 25, jnp.arange(n), jnp.int32(n)) for n in (60, 198))
  def applied(some, key, text):
    return jax.vmap(lambda key: some.apply(key, text, VOCAB))(jax.random.split(key, CHUNK))
  def counts(key):
    keys = jax.random.split(key, 6)
    lengths = corruption.draw_lengths(keys[0], infilling.lengths, (CHUNK * 16,)) - 1
    gone = {}
    for name, some, at in (('masked', TokenMasking(), 1), ('deleted', TokenDeletion(), 2)):
      _, batch = corrupted(DenoisingAutoencoder((some,)), keys[at])
      left = (batch['segments'] > 0) & (batch['tokens'] != VOCAB.mask)
      gone[name] = size + 2 - left.sum(1)
    filled = applied(infilling, keys[3], longer).size.sum()
    mixed = applied(SentencePermutation(), keys[4], three)
    first = [jnp.argmax(mixed.tokens == token, 1) for token in (10, 35, 60)]  # positions of the three sentences
    order = (first[0] < first[1]) * 4 + (first[0] < first[2]) * 2 + (first[1] < first[2])
    rolled = applied(DocumentRotation(), keys[5], three)
    return dict(gone, filled=filled, lengths=jnp.bincount(lengths, length=len(infilling.lengths)), text=CHUNK * size,
                rows=CHUNK, order=jnp.bincount(order, length=8),
                begin=jnp.bincount((rolled.tokens[:, 0] - 10) // 15, length=4))
  total = summed(counts, rows)
  drawn = total['lengths'] / total['lengths'].sum()
  orders = {'abc': 7, 'acb': 6, 'bac': 3, 'bca': 1, 'cab': 4, 'cba': 0}
  return {
      **{f'spans of {n} tokens': (drawn[n], infilling.lengths[n]) for n in range(8)},
      'tokens a span': (drawn @ np.arange(len(drawn)), 3.0),
      'infilling: left of 198': (total['filled'] / total['rows'], 161.5675),
      'tokens masked': (total['masked'].sum() / total['text'], 0.15),
      'tokens deleted': (total['deleted'].sum() / total['text'], 0.15),
      **{f'sentences in order {name}': (total['order'][n] / total['rows'], 1 / 6) for name, n in orders.items()},
      **{f'beginning in quarter {n + 1}': (total['begin'][n] / total['rows'], 1 / 4) for n in range(4)}}


def corrupted(objective, key, vocab=VOCAB):
  """Corrupt a chunk of random text.

  Returns:
    The text [CHUNK, L], padded by one position for a special token at each end, and the batch of the objective.
  """
  text_key, mask_key = jax.random.split(key)
  shape = CHUNK, objective.text_length(LENGTH)
  tokens = jax.random.randint(text_key, shape, 4, VOCAB.sop)
  number = jnp.arange(CHUNK)
  windows = dict(tokens=tokens, segments=jnp.ones(shape, jnp.int32), words=jnp.cumsum(tokens % 4 > 0, 1) + 1,
                 sentences=jnp.broadcast_to(jnp.arange(shape[1]) // 20 + 1, shape), document=number,
                 corpus=0 * number, index=number, epoch=0 * number)
  return jnp.pad(tokens, ((0, 0), (1, 1))), objective.corrupt(mask_key, windows, vocab)


def summed(counts: Callable, rows: int) -> dict[str, Any]:
  """Sum the results of `counts` over chunks of rows, each with its own random key."""
  count = jax.jit(counts)
  totals = [jax.device_get(count(jax.random.key(seed))) for seed in range(-(-rows // CHUNK))]
  return {name: sum(np.asarray(part[name], np.float64) for part in totals) for name in totals[0]}


if __name__ == '__main__':
  main()
