"""Tell the user once how much of the texts was truncated.

A command prints one line when it ends. A library call warns.
"""
from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses
import sys
import warnings


@dataclasses.dataclass
class Truncation:
  """How many texts were read, and how much of them was truncated."""

  texts: int = 0
  truncated: int = 0
  """number of texts that were truncated"""
  tokens: int = 0
  """tokens of all texts"""
  lost: int = 0
  """tokens that were truncated"""

  def add(self, other: 'Truncation') -> None:
    """Add the numbers of more texts."""
    self.texts += other.texts
    self.truncated += other.truncated
    self.tokens += other.tokens
    self.lost += other.lost

  def __str__(self) -> str:
    return (f'{self.truncated:,} of {self.texts:,} texts were too long and lost their end, '
            f'{self.lost / max(1, self.tokens):.1%} of all tokens')


CURRENT: contextvars.ContextVar[Truncation | None] = contextvars.ContextVar(
    'truncation', default=None)


def report(found: Truncation) -> None:
  """Add to the numbers of the surrounding command, or warn if there is none."""
  current = CURRENT.get()
  if current is not None:
    current.add(found)
  elif found.truncated:
    warnings.warn(str(found), stacklevel=2)


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Report the numbers of several calls as those of one."""
  found = Truncation()
  token = CURRENT.set(found)
  try:
    yield
  finally:
    CURRENT.reset(token)
  report(found)


@contextlib.contextmanager
def collect(prints: bool = True) -> Iterator[None]:
  """Collect the numbers of a command, and print them at its end if texts were truncated."""
  found = Truncation()
  token = CURRENT.set(found)
  try:
    yield
  finally:
    CURRENT.reset(token)
  if prints and found.truncated:
    print(found, file=sys.stderr)
