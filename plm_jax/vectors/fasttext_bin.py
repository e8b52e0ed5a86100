"""fastText's .bin, version 12 (and 11), to the byte: facebookresearch/fastText, src/fasttext.cc saveModel, args.cc,
dictionary.cc and densematrix.cc.

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
from plm_jax.errors import Expected
from plm_jax.vectors.subwords import Bags, Subwords
from plm_jax.vectors.words import WordVectors

MAGIC = struct.pack('<i', 793712314)
VERSION = 12
ARGUMENTS = struct.Struct('<12id')
LOSSES = {'hierarchical': 1, 'negative': 2, 'softmax': 3, 'one-vs-all': 4}
MODELS = {'cbow': 1, 'skip-gram': 2, 'supervised': 3}
ENTRY = struct.Struct('<qb')
LONGEST = 1 << 16  # bytes of a word


class FastTextError(Expected):
  """A .bin that is damaged, or holds what is not read."""


@dataclasses.dataclass(frozen=True)
class Arguments:
  """What fastText was called with, in the order of the file."""

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
class FastText:
  """What a .bin holds. Words are as bytes in UTF-8; bytes that are none are kept as lone surrogates."""

  arguments: Arguments
  words: tuple[str, ...]
  labels: tuple[str, ...]
  counts: tuple[int, ...]  # of words, then of labels
  tokens: int
  inputs: np.ndarray  # [words + buckets, D]
  outputs: np.ndarray  # [words, or labels, D]
  version: int = VERSION

  @property
  def subwords(self) -> Subwords:
    """Returns which parts of words have vectors; in version 11, where it classifies, none (fasttext.cc loadModel)."""
    arguments = self.arguments
    old = self.version == 11 and arguments.model == MODELS['supervised']
    return Subwords(arguments.shortest, 0 if old else arguments.longest, arguments.buckets)

  @property
  def vectors(self) -> WordVectors:
    """Returns the vectors of words, and of any other by its parts."""
    subwords = self.subwords
    bags = Bags.of(self.words, subwords)
    return composed(self.words, self.inputs, subwords, bags)


def composed(words, table: np.ndarray, subwords: Subwords, bags: Bags) -> WordVectors:
  """Makes the vectors of words with parts: means of rows of the table, of an unseen word of its n-grams alone, and
  zeros where it has none (fasttext.cc's getWordVector)."""
  matrix = np.zeros((len(words), table.shape[1]), np.float32)
  for first in range(0, len(words), 4096):  # a word has dozens of rows
    starts = bags.starts[first:first + 4097]
    rows = table[bags.rows[starts[0]:starts[-1]]]
    matrix[first:first + 4096] = np.add.reduceat(rows, starts[:-1] - starts[0], 0)
  matrix /= np.diff(bags.starts)[:, None].astype(np.float32)
  def compose(word: str) -> np.ndarray:
    rows = subwords.rows(word, len(words))
    return table[rows].mean(0) if rows else np.zeros(table.shape[1], np.float32)
  return WordVectors(tuple(words), matrix, compose if subwords else None)


def load(path: epath.PathLike) -> FastText:
  """Reads a .bin. Raises FastTextError."""
  path = storage.path_of(path)
  with storage.explained(path, 'read', FastTextError), storage.open_text(path) as file:
    return read(file, path)


def read(file: io.BufferedReader, path: epath.PathLike) -> FastText:
  """Reads a .bin from its beginning. Raises FastTextError that names the file and the place."""
  reader = Reader(file, path)
  if reader.bytes(4, 'the magic number') != MAGIC:
    raise FastTextError(f'{path} is no .bin of fastText: it begins with other bytes')
  version, = reader.numbers('<i', 'the version')
  if version not in (11, 12):
    raise FastTextError(f'{path} is of version {version}: 11 and 12 are read')
  arguments = Arguments(*reader.numbers(ARGUMENTS.format, 'the arguments'))
  size, words, labels, tokens, pruned = reader.numbers('<iiiqq', 'the dictionary')
  if words < 0 or labels < 0 or size != words + labels or arguments.width < 1:
    raise FastTextError(
        f'{path}: damaged: {size} entries of {words} words and {labels} labels, width {arguments.width}')
  if pruned >= 0:
    raise FastTextError(f'{path} has pruned n-grams, as quantized models do: give the .bin that it was made from')
  found, counts = [], []
  for number in range(size):
    found.append(reader.word(number, size))
    count, kind = reader.numbers(ENTRY.format, f'entry {number + 1:,} of {size:,}')
    if kind != (number >= words):
      raise FastTextError(f'{path}: damaged: entry {number + 1:,}, {found[-1]!r}, is of type {kind}')
    counts.append(count)
  inputs = reader.matrix('input', arguments.width, words + max(arguments.buckets, 0))
  outputs = reader.matrix('output', arguments.width, None)
  if file.read(1):
    raise FastTextError(f'{path}: there is more behind the end of the output')
  return FastText(
      arguments, tuple(found[:words]), tuple(found[words:]), tuple(counts), tokens, inputs, outputs, version)


class Reader:
  """Takes a .bin apart, and says where it ends too soon."""

  def __init__(self, file: io.BufferedReader, path: epath.PathLike):
    self.file, self.path = file, path

  def bytes(self, number: int, what: str) -> bytes:
    """Reads bytes. Raises FastTextError where there are not as many."""
    content = self.file.read(number)
    if len(content) < number:
      raise FastTextError(f'{self.path}: cut off in {what}')
    return content

  def numbers(self, form: str, what: str) -> tuple[Any, ...]:
    """Reads numbers by a format of `struct`."""
    return struct.unpack(form, self.bytes(struct.calcsize(form), what))

  def word(self, number: int, size: int) -> str:
    """Reads bytes up to a zero."""
    found = bytearray()
    while (byte := self.bytes(1, f'entry {number + 1:,} of {size:,}')) != b'\0':
      found += byte
      if len(found) > LONGEST:
        raise FastTextError(f'{self.path}: damaged: entry {number + 1:,} has over {LONGEST:,} bytes')
    return found.decode(errors='surrogateescape')

  def matrix(self, what: str, width: int, rows: int | None) -> np.ndarray:
    """Reads a matrix of `rows` rows; None: of as many as it says."""
    quantized, = self.numbers('<?', f'the {what}')
    if quantized:
      raise FastTextError(f'{self.path}: the {what} is quantized (.ftz), which is not read: give the .bin')
    said = self.numbers('<qq', f'the sizes of the {what}')
    if said[1] != width or said[0] < 0 or rows not in (None, said[0]):
      raise FastTextError(f'{self.path}: damaged: the {what} is {said[0]} x {said[1]}, expected '
                          f'{"some" if rows is None else rows} x {width}')
    parts = []  # grows with the file, whatever it claims
    for first in range(0, said[0], 1 << 16):
      part = min(1 << 16, said[0] - first)
      parts.append(np.frombuffer(self.bytes(4 * part * width, f'the values of the {what}'), '<f4').reshape(part, width))
    return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)


def save(model: FastText, path: epath.PathLike) -> None:
  """Writes a .bin; what was read comes out byte for byte."""
  with storage.drafted(path, FastTextError) as file:
    file.write(MAGIC + struct.pack('<i', model.version) + ARGUMENTS.pack(*dataclasses.astuple(model.arguments)))
    entries = (*model.words, *model.labels)
    file.write(struct.pack('<iiiqq', len(entries), len(model.words), len(model.labels), model.tokens, -1))
    for number, (word, count) in enumerate(zip(entries, model.counts, strict=True)):
      file.write(word.encode(errors='surrogateescape') + b'\0' + ENTRY.pack(count, number >= len(model.words)))
    for matrix in (model.inputs, model.outputs):
      file.write(struct.pack('<?qq', False, *matrix.shape))
      file.write(np.ascontiguousarray(matrix, '<f4').tobytes())
