"""What a window is, and how windows are cut from token records.

A batch of windows is a dict of int32 numpy arrays, all that an objective may ask of text:

    tokens     [B, L]  ids of running text, without special tokens; 0 after the end. 0 is also a real id in some
                       vocabularies: what is padding is said by `segments`, not by `tokens`
    segments   [B, L]  0 padding, 1.. the document inside the window
    sentences  [B, L]  0 padding, 1.. the sentence inside the window
    words      [B, L]  0 padding, 1.. the word inside the window; a word may have several tokens
    document   [B]     number, in the corpus, of the document of the first token: two windows of one document share it
    corpus     [B]     which component of a mixture; 0 without a mixture
    index      [B]     number of the window in its corpus and split
    epoch      [B]     how often the corpus was seen before

The first token of a window always has segment, sentence and word 1, also where the window begins inside a word. The
randomness of an example is keyed by (seed, corpus, index, epoch) and by nothing else.

Example: records of two documents, the first "the cat sat . it purrs", the second "dogs bark"; `purrs` has two tokens

    token      5 6 7   8 9 10   11 12
    word bit   1 1 1   1 1 0    1  1
    sentence   ^       ^        ^          (first tokens: 0, 3, 6)
    document   ^                ^          (first tokens: 0, 6)

and windows of 5 tokens under each assembly:

    'document'   whole sentences of one document, as many as fit; a window never crosses a document
        tokens     [[5, 6, 7, 0, 0], [8, 9, 10, 0, 0], [11, 12, 0, 0, 0]]
    'sentences'  whole sentences, as many as fit, running on into the next document
        tokens     [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]
        segments   [[1, 1, 1, 0, 0], [1, 1, 1, 2, 2]]
        sentences  [[1, 1, 1, 0, 0], [1, 1, 1, 2, 2]]
        words      [[1, 2, 3, 0, 0], [1, 2, 2, 3, 4]]
        document   [0, 0]
    'packed'     every 5 tokens, whatever they are
        tokens     [[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]]
        segments   [[1, 1, 1, 1, 1], [1, 2, 2, 0, 0]]
        sentences  [[1, 1, 1, 2, 2], [1, 2, 2, 0, 0]]
        words      [[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]]
        document   [0, 0]

Under each of these every token of the records is in exactly one window, and a window never crosses a shard. A sentence
longer than a window is cut into pieces of L tokens; what is left of it counts as a sentence of its own.

    'examples'   records of a task as text to text (`examples`), where a document is a target and its inputs: whole
        documents, as many as fit with their special tokens: targets in the R tokens that are kept for them, inputs in
        the other L - R. One that is too long is alone in its window, which ends after L tokens

    'pairs'      of such records too: a document is two texts that go together, and as many are in a window as fit a row
        with four special tokens for each, `cutting.PAIR_SPECIALS` of which the window's length leaves free

'document' is the DOC-SENTENCES and 'sentences' the FULL-SENTENCES input of RoBERTa (Liu et al. 2019, section 4.2),
except that no separator token is put between documents here: special tokens are the objective's.
"""
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
import itertools
from typing import Any

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import records
from plm_jax.data.cuts import Cuts
from plm_jax.data.cutting import ASSEMBLIES, Assembly, Rule, offsets, ranges
from plm_jax.data.records import RecordsError, Split
from plm_jax.data.shards import REQUESTS, File, Shards
from plm_jax.errors import option

Batch = dict[str, np.ndarray]


