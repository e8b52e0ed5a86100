"""GloVe (Pennington et al. 2014): vectors whose products are logarithms of co-occurrence counts.

As released (stanfordnlp/GloVe, glove.c): AdaGrad, whose sums of squares begin at 1 and take
gradients that are already multiplied by the rate; biases move without the rate; a word's vector is
the sum of its two vectors. Difference: pairs are taken in small batches, all of which see the
tables from before, in an order that is sampled again for each epoch. Co-occurrences are counted in
bounded memory, as in GloVe's cooccur.c.
"""
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import math
import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import storage
from plm_jax.storage.digests import compute_digest
from plm_jax.storage.lock import Lock
from plm_jax.validation import intervals
from plm_jax.word_vectors import losses
from plm_jax.word_vectors.contract import (
  TableState,
  WordBatches,
  WordLearner,
  WordModel,
  split_points,
)
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word_corpus import Sentences, Vocabulary, VocabularyError, WordCorpus

GRADIENT_CLIP = 100.0  # of each component of a gradient, before the rate (glove.c)
PAIR_DTYPE = np.dtype([('word', '<i4'), ('context', '<i4'), ('count', '<f8')])
"""GloVe's record CREC, except that ids of words begin at 0, not at 1."""
READ_PAIRS = 1 << 18  # pairs of a file that are merged at a time
WORDS_AT_ONCE = 1 << 16  # words of the text that are counted at a time

SortedRun = tuple[np.ndarray, np.ndarray]  # keys, ascending, and their counts


