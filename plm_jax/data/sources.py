"""Where text comes from: a source string -> documents, each a list of paragraphs.

    embedded                             the English documentation of the installed packages
    a.txt,b.txt.gz,more/*.jsonl.xz       files, globs and folders, local or gs://, separated by commas
    tfds:wiki40b/en  tfds:NAME:train     a TFDS data set by name, or by the folder that holds it
    task:NAME:SOURCE                     a task's rows as text to text: `examples` has the names

Text files hold one paragraph a line and a blank line between documents; `Reading.division` has other ways. A line of
JSON is a document: its field 'text', or another that is named, in which newlines separate paragraphs. Read right too
are what WikiExtractor writes, tables (.tsv, .csv) with a column of text, and a .json that is one list. `.gz` and `.xz`
are read through. Files are read in the order of their names, so a source is always the same sequence of documents. A
line has 16 MiB at most; a paragraph over a million characters, and a document over four, go on in the next one.
"""
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
import glob
import hashlib
import os
import re
import stat
from typing import Any, TypeVar

from etils import epath

from plm_jax import storage
from plm_jax.data import embedded, formats
from plm_jax.data.formats import Document, Reading, split_text
from plm_jax.data.lines import OnError, SourceError, Tally, decode, lines, numbered, opened, report
from plm_jax.errors import outside

__all__ = ['Document', 'OnError', 'Reading', 'SourceError', 'Tally', 'characters', 'documents', 'files', 'fingerprint',
           'lines', 'report', 'size', 'texts']

X = TypeVar('X')
Y = TypeVar('Y')
TASK = 'task:'
END = 1 << 16  # bytes at the beginning and at the end of a large file in a bucket by which it is known
WORTH_NOTING = 64 << 20  # bytes; what is known of smaller texts is found out anew, in a blink
REQUESTS = 32  # of a bucket, at once


def documents(source: str, reading: Reading = Reading(), tally: Tally | None = None) -> Iterator[Document]:
  """The documents of `source`, in order; empty ones are left out.

  A line that is not UTF-8, or not JSON with a text, raises SourceError that names file and line; with `skip` it is left
  out and counted in `tally`. Raises SourceError for no files, for binaries and for archives that are cut off, always.
  """
  tally = Tally() if tally is None else tally
  if source.startswith(TASK):
    from plm_jax.data import examples  # late: it reads files by way of this module
    yield from examples.documents(source, reading.on_error, tally)
    return
  if source.startswith('tfds:'):
    yield from tfds_documents(source, reading, tally)
    return
  found = files(source)
  for file, length in zip(found, each(length_of, found), strict=True):
    done = tally.bytes
    with opened(file) as text:
      yield from formats.documents(text, reading, tally, len(found) == 1)
    tally.bytes = done + length


def texts(source: str) -> Iterator[str]:
  """Every file of plain text, whole as it stands; of what is not, every document, its paragraphs joined by newlines."""
  if source == 'embedded' or source.startswith(('tfds:', TASK)):
    yield from ('\n'.join(document.paragraphs) for document in documents(source))
    return
  for file in files(source):
    with opened(file) as found:
      if formats.format_of(found) is formats.text_documents:
        yield '\n'.join(line for _, line in numbered(found, 'refuse', Tally()))
      else:
        for document in formats.documents(found, Reading(), Tally(), alone=True):
          yield '\n'.join(document.paragraphs)


def files(source: str) -> list[epath.Path]:
  """The files of a source that is not TFDS, in reading order. Raises SourceError where there are none."""
  source = untasked(source)
  if source == 'embedded':
    return [epath.Path(embedded.corpus_path())]
  found = []
  for part in map(str.strip, source.split(',')):
    if not part:
      raise SourceError(f'{source!r} names no text: {EXPECTED}')
    with storage.explained(part, 'read', SourceError):
      path = storage.path_of(part)
      if path.is_dir():
        matches = sorted(walk(path))
      elif path.exists():
        matches = [path]
      else:
        matches = sorted(expand(str(path)))
    if not matches:
      raise SourceError(f'no files match {part!r}: {EXPECTED}')
    found += matches
  for file in found:
    if not storage.remote(file):
      with storage.explained(file, 'read', SourceError):
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe could be read once only
          raise SourceError(f'{file} is no ordinary file')
  return found


