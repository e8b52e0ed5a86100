"""GloVe (Pennington et al. 2014): vectors whose products are logarithms of how often words come near each other.

As released (stanfordnlp/GloVe, glove.c): AdaGrad whose sums of squares begin at 1 and take gradients multiplied by the
rate already; biases move without the rate; the vectors are the sum of a word's two. What differs: pairs are taken in
small batches, all of which see the tables from before, and in an order that is drawn anew for each epoch.
"""
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.vectors import cooccurrence, kernels
from plm_jax.vectors.contract import Batches, Learner, State, WordModel
from plm_jax.vectors.corpus import Corpus
from plm_jax.vectors.vocabulary import Vocabulary, VocabularyError
from plm_jax.vectors.words import WordVectors

CLIP = 100.0  # of each component of a gradient, before the rate (glove.c)


@dataclasses.dataclass(frozen=True)
class GloVe(WordModel):
  """Weighted least squares on logarithms of counts."""

  limits = within(width='[1, 65536]', window='[1, 10000]', memory='[1000, inf)', batch='[1, 1000000]',
                  call='[1, 1000000000]', largest='(0, inf)', power='[0, 1]')

  width: int = 100
  """of the vectors"""
  window: int = 10
  """words on either side that are counted, each by 1 / distance"""
  largest: float = 100.0
  """count from which on pairs weigh alike (x_max)"""
  power: float = 0.75
  """of counts below, in weights (alpha)"""
  memory: int = 20_000_000
  """pairs that are counted in memory; more go through files. A pair takes 16 bytes, and as many while it is sorted"""
  batch: int = 256
  """pairs in a small batch"""
  call: int = 1 << 18
  """pairs in a call of the compiled step"""

  def init(self, key: jax.Array, vocabulary: Vocabulary) -> State:
    """Draws words and contexts [V, D + 1], of which the last column are the biases, uniformly from -1/(2 D) to
    1/(2 D)."""
    shape = len(vocabulary), self.width + 1
    most = 0.5 / self.width
    params = {name: jax.random.uniform(one, shape, minval=-most, maxval=most)
              for name, one in zip(('word', 'context'), jax.random.split(key), strict=True)}
    return {'params': params, 'squares': {name: jnp.ones(shape) for name in params}}

  def learner(self, corpus: Corpus, seed: int) -> 'GloVeLearner':
    """Counts the corpus."""
    return GloVeLearner(self, corpus, seed)

  def vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Adds up the two vectors of each word."""
    both = np.asarray(params['word']) + np.asarray(params['context'])
    return WordVectors(vocabulary.words, np.ascontiguousarray(both[:, :-1], np.float32))


class GloVeLearner(Learner):
  """GloVe on a corpus."""

  def __init__(self, config: GloVe, corpus: Corpus, seed: int):
    self.config, self.seed, self.fixed = config, seed, {}
    words = len(corpus.vocabulary)
    self.pairs = cooccurrence.counted(corpus.train, words, config.window, config.memory)
    if not len(self.pairs):
      raise VocabularyError('no two words of the vocabulary stand in one sentence: there is nothing to count')
    self.held = cooccurrence.counted(corpus.heldout, words, config.window, config.memory)
    self.calls = -(-len(self.pairs) // config.call)
    self.room = -(-config.call // config.batch)

  def batches(self, epoch: int, call: int) -> Batches:
    """Takes pairs in the order of an epoch: k -> (a k + b) mod N, for a and b that are drawn, a without a factor of N,
    needs no memory and takes every pair once."""
    random, number = np.random.default_rng([self.seed, epoch]), len(self.pairs)
    step = int(random.integers(max(number // 3, 1), number + 1))
    while math.gcd(step, number) > 1:
      step += 1
    first, stop = call * self.config.call, min((call + 1) * self.config.call, number)
    places = (np.arange(first, stop) * step + int(random.integers(number))) % number
    return self.laid(self.pairs[places])

  def heldout(self) -> Batches:
    """Takes the pairs of what was held out, as many as a call has."""
    return self.laid(self.held[:self.config.call])

  def laid(self, pairs: np.ndarray) -> Batches:
    """Lays pairs in small batches; where there are none the count is 0."""
    shape = self.room, self.config.batch
    arrays = {'word': np.zeros(shape, np.int32), 'context': np.zeros(shape, np.int32),
              'count': np.zeros(shape, np.float32)}
    for name, array in arrays.items():
      array.reshape(-1)[:len(pairs)] = pairs[name]
    return Batches(arrays, -(-len(pairs) // self.config.batch), len(pairs))

  def difference(self, state: State, batch) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gathers both sides of pairs -> (words, contexts, each [B, D + 1], weighted differences [B], losses [B])."""
    words, contexts = (state['params'][name][batch[name]] for name in ('word', 'context'))
    there = batch['count'] > 0
    weighted, loss = kernels.co_occurrence(
        words[:, :-1], contexts[:, :-1], words[:, -1] + contexts[:, -1], jnp.where(there, batch['count'], 1.0),
        self.config.largest, self.config.power)
    return words, contexts, jnp.where(there, weighted, 0.0), jnp.where(there, loss, 0.0)

  def step(self, state: State, fixed, batch, rate: Any) -> State:
    """Makes a step of AdaGrad in the rows of a batch's pairs."""
    words, contexts, weighted, _ = self.difference(state, batch)
    params, squares = dict(state['params']), dict(state['squares'])
    for name, other in (('word', contexts), ('context', words)):
      slope = jnp.clip(weighted[:, None] * other[:, :-1], -CLIP, CLIP) * rate
      slope = jnp.concatenate([slope, jnp.clip(weighted, -CLIP, CLIP)[:, None]], 1)
      rows = batch[name]
      params[name] = params[name].at[rows].add(-slope / jnp.sqrt(squares[name][rows]))
      squares[name] = squares[name].at[rows].add(slope ** 2)
    return {'params': params, 'squares': squares}

  def loss(self, state: State, fixed, batch) -> tuple[jax.Array, jax.Array]:
    """Measures the weighted squares of pairs, halved, as glove.c's cost does."""
    return self.difference(state, batch)[3].sum(), (batch['count'] > 0).sum()
