"""Common Crawl's WET files: the plain text of web pages, as records of a WARC file (ISO 28500).

A record is a line with the version, the lines of its header, an empty line, as many bytes as the
Content-Length of the header, and two line ends. Pages are records of the type `conversion`.
"""
from collections.abc import Iterator
import re
from typing import Any

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
