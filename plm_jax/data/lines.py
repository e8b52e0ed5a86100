"""The lines of a text file, whatever it is packed in, and what becomes of those that cannot be read."""
import bz2
from collections.abc import Iterator
import contextlib
import csv
import dataclasses
import gzip
import io
import json
import lzma
from typing import Any, Literal
import zlib

from etils import epath

from plm_jax import storage
from plm_jax.errors import Expected, option

OnError = Literal['refuse', 'skip']
MAX_LINE = 1 << 24  # bytes; a longer one is no line of text, and would not fit the promise of bounded memory
BEGINNING = 1 << 20  # bytes by which a file is judged


class SourceError(Expected):
  """Text that is missing or cannot be read."""


@dataclasses.dataclass
class Tally:
  """What happened while documents were read; filled in by `documents`."""

  bytes: int = 0  # read so far, as they lie on disk
  skipped: int = 0  # lines left out
  examples: list[str] = dataclasses.field(default_factory=list)  # the first of them, 'file:line: reason'
  cut: int = 0  # how often a document over MAX_DOCUMENT was cut
  lined: list[str] = dataclasses.field(default_factory=list)  # files in which every line was taken for a document

  def skip(self, problem: str) -> None:
    """Counts a line that is left out, and keeps the problem as an example."""
    self.skipped += 1
    self.example(problem)

  def example(self, problem: str) -> None:
    """Keeps a problem, if it is one of the first ten."""
    if len(self.examples) < 10:
      self.examples.append(problem)


def report(problem: str, on_error: OnError, tally: Tally) -> None:
  """Raises SourceError for a problem of the source, or counts it, as `on_error` has it."""
  if on_error == 'refuse':
    raise SourceError(f'{problem}. Mend it, or leave such lines out with {option("on-error=skip")}.')
  tally.skip(problem)


@dataclasses.dataclass
class Opened:
  """A file that is being read, unpacked."""

  file: epath.Path
  packed: io.BufferedReader  # `tell` of which counts bytes as they lie on disk
  text: 'io.BufferedReader[Again]'
  beginning: bytes
  whole: bool  # the beginning is all of it


@contextlib.contextmanager
def opened(file: epath.Path) -> Iterator[Opened]:
  """Opens a text file, plain, .gz, .xz or .bz2. Raises SourceError for what is none: it names what it seems to be."""
  with contextlib.ExitStack() as stack:
    with storage.explained(file, 'read', SourceError):
      packed = stack.enter_context(storage.open_text(file))
    unpack = {'.gz': gzip.open, '.xz': lzma.open, '.bz2': bz2.open}.get(file.suffix.lower())
    if unpack and not packed.peek(1):
      raise SourceError(f'{file}: damaged or cut off: it is empty')
    unpacked: Any = stack.enter_context(unpack(packed)) if unpack else packed
    beginning, failure = look(unpacked)
    if not unpack or not failure:
      refuse_binary(file, beginning)
    whole = failure is None and len(beginning) < BEGINNING
    # Old Macintosh files have carriage returns alone.
    returns = b'\r' in beginning and b'\n' not in beginning
    text = io.BufferedReader(Again(beginning, failure, unpacked, returns), 1 << 16)
    yield Opened(file, packed, text, beginning.replace(b'\r', b'\n') if returns else beginning, whole)


def lines(file: epath.Path, on_error: OnError, tally: Tally) -> Iterator[tuple[int, str]]:
  """Yields (number, text) of every line of a file, see `numbered`."""
  with opened(file) as found:
    yield from numbered(found, on_error, tally)


def numbered(found: Opened, on_error: OnError, tally: Tally) -> Iterator[tuple[int, str]]:
  """Yields (number, text) of every line, counted from 1, without its newline; a line ends at '\\n' and nowhere else.

  Raises SourceError for a line that is not UTF-8 or too long, which are counted with `skip`, and always for archives
  that are damaged.
  """
  name, start, offset = str(found.file), tally.bytes, 0
  for number, line in enumerate(raw_lines(found), 1):
    where = f'{name}:{number}'
    place = f'byte {offset} of the file'
    offset += len(line)
    if number % 256 == 0:
      tally.bytes = start + found.packed.tell()
    if len(line) > MAX_LINE:
      report(f'{where}: a line of more than {MAX_LINE >> 20} MiB ({place}); is this text?', on_error, tally)
      continue
    if number == 1:
      line = line.removeprefix(b'\xef\xbb\xbf')  # the byte order mark that some editors write
    text = decode(line, where, on_error, tally, f' ({place})')
    if text is not None:
      yield number, text.removesuffix('\n').removesuffix('\r')


def raw_lines(found: Opened) -> Iterator[bytes]:
  """Yields every line; of one that is too long, more than MAX_LINE bytes, the rest is passed over."""
  number, inside = 0, False  # inside: a line that is too long
  while True:
    with unpacking(found, f'line {number}'):
      line = found.text.readline(MAX_LINE + 1)
    if not line:
      return
    if not inside:
      number += 1
      yield line
    inside = len(line) > MAX_LINE and not line.endswith(b'\n')


@contextlib.contextmanager
def unpacking(found: Opened, last: str) -> Iterator[None]:
  """Raises SourceError for an archive that is damaged, or a file that cannot be read; last: what was read before."""
  try:
    with storage.explained(found.file, 'read', SourceError):
      try:
        yield
      except OSError as error:
        if error.errno is not None:
          raise
        raise EOFError(error) from error  # gzip's and bz2's: the archive, not the disk
  except (EOFError, lzma.LZMAError, zlib.error) as error:
    raise SourceError(f'{found.file}: damaged or cut off after {last}: {error}') from error


