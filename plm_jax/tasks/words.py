"""Where words are in a text that nobody has divided, as CoNLL's shared tasks and the Penn Treebank divide it."""
import re
from typing import NamedTuple


class Word(NamedTuple):
  """A word or a sign: text[start:end]."""

  text: str
  start: int
  end: int


def split(text: str) -> list[Word]:
  """Divides a text.

  >>> [word.text for word in split("The U.S. didn't pay $1,000 to Germany's Rolls-Royce.")]
  ['The', 'U.S.', 'did', "n't", 'pay', '$', '1,000', 'to', 'Germany', "'s", 'Rolls-Royce', '.']

  Numbers keep their points and commas, abbreviations of letters their periods, compounds their hyphens; clitics and
  signs are words; so is each Chinese or Japanese character, as in MSRA's and Weibo's corpora.
  """
  return [Word(found[0], *found.span()) for found in WORD.finditer(text)]


IDEOGRAPH = '\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff'
LETTERS = rf'[^\W{IDEOGRAPH}]'
WORD = re.compile(
    rf"[{IDEOGRAPH}]|\d+(?:[.,:]\d+)+(?!\w)|\b(?:[^\W\d_{IDEOGRAPH}]\.){{2,}}|"
    rf"{LETTERS}+?(?=n['’]t\b)|n['’]t\b|{LETTERS}+(?:-{LETTERS}+)*|['’](?:s|re|ve|ll|m|d)\b|\S", re.IGNORECASE)
