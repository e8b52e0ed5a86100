"""Text sources: a source string -> documents, each a list of paragraphs.

    embedded                             the English documentation of the installed packages
    a.txt,b.txt.gz,more/*.jsonl.xz       files, globs, folders, local or gs://, separated by commas
    tfds:wiki40b/en  tfds:NAME:train     a TFDS data set by name, or by the folder with its data
    task:NAME:SOURCE                     rows of a task as text to text, see `text_to_text_tasks`

Text files have one paragraph per line and a blank line between documents; `TextReadConfig.division`
has alternatives. Blank lines are left out; with `TextReadConfig.exact`, a document keeps every
character. A line of JSON Lines is a document: its field 'text', or another that is named, in which
newlines separate paragraphs. Other formats are WikiExtractor's output, tables (.tsv, .csv,
.parquet) with a column of text, a .json that is one list, Common Crawl's WET files and MediaWiki
dumps. `.gz`, `.xz` and `.bz2` are decompressed. Files are read in the order of their names, so a
source is always the same sequence of documents. A line has at most 16 MiB. A paragraph over one
million characters, and a document over four million, is split.
"""
from collections.abc import Iterator
import contextlib
import dataclasses
import os
import re

from etils import epath

from plm_jax import storage, unicode_words
from plm_jax.sources import document_formats, text_to_text_tasks, tfds
from plm_jax.sources.document_formats import Document, TextReadConfig
from plm_jax.sources.lines import ReadStats, SourceError, open_text_file
from plm_jax.sources.source_files import (
  content_digest,
  file_length,
  file_version,
  find_files,
  map_in_threads,
  split_source,
)
from plm_jax.sources.table_rows import read_parquet
from plm_jax.sources.text_to_text_tasks import TASK_PREFIX, strip_task
from plm_jax.storage.digests import compute_digest, start_digest

NOTE_BYTES = 64 << 20  # of text from which on its digest is cached; others take no time


def read_documents(source: str, config: TextReadConfig = TextReadConfig(),
                   stats: ReadStats | None = None) -> Iterator[Document]:
  """Yield the documents of `source`, in order, without empty ones.

  Args:
    source: see the head of this module.
    config: how to read it.
    stats: is updated; None: not needed.

  Raises:
    SourceError: a line is not UTF-8, or not JSON with a text ('skip' counts it in `stats`). Always
      if there are no files, for binaries and for archives that are cut off.
  """
  for part in read_parts(source, config, ReadStats() if stats is None else stats):
    yield from part


def read_parts(source: str, config: TextReadConfig, stats: ReadStats
               ) -> Iterator[Iterator[Document]]:
  """Yield the documents of each part (`list_parts`); consume each before the next."""
  if is_one_part(source):
    yield read_part_documents(source, config, stats, True)
    return
  found = find_files(source)
  for file, length in zip(found, map_in_threads(file_length, found), strict=True):
    before = stats.bytes
    documents = read_file(file, config, stats, len(found) == 1)
    yield documents if len(found) == 1 else count_documents(documents, str(file), stats)
    stats.bytes = before + length


def count_documents(documents: Iterator[Document], name: str, stats: ReadStats
                    ) -> Iterator[Document]:
  """Yield the documents of a file; then add their number and a digest of their text to `stats`."""
  count, digest = 0, start_digest()
  for document in documents:
    count += 1
    digest.update('\n'.join((*document.paragraphs, '')).encode())
    yield document
  stats.files[name] = count, digest.hexdigest()


def list_parts(source: str) -> list[str]:
  """List the parts of a source that can be read separately: files, a TFDS data set, or a task."""
  if is_one_part(source):
    return [source]
  return [os.fspath(file) for file in find_files(source)]


def is_one_part(source: str) -> bool:
  """Return whether a source is not a list of files."""
  return source == 'embedded' or source.startswith((TASK_PREFIX, 'tfds:'))


def read_part_documents(part: str, config: TextReadConfig, stats: ReadStats, alone: bool
                        ) -> Iterator[Document]:
  """Yield the documents of a part of a source, as `read_documents`. alone: it is the only part."""
  if part.startswith(TASK_PREFIX):
    yield from text_to_text_tasks.read_documents(part, config, stats)
  elif part.startswith('tfds:'):
    yield from tfds.read_tfds_documents(part, config, stats)
  elif part == 'embedded':  # documents of its own, whatever the division of other text
    config = dataclasses.replace(config, division='blank-lines')
    yield from read_file(find_files(part)[0], config, stats, alone)
  else:
    file = storage.resolve_path(part) if storage.is_remote(part) else epath.Path(part)
    yield from read_file(file, config, stats, alone)


