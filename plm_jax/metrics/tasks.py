"""Classification, regression, token classification and extractive QA metrics, in percent.

Every metric takes the labels first and the predictions second, and agrees with the scorer that the
field uses. Empty input or sides of different lengths raise UserError. A metric that is undefined
for its input is 0.0, as its docstring says; no metric returns NaN.
"""
from collections.abc import Callable, Sequence
import re
from typing import Any, Literal, NamedTuple
import warnings

import numpy as np

from plm_jax.errors import UserError
from plm_jax.metrics.generation import normalize_answer, words_f1
from plm_jax.metrics.tag_schemes import split_tag

AnswerScript = Literal['squad', 'cmrc']
"""official script that defines F1 and exact match: SQuAD's, or CMRC 2018's for Chinese"""
GoldAnswers = Sequence[Sequence[str]]  # correct answers per question; empty: it has no answer


class ClassScore(NamedTuple):
  """Precision, recall and F1 of one class."""

  precision: float
  """0 if the class was never predicted"""
  recall: float
  """0 if the class never occurs"""
  f1: float
  """0 if the class neither occurs nor was predicted"""
  support: int
  """number of examples of the class"""


class ChunkScores(NamedTuple):
  """Precision, recall and F1 of chunks: micro average, and per chunk type by name."""

  total: ClassScore
  types: dict[str, ClassScore]


def accuracy(truth: Any, predicted: Any) -> float:
  """Compute the accuracy of labels [N]."""
  truth, predicted = as_label_arrays(truth, predicted)
  return 100 * float((truth == predicted).mean())


def f1(truth: Any, predicted: Any) -> float:
  """Compute F1 of class 1 among labels [N], as GLUE does for MRPC and QQP.

  It is 0 if class 1 neither occurs nor was predicted.
  """
  truth, predicted = as_label_arrays(truth, predicted)
  truth, predicted = truth == 1, predicted == 1
  return precision_recall_f1((truth & predicted).sum(), predicted.sum(), truth.sum()).f1


def macro_f1(truth: Any, predicted: Any) -> float:
  """Compute macro F1: the mean F1 of all classes that occur or were predicted."""
  from sklearn.metrics import f1_score  # takes a while to import
  sides = as_label_arrays(truth, predicted)
  return 100 * float(f1_score(*sides, average='macro', zero_division=0))  # pyright: ignore


def matthews(truth: Any, predicted: Any) -> float:
  """Compute Matthews correlation of labels [N] of two or more classes (Gorodkin 2004).

  It is 0 if all labels or all predictions are equal.
  """
  from sklearn.metrics import matthews_corrcoef
  sides = as_label_arrays(truth, predicted)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # of a single label
    return 100 * float(matthews_corrcoef(*sides))


def pearson(truth: Any, predicted: Any) -> float:
  """Compute Pearson correlation of values [N]; 0 if either side is constant or not all finite."""
  from scipy import stats  # takes a while to import
  sides = [np.asarray(side, np.float64) for side in as_label_arrays(truth, predicted)]
  if not all(np.isfinite(side).all() and np.ptp(side) for side in sides):
    return 0.0
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', stats.NearConstantInputWarning)
    found: Any = stats.pearsonr(*sides)
    return 100 * float(found.statistic)


def spearman(truth: Any, predicted: Any) -> float:
  """Compute Spearman correlation of values [N]: the Pearson correlation of their ranks.

  Equal values share their mean rank. It is 0 wherever Pearson correlation is.
  """
  from scipy import stats
  truth, predicted = as_label_arrays(truth, predicted)
  return pearson(stats.rankdata(truth), stats.rankdata(predicted))