class Windows:
  """The windows of `length` tokens of one split of a folder of records, in any order: `len`, `read`.

  Where `prepare` has not counted them, the first opening does (`counts`: a second for some hundred million tokens) and
  stores the numbers in `<folder>/windows`, or, for a folder without write permission, in the folder that PLM_JAX_CACHE
  names (~/.cache/plm_jax). How many shards there are matters to no later opening, nor to memory or open files
  (`shards`).

  Raises RecordsError for records that are unfinished, missing, truncated, damaged, or have no text in this split.
  """

  def __init__(
      self, folder: epath.PathLike, split: Split = 'train', length: int = 128, assembly: Assembly = 'document',
      target_budget: tuple[int, int] | None = None):
    """target_budget: R, tokens of a window of 'examples' kept for targets, and the special tokens that a text gets."""
    if length < 1:
      raise ValueError(f'a window has at least 1 token, not {length}')
    if assembly not in ASSEMBLIES:
      raise ValueError(f'assembly is one of {", ".join(ASSEMBLIES)}, not {assembly!r}')
    if (assembly == 'examples') != bool(target_budget and 0 < target_budget[0] < length):
      raise ValueError(
          f'windows of examples, and no others, keep room for targets: got {target_budget} of {length} tokens')
    self.folder = storage.path_of(folder)
    self.split = split
    self.length = length
    self.target_budget = target_budget
    self.assembly: Assembly = assembly
    self.meta = records.read_meta(folder)
    if not self.meta.tokens(split):
      raise RecordsError(
          f'the records in {folder} have no text in their {split!r} split: there is nothing to read. Were they one '
          f'document? Put blank lines between documents, or give {option("documents=lines")}, and prepare them again')
    self._shards = Shards(self.folder, self.meta, split)
    self._shards.check()
    self._document_offsets = offsets([shard.documents for shard in self._shards.entries])
    self._cuts = Cuts(self._shards, Rule(assembly, length, target_budget))
    if len(self) >= 1 << 31:
      raise RecordsError(f'{folder} has {len(self)} windows of {length} tokens; the window number is an int32.')

  def __len__(self) -> int:
    return int(self._cuts.offsets[-1])

  @property
  def documents(self) -> int:
    """Documents of the split."""
    return int(self._document_offsets[-1])

  @property
  def clipped(self) -> int:
    """How many examples are too long for a window, and lose the end of their inputs or of their target."""
    return self._cuts.clipped

  def read(self, index: np.ndarray, epoch: np.ndarray | int = 0, corpus: int = 0) -> Batch:
    """Reads windows number `index` [B], in that order, labelled with `epoch` [B] and `corpus` -> a batch of windows.

    Raises RecordsError for text that is damaged, or cannot be read.
    """
    index = np.asarray(index, np.int64)
    place = np.argsort(index, kind='stable')  # neighbours on disk are read together
    ordered = index[place]
    shard = np.searchsorted(self._cuts.offsets, ordered, 'right') - 1
    self._shards.fetch(np.unique(shard).tolist())
    bounds = [self._bounds(int(shard[rows.start]), ordered[rows]) for rows in groups(shard)]
    start, stop, first, last = np.concatenate(bounds, 1) if bounds else np.zeros((4, 0), np.int64)

    dtype = self._shards.dtype
    raw = np.empty(len(index), f'V{dtype.itemsize * self.length}')
    sentence_starts, segment_starts = np.zeros((2, len(index), self.length), bool)
    document = np.zeros(len(index), np.int32)
    for rows, tokens, origin in self._requested(shard, start, stop):
      raw[place[rows]] = stretches(tokens, start[rows] - origin, self.length)
    for rows in groups(shard):
      opened = self._shards.open(of_shard := int(shard[rows.start]))
      if isinstance(opened.tokens, File):
        opened.tokens.verify(start[rows], stop[rows])
        raw[place[rows]] = stretches(opened.tokens.data, start[rows], self.length)
      opened.sentences.verify(first[rows], last[rows])
      row, ordinal = ranges(first[rows], last[rows])
      sentences = opened.sentences.data[ordinal]
      column = sentences['start'] - start[rows][row]
      starts_document = np.append(True, sentences['document'][1:] != sentences['document'][:-1])
      begun = column < np.minimum(stop - start, self.length)[rows][row]
      target = place[rows][row[begun]], np.maximum(column[begun], 0)
      sentence_starts[target] = True
      segment_starts[target] = starts_document[begun]
      leading = np.append(True, row[1:] != row[:-1])
      document[place[rows]] = sentences['document'][leading] + self._document_offsets[of_shard]

    raw = raw.view(dtype).reshape(-1, self.length)
    length = np.empty(len(index), np.int64)
    length[place] = stop - start
    inside = np.arange(self.length) < length[:, None]
    tokens = np.where(inside, raw['token'], 0)
    if tokens.max(initial=0) >= self.meta.vocab:
      row = np.flatnonzero((tokens >= self.meta.vocab).any(1))[0]
      entry = self._shards.entries[np.searchsorted(self._cuts.offsets, index[row], 'right') - 1]
      raise records.foreign_id(self._shards.path(entry, ''), int(tokens[row].max()), self.meta.vocab)
    word_starts = (raw['flags'] & records.WORD).astype(bool)
    for starts in (sentence_starts, segment_starts, word_starts):
      starts[:, 0] = True
    return {
        'tokens': tokens.astype(np.int32),
        'segments': number(segment_starts, inside),
        'sentences': number(sentence_starts, inside),
        'words': number(word_starts, inside),
        'document': document,
        'corpus': np.full(len(index), corpus, np.int32),
        'index': index.astype(np.int32),
        'epoch': np.broadcast_to(np.asarray(epoch, np.int32), index.shape).copy(),
    }

  def _bounds(self, shard: int, index: np.ndarray) -> np.ndarray:
    """Of windows `index` [N], all of one shard: first token, end of tokens, first sentence, end of sentences [4, N]."""
    of_shard, entry = self._cuts.of(shard), self._shards.entries[shard]
    own = index - self._cuts.offsets[shard]
    after = np.minimum(own + 1, len(of_shard) - 1)
    ends = own + 1 == len(of_shard)
    # The sentence at the next cut may have begun in this window.
    return np.stack([of_shard['start'][own], np.where(ends, entry.tokens, of_shard['start'][after]),
                     of_shard['sentence'][own],
                     np.where(ends, entry.sentences, of_shard['sentence'][after] + np.int64(1))]).astype(np.int64)

  def _requested(self, shard, start, stop) -> Iterator[tuple[slice, np.ndarray, int]]:
    """Of tokens that lie in a bucket: rows of the sorted windows, an array with their tokens, and where in the shard it
    begins."""
    if not self._shards.remote or self._shards.small:
      return
    # One request for each run of windows that follow each other: that is why the order of reading comes in blocks.
    gap = np.append(False, start[1:] > stop[:-1])
    runs = list(groups(shard, gap))
    files: dict[int, Any] = {number: self._shards.open(number).tokens for number in np.unique(shard).tolist()}

    def request(rows: slice) -> np.ndarray:
      return files[int(shard[rows.start])].read(int(start[rows.start]), int(stop[rows.stop - 1]))

    with ThreadPoolExecutor(REQUESTS) as pool:
      for rows, tokens in zip(runs, pool.map(request, runs), strict=True):
        yield rows, tokens, int(start[rows.start])


