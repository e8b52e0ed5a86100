"""fastText's classifier (Joulin et al. 2017, "Bag of tricks for efficient text classification"): the mean of the
vectors of a text's words, of its n-grams of words and of their parts, and a softmax over labels.

It is learned in seconds and is no run: no checkpoints, one call. What comes out is what fastText's `supervised` writes,
a .bin with which either predicts. As released: a line ends with the word </s>, n-grams of words are hashed into the
rows of parts (dictionary.cc addWordNgrams), and of several labels of a line one is drawn each time. fastText adds 1e-5
to the probabilities that it shows.
"""
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import storage
from plm_jax.checked import Checked, within
from plm_jax.data.lines import SourceError, Tally, lines
from plm_jax.vectors import fasttext_bin, huffman, kernels
from plm_jax.vectors.fasttext_bin import Arguments, FastText
from plm_jax.vectors.subwords import END, Subwords, code_of
from plm_jax.vectors.vocabulary import Vocabulary

LABEL = '__label__'
NGRAM = 116049371
MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Classifier(Checked):
  """How a classifier learns; the defaults are those of fastText's `supervised`."""

  limits = within(width='[1, 65536]', epochs='[1, 1000000]', rate='(0, 100]', least='[1, inf)', ngrams='[1, 100]',
                  batch='[1, 65536]', seed='[0, 4294967295]')

  width: int = 100
  """of the vectors"""
  epochs: int = 5
  """times that the texts are read"""
  rate: float = 0.1
  """learning rate at the beginning; it falls to 0"""
  least: int = 1
  """times that a word comes, at least"""
  ngrams: int = 1
  """words of an n-gram at most; 1: words alone"""
  subwords: Subwords = Subwords(longest=0)
  """parts of words that have vectors; its buckets are those of n-grams of words too"""
  batch: int = 8
  """texts that see the vectors from before each other"""
  seed: int = 0
  """of initial vectors and of the order of texts"""

  @property
  def buckets(self) -> int:
    """Counts the rows of n-grams; fastText has none where nothing is hashed."""
    return self.subwords.buckets if self.ngrams > 1 or self.subwords.longest else 0


def read(path: epath.PathLike) -> list[tuple[list[str], list[str]]]:
  """Reads lines of labels, words that begin with __label__, and other words -> (labels, words) of each. Raises
  SourceError for a file in which no line has a label."""
  found = []
  for _, line in lines(storage.path_of(path), 'refuse', Tally()):
    words = line.split()
    found.append(([word for word in words if word.startswith(LABEL)],
                  [word for word in words if not word.startswith(LABEL)]))
  if not any(labels for labels, _ in found):
    raise SourceError(f'{path}: no line has a label, a word that begins with {LABEL}')
  return found


def rows_of(model: FastText, index: dict[str, int], words: Sequence[str]) -> list[int]:
  """Lists the rows of a text: of its words and </s>, of their parts, of n-grams of words."""
  rows, codes, subwords = [], [], model.subwords
  for word in (*words, END):
    if word in index:
      rows.append(index[word])
    rows += subwords.rows(word, len(model.words))
    code = code_of(word)
    codes.append(code | (MASK ^ 0xFFFFFFFF) if code >> 31 else code)  # an int32 that becomes a uint64
  if model.arguments.buckets:
    for first in range(len(codes)):
      code = codes[first]
      for other in codes[first + 1:first + model.arguments.word_ngrams]:
        code = (code * NGRAM + other) & MASK
        rows.append(len(model.words) + code % model.arguments.buckets)
  return rows


