"""Measures of labels, tags and answers as the field's scorers compute them, in percent.

Each takes the truth first and what was predicted second. Nothing to compare, or sides of different lengths, raise
Expected; where a measure is not defined, it is 0.0, and says so: nothing here gives NaN.
"""
from collections.abc import Callable, Sequence
import math
import re
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.errors import Expected
from plm_jax.evaluation.metrics import normalised, words_f1

Script = Literal['squad', 'cmrc']
"""whose official script measures answers: SQuAD's, or CMRC 2018's for Chinese"""
Golds = Sequence[Sequence[str]]  # of each question the answers that are right; none: it has no answer


class ClassScore(NamedTuple):
  """How well a class was found."""

  precision: float
  """0 where it was never predicted"""
  recall: float
  """0 where it is nowhere"""
  f1: float
  """0 where it is neither"""
  support: int
  """how often it is true"""


class ChunkScores(NamedTuple):
  """How well chunks were found: all (the micro average), and those of each type, by name."""

  total: ClassScore
  types: dict[str, ClassScore]


def accuracy(truth: Any, predicted: Any) -> float:
  """Returns the share of labels [N] that are right."""
  truth, predicted = paired(truth, predicted)
  return 100 * float((truth == predicted).mean())


def f1(truth: Any, predicted: Any) -> float:
  """Measures F1 of class 1 among labels [N], as GLUE does for MRPC and QQP; 0 where nothing is of it."""
  truth, predicted = (some == 1 for some in paired(truth, predicted))
  return class_score((truth & predicted).sum(), predicted.sum(), truth.sum()).f1


def macro_f1(truth: Any, predicted: Any) -> float:
  """Measures the mean F1 of the classes that are among the labels [N], true or predicted (scikit-learn's)."""
  table = confusion(truth, predicted)
  return float(np.mean([score.f1 for score in of_confusion(table)]))


def matthews(truth: Any, predicted: Any) -> float:
  """Measures Matthews' correlation of labels [N] of two or more classes (Gorodkin 2004); 0 where either side is the
  same throughout."""
  table = confusion(truth, predicted).astype(float)
  count, true, said = table.sum(), table.sum(1), table.sum(0)
  spread = (count ** 2 - true @ true) * (count ** 2 - said @ said)
  return 100 * float((np.trace(table) * count - true @ said) / math.sqrt(spread)) if spread > 0 else 0.0


def pearson(truth: Any, predicted: Any) -> float:
  """Measures Pearson's correlation of values [N]; 0 where either side is the same throughout, or not all finite."""
  sides = [np.asarray(some, np.float64) for some in paired(truth, predicted)]
  if not all(np.isfinite(some).all() and np.ptp(some) for some in sides):
    return 0.0
  ours, theirs = (unit(some) for some in sides)
  return 100 * float(np.clip(ours @ theirs, -1, 1))


def spearman(truth: Any, predicted: Any) -> float:
  """Measures Spearman's correlation of values [N]: Pearson's of their ranks, of equal ones the mean rank; 0 where
  Pearson's is."""
  truth, predicted = paired(truth, predicted)
  return pearson(ranks(truth), ranks(predicted))


def unit(values: np.ndarray) -> np.ndarray:
  """Returns values less their mean, at length 1."""
  values = values - values.mean()
  values = values / np.abs(values).max()  # the squares of small and large ones are none
  return values / np.linalg.norm(values)


def ranks(values: np.ndarray) -> np.ndarray:
  """Returns the ranks of values [N] from 1, of equal ones the mean; NaN for all where one is no number."""
  if np.isnan(np.asarray(values, np.float64)).any():
    return np.full(len(values), np.nan)
  _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
  return (np.cumsum(counts) - (counts - 1) / 2)[number]


def confusion(truth: Any, predicted: Any, classes: int = 0) -> np.ndarray:
  """Counts pairs of labels [N]: counts [C, C], the row the true class, the column the predicted one.

  classes: C, of labels that are numbers below it; 0: the labels that there are, in their order.
  """
  truth, predicted = paired(truth, predicted)
  if not classes:
    names, numbers = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
    classes, (truth, predicted) = len(names), np.split(numbers, 2)
  elif min(truth.min(), predicted.min()) < 0 or max(truth.max(), predicted.max()) >= classes:
    raise Expected(f'labels are numbers below {classes}, got {truth.min()} to {truth.max()} and {predicted.min()} to '
                   f'{predicted.max()}')
  return np.bincount(truth.astype(np.int64) * classes + predicted, minlength=classes ** 2).reshape(classes, classes)


def by_class(truth: Any, predicted: Any, names: Sequence[str]) -> dict[str, ClassScore]:
  """Measures each class of labels [N], which are numbers of `names`."""
  return dict(zip(names, of_confusion(confusion(truth, predicted, len(names))), strict=True))


