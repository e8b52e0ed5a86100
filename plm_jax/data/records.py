"""Token records on disk: what `prepare` writes and what windows are cut from.

A folder of records holds

    records.json                   what is in it (`Meta`), written last: a folder without it is unfinished
    tokenizer/                     the tokenizer that made the ids
    train-00000.npy ...            [T] tokens of a shard, in reading order, dtype `token_dtype(vocab)`
    train-00000.sentences.npy ...  [S] sentences of the same shard, dtype `SENTENCE`
    train-00000.crc.npy ...        checksums of both, a block of `checksums.BLOCK` bytes each, uint32
    heldout-00000.npy ...          the documents that training never sees, in the same form
    windows/                       how many windows there are (`counts`), and where they begin: made, and made again,
                                   by who reads (`cuts`)

Shards are plain `.npy` files: `np.load('train-00000.npy')['token']` reads one without this project. A document never
spans two shards, and a sentence lies in one document.

Every byte has a checksum: records.json has its own and those of the tokenizer's files, of sentences and of checksums.
So what is read of a shard can be verified without reading all of it. Records of format 1, from before, have none.
"""
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import hashlib
import io
import mmap
import os
import pathlib
import re
from typing import Any, Literal, get_args

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import checksums
from plm_jax.errors import Expected, outside

Split = Literal['train', 'heldout']
SPLITS: tuple[Split, ...] = get_args(Split)
WORD = 1  # bit of `flags`: the token starts a word
SENTENCE = np.dtype([('start', '<u4'), ('document', '<u4')])  # first token in the shard, document number in the shard
FORMAT = 2


def token_dtype(vocab: int) -> np.dtype:
  """Returns the type of a token: three bytes for vocabularies up to 65,536 ids, five above, id and flags side by
  side."""
  return np.dtype([('token', '<u2' if vocab <= 1 << 16 else '<u4'), ('flags', 'u1')])


class RecordsError(Expected):
  """Records that are missing, unfinished, damaged or made with another tokenizer."""


@dataclasses.dataclass(frozen=True)
class Shard:
  name: str  # file name without '.npy'
  tokens: int
  sentences: int
  documents: int
  sentences_crc: int | None = None  # of the file of sentences
  blocks_crc: int | None = None  # of the file of checksums


@dataclasses.dataclass(frozen=True)
class Meta:
  """Contents of records.json."""

  vocab: int
  tokenizer: str  # the tokenizer's hash
  train: tuple[Shard, ...]
  heldout: tuple[Shard, ...]
  source: str  # fingerprint of what was read and of the settings
  skipped: int = 0  # input lines left out because they could not be decoded or parsed
  format: int = dataclasses.field(default=FORMAT, compare=False)
  digest: str = dataclasses.field(default='', compare=False)  # sha256 hex of records.json, as it was read

  def shards(self, split: Split) -> tuple[Shard, ...]:
    """Returns the shards of a split, in the order of their text."""
    return self.train if split == 'train' else self.heldout

  def tokens(self, split: Split) -> int:
    """Counts the tokens of a split."""
    return sum(shard.tokens for shard in self.shards(split))


def write_meta(folder: epath.PathLike, meta: Meta) -> Meta:
  """Writes records.json last of all, and whole -> the same, with its digest: the folder is finished from here on."""
  folder = storage.path_of(folder)
  fields = dataclasses.asdict(meta) | {'format': FORMAT, 'tokenizer_crcs': tokenizer_crcs(folder)}
  del fields['digest']
  text = checksums.seal(fields)
  storage.write(folder / 'records.json', text, RecordsError)
  return dataclasses.replace(meta, digest=digest_of(text))


def digest_of(text: str) -> str:
  """Returns the sha256 hex of a text, by which what is stored of records knows them."""
  return hashlib.sha256(text.encode()).hexdigest()


def tokenizer_crcs(folder: epath.Path) -> dict[str, int]:
  """Checksums of the files in the folder of the tokenizer, by name."""
  home = folder / 'tokenizer'
  with storage.explained(home, 'read', RecordsError):
    if not home.is_dir():
      return {}
    names = sorted(path.name for path in home.iterdir() if not path.name.startswith('.') and path.suffix != '.tmp')
  return {name: checksums.crc(storage.read_bytes(home / name, error=RecordsError)) for name in names}


