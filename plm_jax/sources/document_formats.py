"""Formats of text files: detect the format from name and beginning, and read the documents.

Plain text, JSON Lines, JSON lists, tables, WikiExtractor's output, WET files and MediaWiki dumps.
"""
from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
import re
from typing import Any, Literal, NamedTuple

from plm_jax import storage
from plm_jax.errors import add_advice, name_field
from plm_jax.sources import page_dumps
from plm_jax.sources.lines import (
  OnError,
  ReadStats,
  SourceError,
  TextFile,
  decode_line,
  join_lines,
  number_lines,
  parse_json_line,
  report_problem,
  strip_line_end,
)
from plm_jax.sources.table_rows import name_columns, read_table

Division = Literal['auto', 'blank-lines', 'lines', 'files']
MAX_DOCUMENT = 1 << 22  # characters; a longer document is split into several
MAX_PARAGRAPH = 1 << 20  # characters; a longer paragraph, or exact text, is split into several
# A file that is all of an exact text is split into about as many parts at least, so that a part can
# be held out, unless parts had fewer characters than that.
MIN_PARTS, MIN_PART = 32, 1 << 8
Reader = Callable[[TextFile, 'TextReadConfig', ReadStats], Iterator['Document']]


class Document(NamedTuple):
  """A document of a source, or a part of one that is long."""

  paragraphs: list[str]  # of exact text: one, with everything
  where: str  # 'file:line' of its first paragraph
  follows: bool = False  # it continues the document before it, without a character in between


@dataclasses.dataclass(frozen=True)
class TextReadConfig:
  """How files of text are read."""

  on_error: OnError = 'refuse'
  field: str = 'text'  # with the text, in JSON Lines and tables
  division: Division = 'auto'  # of plain text into documents
  encoding: str = 'utf-8'  # of the characters
  exact: bool = False  # keep every character of a document, white space and line ends, too
  parts: bool = True  # split exact text over MAX_PARAGRAPH; False: only over MAX_DOCUMENT

  @property
  def exact_limit(self) -> int:
    """Number of characters of an exact text, or of a part of one, at most."""
    return MAX_PARAGRAPH if self.parts else MAX_DOCUMENT


