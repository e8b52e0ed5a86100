"""Synonyms that replace masked words (MacBERT: Cui et al. 2020, section 3.2), from a user's file.

A line of the file is a word and its synonyms, separated by white space. The first ones with the
same number of tokens as the word are used, so that predicted positions stay where they are. Words
with a part that the tokenizer does not know are left out: all unknown words would be one word,
and replace others.
"""
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax import storage
from plm_jax.errors import ConfigError

CANDIDATES = 4
"""Synonyms that are kept per word."""
MAX_FILE_BYTES = 1 << 30
SynonymTable = Mapping[tuple[int, ...], np.ndarray]
"""Token ids of a word -> token ids of its synonyms, [tokens, CANDIDATES]."""
TABLE_CACHE: dict[tuple[str, str], SynonymTable] = {}
"""(path, hash of the tokenizer) -> table."""


def lookup_synonyms(path: str, windows: Mapping[str, np.ndarray], tokenizer: Any) -> np.ndarray:
  """Look up the synonyms of each word of windows.

  Args:
    path: the synonym file.
    windows: tokens and words, [batch, text].
    tokenizer: that of the windows.

  Returns:
    token ids int32 [batch, text, CANDIDATES]; -1 where a word has no synonym. Where a word has
    fewer than CANDIDATES they repeat.
  """
  table, tokens, words = load_table(path, tokenizer), windows['tokens'], windows['words']
  filled = np.full((*tokens.shape, CANDIDATES), -1, np.int32)
  for row in range(len(tokens)):
    starts = np.flatnonzero(np.diff(words[row], prepend=0) & (words[row] > 0))
    ends = np.append(starts[1:], np.count_nonzero(words[row]))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
      candidates = table.get(tuple(tokens[row, start:end].tolist()))
      if candidates is not None:
        filled[row, start:end] = candidates
  return filled


def load_table(path: str, tokenizer: Any) -> SynonymTable:
  """Load a synonym file, once per process.

  Raises:
    ConfigError: the file does not exist, or has no synonyms.
  """
  key = path, tokenizer.hash
  if key not in TABLE_CACHE:
    TABLE_CACHE[key] = read_table(path, tokenizer)
  return TABLE_CACHE[key]


def read_table(path: str, tokenizer: Any) -> SynonymTable:
  """Read a synonym file; see `load_table`."""
  text = storage.read_text(storage.resolve_path(path), MAX_FILE_BYTES, ConfigError)
  lines, distinct = [], set()
  for line in text.splitlines():
    words = line.split()
    if len(words) > 1:
      lines.append(words)
      distinct.update(words)
  every = sorted(distinct)
  if not every:
    raise ConfigError(f'{path} has no line with a word and words like it')
  ids = {}
  for word, tokens in zip(every, tokenizer.encode_batch(every), strict=True):
    if tokenizer.vocab.unk not in tokens:
      ids[word] = tuple(tokens)
  found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
  for word, *others in lines:
    if word not in ids:
      continue
    own = ids[word]
    like = found.setdefault(own, [])
    for other in others:
      if other in ids and len(ids[other]) == len(own) and ids[other] != own:
        like.append(ids[other])
  return {word: choose_candidates(like) for word, like in found.items() if word and like}


def choose_candidates(like: list[tuple[int, ...]]) -> np.ndarray:
  """Return CANDIDATES of several words, repeated where they are fewer, int32 [tokens,
  CANDIDATES]."""
  few = list(dict.fromkeys(like))[:CANDIDATES]
  return np.array([few[number % len(few)] for number in range(CANDIDATES)], np.int32).T
