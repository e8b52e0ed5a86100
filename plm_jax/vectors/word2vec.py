"""word2vec (Mikolov et al. 2013), and with parts of words fastText (Bojanowski et al. 2017), as released.

Read beside tmikolov/word2vec's word2vec.c and facebookresearch/fastText's fasttext.cc. What differs: the words of noise
are drawn for a block and shared by its words (`kernels.skip_gram`), the words of a small batch see the vectors from
before it, where the originals' threads see each other's at any moment, and sigmoids are computed, not looked up in a
table that ends at 6.
"""
from collections.abc import Callable
import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.vectors import huffman, kernels, vocabulary
from plm_jax.vectors.blocks import Blocks, Shape, cut
from plm_jax.vectors.contract import Batches, State, WordModel
from plm_jax.vectors.corpus import Corpus, Sentences
from plm_jax.vectors.fasttext_bin import composed
from plm_jax.vectors.parts import TextLearner
from plm_jax.vectors.subwords import Bags, Subwords
from plm_jax.vectors.vocabulary import Subsampling, Vocabulary
from plm_jax.vectors.words import WordVectors


@dataclasses.dataclass(frozen=True)
class Word2Vec(WordModel):
  """Skip-gram or CBOW, with negative sampling or a hierarchical softmax."""

  limits = within(
      width='[1, 65536]', window='[1, 255]', power='[0, 1]', threshold='[0, 1)', blocks='[1, 65536]',
      words='[1, 65536]', noise='[1, 65536]', call='[1, 1000000000]', negatives='[1, 1000]')

  kind: Literal['skip-gram', 'cbow'] = 'skip-gram'
  """words predict their neighbours one by one, or the mean of the neighbours predicts the word"""
  loss: Literal['negative', 'hierarchical'] = 'negative'
  """words are told from words of noise, or predicted along a Huffman tree"""
  width: int = 100
  """of the vectors"""
  window: int = 5
  """neighbours on either side at most; how many is drawn for each word, from 1 to these"""
  negatives: int = 5
  """words of noise that a prediction is told from"""
  power: float = 0.75
  """of the words' frequencies, by which noise is drawn"""
  threshold: float = 1e-3
  """share of the text from which on occurrences of a word are left out at random; 0: none are"""
  subsampling: Subsampling = 'released'
  """by word2vec.c's and fastText's formula, or the paper's, which leaves out more"""
  subwords: Subwords = Subwords(longest=0)
  """parts of words that have vectors (fastText)"""
  blocks: int = 16
  """of words, in a small batch"""
  words: int = 32
  """in a block"""
  noise: int = 64
  """words of noise that a block shares, each counted negatives / noise times"""
  limit: float = 4.0
  """of the rate times a bound of the curvature of a row's loss in a small batch, from which on the row moves less: a
  sum over many predictions overshoots, which the originals go through one by one; 0: there is no limit. The bound is
  of pairs whose rows are parallel and whose scores are 0; what is found is well below"""
  call: int = 65536
  """words of text in a call of the compiled step"""

  def init(self, key: jax.Array, vocabulary: Vocabulary) -> State:
    """Draws the inputs uniformly from -1/(2 D) to 1/(2 D), and from -1/D to 1/D where words have parts, as the
    originals do; outputs begin at 0."""
    words = len(vocabulary)
    rows = words + (self.subwords.buckets if self.subwords else 0)
    most = (1.0 if self.subwords else 0.5) / self.width
    outputs = words if self.loss == 'negative' else words - 1
    return {'params': {'input': jax.random.uniform(key, (rows, self.width), minval=-most, maxval=most),
                       'output': jnp.zeros((outputs, self.width))},
            'idle': {'input': jnp.zeros(rows), 'output': jnp.zeros(outputs)}}

  def learner(self, corpus: Corpus, seed: int) -> 'Word2VecLearner':
    """Makes what learns from a corpus."""
    return Word2VecLearner(self, corpus, seed)

  def vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Returns the inputs, of words with parts the means of all their rows."""
    table = np.asarray(params['input'], np.float32)
    if not self.subwords:
      return WordVectors(vocabulary.words, table)
    return composed(vocabulary.words, table, self.subwords, Bags.of(vocabulary.words, self.subwords))


class Problem(NamedTuple):
  """What a small batch asks."""

  loss: Callable[[dict[str, jax.Array]], jax.Array]  # of gathered rows [..., D]
  bound: Callable[[dict[str, jax.Array]], jax.Array]  # of their squared lengths [..., 1]: the products of all pairs
  number: jax.Array  # of predictions
  rows: dict[str, jax.Array]


class Word2VecLearner(TextLearner):
  """Word2Vec on a corpus."""

  def __init__(self, config: Word2Vec, corpus: Corpus, seed: int):
    super().__init__(config, corpus, seed, Shape(config.blocks, config.words, config.window))
    self.vocabulary = corpus.vocabulary
    self.keep = vocabulary.keep_probability(self.vocabulary.counts, config.threshold, config.subsampling)
    self.cumulated = np.cumsum(vocabulary.noise(self.vocabulary.counts, config.power))
    self.bags = Bags.of(self.vocabulary.words, config.subwords) if config.subwords else None
    self.outward = bool(config.subwords) and config.kind == 'skip-gram' and config.loss == 'negative'
    if config.loss == 'hierarchical':
      paths = huffman.paths(self.vocabulary.counts)
      self.fixed = {'nodes': jnp.asarray(paths.nodes), 'codes': jnp.asarray(paths.codes)}

  def drawn(self, part: Sentences, random: np.random.Generator) -> Batches:
    """Draws windows and noise for a part of the text."""
    found = cut(part, self.shape, self.keep, random, self.room)
    arrays = {'ids': found.ids, 'left': found.left, 'right': found.right}
    if self.config.loss == 'negative':
      noise = np.zeros((self.room, self.shape.blocks, self.config.noise), np.int32)
      noise[:found.count] = vocabulary.draw(self.cumulated, random, noise[:found.count].shape)
      arrays['noise'] = noise
    if self.bags:
      arrays |= self.parts(self.bags, found)
    return Batches(arrays, found.count, len(part.ids))

  def parts(self, bags: Bags, found: Blocks) -> dict[str, np.ndarray]:
    """Lists the rows of the inputs' parts: rows [S, R], and the place of each one's word in the blocks, owner [S, R],
    behind the end where there is none."""
    inputs = middle(found.ids, self.config.window) if self.outward else found.ids
    taken = [bags.take(ids.ravel()) for ids in inputs[:found.count]]
    most = max((len(rows) for rows, _ in taken), default=1)
    most = -(-most // 2048) * 2048  # a few sizes, each of which is compiled
    rows = np.zeros((self.room, most), np.int32)
    owner = np.full((self.room, most), inputs[0].size, np.int32)
    for number, (some, whose) in enumerate(taken):
      rows[number, :len(some)], owner[number, :len(some)] = some, whose
    return {'rows': rows, 'owner': owner}

  def step(self, state: State, fixed: dict[str, jax.Array], batch: dict[str, jax.Array], rate: Any) -> State:
    """Makes a step of gradient descent on the sum over the predictions of a small batch."""
    asked = self.problem(fixed, batch)
    params, damping, idle = state['params'], None, state['idle']
    if self.config.limit:
      squares = {name: (found ** 2).sum(-1, keepdims=True)
                 for name, found in kernels.gathered(params, asked.rows).items()}
      # The second derivative of a logistic loss is at most a quarter of the other side's square.
      loads = jax.grad(asked.bound)(squares)
      loads = {name: load[..., 0] for name, load in loads.items()}
      damping, idle = kernels.damped(idle, asked.rows, loads, 4 * self.config.limit / rate)
    return {'params': kernels.descend(asked.loss, params, asked.rows, rate, damping), 'idle': idle}

  def loss(self, state, fixed, batch):
    """Measures the loss of the predictions of a small batch, each with its words of noise or its path."""
    asked = self.problem(fixed, batch)
    return asked.loss(kernels.gathered(state['params'], asked.rows)), asked.number

  def problem(self, fixed, batch) -> 'Problem':
    """Returns what a small batch asks."""
    config, window = self.config, self.config.window
    ids, left, right = batch['ids'], batch['left'].astype(jnp.int32), batch['right'].astype(jnp.int32)
    middles = middle(ids, window)
    near = neighbours(left, right, window)  # [B, T + 2 W, T]
    # word2vec.c predicts the middle from its neighbours, fastText these from the middle, which has fewer parts.
    inputs, outputs, pairs = (middles, ids, near.transpose(0, 2, 1)) if self.outward else (ids, middles, near)
    once = config.kind == 'cbow'  # an output is predicted once, not once by each input
    times = pairs.max(1) if once else pairs.sum(1)  # [B, Y]
    def sums(found):
      return self.of_words(found['input'], batch, inputs.shape)
    if config.loss == 'negative':
      counted = (outputs[:, :, None] != batch['noise'][:, None]) * (config.negatives / config.noise)
      rows = jnp.concatenate([outputs, batch['noise']], 1)
      def loss(found, penalty=kernels.LOGISTIC):
        (total, sizes), true, false = sums(found), *jnp.split(found['output'], [outputs.shape[1]], 1)
        if once:
          return kernels.cbow(total, true, false, pairs, counted, sizes, penalty).sum()
        return kernels.skip_gram(averaged(total, sizes), true, false, pairs, counted, penalty).sum()
    else:
      rows, codes = fixed['nodes'][outputs], fixed['codes'][outputs]
      def loss(found, penalty=kernels.LOGISTIC):
        total, sizes = sums(found)
        if once:
          hidden, weight = kernels.mean_of(total, pairs, sizes, penalty.whole)[:, :, None], times[:, :, None]
        else:
          hidden, weight = windows(averaged(total, sizes), left, right, window)
        return kernels.hierarchical(hidden, found['output'], codes, weight, penalty)
    return Problem(loss, lambda squares: loss(squares, kernels.PLAIN), times.sum(),
                   {'input': batch['rows'] if config.subwords else inputs, 'output': rows})

  def of_words(self, found: jax.Array, batch, shape) -> tuple[jax.Array, jax.Array]:
    """Adds up the rows of each word's parts -> (sums [B, X, D], how many each [B, X])."""
    if not self.config.subwords:
      return found, jnp.ones(shape)
    size = shape[0] * shape[1]
    total = jax.ops.segment_sum(found, batch['owner'], size, indices_are_sorted=True)
    sizes = jax.ops.segment_sum(jnp.ones(len(found)), batch['owner'], size, indices_are_sorted=True)
    return total.reshape(*shape, -1), sizes.reshape(shape)


