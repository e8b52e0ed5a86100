"""What is found out about a document by itself: what rules leave of it, and numbers by which it meets others.

A document goes through these steps, wherever it is worked on. All that concerns it alone is `Examiner`. What concerns
several is in `duplicates`, and asks for numbers only:

    filters, overlap with evaluation examples      Examiner(document) -> Examined; one with a reason is left out
    exact duplicates, of those that are left       of equal `exact`, the first in the corpus stays
    near-duplicates, of those that are left        of documents that hang together by `duplicates.linked`, the first
    repeated spans, of those that are left         `spans` that came before; `without`, and documents too short then
"""
import dataclasses
import functools
import hashlib
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.checked import within
from plm_jax.corpora import contamination, filters, words
from plm_jax.corpora.contamination import Evaluation
from plm_jax.corpora.filters import Filters
from plm_jax.corpora.minhash import MinHash
from plm_jax.data import formats, lines, sentences
from plm_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class CleanConfig(Filters):
  """What of a corpus is left out."""

  limits = within(similarity='[0.5, 1]', span='[0, 1000]', ngram='[1, 1000]', samples='[0, 100000]',
                  workers='[0, 4096]', shard_characters='[1, 1e12]')

  duplicates: Literal['none', 'exact', 'near'] = 'near'
  """Documents that came before are left out: those that differ in case, punctuation and white space at most (exact), or
  also those with most of their 5-grams of words in common (near)."""
  similarity: float = 0.8
  """Jaccard similarity of their 5-grams from which on documents are near-duplicates."""
  span: int = 0
  """Leave out sentences that came before in a row of as many; C4 has 3."""
  decontaminate: str = ''
  """Evaluation files, by commas, task:NAME:SOURCE or tfds:NAME:SPLIT: documents with a run of words in common with them
  are left out."""
  ngram: int = 13
  """Words of such a run."""
  on_error: lines.OnError = 'refuse'
  """What to do with a line that is not UTF-8 or not JSON: stop and name it, or leave it out and count it."""
  text_field: str = 'text'
  """Field with the text, of JSON lines, of tables and of TFDS."""
  documents: formats.Division = 'auto'
  """What divides plain text into documents: see `prepare`."""
  samples: int = 0
  """Documents to keep for each reason why documents are left out, in _dropped.jsonl: the first ones."""
  shard_characters: int = 1 << 28
  """Characters that go to an output file, before duplicates are taken out."""
  workers: int = 0
  """Processes; 0 for one a core. Changes nothing in the output."""

  @property
  def reading(self) -> formats.Reading:
    """How the sources of text are read."""
    return formats.Reading(self.on_error, self.text_field, self.documents)

  @functools.cached_property
  def minhash(self) -> MinHash:
    """How near-duplicates are found."""
    return MinHash(self.similarity)


# Published sets of rules. Of Raffel et al. 2020 the journal's version and the released code have 5 words a line and 3
# sentences a page, the first version 3 and 5.
RULES: dict[str, dict[str, Any]] = {
    'c4': dict(terminal=True, min_line_words=5, javascript=True, policies=True, citations=True, lorem_ipsum=True,
               braces=True, min_sentences=3, span=3),
    'gopher': dict(quality=True, repetition=True),
}


def rules_of(names: str) -> dict[str, Any]:
  """Returns the fields of published rules, by commas. Raises ConfigError for a name that is not known."""
  found: dict[str, Any] = {}
  for name in filter(None, map(str.strip, names.split(','))):
    if name not in RULES:
      raise ConfigError(f'--rules is {" or ".join(RULES)}, or several by commas, got {name!r}')
    found |= RULES[name]
  return found


class Examined(NamedTuple):
  """A document as it is by itself."""

  paragraphs: list[str]
  reason: str  # why it is left out, '' where it is kept so far
  lines: dict[str, int]  # how many lines each rule took away
  exact: int = 0  # 64 bits: equal for documents of the same words
  sketch: np.ndarray = np.empty(0, np.uint8)  # [values] of `MinHash.sketch`
  bands: np.ndarray = np.empty(0, np.uint64)  # [bands] of `MinHash.bands_of`
  spans: np.ndarray = np.empty(0, np.uint64)  # a number for each `span` sentences in a row


class Examiner:
  """What examines a document, with all that it needs. Can be sent to other processes."""

  def __init__(self, config: CleanConfig, evaluation: Evaluation | None = None):
    """Reads lists and, unless what is in them is given, evaluation files. Raises ConfigError, StorageError or
    SourceError for what cannot be had."""
    self.config = config
    self.filter = filters.Filter(config)
    self.evaluation = evaluation or contamination.read(
        contamination.texts_of(config.decontaminate) if config.decontaminate else (), config.ngram)

  def __call__(self, paragraphs: list[str]) -> Examined:
    """Applies the rules to a document and numbers what is left; of one with a reason nothing is numbered."""
    config = self.config
    found = Examined(*self.filter(paragraphs))
    if found.reason:
      return found
    numbers = words.hashes(words.split('\n'.join(found.paragraphs)))
    if self.evaluation.overlaps(numbers, config.ngram):
      return found._replace(reason='evaluation')
    if config.duplicates != 'none':
      found = found._replace(exact=number(numbers.tobytes()))
    if config.duplicates == 'near':
      minhash = config.minhash
      signature = minhash.signature(numbers)
      found = found._replace(sketch=minhash.sketch(signature), bands=minhash.bands_of(signature))
    return found._replace(spans=spans_of(found.paragraphs, config.span)) if config.span else found


def spans_of(paragraphs: list[str], span: int) -> np.ndarray:
  """Returns a number [S - span + 1], uint64, for each `span` sentences in a row, of S in the document."""
  every = [number(' '.join(words.split(sentence)).encode('utf-8', 'surrogatepass'))
           for paragraph in paragraphs for sentence in sentences.split(paragraph)]
  return words.grams(np.array(every, np.uint64), span) if len(every) >= span else np.empty(0, np.uint64)


def without(paragraphs: list[str], repeated: set[int], span: int) -> tuple[list[str], int]:
  """Takes the sentences of repeated spans, given as numbers of their first sentence, out of a document -> its
  paragraphs, and how many sentences went."""
  cut = {start + place for start in repeated for place in range(span)}
  kept, place = [], 0
  for paragraph in paragraphs:
    pieces = sentences.split(paragraph, gaps=True)
    left = ''.join(piece for at, piece in enumerate(pieces, place) if at not in cut).strip()
    place += len(pieces)
    if left:
      kept.append(left)
  return kept, len(cut)


def long_enough(paragraphs: list[str], config: CleanConfig) -> bool:
  """Tells whether what is left of a document without repeated spans is one still."""
  return bool(paragraphs) and not filters.few_sentences(paragraphs, config.min_sentences)


def number(content: bytes) -> int:
  """Returns 64 bits of a hash."""
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), 'little')
