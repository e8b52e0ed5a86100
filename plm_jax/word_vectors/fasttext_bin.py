"""fastText's .bin format, version 12 (and 11), byte for byte.

facebookresearch/fastText, src/fasttext.cc saveModel, args.cc, dictionary.cc and densematrix.cc:

    magic, version                                   int32 each
    arguments                                        twelve int32, a double
    dictionary: size, words, labels                  int32 each
                tokens of the text, pruned n-grams   int64 each; -1: none were pruned
                word, 0, count, type                 bytes, a byte, int64, int8: 0 a word, 1 a label
    is the input quantized?                          a byte
    input: rows, columns, values                     int64, int64, float32
    is the output quantized? output                  the same
"""
import dataclasses
import io
import struct
from typing import Any

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import UserError
from plm_jax.word_vectors.subwords import SubwordRows, Subwords, compose_vectors
from plm_jax.word_vectors.vectors import WordVectors

MAGIC = struct.pack('<i', 793712314)
VERSION = 12
ARGUMENTS_FORMAT = struct.Struct('<12id')
LOSSES = {'hierarchical': 1, 'negative': 2, 'softmax': 3, 'one-vs-all': 4}
MODELS = {'cbow': 1, 'skip-gram': 2, 'supervised': 3}
ENTRY_FORMAT = struct.Struct('<qb')
MAX_WORD_BYTES = 1 << 16
MAX_WIDTH = 1 << 20
VALUES_AT_ONCE = 1 << 24  # values that are read at once


class FastTextError(UserError):
  """A .bin that is damaged, or holds what is not supported."""


@dataclasses.dataclass(frozen=True)
class FastTextArguments:
  """fastText's command-line arguments, in the order of the file."""

  width: int
  window: int
  epochs: int
  least: int
  negatives: int
  word_ngrams: int
  loss: int
  model: int
  buckets: int
  shortest: int
  longest: int
  rate_every: int
  threshold: float


@dataclasses.dataclass(frozen=True)
class FastTextModel:
  """The content of a .bin. Bytes of words that are not UTF-8 are lone surrogates in strings."""

  arguments: FastTextArguments
  words: tuple[str, ...]
  labels: tuple[str, ...]
  counts: tuple[int, ...]  # of words, then of labels
  tokens: int
  inputs: np.ndarray  # [words + buckets, D]
  outputs: np.ndarray  # [words, or labels, D]
  version: int = VERSION

  @property
  def subwords(self) -> Subwords:
    """The n-grams that have vectors: none in classifiers of version 11 (fasttext.cc loadModel)."""
    arguments = self.arguments
    has_none = self.version == 11 and arguments.model == MODELS['supervised']
    longest = 0 if has_none else arguments.longest
    return Subwords(arguments.shortest, longest, arguments.buckets)

  @property
  def vectors(self) -> WordVectors:
    """Vectors of the words, and of any other word by its n-grams."""
    subwords = self.subwords
    rows = SubwordRows.build(self.words, subwords)
    return compose_vectors(self.words, self.inputs, subwords, rows)


def load(path: epath.PathLike) -> FastTextModel:
  """Load a .bin. Raises FastTextError."""
  path = storage.resolve_path(path)
  with storage.io_errors_as(path, 'read', FastTextError), storage.open_stream(path) as file:
    return read(file, path)


def read(file: io.BufferedReader, path: epath.PathLike) -> FastTextModel:
  """Read a .bin from its beginning.

  Raises:
    FastTextError: it is damaged or not supported; the message names the file and the place.
  """
  reader = FastTextReader(file, path)
  if reader.read_bytes(4, 'the magic number') != MAGIC:
    raise FastTextError(f'{path} is no .bin of fastText: it begins with other bytes')
  version, = reader.read_numbers('<i', 'the version')
  if version not in (11, 12):
    raise FastTextError(f'{path} is of version {version}: 11 and 12 are read')
  arguments = FastTextArguments(*reader.read_numbers(ARGUMENTS_FORMAT.format, 'the arguments'))
  size, words, labels, tokens, pruned = reader.read_numbers('<iiiqq', 'the dictionary')
  if (words < 0 or labels < 0 or size != words + labels
      or not 1 <= arguments.width <= MAX_WIDTH):
    raise FastTextError(
        f'{path}: damaged: {size} entries of {words} words and {labels} labels, width '
        f'{arguments.width}')
  if wrong := invalid_arguments(arguments):
    raise FastTextError(f'{path}: damaged: {", ".join(wrong)}')
  if pruned >= 0:
    raise FastTextError(f'{path} has pruned n-grams, as quantized models do: give the .bin that it '
                        'was made from')
  entries, counts = [], []
  for number in range(size):
    entries.append(reader.read_word(number, size))
    count, kind = reader.read_numbers(ENTRY_FORMAT.format, f'entry {number + 1:,} of {size:,}')
    if kind != (number >= words) or count < 0:
      raise FastTextError(f'{path}: damaged: entry {number + 1:,}, {entries[-1]!r}, is of type '
                          f'{kind} and has the count {count:,}')
    counts.append(count)
  inputs = reader.read_matrix('input', arguments.width, words + max(arguments.buckets, 0))
  outputs = reader.read_matrix('output', arguments.width, None)
  if file.read(1):
    raise FastTextError(f'{path}: there are more bytes after the end of the output')
  return FastTextModel(
      arguments, tuple(entries[:words]), tuple(entries[words:]), tuple(counts), tokens, inputs,
      outputs, version)


