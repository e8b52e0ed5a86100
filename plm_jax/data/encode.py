"""Documents -> encoded units, on one process or many.

A unit is some documents of about UNIT characters together: what one worker handles at a time.
"""
import collections
from collections.abc import Generator, Iterable, Iterator, Sequence
import gc
import hashlib
import itertools
from typing import Literal, NamedTuple

import numpy as np

from plm_jax import tokenizers
from plm_jax.data import records, segment, sentences
from plm_jax.data import workers as workers_lib
from plm_jax.data.formats import Document

Sentences = Literal['split', 'clauses', 'line']


class Encoded(NamedTuple):
  """A unit of D documents, S sentences, T tokens."""

  tokens: np.ndarray  # [T] of records.token_dtype
  lengths: np.ndarray  # [S] tokens of a sentence
  sentences: np.ndarray  # [D] sentences of a document
  hashes: list[int]  # [D] of the text, 64 bits


def units(documents: Iterable[Document], characters: int = 0) -> Iterator[list[Document]]:
  """Yields documents in lists of about as many characters, by default UNIT."""
  unit, length = [], 0
  for document in documents:
    unit.append(document)
    length += sum(map(len, document.paragraphs))
    if length >= (characters or UNIT):
      yield unit
      unit, length = [], 0
  if unit:
    yield unit


def encode_all(
    work: Iterable[Sequence[Document]],
    tokenizer: tokenizers.Tokenizer,
    how: Sentences,
    segmenter: segment.Segmenter,
    newlines: bool,
    workers: int,
) -> Generator[tuple[list[str], Encoded], None, None]:
  """Units -> (where each document is from, the unit encoded), in order; about two a worker are under way at a time."""
  if workers == 1:
    for unit in work:
      yield places(unit), encode(texts(unit), tokenizer, how, segmenter, newlines)
    return
  with workers_lib.pool(workers, start_worker, tokenizer, how, segmenter, newlines) as pool:
    pending = collections.deque()
    for unit in work:
      pending.append((places(unit), pool.submit(encode_in_worker, texts(unit))))
      if len(pending) > 2 * workers:
        where, encoded = pending.popleft()
        yield where, encoded.result()
    while pending:
      where, encoded = pending.popleft()
      yield where, encoded.result()


def places(unit: Sequence[Document]) -> list[str]:
  """Returns where each document begins, 'file:line'."""
  return [document.where for document in unit]


def texts(unit: Sequence[Document]) -> list[list[str]]:
  """Returns the paragraphs of each document."""
  return [document.paragraphs for document in unit]


def encode(
    unit: list[list[str]], tokenizer: tokenizers.Tokenizer, how: Sentences,
    segmenter: segment.Segmenter = 'none', newlines: bool = False) -> Encoded:
  """Encodes documents, paragraphs of text, sentence by sentence, so that no piece spans two.

  newlines: a paragraph behind another begins with a line break.
  """
  collecting = gc.isenabled()
  gc.disable()  # nothing here makes cycles, and a sixth of the time went into looking for them
  try:
    return encode_unit(unit, tokenizer, how, segment.cached(segmenter), newlines)
  finally:
    if collecting:
      gc.enable()


def encode_unit(
    unit: list[list[str]], tokenizer: tokenizers.Tokenizer, how: Sentences, cut: segment.Segment | None,
    newlines: bool) -> Encoded:
  """Encodes as `encode` does. cut: splits a paragraph into its words, None where the tokenizer says what a word is."""
  read = [[cut(paragraph) for paragraph in document] for document in unit] if cut else None
  plain = [[text for text, _ in document] for document in read] if read else unit
  def sentences_of(paragraph, number):
    rule = sentences.clauses if how == 'clauses' else sentences.split
    found = [paragraph] if how == 'line' else rule(paragraph, tokenizer.spaced)
    if newlines and number and found:
      found[0] = '\n' + found[0]
    return found
  paragraphs = [[sentences_of(paragraph, n) for n, paragraph in enumerate(document)] for document in plain]
  found = [[text for paragraph in document for text in paragraph] for document in paragraphs]
  flat = [text for document in found for text in document]
  if read:
    token, lengths, places = joined(map(tokenizer.encode_places, batches(flat)))
    starts = segmented(read, paragraphs, lengths, places)
  else:
    token, lengths = joined(map(tokenizer.encode_flat, batches(flat)))
    starts = tokenizer.starts_word[token]
  tokens = np.empty(len(token), records.token_dtype(tokenizer.vocab.size))
  tokens['token'] = token
  tokens['flags'] = starts * records.WORD
  tokens['flags'][(np.cumsum(lengths) - lengths)[lengths > 0]] |= records.WORD
  document = np.repeat(np.arange(len(found)), [len(document) for document in found])
  hashes = [int.from_bytes(hashlib.blake2b('\n'.join(document).encode(), digest_size=8).digest()) for document in unit]
  return Encoded(tokens, lengths[lengths > 0], np.bincount(document[lengths > 0], minlength=len(found)), hashes)


def batches(texts: list[str]) -> Iterator[list[str]]:
  """Yields texts in lists of about BATCH characters: what a tokenizer needs in between is many times their size."""
  batch, length = [], 0
  for text in texts:
    batch.append(text)
    length += len(text)
    if length >= BATCH:
      yield batch
      batch, length = [], 0
  yield batch


def joined(parts: Iterable[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
  """Concatenates the first arrays of all tuples, the second ones, and so on."""
  return tuple(map(np.concatenate, zip(*parts, strict=True)))


def segmented(read, paragraphs, lengths: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Tells which tokens [T] start a word of the segmenter's; `read` has texts and words of paragraphs, `paragraphs`
  their sentences, with `lengths` tokens [S] each that begin at the characters `places` [T]."""
  starts, sentence, token = np.zeros(len(places), bool), 0, 0
  found = zip(itertools.chain.from_iterable(read), itertools.chain.from_iterable(paragraphs), strict=True)
  for (text, words), split in found:
    own = lengths[sentence:sentence + len(split)]
    end = token + own.sum()
    starts[token:end] = segment.word_starts(text, words, split, own, places[token:end])
    sentence, token = sentence + len(split), end
  return starts


def each_document(unit: Encoded) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (hash, sentence lengths, tokens) of each document of the unit."""
  sentence_ends = np.cumsum(unit.sentences)
  token_ends = np.concatenate([[0], np.cumsum(unit.lengths)])[sentence_ends]
  first = token = 0
  for text_hash, last, end in zip(unit.hashes, sentence_ends.tolist(), token_ends.tolist(), strict=True):
    yield text_hash, unit.lengths[first:last], unit.tokens[token:end]
    first, token = last, end


def start_worker(
    tokenizer: tokenizers.Tokenizer, how: Sentences, segmenter: segment.Segmenter, newlines: bool) -> None:
  """Keeps in a worker process what `encode` takes besides documents."""
  WORKER.update(tokenizer=tokenizer, how=how, segmenter=segmenter, newlines=newlines)


def encode_in_worker(unit: list[list[str]]) -> Encoded:
  """Encodes documents as `encode` does, with what `start_worker` has kept."""
  return encode(unit, **WORKER)


UNIT = 1 << 20  # characters
BATCH = 1 << 18  # characters
WORKER = {}  # in a worker: the arguments of `encode` that are the same for every unit
