"""Word segmentation of text without spaces between words, such as Chinese, for whole-word masking.

A segmenter marks words, which whole-word masks follow. It does not change ids: the same tokenizer
gives the same ids to the same text without a segmenter, as in fine-tuning.
"""
from collections.abc import Callable, Iterable
import functools
import logging
import re
from typing import Literal, get_args

import numpy as np

from plm_jax import storage, unicode_words
from plm_jax.errors import add_advice, name_field
from plm_jax.sources.lines import SourceError
from plm_jax.storage.digests import compute_digest

SegmenterKind = Literal['none', 'jieba', 'spaces', 'words']
SegmenterName = str  # a kind; or jieba:FILE, words:FILE with a list of words, one per line
# A paragraph of the source -> (its text, its words in order).
SegmentFunction = Callable[[str], tuple[str, list[str]]]


def make_segmenter(name: SegmenterName) -> SegmentFunction | None:
  """Make a segmenter.

  - jieba: Chinese words by jieba's dictionary; jieba:FILE adds a list of words to it. - spaces: the
  source has spaces between words. A space is not part of the text next to a Chinese or
    Japanese character, and is kept between two others.
  - words:FILE: the longest words, phrases or names of a list. Elsewhere, single characters of these
    scripts, and words of other scripts.
  - none: returns None; the tokenizer determines words.

  Raises:
    SourceError: jieba is not installed, or a list cannot be read.

  >>> make_segmenter('spaces')('我们 喜欢 New York 的 猫 。')
  ('我们喜欢New York的猫。', ['我们', '喜欢', 'New', 'York', '的', '猫', '。'])
  """
  kind, _, path = name.partition(':')
  if kind == 'jieba':
    return make_jieba_segmenter(path)
  if kind == 'spaces':
    return split_by_spaces
  if kind == 'words':
    return functools.partial(split_by_list, *index_word_list(path))
  if kind == 'none':
    return None
  raise KeyError(kind)


def segmenter_problem(name: SegmenterName) -> str:
  """Return what is wrong with the name of a segmenter, '' if nothing is."""
  kind, _, path = name.partition(':')
  if kind == 'jieba' or (kind == 'words' and path) or (
      kind in ('none', 'spaces') and not path):
    return ''
  return f'is {", ".join(get_args(SegmenterKind)[:-1])}, jieba:FILE or words:FILE, got {name}'


def segmenter_identity(name: SegmenterName) -> str:
  """Return the name with a hash of the list instead of its path: what determines the words."""
  kind, _, path = name.partition(':')
  return f'{kind}:{compute_digest(read_list(path))}' if path else name


def make_jieba_segmenter(path: str = '') -> SegmentFunction:
  """Make the segmenter of jieba's dictionary, which takes a second.

  path: file with more words; '': none. Raises SourceError where jieba is not installed.
  """
  try:
    import jieba  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    name = add_advice(f'{name_field("segmenter")}=jieba', 'jieba')
    raise SourceError(f'{name} needs the extra: pip install "plm_jax[zh]"') from error
  jieba.setLogLevel(logging.WARNING)
  # A separate dictionary: adding words to the module's would change all segmenters of the process.
  tokenizer = jieba.Tokenizer()
  tokenizer.initialize()
  if path:
    for word in read_words(path):
      tokenizer.add_word(word)
  return lambda text: (text, [word for word in tokenizer.cut(text) if not word.isspace()])


def index_word_list(path: str) -> tuple[frozenset[str], dict[str, tuple[int, ...]]]:
  """Read a list of words -> (the words, their lengths by first character, longest first)."""
  words = frozenset(read_words(path))
  lengths: dict[str, set[int]] = {}
  for word in words:
    lengths.setdefault(word[0], set()).add(len(word))
  by_first = {first: tuple(sorted(found, reverse=True)) for first, found in lengths.items()}
  return words, by_first


def split_by_list(words: frozenset[str], lengths: dict[str, tuple[int, ...]], paragraph: str
                  ) -> tuple[str, list[str]]:
  """Split a paragraph into the longest words of a list, from the left -> (its text, its words)."""
  found, at = [], 0
  while at < len(paragraph):
    plain = PLAIN_WORD.match(paragraph, at)
    end = plain.end() if plain else at
    for length in lengths.get(paragraph[at], ()):
      # A listed word does not end between a letter and its combining mark.
      marked = unicode_words.MARKS.match(paragraph, at + length)
      if paragraph[at:at + length] in words and not marked:
        end = at + length
        break
    if not (word := paragraph[at:end]).isspace():
      found.append(word)
    at = end
  return paragraph, found


def read_words(path: str) -> list[str]:
  """Read a list of words, one per line. Raises SourceError where there is none."""
  lines = read_list(path).decode(errors='replace').splitlines()
  words = [line.strip() for line in lines if line.strip()]
  if not words:
    raise SourceError(f'{path} has no words in it, expected one per line')
  return words


def read_list(path: str) -> bytes:
  """Read the file of a list. Raises SourceError where it is missing."""
  return storage.read_bytes(storage.resolve_path(path), 1 << 30, SourceError)


def split_by_spaces(paragraph: str) -> tuple[str, list[str]]:
  """Split a paragraph at its spaces -> (its text, its words); see `make_segmenter`."""
  return WORD_GAP.sub('', paragraph.strip()), paragraph.split()


def word_starts(
    text: str, words: Iterable[str], sentences: Iterable[str], lengths: Iterable[int],
    places: np.ndarray) -> np.ndarray:
  """Return which tokens [T] of a paragraph start a word -> bool [T].

  A token belongs to the word of its first character other than white space.

  Args:
    text: of the paragraph.
    words: in order, all of `text` except white space.
    sentences: in order, parts of `text`.
    lengths: tokens of each sentence.
    places: [T] character in its sentence at which each token begins.
  """
  # Number of the word at each character; at first 1 where a word begins.
  number = np.zeros(len(text) + 1, np.int64)
  end = 0
  for word in words:
    start = text.index(word, end)
    number[start], end = 1, start + len(word)
  number = np.cumsum(number)
  # White space belongs to the following word.
  at = np.arange(len(text) + 1)
  solid = np.array([not character.isspace() for character in text] + [True])
  following = np.minimum.accumulate(np.where(solid, at, len(text))[::-1])[::-1]
  starts, end, token = np.zeros(len(places), bool), 0, 0
  for sentence, length in zip(sentences, lengths, strict=True):
    stripped = sentence.strip()
    start = text.index(stripped, end)
    end = start + len(stripped)
    gap = len(sentence) - len(sentence.lstrip())
    characters = np.clip(start - gap + places[token:token + length], 0, len(text))
    own = number[following[characters]]
    starts[token:token + length] = np.append(True, own[1:] != own[:-1])[:length]
    token += length
  return starts


load_segmenter = functools.cache(make_segmenter)
"""return a segmenter, made once per process: jieba reads its dictionary for a second"""


# Characters of scripts without spaces between words: Chinese, Japanese, and their punctuation.
WIDE_CHARACTERS = (
    '\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
    '\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff')
SPACED_WORD = unicode_words.letters_pattern(
    underscore=True, without=WIDE_CHARACTERS + unicode_words.DICTIONARY_SCRIPTS)
# A word of another script, or one character:
PLAIN_WORD = re.compile(rf'{SPACED_WORD}|.[{unicode_words.MARK}]*', re.DOTALL)
WORD_GAP = re.compile(rf'(?<=[{WIDE_CHARACTERS}])\s+|\s+(?=[{WIDE_CHARACTERS}])')
