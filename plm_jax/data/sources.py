"""Where text comes from: a source string -> documents, each a list of paragraphs.

    embedded                             the English documentation of the installed packages
    a.txt,b.txt.gz,more/*.jsonl.xz       files, globs and folders, local or gs://, separated by commas
    tfds:wiki40b/en  tfds:NAME:train     a TFDS data set by name, or by the folder that holds it
    task:NAME:SOURCE                     a task's rows as text to text: `examples` has the names

Text files hold one paragraph a line and a blank line between documents. A line of `.jsonl` is a document: its field
'text', in which newlines separate paragraphs. `.gz` and `.xz` are read through. Files are read in the order of their
names, so a source is always the same sequence of documents.
"""
from collections.abc import Iterator
import contextlib
import dataclasses
import glob
import gzip
import hashlib
import json
import lzma
import re
from typing import Any, Literal, NamedTuple
import zlib

from etils import epath

from plm_jax.data import embedded
from plm_jax.errors import Expected

OnError = Literal['refuse', 'skip']
MAX_LINE = 1 << 24  # bytes; a longer one is no line of text, and would not fit the promise of bounded memory
TASK = 'task:'
MAX_DOCUMENT = 1 << 22  # characters; a longer document goes on in the next one


class SourceError(Expected):
  """Text that is missing or cannot be read."""


class Document(NamedTuple):
  paragraphs: list[str]
  where: str  # 'file:line' of its first paragraph


@dataclasses.dataclass
class Tally:
  """What happened while documents were read; filled in by `documents`."""

  bytes: int = 0  # read so far, as they lie on disk
  skipped: int = 0  # lines left out
  examples: list[str] = dataclasses.field(default_factory=list)  # the first of them, 'file:line: reason'
  cut: int = 0  # how often a document over MAX_DOCUMENT was cut

  def skip(self, problem: str) -> None:
    self.skipped += 1
    if len(self.examples) < 10:
      self.examples.append(problem)


def documents(source: str, on_error: OnError = 'refuse', tally: Tally | None = None) -> Iterator[Document]:
  """The documents of `source`, in order; empty ones are left out.

  A line that is not UTF-8, or not JSON with a text, raises SourceError that names file and line; with `on_error='skip'`
  it is left out and counted in `tally`. Raises SourceError for no files and for archives that are cut off, always.
  """
  tally = Tally() if tally is None else tally
  if source.startswith(TASK):
    from plm_jax.data import examples  # late: it reads files by way of this module
    yield from examples.documents(source, on_error, tally)
    return
  if source.startswith('tfds:'):
    yield from tfds_documents(source, on_error, tally)
    return
  for file in files(source):
    read = json_documents if re.search(r'\.jsonl(\.gz|\.xz)?$', file.name) else text_documents
    done = tally.bytes
    yield from read(str(file), lines(file, on_error, tally), on_error, tally)
    tally.bytes = done + file.stat().length


def files(source: str) -> list[epath.Path]:
  """The files of a source that is not TFDS, in reading order."""
  source = untasked(source)
  if source == 'embedded':
    return [epath.Path(embedded.corpus_path())]
  found = []
  for part in source.split(','):
    path = epath.Path(part.strip()).expanduser()
    if path.is_dir():
      matches = sorted(walk(path))
    elif path.exists():
      matches = [path]
    else:
      matches = sorted(expand(str(path)))
    if not matches:
      raise SourceError(
          f'no files match {part.strip()!r}: expected a file, folder or glob, of text or .jsonl, plain, .gz or .xz, '
          'or tfds:NAME; or embedded.')
    found += matches
  return found


def fingerprint(source: str) -> str:
  """sha256 hex that changes when the source does: names, sizes, and the first and last 64 KiB of its files."""
  digest = hashlib.sha256()
  if source.startswith(TASK):
    from plm_jax.data import examples
    digest.update(repr(examples.task_of(source)).encode())
  source = untasked(source)
  if source.startswith('tfds:'):
    builder, split = tfds_builder(source)
    digest.update(f'{builder.info.full_name} {split} {builder.info.splits[split].num_examples}'.encode())
    return digest.hexdigest()
  for file in files(source):
    size = file.stat().length
    digest.update(f'{file.name} {size}\n'.encode())
    with file.open('rb') as f:
      digest.update(f.read(1 << 16))
      f.seek(max(0, size - (1 << 16)))
      digest.update(f.read())
  return digest.hexdigest()


def size(source: str) -> int | None:
  """Bytes on disk, None where unknown."""
  source = untasked(source)
  return None if source.startswith('tfds:') else sum(file.stat().length for file in files(source))


def characters(source: str) -> int:
  """About how many characters of text there are, to within a small factor; 0 where unknown."""
  source = untasked(source)
  if source.startswith('tfds:'):
    return 0
  return sum(file.stat().length * (4 if file.suffix in ('.gz', '.xz') else 1) for file in files(source))


def untasked(source: str) -> str:
  """task:NAME:SOURCE -> SOURCE."""
  return source.split(':', 2)[-1] if source.startswith(TASK) else source


def text_documents(name: str, lines: Iterator[tuple[int, str]], on_error: OnError, tally: Tally) -> Iterator[Document]:
  """Groups (line number, line) into documents at blank lines."""
  del on_error
  paragraphs, where, length = [], '', 0
  for number, line in lines:
    if line and not line.isspace():
      if not paragraphs:
        where = f'{name}:{number}'
      paragraphs.append(line)
      length += len(line)
      if length < MAX_DOCUMENT:
        continue
      tally.cut += 1
    if paragraphs:
      yield Document(paragraphs, where)
    paragraphs, length = [], 0
  if paragraphs:
    yield Document(paragraphs, where)


