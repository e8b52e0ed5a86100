"""Sentence embeddings: texts of similar meaning get similar vectors (Reimers and Gurevych 2019)."""
import collections
from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax import conversion
from plm_jax.data.bucketing import next_power_of_two
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.dense import Dense
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.pooling import VectorConfig, l2_normalize
from plm_jax.layers.splade import SpladeConfig
from plm_jax.metrics.embeddings import RETRIEVAL_METRICS, retrieval_metrics
from plm_jax.metrics.nearest import (
  Comparison,
  Similarity,
  compare_pairs,
  stack_vectors,
  to_sparse,
)
from plm_jax.objectives import PROGRESS, Losses
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import PER_TOKEN
from plm_jax.tasks.embedding_losses import (
  CosineRegression,
  ExampleGroup,
  InBatch,
  Loss,
  Softmax,
  sparsity_penalty,
)
from plm_jax.tasks.example_formats import CLASSIFICATION, EMBEDDING, REGRESSION
from plm_jax.tasks.features import Features
from plm_jax.tasks.grouped_rows import GroupedTask, flatten_groups
from plm_jax.tasks.outputs import Value
from plm_jax.tasks.ranking_format import RERANK, get_teacher_scores
from plm_jax.tasks.regularizers import Plain
from plm_jax.tasks.sequence_classification import (
  compute_label_metrics,
  encode_texts,
  label_array,
  label_weights,
)
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import intervals

STS_METRICS = ('spearman', 'pearson')


class EmbeddingPrediction(NamedTuple):
  """The predicted vectors of an example."""

  value: float
  """similarity of the first two"""
  vectors: Any
  """of all texts [C, W], a csr_array if they are sparse; with late interaction, a list of those of
  the tokens of each [tokens, W]"""


class PairClassifier(nn.Module):
  """Class logits of a pair from (u, v, |u - v|), for whole vectors and for each prefix."""

  classes: int
  prefixes: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, vectors):
    """vectors [B, C, W] -> [B, K]; with prefixes [B, 1 + prefixes, K], zeros after each prefix."""
    dense = Dense((self.classes,), ('width', None), True, jnp.float32, name='dense')
    def logits(size):
      kept = vectors if size is None else vectors * (jnp.arange(vectors.shape[-1]) < size)
      u, v = kept[:, 0], kept[:, 1]
      return dense(jnp.concatenate([u, v, jnp.abs(u - v)], -1))
    if not self.prefixes:
      return logits(None)
    return jnp.stack([logits(size) for size in (None,) + self.prefixes], 1)


class SentenceEncoder(ModelWithHeads):
  """A sentence encoder: arrays of a batch [B, C, L] -> vectors [B, C, W], and logits of pairs."""

  def __call__(self, batch, rows=None):
    groups, size = batch['tokens'].shape[:2]
    flat, row_ids = flatten_groups(batch, rows)
    vectors = apply_heads(self.heads, self.backbone(flat, row_ids), flat, row_ids)
    vectors = vectors.reshape(groups, size, -1)
    if 'query_tokens' in batch:
      queries = self.heads['embedding'].encode_queries(batch['query_tokens'][:, 0])
      vectors = jnp.concatenate([queries[:, None], vectors[:, 1:]], 1)
    outputs = {'embedding': vectors}
    if 'relation' in self.heads:
      outputs['relation'] = self.heads['relation'](outputs['embedding'])
    return outputs


def apply_heads(heads, output, batch, row_ids=None, skip=0):
  """Compute the vectors [B, W] of a backbone's output; sparse ones pool the masked-LM logits.

  heads: `embedding`, and `mlm` for sparse vectors: modules, or functions of the same arguments.
  skip: tokens at the start of each row that are not pooled.
  """
  if 'mlm' in heads:
    output = output.replace(hidden=heads['mlm'](output, batch, row_ids), encoded=None)
  return heads['embedding'](output, batch, row_ids, skip)


