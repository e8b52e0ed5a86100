"""Tag schemes of chunks, such as named entities: BIO, IOB1, BIOES, BILOU and BMES.

    BIO (IOB2)   B-PER I-PER O          B begins a chunk (Ramshaw and Marcus 1995; Sang and
                                        Veenstra 1999)
    IOB1         I-PER B-PER O          B begins one only directly after another of its type
    BIOES        B-PER I-PER E-PER S-PER O    E ends a chunk, S is a one-word chunk (IOBES)
    BILOU        B-PER I-PER L-PER U-PER O    the same with other letters (Ratinov and Roth 2009);
                                              BIOEW has W for S
    BMES         B-PER M-PER E-PER S-PER O    the same, of Chinese word segmentation

The letter may also follow the type (PER-B), and `_` may separate them. Tags without a type are
single letters.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
import itertools
import re
from typing import NamedTuple

CHUNK = re.compile(r'([BI])-(.+)')
TAG = re.compile(r'([BIELMSUW])(?:-(.*))?', re.DOTALL)
BIOES_LETTERS = {'L': 'E', 'U': 'S', 'W': 'S', 'M': 'I'}  # letter of another scheme -> of BIOES
SCHEMES = {'BIO': 'BI', 'BIOES': 'BIES', 'BILOU': 'BILU', 'BMES': 'BMES', 'BIOEW': 'BIEW',
           'BMEW': 'BMEW'}
TAG_STYLES = [re.compile(style, re.DOTALL) for style in (
    '(?P<letter>[BIELMSUW])-(?P<type>.+)', '(?P<letter>[BIELMSUW])_(?P<type>.+)',
    '(?P<type>.+)-(?P<letter>[BIELMSUW])', '(?P<type>.+)_(?P<letter>[BIELMSUW])')]


class TagScheme(NamedTuple):
  """The tag scheme of a data set, with counts that tell its variants apart."""

  name: str
  """of SCHEMES; '' if tags are plain classes of words"""
  begun_by_i: int = 0
  """chunks that begin with I-"""
  needless_b: int = 0
  """chunks that begin with B- with no chunk of their type directly before: not needed in IOB1"""
  conflicts: int = 0
  """tags that contradict the previous one, in schemes that mark the end of a chunk"""

  @property
  def iob1(self) -> bool:
    """Whether B- only separates two chunks of a type (IOB1), as in CoNLL-2003 and WikiGold."""
    return self.name == 'BIO' and self.begun_by_i > 0 and self.needless_b == 0


def split_tag(tag: str) -> tuple[str, str]:
  """Split a tag into its BIOES letter and its type: 'L-PER' -> ('E', 'PER'); 'O' -> ('O', '').

  A tag without a type has the type '_'. Raises ValueError for a tag of no scheme.
  """
  if tag == 'O':
    return 'O', ''
  match = TAG.fullmatch(tag)
  if not match:
    raise ValueError("tags are 'O', or a letter of BIO, BIOES, BILOU or BMES and a type, such as "
                     f"'B-PER': got {tag!r}")
  return BIOES_LETTERS.get(match[1], match[1]), match[2] or '_'


def is_scheme(tags: Iterable[str]) -> bool:
  """Tell whether distinct tags all belong to a tag scheme."""
  return not find_invalid_tag(tags)


def find_invalid_tag(tags: Iterable[str]) -> str:
  """Return a tag of no scheme, '' if there is none. Bare letters are valid only if all are bare."""
  matches = {tag: TAG.fullmatch(tag) for tag in tags if tag != 'O'}
  for tag, match in matches.items():
    if not match:
      return tag
  bare = {match[2] is None for match in matches.values() if match}
  if len(bare) < 2:
    return ''
  return next(iter(matches))


def find_rewrite(tags: Iterable[str]) -> Callable[[str], str] | None:
  """Find the function that rewrites tags of other styles (PER-B, B_PER, PER_B) as 'B-PER'.

  None if tags already have that style, or have no style.
  """
  chunk_tags = [tag for tag in tags if tag != 'O']
  for number, style in enumerate(TAG_STYLES):
    matches = [style.fullmatch(tag) for tag in chunk_tags]
    letters = {match['letter'] for match in matches if match}
    if chunk_tags and all(matches) and letters & {'B', 'I'} and scheme_name(letters):
      if number == 0:  # the usual style
        return None
      return functools.partial(rewrite_tag, style)
  return None


def rewrite_tag(style: re.Pattern, tag: str) -> str:
  """Rewrite a tag of another style as 'B-PER'."""
  match = style.fullmatch(tag)
  return f'{match["letter"]}-{match["type"]}' if match else tag


def scheme_name(letters: set[str]) -> str:
  """Name the first scheme that has all of these letters, '' if none has."""
  return next((name for name, own in SCHEMES.items() if letters <= set(own)), '')


def find_scheme(sentences: Sequence[Sequence[str]]) -> TagScheme:
  """Detect the tag scheme of sentences, and count how chunks begin.

  Raises ValueError for letters of several schemes.
  """
  distinct = set(itertools.chain.from_iterable(sentences))
  if not distinct - {'O'} or not is_scheme(distinct):
    return TagScheme('')
  letters = {tag[0] for tag in distinct - {'O'}}
  name = scheme_name(letters)
  if not name and not letters & {'B', 'I'}:
    return TagScheme('')
  if not name:
    raise ValueError(f'tags begin with {", ".join(sorted(letters))}, which are letters of several '
                     f'schemes: expected those of one of {", ".join(SCHEMES)}')
  parts = {tag: split_tag(tag) for tag in distinct}
  begun_by_i = needless_b = conflicts = 0
  for tags in sentences:
    last_letter, last_type = 'O', ''
    for tag in tags:
      letter, kind = parts[tag]
      if kind and kind != last_type:
        begun_by_i += letter == 'I'
        needless_b += letter == 'B'
      continues = letter in 'IE'
      was_open = last_letter in 'BI'
      conflicts += was_open != continues or (continues and kind != last_type)
      last_letter, last_type = letter, kind
    conflicts += last_letter in 'BI'
  if name == 'BIO':
    conflicts = 0
  return TagScheme(name, begun_by_i, needless_b, conflicts)


def convert_to_bio(tags: Sequence[str]) -> tuple[str, ...]:
  """Convert the IOB1 tags of a sentence to BIO: every chunk begins with B-."""
  converted, previous = [], ''
  for tag in tags:
    chunk = CHUNK.fullmatch(tag)
    if chunk and chunk[2] != previous:
      tag = f'B-{chunk[2]}'
    converted.append(tag)
    previous = chunk[2] if chunk else ''
  return tuple(converted)


def find_chunks(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
  """Yield (first word, last word, type) of each chunk, in any scheme.

  An I- after O begins a chunk, as in conlleval. Tags without a type are classes of words and make
  no chunks.
  """
  parts = [split_tag(tag) if TAG.fullmatch(tag) and '-' in tag[1:2] else None for tag in tags]
  first = 0
  for at, part in enumerate(parts):
    if not part:
      continue
    letter, kind = part
    before = parts[at - 1] if at else None
    after = parts[at + 1] if at + 1 < len(parts) else None
    if letter in 'BS' or not before or before[1] != kind or before[0] in 'ES':
      first = at
    if letter in 'ES' or not after or after[1] != kind or after[0] in 'BS':
      yield first, at, kind


def list_tag_names(sentences: Sequence[Sequence[str]]) -> tuple[str, ...]:
  """List the distinct tags, sorted; for a chunk type, all tags that its scheme has."""
  names = set(itertools.chain.from_iterable(sentences))
  scheme = find_scheme(sentences).name
  types = {tag[1:] for tag in names - {'O'}}  # '-PER', or '' of bare letters
  if scheme:
    for kind in types:
      names |= {f'{letter}{kind}' for letter in SCHEMES[scheme]}
  return tuple(sorted(names))