def read_meta(folder: epath.PathLike) -> Meta:
  """Raises RecordsError for records that are unfinished, of a later format or damaged, their tokenizer included."""
  folder = storage.path_of(folder)
  path = folder / 'records.json'
  with storage.explained(path, 'read', RecordsError):
    if not path.exists():
      raise RecordsError(
          f'{folder} holds no finished token records: expected {path}. Run prepare (again) to write it.')
  text = storage.read_text(path, error=RecordsError)
  fields = checksums.unseal(text, path, RecordsError, sealed=False)
  number = fields.get('format')
  if type(number) is not int or number not in (1, FORMAT):
    raise RecordsError(f'{path} is of format {number!r}; this version reads formats 1 and 2. Prepare again.')
  if number == FORMAT:
    checksums.unseal(text, path, RecordsError)
  try:
    crcs = checked(fields.pop('tokenizer_crcs', {}), dict, 'tokenizer_crcs')
    meta = meta_of(fields, digest_of(text))
  except (KeyError, TypeError, ValueError) as error:
    raise RecordsError(f'{path} is damaged: {error}. Prepare the records again.') from error
  for name, crc in crcs.items():
    if not FILE_NAME.fullmatch(name):
      raise RecordsError(f'{path} is damaged: {name!r:.100} is no name of a tokenizer\'s file')
    if checksums.crc(storage.read_bytes(folder / 'tokenizer' / name, error=RecordsError)) != crc:
      raise RecordsError(f'{folder / "tokenizer" / name} is damaged: its checksum is not that of records.json. {MEND}')
  return meta


def meta_of(fields: dict[str, Any], digest: str) -> Meta:
  """Raises ValueError or TypeError, which say what is wrong."""
  for name in ('vocab', 'tokenizer', 'source'):
    checked(fields.get(name), int if name == 'vocab' else str, name)
  if not 0 < fields['vocab'] <= 1 << 31:
    raise ValueError(f'a vocabulary of {fields["vocab"]}')
  checked(fields.get('skipped', 0), int, 'skipped')
  for split in SPLITS:
    fields[split] = tuple(map(shard_of, checked(fields.get(split), list, split)))
  return Meta(**fields, digest=digest)


def shard_of(fields: Any) -> Shard:
  """Reads an entry of records.json or of a journal, with its types and sizes checked. Raises ValueError or
  TypeError."""
  shard = Shard(**checked(fields, dict, 'a shard'))
  if not FILE_NAME.fullmatch(checked(shard.name, str, 'the name of a shard')):
    raise ValueError(f'{shard.name!r:.100} is no name of a shard')
  for name in ('documents', 'sentences', 'tokens'):
    checked(getattr(shard, name), int, f'{name} of {shard.name}')
  for crc in (shard.sentences_crc, shard.blocks_crc):
    checked(0 if crc is None else crc, int, f'a checksum of {shard.name}')
  if not 0 <= shard.documents <= shard.sentences <= shard.tokens < 1 << 32:
    raise ValueError(f'{shard.name} cannot have {shard.tokens} tokens, {shard.sentences} sentences and '
                     f'{shard.documents} documents')
  return shard


def checked(value: Any, kind: type, name: str) -> Any:
  """Returns the value if it is of a kind of JSON; True is no number. Raises TypeError."""
  if not isinstance(value, kind) or isinstance(value, bool):
    raise TypeError(f'{name} is {value!r:.100}, expected {storage.JSON_NAMES[kind]}')
  return value


def write_shard(folder: epath.PathLike, name: str, tokens: np.ndarray, sentences: np.ndarray) -> Shard:
  """Writes a shard of tokens [T] of `token_dtype` and sentences [S] of `SENTENCE`; each file appears whole or not at
  all."""
  folder = storage.path_of(folder)
  contents = [content_of(array) for array in (tokens, sentences)]
  crcs = content_of(np.concatenate([checksums.of_blocks(content) for content in contents]))
  for file, content in zip((f'{name}.npy', f'{name}.sentences.npy', f'{name}.crc.npy'), (*contents, crcs), strict=True):
    storage.write(folder / file, content, RecordsError)
  documents = int(sentences['document'][-1]) + 1 if len(sentences) else 0
  return Shard(name, len(tokens), len(sentences), documents, checksums.crc(contents[1]), checksums.crc(crcs))


def content_of(array: np.ndarray) -> bytes:
  """Returns the bytes of a `.npy` file. Not np.save, whose error on a full disk does not say what it is."""
  return b''.join((header(array.dtype, len(array)), np.ascontiguousarray(array).view(np.uint8).data))


def read_sentences(folder: epath.PathLike, shard: Shard) -> np.ndarray:
  """Reads the sentences of a shard, verified -> [S] of `SENTENCE`. Raises RecordsError."""
  path = f'{storage.path_of(folder)}/{shard.name}.sentences.npy'
  content = read_file(path, SENTENCE, shard.sentences)
  if shard.sentences_crc not in (None, checksums.crc(content)):
    raise damaged(path)
  return array_of(path, content, SENTENCE, shard.sentences)


def open_tokens(folder: epath.PathLike, shard: Shard) -> np.ndarray:
  """Opens the tokens of a shard [T], not verified; of one on a disk mapped, so that a part can be read. Raises
  RecordsError."""
  path = f'{storage.path_of(folder)}/{shard.name}.npy'
  content = storage.read_bytes(path, 1 << 36, RecordsError) if storage.remote(path) else mapped(path)
  size = (len(content) - 128) // max(1, shard.tokens)
  return array_of(path, content, token_dtype(1 if size == 3 else 1 << 31), shard.tokens)


