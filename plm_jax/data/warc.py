"""Common Crawl's WET files: the plain text of web pages, as records of a WARC file (ISO 28500).

A record is a line with the version, lines of its header, an empty line, as many bytes as the header's Content-Length
says, and two line ends. Pages are records of the type `conversion`.
"""
from collections.abc import Iterator
import re
from typing import Any

from plm_jax.data.lines import Opened, SourceError, Tally, decode, report, unpacking

MAX_RECORD = 1 << 28  # bytes
VERSION = re.compile(rb'WARC/1\.\d\r?\n')


def texts(found: Opened, reading: Any, tally: Tally) -> Iterator[tuple[str, str]]:
  """Yields (text, 'file[record]') of every page. Raises SourceError, or counts, as `reading.on_error` has it, for a
  record whose header is none or whose length is not that of its text; always for a file that is cut off, and for one of
  pages in HTML."""
  start, stream = tally.bytes, Records(found)
  while stream.next():
    tally.bytes = start + found.packed.tell()
    kind, length = stream.header.get('warc-type', ''), stream.header.get('content-length', '')
    if kind in ('response', 'request'):
      raise SourceError(f'{stream.where} is a {kind} of a web server: this is a WARC file of pages in HTML, expected '
                        'the WET file that has their text')
    if not length.isdecimal() or int(length) > MAX_RECORD:
      report(f'{stream.where}: a Content-Length of up to {MAX_RECORD:,} is expected, got {length[:40]!r}',
             reading.on_error, tally)
      stream.resume()
      continue
    content = stream.read(int(length))
    if not stream.ended():
      report(f'{stream.where}: no record begins behind the {length} bytes of its Content-Length', reading.on_error,
             tally)
      stream.resume()
    elif kind == 'conversion' and (text := decode(content, stream.where, reading.on_error, tally)) is not None:
      yield text, stream.where


class Records:
  """The records of a file, one after another."""

  def __init__(self, found: Opened):
    self.found, self.number = found, 0
    self.header: dict[str, str] = {}
    self.line = b''  # that was read ahead: the first of a record

  @property
  def where(self) -> str:
    """Names the record, counted from 1."""
    return f'{self.found.file}[{self.number}]'

  def next(self) -> bool:
    """Reads the header of the next record; False at the end. Raises SourceError for something else."""
    line, self.line = self.line or self.readline(), b''
    if not line:
      return False
    self.number += 1
    if not VERSION.match(line):
      raise SourceError(f'{self.where}: a record of a WARC file is expected, got {line[:40]!r}')
    self.header = {}
    while (line := self.readline()).strip():
      name, _, value = line.decode('utf-8', 'replace').partition(':')
      self.header[name.strip().lower()] = value.strip()
    if not line:
      raise SourceError(f'{self.where}: cut off in its header')
    return True

  def read(self, length: int) -> bytes:
    """Reads the content. Raises SourceError where there is less of it."""
    with unpacking(self.found, f'record {self.number - 1}'):
      content = self.found.text.read(length)
    if len(content) < length:
      raise SourceError(f'{self.where}: cut off: {len(content)} bytes of the {length} of its Content-Length')
    return content

  def ended(self) -> bool:
    """Tells whether the record is over, and another follows or the file ends."""
    for _ in range(2):
      self.line = self.readline()
      if self.line.strip():
        return False
    self.line = self.readline()
    return not self.line or VERSION.match(self.line) is not None

  def resume(self) -> None:
    """Goes on to the next line that begins a record."""
    while not VERSION.match(self.line):
      self.line = self.readline()
      if not self.line:
        return

  def readline(self) -> bytes:
    """Reads a line, of which a very long one is the beginning."""
    with unpacking(self.found, f'record {self.number}'):
      return self.found.text.readline(1 << 16)
