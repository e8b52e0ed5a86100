"""Tokenize documents: sentences, subword tokens and word starts, in one process or many.

A document is held out by a hash of its text alone. So the split does not depend on the order of
reading, and copies of a document stay together.

A unit is a group of documents of about UNIT_CHARACTERS characters, which one worker handles at a
time.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
import itertools
from typing import Literal, NamedTuple

import numpy as np

from plm_jax import tokenizers
from plm_jax.data import records
from plm_jax.distributed import worker_pool
from plm_jax.preparation import word_segmentation
from plm_jax.preparation.fill_middle import FillMiddle, TextPart
from plm_jax.preparation.word_segmentation import SegmenterName, SegmentFunction
from plm_jax.sources import sentence_splitting
from plm_jax.sources.document_formats import Document
from plm_jax.storage.digests import hash64
from plm_jax.tokenizers import long_text

SentenceRule = Literal['split', 'clauses', 'line', 'none']


class EncodedUnit(NamedTuple):
  """A tokenized unit of D documents, S sentences, T tokens."""

  tokens: np.ndarray  # [T] of records.token_dtype
  lengths: np.ndarray  # [S] tokens per sentence
  sentences: np.ndarray  # [D] sentences per document
  hashes: list[int]  # [D] of the text, 64 bits
  follows: np.ndarray  # [D] bool, whether it continues the document before it


class SplitBounds(NamedTuple):
  """Two documents with a fixed split, so that neither split is empty; -1: not known yet."""

  lowest: int = -1  # hash of the document that is held out
  highest: int = -1  # hash of the document that is trained on


def batch_documents(documents: Iterable[Document], characters: int = 0) -> Iterator[list[Document]]:
  """Yield units: lists of documents with about as many characters, 0: UNIT_CHARACTERS."""
  return long_text.group_by_size(documents, count_characters, characters or UNIT_CHARACTERS)


def count_characters(document: Document) -> int:
  """Count the characters of a document."""
  return sum(map(len, document.paragraphs))


def encode_documents(
    unit: Sequence[Document], tokenizer: tokenizers.Tokenizer, sentence_rule: SentenceRule,
    segmenter: SegmenterName = 'none', holes: FillMiddle | None = None) -> EncodedUnit:
  """Tokenize documents sentence by sentence, so that no token spans two sentences.

  Args:
    unit: the documents.
    tokenizer: makes the tokens.
    sentence_rule: how paragraphs are split into sentences. 'none' is for exact text: the ids of a
      document are those of its whole text.
    segmenter: what a word is, see `word_segmentation`.
    holes: how the middle of exact texts is moved to their end; None: it is not.
  """
  # Nothing here makes cycles, and looking for them took a sixth of the time.
  with worker_pool.without_garbage_collection():
    segment = word_segmentation.load_segmenter(segmenter)
    return encode_unit(unit, tokenizer, sentence_rule, segment, holes)


def encode_unit(
    unit: Sequence[Document], tokenizer: tokenizers.Tokenizer, sentence_rule: SentenceRule,
    segment: SegmentFunction | None, holes: FillMiddle | None = None) -> EncodedUnit:
  """Tokenize as `encode_documents`.

  segment: splits a paragraph into its words; None: the tokenizer determines words.
  """
  # Split documents into words, where there is a segmenter, and paragraphs into sentences.
  segmented, texts = None, [document.paragraphs for document in unit]
  if segment:
    segmented, texts = [], []
    for document in unit:
      segmented_document = [segment(paragraph) for paragraph in document.paragraphs]
      segmented.append(segmented_document)
      texts.append([text for text, _ in segmented_document])
  paragraphs = []  # sentences of each paragraph
  sentences: list[str] = []
  counts = []  # sentences of each document
  for document in texts:
    before = len(sentences)
    for paragraph in document:
      found = split_paragraph(paragraph, tokenizer, sentence_rule)
      paragraphs.append(found)
      sentences.extend(found)
    counts.append(len(sentences) - before)

  # Tokenize sentences.
  follows = np.array([document.follows for document in unit], bool)
  if segmented:
    token, lengths, places = encode_texts(tokenizer.encode_with_offsets, sentences)
    starts = mark_word_starts(segmented, paragraphs, lengths, places)
  else:
    if holes:
      token, lengths, counts = encode_holes(sentences, follows, tokenizer, holes)
    elif sentence_rule == 'none':
      token, lengths = encode_exactly(sentences, follows, tokenizer)
    else:
      token, lengths = encode_texts(tokenizer.encode_flat, sentences)
    starts = tokenizer.starts_word[token]
  tokens = np.empty(len(token), records.token_dtype(tokenizer.vocab.size))
  tokens['token'] = token
  tokens['flags'] = starts * records.WORD_START
  # The first token of a sentence starts a word.
  tokens['flags'][(np.cumsum(lengths) - lengths)[lengths > 0]] |= records.WORD_START

  number = np.repeat(np.arange(len(unit)), counts)
  hashes = [hash64('\n'.join(document.paragraphs).encode(), 'big') for document in unit]
  nonempty = np.bincount(number[lengths > 0], minlength=len(unit))
  return EncodedUnit(tokens, lengths[lengths > 0], nonempty, hashes, follows)


def encode_exactly(
    texts: list[str], follows: np.ndarray, tokenizer: tokenizers.Tokenizer,
) -> tuple[np.ndarray, np.ndarray]:
  """Encode texts [N] -> ids [T], ids per text [N], without a space before a text that follows.

  SentencePiece puts a space before a text. So a text that continues another is encoded after a
  character that is in no other token, whose ids are removed: a noncharacter, where the tokenizer
  has bytes, otherwise a line break.

  Args:
    texts: the texts.
    follows: [N] bool, whether a text continues another; see `document_formats.split_exactly`.
    tokenizer: makes the ids.
  """
  removed, mark = 0, '\n' if tokenizer.vocab.unk in tokenizer.encode('\ufdd0') else '\ufdd0'
  if follows.any() and tokenizer.encode(mark) and adds_space(tokenizer):
    pairs = zip(tokenizer.encode(f'{mark}a'), tokenizer.encode(f'{mark}b'), strict=False)
    removed = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
  if removed:
    texts = [f'{mark}{text}' if more else text for text, more in zip(texts, follows, strict=True)]
  token, lengths = encode_texts(tokenizer.encode_flat, texts)
  if removed:
    begins = (np.cumsum(lengths) - lengths)[follows]
    token = np.delete(token, (begins[:, None] + np.arange(removed)).ravel())
    lengths = lengths - removed * follows
  return token, lengths


@functools.lru_cache(4)
def adds_space(tokenizer: tokenizers.Tokenizer) -> bool:
  """Return whether a tokenizer puts a space before a text."""
  content = tokenizer.token_bytes
  return b''.join(content[i] for i in tokenizer.encode('a')) != b'a'


def encode_holes(
    documents: list[str], follows: np.ndarray, tokenizer: tokenizers.Tokenizer, holes: FillMiddle
) -> tuple[np.ndarray, np.ndarray, list[int]]:
  """Encode exact documents [D] with their middles at the end (`fill_middle`).

  Returns:
    ids [T], ids per text [S], texts per document [D].
  """
  parts, counts = [], []
  for document, later in zip(documents, follows, strict=True):
    found = list(holes.divide(document, later, tokenizer))
    counts.append(sum(part.begins for part in found))
    parts += found
  return *encode_parts(parts, tokenizer), counts


def encode_parts(parts: list[TextPart], tokenizer: tokenizers.Tokenizer
                 ) -> tuple[np.ndarray, np.ndarray]:
  """Encode P parts of texts with their special tokens: ids [T], ids per text [S]."""
  follows = np.array([part.follows for part in parts], bool)
  token, lengths = encode_exactly([part.text for part in parts], follows, tokenizer)
  ends = np.cumsum(lengths)
  places, ids = [], []
  for part, start, end in zip(parts, (ends - lengths).tolist(), ends.tolist(), strict=True):
    places += [start] * len(part.before) + [end] * len(part.after)
    ids += [*part.before, *part.after]
  added = [len(part.before) + len(part.after) for part in parts]
  begins = np.flatnonzero([part.begins for part in parts])
  sizes = np.add.reduceat(lengths + added, begins) if len(begins) else lengths
  return np.insert(token, np.array(places, np.int64), ids), sizes


def split_paragraph(paragraph: str, tokenizer: tokenizers.Tokenizer, sentence_rule: SentenceRule
                    ) -> list[str]:
  """Split a paragraph into sentences."""
  if sentence_rule in ('line', 'none'):
    return [paragraph]
  if sentence_rule == 'clauses':
    return sentence_splitting.split_clauses(paragraph, tokenizer.keeps_leading_space)
  return sentence_splitting.split_sentences(paragraph, tokenizer.keeps_leading_space)


def encode_texts(encode: Callable[[list[str]], tuple[np.ndarray, ...]], texts: list[str]
                 ) -> tuple[np.ndarray, ...]:
  """Encode texts in lists of about BATCH_CHARACTERS: tokenizers need many times their size.

  Returns:
    The arrays of the lists, concatenated.
  """
  parts = map(encode, long_text.group_by_size(texts, len, BATCH_CHARACTERS))
  return tuple(map(np.concatenate, zip(*(list(parts) or [encode([])]), strict=True)))


def mark_word_starts(
    segmented: list[list[tuple[str, list[str]]]], paragraphs: list[list[str]], lengths: np.ndarray,
    places: np.ndarray) -> np.ndarray:
  """Return which tokens [T] start a word of the segmenter.

  Args:
    segmented: (text, words) of each paragraph of each document.
    paragraphs: sentences of each paragraph.
    lengths: [S] tokens of each sentence.
    places: [T] character in its sentence at which each token begins.
  """
  starts, sentence, token = np.zeros(len(places), bool), 0, 0
  words_of_paragraphs = itertools.chain.from_iterable(segmented)
  for (text, words), sentences in zip(words_of_paragraphs, paragraphs, strict=True):
    own = lengths[sentence:sentence + len(sentences)]
    end = token + own.sum()
    starts[token:end] = word_segmentation.word_starts(
        text, words, sentences, own, places[token:end])
    sentence, token = sentence + len(sentences), end
  return starts


def iterate_documents(unit: EncodedUnit) -> Iterator[tuple[int, np.ndarray, np.ndarray, bool]]:
  """Yield (hash, sentence lengths, tokens, whether it follows) of each document of the unit."""
  sentence_ends = np.cumsum(unit.sentences)
  token_ends = np.concatenate([[0], np.cumsum(unit.lengths)])[sentence_ends]
  first = token = 0
  for text_hash, last, end, follows in zip(
      unit.hashes, sentence_ends.tolist(), token_ends.tolist(), unit.follows.tolist(),
      strict=True):
    yield text_hash, unit.lengths[first:last], unit.tokens[token:end], follows
    first, token = last, end


def update_bounds(bounds: SplitBounds, unit: EncodedUnit, min_sentences: int) -> SplitBounds:
  """Fix the bounds: the highest and the lowest hash of the first unit with enough documents.

  Only documents of at least `min_sentences` sentences count.
  """
  if bounds.lowest >= 0:
    return bounds
  sizes = zip(unit.hashes, unit.sentences, strict=True)
  hashes = {text_hash for text_hash, size in sizes if size >= min_sentences}
  highest = bounds.highest if bounds.highest >= 0 else max(hashes, default=-1)
  return SplitBounds(min(hashes - {highest}, default=-1), highest)


def choose_split(text_hash: int, share: float, bounds: SplitBounds) -> records.Split:
  """Return the split of a document by its hash. share: of documents to hold out, from 0 to 1."""
  if not share or text_hash == bounds.highest:
    return 'train'
  if text_hash == bounds.lowest or text_hash < share * 2**64:
    return 'heldout'
  return 'train'


UNIT_CHARACTERS = 1 << 20
BATCH_CHARACTERS = 1 << 18
