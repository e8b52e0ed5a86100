"""CoNLL files: one word per line in columns, with tags; read as sentences.

    EU NNP B-NP B-ORG       a word, more columns, its tag; a blank line ends the sentence
    -DOCSTART- -X- -X- O    begins a document, as '# newdoc' and '#begin document' do

Columns are separated by a tab if the line has one, otherwise by spaces. Comments begin with '#' and
do not have the columns of the other lines. In CoNLL-U (.conllu) the word is the second column and
its part of speech the fourth; comments, ranges (1-2) and empty nodes (1.1) are skipped (Nivre et
al. 2020).
"""
import collections
from collections.abc import Iterable, Iterator, Sequence
import itertools
import re
from typing import NamedTuple

from plm_jax.errors import add_advice, name_field
from plm_jax.sources.lines import OnError, ReadStats, SourceError, report_problem

HEAD_LINES = 200  # by which the number of columns is determined
DOCUMENT_START = re.compile('-DOCSTART-|# ?newdoc|# ?begin document')
COMMENT = re.compile(r'# ?(newdoc|newpar|begin document|end document)|# ?[\w.:]+ = ')
NUMBER = re.compile(r'\d+([-.]\d+)?')  # of a word in its sentence, or a range of them
# Names of columns in a first line, in lower case.
WORD_NAMES = {'word', 'words', 'token', 'tokens', 'form'}
TAG_NAMES = {'tag', 'tags', 'label', 'labels', 'ner', 'ner_tag', 'ner_tags', 'pos', 'upos', 'ne'}


class FileLayout(NamedTuple):
  """Layout of a file of labeled rows, where its name does not determine it."""

  header: bool = True
  """The first line of a table names its columns; False: they are named '0', '1', ..."""
  words: bool = False
  """Files other than .jsonl, .json and .csv hold words in columns."""
  word: int | None = None
  """Column of the word, from 0 (negative: from the end); None: the first, in .conllu the second."""
  tag: int | None = None
  """Column of the tag; None: the last, in .conllu the fourth."""
  encoding: str = 'utf-8'
  """Character encoding."""


class TaggedWord(NamedTuple):
  """A word and its tag; None where the file has only words."""

  text: str
  tag: str | None


class TaggedSentence(NamedTuple):
  """A sentence of a CoNLL file."""

  words: list[TaggedWord]
  line: int  # of its first word
  document: int  # in the file, from 0


def read_sentences(name: str, lines: Iterable[tuple[int, str]], layout: FileLayout,
                   on_error: OnError, stats: ReadStats) -> Iterator[TaggedSentence]:
  """Yield the sentences of a file. Where no line begins a document, each sentence is a document.

  Args:
    name: of the file.
    lines: (number, text) of its lines.
    layout: columns of words and tags.
    on_error: 'skip' leaves out sentences with a malformed line, and counts them in `stats`.
    stats: is updated.

  Raises:
    SourceError: a line is malformed, such as one with fewer columns than the others.
  """
  universal = re.search(r'\.conllu(\.gz|\.xz)?$', name.lower()) is not None
  lines = iter(lines)
  head = list(itertools.islice(lines, HEAD_LINES))
  rows = [(number, split_fields(line)) for number, line in head
          if line.strip(' \t') and not line.startswith('#') and not DOCUMENT_START.match(line)]
  widths = collections.Counter(len(fields) for _, fields in rows)
  width = max(widths, key=widths.__getitem__, default=0)
  if layout.word is None and not universal:
    layout = choose_word_column(name, rows, layout, stats)
  sentences, has_documents, comments = [], False, 0
  words: list[TaggedWord] = []
  first = document = 0
  broken = False
  for number, line in itertools.chain(head, lines, [(0, '')]):
    begins = DOCUMENT_START.match(line) is not None
    if begins or not line.strip(' \t'):
      if words and not broken:
        sentences.append(TaggedSentence(words, first, document))
      words, broken = [], False
      document += begins
      has_documents |= begins
      continue
    if universal and (line.startswith('#') or re.match(r'\d+[-.]\d', line)):
      continue
    fields = split_fields(line)
    if line.startswith('#') and (COMMENT.match(line) or len(fields) not in (1, width)):
      comments += 1
      continue
    if broken:
      continue
    if not sentences and not words and is_header(fields, layout):
      stats.notes.append(f'{name}:{number}: the line names the columns and is not read as a word')
      continue
    if not words:
      first = number
    try:
      words.append(parse_word(fields, width, universal, layout))
    except ValueError as error:
      report_problem(f'{name}:{number}: {error}', on_error, stats)
      broken = True
  if comments:
    stats.notes.append(f"{name}: {comments:,} lines that begin with '#' are comments and are not "
                       'read')
  for number, sentence in enumerate(sentences):
    yield sentence if has_documents else sentence._replace(document=number)


