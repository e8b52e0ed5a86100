"""Dumps of pages: Common Crawl's WET files, and MediaWiki's XML, such as pages-articles.

A WET file has the plain text of web pages, as records of a WARC file (ISO 28500). A record is a
line with the version, the lines of its header, an empty line, as many bytes as the Content-Length
of the header, and two line ends. Pages are records of the type `conversion`.

Of a wiki, redirects and pages that are no articles are left out. In articles, lists, tables and
headings are left out (Devlin et al. 2019, section 3.1), and templates, references, formulas,
pictures and categories, too.
"""
from collections.abc import Callable, Iterator
import re
from typing import Any
from xml.etree import ElementTree

from plm_jax.sources.lines import (
  ReadStats,
  SourceError,
  TextFile,
  archive_errors,
  decode_line,
  report_problem,
)

MAX_RECORD = 1 << 28  # bytes
VERSION_LINE = re.compile(rb'WARC/1\.\d\r?\n')


def read_pages(opened: TextFile, config: Any, stats: ReadStats) -> Iterator[tuple[str, str]]:
  """Yield (text, 'file[record]') of every page.

  Args:
    opened: the WET file.
    config: a `TextReadConfig`; with `on_error` 'skip', malformed records are counted in `stats`.
    stats: is updated.

  Raises:
    SourceError: a record's header is malformed, or its length is not that of its text. Always for a
      file that is cut off, and for one of pages in HTML.
  """
  start, records = stats.bytes, WarcRecords(opened)
  while records.next_record():
    stats.bytes = start + opened.packed.tell()
    kind = records.header.get('warc-type', '')
    length = records.header.get('content-length', '')
    if kind in ('response', 'request'):
      raise SourceError(f'{records.where} is a {kind} of a web server: this is a WARC file of '
                        'pages in HTML, expected the WET file that has their text')
    if not length.isdecimal() or int(length) > MAX_RECORD:
      problem = (f'{records.where}: a Content-Length of up to {MAX_RECORD:,} is expected, got '
                 f'{length[:40]!r}')
      report_problem(problem, config.on_error, stats)
      records.skip_to_record()
      continue
    content = records.read(int(length))
    if not records.ends_here():
      problem = f'{records.where}: no record begins after the {length} bytes of its Content-Length'
      report_problem(problem, config.on_error, stats)
      records.skip_to_record()
    elif kind == 'conversion':
      text = decode_line(content, records.where, config.on_error, stats)
      if text is not None:
        yield text, records.where


class WarcRecords:
  """Reader of the records of a WARC file, one after another."""

  def __init__(self, opened: TextFile):
    self.opened, self.number = opened, 0
    self.header: dict[str, str] = {}
    self.line = b''  # read ahead: the first line of a record

  @property
  def where(self) -> str:
    """Name of the record, counted from 1."""
    return f'{self.opened.file}[{self.number}]'

  def next_record(self) -> bool:
    """Read the header of the next record; False at the end. Raises SourceError if malformed."""
    line, self.line = self.line or self.readline(), b''
    if not line:
      return False
    self.number += 1
    if not VERSION_LINE.match(line):
      raise SourceError(f'{self.where}: a record of a WARC file is expected, got {line[:40]!r}')
    self.header = {}
    while (line := self.readline()).strip():
      name, _, value = line.decode('utf-8', 'replace').partition(':')
      self.header[name.strip().lower()] = value.strip()
    if not line:
      raise SourceError(f'{self.where}: cut off in its header')
    return True

  def read(self, length: int) -> bytes:
    """Read the content. Raises SourceError where it is shorter."""
    with archive_errors(self.opened, f'record {self.number - 1}'):
      content = self.opened.text.read(length)
    if len(content) < length:
      raise SourceError(f'{self.where}: cut off: {len(content)} bytes of the {length} of its '
                        'Content-Length')
    return content

  def ends_here(self) -> bool:
    """Return whether the record ends here, and another follows or the file ends."""
    for _ in range(2):
      self.line = self.readline()
      if self.line.strip():
        return False
    self.line = self.readline()
    return not self.line or VERSION_LINE.match(self.line) is not None

  def skip_to_record(self) -> None:
    """Skip to the next line that begins a record."""
    while not VERSION_LINE.match(self.line):
      self.line = self.readline()
      if not self.line:
        return

  def readline(self) -> bytes:
    """Read a line, or the beginning of a very long one."""
    with archive_errors(self.opened, f'record {self.number}'):
      return self.opened.text.readline(1 << 16)


HIDDEN_ELEMENTS = frozenset([  # whose contents are no running text
    'ref', 'references', 'table', 'gallery', 'math', 'chem', 'ce', 'score', 'timeline', 'source',
    'syntaxhighlight', 'pre', 'imagemap', 'hiero', 'graph', 'mapframe', 'templatestyles', 'li',
    'dt', 'dd', 'hr'])