def decode(line: bytes, where: str, on_error: OnError, tally: Tally, place: str = '') -> str | None:
  """Decodes UTF-8, or returns None when it was not and is to be skipped."""
  try:
    return line.decode()
  except UnicodeDecodeError as error:
    report(f'{where}: not UTF-8: {error.reason} at byte {error.start} of the line{place}', on_error, tally)
    return None


def parsed(line: str, where: str, on_error: OnError, tally: Tally) -> dict[str, Any] | None:
  """Parses the JSON object of a line, or returns None when it was none and is to be skipped."""
  try:
    value = json.loads(line)
    problem = '' if isinstance(value, dict) else f'an object is expected, got {line[:40]}'
  except RecursionError:
    value, problem = None, 'not JSON that can be read: values too deep inside one another'
  except ValueError as error:  # not JSON, or a number of thousands of digits
    value, problem = None, f'not JSON: {str(error)[:200]}'
  if not problem:
    return value
  report(f'{where}: {problem}', on_error, tally)
  return None


def whole(file: epath.Path, lines: Iterator[tuple[int, str]]) -> str:
  """Reads a file that is one JSON value. Raises SourceError for a large one."""
  found, length = [], 0
  for _, line in lines:
    found.append(line)
    length += len(line)
    if length > storage.LIMIT:
      raise SourceError(f'{file} is one JSON value of over {storage.LIMIT >> 20} MiB, which is read as a whole: write '
                        'a line for each document or row instead (.jsonl)')
  return '\n'.join(found)


def cells(text: Iterator[tuple[int, str]], delimiter: str, where: str) -> Iterator[tuple[int, list[str]]]:
  """Yields (number of its line, cells) of every row of a table, the first of which names the columns. In one of tabs,
  quotes are as any other character. Raises SourceError for a quotation that does not end."""
  csv.field_size_limit(MAX_LINE)
  number = 0

  def plain() -> Iterator[str]:
    nonlocal number
    for number, line in text:  # noqa: B007
      yield line + '\n'

  quoting = csv.QUOTE_NONE if delimiter == '\t' else csv.QUOTE_MINIMAL
  read = csv.reader(plain(), delimiter=delimiter, quoting=quoting, strict=True)
  try:
    for row in read:
      yield number, row
  except csv.Error as error:
    raise SourceError(f'{where}:{number}: not a row of a table: {error}') from error


def look(unpacked: Any) -> tuple[bytes, Exception | None]:
  """Reads the beginning of a stream -> its bytes, and what kept them from being more."""
  beginning = bytearray()
  try:
    while len(beginning) < BEGINNING and (piece := unpacked.read(min(1 << 16, BEGINNING - len(beginning)))):
      beginning += piece
  except Exception as failure:  # told when what came before it has been read
    return bytes(beginning), failure
  return bytes(beginning), None


class Again(io.RawIOBase):
  """A stream from its beginning, which was read already; with `returns`, carriage returns are newlines."""

  def __init__(self, beginning: bytes, failure: Exception | None, rest: Any, returns: bool):
    self.beginning = io.BytesIO(beginning)
    self.failure = failure
    self.rest = rest
    self.returns = returns

  def readable(self) -> bool:
    """Returns True, as io.BufferedReader wants to hear before it reads."""
    return True

  def readinto(self, buffer) -> int:
    """Fills a buffer with the next bytes and returns how many there were, 0 at the end. Raises what broke off the first
    reading."""
    content = self.beginning.read(len(buffer))
    if not content:
      if self.failure:
        raise self.failure
      content = self.rest.read(len(buffer))
    if self.returns:
      content = content.replace(b'\r', b'\n')
    buffer[:len(content)] = content
    return len(content)


def refuse_binary(file: epath.Path, beginning: bytes) -> None:
  """Raises SourceError for what is seen from its first bytes to be no text."""
  found = next((name for magic, name in BINARY.items() if beginning.startswith(magic)), '')
  if beginning[257:262] == b'ustar':
    found = 'a tar archive'
  elif not found and beginning[:4096].count(0) > len(beginning[:4096]) // 4:
    found = 'no text: it is full of zero bytes (UTF-16 without a mark?)'
  if found:
    raise SourceError(f'{file} is {found}. Expected text in UTF-8, a paragraph a line, or JSON lines, each plain, .gz, '
                      '.xz or .bz2')


BINARY = {
    b'PAR1': 'a Parquet file, and its name does not end in .parquet',
    b'ARROW1': 'an Arrow file', b'%PDF': 'a PDF',
    b'PK\x03\x04': 'a zip archive (.docx, .xlsx, .epub and .npz are ones)',
    b'\x1f\x8b': 'packed by gzip, and its name does not end in .gz',
    b'\xfd7zXZ\0': 'packed by xz, and its name does not end in .xz',
    b'BZh': 'packed by bzip2, and its name does not end in .bz2',
    b'\x28\xb5\x2f\xfd': 'packed by zstd', b'7z\xbc\xaf': 'a 7z archive', b'Rar!': 'a rar archive',
    b'\x89HDF': 'an HDF5 file', b'SQLite format 3': 'an SQLite database', b'\x93NUMPY': 'an array of numpy',
    b'\xd0\xcf\x11\xe0': 'a Word or Excel file', b'{\\rtf': 'an RTF file', b'\x89PNG': 'a picture',
    b'\xff\xd8\xff': 'a picture', b'\x7fELF': 'a program', b'\xff\xfe': 'in UTF-16', b'\xfe\xff': 'in UTF-16',
}