def read_file(file: epath.Path, config: TextReadConfig, stats: ReadStats, alone: bool
              ) -> Iterator[Document]:
  """Yield the documents of a file, as `read_documents`.

  alone: the source has no other files, see `document_formats.resolve_division`.
  """
  if file.suffix.lower() == '.parquet':
    for fields, where in read_parquet(file, config.field):
      yield from document_formats.document_from_fields(fields, where, config, stats)
    return
  with open_text_file(file, config.encoding) as opened:
    yield from document_formats.detect_reader(opened, alone)(opened, config, stats)


def read_texts(source: str) -> Iterator[str]:
  """Yield every file of plain text as one text; of other formats, every document.

  Texts keep every character. In a task's rows, newlines separate the inputs and the target.
  """
  if source.startswith(TASK_PREFIX):
    for document in read_documents(source):
      yield '\n'.join(document.paragraphs)
    return
  parts: list[str] = []
  for document in read_documents(source, TextReadConfig(division='files', exact=True)):
    if parts and not document.follows:
      yield ''.join(parts)
      parts = []
    parts += document.paragraphs
  if parts:
    yield ''.join(parts)


def short_name(source: str) -> str:
  """Return a short name of a source, from the end of its path.

  >>> sources = 'gs://text/de', 'en/*.txt.gz', 'task:sst2:a.tsv', 'tfds:wiki40b/sw:train'
  >>> [short_name(source) for source in sources]
  ['de', 'en', 'sst2', 'sw']
  """
  if source.startswith(TASK_PREFIX):
    return source.split(':')[1]
  parts = source.removeprefix('tfds:').partition(',')[0].split('/')
  words = [re.split(r'[.:]', part)[0] for part in parts if part and '*' not in part]
  last = words[-1] if words else ''
  return re.sub(rf'[^\w{unicode_words.MARK}]+', '_', last) or 'text'


def source_folders(source: str) -> list[epath.Path]:
  """List the folders that are part of a source."""
  source = strip_task(source)
  if source == 'embedded' or source.startswith('tfds:'):
    return []
  paths = [storage.resolve_path(path) for path, _ in split_source(source)]
  with storage.io_errors_as(source, 'read', SourceError):
    return [path for path in paths if path.is_dir()]


def source_bytes(source: str) -> int | None:
  """Return the bytes on disk; None where unknown."""
  source = strip_task(source)
  if source.startswith('tfds:'):
    return None
  return sum(map_in_threads(file_length, find_files(source)))


def estimate_characters(source: str) -> int:
  """Estimate the number of characters of text, to within a small factor; 0 where unknown."""
  source = strip_task(source)
  if source.startswith('tfds:'):
    return 0
  found = find_files(source)
  lengths = zip(found, map_in_threads(file_length, found), strict=True)
  packed = '.gz', '.xz', '.bz2', '.parquet'
  return sum(length * (4 if file.suffix.lower() in packed else 1) for file, length in lengths)


def fingerprint(source: str) -> str:
  """Return a sha256 hex that changes when the source does.

  For local files it depends on all bytes and the names; for a file in a bucket over 128 KiB, on its
  ends and its modification time. Digests of large texts are cached until the texts are written
  again.
  """
  is_task = source.startswith(TASK_PREFIX)
  task = repr(text_to_text_tasks.parse_task(source)) if is_task else ''
  source = strip_task(source)
  if source.startswith('tfds:'):
    # All that changes when the data set does.
    builder, split = tfds.open_builder(source)
    size = builder.info.splits[split].num_examples
    return compute_digest(task, f'{builder.info.full_name} {split} {size}')
  paths = find_files(source)
  versions = list(map_in_threads(file_version, paths))
  key = compute_digest(repr((source, versions)).encode(*FILE_NAME_ENCODING))
  note = storage.cache_folder() / 'texts' / key
  large = sum(map_in_threads(file_length, paths)) >= NOTE_BYTES
  if large:
    with contextlib.suppress(storage.StorageError):
      noted = storage.read_text(note, 64)
      if re.fullmatch('[0-9a-f]{64}', noted):
        return noted
  contents = zip(paths, map_in_threads(content_digest, paths), strict=True)
  found = compute_digest(task, *(
      f'{file.name} {content}\n'.encode(*FILE_NAME_ENCODING) for file, content in contents))
  if large:
    with contextlib.suppress(storage.StorageError):  # a cache that cannot be written
      storage.write(note, found)
  return found


FILE_NAME_ENCODING = 'utf-8', 'surrogateescape'  # names of files may be any bytes
