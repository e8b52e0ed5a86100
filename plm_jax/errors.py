"""What a user can mend is said in one line, without a traceback."""
from collections.abc import Iterator
import contextlib
import contextvars
import os
import sys


class Expected(ValueError):
  """The cause lies outside this code: an option, a file, a machine. The message names it, what was expected and what
  came. Every error of this project that a user can mend is one."""


STOPPED = 75  # exit status of a run that a signal has stopped, after it saved: sysexits.h's EX_TEMPFAIL, try again
OPTIONS: contextvars.ContextVar[str] = contextvars.ContextVar('options', default='--')


def option(name: str) -> str:
  """Names an option of `prepare` as who reads the message would type it: --on-error=skip, or in a run
  --data.prepare.on-error=skip."""
  return OPTIONS.get() + name


@contextlib.contextmanager
def options_under(prefix: str) -> Iterator[None]:
  """Makes messages inside name the options of `prepare` with this prefix, such as '--data.prepare.'."""
  before = OPTIONS.set(prefix)
  try:
    yield
  finally:
    OPTIONS.reset(before)


class ConfigError(Expected):
  """A configuration that cannot work, found before anything is computed or written."""


@contextlib.contextmanager
def shown() -> Iterator[None]:
  """Ends a command with exit status 1 and one message for what a user can mend, and with nothing for what a pipe's
  reader no longer wants."""
  try:
    yield
  except Expected as error:
    sys.exit(f'error: {error}')
  except BrokenPipeError:  # `... | head`: Python would complain again when it closes the stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except KeyboardInterrupt:
    sys.exit('interrupted')
  except OSError as error:
    sys.exit(f'error: {outside(error)}')


def ended(finished: bool) -> None:
  """Ends the command of a run that has not finished with the exit status that says so."""
  if not finished:
    sys.exit(STOPPED)


@contextlib.contextmanager
def understood(where: object, expected: str, error: type[Expected]) -> Iterator[None]:
  """Turns whatever goes wrong inside into an `error` that names `where` and what was `expected` there.

  For what takes apart the contents of a file from elsewhere, of which nothing can be relied on. Libraries written in
  Rust panic with what is no Exception.
  """
  try:
    yield
  except Expected as raised:
    if str(where) in str(raised):
      raise
    raise type(raised)(f'{where}: {raised}') from raised
  except OSError as raised:
    raise error(f'{where} cannot be read: {outside(raised)}') from raised
  except MemoryError as raised:
    raise error(f'{where} takes more memory than there is') from raised
  except BaseException as raised:
    if not isinstance(raised, Exception) and type(raised).__name__ != 'PanicException':
      raise
    reason = f'{type(raised).__name__}: {raised}' if isinstance(raised, LookupError | TypeError) else outside(raised)
    raise error(f'{where} is damaged, or not {expected}: {" ".join(reason.split())[:300]}') from raised


def outside(error: BaseException) -> str:
  """Writes what the operating system, TensorFlow or a bucket's client says on one line."""
  if isinstance(error, OSError) and error.strerror:
    return f'{error.filename}: {error.strerror}' if error.filename else error.strerror
  said = getattr(error, 'message', None) or str(error) or type(error).__name__
  return ' '.join(str(said).split())[:500]
