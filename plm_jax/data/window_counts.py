"""Numbers of windows and frequencies of tokens in records, counted once and stored next to them.

The reading order needs the number of windows per shard before the first window is read. Under the
packing strategy 'packed' the number is arithmetic. Under the others it takes all sentences.
`prepare` has the sentences of a shard in memory when it writes the shard, and counts under the
rules that it is given. Under other rules, the process that first opens the records reads the
sentences.

What is counted is stored next to the records, for every later run and every host; where that cannot
be written, in the cache (`Shards.homes`).
"""
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import functools
import logging
import sys
from typing import Any, NamedTuple, TypeVar

from etils import epath
import numpy as np
from tqdm import tqdm

from plm_jax import storage
from plm_jax.data import records
from plm_jax.data.records import SPLITS, RecordsError, RecordsMeta, Shard, read_meta
from plm_jax.data.shards import REQUESTS, Shards
from plm_jax.data.window_rules import WindowRule
from plm_jax.errors import UserError
from plm_jax.progress import is_terminal
from plm_jax.storage import checksums
from plm_jax.storage.lock import Lock

LOCK_SENTENCES = 1 << 24  # from so many sentences on, one process counts and others wait for it
PART = 1 << 24  # tokens that are counted at once, which limits memory
TOKEN_COUNTS = 'token_counts.json'
T = TypeVar('T')

logger = logging.getLogger(__name__)


class WindowCounts(NamedTuple):
  """Number of windows of a split under a rule."""

  windows: list[int]  # of every shard
  clipped: int  # examples that are too long for a window


def count_missing(folder: epath.Path, meta: RecordsMeta, rules: Sequence[WindowRule]) -> None:
  """Count and store the windows under all rules that have no stored counts, in one pass.

  Raises:
    RecordsError: records are damaged, or do not fit a rule.
  """
  for split in SPLITS:
    if meta.tokens(split):
      load_or_count(Shards(folder, meta, split), rules)


def load_or_count(shards: Shards, rules: Sequence[WindowRule]) -> list[WindowCounts]:
  """Return the number of windows under each rule, stored before, or counted and stored now.

  Raises:
    RecordsError: records are damaged, or do not fit a rule.
  """
  found = load_all_counts(shards, rules)
  if len(found) < len(set(rules)):
    with contextlib.ExitStack() as stack:
      if sum(entry.sentences for entry in shards.entries) > LOCK_SENTENCES:
        with contextlib.suppress(UserError):  # nothing can be written: every process counts
          stack.enter_context(Lock(shards.home, 'a process that counts windows', wait=True))
          found = load_all_counts(shards, rules)
      missing = [rule for rule in dict.fromkeys(rules) if rule not in found]
      counted = count_windows(shards, missing)
      for rule, counts in counted.items():
        store_counts(shards, rule, counts)
      found |= counted
  return [found[rule] for rule in rules]


def load_all_counts(shards: Shards, rules: Sequence[WindowRule]) -> dict[WindowRule, WindowCounts]:
  """Return the counts under the rules that need no reading of records."""
  found, read = {}, functools.partial(read_counts, entries=shards.entries)
  for rule in dict.fromkeys(rules):
    if rule.assembly == 'packed':
      counts = WindowCounts([rule.count_packed(entry) for entry in shards.entries], 0)
    else:
      counts = load_stored(shards, f'{shards.split}-{rule}.json', read)
    if counts:
      found[rule] = counts
  return found


def count_windows(shards: Shards, rules: Sequence[WindowRule]) -> dict[WindowRule, WindowCounts]:
  """Count the windows under each rule, reading all sentences once."""
  if not rules:
    return {}

  def count_shard(number: int) -> list[tuple[int, int]]:
    sentences = shards.sentences(number)
    return [rule.count_windows(sentences, shards.entries[number]) for rule in rules]

  lengths = ' and '.join(str(rule.length) for rule in rules)
  interval = 0.5 if is_terminal() else 10  # a log file keeps every update
  with ThreadPoolExecutor(REQUESTS) as pool:  # for a disk, too, which may be a network disk
    found = list(tqdm(
        pool.map(count_shard, range(len(shards))),
        f'windows of {lengths} tokens in {shards.folder}', len(shards), delay=2, unit=' shards',
        mininterval=interval, disable=sys.stderr is None))
  by_rule = zip(*found, strict=True)
  return {rule: sum_counts(pairs) for rule, pairs in zip(rules, by_rule, strict=True)}


