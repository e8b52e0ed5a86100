"""What a word is, where the tokenizer cannot tell: text without spaces between words.

A segmenter marks words, which whole-word masks follow. It changes no ids: they stay those that the same tokenizer gives
the same text without one, and so those of fine-tuning.
"""
from collections.abc import Callable, Iterable
import functools
import hashlib
import logging
import re
from typing import Literal, get_args

import numpy as np

from plm_jax import storage
from plm_jax.data.lines import SourceError
from plm_jax.errors import option

Kind = Literal['none', 'jieba', 'spaces', 'words']
Segmenter = str  # a kind, or jieba:FILE and words:FILE with a list of words, one a line
Segment = Callable[[str], tuple[str, list[str]]]  # a paragraph as read -> (its text, its words in order)


def segmenter(name: Segmenter) -> Segment | None:
  """Makes a segmenter. jieba: Chinese words by its dictionary. spaces: the source has a space between words, which is
  no part of the text beside a Chinese or Japanese character, and stays between two others. words:FILE: the longest
  words, phrases or names of a list, and where none fits single characters of these scripts, and words as others write
  them. jieba:FILE adds a list to its dictionary. none: None, the tokenizer says what a word is. Raises SourceError
  where one is not installed, or a list cannot be read.

  >>> segmenter('spaces')('我们 喜欢 New York 的 猫 。')
  ('我们喜欢New York的猫。', ['我们', '喜欢', 'New', 'York', '的', '猫', '。'])
  """
  kind, _, listed = name.partition(':')
  return {'none': lambda: None, 'jieba': lambda: with_jieba(listed), 'spaces': lambda: by_spaces,
          'words': lambda: functools.partial(by_list, *longest_first(listed))}[kind]()


def wrong(name: Segmenter) -> str:
  """Says what is wrong with the name of a segmenter, '' where nothing is."""
  kind, _, listed = name.partition(':')
  takes = {'words': (True,), 'jieba': (True, False)}.get(kind, (False,))
  if kind not in get_args(Kind) or bool(listed) not in takes:
    return f'is {", ".join(get_args(Kind)[:-1])}, jieba:FILE or words:FILE, got {name}'
  return ''


def identity(name: Segmenter) -> str:
  """Returns the name with the contents of its list in place of where that lies: what decides what it finds."""
  kind, _, listed = name.partition(':')
  return f'{kind}:{hashlib.sha256(read_list(listed)).hexdigest()}' if listed else name


def with_jieba(listed: str = '') -> Segment:
  """Makes the segmenter of jieba's dictionary, which takes a second; listed: a file with more words. Raises SourceError
  where it is not installed."""
  try:
    import jieba  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise SourceError(f'{option("segmenter=jieba")} needs the extra: pip install "plm_jax[zh]"') from error
  jieba.setLogLevel(logging.WARNING)
  jieba.initialize()
  for word in words_of(listed) if listed else ():
    jieba.add_word(word)
  return lambda text: (text, [word for word in jieba.cut(text) if not word.isspace()])


def longest_first(listed: str) -> tuple[frozenset[str], dict[str, tuple[int, ...]]]:
  """Reads a list of words -> (them, how many characters those have that begin with a character, most first)."""
  words = frozenset(words_of(listed))
  lengths: dict[str, set[int]] = {}
  for word in words:
    lengths.setdefault(word[0], set()).add(len(word))
  return words, {first: tuple(sorted(found, reverse=True)) for first, found in lengths.items()}


def by_list(words: frozenset[str], lengths: dict[str, tuple[int, ...]], paragraph: str) -> tuple[str, list[str]]:
  """Splits a paragraph into the longest words of a list, from the left -> (its text, its words)."""
  found, at = [], 0
  while at < len(paragraph):
    listed = next((n for n in lengths.get(paragraph[at], ()) if paragraph[at:at + n] in words), 0)
    plain = PLAIN.match(paragraph, at)
    end = at + listed if listed else plain.end() if plain else at + 1
    if not (word := paragraph[at:end]).isspace():
      found.append(word)
    at = end
  return paragraph, found


def words_of(listed: str) -> list[str]:
  """Reads the words of a list, one a line. Raises SourceError where there is none."""
  words = [line.strip() for line in read_list(listed).decode(errors='replace').splitlines() if line.strip()]
  if not words:
    raise SourceError(f'{listed} has no words in it, expected one a line')
  return words


def read_list(listed: str) -> bytes:
  """Reads the file of a list. Raises SourceError where it is not there."""
  return storage.read_bytes(storage.path_of(listed), 1 << 30, SourceError)


def by_spaces(paragraph: str) -> tuple[str, list[str]]:
  """Splits a paragraph at its spaces -> (its text, its words); the text keeps the spaces between other scripts."""
  return GAP.sub('', paragraph.strip()), paragraph.split()


def text_of(segment: Segment | None, paragraph: str) -> str:
  """Returns the text of a paragraph of the source, without the spaces that only part words."""
  return segment(paragraph)[0] if segment else paragraph


def word_starts(
    text: str, words: Iterable[str], sentences: Iterable[str], lengths: Iterable[int],
    places: np.ndarray) -> np.ndarray:
  """Tells which tokens [T] of a paragraph start a word -> bool [T].

  words, in order, are all of `text` but white space; sentences, in order, are parts of it, with `lengths` tokens each,
  and places [T] are the characters of the sentences at which their tokens begin. A token is of the word that its first
  character is of, white space aside, whatever else it holds.
  """
  number = np.zeros(len(text) + 1, np.int64)  # of the word at each character, counted at its first
  end = 0
  for word in words:
    start = text.index(word, end)
    number[start], end = 1, start + len(word)
  number = np.cumsum(number)
  # White space is of the word behind it.
  at = np.arange(len(text) + 1)
  solid = np.array([not character.isspace() for character in text] + [True])
  following = np.minimum.accumulate(np.where(solid, at, len(text))[::-1])[::-1]
  starts, end, token = np.zeros(len(places), bool), 0, 0
  for sentence, length in zip(sentences, lengths, strict=True):
    solid_text = sentence.strip()
    start = text.index(solid_text, end)
    end = start + len(solid_text)
    gap = len(sentence) - len(sentence.lstrip())
    own = number[following[np.clip(start - gap + places[token:token + length], 0, len(text))]]
    starts[token:token + length] = np.append(True, own[1:] != own[:-1])[:length]
    token += length
  return starts


@functools.cache
def cached(name: Segmenter) -> Segment | None:
  """Returns a segmenter, one a process: jieba reads its dictionary for a second."""
  return segmenter(name)


# Characters of scripts without spaces between words: Chinese, Japanese, and their signs.
WIDE = '\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f' \
       '\uff00-\uffef\U00020000-\U0003ffff'
PLAIN = re.compile(rf'[^\W{WIDE}]+')
GAP = re.compile(rf'(?<=[{WIDE}])\s+|\s+(?=[{WIDE}])')
