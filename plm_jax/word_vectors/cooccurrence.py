"""Co-occurrence counts of words in bounded memory (GloVe's cooccur.c)."""
from collections.abc import Iterator, Sequence
import itertools
import pathlib
import shutil

import numpy as np

from plm_jax import storage
from plm_jax.storage.digests import compute_digest
from plm_jax.storage.lock import Lock
from plm_jax.word_vectors.word_corpus import Sentences

PAIR_DTYPE = np.dtype([('word', '<i4'), ('context', '<i4'), ('count', '<f8')])
"""GloVe's record CREC, except that ids of words begin at 0, not at 1."""
READ_PAIRS = 1 << 18  # pairs of a file that are merged at a time
WORDS_AT_ONCE = 1 << 16  # words of the text that are counted at a time

SortedRun = tuple[np.ndarray, np.ndarray]  # keys, ascending, and their counts


def count_pairs(sentences: Sentences, words: int, window: int, memory: int) -> np.ndarray:
  """Count pairs of words within a window in a sentence, each as 1 / distance, in both directions.

  Args:
    sentences: the text.
    words: vocabulary size.
    window: largest distance.
    memory: pairs that are held in memory at once; more are sorted, written to files, and merged.

  Returns:
    Pairs [N] of PAIR_DTYPE, by word, then context, mapped to memory from a file in the cache.
  """
  arrays = sentences.ids.tobytes(), sentences.starts.tobytes()
  key = compute_digest(f'{words} {window}', *arrays)[:32]
  path = pathlib.Path(storage.cache_folder()) / 'pairs' / f'{key}.bin'
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    with Lock(path.with_suffix('.making'), 'a run', wait=True):
      if not path.exists():
        folder = path.with_suffix('.parts')
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        files = list(write_sorted_runs(sentences, words, window, memory, folder))
        with storage.atomic_writer(path) as out:
          for keys, counts in merge_files(files):
            pairs = np.empty(len(keys), PAIR_DTYPE)
            pairs['word'], pairs['context'] = keys // words, keys % words
            pairs['count'] = counts
            out.write(pairs.tobytes())
        shutil.rmtree(folder)
  if not path.stat().st_size:
    return np.zeros(0, PAIR_DTYPE)
  return np.memmap(path, PAIR_DTYPE, 'r')


def write_sorted_runs(
    sentences: Sentences, words: int, window: int, memory: int,
    folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Count a text in pieces, and yield files of sorted pairs, one per about `memory` pairs."""
  held: list[SortedRun] = []
  number = 0
  offsets = np.arange(0, int(sentences.starts[-1]), WORDS_AT_ONCE)
  firsts = np.searchsorted(sentences.starts, offsets)
  marks = np.unique(np.append(firsts, len(sentences.starts) - 1))
  for first, last in itertools.pairwise(marks):
    keys, counts = list_pairs(sentences.select(first, last), words, window)
    held.append(sum_pairs(keys, counts))
    if sum(len(keys) for keys, _ in held) > memory:
      held = [merge_runs(held)]
      if len(held[0][0]) > memory // 2:
        yield save_run(held.pop(), folder / f'{number}.npy')
        number += 1
  if held:
    yield save_run(merge_runs(held), folder / f'{number}.npy')


def list_pairs(sentences: Sentences, words: int, window: int) -> SortedRun:
  """List unsorted pairs of a text: keys word * words + context, and 1 / distance."""
  ids = sentences.ids.astype(np.int64)
  number = np.repeat(np.arange(len(sentences.starts) - 1), sentences.lengths)
  keys, counts = [np.zeros(0, np.int64)], [np.zeros(0)]
  for distance in range(1, window + 1):
    same_sentence = number[distance:] == number[:-distance]
    left, right = ids[:-distance][same_sentence], ids[distance:][same_sentence]
    keys += [left * words + right, right * words + left]
    counts.append(np.full(2 * len(left), 1 / distance))
  return np.concatenate(keys), np.concatenate(counts)


def sum_pairs(keys: np.ndarray, counts: np.ndarray) -> SortedRun:
  """Sort pairs, and add up the counts of equal keys."""
  if not len(keys):
    return keys, counts
  order = np.argsort(keys, kind='stable')
  keys, counts = keys[order], counts[order]
  first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
  return keys[first], np.add.reduceat(counts, first)


def merge_runs(runs: Sequence[SortedRun]) -> SortedRun:
  """Add up several sorted runs."""
  return sum_pairs(np.concatenate([keys for keys, _ in runs]),
                   np.concatenate([counts for _, counts in runs]))


def save_run(run: SortedRun, path: pathlib.Path) -> pathlib.Path:
  """Write a run to a file, and return its path."""
  np.save(path, np.rec.fromarrays(run, dtype=[('key', '<i8'), ('count', '<f8')]))
  return path


def merge_files(
    files: Sequence[pathlib.Path], read: int = READ_PAIRS) -> Iterator[SortedRun]:
  """Merge sorted files, `read` pairs of each at a time.

  A step merges up to the smallest of the keys that were read last: smaller ones do not follow.
  """
  runs = [np.load(file, mmap_mode='r') for file in files]
  places = [0] * len(runs)
  while any(place < len(run) for place, run in zip(places, runs, strict=True)):
    ahead = [(number, run[places[number]:places[number] + read])
             for number, run in enumerate(runs) if places[number] < len(run)]
    bound = min(int(pairs['key'][-1]) for _, pairs in ahead)
    parts = []
    for number, pairs in ahead:
      stop = int(np.searchsorted(pairs['key'], bound, 'right'))
      parts.append((np.array(pairs['key'][:stop]), np.array(pairs['count'][:stop])))
      places[number] += stop
    yield merge_runs(parts)
