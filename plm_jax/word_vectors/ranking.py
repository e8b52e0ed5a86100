"""Collobert and Weston's ranking model of word vectors.

Texts rank above themselves with another word in the middle: Collobert and Weston 2008; Collobert et
al. 2011, section 4.2.
"""
from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.validation import intervals
from plm_jax.word_vectors import losses
from plm_jax.word_vectors.contract import (
  BlockShape,
  TableState,
  TextLearner,
  WordBatches,
  WordModel,
  cut_blocks,
)
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word2vec import gather_windows
from plm_jax.word_vectors.word_corpus import Sentences, Vocabulary, WordCorpus


@dataclasses.dataclass(frozen=True)
class Ranking(WordModel):
  """A window of words, one hidden layer with a hard tanh, and a score."""

  limits = intervals(
      width='[1, 65536]', window='[1, 255]', hidden='[1, 65536]', blocks='[1, 65536]',
      words='[1, 65536]', call='[1, 1000000000]')

  width: int = 50
  """Dimension of the vectors."""
  window: int = 5
  """Number of words on either side of the center word."""
  hidden: int = 100
  """Number of hidden units."""
  blocks: int = 1
  """Number of blocks of words in a small batch."""
  words: int = 32
  """Number of words in a block."""
  call: int = 65536
  """Number of words of the text per call of the compiled step."""

  def init(self, key: jax.Array, vocabulary: Vocabulary) -> TableState:
    """Initialize uniformly, within 1 / sqrt(number of inputs) for layers.

    The last row of the word table stands for positions outside a sentence.
    """
    word_key, first_key, last_key = jax.random.split(key, 3)
    fan_in = (2 * self.window + 1) * self.width

    def uniform(key, shape, size):
      return jax.random.uniform(key, shape, minval=-size ** -0.5, maxval=size ** -0.5)

    return {'params': {
        'input': uniform(word_key, (len(vocabulary) + 1, self.width), self.width),
        'first': uniform(first_key, (fan_in, self.hidden), fan_in),
        'bias': jnp.zeros(self.hidden),
        'last': uniform(last_key, (self.hidden,), self.hidden)}}

  def make_learner(self, corpus: WordCorpus, seed: int) -> 'RankingLearner':
    return RankingLearner(self, corpus, seed)

  def make_vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Return the rows of the word table."""
    return WordVectors(vocabulary.words, np.asarray(params['input'][:-1], np.float32))


class RankingLearner(TextLearner):
  """Training of `Ranking` on a corpus."""

  def __init__(self, config: Ranking, corpus: WordCorpus, seed: int):
    shape = BlockShape(config.blocks, config.words, config.window, random_windows=False)
    super().__init__(config, corpus, seed, shape)

  def sample_part(self, part: Sentences, random: np.random.Generator) -> WordBatches:
    """Cut blocks, and sample a replacement for each center word uniformly.

    `there` is 1 where there is a word to replace.
    """
    words = len(self.corpus.vocabulary)
    blocks = cut_blocks(part, self.shape, np.ones(words), random, self.max_batches)
    there = np.zeros(blocks.left.size, np.float32)
    there[:len(part.ids)] = 1
    other = random.integers(words, size=blocks.left.shape, dtype=np.int32)
    arrays = {'ids': blocks.ids, 'left': blocks.left, 'right': blocks.right, 'other': other,
              'there': there.reshape(blocks.left.shape)}
    return WordBatches(arrays, blocks.count, len(part.ids))

  def make_loss(self, batch) -> tuple[Callable[..., jax.Array], dict[str, jax.Array]]:
    """Return a function of gathered rows and layers to losses [B, T], and the row ids."""
    window, size = self.config.window, batch['ids'].shape[1]
    left, right = batch['left'].astype(jnp.int32), batch['right'].astype(jnp.int32)
    rows = {'input': jnp.concatenate([batch['ids'], batch['other']], 1)}

    def loss(gathered: jax.Array, outside: jax.Array, layers: dict[str, jax.Array]) -> jax.Array:
      texts, others = jnp.split(gathered, [size], 1)
      around, mask = gather_windows(texts, left, right, window)
      around = jnp.where(mask[..., None] > 0, around, outside)

      def score(words):
        inputs = around.at[:, :, window].set(words)
        inputs = inputs.reshape(words.shape[:2] + (-1,))
        hidden = jnp.clip(inputs @ layers['first'] + layers['bias'], -1, 1)
        return hidden @ layers['last']

      true, false = score(texts[:, window:texts.shape[1] - window]), score(others)
      hinge = losses.ranking_loss(true.reshape(-1), false.reshape(-1, 1))
      return hinge.reshape(true.shape) * batch['there']

    return loss, rows

  def step(self, state: TableState, fixed, batch, rate: Any) -> TableState:
    """Make a step of gradient descent.

    The learning rate of a layer is divided by its number of inputs (Collobert et al. 2011, section
    3.4).
    """
    params = state['params']
    loss, rows = self.make_loss(batch)
    layers = {name: params[name] for name in ('first', 'bias', 'last')}
    words = losses.gather_rows(params, rows)['input']
    outside = len(params['input']) - 1

    def sum_loss(words, outside_vector, layers):
      return loss(words, outside_vector, layers).sum()

    gradient = jax.grad(sum_loss, (0, 1, 2))
    word_slopes, outside_slope, layer_slopes = gradient(words, params['input'][outside], layers)
    table = params['input'].at[rows['input']].add(-rate * word_slopes)
    table = table.at[outside].add(-rate * outside_slope)
    fan_in = len(layers['first'])
    fans = {'first': fan_in, 'bias': fan_in, 'last': self.config.hidden}
    updated = {
        name: layer - rate / fans[name] * layer_slopes[name] for name, layer in layers.items()}
    return state | {'params': {'input': table, **updated}}

  def loss(self, state: TableState, fixed, batch) -> tuple[jax.Array, jax.Array]:
    """Compute the hinge loss of a small batch, and its number of words."""
    params = state['params']
    loss, rows = self.make_loss(batch)
    gathered = losses.gather_rows(params, rows)['input']
    return loss(gathered, params['input'][-1], params).sum(), batch['there'].sum()
