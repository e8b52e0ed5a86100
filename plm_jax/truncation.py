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
    for name, number in vars(other).items():
      setattr(self, name, getattr(self, name) + number)

  def __str__(self) -> str:
    return (f'{self.truncated:,} of {self.texts:,} texts were too long and were truncated, '
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
def count() -> Iterator[Truncation]:
  """Count what is reported inside, instead of reporting it."""
  found = Truncation()
  token = CURRENT.set(found)
  try:
    yield found
  finally:
    CURRENT.reset(token)


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Report several calls as one."""
  with count() as found:
    yield
  report(found)


@contextlib.contextmanager
def print_at_end() -> Iterator[None]:
  """Print one line at the end of a command if texts were truncated."""
  with count() as found:
    yield
  if found.truncated:
    print(found, file=sys.stderr)
