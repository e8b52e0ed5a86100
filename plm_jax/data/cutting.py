"""How text is cut into windows: pure functions of the sentences of a shard."""
from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Literal, get_args

import numpy as np

from plm_jax.data.records import RecordsError, Shard

Assembly = Literal['document', 'sentences', 'packed', 'examples', 'pairs']
ASSEMBLIES = get_args(Assembly)

# Where a window begins: its first token, and the sentence that this token is of; both counted in the shard. A window
# ends where the next one begins.
CUT = np.dtype([('start', '<u4'), ('sentence', '<u4')])
PAIR_SPECIALS = 4  # of two texts in one row, as 'pairs' cuts them: [CLS] text [SEP] [CLS] text [SEP]
VERSION = 2  # raise it when `cut` changes, so that nothing stored of the old rule is used


@dataclasses.dataclass(frozen=True)
class Rule:
  """How text is cut into windows."""

  assembly: Assembly
  length: int
  target_budget: tuple[int, int] | None = None  # of 'examples': tokens kept for targets, special tokens of a text

  def __str__(self) -> str:
    return '-'.join(map(str, (self.assembly, self.length, *(self.target_budget or ()))))

  @classmethod
  def parse(cls, text: str) -> 'Rule':
    """Parses what str gives. Raises ValueError."""
    name, length, *budget = text.split('-')
    assembly: Assembly = ASSEMBLIES[ASSEMBLIES.index(name)]
    if len(budget) != 2 * (assembly == 'examples'):
      raise ValueError(text)
    return cls(assembly, int(length), (int(budget[0]), int(budget[1])) if budget else None)

  def count(self, sentences: np.ndarray, shard: Shard) -> tuple[int, int]:
    """Counts, by sentences [S] of `records.SENTENCE`, the windows of a shard, and the examples in it that are too long
    for one."""
    if not shard.tokens:
      return 0, 0
    if self.assembly == 'packed':
      return self.packed(shard), 0
    if self.target_budget:
      targets, specials = self.target_budget
      some = sides(sentences, shard)
      clipped = (some > (targets - specials, self.length - targets - specials)).any(1).sum()
      return len(cut_examples(some, self.length, *self.target_budget)), int(clipped)
    if self.assembly == 'pairs':
      some = sides(sentences, shard).sum(1)
      return len(cut_pairs(some, self.length)), int((some > self.length).sum())
    _, pieces, heads = chain(sentences, shard.tokens, self.length, self.assembly)
    return int(pieces[heads].sum()), 0

  def packed(self, shard: Shard) -> int:
    """Counts the windows of a shard under 'packed', where sentences do not matter."""
    return -(-shard.tokens // self.length)

  def cut(self, sentences: np.ndarray, shard: Shard) -> np.ndarray:
    """Finds where windows of a shard begin [W] of `CUT`, by sentences [S] of `records.SENTENCE`."""
    if self.target_budget:
      return cut_examples(sides(sentences, shard), self.length, *self.target_budget)
    if self.assembly == 'pairs':
      return cut_pairs(sides(sentences, shard).sum(1), self.length)
    return cut(sentences, shard.tokens, self.length, self.assembly)


def key(*content: str) -> str:
  """Names the records and the version of the rule in the folders where cuts are stored."""
  return hashlib.sha256('\n'.join([str(VERSION), *content]).encode()).hexdigest()[:16]


def chain(sentences: np.ndarray, tokens: int, length: int, assembly: Assembly) -> tuple[np.ndarray, ...]:
  """Finds, of sentences of a shard, where they begin [S], into how many pieces of `length` tokens, the last one
  shorter, each is cut [S], and the numbers of those whose last piece begins a window.

  A whole piece is a window of its own. The last one has room behind it for the sentences that fit.
  """
  starts = sentences['start'].astype(np.int64)
  ends = np.append(starts[1:], tokens)
  pieces = (ends - starts - 1) // length + 1
  after = np.searchsorted(ends, starts + (pieces - 1) * length + length, 'right')
  if assembly == 'document':
    begins = np.flatnonzero(np.diff(sentences['document'], prepend=sentences['document'][:1]))
    after = np.minimum(after, np.append(begins, len(starts))[np.searchsorted(begins, np.arange(len(starts)), 'right')])
  return starts, pieces, np.array(follow(after), np.int64)


def cut(sentences: np.ndarray, tokens: int, length: int, assembly: Assembly) -> np.ndarray:
  """Finds where the windows of one shard of `tokens` tokens begin: sentences [S] of `records.SENTENCE` -> [W] of
  `CUT`."""
  if assembly == 'packed':
    begins = np.arange(0, tokens, length)
    of_sentence = np.searchsorted(sentences['start'].astype(np.int64), begins, 'right') - 1
  else:
    starts, pieces, heads = chain(sentences, tokens, length, assembly)
    of_head, piece = ranges(np.zeros_like(heads), pieces[heads])
    of_sentence = heads[of_head]
    begins = starts[of_sentence] + piece * length
  cuts = np.empty(len(begins), CUT)
  cuts['start'], cuts['sentence'] = begins, of_sentence
  return cuts


def follow(after: np.ndarray) -> list[int]:
  """Lists 0, after[0], after[after[0]], ... up to the end; every pointer points ahead."""
  after, place, places = after.tolist(), 0, []
  while place < len(after):
    places.append(place)
    place = after[place]
  return places


def sides(sentences: np.ndarray, shard: Shard) -> np.ndarray:
  """Counts the tokens of the target and of the inputs of every example of a shard [D, 2]."""
  if not np.array_equal(sentences['document'], np.repeat(np.arange(shard.documents), 2)):
    raise RecordsError(f'the records of {shard.name} are not of examples, each a target and its inputs: prepare them '
                       'from task:NAME:SOURCE')
  return np.diff(sentences['start'].astype(np.int64), append=shard.tokens).reshape(-1, 2)


def cut_examples(sides: np.ndarray, length: int, targets: int, specials: int) -> np.ndarray:
  """Cuts as `cut` does for 'examples': tokens of a target and of its inputs [D, 2] -> [W] of `CUT`."""
  return cut_whole(sides.sum(1), sides + specials, (targets, length - targets))


def cut_pairs(sizes: np.ndarray, length: int) -> np.ndarray:
  """Cuts as `cut` does for 'pairs': tokens of both texts together [D] -> [W] of `CUT`."""
  return cut_whole(sizes, sizes[:, None] + PAIR_SPECIALS, (length + PAIR_SPECIALS,))


def cut_whole(sizes: np.ndarray, taken: np.ndarray, limits: Sequence[int]) -> np.ndarray:
  """Cuts between documents of two sentences and so many tokens [D], as many together as fit -> [W] of `CUT`.

  taken [D, K]: how much a document takes of each of K limits; one that takes more than there is is alone.
  """
  after = []
  for room, limit in zip(taken.T, limits, strict=True):
    ends = offsets(room)
    after.append(np.searchsorted(ends, ends[:-1] + limit, 'right') - 1)
  begins = np.array(follow(np.maximum(np.min(after, axis=0), np.arange(len(sizes)) + 1)), np.int64)
  cuts = np.empty(len(begins), CUT)
  cuts['start'], cuts['sentence'] = offsets(sizes)[begins], 2 * begins
  return cuts


def offsets(counts) -> np.ndarray:
  """Returns what stands before each of counts [N], and all of them last [N + 1]."""
  return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def ranges(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Joins the ranges start[i] .. stop[i] one after another -> (which range [sum], its members [sum])."""
  count = stop - start
  which = np.repeat(np.arange(len(count)), count)
  return which, np.arange(len(which)) + (start - np.cumsum(count) + count)[which]
