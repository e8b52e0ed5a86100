"""Rules by which lines and documents are left out before a model learns from them: those of C4 (Raffel et al. 2020,
section 2.2) and, by `quality`, those of MassiveText (Rae et al. 2021, appendix A.1).

Sentences are those of `data.sentences`.
"""
from collections import Counter
from collections.abc import Mapping
import dataclasses
import functools
import re
from typing import NamedTuple

from plm_jax import storage
from plm_jax.checked import Checked, within
from plm_jax.corpora import language, quality, words
from plm_jax.data import sentences
from plm_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Filters(Checked):
  """What a document has to be like. By default nothing is asked."""

  limits = within(language_score='[0, 1]', min_sentences='[0, 1000000]', min_line_words='[0, 1000000]')

  languages: str = ''
  """Codes of languages to keep, by commas: en,de. Needs the package py3langid, or a model of your own."""
  language_score: float = 0.65
  """Probability, at least, that the first 8192 characters are in one of these languages."""
  language_model: str = ''
  """A .bin of fastText's `supervised` that tells languages, such as lid.176.bin; else py3langid does."""
  terminal: bool = False
  """Leave out lines that do not end with . ! ? or a quotation mark, in any script, and those that end with ..."""
  min_line_words: int = 0
  """Leave out lines of fewer words; without spaces a character is a word."""
  javascript: bool = False
  """Leave out lines with the word JavaScript: warnings that it be enabled."""
  policies: bool = False
  """Leave out lines on terms of use, privacy and cookies."""
  citations: bool = False
  """Cut Wikipedia's marks out of lines: [1], [edit], [citation needed]."""
  lorem_ipsum: bool = False
  """Leave out documents with 'lorem ipsum'."""
  braces: bool = False
  """Leave out documents with a curly bracket, which is of programs."""
  bad_words: str = ''
  """A file of words and phrases, one a line: documents with one of them are left out."""
  min_sentences: int = 0
  """Leave out documents of fewer sentences."""
  quality: bool = False
  """Leave out what is no prose by the rules of Rae et al. 2021: too short or long, symbols, bullets, no stop words."""
  stop_words: int = 2
  """Of quality: English stop words that a document has at least; 0 for other languages."""
  repetition: bool = False
  """Leave out documents that repeat lines, or runs of words, by the thresholds of Rae et al. 2021, table A1."""

  def conflict(self, option):
    """Says which options do not go together: a model for languages without languages."""
    if self.language_model and not self.languages:
      return f'{option("language_model")} tells languages: name those to keep by {option("languages")}'
    return None


class Filtered(NamedTuple):
  """What rules leave of a document."""

  paragraphs: list[str]
  reason: str  # why the document is left out, '' where it is kept
  lines: dict[str, int]  # how many lines each rule took away


class Filter:
  """The rules with what they need: patterns and models, which each process loads when it is first asked."""

  def __init__(self, config: Filters):
    """Raises ConfigError or StorageError for a list of words or a model that cannot be had."""
    self.config = config
    self.bad_words = read_words(config.bad_words) if config.bad_words else ()
    if config.languages:
      self.identify('')  # here, not in a worker: it may not be installed

  def __call__(self, paragraphs: list[str]) -> Filtered:
    """Applies the rules on lines, then those on the document that is left; the first that it breaks is its reason."""
    config, lines = self.config, Counter()
    if reason := self.refused(paragraphs):
      return Filtered(paragraphs, reason, {})
    kept = []
    for line in paragraphs:
      if config.citations:
        line = CITATION.sub('', line)
      if broken := line_breaks(line, config):
        lines[broken] += 1
      else:
        kept.append(line)
    return Filtered(kept, self.reason(kept), dict(lines))

  def refused(self, paragraphs: list[str]) -> str:
    """Returns the rule that a document breaks with any of its lines, '' where it breaks none: as the paper has it,
    with those too that are left out."""
    text = '\n'.join(paragraphs)
    lower = text.lower()
    if self.config.lorem_ipsum and 'lorem ipsum' in lower:
      return 'lorem ipsum'
    if self.config.braces and '{' in text:
      return 'curly bracket'
    if self.bad_words and bad(self.bad_words).search(lower):
      return 'bad word'
    return ''

  def reason(self, paragraphs: list[str]) -> str:
    """Returns the rule that what is left of a document breaks, '' where it breaks none."""
    config = self.config
    if not paragraphs:
      return 'no line left'
    if few_sentences(paragraphs, config.min_sentences):
      return 'too few sentences'
    if config.languages:
      chances = self.identify('\n'.join(paragraphs)[:LANGUAGE_CHARACTERS])
      if sum(chances.get(code.strip(), 0) for code in config.languages.split(',')) < config.language_score:
        return 'language'
    broken = quality.breaks(paragraphs, config.stop_words) if config.quality else ''
    return broken or (quality.repeats(paragraphs) if config.repetition else '')

  def identify(self, text: str) -> Mapping[str, float]:
    """Returns how probable each language is."""
    return language.identifier(self.config.language_model)(text)


def line_breaks(line: str, config: Filters) -> str:
  """Returns the rule that a line breaks, '' where it breaks none."""
  line = line.strip()
  if config.terminal and (not line.endswith(TERMINAL) or line.endswith(ELLIPSIS)):
    return 'no terminal punctuation'
  if config.min_line_words and words.count(line) < config.min_line_words:
    return 'too few words'
  lower = line.lower() if config.javascript or config.policies else ''
  if config.javascript and 'javascript' in lower:
    return 'javascript'
  if config.policies and any(phrase in lower for phrase in POLICIES):
    return 'policy'
  return ''


def few_sentences(paragraphs: list[str], least: int) -> bool:
  """Tells whether a document has fewer sentences."""
  number = 0
  for paragraph in paragraphs:
    if number >= least:
      break
    number += len(sentences.split(paragraph))
  return number < least


def read_words(path: str) -> tuple[str, ...]:
  """Reads words and phrases, one a line. Raises ConfigError where there are none."""
  found = sorted({line.strip().lower() for line in storage.read_text(path).splitlines() if line.strip()})
  if not found:
    raise ConfigError(f'{path} has no words: expected one, or a phrase, in each line')
  return tuple(found)


@functools.cache
def bad(phrases: tuple[str, ...]) -> re.Pattern[str]:
  """Compiles what finds any of the phrases as whole words; of scripts without spaces, anywhere."""
  inside = [re.escape(phrase) for phrase in phrases if words.CHARACTER.search(phrase)]
  whole = [re.escape(phrase) for phrase in phrases if not words.CHARACTER.search(phrase)]
  return re.compile('|'.join([*inside, *([rf'(?<!\w)(?:{"|".join(whole)})(?!\w)'] if whole else ())]))


TERMINAL = tuple('.!?"”\'’»。！？」』…։।॥؟۔።')  # a quotation ends with the sentence in it
ELLIPSIS = '...', '……'
CITATION = re.compile(r'\[\d*\]|\[edit\]|\[citation needed\]')
POLICIES = 'terms of use', 'privacy policy', 'cookie policy', 'uses cookies', 'use of cookies', 'use cookies'
LANGUAGE_CHARACTERS = 8192
