"""Minimal pairs: two sentences that differ in one thing, of which a model should find the right one more likely.

BLiMP's form (Warstadt et al. 2020): .jsonl rows with sentence_good, sentence_bad and the paradigm, UID, that they are
an instance of; its linguistics_term and field where there are any.
"""
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import math
from typing import Literal, NamedTuple

from scipy import special

from plm_jax.data import rows
from plm_jax.data.lines import SourceError

Beyond = Literal['above', 'below', 'unsure']


class Pair(NamedTuple):
  """Two sentences."""

  good: str
  bad: str
  paradigm: str
  term: str = ''
  """the phenomenon that the paradigm is of: island_effects, say"""
  where: str = ''
  """'file:line'"""


class Judged(NamedTuple):
  """A pair, and what a model gave its sentences."""

  pair: Pair
  good: float
  bad: float

  @property
  def right(self) -> bool:
    """Whether the right one got more; where both got the same it is not."""
    return self.good > self.bad


@dataclasses.dataclass(frozen=True)
class Share:
  """How many of some pairs were judged rightly. Guessing makes it a half."""

  name: str
  right: int
  pairs: int
  term: str = ''

  @property
  def accuracy(self) -> float:
    """Share of the pairs that are right, of 1."""
    return self.right / self.pairs

  @property
  def error(self) -> float:
    """Standard error of the accuracy."""
    return math.sqrt(self.accuracy * (1 - self.accuracy) / max(1, self.pairs - 1))

  @property
  def interval(self) -> tuple[float, float]:
    """Where the accuracy lies at 95%, of a binomial distribution (Clopper and Pearson 1934)."""
    wrong, tail = self.pairs - self.right, 0.025
    return (float(special.betaincinv(self.right, wrong + 1, tail)) if self.right else 0.0,
            float(special.betaincinv(self.right + 1, wrong, 1 - tail)) if wrong else 1.0)

  @property
  def beyond(self) -> Beyond:
    """On which side of guessing all of the interval is."""
    low, high = self.interval
    return 'above' if low > 0.5 else 'below' if high < 0.5 else 'unsure'


def read(source: str, limit: int = 0) -> Iterator[Pair]:
  """Yields the pairs of a source of rows (`data.rows`). limit: of a paradigm at most; 0: all.

  Raises SourceError for a row without one of the sentences.
  """
  seen: dict[str, int] = {}
  name = source.rpartition('/')[2].partition('.')[0]
  for row, where in rows.each(source):
    good, bad = row.get('sentence_good'), row.get('sentence_bad')
    if not isinstance(good, str) or not isinstance(bad, str) or not good or not bad:
      raise SourceError(f'{where}: expected the texts sentence_good and sentence_bad, got the columns '
                        f'{", ".join(map(str, row)) or "none"}')
    paradigm = str(row.get('UID') or row.get('paradigm') or name)
    seen[paradigm] = seen.get(paradigm, 0) + 1
    if not limit or seen[paradigm] <= limit:
      yield Pair(good, bad, paradigm, str(row.get('linguistics_term') or row.get('field') or ''), where)


def read_judged(source: str) -> list[Judged]:
  """Reads what `minimal-pairs --output` has written of a model. Raises SourceError for what is something else."""
  found = []
  for row, where in rows.each(source):
    good, bad = row.get('good'), row.get('bad')
    if not isinstance(good, int | float) or not isinstance(bad, int | float):
      raise SourceError(f'{where}: expected the numbers good and bad, as `minimal-pairs --output` writes them, got the '
                        f'columns {", ".join(map(str, row)) or "none"}')
    pair = Pair(str(row.get('sentence_good', '')), str(row.get('sentence_bad', '')), str(row.get('UID', '')),
                str(row.get('linguistics_term') or ''), str(row.get('where', '')))
    found.append(Judged(pair, float(good), float(bad)))
  if not found:
    raise SourceError(f'{source} has no pairs')
  return found


def evaluate(score: Callable[[Sequence[str]], Sequence[float]], pairs: Sequence[Pair]) -> list[Judged]:
  """Has a model judge pairs, each sentence once. score: texts -> how likely each is. Raises SourceError where there
  are none."""
  if not pairs:
    raise SourceError('there are no pairs')
  texts = [*dict.fromkeys(text for pair in pairs for text in pair[:2])]
  found = dict(zip(texts, score(texts), strict=True))
  return [Judged(pair, found[pair.good], found[pair.bad]) for pair in pairs]


def by_paradigm(judged: Sequence[Judged]) -> list[Share]:
  """Counts by paradigm, those of a phenomenon beside each other."""
  return shares(judged, lambda one: (one.pair.term, one.pair.paradigm))


def by_term(judged: Sequence[Judged]) -> list[Share]:
  """Counts by phenomenon; none where pairs have none."""
  return [share for share in shares(judged, lambda one: ('', one.pair.term)) if share.name]


def whole(judged: Sequence[Judged]) -> Share:
  """Counts all."""
  return shares(judged, lambda one: ('', 'all'))[0]


def shares(judged: Sequence[Judged], of: Callable[[Judged], tuple[str, str]]) -> list[Share]:
  """Counts pairs by what `of` says of each: (phenomenon, name), in the order of both."""
  groups: dict[tuple[str, str], list[bool]] = {}
  for one in judged:
    groups.setdefault(of(one), []).append(one.right)
  return [Share(name, sum(some), len(some), term) for (term, name), some in sorted(groups.items())]
