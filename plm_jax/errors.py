"""Errors that users can fix: printed as one line, without a traceback; and interruption by
signals."""
from collections.abc import Callable, Container, Iterator
import contextlib
import logging
import os
import re
import signal
import sys
import traceback
from typing import Any, NamedTuple, NoReturn


class UserError(ValueError):
  """An error that the user can fix: its cause is an option, a file or the machine.

  The message names it, what was expected and what was given. Every error of this project that a
  user can fix is a UserError; all others show their traceback.
  """

  @property
  def marked(self) -> str:
    """The message with marked fields (`name_field`)."""
    return str(self.args[0]) if self.args else ''

  def __str__(self) -> str:
    return write_plain(self.marked)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({str(self)!r})'


EXIT_USAGE = 2
"""exit status for an unknown command or option, as argparse has it"""
EXIT_STOPPED = 75
"""exit status of a command that was stopped after it saved and that resumes if it is run again:
EX_TEMPFAIL of sysexits.h"""
STOP_SIGNALS = 'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2', 'SIGXCPU'
"""signals that announce the end of a process: Ctrl-C; a scheduler or preemption; a closed terminal;
schedulers before a time limit (Slurm, LSF, Grid Engine); a limit of CPU time. Training saves and
stops (`training.interrupts`), other commands are interrupted (`handle_signals`)."""


# Marks around the names of fields, and around advice, in messages. They are noncharacters, which
# Unicode keeps free for uses such as this one (section 23.7): text does not contain them.
FIELD = re.compile('\ufdd0([^\ufdd1]*)\ufdd1')
ADVICE = re.compile('\ufdd2([^\ufdd2-\ufdd4]*)\ufdd3([^\ufdd2-\ufdd4]*)\ufdd4')


def name_field(path: str) -> str:
  """Name a field of a configuration, or an argument, in a message.

  `UserError`, `warn` and `print_line` show the name alone. The command line shows its option.

  Args:
    path: the field, such as 'optim.peak'. One that several configurations have at different places,
      such as 'on_error', has no path.
  """
  return f'\ufdd0{path}\ufdd1'


def add_advice(text: str, otherwise: str = '') -> str:
  """Mark a part of a message that a command without the fields in it leaves out.

  Args:
    text: the part, with names of fields.
    otherwise: replaces it.
  """
  return f'\ufdd2{text}\ufdd3{otherwise}\ufdd4'


def named_fields(text: str) -> list[str]:
  """Return the fields that a message names."""
  return FIELD.findall(text)


def spell_fields(
    text: str, spell: Callable[[str], str], offers: Callable[[str], Any] = bool) -> str:
  """Write the fields in a message as its reader types them.

  >>> spell_fields(f'give {name_field("optim.peak")}=1', lambda path: f'--{path}')
  'give --optim.peak=1'

  Args:
    text: the message.
    spell: field -> how it is typed.
    offers: whether the reader can set a field.
  """
  def choose(match):
    return match[1] if all(map(offers, named_fields(match[1]))) else match[2]
  for _ in range(text.count('\ufdd2')):  # advice may be in the place of other advice
    text = ADVICE.sub(choose, text)
  return FIELD.sub(lambda match: spell(match[1]), text)


def write_plain(text: str) -> str:
  """Write the fields in a message by their names, for callers of Python functions."""
  return spell_fields(text, str)


class Caller(NamedTuple):
  """Who starts a run."""

  given: Container[str] = ()
  """fields that are set, such as 'optim.peak'"""
  spell: Callable[[str], str] = write_plain
  """writes the fields in the text of a report"""


class LineHandler(logging.Handler):
  """Prints messages on standard output, or on the file of the record."""

  def emit(self, record: logging.LogRecord) -> None:
    print(self.format(record), file=getattr(record, 'file', None), flush=True)


LOG = logging.getLogger('plm_jax')
LINES = logging.getLogger('plm_jax.lines')
LINES.addHandler(LineHandler())
LINES.setLevel(logging.INFO)
LINES.propagate = False


def warn(text: str) -> None:
  """Log a warning that may name fields."""
  LOG.warning('%s', write_plain(text), extra={'marked': text})


