"""Labelled examples, and what a task makes of them: rows of numbers of any length."""
from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal['classification', 'regression', 'tagging', 'answers', 'choice', 'embedding']
"""what examples are like"""


class Answer(NamedTuple):
  """An answer that stands in a context."""

  text: str
  start: int
  """character of the context at which it begins; -1: wherever it is found first"""


@dataclasses.dataclass(frozen=True)
class Example:
  """A question, and its answer where that is known."""

  texts: tuple[str, ...]
  """what is read: one text or two; of tagging the words of a sentence; of an answer the question and its context; of a
  choice the context and the question, which may be ''; of embedding texts that belong together, then negatives"""
  label: int | float | tuple[int, ...] | None = None
  """number of the class, or of the choice; of a regression the value; of tagging the class of each word; None: unknown,
  and of an answer always"""
  choices: tuple[str, ...] = ()
  """what is chosen from"""
  answers: tuple[Answer, ...] | None = None
  """answers that are right, each; (): the context has none; None: unknown"""
  where: str = ''
  """'file:line', for messages"""
  key: str = ''
  """what predictions call it"""
  document: int = 0
  """number of the document that a tagged sentence is of"""


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Rows of any length, in one array: row n is flat[offsets[n]:offsets[n + 1]], a number, or an array, an entry."""

  flat: np.ndarray
  offsets: np.ndarray

  @classmethod
  def of(cls, rows: Iterable[Any], dtype: Any = np.int32) -> 'Ragged':
    """Joins rows."""
    parts = [np.asarray(row, dtype) for row in rows]
    return cls(np.concatenate([np.zeros(0, dtype), *parts]), np.cumsum([0, *map(len, parts)]))

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
  """Examples as a model reads them: N rows of tokens, one or more of an example, in the order of the examples."""

  tokens: Ragged
  """ids, special tokens included"""
  aligned: Mapping[str, Ragged]
  """arrays as long as the tokens: `types`, `tags`, ..."""
  values: Mapping[str, np.ndarray]
  """arrays of a number a row [N]: `stand`, the token that stands for the row; `label`; `start` and `end`; ..."""
  example: np.ndarray
  """number of the example that each row is of [N] int32"""
  beside: Mapping[str, Ragged] = dataclasses.field(default_factory=dict)
  """arrays as long as the tokens that only predictions read"""
  group: int = 1
  """rows that are asked together, one behind another: the choices of a question"""
  clipped: int = 0
  """examples that lost tokens for want of room"""
  skipped: tuple[str, ...] = ()
  """why examples were left out, a line each"""

  def __len__(self) -> int:
    return len(self.tokens)
