"""Simple baselines of labeled tasks, to compare the score of a fine-tuned model with.

    majority_baseline(task, train, dev)   # {'accuracy': 50.2}: always the most frequent class
    simple_baseline(task, train, dev)     # Baseline('TF-IDF with logistic regression', ...)

Simple baselines learn from word counts alone, in seconds on a CPU: TF-IDF with logistic regression
for classes, with ridge regression for numbers; a linear tagger for token classification; BM25 for
retrieval; cosines of TF-IDF for similarity and multiple choice. `vector_baseline` does the same on
the vectors of a model. Large data sets are limited: MAX_TRAIN_EXAMPLES sampled examples,
MAX_CHARACTERS of each text for TF-IDF, and MAX_FEATURES words.
"""
import collections
from collections.abc import Callable, Iterator, Sequence
import functools
import itertools
import random
from typing import Any, NamedTuple
import warnings

import numpy as np
from scipy import sparse

from plm_jax.metrics.embeddings import RETRIEVAL_DEPTH, ranking_metrics
from plm_jax.metrics.multilabel import DEFAULT_THRESHOLD
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.bm25 import Bm25, rank_bm25, split_words
from plm_jax.tasks.contract import Task
from plm_jax.tasks.multilabel import MultiLabelPrediction, indicate
from plm_jax.tasks.outputs import Relevance, Value
from plm_jax.tasks.sentence_embedding import group_queries
from plm_jax.tasks.sequence_classification import ClassPrediction, label_prediction
from plm_jax.tasks.token_classification import TagPrediction

MAX_TRAIN_EXAMPLES, MAX_FEATURES = 10_000, 50_000
MAX_CHARACTERS = 2_000  # of a text whose words are counted
MAX_WEIGHTS = 20_000_000  # of a linear classifier: features times classes
MAX_WORDS = 200_000  # of the sentences that a tagger learns from
MAX_DEV_EXAMPLES = 20_000  # larger development sets have no simple baseline


ON_VECTORS = ' on the frozen vectors'
"""end of the names of baselines on the vectors of a model that is not fine-tuned"""


class Baseline(NamedTuple):
  """Name and scores of a baseline."""

  name: str
  scores: dict[str, float]
  """metrics of the task, in percent"""


def majority_baseline(
    task: Task, train: Sequence[Example], dev: Sequence[Example]) -> dict[str, float]:
  """Evaluate the majority-class baseline: always predict the most frequent training class.

  For token classification it is the most frequent tag, for multiple choice the most frequent
  index. {} for tasks without classes.
  """
  if task.example_kind not in MAJORITY_BASELINES or task.example_format is not task.train_format:
    return {}
  return task.scores(dev, MAJORITY_BASELINES[task.example_kind](task, train, dev))


def predict_majority_class(
    task: Task, train: Sequence[Example], dev: Sequence[Example]) -> list[ClassPrediction]:
  """Predict the most frequent class, or the most frequent index of a choice."""
  label = most_frequent(example.label for example in train)
  return [label_prediction(label)] * len(dev)


def predict_majority_labels(
    task: Task, train: Sequence[Example], dev: Sequence[Example]) -> list[MultiLabelPrediction]:
  """Predict the most frequent set of labels, with the frequency of each label as its score."""
  labels: Any = [example.label or () for example in train]
  frequency = indicate(labels, task.classes).mean(0)
  return [MultiLabelPrediction(most_frequent(labels), frequency)] * len(dev)


def predict_majority_tag(
    task: Task, train: Sequence[Example], dev: Sequence[Example]) -> list[TagPrediction]:
  """Predict the most frequent tag for every word."""
  tag = most_frequent(itertools.chain.from_iterable(known_tags(example) for example in train))
  return [TagPrediction([tag] * len(example.texts), []) for example in dev]


def simple_baseline(
    task: Task, train: Sequence[Example], dev: Sequence[Example]) -> Baseline | None:
  """Train and evaluate the simple baseline of a task's kind.

  None for extractive QA, and if there is too much to evaluate or too little to learn from.
  """
  if not train or not 0 < len(dev) <= MAX_DEV_EXAMPLES:
    return None
  is_limited = len(train) > MAX_TRAIN_EXAMPLES
  if is_limited:
    train = random.Random(0).sample(list(train), MAX_TRAIN_EXAMPLES)
  compares = task.example_kind == 'regression' and task.head == 'embedding'
  fit = compare_pairs if compares else SIMPLE_BASELINES.get(task.example_kind)
  baseline = fit(task, train, dev) if fit else None
  if baseline and is_limited:
    return baseline._replace(name=f'{baseline.name} of {MAX_TRAIN_EXAMPLES:,} examples')
  return baseline