def detect_reader(opened: TextFile, alone: bool) -> Reader:
  """Return the function that reads a file, from its name or its beginning.

  alone: the source has no other files, see `resolve_division`.

  JSON Lines, WikiExtractor's marks, WET files and MediaWiki dumps are detected by their beginning,
  whatever the name.
  """
  match = re.search(r'\.\w+$', re.sub(r'\.(gz|xz|bz2)$', '', opened.file.name.lower()))
  ending = match[0] if match else ''
  if ending in READERS:
    return READERS[ending]
  beginning = opened.beginning.removeprefix(b'\xef\xbb\xbf').lstrip()
  line, newline, _ = beginning.partition(b'\n')
  is_object = re.match(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:', line)
  if is_object and (line.rstrip().endswith(b'}') or not newline):
    return json_documents
  if re.match(rb'<doc\s+id=', beginning):
    return wiki_documents
  if page_dumps.VERSION_LINE.match(beginning):
    return functools.partial(page_documents, page_dumps.read_pages)
  if re.match(rb'(<\?xml[^>]*>\s*)?<mediawiki\b', beginning):
    return functools.partial(page_documents, page_dumps.read_articles)
  if ending == '.json':
    if beginning.startswith(b'['):
      return list_documents
    raise SourceError(f'{opened.file} is JSON, but neither a line for each document nor a list of '
                      "them. Of rows such as SQuAD's, tasks are made: task:squad:FILE")
  return functools.partial(text_documents, alone)


def resolve_division(opened: TextFile, division: Division, alone: bool, stats: ReadStats
                     ) -> Division:
  """Return what divides a file of plain text into documents; resolve 'auto'.

  A file with a blank line in its first MiB has blank lines between documents. A file without one is
  a document if it is shorter and not alone; otherwise every line is a document.
  """
  if division != 'auto':
    return division
  text = opened.beginning.strip()
  if re.search(rb'\n[ \t\r]*\n', text) or b'\n' not in text or (not alone and opened.whole):
    return 'blank-lines'
  stats.line_divided.append(str(opened.file))
  return 'lines'


def text_documents(alone: bool, opened: TextFile, config: TextReadConfig, stats: ReadStats
                   ) -> Iterator[Document]:
  """Yield the documents of plain text, with one paragraph per line.

  Exact text has what divides it, blank lines or line ends, in no document.
  """
  division = resolve_division(opened, config.division, alone, stats)
  builder = DocumentBuilder(str(opened.file), config, stats)
  size = len(opened.beginning) // MIN_PARTS
  if config.parts and alone and division == 'files' and size >= MIN_PART:
    builder.limit = size
  whole = config.exact and division == 'files'
  for number, line in number_lines(opened, config.on_error, stats, config.exact):
    blank = not line or line.isspace()
    if (blank and division == 'blank-lines') or (not blank and division == 'lines'):
      yield from builder.flush()
    if whole or not blank:
      yield from builder.add(number, line)
  yield from builder.flush(whole)


def wiki_documents(opened: TextFile, config: TextReadConfig, stats: ReadStats
                   ) -> Iterator[Document]:
  """Yield the documents of WikiExtractor's output: articles from <doc id="..." ...> to </doc>.

  Blank lines between articles are ignored, and those in an article unless the text is exact.
  """
  builder = DocumentBuilder(str(opened.file), config, stats)
  for number, line in number_lines(opened, config.on_error, stats, config.exact):
    if re.match(r'<doc\s+id=.*>\s*$|</doc>\s*$', line):
      yield from builder.flush()
    elif (line and not line.isspace()) or (config.exact and builder.paragraphs):
      yield from builder.add(number, line)
  yield from builder.flush()


def page_documents(
    read: Callable[[TextFile, TextReadConfig, ReadStats], Iterator[tuple[str, str]]],
    opened: TextFile, config: TextReadConfig, stats: ReadStats) -> Iterator[Document]:
  """Yield the documents of web pages, or of articles of a wiki, which `read` finds."""
  for text, where in read(opened, config, stats):
    text = text if config.exact else text.replace('\r\n', '\n')
    yield from split_text(text, where, config, stats)


class DocumentBuilder:
  """Collects paragraphs into documents; splits documents over MAX_DOCUMENT.

  The paragraphs of exact text are lines with their line ends. It is split into parts of about
  `limit` characters.
  """

  def __init__(self, name: str, config: TextReadConfig, stats: ReadStats):
    self.name, self.stats, self.exact = name, stats, config.exact
    self.limit = config.exact_limit
    self.paragraphs: list[str] = []
    self.where, self.length, self.follows = '', 0, False

  def add(self, number: int, paragraph: str) -> Iterator[Document]:
    """Add a paragraph that begins at line `number`, and yield the document if it is full."""
    if not self.paragraphs:
      self.where = f'{self.name}:{number}'
    if self.exact:
      self.paragraphs.append(paragraph)
    else:
      self.paragraphs += split_paragraph(paragraph)
    self.length += len(paragraph)
    if self.exact and self.length >= 2 * self.limit and not paragraph.isspace():
      *parts, rest = split_exactly(''.join(self.paragraphs), self.limit)
      yield from self.follow(parts)
      self.where, self.paragraphs, self.length = f'{self.name}:{number}', [rest], len(rest)
    elif not self.exact and self.length >= MAX_DOCUMENT:
      self.stats.split_documents += 1
      yield from self.flush()

  def flush(self, whole: bool = False) -> Iterator[Document]:
    """Yield the collected paragraphs as a document, if there are any.

    whole: keep the line end at the end of exact text.
    """
    if self.paragraphs and self.exact:
      text = ''.join(self.paragraphs)
      yield from self.follow(split_exactly(text if whole else strip_line_end(text), self.limit))
    elif self.paragraphs:
      yield Document(self.paragraphs, self.where)
    self.paragraphs, self.length, self.follows = [], 0, False

  def follow(self, parts: Iterable[str]) -> Iterator[Document]:
    """Yield the next parts of an exact text."""
    for part in parts:
      yield Document([part], self.where, self.follows)
      self.follows = True


def json_documents(opened: TextFile, config: TextReadConfig, stats: ReadStats
                   ) -> Iterator[Document]:
  """Yield a document for the text of every line of JSON Lines."""
  first = True
  for number, line in number_lines(opened, config.on_error, stats, config.exact):
    if line and not line.isspace():
      where = f'{opened.file}:{number}'
      fields = parse_json_line(line, where, config.on_error, stats)
      if fields is not None:
        yield from document_from_fields(fields, where, config, stats, first)
        first = False


def list_documents(opened: TextFile, config: TextReadConfig, stats: ReadStats
                   ) -> Iterator[Document]:
  """Yield the documents of a .json file that is one list, of texts or of objects with a text."""
  text = join_lines(opened.file, number_lines(opened, 'refuse', stats))
  for number, value in enumerate(storage.parse_json(text, opened.file, list, SourceError)):
    where = f'{opened.file}[{number}]'
    fields = {config.field: value} if isinstance(value, str) else value
    if isinstance(fields, dict):
      yield from document_from_fields(fields, where, config, stats)
    else:
      report_problem(f'{where}: neither a text nor an object with one', config.on_error, stats)


def table_documents(
    kind: Literal['tsv', 'csv'], opened: TextFile, config: TextReadConfig, stats: ReadStats
) -> Iterator[Document]:
  """Yield a document per row. Raises SourceError unless exactly one column has the text."""
  lines = number_lines(opened, config.on_error, stats, config.exact)
  rows = read_table(opened, lines, kind, config.on_error, stats)
  for fields, where in name_columns(
      str(opened.file), rows, config.on_error, stats, field=config.field):
    yield from document_from_fields(fields, where, config, stats)


def document_from_fields(fields: dict[str, Any], where: str, config: TextReadConfig,
                         stats: ReadStats, first: bool = False) -> Iterator[Document]:
  """Yield the document of a row or an object.

  Args:
    fields: of the row or object.
    where: its place, for messages.
    config: names the field with the text, and what to do where it is missing or no text.
    stats: is updated.
    first: this is the first of its file. If it has no such field, probably no other has: this is an
      error, because skipping all would leave nothing.
  """
  text = fields.get(config.field)
  if isinstance(text, bytes):  # of a binary column of Parquet
    text = decode_line(text, where, config.on_error, stats)
    if text is None:
      return
  if not isinstance(text, str):
    if config.field in fields:
      problem = f'the field {config.field!r} is {describe_type(text)}, not a text'
    else:
      names = ', '.join(map(str, fields))[:200] or 'nothing'
      problem = f'no field {config.field!r}, only {names}'
    if any(isinstance(value, str) for value in fields.values()):
      problem += add_advice(f'; {name_field("text_field")}=NAME reads another')
      if first and config.on_error == 'refuse' and config.field not in fields:
        raise SourceError(f'{where}: {problem}')
    report_problem(f'{where}: {problem}', config.on_error, stats)
    return
  try:
    text.encode()  # half a surrogate pair is JSON, but not text
  except UnicodeEncodeError as error:
    report_problem(f'{where}: not text: {error}', config.on_error, stats)
    return
  yield from split_text(text, where, config, stats)


def describe_type(value: Any) -> str:
  """Name the type of a value of JSON or of a table, for messages.

  >>> [describe_type(value) for value in (None, 3, [1, 2], 'a')]
  ['null', 'a number', 'a list', 'a text']
  """
  if value is None:
    return 'null'
  if isinstance(value, bool):
    return 'a boolean'
  if isinstance(value, int | float):
    return 'a number'
  if isinstance(value, list | tuple):
    return 'a list'
  names = {dict: 'an object', bytes: 'bytes', str: 'a text'}
  return names.get(type(value)) or f'a {type(value).__name__}'


def split_text(text: str, where: str, config: TextReadConfig, stats: ReadStats
               ) -> Iterator[Document]:
  """Yield a text as a document, one paragraph per line; split it if it is over MAX_DOCUMENT."""
  if config.exact:
    for number, part in enumerate(split_exactly(text, config.exact_limit)):
      yield Document([part], where, number > 0)
    return
  paragraphs, length = [], 0
  for paragraph in text.split('\n'):
    if not paragraph or paragraph.isspace():
      continue
    if length + len(paragraph) > MAX_DOCUMENT and paragraphs:
      stats.split_documents += 1
      yield Document(paragraphs, where)
      paragraphs, length = [], 0
    paragraphs += split_paragraph(paragraph.removesuffix('\r'))
    length += len(paragraph)
  if paragraphs:
    yield Document(paragraphs, where)


def split_exactly(text: str, limit: int) -> Iterator[str]:
  """Yield parts of about `limit` characters that are the text together; none of an empty text.

  A part after the first begins where a token does, whatever the tokenizer: with a line that is not
  indented, otherwise with a word and the space before it, and never with other white space.
  """
  start = 0
  while len(text) - start > limit:
    end = 0
    for border in LINE_BORDER, WORD_BORDER:
      found = border.finditer(text, start + limit // 2, start + limit)
      end = end or max((match.start() for match in found), default=0)
    if not end:  # white space alone
      match = VISIBLE.search(text, start + limit)
      end = match.start() if match else len(text)
    yield text[start:end]
    start = end
  if start < len(text):
    yield text[start:]


def split_paragraph(paragraph: str) -> Iterator[str]:
  """Yield a paragraph; split it if it is over MAX_PARAGRAPH, after a space where there is one."""
  start = 0
  while len(paragraph) - start > MAX_PARAGRAPH:
    end = paragraph.rfind(' ', start, start + MAX_PARAGRAPH) + 1 or start + MAX_PARAGRAPH
    yield paragraph[start:end]
    start = end
  yield paragraph[start:]


LINE_BORDER, WORD_BORDER = re.compile(r'(?<=\n)(?= ?\S)'), re.compile(r'(?<=\S)(?= ?\S)')
VISIBLE = re.compile(r'\S')
READERS: dict[str, Reader] = {
    '.jsonl': json_documents, '.ndjson': json_documents,
    '.tsv': functools.partial(table_documents, 'tsv'),
    '.csv': functools.partial(table_documents, 'csv')}
