"""Files of word vectors: formats of word2vec, GloVe and fastText.

gensim reads all of them.

    word2vec text, .vec    a line `words width`, then a line `word value ... value` for each word
    word2vec binary        that line, then for each word its name, a space, its values as float32
    GloVe text             word2vec's text without the first line
    fastText's .bin        see `fasttext_bin`

The content at the beginning of the file determines the format, not its name; .gz and .xz are
unpacked. The first line, if it states sizes, has to agree with the content. Words contain no white
space, except in GloVe's files, some of which have words with spaces.
"""
import collections
from collections.abc import Iterator
import contextlib
import gzip
import io
import lzma
import os
import re
from typing import Any, Literal

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import UserError
from plm_jax.word_vectors import fasttext_bin
from plm_jax.word_vectors.vectors import WordVectors

FileFormat = Literal['text', 'binary', 'glove']
MAX_WORD_BYTES = 1 << 16
MAX_WIDTH = 1 << 20
PEEK_BYTES = 1 << 20
NUMBER = re.compile(
    rb'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)', re.IGNORECASE)
CONTROL_BYTES = re.compile(rb'[\x00-\x08\x0e-\x1f\x7f]')  # bytes that no text contains


class VectorsError(UserError):
  """A file that holds no word vectors, or damaged ones."""


def load(path: epath.PathLike) -> WordVectors:
  """Load word vectors of a run, or of a file in any of these formats.

  Raises:
    VectorsError: the file is damaged; the message names the line or the word.
    FastTextError: the same of a .bin.
    CheckpointError: the same of a run.
  """
  path = storage.resolve_path(path)
  with storage.io_errors_as(path, 'read', VectorsError):
    is_folder = path.is_dir()
  if is_folder:
    from plm_jax.word_vectors.train import load_run  # training is not needed to read a file
    run, words, params = load_run(path)
    return run.model.make_vectors(params, words)
  with open_unpacked(path) as file:
    beginning = file.peek(PEEK_BYTES)
    if beginning.startswith(fasttext_bin.MAGIC):
      return fasttext_bin.read(file, path).vectors
    header = read_header(beginning)
    if header is None:
      return read_text(file, path, None, text_width(beginning))
    if not all(header):
      raise VectorsError(f'{path}: the first line says {header[0]} words of {header[1]} values')
    file.readline()
    content = beginning.partition(b'\n')[2]
    if is_text(content):
      return read_text(file, path, header, text_width(content))
    check_size(path, header, len(beginning) - len(content))
    return read_binary(file, path, header)


@contextlib.contextmanager
def open_unpacked(path: epath.Path) -> Iterator[io.BufferedReader]:
  """Open a file, unpacked, as a byte stream with a large peek buffer."""
  with contextlib.ExitStack() as stack:
    with storage.io_errors_as(path, 'read', VectorsError):
      packed = stack.enter_context(storage.open_stream(path))
    unpack = {'.gz': gzip.open, '.xz': lzma.open}.get(path.suffix.lower())
    raw: Any = unpack(packed) if unpack else packed
    file = stack.enter_context(io.BufferedReader(raw, PEEK_BYTES))
    try:
      yield file
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
      raise VectorsError(f'{path}: damaged or cut off: {error}') from error


def read_header(beginning: bytes) -> tuple[int, int] | None:
  """Return the sizes in a first line `words width`; None: the file starts with a word."""
  numbers = beginning.partition(b'\n')[0].split()
  if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
    return None
  return int(numbers[0]), int(numbers[1])


def count_numbers(line: bytes) -> int:
  """Count the numbers at the end of a line; the first field is always a word."""
  fields = line.rstrip(b' \r\n').split(b' ')[1:]
  count = 0
  while count < len(fields) and NUMBER.fullmatch(fields[-1 - count]):
    count += 1
  return count


def is_text(content: bytes) -> bool:
  """Return whether the vectors after the line of sizes are digits, not bytes of float32."""
  line = content.partition(b'\n')[0]
  if CONTROL_BYTES.search(line):
    return False
  # Also after a damaged line, text has no control bytes; binary values do.
  return count_numbers(line) > 0 or not CONTROL_BYTES.search(content[:4096])


def text_width(content: bytes) -> int:
  """Return the number of values that most lines have; 0 where no line ends in a number.

  The largest of several that are equally frequent, so that a line that is cut off is refused.
  """
  *lines, last = content.split(b'\n')
  if not lines or (len(content) < PEEK_BYTES and last):
    lines.append(last)
  counts = collections.Counter(count_numbers(line) for line in lines if line.strip())
  return max(counts, key=lambda width: (counts[width], width), default=0)


def check_size(path: epath.Path, header: tuple[int, int], start: int) -> None:
  """Check the sizes that a binary file states against its length. Raises VectorsError."""
  words, width = header
  if width > MAX_WIDTH:
    raise VectorsError(f'{path}: the first line says vectors of {width:,} values, expected '
                       f'{MAX_WIDTH:,} at most')
  if storage.is_remote(path) or path.suffix.lower() in ('.gz', '.xz'):
    return
  least = start + words * (4 * width + 2)  # a word has a byte, and a space after it
  size = os.stat(path).st_size
  if size < least:
    raise VectorsError(
        f'{path}: the first line says {words:,} words of {width:,} values, which take {least:,} '
        f'bytes at least, and the file has {size:,}: it is cut off, or the first line is wrong')


