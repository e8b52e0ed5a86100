"""Windows of token records: the examples that the data pipeline reads.

A batch of windows is a dict of int32 numpy arrays, everything that an objective may use:

    tokens     [B, L]  ids of running text, without special tokens; 0 after the end. 0 is also a
                       real id in some vocabularies: padding is marked by `segments`, not here
    segments   [B, L]  0 padding, 1.. the document inside the window
    sentences  [B, L]  0 padding, 1.. the sentence inside the window
    words      [B, L]  0 padding, 1.. the word inside the window; a word may have several tokens
    document   [B]     number, in the corpus, of the document of the first token: two windows of one
                       document share it
    corpus     [B]     number of the corpus in a data mixture; 0 without a mixture
    index      [B]     number of the window in its corpus and split
    epoch      [B]     how often the corpus was read before

The first token of a window always has segment, sentence and word 1, also where the window begins
inside a word. The randomness of an example is keyed by (seed, corpus, index, epoch) and by nothing
else.

Example: records of two documents, the first "the cat sat . it purrs", the second "dogs bark";
`purrs` has two tokens

    token      5 6 7   8 9 10   11 12
    word bit   1 1 1   1 1 0    1  1
    sentence   ^       ^        ^          (first tokens: 0, 3, 6)
    document   ^                ^          (first tokens: 0, 6)

and windows of 5 tokens under each packing strategy (`assembly`):

    'document'   whole sentences of one document, as many as fit; a window never crosses a document
        tokens     [[5, 6, 7, 0, 0], [8, 9, 10, 0, 0], [11, 12, 0, 0, 0]]
    'sentences'  whole sentences, as many as fit, continuing into the next document
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

Under each of these every token of the records is in exactly one window, and a window never crosses
a shard. A sentence longer than a window is split into parts of L tokens; the remainder counts as a
sentence by itself.

    'examples'   records of a task as text to text (`text_to_text_tasks`), where a document is a
        target and its inputs: whole documents, as many as fit with their special tokens. Targets
        use the R tokens that are kept for them, inputs the other L - R. An example that is too long
        is alone in its window, which ends after L tokens

    'pairs'      the same records: a document is two texts that form a pair. As many are in a window
        as fit a row with four special tokens for each. The row is as long as one of running text:
        the window and two special tokens

With one separator between documents (`WindowRule.separators`), these count, too: 'packed' has
[5, 6, 7, 8, 9] and [10, 11, 12, 0, 0], the end of the first document between 10 and 11 in its row.

'document' is the DOC-SENTENCES and 'sentences' the FULL-SENTENCES input of RoBERTa (Liu et al.
2019, section 4.2), except that no separator token is put between documents here: objectives add
special tokens.

The starts of a shard's windows are found when the shard is first read (`WindowOffsets`). They are
kept in a file that has its full size from the start, as a sparse file: a run of one epoch fills it,
reading a few windows does not. For S shards the file holds their checksums [S], 0 for those not yet
found, then the `WINDOW_START`s of all windows. The file is never trusted: entries that do not match
their checksum, or the shard, are found again.
"""
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
import itertools
import logging
import mmap
import os
import pathlib
import threading
from typing import Any
import weakref

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import records, window_counts
from plm_jax.data.records import RecordsError, Shard, Split
from plm_jax.data.shards import CRC_DTYPE, REQUESTS, ShardFile, Shards
from plm_jax.data.window_rules import (
  ASSEMBLIES,
  WINDOW_START,
  Assembly,
  WindowRule,
  concat_ranges,
  cumulative_offsets,
)
from plm_jax.errors import UserError, name_field
from plm_jax.storage import checksums

logger = logging.getLogger(__name__)


