"""Metrics of generated text, as papers compute them: ROUGE, BLEU, chrF, exact match and token F1.

Each has its usual name and is in percent, over a whole corpus. ROUGE is Google's rouge-score; BLEU
and chrF are sacreBLEU's: pip install "plm_jax[metrics]". Exact match and F1 are those of SQuAD's
official evaluation. English is divided into words as these programs do. Their rules know the
letters a to z and words between spaces, so text of other languages and scripts is divided by
`unicode_words` (ROUGE, exact match, F1), or by sacreBLEU's tokenizer for the script (BLEU).
"""
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
import importlib
import importlib.util
import itertools
import re
import string
from typing import Any
import unicodedata

import numpy as np

from plm_jax import unicode_words
from plm_jax.errors import ConfigError

References = Sequence[str] | Sequence[Sequence[str]]  # one per prediction, or several
ARTICLES = re.compile(r'\b(a|an|the)\b')
OTHER_WORDS = 0.05
"""share of words with letters outside of a to z above which text is not English"""
WORD = re.compile(unicode_words.word_pattern(divided=True))
KANA = re.compile('[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]')
IDEOGRAPH = re.compile(f'[{unicode_words.IDEOGRAPH}]')


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
  """Compute F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum, with Porter's stemmer.

  Of several references, the best counts. rougeL reads a text as one sentence, as T5 reports it.
  rougeLsum reads it line by line (Lin 2004, section 3.2); papers on CNN/DailyMail call this
  ROUGE-L, and it needs each sentence on its own line. ROUGE-1.5.5 also stems.

  rouge_score's words have only the letters a to z. If more than OTHER_WORDS of the references'
  words have other letters, words are those of `unicode_words`, and the English stemmer sees only
  words of a to z.
  """
  kinds = ['rouge1', 'rouge2', 'rougeL', 'rougeLsum']
  lists = reference_lists(predictions, references)
  tokenizer = None if is_english(lists) else WordTokenizer()
  scorer = import_library(LIBRARIES['rouge']).RougeScorer(
      kinds, use_stemmer=True, tokenizer=tokenizer)
  best = []
  for text, several in zip(predictions, lists, strict=True):
    scores = [scorer.score(reference, text) for reference in several]
    best.append([max(score[kind].fmeasure for score in scores) for kind in kinds])
  means = 100 * np.mean(best, 0)
  return dict(zip(kinds, means.tolist(), strict=True))


class WordTokenizer:
  """Tokenizer of rouge_score with words of any script, in NFC and lower case.

  A letter of a script without spaces is a word. Text of the letters a to z has the same words as
  with rouge_score's own tokenizer.
  """

  def __init__(self):
    self.english = import_library('rouge_score.tokenizers').DefaultTokenizer(use_stemmer=True)

  def tokenize(self, text: str) -> list[str]:
    """Return the words of a text; those of a to z are stemmed."""
    words = []
    for word in WORD.findall(unicodedata.normalize('NFC', text).lower()):
      words += self.english.tokenize(word) if word.isascii() else [word]
    return words


def is_english(references: Iterable[Sequence[str]]) -> bool:
  """Tell whether at most OTHER_WORDS of the words have letters outside of a to z."""
  words = other = 0
  for text in itertools.chain.from_iterable(references):
    found = WORD.findall(text)
    words += len(found)
    other += sum(not word.isascii() for word in found)
  return other <= OTHER_WORDS * words


def choose_bleu_tokenizer(references: Iterable[Sequence[str]]) -> str:
  """Choose sacreBLEU's tokenizer for the script of most letters of the references.

  Returns:
    zh for Chinese; ja-mecab for Japanese, or char if MeCab is not installed; char for Thai, Lao,
    Khmer, Burmese and other scripts without spaces; 13a for all others, whose words have spaces.
  """
  text = ''.join(itertools.chain.from_iterable(references))
  unspaced = len(unicode_words.UNSPACED_LETTER.findall(text))
  ideographs = len(IDEOGRAPH.findall(text))
  if 2 * unspaced <= sum(map(str.isalpha, text)):
    return '13a'
  if 2 * ideographs <= unspaced:
    return 'char'
  # Japanese text is about half kana; a Chinese text may quote a few.
  if 20 * len(KANA.findall(text)) < ideographs:
    return 'zh'
  return 'char' if importlib.util.find_spec('MeCab') is None else 'ja-mecab'


def bleu(predictions: Sequence[str], references: References, tokenize: str = '',
         lowercase: bool = False) -> float:
  """Compute sacreBLEU of detokenized text, with exponential smoothing, as WMT does.

  Args:
    predictions: generated texts.
    references: one or several per prediction.
    tokenize: tokenizer of sacreBLEU: 13a, intl (T5's), zh, ja-mecab, char, flores200; none for
      tokenized text (tokenized BLEU, as fairseq reports it). Empty: by the script of the
      references (`choose_bleu_tokenizer`).
    lowercase: case.lc instead of case.mixed.
  """
  texts = reference_streams(predictions, references)
  tokenize = tokenize or choose_bleu_tokenizer(reference_lists(predictions, references))
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

  Words are separated by one space. In text of a script without spaces, each letter is a word, and
  there is no punctuation (as in MLQA and CMRC 2018).
  """
  text = ''.join(c for c in text.lower() if c not in string.punctuation)
  is_unspaced = unicode_words.UNSPACED_LETTER.search(text)
  text = ' '.join(WORD.findall(text)) if is_unspaced else text
  return ' '.join(ARTICLES.sub(' ', text).split())


def mean_best_score(predictions: Sequence[str], references: References,
                    score: Callable[[str, str], float]) -> float:
  """Average the score of each prediction with its best reference, in percent."""
  pairs = zip(predictions, reference_lists(predictions, references), strict=True)
  best = [max(score(text, reference) for reference in several) for text, several in pairs]
  return 100 * float(np.mean(best))


def reference_lists(predictions: Sequence[str], references: References) -> list[list[str]]:
  """Return a list of references per prediction.

  Raises ValueError if their numbers differ, or there is nothing to compare.
  """
  if len(predictions) != len(references) or not predictions:
    raise ValueError(f'a reference, or several, for each prediction: got {len(predictions)} '
                     f'predictions and {len(references)} references')
  lists = [[some] if isinstance(some, str) else list(some) for some in references]
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
