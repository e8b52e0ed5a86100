"""Safe standard streams: output that cannot be written ends no work that is saved elsewhere.

A service closes the standard streams, `| head` and a closed terminal end their reader, the disk of
a log is full, and not every terminal knows UTF-8. `protect` handles all of these when a command
begins, so no `print` of this project needs to.
"""
import codecs
from collections.abc import Iterator
import contextlib
import errno
import io
import json
import os
import select
import sys
from typing import Any


class StandardFile(io.FileIO):
  """Raw file of standard output or standard error whose failing writes are recorded.

  Args:
    descriptor: 1 or 2.
    strict: whether the first failing write raises an error: the text is the result of the command.
    closed_before: whether the descriptor was closed when the process started.
  """

  def __init__(self, descriptor: int, strict: bool, closed_before: bool):
    super().__init__(descriptor, 'wb', closefd=False)
    self.strict = strict
    self.failure: OSError | None = None
    self.closed_before = closed_before

  def write(self, data: Any) -> int:
    """Write bytes, or drop them where they cannot be written.

    Raises:
      OSError: standard output is strict, and this is its first failure.
    """
    if self.strict and self.failure:
      return len(data)
    try:
      if self.closed_before:
        raise OSError(errno.EBADF, 'it is closed')
      while (written := super().write(data)) is None:  # non-blocking: its reader is slow
        select.select([], [self], [])
      return written
    except OSError as error:
      self.failure = OSError(error.errno, error.strerror, NAME)
    if self.strict:
      raise self.failure
    return len(data)


def escape_characters(error: UnicodeError) -> tuple[str, int]:
  r"""Escape characters that an encoding lacks as JSON does: \u4e2d (error handler of a codec)."""
  if not isinstance(error, UnicodeEncodeError):
    raise error
  return json.dumps(error.object[error.start:error.end])[1:-1], error.end


codecs.register_error('plm_jax.escape', escape_characters)
NAME = 'standard output'
"""file name of the errors that are raised"""
OUTPUT: list[StandardFile] = []
"""standard output, while it is protected"""


@contextlib.contextmanager
def protect(tolerant: bool = False) -> Iterator[None]:
  """Make the standard streams safe for the code inside.

  Closed descriptors are opened on the null device, so that no other file gets their numbers.
  Characters that an encoding lacks are escaped. Text that standard error cannot take is dropped,
  as is that of standard output if the code inside is tolerant. Streams that a caller has replaced
  (a notebook, a test) are left alone.

  Args:
    tolerant: whether the results of the command are in files, so that it continues without
      standard output; False: the first failing write raises OSError.
  """
  if OUTPUT:  # in a command
    strict, OUTPUT[0].strict = OUTPUT[0].strict, OUTPUT[0].strict and not tolerant
    try:
      yield
    finally:
      warn_of_failure(OUTPUT[0])
      OUTPUT[0].strict = strict
    return
  for descriptor in range(3):
    try:
      os.fstat(descriptor)
    except OSError:
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
  before = sys.stdin, sys.stdout, sys.stderr
  if sys.stdin is None:
    sys.stdin = open(os.devnull)  # noqa: SIM115  it stays open
  sys.stdout = open_safely(sys.stdout, 1, not tolerant)
  sys.stderr = open_safely(sys.stderr, 2, False)
  raw = getattr(getattr(sys.stdout, 'buffer', None), 'raw', None)
  if isinstance(raw, StandardFile):
    OUTPUT.append(raw)
  try:
    yield
  finally:
    if OUTPUT:
      warn_of_failure(OUTPUT.pop())
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    sys.stdin, sys.stdout, sys.stderr = before


def warn_of_failure(output: StandardFile) -> None:
  """Print a warning if messages on standard output were dropped, but for those to a closed pipe."""
  if output.strict:
    return
  sys.stdout.flush()
  failure, output.failure = output.failure, None
  if failure and not isinstance(failure, BrokenPipeError) and not output.closed_before:
    print(f'warning: standard output cannot be written: {failure.strerror}', file=sys.stderr)


def open_safely(stream: Any, descriptor: int, strict: bool) -> Any:
  """Return a safe stream in place of a standard stream, or the stream if it is of the caller."""
  if stream is None:
    raw = StandardFile(descriptor, strict, closed_before=True)
    return io.TextIOWrapper(io.BufferedWriter(raw), 'utf-8', 'plm_jax.escape')
  try:
    own = isinstance(stream, io.TextIOWrapper) and stream.fileno() == descriptor
  except (OSError, ValueError):
    own = False
  if not own:
    return stream
  with contextlib.suppress(OSError):
    stream.flush()
  raw = StandardFile(descriptor, strict, closed_before=False)
  return io.TextIOWrapper(
      io.BufferedWriter(raw), stream.encoding, 'plm_jax.escape',
      line_buffering=stream.line_buffering, write_through=stream.write_through)
