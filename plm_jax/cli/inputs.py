"""Load the model and read the texts that the arguments of a command name."""
from collections.abc import Iterator, Sequence
import contextlib
import io
import itertools
import re
import sys

import jax

from plm_jax import storage
from plm_jax.api import models
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.sources import charsets, text_sources
from plm_jax.sources.lines import OnError, ReadStats, SourceError, decode_line, read_lines
from plm_jax.sources.source_files import find_files

CHUNK_ROWS, CPU_CHUNK_ROWS = 4096, 1024
"""rows that are in memory together; on a CPU, where results of a chunk take longer"""
TEXT_ENDINGS = ('.txt', '.txt.gz', '.txt.xz')
"""endings of files with one text per line"""
PATH_END = (r'[\w)\]*?-]\.(txt|jsonl?|ndjson|[tc]sv|conllu?|parquet|npy|md|html?|xml|pdf|docx?|'
            r'iob2?|bio|gz|xz|bz2|zip)$')
"""pattern of the end of a text that looks like a file name"""


def load_on_mesh(folder: str, mesh: MeshConfig) -> LoadedModel:
  """Load a model, on the devices of the mesh if there are several."""
  return models.load(folder, mesh if make_mesh(mesh).size > 1 else None)


def chunk_rows() -> int:
  """Return the number of rows of a chunk, after which an interrupted command resumes."""
  return min(CHUNK_ROWS, CPU_CHUNK_ROWS) if jax.default_backend() == 'cpu' else CHUNK_ROWS


def is_text_file(file: str) -> bool:
  """Return whether a file holds one text per line."""
  return file == '-' or file.lower().endswith(TEXT_ENDINGS)


def is_source(text: str) -> bool:
  """Return whether an argument names files, or is a text itself.

  Raises:
    SourceError: it looks like a path and there is no such file, so that a misspelled name is not
      taken for a text.
  """
  if '\n' in text or len(text) > 4096 or '\0' in text:
    return False
  if text.startswith(('tfds:', 'embedded:')):
    return True
  if not looks_like_path(text):
    with contextlib.suppress(OSError, storage.StorageError):
      return bool(text.strip(' .')) and storage.resolve_path(text).exists()
    return False
  try:
    return bool(find_files(text))
  except (SourceError, storage.StorageError) as error:
    raise SourceError(f'there is no file {text!r}; for a text that looks like a path, put a space '
                      'before it') from error


def looks_like_path(text: str) -> bool:
  """Return whether a text looks like a file name.

  It starts like a path, ends like a file of text or rows, or is one word with a slash.
  """
  if text != text.strip():
    return False
  if re.match(r'\.{0,2}/|~/|gs://|hf://|[A-Za-z]:\\', text) or re.search(PATH_END, text.lower()):
    return True
  return not re.search(r'\s', text) and re.search(r'[/\\]', text) is not None


def read_text_arguments(given: Sequence[str], limit: int, by_line: bool = False) -> list[str]:
  """Return the texts of arguments, or the lines of those that name files.

  Args:
    given: texts, files and - for the lines of standard input.
    limit: largest number of texts or lines of a file or of standard input.
    by_line: whether each line of a file is a text.
  """
  def read_source(source: str) -> Iterator[str]:
    for text in text_sources.read_texts(source):
      yield from filter(str.strip, text.splitlines()) if by_line else [text]

  found: list[str] = []
  for one in given:
    if one == '-':
      lines = (line for _, line in read_text_lines('-') if line.strip())
      found += itertools.islice(lines, limit)
    else:
      found += itertools.islice(read_source(one), limit) if is_source(one) else [one]
  return found


def read_prompts(given: Sequence[str]) -> tuple[str, ...]:
  """Return prompts, with the lines of standard input in place of `-`."""
  found: list[str] = []
  for one in given:
    found += [line for _, line in read_text_lines('-')] if one == '-' else [one]
  return tuple(found)


def display_name(file: str) -> str:
  """Return the name of a file for messages."""
  return 'standard input' if file == '-' else file


def read_text_lines(
    file: str, on_error: OnError = 'refuse', stats: ReadStats | None = None,
    encoding: str = charsets.UTF_8) -> Iterator[tuple[int, str]]:
  """Yield (number, text) of the lines of a file, or of standard input."""
  stats = ReadStats() if stats is None else stats
  if file != '-':
    yield from read_lines(storage.resolve_path(file), on_error, stats, encoding)
    return
  source = sys.stdin.buffer
  if not charsets.is_utf_8(encoding):
    source = io.BufferedReader(charsets.TranscodedStream(source, encoding))
  for number, line in enumerate(source, 1):
    text = decode_line(line, f'standard input:{number}', on_error, stats)
    if text is not None:
      yield number, text.removesuffix('\n').removesuffix('\r')


def read_texts(file: str, column: str) -> Iterator[tuple[str, str]]:
  """Yield the texts of a file, each with its place 'file:line'. Raises SourceError."""
  if is_text_file(file):
    for number, line in read_text_lines(file):
      where = f'{display_name(file)}:{number}'
      if not line.strip():
        raise SourceError(f'{where}: the line is empty: a line is a text')
      yield line, where
    return
  from plm_jax.sources import row_readers
  from plm_jax.sources.row_readers import Columns
  from plm_jax.tasks.example_formats import CLASSIFICATION
  from plm_jax.tasks.sources import ReadReport, SourceReader
  column = column or CLASSIFICATION.columns.first
  reader = SourceReader(
      CLASSIFICATION, Columns(), 'predict', 'refuse', charsets.UTF_8, ReadReport())
  for row in reader.read_rows(file):
    yield row_readers.read_text(row, column), row.where
