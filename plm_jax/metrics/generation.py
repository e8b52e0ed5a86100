"""Metrics of generated text, as papers compute them: ROUGE, BLEU, chrF, exact match and token F1.

Each has its usual name and is in percent, over a whole corpus. ROUGE is Google's rouge-score; BLEU
and chrF are sacreBLEU's: pip install "plm_jax[metrics]". Exact match and F1 are those of SQuAD's
official evaluation.
"""
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
import importlib
import importlib.util
import itertools
import re
import string
from typing import Any

import numpy as np

from plm_jax.errors import ConfigError

References = Sequence[str] | Sequence[Sequence[str]]  # one per prediction, or several
ARTICLES = re.compile(r'\b(a|an|the)\b')


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
  """Compute F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum, with Porter's stemmer.

  Of several references, the best counts. rougeL reads a text as one sentence, as T5 reports it.
  rougeLsum reads it line by line (Lin 2004, section 3.2); papers on CNN/DailyMail call this
  ROUGE-L, and it needs each sentence on its own line. ROUGE-1.5.5 also stems.
  """
  kinds = ['rouge1', 'rouge2', 'rougeL', 'rougeLsum']
  scorer = import_library(LIBRARIES['rouge']).RougeScorer(kinds, use_stemmer=True)
  best = []
  lists = reference_lists(predictions, references)
  for text, several in zip(predictions, lists, strict=True):
    scores = [scorer.score(reference, text) for reference in several]
    own = []
    for kind in kinds:
      own.append(max(score[kind].fmeasure for score in scores))
    best.append(own)
  means = np.mean(best, 0)
  scores_by_kind = {}
  for kind, score in zip(kinds, means, strict=True):
    scores_by_kind[kind] = 100 * float(score)
  return scores_by_kind


def bleu(predictions: Sequence[str], references: References, tokenize: str = '13a',
         lowercase: bool = False) -> float:
  """Compute sacreBLEU of detokenized text, with exponential smoothing, as WMT does.

  Args:
    predictions: generated texts.
    references: one or several per prediction.
    tokenize: tokenizer of sacreBLEU: 13a, intl (T5's), zh, ja-mecab; none for tokenized text
      (tokenized BLEU, as fairseq reports it).
    lowercase: case.lc instead of case.mixed.
  """
  texts = reference_streams(predictions, references)
  # force: no warning about text that looks tokenized.
  score = import_library(LIBRARIES['bleu']).corpus_bleu(
      list(predictions), texts, tokenize=tokenize, lowercase=lowercase, force=tokenize == 'none')
  return float(score.score)


def chrf(predictions: Sequence[str], references: References, word_order: int = 0) -> float:
  """Compute sacreBLEU's chrF2: F-score of character n-grams (1 to 6), recall twice as important.

  Popović 2015. word_order 2 is chrF++.
  """
  texts = reference_streams(predictions, references)
  score = import_library(LIBRARIES['chrf']).corpus_chrf(
      list(predictions), texts, word_order=word_order)
  return float(score.score)


def exact_match(predictions: Sequence[str], references: References) -> float:
  """Compute exact match: the percentage of answers that equal a reference after normalization."""
  def score(text, reference):
    return float(normalize_answer(text) == normalize_answer(reference))
  return mean_best_score(predictions, references, score)


def token_f1(predictions: Sequence[str], references: References) -> float:
  """Compute token F1: the mean word F1 of answers against the best reference.

  Rajpurkar et al. 2016, section 6.1. If a side has no words, as in SQuAD 2.0, it is 1 if neither
  has, else 0.
  """
  return mean_best_score(predictions, references, words_f1)


def words_f1(text: str, reference: str) -> float:
  """Compute word F1 of a text and a reference, from 0 to 1; 1 if both have no words."""
  ours, theirs = normalize_answer(text).split(), normalize_answer(reference).split()
  if not ours or not theirs:
    return float(ours == theirs)
  same = (Counter(ours) & Counter(theirs)).total()
  return 2 * same / (len(ours) + len(theirs))


def normalize_answer(text: str) -> str:
  """Normalize a text as SQuAD does: lower case, no ASCII punctuation, no English articles.

  Words are separated by one space.
  """
  text = ''.join(c for c in text.lower() if c not in string.punctuation)
  return ' '.join(ARTICLES.sub(' ', text).split())


def mean_best_score(predictions: Sequence[str], references: References,
                    score: Callable[[str, str], float]) -> float:
  """Average the score of each prediction with its best reference, in percent."""
  best = []
  lists = reference_lists(predictions, references)
  for text, several in zip(predictions, lists, strict=True):
    best.append(max(score(text, reference) for reference in several))
  return 100 * float(np.mean(best))


def reference_lists(predictions: Sequence[str], references: References) -> list[list[str]]:
  """Return a list of references per prediction.

  Raises ValueError if their numbers differ, or there is nothing to compare.
  """
  if len(predictions) != len(references) or not predictions:
    raise ValueError(f'a reference, or several, for each prediction: got {len(predictions)} '
                     f'predictions and {len(references)} references')
  lists = []
  for some in references:
    if isinstance(some, str):
      lists.append([some])
    else:
      lists.append(list(some))
  if not all(lists):
    raise ValueError(f'prediction {lists.index([])} has no reference')
  return lists


def reference_streams(predictions: Sequence[str], references: References) -> list[list[Any]]:
  """Return references as sacreBLEU takes them: all first ones, all second ones, and so on.

  None fills in for missing ones.
  """
  streams = itertools.zip_longest(*reference_lists(predictions, references))
  return [list(stream) for stream in streams]


def check_installed(names: Iterable[str]) -> None:
  """Check that the libraries of metrics are installed. Raises ConfigError."""
  missing, packages = [], []
  for name in names:
    package = LIBRARIES.get(name, '').partition('.')[0]
    if package and importlib.util.find_spec(package) is None:
      missing.append(name)
      packages.append(package.replace('_', '-'))
  if missing:
    raise ConfigError(f'{", ".join(dict.fromkeys(missing))} are computed by '
                      f'{" and ".join(dict.fromkeys(packages))}, not installed here: '
                      'pip install "plm_jax[metrics]"')


def import_library(name: str) -> Any:
  """Import a library when it is needed. Raises ConfigError if it is not installed."""
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    raise ConfigError(f'{error}: pip install "plm_jax[metrics]"') from error


LIBRARIES = {'rouge': 'rouge_score.rouge_scorer', 'bleu': 'sacrebleu', 'chrf': 'sacrebleu'}
