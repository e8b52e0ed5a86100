"""How often words come near each other, counted in bounded memory (GloVe's cooccur.c)."""
from collections.abc import Iterator, Sequence
import hashlib
import itertools
import pathlib
import shutil

import numpy as np

from plm_jax import storage
from plm_jax.storage.lock import Lock
from plm_jax.vectors.corpus import Sentences

PAIR = np.dtype([('word', '<i4'), ('context', '<i4'), ('count', '<f8')])
"""GloVe's record CREC, whose numbers of words begin at 1; here at 0"""
READ = 1 << 18  # pairs of a file that are merged at a time
WORDS = 1 << 16  # of the text that are counted at a time

Run = tuple[np.ndarray, np.ndarray]  # keys, ascending, and their counts


def counted(sentences: Sentences, words: int, window: int, memory: int) -> np.ndarray:
  """Counts pairs of words not further apart than `window` in a sentence, each 1 / distance, both ways round -> PAIR
  [N], by word, then context, mapped to memory from a file in the cache.

  words: of the vocabulary. memory: pairs that are held at once; more are sorted, written to files, and merged.
  """
  said = hashlib.sha256(f'{words} {window}'.encode())
  for part in (sentences.ids, sentences.starts):
    said.update(part.tobytes())
  path = pathlib.Path(storage.cache_folder()) / 'pairs' / f'{said.hexdigest()[:32]}.bin'
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    with Lock(path.with_suffix('.making'), 'a run', wait=True):
      if not path.exists():
        folder = path.with_suffix('.parts')
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        files = [*spilled(sentences, words, window, memory, folder)]
        with storage.drafted(path) as out:
          for keys, counts in merged(files):
            pairs = np.empty(len(keys), PAIR)
            pairs['word'], pairs['context'], pairs['count'] = keys // words, keys % words, counts
            out.write(pairs.tobytes())
        shutil.rmtree(folder)
  return np.memmap(path, PAIR, 'r') if path.stat().st_size else np.zeros(0, PAIR)


def spilled(
    sentences: Sentences, words: int, window: int, memory: int, folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Counts piece by piece, and yields files of sorted pairs, one whenever there are more than `memory`."""
  held: list[Run] = []
  number = 0
  marks = np.unique([*np.searchsorted(sentences.starts, np.arange(0, int(sentences.starts[-1]), WORDS)),
                     len(sentences.starts) - 1])
  for first, last in itertools.pairwise(marks):
    held.append(summed(*near(sentences.part(first, last), words, window)))
    if sum(len(keys) for keys, _ in held) > memory:
      held = [joined(held)]
      if len(held[0][0]) > memory // 2:
        yield written(held.pop(), folder / f'{number}.npy')
        number += 1
  if held:
    yield written(joined(held), folder / f'{number}.npy')


def near(sentences: Sentences, words: int, window: int) -> Run:
  """Lists the pairs of a piece of text, not yet summed: keys word * words + context, and 1 / distance."""
  ids = sentences.ids.astype(np.int64)
  number = np.repeat(np.arange(len(sentences.starts) - 1), sentences.lengths)
  keys, counts = [np.zeros(0, np.int64)], [np.zeros(0)]
  for distance in range(1, window + 1):
    together = number[distance:] == number[:-distance]
    left, right = ids[:-distance][together], ids[distance:][together]
    keys += [left * words + right, right * words + left]
    counts += [np.full(2 * len(left), 1 / distance)]
  return np.concatenate(keys), np.concatenate(counts)


def summed(keys: np.ndarray, counts: np.ndarray) -> Run:
  """Sorts pairs and adds up those of one key."""
  if not len(keys):
    return keys, counts
  order = np.argsort(keys, kind='stable')
  keys, counts = keys[order], counts[order]
  first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
  return keys[first], np.add.reduceat(counts, first)


def joined(runs: Sequence[Run]) -> Run:
  """Adds up several sorted runs."""
  return summed(*(np.concatenate(parts) for parts in zip(*runs, strict=True)))


def written(run: Run, path: pathlib.Path) -> pathlib.Path:
  """Writes a run to a file."""
  np.save(path, np.rec.fromarrays(run, dtype=[('key', '<i8'), ('count', '<f8')]))
  return path


def merged(files: Sequence[pathlib.Path], read: int = READ) -> Iterator[Run]:
  """Merges sorted files, `read` pairs of each at a time: up to the smallest key that a file has shown last, no more can
  come."""
  every = [np.load(file, mmap_mode='r') for file in files]
  places = [0] * len(every)
  while any(place < len(pairs) for place, pairs in zip(places, every, strict=True)):
    ahead = [(number, pairs[places[number]:places[number] + read]) for number, pairs in enumerate(every)
             if places[number] < len(pairs)]
    bound = min(int(pairs['key'][-1]) for _, pairs in ahead)
    taken = []
    for number, pairs in ahead:
      stop = int(np.searchsorted(pairs['key'], bound, 'right'))
      taken.append((np.array(pairs['key'][:stop]), np.array(pairs['count'][:stop])))
      places[number] += stop
    yield joined(taken)
