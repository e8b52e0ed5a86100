"""A SentencePiece model's map of characters to normalised ones, checked before the library follows it.

The map is a trie in a double array (darts-clone) and the texts that it leads to. The library goes where a unit points
without a look at the size of the array, so a damaged one ends the process, or reads what lies behind it.
"""
from typing import Any

import numpy as np

from plm_jax.tokenizers.contract import TokenizerError


def check_maps(proto: Any) -> None:
  """Raises TokenizerError where a map of characters in a SentencePiece ModelProto is damaged."""
  for spec in (proto.normalizer_spec, proto.denormalizer_spec):
    if spec.precompiled_charsmap:
      check(spec.precompiled_charsmap)


def check(charsmap: bytes) -> None:
  """Raises TokenizerError for a map that leads out of itself.

  charsmap: uint32 size of the trie in bytes, the trie as uint32 units, texts that end in a zero byte each.
  """
  size = int.from_bytes(charsmap[:4], 'little')
  texts = charsmap[4 + size:]
  if size % 1024 or not 0 < size < len(charsmap) - 4 or texts[-1:] != b'\0':
    raise TokenizerError('not a SentencePiece model: its map of characters is damaged')
  units = np.frombuffer(charsmap, np.uint32, size // 4, 4).astype(np.int64)
  leaf = units >> 31 == 1
  # What follows a unit lies at its place XOR its offset XOR a byte: in one block of 256 units.
  offset = (units >> 10) << ((units & 1 << 9) >> 6)
  block = (np.arange(len(units)) ^ offset) >> 8
  if np.any(block[~leaf] >= len(units) >> 8) or np.any(units[leaf] & 0x7fffffff >= len(texts)):
    raise TokenizerError('not a SentencePiece model: its map of characters is damaged')
