"""How good word vectors are: by what people say of pairs of words, and by analogies.

    pairs       a line `word, word, score` between tabs behind one with names, or without; .gz and .xz too
    analogies   a line `: section`, or none, then lines of four words: a is to b as c is to d (word2vec's
                questions-words.txt, and CA8 for Chinese)
"""
from collections.abc import Iterable, Sequence
import dataclasses
from typing import Literal

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data.lines import SourceError, Tally, lines
from plm_jax.tasks.metrics import spearman
from plm_jax.vectors.words import WordVectors, multiplied

Pair = tuple[str, str, float]
ROOM = 1 << 26  # cosines that are held at once


@dataclasses.dataclass(frozen=True)
class Score:
  """A figure in percent, and of how many questions it is."""

  value: float
  answered: int
  asked: int


def read_pairs(path: epath.PathLike) -> list[Pair]:
  """Reads pairs of words and their scores. Raises SourceError that names the line."""
  found = []
  for number, line in lines(storage.path_of(path), 'refuse', Tally()):
    fields = line.split('\t')
    if not line.strip():
      continue
    try:
      found.append((fields[0], fields[1], float(fields[2])))
    except (IndexError, ValueError) as error:
      if number > 1:
        said = f'expected two words and a number between tabs, got {line[:60]!r}'
        raise SourceError(f'{path}:{number}: {said}') from error
  if not found:
    raise SourceError(f'{path} has no pairs of words')
  return found


def read_analogies(path: epath.PathLike) -> dict[str, list[list[str]]]:
  """Reads analogies by section. Raises SourceError that names the line."""
  found: dict[str, list[list[str]]] = {}
  section = ''
  for number, line in lines(storage.path_of(path), 'refuse', Tally()):
    words = line.split()
    if line.startswith(':'):
      section = line[1:].strip()
    elif len(words) == 4:
      found.setdefault(section, []).append(words)
    elif words:
      raise SourceError(f'{path}:{number}: expected four words, or a colon and a name, got {line[:60]!r}')
  if not found:
    raise SourceError(f'{path} has no analogies')
  return found


def similarity(vectors: WordVectors, pairs: Iterable[Pair], lower: bool = True) -> Score:
  """Measures Spearman's correlation of cosines with scores, times 100, over the pairs whose words both have vectors;
  of the others `answered` tells. Vectors with parts of words have one for every word. lower: words in lower case."""
  asked = [(one.lower(), other.lower(), score) if lower else (one, other, score) for one, other, score in pairs]
  known = [pair for pair in asked if pair[0] in vectors and pair[1] in vectors]
  if len(known) < 2:
    return Score(0.0, len(known), len(asked))
  found = [vectors.similarity(one, other) for one, other, _ in known]
  return Score(spearman([score for *_, score in known], found), len(known), len(asked))


def analogies(
    vectors: WordVectors, questions: Sequence[Sequence[str]], how: Literal['add', 'mul'] = 'add', most: int = 300_000,
    lower: bool = True) -> Score:
  """Measures the share of analogies a : b = c : d whose best answer is d, in percent.

  Answers are among the `most` first words, a, b and c are none (see WordVectors.analogy). A question of which a word is
  not among them is left out, as word2vec.c's compute-accuracy and gensim do; `answered` tells how many were not.
  """
  asked = [[word.lower() for word in words] if lower else [*words] for words in questions]
  known = [[vectors.index[word] for word in words] for words in asked
           if all(vectors.index.get(word, most) < most for word in words)]
  if not known:
    return Score(0.0, 0, len(asked))
  unit = vectors.unit[:most]
  rows, right = np.array(known), 0
  for part in np.array_split(rows, -(-rows.size * len(unit) // ROOM)):
    a, b, c, d = part.T
    if how == 'add':
      scores = (unit[b] - unit[a] + unit[c]) @ unit.T
    else:
      scores = multiplied(*(unit[words] @ unit.T for words in (a, b, c)))
    np.put_along_axis(scores, part[:, :3], -np.inf, 1)
    right += int((scores.argmax(1) == d).sum())
  return Score(100 * right / len(rows), len(rows), len(asked))
