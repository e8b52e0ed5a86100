"""How many windows each shard has: known before the first is read, as the order of reading depends on it.

Under 'packed' that is arithmetic. Under the other assemblies it takes all sentences: `prepare` has those of a shard in
memory when it writes it, and counts under the rules that it is told of; under other rules, whoever opens the records
first reads them. The numbers are kept beside the records, for every later run and every host; where they cannot be
written, in the cache.
"""
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import logging
import sys
from typing import Any, NamedTuple

from etils import epath
from tqdm import tqdm

from plm_jax import storage
from plm_jax.data import checksums
from plm_jax.data.cutting import Rule
from plm_jax.data.records import SPLITS, Meta, RecordsError, Shard
from plm_jax.data.shards import REQUESTS, Shards
from plm_jax.errors import Expected
from plm_jax.storage.lock import Lock

SHARED = 1 << 24  # sentences: where there are more, one process counts windows and others wait for it

logger = logging.getLogger(__name__)


class Counts(NamedTuple):
  """Of the windows of a split under a rule."""

  windows: list[int]  # of every shard
  clipped: int  # examples that are too long for one


def complete(folder: epath.Path, meta: Meta, rules: Sequence[Rule]) -> None:
  """Counts the windows of records, all in one pass, under those rules for which nobody has; for who opens them later.

  Raises RecordsError for records that are damaged, or not of what a rule cuts.
  """
  for split in SPLITS:
    if meta.tokens(split):
      of(Shards(folder, meta, split), rules)


def of(shards: Shards, rules: Sequence[Rule]) -> list[Counts]:
  """Returns the windows under each rule, as stored, or counted now and stored. Raises RecordsError as `complete`."""
  found = stored_counts(shards, rules)
  if len(found) < len(set(rules)):
    with contextlib.ExitStack() as stack:
      if sum(entry.sentences for entry in shards.entries) > SHARED:
        with contextlib.suppress(Expected):  # where nothing can be written, everybody counts on his own
          stack.enter_context(Lock(shards.home, 'a process that counts windows', wait=True))
          found = stored_counts(shards, rules)
      made = count(shards, [rule for rule in dict.fromkeys(rules) if rule not in found])
      for rule, counts in made.items():
        store(shards, rule, counts)
      found |= made
  return [found[rule] for rule in rules]


def stored_counts(shards: Shards, rules: Sequence[Rule]) -> dict[Rule, Counts]:
  """Returns the windows under those rules for which nothing has to be read but what is stored."""
  found = {rule: Counts(list(map(rule.packed, shards.entries)), 0) if rule.assembly == 'packed' else
           stored(shards, rule) for rule in dict.fromkeys(rules)}
  return {rule: counts for rule, counts in found.items() if counts}


def count(shards: Shards, rules: Sequence[Rule]) -> dict[Rule, Counts]:
  """Counts the windows under each rule, reading all sentences once."""
  if not rules:
    return {}
  def of_shard(number: int) -> list[tuple[int, int]]:
    sentences = shards.sentences(number)
    return [rule.count(sentences, shards.entries[number]) for rule in rules]
  with ThreadPoolExecutor(REQUESTS) as pool:  # of a disk too, which may be far away
    found = list(tqdm(
        pool.map(of_shard, range(len(shards))), f'windows of {" and ".join(str(rule.length) for rule in rules)} tokens '
        f'in {shards.folder}', len(shards), delay=2, unit=' shards',
        mininterval=0.5 if sys.stderr.isatty() else 10))  # a file keeps every bar that is drawn
  return {rule: total(pairs) for rule, pairs in zip(rules, zip(*found, strict=True), strict=True)}


def total(pairs: Sequence[Sequence[int]]) -> Counts:
  """Adds up a split: (windows, examples that are too long) of every shard -> `Counts`."""
  return Counts([windows for windows, _ in pairs], sum(clipped for _, clipped in pairs))


def store(shards: Shards, rule: Rule, counts: Counts) -> None:
  """Keeps counts beside the records, else in the cache, else nowhere."""
  for home in shards.homes:
    with contextlib.suppress(Expected):  # read-only or full: the next place
      storage.write(home / f'{shards.split}-{rule}.json', checksums.seal(counts._asdict()))
      break


def stored(shards: Shards, rule: Rule) -> Counts | None:
  """Returns what somebody has counted for these records; None: nobody has."""
  for home in shards.homes:
    path = home / f'{shards.split}-{rule}.json'
    with contextlib.suppress(Expected, OSError):
      if not path.exists():
        continue
      try:
        return read(path, shards.entries)
      except Expected as error:
        logger.warning('%s; it is made again', error)
  return None


def read(path: epath.Path, entries: Sequence[Shard]) -> Counts:
  """Reads what `store` has stored for these shards. Raises RecordsError for what cannot be that."""
  found = checksums.unseal(storage.read_text(path, error=RecordsError), path, RecordsError)
  windows: Any = found.get('windows')
  clipped: Any = found.get('clipped')
  right = isinstance(windows, list) and len(windows) == len(entries) and type(clipped) is int and all(
      type(count) is int and bool(entry.tokens) <= count <= entry.tokens
      for count, entry in zip(windows, entries, strict=True))
  if not right:
    raise RecordsError(f'{path} does not count the windows of these records')
  return Counts(windows, clipped)
