"""Evaluation of word vectors on word similarity and analogies.

    pairs       a line `word, word, score` between tabs after one with names, or without; also .gz
                and .xz
    analogies   a line `: section`, or none, then lines of four words: a is to b as c is to d
                (word2vec's questions-words.txt, and CA8 for Chinese)
"""
from collections.abc import Iterable, Sequence
import dataclasses
from typing import Literal

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.metrics.tasks import spearman
from plm_jax.sources.labeled_files import parse_number
from plm_jax.sources.lines import ReadStats, SourceError, read_lines
from plm_jax.word_vectors.vectors import WordVectors, three_cos_mul

WordPair = tuple[str, str, float]
MAX_SCORES = 1 << 26  # cosines that are held at once


@dataclasses.dataclass(frozen=True)
class VectorScore:
  """A metric in percent, and the number of questions that it is computed on."""

  value: float
  answered: int
  total: int


def read_pairs(path: epath.PathLike) -> list[WordPair]:
  """Read pairs of words and their scores. Raises SourceError that names the line."""
  pairs = []
  for number, line in read_lines(storage.resolve_path(path), 'refuse', ReadStats()):
    fields = line.split('\t')
    if not line.strip():
      continue
    try:
      pairs.append((fields[0], fields[1], parse_number(fields[2])))
    except (IndexError, ValueError) as error:
      if number > 1:  # the first line may have names of columns
        raise SourceError(f'{path}:{number}: expected two words and a number between tabs, got '
                          f'{line[:60]!r}') from error
  if not pairs:
    raise SourceError(f'{path} has no pairs of words')
  return pairs


def read_analogies(path: epath.PathLike) -> dict[str, list[list[str]]]:
  """Read analogies by section. Raises SourceError that names the line."""
  sections: dict[str, list[list[str]]] = {}
  section = ''
  for number, line in read_lines(storage.resolve_path(path), 'refuse', ReadStats()):
    words = line.split()
    if line.startswith(':'):
      section = line[1:].strip()
    elif len(words) == 4:
      sections.setdefault(section, []).append(words)
    elif words:
      raise SourceError(
          f'{path}:{number}: expected four words, or a colon and a name, got {line[:60]!r}')
  if not sections:
    raise SourceError(f'{path} has no analogies')
  return sections


def word_rows(vectors: WordVectors, lower: bool, most: int | None = None) -> dict[str, int]:
  """Map words to their rows.

  Questions and vocabulary are compared in one case, as gensim's `case_insensitive` and word2vec.c's
  compute-accuracy do: of `Paris`, `paris` and `PARIS` the most frequent answers for all.

  Args:
    vectors: word vectors, most frequent first.
    lower: map words in lower case to the first word that matches.
    most: number of words, from the beginning; None: all.
  """
  rows: dict[str, int] = {}
  for row, word in enumerate(vectors.words[:most]):
    rows.setdefault(word.lower() if lower else word, row)
  return rows


def score_similarity(
    vectors: WordVectors, pairs: Iterable[WordPair], lower: bool = True) -> VectorScore:
  """Compute Spearman's correlation between cosines and human scores, times 100.

  Args:
    vectors: word vectors; those with subwords (fastText) have a vector for every word.
    pairs: two words and a score each; pairs with a word that has no vector are left out
      (`answered`).
    lower: whether to ignore case, in the pairs and in the vocabulary.
  """
  rows = word_rows(vectors, lower)

  def find_word(word: str) -> str:
    word = word.lower() if lower else word
    return vectors.words[rows[word]] if word in rows else word

  total, scores, cosines = 0, [], []
  for one, other, score in pairs:
    total += 1
    one, other = find_word(one), find_word(other)
    if one in vectors and other in vectors:
      scores.append(score)
      cosines.append(vectors.similarity(one, other))
  if len(scores) < 2:
    return VectorScore(0.0, len(scores), total)
  return VectorScore(spearman(scores, cosines), len(scores), total)


def score_analogies(
    vectors: WordVectors, questions: Sequence[Sequence[str]], how: Literal['add', 'mul'] = 'add',
    most: int = 300_000, lower: bool = True) -> VectorScore:
  """Compute the accuracy on analogies a : b = c : d, in percent.

  Args:
    vectors: word vectors, most frequent first.
    questions: four words each. Questions with a word that is not among the `most` first words are
      left out (`answered`), as word2vec.c's compute-accuracy and gensim do.
    how: `add` or `mul`, see `WordVectors.analogy`. a, b and c are no answers.
    most: number of words, from the beginning, that questions and answers are taken from.
    lower: whether to ignore case, in the questions and in the vocabulary.
  """
  rows = word_rows(vectors, lower, most)
  places = {word: place for place, word in enumerate(rows)}
  known = []
  for question in questions:
    words = [word.lower() for word in question] if lower else question
    if all(word in places for word in words):
      known.append([places[word] for word in words])
  if not known:
    return VectorScore(0.0, 0, len(questions))
  unit = vectors.unit_matrix[list(rows.values())]
  answered, right = np.array(known), 0
  for part in np.array_split(answered, -(-answered.size * len(unit) // MAX_SCORES)):
    a, b, c, d = part.T
    if how == 'add':
      scores = (unit[b] - unit[a] + unit[c]) @ unit.T
    else:
      scores = three_cos_mul(unit[a] @ unit.T, unit[b] @ unit.T, unit[c] @ unit.T)
    np.put_along_axis(scores, part[:, :3], -np.inf, 1)
    right += int((scores.argmax(1) == d).sum())
  return VectorScore(100 * right / len(answered), len(answered), len(questions))
