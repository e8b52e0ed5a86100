"""Whether what lies in a folder is what was written to it: all of it, as no run has the time to ask."""
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
import os
import sys
from typing import Any

from etils import epath
import numpy as np
from tqdm import tqdm
import tyro

from plm_jax import storage, tokenizers
from plm_jax.cli.options import command
from plm_jax.data import checksums, counts, cuts, cutting, records
from plm_jax.data.records import SPLITS, Meta, RecordsError, Shard, Split
from plm_jax.errors import Expected
from plm_jax.inference import loading
from plm_jax.training import checkpoint

THREADS = 8


@command()
def verify_command(folder: tyro.conf.Positional[str]) -> None:
  """Reads all of a folder of token records, or of a run, and says what is not as it was written; exit status 1 if
  anything is not.

  Args:
    folder: of token records or of a run, local or gs://
  """
  if not verify(folder):
    sys.exit(1)


def verify(folder: epath.PathLike) -> bool:
  """Prints every problem of a folder of token records, or of a run, a line each, and a summary -> whether there was
  none."""
  folder = storage.path_of(folder)
  with storage.explained(folder, 'read'):
    kinds = [of for name, of in (('records.json', of_records), ('config.json', of_run)) if (folder / name).exists()]
  if not kinds:
    raise RecordsError(f'{folder} holds nothing that can be verified: expected token records (records.json) or a run '
                       '(config.json)')
  problems = 0
  for problem in kinds[0](folder):
    print(problem, flush=True)
    problems += 1
  print(f'{folder}: {f"damaged ({problems} lines above)" if problems else "everything is as it was written"}')
  return not problems


def of_run(folder: epath.Path) -> Iterator[str]:
  """Yields what is wrong with a run: with every checkpoint, and with its configuration and tokenizer beside the
  newest."""
  try:
    told = yield from of_checkpoints(folder / 'checkpoints')
    if (best := checkpoint.of_run(folder)) != folder / 'checkpoints':
      yield from of_checkpoints(best)
    yield from loading.unlike(folder, loading.read_config(folder), tokenizers.load(folder / 'tokenizer'), told)
  except Expected as error:
    yield str(error)


def of_checkpoints(folder: epath.Path) -> Generator[str, None, dict[str, Any]]:
  """Yields what is wrong with the checkpoints in a folder; returns what is told beside the newest. Raises
  CheckpointError where there is none."""
  with checkpoint.reading(folder) as (checkpoints, newest):
    for step in checkpoints.steps():
      try:
        if not checkpoints.compare(step):
          print(f'checkpoint {step} has no checksums, as those of earlier versions have none', flush=True)
      except Expected as error:
        yield getattr(error, 'what', str(error))
    return checkpoints.meta(newest)


def of_records(folder: epath.Path) -> Iterator[str]:
  """Yields what is wrong with records: with records.json and the tokenizer, with every shard, and with stored cuts."""
  try:
    meta = records.read_meta(folder)
  except Expected as error:
    yield str(error)
    return
  try:
    tokenizer = tokenizers.load(folder / 'tokenizer')
    if (tokenizer.hash, tokenizer.vocab.size) != (meta.tokenizer, meta.vocab):
      yield f'{folder / "tokenizer"} is not the tokenizer that made the records'
  except Expected as error:
    yield str(error)
  if meta.format == 1:
    print(f'{folder} is of format 1, without checksums: sizes, sentences and ids are what can be verified')
  stored = []
  for stem in cut_stems(folder, meta):
    try:
      stored.append(Stored(stem, meta))
    except Expected as error:
      yield f'{error}: delete it, and it is made again'
  every: list[tuple[Split, int]] = [
      (split, place) for split in SPLITS for place in range(len(meta.shards(split)))]
  with ThreadPoolExecutor(THREADS) as pool:
    found = pool.map(lambda one: list(of_shard(folder, meta, one[0], one[1], stored)), every)
    for some in tqdm(found, 'shards', len(every), delay=2, disable=None):
      yield from some


