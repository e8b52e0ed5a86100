"""Implement `python -m plm_jax verify`: check that no file of a folder is damaged."""
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
import os
import sys
from typing import Any

from etils import epath
import numpy as np
from tqdm import tqdm
import tyro

from plm_jax import storage, tokenizers
from plm_jax.cli.options import command
from plm_jax.data import records, window_counts, window_rules, windows
from plm_jax.data.records import SPLITS, RecordsError, RecordsMeta, Shard, Split
from plm_jax.errors import UserError
from plm_jax.storage import checksums
from plm_jax.storage.digests import compute_digest

THREADS = 8


@command()
def verify_command(folder: tyro.conf.Positional[str]) -> None:
  """Checks all files of a folder of token records or of a run; exit status 1 if any is damaged.

  Args:
    folder: run folder or folder of token records, local or gs://
  """
  if not verify(folder):
    sys.exit(1)


def verify(folder: epath.PathLike) -> bool:
  """Print the problems of a folder, one per line, and a summary; return whether there are none."""
  folder = storage.resolve_path(folder)
  find_problems = None
  with storage.io_errors_as(folder, 'read'):
    if (folder / 'records.json').exists():
      find_problems = records_problems
    elif (folder / 'config.json').exists():
      find_problems = run_problems
  if not find_problems:
    raise RecordsError(f'{folder} holds nothing that can be verified: expected token records '
                       '(records.json) or a run (config.json)')
  problems = 0
  for problem in find_problems(folder):
    print(problem, flush=True)
    problems += 1
  state = f'damaged ({problems} lines above)' if problems else 'everything is as it was written'
  print(f'{folder}: {state}')
  return not problems


def run_problems(folder: epath.Path) -> Iterator[str]:
  """Yield the problems of a run: of its checkpoints, its configuration and its tokenizer."""
  from plm_jax.checkpoints import restore  # records are verified without JAX
  from plm_jax.loading import loaded_model
  try:
    meta = yield from checkpoint_problems(folder / 'checkpoints')
    named = folder / restore.NAMED_FOLDER
    for kept in (folder / 'best', *(named.iterdir() if named.is_dir() else ())):
      if kept.is_dir():
        yield from checkpoint_problems(kept, required=False)
    words = folder / 'vocabulary.txt'
    if words.exists():  # a run of word vectors
      digest = compute_digest(storage.read_bytes(words))
      if meta and digest != meta.get('vocabulary'):
        yield f'{words} is damaged: it is not that of the checkpoint'
      return
    tokenizer = tokenizers.load(folder / 'tokenizer')
    config = loaded_model.read_config(folder)
    if meta:
      yield from loaded_model.config_mismatches(folder, config, tokenizer, meta)
  except UserError as error:
    yield str(error)


def checkpoint_problems(
    folder: epath.Path, required: bool = True) -> Generator[str, None, dict[str, Any]]:
  """Yield the problems of the checkpoints in a folder, of which there must be one if `required`.

  Returns:
    The metadata of the newest one; {} if a checkpoint is damaged.
  """
  from plm_jax.checkpoints.checkpoint import Checkpoints
  checkpoints, whole = Checkpoints(folder, keep=None), True
  with contextlib.closing(checkpoints):
    steps = checkpoints.list_steps()
    if required and not steps:
      yield f'no checkpoint in {folder}'
    for step in steps:
      try:
        checkpoints.verify_checksums(step)
      except UserError as error:
        whole = False
        yield getattr(error, 'what', str(error))
    return checkpoints.meta(steps[-1]) if steps and whole else {}


def records_problems(folder: epath.Path) -> Iterator[str]:
  """Yield the problems of token records: records.json, tokenizer, shards and stored windows."""
  try:
    meta = records.read_meta(folder)
  except UserError as error:
    yield str(error)
    return
  try:
    tokenizer = tokenizers.load(folder / 'tokenizer')
    if (tokenizer.hash, tokenizer.vocab.size) != (meta.tokenizer, meta.vocab):
      yield f'{folder / "tokenizer"} is not the tokenizer that made the records'
  except UserError as error:
    yield str(error)
  stored = []
  for stem in stored_window_stems(folder, meta):
    try:
      stored.append(StoredWindows(stem, meta))
    except UserError as error:
      yield f'{error}: delete it, and it is made again'
  shards = [(split, place) for split in SPLITS for place in range(len(meta.shards(split)))]

  def list_problems(shard: tuple[Split, int]) -> list[str]:
    return list(shard_problems(folder, meta, *shard, stored))

  with ThreadPoolExecutor(THREADS) as pool:
    found = pool.map(list_problems, shards)
    for problems in tqdm(found, 'shards', len(shards), delay=2, disable=None):
      yield from problems


