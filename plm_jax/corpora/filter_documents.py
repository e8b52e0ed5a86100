"""Filtering of single documents: rules, decontamination, and the hashes that find duplicates.

A document goes through these steps on one machine or many. `DocumentFilter` does everything that
concerns it alone. `duplicates` does what concerns several documents, with hashes only:

    filters, overlap with evaluation texts   DocumentFilter(document) -> FilteredDocument; dropped
                                             if it has a reason
    exact duplicates, of the rest            of equal `exact`, the first in the corpus is kept
    near-duplicates, of the rest             of a tree of `duplicates.similar_edges`, the first is
                                             kept
    repeated spans, of the rest              `spans` that came before; `remove_repeated_spans`, and
                                             documents that are too short then

Decontamination drops documents that share an n-gram of words with evaluation examples. Brown et al.
2020, section 4 and appendix C, choose n between 8 and 13 by data set, and cut the text around the
overlap out of a document. Here n is an option and the whole document is dropped.
"""
from collections.abc import Iterable, Iterator
import dataclasses
import functools
import re
from typing import Any, Literal, NamedTuple
import unicodedata

import numpy as np

from plm_jax.corpora import filters, word_hashes
from plm_jax.corpora.filters import FilterConfig
from plm_jax.corpora.word_hashes import MinHash
from plm_jax.errors import ConfigError, name_field
from plm_jax.sources import (
  charsets,
  document_formats,
  labeled_files,
  lines,
  sentence_splitting,
  text_sources,
  text_to_text_tasks,
)
from plm_jax.sources.source_files import find_files, split_names
from plm_jax.sources.text_to_text_tasks import TASK_PREFIX
from plm_jax.storage.digests import hash64
from plm_jax.validation import intervals


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


@dataclasses.dataclass(frozen=True)
class CleanConfig(FilterConfig):
  """Filters, deduplication and decontamination of a corpus."""

  limits = intervals(
      similarity='[0.5, 1]', span='[0, 1000]', ngram='[1, 1000]', samples='[0, 100000]',
      workers='[0, 4096]', shard_characters='[1, 1e12]')

  duplicates: Literal['none', 'exact', 'near'] = 'near'
  """Deduplication: drop a document if it duplicates an earlier one. none: keep all; exact: compare
  text, ignoring case and whitespace; near: also drop near-duplicates, which share most of their
  word 5-grams, without punctuation and symbols (MinHash)."""
  similarity: float = 0.8
  """Minimum Jaccard similarity of word 5-grams at which two documents count as near-duplicates."""
  span: int = 0
  """Drop spans of this many sentences that occur earlier in the corpus (C4: 3). 0: keep them."""
  decontaminate: str = ''
  """Decontamination: drop documents that share --ngram consecutive words (13 by default) with these
  evaluation sets: files, task:NAME:SOURCE or tfds:NAME:SPLIT, comma-separated."""
  ngram: int = 13
  """Length in words of the n-grams for --decontaminate."""
  on_error: lines.OnError = 'refuse'
  """What to do with a line that is not valid text or JSON. refuse: stop and report the line; skip:
  skip and count it."""
  encoding: str = 'utf-8'
  """Character encoding of the text files, by its Python name: gb18030, shift_jis, cp1251, utf-16,
  ... Parquet and TFDS ignore it."""
  text_field: str = 'text'
  """Field or column with the text, in JSON Lines, tables and TFDS."""
  documents: document_formats.Division = 'auto'
  """What divides plain text into documents, as in `prepare`."""
  samples: int = 0
  """Store the first N dropped documents per reason in _dropped.jsonl."""
  shard_characters: int = 1 << 28
  """Number of characters per output file, before deduplication."""
  workers: int = 0
  """Number of processes. 0: one per core. It does not change the output."""

  def conflict(self, option):
    """Return the message for an unknown encoding, or for filters that do not go together."""
    if problem := charsets.encoding_problem(self.encoding):
      return f'{option("encoding")} {problem}, got {self.encoding!r}'
    return super().conflict(option)

  @property
  def reading(self) -> document_formats.TextReadConfig:
    """How the sources of text are read."""
    return document_formats.TextReadConfig(
        self.on_error, self.text_field, self.documents, self.encoding, exact=True, parts=False)

  @functools.cached_property
  def minhash(self) -> MinHash:
    """How near-duplicates are found."""
    return MinHash(self.similarity)


# Published sets of rules. In Raffel et al. 2020, the journal version and the released code have 5
# words per line and 3 sentences per page, the first version 3 and 5.
RULE_SETS: dict[str, dict[str, Any]] = {
    'c4': dict(terminal=True, min_line_words=5, javascript=True, policies=True, citations=True,
               lorem_ipsum=True, braces=True, min_sentences=3, span=3),
    'gopher': dict(quality=True, repetition=True),
}


