"""Features that a task makes of examples: ragged rows of token ids."""
from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any

import numpy as np

from plm_jax.storage.digests import start_digest


def row_offsets(lengths: Iterable[int]) -> np.ndarray:
  """Return the start of each of N rows in a flat array, and the end of the last [N + 1]."""
  return np.cumsum([0] + list(lengths))


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Ragged array: rows of different lengths; row n is flat[offsets[n]:offsets[n + 1]].

  Each entry of a row is a number or an array.
  """

  flat: np.ndarray
  offsets: np.ndarray

  @classmethod
  def concat(cls, rows: Iterable[Any], dtype: Any = np.int32) -> 'Ragged':
    """Concatenate rows."""
    parts = [np.asarray(row, dtype) for row in rows]
    flat = np.concatenate([np.zeros(0, dtype)] + parts)
    return cls(flat, row_offsets(len(part) for part in parts))

  def __len__(self) -> int:
    return len(self.offsets) - 1

  def __getitem__(self, number: int) -> np.ndarray:
    return self.flat[self.offsets[number]:self.offsets[number + 1]]

  @property
  def lengths(self) -> np.ndarray:
    """Length of each row [N]."""
    return np.diff(self.offsets)


@dataclasses.dataclass(frozen=True)
class Features:
  """Features of examples: N rows of token ids, one or more per example, in example order."""

  tokens: Ragged
  """ids, with special tokens"""
  aligned: Mapping[str, Ragged]
  """arrays as long as the tokens: `types`, `tags`, ..."""
  values: Mapping[str, np.ndarray]
  """arrays of one value per row [N]: `stand`, the summary position of the row; `label`; `start` and
  `end`; ..."""
  example: np.ndarray
  """index of each row's example [N] int32"""
  prediction_arrays: Mapping[str, Ragged] = dataclasses.field(default_factory=dict)
  """arrays as long as the tokens that only `Task.predict` reads"""
  group: int = 1
  """consecutive rows that belong together, such as the choices of a question"""
  clipped: int = 0
  """number of examples that were truncated"""
  lost: int = 0
  """number of tokens that were truncated"""
  skipped: tuple[str, ...] = ()
  """why examples were skipped, one line each"""

  def __len__(self) -> int:
    return len(self.tokens)

  @property
  def lost_share(self) -> float:
    """Share of the tokens that were truncated."""
    return self.lost / max(1, self.lost + len(self.tokens.flat))

  @property
  def digest(self) -> str:
    """SHA-256 hex digest of everything that training reads."""
    arrays = {'tokens': self.tokens.flat, 'offsets': self.tokens.offsets, 'example': self.example}
    arrays |= self.values
    arrays |= {name: rows.flat for name, rows in self.aligned.items()}
    digest = start_digest()
    for name, array in sorted(arrays.items()):
      array = np.ascontiguousarray(array)
      digest.update(f'{name} {array.dtype} {array.shape}\n'.encode())
      digest.update(array.tobytes())
    return digest.hexdigest()
