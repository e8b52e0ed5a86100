"""Packing strategies: how text is divided into windows, as functions of a shard's sentences."""
from collections.abc import Sequence
import dataclasses
from typing import Literal, get_args

import numpy as np

from plm_jax.data.records import RecordsError, Shard
from plm_jax.storage.digests import compute_digest

Assembly = Literal['document', 'sentences', 'packed', 'examples', 'pairs']
ASSEMBLIES = get_args(Assembly)

# Where a window begins: its first token, and the sentence of this token; both counted in the shard.
# A window ends where the next one begins.
WINDOW_START = np.dtype([('start', '<u4'), ('sentence', '<u4')])
PAIR_SPECIAL_TOKENS = 4  # of two texts in one row under 'pairs': [CLS] text [SEP] [CLS] text [SEP]
RUNNING_SPECIAL_TOKENS = 2  # of a row of running text: [CLS] and [SEP]
RULE_VERSION = 3  # raise it when `find_starts` changes, so that stored results are not used


@dataclasses.dataclass(frozen=True)
class WindowRule:
  """A packing strategy and window length: how text is divided into windows.

  `str(rule)` names the rule in file names; `parse` reads it back.
  """

  assembly: Assembly
  length: int
  target_tokens: tuple[int, int] | None = None
  # For 'examples': tokens kept for targets, special tokens per text.
  separators: int = 0
  # Tokens between two documents, 0 or 1, which the sequence has next to those of the window, and
  # which the length includes. For 'document', 'sentences' and 'packed'.

  def __str__(self) -> str:
    parts = [self.assembly, self.length]
    if self.target_tokens:
      parts.extend(self.target_tokens)
    elif self.separators:
      parts.append(self.separators)
    return '-'.join(map(str, parts))

  @classmethod
  def parse(cls, text: str) -> 'WindowRule':
    """Parse the string form of a rule. Raises ValueError."""
    name, length, *targets = text.split('-')
    assembly: Assembly = ASSEMBLIES[ASSEMBLIES.index(name)]
    if assembly != 'examples':
      if len(targets) > 1:
        raise ValueError(text)
      return cls(assembly, int(length), separators=int(targets[0]) if targets else 0)
    if len(targets) != 2:
      raise ValueError(text)
    return cls(assembly, int(length), (int(targets[0]), int(targets[1])))

  def count_windows(self, sentences: np.ndarray, shard: Shard) -> tuple[int, int]:
    """Count the windows of a shard, and the examples that are too long for a window.

    Args:
      sentences: [S] of `records.SENTENCE_DTYPE`.
      shard: entry of the shard in records.json.
    """
    if not shard.tokens:
      return 0, 0
    if self.assembly == 'packed':
      return self.count_packed(shard), 0
    if self.target_tokens:
      targets, specials = self.target_tokens
      lengths = example_lengths(sentences, shard)
      limits = targets - specials, self.length - targets - specials
      clipped = (lengths > limits).any(1).sum()
      return len(pack_examples(lengths, self.length, targets, specials)), int(clipped)
    if self.assembly == 'pairs':
      lengths = example_lengths(sentences, shard).sum(1)
      longest = self.length + RUNNING_SPECIAL_TOKENS - PAIR_SPECIAL_TOKENS
      return len(pack_pairs(lengths, self.length)), int((lengths > longest).sum())
    _, parts, heads = chain_sentences(sentences, shard.tokens, self)
    return int(parts[heads].sum()), 0

  def count_packed(self, shard: Shard) -> int:
    """Count the windows of a shard under 'packed', which does not depend on sentences."""
    if not shard.tokens:
      return 0
    return -(-(shard.tokens + self.separators * (shard.documents - 1)) // self.length)

  def find_starts(self, sentences: np.ndarray, shard: Shard) -> np.ndarray:
    """Find where the windows of a shard begin.

    Args:
      sentences: [S] of `records.SENTENCE_DTYPE`.
      shard: entry of the shard in records.json.

    Returns:
      [W] of `WINDOW_START`.
    """
    if self.target_tokens:
      targets, specials = self.target_tokens
      return pack_examples(example_lengths(sentences, shard), self.length, targets, specials)
    if self.assembly == 'pairs':
      return pack_pairs(example_lengths(sentences, shard).sum(1), self.length)
    return find_window_starts(sentences, shard.tokens, self)


def cache_key(*content: str) -> str:
  """Return the name of the folder in which results for records of this content are stored."""
  return compute_digest('\n'.join([str(RULE_VERSION), *content]))[:16]


def sentence_bounds(sentences: np.ndarray, tokens: int, separators: int
                    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Find the first place and the end of each sentence, where separators between documents count.

  Returns:
    First places, ends (exclusive), and how many separators are before, [S] each.
  """
  starts = sentences['start'].astype(np.int64)
  before = separators * sentences['document'].astype(np.int64)
  return starts + before, np.append(starts[1:], tokens) + before, before


def chain_sentences(sentences: np.ndarray, tokens: int, rule: WindowRule) -> tuple[np.ndarray, ...]:
  """Pack whole sentences into windows, as many as fit.

  A sentence longer than a window is split into parts, of which the last one is shorter. Every full
  part is a window; the last part shares its window with the next sentences that fit.

  Returns:
    Where each sentence begins [S], the number of its parts [S], and the numbers of the sentences
    whose last part begins a window.
  """
  length = rule.length
  starts, ends, before = sentence_bounds(sentences, tokens, rule.separators)
  parts = (ends - starts - 1) // length + 1
  after = np.searchsorted(ends, starts + (parts - 1) * length + length, 'right')
  if rule.assembly == 'document':
    begins = np.flatnonzero(np.diff(sentences['document'], prepend=sentences['document'][:1]))
    following = np.searchsorted(begins, np.arange(len(starts)), 'right')
    after = np.minimum(after, np.append(begins, len(starts))[following])
  return starts - before, parts, np.array(follow_pointers(after), np.int64)


def find_window_starts(sentences: np.ndarray, tokens: int, rule: WindowRule) -> np.ndarray:
  """Find where the windows of a shard begin under 'document', 'sentences' and 'packed'.

  Args:
    sentences: [S] of `records.SENTENCE_DTYPE`.
    tokens: number of tokens of the shard.
    rule: packing strategy and length.

  Returns:
    [W] of `WINDOW_START`.
  """
  if rule.assembly == 'packed':
    starts, ends, before = sentence_bounds(sentences, tokens, rule.separators)
    places = np.arange(0, ends[-1] if len(ends) else 0, rule.length)
    numbers = np.searchsorted(starts, places, 'right') - 1
    # A window does not begin with a separator, but with the document after it.
    numbers = numbers + (places == ends[numbers])
    begins = np.maximum(places, starts[numbers]) - before[numbers]
  else:
    starts, parts, heads = chain_sentences(sentences, tokens, rule)
    which, part = concat_ranges(np.zeros_like(heads), parts[heads])
    numbers = heads[which]
    begins = starts[numbers] + part * rule.length
  result = np.empty(len(begins), WINDOW_START)
  result['start'], result['sentence'] = begins, numbers
  return result


def follow_pointers(after: np.ndarray) -> list[int]:
  """List 0, after[0], after[after[0]], ... up to the end; every pointer points ahead."""
  after, place, places = after.tolist(), 0, []
  while place < len(after):
    places.append(place)
    place = after[place]
  return places


def example_lengths(sentences: np.ndarray, shard: Shard) -> np.ndarray:
  """Count the tokens of the target and of the inputs of every example of a shard [D, 2].

  Raises:
    RecordsError: the documents are not examples of two sentences.
  """
  if not np.array_equal(sentences['document'], np.repeat(np.arange(shard.documents), 2)):
    raise RecordsError(f'the records of {shard.name} are not of examples, each a target and its '
                       'inputs: prepare them from task:NAME:SOURCE')
  starts = sentences['start'].astype(np.int64)
  return np.diff(starts, append=shard.tokens).reshape(-1, 2)


def pack_examples(lengths: np.ndarray, length: int, targets: int, specials: int) -> np.ndarray:
  """Pack examples into windows -> [W] of `WINDOW_START`.

  Args:
    lengths: [D, 2] tokens of each target and of its inputs.
    length: tokens per window.
    targets: tokens of a window that are kept for targets.
    specials: special tokens per text.
  """
  return pack_documents(lengths.sum(1), lengths + specials, (targets, length - targets))


def pack_pairs(sizes: np.ndarray, length: int) -> np.ndarray:
  """Pack pairs of texts with so many tokens [D] into windows -> [W] of `WINDOW_START`."""
  used = sizes[:, None] + PAIR_SPECIAL_TOKENS
  return pack_documents(sizes, used, (length + RUNNING_SPECIAL_TOKENS,))


def pack_documents(sizes: np.ndarray, used: np.ndarray, limits: Sequence[int]) -> np.ndarray:
  """Pack whole documents of two sentences into windows, as many as fit -> [W] of `WINDOW_START`.

  Args:
    sizes: [D] tokens of each document.
    used: [D, K] how much a document uses of each of K limits; one above a limit is alone.
    limits: [K] of a window.
  """
  after = []
  for amount, limit in zip(used.T, limits, strict=True):
    ends = cumulative_offsets(amount)
    after.append(np.searchsorted(ends, ends[:-1] + limit, 'right') - 1)
  following = np.maximum(np.min(after, axis=0), np.arange(len(sizes)) + 1)
  begins = np.array(follow_pointers(following), np.int64)
  result = np.empty(len(begins), WINDOW_START)
  result['start'], result['sentence'] = cumulative_offsets(sizes)[begins], 2 * begins
  return result


def cumulative_offsets(counts) -> np.ndarray:
  """Return the sum of the counts [N] before each one, and the total last [N + 1]."""
  return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def concat_ranges(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Concatenate the ranges start[i] .. stop[i] -> (which range [sum], its members [sum])."""
  count = stop - start
  which = np.repeat(np.arange(len(count)), count)
  return which, np.arange(len(which)) + (start - np.cumsum(count) + count)[which]
