"""Dumps of Wikipedia and its like (pages-articles, XML): the running text of articles.

Redirects and pages that are no articles are left out, and of articles what Devlin et al. 2019 (section 3.1) leave out:
lists, tables and headings; besides, templates, references, formulas, pictures and categories.
"""
from collections.abc import Callable, Iterator
import re
from typing import Any
from xml.etree import ElementTree

from plm_jax.data.lines import Opened, SourceError, Tally, report, unpacking

NOTHING = frozenset([  # elements whose contents are no running text
    'ref', 'references', 'table', 'gallery', 'math', 'chem', 'ce', 'score', 'timeline', 'source', 'syntaxhighlight',
    'pre', 'imagemap', 'hiero', 'graph', 'mapframe', 'templatestyles', 'li', 'dt', 'dd', 'hr'])
MARK = '\0'  # of lines of lists
EMPTY = re.compile(r'\s*[(（][\s;,，；、]*[)）]|__[A-Z]+__')  # what templates leave behind a name, and switches
MEDIA = 6, 14  # namespaces of files and categories


def texts(found: Opened, reading: Any, tally: Tally) -> Iterator[tuple[str, str]]:
  """Yields (text, 'file[title]') of every article. Raises SourceError for broken XML always; for wikitext that cannot
  be parsed as `reading.on_error` has it."""
  plain = parser()
  start, hidden = tally.bytes, ('file', 'image', 'category')
  with unpacking(found, 'the last page that was read'):
    try:
      for element in elements(found):
        if element.tag == 'siteinfo':
          hidden += tuple(name.text.lower() for name in element.iter('namespace')
                          if name.text and int(name.get('key', 0)) in MEDIA)
          continue
        tally.bytes = start + found.packed.tell()
        title, wikitext = element.findtext('title', ''), element.findtext('revision/text', '')
        if element.find('redirect') is not None or element.findtext('ns', '0') != '0' or element.findtext(
            'revision/model', 'wikitext') != 'wikitext':
          continue
        where = f'{found.file}[{title}]'
        try:
          text = plain(wikitext, hidden)
        except (RecursionError, ValueError, RuntimeError) as error:  # mwparserfromhell's ParserError is the last
          report(f'{where}: wikitext that cannot be parsed: {error}', reading.on_error, tally)
          continue
        yield text, where
    except ElementTree.ParseError as error:
      place = f'{found.file}:{error.position[0]}'
      raise SourceError(f'{place}: damaged or cut off: not the XML of a dump: {error}') from error


def elements(found: Opened) -> Iterator[ElementTree.Element]:
  """Yields the children of the root, with names without a namespace, and forgets them."""
  depth, root = 0, None
  for event, element in ElementTree.iterparse(found.text, ('start', 'end')):
    if event == 'start':
      element.tag = element.tag.rpartition('}')[2]
      root = element if root is None else root
      depth += 1
      continue
    depth -= 1
    if depth == 1 and root is not None:
      yield element
      root.clear()


def parser() -> Callable[[str, tuple[str, ...]], str]:
  """Returns what makes text of wikitext, given the names of hidden namespaces. Raises SourceError where its library is
  not installed."""
  try:
    import mwparserfromhell  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise SourceError("dumps of a wiki are read with the package mwparserfromhell: pip install 'plm_jax[corpora]'; or "
                      'give what WikiExtractor takes out of them') from error
  def plain(wikitext: str, hidden: tuple[str, ...]) -> str:
    text = ''.join(shown(mwparserfromhell.parse(wikitext, skip_style_tags=True), hidden))
    lines = (EMPTY.sub('', line).replace("'''", '').replace("''", '').strip() for line in text.split('\n')
             if MARK not in line)
    return '\n'.join(line for line in lines if any(map(str.isalnum, line)))
  return plain


def shown(code: Any, hidden: tuple[str, ...]) -> Iterator[str]:
  """Yields the pieces of text that a reader of parsed wikitext sees, of those that are running text; hidden: names of
  namespaces. A line with MARK is one of a list, or a heading."""
  for node in code.nodes:
    kind = type(node).__name__
    if kind == 'Text':
      yield str(node)
    elif kind == 'HTMLEntity':
      yield node.normalize()
    elif kind == 'Wikilink':
      if str(node.title).partition(':')[0].strip().lower() not in hidden:
        yield from shown(node.title if node.text is None else node.text, hidden)
    elif kind == 'ExternalLink':
      yield from shown(node.title, hidden) if node.title is not None else ()
    elif kind == 'Heading':
      yield MARK
    elif kind == 'Tag':
      if (name := str(node.tag).strip().lower()) not in NOTHING:
        yield from ('\n',) if name == 'br' else shown(node.contents, hidden) if node.contents is not None else ()
      elif node.wiki_markup and name in ('li', 'dt', 'dd'):
        yield MARK