@dataclasses.dataclass(frozen=True)
class EmbeddingTask(GroupedTask):
  """Sentence embeddings: a row per text of an example; the loss compares their vectors.

  Training examples are pairs with a class or a number, or related texts, as the loss requires. A
  prediction for a pair is its similarity.
  """

  head: ClassVar[str] = 'embedding'
  module_class: ClassVar = SentenceEncoder
  limits = intervals(prefixes='[1, 1048576]')

  vector: VectorConfig | SpladeConfig = VectorConfig()
  """pooling of token states into a vector, or of masked-LM logits into a sparse one"""
  vector_loss: Loss = CosineRegression()
  """loss of the vectors"""
  prefixes: tuple[int, ...] = ()
  """lengths of vector prefixes that get a loss of their own (Matryoshka, Kusupati et al. 2022)"""
  entailment: str = ''
  """class of the pairs of related texts, if these are made of pairs with a class; empty: the
  training examples are related texts"""
  contradiction: str = ''
  """class of the pairs whose second text is a hard negative of the first; empty: no class is"""
  query_prompt: str = ''
  """text before the first text of each example, such as 'query: ' (E5). `search` and exports to
  sentence-transformers use it too"""
  document_prompt: str = ''
  """text before the other texts, such as 'passage: '"""
  similarity: Similarity | None = None
  """similarity of vectors in search, development sets and exports. Default: that of the loss,
  cosine or dot product"""
  measured_by: Literal['similarity', 'retrieval'] = 'similarity'
  """evaluation on development sets: correlation of similarities with the label of each pair, or
  retrieval of each second text among all of them"""

  def conflict(self, option):
    if self.auxiliary or not isinstance(self.regularizer, Plain):
      return (f'{option("auxiliary")} and {option("regularizer")} are for other tasks than '
              'sentence vectors')
    if isinstance(self.vector_loss, Softmax) and self.entailment:
      return f'{option("entailment")} is for losses of texts that belong together'
    if self.is_sparse and self.prefixes:
      return f'{option("prefixes")} are for dense vectors, and these are sparse'
    return None

  @property
  def is_sparse(self) -> bool:
    """Whether vectors have a weight per token of the vocabulary, most of them 0."""
    return isinstance(self.vector, SpladeConfig)

  @property
  def prompts(self):
    if not self.query_prompt and not self.document_prompt:
      return {}
    return {'query': self.query_prompt, 'document': self.document_prompt}

  @property
  def vector_heads(self) -> tuple[str, ...]:
    """Heads that make the vectors."""
    return ('embedding', 'mlm') if self.is_sparse else ('embedding',)

  @property
  def has_query_weights(self) -> bool:
    """Whether queries are vectors of fixed token weights, which the model does not read."""
    return isinstance(self.vector, SpladeConfig) and self.vector.queries == 'idf'

  @property
  def frozen(self):
    return ('heads_embedding/query_weights',) if self.has_query_weights else ()

  @property
  def compared_by(self) -> Comparison:
    """Similarity of vectors; the dot product of normalized vectors is their cosine."""
    is_normalized = isinstance(self.vector, VectorConfig) and self.vector.normalize
    return self.similarity or ('cosine' if is_normalized else self.vector_loss.similarity)

  @property
  def metric_names(self):
    return STS_METRICS if self.measured_by == 'similarity' else RETRIEVAL_METRICS

  @property
  def example_format(self):
    return REGRESSION if self.measured_by == 'similarity' else EMBEDDING

  @property
  def train_format(self):
    """Examples that the loss takes; related texts may be made of pairs with a class."""
    return CLASSIFICATION if self.entailment else self.vector_loss.train_format

  @property
  def cross_row(self):
    return self.is_sparse or self.vector_loss.cross_row

  @property
  def pretrained_heads(self):
    return ('mlm',) if self.is_sparse else ()

  @property
  def changes_over_run(self):
    return isinstance(self.vector, SpladeConfig) and self.vector.warmup > 0

  @property
  def loss_arrays(self):
    arrays: dict[str, tuple[int, ...]] = {'label': (1,), 'real': (1,)}
    return arrays | {'query_tokens': (1, PER_TOKEN)} if self.has_query_weights else arrays

  @property
  def group_size(self):
    """Texts per example, at most three."""
    return max(2, min(3, self.vector_loss.texts[0]))

  @property
  def terms(self):
    """The loss of the vectors and those of their prefixes, or the regularizers of sparse ones."""
    if self.is_sparse:
      return ('embedding', 'query_sparsity', 'document_sparsity')
    return ('embedding', *(f'embedding_{size}' for size in self.prefixes))

  def heads(self, model):
    """Return the pooling head, the masked-LM head of sparse vectors, and the classifier of pairs if
    their classes are learned."""
    heads: dict[str, nn.Module] = {'embedding': self.vector.make_head(model)}
    if self.is_sparse:
      heads['mlm'] = conversion.build_head(self.family, 'mlm', model, self.classes)
    if isinstance(self.vector_loss, Softmax):
      heads['relation'] = PairClassifier(self.classes, self.prefixes)
    width = self.vector.size(model)
    too_long = [size for size in self.prefixes if size >= width]
    if too_long:
      raise ConfigError(f'{name_field("objective.prefixes")} are shorter than the vector, which '
                        f'has {width} numbers, got {too_long}')
    return heads

  def training_examples(self, examples):
    """Return related texts, made of pairs with classes if `entailment` is set.

    Raises ConfigError for an example with too few or too many texts, or with a number that no
    cosine can match.
    """
    least, most = self.vector_loss.texts
    if self.entailment:
      examples = make_triplets(examples, self.labels, self.entailment, self.contradiction, least)
    name = type(self.vector_loss).__name__
    full = self.vector_loss.full if isinstance(self.vector_loss, CosineRegression) else 1.0
    # CoSENT only compares numbers, so that any are valid.
    has_range = self.vector_loss.train_format is REGRESSION and name != 'CoSent'
    if self.vector_loss.train_format is RERANK:
      examples = [dataclasses.replace(one, texts=one.texts + one.choices) for one in examples]
    for example in examples:
      if not least <= len(example.texts) <= most:
        wanted = f'{least}' if least == most else f'{least} to {most}'
        raise ConfigError(
            f'{example.where}: {name} learns from examples of {wanted} texts, got '
            f'{len(example.texts)}: a text, one that belongs to it, and negatives')
      number = example.label if has_range else 0
      if not isinstance(number, int | float) or not 0 <= number <= full:
        raise ConfigError(
            f'{example.where}: {name} learns from numbers from 0 to {full:g}, got {number}: '
            f'{name_field("objective.vector_loss.full")} is the number of texts with the same '
            'meaning')
    return get_teacher_scores(examples) if self.vector_loss.train_format is RERANK else examples

  def features(self, examples, tokenizer, length):
    """Make a row per text. Raises ConfigError for an example of one text if pairs are compared."""
    for example in examples:
      if not example.texts or (len(example.texts) < 2 and not self.allows_single_texts):
        raise ConfigError(f'{example.where}: expected two texts, which are compared, got '
                          f'{len(example.texts)}')
    # A single text is its own positive: with another dropout, its vector differs.
    groups = []
    for example in examples:
      first, *others = example.texts * 2 if len(example.texts) == 1 else example.texts
      groups.append([self.query_prompt + first] + [self.document_prompt + text for text in others])
    size = max(map(len, groups), default=2)
    values = {'label': np.zeros(len(groups), np.float32), 'weight': label_weights(examples)}
    if self.train_format is EMBEDDING:
      values['weight'] = np.ones(len(groups), np.float32)
    if isinstance(self.vector_loss, InBatch):
      values['texts'] = number_texts(groups, size)
    if self.has_query_weights:
      queries = encode_texts(tokenizer, [own[0] for own in groups])
      longest = next_power_of_two(max(map(len, queries), default=1))
      values['query_tokens'] = np.full((len(groups), min(longest, length)), -1, np.int32)
      for row, tokens in zip(values['query_tokens'], queries, strict=True):
        row[:len(tokens)] = tokens[:length]
    if self.vector_loss.train_format is RERANK and any(
        isinstance(example.label, tuple) for example in examples):
      # Those of the documents, 0 where there are none.
      values['scores'] = np.zeros((len(examples), size - 1), np.float32)
      for row, example in zip(values['scores'], examples, strict=True):
        if isinstance(example.label, tuple):
          row[:len(example.label)] = example.label
    else:
      values['label'] = label_array(examples, np.float32)
    ids = iter(encode_texts(tokenizer, list(itertools.chain.from_iterable(groups))))
    rows = [[next(ids) for _ in texts] for texts in groups]
    return self.make_rows(rows, values, tokenizer, length)

  def make_rows(
      self, groups: Sequence[Sequence[Sequence[int]]], values: Mapping[str, np.ndarray],
      tokenizer: Tokenizer, length: int) -> Features:
    """Make a row of the ids of each text of N groups; values: labels and weights [N]."""
    rows = [[[ids] for ids in group] for group in groups]
    return self.make_groups(
        rows, values, range(len(groups)), tokenizer.vocab, length, 'longest')

  @property
  def allows_single_texts(self) -> bool:
    """Whether an example may be a single text."""
    return self.vector_loss.texts[0] == 1

  def loss(self, outputs, batch):
    """Compute the loss of the vectors [B, C, W], and of each of their prefixes."""
    vectors, relation = outputs['embedding'].astype(jnp.float32), outputs.get('relation')
    texts = batch['texts'][:, 0] if 'texts' in batch else None
    scores = batch['scores'][:, 0] if 'scores' in batch else None
    guide = batch['guide'][:, :, 0] if 'guide' in batch else None
    losses = self.sparsity(vectors, batch) if self.is_sparse else {}
    sizes = (vectors.shape[-1],) + self.prefixes
    for number, size in enumerate(sizes):
      name = self.terms[number]
      logits = relation[:, number] if relation is not None and self.prefixes else relation
      target = batch['target'][:, 0, :size] if 'target' in batch else None
      group = ExampleGroup(
          batch['weight'][:, 0], batch['real'][:, 0], batch['label'][:, 0], logits, target, texts,
          scores, guide)
      prefix = vectors[..., :size]
      # As MatryoshkaLoss of sentence-transformers does.
      normalizes = self.vector_loss.euclidean and size < vectors.shape[-1]
      losses[name] = self.vector_loss(l2_normalize(prefix) if normalizes else prefix, group)
    return losses

  def sparsity(self, vectors, batch) -> Losses:
    """Compute the weighted regularizers of sparse vectors [B, C, V], and their mean numbers of
    active dimensions, `query_dimensions` and `document_dimensions`.

    The factors grow with the square of the step, as in naver/splade 8dcd33a,
    splade/losses/regularization.py, lines 29-46.
    """
    cfg: Any = self.vector
    real = jnp.arange(vectors.shape[1]) < batch['real'][:, :1]
    real = (real & (batch['weight'][:, :1] > 0)).astype(jnp.float32)  # [B, C]
    share = 1.0
    if PROGRESS in batch and cfg.warmup:
      share = jnp.square(jnp.minimum(batch[PROGRESS][0] / cfg.warmup, 1))
    losses = {}
    query_weight = 0.0 if self.has_query_weights else cfg.query_weight
    for name, place, kind, weight in (
        ('query', slice(0, 1), cfg.query_penalty, query_weight),
        ('document', slice(1, None), cfg.document_penalty, cfg.document_weight)):
      own, counted = vectors[:, place], real[:, place]
      penalty = sparsity_penalty(kind, own, counted)
      losses[f'{name}_sparsity'] = share * weight * penalty, jnp.ones(())
      losses[f'{name}_dimensions'] = ((own > 0).sum(-1) * counted).sum(), counted.sum()
    return losses

  @property
  def has_heldout_loss(self):
    """No: development sets are of another kind than the training examples."""
    return False

  def predict(self, examples, features, outputs):
    """Return the vectors of each example, and the similarity of the first two.

    outputs: the vector of each row.
    """
    vectors = self.group_vectors(features, outputs)
    similarities = compare_pairs(
        [some[0] for some in vectors], [some[1] for some in vectors], self.compared_by)
    predictions = []
    for value, some, example in zip(similarities, vectors, examples, strict=True):
      own = some[:max(2, len(example.texts))]
      own = to_sparse(own) if self.is_sparse else own
      predictions.append(EmbeddingPrediction(float(value), own))
    return predictions

  def group_vectors(
      self, features: Features, outputs: Sequence[np.ndarray]) -> Any:
    """Return the vectors of the texts of each group, [groups, C, W]."""
    count = len(outputs) // features.group
    return np.asarray(outputs, np.float32).reshape(count, features.group, -1)

  def compact_prediction(self, prediction):
    """Drop the vectors if only similarities are compared."""
    return Value(prediction.value) if self.measured_by == 'similarity' else prediction

  def scores(self, examples, predictions):
    if self.measured_by == 'similarity':
      return compute_label_metrics(STS_METRICS, examples, [found.value for found in predictions])
    search = group_queries(examples)
    vectors = {example.texts[1]: prediction.vectors[1:2]
               for example, prediction in zip(examples, predictions, strict=True)}
    queries = stack_vectors(
        [predictions[number].vectors[:1] for number in search.queries.values()])
    corpus = stack_vectors([vectors[text] for text in search.corpus])
    return retrieval_metrics(
        queries, corpus, search.relevant, search.own, similarity=self.compared_by)