def print_line(text: str, file: Any = None) -> None:
  """Print a line that may name fields. file: None: standard output."""
  LINES.info('%s', write_plain(text), extra={'marked': text, 'file': file})


@contextlib.contextmanager
def spell_messages(spell: Callable[[str], str]) -> Iterator[None]:
  """Write errors, warnings and printed lines of the code inside for their reader.

  Args:
    spell: message with marked fields -> message.
  """
  def rename(record):
    if text := getattr(record, 'marked', ''):
      record.msg, record.args = spell(text), ()
    return True

  handlers = [*LOG.handlers, *LINES.handlers]
  for handler in handlers:
    handler.addFilter(rename)
  try:
    yield
  except UserError as error:
    error.args = (spell(error.marked),)
    raise
  finally:
    for handler in handlers:
      handler.removeFilter(rename)


def show_warnings() -> None:
  """Print what the project logs as 'warning: ...' on standard error, without logger names."""
  if not LOG.handlers:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter('warning: %(message)s'))
    LOG.addHandler(handler)
    LOG.propagate = False


class ConfigError(UserError):
  """A configuration that cannot work, found before anything is computed or written."""


class NotFiniteError(UserError):
  """Numbers of a model that are not finite, from which nothing can be predicted."""


def check_finite(values: Any, what: str = 'outputs of the model') -> Any:
  """Check that all numbers are finite, where the outputs of a model leave the device.

  Args:
    values: a number or an array on the host.
    what: the numbers, in the plural.

  Returns:
    The values.

  Raises:
    NotFiniteError: some are NaN or infinite.
  """
  import numpy as np
  if not np.isfinite(values).all():
    raise NotFiniteError(
        f'{what} are not finite (NaN or infinite): the parameters in its files are damaged, or '
        'numbers overflow in a dtype such as float16. Use another checkpoint, or convert it again')
  return values


class UsageError(ConfigError):
  """A command or an option that does not exist. The command ends with `EXIT_USAGE`."""


# Signals that have interrupted the command. They are recorded, because an exception that is raised
# inside a callback (of JAX's caches, or of a finalizer) is printed and dropped.
SIGNALS: list[int] = []
# Checkpoints, journals and incomplete outputs from which the same command resumes.
SAVED: list[str] = []


def interrupt(number: int, frame: Any) -> None:
  """Interrupt the command by an exception, so that unfinished files are removed (signal
  handler)."""
  del frame
  SIGNALS.append(number)
  raise KeyboardInterrupt


def check_interrupted() -> None:
  """Raise KeyboardInterrupt after a signal whose exception was dropped; for loops of long work."""
  if SIGNALS:
    raise KeyboardInterrupt


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
  """Make the signals of STOP_SIGNALS call `interrupt`, unless the parent process ignores them."""
  before: dict[int, Any] = {}
  hook = sys.unraisablehook
  with contextlib.suppress(ValueError):  # only the main thread may set handlers
    for name in STOP_SIGNALS:
      number = getattr(signal, name, None)  # Windows has only some
      default = signal.SIG_DFL, signal.default_int_handler
      if number is not None and signal.getsignal(number) in default:
        before[number] = signal.signal(number, interrupt)

  def hide_interrupt(unraisable: Any) -> None:
    # In a finalizer, for example of TensorFlow: the command ends at the next `check_interrupted`.
    if not SIGNALS or not issubclass(unraisable.exc_type, KeyboardInterrupt):
      hook(unraisable)

  if before:
    SIGNALS.clear()
    SAVED.clear()
    sys.unraisablehook = hide_interrupt
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
    if before:
      SIGNALS.clear()
      sys.unraisablehook = hook


def exit_interrupted() -> None:
  """Exit with one line.

  The status is EXIT_STOPPED after a signal if the command has saved work, otherwise what shells
  give for the signal: 130 for Ctrl-C.
  """
  number = SIGNALS[0] if SIGNALS else signal.SIGINT
  stopped = f'stopped by {signal.Signals(number).name}'
  reason = 'interrupted' if number == signal.SIGINT else stopped
  if SIGNALS and SAVED:
    print(f'{reason}: the same command resumes', file=sys.stderr)
    sys.exit(EXIT_STOPPED)
  print(reason, file=sys.stderr)
  sys.exit(128 + number)