def middle(ids, window: int):
  """Returns the words [..., T] in the middle of blocks [..., T + 2 W]."""
  return ids[..., window:ids.shape[-1] - window]


def neighbours(left: jax.Array, right: jax.Array, window: int) -> jax.Array:
  """Tells which words of a block are neighbours of those in its middle, left, right [B, T] of which count ->
  [B, T + 2 W, T], 0 or 1. A word is none of its own."""
  length = left.shape[1]
  offset = jnp.arange(length + 2 * window)[:, None] - window - jnp.arange(length)
  return ((offset >= -left[:, None]) & (offset <= right[:, None]) & (offset != 0)).astype(jnp.float32)


def averaged(total: jax.Array, sizes: jax.Array) -> jax.Array:
  """Averages words' rows, each of which gets the whole gradient, as in fastText's Model::update."""
  return total + jax.lax.stop_gradient(total / jnp.maximum(sizes, 1)[..., None] - total)


def windows(inputs: jax.Array, left: jax.Array, right: jax.Array, window: int) -> tuple[jax.Array, jax.Array]:
  """Lays the words of a block [B, T + 2 W, D] beside each word in its middle -> ([B, T, 2 W + 1, D], which of them are
  its neighbours [B, T, 2 W + 1], 0 or 1)."""
  length, offset = left.shape[1], jnp.arange(-window, window + 1)
  beside = jnp.stack([inputs[:, place:place + length] for place in range(2 * window + 1)], 2)
  near = (offset >= -left[..., None]) & (offset <= right[..., None]) & (offset != 0)
  return beside, near.astype(jnp.float32)