def stretches(tokens: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
  """Gathers tokens[s : s + length] for each s of starts [N] -> [N], each as one item; anything may follow the last
  token.

  Moved as bytes, a window at a time: many times faster than an index for every token.
  """
  if len(tokens) < length:
    tokens = np.concatenate([tokens, np.zeros(length - len(tokens), tokens.dtype)])
  last = len(tokens) - length
  size = tokens.itemsize
  result = np.ndarray(last + 1, f'V{size * length}', tokens, strides=(size,))[np.minimum(starts, last)]
  for row in np.flatnonzero(starts > last):  # few: windows near the end of a shard
    result[row:row + 1].view(tokens.dtype)[:len(tokens) - starts[row]] = tokens[starts[row]:]
  return result


def number(starts: np.ndarray, inside: np.ndarray) -> np.ndarray:
  """Numbers units [B, L] that begin where starts [B, L] is True; 0 outside."""
  return np.cumsum(starts, 1, np.int32) * inside


def groups(key: np.ndarray, also: np.ndarray | None = None) -> Iterator[slice]:
  """Slices of equal neighbours in key [N], divided too where `also` [N] is True."""
  new = key[1:] != key[:-1]
  if also is not None:
    new |= also[1:]
  edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(key)]
  return (slice(start, stop) for start, stop in itertools.pairwise(edges) if start < stop)