def of_shard(folder: epath.Path, meta: Meta, split: Split, place: int, stored: list['Stored']) -> Iterator[str]:
  """Yields what is wrong with the files of a shard."""
  entry = meta.shards(split)[place]
  dtype = records.token_dtype(meta.vocab)
  kinds = {'': (dtype, entry.tokens), '.sentences': (records.SENTENCE, entry.sentences)}
  if entry.blocks_crc is not None:
    kinds['.crc'] = np.dtype('<u4'), sum(records.blocks(*some) for some in kinds.values())
  contents, arrays, problems = {}, {}, []
  for kind, (of, length) in kinds.items():
    path = f'{os.fspath(folder)}/{entry.name}{kind}.npy'
    try:
      contents[kind] = records.read_file(path, of, length)
      arrays[kind] = records.array_of(path, contents[kind], of, length)
      if kind == '.sentences':
        records.check(path, entry, arrays[kind])
      if kind == '' and entry.tokens and (largest := int(arrays[kind]['token'].max())) >= meta.vocab:
        raise records.foreign_id(path, largest, meta.vocab)
    except Expected as error:
      problems.append(str(error))
  problems += wrong_sums(folder, entry, contents, arrays)
  yield from problems
  if not problems:
    for cut in stored:
      yield from cut.wrong(split, place, entry, arrays['.sentences'])


def wrong_sums(folder: epath.Path, entry: Shard, contents: dict[str, bytes], arrays: dict[str, np.ndarray]
               ) -> Iterator[str]:
  """Yields what is wrong with a shard by the checksums of its blocks; nothing of records from before there were any."""
  if entry.blocks_crc is None or '.crc' not in arrays:
    return
  root = f'{os.fspath(folder)}/{entry.name}'
  if checksums.crc(contents['.crc']) != entry.blocks_crc:
    yield f'record shard {root}.crc.npy is damaged: its checksum is not that of records.json'
    return
  expected = arrays['.crc']
  for kind in ('', '.sentences'):
    if kind not in arrays:
      return
    found = checksums.of_blocks(contents[kind])
    own, expected = expected[:len(found)], expected[len(found):]
    if not np.array_equal(found, own):
      first, *_ = np.flatnonzero(found != own) * checksums.BLOCK
      yield (f'record shard {root}{kind}.npy is damaged: {np.count_nonzero(found != own)} of {len(found)} blocks are '
             f'not what was written, the first at byte {first:,}. {records.MEND}')


def cut_stems(folder: epath.Path, meta: Meta) -> list[str]:
  """Paths, without their endings, of what is stored of the windows of these records."""
  home = folder / 'windows' / cutting.key(meta.digest)
  with storage.explained(home, 'listed', RecordsError):
    paths = list(home.iterdir()) if home.is_dir() else []
  return sorted({os.fspath(path)[:-5] for path in paths if path.suffix in ('.json', '.cuts')})


class Stored:
  """How many windows the shards of a split have, and where they begin, as it is stored."""

  def __init__(self, stem: str, meta: Meta):
    self.stem = stem
    try:
      split, _, rule = stem.rpartition('/')[2].partition('-')
      self.split: Split = next(known for known in SPLITS if known == split)
      self.rule = cutting.Rule.parse(rule)
    except (ValueError, StopIteration) as error:
      raise RecordsError(f'{stem}.* is not of records') from error
    entries = meta.shards(self.split)
    if self.rule.assembly == 'packed':
      self.windows = [self.rule.packed(entry) for entry in entries]
    else:
      self.windows = counts.read(epath.Path(f'{stem}.json'), entries).windows
    self.offsets = cutting.offsets(self.windows)
    self.crcs = None
    path = epath.Path(f'{stem}.cuts')
    with storage.explained(path, 'read', RecordsError):
      if path.exists():
        if path.stat().length != cuts.file_size(self.offsets):
          raise RecordsError(f'{path} is truncated or foreign')
        self.crcs, self.cuts = cuts.parts(np.memmap(path, np.uint8, 'r').view(np.ndarray), self.offsets)

  def wrong(self, split: Split, place: int, entry: Shard, sentences: np.ndarray) -> Iterator[str]:
    """Yields what is wrong with what is stored of a shard, `place` among those of its split."""
    if split != self.split or not entry.tokens:
      return
    found = self.rule.cut(sentences, entry)
    start, stop = self.offsets[place:place + 2]
    if len(found) != stop - start:
      yield f'{self.stem}.json counts {stop - start} windows in {entry.name}, which has {len(found)}: delete it'
    elif self.crcs is not None and self.crcs[place] and (
        self.crcs[place] != checksums.crc(found.tobytes()) or not np.array_equal(found, self.cuts[start:stop])):
      yield f'{self.stem}.cuts is damaged: it is not where the windows of {entry.name} begin. Delete it'