def confusion_matrix(truth: Any, predicted: Any, classes: int) -> np.ndarray:
  """Compute the confusion matrix of labels [N]: counts [C, C], rows true, columns predicted.

  Args:
    truth: labels [N], integers below C.
    predicted: labels [N].
    classes: C.

  Raises:
    UserError: a label is outside [0, C).
  """
  truth, predicted = as_label_arrays(truth, predicted)
  if min(truth.min(), predicted.min()) < 0 or max(truth.max(), predicted.max()) >= classes:
    raise UserError(f'labels are numbers below {classes}, got {truth.min()} to {truth.max()} and '
                    f'{predicted.min()} to {predicted.max()}')
  pairs = truth.astype(np.int64) * classes + predicted
  return np.bincount(pairs, minlength=classes ** 2).reshape(classes, classes)


def per_class_scores(
    truth: Any, predicted: Any, names: Sequence[str]) -> dict[str, ClassScore]:
  """Compute precision, recall and F1 per class; labels [N] are indices into `names`."""
  table = confusion_matrix(truth, predicted, len(names))
  counts = zip(names, table.diagonal(), table.sum(0), table.sum(1), strict=True)
  return {name: precision_recall_f1(*some) for name, *some in counts}


def precision_recall_f1(right: int, predicted: int, true: int) -> ClassScore:
  """Compute precision, recall and F1 from counts of correct, predicted and true items."""
  precision = 100 * float(right) / max(float(predicted), 1)
  recall = 100 * float(right) / max(float(true), 1)
  f1_score = 100 * float(right) / max(float((predicted + true) / 2), 1)
  return ClassScore(precision, recall, f1_score, support=int(true))


