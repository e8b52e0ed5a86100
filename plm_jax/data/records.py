"""Token records on disk: the tokenized text that `prepare` writes and windows are made from.

A folder of records has

    records.json                   the contents (`RecordsMeta`), written last: without it a folder
                                   is unfinished
    tokenizer/                     the tokenizer that made the ids
    train-00000.npy ...            [T] tokens of a shard, in reading order, `token_dtype(vocab)`
    train-00000.sentences.npy ...  [S] sentences of the same shard, `SENTENCE_DTYPE`
    train-00000.crc.npy ...        checksums of both, one per `checksums.BLOCK_BYTES` bytes, uint32
    heldout-00000.npy ...          the documents that training never sees, in the same form
    windows/                       number of windows (`window_counts`), and where they begin
                                   (`windows`): a cache, written by readers

Shards are plain `.npy` files: `np.load('train-00000.npy')['token']` reads one without this project.
A document never spans two shards, and a sentence never spans two documents.

Every byte has a checksum: records.json has its own, and the checksums of the tokenizer's files, of
the sentences and of the files of checksums. So a part of a shard can be verified without reading
the whole shard.
"""
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import io
import mmap
import os
import pathlib
import re
from typing import Any, Literal, get_args

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import UserError, describe_error
from plm_jax.storage import checksums
from plm_jax.storage.digests import compute_digest

Split = Literal['train', 'heldout']
SPLITS: tuple[Split, ...] = get_args(Split)
WORD_START = 1  # bit of `flags`: the token starts a word
# First token in the shard, number of the document in the shard:
SENTENCE_DTYPE = np.dtype([('start', '<u4'), ('document', '<u4')])
MAX_SINGLE_SHARE = 0.1  # share of documents with one sentence up to which there is no warning
FORMAT = 2


def token_dtype(vocab: int) -> np.dtype:
  """Return the dtype of a token: 3 bytes for vocabularies up to 65,536 ids, otherwise 5."""
  return np.dtype([('token', '<u2' if vocab <= 1 << 16 else '<u4'), ('flags', 'u1')])


class RecordsError(UserError):
  """Records that are missing, unfinished, damaged or made with another tokenizer."""


@dataclasses.dataclass(frozen=True)
class Shard:
  """Entry of a shard in records.json."""

  name: str  # file name without '.npy'
  tokens: int
  sentences: int
  documents: int
  sentences_crc: int  # of the file of sentences
  blocks_crc: int  # of the file of checksums


@dataclasses.dataclass(frozen=True)
class RecordsMeta:
  """Contents of records.json."""

  vocab: int
  tokenizer: str  # the tokenizer's hash
  train: tuple[Shard, ...]
  heldout: tuple[Shard, ...]
  source: str  # fingerprint of the text and of the settings
  skipped: int = 0  # input lines left out because they could not be decoded or parsed
  heldout_path: str = ''  # the held-out text; '': documents of the source
  heldout_share: float = 0.01  # of the documents of the source that were to be held out
  exact: bool = False  # the tokens are those of the whole text, with its white space and line ends
  digest: str = dataclasses.field(default='', compare=False)  # sha256 hex of records.json, as read

  @property
  def content_digest(self) -> str:
    """Digest of the token records, whatever they were made from.

    The sha256 hex of the tokenizer, and of the sizes and checksums of all shards.
    """
    shards = map(dataclasses.astuple, self.train + self.heldout)
    return compute_digest(repr((self.vocab, self.tokenizer, *shards)))

  def shards(self, split: Split) -> tuple[Shard, ...]:
    """Return the shards of a split, in the order of their text."""
    return getattr(self, split)

  @property
  def heldout_text(self) -> str:
    """The held-out text, for people; 'none' for records without any."""
    if not self.heldout:
      return 'none'
    return self.heldout_path or f'{100 * self.heldout_share:.3g}% of the documents'

  @property
  def evaluation_split(self) -> Split:
    """The held-out split; the training split of records without any."""
    return 'heldout' if self.heldout else 'train'

  def tokens(self, split: Split) -> int:
    """Return the number of tokens of a split."""
    return sum(shard.tokens for shard in self.shards(split))

  def count_single_sentence(self, split: Split) -> tuple[int, int]:
    """Count the documents of a split with one sentence (a lower bound), and all documents.

    The others have two sentences or more. So at least 2 * documents - sentences have one.
    """
    documents = sum(shard.documents for shard in self.shards(split))
    sentences = sum(shard.sentences for shard in self.shards(split))
    return max(0, 2 * documents - sentences), documents


