"""Protobuf messages of SentencePiece models, and validation of their precompiled character maps.

A character map is a trie in a double array (darts-clone) and the texts that it leads to. The
library goes where a unit points without checking the array's size, so a damaged map ends the
process, or reads other memory.
"""
import functools
import importlib
import os
import threading
from typing import Any

import numpy as np

from plm_jax.tokenizers.contract import TokenizerError

PROTOBUF_LOCK = threading.Lock()


@functools.cache
def load_protobuf() -> Any:
  """Import the protobuf messages of SentencePiece's files on first use: they register themselves.

  SentencePiece 0.2.3 has them as protobuf 7 made them, and Beam needs protobuf 6, which refuses
  newer messages. But they only describe fields, which any protobuf reads. The switch is an
  environment variable of the whole process, so one thread sets it at a time.
  """
  switch = 'TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK'
  with PROTOBUF_LOCK:
    before = os.environ.get(switch)
    os.environ[switch] = 'true'
    try:
      return importlib.import_module('sentencepiece.sentencepiece_model_pb2')
    finally:
      os.environ.pop(switch)
      if before is not None:
        os.environ[switch] = before


def check_charsmap(charsmap: bytes) -> None:
  """Raise TokenizerError for a damaged map from characters to normalized characters.

  Args:
    charsmap: uint32 size of the trie in bytes, the trie as uint32 units, texts that each end in a
      zero byte.
  """
  size = int.from_bytes(charsmap[:4], 'little')
  texts = charsmap[4 + size:]
  if size % 1024 or not 0 < size < len(charsmap) - 4 or texts[-1:] != b'\0':
    raise TokenizerError('not a SentencePiece model: its map of characters is damaged')
  units = np.frombuffer(charsmap, np.uint32, size // 4, 4).astype(np.int64)
  leaf = units >> 31 == 1
  # The children of a unit are at its position XOR its offset XOR a byte: in one block of 256 units.
  offset = (units >> 10) << ((units & 1 << 9) >> 6)
  block = (np.arange(len(units)) ^ offset) >> 8
  if np.any(block[~leaf] >= len(units) >> 8) or np.any(units[leaf] & 0x7fffffff >= len(texts)):
    raise TokenizerError('not a SentencePiece model: its map of characters is damaged')