@dataclasses.dataclass(frozen=True)
class GloVe(WordModel):
  """Weighted least squares on logarithms of co-occurrence counts."""

  limits = intervals(
      width='[1, 65536]', window='[1, 10000]', memory='[1000, inf)', batch='[1, 1000000]',
      call='[1, 1000000000]', largest='(0, inf)', power='[0, 1]')

  width: int = 100
  """Dimension of the vectors."""
  window: int = 10
  """Number of words on either side that are counted, each by 1 / distance."""
  largest: float = 100.0
  """Count above which all pairs have the same weight (x_max)."""
  power: float = 0.75
  """Exponent of the weight of lower counts (alpha)."""
  memory: int = 20_000_000
  """Number of pairs that are counted in memory; more go through files. A pair takes 16 bytes, and
  as many while it is sorted."""
  batch: int = 256
  """Number of pairs in a small batch."""
  call: int = 1 << 18
  """Number of pairs per call of the compiled step."""

  def init(self, key: jax.Array, vocabulary: Vocabulary) -> TableState:
    """Initialize words and contexts [V, D + 1] uniformly in -1/(2 D) .. 1/(2 D).

    The last column holds the biases.
    """
    shape = len(vocabulary), self.width + 1
    most = 0.5 / self.width
    word_key, context_key = jax.random.split(key)
    params = {'word': jax.random.uniform(word_key, shape, minval=-most, maxval=most),
              'context': jax.random.uniform(context_key, shape, minval=-most, maxval=most)}
    return {'params': params, 'squares': {name: jnp.ones(shape) for name in params}}

  def make_learner(self, corpus: WordCorpus, seed: int) -> 'GloVeLearner':
    """Count the corpus, and make the learner of this model."""
    return GloVeLearner(self, corpus, seed)

  def make_vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Return the sum of the two vectors of each word."""
    both = np.asarray(params['word']) + np.asarray(params['context'])
    return WordVectors(vocabulary.words, np.ascontiguousarray(both[:, :-1], np.float32))


class GloVeLearner(WordLearner):
  """Training of `GloVe` on a corpus."""

  def __init__(self, config: GloVe, corpus: WordCorpus, seed: int):
    self.config, self.seed, self.constants = config, seed, {}
    words = len(corpus.vocabulary)
    self.pairs = count_pairs(corpus.train, words, config.window, config.memory)
    if not len(self.pairs):
      raise VocabularyError(
          'no two words of the vocabulary are in one sentence: there is nothing to count')
    self.heldout_pairs = count_pairs(
        corpus.heldout, words, config.window, config.memory)
    self.calls_per_epoch = -(-len(self.pairs) // config.call)
    self.max_batches = -(-config.call // config.batch)

  def sample_batches(self, epoch: int, call: int) -> WordBatches:
    """Take the pairs of a call in the order of an epoch.

    The order k -> (a k + b) mod N, with random a and b and no common factor of a and N, needs no
    memory and takes every pair once.
    """
    random, number = np.random.default_rng([self.seed, epoch]), len(self.pairs)
    step = int(random.integers(max(number // 3, 1), number + 1))
    while math.gcd(step, number) > 1:
      step += 1
    first, stop = call * self.config.call, min((call + 1) * self.config.call, number)
    places = (np.arange(first, stop) * step + int(random.integers(number))) % number
    return self.make_batches(self.pairs[places])

  def heldout_batches(self) -> WordBatches:
    """Return the pairs of the held-out text, as many as a call has."""
    return self.make_batches(self.heldout_pairs[:self.config.call])

  def make_batches(self, pairs: np.ndarray) -> WordBatches:
    """Arrange pairs in small batches; the count of padding is 0."""
    shape = self.max_batches, self.config.batch
    arrays = {'word': np.zeros(shape, np.int32), 'context': np.zeros(shape, np.int32),
              'count': np.zeros(shape, np.float32)}
    for name, array in arrays.items():
      array.reshape(-1)[:len(pairs)] = pairs[name]
    return WordBatches(arrays, -(-len(pairs) // self.config.batch), len(pairs))

  def weighted_difference(
      self, state: TableState, batch) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gather both sides of pairs and compute their losses.

    Returns:
      Words and contexts, each [B, D + 1]; weighted differences [B]; losses [B].
    """
    words = state['params']['word'][batch['word']]
    contexts = state['params']['context'][batch['context']]
    there = batch['count'] > 0
    counts = jnp.where(there, batch['count'], 1.0)
    weighted, loss = losses.glove_loss(
        words[:, :-1], contexts[:, :-1], words[:, -1] + contexts[:, -1], counts,
        self.config.largest, self.config.power)
    return words, contexts, jnp.where(there, weighted, 0.0), jnp.where(there, loss, 0.0)

  def step(self, state: TableState, fixed, batch, rate: Any) -> TableState:
    """Make a step of AdaGrad in the rows of a batch's pairs."""
    words, contexts, weighted, _ = self.weighted_difference(state, batch)
    params, squares = dict(state['params']), dict(state['squares'])
    for name, other in (('word', contexts), ('context', words)):
      slope = jnp.clip(weighted[:, None] * other[:, :-1], -GRADIENT_CLIP, GRADIENT_CLIP) * rate
      bias_slope = jnp.clip(weighted, -GRADIENT_CLIP, GRADIENT_CLIP)
      slope = jnp.concatenate([slope, bias_slope[:, None]], 1)
      rows = batch[name]
      params[name] = params[name].at[rows].add(-slope / jnp.sqrt(squares[name][rows]))
      squares[name] = squares[name].at[rows].add(slope ** 2)
    return {'params': params, 'squares': squares}

  def loss(self, state: TableState, fixed, batch) -> tuple[jax.Array, jax.Array]:
    """Compute half the weighted squares of pairs, as glove.c's cost, and the number of pairs."""
    return self.weighted_difference(state, batch)[3].sum(), (batch['count'] > 0).sum()


# Co-occurrence counts.