def write_meta(folder: epath.PathLike, meta: RecordsMeta) -> RecordsMeta:
  """Write records.json atomically, as the last file: the folder is finished after that.

  Returns:
    The same, with its digest.
  """
  folder = storage.resolve_path(folder)
  fields = dataclasses.asdict(meta) | {'format': FORMAT, 'tokenizer_crcs': tokenizer_crcs(folder)}
  del fields['digest']
  if not meta.exact:
    del fields['exact']
  text = checksums.seal_json(fields)
  storage.write(folder / 'records.json', text, RecordsError)
  return dataclasses.replace(meta, digest=compute_digest(text))


def tokenizer_crcs(folder: epath.Path) -> dict[str, int]:
  """Compute the checksums of the files in the tokenizer's folder, by name."""
  home = folder / 'tokenizer'
  with storage.io_errors_as(home, 'read', RecordsError):
    if not home.is_dir():
      return {}
    names = sorted(path.name for path in home.iterdir() if not path.name.startswith('.'))
  return {name: checksums.crc(storage.read_bytes(home / name, error=RecordsError))
          for name in names}


def read_meta(folder: epath.PathLike) -> RecordsMeta:
  """Read records.json, and verify the files of the tokenizer.

  Raises:
    RecordsError: the records are unfinished, of another format, or damaged.
  """
  folder = storage.resolve_path(folder)
  path = folder / 'records.json'
  with storage.io_errors_as(path, 'read', RecordsError):
    if not path.exists():
      raise RecordsError(f'{folder} holds no finished token records: expected {path}. Run prepare '
                         '(again) to write it.')
  text = storage.read_text(path, error=RecordsError)
  number = storage.parse_json(text, path, dict, RecordsError).get('format')
  if type(number) is not int or number != FORMAT:
    raise RecordsError(f'{path} is of format {number!r:.100}; this version reads format {FORMAT}. '
                       'Prepare the records again.')
  fields = checksums.unseal_json(text, path, RecordsError)
  del fields['format']
  try:
    crcs = check_type(fields.pop('tokenizer_crcs', {}), dict, 'tokenizer_crcs')
    meta = parse_meta(fields, compute_digest(text))
  except (KeyError, TypeError, ValueError) as error:
    raise RecordsError(f'{path} is damaged: {error}. Prepare the records again.') from error
  for name, crc in crcs.items():
    if not FILE_NAME_PATTERN.fullmatch(name):
      raise RecordsError(f"{path} is damaged: {name!r:.100} is no name of a tokenizer's file")
    if checksums.crc(storage.read_bytes(folder / 'tokenizer' / name, error=RecordsError)) != crc:
      raise RecordsError(f'{folder / "tokenizer" / name} is damaged: its checksum is not that of '
                         f'records.json. {REMEDY}')
  return meta


def parse_meta(fields: dict[str, Any], digest: str) -> RecordsMeta:
  """Check the fields of records.json. Raises ValueError or TypeError with the problem."""
  for name, kind in {'vocab': int, 'tokenizer': str, 'source': str}.items():
    check_type(fields.get(name), kind, name)
  if not 0 < fields['vocab'] <= 1 << 31:
    raise ValueError(f'a vocabulary of {fields["vocab"]}')
  for name, kind in {'skipped': int, 'heldout_path': str, 'heldout_share': float}.items():
    check_type(fields.get(name, kind()), kind, name)
  for split in SPLITS:
    fields[split] = tuple(map(parse_shard, check_type(fields.get(split), list, split)))
  return RecordsMeta(**fields, digest=digest)


def parse_shard(fields: Any) -> Shard:
  """Check the types and sizes of an entry of records.json or of a journal.

  Raises:
    ValueError, TypeError: with the problem.
  """
  shard = Shard(**check_type(fields, dict, 'a shard'))
  if not FILE_NAME_PATTERN.fullmatch(check_type(shard.name, str, 'the name of a shard')):
    raise ValueError(f'{shard.name!r:.100} is no name of a shard')
  for name in ('documents', 'sentences', 'tokens'):
    check_type(getattr(shard, name), int, f'{name} of {shard.name}')
  for crc in (shard.sentences_crc, shard.blocks_crc):
    check_type(crc, int, f'a checksum of {shard.name}')
  if not 0 <= shard.documents <= shard.sentences <= shard.tokens < 1 << 32:
    raise ValueError(f'{shard.name} cannot have {shard.tokens} tokens, {shard.sentences} sentences '
                     f'and {shard.documents} documents')
  return shard