@np.errstate(over='ignore')  # numbers beyond float32 become infinite, which `make_vectors` refuses
def read_text(
    file: io.BufferedReader, path: epath.Path, header: tuple[int, int] | None,
    width: int) -> WordVectors:
  """Read lines of a word and its values.

  Args:
    file: at the first word.
    path: of the file, for messages.
    header: number of words and of values that the first line states; None: there is no such line.
    width: number of values on most lines at the beginning of the file.

  Raises:
    VectorsError: damaged lines, or a header that does not agree with them; the message names the
      line.
  """
  words: list[str] = []
  rows: list[np.ndarray] = []
  first = 1
  if header:
    first = 2
    if width and header[1] != width:
      raise VectorsError(
          f'{path}: the first line says {header[0]:,} words of {header[1]:,} values, and the lines '
          f'after it have {width:,} values')
    width = header[1]
  for number, line in enumerate(file, first):
    fields = line.rstrip(b' \r\n').split(b' ')
    where = f'{path}:{number}'
    if width < 1 or len(fields) <= width:
      raise VectorsError(
          f'{where}: expected a word and {width or "its"} values, got {line[:60]!r}')
    try:
      if b'_' in line and any(b'_' in field for field in fields[-width:]):
        raise ValueError('digits with underscores')
      words.append(b' '.join(fields[:-width]).decode())
      rows.append(np.array(fields[-width:], np.float32))
    except ValueError as error:
      reason = str(error)[:100]
      raise VectorsError(
          f'{where}: expected a word in UTF-8 and {width} numbers: {reason}') from error
  if not words:
    raise VectorsError(f'{path} is empty: expected word vectors')
  if header and len(words) != header[0]:
    raise VectorsError(f'{path}: the first line says {header[0]:,} words, and there are '
                       f'{len(words):,}: is it cut off?')
  return make_vectors(words, np.stack(rows), path)


def read_binary(
    file: io.BufferedReader, path: epath.Path, header: tuple[int, int]) -> WordVectors:
  """Read words and their values as bytes of float32.

  word2vec.c ends each vector with a newline, gensim does not; a file does one or the other
  throughout.

  Raises:
    VectorsError: the file is damaged; the message names the word.
  """
  number, width = header
  words: list[str] = []
  rows: list[np.ndarray] = []  # grows with the file, whatever size its first line states
  newline = b''
  for place in range(number):
    where = f'word {place + 1:,} of {number:,}'
    name = bytearray()
    while (byte := file.read(1)) != b' ':
      if not byte or len(name) > MAX_WORD_BYTES:
        state = 'cut off' if not byte else 'damaged'
        raise VectorsError(f'{path}: {state} at {where}')
      name += byte
    if place:
      if place == 1 and name.startswith(b'\n'):
        newline = b'\n'
      if not name.startswith(newline):
        raise VectorsError(f'{path}: damaged before {where}: expected the end of a line')
      name = name[len(newline):]
    content = file.read(4 * width)
    if len(content) < 4 * width:
      raise VectorsError(f'{path}: cut off in the values of {where}')
    try:
      word = name.decode()
    except UnicodeDecodeError as error:
      raise VectorsError(f'{path}: {where} is not UTF-8: {bytes(name[:40])!r}') from error
    if not word or CONTROL_BYTES.search(name) or word.split() != [word]:
      raise VectorsError(f'{path}: {where} is {word[:40]!r}, which no such file holds: it is '
                         'damaged, or its first line is wrong')
    words.append(word)
    rows.append(np.frombuffer(content, '<f4'))
  left = file.read(MAX_WORD_BYTES)
  expected_ends = (newline,) if number > 1 else (b'', b'\n')
  if left not in expected_ends:
    problem = f'{len(left):,} bytes or more follow' if left else 'no end of a line follows'
    raise VectorsError(f'{path}: {problem} the last of {number:,} words: it is damaged, or its '
                       'first line is wrong')
  return make_vectors(words, np.stack(rows), path)


def make_vectors(words: list[str], matrix: np.ndarray, path: epath.Path) -> WordVectors:
  """Make word vectors of what was read; of a repeated word the first vector counts, as in gensim.

  Raises:
    VectorsError: values are not finite.
  """
  if not np.isfinite(matrix).all():
    row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
    raise VectorsError(f'{path}: the vector of {words[row]!r} has values that are not finite')
  if len(set(words)) < len(words):
    first_rows: dict[str, int] = {}
    for row, word in enumerate(words):
      first_rows.setdefault(word, row)
    return WordVectors(tuple(first_rows), matrix[list(first_rows.values())])
  return WordVectors(tuple(words), matrix)


def save(vectors: WordVectors, path: epath.PathLike, form: FileFormat = 'text') -> None:
  """Write word vectors; text has as many digits as restore the values exactly.

  Args:
    vectors: word vectors.
    path: of the file.
    form: word2vec's text format, its binary format, or GloVe's text format.

  Raises:
    VectorsError: a word contains white space, which the formats cannot hold.
  """
  for word in vectors.words:
    if not word or word.split() != [word]:
      raise VectorsError(
          f'{path}: the word {word!r} holds white space, which files of word vectors cannot')
  words, width = vectors.matrix.shape
  with storage.atomic_writer(path, VectorsError) as file:
    if form != 'glove':
      file.write(f'{words} {width}\n'.encode())
    for word, row in zip(vectors.words, vectors.matrix.astype('<f4'), strict=True):
      if form == 'binary':
        file.write(word.encode() + b' ' + row.tobytes() + b'\n')
      else:
        file.write(f'{word} {" ".join(map(str, row))}\n'.encode())
