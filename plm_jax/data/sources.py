"""Where text comes from: a source string -> documents, each a list of paragraphs.

    embedded                             the English documentation of the installed packages
    a.txt,b.txt.gz,more/*.jsonl.xz       files, globs and folders, local or gs://, separated by commas
    tfds:wiki40b/en  tfds:NAME:train     a TFDS data set by name, or by the folder that holds it
    task:NAME:SOURCE                     a task's rows as text to text: `examples` has the names

Text files hold one paragraph a line and a blank line between documents; `Reading.division` has other ways. A line of
JSON is a document: its field 'text', or another that is named, in which newlines separate paragraphs. Read right too
are what WikiExtractor writes, tables (.tsv, .csv, .parquet) with a column of text, a .json that is one list, Common
Crawl's WET files and Wikipedia's dumps. `.gz`, `.xz` and `.bz2` are read through. Files are read in the order of their
names, so a source is always the same sequence of documents. A line has 16 MiB at most; a paragraph over a million
characters, and a document over four, go on in the next one.
"""
from collections.abc import Iterator
import contextlib
import hashlib
import os
import re

from etils import epath

from plm_jax import storage
from plm_jax.data import examples, formats, parquet, tfds
from plm_jax.data.examples import TASK, untasked
from plm_jax.data.files import content_of, each, ends_of, files, length_of, version_of
from plm_jax.data.formats import Document, Reading
from plm_jax.data.lines import SourceError, Tally, numbered, opened

WORTH_NOTING = 64 << 20  # bytes; what is known of smaller texts is found out anew, in a blink


def documents(source: str, reading: Reading = Reading(), tally: Tally | None = None) -> Iterator[Document]:
  """Yields the documents of `source`, in order; empty ones are left out.

  A line that is not UTF-8, or not JSON with a text, raises SourceError that names file and line; with `skip` it is left
  out and counted in `tally`. Raises SourceError for no files, for binaries and for archives that are cut off, always.
  """
  for part in apart(source, reading, Tally() if tally is None else tally):
    yield from part


def apart(source: str, reading: Reading, tally: Tally) -> Iterator[Iterator[Document]]:
  """Yields the documents of each of the `parts`, to be taken before the next part is asked for; see `documents`."""
  if source.startswith((TASK, 'tfds:')):
    yield of_part(source, reading, tally, True)
    return
  found = files(source)
  for file, length in zip(found, each(length_of, found), strict=True):
    done = tally.bytes
    yield of_file(file, reading, tally, len(found) == 1)
    tally.bytes = done + length


def parts(source: str) -> list[str]:
  """Lists what of a source can be read by itself, in order: its files; a data set of TFDS and a task are one part."""
  return [source] if source.startswith((TASK, 'tfds:')) else [os.fspath(file) for file in files(source)]


def of_part(part: str, reading: Reading, tally: Tally, alone: bool) -> Iterator[Document]:
  """Yields the documents of a part of a source as `documents` does. alone: it is the only one."""
  if part.startswith(TASK):
    yield from examples.documents(part, reading.on_error, tally)
  elif part.startswith('tfds:'):
    yield from tfds.documents(part, reading, tally)
  else:
    yield from of_file(epath.Path(part), reading, tally, alone)


def of_file(file: epath.Path, reading: Reading, tally: Tally, alone: bool) -> Iterator[Document]:
  """Yields the documents of a file. alone: there are no others, see `formats.divided`. Raises SourceError as
  `documents` does."""
  if file.suffix.lower() == '.parquet':
    for fields, where in parquet.rows(file, reading.field):
      yield from formats.of_fields(fields, where, reading, tally)
    return
  with opened(file) as text:
    yield from formats.documents(text, reading, tally, alone)


def texts(source: str) -> Iterator[str]:
  """Yields every file of plain text, whole as it stands; of what is not, every document, its paragraphs joined by
  newlines."""
  if source == 'embedded' or source.startswith(('tfds:', TASK)):
    yield from ('\n'.join(document.paragraphs) for document in documents(source))
    return
  for file in files(source):
    if file.suffix.lower() == '.parquet':
      yield from ('\n'.join(document.paragraphs) for document in of_file(file, Reading(), Tally(), alone=True))
      continue
    with opened(file) as found:
      if formats.format_of(found) is formats.text_documents:
        yield '\n'.join(line for _, line in numbered(found, 'refuse', Tally()))
      else:
        for document in formats.documents(found, Reading(), Tally(), alone=True):
          yield '\n'.join(document.paragraphs)


def called(source: str) -> str:
  """Names a source briefly, by what its path ends with.

  >>> [called(source) for source in ('gs://text/de', 'en/*.txt.gz', 'task:sst2:a.tsv', 'tfds:wiki40b/sw:train')]
  ['de', 'en', 'sst2', 'sw']
  """
  if source.startswith(TASK):
    return source.split(':')[1]
  parts = source.removeprefix('tfds:').partition(',')[0].split('/')
  words = [re.split(r'[.:]', part)[0] for part in parts if part and '*' not in part]
  return re.sub(r'\W+', '_', words[-1] if words else '') or 'text'


def folders(source: str) -> list[epath.Path]:
  """Lists the folders that are part of a source."""
  source = untasked(source)
  if source == 'embedded' or source.startswith('tfds:'):
    return []
  paths = [storage.path_of(part.strip()) for part in source.split(',')]
  with storage.explained(source, 'read', SourceError):
    return [path for path in paths if path.is_dir()]


def size(source: str) -> int | None:
  """Counts the bytes on disk, None where unknown."""
  source = untasked(source)
  return None if source.startswith('tfds:') else sum(each(length_of, files(source)))


def characters(source: str) -> int:
  """Estimates how many characters of text there are, to within a small factor; 0 where unknown."""
  source = untasked(source)
  if source.startswith('tfds:'):
    return 0
  found = files(source)
  return sum(length * (4 if file.suffix.lower() in ('.gz', '.xz', '.bz2', '.parquet') else 1)
             for file, length in zip(found, each(length_of, found), strict=True))


def fingerprint(source: str) -> str:
  """Returns sha256 hex that changes when the source does.

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
  """Returns by which records of before know their source: names, sizes, and the first and last 64 KiB of files."""
  found = of_task(source)
  if isinstance(found, str):
    return found
  digest, paths = found
  for file, (length, first, last) in zip(paths, each(ends_of, paths), strict=True):
    digest.update(f'{file.name} {length}\n'.encode(*ANY) + first + last)
  return digest.hexdigest()


def written(source: str) -> float:
  """Returns when the newest file was written, in seconds since 1970; of TFDS's data sets, which do not change, 0."""
  source = untasked(source)
  return 0 if source.startswith('tfds:') else max(each(lambda file: float(file.stat().mtime or 0), files(source)))


def of_task(source: str):
  """Returns what two fingerprints have in common: all of it for TFDS, else (digest of the task, files)."""
  digest = hashlib.sha256()
  if source.startswith(TASK):
    digest.update(repr(examples.task_of(source)).encode())
  source = untasked(source)
  if source.startswith('tfds:'):
    digest.update(tfds.described(source).encode())
    return digest.hexdigest()
  return digest, files(source)


ANY = 'utf-8', 'surrogateescape'  # names of files may be any bytes