def sum_counts(pairs: Sequence[Sequence[int]]) -> WindowCounts:
  """Sum up a split, from (windows, examples that are too long) of every shard."""
  return WindowCounts([windows for windows, _ in pairs], sum(clipped for _, clipped in pairs))


def store_counts(shards: Shards, rule: WindowRule, counts: WindowCounts) -> None:
  """Store the number of windows under a rule."""
  store(shards, f'{shards.split}-{rule}.json', counts._asdict())


def store(shards: Shards, name: str, fields: dict[str, Any]) -> None:
  """Write a file next to the records, else to the cache, else not at all."""
  for home in shards.homes:
    with contextlib.suppress(UserError):  # read-only or full: try the next folder
      storage.write(home / name, checksums.seal_json(fields))
      break


def load_stored(shards: Shards, name: str, read: Callable[[epath.Path], T]) -> T | None:
  """Read a file of `store`; None where there is none, or where it is not of these records."""
  for home in shards.homes:
    with contextlib.suppress(UserError, OSError):
      if (home / name).exists():
        try:
          return read(home / name)
        except UserError as error:
          logger.warning('%s; it is made again', error)
  return None


def read_counts(path: epath.Path, entries: Sequence[Shard]) -> WindowCounts:
  """Read a file of `store_counts`. Raises RecordsError where it cannot be of these shards."""
  found = checksums.unseal_json(storage.read_text(path, error=RecordsError), path, RecordsError)
  windows: Any = found.get('windows')
  clipped: Any = found.get('clipped')
  valid = isinstance(windows, list) and len(windows) == len(entries) and type(clipped) is int
  if not valid or not all(
      type(count) is int and bool(entry.tokens) <= count <= entry.tokens
      for count, entry in zip(windows, entries, strict=True)):
    raise RecordsError(f'{path} does not count the windows of these records')
  return WindowCounts(windows, clipped)


def frequency_ranks(folders: Sequence[epath.Path]) -> np.ndarray:
  """Rank the tokens of a vocabulary by their frequency in corpora, int32 [vocab].

  The most frequent token has rank 0. Tokens of equal frequency are ranked by id. Corpora count with
  their sizes, whatever the weights of a data mixture.

  Raises:
    RecordsError: records cannot be read.
  """
  counts = np.sum([load_token_counts(folder) for folder in folders], axis=0)
  ranks = np.empty(len(counts), np.int32)
  ranks[np.argsort(-counts, kind='stable')] = np.arange(len(counts))
  return ranks


def load_token_counts(folder: epath.Path) -> np.ndarray:
  """Return how often each token occurs in the training split, int64 [vocab].

  Raises:
    RecordsError: the records cannot be read.
  """
  shards = Shards(folder, read_meta(folder), 'train')
  read = functools.partial(read_token_counts, shards=shards)
  counts = load_stored(shards, TOKEN_COUNTS, read)
  if counts is not None:
    return counts
  counts = np.zeros(shards.vocab, np.int64)
  for entry in shards.entries:
    tokens = records.open_tokens(folder, entry)
    for begin in range(0, len(tokens), PART):
      ids = tokens['token'][begin:begin + PART]
      found = np.bincount(ids, minlength=shards.vocab)
      if len(found) > shards.vocab:
        raise records.foreign_id_error(shards.path(entry, ''), len(found) - 1, shards.vocab)
      counts += found
  store(shards, TOKEN_COUNTS, {'counts': counts.tolist()})
  return counts


def read_token_counts(path: epath.Path, shards: Shards) -> np.ndarray:
  """Read stored counts. Raises RecordsError where they cannot be those of these records."""
  found = checksums.unseal_json(storage.read_text(path, error=RecordsError), path, RecordsError)
  counts: Any = found.get('counts')
  total = sum(entry.tokens for entry in shards.entries)
  valid = isinstance(counts, list) and len(counts) == shards.vocab
  if not valid or any(type(count) is not int for count in counts) or sum(counts) != total:
    raise RecordsError(f'{path} does not count the tokens of these records')
  return np.array(counts, np.int64)