def read_file(path: str, dtype: np.dtype, length: int) -> bytes:
  """Reads a file of `length` items, whole. Raises RecordsError where it has another size."""
  if storage.remote(path):
    return storage.read_bytes(path, max(file_size(dtype, length), storage.LIMIT), RecordsError)
  with missing(path), storage.open_file(path) as file:
    if (size := os.fstat(file.fileno()).st_size) > file_size(dtype, length) + HEADER:
      raise truncated(path, dtype, length, size)
    return file.read()


def mapped(path: str) -> mmap.mmap | bytes:
  """Maps the content of a file on a disk. A descriptor stays open as long as the map."""
  with missing(path), storage.open_file(path) as file:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b''


@contextlib.contextmanager
def missing(path: str) -> Iterator[None]:
  """Turns what a disk raises inside into a RecordsError that says how records are mended."""
  try:
    yield
  except FileNotFoundError as error:
    raise RecordsError(f'record shard {path} is missing. {MEND}') from error
  except OSError as error:
    raise RecordsError(f'record shard {path} cannot be read: {outside(error)}') from error


def array_of(path: str, content: Any, dtype: np.dtype, length: int) -> np.ndarray:
  """Returns the array of a `.npy` file of one dimension, which must hold `length` items of `dtype`. Raises
  RecordsError."""
  offset = len(content) - length * dtype.itemsize
  expected = header(dtype, length)
  if offset != len(expected) or content[:offset] != expected:  # otherwise nothing has to be parsed
    file = io.BytesIO(content[:HEADER])
    try:
      version = np.lib.format.read_magic(file)
      read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
      shape, _, found = read(file)
    except Exception as error:  # numpy's parser raises whatever Python's does
      raise RecordsError(f'record shard {path} is not a shard of token records: {outside(error)}. {MEND}') from error
    if found != dtype:
      raise RecordsError(f'record shard {path} holds {found}, expected {dtype}: it belongs to records of another '
                         'vocabulary. Prepare the records again.')
    if shape != (length,) or file.tell() != offset:
      raise truncated(path, dtype, length, len(content))
  return np.frombuffer(content, dtype, length, offset)


@functools.lru_cache(1 << 10)
def header(dtype: np.dtype, length: int) -> bytes:
  """Returns what a `.npy` file of `length` items begins with: 128 bytes, whatever version of numpy writes."""
  fields = {'descr': np.lib.format.dtype_to_descr(dtype), 'fortran_order': False, 'shape': (length,)}
  text = '{' + ''.join(f'{name!r}: {value!r}, ' for name, value in fields.items()) + '}'
  return b'\x93NUMPY\x01\x00\x76\x00' + text.ljust(117).encode() + b'\n'


def file_size(dtype: np.dtype, length: int) -> int:
  """Returns the bytes of a `.npy` file of `length` items."""
  return len(header(dtype, length)) + length * dtype.itemsize


def truncated(path: str, dtype: np.dtype, length: int, size: int) -> RecordsError:
  """Makes the error of a file whose size is not that of its items."""
  return RecordsError(f'record shard {path} is truncated or foreign: records.json counts {length} items of '
                      f'{dtype.itemsize} bytes ({file_size(dtype, length):,} bytes in all), the file has {size:,} '
                      f'bytes. {MEND}')


def damaged(path: str) -> RecordsError:
  """Makes the error of a file whose checksum is wrong. A copy of what lies in a bucket is deleted, to be made again."""
  mend, file = MEND, pathlib.Path(path)
  if file.is_relative_to(storage.cache_folder() / 'windows'):  # of records in a bucket
    file.unlink(missing_ok=True)
    mend = 'It was a copy: the same command makes another. If that is damaged too, the records are.'
  return RecordsError(f'record shard {path} is damaged: its checksum is not that of what was written. {mend}')


def check(path: str, entry: Shard, sentences: np.ndarray) -> None:
  """Raises RecordsError if the sentences cannot be those of the shard."""
  starts, documents = sentences['start'].astype(np.int64), sentences['document'].astype(np.int64)
  if not entry.tokens and not len(starts):
    return
  sound = len(starts) and starts[0] == 0 and starts[-1] < entry.tokens and documents[-1] + 1 == entry.documents
  if not sound or (np.diff(starts) <= 0).any() or (np.diff(documents) < 0).any():
    raise RecordsError(
        f'record shard {path} is damaged: its sentences do not divide the {entry.tokens} tokens and {entry.documents} '
        f'documents of records.json. {MEND}')


def foreign_id(path: str, largest: int, vocab: int) -> RecordsError:
  """Makes the error of a shard that holds an id outside of the vocabulary."""
  return RecordsError(f'record shard {path} holds the id {largest}, but the vocabulary of its records has {vocab} ids: '
                      'it belongs to others. Prepare the records again.')


def blocks(dtype: np.dtype, length: int) -> int:
  """Returns in how many blocks a file of `length` items is verified."""
  return -(-file_size(dtype, length) // checksums.BLOCK)


FILE_NAME = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}')  # no path leaves the folder
MEND = 'Copy it again, or prepare the records again.'
HEADER = 1 << 12  # bytes in front of an array, at most
