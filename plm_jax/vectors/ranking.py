"""C&W: texts rank above themselves with another word in the middle (Collobert and Weston 2008; Collobert et al. 2011,
section 4.2)."""
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.vectors import kernels
from plm_jax.vectors.blocks import Shape, cut
from plm_jax.vectors.contract import Batches, State, WordModel
from plm_jax.vectors.corpus import Corpus, Sentences
from plm_jax.vectors.parts import TextLearner
from plm_jax.vectors.vocabulary import Vocabulary
from plm_jax.vectors.word2vec import windows
from plm_jax.vectors.words import WordVectors


@dataclasses.dataclass(frozen=True)
class Ranking(WordModel):
  """A window of words, one hidden layer with a hard tanh, and a score."""

  limits = within(width='[1, 65536]', window='[1, 255]', hidden='[1, 65536]', blocks='[1, 65536]', words='[1, 65536]',
                  call='[1, 1000000000]')

  width: int = 50
  """of the vectors"""
  window: int = 5
  """words on either side of the one in the middle"""
  hidden: int = 100
  """units"""
  blocks: int = 1
  """of words, in a small batch"""
  words: int = 32
  """in a block"""
  call: int = 65536
  """words of text in a call of the compiled step"""

  def init(self, key: jax.Array, vocabulary: Vocabulary) -> State:
    """Draws uniformly, layers by the square root of their inputs; the last row of the words stands for what is outside
    a sentence."""
    words, first, last = jax.random.split(key, 3)
    fan = (2 * self.window + 1) * self.width
    def draw(key, shape, size):
      return jax.random.uniform(key, shape, minval=-size ** -0.5, maxval=size ** -0.5)
    return {'params': {
        'input': draw(words, (len(vocabulary) + 1, self.width), self.width),
        'first': draw(first, (fan, self.hidden), fan), 'bias': jnp.zeros(self.hidden),
        'last': draw(last, (self.hidden,), self.hidden)}}

  def learner(self, corpus: Corpus, seed: int) -> 'RankingLearner':
    """Makes what learns from a corpus."""
    return RankingLearner(self, corpus, seed)

  def vectors(self, params: dict[str, Any], vocabulary: Vocabulary) -> WordVectors:
    """Returns the first layer's rows."""
    return WordVectors(vocabulary.words, np.asarray(params['input'][:-1], np.float32))


class RankingLearner(TextLearner):
  """Ranking on a corpus."""

  def __init__(self, config: Ranking, corpus: Corpus, seed: int):
    super().__init__(config, corpus, seed, Shape(config.blocks, config.words, config.window, drawn=False))

  def drawn(self, part: Sentences, random: np.random.Generator) -> Batches:
    """Cuts blocks, and draws a word for each in their middles, uniformly; `there` where there is one to replace."""
    words = len(self.corpus.vocabulary)
    found = cut(part, self.shape, np.ones(words), random, self.room)
    there = np.zeros(found.left.size, np.float32)
    there[:len(part.ids)] = 1
    other = random.integers(words, size=found.left.shape, dtype=np.int32)
    arrays = {'ids': found.ids, 'left': found.left, 'right': found.right, 'other': other,
              'there': there.reshape(found.left.shape)}
    return Batches(arrays, found.count, len(part.ids))

  def problem(self, batch):
    """Returns the losses [B, T] of gathered rows and layers, and the rows."""
    window = self.config.window
    left, right = (batch[name].astype(jnp.int32) for name in ('left', 'right'))
    rows = {'input': jnp.concatenate([batch['ids'], batch['other']], 1)}
    def loss(found: jax.Array, outside: jax.Array, layers: dict[str, jax.Array]) -> jax.Array:
      texts, others = jnp.split(found, [batch['ids'].shape[1]], 1)
      beside, near = windows(texts, left, right, window)
      beside = jnp.where(near[..., None] > 0, beside, outside)
      def score(words):
        whole = beside.at[:, :, window].set(words).reshape(*words.shape[:2], -1)
        return jnp.clip(whole @ layers['first'] + layers['bias'], -1, 1) @ layers['last']
      true, false = score(texts[:, window:texts.shape[1] - window]), score(others)
      return kernels.ranking(true.reshape(-1), false.reshape(-1, 1)).reshape(true.shape) * batch['there']
    return loss, rows

  def step(self, state: State, fixed, batch, rate: Any) -> State:
    """Makes a step of gradient descent, in the layers at the rate divided by their inputs (Collobert et al. 2011,
    section 3.4)."""
    params = state['params']
    loss, rows = self.problem(batch)
    layers = {name: params[name] for name in ('first', 'bias', 'last')}
    words, last = kernels.gathered(params, rows)['input'], len(params['input']) - 1
    slopes = jax.grad(lambda *args: loss(*args).sum(), (0, 1, 2))(words, params['input'][last], layers)
    table = params['input'].at[rows['input']].add(-rate * slopes[0]).at[last].add(-rate * slopes[1])
    fans = {'first': len(layers['first']), 'bias': len(layers['first']), 'last': self.config.hidden}
    moved = {name: layer - rate / fans[name] * slopes[2][name] for name, layer in layers.items()}
    return state | {'params': {'input': table, **moved}}

  def loss(self, state: State, fixed, batch) -> tuple[jax.Array, jax.Array]:
    """Measures the hinge, for a word."""
    params = state['params']
    loss, rows = self.problem(batch)
    found = kernels.gathered(params, rows)['input']
    return loss(found, params['input'][-1], params).sum(), batch['there'].sum()
