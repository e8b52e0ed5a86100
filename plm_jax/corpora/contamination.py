"""Which documents have a run of words in common with examples that a model is evaluated on (Brown et al. 2020, section
4 and appendix C).

There n is between 8 and 13 by data set, and what surrounds the overlap is cut out of a document; here n is an option
and the document is left out as a whole.
"""
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from plm_jax.corpora import words
from plm_jax.data import examples, rows, sources
from plm_jax.data.examples import TASK
from plm_jax.data.files import files


class Evaluation(NamedTuple):
  """What is not to be learned."""

  grams: np.ndarray  # [G] uint64, sorted: runs of n words
  texts: int  # that were read
  short: int  # of them, shorter than n words: they cannot be found

  def overlaps(self, numbers: np.ndarray, n: int) -> bool:
    """Tells whether a document of words, given as numbers [W], has a run of n words of these."""
    if len(numbers) < n or not len(self.grams):
      return False
    grams = words.grams(numbers, n)
    places = np.searchsorted(self.grams, grams).clip(max=len(self.grams) - 1)
    return bool((self.grams[places] == grams).any())


def read(texts: Iterable[str], n: int) -> Evaluation:
  """Gathers the runs of n words of texts."""
  parts, number, short = [], 0, 0
  for text in texts:
    found = words.hashes(words.split(text))
    number += 1
    if len(found) < n:
      short += 1
    else:
      parts.append(words.grams(found, n))
  grams = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
  return Evaluation(grams, number, short)


def texts_of(source: str) -> Iterator[str]:
  """Yields the texts of evaluation examples: of task:NAME:SOURCE inputs and targets, of tfds:NAME:SPLIT and of files of
  rows (.jsonl, .json, .tsv, .csv, .conll) every text of a row, of others their documents. Raises SourceError."""
  if source.startswith(TASK):
    for example in examples.examples(source):
      yield from (example.inputs, *example.targets)
  elif source.startswith('tfds:'):
    for row in rows.each(source):
      yield from strings(row.columns)
  else:
    for file in files(source):
      if rows.KNOWN.search(file.name.lower()):
        for row in rows.each(str(file)):
          yield from strings(row.columns)
      else:
        yield from ('\n'.join(document.paragraphs) for document in sources.documents(str(file)))


def strings(value: Any) -> Iterator[str]:
  """Yields the texts in a JSON value; a list of words is one text."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    for inner in value.values():
      yield from strings(inner)
  elif isinstance(value, list):
    if value and all(isinstance(inner, str) and ' ' not in inner for inner in value):
      yield ' '.join(value)
    else:
      for inner in value:
        yield from strings(inner)
