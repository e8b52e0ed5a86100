"""What the layers of a model know of words: linear classifiers of parts of speech, say, on each layer's vectors.

The model stays as it is; a softmax over a linear map of a word's vector learns its tag (Liu et al. 2019, section 3).
What it gets right is beside three things: the tag that a word has most often in the training sentences; the same
model with fresh parameters, of which some is right by the words alone; and a control task, in which every word has a
tag that was drawn once (Hewitt and Liang 2019, section 2): a probe that learns that too has memory, and its
`selectivity`, the difference, says how much of a figure is the model's.
"""
from collections import Counter
from collections.abc import Sequence
import dataclasses
import functools
import statistics
from typing import Any, NamedTuple

from flax.core import meta
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.checked import Checked, within
from plm_jax.errors import ConfigError
from plm_jax.inference import encode, words
from plm_jax.inference.loading import Trained


@dataclasses.dataclass(frozen=True)
class ProbeConfig(Checked):
  """How probes learn."""

  limits = within(seeds='[1, 100]', epochs='[1, 1000]', batch='[1, 65536]', rate='(0, 1]')

  seeds: int = 3
  """probes of each layer, and models with fresh parameters"""
  epochs: int = 5
  """times that the training words are read"""
  batch: int = 256
  """words in an update"""
  rate: float = 1e-2
  """Adam's, which falls to 0 in a line; vectors are scaled to a variance of 1"""


class Tagged(NamedTuple):
  """Sentences with a tag for each word."""

  sentences: Sequence[Sequence[str]]
  tags: Sequence[Sequence[int]]

  @property
  def words(self) -> list[str]:
    """All words, one behind the other."""
    return [word for sentence in self.sentences for word in sentence]

  @property
  def classes(self) -> np.ndarray:
    """Their tags [words]."""
    return np.array([tag for some in self.tags for tag in some], np.int32)


@dataclasses.dataclass(frozen=True)
class Layer:
  """What probes of a layer get right of the test words, of 1; a number for each seed."""

  layer: int
  """0: the embeddings"""
  accuracy: tuple[float, ...]
  control: tuple[float, ...]
  """of the control task"""
  untrained: tuple[float, ...]
  """of the same layer of a model with fresh parameters"""

  @property
  def selectivity(self) -> float:
    """How much better the task is learned than the control task."""
    return statistics.mean(self.accuracy) - statistics.mean(self.control)


class Probed(NamedTuple):
  """What probes found."""

  layers: list[Layer]
  commonest: float
  """right by the tag that a word has most often, of 1; of a word that was not seen by the commonest of all"""
  words: tuple[int, int]
  """to learn from, and to be asked"""


def probe(trained: Trained, train: Tagged, test: Tagged, config: ProbeConfig = ProbeConfig()) -> Probed:
  """Probes every layer of a model. Raises what `inference.words.rows_of` does, and ConfigError for no words."""
  seen, asked = train.classes, test.classes
  if not seen.size or not asked.size:
    raise ConfigError('there are no words to learn from, or none to be asked')
  classes = 1 + max(seen.max(), asked.max())
  seeds = range(config.seeds)
  drawn = [control([train, test], classes, seed) for seed in seeds]
  vectors = [stacked(trained, some) for some in (train, test)]
  fresh = [[stacked(trained, some, params) for some in (train, test)]
           for params in (initial(trained, seed) for seed in seeds)]
  layers = []
  for layer in range(len(vectors[0])):
    x, y = scaled(*(some[layer] for some in vectors))
    untrained = [scaled(*(some[layer] for some in fresh[seed])) for seed in seeds]
    layers.append(Layer(
        layer, tuple(learned(config, x, seen, y, asked, classes, seed) for seed in seeds),
        tuple(learned(config, x, first, y, second, classes, seed) for seed, (first, second) in enumerate(drawn)),
        tuple(learned(config, untrained[seed][0], seen, untrained[seed][1], asked, classes, seed) for seed in seeds)))
  return Probed(layers, commonest(train, test), (len(seen), len(asked)))


