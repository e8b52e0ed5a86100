"""Minimal pairs: accuracy of preferring the acceptable sentence of a pair (BLiMP).

BLiMP's format (Warstadt et al. 2020) is JSON Lines with sentence_good, sentence_bad, and UID, the
paradigm of the pair; linguistics_term (the phenomenon) and field are optional.
"""
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
import math
from typing import Literal, NamedTuple

from scipy import special

from plm_jax import environment
from plm_jax.sources import labeled_files
from plm_jax.sources.lines import SourceError

ChanceComparison = Literal['above', 'below', 'unsure']


class MinimalPair(NamedTuple):
  """Two sentences, of which the first is acceptable."""

  good: str
  bad: str
  paradigm: str
  term: str = ''
  """phenomenon of the paradigm, such as island_effects"""
  where: str = ''
  """origin, as 'file:line'"""


class JudgedPair(NamedTuple):
  """A pair with the scores of its sentences."""

  pair: MinimalPair
  good: float
  bad: float

  @property
  def right(self) -> bool:
    """Whether the acceptable sentence has the higher score; False for equal scores."""
    return self.good > self.bad


@dataclasses.dataclass(frozen=True)
class PairAccuracy:
  """Accuracy on a group of pairs; chance is 0.5."""

  name: str
  right: int
  """number of pairs that are judged correctly"""
  pairs: int
  term: str = ''

  @property
  def accuracy(self) -> float:
    """Accuracy, from 0 to 1."""
    return self.right / self.pairs

  @property
  def error(self) -> float:
    """Standard error of the accuracy."""
    return math.sqrt(self.accuracy * (1 - self.accuracy) / max(1, self.pairs - 1))

  @property
  def interval(self) -> tuple[float, float]:
    """The 95% confidence interval of the accuracy, binomial (Clopper and Pearson 1934)."""
    right, wrong, tail = self.right, self.pairs - self.right, 0.025
    low = float(special.betaincinv(right, wrong + 1, tail)) if right else 0.0
    high = float(special.betaincinv(right + 1, wrong, 1 - tail)) if wrong else 1.0
    return low, high

  @property
  def versus_chance(self) -> ChanceComparison:
    """Whether the whole confidence interval is above or below chance, or neither (unsure)."""
    low, high = self.interval
    if low > 0.5:
      return 'above'
    return 'below' if high < 0.5 else 'unsure'


def read_pairs(source: str, limit: int = 0) -> Iterator[MinimalPair]:
  """Read the pairs of a source of rows (`sources.labeled_files`).

  limit: maximum number of pairs per paradigm; 0: all.

  Raises:
    SourceError: a row lacks one of the sentences.
  """
  seen: dict[str, int] = {}
  name = source.rpartition('/')[2].partition('.')[0]
  for row, where in labeled_files.iterate_rows(source):
    good, bad = row.get('sentence_good'), row.get('sentence_bad')
    if not isinstance(good, str) or not isinstance(bad, str) or not good or not bad:
      raise SourceError(f'{where}: expected the texts sentence_good and sentence_bad, got the '
                        f'columns {", ".join(map(str, row)) or "none"}')
    paradigm = str(row.get('UID') or row.get('paradigm') or name)
    term = str(row.get('linguistics_term') or row.get('field') or '')
    seen[paradigm] = seen.get(paradigm, 0) + 1
    if not limit or seen[paradigm] <= limit:
      yield MinimalPair(good, bad, paradigm, term, where)


def read_judged_pairs(source: str) -> list[JudgedPair]:
  """Read pairs with scores, as written by `minimal-pairs --output`.

  Raises:
    SourceError: the file has another format or no pairs.
  """
  found = []
  for row, where in labeled_files.iterate_rows(source):
    good, bad = row.get('good'), row.get('bad')
    if not isinstance(good, int | float) or not isinstance(bad, int | float):
      raise SourceError(f'{where}: expected the numbers good and bad, as `minimal-pairs '
                        f'{environment.option("output")}` writes them, got the columns '
                        f'{", ".join(map(str, row)) or "none"}')
    pair = MinimalPair(
        str(row.get('sentence_good', '')), str(row.get('sentence_bad', '')),
        str(row.get('UID', '')), str(row.get('linguistics_term') or ''),
        str(row.get('where', '')))
    found.append(JudgedPair(pair, float(good), float(bad)))
  if not found:
    raise SourceError(f'{source} has no pairs')
  return found


def judge_pairs(
    score: Callable[[Sequence[str]], Sequence[float]], pairs: Sequence[MinimalPair],
) -> list[JudgedPair]:
  """Score each distinct sentence of pairs once, and return the pairs with their scores.

  score: maps texts to log-likelihoods.

  Raises:
    SourceError: there are no pairs.
  """
  if not pairs:
    raise SourceError('there are no pairs')
  texts = list(dict.fromkeys(itertools.chain.from_iterable(pair[:2] for pair in pairs)))
  scores = dict(zip(texts, score(texts), strict=True))
  return [JudgedPair(pair, scores[pair.good], scores[pair.bad]) for pair in pairs]


def accuracy_by_paradigm(judged: Sequence[JudgedPair]) -> list[PairAccuracy]:
  """Compute the accuracy per paradigm; paradigms of a phenomenon are adjacent."""
  return group_accuracies(judged, lambda one: (one.pair.term, one.pair.paradigm))


def accuracy_by_phenomenon(judged: Sequence[JudgedPair]) -> list[PairAccuracy]:
  """Compute the accuracy per phenomenon; pairs without one are left out."""
  found = group_accuracies(judged, lambda one: ('', one.pair.term))
  return [share for share in found if share.name]


def overall_accuracy(judged: Sequence[JudgedPair]) -> PairAccuracy:
  """Compute the accuracy on all pairs."""
  return group_accuracies(judged, lambda one: ('', 'all'))[0]


def group_accuracies(
    judged: Sequence[JudgedPair], key: Callable[[JudgedPair], tuple[str, str]],
) -> list[PairAccuracy]:
  """Compute the accuracy per group, sorted by key. key: returns (phenomenon, name) of a group."""
  groups: dict[tuple[str, str], list[bool]] = {}
  for one in judged:
    groups.setdefault(key(one), []).append(one.right)
  return [PairAccuracy(name, sum(right), len(right), term)
          for (term, name), right in sorted(groups.items())]