class QueryGroups(NamedTuple):
  """Queries with their relevant texts, from pairs."""

  queries: dict[str, int]
  """distinct queries; of each, the index of its first pair"""
  corpus: list[str]
  """distinct second texts"""
  relevant: list[set[int]]
  """of each query, the indices of its second texts in the corpus"""
  own: list[int]
  """of each query, the index of the same text in the corpus if it is not relevant, else -1: it is
  left out of the ranking, as BEIR leaves out the document with the id of the query"""


def group_queries(examples: Sequence[Example]) -> QueryGroups:
  """Group pairs by their query, so that a query with several relevant texts counts once."""
  queries: dict[str, int] = {}
  numbers: dict[str, int] = {}
  relevant: dict[str, set[int]] = collections.defaultdict(set)
  for place, example in enumerate(examples):
    query, text = example.texts[:2]
    queries.setdefault(query, place)
    relevant[query].add(numbers.setdefault(text, len(numbers)))
  own = [numbers.get(query, -1) for query in queries]
  own = [-1 if number in relevant[query] else number
         for query, number in zip(queries, own, strict=True)]
  return QueryGroups(queries, list(numbers), [relevant[query] for query in queries], own)


def number_texts(groups: Sequence[Sequence[str]], size: int) -> np.ndarray:
  """Number the texts of examples [N, size]; equal texts are equal, -1 pads short examples."""
  numbers: dict[str, int] = {}
  ids = np.full((len(groups), size), -1, np.int32)
  for row, texts in zip(ids, groups, strict=True):
    row[:len(texts)] = [numbers.setdefault(text, len(numbers)) for text in texts]
  return ids