class WindowOffsets:
  """Where the windows of a split begin.

  `shard_offsets` [S + 1] has the number of the first window of each shard, and the total last.
  `clipped_examples` is the number of examples that are too long for a window.

  Raises RecordsError for records that do not fit the rule.
  """

  def __init__(self, shards: Shards, rule: WindowRule):
    self.shards, self.rule = shards, rule
    self.name = f'{shards.split}-{rule}'
    counts = window_counts.load_or_count(shards, [rule])[0]
    self.clipped_examples = counts.clipped
    self.shard_offsets = cumulative_offsets(counts.windows)
    self._known = np.zeros(len(counts.windows), bool)
    self._lock = threading.Lock()  # for all attributes below: the pipeline reads in threads
    self._path: pathlib.Path | None = None
    self._file: int | None = None
    self._open()

  def window_starts(self, number: int) -> np.ndarray:
    """Return where the windows of a shard begin, [W] of `WINDOW_START`. Thread-safe."""
    start, stop = self.shard_offsets[number:number + 2]
    entry = self.shards.entries[number]
    with self._lock:
      if not self._known[number] and self._crcs[number]:
        self._known[number] = is_valid(self._starts[start:stop], self._crcs[number], entry)
        if not self._known[number]:
          logger.warning('%s is damaged: the windows of %s are found again', self._path, entry.name)
      if self._known[number]:
        return self._starts[start:stop]
    starts = self.rule.find_starts(self.shards.sentences(number), entry)
    if len(starts) != stop - start:
      home, cache = self.shards.homes
      raise RecordsError(f'{self.name}.json in {home} or {cache} counts {stop - start} windows in '
                         f'{entry.name}, which has {len(starts)}: delete it, and it is made again.')
    with self._lock:
      if not self._known[number]:
        self._store(number, starts)
        self._known[number] = True
      return self._starts[start:stop]

  def _store(self, number: int, starts: np.ndarray) -> None:
    """Write the window starts of a shard to the file; switch to memory if that fails."""
    start, stop = self.shard_offsets[number:number + 2]
    content = starts.tobytes()
    if self._file is not None:
      try:
        place = len(self._known) * CRC_DTYPE.itemsize + int(start) * WINDOW_START.itemsize
        write_at(self._file, content, place)
        # The checksum is last: it vouches for the content.
        crc = np.array(checksums.crc(content), CRC_DTYPE).tobytes()
        write_at(self._file, crc, number * CRC_DTYPE.itemsize)
      except OSError:  # such as a full disk
        pass
      if np.array_equal(self._starts[start:stop], starts):
        return
      known, before = np.flatnonzero(self._known), self._starts
      self._open(memory=True)
      for other in known:
        own = slice(self.shard_offsets[other], self.shard_offsets[other + 1])
        self._starts[own] = before[own]
    self._starts[start:stop] = starts

  def _open(self, memory: bool = False) -> None:
    """Open the file on a disk that can be written, otherwise memory, which is allocated lazily."""
    size = offsets_file_size(self.shard_offsets)
    self._path = self._file = None
    homes = [] if memory else self.shards.homes[self.shards.remote:]
    for home in homes:
      path = pathlib.Path(home) / f'{self.name}.cuts'
      with contextlib.suppress(OSError, ValueError, UserError):  # ValueError: it is shorter now
        if not path.exists() or path.stat().st_size != size:
          with storage.atomic_writer(path) as file:
            file.truncate(size)
        # Another process that found no file either may replace this one: writes go to the file
        # that is mapped, and not to the one of that name.
        self._file = open_writable(path)
        weakref.finalize(self, os.close, self._file)
        mapping = mmap.mmap(self._file, size, access=mmap.ACCESS_READ)
        content = np.frombuffer(mapping, np.uint8)
        self._path = path
        break
    else:
      content = np.zeros(size, np.uint8)
    self._crcs, self._starts = split_content(content, self.shard_offsets)


def open_writable(path: pathlib.Path) -> int:
  """Open a file for reading and, where allowed, writing -> its file descriptor."""
  try:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
  except OSError:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def write_at(file: int, content: bytes, place: int) -> None:
  """Write all of `content` to the file descriptor at a byte offset. Raises OSError."""
  while content:
    written = os.pwrite(file, content, place)
    content, place = content[written:], place + written


def offsets_file_size(offsets: np.ndarray) -> int:
  """Return the bytes of a file of window starts. offsets [S + 1]: windows before each shard."""
  return (len(offsets) - 1) * CRC_DTYPE.itemsize + int(offsets[-1]) * WINDOW_START.itemsize