def stacked(trained: Trained, tagged: Tagged, params: Any = None) -> np.ndarray:
  """Returns the vectors of all words in all layers [K + 1, words, D]."""
  return np.concatenate(words.word_layers(trained, tagged.sentences, params), 1)


def initial(trained: Trained, seed: int) -> Any:
  """Makes fresh parameters of the model's backbone, as a run from nothing begins with."""
  config: Any = encode.encoder_of(trained.model)
  inputs = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments', 'ranks')}
  if config.kind == 'recurrent':
    inputs = {'characters': jnp.ones((1, 8, config.characters.longest), jnp.int32)}
  return meta.unbox(jax.jit(config.backbone().init)(jax.random.key(seed), inputs)['params'])


def scaled(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Brings every component to a mean of 0 and a variance of 1 over the training words."""
  mean, deviation = train.mean(0), train.std(0) + 1e-6
  return (train - mean) / deviation, (test - mean) / deviation


def control(some: Sequence[Tagged], classes: int, seed: int) -> list[np.ndarray]:
  """Gives every word a tag of its own, drawn as often as tags are -> those of the words [words] of each set."""
  draw = np.random.default_rng(seed)
  shares = np.bincount(some[0].classes, minlength=classes) / len(some[0].classes)
  known = dict.fromkeys(word for one in some for word in one.words)
  given = dict(zip(known, draw.choice(classes, len(known), p=shares).tolist(), strict=True))
  return [np.array([given[word] for word in one.words], np.int32) for one in some]


def commonest(train: Tagged, test: Tagged) -> float:
  """Returns the share of test words that have the tag which they have most often in training, of 1."""
  of_word: dict[str, Counter[int]] = {}
  for word, tag in zip(train.words, train.classes.tolist(), strict=True):
    of_word.setdefault(word, Counter())[tag] += 1
  (usual, _), = Counter(train.classes.tolist()).most_common(1)
  said = [of_word[word].most_common(1)[0][0] if word in of_word else usual for word in test.words]
  return float(np.mean(np.array(said) == test.classes))


def learned(config: ProbeConfig, x: np.ndarray, seen: np.ndarray, y: np.ndarray, asked: np.ndarray, classes: int,
            seed: int) -> float:
  """Learns tags `seen` [N] from vectors x [N, D] -> the share of vectors y [M, D] whose tag `asked` it then finds."""
  batch = min(config.batch, len(x))
  order = np.stack([np.random.default_rng([seed, epoch]).permutation(len(x))[:len(x) // batch * batch]
                    for epoch in range(config.epochs)]).reshape(-1, batch)
  weights = fit(jnp.asarray(x), jnp.asarray(seen), jnp.asarray(order), classes, config.rate)
  found = np.asarray(y @ np.asarray(weights['kernel']) + np.asarray(weights['bias'])).argmax(-1)
  return float(np.mean(found == asked))


@functools.partial(jax.jit, static_argnums=(3, 4))
def fit(x, tags, order, classes: int, rate: float):
  """Fits a linear softmax to vectors x [N, D] and tags [N], by updates on the words of `order` [steps, B]."""
  optimizer = optax.adam(optax.linear_schedule(rate, 0.0, order.shape[0]))
  params = {'kernel': jnp.zeros((x.shape[1], classes)), 'bias': jnp.zeros(classes)}
  def loss(params, some):
    logits = x[some] @ params['kernel'] + params['bias']
    return optax.softmax_cross_entropy_with_integer_labels(logits, tags[some]).mean()
  def update(carry, some):
    params, state = carry
    changes, state = optimizer.update(jax.grad(loss)(params, some), state)
    return (optax.apply_updates(params, changes), state), None
  (params, _), _ = jax.lax.scan(update, (params, optimizer.init(params)), order)
  return params
