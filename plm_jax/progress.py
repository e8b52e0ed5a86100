"""Progress of long work on standard error: a bar in a terminal, lines in a log.

Short work shows nothing.
"""
from collections.abc import Iterator
import contextlib
import contextvars
import sys
import time

from tqdm import tqdm

from plm_jax import errors

DELAY = 3.0
"""Seconds of work before a bar appears in a terminal."""
INTERVAL = 15.0
"""Seconds between lines where standard error is not a terminal."""

COMMAND: contextvars.ContextVar[str] = contextvars.ContextVar('command', default='')
"""Name of the running command; '': a library call, which writes no lines into its caller's log."""
CURRENT: contextvars.ContextVar['Progress | None'] = contextvars.ContextVar('current', default=None)


def is_terminal() -> bool:
  """Tell whether standard error is a terminal; a program without a console has no such stream."""
  return sys.stderr is not None and sys.stderr.isatty()


class Progress:
  """Counter of units of work; also detects an interrupt that a callback has swallowed."""

  def __init__(self, unit: str, total: int | None = None, quiet: bool = False):
    """Begin to count.

    Args:
      unit: plural noun.
      total: number of units; None: not known.
      quiet: count, and show nothing.
    """
    self.unit, self.total, self.done = unit, total, 0
    self.start_time = self.last_line_time = time.monotonic()
    self.prints_lines = bool(COMMAND.get()) and not quiet and not is_terminal()
    self.bar = tqdm(total=total, unit=f' {unit}', delay=DELAY, disable=quiet or not is_terminal(),
                    leave=False, dynamic_ncols=True, desc=COMMAND.get() or None)

  def update(self, count: int) -> None:
    """Add finished units.

    Raises:
      KeyboardInterrupt: a signal has interrupted the command.
    """
    errors.check_interrupted()
    self.done += count
    self.bar.update(count)
    now = time.monotonic()
    if self.prints_lines and now - self.last_line_time >= INTERVAL:
      self.last_line_time = now
      print(self.format_line(now - self.start_time), file=sys.stderr, flush=True)

  def format_line(self, seconds: float) -> str:
    """Format the progress after so many seconds as one line."""
    rate = self.done / max(seconds, 1e-9)
    speed = f'{rate:,.0f} per second' if rate >= 10 else f'{rate:.2g} per second'
    if not self.total:
      return f'{COMMAND.get()}: {self.done:,} {self.unit}, {speed}'
    left = tqdm.format_interval(round(max(0, self.total - self.done) / max(rate, 1e-9)))
    return (f'{COMMAND.get()}: {self.done:,} of {self.total:,} {self.unit} '
            f'({self.done / self.total:.0%}), {speed}, {left} left')


@contextlib.contextmanager
def track(unit: str, total: int | None = None, quiet: bool = False) -> Iterator[Progress]:
  """Track work of several function calls: their `progress_bar`s of the same unit add to this
  one."""
  progress = Progress(unit, total, quiet)
  token = CURRENT.set(progress)
  try:
    yield progress
  finally:
    CURRENT.reset(token)
    progress.bar.close()


@contextlib.contextmanager
def progress_bar(unit: str, total: int) -> Iterator[Progress]:
  """Show the progress of one loop, or add to that of the surrounding command (`track`)."""
  current = CURRENT.get()
  if current:
    yield current
    return
  progress = Progress(unit, total)
  try:
    yield progress
  finally:
    progress.bar.close()


@contextlib.contextmanager
def command_scope(name: str) -> Iterator[None]:
  """Set the name of the running command."""
  token = COMMAND.set(name)
  try:
    yield
  finally:
    COMMAND.reset(token)


def format_time(seconds: float) -> str:
  """Format seconds in a suitable unit.

  >>> format_time(90), format_time(7200)
  ('90.0 s', '2.0 hours')
  """
  units = ('years', 31_557_600), ('days', 86_400), ('hours', 3600), ('minutes', 60)
  for unit, size in units:
    if seconds >= 2 * size:
      return f'{seconds / size:,.1f} {unit}'
  return f'{seconds:,.1f} s'
