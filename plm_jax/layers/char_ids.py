"""Character ids of words, as ELMo reads them (allenai/bilm-tf, bilm/data.py,
UnicodeCharsVocabulary).

A word is the bytes of its UTF-8 between a begin mark and an end mark, padded to 50 ids; of a longer
word the first 48 bytes are kept. Byte b has the id b + 1; the id 0 means that there is no word.
"""
from collections.abc import Sequence

import numpy as np

MAX_CHARACTERS = 50  # ids per word
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(257, 262)
NUM_CHARACTER_IDS = 261  # ids that have a vector; 0 has none


def encode_words(words: Sequence[str], longest: int = MAX_CHARACTERS) -> np.ndarray:
  """Encode words as character ids, [words, longest] int32. Lone UTF-16 surrogates are dropped."""
  encoded = [word.encode('utf-8', 'ignore')[:longest - 2] for word in words]
  sizes = np.array([len(word) for word in encoded], np.int64)
  ids = np.full((len(encoded), longest), PADDING, np.int32)
  column = np.arange(longest)
  ids[:, 0] = WORD_BEGIN
  content = np.frombuffer(b''.join(encoded), np.uint8).astype(np.int32) + 1
  ids[(column >= 1) & (column <= sizes[:, None])] = content
  ids[np.arange(len(encoded)), sizes + 1] = WORD_END
  return ids


def encode_boundary(mark: int, longest: int = MAX_CHARACTERS) -> np.ndarray:
  """Encode the word that begins or ends a sentence, [longest] int32.

  Args:
    mark: SENTENCE_BEGIN or SENTENCE_END, the only character of the word.
    longest: ids per word.
  """
  ids = np.full(longest, PADDING, np.int32)
  ids[:3] = WORD_BEGIN, mark, WORD_END
  return ids
