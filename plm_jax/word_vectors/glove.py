"""GloVe (Pennington et al. 2014): vectors whose products are logarithms of co-occurrence counts.

As released (stanfordnlp/GloVe, glove.c): AdaGrad, whose sums of squares begin at 1 and take
gradients that are already multiplied by the rate; biases move without the rate; a word's vector is
the sum of its two vectors. Difference: pairs are taken in small batches, all of which see the
tables from before, in an order that is sampled again for each epoch.
"""
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.validation import intervals
from plm_jax.word_vectors import cooccurrence, losses
from plm_jax.word_vectors.contract import TableState, WordBatches, WordLearner, WordModel
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.vocabulary import Vocabulary, VocabularyError
from plm_jax.word_vectors.word_corpus import WordCorpus

GRADIENT_CLIP = 100.0  # of each component of a gradient, before the rate (glove.c)


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
    self.pairs = cooccurrence.count_pairs(corpus.train, words, config.window, config.memory)
    if not len(self.pairs):
      raise VocabularyError(
          'no two words of the vocabulary are in one sentence: there is nothing to count')
    self.heldout_pairs = cooccurrence.count_pairs(
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
