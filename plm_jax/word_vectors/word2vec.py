"""word2vec (Mikolov et al. 2013) and, with subwords, fastText (Bojanowski et al. 2017).

They compute what is released: compare tmikolov/word2vec's word2vec.c and
facebookresearch/fastText's fasttext.cc. Differences: noise words are sampled per block and shared
by its words (`losses.skip_gram_loss`); the words of a small batch see the vectors from before it,
while the originals' threads see each other's updates at any moment; sigmoids are computed, not
looked up in a table that ends at 6.
"""
from collections.abc import Callable
import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.validation import intervals
from plm_jax.word_vectors import fasttext_bin, losses, word_corpus
from plm_jax.word_vectors.contract import (
  BlockShape,
  TableState,
  TextLearner,
  WordBatches,
  WordBlocks,
  WordModel,
  cut_blocks,
)
from plm_jax.word_vectors.fasttext_bin import FastTextArguments, FastTextModel
from plm_jax.word_vectors.subwords import SubwordRows, Subwords, compose_vectors
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word_corpus import Sentences, Subsampling, Vocabulary, WordCorpus

Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Word2Vec(WordModel):
  """Skip-gram or CBOW, with negative sampling or a hierarchical softmax."""

  limits = intervals(
      width='[1, 65536]', window='[1, 255]', power='[0, 1]', threshold='[0, 1)',
      blocks='[1, 65536]', words='[1, 65536]', noise='[1, 65536]', call='[1, 1000000000]',
      negatives='[1, 1000]')

  kind: Literal['skip-gram', 'cbow'] = 'skip-gram'
  """skip-gram: a word predicts its neighbors one by one; cbow: the mean of its neighbors predicts
  it."""
  loss: Literal['negative', 'hierarchical'] = 'negative'
  """negative: words are distinguished from sampled noise words; hierarchical: softmax along a
  Huffman tree."""
  width: int = 100
  """Dimension of the vectors."""
  window: int = 5
  """Maximum number of neighbors on either side; it is sampled for each word, from 1 to this
  number."""
  negatives: int = 5
  """Number of negative samples per prediction."""
  power: float = 0.75
  """Exponent of the word counts in the distribution of negative samples."""
  threshold: float = 1e-3
  """Subsampling of frequent words: share of the text above which occurrences are dropped at random;
  0: none are."""
  subsampling: Subsampling = 'released'
  """Formula of subsampling: `released`, of word2vec.c and fastText, or `paper`, which drops
  more."""
  subwords: Subwords = Subwords(longest=0)
  """Character n-grams that have vectors (fastText)."""
  blocks: int = 16
  """Number of blocks of words in a small batch."""
  words: int = 32
  """Number of words in a block."""
  noise: int = 64
  """Number of noise words that a block shares; each has the weight negatives / noise."""
  limit: float = 4.0
  """Limit on the learning rate times a bound of the curvature of a row's loss in a small batch.
  Above it,
  the row moves less: a sum over many predictions overshoots, which the originals process one by
  one. 0: no limit. The bound assumes pairs with parallel rows and scores of 0; actual values are
  well below."""
  call: int = 65536
  """Number of words of the text per call of the compiled step."""

  def init(self, key: jax.Array, vocabulary: Vocabulary) -> TableState:
    """Initialize inputs uniformly and outputs with 0, as the originals do.

    Inputs are in -1/(2 D) .. 1/(2 D), and in -1/D .. 1/D with subwords.
    """
    words = len(vocabulary)
    rows, most = words, 0.5 / self.width
    if self.subwords:
      rows, most = words + self.subwords.buckets, 1.0 / self.width
    outputs = words if self.loss == 'negative' else words - 1  # inner nodes of the tree
    inputs = jax.random.uniform(key, (rows, self.width), minval=-most, maxval=most)
    return {'params': {'input': inputs, 'output': jnp.zeros((outputs, self.width))},
            'idle': {'input': jnp.zeros(rows), 'output': jnp.zeros(outputs)}}

  def make_learner(self, corpus: WordCorpus, seed: int) -> 'Word2VecLearner':
    return Word2VecLearner(self, corpus, seed)

  def make_vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Return the inputs; with subwords the means of all rows of a word."""
    table = np.asarray(params['input'], np.float32)
    if not self.subwords:
      return WordVectors(vocabulary.words, table)
    rows = SubwordRows.build(vocabulary.words, self.subwords)
    return compose_vectors(vocabulary.words, table, self.subwords, rows)


class BatchLoss(NamedTuple):
  """The loss of a small batch as a function of its gathered rows."""

  loss: Callable[[dict[str, jax.Array]], jax.Array]  # of gathered rows [..., D]
  # Of their squared lengths [..., 1]: a bound of the curvature, the products of all pairs.
  bound: Callable[[dict[str, jax.Array]], jax.Array]
  number: jax.Array  # of predictions
  rows: dict[str, jax.Array]


class Word2VecLearner(TextLearner):
  """Training of `Word2Vec` on a corpus."""

  def __init__(self, config: Word2Vec, corpus: WordCorpus, seed: int):
    shape = BlockShape(config.blocks, config.words, config.window)
    super().__init__(config, corpus, seed, shape)
    self.vocabulary = corpus.vocabulary
    counts = self.vocabulary.counts
    self.keep_probability = word_corpus.keep_probability(
        counts, config.threshold, config.subsampling)
    self.cumulative_noise = np.cumsum(word_corpus.noise_distribution(counts, config.power))
    self.subword_rows = None
    if config.subwords:
      self.subword_rows = SubwordRows.build(self.vocabulary.words, config.subwords)
    # word2vec.c predicts a word from its neighbors. fastText predicts these from the word, which
    # has fewer subwords than all its neighbors.
    self.predicts_neighbors = (
        bool(config.subwords) and config.kind == 'skip-gram' and config.loss == 'negative')
    if config.loss == 'hierarchical':
      paths = word_corpus.huffman_paths(counts)
      self.constants = {'nodes': jnp.asarray(paths.nodes), 'codes': jnp.asarray(paths.codes)}

  def sample_part(self, part: Sentences, random: np.random.Generator) -> WordBatches:
    """Sample windows and noise words for a part of the text."""
    blocks = cut_blocks(part, self.shape, self.keep_probability, random, self.max_batches)
    arrays = {'ids': blocks.ids, 'left': blocks.left, 'right': blocks.right}
    if self.config.loss == 'negative':
      noise = np.zeros((self.max_batches, self.shape.blocks, self.config.noise), np.int32)
      shape = noise[:blocks.count].shape
      noise[:blocks.count] = word_corpus.sample_ids(self.cumulative_noise, random, shape)
      arrays['noise'] = noise
    if self.subword_rows:
      arrays |= self.subword_arrays(self.subword_rows, blocks)
    return WordBatches(arrays, blocks.count, len(part.ids))

  def subword_arrays(self, bags: SubwordRows, found: WordBlocks) -> dict[str, np.ndarray]:
    """List the table rows of the input words of each small batch.

    Returns:
      rows: [S, R].
      owner: [S, R], the position of each row's word in the blocks, or the number of words as
        padding.
    """
    centers = center_words(found.ids, self.config.window)
    inputs = centers if self.predicts_neighbors else found.ids
    selected = [bags.select(ids.ravel()) for ids in inputs[:found.count]]
    longest = max((len(rows) for rows, _ in selected), default=1)
    longest = -(-longest // 2048) * 2048  # few sizes, because each is compiled
    rows = np.zeros((self.max_batches, longest), np.int32)
    owner = np.full((self.max_batches, longest), inputs[0].size, np.int32)
    for number, (batch_rows, batch_owner) in enumerate(selected):
      rows[number, :len(batch_rows)] = batch_rows
      owner[number, :len(batch_owner)] = batch_owner
    return {'rows': rows, 'owner': owner}

  def step(self, state: TableState, fixed: Batch, batch: Batch, rate: Any) -> TableState:
    """Make a step of gradient descent on the sum over the predictions of a small batch."""
    problem = self.make_loss(fixed, batch)
    params, damping, idle = state['params'], None, state['idle']
    if self.config.limit:
      gathered = losses.gather_rows(params, problem.rows)
      squares = {name: (rows ** 2).sum(-1, keepdims=True) for name, rows in gathered.items()}
      # The second derivative of a logistic loss is at most a quarter of the other side's square.
      loads = jax.grad(problem.bound)(squares)
      loads = {name: load[..., 0] for name, load in loads.items()}
      damping, idle = losses.damp_rows(idle, problem.rows, loads, 4 * self.config.limit / rate)
    params = losses.descend_rows(problem.loss, params, problem.rows, rate, damping)
    return {'params': params, 'idle': idle}

  def loss(self, state: TableState, fixed: Batch, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Compute the loss of a small batch, with noise words or Huffman paths, and its predictions."""
    problem = self.make_loss(fixed, batch)
    return problem.loss(losses.gather_rows(state['params'], problem.rows)), problem.number

  def make_loss(self, fixed: Batch, batch: Batch) -> BatchLoss:
    """Build the loss of a small batch."""
    config, window = self.config, self.config.window
    ids = batch['ids']
    left, right = batch['left'].astype(jnp.int32), batch['right'].astype(jnp.int32)
    centers = center_words(ids, window)
    neighbors = neighbor_mask(left, right, window)  # [B, T + 2 W, T]
    inputs, outputs, pairs = ids, centers, neighbors
    if self.predicts_neighbors:
      inputs, outputs, pairs = centers, ids, neighbors.transpose(0, 2, 1)
    is_cbow = config.kind == 'cbow'  # an output is predicted once, not once by each input
    times = pairs.max(1) if is_cbow else pairs.sum(1)  # [B, Y]

    def sum_inputs(gathered):
      return self.sum_subwords(gathered['input'], batch, inputs.shape)

    if config.loss == 'negative':
      differs = outputs[:, :, None] != batch['noise'][:, None]
      counted = differs * (config.negatives / config.noise)
      output_rows = jnp.concatenate([outputs, batch['noise']], 1)

      def loss(gathered, penalty=losses.LOGISTIC):
        total, sizes = sum_inputs(gathered)
        true, false = jnp.split(gathered['output'], [outputs.shape[1]], 1)
        if is_cbow:
          return losses.cbow_loss(total, true, false, pairs, counted, sizes, penalty).sum()
        means = mean_subwords(total, sizes)
        return losses.skip_gram_loss(means, true, false, pairs, counted, penalty).sum()
    else:
      output_rows, codes = fixed['nodes'][outputs], fixed['codes'][outputs]

      def loss(gathered, penalty=losses.LOGISTIC):
        total, sizes = sum_inputs(gathered)
        if is_cbow:
          means = losses.mean_inputs(total, pairs, sizes, penalty.full_gradient)
          hidden, weight = means[:, :, None], times[:, :, None]
        else:
          hidden, weight = gather_windows(mean_subwords(total, sizes), left, right, window)
        return losses.hierarchical_softmax_loss(hidden, gathered['output'], codes, weight, penalty)

    input_rows = batch['rows'] if config.subwords else inputs
    return BatchLoss(
        loss, lambda squares: loss(squares, losses.LINEAR), times.sum(),
        {'input': input_rows, 'output': output_rows})

  def sum_subwords(
      self, found: jax.Array, batch: Batch, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Add up the rows of each word: (sums [B, X, D], number of rows [B, X])."""
    if not self.config.subwords:
      return found, jnp.ones(shape)
    total, sizes = losses.sum_rows(found, batch['owner'], shape[0] * shape[1])
    return total.reshape(shape + (-1,)), sizes.reshape(shape)


def center_words(ids, window: int):
  """Return the center words [..., T] of blocks [..., T + 2 W]."""
  return ids[..., window:ids.shape[-1] - window]


def neighbor_mask(left: jax.Array, right: jax.Array, window: int) -> jax.Array:
  """Return which words of a block are neighbors of its center words.

  Args:
    left: number of neighbors to the left [B, T].
    right: number of neighbors to the right [B, T].
    window: W.

  Returns:
    [B, T + 2 W, T], 0 or 1. A word is not its own neighbor.
  """
  length = left.shape[1]
  offset = jnp.arange(length + 2 * window)[:, None] - window - jnp.arange(length)
  mask = (offset >= -left[:, None]) & (offset <= right[:, None]) & (offset != 0)
  return mask.astype(jnp.float32)


def mean_subwords(total: jax.Array, sizes: jax.Array) -> jax.Array:
  """Average words' rows; each row gets the whole gradient, as in fastText's Model::update."""
  return total + jax.lax.stop_gradient(total / jnp.maximum(sizes, 1)[..., None] - total)


def gather_windows(
    inputs: jax.Array, left: jax.Array, right: jax.Array,
    window: int) -> tuple[jax.Array, jax.Array]:
  """Return the words around each center word of a block.

  Args:
    inputs: vectors of a block [B, T + 2 W, D].
    left: number of neighbors to the left [B, T].
    right: number of neighbors to the right [B, T].
    window: W.

  Returns:
    Vectors [B, T, 2 W + 1, D], and which of them are neighbors [B, T, 2 W + 1], 0 or 1.
  """
  length, offset = left.shape[1], jnp.arange(-window, window + 1)
  around = jnp.stack([inputs[:, place:place + length] for place in range(2 * window + 1)], 2)
  mask = (offset >= -left[..., None]) & (offset <= right[..., None]) & (offset != 0)
  return around, mask.astype(jnp.float32)


def to_fasttext(
    run: Any, vocabulary: Vocabulary, params: dict[str, np.ndarray]) -> FastTextModel:
  """Convert the trained tables of a run to a fastText model, which fastText and gensim train on.

  Along a Huffman tree fastText predicts branch 1 where word2vec predicts branch 0, so nodes change
  their signs (loss.cc, HierarchicalSoftmaxLoss). Its matrix has one row more than the tree has
  nodes.

  Args:
    run: `train.VectorRun`.
    vocabulary: of the run.
    params: its tables.

  Raises:
    ConfigError: fastText has no such model.
  """
  model = run.model
  if not isinstance(model, Word2Vec):
    raise ConfigError(f'fastText has no model like {type(model).__name__}: give another '
                      f'{name_field("form")}')
  output = params['output']
  if model.loss == 'hierarchical':
    output = np.append(-output, np.zeros((1, model.width), output.dtype), 0)
  shortest = longest = buckets = 0
  if subwords := model.subwords:
    shortest, longest, buckets = subwords.shortest, subwords.longest, subwords.buckets
  arguments = FastTextArguments(
      width=model.width, window=model.window, epochs=run.train.epochs, least=run.data.least,
      negatives=model.negatives, word_ngrams=1, loss=fasttext_bin.LOSSES[model.loss],
      model=fasttext_bin.MODELS[model.kind], buckets=buckets, shortest=shortest, longest=longest,
      rate_every=100, threshold=model.threshold)
  counts = tuple(map(int, vocabulary.counts))
  return FastTextModel(
      arguments, vocabulary.words, (), counts, vocabulary.total, params['input'], output)