def invalid_arguments(arguments: FastTextArguments) -> list[str]:
  """List the arguments, with their values, that fastText does not accept."""
  valid = {
      'loss': arguments.loss in LOSSES.values(),
      'model': arguments.model in MODELS.values(),
      'threshold': 0 <= arguments.threshold < float('inf'),
      'word_ngrams': arguments.word_ngrams >= 1,
  }
  counts = ('window', 'epochs', 'least', 'negatives', 'buckets', 'shortest', 'longest',
            'rate_every')
  valid |= {name: getattr(arguments, name) >= 0 for name in counts}
  return [f'{name} {getattr(arguments, name)}' for name, is_valid in valid.items() if not is_valid]


class FastTextReader:
  """Reads the parts of a .bin, with errors that name the part where the file ends too early."""

  def __init__(self, file: io.BufferedReader, path: epath.PathLike):
    self.file, self.path = file, path

  def read_bytes(self, number: int, what: str) -> bytes:
    """Read bytes. Raises FastTextError where there are fewer."""
    content = self.file.read(number)
    if len(content) < number:
      raise FastTextError(f'{self.path}: cut off in {what}')
    return content

  def read_numbers(self, form: str, what: str) -> tuple[Any, ...]:
    """Read numbers by a format of `struct`."""
    return struct.unpack(form, self.read_bytes(struct.calcsize(form), what))

  def read_word(self, number: int, size: int) -> str:
    """Read a word, which ends with a zero byte."""
    word = bytearray()
    while (byte := self.read_bytes(1, f'entry {number + 1:,} of {size:,}')) != b'\0':
      word += byte
      if len(word) > MAX_WORD_BYTES:
        raise FastTextError(
            f'{self.path}: damaged: entry {number + 1:,} has over {MAX_WORD_BYTES:,} bytes')
    return word.decode(errors='surrogateescape')

  def read_matrix(self, what: str, width: int, rows: int | None) -> np.ndarray:
    """Read a matrix of `rows` rows; None: of as many rows as the file states."""
    quantized, = self.read_numbers('<?', f'the {what}')
    if quantized:
      raise FastTextError(
          f'{self.path}: the {what} is quantized (.ftz), which is not read: give the .bin')
    stated_rows, stated_width = self.read_numbers('<qq', f'the sizes of the {what}')
    if stated_width != width or stated_rows < 0 or rows not in (None, stated_rows):
      expected = 'some' if rows is None else rows
      raise FastTextError(
          f'{self.path}: damaged: the {what} is {stated_rows} x {stated_width}, expected '
          f'{expected} x {width}')
    parts = []  # grows with the file, whatever size it states
    step = max(1, VALUES_AT_ONCE // width)
    for first in range(0, stated_rows, step):
      part = min(step, stated_rows - first)
      content = self.read_bytes(4 * part * width, f'the values of the {what}')
      values = np.frombuffer(content, '<f4').reshape(part, width)
      if not np.isfinite(values).all():
        raise FastTextError(
            f'{self.path}: damaged: the {what} has values that are not finite')
      parts.append(values)
    return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)


def save(model: FastTextModel, path: epath.PathLike) -> None:
  """Write a .bin; a model that was read is written byte for byte."""
  with storage.atomic_writer(path, FastTextError) as file:
    file.write(MAGIC + struct.pack('<i', model.version))
    file.write(ARGUMENTS_FORMAT.pack(*dataclasses.astuple(model.arguments)))
    entries = model.words + model.labels
    file.write(struct.pack(
        '<iiiqq', len(entries), len(model.words), len(model.labels), model.tokens, -1))
    for number, (word, count) in enumerate(zip(entries, model.counts, strict=True)):
      file.write(word.encode(errors='surrogateescape') + b'\0')
      file.write(ENTRY_FORMAT.pack(count, number >= len(model.words)))
    for matrix in (model.inputs, model.outputs):
      file.write(struct.pack('<?qq', False, *matrix.shape))
      file.write(np.ascontiguousarray(matrix, '<f4').tobytes())
