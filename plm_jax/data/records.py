"""Token records on disk: what `prepare` writes and what windows are cut from.

A folder of records holds

    records.json                   what is in it (`Meta`), written last: a folder without it is unfinished
    tokenizer/                     the tokenizer that made the ids
    train-00000.npy ...            [T] tokens of a shard, in reading order, dtype `token_dtype(vocab)`
    train-00000.sentences.npy ...  [S] sentences of the same shard, dtype `SENTENCE`
    heldout-00000.npy ...          the documents that training never sees, in the same form

Shards are plain `.npy` files: `np.load('train-00000.npy')['token']` reads one without this project. A document never
spans two shards, and a sentence lies in one document.
"""
import dataclasses
import json
from typing import Literal

from etils import epath
import numpy as np

from plm_jax.errors import Expected

Split = Literal['train', 'heldout']
WORD = 1  # bit of `flags`: the token starts a word
SENTENCE = np.dtype([('start', '<u4'), ('document', '<u4')])  # first token in the shard, document number in the shard


def token_dtype(vocab: int) -> np.dtype:
  """Three bytes a token for vocabularies up to 65,536 ids, five above: id and flags side by side."""
  return np.dtype([('token', '<u2' if vocab <= 1 << 16 else '<u4'), ('flags', 'u1')])


class RecordsError(Expected):
  """Records that are missing, unfinished, damaged or made with another tokenizer."""


@dataclasses.dataclass(frozen=True)
class Shard:
  name: str  # file name without '.npy'
  tokens: int
  sentences: int
  documents: int


@dataclasses.dataclass(frozen=True)
class Meta:
  """Contents of records.json."""

  vocab: int
  tokenizer: str  # the tokenizer's hash
  train: tuple[Shard, ...]
  heldout: tuple[Shard, ...]
  source: str  # fingerprint of what was read and of the settings
  skipped: int = 0  # input lines left out because they could not be decoded or parsed
  format: int = 1

  def shards(self, split: Split) -> tuple[Shard, ...]:
    return self.train if split == 'train' else self.heldout

  def tokens(self, split: Split) -> int:
    return sum(shard.tokens for shard in self.shards(split))


def write_meta(folder: epath.PathLike, meta: Meta) -> None:
  """Last of all, and whole: the folder counts as finished from here on."""
  path = epath.Path(folder) / 'records.json'
  draft = path.with_name('records.json.tmp')
  draft.write_text(json.dumps(dataclasses.asdict(meta), indent=1))
  draft.replace(path)


def read_meta(folder: epath.PathLike) -> Meta:
  path = epath.Path(folder) / 'records.json'
  if not path.exists():
    raise RecordsError(
        f'{folder} holds no finished token records: expected {path}. Run prepare (again) to write it.')
  try:
    fields = json.loads(path.read_text())
    if fields.get('format') != 1:
      raise RecordsError(f'{path} is of format {fields.get("format")!r}; this version reads format 1. Prepare again.')
    for split in ('train', 'heldout'):
      fields[split] = tuple(Shard(**shard) for shard in fields[split])
    return Meta(**fields)
  except (json.JSONDecodeError, KeyError, TypeError) as error:
    raise RecordsError(f'{path} is damaged: {error}. Prepare the records again.') from error


def write_shard(folder: epath.PathLike, name: str, tokens: np.ndarray, sentences: np.ndarray) -> Shard:
  """tokens [T] of `token_dtype`, sentences [S] of `SENTENCE`; each file appears whole or not at all."""
  folder = epath.Path(folder)
  for file, array in ((f'{name}.npy', tokens), (f'{name}.sentences.npy', sentences)):
    draft = folder / f'{file}.tmp'
    with draft.open('wb') as f:
      # Not np.save, whose error on a full disk does not say what it is.
      np.lib.format.write_array_header_1_0(f, np.lib.format.header_data_from_array_1_0(array))
      f.write(np.ascontiguousarray(array).view(np.uint8).data)
    draft.replace(folder / file)
  documents = int(sentences['document'][-1]) + 1 if len(sentences) else 0
  return Shard(name, len(tokens), len(sentences), documents)


def read_sentences(folder: epath.PathLike, shard: Shard) -> np.ndarray:
  """-> [S] of `SENTENCE`."""
  return open_array(epath.Path(folder) / f'{shard.name}.sentences.npy', shard.sentences)[:]


def open_tokens(folder: epath.PathLike, shard: Shard):
  """-> an array-like [T] whose slices are read from disk, or by byte range from a bucket, when asked for."""
  return open_array(epath.Path(folder) / f'{shard.name}.npy', shard.tokens)


def open_array(path: epath.Path, length: int):
  """The one-dimensional `.npy` file at `path`, which must hold `length` items, unread."""
  try:
    size = path.stat().length
    with path.open('rb') as f:
      version = np.lib.format.read_magic(f)
      read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
      shape, _, dtype = read_header(f)
      offset = f.tell()
  except FileNotFoundError as error:
    raise RecordsError(f'record shard {path} is missing. Copy it again, or prepare the records again.') from error
  except (ValueError, EOFError) as error:
    raise RecordsError(
        f'record shard {path} is not a shard of token records: {error}. Prepare the records again.') from error
  expected = offset + length * dtype.itemsize
  if shape != (length,) or size != expected:
    raise RecordsError(
        f'record shard {path} is truncated or foreign: records.json counts {length} items ({expected} bytes), '
        f'the file has {shape[0]} in its header and {size} bytes. Copy it again, or prepare the records again.')
  if '://' in str(path):
    return RemoteArray(path, offset, dtype, length)
  if not length:
    return np.zeros(0, dtype)
  return np.memmap(path, dtype, 'r', offset, shape)


@dataclasses.dataclass(frozen=True)
class RemoteArray:
  """Slices of a `.npy` file in a bucket, each read as one byte range."""

  path: epath.Path
  offset: int
  dtype: np.dtype
  length: int

  def __len__(self) -> int:
    return self.length

  def __getitem__(self, item: slice) -> np.ndarray:
    start, stop, _ = item.indices(self.length)
    with self.path.open('rb') as f:
      f.seek(self.offset + start * self.dtype.itemsize)
      return np.frombuffer(f.read((stop - start) * self.dtype.itemsize), self.dtype)
