"""Lines and table rows of text files, compressed or not, and the handling of unreadable ones."""
import bz2
import codecs
from collections.abc import Iterator
import contextlib
import dataclasses
import gzip
import io
import json
import lzma
from typing import Any, Literal
import zlib

from etils import epath

from plm_jax import storage
from plm_jax.errors import UserError, add_advice, name_field
from plm_jax.sources import charsets

OnError = Literal['refuse', 'skip']
MAX_LINE = 1 << 24  # bytes; a longer line is no line of text, and memory is bounded
BEGINNING_BYTES = 1 << 20  # by which the format of a file is detected


class SourceError(UserError):
  """Text that is missing or cannot be read."""


@dataclasses.dataclass
class ReadStats:
  """What happened while text was read; readers update it."""

  bytes: int = 0  # read so far, as stored on disk
  skipped: int = 0  # lines left out
  examples: list[str] = dataclasses.field(default_factory=list)  # the first: 'file:line: reason'
  split_documents: int = 0  # documents over MAX_DOCUMENT that were split
  # Files in which every line is a document:
  line_divided: list[str] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)  # unusual ways of reading a file
  # Of each of several files: number of documents, and digest of their text.
  files: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
  encoding_guessed: bool = False  # an example already has a guess of the text's encoding

  def add_skipped(self, problem: str) -> None:
    """Count a line that is left out, and keep the problem as an example."""
    self.skipped += 1
    self.add_example(problem)

  def add_example(self, problem: str) -> None:
    """Keep a problem, if it is one of the first ten."""
    if len(self.examples) < 10:
      self.examples.append(problem)


def report_problem(problem: str, on_error: OnError, stats: ReadStats) -> None:
  """Raise SourceError for a problem of the source with 'refuse'; count it with 'skip'."""
  if on_error == 'refuse':
    advice = f'. Fix it, or leave such lines out with {name_field("on_error")}=skip.'
    raise SourceError(problem + add_advice(advice))
  stats.add_skipped(problem)


def describe_skipped(stats: ReadStats) -> str:
  """Return how many lines were left out and why, for a source with no text left; '' if none."""
  if not stats.skipped:
    return ''
  return f': {stats.skipped:,} lines were left out, the first because of {stats.examples[0]}'


@dataclasses.dataclass
class TextFile:
  """An open text file, decompressed."""

  file: epath.Path
  packed: io.BufferedReader  # its `tell` counts bytes as stored on disk
  text: 'io.BufferedReader[ReplayedStream]'
  beginning: bytes
  whole: bool  # the beginning is the whole file
  encoding: str = charsets.UTF_8  # of the file; `text` is UTF-8
  returns: bool = False  # carriage returns and newlines have changed places in `text`


@contextlib.contextmanager
def open_text_file(file: epath.Path, encoding: str = charsets.UTF_8) -> Iterator[TextFile]:
  """Open a text file, plain, .gz, .xz or .bz2, and convert it to UTF-8.

  The lines of a file with carriage returns only end with newlines then, and the few newlines after
  its beginning become carriage returns (`TextFile.returns`).

  Raises:
    SourceError: the file is not text; the message names what it seems to be.
  """
  with contextlib.ExitStack() as stack:
    with storage.io_errors_as(file, 'read', SourceError):
      packed = stack.enter_context(storage.open_stream(file))
    unpack = {'.gz': gzip.open, '.xz': lzma.open, '.bz2': bz2.open}.get(file.suffix.lower())
    if unpack and not packed.peek(1):
      raise SourceError(f'{file}: damaged or cut off: it is empty')
    unpacked: Any = stack.enter_context(unpack(packed)) if unpack else packed
    beginning, failure = read_beginning(unpacked)
    utf_8 = charsets.is_utf_8(encoding)
    if not unpack or not failure:
      check_not_binary(file, beginning, utf_8)
    whole = failure is None and len(beginning) < BEGINNING_BYTES
    if not utf_8:
      replayed = ReplayedStream(beginning, failure, unpacked, False)
      unpacked = io.BufferedReader(charsets.TranscodedStream(replayed, encoding), 1 << 16)
      beginning, failure = read_beginning(unpacked)
    # Old Macintosh files have carriage returns only.
    returns = b'\r' in beginning and b'\n' not in beginning
    text = io.BufferedReader(ReplayedStream(beginning, failure, unpacked, returns), 1 << 16)
    if returns:
      beginning = beginning.translate(SWAP_RETURNS)
    yield TextFile(file, packed, text, beginning, whole, encoding, returns)


def read_lines(file: epath.Path, on_error: OnError, stats: ReadStats,
               encoding: str = charsets.UTF_8) -> Iterator[tuple[int, str]]:
  """Yield (number, text) of every line of a file, see `number_lines`."""
  with open_text_file(file, encoding) as opened:
    yield from number_lines(opened, on_error, stats)


