"""Words in text of any script: the project's one definition of a word, as regular expressions.

A word is a sequence of letters and digits with their combining marks. The rules follow Unicode's
default word boundaries (UAX #29, WB3 to WB10) as far as these need no dictionary:

* A letter or a digit is what `str.isalnum` accepts, in any script.
* A combining mark (Mn, Mc, Me) belongs to the letter before it: vowel signs and viramas of Hindi,
  Bengali and Tamil, vowels and tones of Thai, points of Hebrew and Arabic, decomposed accents.
  Python's `\\w` has no marks.
* The zero-width joiner follows a letter as a mark does. The zero-width non-joiner, the soft hyphen
  and the word joiner are part of a word between two letters. The zero-width space divides words.
* A Chinese or Japanese character is a word by itself, with its marks.
* Thai, Lao, Khmer, Burmese and similar scripts have no spaces either, but only a dictionary finds
  their words: a sequence of letters is not divided. `clean`, which counts and compares words,
  divides it into letters with their marks (`word_pattern(divided=True)`).
* A mark without a letter before it belongs to no word. Invisible characters, such as marks of
  direction, are not punctuation.

Apostrophes, hyphens and underscores depend on the use: `tag` divides text as CoNLL does, word
vectors keep apostrophes between letters, `clean` drops all punctuation. Each use documents its
choice where it builds its expression.
"""
from collections.abc import Iterable
import functools
import itertools
import re
from typing import NamedTuple
import unicodedata


def format_ranges(characters: Iterable[int]) -> str:
  """Format ascending code points as the content of a character class."""
  ranges: list[list[int]] = []
  for code in characters:
    if ranges and code == ranges[-1][1] + 1:
      ranges[-1][1] = code
    else:
      ranges.append([code, code])
  content = ''
  for first, last in ranges:
    content += re.escape(chr(first))
    if last > first:
      content += f'-{re.escape(chr(last))}'
  return content


def characters_in_category(category: str, *blocks: range) -> str:
  """Return the content of a character class: code points of `blocks` in a general category.

  Args:
    category: prefix of the category, such as 'M' or 'L'.
    blocks: code points.
  """
  codes = itertools.chain.from_iterable(blocks)
  return format_ranges(
      code for code in codes if unicodedata.category(chr(code)).startswith(category))


JOINER = '\u200d'
# Beyond plane 1 the variation selectors are the only marks.
MARK = characters_in_category('M', range(0x300, 0x20000), range(0xe0100, 0xe01f0)) + JOINER
IN_WORD = '\u00ad\u200c\u2060'  # soft hyphen, zero-width non-joiner, word joiner
# Invisible characters, which are not punctuation: those above, the zero-width space, marks of
# direction.
INVISIBLE = ('\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff'
             '\U000e0000-\U000e007f')
# Letters that are words: Han, kana (also of half width), bopomofo.
IDEOGRAPH = (
    '\u3005-\u3007\u3031-\u3035\u303b\u303c'
    + characters_in_category('L', range(0x3040, 0x3130), range(0x31a0, 0x3200))
    + '\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U0001aff0-\U0001b16f'
    + '\U00020000-\U0003ffff')
# Letters of other scripts without spaces between words: Unicode's line break class SA, and Javanese
# and Balinese.
DICTIONARY_SCRIPTS = characters_in_category(
    'L', range(0xe00, 0xf00), range(0x1000, 0x10a0), range(0x1780, 0x1800), range(0x1950, 0x19e0),
    range(0x1a20, 0x1ab0), range(0x1b00, 0x1b80), range(0xa980, 0xaa00), range(0xaa60, 0xaae0),
    range(0x11700, 0x11750))
UNSPACED_SCRIPTS = IDEOGRAPH + DICTIONARY_SCRIPTS


