"""What a file of text holds, seen from its name and its beginning, and its documents."""
from collections.abc import Callable, Iterator
import dataclasses
import re
from typing import Any, Literal, NamedTuple

from plm_jax import storage
from plm_jax.data import mediawiki, warc
from plm_jax.data.lines import OnError, Opened, SourceError, Tally, cells, numbered, parsed, report, whole
from plm_jax.errors import option

Division = Literal['auto', 'blank-lines', 'lines', 'files']
MAX_DOCUMENT = 1 << 22  # characters; a longer document goes on in the next one
MAX_PARAGRAPH = 1 << 20  # characters; a longer paragraph goes on in the next one
Lines = Iterator[tuple[int, str]]  # number, text


class Document(NamedTuple):
  paragraphs: list[str]
  where: str  # 'file:line' of its first paragraph


@dataclasses.dataclass(frozen=True)
class Reading:
  """How files are read."""

  on_error: OnError = 'refuse'
  field: str = 'text'  # of JSON lines and tables, with the text
  division: Division = 'auto'  # of plain text, into documents


def documents(found: Opened, reading: Reading, tally: Tally, alone: bool) -> Iterator[Document]:
  """Yields the documents of a file. alone: there are no others, see `divided`. Raises SourceError as `numbered`
  does."""
  name = str(found.file)
  read = format_of(found)
  lines = numbered(found, reading.on_error, tally)
  if read in (warc.texts, mediawiki.texts):
    for text, where in read(found, reading, tally):
      yield from split_text(text.replace('\r\n', '\n'), where, tally)
  elif read is text_documents:
    yield from text_documents(name, lines, divided(found, reading.division, alone, tally), tally)
  elif read is list_documents:
    yield from list_documents(found, reading, tally)
  else:
    yield from read(name, lines, reading, tally)


def format_of(found: Opened) -> Callable[..., Iterator[Any]]:
  """Returns what reads a file. JSON lines, WikiExtractor's marks, WET files and a wiki's dumps are known by how they
  begin, whatever the name."""
  ending = re.search(r'\.\w+$', re.sub(r'\.(gz|xz|bz2)$', '', found.file.name.lower()))
  named = FORMATS.get(ending[0] if ending else '')
  if named:
    return named
  beginning = found.beginning.removeprefix(b'\xef\xbb\xbf').lstrip()
  first = beginning.partition(b'\n')
  if re.match(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:', first[0]) and (first[0].rstrip().endswith(b'}') or not first[1]):
    return json_documents
  if re.match(rb'<doc\s+id=', beginning):
    return wiki_documents
  if warc.VERSION.match(beginning):
    return warc.texts
  if re.match(rb'(<\?xml[^>]*>\s*)?<mediawiki\b', beginning):
    return mediawiki.texts
  if ending and ending[0] == '.json':
    if beginning.startswith(b'['):
      return list_documents
    raise SourceError(f'{found.file} is JSON, but neither a line for each document nor a list of them. Of rows such '
                      "as SQuAD's, tasks are made: task:squad:FILE")
  return text_documents


def divided(found: Opened, division: Division, alone: bool, tally: Tally) -> Division:
  """Tells by what the documents of a file of plain text are divided: never auto.

  A file with a blank line in its first MiB has them between documents. One without is a document, if it is shorter and
  not alone; else every line of it is.
  """
  if division != 'auto':
    return division
  text = found.beginning.strip()
  if re.search(rb'\n[ \t\r]*\n', text) or b'\n' not in text or (not alone and found.whole):
    return 'blank-lines'
  tally.lined.append(str(found.file))
  return 'lines'


def text_documents(name: str, lines: Lines, division: Division, tally: Tally) -> Iterator[Document]:
  """Yields the documents of plain text, a paragraph a line."""
  pieces = Pieces(name, tally)
  for number, line in lines:
    blank = not line or line.isspace()
    if (blank and division == 'blank-lines') or (not blank and division == 'lines'):
      yield from pieces.end()
    if not blank:
      yield from pieces.add(number, line)
  yield from pieces.end()


def wiki_documents(name: str, lines: Lines, reading: Reading, tally: Tally) -> Iterator[Document]:
  """Yields the documents of what WikiExtractor writes: an article between <doc id="..." ...> and </doc>; blank lines
  are nothing there."""
  del reading
  pieces = Pieces(name, tally)
  for number, line in lines:
    if re.match(r'<doc\s+id=.*>\s*$|</doc>\s*$', line):
      yield from pieces.end()
    elif line and not line.isspace():
      yield from pieces.add(number, line)
  yield from pieces.end()