TRACEBACK = 'PLM_JAX_TRACEBACK'
"""Environment variable: at 1, commands print the traceback of user errors too."""


def exit_with_message(error: BaseException, message: str) -> NoReturn:
  """End the command with one line; the traceback comes first if TRACEBACK is set.

  The exit status is 1, or `EXIT_USAGE` for an unknown command or option.
  """
  if os.environ.get(TRACEBACK, '0') not in ('', '0'):
    traceback.print_exception(error)
  if isinstance(error, UsageError):
    print(f'error: {message}', file=sys.stderr, flush=True)
    sys.exit(EXIT_USAGE)
  sys.exit(f'error: {message}')


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
  """Exit a command with status 1 and one line for an error that a user can fix.

  Other errors show their traceback. A closed pipe as standard output ends the command silently.
  After a signal the status is that of `exit_interrupted`, whatever the signal led to.
  """
  with handle_signals():
    try:
      yield
      if sys.stdout:
        sys.stdout.flush()
    except BaseException as error:
      if isinstance(error, SystemExit) and error.code:
        raise
      if SIGNALS or isinstance(error, KeyboardInterrupt):
        exit_interrupted()
      if isinstance(error, BrokenPipeError) and error.filename == 'standard output':
        sys.exit(1)  # `... | head`
      if isinstance(error, UserError):
        exit_with_message(error, str(error))
      if isinstance(error, OSError):
        exit_with_message(error, describe_error(error))
      raise
    if SIGNALS:
      exit_interrupted()


def exit_unless_finished(finished: bool) -> None:
  """Exit with the status of a stopped run, unless the run has finished."""
  if not finished:
    sys.exit(EXIT_STOPPED)


@contextlib.contextmanager
def parse_errors_as(where: object, expected: str, error: type[UserError]) -> Iterator[None]:
  """Turn the errors of parsing a damaged file into an `error` that names it and what was expected.

  For code that does nothing but parse a file from elsewhere, whose contents can be anything: every
  exception is the file's. Libraries written in Rust panic with exceptions that are not derived from
  Exception.

  Args:
    where: the file.
    expected: what it should be.
    error: the class of the error.
  """
  try:
    yield
  except UserError as raised:
    if pointer := describe_lfs_pointer(where):
      raise type(raised)(pointer) from raised
    if str(where) in str(raised):
      raise
    raise type(raised)(f'{where}: {raised.marked}') from raised
  except OSError as raised:
    raise error(f'{where} cannot be read: {describe_error(raised)}') from raised
  except MemoryError as raised:
    raise error(f'{where} takes more memory than there is') from raised
  except BaseException as raised:
    if not isinstance(raised, Exception) and type(raised).__name__ != 'PanicException':
      raise
    names_type = isinstance(raised, LookupError | TypeError)
    reason = f'{type(raised).__name__}: {raised}' if names_type else describe_error(raised)
    reason = ' '.join(reason.split())[:300]
    if pointer := describe_lfs_pointer(where):
      raise error(pointer) from raised
    raise error(f'{where} is damaged, or not {expected}: {reason}') from raised


def describe_lfs_pointer(path: object) -> str:
  """Describe a local file that Git LFS has not downloaded; '' for any other."""
  with contextlib.suppress(OSError, ValueError), open(str(path), 'rb') as file:
    if file.read(len(LFS_MARK)) == LFS_MARK:
      return f'{path} is a pointer of Git LFS: `git lfs pull` downloads the file itself'
  return ''


LFS_MARK = b'version https://git-lfs.github.com/spec/'


def describe_error(error: BaseException) -> str:
  """Describe an error of the operating system, TensorFlow or a bucket's client in one line."""
  if isinstance(error, OSError) and error.strerror:
    return f'{error.filename}: {error.strerror}' if error.filename else error.strerror
  message = getattr(error, 'message', None) or str(error) or type(error).__name__
  return ' '.join(str(message).split())[:500]