def parse_rules(names: str) -> dict[str, Any]:
  """Return the options of comma-separated published rule sets.

  Raises:
    ConfigError: a name is not known.
  """
  options: dict[str, Any] = {}
  for name in filter(None, map(str.strip, names.split(','))):
    if name not in RULE_SETS:
      raise ConfigError(f'{name_field("rules")} is {" or ".join(RULE_SETS)}, or several by commas, '
                        f'got {name!r}')
    options |= RULE_SETS[name]
  return options


class FilteredDocument(NamedTuple):
  """A document after the filters, with its hashes."""

  paragraphs: list[str]
  reason: str  # why it is dropped, '' where it is kept so far
  lines: dict[str, int]  # number of lines that each rule dropped
  exact: int = 0  # 64 bits: equal for documents of the same characters
  sketch: np.ndarray = np.empty(0, np.uint8)  # [values] of `MinHash.sketch`
  bands: np.ndarray = np.empty(0, np.uint64)  # [bands] of `MinHash.band_hashes`
  spans: np.ndarray = np.empty(0, np.uint64)  # a hash for each `span` consecutive sentences


class DocumentFilter:
  """Filters a document by itself. Can be sent to other processes."""

  def __init__(self, config: CleanConfig, evaluation: EvaluationNgrams | None = None):
    """Load lists and evaluation files.

    Args:
      config: of the filters.
      evaluation: n-grams of the evaluation files; None: they are read here.

    Raises:
      ConfigError, StorageError, SourceError: one of them cannot be loaded.
    """
    self.config = config
    self.rule_filter = filters.RuleFilter(config)
    if evaluation is None:
      texts = evaluation_texts(config.decontaminate) if config.decontaminate else ()
      evaluation = read_ngrams(texts, config.ngram)
    self.evaluation = evaluation

  def __call__(self, paragraphs: list[str]) -> FilteredDocument:
    """Apply the rules to a document, and hash the rest; a dropped document has no hashes."""
    config = self.config
    document = FilteredDocument(*self.rule_filter(paragraphs))
    if document.reason:
      return document
    text = '\n'.join(document.paragraphs)
    words = word_hashes.split_words(text) or text.split()  # punctuation alone is compared as it is
    numbers = word_hashes.hash_words(words)
    if self.evaluation.overlaps(numbers, config.ngram):
      return document._replace(reason='evaluation')
    if config.duplicates != 'none':
      characters = ''.join(unicodedata.normalize('NFC', text.lower()).split())
      document = document._replace(exact=hash64(characters.encode('utf-8', 'surrogatepass')))
    if config.duplicates == 'near':
      minhash = config.minhash
      signature = minhash.signature(numbers)
      document = document._replace(
          sketch=minhash.sketch(signature), bands=minhash.band_hashes(signature))
    if config.span:
      document = document._replace(spans=span_hashes(document.paragraphs, config.span))
    return document


def span_hashes(paragraphs: list[str], span: int) -> np.ndarray:
  """Return a hash for each `span` consecutive of S sentences, uint64 [S - span + 1]."""
  hashes = []
  for paragraph in paragraphs:
    for sentence in sentence_splitting.split_sentences(paragraph):
      text = ' '.join(word_hashes.split_words(sentence))
      hashes.append(hash64(text.encode('utf-8', 'surrogatepass')))
  if len(hashes) < span:
    return np.empty(0, np.uint64)
  return word_hashes.ngram_hashes(np.array(hashes, np.uint64), span)


def remove_repeated_spans(
    paragraphs: list[str], repeated: set[int], span: int) -> tuple[list[str], int]:
  """Remove the sentences of repeated spans from a document.

  Args:
    paragraphs: the document.
    repeated: numbers of the first sentences of repeated spans.
    span: sentences of a span.

  Returns:
    The document's paragraphs, and the number of sentences that were removed.
  """
  removed: set[int] = set()
  for start in repeated:
    removed.update(range(start, start + span))
  kept, first = [], 0
  for paragraph in paragraphs:
    sentences = sentence_splitting.split_sentences(paragraph, gaps=True)
    rest = [sentence for place, sentence in enumerate(sentences, first) if place not in removed]
    first += len(sentences)
    text = ''.join(rest).strip() if len(rest) < len(sentences) else paragraph
    if text or not sentences:
      kept.append(text)
  return kept, len(removed)


def is_long_enough(paragraphs: list[str], config: CleanConfig) -> bool:
  """Return whether a document is long enough after repeated spans were removed."""
  has_text = any(map(str.strip, paragraphs))
  return has_text and not filters.has_few_sentences(paragraphs, config.min_sentences)
