"""Retrieval: mine hard negatives for training, and evaluate on data sets in BEIR's layout.

    pairs = [('how to sort', 'Sorts a list.')]
    mined = mine_negatives('runs/embedder', pairs, corpus, MiningConfig(number=4))
    data = read_beir('scifact')
    score_retrieval(data, retrieve('runs/embedder', data))

A retriever is a model with text vectors, or 'bm25'.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from plm_jax import progress, truncation
from plm_jax.api import models, similarity, transfer
from plm_jax.errors import ConfigError
from plm_jax.evaluation.retrieval import RetrievalData, read_beir, score_retrieval
from plm_jax.metrics.nearest import (
  compare_pairs,
  find_nearest,
  is_sparse,
  sparsity_metrics,
  stack_vectors,
  take_vectors,
)
from plm_jax.tasks.bm25 import Bm25
from plm_jax.tasks.contract import sigmoid
from plm_jax.validation import ValidatedConfig, intervals

__all__ = [
    'MinedNegatives', 'MiningConfig', 'mine_negatives', 'read_beir', 'rerank_found', 'retrieve',
    'score_retrieval']
BM25 = 'bm25'
CHUNK = 4096  # texts that are encoded at a time


@dataclasses.dataclass(frozen=True)
class MiningConfig(ValidatedConfig):
  """Which retrieved documents become negatives."""

  limits = intervals(number='[1, 256]', depth='[1, 100000]', margin='[0, 1]')

  number: int = 5
  """negatives per pair"""
  depth: int = 50
  """retrieved documents from which they are chosen"""
  skip: int = 0
  """retrieved documents that are passed over, from the best on"""
  margin: float = 0.05
  """share of the positive's score by which a negative's score is lower at least, so that documents
  as relevant as the positive are not negatives (Moreira et al. 2024, section 3: 0.05). Of the
  retriever's scores, or of the judge's; not of BM25's"""
  draw: bool = False
  """draw negatives at random instead of taking the best documents"""
  seed: int = 0
  """random seed of `draw`"""

  def conflict(self, option):
    """Describe more negatives than documents."""
    if self.depth - self.skip < self.number:
      return (f'{option("depth")} less {option("skip")} is {option("number")} or more, got '
              f'{self.depth}, {self.skip} and {self.number}')
    return None


class MinedNegatives(NamedTuple):
  """Negatives of a pair of a query and a relevant document."""

  query: str
  positive: str
  negatives: list[str]
  scores: list[float]
  """of the positive and of each negative: the judge's logits, or else the retriever's scores"""


def mine_negatives(
    retriever: similarity.Model | str, pairs: Sequence[tuple[str, str]],
    corpus: Sequence[str] = (), config: MiningConfig = MiningConfig(),
    judge: models.Model | None = None) -> Iterator[MinedNegatives]:
  """Find documents that are close to a query and not relevant (hard negatives).

  A text is never a negative of its own query: neither the query itself nor any document that is
  paired with an equal query.

  >>> pairs = [('sort', 'Sorts a list.'), ('mean', 'Computes the mean.')]
  >>> found, _ = mine_negatives(
  ...     'bm25', pairs, ['Sorts it.', 'The sort is stable.'], MiningConfig(number=1, depth=4))
  >>> found.negatives
  ['The sort is stable.']

  Args:
    retriever: a model with text vectors, or 'bm25'.
    pairs: queries with a relevant document each.
    corpus: documents to search, in addition to those of the pairs.
    config: which documents become negatives.
    judge: a model that has learned reranking, whose scores decide instead of the retriever's. Its
      logits are returned, which losses of distillation learn (Hofstätter et al. 2020).

  Yields:
    The pairs in their order, with at most `config.number` negatives; there may be none.

  Raises:
    ConfigError: there are no pairs, or the judge has not learned reranking.
  """
  if not pairs:
    raise ConfigError('there are no pairs of a query and a relevant document')
  distinct = dict.fromkeys([*corpus, *(positive for _, positive in pairs)])
  numbers = {text: number for number, text in enumerate(distinct)}
  positives: dict[str, set[int]] = {}
  for query, positive in pairs:
    positives.setdefault(query, set()).add(numbers[positive])
  queries, documents = list(positives), list(numbers)
  trained, to_score = None, sigmoid
  if judge is not None:
    trained = transfer.load_for_task(judge, 'rerank', 'rerank')
    if trained.task.activation == 'none':
      to_score = np.asarray
    trained = dataclasses.replace(trained, task=dataclasses.replace(trained.task, score='none'))
  searched = search_documents(retriever, queries, documents, config.depth, positives)
  found = dict(zip(queries, searched, strict=True))
  rng = np.random.default_rng(config.seed)
  filters = trained is not None or retriever != BM25
  total = len(pairs) if trained is None else None  # a judge counts each pair that it reads
  with progress.track('pairs', total) as done:
    for query, positive in pairs:
      ranked, scores, own = found[query]
      banned = positives[query] | {numbers.get(query, -1)}
      ranking = zip(ranked.tolist(), scores.tolist(), strict=True)
      candidates = [hit for hit in list(ranking)[config.skip:] if hit[0] not in banned]
      limit = own[numbers[positive]]
      logits: dict[int, float] = {}
      if trained is not None:
        judged = [numbers[positive]] + [number for number, _ in candidates]
        hits, = similarity.rerank(trained, query, [[documents[number] for number in judged]])
        logits = {judged[hit.number]: hit.score for hit in hits}
        limit, *values = to_score(np.array([logits[number] for number in judged])).tolist()
        candidates = list(zip(judged[1:], values, strict=True))
      highest = limit - config.margin * abs(limit) if filters else np.inf
      chosen = choose_negatives(candidates, highest, config, rng)
      if trained is None:
        done.update(1)
      negatives = [documents[number] for number, _ in chosen]
      scores = {numbers[positive]: limit, **dict(chosen), **logits}
      compared = [scores[number] for number in (numbers[positive], *dict(chosen))]
      yield MinedNegatives(query, positive, negatives, compared)