def word_pattern(underscore: bool = False, divided: bool = False) -> str:
  """Return the regular expression of a word, without punctuation.

  Args:
    underscore: '_' counts as a letter, as in names of programs.
    divided: each letter of any script without spaces is a word, not only Chinese and Japanese
      characters.

  >>> re.findall(word_pattern(), 'हिन्दी भाषा, e\u0301cole No. 3; 他走了')
  ['हिन्दी', 'भाषा', 'e\u0301cole', 'No', '3', '他', '走', '了']
  """
  single = UNSPACED_SCRIPTS if divided else IDEOGRAPH
  return f'{letters_pattern(underscore, single)}|(?![\0-\x7f])[{single}][{MARK}]*'


def letters_pattern(underscore: bool = False, without: str = IDEOGRAPH) -> str:
  """Return the regular expression of a sequence of letters and digits with their marks.

  Args:
    underscore: '_' counts as a letter.
    without: letters that are not part of it, as the content of a character class.
  """
  excluded = '_' + without if not underscore else without
  letter = rf'[^\W{excluded}]'
  # The look-ahead halves the time for English.
  return rf'{letter}+(?:(?![\0-\x7f])(?:[{MARK}]+{letter}*|[{IN_WORD}]+{letter}+))*'


def is_word(text: str) -> bool:
  """Tell whether a text consists of letters with their marks.

  >>> [is_word(text) for text in ('word', 'हिन्दी', 'e\u0301cole', '中文', 'R2', 'it is', '')]
  [True, True, True, True, False, False, False]
  """
  return bool(LETTERS.fullmatch(text))


def starts_word(text: str) -> bool:
  """Tell whether a token after a token without a space begins a new word.

  Punctuation does, and a letter of a script without spaces. Letters of other scripts, digits and
  marks continue the word before them.

  >>> [starts_word(text) for text in (',', '中文', 'ing', '\u093f', '2')]
  [True, True, False, False, False]
  """
  if UNSPACED_LETTER.match(text):
    return True
  return not any(map(str.isalnum, text)) and not CONTINUATION.match(text)


class WordSpan(NamedTuple):
  """A word or a sign: text[start:end]."""

  text: str
  start: int
  end: int


def split_words(text: str) -> list[WordSpan]:
  """Split a text into words and signs.

  >>> [word.text for word in split_words("The U.S. didn't pay $1,000 to Germany's Rolls-Royce.")]
  ['The', 'U.S.', 'did', "n't", 'pay', '$', '1,000', 'to', 'Germany', "'s", 'Rolls-Royce', '.']

  Numbers keep their points and commas, abbreviations their periods, compounds their hyphens.
  Clitics and signs are words. Each Chinese or Japanese character is a word, as in the corpora of
  MSRA and Weibo. A sign keeps its combining
  marks and what a joiner adds, as in emoji.
  """
  return [WordSpan(match[0], *match.span()) for match in running_word().finditer(text)]


MARKS = re.compile(f'[{MARK}]')
LETTERS = re.compile(rf'(?:[^\W\d_][{MARK}]*(?:[{IN_WORD}]+(?=[^\W\d_]))?)+')
UNSPACED_LETTER = re.compile(f'[{UNSPACED_SCRIPTS}]')
CONTINUATION = re.compile(f'[{MARK}{IN_WORD}]')
SINGLE_LETTER = rf'[^\W\d_{IDEOGRAPH}][{MARK}]*'
LETTER_RUN = letters_pattern(underscore=True)


@functools.cache
def running_word() -> re.Pattern[str]:
  """Compile the expression of a word or sign in a text; it takes time, and few programs need it."""
  return re.compile(
      rf"[{IDEOGRAPH}][{MARK}]*|\d+(?:[.,:]\d+)+(?![\w{MARK}])|\b(?:{SINGLE_LETTER}\.){{2,}}|"
      rf"[^\W{IDEOGRAPH}]+?(?=n['’]t\b)|n['’]t\b|{LETTER_RUN}(?:-{LETTER_RUN})*|"
      rf"['’](?:s|re|ve|ll|m|d)\b|"
      rf"[^\s{INVISIBLE}][{MARK}]*"
      rf"(?:(?<={JOINER})[^\w\s][{MARK}]*)*", re.IGNORECASE)
