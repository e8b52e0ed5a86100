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

'document' is the DOC-SENTENCES and 'sentences' the FULL-SENTENCES input of RoBERTa (Liu et al. 2019, section 4.2),
except that no separator token is put between documents here: special tokens are the objective's.
"""
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import hashlib
import itertools
import pathlib
from typing import Literal, get_args
import uuid

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import records
from plm_jax.data.records import RecordsError, Shard, Split

Assembly = Literal['document', 'sentences', 'packed', 'examples']
ASSEMBLIES = get_args(Assembly)
Batch = dict[str, np.ndarray]

# Where a window begins: its first token, and the sentence that this token is of; both counted over all shards. A window
# ends where the next one begins.
CUT = np.dtype([('start', '<i8'), ('sentence', '<i8')])
CUT_VERSION = 1  # raise it when `cut` changes, so that no stored cuts of the old rule are used
REQUESTS = 32  # byte ranges that are asked of a bucket at once


class Windows:
  """The windows of `length` tokens of one split of a folder of records, in any order: `len`, `read`.

  The first opening computes where the windows begin (about a second for a hundred million tokens) and stores it in
  `<folder>/windows`, or, for a folder in a bucket or without write permission, in the folder that PLM_JAX_CACHE names
  (~/.cache/plm_jax). The sentences of records in a bucket are copied there too; their tokens are read by byte range.

  Raises RecordsError for records that are unfinished, missing, truncated, or have no text in this split.
  """

  def __init__(
      self, folder: epath.PathLike, split: Split = 'train', length: int = 128, assembly: Assembly = 'document',
      room: tuple[int, int] | None = None):
    """room: R, tokens of a window of 'examples' that are kept for targets, and the special tokens that a text gets."""
    if length < 1:
      raise ValueError(f'a window has at least 1 token, not {length}')
    if assembly not in ASSEMBLIES:
      raise ValueError(f'assembly is one of {", ".join(ASSEMBLIES)}, not {assembly!r}')
    if (assembly == 'examples') != bool(room and 0 < room[0] < length):
      raise ValueError(f'windows of examples, and no others, keep room for targets: got {room} of {length} tokens')
    self.folder = epath.Path(folder)
    self.split = split
    self.length = length
    self.room = room
    self.assembly: Assembly = assembly
    self.meta = records.read_meta(folder)
    self._remote = '://' in str(self.folder)
    self._shards = self.meta.shards(split)
    self._tokens: list = [None] * len(self._shards)
    self._sentences: list = [None] * len(self._shards)
    self._token_offsets = offsets([shard.tokens for shard in self._shards])
    self._sentence_offsets = offsets([shard.sentences for shard in self._shards])
    self._document_offsets = offsets([shard.documents for shard in self._shards])
    if not self._token_offsets[-1]:
      raise RecordsError(f'the records in {folder} have no text in their {split!r} split: there is nothing to read.')
    if not self._remote:  # damage is found before the first step; in a bucket it would cost a request a file
      for shard in range(len(self._shards)):
        self._open_tokens(shard)
        self._open_sentences(shard)
    self._cuts = self._open_cuts()
    if len(self) >= 1 << 31:
      raise RecordsError(f'{folder} has {len(self)} windows of {length} tokens; the window number is an int32.')

  def __len__(self) -> int:
    return len(self._cuts) - 1

  def read(self, index: np.ndarray, epoch: np.ndarray | int = 0, corpus: int = 0) -> Batch:
    """Windows number `index` [B], in that order, labelled with `epoch` [B] and `corpus` -> a batch of windows."""
    index = np.asarray(index, np.int64)
    place = np.argsort(index, kind='stable')  # neighbours on disk are read together
    cuts, nexts = self._cuts[index[place]], self._cuts[index[place] + 1]
    start, stop = cuts['start'], nexts['start']
    shard = np.searchsorted(self._token_offsets, start, 'right') - 1
    columns = np.arange(self.length)

    dtype = records.token_dtype(self.meta.vocab)
    raw = np.empty(len(index), f'V{dtype.itemsize * self.length}')
    for rows, tokens, origin in self._tokens_of(shard, start, stop):
      raw[place[rows]] = stretches(tokens, start[rows] - origin, self.length)
    raw = raw.view(dtype).reshape(-1, self.length)
    length = np.empty(len(index), np.int64)
    length[place] = stop - start
    inside = columns < length[:, None]

    sentence_starts, segment_starts = np.zeros((2, *raw.shape), bool)
    word_starts = (raw['flags'] & records.WORD).astype(bool)
    document = np.zeros(len(index), np.int32)
    # The sentence at the next cut may have begun in this window, but is of this shard only if the shard goes on.
    ends = np.minimum(nexts['sentence'] + 1, self._sentence_offsets[shard + 1])
    for rows in groups(shard):
      row, ordinal = ranges(cuts['sentence'][rows], ends[rows])
      of_shard = int(shard[rows.start])
      sentences = self._open_sentences(of_shard)[ordinal - self._sentence_offsets[of_shard]]
      column = self._token_offsets[of_shard] + sentences['start'] - start[rows][row]
      starts_document = np.append(True, sentences['document'][1:] != sentences['document'][:-1])
      begun = column < np.minimum(stop - start, self.length)[rows][row]
      target = place[rows][row[begun]], np.maximum(column[begun], 0)
      sentence_starts[target] = True
      segment_starts[target] = starts_document[begun]
      first = np.append(True, row[1:] != row[:-1])
      document[place[rows]] = sentences['document'][first] + self._document_offsets[of_shard]
    for starts in (sentence_starts, segment_starts, word_starts):
      starts[:, 0] = True

    return {
        'tokens': np.where(inside, raw['token'], 0).astype(np.int32),
        'segments': number(segment_starts, inside),
        'sentences': number(sentence_starts, inside),
        'words': number(word_starts, inside),
        'document': document,
        'corpus': np.full(len(index), corpus, np.int32),
        'index': index.astype(np.int32),
        'epoch': np.broadcast_to(np.asarray(epoch, np.int32), index.shape).copy(),
    }

  @property
  def documents(self) -> int:
    return int(self._document_offsets[-1])

  @property
  def clipped(self) -> int:
    """How many examples are too long for a window, and lose the end of their inputs or of their target."""
    if not self.room:
      return 0
    targets, specials = self.room
    limits = targets - specials, self.length - targets - specials
    sides = (self._sides(place) for place, shard in enumerate(self._shards) if shard.tokens)
    return sum(int((some > limits).any(1).sum()) for some in sides)

  def _sides(self, shard: int) -> np.ndarray:
    """Tokens of the target and of the inputs of every example of a shard [D, 2]."""
    sentences, entry = self._open_sentences(shard), self._shards[shard]
    if not np.array_equal(sentences['document'], np.repeat(np.arange(entry.documents), 2)):
      raise RecordsError(f'the records in {self.folder} are not of examples, each a target and its inputs: prepare '
                         'them from task:NAME:SOURCE')
    return np.diff(sentences['start'].astype(np.int64), append=entry.tokens).reshape(-1, 2)

  def _tokens_of(self, shard, start, stop) -> Iterator[tuple[slice, np.ndarray, int]]:
    """Rows of the sorted windows, an array with their tokens, and the number of its first token."""
    if not self._remote:
      for rows in groups(shard):
        yield rows, self._open_tokens(shard[rows.start]), int(self._token_offsets[shard[rows.start]])
      return
    # One request for each run of windows that follow each other: that is why the order of reading comes in blocks.
    gap = np.append(False, start[1:] > stop[:-1])
    runs = list(groups(shard, gap))

    def request(rows: slice) -> np.ndarray:
      of_shard = shard[rows.start]
      begin = self._token_offsets[of_shard]
      return self._open_tokens(of_shard)[start[rows.start] - begin : stop[rows.stop - 1] - begin]

    with ThreadPoolExecutor(REQUESTS) as pool:
      for rows, tokens in zip(runs, pool.map(request, runs), strict=True):
        yield rows, tokens, int(start[rows.start])

  def _open_tokens(self, shard: int):
    if self._tokens[shard] is None:
      tokens = records.open_tokens(self.folder, self._shards[shard])
      expected = records.token_dtype(self.meta.vocab)
      if tokens.dtype != expected:
        raise RecordsError(
            f'record shard {self.folder / self._shards[shard].name}.npy holds {tokens.dtype}, but a vocabulary of '
            f'{self.meta.vocab} is stored as {expected}: it belongs to other records. Prepare the records again.')
      # Indexing a plain view is several times faster than indexing the memmap class.
      self._tokens[shard] = tokens.view(np.ndarray) if isinstance(tokens, np.memmap) else tokens
    return self._tokens[shard]

  def _open_sentences(self, shard: int) -> np.ndarray:
    if self._sentences[shard] is None:
      folder, entry = self.folder, self._shards[shard]
      if self._remote:
        folder = self._cache()
        copy = folder / f'{entry.name}.sentences.npy'
        if not copy.exists():
          save(copy, records.read_sentences(self.folder, entry))
      self._sentences[shard] = records.read_sentences(folder, entry).view(np.ndarray)
    return self._sentences[shard]

  def _open_cuts(self) -> np.ndarray:
    """[windows + 1] of `CUT`, stored ones where there are any for exactly these records."""
    room = ''.join(f'-{number}' for number in self.room or ())
    name = f'{self.split}-{self.assembly}-{self.length}{room}.npy'
    homes = [self._cache()]
    if not self._remote:
      homes.insert(0, pathlib.Path(self.folder) / 'windows' / self._key())
    total = self._token_offsets[-1], self._sentence_offsets[-1]
    for home in homes:
      with contextlib.suppress(OSError, ValueError):  # there is none, or it is damaged: it is made again
        cuts = np.load(home / name, mmap_mode='r')
        if cuts.dtype == CUT and cuts[-1].item() == total:
          return cuts.view(np.ndarray)
    cuts = np.concatenate([*self._cut_shards(), np.array([total], CUT)])
    for home in homes:
      with contextlib.suppress(OSError):  # read-only or full: the next place, or memory alone
        save(home / name, cuts)
        return np.load(home / name, mmap_mode='r').view(np.ndarray)
    return cuts

  def _cut_shards(self) -> Iterator[np.ndarray]:
    for place, shard in enumerate(self._shards):
      if shard.tokens:
        sentences = self._open_sentences(place)
        check(self.folder, shard, sentences)
        if self.room:
          cuts = cut_examples(self._sides(place), self.length, *self.room)
        else:
          cuts = cut(sentences, shard.tokens, self.length, self.assembly)
        cuts['start'] += self._token_offsets[place]
        cuts['sentence'] += self._sentence_offsets[place]
        yield cuts

  def _cache(self) -> pathlib.Path:
    return storage.cache_folder() / 'windows' / self._key(str(self.folder))

  def _key(self, *place: str) -> str:
    """Names these records: what is prepared anew, even in the same folder, has another key."""
    content = [str(CUT_VERSION), (self.folder / 'records.json').read_text(), *place]
    return hashlib.sha256('\n'.join(content).encode()).hexdigest()[:16]


def cut(sentences: np.ndarray, tokens: int, length: int, assembly: Assembly) -> np.ndarray:
  """Where the windows of one shard of `tokens` tokens begin: sentences [S] of `records.SENTENCE` -> [W] of `CUT`."""
  starts = sentences['start'].astype(np.int64)
  if assembly == 'packed':
    begins = np.arange(0, tokens, length)
  else:
    # Pieces of at most `length` tokens, so that the next window can be found by one search from any of them.
    count = -(-np.diff(starts, append=tokens) // length)
    of_sentence, piece = ranges(np.zeros_like(count), count)
    begins = starts[of_sentence] + piece * length
    after = np.searchsorted(np.append(begins, tokens), begins + length, 'right') - 1
    if assembly == 'document':
      document = sentences['document'][of_sentence]
      after = np.minimum(after, np.searchsorted(document, document, 'right'))
    begins = begins[follow(after)]
  cuts = np.empty(len(begins), CUT)
  cuts['start'] = begins
  cuts['sentence'] = np.searchsorted(starts, begins, 'right') - 1
  return cuts


def follow(after: np.ndarray) -> list[int]:
  """0, after[0], after[after[0]], ... up to the end; every pointer points ahead."""
  after, place, places = after.tolist(), 0, []
  while place < len(after):
    places.append(place)
    place = after[place]
  return places


def cut_examples(sides: np.ndarray, length: int, room: int, specials: int) -> np.ndarray:
  """`cut` for 'examples': tokens of a target and of its inputs [D, 2] -> [W] of `CUT`."""
  after = []
  for side, limit in zip((sides + specials).T, (room, length - room), strict=True):
    ends = offsets(side)
    after.append(np.searchsorted(ends, ends[:-1] + limit, 'right') - 1)
  begins = np.array(follow(np.maximum(np.minimum(*after), np.arange(len(sides)) + 1)), np.int64)
  cuts = np.empty(len(begins), CUT)
  cuts['start'], cuts['sentence'] = offsets(sides.sum(1))[begins], 2 * begins
  return cuts


def check(folder: epath.Path, shard: Shard, sentences: np.ndarray) -> None:
  """Raises RecordsError if the sentences cannot be those of the shard."""
  starts, documents = sentences['start'].astype(np.int64), sentences['document'].astype(np.int64)
  sound = len(starts) and starts[0] == 0 and starts[-1] < shard.tokens and documents[-1] + 1 == shard.documents
  if not sound or (np.diff(starts) <= 0).any() or (np.diff(documents) < 0).any():
    raise RecordsError(
        f'record shard {folder / shard.name}.sentences.npy is damaged: its sentences do not divide the {shard.tokens} '
        f'tokens and {shard.documents} documents of records.json. Copy it again, or prepare the records again.')


def stretches(tokens: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
  """tokens[s : s + length] for each s of starts [N] -> [N], each as one item; anything may follow the last token.

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
  """starts [B, L] True where a unit begins -> [B, L] number of the unit, 0 outside."""
  return np.cumsum(starts, 1, np.int32) * inside


def ranges(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The ranges start[i] .. stop[i] one after another -> (which range [sum], its members [sum])."""
  count = stop - start
  which = np.repeat(np.arange(len(count)), count)
  return which, np.arange(len(which)) + (start - np.cumsum(count) + count)[which]


def groups(key: np.ndarray, also: np.ndarray | None = None) -> Iterator[slice]:
  """Slices of equal neighbours in key [N], divided too where `also` [N] is True."""
  new = key[1:] != key[:-1]
  if also is not None:
    new |= also[1:]
  edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(key)]
  return (slice(start, stop) for start, stop in itertools.pairwise(edges) if start < stop)


def offsets(counts: Sequence[int]) -> np.ndarray:
  return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def save(path: pathlib.Path, array: np.ndarray) -> None:
  """As a `.npy` file that appears whole or not at all, whoever else writes it at the same time."""
  path.parent.mkdir(parents=True, exist_ok=True)
  draft = path.with_name(f'{path.name}.{uuid.uuid4().hex}.tmp')
  try:
    with draft.open('wb') as f:
      np.save(f, array)
    draft.replace(path)
  finally:
    draft.unlink(missing_ok=True)
