"""Reranking: a cross-encoder reads a query and a document together and scores their relevance.

Nogueira and Cho 2019, section 3. Files have a query, a document and its relevance in each row; or a
query, a relevant document and negatives; or a query with lists of documents and of their relevance.
Instead of relevance there may be a teacher's scores.
"""
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any, ClassVar, NamedTuple

import numpy as np

from plm_jax import conversion
from plm_jax.errors import ConfigError, name_field
from plm_jax.metrics.ranking import ranking_metrics
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import sigmoid
from plm_jax.tasks.features import Features
from plm_jax.tasks.grouped_rows import GroupedTask
from plm_jax.tasks.input_formats import Truncation
from plm_jax.tasks.outputs import Relevance
from plm_jax.tasks.ranking_format import RERANK, get_teacher_scores
from plm_jax.tasks.ranking_losses import (
  Activation,
  Binary,
  ListLoss,
  MarginMSE,
  PairLoss,
  RankingLosses,
)
from plm_jax.tasks.regularizers import Plain
from plm_jax.tasks.sequence_classification import encode_texts
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import intervals

ACTIVATION_CLASSES = {
    'sigmoid': 'torch.nn.modules.activation.Sigmoid', 'none': 'torch.nn.modules.linear.Identity'}


class DocumentList(NamedTuple):
  """A query with documents to compare, made of training examples."""

  query: str
  documents: tuple[str, ...]
  relevance: tuple[float, ...]
  example: int
  """index of the first example that it was made of"""


