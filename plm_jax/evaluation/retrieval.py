"""Retrieval data sets in BEIR's layout, and the metrics of what is retrieved.

A folder has corpus.jsonl (_id, title, text), queries.jsonl (_id, text) and qrels/SPLIT.tsv, a table
with a header and the columns query-id, corpus-id and score (Thakur et al. 2021).
"""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax import storage
from plm_jax.metrics.ranking import ranking_metrics
from plm_jax.sources import labeled_files
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.lines import SourceError

COMPRESSIONS = ('', '.gz', '.xz')


class RetrievalData(NamedTuple):
  """A corpus, queries, and which documents are relevant."""

  documents: dict[str, str]
  """id -> title and text"""
  queries: dict[str, str]
  """id -> text, of the queries that have judgments"""
  relevance: dict[str, dict[str, float]]
  """query id -> document id -> relevance, of judged documents"""


def read_beir(folder: str, split: str = 'test') -> RetrievalData:
  """Read a data set in BEIR's layout.

  Args:
    folder: folder of the data set, local or in a bucket; files may be compressed (.gz, .xz).
    split: name of the file in qrels, such as test.

  Raises:
    SourceError: a file is missing, an id occurs twice or is unknown, or a score is not a number.
  """
  documents = {}
  for row, key in read_ids(find_file(folder, 'corpus.jsonl')):
    title, text = row.columns.get('title') or '', row.columns.get('text')
    if not isinstance(text, str) or not isinstance(title, str):
      raise SourceError(f"{row.where}: a document has a 'text', and may have a 'title', got "
                        f'{text!r:.60} and {title!r:.60}')
    if key in documents:
      raise SourceError(f'{row.where}: the id {key!r:.60} occurs twice in the corpus')
    documents[key] = f'{title} {text}'.strip() or ' '
  texts = {}
  for row, key in read_ids(find_file(folder, 'queries.jsonl')):
    if not isinstance(row.columns.get('text'), str) or not row.columns['text'].strip():
      raise SourceError(f"{row.where}: a query has a 'text', got {row.columns.get('text')!r:.60}")
    if key in texts:
      raise SourceError(f'{row.where}: the id {key!r:.60} occurs twice in the queries')
    texts[key] = row.columns['text']
  relevance = read_judgments(find_file(folder, f'qrels/{split}.tsv'), texts, documents)
  queries = {key: text for key, text in texts.items() if key in relevance}
  return RetrievalData(documents, queries, relevance)


def find_file(folder: str, name: str) -> str:
  """Find a file of a data set, which may be compressed. Raises SourceError."""
  for compression in COMPRESSIONS:
    path = storage.resolve_path(folder) / f'{name}{compression}'
    if path.exists():
      return str(path)
  raise SourceError(f"{folder} has no {name}: BEIR's layout is corpus.jsonl, queries.jsonl and "
                    'qrels/SPLIT.tsv')


def read_ids(file: str) -> list[tuple[LabeledRow, str]]:
  """Read the rows of a file with their ids. Raises SourceError for a row without one."""
  rows = []
  for row in labeled_files.iterate_rows(file):
    key = row.columns.get('_id')
    if not isinstance(key, str | int) or key == '':
      raise SourceError(f"{row.where}: a row has an '_id', a text or a number, got {key!r:.60}")
    rows.append((row, str(key)))
  if not rows:
    raise SourceError(f'{file} has no rows')
  return rows


def read_judgments(
    file: str, queries: Mapping[str, str], documents: Mapping[str, str]
) -> dict[str, dict[str, float]]:
  """Read the relevance of documents, by query. Raises SourceError for unknown ids and scores."""
  relevance: dict[str, dict[str, float]] = {}
  has_relevant = False
  for row in labeled_files.iterate_rows(file):
    columns: Any = row.columns
    missing = [name for name in ('query-id', 'corpus-id', 'score') if columns.get(name) is None]
    if missing:
      raise SourceError(f'{row.where}: no column {" and no ".join(map(repr, missing))}: the first '
                        'line names query-id, corpus-id and score')
    query, document = str(columns['query-id']), str(columns['corpus-id'])
    for key, known, place in ((query, queries, 'queries'), (document, documents, 'the corpus')):
      if key not in known:
        raise SourceError(f'{row.where}: the id {key!r:.60} is not in {place}')
    try:
      score = labeled_files.parse_number(columns['score'])
    except ValueError as error:
      raise SourceError(f'{row.where}: the score: {error}') from error
    own = relevance.setdefault(query, {})
    if own.get(document, score) != score:
      raise SourceError(f'{row.where}: the document {document!r:.60} has two scores for the query '
                        f'{query!r:.60}')
    own[document] = score
    has_relevant = has_relevant or score > 0
  if not has_relevant:
    raise SourceError(f'{file}: no query has a relevant document, with a score above 0')
  return relevance


def score_retrieval(
    data: RetrievalData, found: Mapping[str, Sequence[tuple[str, float]]]) -> dict[str, float]:
  """Compute the metrics of retrieved documents, in percent, as BEIR's evaluator does.

  The document with the id of the query is left out of its ranking. Of documents with equal scores,
  the one with the larger id ranks first, as in trec_eval.

  Args:
    data: the data set.
    found: query id -> (document id, score) of the retrieved documents, in any order.

  Returns:
    The metrics of `metrics.ranking`, and recall, the share of relevant documents that were
    retrieved. Means over the queries with judgments; a query without a relevant document has 0.
  """
  truth, scores, missed, recalls = [], [], [], []
  for query, known in data.relevance.items():
    hits = [(score, name.encode(), name) for name, score in found.get(query, ()) if name != query]
    ranked = [name for _, _, name in sorted(hits, reverse=True)]
    names = set(ranked)
    truth.append([known.get(name, 0.0) for name in ranked])
    scores.append(range(len(ranked), 0, -1))
    missed.append([value for name, value in known.items() if name not in names])
    relevant = {name for name, value in known.items() if value > 0}
    if relevant:
      recalls.append(len(relevant & names) / len(relevant))
  metrics = ranking_metrics(truth, scores, missed) | {'recall': 100 * float(np.mean(recalls))}
  share = len(recalls) / len(data.relevance)
  return {name: share * value for name, value in metrics.items()}