def learn(examples: Sequence[tuple[Sequence[str], Sequence[str]]], config: Classifier = Classifier()) -> FastText:
  """Learns from (labels, words) of texts; those without a label count for the vocabulary alone. Raises VocabularyError
  for texts without words, or with one label alone."""
  counted = Counter(word for _, words in examples for word in (*words, END))
  vocabulary = Vocabulary.of(counted, config.least)
  labels = Vocabulary.of(Counter(label for found, _ in examples for label in found), 1)
  arguments = Arguments(
      width=config.width, window=5, epochs=config.epochs, least=config.least, negatives=5, word_ngrams=config.ngrams,
      loss=fasttext_bin.LOSSES['softmax'], model=fasttext_bin.MODELS['supervised'], buckets=config.buckets,
      shortest=config.subwords.shortest if config.subwords.longest else 0, longest=config.subwords.longest,
      rate_every=100, threshold=1e-4)
  random = np.random.default_rng(config.seed)
  inputs = random.uniform(-1 / config.width, 1 / config.width, (len(vocabulary) + config.buckets, config.width))
  model = FastText(
      arguments, vocabulary.words, labels.words, (*map(int, vocabulary.counts), *map(int, labels.counts)),
      sum(counted.values()) + labels.total, inputs.astype(np.float32),
      np.zeros((len(labels), config.width), np.float32))
  texts = [(rows_of(model, vocabulary.index, words), [labels.index[label] for label in found])
           for found, words in examples if found]
  texts = [(rows, answers) for rows, answers in texts if rows]
  step = jax.jit(updated, donate_argnums=0)
  tables = {'input': jnp.asarray(model.inputs), 'output': jnp.asarray(model.outputs)}
  for epoch in range(config.epochs):
    order = random.permutation(len(texts))
    for start in range(0, len(texts), config.batch):
      batch = [texts[place] for place in order[start:start + config.batch]]
      rate = config.rate * (1 - (epoch + start / len(texts)) / config.epochs)
      tables = step(tables, *laid(batch, config.batch, random), rate)
  found = {name: np.asarray(table) for name, table in tables.items()}
  return dataclasses.replace(model, inputs=found['input'], outputs=found['output'])


def laid(
    batch: Sequence[tuple[list[int], list[int]]], size: int, random: np.random.Generator) -> tuple[np.ndarray, ...]:
  """Lays the rows of texts behind each other -> rows [R], the text of each, B behind the end, [R], and a label of
  each text, -1 where there is none, [B]. R is one of a few numbers."""
  number = sum(len(rows) for rows, _ in batch)
  room = 1 << max(number - 1, 63).bit_length()
  rows, owner, answers = np.zeros(room, np.int32), np.full(room, size, np.int32), np.full(size, -1, np.int32)
  rows[:number] = [row for found, _ in batch for row in found]
  owner[:number] = np.repeat(np.arange(len(batch)), [len(found) for found, _ in batch])
  answers[:len(batch)] = [labels[random.integers(len(labels))] for _, labels in batch]
  return rows, owner, answers


def updated(tables: kernels.Tables, rows: jax.Array, owner: jax.Array, answers: jax.Array, rate: Any) -> kernels.Tables:
  """Makes a step of gradient descent, in the rows of the batch and of the labels."""
  def loss(found):
    scores = jax.nn.log_softmax(hidden_of(found['input'], owner, len(answers)) @ found['output'].T)
    chosen = jnp.take_along_axis(scores, jnp.maximum(answers, 0)[:, None], 1)[:, 0]
    return -(chosen * (answers >= 0)).sum()
  return kernels.descend(loss, tables, {'input': rows, 'output': jnp.arange(len(tables['output']))}, rate)


def hidden_of(found: jax.Array, owner: jax.Array, size: int) -> jax.Array:
  """Averages the rows of each text -> [B, D]."""
  total = jax.ops.segment_sum(found, owner, size, indices_are_sorted=True)
  number = jax.ops.segment_sum(jnp.ones(len(found)), owner, size, indices_are_sorted=True)
  return total / jnp.maximum(number, 1)[:, None]


def predict(model: FastText, texts: Iterable[Sequence[str]], top: int = 1) -> list[list[tuple[str, float]]]:
  """Predicts the labels of texts as `predictor` does."""
  return list(map(predictor(model, top), texts))


def predictor(model: FastText, top: int = 1) -> Callable[[Sequence[str]], list[tuple[str, float]]]:
  """Returns what predicts the labels of a text, a list of words -> (label, probability), likeliest first; [] for a text
  without a row. Raises FastTextError for a model that has no labels, or another loss than a softmax, whole or
  hierarchical."""
  loss = next((name for name in ('softmax', 'hierarchical') if model.arguments.loss == fasttext_bin.LOSSES[name]), '')
  if not model.labels or not loss:
    raise fasttext_bin.FastTextError('this model predicts no labels by a softmax: it is one of `supervised` that does')
  index = {word: number for number, word in enumerate(model.words)}
  paths = huffman.paths(np.array(model.counts[len(model.words):])) if loss == 'hierarchical' else None
  def asked(words: Sequence[str]) -> list[tuple[str, float]]:
    rows = rows_of(model, index, words)
    if not rows:
      return []
    scores = model.outputs @ model.inputs[rows].mean(0)
    if paths:
      branch = np.where(paths.codes == 1, 1, -1) * scores[paths.nodes]
      scores = np.where(paths.codes < 0, 0, -np.logaddexp(0, -branch)).sum(1)
    chances = np.exp(scores - scores.max())
    order = np.argsort(-chances, kind='stable')[:top]
    return [(model.labels[label], float(chances[label] / chances.sum())) for label in order]
  return asked
