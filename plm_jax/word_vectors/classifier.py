"""fastText's text classifier.

Joulin et al. 2017, "Bag of tricks for efficient text classification": the mean of the vectors of a
text's words, word n-grams and subwords, and a softmax over labels. Training
takes seconds and is no run: one call without checkpoints. The result is what fastText's
`supervised` writes, a .bin with which both predict. As released: a line ends with the word </s>,
word n-grams are hashed into the rows of subwords (dictionary.cc addWordNgrams), and of several
labels of a line one is sampled each time. fastText adds 1e-5 to the probabilities that it shows.
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
from plm_jax.sources.lines import ReadStats, SourceError, read_lines
from plm_jax.validation import ValidatedConfig, intervals
from plm_jax.word_vectors import fasttext_bin, losses
from plm_jax.word_vectors.fasttext_bin import FastTextArguments, FastTextModel
from plm_jax.word_vectors.subwords import END_OF_LINE, FNV_OFFSET, Subwords, extend_hash
from plm_jax.word_vectors.word_corpus import Vocabulary, huffman_paths

LABEL_PREFIX = '__label__'
NGRAM_FACTOR = 116049371
UINT64_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class ClassifierConfig(ValidatedConfig):
  """Training of a text classifier; the defaults are those of fastText's `supervised`."""

  limits = intervals(
      width='[1, 65536]', epochs='[1, 1000000]', rate='(0, 100]', least='[1, inf)',
      ngrams='[1, 100]', batch='[1, 65536]', seed='[0, 4294967295]')

  width: int = 100
  """Dimension of the vectors."""
  epochs: int = 5
  """Number of epochs."""
  rate: float = 0.1
  """Learning rate at the beginning; it decays linearly to 0."""
  least: int = 1
  """Minimum count of a word of the vocabulary."""
  ngrams: int = 1
  """Maximum length of word n-grams; 1: single words."""
  subwords: Subwords = Subwords(longest=0)
  """Character n-grams that have vectors; their buckets are also those of word n-grams."""
  batch: int = 8
  """Batch size in texts."""
  seed: int = 0
  """Random seed for initial vectors and the order of texts."""

  @property
  def buckets(self) -> int:
    """Number of table rows of n-grams; fastText has none where nothing is hashed."""
    return self.subwords.buckets if self.ngrams > 1 or self.subwords.longest else 0


def read_labeled_texts(path: epath.PathLike) -> list[tuple[list[str], list[str]]]:
  """Read lines of labels, which are words that begin with __label__, and other words.

  Returns:
    (labels, words) of each line.

  Raises:
    SourceError: no line has a label.
  """
  texts = []
  for _, line in read_lines(storage.resolve_path(path), 'refuse', ReadStats()):
    words = line.split()
    labels = [word for word in words if word.startswith(LABEL_PREFIX)]
    texts.append((labels, [word for word in words if not word.startswith(LABEL_PREFIX)]))
  if not any(labels for labels, _ in texts):
    raise SourceError(f'{path}: no line has a label, a word that begins with {LABEL_PREFIX}')
  return texts


def text_rows(model: FastTextModel, index: dict[str, int], words: Sequence[str]) -> list[int]:
  """List the table rows of a text: of its words and </s>, of their subwords, of word n-grams."""
  rows, codes, subwords = [], [], model.subwords
  for word in list(words) + [END_OF_LINE]:
    if word in index:
      rows.append(index[word])
    rows += subwords.ngram_rows(word, len(model.words))
    code = extend_hash(FNV_OFFSET, word.encode(errors='surrogateescape'))
    if code >> 31:  # an int32 that becomes a uint64
      code |= UINT64_MASK ^ 0xFFFFFFFF
    codes.append(code)
  if model.arguments.buckets:
    for first in range(len(codes)):
      code = codes[first]
      for other in codes[first + 1:first + model.arguments.word_ngrams]:
        code = (code * NGRAM_FACTOR + other) & UINT64_MASK
        rows.append(len(model.words) + code % model.arguments.buckets)
  return rows


def train_classifier(
    examples: Sequence[tuple[Sequence[str], Sequence[str]]],
    config: ClassifierConfig = ClassifierConfig()) -> FastTextModel:
  """Train a classifier.

  Args:
    examples: (labels, words) of texts; those without a label only count for the vocabulary.
    config: of the training.

  Raises:
    VocabularyError: the texts have no words, or only one label.
  """
  counted, label_counts = Counter(), Counter()
  for text_labels, words in examples:
    counted.update(words)
    counted[END_OF_LINE] += 1
    label_counts.update(text_labels)
  vocabulary = Vocabulary.from_counts(counted, config.least)
  labels = Vocabulary.from_counts(label_counts, 1)
  longest = config.subwords.longest
  shortest = config.subwords.shortest if longest else 0
  arguments = FastTextArguments(
      width=config.width, window=5, epochs=config.epochs, least=config.least, negatives=5,
      word_ngrams=config.ngrams, loss=fasttext_bin.LOSSES['softmax'],
      model=fasttext_bin.MODELS['supervised'], buckets=config.buckets,
      shortest=shortest, longest=longest, rate_every=100,
      threshold=1e-4)
  random = np.random.default_rng(config.seed)
  shape = len(vocabulary) + config.buckets, config.width
  inputs = random.uniform(-1 / config.width, 1 / config.width, shape).astype(np.float32)
  outputs = np.zeros((len(labels), config.width), np.float32)
  counts = tuple(map(int, np.concatenate([vocabulary.counts, labels.counts])))
  tokens = sum(counted.values()) + labels.total
  model = FastTextModel(
      arguments, vocabulary.words, labels.words, counts, tokens, inputs, outputs)
  texts = []
  for text_labels, words in examples:
    if text_labels and (rows := text_rows(model, vocabulary.index, words)):
      texts.append((rows, [labels.index[label] for label in text_labels]))
  step = jax.jit(train_step, donate_argnums=0)
  tables = {'input': jnp.asarray(inputs), 'output': jnp.asarray(outputs)}
  for epoch in range(config.epochs):
    order = random.permutation(len(texts))
    for start in range(0, len(texts), config.batch):
      batch = [texts[place] for place in order[start:start + config.batch]]
      rate = config.rate * (1 - (epoch + start / len(texts)) / config.epochs)
      rows, owner, answers = make_batch(batch, config.batch, random)
      tables = step(tables, rows, owner, answers, rate)
  return dataclasses.replace(
      model, inputs=np.asarray(tables['input']), outputs=np.asarray(tables['output']))


