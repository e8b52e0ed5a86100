"""Digests that identify content: of records, tokenizers, parameters and settings, and in the cache.

They are SHA-256 in hexadecimal; `hash64` is a hash for tables of many texts, `mix_bits`
one for numbers.
"""
import hashlib
import json
import os
from typing import Any, Literal

import numpy as np

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, with irregular bits: 2^64 over the golden ratio


def start_digest() -> Any:
  """Begin the digest of content that comes in parts, with the methods `update` and `hexdigest`."""
  return hashlib.sha256()


def compute_digest(*parts: str | bytes) -> str:
  """Compute the digest of the concatenated parts; texts count in UTF-8."""
  found = start_digest()
  for part in parts:
    found.update(part.encode() if isinstance(part, str) else part)
  return found.hexdigest()


def digest_json(value: Any) -> str:
  """Compute the digest of JSON values, whatever their order; other values count by their repr."""
  return compute_digest(json.dumps(value, sort_keys=True, default=repr))


def digest_file(path: str | os.PathLike) -> str:
  """Compute the digest of a file on a disk."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def hash64(content: bytes, byteorder: Literal['little', 'big'] = 'little') -> int:
  """Compute a 64-bit hash."""
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), byteorder)


def mix_bits(numbers: np.ndarray) -> np.ndarray:
  """Spread each bit of 64-bit numbers over all bits, one to one.

  The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
  """
  numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return numbers ^ (numbers >> np.uint64(31))


def start_hub_digest(checksum: str, size: int) -> Any:
  """Begin the hash of a file of the Hugging Face hub, to be compared with its checksum.

  Args:
    checksum: by which the hub knows the file: 40 digits of git's SHA-1, or 64 of SHA-256.
    size: of the file in bytes, which is part of git's hash.
  """
  return hashlib.sha1(b'blob %d\0' % size) if len(checksum) == 40 else hashlib.sha256()
