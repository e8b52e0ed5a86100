"""Texts and words without end: a line of a megabyte, base64, a language without spaces.

The libraries take some 130 bytes of memory for each byte of what they encode at once, and the time in which they learn
pieces from a word grows with its length for every piece. So long texts are encoded in parts, and what no language has
as a word teaches nothing.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import re

import numpy as np
import tokenizers

LONGEST = 1 << 16  # characters of a text that are encoded at once
TOGETHER = 1 << 20  # characters of all texts that are encoded at once, about
LONGEST_WORD = 1000  # characters of a word, or of a run of signs or of spaces, that pieces are learnt from
# Where a word begins whatever stands before: what is cut there has the ids of the whole. A space behind something else;
# for byte-level BPE a sign behind a letter too; where signs are words of their own, on both sides of one. The signs are
# those that no special token has.
SPACES = re.compile(r'(?<=\S)(?= \S)')
BYTES = re.compile(r'(?<=\S)(?= \S)|(?<=[^\W\d_])(?=[.,;:!?。，、；：！？])')
SIGNS = re.compile(r'(?= )|(?=[.,;:!?。，、；：！？])|(?<=[.,;:!?。，、；：！？])')
LETTERS, NOT_CHINESE = '[^\\W_]', '[^\\W_\u3400-\u4dbf\u4e00-\u9fff]'


def parts(text: str, border: re.Pattern, whole: bool = False) -> list[str]:
  """Cuts a text into parts of at most LONGEST characters, at the last border.

  Their ids are those of the text, unless it has more than half of LONGEST characters without a border: they are cut
  where they are, and transformers, which goes through all of it at once, may have other ids there. whole: they are not.
  """
  found, start = [], 0
  while len(text) - start > LONGEST:
    middle, end = start + LONGEST // 2, start + LONGEST
    cut = max((match.start() for match in border.finditer(text, middle, end)), default=0)
    if not cut and whole:
      later = border.search(text, end)
      cut = later.start() if later else len(text)
    found.append(text[start:cut or end])
    start = cut or end
  return [*found, text[start:]] if start < len(text) or not found else found


def encode(run: Callable[[list[str]], list[tokenizers.Encoding]], texts: Sequence[str], border: re.Pattern,
           whole: bool = False, places: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Encodes texts [N] in parts: ids in a row [T] uint32, how many each text has [N], and, of each id, the character of
  its text at which it begins [T], if `places` are asked for."""
  ids, found = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
  lengths = np.zeros(len(texts), np.int64)
  for batch in batches(texts, border, whole):
    encodings = run([part for _, _, part in batch])
    for (number, start, _), encoding in zip(batch, encodings, strict=True):
      ids.append(np.array(encoding.ids, np.uint32))
      lengths[number] += len(ids[-1])
      if places:
        found.append(np.array([at for at, _ in encoding.offsets], np.int64) + start)
  return np.concatenate(ids), lengths, np.concatenate(found)


def batches(texts: Sequence[str], border: re.Pattern, whole: bool) -> Iterator[list[tuple[int, int, str]]]:
  """Yields lists of about TOGETHER characters of (number of the text, where the part begins, part)."""
  batch, size = [], 0
  for number, text in enumerate(texts):
    start = 0
    for part in parts(text, border, whole):
      batch.append((number, start, part))
      start, size = start + len(part), size + len(part)
      if size > TOGETHER:
        yield batch
        batch, size = [], 0
  if batch:
    yield batch


def learnable(texts: Iterable[str], letters: str = LETTERS) -> Iterator[str]:
  """Yields texts without what is longer than a word can be. letters: a character class of those that make up words."""
  long = re.compile(rf'{letters}{{{LONGEST_WORD + 1},}}|[^\w\s]{{{LONGEST_WORD + 1},}}|\s{{{LONGEST_WORD + 1},}}')
  for text in texts:
    yield long.sub(' ', text) if len(text) > LONGEST_WORD else text
