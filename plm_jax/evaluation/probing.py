"""Probing: linear classifiers on each layer's word vectors, for tags such as parts of speech.

The model is frozen. A linear softmax classifier learns the tag of a word from its vector (Liu et
al. 2019, section 3). Its accuracy is compared with three baselines:

- the most frequent tag of each word in the training sentences (majority-class baseline);
- the same model with random parameters, where the words alone give some accuracy;
- a control task, in which every word type has a random tag (Hewitt and Liang 2019, section 2). A
  probe that learns it memorizes words. The difference is the `selectivity` of the probe.
"""
from collections import Counter
from collections.abc import Sequence
import dataclasses
import functools
import itertools
import statistics
from typing import Any, NamedTuple

from flax.core import meta
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.errors import ConfigError
from plm_jax.inference import encode, token_features
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class ProbeConfig(ValidatedConfig):
  """Training options of probes."""

  limits = intervals(seeds='[1, 100]', epochs='[1, 1000]', batch='[1, 65536]', rate='(0, 1]')

  seeds: int = 3
  """number of random seeds: probes per layer, and untrained models"""
  epochs: int = 5
  """epochs over the training words"""
  batch: int = 256
  """batch size, in words"""
  rate: float = 1e-2
  """peak learning rate of Adam, with linear decay to 0; vectors are scaled to variance 1"""


class TaggedSentences(NamedTuple):
  """Sentences with one tag per word."""

  sentences: Sequence[Sequence[str]]
  tags: Sequence[Sequence[int]]

  @property
  def words(self) -> list[str]:
    """All words of the sentences, concatenated."""
    return list(itertools.chain.from_iterable(self.sentences))

  @property
  def classes(self) -> np.ndarray:
    """The tags of all words [words]."""
    return np.array(list(itertools.chain.from_iterable(self.tags)), np.int32)


@dataclasses.dataclass(frozen=True)
class LayerProbe:
  """Test accuracies of the probes of one layer, from 0 to 1, one per seed."""

  layer: int
  """0: the embeddings"""
  accuracy: tuple[float, ...]
  control: tuple[float, ...]
  """accuracy on the control task"""
  untrained: tuple[float, ...]
  """accuracy on the same layer of a model with random parameters"""

  @property
  def selectivity(self) -> float:
    """Mean accuracy minus mean accuracy on the control task."""
    return statistics.mean(self.accuracy) - statistics.mean(self.control)


class ProbeResult(NamedTuple):
  """The results of probing a model."""

  layers: list[LayerProbe]
  commonest: float
  """accuracy of each word's most frequent tag; of unseen words, of the most frequent tag of all"""
  words: tuple[int, int]
  """numbers of training and test words"""


def probe(
    trained: LoadedModel, train: TaggedSentences, test: TaggedSentences,
    config: ProbeConfig = ProbeConfig(),
) -> ProbeResult:
  """Probe every layer of a model.

  Raises:
    CheckpointError, ConfigError: as for `inference.token_features.build_rows`; also ConfigError for
      no words.
  """
  train_tags, test_tags = train.classes, test.classes
  if not train_tags.size or not test_tags.size:
    raise ConfigError('there are no words to learn from, or none to test on')
  classes = 1 + max(train_tags.max(), test_tags.max())
  seeds = range(config.seeds)
  control_tags = [make_control_tags([train, test], classes, seed) for seed in seeds]
  vectors = [compute_word_vectors(trained, train), compute_word_vectors(trained, test)]
  random_vectors = []
  for seed in seeds:
    params = init_random_params(trained, seed)
    random_vectors.append([compute_word_vectors(trained, some, params) for some in (train, test)])

  layers, tags = [], [train_tags, test_tags]
  for layer in range(len(vectors[0])):
    own = standardize(*(some[layer] for some in vectors))
    accuracy, on_control, untrained = [], [], []
    for seed in seeds:
      accuracy.append(train_and_test(config, own, tags, classes, seed))
      on_control.append(train_and_test(config, own, control_tags[seed], classes, seed))
      at_random = standardize(*(some[layer] for some in random_vectors[seed]))
      untrained.append(train_and_test(config, at_random, tags, classes, seed))
    layers.append(LayerProbe(layer, tuple(accuracy), tuple(on_control), tuple(untrained)))
  return ProbeResult(layers, majority_baseline(train, test), (len(train_tags), len(test_tags)))