def number_lines(opened: TextFile, on_error: OnError, stats: ReadStats, exact: bool = False
                 ) -> Iterator[tuple[int, str]]:
  """Yield (number from 1, text without newline) of every line; only '\\n' ends a line.

  Args:
    opened: the file.
    on_error: 'skip' counts invalid lines in `stats`.
    stats: is updated.
    exact: yield lines with their line ends, so that together they are the file without its byte
      order mark.

  Raises:
    SourceError: a line is invalid in the file's encoding or too long ('skip' counts it), or an
      archive is damaged.
  """
  name, start, offset = str(opened.file), stats.bytes, 0
  for number, line in enumerate(raw_lines(opened), 1):
    where = f'{name}:{number}'
    place = f'byte {offset} of the file'
    offset += len(line)
    if number % 256 == 0:
      stats.bytes = start + opened.packed.tell()
    if len(line) > MAX_LINE:
      problem = f'{where}: a line of more than {MAX_LINE >> 20} MiB ({place}); is this text?'
      report_problem(problem, on_error, stats)
      continue
    if number == 1:
      line = line.removeprefix(b'\xef\xbb\xbf')  # the byte order mark that some editors write
    text = decode_line(line, where, on_error, stats, f' ({place})', opened)
    if text is None:
      continue
    if not exact:
      text = strip_line_end(text)
    elif opened.returns:
      text = text.translate(SWAP_RETURNS_IN_TEXT)
    yield number, text


def strip_line_end(line: str) -> str:
  """Return a line without the newline, and the carriage return before it, at its end."""
  return line.removesuffix('\n').removesuffix('\r')


def raw_lines(opened: TextFile) -> Iterator[bytes]:
  """Yield every line, as bytes; those over MAX_LINE bytes are truncated to MAX_LINE + 1."""
  number, inside = 0, False  # inside: a line that is too long
  while True:
    with archive_errors(opened, f'line {number}'):
      line = opened.text.readline(MAX_LINE + 1)
    if not line:
      return
    if not inside:
      number += 1
      yield line
    inside = len(line) > MAX_LINE and not line.endswith(b'\n')


@contextlib.contextmanager
def archive_errors(opened: TextFile, last: str) -> Iterator[None]:
  """Convert errors of damaged archives and of reading into SourceError.

  last: the last part that was read successfully, for the message.
  """
  try:
    with storage.io_errors_as(opened.file, 'read', SourceError):
      try:
        yield
      except OSError as error:
        if error.errno is not None:
          raise
        raise EOFError(error) from error  # of gzip and bz2: the archive, not the disk
  except (EOFError, lzma.LZMAError, zlib.error) as error:
    raise SourceError(f'{opened.file}: damaged or cut off after {last}: {error}') from error


def decode_line(line: bytes, where: str, on_error: OnError, stats: ReadStats, place: str = '',
                opened: TextFile | None = None) -> str | None:
  """Decode UTF-8; return None for invalid text that is to be skipped.

  The first error message names the probable encoding of the text.

  Args:
    line: bytes of the line.
    where: 'file:line', for messages.
    on_error: 'skip' counts invalid lines in `stats`.
    stats: is updated.
    place: byte offset of the line, for messages.
    opened: the file of the line.
  """
  try:
    return line.decode()
  except UnicodeDecodeError as error:
    if opened and not charsets.is_utf_8(opened.encoding):
      report_problem(f'{where}: not {opened.encoding}', on_error, stats)
      return None
    problem = f'{where}: not UTF-8: {error.reason} at byte {error.start} of the line{place}'
    if not stats.encoding_guessed:
      advice = charsets.encoding_advice(encoding_sample(line, opened))
      stats.encoding_guessed = True
      if advice and on_error == 'refuse':
        skip = add_advice(f', or leave such lines out with {name_field("on_error")}=skip')
        raise SourceError(f'{problem}; {advice}{skip}') from error
      if advice:
        problem += f'; {advice}'
    report_problem(problem, on_error, stats)
    return None


def encoding_sample(line: bytes, opened: TextFile | None) -> bytes:
  """Return the text by which to guess the encoding of an invalid line.

  The beginning of its file, or the line where that beginning is ASCII. Nothing where other text of
  the file is valid UTF-8.
  """
  if not opened:
    return line
  valid = opened.beginning
  try:
    codecs.getincrementaldecoder('utf-8')().decode(valid)
  except UnicodeDecodeError as error:
    valid = valid[:error.start]
  if not valid.isascii():
    return b''
  return line if len(valid) == len(opened.beginning) else opened.beginning


def parse_json_line(line: str, where: str, on_error: OnError, stats: ReadStats
                    ) -> dict[str, Any] | None:
  """Parse the JSON object of a line; return None if it is invalid and is to be skipped."""
  try:
    value = json.loads(line)
    if isinstance(value, dict):
      return value
    problem = f'an object is expected, got {line[:40]}'
  except RecursionError:
    problem = 'not JSON that can be read: values too deep inside one another'
  except ValueError as error:  # not JSON, or a number of thousands of digits
    problem = f'not JSON: {str(error)[:200]}'
  report_problem(f'{where}: {problem}', on_error, stats)
  return None


