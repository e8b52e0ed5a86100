"""Checksums: what tells a file as it was written from one that was damaged since. CRC-32, which zlib has.

A file of which parts are read has one checksum for every `BLOCK` bytes, so that a part is verified by what it lies in
and by nothing else; a file that is read whole has one; a JSON file carries its own, over its text up to there (`seal`).
"""
from collections.abc import Sequence
import json
import re
from typing import Any
import zlib

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import Expected

BLOCK = 1 << 12  # bytes: a page, which a disk reads at once anyway


def crc(*parts: bytes | memoryview) -> int:
  """Returns the CRC-32 of the parts, one behind another."""
  value = 0
  for part in parts:
    value = zlib.crc32(part, value)
  return value


def of_blocks(content: bytes | memoryview, numbers: Sequence[int] | None = None) -> np.ndarray:
  """Checksums of the blocks with these numbers, by default of all, of a file's content -> uint32."""
  numbers = range(-(-len(content) // BLOCK)) if numbers is None else numbers
  return np.array([zlib.crc32(content[number * BLOCK : (number + 1) * BLOCK]) for number in numbers], '<u4')


def seal(value: dict[str, Any]) -> str:
  """Writes the JSON of an object, with the checksum of everything in front of it as its last entry."""
  body = json.dumps(value, indent=1, ensure_ascii=False).removesuffix('\n}')
  return f'{body},\n "crc32": "{crc(body.encode()):08x}"\n}}\n'


def unseal(text: str, where: epath.PathLike, error: type[Expected], sealed: bool = True) -> dict[str, Any]:
  """Reads what `seal` has sealed. Raises `error`, naming `where`, for damage. sealed: False where it may be from before
  there were checksums."""
  value = storage.parse_json(text, where, dict, error)
  if sealed or 'crc32' in value:
    match = re.fullmatch(r'(.*),\n "crc32": "([0-9a-f]{8})"\n}\n', text, re.DOTALL)
    if not match or int(match[2], 16) != crc(match[1].encode()):
      raise error(f'{where} is damaged: its checksum is not that of its text')
    del value['crc32']
  return value