def check_type(value: Any, kind: type, name: str) -> Any:
  """Return the value if it has this JSON type; True is no number. Raises TypeError otherwise."""
  if not isinstance(value, kind) or isinstance(value, bool):
    raise TypeError(f'{name} is {value!r:.100}, expected {storage.JSON_NAMES[kind]}')
  return value


def write_shard(folder: epath.PathLike, name: str, tokens: np.ndarray, sentences: np.ndarray
                ) -> Shard:
  """Write the three files of a shard, each atomically.

  Args:
    folder: of the records.
    name: of the shard, with which the names of its files begin.
    tokens: [T] of `token_dtype`.
    sentences: [S] of `SENTENCE_DTYPE`.
  """
  folder = storage.resolve_path(folder)
  token_bytes, sentence_bytes = npy_bytes(tokens), npy_bytes(sentences)
  block_crcs = [checksums.block_checksums(content) for content in (token_bytes, sentence_bytes)]
  crc_bytes = npy_bytes(np.concatenate(block_crcs))
  storage.write(folder / f'{name}.npy', token_bytes, RecordsError)
  storage.write(folder / f'{name}.sentences.npy', sentence_bytes, RecordsError)
  storage.write(folder / f'{name}.crc.npy', crc_bytes, RecordsError)
  documents = int(sentences['document'][-1]) + 1 if len(sentences) else 0
  return Shard(name, len(tokens), len(sentences), documents, checksums.crc(sentence_bytes),
               checksums.crc(crc_bytes))


def npy_bytes(array: np.ndarray) -> bytes:
  """Return the content of a `.npy` file. The errors of np.save on a full disk are unclear."""
  content = np.ascontiguousarray(array).view(np.uint8).data
  return b''.join((npy_header(array.dtype, len(array)), content))


def read_sentences(folder: epath.PathLike, shard: Shard) -> np.ndarray:
  """Read and verify the sentences of a shard -> [S] of `SENTENCE_DTYPE`. Raises RecordsError."""
  path = f'{storage.resolve_path(folder)}/{shard.name}.sentences.npy'
  return parse_sentences(path, read_file(path, SENTENCE_DTYPE, shard.sentences), shard)


def parse_sentences(path: str, content: bytes, shard: Shard) -> np.ndarray:
  """Verify a file of sentences -> [S] of `SENTENCE_DTYPE`. Raises RecordsError."""
  if shard.sentences_crc != checksums.crc(content):
    raise damaged_error(path)
  return parse_array(path, content, SENTENCE_DTYPE, shard.sentences)


def open_tokens(folder: epath.PathLike, shard: Shard) -> np.ndarray:
  """Open the tokens of a shard [T], unverified; memory-mapped on a disk. Raises RecordsError."""
  path = f'{storage.resolve_path(folder)}/{shard.name}.npy'
  content = (storage.read_bytes(path, 1 << 36, RecordsError) if storage.is_remote(path)
             else map_file(path))
  size = (len(content) - 128) // max(1, shard.tokens)
  dtype = token_dtype(1 if size == 3 else 1 << 31)
  return parse_array(path, content, dtype, shard.tokens)


def read_file(path: str, dtype: np.dtype, length: int) -> bytes:
  """Read a whole file of `length` items. Raises RecordsError where it is larger."""
  if storage.is_remote(path):
    limit = max(npy_size(dtype, length), storage.READ_LIMIT)
    return storage.read_bytes(path, limit, RecordsError)
  with shard_errors(path), storage.open_file(path) as file:
    size = os.fstat(file.fileno()).st_size
    if size > npy_size(dtype, length) + MAX_HEADER_BYTES:
      raise truncated_error(path, dtype, length, size)
    return file.read()


def map_file(path: str) -> mmap.mmap | bytes:
  """Memory-map a file on a disk. A descriptor stays open as long as the map."""
  with shard_errors(path), storage.open_file(path) as file:
    if not os.fstat(file.fileno()).st_size:
      return b''
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextlib.contextmanager
def shard_errors(path: str) -> Iterator[None]:
  """Convert an OSError of a shard's file into a RecordsError that names the remedy."""
  try:
    yield
  except FileNotFoundError as error:
    raise RecordsError(f'record shard {path} is missing. {REMEDY}') from error
  except OSError as error:
    raise RecordsError(f'record shard {path} cannot be read: {describe_error(error)}') from error