def vector_baseline(
    task: Task, train: Sequence[Example], dev: Sequence[Example],
    encode: Callable[[Sequence[str]], np.ndarray]) -> Baseline | None:
  """Train and evaluate a linear model on the vectors of a model that is not fine-tuned.

  It is a logistic regression for classes, a ridge regression for numbers. None for other kinds, and
  if there is too much to encode or only one class.

  Args:
    task: the task.
    train: training examples.
    dev: development examples.
    encode: texts -> vectors [N, D].
  """
  fit = {'classification': classify, 'multilabel': classify_labels, 'regression': regress}
  too_many = max(len(train), len(dev)) > MAX_TRAIN_EXAMPLES
  if task.example_kind not in fit or task.head != 'label' or too_many or not dev:
    return None
  return fit[task.example_kind](task, train, dev, functools.partial(VectorFeatures, encode))


def classify(
    task: Task, train: Sequence[Example], dev: Sequence[Example], featurize: Any = None
) -> Baseline | None:
  """Classify by TF-IDF of words and bigrams, or other features, with logistic regression.

  Pairs of texts also have features of what they share. None if there is only one class.
  """
  labels = np.array([example.label for example in train])
  classes = len(set(labels.tolist()))
  if classes < 2:
    return None
  features, model = fit_logistic(train, labels, classes, featurize)
  predicted = model.predict(features.transform(dev))
  predictions = [label_prediction(int(label)) for label in predicted]
  return Baseline(features.name.format('logistic regression'), task.scores(dev, predictions))


def classify_labels(
    task: Task, train: Sequence[Example], dev: Sequence[Example], featurize: Any = None
) -> Baseline:
  """Predict each label by TF-IDF, or other features, with logistic regression of its own."""
  from sklearn.multiclass import OneVsRestClassifier
  labels: Any = [example.label or () for example in train]
  targets = indicate(labels, task.classes).astype(int)
  features, model = fit_logistic(train, targets, task.classes, featurize, OneVsRestClassifier)
  # Of a single label there are also the probabilities that examples do not have it.
  probabilities = model.predict_proba(features.transform(dev))[:, -task.classes:]
  predictions = [
      MultiLabelPrediction(tuple(np.flatnonzero(row > DEFAULT_THRESHOLD).tolist()), row)
      for row in probabilities]
  return Baseline(features.name.format('logistic regression'), task.scores(dev, predictions))


