"""Files of word vectors: word2vec's text and binary, GloVe's text, fastText's .vec and .bin. gensim reads all of them.

    word2vec text, .vec     a line `words width`, then a line `word value ... value` for each word
    word2vec binary         that line, then for each word its name, a space, and its values as float32
    GloVe text              word2vec's text without the first line
    fastText's .bin         see `fasttext_bin`

Which of them a file is, is seen from its beginning; .gz and .xz are read through. A word holds no white space but in
GloVe's files, some of which have words with spaces.
"""
from collections.abc import Iterator
import contextlib
import gzip
import io
import lzma
from typing import Any, Literal

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import Expected
from plm_jax.vectors import fasttext_bin
from plm_jax.vectors.words import WordVectors

Format = Literal['text', 'binary', 'glove']
LONGEST = 1 << 16  # bytes of a word
PEEK = 1 << 20


class VectorsError(Expected):
  """A file that holds no word vectors, or damaged ones."""


def load(path: epath.PathLike) -> WordVectors:
  """Loads word vectors: of a run, or of a file in any of these formats. Raises VectorsError, which names the file and
  the line or the word, FastTextError, and for a run CheckpointError."""
  path = storage.path_of(path)
  with storage.explained(path, 'read', VectorsError):
    folder = path.is_dir()
  if folder:
    from plm_jax.vectors.train import restored  # what trains is not needed to read a file
    run, words, params = restored(path)
    return run.model.vectors(params, words)
  with opened(path) as file:
    beginning = file.peek(PEEK)
    if beginning.startswith(fasttext_bin.MAGIC):
      return fasttext_bin.read(file, path).vectors
    header = sized(beginning)
    if header is None:
      return read_text(file, path, None)
    if not all(header):
      raise VectorsError(f'{path}: the first line says {header[0]} words of {header[1]} values')
    file.readline()
    return (read_text if textual(beginning, header[1]) else read_binary)(file, path, header)


@contextlib.contextmanager
def opened(path: epath.Path) -> Iterator[io.BufferedReader]:
  """Opens a file, unpacked, as bytes with room to look ahead."""
  with contextlib.ExitStack() as stack:
    with storage.explained(path, 'read', VectorsError):
      packed = stack.enter_context(storage.open_text(path))
    unpack = {'.gz': gzip.open, '.xz': lzma.open}.get(path.suffix.lower())
    raw: Any = unpack(packed) if unpack else packed
    file = stack.enter_context(io.BufferedReader(raw, PEEK))
    try:
      yield file
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
      raise VectorsError(f'{path}: damaged or cut off: {error}') from error


def sized(beginning: bytes) -> tuple[int, int] | None:
  """Reads the line `words width` that a file may begin with; None: it begins with a word."""
  numbers = beginning.partition(b'\n')[0].split()
  if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
    return None
  return int(numbers[0]), int(numbers[1])


def textual(beginning: bytes, width: int) -> bool:
  """Tells whether the first vector behind the line of sizes is written in letters."""
  line = beginning.partition(b'\n')[2].partition(b'\n')[0].split()
  try:
    return len([float(number) for number in line[1:]]) == width
  except ValueError:
    # Cut in the middle of a number, or letters: which, the error will say of the line. Binaries hold other bytes.
    return all(byte >= 9 for byte in beginning[:4096])


def read_text(file: io.BufferedReader, path: epath.Path, header: tuple[int, int] | None) -> WordVectors:
  """Reads lines of a word and its values. header: number of words, and of values; None: those that there are, as many
  values as the first line has. Raises VectorsError that names the line."""
  words: list[str] = []
  rows: list[np.ndarray] = []
  width = header[1] if header else 0
  first = 2 if header else 1
  for number, line in enumerate(file, first):
    fields = line.rstrip(b' \r\n').split(b' ')
    if not width:
      width = len(fields) - 1
    where = f'{path}:{number}'
    if width < 1 or len(fields) <= width:
      raise VectorsError(f'{where}: expected a word and {width or "its"} values, got {line[:60]!r}')
    try:
      words.append(b' '.join(fields[:-width]).decode())
      rows.append(np.array(fields[-width:], np.float32))
    except ValueError as error:
      raise VectorsError(f'{where}: expected a word in UTF-8 and {width} numbers: {str(error)[:100]}') from error
  if not words:
    raise VectorsError(f'{path} is empty: expected word vectors')
  if header and len(words) != header[0]:
    raise VectorsError(f'{path}: the first line says {header[0]:,} words, and there are {len(words):,}: is it cut off?')
  return distinct(words, np.stack(rows), path)


def read_binary(file: io.BufferedReader, path: epath.Path, header: tuple[int, int]) -> WordVectors:
  """Reads words and their values as bytes. Raises VectorsError that names the word."""
  number, width = header
  words: list[str] = []
  rows: list[np.ndarray] = []  # grows with the file, whatever its first line claims
  for place in range(number):
    name = bytearray()
    while (byte := file.read(1)) != b' ':
      if not byte or len(name) > LONGEST:
        raise VectorsError(f'{path}: {"cut off" if not byte else "damaged"} at word {place + 1:,} of {number:,}')
      name += byte
    content = file.read(4 * width)
    if len(content) < 4 * width:
      raise VectorsError(f'{path}: cut off in the values of word {place + 1:,} of {number:,}')
    try:
      words.append(name.lstrip(b'\n').decode())
    except UnicodeDecodeError as error:
      raise VectorsError(f'{path}: word {place + 1:,} is not UTF-8: {bytes(name[:40])!r}') from error
    rows.append(np.frombuffer(content, '<f4'))
  return distinct(words, np.stack(rows), path)


def distinct(words: list[str], matrix: np.ndarray, path: epath.Path) -> WordVectors:
  """Makes vectors of what was read; of a word that comes again the first vector counts, as in gensim. Raises
  VectorsError for values that are not finite."""
  if not np.isfinite(matrix).all():
    row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
    raise VectorsError(f'{path}: the vector of {words[row]!r} has values that are not finite')
  if len(set(words)) < len(words):
    rows = [*{word: row for row, word in reversed([*enumerate(words)])}.values()][::-1]
    return WordVectors(tuple(words[row] for row in sorted(rows)), matrix[sorted(rows)])
  return WordVectors(tuple(words), matrix)


def save(vectors: WordVectors, path: epath.PathLike, form: Format = 'text') -> None:
  """Writes word vectors: word2vec's text, its binary, or GloVe's text. Values are written with as many digits as bring
  them back to the bit. Raises VectorsError for a word with white space, which the formats cannot hold."""
  if wrong := next((word for word in vectors.words if not word or word.split() != [word]), None):
    raise VectorsError(f'{path}: the word {wrong!r} holds white space, which files of word vectors cannot')
  words, width = vectors.matrix.shape
  with storage.drafted(path, VectorsError) as file:
    if form != 'glove':
      file.write(f'{words} {width}\n'.encode())
    for word, row in zip(vectors.words, vectors.matrix.astype('<f4'), strict=True):
      if form == 'binary':
        file.write(word.encode() + b' ' + row.tobytes() + b'\n')
      else:
        file.write(f'{word} {" ".join(map(str, row))}\n'.encode())