def split_fields(line: str) -> list[str]:
  """Split a line at its tabs or, where it has none, at its spaces."""
  return line.split('\t') if '\t' in line else re.split(' +', line.strip(' '))


def choose_word_column(
    name: str, rows: Sequence[tuple[int, list[str]]], layout: FileLayout, stats: ReadStats
) -> FileLayout:
  """Return the layout with the second column for words if the first one only has numbers.

  Raises SourceError if it is not clear which column has the tags.
  """
  if len(rows) < 2 or not all(NUMBER.fullmatch(fields[0]) for _, fields in rows):
    return layout
  shown = ', '.join(fields[0] for _, fields in rows[:3])
  what = f'{name}:{rows[0][0]}: the first column has numbers, {shown}, and no words'
  if {len(fields) for _, fields in rows} == {3} or layout.tag is not None:
    stats.notes.append(f'{what}: words are read from the second column')
    return layout._replace(word=1)
  advice = add_advice(f': {name_field("columns.first")}=1 reads words from the second column, and '
                      f'{name_field("columns.label")}=2 tags from the third')
  comments = " (lines that begin with '#' are comments)" if rows[0][0] > 1 else ''
  raise SourceError(f'{what}{comments}{advice}')


def is_header(fields: list[str], layout: FileLayout) -> bool:
  """Tell whether the first line of a file names its columns."""
  names = [field.strip().lower() for field in fields]
  word, tag = layout.word or 0, -1 if layout.tag is None else layout.tag
  if len(names) < 2 or not -len(names) <= min(word, tag) <= max(word, tag) < len(names):
    return False
  return names[word] in WORD_NAMES and names[tag] in TAG_NAMES


def parse_word(fields: list[str], width: int, universal: bool, layout: FileLayout) -> TaggedWord:
  """Return the word and its tag from the fields of a line. Raises ValueError with the problem.

  Args:
    fields: columns of the line.
    width: expected number of columns.
    universal: the file is CoNLL-U.
    layout: columns of words and tags.
  """
  if len(fields) != width:
    raise ValueError(f'{len(fields)} columns, but most lines have {width}')
  word, tag = layout.word, layout.tag
  if word is None:
    word = int(universal)
  checked = [word]
  if tag is not None or universal:
    tag = 3 if tag is None else tag
    checked.append(tag)
  else:
    tag = -1
  for column in checked:
    if not -width <= column < width:
      raise ValueError(f'no column {column}, there are {width}')
  has_tag = tag % width != word % width
  found = TaggedWord(fields[word], fields[tag] if has_tag else None)
  if not found.text.strip():
    raise ValueError(f'a word must not be empty, got {fields}')
  return found


def read_conll_rows(name: str, lines: Iterable[tuple[int, str]], layout: FileLayout,
                    on_error: OnError, stats: ReadStats
                    ) -> Iterator[tuple[dict[str, object], str]]:
  """Yield ({'words', 'tags', 'document'}, 'file:line') of each sentence, see `read_sentences`.

  'tags' is missing where words have none. Raises SourceError for a file without a sentence.
  """
  empty = True
  for words, line, document in read_sentences(name, lines, layout, on_error, stats):
    empty = False
    columns: dict[str, object] = {'words': [word.text for word in words], 'document': document}
    if all(word.tag is not None for word in words):
      columns['tags'] = [word.tag for word in words]
    yield columns, f'{name}:{line}'
  if empty and not stats.skipped:
    raise SourceError(f'{name} has no sentences: expected one word per line, its tag in the last '
                      'column, a blank line between sentences')
