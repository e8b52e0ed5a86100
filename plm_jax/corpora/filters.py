"""Rule-based filters of lines and documents: C4 (Raffel et al. 2020, section 2.2) and MassiveText.

Sentences are those of `sources.sentence_splitting`.

The quality and repetition filters are those of Gopher's MassiveText (Rae et al. 2021, appendix
A.1.1 and table A1), as Penedo et al. 2023 read them. The rules on word length and stop words are
not applied to text without spaces between words. There `word_hashes` counts characters, and n-grams
have 2 n of them: with n, two of five articles of the Chinese Wikipedia would be dropped as
repetitions.
"""
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import re
from typing import NamedTuple
import unicodedata

import numpy as np

from plm_jax import storage, unicode_words
from plm_jax.corpora import word_hashes
from plm_jax.errors import ConfigError, name_field
from plm_jax.sources import sentence_splitting
from plm_jax.validation import ValidatedConfig, intervals

MIN_WORDS, MAX_WORDS = 50, 100_000
BULLETS = '•', '‣', '▪', '●', '-', '*', '·'
STOP_WORDS = frozenset(['the', 'be', 'to', 'of', 'and', 'that', 'have', 'with'])
# n -> largest share of characters in the most frequent n-gram.
MAX_TOP_SHARE = {2: 0.2, 3: 0.18, 4: 0.16}
# n -> largest share of characters in all repeated n-grams.
MAX_DUPLICATE_SHARE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}


def broken_quality_rule(paragraphs: Sequence[str], stop_words: int = 2) -> str:
  """Return the name of the quality rule that a document breaks, '' where it breaks none.

  Args:
    paragraphs: the document.
    stop_words: minimum number of different English stop words.
  """
  text = unicodedata.normalize('NFC', '\n'.join(paragraphs))
  spaced = text.split()
  unspaced = len(word_hashes.UNSPACED_LETTER.findall(text))
  number = len(spaced) + unspaced
  if not MIN_WORDS <= number <= MAX_WORDS:
    return 'number of words'
  if (text.count('#') + text.count('...') + text.count('…')) / number > 0.1:
    return 'symbols'
  bullets = [line for line in paragraphs if line.lstrip().startswith(BULLETS)]
  if len(bullets) > 0.9 * len(paragraphs):
    return 'bullets'
  ellipses = [line for line in paragraphs if line.rstrip().endswith(('...', '…'))]
  if len(ellipses) > 0.3 * len(paragraphs):
    return 'ellipses'
  if unspaced > len(spaced):
    return ''
  characters, marks = sum(map(len, spaced)), len(unicode_words.MARKS.findall(text))
  # Marks, such as those of Hebrew, Hindi or Tamil, do not make a word too long.
  if characters < 3 * len(spaced) or characters - marks > 10 * len(spaced):
    return 'length of words'
  with_letters = [word for word in spaced if any(map(str.isalpha, word))]
  if len(with_letters) < 0.8 * len(spaced):
    return 'words without letters'
  if stop_words:
    found = STOP_WORDS.intersection(word_hashes.split_words(text))
    if len(found) < stop_words:
      return 'stop words'
  return ''


def broken_repetition_rule(paragraphs: Sequence[str]) -> str:
  """Return the name of the repetition rule that a document breaks, '' where it breaks none."""
  seen, repeated, repeated_characters, characters = set(), 0, 0, 0
  for line in paragraphs:
    characters += len(line)
    if line in seen:
      repeated += 1
      repeated_characters += len(line)
    seen.add(line)
  if repeated > 0.3 * len(paragraphs) or repeated_characters > 0.2 * characters:
    return 'repeated lines'
  words = word_hashes.split_words('\n'.join(paragraphs))
  numbers = word_hashes.hash_words(words)
  sizes = np.fromiter(map(len, words), np.int64, len(words))
  unspaced = [word for word in words if word_hashes.UNSPACED_LETTER.match(word)]
  factor = 2 if len(unspaced) > len(words) / 2 else 1
  for n, share in MAX_TOP_SHARE.items():
    length = factor * n
    if len(numbers) >= length and top_ngram_share(numbers, sizes, length) > share:
      return f'one {n}-gram'
  for n, share in MAX_DUPLICATE_SHARE.items():
    length = factor * n
    if len(numbers) >= length and duplicate_ngram_share(numbers, sizes, length) > share:
      return f'repeated {n}-grams'
  return ''


def top_ngram_share(numbers: np.ndarray, sizes: np.ndarray, n: int) -> float:
  """Return the share of characters that is in the most frequent n-gram, 0 if none is repeated.

  Args:
    numbers: hashes of words [W].
    sizes: lengths of words in characters [W].
    n: words of an n-gram.
  """
  ngrams = word_hashes.ngram_hashes(numbers, n)
  _, first, counts = np.unique(ngrams, return_index=True, return_counts=True)
  most = counts.max()
  if most == 1:
    return 0.0
  longest = max(sizes[place:place + n].sum() for place in first[counts == most])
  return longest * most / sizes.sum()