def chunk_f1(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> ChunkScores:
  """Compute entity-level (chunk) F1 of tag sequences, as conlleval and seqeval do.

  A chunk is correct if its boundaries and its type are (Tjong Kim Sang and Buchholz 2000). A chunk
  begins at B, at an I after O, and where the type changes. So IOB1 and BIO are both read, and an I
  after O counts as B. In BIOES, BILOU and BMES, the tag of a last word also ends a chunk. All
  scores are 0 if there are no chunks.

  Args:
    truth: tags such as 'B-PER', 'I-PER', 'O' of each sentence.
    predicted: as many tags per sentence.

  Raises:
    UserError: a sentence has another number of tags, or a string is not a tag.
  """
  true_lengths = [len(tags) for tags in truth]
  predicted_lengths = [len(tags) for tags in predicted]
  if true_lengths != predicted_lengths or not true_lengths:
    raise UserError(
        f'as many tags as words, in as many sentences: got {len(truth)} sentences of '
        f'{sum(true_lengths)} tags, and {len(predicted)} of {sum(predicted_lengths)} predicted '
        'ones')
  types: dict[str, int] = {}
  true, true_types = chunk_borders(truth, types)
  found, found_types = chunk_borders(predicted, types)
  _, true_at, found_at = np.intersect1d(true, found, assume_unique=True, return_indices=True)
  right = true_types[true_at[true_types[true_at] == found_types[found_at]]]
  groups = (right, found_types, true_types)
  counts = np.array([np.bincount(some, minlength=len(types)) for some in groups])
  scores = {name: precision_recall_f1(*counts[:, number])
            for name, number in sorted(types.items()) if counts[:, number].any()}
  return ChunkScores(precision_recall_f1(*counts.sum(1)), scores)


def chunk_borders(
    sentences: Sequence[Sequence[str]], types: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
  """Find chunks: one integer per chunk that encodes its boundaries [K], and its type [K].

  Args:
    sentences: tags of each sentence.
    types: chunk type -> number; new types are added to it.
  """
  tags = ['O']
  for sentence in sentences:
    tags += list(sentence) + ['O']
  known = {'O': ('O', -1)}
  for tag in dict.fromkeys(tags):
    try:
      letter, name = split_tag(tag)
    except ValueError as error:
      raise UserError(str(error)) from error
    if name:
      known[tag] = letter, types.setdefault(name, len(types))
  prefix = np.array([known[tag][0] for tag in tags])
  kind = np.array([known[tag][1] for tag in tags])
  starts_chunk = np.isin(prefix[1:], ['B', 'S'])
  ends_chunk = np.isin(prefix[:-1], ['E', 'S'])
  between = (kind[:-1] != kind[1:]) | starts_chunk | ends_chunk
  begins = np.flatnonzero(between & (kind[1:] >= 0)) + 1
  ends = np.flatnonzero(between & (kind[:-1] >= 0)) + 1
  return begins * len(tags) + ends, kind[begins]


def answer_metrics(
    golds: GoldAnswers, predicted: Sequence[str], script: AnswerScript = 'squad'
) -> dict[str, float]:
  """Compute F1 and exact match of extractive QA, the best over each question's gold answers.

  'squad' compares words, as SQuAD 1.1 does (Rajpurkar et al. 2016, section 6.1); its script gives
  F1 0 to two answers without words. 'cmrc' compares runs of Chinese characters and words (Cui et
  al. 2019).
  """
  found = answer_scores(golds, predicted, script, 0.0)
  return {name: 100 * float(score.mean()) for name, score in found.items()}


def squad2_metrics(
    golds: GoldAnswers, predicted: Sequence[str], nulls: Sequence[float], threshold: float = 0.0,
    script: AnswerScript = 'squad') -> dict[str, float]:
  """Compute the metrics of SQuAD 2.0's script, under its names (Rajpurkar et al. 2018).

  Args:
    golds: gold answers per question; none: it has no answer.
    predicted: best non-empty answer per question.
    nulls: score of no answer minus score of that answer [N].
    threshold: the prediction is "no answer" where `nulls` is above it.
    script: whose F1 and exact match are used.

  Returns:
    f1 and exact; the same with the prefix HasAns_ and NoAns_ if there are such questions; best_f1
    and best_exact, at the thresholds best_f1_thresh and best_exact_thresh (not in percent) that
    would have been best.
  """
  normalize, _ = ANSWER_SCRIPTS[script]
  # Gold answers without words count as no text, as in the script.
  texts = [[text for text in some if normalize(text)] or [''] for some in golds]
  found = answer_scores(texts, predicted, script, 1.0)
  null_scores = np.asarray(nulls, np.float64)
  answerable = np.array([len(some) > 0 for some in golds])
  metrics, best = {}, {}
  for name, raw in found.items():
    scores = np.where(null_scores > threshold, ~answerable, raw)
    for prefix, which in (('', slice(None)), ('HasAns_', answerable), ('NoAns_', ~answerable)):
      if scores[which].size:
        metrics[prefix + name] = 100 * float(scores[which].mean())
    wrong = -np.array([bool(text) for text in predicted], float)
    change = np.where(answerable, raw, wrong)
    best |= best_threshold(name, change, null_scores, int((~answerable).sum()))
  return metrics | best


def best_threshold(
    name: str, change: np.ndarray, nulls: np.ndarray, unanswerable: int) -> dict[str, float]:
  """Find the no-answer threshold with the best score -> best_NAME and best_NAME_thresh.

  Args:
    name: metric.
    change: what answering each question adds to the total [N].
    nulls: score of no answer minus score of the best answer [N].
    unanswerable: total if no question is answered: the number of questions without answers.
  """
  order = np.argsort(nulls, kind='stable')
  totals = unanswerable + np.cumsum(change[order])
  at = int(totals.argmax())
  best, threshold = unanswerable, 0.0
  if totals[at] > unanswerable:
    best, threshold = totals[at], float(nulls[order[at]])
  return {f'best_{name}': 100 * float(best) / len(order), f'best_{name}_thresh': threshold}


def answer_scores(
    golds: GoldAnswers, predicted: Sequence[str], script: AnswerScript, empty: float
) -> dict[str, np.ndarray]:
  """Score each answer by its best gold answer: 'f1' and 'exact' [N], from 0 to 1.

  Args:
    golds: gold answers per question, at least one each.
    predicted: an answer per question.
    script: whose F1 and exact match are used.
    empty: F1 of two answers without words.

  Raises:
    UserError: the numbers of questions and answers differ, or a question has no gold answer.
  """
  if len(golds) != len(predicted) or not len(golds) or not all(map(len, golds)):
    raise UserError(
        f'an answer to each question, and one or more that are right: got {len(predicted)} answers '
        f'to {len(golds)} questions, {sum(not some for some in golds)} of which have none')
  normalize, score = ANSWER_SCRIPTS[script]
  f1_scores, exact_scores = [], []
  for text, some in zip(predicted, golds, strict=True):
    f1_scores.append(max(
        score(text, gold) if normalize(text) or normalize(gold) else empty for gold in some))
    exact_scores.append(any(normalize(text) == normalize(gold) for gold in some))
  return {'f1': np.array(f1_scores, float), 'exact': np.array(exact_scores, float)}


def cmrc_f1(text: str, gold: str) -> float:
  """Compute CMRC 2018's F1: the longest common run of segments of two answers, from 0 to 1."""
  ours, theirs = split_cmrc_segments(text), split_cmrc_segments(gold)
  longest, runs = 0, [0] * (len(theirs) + 1)  # runs[n]: length of the run that ends before n
  for mine in ours:
    pairs = zip(runs, theirs, strict=False)
    runs = [0] + [run + 1 if mine == other else 0 for run, other in pairs]
    longest = max(longest, max(runs))
  return 2 * longest / (len(ours) + len(theirs)) if longest else 0.0


def split_cmrc_segments(text: str) -> list[str]:
  """Split a text as CMRC 2018's script does: single Chinese characters, other words and signs.

  CMRC_SIGNS are removed. Words follow the Penn Treebank's rules for one sentence: a period is a
  sign at the end only.
  """
  segments = []
  for part in HAN.split(strip_cmrc_signs(text)):
    if HAN.fullmatch(part):
      segments.append(part)
    else:
      segments += WORD_BORDERS.sub(r' \1 ', OPENING_QUOTE.sub(' `` ', part)).split()
  return segments


def strip_cmrc_signs(text: str) -> str:
  """Lower-case a text and remove CMRC_SIGNS."""
  return text.lower().strip().translate(CMRC_SIGNS)


def as_label_arrays(truth: Any, predicted: Any) -> tuple[np.ndarray, np.ndarray]:
  """Convert both sides to arrays [N]. Raises UserError if lengths differ or N is 0."""
  truth, predicted = np.asarray(truth), np.asarray(predicted)
  if truth.shape != predicted.shape or truth.ndim != 1 or not len(truth):
    raise UserError(f'as many predictions as there are labels, and one at least: got shapes '
                    f'{truth.shape} and {predicted.shape}')
  return truth, predicted


METRICS: dict[str, Callable[[Any, Any], float]] = {
    'accuracy': accuracy, 'f1': f1, 'macro_f1': macro_f1, 'matthews': matthews, 'pearson': pearson,
    'spearman': spearman}
"""metrics of sequence tasks by name: (truth, predicted) -> percent; other kinds of task compute
their own in `Task.scores`"""
ANSWER_METRICS = ('f1', 'exact')  # of `answer_metrics`, the main metric first
# What `squad2_metrics` adds if there are such questions.
SQUAD2_METRICS = tuple(
    f'{prefix}_{name}' for prefix in ('HasAns', 'NoAns', 'best') for name in ANSWER_METRICS)
# Script -> (normalization for exact match, F1).
ANSWER_SCRIPTS = {'squad': (normalize_answer, words_f1), 'cmrc': (strip_cmrc_signs, cmrc_f1)}
CMRC_SIGNS = {ord(sign): None for sign in '-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』'}
HAN = re.compile('([\u4e00-\u9fa5])')
OPENING_QUOTE = re.compile(r'^"|(?<=[ (\[{<])"')
WORD_BORDERS = re.compile(
    r"(\.{2,}|``|[][;@#$%&?!(){}<>«»‘„\"\u2012-\u2015]|,(?!\d)|(?<=[^.])\.(?=[])}>\"'» ]*$)|"
    r"(?<=[^' ])(?:'(?:s|m|d|ll|re|ve)?|n't)(?= |$)|(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w))")