@dataclasses.dataclass(frozen=True)
class RerankTask(GroupedTask):
  """Cross-encoder: relevance of a document, by a classifier with one output on a pair of texts.

  A `PairLoss` learns from a row per document. A `ListLoss` learns from groups of rows with the
  documents of a query. Development sets and predictions have a row per document.
  """

  head: ClassVar[str] = 'label'
  row_unit: ClassVar = 'pairs'
  limits = intervals(list_size='[2, 256]')

  cut: Truncation = 'second'
  ranking_loss: RankingLosses = Binary()
  """loss of the scores"""
  list_size: int = 8
  """documents per list, for losses that compare documents"""
  score: Activation | None = None
  """function of the logit that is the score: sigmoid or none. Default: that of the loss"""

  def conflict(self, option):
    if self.auxiliary or not isinstance(self.regularizer, Plain):
      return f'{option("auxiliary")} and {option("regularizer")} are for other tasks than reranking'
    if conversion.uses_verbalizer(self.family, self.head):
      return f'{option("family")} {self.family} classifies by words, and a score is none'
    loss = self.ranking_loss
    if isinstance(loss, ListLoss) and loss.random >= self.list_size:
      return (f'{option("list_size")} is larger than {option("ranking_loss.random")}, '
              f'{loss.random}, got {self.list_size}')
    return super().conflict(option)

  @property
  def output_unit(self):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Slots, or rows where lists are groups of rows."""
    return self.ranking_loss.output_unit

  @property
  def activation(self) -> Activation:
    """What makes a score of a logit."""
    return self.score or self.ranking_loss.activation

  @property
  def example_format(self):
    return RERANK

  @classmethod
  def from_spec(cls, spec, **fields):
    """Make a published task; documents are truncated before queries."""
    if fields.get('cut') == 'longest':
      fields['cut'] = 'second'
    return cls(**fields)

  @property
  def classes(self):
    return 1

  @property
  def group_size(self):
    return self.list_size if isinstance(self.ranking_loss, ListLoss) else 1

  @property
  def loss_arrays(self):
    return {'label': (1, self.group_size), 'real': (1,)}

  def training_examples(self, examples):
    """Return the examples. Raises ConfigError for relevance that the loss cannot learn."""
    loss = self.ranking_loss
    if isinstance(loss, MarginMSE):
      get_teacher_scores(examples)
    if isinstance(loss, Binary):
      for example in examples:
        for value in example.label or ():  # pyright: ignore
          if not 0 <= value <= loss.full:
            raise ConfigError(
                f'{example.where}: the binary loss learns relevance from 0 to {loss.full:g}, got '
                f'{value:g}: {name_field("objective.ranking_loss.full")} is the relevance of the '
                'best documents')
    return examples

  def features(self, examples, tokenizer, length):
    """Make a row per document. Raises ConfigError for an example without a query or documents."""
    lists = []
    for number, example in enumerate(examples):
      if len(example.texts) != 1 or not example.choices:
        raise ConfigError(f'{example.where}: expected a query and its documents, got '
                          f'{len(example.texts)} texts and {len(example.choices)} documents')
      for place, document in enumerate(example.choices):
        values = example.scores if self.ranking_loss.teacher and example.scores else example.label
        relevance = (float(values[place]),) if isinstance(values, tuple) else ()
        lists.append(DocumentList(example.texts[0], (document,), relevance, number))
    return self.make_rows(lists, tokenizer, length)

  def training_features(self, examples, tokenizer, length):
    """Make a row per document, or a group of rows per list."""
    if not isinstance(self.ranking_loss, ListLoss):
      return self.features(examples, tokenizer, length)
    lists, skipped = make_lists(examples, self.ranking_loss, self.list_size)
    features = self.make_rows(lists, tokenizer, length)
    return dataclasses.replace(features, skipped=features.skipped + skipped)

  def make_rows(
      self, lists: Sequence[DocumentList], tokenizer: Tokenizer, length: int) -> Features:
    """Make a row per document of lists."""
    queries = encode_texts(tokenizer, [one.query for one in lists])
    all_documents = list(itertools.chain.from_iterable(one.documents for one in lists))
    documents = iter(encode_texts(tokenizer, all_documents))
    groups = [[[query, next(documents)] for _ in one.documents]
              for one, query in zip(lists, queries, strict=True)]
    size = max((len(one.documents) for one in lists), default=1)
    labels = np.zeros((len(lists), size), np.float32)
    for row, one in zip(labels, lists, strict=True):
      row[:len(one.relevance)] = one.relevance
    weight = np.array([bool(one.relevance) for one in lists], np.float32)
    return self.make_groups(
        groups, {'label': labels, 'weight': weight}, [one.example for one in lists],
        tokenizer.vocab, length, self.cut)

  def loss(self, outputs, batch):
    scores, group = self.ranking_loss.group_documents(outputs['label'], batch)
    return {'label': self.ranking_loss(scores, group)}

  @property
  def has_heldout_loss(self):
    """Only of single pairs: development sets have no lists."""
    return isinstance(self.ranking_loss, PairLoss)

  def predict(self, examples, features, outputs):
    """Return the scores of each example's documents; outputs: logit of each row."""
    logits = np.array([np.ravel(x)[0] for x in outputs], np.float64)
    found = sigmoid(logits) if self.activation == 'sigmoid' else logits
    ends = np.cumsum([len(example.choices) for example in examples])
    return [Relevance(scores.tolist()) for scores in np.split(found, ends[:-1])]

  def scores(self, examples, predictions):
    """Rank the documents of each query, from all examples of it, and compute the metrics."""
    queries: dict[str, tuple[list[float], list[float]]] = {}
    for example, prediction in zip(examples, predictions, strict=True):
      truth, scores = queries.setdefault(example.texts[0], ([], []))
      truth += example.label or ()  # pyright: ignore
      scores += prediction.scores
    return ranking_metrics(
        [truth for truth, _ in queries.values()], [scores for _, scores in queries.values()])

  def export_attributes(self):
    """Return the activation of CrossEncoder of sentence-transformers."""
    activation = ACTIVATION_CLASSES[self.activation]
    return {'sentence_transformers': {'activation_fn': activation, 'version': '5.0.0'}}