def duplicate_ngram_share(numbers: np.ndarray, sizes: np.ndarray, n: int) -> float:
  """Return the share of characters that is in repeated n-grams, none counted twice.

  Args: as of `top_ngram_share`.
  """
  ngrams = word_hashes.ngram_hashes(numbers, n)
  _, inverse, counts = np.unique(ngrams, return_inverse=True, return_counts=True)
  inside = np.zeros(len(numbers) + 1, np.int64)
  repeated = np.flatnonzero(counts[inverse] > 1)
  np.add.at(inside, repeated, 1)
  np.add.at(inside, repeated + n, -1)
  return sizes[np.cumsum(inside)[:-1] > 0].sum() / sizes.sum()


LanguageIdentifier = Callable[[str], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class FilterConfig(ValidatedConfig):
  """Rules for documents. By default none is applied."""

  limits = intervals(
      language_score='[0, 1]', min_sentences='[0, 1000000]', min_line_words='[0, 1000000]')

  languages: str = ''
  """Languages to keep, as comma-separated codes: en,de. Needs the package py3langid or
  --language-model."""
  language_score: float = 0.65
  """Minimum probability of these languages, computed from the first 8,192 characters of a
  document."""
  language_model: str = ''
  """Language identification model: a fastText .bin file, such as lid.176.bin. Default:
  py3langid."""
  terminal: bool = False
  """Drop lines that do not end with . ! ? or a quotation mark, in any script, and lines that end
  with ..."""
  min_line_words: int = 0
  """Drop lines with fewer words than this. In scripts without spaces, each character counts as a
  word."""
  javascript: bool = False
  """Drop lines with the word JavaScript, such as requests to enable it."""
  policies: bool = False
  """Drop lines about terms of use, privacy and cookies."""
  citations: bool = False
  """Remove Wikipedia's citation marks: [1], [edit], [citation needed]."""
  lorem_ipsum: bool = False
  """Drop documents that contain 'lorem ipsum'."""
  braces: bool = False
  """Drop documents that contain a curly bracket, as in program code."""
  bad_words: str = ''
  """Drop documents that contain a word or phrase from this file, which has one per line."""
  min_sentences: int = 0
  """Drop documents with fewer sentences than this."""
  quality: bool = False
  """Drop documents that fail the quality rules of Rae et al. 2021 (Gopher): too short or too long,
  too many symbols or bullets, too few stop words."""
  stop_words: int = 2
  """For --quality: minimum number of English stop words in a document; use 0 for other
  languages."""
  repetition: bool = False
  """Drop documents with too many repeated lines or n-grams (thresholds of Rae et al. 2021, table
  A1)."""

  def conflict(self, option):
    """Return the message for a language model without languages."""
    if self.language_model and not self.languages:
      return (f'{option("language_model")} tells languages: name those to keep by '
              f'{option("languages")}')
    return None


class RuleResult(NamedTuple):
  """A document after the rules."""

  paragraphs: list[str]
  reason: str  # why the document is dropped, '' where it is kept
  lines: dict[str, int]  # number of lines that each rule dropped


class RuleFilter:
  """The rules with their patterns and models, which each process loads on first use."""

  def __init__(self, config: FilterConfig):
    """Load the bad words, and check the language model.

    Raises:
      ConfigError, StorageError: one of them cannot be loaded.
    """
    self.config = config
    self.bad_words = ()
    if config.bad_words:
      self.bad_words = read_bad_words(config.bad_words)
    if config.languages:
      self.language_probabilities('')  # here, not in a worker: it may not be installed

  def __call__(self, paragraphs: list[str]) -> RuleResult:
    """Apply the rules for lines, then those for the rest of the document.

    The first rule that the document breaks is its reason.
    """
    config, dropped = self.config, Counter()
    if reason := self.broken_content_rule(paragraphs):
      return RuleResult(paragraphs, reason, {})
    kept = []
    for line in paragraphs:
      if config.citations:
        line = CITATION.sub('', line)
      if line.strip() and (broken := broken_line_rule(line, config)):
        dropped[broken] += 1
      else:
        kept.append(line)
    if dropped:  # blank lines at the ends separate nothing now
      while kept and not kept[0].strip():
        del kept[0]
      while kept and not kept[-1].strip():
        kept.pop()
    filled = [line for line in kept if line.strip()]
    return RuleResult(kept, self.broken_document_rule(filled), dict(dropped))

  def broken_content_rule(self, paragraphs: list[str]) -> str:
    """Return the rule that a document breaks with any of its lines, '' where it breaks none.

    As in the paper, also with lines that are dropped.
    """
    text = '\n'.join(paragraphs)
    lower = unicodedata.normalize('NFC', text.lower())
    if self.config.lorem_ipsum and 'lorem ipsum' in lower:
      return 'lorem ipsum'
    if self.config.braces and '{' in text:
      return 'curly bracket'
    if self.bad_words and bad_words_pattern(self.bad_words).search(lower):
      return 'bad word'
    return ''

  def broken_document_rule(self, paragraphs: list[str]) -> str:
    """Return the rule that the kept lines of a document break, '' where they break none."""
    config = self.config
    if not paragraphs:
      return 'no line left'
    if has_few_sentences(paragraphs, config.min_sentences):
      return 'too few sentences'
    if config.languages:
      text = '\n'.join(paragraphs)[:LANGUAGE_CHARACTERS]
      probabilities = self.language_probabilities(text)
      codes = [code.strip() for code in config.languages.split(',')]
      if sum(probabilities.get(code, 0) for code in codes) < config.language_score:
        return 'language'
    broken = broken_quality_rule(paragraphs, config.stop_words) if config.quality else ''
    if not broken and config.repetition:
      broken = broken_repetition_rule(paragraphs)
    return broken

  def language_probabilities(self, text: str) -> Mapping[str, float]:
    """Return the probability of each language."""
    return load_identifier(self.config.language_model)(text)


def broken_line_rule(line: str, config: FilterConfig) -> str:
  """Return the rule that a line breaks, '' where it breaks none."""
  line = line.strip()
  if config.terminal and (not line.endswith(TERMINAL) or line.endswith(ELLIPSIS)):
    return 'no terminal punctuation'
  if config.min_line_words and word_hashes.count_words(line) < config.min_line_words:
    return 'too few words'
  lower = line.lower() if config.javascript or config.policies else ''
  if config.javascript and 'javascript' in lower:
    return 'javascript'
  if config.policies and any(phrase in lower for phrase in POLICIES):
    return 'policy'
  return ''


def has_few_sentences(paragraphs: list[str], least: int) -> bool:
  """Return whether a document has fewer than `least` sentences."""
  number = 0
  for paragraph in paragraphs:
    if number >= least:
      break
    number += len(sentence_splitting.split_sentences(paragraph))
  return number < least


def read_bad_words(path: str) -> tuple[str, ...]:
  """Read words and phrases, one per line. Raises ConfigError where there are none."""
  lines = unicodedata.normalize('NFC', storage.read_text(path).lower()).splitlines()
  words = sorted({line.strip() for line in lines if line.strip()})
  if not words:
    raise ConfigError(f'{path} has no words: expected one, or a phrase, in each line')
  return tuple(words)


@functools.cache
def bad_words_pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
  """Compile a pattern of phrases as whole words; in scripts without spaces, anywhere."""
  marks = unicode_words.MARK
  anywhere, whole = [], []
  for phrase in phrases:
    if word_hashes.UNSPACED_LETTER.search(phrase):
      anywhere.append(re.escape(phrase))
    else:
      whole.append(re.escape(phrase))
  patterns = []
  if anywhere:
    patterns.append(rf'(?:{"|".join(anywhere)})(?![{marks}])')
  if whole:
    patterns.append(rf'(?<![\w{marks}])(?:{"|".join(whole)})(?![\w{marks}])')
  return re.compile('|'.join(patterns))


@functools.cache
def load_identifier(model: str = '') -> LanguageIdentifier:
  """Load the function that returns the probability of each language (ISO 639 code) of a text.

  Args:
    model: a .bin of fastText's `supervised` whose labels are __label__CODE; '': py3langid.

  Raises:
    ConfigError: py3langid is not installed, and no model is given.
    FastTextError: the file is no such model.
  """
  if model:
    return load_fasttext(model)
  try:
    from py3langid import langid  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise ConfigError(
        "languages are identified by the package py3langid: pip install 'plm_jax[corpora]'; or by "
        f'a fastText model that you give with {name_field("language_model")}') from error
  loaded = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
  return lambda text: dict(loaded.rank(text))


def load_fasttext(model: str) -> LanguageIdentifier:
  """Load a language identifier from a .bin of fastText."""
  # These modules import JAX, and there are many workers.
  from plm_jax.word_vectors import classifier, fasttext_bin

  loaded = fasttext_bin.load(model)
  predict = classifier.make_predictor(loaded, len(loaded.labels))

  def identify(text: str) -> Mapping[str, float]:
    return {label.removeprefix(classifier.LABEL_PREFIX): probability
            for label, probability in predict(text.split())}

  return identify


# A quotation ends with the sentence in it.
TERMINAL = tuple('.!?"”\'’»。！？」』…։।॥؟۔።။។៕།')
ELLIPSIS = '...', '……'
CITATION = re.compile(r'\[\d*\]|\[edit\]|\[citation needed\]')
POLICIES = ('terms of use', 'privacy policy', 'cookie policy', 'uses cookies', 'use of cookies',
            'use cookies')
LANGUAGE_CHARACTERS = 8192