def fit_logistic(
    train: Sequence[Example], targets: np.ndarray, classes: int, featurize: Any,
    wrap: Callable[[Any], Any] = lambda model: model) -> tuple[Any, Any]:
  """Fit a logistic regression -> (features, model). wrap: makes the model of one for a class."""
  from sklearn.linear_model import LogisticRegression
  features = (featurize or TfidfFeatures)(
      train, min(MAX_FEATURES, max(1000, MAX_WEIGHTS // classes)))
  model = wrap(LogisticRegression(C=10.0, max_iter=features.iterations))
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # these iterations are enough for a baseline
    model.fit(features.transform(train), targets)
  return features, model


def regress(
    task: Task, train: Sequence[Example], dev: Sequence[Example], featurize: Any = None
) -> Baseline:
  """Predict numbers by TF-IDF, or other features, with ridge regression.

  Pairs of texts have features of their similarity alone, which tell more than their words.
  """
  from sklearn.linear_model import Ridge
  are_pairs = all(len(example.texts) == 2 for example in itertools.chain(train, dev))
  features = (featurize or TfidfFeatures)(train, MAX_FEATURES)
  extract: Any = features.similarities if are_pairs else features.transform
  targets = [float(example.label) for example in train]  # pyright: ignore
  model = Ridge(alpha=1.0).fit(extract(train), targets)
  predictions = [Value(float(value)) for value in model.predict(extract(dev))]
  return Baseline(features.name.format('ridge regression'), task.scores(dev, predictions))


def compare_pairs(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> Baseline:
  """Predict similarity as the cosine of TF-IDF vectors, without using labels."""
  features = TfidfFeatures(list(train) + list(dev), MAX_FEATURES)
  predictions = [Value(cosine) for cosine in features.similarities(dev)[:, 0].tolist()]
  return Baseline('cosine of TF-IDF', task.scores(dev, predictions))


def choose(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> Baseline:
  """Predict the choice whose words are most similar to those of context and question."""
  def make_pairs(examples):
    return [Example((' '.join(example.texts), choice))
            for example in examples for choice in example.choices]
  features = TfidfFeatures(make_pairs(train), MAX_FEATURES)
  scores = iter(features.similarities(make_pairs(dev))[:, 0].tolist())
  predictions = [label_prediction(int(np.argmax([next(scores) for _ in example.choices])))
                 for example in dev]
  return Baseline('most similar choice by TF-IDF', task.scores(dev, predictions))


def retrieve(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> Baseline:
  """Retrieve the second texts of each query by BM25 (Robertson and Zaragoza 2009)."""
  search = group_queries(dev)
  ranks = rank_bm25(list(search.queries), search.corpus, RETRIEVAL_DEPTH + 1)
  return Baseline('BM25', ranking_metrics(ranks, search.relevant, search.own))


def rerank(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> Baseline:
  """Score the documents of each development example by BM25 (Robertson and Zaragoza 2009)."""
  texts = dict.fromkeys(itertools.chain.from_iterable(example.choices for example in dev))
  numbers = {text: number for number, text in enumerate(texts)}
  scores = Bm25(list(texts)).scores([example.texts[0] for example in dev])
  predictions = [Relevance(row[[numbers[text] for text in example.choices]].tolist())
                 for row, example in zip(scores, dev, strict=True)]
  return Baseline('BM25', task.scores(dev, predictions))


def tag_words(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> Baseline | None:
  """Tag words by a linear classifier of their form, their neighbors' and the previous tag.

  None if there is only one tag.
  """
  from sklearn.feature_extraction import FeatureHasher
  from sklearn.linear_model import SGDClassifier
  sizes = np.cumsum([len(example.texts) for example in train])
  train = train[:max(1, int(np.searchsorted(sizes, MAX_WORDS)))]
  train = [example for example in train if known_tags(example)]
  known = [list(known_tags(example)) for example in train]
  targets = list(itertools.chain.from_iterable(known))
  if len(set(targets)) < 2:
    return None
  hasher = FeatureHasher(1 << 18, input_type='string')
  def train_features() -> Iterator[list[str]]:
    for example, tags in zip(train, known, strict=True):
      previous_tags = ['-', *tags][:len(example.texts)]
      for at, previous in enumerate(previous_tags):
        yield tagger_features(example.texts, at) + [f'tag={previous}']
  model: Any = SGDClassifier(
      loss='modified_huber', alpha=1e-5, max_iter=10, tol=None,  # pyright: ignore
      random_state=0)
  model.fit(hasher.transform(train_features()), targets)
  # Decode greedily, the same word of every sentence at a time: features need the previous tag.
  predicted: list[list[int]] = [[] for _ in dev]
  for at in range(max((len(example.texts) for example in dev), default=0)):
    features, active = [], []
    for number, example in enumerate(dev):
      if at < len(example.texts):
        previous = predicted[number][-1] if at else '-'
        features.append(tagger_features(example.texts, at) + [f'tag={previous}'])
        active.append(number)
    tags = model.predict(hasher.transform(features)).tolist()
    for number, tag in zip(active, tags, strict=True):
      predicted[number].append(int(tag))
  return Baseline(
      'a linear tagger', task.scores(dev, [TagPrediction(tags, []) for tags in predicted]))


def tagger_features(words: Sequence[str], at: int) -> list[str]:
  """List the features of a word: letters, prefixes, suffixes and shape, and its neighbors'."""
  word = words[at]
  features = ['bias', f'w={word.lower()}', f's={word_shape(word)}']
  features += [f'p{size}={word[:size].lower()}' for size in (1, 2, 3)]
  features += [f'e{size}={word[-size:].lower()}' for size in (1, 2, 3)]
  near = {}
  for offset in (-2, -1, 1, 2):
    place = at + offset
    near[offset] = words[place] if 0 <= place < len(words) else ''
    features += [f'{offset}w={near[offset].lower()}', f'{offset}s={word_shape(near[offset])}']
  return features + [f'b={near[-1]}|{word}', f'a={word}|{near[1]}']


def word_shape(word: str) -> str:
  """Return the shape of a word: X for capitals, x for other letters, 0 for digits, runs once.

  >>> word_shape('U.S.'), word_shape('Berlin-2024'), word_shape('')
  ('X.X.', 'Xx-0', '')
  """
  shape = ''
  for character in word[:40]:
    if character.isdigit():
      sign = '0'
    elif character.isupper():
      sign = 'X'
    elif character.isalpha():
      sign = 'x'
    else:
      sign = character
    if not shape.endswith(sign):
      shape += sign
  return shape


class TfidfFeatures:
  """TF-IDF of words and bigrams, fitted on training texts; both texts of a pair share it."""

  name, iterations = 'TF-IDF with {}', 50

  def __init__(self, examples: Sequence[Example], most: int):
    """Fit on examples; most: maximum number of features."""
    self.examples, self.most = examples, most
    self.word_vectorizer = self.fit_vectorizer(words_and_bigrams)

  def fit_vectorizer(self, analyzer: Callable[[str], list[str]]) -> Any:
    """Fit a TF-IDF vectorizer on the training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    texts = (text[:MAX_CHARACTERS] for example in self.examples for text in example.texts)
    vectorizer: Any = TfidfVectorizer(
        analyzer=analyzer, sublinear_tf=True,  # pyright: ignore[reportArgumentType]
        max_features=self.most)
    return vectorizer.fit(texts)

  @functools.cached_property
  def character_vectorizer(self) -> Any:
    """TF-IDF of character n-grams, fitted when it is first needed."""
    return self.fit_vectorizer(character_ngrams)

  def transform(self, examples: Sequence[Example]) -> sparse.csr_matrix:
    """Return features of one text, or of a pair: of each, their product and their difference."""
    sides = [self.word_vectorizer.transform(texts) for texts in split_sides(examples)]
    if len(sides) == 2:
      sides += [sides[0].multiply(sides[1]), abs(sides[0] - sides[1])]
    return sparse.csr_matrix(sparse.hstack(sides))

  def similarities(self, pairs: Sequence[Example]) -> np.ndarray:
    """Return similarities of pairs [N, 4]: cosine by words, by characters, squares of both."""
    cosines = []
    for vectorizer in (self.word_vectorizer, self.character_vectorizer):
      first, second = (vectorizer.transform(texts) for texts in split_sides(pairs))
      cosines.append(np.asarray(first.multiply(second).sum(1)).ravel())
    return np.stack(cosines + [cosine ** 2 for cosine in cosines], 1)


class VectorFeatures:
  """Vectors of length 1 of texts, by a model that is not trained."""

  name, iterations = '{}' + ON_VECTORS, 1000

  def __init__(self, encode: Callable[[Sequence[str]], np.ndarray], *unused: Any):
    """Take the function that encodes texts -> vectors [N, D]."""
    self.encode = encode

  def sides(self, examples: Sequence[Example]) -> list[np.ndarray]:
    """Return the vectors of the first texts, and of the second texts if there are any."""
    vectors = [np.asarray(self.encode(texts), np.float64) for texts in split_sides(examples)]
    return [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in vectors]

  def transform(self, examples: Sequence[Example]) -> np.ndarray:
    """Return the vectors of one text, or of a pair: of each, product and difference."""
    sides = self.sides(examples)
    if len(sides) == 2:
      sides += [sides[0] * sides[1], abs(sides[0] - sides[1])]
    return np.hstack(sides)

  def similarities(self, pairs: Sequence[Example]) -> np.ndarray:
    """Return cosines of pairs and their squares [N, 2]."""
    first, second = self.sides(pairs)
    cosines = (first * second).sum(1)
    return np.stack([cosines, cosines ** 2], 1)


def split_sides(examples: Sequence[Example]) -> list[list[str]]:
  """Return the first texts of examples, and the second texts if there are any."""
  sides = itertools.zip_longest(*(example.texts for example in examples), fillvalue='')
  return [[text[:MAX_CHARACTERS] for text in side] for side in sides]


def words_and_bigrams(text: str) -> list[str]:
  """Return the words and the word bigrams of a text."""
  words = split_words(text)
  return words + [f'{first} {second}' for first, second in itertools.pairwise(words)]


def character_ngrams(text: str) -> list[str]:
  """Return the character n-grams of words, n from 2 to 4."""
  ngrams = []
  for word, size in itertools.product(split_words(text), (2, 3, 4)):
    padded = f' {word} '
    ngrams += [padded[at:at + size] for at in range(len(padded) - size + 1)]
  return ngrams


def known_tags(example: Example) -> tuple[int, ...]:
  """Return the tags of a sentence, () if they are unknown."""
  return example.label if isinstance(example.label, tuple) else ()


def most_frequent(labels: Any) -> Any:
  """Return the most frequent label, the smallest of equally frequent ones; 0 if there is none."""
  counts = collections.Counter(label for label in labels if label is not None)
  return min(counts, key=lambda label: (-counts[label], label), default=0)


MAJORITY_BASELINES: dict[str, Callable[..., list[Any]]] = {
    'classification': predict_majority_class, 'choice': predict_majority_class,
    'multilabel': predict_majority_labels, 'tagging': predict_majority_tag}
"""kind of task -> function of task, training and development examples that returns predictions"""
SIMPLE_BASELINES: dict[str, Callable[..., Baseline | None]] = {
    'classification': classify, 'multilabel': classify_labels, 'regression': regress,
    'tagging': tag_words, 'choice': choose, 'rerank': rerank,
    'embedding': retrieve}
"""kind of task -> function of the task, training and development examples"""