def make_batch(
    batch: Sequence[tuple[list[int], list[int]]], size: int,
    random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Concatenate the table rows of texts, and sample one label for each.

  Args:
    batch: (table rows, labels) of at most `size` texts.
    size: batch size B.
    random: source of randomness.

  Returns:
    Rows [R], where R is one of a few numbers; the text of each row [R], B for padding; labels [B],
    -1 for padding.
  """
  number = sum(len(rows) for rows, _ in batch)
  room = 1 << max(number - 1, 63).bit_length()
  rows, owner = np.zeros(room, np.int32), np.full(room, size, np.int32)
  answers = np.full(size, -1, np.int32)
  start = 0
  for place, (row_ids, labels) in enumerate(batch):
    stop = start + len(row_ids)
    rows[start:stop], owner[start:stop] = row_ids, place
    answers[place] = labels[random.integers(len(labels))]
    start = stop
  return rows, owner, answers


def train_step(
    tables: losses.TableValues, rows: jax.Array, owner: jax.Array, answers: jax.Array,
    rate: Any) -> losses.TableValues:
  """Make a step of gradient descent in the rows of the batch and of the labels."""
  def loss(gathered):
    total, number = losses.sum_rows(gathered['input'], owner, len(answers))
    hidden = total / jnp.maximum(number, 1)[:, None]
    scores = jax.nn.log_softmax(hidden @ gathered['output'].T)
    chosen = jnp.take_along_axis(scores, jnp.maximum(answers, 0)[:, None], 1)[:, 0]
    return -(chosen * (answers >= 0)).sum()

  label_rows = jnp.arange(len(tables['output']))
  return losses.descend_rows(loss, tables, {'input': rows, 'output': label_rows}, rate)


def predict(
    model: FastTextModel, texts: Iterable[Sequence[str]],
    top: int = 1) -> list[list[tuple[str, float]]]:
  """Predict the labels of texts as `make_predictor` does."""
  return list(map(make_predictor(model, top), texts))


def measure(
    model: FastTextModel, texts: Iterable[tuple[Sequence[str], Sequence[str]]],
    top: int = 1) -> tuple[int, float, float]:
  """Score a classifier as fastText's `test` does (meter.cc).

  Args:
    model: a classifier.
    texts: (labels, words) of each text; those without a label are left out.
    top: number of labels that the classifier predicts for a text.

  Returns:
    The number of texts; the precision, which is the share of predicted labels that are right; the
    recall, which is the share of the texts' labels that are predicted.

  Raises:
    FastTextError: as `make_predictor`.
  """
  predictor = make_predictor(model, top)
  number = right = predicted = given = 0
  for labels, words in texts:
    if labels:
      found = predictor(words)
      number += 1
      predicted += len(found)
      given += len(labels)
      right += sum(label in labels for label, _ in found)
  return number, right / max(predicted, 1), right / max(given, 1)


def make_predictor(
    model: FastTextModel, top: int = 1) -> Callable[[Sequence[str]], list[tuple[str, float]]]:
  """Make the function that predicts the labels of a text.

  Args:
    model: a classifier.
    top: number of labels.

  Returns:
    A function of a list of words: (label, probability), most likely first; [] for a text without
      table rows.

  Raises:
    FastTextError: the model has no labels, or another loss than a full or hierarchical softmax.
  """
  loss = {number: name for name, number in fasttext_bin.LOSSES.items()}.get(model.arguments.loss)
  if not model.labels or loss not in ('softmax', 'hierarchical'):
    raise fasttext_bin.FastTextError(
        'this model predicts no labels by a softmax: it is one of `supervised` that does')
  index = {word: number for number, word in enumerate(model.words)}
  counts = np.array(model.counts[len(model.words):])  # of the labels
  paths = huffman_paths(counts) if loss == 'hierarchical' else None

  def predict_text(words: Sequence[str]) -> list[tuple[str, float]]:
    rows = text_rows(model, index, words)
    if not rows:
      return []
    scores = model.outputs @ model.inputs[rows].mean(0)
    if paths:
      branch = np.where(paths.codes == 1, 1, -1) * scores[paths.nodes]
      scores = np.where(paths.codes < 0, 0, -np.logaddexp(0, -branch)).sum(1)
    chances = np.exp(scores - scores.max())
    order = np.argsort(-chances, kind='stable')[:top]
    total = chances.sum()
    return [(model.labels[label], float(chances[label] / total)) for label in order]

  return predict_text
