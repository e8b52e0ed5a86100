"""Words in columns, one a line, as CoNLL's shared tasks lay them out: sentences as rows of words and their tags.

    EU NNP B-NP B-ORG       a word, more columns, its tag; a blank line ends the sentence
    -DOCSTART- -X- -X- O    begins a document

Columns stand apart by a tab if the line has one, otherwise by spaces. In CoNLL-U (.conllu) the word is the second
column and its part of speech the fourth; comments, ranges (1-2) and empty nodes (1.1) are passed over, and '# newdoc'
begins a document (Nivre et al. 2020).
"""
from collections.abc import Iterable, Iterator
import itertools
import re
from typing import NamedTuple

from plm_jax.data.lines import OnError, SourceError, Tally, report


class Layout(NamedTuple):
  """How rows lie in a file, where its name does not say it."""

  header: bool = True
  """the first line of a table names its columns; False: they are '0', '1', ..."""
  words: bool = False
  """files other than .jsonl, .json and .csv hold words in columns"""
  word: int | None = None
  """column of the word, counted from 0, or from the end below 0; None: the first, of .conllu the second"""
  tag: int | None = None
  """column of the tag; None: the last, of .conllu the fourth"""


class Word(NamedTuple):
  text: str
  tag: str | None


class Sentence(NamedTuple):
  words: list[Word]
  line: int  # of its first word
  document: int  # of the file, from 0


def sentences(name: str, found: Iterable[tuple[int, str]], layout: Layout, on_error: OnError,
              tally: Tally) -> Iterator[Sentence]:
  """Yields the sentences of a file, from (number, text) of its lines. Where no line begins a document, each sentence is
  one.

  A line has as many columns as the first. Raises SourceError, or with `skip` counts it and leaves its sentence out.
  """
  universal = re.search(r'\.conllu(\.gz|\.xz)?$', name.lower()) is not None
  read, started = [], False
  words: list[Word] = []
  width = first = document = 0
  broken = False
  for number, line in itertools.chain(found, [(0, '')]):
    begins = line.startswith('# newdoc') if universal else line.startswith('-DOCSTART-')
    if begins or not line.strip(' \t'):
      if words and not broken:
        read.append(Sentence(words, first, document))
      words, broken = [], False
      document += begins
      started |= begins
      continue
    if broken or (universal and (line.startswith('#') or re.match(r'\d+[-.]\d', line))):
      continue
    fields = fields_of(line)
    width, first = width or len(fields), first if words else number
    try:
      words.append(word_of(fields, width, universal, layout))
    except ValueError as error:
      report(f'{name}:{number}: {error}', on_error, tally)
      broken = True
  for number, sentence in enumerate(read):
    yield sentence if started else sentence._replace(document=number)


def fields_of(line: str) -> list[str]:
  """Splits a line at its tabs, or where it has none at its spaces."""
  return line.split('\t') if '\t' in line else re.split(' +', line.strip(' '))


def word_of(fields: list[str], width: int, universal: bool, layout: Layout) -> Word:
  """Picks a word and its tag, None where there is but the word. Raises ValueError that says what is wrong."""
  if len(fields) != width:
    raise ValueError(f'{len(fields)} columns, but the first line has {width}')
  word = layout.word if layout.word is not None else int(universal)
  tag = layout.tag if layout.tag is not None else 3 if universal else -1
  for column in (word, *([tag] if layout.tag is not None or universal else [])):
    if not -width <= column < width:
      raise ValueError(f'no column {column}, there are {width}')
  found = Word(fields[word], None if tag % width == word % width else fields[tag])
  if not found.text.strip() or found.tag == '':
    raise ValueError(f'a word and its tag must not be empty, got {fields}')
  return found


def rows(name: str, found: Iterable[tuple[int, str]], layout: Layout, on_error: OnError,
         tally: Tally) -> Iterator[tuple[dict[str, object], str]]:
  """Yields ({'words', 'tags', 'document'}, 'file:line') of each sentence; 'tags' is missing where words have none.
  Raises SourceError for a file without a sentence."""
  empty = True
  for words, line, document in sentences(name, found, layout, on_error, tally):
    empty = False
    columns: dict[str, object] = {'words': [word.text for word in words], 'document': document}
    if all(word.tag is not None for word in words):
      columns['tags'] = [word.tag for word in words]
    yield columns, f'{name}:{line}'
  if empty and not tally.skipped:
    raise SourceError(f'{name} has no sentences: expected a word a line, its tag in the last column, a blank line '
                      'between sentences')