def of_confusion(table: np.ndarray) -> list[ClassScore]:
  """Measures each class of a table of confusion [C, C]."""
  return [class_score(*counts) for counts in zip(table.diagonal(), table.sum(0), table.sum(1), strict=True)]


def class_score(right: int, predicted: int, true: int) -> ClassScore:
  """Measures a class of which so many are right, so many predicted, and so many true."""
  shares = (100 * float(right) / max(float(some), 1) for some in (predicted, true, (predicted + true) / 2))
  return ClassScore(*shares, support=int(true))


def chunks(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> ChunkScores:
  """Measures chunks of sentences of tags 'B-PER', 'I-PER', 'O' as conlleval does (Tjong Kim Sang and Buchholz 2000),
  and seqeval: one is right whose borders and whose type are.

  A chunk begins at B, where I follows O, and where the type changes: so IOB1 and BIO are both read, and an I behind
  nothing counts as B. Of IOBES an E or S ends one too. Where there are no chunks at all, all scores are 0. Raises
  Expected where a sentence has other numbers of tags, and for what is no tag.
  """
  if [*map(len, truth)] != [*map(len, predicted)] or not len(truth):
    raise Expected(f'as many tags as words, in as many sentences: got {len(truth)} sentences of {sum(map(len, truth))} '
                   f'tags, and {len(predicted)} of {sum(map(len, predicted))} predicted ones')
  types: dict[str, int] = {}
  (true, true_types), (said, said_types) = (borders(some, types) for some in (truth, predicted))
  _, ours, theirs = np.intersect1d(true, said, assume_unique=True, return_indices=True)
  right = true_types[ours[true_types[ours] == said_types[theirs]]]
  counts = np.array([np.bincount(some, minlength=len(types)) for some in (right, said_types, true_types)])
  scores = {name: class_score(*counts[:, number]) for name, number in sorted(types.items()) if counts[:, number].any()}
  return ChunkScores(class_score(*counts.sum(1)), scores)


def borders(sentences: Sequence[Sequence[str]], types: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
  """Finds the chunks of sentences: a number that stands for the borders of each [K], and their types [K].

  types: name -> number, to which those that are new are added.
  """
  tags = [tag for sentence in sentences for tag in ('O', *sentence)] + ['O']
  known = {'O': ('O', -1)}
  for tag in dict.fromkeys(tags):
    if tag[:1] in tuple('BIES'):
      known[tag] = tag[0], types.setdefault(tag[1:].split('-', 1)[-1] or '_', len(types))
    elif tag != 'O':
      raise Expected(f"tags are 'O', or one of B, I, E, S and a type, such as 'B-PER': got {tag!r}")
  prefix = np.array([known[tag][0] for tag in tags])
  kind = np.array([known[tag][1] for tag in tags])
  between = (kind[:-1] != kind[1:]) | np.isin(prefix[1:], ['B', 'S']) | np.isin(prefix[:-1], ['E', 'S'])
  begins = np.flatnonzero(between & (kind[1:] >= 0)) + 1
  ends = np.flatnonzero(between & (kind[:-1] >= 0)) + 1
  return begins * len(tags) + ends, kind[begins]


def answers(golds: Golds, predicted: Sequence[str], script: Script = 'squad') -> dict[str, float]:
  """Measures answers by F1 and exact match, the best over each question's right ones.

  squad: of words, as SQuAD 1.1 has it (Rajpurkar et al. 2016, section 6.1), whose script gives F1 0 to two answers
  without words; cmrc: of Chinese characters and words in a row (Cui et al. 2019).
  """
  found = answer_scores(golds, predicted, script, 0.0)
  return {name: 100 * float(score.mean()) for name, score in found.items()}


def answers_or_none(golds: Golds, predicted: Sequence[str], nulls: Sequence[float], threshold: float = 0.0,
                    script: Script = 'squad') -> dict[str, float]:
  """Measures answers to questions that may have none, as SQuAD 2.0's script does, under its names (Rajpurkar et al.
  2018).

  predicted: of each question the best answer that is one; nulls: how much is said for there being none [N]; above
  `threshold` the answer is none. best_f1 and best_exact are those at the threshold that would have been best,
  best_f1_thresh and best_exact_thresh, which are not in percent. HasAns and NoAns are there where such questions are.
  """
  plain, _ = COMPARED[script]
  found = answer_scores([[text for text in some if plain(text)] or [''] for some in golds], predicted, script, 1.0)
  above, answered = np.asarray(nulls, np.float64), np.array([len(some) > 0 for some in golds])
  measured, best = {}, {}
  for name, raw in found.items():
    scores = np.where(above > threshold, ~answered, raw)
    for title, which in (('', slice(None)), ('HasAns_', answered), ('NoAns_', ~answered)):
      if scores[which].size:
        measured[title + name] = 100 * float(scores[which].mean())
    change = np.where(answered, raw, -np.array([bool(text) for text in predicted], float))
    best |= best_threshold(name, change, above, int((~answered).sum()))
  return measured | best


def best_threshold(name: str, change: np.ndarray, nulls: np.ndarray, unanswered: int) -> dict[str, float]:
  """Returns best_NAME and best_NAME_thresh: what is reached where questions are answered in the order of `nulls`, up to
  the best one; change: what the answer to each adds to the `unanswered` that are right without."""
  order = np.argsort(nulls, kind='stable')
  reached = unanswered + np.cumsum(change[order])
  at = int(reached.argmax())
  better = reached[at] > unanswered
  return {f'best_{name}': 100 * float(reached[at] if better else unanswered) / len(order),
          f'best_{name}_thresh': float(nulls[order[at]]) if better else 0.0}


def answer_scores(golds: Golds, predicted: Sequence[str], script: Script, empty: float) -> dict[str, np.ndarray]:
  """Measures each answer by the best of its golds: 'f1' and 'exact' [N], from 0 to 1; empty: F1 of two without
  words."""
  if len(golds) != len(predicted) or not len(golds) or not all(map(len, golds)):
    raise Expected(f'an answer to each question, and one or more that are right: got {len(predicted)} answers to '
                   f'{len(golds)} questions, {sum(not some for some in golds)} of which have none')
  plain, score = COMPARED[script]
  pairs = [*zip(predicted, golds, strict=True)]
  both_empty = lambda text, gold: empty if not plain(text) and not plain(gold) else score(text, gold)
  return {'f1': np.array([max(both_empty(text, gold) for gold in some) for text, some in pairs], float),
          'exact': np.array([any(plain(text) == plain(gold) for gold in some) for text, some in pairs], float)}


def segments_f1(text: str, gold: str) -> float:
  """Measures F1 of the longest run of segments that a text and a right answer share, from 0 to 1 (CMRC 2018)."""
  ours, theirs = segments(text), segments(gold)
  longest, ends = 0, [0] * (len(theirs) + 1)  # ends[n]: the run that ends before n
  for mine in ours:
    ends = [0, *(run + 1 if mine == other else 0 for run, other in zip(ends, theirs, strict=False))]
    longest = max(longest, *ends)
  return 2 * longest / (len(ours) + len(theirs)) if longest else 0.0


def segments(text: str) -> list[str]:
  """Splits a text as CMRC 2018's script does: Chinese characters alone, the rest into words and signs, without SIGNS.

  Words are those of the Penn Treebank's rules, of one sentence: a period is a sign at the end only.
  """
  found = []
  for part in HAN.split(without_signs(text)):
    found += [part] if HAN.fullmatch(part) else WORD_BORDERS.sub(r' \1 ', OPENING.sub(' `` ', part)).split()
  return found


def without_signs(text: str) -> str:
  """Returns a text in lower case without CMRC's SIGNS."""
  return text.lower().strip().translate(SIGNS)


def paired(truth: Any, predicted: Any) -> tuple[np.ndarray, np.ndarray]:
  """Returns both sides as arrays [N]. Raises Expected where they differ in length, or there is nothing."""
  truth, predicted = np.asarray(truth), np.asarray(predicted)
  if truth.shape != predicted.shape or truth.ndim != 1 or not len(truth):
    raise Expected(f'as many predictions as there are labels, and one at least: got shapes {truth.shape} and '
                   f'{predicted.shape}')
  return truth, predicted


METRICS: dict[str, Callable[[Any, Any], float]] = {
    'accuracy': accuracy, 'f1': f1, 'macro_f1': macro_f1, 'matthews': matthews, 'pearson': pearson,
    'spearman': spearman}
"""measures of labels: (truth, predicted) -> percent"""
COMPARED = {'squad': (normalised, words_f1), 'cmrc': (without_signs, segments_f1)}  # by equality, and by F1
SIGNS = {ord(sign): None for sign in '-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』'}
HAN = re.compile('([\u4e00-\u9fa5])')
OPENING = re.compile(r'^"|(?<=[ (\[{<])"')  # a quotation mark that opens
WORD_BORDERS = re.compile(
    r"(\.{2,}|``|[][;@#$%&?!(){}<>«»‘„\"\u2012-\u2015]|,(?!\d)|(?<=[^.])\.(?=[])}>\"'» ]*$)|"
    r"(?<=[^' ])(?:'(?:s|m|d|ll|re|ve)?|n't)(?= |$)|(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w))")
