"""How good generated text is, as papers measure it: each metric under its usual name, in percent, over a whole corpus.

ROUGE is Google's rouge-score, BLEU and chrF are sacreBLEU's: pip install "plm_jax[metrics]". Exact match and F1 are
those of SQuAD's official evaluation.
"""
from collections import Counter
from collections.abc import Callable, Sequence
import importlib
import re
import string
from typing import Any

import numpy as np

References = Sequence[str] | Sequence[Sequence[str]]  # one for each prediction, or several
ARTICLES = re.compile(r'\b(a|an|the)\b')


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
  """Measures rouge1, rouge2, rougeL and rougeLsum: F1 with Porter's stemmer; of several references the best counts.

  rougeL takes a text as one sentence (T5's tasks report it so), rougeLsum line by line (Lin 2004, section 3.2: what
  papers on CNN/DailyMail call ROUGE-L; sentences have to be on lines of their own). ROUGE-1.5.5 stems too.
  """
  kinds = ['rouge1', 'rouge2', 'rougeL', 'rougeLsum']
  scorer = library('rouge_score.rouge_scorer').RougeScorer(kinds, use_stemmer=True)
  def best(text, several):
    scores = [scorer.score(reference, text) for reference in several]
    return [max(score[kind].fmeasure for score in scores) for kind in kinds]
  found = [best(*item) for item in zip(predictions, several(predictions, references), strict=True)]
  return {kind: 100 * float(score) for kind, score in zip(kinds, np.mean(found, 0), strict=True)}


def bleu(predictions: Sequence[str], references: References, tokenize: str = '13a', lowercase: bool = False) -> float:
  """Measures sacreBLEU of detokenised text, exponential smoothing: case.mixed or lc, tok.13a, as WMT has it. tokenize:
  also intl (T5's), zh, ja-mecab, none (text that is tokenised already: tokenised BLEU, as fairseq reports it)."""
  texts = streams(predictions, references)
  # force: no warning about text that looks tokenised.
  score = library('sacrebleu').corpus_bleu(
      list(predictions), texts, tokenize=tokenize, lowercase=lowercase, force=tokenize == 'none')
  return float(score.score)


def chrf(predictions: Sequence[str], references: References, word_order: int = 0) -> float:
  """Measures sacreBLEU's chrF2: character n-grams of 1 to 6, recall twice as important (Popović 2015). word_order 2:
  chrF++."""
  texts = streams(predictions, references)
  return float(library('sacrebleu').corpus_chrf(list(predictions), texts, word_order=word_order).score)


def exact_match(predictions: Sequence[str], references: References) -> float:
  """Returns, in percent, the share of the answers that are a reference, once both are `normalised`."""
  return best_of(predictions, references, lambda text, reference: float(normalised(text) == normalised(reference)))


def token_f1(predictions: Sequence[str], references: References) -> float:
  """Measures the mean F1 of the answer's words against the best reference (Rajpurkar et al. 2016, section 6.1); without
  words on either side, as SQuAD 2.0 has it, 1 where both have none."""
  return best_of(predictions, references, words_f1)


def words_f1(text: str, reference: str) -> float:
  """Measures, from 0 to 1, F1 of the words of a text and a reference; without words on either side 1 where both have
  none."""
  ours, theirs = normalised(text).split(), normalised(reference).split()
  if not ours or not theirs:
    return float(ours == theirs)
  same = sum((Counter(ours) & Counter(theirs)).values())
  return 2 * same / (len(ours) + len(theirs))


def normalised(text: str) -> str:
  """Normalises a text as SQuAD does: lower case, without ASCII punctuation and English articles, one space between
  words."""
  text = ''.join(c for c in text.lower() if c not in string.punctuation)
  return ' '.join(ARTICLES.sub(' ', text).split())


def best_of(predictions: Sequence[str], references: References, score: Callable[[str, str], float]) -> float:
  """Returns, in percent, the mean over predictions of the score with the best of the references."""
  pairs = zip(predictions, several(predictions, references), strict=True)
  return 100 * float(np.mean([max(score(text, reference) for reference in some) for text, some in pairs]))


def several(predictions: Sequence[str], references: References) -> list[list[str]]:
  """Returns one list of references a prediction. Raises ValueError where their numbers differ, or there is nothing to
  compare."""
  if len(predictions) != len(references) or not predictions:
    raise ValueError(f'a reference, or several, for each prediction: got {len(predictions)} predictions and '
                     f'{len(references)} references')
  lists = [[some] if isinstance(some, str) else list(some) for some in references]
  if not all(lists):
    raise ValueError(f'prediction {lists.index([])} has no reference')
  return lists


def streams(predictions: Sequence[str], references: References) -> list[list[Any]]:
  """Returns the references as sacreBLEU takes them: all first ones, all second ones, ..., None where there are
  fewer."""
  lists = several(predictions, references)
  most = max(len(some) for some in lists)
  return [[some[n] if n < len(some) else None for some in lists] for n in range(most)]


def library(name: str) -> Any:
  """Imports a library when it is needed. ModuleNotFoundError says what to install."""
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f'{error}: pip install "plm_jax[metrics]"', name=error.name) from error
