"""Words that may stand in the place of others, of a list that a user brings (MacBERT: Cui et al. 2020, section 3.2).

A line of the file is a word and words that are like it, with white space between them. Of these as many are used as
have the same number of tokens, the first ones first: what is predicted stays where it is. Words with something in them
that the tokenizer does not know are left out: all that is unknown would be one word, and stand in the place of others.
"""
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax import storage
from plm_jax.errors import ConfigError

CANDIDATES = 4
"""words that are kept for a word"""
Table = Mapping[tuple[int, ...], np.ndarray]


def of_windows(path: str, windows: Mapping[str, np.ndarray], tokenizer: Any) -> np.ndarray:
  """Returns, of windows of tokens and words [B, T], what may stand for each token: int32 [B, T, CANDIDATES], whole
  words each, -1 where its word has none. Where a word has fewer they come again."""
  found, tokens, words = table(path, tokenizer), windows['tokens'], windows['words']
  filled = np.full((*tokens.shape, CANDIDATES), -1, np.int32)
  for row in range(len(tokens)):
    starts = np.flatnonzero(np.diff(words[row], prepend=0) & (words[row] > 0))
    ends = np.append(starts[1:], np.count_nonzero(words[row]))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
      if (like := found.get(tuple(tokens[row, start:end].tolist()))) is not None:
        filled[row, start:end] = like
  return filled


def table(path: str, tokenizer: Any) -> Table:
  """Reads the list: ids of a word -> those of words like it [tokens, CANDIDATES]. Raises ConfigError for a file that is
  not there, or has nothing in it."""
  key = path, tokenizer.hash
  if key not in KEPT:
    KEPT[key] = read(path, tokenizer)
  return KEPT[key]


def read(path: str, tokenizer: Any) -> Table:
  """Does what `table` says."""
  lines = [line.split() for line in storage.read_text(storage.path_of(path), LARGEST, ConfigError).splitlines()]
  every = sorted({word for line in lines if len(line) > 1 for word in line})
  if not every:
    raise ConfigError(f'{path} has no line with a word and words like it')
  ids = {word: tuple(some) for word, some in zip(every, tokenizer.encode_batch(every), strict=True)
         if tokenizer.vocab.unk not in some}
  found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
  for word, *others in (line for line in lines if len(line) > 1 and line[0] in ids):
    like = found.setdefault(ids[word], [])
    known = [ids[other] for other in others if other in ids]
    like += [other for other in known if len(other) == len(ids[word]) and other != ids[word]]
  return {word: chosen(like) for word, like in found.items() if word and like}


def chosen(like: list[tuple[int, ...]]) -> np.ndarray:
  """Returns CANDIDATES of several words, again and again from the first where they are fewer, [tokens, CANDIDATES]."""
  few = list(dict.fromkeys(like))[:CANDIDATES]
  return np.array([few[number % len(few)] for number in range(CANDIDATES)], np.int32).T


KEPT: dict[tuple[str, str], Table] = {}
LARGEST = 1 << 30  # bytes of a list