def compute_word_vectors(
    trained: LoadedModel, tagged: TaggedSentences, params: Any = None) -> np.ndarray:
  """Compute the vectors of all words in all layers [layers + 1, words, hidden]."""
  return np.concatenate(token_features.word_layers(trained, tagged.sentences, params), 1)


def init_random_params(trained: LoadedModel, seed: int) -> Any:
  """Initialize random parameters of the model's backbone, as for training from scratch."""
  config: Any = encode.encoder_config(trained.model)
  return init_backbone(config, jax.device_put(np.uint32(seed)))


@functools.partial(jax.jit, static_argnums=0)
def init_backbone(config: Any, seed: jax.Array) -> Any:
  """Initialize the parameters of a backbone."""
  inputs = dict.fromkeys(('tokens', 'segments', 'ranks'), jnp.ones((1, 8), jnp.int32))
  if config.kind == 'recurrent':
    inputs = {'characters': jnp.ones((1, 8, config.characters.longest), jnp.int32)}
  return meta.unbox(config.backbone().init(jax.random.key(seed), inputs)['params'])


def standardize(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Standardize vectors to mean 0 and variance 1 of each component over the training words."""
  mean, deviation = train.mean(0), train.std(0) + 1e-6
  return (train - mean) / deviation, (test - mean) / deviation


def make_control_tags(some: Sequence[TaggedSentences], classes: int, seed: int) -> list[np.ndarray]:
  """Make the tags of the control task: a random tag for each word type, by tag frequency.

  Returns:
    The tags of the words [words] of each set; frequencies are those of the first set.
  """
  random = np.random.default_rng(seed)
  shares = np.bincount(some[0].classes, minlength=classes) / len(some[0].classes)
  types = dict.fromkeys(itertools.chain.from_iterable(tagged.words for tagged in some))
  tags = dict(zip(types, random.choice(classes, len(types), p=shares).tolist(), strict=True))
  return [np.array([tags[word] for word in tagged.words], np.int32) for tagged in some]


def majority_baseline(train: TaggedSentences, test: TaggedSentences) -> float:
  """Compute the accuracy of the most frequent training tag of each word, from 0 to 1."""
  counts: dict[str, Counter[int]] = {}
  for word, tag in zip(train.words, train.classes.tolist(), strict=True):
    counts.setdefault(word, Counter())[tag] += 1
  (usual, _), = Counter(train.classes.tolist()).most_common(1)
  tags = {word: some.most_common(1)[0][0] for word, some in counts.items()}
  predicted = np.array([tags.get(word, usual) for word in test.words])
  return float(np.mean(predicted == test.classes))


def train_and_test(
    config: ProbeConfig, vectors: Sequence[np.ndarray], tags: Sequence[np.ndarray], classes: int,
    seed: int) -> float:
  """Train a probe and return its test accuracy.

  Args:
    config: the training options.
    vectors: of the training words and of the test words [words, hidden].
    tags: of both [words].
    classes: number of tags.
    seed: random seed of the order of the words.
  """
  (x, y), (seen, asked) = vectors, tags
  batch = min(config.batch, len(x))
  order = [np.random.default_rng([seed, epoch]).permutation(len(x))[:len(x) // batch * batch]
           for epoch in range(config.epochs)]
  batches = np.stack(order).reshape(-1, batch).astype(np.int32)
  weights = fit_probe(*jax.device_put((x, seen, batches)), classes, config.rate)
  logits = y @ np.asarray(weights['kernel']) + np.asarray(weights['bias'])
  return float(np.mean(logits.argmax(-1) == asked))


@functools.partial(jax.jit, static_argnums=(3, 4))
def fit_probe(x, tags, order, classes: int, rate: float):
  """Fit a linear softmax classifier to vectors x [words, hidden] and tags [words].

  order: indices of the words of each update [steps, batch].
  """
  optimizer = optax.adam(optax.linear_schedule(rate, 0.0, order.shape[0]))
  params = {'kernel': jnp.zeros((x.shape[1], classes)), 'bias': jnp.zeros(classes)}
  def loss(params, batch):
    logits = x[batch] @ params['kernel'] + params['bias']
    return optax.softmax_cross_entropy_with_integer_labels(logits, tags[batch]).mean()
  def update(carry, batch):
    params, state = carry
    changes, state = optimizer.update(jax.grad(loss)(params, batch), state)
    return (optax.apply_updates(params, changes), state), None
  (params, _), _ = jax.lax.scan(update, (params, optimizer.init(params)), order)
  return params