def shard_problems(
    folder: epath.Path, meta: RecordsMeta, split: Split, place: int, stored: list['StoredWindows']
) -> Iterator[str]:
  """Yield the problems of the files of a shard, `place` among those of its split."""
  entry = meta.shards(split)[place]
  token_dtype = records.token_dtype(meta.vocab)
  kinds = {'': (token_dtype, entry.tokens),
           '.sentences': (records.SENTENCE_DTYPE, entry.sentences)}
  blocks = sum(records.count_blocks(dtype, length) for dtype, length in kinds.values())
  kinds['.crc'] = np.dtype('<u4'), blocks
  contents, arrays, problems = {}, {}, []
  for kind, (dtype, length) in kinds.items():
    path = f'{os.fspath(folder)}/{entry.name}{kind}.npy'
    try:
      contents[kind] = records.read_file(path, dtype, length)
      arrays[kind] = records.parse_array(path, contents[kind], dtype, length)
      if kind == '.sentences':
        records.check_sentences(path, entry, arrays[kind])
      if kind == '' and entry.tokens:
        largest = int(arrays[kind]['token'].max())
        if largest >= meta.vocab:
          raise records.foreign_id_error(path, largest, meta.vocab)
    except UserError as error:
      problems.append(str(error))
  problems += checksum_problems(folder, entry, contents, arrays)
  yield from problems
  if not problems:
    for windows in stored:
      yield from windows.problems(split, place, entry, arrays['.sentences'])


def checksum_problems(
    folder: epath.Path, entry: Shard, contents: dict[str, bytes], arrays: dict[str, np.ndarray]
) -> Iterator[str]:
  """Yield the problems of a shard by its block checksums."""
  if '.crc' not in arrays:
    return
  root = f'{os.fspath(folder)}/{entry.name}'
  if checksums.crc(contents['.crc']) != entry.blocks_crc:
    yield f'record shard {root}.crc.npy is damaged: its checksum is not that of records.json'
    return
  expected = arrays['.crc']
  for kind in ('', '.sentences'):
    if kind not in arrays:
      return
    found = checksums.block_checksums(contents[kind])
    own, expected = expected[:len(found)], expected[len(found):]
    if not np.array_equal(found, own):
      damaged = np.flatnonzero(found != own)
      first = damaged[0] * checksums.BLOCK_BYTES
      yield (f'record shard {root}{kind}.npy is damaged: {len(damaged)} of {len(found)} blocks are '
             f'not what was written, the first at byte {first:,}. {records.REMEDY}')


def stored_window_stems(folder: epath.Path, meta: RecordsMeta) -> list[str]:
  """Return the paths, without endings, of the stored window counts and offsets of records."""
  home = folder / 'windows' / window_rules.cache_key(meta.digest)
  paths = []
  with storage.io_errors_as(home, 'listed', RecordsError):
    if home.is_dir():
      paths = list(home.iterdir())
  return sorted({os.fspath(path)[:-5] for path in paths if path.suffix in ('.json', '.cuts')})


class StoredWindows:
  """The stored numbers of windows of the shards of a split, and where the windows begin."""

  def __init__(self, stem: str, meta: RecordsMeta):
    self.stem = stem
    try:
      split, _, rule = stem.rpartition('/')[2].partition('-')
      self.split: Split = next(known for known in SPLITS if known == split)
      self.rule = window_rules.WindowRule.parse(rule)
    except (ValueError, StopIteration) as error:
      raise RecordsError(f'{stem}.* is not of records') from error
    entries = meta.shards(self.split)
    if self.rule.assembly == 'packed':
      self.windows = [self.rule.count_packed(entry) for entry in entries]
    else:
      self.windows = window_counts.read_counts(epath.Path(f'{stem}.json'), entries).windows
    self.offsets = window_rules.cumulative_offsets(self.windows)
    self.crcs = None
    path = epath.Path(f'{stem}.cuts')
    with storage.io_errors_as(path, 'read', RecordsError):
      if path.exists():
        if path.stat().length != windows.offsets_file_size(self.offsets):
          raise RecordsError(f'{path} is truncated or foreign')
        content = np.memmap(path, np.uint8, 'r').view(np.ndarray)
        self.crcs, self.cuts = windows.split_content(content, self.offsets)

  def problems(
      self, split: Split, place: int, entry: Shard, sentences: np.ndarray) -> Iterator[str]:
    """Yield the problems of what is stored for a shard, `place` among those of its split."""
    if split != self.split or not entry.tokens:
      return
    found = self.rule.find_starts(sentences, entry)
    start, stop = self.offsets[place:place + 2]
    if len(found) != stop - start:
      yield (f'{self.stem}.json counts {stop - start} windows in {entry.name}, which has '
             f'{len(found)}: delete it')
    elif self.crcs is not None and self.crcs[place]:
      same_crc = self.crcs[place] == checksums.crc(found.tobytes())
      if not same_crc or not np.array_equal(found, self.cuts[start:stop]):
        yield (f'{self.stem}.cuts is damaged: it is not where the windows of {entry.name} begin. '
               'Delete it')
