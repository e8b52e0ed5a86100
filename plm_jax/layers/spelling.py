"""How a word is spelled for a model of characters (allenai/bilm-tf, bilm/data.py, UnicodeCharsVocabulary).

A word is the bytes of its UTF-8 between a sign for its begin and one for its end, then padding up to 50 ids; of a
longer word the first 48 bytes are seen. Byte b has the id b + 1, so that 0 is where there is no word at all.
"""
from collections.abc import Sequence

import numpy as np

LONGEST = 50  # ids of a word
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(257, 262)
IDS = 261  # that have a vector; 0 has none


def spelled(words: Sequence[str], longest: int = LONGEST) -> np.ndarray:
  """Spells words [N] -> ids of characters [N, longest] int32. Half of a pair of UTF-16 is left out."""
  kept = [word.encode('utf-8', 'ignore')[:longest - 2] for word in words]
  sizes = np.array([len(word) for word in kept], np.int64)
  ids = np.full((len(kept), longest), PADDING, np.int32)
  column = np.arange(longest)
  ids[:, 0] = WORD_BEGIN
  ids[(column >= 1) & (column <= sizes[:, None])] = np.frombuffer(b''.join(kept), np.uint8).astype(np.int32) + 1
  ids[np.arange(len(kept)), sizes + 1] = WORD_END
  return ids


def mark(sign: int, longest: int = LONGEST) -> np.ndarray:
  """Spells the word that begins or ends a sentence [longest]: `sign` alone, SENTENCE_BEGIN or SENTENCE_END."""
  ids = np.full(longest, PADDING, np.int32)
  ids[:3] = WORD_BEGIN, sign, WORD_END
  return ids
