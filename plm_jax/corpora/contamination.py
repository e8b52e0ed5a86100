"""Decontamination: documents that share an n-gram of words with evaluation examples.

Brown et al. 2020, section 4 and appendix C. There n is between 8 and 13 by data set, and the text
around the overlap is cut out of a document. Here n is an option and the whole document is dropped.
"""
from collections.abc import Iterable, Iterator
import re
from typing import Any, NamedTuple

import numpy as np

from plm_jax.corpora import word_hashes
from plm_jax.sources import labeled_files, text_sources, text_to_text_tasks
from plm_jax.sources.source_files import find_files, split_names
from plm_jax.sources.text_to_text_tasks import TASK_PREFIX


class EvaluationNgrams(NamedTuple):
  """The n-grams of evaluation texts, which no training document may contain."""

  ngrams: np.ndarray  # hashes [G] uint64, sorted
  texts: int  # number of texts that were read
  short: int  # of them, shorter than n words: they cannot be found

  def overlaps(self, numbers: np.ndarray, n: int) -> bool:
    """Return whether a document, given as the hashes of its words [W], has one of the n-grams."""
    if len(numbers) < n or not len(self.ngrams):
      return False
    ngrams = word_hashes.ngram_hashes(numbers, n)
    places = np.searchsorted(self.ngrams, ngrams).clip(max=len(self.ngrams) - 1)
    return bool((self.ngrams[places] == ngrams).any())


def read_ngrams(texts: Iterable[str], n: int) -> EvaluationNgrams:
  """Collect the n-grams of texts."""
  parts, number, short = [], 0, 0
  for text in texts:
    hashes = word_hashes.hash_words(word_hashes.split_words(text))
    number += 1
    if len(hashes) < n:
      short += 1
    else:
      parts.append(word_hashes.ngram_hashes(hashes, n))
  ngrams = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
  return EvaluationNgrams(ngrams, number, short)


def evaluation_texts(source: str) -> Iterator[str]:
  """Yield the texts of evaluation examples.

  Args:
    source: evaluation sets, separated by commas. task:NAME:SOURCE: inputs and targets;
      tfds:NAME:SPLIT and files of rows (.jsonl, .json, .tsv, .csv, .conll): every text of a row;
      other files: their documents.

  Raises:
    SourceError: they cannot be read.
  """
  for part in split_sets(source):
    if part.startswith(TASK_PREFIX):
      for example in text_to_text_tasks.read_examples(part):
        yield example.inputs
        yield from example.targets
    elif part.startswith('tfds:'):
      for row in labeled_files.iterate_rows(part):
        yield from iterate_strings(row.columns)
    else:
      for file in find_files(part):
        if labeled_files.FILE_ENDING.search(file.name.lower()):
          for row in labeled_files.iterate_rows(str(file)):
            yield from iterate_strings(row.columns)
        else:
          for document in text_sources.read_documents(str(file)):
            yield '\n'.join(document.paragraphs)


def split_sets(source: str) -> list[str]:
  """Split a list of evaluation sets at commas outside the names of files.

  >>> split_sets('a.jsonl,task:sst2:dev.tsv,b.txt,tfds:imdb_reviews:test')
  ['a.jsonl', 'task:sst2:dev.tsv', 'b.txt', 'tfds:imdb_reviews:test']
  """
  found = []
  for part in re.split(rf',\s*(?={TASK_PREFIX}|tfds:)', source):
    inner = text_to_text_tasks.strip_task(part)
    first, *others = split_names(inner) or ('',)
    found += [part.removesuffix(inner) + first, *others]
  return found


def iterate_strings(value: Any) -> Iterator[str]:
  """Yield the texts in a JSON value; a list of words is one text."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    for inner in value.values():
      yield from iterate_strings(inner)
  elif isinstance(value, list):
    if value and all(isinstance(inner, str) and ' ' not in inner for inner in value):
      yield ' '.join(value)
    else:
      for inner in value:
        yield from iterate_strings(inner)