def json_documents(name: str, lines: Iterator[tuple[int, str]], on_error: OnError, tally: Tally) -> Iterator[Document]:
  """The field 'text' of every line."""
  for number, line in lines:
    if not line or line.isspace():
      continue
    where = f'{name}:{number}'
    try:
      fields = json.loads(line)
      text = fields.get('text') if isinstance(fields, dict) else None
      if isinstance(text, str):
        text.encode()  # half a surrogate pair is JSON, but not text
        yield from split_text(text, where, tally)
      else:
        report(f"{where}: no field 'text' that is a string", on_error, tally)
    except UnicodeEncodeError as error:
      report(f'{where}: not text: {error}', on_error, tally)
    except (json.JSONDecodeError, RecursionError) as error:
      report(f'{where}: not JSON: {error}', on_error, tally)


def tfds_documents(source: str, on_error: OnError, tally: Tally) -> Iterator[Document]:
  import tensorflow_datasets as tfds  # late: TensorFlow takes seconds to load, and files do not need it
  builder, split = tfds_builder(source)
  if 'text' not in builder.info.features:
    raise SourceError(f"{source} has no feature 'text', only {sorted(builder.info.features)}.")
  # One file after the other: interleaved reading would make the order depend on the shards of the copy.
  data = builder.as_dataset(split=split, read_config=tfds.ReadConfig(interleave_cycle_length=1), shuffle_files=False)
  for number, example in enumerate(tfds.as_numpy(data)):
    text = decode(example['text'], f'{source}[{number}]', on_error, tally)
    if text is not None:
      yield from split_text(text, f'{source}[{number}]', tally)


def tfds_builder(source: str) -> tuple[Any, str]:
  """`tfds:NAME:SPLIT` or `tfds:FOLDER:SPLIT` -> builder, split."""
  import tensorflow_datasets as tfds
  match = re.fullmatch(r'tfds:(?P<name>.+?)(:(?P<split>[A-Za-z_]\w*(\[[^/]*\])?(\+[^/]*)?))?', source)
  if not match:
    raise SourceError(f'{source!r} names no TFDS data set: expected tfds:NAME or tfds:FOLDER, and perhaps :SPLIT.')
  name, split = match['name'], match['split'] or 'train'
  try:
    if epath.Path(name).expanduser().is_dir():
      builder = tfds.builder_from_directory(epath.Path(name).expanduser())
    else:
      builder = tfds.builder(name)
      builder.download_and_prepare()
    builder.info.splits[split]  # raises when there is no such split
  except (tfds.core.DatasetNotFoundError, FileNotFoundError, KeyError, ValueError) as error:
    raise SourceError(f'{source}: {str(error).splitlines()[0]}') from error
  return builder, split


def lines(file: epath.Path, on_error: OnError, tally: Tally) -> Iterator[tuple[int, str]]:
  """(number, text) of every line, counted from 1, without its newline; a line ends at '\\n' and nowhere else."""
  start, offset = tally.bytes, 0
  unpack = {'.gz': gzip.open, '.xz': lzma.open}
  with contextlib.ExitStack() as stack:
    raw = stack.enter_context(file.open('rb'))
    f = stack.enter_context(unpack.get(file.suffix, contextlib.nullcontext)(raw))
    for number in range(1, 1 << 62):
      try:
        line = f.readline(MAX_LINE + 1)
      except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise SourceError(f'{file}: damaged or cut off after line {number - 1}: {error}') from error
      if not line:
        return
      if number % 256 == 0:
        tally.bytes = start + raw.tell()
      if len(line) > MAX_LINE:
        raise SourceError(f'{file}:{number}: a line of more than {MAX_LINE >> 20} MiB (byte {offset}); is this text?')
      if number == 1:
        line = line.removeprefix(b'\xef\xbb\xbf')  # the byte order mark that some editors write
      text = decode(line, f'{file}:{number}', on_error, tally, f' (byte {offset} of the file)')
      offset += len(line)
      if text is not None:
        yield number, text.removesuffix('\n').removesuffix('\r')


def decode(line: bytes, where: str, on_error: OnError, tally: Tally, place: str = '') -> str | None:
  """UTF-8 text, or None when it was not and is to be skipped."""
  try:
    return line.decode()
  except UnicodeDecodeError as error:
    report(f'{where}: not UTF-8: {error.reason} at byte {error.start} of the line{place}', on_error, tally)
    return None


def split_text(text: str, where: str, tally: Tally) -> Iterator[Document]:
  """A text whose newlines separate paragraphs -> its document, in pieces if it is over MAX_DOCUMENT."""
  paragraphs, length = [], 0
  for paragraph in text.split('\n'):
    if not paragraph or paragraph.isspace():
      continue
    if length + len(paragraph) > MAX_DOCUMENT and paragraphs:
      tally.cut += 1
      yield Document(paragraphs, where)
      paragraphs, length = [], 0
    paragraphs.append(paragraph.removesuffix('\r'))
    length += len(paragraph)
  if paragraphs:
    yield Document(paragraphs, where)


def report(problem: str, on_error: OnError, tally: Tally) -> None:
  if on_error == 'refuse':
    raise SourceError(f"{problem}. Mend it, or leave such lines out with on_error='skip'.")
  tally.skip(problem)


def expand(pattern: str) -> list[epath.Path]:
  """Files that match a glob, local or in a bucket."""
  if '://' not in pattern:
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