def parse_array(path: str, content: Any, dtype: np.dtype, length: int) -> np.ndarray:
  """Return the array of a one-dimensional `.npy` file, without copying.

  Args:
    path: for messages.
    content: of the file.
    dtype: expected.
    length: expected.

  Raises:
    RecordsError: the file holds something else.
  """
  offset = len(content) - length * dtype.itemsize
  expected = npy_header(dtype, length)
  if offset != len(expected) or content[:offset] != expected:  # otherwise no parsing is needed
    file = io.BytesIO(content[:MAX_HEADER_BYTES])
    try:
      version = np.lib.format.read_magic(file)
      if version == (1, 0):
        shape, _, found = np.lib.format.read_array_header_1_0(file)
      else:
        shape, _, found = np.lib.format.read_array_header_2_0(file)
    except Exception as error:  # numpy's parser passes on any error of Python's parser
      raise RecordsError(f'record shard {path} is not a shard of token records: '
                         f'{describe_error(error)}. {REMEDY}') from error
    if found != dtype:
      raise RecordsError(f'record shard {path} holds {found}, expected {dtype}: it belongs to '
                         'records of another vocabulary. Prepare the records again.')
    if shape != (length,) or file.tell() != offset:
      raise truncated_error(path, dtype, length, len(content))
  return np.frombuffer(content, dtype, length, offset)


@functools.lru_cache(1 << 10)
def npy_header(dtype: np.dtype, length: int) -> bytes:
  """Return the header of a `.npy` file of `length` items: 128 bytes with every numpy version."""
  descr = np.lib.format.dtype_to_descr(dtype)
  fields = {'descr': descr, 'fortran_order': False, 'shape': (length,)}
  text = '{' + ''.join(f'{name!r}: {value!r}, ' for name, value in fields.items()) + '}'
  return b'\x93NUMPY\x01\x00\x76\x00' + text.ljust(117).encode() + b'\n'


def npy_size(dtype: np.dtype, length: int) -> int:
  """Return the bytes of a `.npy` file of `length` items."""
  return len(npy_header(dtype, length)) + length * dtype.itemsize


def truncated_error(path: str, dtype: np.dtype, length: int, size: int) -> RecordsError:
  """Make the error for a file with the wrong size."""
  return RecordsError(
      f'record shard {path} is truncated or foreign: records.json counts {length} items of '
      f'{dtype.itemsize} bytes ({npy_size(dtype, length):,} bytes in all), the file has {size:,} '
      f'bytes. {REMEDY}')


def damaged_error(path: str) -> RecordsError:
  """Make the error for a wrong checksum. Deletes the file if it is a copy from a bucket."""
  remedy, file = REMEDY, pathlib.Path(path)
  if file.is_relative_to(storage.cache_folder() / 'windows'):  # of records in a bucket
    file.unlink(missing_ok=True)
    remedy = ('It was a copy: the same command makes another. If that is damaged too, the records '
              'are.')
  return RecordsError(f'record shard {path} is damaged: its checksum is wrong. {remedy}')


def check_sentences(path: str, entry: Shard, sentences: np.ndarray) -> None:
  """Raise RecordsError if the sentences cannot be those of the shard."""
  starts = sentences['start'].astype(np.int64)
  documents = sentences['document'].astype(np.int64)
  if not entry.tokens and not len(starts):
    return
  in_range = (len(starts) and starts[0] == 0 and starts[-1] < entry.tokens
              and documents[-1] + 1 == entry.documents)
  if not in_range or (np.diff(starts) <= 0).any() or (np.diff(documents) < 0).any():
    raise RecordsError(
        f'record shard {path} is damaged: its sentences do not divide the {entry.tokens} tokens '
        f'and {entry.documents} documents of records.json. {REMEDY}')


def foreign_id_error(path: str, largest: int, vocab: int) -> RecordsError:
  """Make the error for a shard with an id outside of the vocabulary."""
  return RecordsError(f'record shard {path} holds the id {largest}, but the vocabulary of its '
                      f'records has {vocab} ids: it belongs to others. Prepare the records again.')


def count_blocks(dtype: np.dtype, length: int) -> int:
  """Return the number of checksum blocks of a `.npy` file of `length` items."""
  return -(-npy_size(dtype, length) // checksums.BLOCK_BYTES)


FILE_NAME_PATTERN = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}')  # no path leaves the folder
REMEDY = 'Copy it again, or prepare the records again.'
MAX_HEADER_BYTES = 1 << 12  # before an array
