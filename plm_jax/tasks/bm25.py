"""BM25: ranking by the words that a query and a text share (Robertson and Zaragoza 2009).

    next(Bm25(corpus).scores(['fast sorting'])) # [N]
    rank_bm25(['fast sorting'], corpus, 10)     # indices of the best texts [1, 10]
"""
from collections.abc import Iterator, Sequence
import re
from typing import Any

import numpy as np
from scipy import sparse

from plm_jax import unicode_words

K1, B = 0.9, 0.4  # as in Anserini
QUERY_BLOCK = 256  # queries that are scored at a time
WORD = re.compile(f'{unicode_words.word_pattern(divided=True)}')


class Bm25:
  """BM25 scores of a corpus, with Anserini's parameters."""

  def __init__(self, corpus: Sequence[str]):
    """Count the words of a corpus of one or more texts."""
    from sklearn.feature_extraction.text import CountVectorizer
    self.counter: Any = CountVectorizer(analyzer=split_words)  # pyright: ignore
    counts: Any = sparse.csr_matrix(self.counter.fit_transform(corpus), dtype=np.float64)
    # Weight of each word in each text.
    lengths = np.asarray(counts.sum(1)).ravel()
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log(1 + (len(corpus) - frequency + 0.5) / (frequency + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
    rows = np.repeat(np.arange(len(corpus)), np.diff(counts.indptr))
    counts.data = counts.data * (K1 + 1) / (counts.data + norm[rows]) * idf[counts.indices]
    self.weights = counts.T.tocsc()

  def scores(self, queries: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the scores of all texts [N] for each query."""
    for start in range(0, len(queries), QUERY_BLOCK):
      some = self.counter.transform(queries[start:start + QUERY_BLOCK])
      yield from (sparse.csr_matrix(some, dtype=np.float64) @ self.weights).toarray()


def rank_bm25(queries: Sequence[str], corpus: Sequence[str], depth: int) -> np.ndarray:
  """Rank the texts of a corpus by BM25 -> indices of the best texts per query [Q, depth]."""
  return np.stack([
      np.argsort(-row, kind='stable')[:depth] for row in Bm25(corpus).scores(queries)])


def split_words(text: str) -> list[str]:
  """Split a text into lower-case words; in scripts without spaces, into characters."""
  return WORD.findall(text.lower()) or ['']