LIST_MARK = '\0'  # in lines of lists and headings
# What templates leave after a name, and switches:
TEMPLATE_REMAINS = re.compile(r'\s*[(（][\s;,，；、]*[)）]|__[A-Z]+__')
MEDIA_NAMESPACES = 6, 14  # of files and categories


def read_articles(opened: TextFile, config: Any, stats: ReadStats) -> Iterator[tuple[str, str]]:
  """Yield (text, 'file[title]') of every article.

  Args:
    opened: the dump.
    config: a `TextReadConfig`; with `on_error` 'skip', wikitext that cannot be parsed is counted in
      `stats`.
    stats: is updated.

  Raises:
    SourceError: broken XML, or wikitext that cannot be parsed.
  """
  to_text = make_wikitext_parser()
  start, hidden = stats.bytes, ('file', 'image', 'category')
  with archive_errors(opened, 'the last page that was read'):
    try:
      for element in iterate_elements(opened):
        if element.tag == 'siteinfo':
          for name in element.iter('namespace'):
            if name.text and int(name.get('key', 0)) in MEDIA_NAMESPACES:
              hidden += (name.text.lower(),)
          continue
        stats.bytes = start + opened.packed.tell()
        title = element.findtext('title', '')
        wikitext = element.findtext('revision/text', '')
        is_article = element.find('redirect') is None and element.findtext('ns', '0') == '0'
        if not is_article or element.findtext('revision/model', 'wikitext') != 'wikitext':
          continue
        where = f'{opened.file}[{title}]'
        try:
          text = to_text(wikitext, hidden)
        except (RecursionError, ValueError, RuntimeError) as error:  # ParserError: RuntimeError
          problem = f'{where}: wikitext that cannot be parsed: {error}'
          report_problem(problem, config.on_error, stats)
          continue
        yield text, where
    except ElementTree.ParseError as error:
      place = f'{opened.file}:{error.position[0]}'
      raise SourceError(f'{place}: damaged or cut off: not the XML of a dump: {error}') from error


def iterate_elements(opened: TextFile) -> Iterator[ElementTree.Element]:
  """Yield the children of the root, with names without a namespace, and frees their memory."""
  depth, root = 0, None
  for event, element in ElementTree.iterparse(opened.text, ('start', 'end')):
    if event == 'start':
      element.tag = element.tag.rpartition('}')[2]
      root = element if root is None else root
      depth += 1
      continue
    depth -= 1
    if depth == 1 and root is not None:
      yield element
      root.clear()


def make_wikitext_parser() -> Callable[[str, tuple[str, ...]], str]:
  """Return a function of wikitext and the names of hidden namespaces that returns plain text.

  Raises:
    SourceError: the library mwparserfromhell is not installed.
  """
  try:
    import mwparserfromhell  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise SourceError('dumps of a wiki are read with the package mwparserfromhell: pip install '
                      "'plm_jax[corpora]'; or give what WikiExtractor takes out of them") from error

  def to_text(wikitext: str, hidden: tuple[str, ...]) -> str:
    text = ''.join(visible_text(mwparserfromhell.parse(wikitext, skip_style_tags=True), hidden))
    lines = []
    for line in text.split('\n'):
      if LIST_MARK in line:
        continue
      line = TEMPLATE_REMAINS.sub('', line).replace("'''", '').replace("''", '').strip()
      if any(map(str.isalnum, line)):
        lines.append(line)
    return '\n'.join(lines)

  return to_text


def visible_text(code: Any, hidden: tuple[str, ...]) -> Iterator[str]:
  """Yield the parts of parsed wikitext that readers see as running text.

  A line with LIST_MARK is part of a list, or a heading.

  Args:
    code: parsed wikitext.
    hidden: names of namespaces whose links are hidden.
  """
  for node in code.nodes:
    kind = type(node).__name__
    if kind == 'Text':
      yield str(node)
    elif kind == 'HTMLEntity':
      yield node.normalize()
    elif kind == 'Wikilink':
      if str(node.title).partition(':')[0].strip().lower() not in hidden:
        yield from visible_text(node.title if node.text is None else node.text, hidden)
    elif kind == 'ExternalLink':
      if node.title is not None:
        yield from visible_text(node.title, hidden)
    elif kind == 'Heading':
      yield LIST_MARK
    elif kind == 'Tag':
      name = str(node.tag).strip().lower()
      if name == 'br':
        yield '\n'
      elif name not in HIDDEN_ELEMENTS:
        if node.contents is not None:
          yield from visible_text(node.contents, hidden)
      elif node.wiki_markup and name in ('li', 'dt', 'dd'):
        yield LIST_MARK