def folders(source: str) -> list[epath.Path]:
  """Those that are part of a source."""
  source = untasked(source)
  if source == 'embedded' or source.startswith('tfds:'):
    return []
  paths = [storage.path_of(part.strip()) for part in source.split(',')]
  with storage.explained(source, 'read', SourceError):
    return [path for path in paths if path.is_dir()]


def size(source: str) -> int | None:
  """Bytes on disk, None where unknown."""
  source = untasked(source)
  return None if source.startswith('tfds:') else sum(each(length_of, files(source)))


def characters(source: str) -> int:
  """About how many characters of text there are, to within a small factor; 0 where unknown."""
  source = untasked(source)
  if source.startswith('tfds:'):
    return 0
  found = files(source)
  return sum(length * (4 if file.suffix.lower() in ('.gz', '.xz') else 1)
             for file, length in zip(found, each(length_of, found), strict=True))


def fingerprint(source: str) -> str:
  """sha256 hex that changes when the source does.

  Of local files all bytes count, and their names; of a file in a bucket that is over 128 KiB, its ends and when it
  was written. What was found out about large texts is noted in the cache folder until they are written again.
  """
  found = of_task(source)
  if isinstance(found, str):
    return found
  digest, paths = found
  versions = list(each(version_of, paths))
  note = storage.cache_folder() / 'texts' / hashlib.sha256(repr((source, versions)).encode(*ANY)).hexdigest()
  large = sum(each(length_of, paths)) >= WORTH_NOTING
  if large:
    with contextlib.suppress(storage.StorageError):
      noted = storage.read_text(note, 64)
      if re.fullmatch('[0-9a-f]{64}', noted):
        return noted
  for file, content in zip(paths, each(content_of, paths), strict=True):
    digest.update(f'{file.name} {content}\n'.encode(*ANY))
  if large:
    with contextlib.suppress(storage.StorageError):  # a cache that cannot be written
      storage.write(note, digest.hexdigest())
  return digest.hexdigest()


def former_fingerprint(source: str) -> str:
  """By which records of before know their source: names, sizes, and the first and last 64 KiB of files."""
  found = of_task(source)
  if isinstance(found, str):
    return found
  digest, paths = found
  for file, (length, first, last) in zip(paths, each(ends_of, paths), strict=True):
    digest.update(f'{file.name} {length}\n'.encode(*ANY) + first + last)
  return digest.hexdigest()


def written(source: str) -> float:
  """When the newest file was, in seconds since 1970; of TFDS's data sets, which do not change, 0."""
  source = untasked(source)
  return 0 if source.startswith('tfds:') else max(each(lambda file: float(file.stat().mtime or 0), files(source)))


def of_task(source: str):
  """What two fingerprints have in common: all of it for TFDS, else (digest of the task, files)."""
  digest = hashlib.sha256()
  if source.startswith(TASK):
    from plm_jax.data import examples
    digest.update(repr(examples.task_of(source)).encode())
  source = untasked(source)
  if source.startswith('tfds:'):
    builder, split = tfds_builder(source)
    digest.update(f'{builder.info.full_name} {split} {builder.info.splits[split].num_examples}'.encode())
    return digest.hexdigest()
  return digest, files(source)


def content_of(file: epath.Path) -> str:
  """Hex digest of a file."""
  with storage.explained(file, 'read', SourceError):
    if not storage.remote(file):
      with open(file, 'rb') as f:
        return hashlib.file_digest(f, 'sha256').hexdigest()
    length, first, last = ends_of(file)
    known = '' if length <= 2 * END else version_of(file)
    return hashlib.sha256(b'%d %s %s' % (length, known.encode(), first + last)).hexdigest()


def ends_of(file: epath.Path) -> tuple[int, bytes, bytes]:
  """Bytes of a file, the first of them and the last."""
  length = length_of(file)
  if storage.remote(file) and length <= 2 * END:
    content = storage.read_bytes(file, error=SourceError)
    return length, content[:END], content[max(0, length - END):]
  return length, storage.read_range(file, 0, min(length, END), SourceError), storage.read_range(
      file, max(0, length - END), length, SourceError)


def length_of(file: epath.Path) -> int:
  with storage.explained(file, 'read', SourceError):
    return file.stat().length