def join_lines(file: epath.Path, lines: Iterator[tuple[int, str]]) -> str:
  """Join the lines of a file that is one JSON value. Raises SourceError for a large file."""
  found, length = [], 0
  for _, line in lines:
    found.append(line)
    length += len(line)
    if length > storage.READ_LIMIT:
      raise SourceError(
          f'{file} is one JSON value of over {storage.READ_LIMIT >> 20} MiB, which is read as a '
          'whole: write a line for each document or row instead (.jsonl)')
  return '\n'.join(found)


def read_beginning(stream: Any) -> tuple[bytes, Exception | None]:
  """Read the beginning of a stream -> its bytes, and the error that ended it early."""
  beginning = bytearray()
  try:
    while len(beginning) < BEGINNING_BYTES:
      part = stream.read(min(1 << 16, BEGINNING_BYTES - len(beginning)))
      if not part:
        break
      beginning += part
  except Exception as failure:  # raised later, after the bytes before it have been read
    return bytes(beginning), failure
  return bytes(beginning), None


class ReplayedStream(io.RawIOBase):
  """A stream that is read again from its beginning, which was read already.

  Args:
    beginning: bytes that were read.
    failure: the error that ended that reading, raised again after the beginning; None: no error.
    rest: the stream after the beginning.
    returns: swap carriage returns and newlines.
  """

  def __init__(self, beginning: bytes, failure: Exception | None, rest: Any, returns: bool):
    self.beginning = io.BytesIO(beginning)
    self.failure = failure
    self.rest = rest
    self.returns = returns

  def readable(self) -> bool:
    """Return True, which io.BufferedReader checks."""
    return True

  def readinto(self, buffer) -> int:
    """Fill a buffer with the next bytes; return their number, 0 at the end."""
    content = self.beginning.read(len(buffer))
    if not content:
      if self.failure:
        raise self.failure
      content = self.rest.read(len(buffer))
    if self.returns:
      content = content.translate(SWAP_RETURNS)
    buffer[:len(content)] = content
    return len(content)


def check_not_binary(file: epath.Path, beginning: bytes, utf_8: bool = True) -> None:
  """Raise SourceError for a file that is no text, judging by its first bytes.

  Args:
    file: for messages.
    beginning: of the file.
    utf_8: UTF-8 is expected; text in another encoding may have zero bytes.
  """
  for mark, name in BYTE_ORDER_MARKS.items():
    if utf_8 and beginning.startswith(mark):
      advice = add_advice(f'give {name_field("encoding")}={name}',
                          f'convert it to UTF-8 (iconv -f {name.upper()} -t UTF-8)')
      raise SourceError(f'{file} is in {name.upper()}: {advice}')
  found = next((name for magic, name in BINARY_MAGIC.items() if beginning.startswith(magic)), '')
  if beginning[257:262] == b'ustar':
    found = 'a tar archive'
  elif not found and utf_8 and (
      charsets.detect_utf_16(beginning) or charsets.detect_iso_2022(beginning)):
    raise SourceError(f'{file} is not UTF-8; {charsets.encoding_advice(beginning)}')
  elif not found and utf_8 and beginning[:4096].count(0) > len(beginning[:4096]) // 4:
    found = 'no text: it is full of zero bytes'
  if found:
    raise SourceError(f'{file} is {found}. Expected text in UTF-8, one paragraph per line, or JSON '
                      'lines, each plain, .gz, .xz or .bz2')


SWAP_RETURNS = bytes.maketrans(b'\r\n', b'\n\r')
SWAP_RETURNS_IN_TEXT = str.maketrans('\r\n', '\n\r')
BYTE_ORDER_MARKS = {
    b'\xff\xfe\0\0': 'utf-32', b'\0\0\xfe\xff': 'utf-32', b'\xff\xfe': 'utf-16',
    b'\xfe\xff': 'utf-16'}
BINARY_MAGIC = {
    b'PAR1': 'a Parquet file, and its name does not end in .parquet',
    b'ARROW1': 'an Arrow file', b'%PDF': 'a PDF',
    b'PK\x03\x04': 'a zip archive (.docx, .xlsx, .epub and .npz are ones)',
    b'\x1f\x8b': 'packed by gzip, and its name does not end in .gz',
    b'\xfd7zXZ\0': 'packed by xz, and its name does not end in .xz',
    b'BZh': 'packed by bzip2, and its name does not end in .bz2',
    b'\x28\xb5\x2f\xfd': 'packed by zstd', b'7z\xbc\xaf': 'a 7z archive', b'Rar!': 'a rar archive',
    b'\x89HDF': 'an HDF5 file', b'SQLite format 3': 'an SQLite database',
    b'\x93NUMPY': 'an array of numpy', b'\xd0\xcf\x11\xe0': 'a Word or Excel file',
    b'{\\rtf': 'an RTF file', b'\x89PNG': 'a picture', b'\xff\xd8\xff': 'a picture',
    b'\x7fELF': 'a program',
}