def make_lists(
    examples: Sequence[Example], loss: ListLoss, list_size: int
) -> tuple[list[DocumentList], tuple[str, ...]]:
  """Make lists of at most `list_size` documents -> (lists, why queries were skipped).

  Examples of the same query are joined. Of a document that occurs twice, the largest relevance
  counts. For losses whose first document is relevant, each relevant document has a list of its
  own with irrelevant ones, which are used in turn; or several lists with all of them, if a
  teacher's scores are learned. The relevant document of scores alone is the best one.

  Raises:
    ConfigError: no query has documents to compare.
  """
  queries: dict[str, tuple[int, dict[str, float]]] = {}
  scored: dict[str, dict[str, float]] = {}
  for number, example in enumerate(examples):
    values = example.label if isinstance(example.label, tuple) else ()
    _, known = queries.setdefault(example.texts[0], (number, {}))
    for document, value in zip(example.choices, values, strict=False):
      known[document] = max(value, known.get(document, value))
    if example.scores and loss.teacher:
      pairs = zip(example.choices, example.scores, strict=True)
      scored.setdefault(example.texts[0], {}).update(pairs)
  size, lists, lone = list_size - loss.random, [], 0
  for query, (number, known) in queries.items():
    if loss.teacher:
      made = split_scores(query, known, scored.get(query), number, size)
    else:
      made = split_list(query, known, number, max(size, 2), loss.positive_first)
    if loss.random and not made:
      made = [DocumentList(query, (document,), (value,), number)
              for document, value in known.items() if value > 0]
    lists += made
    lone += not made
  if loss.random:
    lists = add_random_documents(lists, queries, loss.random)
  if not lists:
    raise ConfigError('no query has documents of different relevance, which this loss compares: '
                      f'give negatives, or use {name_field("loss")}=binary')
  reason = f'{lone:,} queries have no documents of different relevance and are left out'
  return lists, (reason,) if lone else ()


def split_list(
    query: str, known: dict[str, float], example: int, size: int, positive_first: bool
) -> list[DocumentList]:
  """Split the documents of a query into lists of at most `size`; [] if all have equal relevance."""
  ranked = sorted(known, key=known.__getitem__, reverse=True)
  if len(set(known.values())) < 2:
    return []
  lists = []
  def add(documents):
    values = tuple(known[document] for document in documents)
    lists.append(DocumentList(query, tuple(documents), values, example))
  if positive_first:
    least = known[ranked[-1]]
    positive = [document for document in ranked if known[document] > max(0.0, least)]
    positive = positive or ranked[:1]
    others = [document for document in ranked if document not in set(positive)]
    for number, document in enumerate(positive):
      start = number * (size - 1)
      places = range(start, start + min(size - 1, len(others)))
      add([document, *(others[place % len(others)] for place in places)])
    return lists
  # Every list has documents from the whole range of relevance.
  count = -(-len(ranked) // size)
  for start in range(count):
    add(ranked[start::count])
  return [one for one in lists if len(set(one.relevance)) > 1]


def split_scores(
    query: str, known: dict[str, float], scores: dict[str, float] | None, example: int, size: int
) -> list[DocumentList]:
  """Make lists of a relevant document and others, which occur in one list each, with scores.

  Args:
    query: the query.
    known: relevance of its documents.
    scores: a teacher's scores of documents; None: `known` has them.
    example: index of the example.
    size: maximum documents per list.
  """
  if scores is None:
    scores, positive = known, [max(known, key=known.__getitem__)]
  else:
    positive = [document for document in scores if known[document] > 0]
  others, lists = [document for document in scores if document not in positive], []
  for document in positive:
    for start in range(0, len(others), size - 1):
      documents = (document, *others[start:start + size - 1])
      values = tuple(scores[one] for one in documents)
      lists.append(DocumentList(query, documents, values, example))
  return lists


def add_random_documents(
    lists: Sequence[DocumentList], queries: dict[str, tuple[int, dict[str, float]]], number: int
) -> list[DocumentList]:
  """Add documents of other queries to each list, as irrelevant; never one that its query knows."""
  documents = list(dict.fromkeys(
      itertools.chain.from_iterable(known for _, known in queries.values())))
  rng, grown = np.random.default_rng(0), []
  for one in lists:
    known = queries[one.query][1]
    places = rng.permutation(len(documents))[:number + len(known)]
    some = [documents[place] for place in places if documents[place] not in known][:number]
    grown.append(one._replace(
        documents=one.documents + tuple(some), relevance=one.relevance + (0.0,) * len(some)))
  return [one for one in grown if len(one.documents) > 1]


def get_activation(attributes: Any) -> str:
  """Return the activation that a config.json of a cross-encoder states, such as Sigmoid.

  '': none is stated; sentence-transformers takes Sigmoid for one output.
  """
  given = (attributes.get('sentence_transformers') or {}).get('activation_fn')
  given = given or attributes.get('sbert_ce_default_activation_function') or ''
  name = str(given).rpartition('.')[2]
  if name not in ('', 'Sigmoid', 'Identity', 'Softmax'):
    raise conversion.ConvertError(f'the activation {given} of a cross-encoder is not supported: '
                                  'known are Sigmoid, Identity and, of several outputs, Softmax')
  return name