def choose_negatives(
    candidates: Sequence[tuple[int, float]], highest: float, config: MiningConfig,
    rng: np.random.Generator) -> list[tuple[int, float]]:
  """Choose at most `config.number` of (document, score), the best first.

  Args:
    candidates: retrieved documents, the best first.
    highest: largest score of a negative.
    config: number of negatives, and whether they are drawn.
    rng: for the draw.
  """
  allowed = [one for one in candidates if one[1] <= highest]
  if config.draw and len(allowed) > config.number:
    places = rng.choice(len(allowed), config.number, replace=False)
    allowed = [allowed[place] for place in sorted(places.tolist())]
  return allowed[:config.number]


def search_documents(
    retriever: similarity.Model | str, queries: Sequence[str], documents: Sequence[str],
    depth: int, wanted: Mapping[str, set[int]] | None = None,
    statistics: dict[str, float] | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[int, float]]]:
  """Yield (numbers of the best documents, their scores, scores of wanted ones) of each query.

  Args:
    retriever: a model with text vectors, or 'bm25'.
    queries: texts.
    documents: texts.
    depth: documents per query.
    wanted: query -> numbers of documents whose scores are needed in any case.
    statistics: gets the metrics of `sparsity_metrics`, for sparse vectors.
  """
  wanted = wanted or {}
  if retriever == BM25:
    for query, row in zip(queries, Bm25(documents).scores(queries), strict=True):
      best = np.argsort(-row, kind='stable')[:depth]
      yield best, row[best], {number: float(row[number]) for number in wanted.get(query, ())}
    return
  trained = similarity.load_encoder(retriever)  # pyright: ignore[reportArgumentType]
  with progress.track('texts', len(documents) + len(queries)):
    vectors = encode_texts(trained, documents, 'document')
    query_vectors = encode_texts(trained, queries, 'query')
  if statistics is not None and is_sparse(vectors):
    statistics |= sparsity_metrics(query_vectors, vectors)
  scored, numbers = find_nearest(query_vectors, vectors, depth, similarity=trained.similarity)
  for place, (query, row, scores) in enumerate(zip(queries, numbers, scored, strict=True)):
    known = list(wanted.get(query, ()))
    own, others = (take_vectors(vectors, numbers) for vectors, numbers in (
        (query_vectors, [place] * len(known)), (vectors, known)))
    similarities = compare_pairs(own, others, trained.similarity)
    yield row, scores, dict(zip(known, similarities.tolist(), strict=True))


def encode_texts(trained: similarity.Model, texts: Sequence[str], prompt: str) -> Any:
  """Encode texts after the prompt of this name, in parts; see `similarity.encode`."""
  with truncation.together():
    return stack_vectors([
        similarity.encode(trained, texts[start:start + CHUNK], cut=True, prompt=prompt)
        for start in range(0, len(texts), CHUNK)])


def retrieve(
    retriever: similarity.Model | str, data: RetrievalData, depth: int = 100,
    statistics: dict[str, float] | None = None) -> dict[str, list[tuple[str, float]]]:
  """Retrieve documents for the queries of a data set; never the one with the id of the query.

  Args:
    retriever: a model with text vectors, or 'bm25'.
    data: from `read_beir`.
    depth: documents per query.
    statistics: gets `query_dimensions`, `document_dimensions` and `flops` of sparse vectors, see
      `metrics.nearest.sparsity_metrics`.

  Returns:
    {query id: (document id, score), the best first}.
  """
  keys, found = list(data.documents), {}
  texts = list(data.documents.values())
  searched = search_documents(
      retriever, list(data.queries.values()), texts, depth + 1, statistics=statistics)
  for query, (numbers, scores, _) in zip(data.queries, searched, strict=True):
    # A document that shares no word with the query is not found by BM25.
    ranked = zip(numbers.tolist(), scores.tolist(), strict=True)
    hits = [(keys[number], score) for number, score in ranked if score > 0 or retriever != BM25]
    found[query] = [hit for hit in hits if hit[0] != query][:depth]
  return found


def rerank_found(
    model: models.Model, data: RetrievalData, found: Mapping[str, Sequence[tuple[str, float]]],
    batch: int = 32) -> dict[str, list[tuple[str, float]]]:
  """Score retrieved documents by a cross-encoder or by MaxSim; arguments as for `retrieve`."""
  trained, ranked = similarity.load_reranker(model), {}
  total = sum(len(hits) for hits in found.values())
  with progress.track('pairs', total), truncation.together():
    for query, hits in found.items():
      names = [name for name, _ in hits]
      if not names:
        ranked[query] = []
        continue
      scored, = similarity.rerank(
          trained, data.queries[query], [[data.documents[name] for name in names]], 0, batch)
      ranked[query] = [(names[hit.number], hit.score) for hit in scored]
  return ranked