def version_of(file: epath.Path) -> str:
  """What is another when the file is written again, or is another file."""
  with storage.explained(file, 'read', SourceError):
    if not storage.remote(file):
      status = os.stat(file)
      return f'{file.absolute()} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}'
    status = file.stat()
    return f'{status.length} {status.mtime}'


def each(function: Callable[[X], Y], items: Iterable[X]) -> list[Y]:
  """Many requests at once."""
  items = list(items)
  if len(items) == 1:
    return [function(items[0])]
  with ThreadPoolExecutor(REQUESTS) as pool:
    return list(pool.map(function, items))


def untasked(source: str) -> str:
  """task:NAME:SOURCE -> SOURCE."""
  return source.split(':', 2)[-1] if source.startswith(TASK) else source


def tfds_documents(source: str, reading: Reading, tally: Tally) -> Iterator[Document]:
  builder, _ = tfds_builder(source)
  if reading.field not in builder.info.features:
    raise SourceError(f'{source} has no feature {reading.field!r}, only {sorted(builder.info.features)}.')
  for number, example in enumerate(tfds_rows(source)):
    where = f'{source}[{number}]'
    if not isinstance(example[reading.field], bytes):
      raise SourceError(f'{source}: the feature {reading.field!r} is no text')
    text = decode(example[reading.field], where, reading.on_error, tally)
    if text is not None:
      yield from split_text(text, where, tally)


def tfds_rows(source: str) -> Iterator[dict[str, Any]]:
  import tensorflow_datasets as tfds  # late: TensorFlow takes seconds to load, and files do not need it
  builder, split = tfds_builder(source)
  # One file after the other: interleaved reading would make the order depend on the shards of the copy.
  data = builder.as_dataset(split=split, read_config=tfds.ReadConfig(interleave_cycle_length=1), shuffle_files=False)
  rows = iter(tfds.as_numpy(data))
  while True:
    with of_tfds(source):
      row = next(rows, None)
    if row is None:
      return
    yield row


def tfds_builder(source: str) -> tuple[Any, str]:
  """`tfds:NAME:SPLIT` or `tfds:FOLDER:SPLIT` -> builder, split."""
  match = re.fullmatch(r'tfds:(?P<name>.+?)(:(?P<split>[A-Za-z_]\w*(\[[^/]*\])?(\+[^/]*)?))?', source)
  if not match:
    raise SourceError(f'{source!r} names no TFDS data set: expected tfds:NAME or tfds:FOLDER, and perhaps :SPLIT.')
  name, split = match['name'], match['split'] or 'train'
  with of_tfds(source):
    import tensorflow_datasets as tfds
    if epath.Path(name).expanduser().is_dir():
      builder = tfds.builder_from_directory(epath.Path(name).expanduser())
    else:
      builder = tfds.builder(name)
      builder.download_and_prepare()
    builder.info.splits[split]  # raises when there is no such split
  return builder, split


@contextlib.contextmanager
def of_tfds(source: str) -> Iterator[None]:
  """What TFDS raises, of its own and of what it downloads with and is not installed, in one line."""
  try:
    yield
  except Exception as error:
    raise SourceError(f'{source}: {outside(error)}') from error


def expand(pattern: str) -> list[epath.Path]:
  """Files that match a glob, local or in a bucket."""
  if not storage.remote(pattern):
    return [epath.Path(p) for p in glob.glob(pattern, recursive=True) if not epath.Path(p).is_dir()]
  fixed = re.split(r'[*?\[]', pattern)[0].rpartition('/')[0]
  if fixed == pattern or not epath.Path(fixed).exists():
    return []
  return [p for p in epath.Path(fixed).glob(pattern[len(fixed) + 1:]) if not p.is_dir()]


def walk(folder: epath.Path) -> Iterator[epath.Path]:
  """The files below `folder`, but for hidden ones and those that a job leaves behind, such as _SUCCESS."""
  for path in folder.iterdir():
    if path.name.startswith(('.', '_')):
      continue
    if path.is_dir():
      yield from walk(path)
    else:
      yield path


ANY = 'utf-8', 'surrogateescape'  # names of files may be any bytes
EXPECTED = ('expected a file, folder or glob, of text or .jsonl, plain, .gz or .xz, or tfds:NAME; or embedded, or '
            'task:NAME:SOURCE')