def count_pairs(sentences: Sentences, words: int, window: int, memory: int) -> np.ndarray:
  """Count pairs of words within a window in a sentence, each as 1 / distance, in both directions.

  Args:
    sentences: the text.
    words: vocabulary size.
    window: largest distance.
    memory: pairs that are held in memory at once; more are sorted, written to files, and merged.

  Returns:
    Pairs [N] of PAIR_DTYPE, by word, then context, mapped to memory from a file in the cache.
  """
  arrays = sentences.ids.tobytes(), sentences.starts.tobytes()
  key = compute_digest(f'{words} {window}', *arrays)[:32]
  path = pathlib.Path(storage.cache_folder()) / 'pairs' / f'{key}.bin'
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    with Lock(path.with_suffix('.making'), 'a run', wait=True):
      if not path.exists():
        folder = path.with_suffix('.parts')
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        files = list(write_sorted_runs(sentences, words, window, memory, folder))
        with storage.atomic_writer(path) as out:
          for keys, counts in merge_files(files):
            pairs = np.empty(len(keys), PAIR_DTYPE)
            pairs['word'], pairs['context'] = keys // words, keys % words
            pairs['count'] = counts
            out.write(pairs.tobytes())
        shutil.rmtree(folder)
  if not path.stat().st_size:
    return np.zeros(0, PAIR_DTYPE)
  return np.memmap(path, PAIR_DTYPE, 'r')


def write_sorted_runs(
    sentences: Sentences, words: int, window: int, memory: int,
    folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Count a text in pieces, and yield files of sorted pairs, one per about `memory` pairs."""
  held: list[SortedRun] = []
  number = 0
  for first, last in itertools.pairwise(split_points(sentences, WORDS_AT_ONCE)):
    keys, counts = list_pairs(sentences.select(first, last), words, window)
    held.append(sum_pairs(keys, counts))
    if sum(len(keys) for keys, _ in held) > memory:
      held = [merge_runs(held)]
      if len(held[0][0]) > memory // 2:
        yield save_run(held.pop(), folder / f'{number}.npy')
        number += 1
  if held:
    yield save_run(merge_runs(held), folder / f'{number}.npy')


def list_pairs(sentences: Sentences, words: int, window: int) -> SortedRun:
  """List unsorted pairs of a text: keys word * words + context, and 1 / distance."""
  ids = sentences.ids.astype(np.int64)
  number = np.repeat(np.arange(len(sentences.starts) - 1), sentences.lengths)
  keys, counts = [np.zeros(0, np.int64)], [np.zeros(0)]
  for distance in range(1, window + 1):
    same_sentence = number[distance:] == number[:-distance]
    left, right = ids[:-distance][same_sentence], ids[distance:][same_sentence]
    keys += [left * words + right, right * words + left]
    counts.append(np.full(2 * len(left), 1 / distance))
  return np.concatenate(keys), np.concatenate(counts)


def sum_pairs(keys: np.ndarray, counts: np.ndarray) -> SortedRun:
  """Sort pairs, and add up the counts of equal keys."""
  if not len(keys):
    return keys, counts
  order = np.argsort(keys, kind='stable')
  keys, counts = keys[order], counts[order]
  first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
  return keys[first], np.add.reduceat(counts, first)


def merge_runs(runs: Sequence[SortedRun]) -> SortedRun:
  """Add up several sorted runs."""
  return sum_pairs(np.concatenate([keys for keys, _ in runs]),
                   np.concatenate([counts for _, counts in runs]))


def save_run(run: SortedRun, path: pathlib.Path) -> pathlib.Path:
  """Write a run to a file, and return its path."""
  np.save(path, np.rec.fromarrays(run, dtype=[('key', '<i8'), ('count', '<f8')]))
  return path


def merge_files(
    files: Sequence[pathlib.Path], read: int = READ_PAIRS) -> Iterator[SortedRun]:
  """Merge sorted files, `read` pairs of each at a time.

  A step merges up to the smallest of the keys that were read last: smaller ones do not follow.
  """
  runs = [np.load(file, mmap_mode='r') for file in files]
  places = [0] * len(runs)
  while any(place < len(run) for place, run in zip(places, runs, strict=True)):
    ahead = [(number, run[places[number]:places[number] + read])
             for number, run in enumerate(runs) if places[number] < len(run)]
    bound = min(int(pairs['key'][-1]) for _, pairs in ahead)
    parts = []
    for number, pairs in ahead:
      stop = int(np.searchsorted(pairs['key'], bound, 'right'))
      parts.append((np.array(pairs['key'][:stop]), np.array(pairs['count'][:stop])))
      places[number] += stop
    yield merge_runs(parts)