class Pieces:
  """Paragraphs on their way to a document; one over MAX_DOCUMENT goes on in the next."""

  def __init__(self, name: str, tally: Tally):
    self.name, self.tally = name, tally
    self.paragraphs: list[str] = []
    self.where, self.length = '', 0

  def add(self, number: int, paragraph: str) -> Iterator[Document]:
    """Adds a paragraph that begins at line `number`, and yields the document that is full with it."""
    if not self.paragraphs:
      self.where = f'{self.name}:{number}'
    self.paragraphs += bounded(paragraph)
    self.length += len(paragraph)
    if self.length >= MAX_DOCUMENT:
      self.tally.cut += 1
      yield from self.end()

  def end(self) -> Iterator[Document]:
    """Yields what there is as a document, if there is anything."""
    if self.paragraphs:
      yield Document(self.paragraphs, self.where)
    self.paragraphs, self.length = [], 0


def json_documents(name: str, lines: Lines, reading: Reading, tally: Tally) -> Iterator[Document]:
  """Yields a document for the text of every line."""
  for number, line in lines:
    if line and not line.isspace():
      where = f'{name}:{number}'
      fields = parsed(line, where, reading.on_error, tally)
      if fields is not None:
        yield from of_fields(fields, where, reading, tally)


def list_documents(found: Opened, reading: Reading, tally: Tally) -> Iterator[Document]:
  """Yields the documents of a .json file that is one list, of texts or of objects with one."""
  text = whole(found.file, numbered(found, 'refuse', tally))
  for number, value in enumerate(storage.parse_json(text, found.file, list, SourceError)):
    where = f'{found.file}[{number}]'
    fields = {reading.field: value} if isinstance(value, str) else value
    if isinstance(fields, dict):
      yield from of_fields(fields, where, reading, tally)
    else:
      report(f'{where}: neither a text nor an object with one', reading.on_error, tally)


def table_documents(delimiter: str):
  """Makes what reads a table with this delimiter. Its reader raises SourceError where no column has the text."""
  def read(name: str, lines: Lines, reading: Reading, tally: Tally) -> Iterator[Document]:
    """The text's column of a table whose first line names the columns."""
    header: list[str] = []
    for number, row in cells(lines, delimiter, name):
      if not header:
        header = row
        if reading.field not in header:
          columns = ', '.join(header)[:200]
          raise SourceError(
              f'{name} is a table without a column {reading.field!r}, its first line is: {columns}. '
              f'{option("text-field=NAME")} reads another; task:columns-A-B:FILE (or task:sst2:FILE and the like) '
              'makes pairs of texts of columns')
      elif len(row) == len(header):
        yield from of_fields(dict(zip(header, row, strict=True)), f'{name}:{number}', reading, tally)
      elif row:
        report(f'{name}:{number}: {len(row)} fields, but the first line names {len(header)} columns', reading.on_error,
               tally)
  return read


def of_fields(fields: dict[str, Any], where: str, reading: Reading, tally: Tally) -> Iterator[Document]:
  """Yields the document of a row or an object; where its text is missing or none, `report` has its say."""
  text = fields.get(reading.field)
  if not isinstance(text, str):
    there = ', '.join(map(str, fields))[:200] or 'nothing'
    problem = f'no field {reading.field!r} that is a string, only {there}'
    if any(isinstance(value, str) for value in fields.values()):
      problem += f'; {option("text-field=NAME")} reads another'
    report(f'{where}: {problem}', reading.on_error, tally)
    return
  try:
    text.encode()  # half a surrogate pair is JSON, but not text
  except UnicodeEncodeError as error:
    report(f'{where}: not text: {error}', reading.on_error, tally)
    return
  yield from split_text(text, where, tally)


def split_text(text: str, where: str, tally: Tally) -> Iterator[Document]:
  """Yields a text, whose newlines separate paragraphs, as a document, in pieces if it is over MAX_DOCUMENT."""
  paragraphs, length = [], 0
  for paragraph in text.split('\n'):
    if not paragraph or paragraph.isspace():
      continue
    if length + len(paragraph) > MAX_DOCUMENT and paragraphs:
      tally.cut += 1
      yield Document(paragraphs, where)
      paragraphs, length = [], 0
    paragraphs += bounded(paragraph.removesuffix('\r'))
    length += len(paragraph)
  if paragraphs:
    yield Document(paragraphs, where)


def bounded(paragraph: str) -> Iterator[str]:
  """Yields a paragraph, in pieces if it is over MAX_PARAGRAPH, which end behind a space where there is one."""
  start = 0
  while len(paragraph) - start > MAX_PARAGRAPH:
    end = paragraph.rfind(' ', start, start + MAX_PARAGRAPH) + 1 or start + MAX_PARAGRAPH
    yield paragraph[start:end]
    start = end
  yield paragraph[start:]


FORMATS = {
    '.jsonl': json_documents, '.ndjson': json_documents, '.tsv': table_documents('\t'), '.csv': table_documents(',')}