def make_triplets(
    examples: Sequence[Example], labels: Sequence[str], entailment: str, contradiction: str,
    least: int) -> list[Example]:
  """Make related texts of NLI pairs: a premise, what it entails, and a contradiction of it.

  Gao et al. 2021, section 4.

  Args:
    examples: pairs with a class.
    labels: class names.
    entailment: class of related texts.
    contradiction: class of hard negatives; '': there are none.
    least: minimum texts per example; with 3, premises without a contradiction are dropped.

  Raises:
    ConfigError: a class does not exist, or no examples are left.
  """
  for name in (entailment, contradiction):
    if name and name not in labels:
      raise ConfigError(f'there is no class {name!r} among {", ".join(labels)}')
  by_premise: dict[str, dict[str, list[Example]]] = collections.defaultdict(
      lambda: collections.defaultdict(list))
  for example in examples:
    label = labels[int(example.label)]  # pyright: ignore
    by_premise[example.texts[0]][label].append(example)
  triplets = []
  for by_class in by_premise.values():
    negatives = by_class[contradiction] if contradiction else []
    for number, example in enumerate(by_class[entailment]):
      texts = example.texts
      if negatives:
        texts += (negatives[number % len(negatives)].texts[1],)
      if len(texts) >= least:
        triplets.append(dataclasses.replace(example, texts=texts, label=None))
  if not triplets:
    message = f'no first text has a pair of class {entailment!r}'
    if least > 2:
      message += f' and one of class {contradiction!r}'
    raise ConfigError(message)
  return triplets
