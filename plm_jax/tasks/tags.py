"""Tags of chunks: B-TYPE begins one, I-TYPE goes on with it, O is outside (Ramshaw and Marcus 1995)."""
from collections.abc import Iterable, Iterator, Sequence
import re
from typing import NamedTuple

CHUNK = re.compile(r'([BI])-(.+)')


class Scheme(NamedTuple):
  """How chunks of a data set begin."""

  inside: int
  """chunks that begin with I-"""
  begun: int
  """chunks that begin with B- where none of their type goes before: not needed in IOB1"""

  @property
  def iob1(self) -> bool:
    """Whether B- stands only between two chunks of a type (IOB1), as in CoNLL-2003's files and WikiGold."""
    return self.inside > 0 and self.begun == 0


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
  """Counts how chunks begin; (0, 0) where tags are of another kind than B-, I- and O."""
  inside = begun = 0
  for tags in sentences:
    before = ''
    for tag in tags:
      chunk = CHUNK.fullmatch(tag)
      if tag != 'O' and not chunk:
        return Scheme(0, 0)
      if chunk and chunk[2] != before:
        inside += chunk[1] == 'I'
        begun += chunk[1] == 'B'
      before = chunk[2] if chunk else ''
  return Scheme(inside, begun)


def to_bio(tags: Sequence[str]) -> tuple[str, ...]:
  """Writes the tags of a sentence so that every chunk begins with B-."""
  found, before = [], ''
  for tag in tags:
    chunk = CHUNK.fullmatch(tag)
    starts = chunk and chunk[2] != before
    found.append(f'B-{chunk[2]}' if chunk and starts else tag)
    before = chunk[2] if chunk else ''
  return tuple(found)


def chunks(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
  """Yields (first word, last word, type) of each chunk; an I- behind nothing begins one, as conlleval has it."""
  found = [re.fullmatch('([BIES])-(.+)', tag) for tag in tags]
  first = 0
  for at, this in enumerate(found):
    before = found[at - 1] if at else None
    after = found[at + 1] if at + 1 < len(found) else None
    if this and (this[1] in 'BS' or not before or before[2] != this[2] or before[1] in 'ES'):
      first = at
    if this and (this[1] in 'ES' or not after or after[2] != this[2] or after[1] in 'BS'):
      yield first, at, this[2]


def names_of(sentences: Iterable[Sequence[str]]) -> tuple[str, ...]:
  """Lists the tags there are by their names; of a type of chunk both, B- and I-."""
  found = {tag for tags in sentences for tag in tags}
  chunks = [CHUNK.fullmatch(tag) for tag in found - {'O'}]
  if chunks and all(chunks):
    found |= {f'{letter}-{chunk[2]}' for chunk in chunks if chunk for letter in 'BI'}
  return tuple(sorted(found))