def split_content(content: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Split the bytes of a file of window starts -> its checksums [S], its window starts [W]."""
  split = (len(offsets) - 1) * CRC_DTYPE.itemsize
  return content[:split].view(CRC_DTYPE), content[split:].view(WINDOW_START)


def is_valid(window_starts: np.ndarray, crc: int, entry: Shard) -> bool:
  """Return whether these may be the window starts of a shard."""
  if checksums.crc(window_starts.tobytes()) != crc:
    return False
  starts = window_starts['start'].astype(np.int64)
  sentences = window_starts['sentence'].astype(np.int64)
  in_range = (starts[0] == sentences[0] == 0 and starts[-1] < entry.tokens
              and sentences[-1] < entry.sentences)
  return bool(in_range and (np.diff(starts) > 0).all() and (np.diff(sentences) >= 0).all())


Batch = dict[str, np.ndarray]


class Windows:
  """The windows of `length` tokens of one split of a folder of records, in any order.

  Where `prepare` has not counted the windows, the first opening counts them (`window_counts`: one
  second for some hundred million tokens). It stores the numbers in `<folder>/windows` or, for a
  folder without write permission, in the folder that PLM_JAX_CACHE names (~/.cache/plm_jax). The
  number of shards does not affect later openings, memory or open files (`shards`).
  """

  def __init__(
      self, folder: epath.PathLike, split: Split = 'train', length: int = 128,
      assembly: Assembly = 'document', target_tokens: tuple[int, int] | None = None,
      separators: int = 0):
    """Open a split of records.

    Args:
      folder: token records.
      split: 'train' or 'heldout'.
      length: L, tokens per window.
      assembly: packing strategy, see the head of this module.
      target_tokens: for 'examples' only: R, the tokens of a window that are kept for targets, and
        the number of special tokens per text.
      separators: see `WindowRule`.

    Raises:
      RecordsError: records are unfinished, missing, truncated or damaged, or this split is empty.
    """
    if length < 1:
      raise ValueError(f'a window has at least 1 token, not {length}')
    if assembly not in ASSEMBLIES:
      raise ValueError(f'assembly is one of {", ".join(ASSEMBLIES)}, not {assembly!r}')
    if (assembly == 'examples') != bool(target_tokens and 0 < target_tokens[0] < length):
      raise ValueError('windows of examples, and no others, keep room for targets: got '
                       f'{target_tokens} of {length} tokens')
    self.folder = storage.resolve_path(folder)
    self.split = split
    self.length = length
    self.target_tokens = target_tokens
    self.assembly: Assembly = assembly
    self.meta = records.read_meta(folder)
    if not self.meta.tokens(split):
      field = name_field('documents')
      divide = (f'Divide the text at blank lines with {field}=blank-lines' if self.meta.exact
                else 'Put blank lines between documents')
      raise RecordsError(
          f'the records in {folder} have no text in their {split!r} split: there is nothing to '
          f'read. Were they one document? {divide}, or give {field}=lines, and prepare them again')
    self._shards = Shards(self.folder, self.meta, split)
    self._shards.check()
    documents = [shard.documents for shard in self._shards.entries]
    self._document_offsets = cumulative_offsets(documents)
    rule = WindowRule(assembly, length, target_tokens, separators)
    self._offsets = WindowOffsets(self._shards, rule)
    if len(self) >= 1 << 31:
      raise RecordsError(f'{folder} has {len(self)} windows of {length} tokens; the window number '
                         'is an int32.')

  def __len__(self) -> int:
    return int(self._offsets.shard_offsets[-1])

  @property
  def documents(self) -> int:
    """Number of documents of the split."""
    return int(self._document_offsets[-1])

  @property
  def clipped_examples(self) -> int:
    """Number of examples that are too long for a window: their inputs or target are truncated."""
    return self._offsets.clipped_examples

  def read(self, index: np.ndarray, epoch: np.ndarray | int = 0, corpus: int = 0) -> Batch:
    """Read the windows with the numbers `index` [B], in that order -> a batch of windows.

    Args:
      index: [B] window numbers.
      epoch: [B] or a number, stored in the batch.
      corpus: stored in the batch.

    Raises:
      RecordsError: text is damaged or cannot be read.
    """
    # Sort the windows, so that neighbors on disk are read together.
    index = np.asarray(index, np.int64)
    place = np.argsort(index, kind='stable')
    ordered = index[place]
    shard = np.searchsorted(self._offsets.shard_offsets, ordered, 'right') - 1
    self._shards.fetch(np.unique(shard).tolist())
    bounds = [self._bounds(int(shard[rows.start]), ordered[rows]) for rows in equal_runs(shard)]
    if bounds:
      start, stop, first, last = np.concatenate(bounds, 1)
    else:
      start, stop, first, last = np.zeros((4, 0), np.int64)

    # Read tokens, and mark where sentences and documents begin.
    dtype = self._shards.dtype
    raw = np.empty(len(index), f'V{dtype.itemsize * self.length}')
    sentence_starts, segment_starts = np.zeros((2, len(index), self.length), bool)
    document = np.zeros(len(index), np.int32)
    for rows, tokens, origin in self._request_tokens(shard, start, stop):
      raw[place[rows]] = gather_slices(tokens, start[rows] - origin, self.length)
    for rows in equal_runs(shard):
      number = int(shard[rows.start])
      opened = self._shards.open(number)
      if isinstance(opened.tokens, ShardFile):
        opened.tokens.verify(start[rows], stop[rows])
        raw[place[rows]] = gather_slices(opened.tokens.data, start[rows], self.length)
      opened.sentences.verify(first[rows], last[rows])
      row, ordinal = concat_ranges(first[rows], last[rows])
      sentences = opened.sentences.data[ordinal]
      column = sentences['start'] - start[rows][row]
      starts_document = np.append(True, sentences['document'][1:] != sentences['document'][:-1])
      inside = column < np.minimum(stop - start, self.length)[rows][row]
      target = place[rows][row[inside]], np.maximum(column[inside], 0)
      sentence_starts[target] = True
      segment_starts[target] = starts_document[inside]
      leading = np.append(True, row[1:] != row[:-1])
      document[place[rows]] = sentences['document'][leading] + self._document_offsets[number]

    # Mask what follows each window, check the ids, and number words, sentences and segments.
    raw = raw.view(dtype).reshape(-1, self.length)
    length = np.empty(len(index), np.int64)
    length[place] = stop - start
    inside = np.arange(self.length) < length[:, None]
    tokens = np.where(inside, raw['token'], 0)
    if tokens.max(initial=0) >= self.meta.vocab:
      row = np.flatnonzero((tokens >= self.meta.vocab).any(1))[0]
      number = np.searchsorted(self._offsets.shard_offsets, index[row], 'right') - 1
      path = self._shards.path(self._shards.entries[number], '')
      raise records.foreign_id_error(path, int(tokens[row].max()), self.meta.vocab)
    word_starts = (raw['flags'] & records.WORD_START).astype(bool)
    for starts in (sentence_starts, segment_starts, word_starts):
      starts[:, 0] = True
    return {
        'tokens': tokens.astype(np.int32),
        'segments': number_units(segment_starts, inside),
        'sentences': number_units(sentence_starts, inside),
        'words': number_units(word_starts, inside),
        'document': document,
        'corpus': np.full(len(index), corpus, np.int32),
        'index': index.astype(np.int32),
        'epoch': np.broadcast_to(np.asarray(epoch, np.int32), index.shape).copy(),
    }

  def _bounds(self, shard: int, index: np.ndarray) -> np.ndarray:
    """Find the bounds of the windows `index` [N] of one shard.

    Returns:
      [4, N]: first token, end of the tokens, first sentence, end of the sentences (exclusive).
    """
    starts, entry = self._offsets.window_starts(shard), self._shards.entries[shard]
    own = index - self._offsets.shard_offsets[shard]
    after = np.minimum(own + 1, len(starts) - 1)
    is_last = own + 1 == len(starts)
    stop = np.where(is_last, entry.tokens, starts['start'][after])
    # The sentence at the start of the next window may have begun in this one.
    last = np.where(is_last, entry.sentences, starts['sentence'][after] + np.int64(1))
    return np.stack([starts['start'][own], stop, starts['sentence'][own], last]).astype(np.int64)

  def _request_tokens(self, shard, start, stop) -> Iterator[tuple[slice, np.ndarray, int]]:
    """Read tokens by byte range, for shards in a bucket that are not copied as a whole.

    Yields:
      (rows of the sorted windows, array with their tokens, where in the shard it begins).
    """
    if not self._shards.remote or self._shards.small:
      return
    # One request per run of adjacent windows: that is why the reading order comes in blocks.
    gap = np.append(False, start[1:] > stop[:-1])
    runs = list(equal_runs(shard, gap))
    numbers = np.unique(shard).tolist()
    files: dict[int, Any] = {number: self._shards.open(number).tokens for number in numbers}

    def request(rows: slice) -> np.ndarray:
      file = files[int(shard[rows.start])]
      return file.read(int(start[rows.start]), int(stop[rows.stop - 1]))

    with ThreadPoolExecutor(REQUESTS) as pool:
      for rows, tokens in zip(runs, pool.map(request, runs), strict=True):
        yield rows, tokens, int(start[rows.start])


def gather_slices(tokens: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
  """Gather tokens[s : s + length] for each s of starts [N] -> [N], each as one item.

  Beyond the last token the content is arbitrary. Slices are moved as bytes, one window at a time:
  many times faster than an index for every token.
  """
  if len(tokens) < length:
    tokens = np.concatenate([tokens, np.zeros(length - len(tokens), tokens.dtype)])
  last = len(tokens) - length
  size = tokens.itemsize
  slices = np.ndarray(last + 1, f'V{size * length}', tokens, strides=(size,))
  result = slices[np.minimum(starts, last)]
  for row in np.flatnonzero(starts > last):  # few: windows near the end of a shard
    end = len(tokens) - starts[row]
    result[row:row + 1].view(tokens.dtype)[:end] = tokens[starts[row]:]
  return result


def number_units(starts: np.ndarray, inside: np.ndarray) -> np.ndarray:
  """Number units [B, L] from 1 that begin where starts [B, L] is True; 0 where not `inside`."""
  return np.cumsum(starts, 1, np.int32) * inside


def equal_runs(key: np.ndarray, also: np.ndarray | None = None) -> Iterator[slice]:
  """Yield slices of equal neighbors in key [N], also split where `also` [N] is True."""
  new = key[1:] != key[:-1]
  if also is not None:
    new |= also[1:]
  edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(key)]
  return (slice(start, stop) for start, stop in itertools.pairwise(edges) if start < stop)
