"""CRC-32 checksums, which detect files that were damaged after they were written.

A file of which parts are read has one checksum per block of `BLOCK_BYTES` bytes, so that reading a
part verifies only the blocks that it touches. A file that is read whole has one checksum. A JSON
file has its own as its last entry, over the text before it (`seal_json`).
"""
from collections.abc import Sequence
import json
import re
from typing import Any
import zlib

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import UserError

BLOCK_BYTES = 1 << 12  # a page, which a disk reads at once anyway


def crc(*parts: bytes | memoryview, start: int = 0) -> int:
  """Return the CRC-32 of the concatenated parts, after bytes whose CRC-32 is `start`."""
  for part in parts:
    start = zlib.crc32(part, start)
  return start


def block_checksums(content: bytes | memoryview, numbers: Sequence[int] | None = None
                    ) -> np.ndarray:
  """Compute the checksums of the blocks with these numbers (None: all) of a file -> uint32."""
  if numbers is None:
    numbers = range(-(-len(content) // BLOCK_BYTES))
  blocks = (content[number * BLOCK_BYTES:(number + 1) * BLOCK_BYTES] for number in numbers)
  return np.array([zlib.crc32(block) for block in blocks], '<u4')


def seal_json(value: dict[str, Any], one_line: bool = False) -> str:
  """Serialize an object to JSON, with the checksum of the text before it as the last entry."""
  body = json.dumps(value, indent=None if one_line else 1, ensure_ascii=False)[:-1].rstrip('\n')
  seal = f'"crc32": "{crc(body.encode()):08x}"'
  return f'{body}, {seal}}}\n' if one_line else f'{body},\n {seal}\n}}\n'


def unseal_json(text: str, where: epath.PathLike, error: type[UserError]) -> dict[str, Any]:
  """Parse JSON text of `seal_json`, and verify its checksum.

  Args:
    text: content of the file.
    where: its path, for messages.
    error: class of the error to raise for damage.
  """
  value = storage.parse_json(text, where, dict, error)
  match = re.fullmatch(r'(.*),\s+"crc32": "([0-9a-f]{8})"\n?}\n', text, re.DOTALL)
  if not match or int(match[2], 16) != crc(match[1].encode()):
    raise error(f'{where} is damaged: its checksum is not that of its text')
  del value['crc32']
  return value
