"""What a word is, where the tokenizer cannot tell: text without spaces between words.

A segmenter marks words, which whole-word masks follow. It changes no ids: they stay those that the same tokenizer gives
the same text without one, and so those of fine-tuning.
"""
from collections.abc import Callable, Iterable
import functools
import logging
import re
from typing import Literal

import numpy as np

from plm_jax.data.lines import SourceError
from plm_jax.errors import option

Segmenter = Literal['none', 'jieba', 'spaces']
Segment = Callable[[str], tuple[str, list[str]]]  # a paragraph as read -> (its text, its words in order)


def segmenter(name: Segmenter) -> Segment | None:
  """Makes a segmenter. jieba: Chinese words by its dictionary. spaces: the source has a space between words, which is
  no part of the text beside a Chinese or Japanese character, and stays between two others. none: None, the tokenizer
  says what a word is. Raises SourceError where one is not installed.

  >>> segmenter('spaces')('我们 喜欢 New York 的 猫 。')
  ('我们喜欢New York的猫。', ['我们', '喜欢', 'New', 'York', '的', '猫', '。'])
  """
  return {'none': lambda: None, 'jieba': with_jieba, 'spaces': lambda: by_spaces}[name]()


def with_jieba() -> Segment:
  """Makes the segmenter of jieba's dictionary, which takes a second. Raises SourceError where it is not installed."""
  try:
    import jieba  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise SourceError(f'{option("segmenter=jieba")} needs the extra: pip install "plm_jax[zh]"') from error
  jieba.setLogLevel(logging.WARNING)
  jieba.initialize()
  return lambda text: (text, [word for word in jieba.cut(text) if not word.isspace()])


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
GAP = re.compile(rf'(?<=[{WIDE}])\s+|\s+(?=[{WIDE}])')
