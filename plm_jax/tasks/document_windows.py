"""Sliding windows over documents that are longer than a row."""
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.validation import short_repr

WindowPooling = Literal['off', 'mean', 'max']
"""how the outputs of the windows of a document are combined; off: a document is truncated"""


def check_windows(windows: WindowPooling, stride: int) -> None:
  """Raise ConfigError for windows and a stride that do not exist."""
  if windows not in get_args(WindowPooling):
    raise ConfigError(f'windows is off, mean or max, got {short_repr(windows)}')
  if stride < 0:
    raise ConfigError(f'stride is 0 or more, got {stride}')


def window_starts(size: int, room: int, stride: int = 0) -> list[int]:
  """Return the first token of each window of a document.

  The last window ends with the document, and may overlap more with the one before it.

  >>> window_starts(10, 4, 3), window_starts(4, 4, 3)
  ([0, 3, 6], [0])

  Args:
    size: tokens of the document.
    room: maximum tokens of a window.
    stride: tokens between the starts of consecutive windows, at most `room`; 0: three quarters of
      `room`.
  """
  step = min(stride, room) or max(1, room * 3 // 4)
  if size <= room:
    return [0]
  return [*range(0, size - room, step), size - room]


def combine_windows(
    outputs: Sequence[np.ndarray], document: np.ndarray, windows: WindowPooling
) -> list[np.ndarray]:
  """Combine the outputs of the windows of each document.

  Args:
    outputs: of each window [N, ...].
    document: index of each window's document [N], ascending from 0, without gaps.
    windows: mean; or max, of each number.

  Returns:
    An array [...] per document.
  """
  if not len(outputs):
    return []
  starts = np.flatnonzero(np.diff(document, prepend=-1))
  stacked = np.stack(outputs).astype(np.float32)
  if windows == 'max':
    return list(np.maximum.reduceat(stacked, starts))
  counts = np.diff(starts, append=len(stacked))
  return list(np.add.reduceat(stacked, starts) / counts.reshape(-1, *[1] * (stacked.ndim - 1)))
