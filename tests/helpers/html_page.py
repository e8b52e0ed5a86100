"""Parsed HTML reports for tests of their content."""
from html.parser import HTMLParser
import re
from xml.etree import ElementTree

VOID = {'meta'}


class Page(HTMLParser):
  """Collects the text of a page; fails on an element that is not closed in order."""

  def __init__(self, path):
    super().__init__()
    self.open, self.text, self.tags = [], [], []
    self.source = path.read_text()
    self.feed(self.source)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text.append(data)

  @property
  def words(self):
    return ''.join(self.text)

  def count(self, tag, kind=None):
    return sum(found == tag and (kind is None or attrs.get('class') == kind)
               for found, attrs in self.tags)

  def charts(self):
    """Title -> the chart's SVG, parsed as XML."""
    trees = [ElementTree.fromstring(text)
             for text in re.findall(r'<svg.*?</svg>', self.source, re.DOTALL)]
    return {tree.get('aria-label'): tree for tree in trees}
