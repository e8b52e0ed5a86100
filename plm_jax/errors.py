"""Errors that users can fix: printed as one line, without a traceback; and interruption by
signals."""
from collections.abc import Container, Iterator
import contextlib
import contextvars
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


EXIT_USAGE = 2
"""exit status for an unknown command or option, as argparse has it"""
EXIT_STOPPED = 75
"""exit status of a command that was stopped after it saved and that resumes if it is run again:
EX_TEMPFAIL of sysexits.h"""
STOP_SIGNALS = 'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2', 'SIGXCPU'
"""signals that announce the end of a process: Ctrl-C; a scheduler or preemption; a closed terminal;
schedulers before a time limit (Slurm, LSF, Grid Engine); a limit of CPU time. Training saves and
stops (`training.interrupts`), other commands are interrupted (`handle_signals`)."""


class OfferedOptions(NamedTuple):
  """The options that the reader of a message can set."""

  paths: Container[str] | None = None
  """Fields that the running command or function has, such as 'data.on_error'; None: any."""
  python: bool = True
  """A Python function was called, and options are its arguments."""
  given: Container[str] = ()
  """Fields that the reader has set."""


OFFERED_OPTIONS: contextvars.ContextVar[OfferedOptions] = contextvars.ContextVar(
    'options', default=OfferedOptions())  # noqa: B039  immutable
# Sections of a configuration with options for reading text and rows.
OPTION_SECTIONS = '', 'data.', 'data.prepare.'


def format_option(setting: str) -> str:
  """Format an option for reading text or rows as the reader of the message would type it.

  >>> with option_scope({'data.on_error'}):
  ...   format_option('on-error=skip'), format_option('text-field=NAME')
  ('--data.on-error=skip', '')
  >>> format_option('on-error=skip'), format_option('coverage=1')
  ("on_error='skip'", 'coverage=1')
  >>> format_option('strip-accents=False')
  'strip_accents=False'

  Args:
    setting: 'on-error=skip', or a name alone

  Returns:
    The option of the running command, or the argument of the Python function; '' where it has none.
  """
  offered = OFFERED_OPTIONS.get()
  name, equals, value = setting.partition('=')
  field, path = name.replace('-', '_'), ''
  for section in OPTION_SECTIONS:
    if offered.paths is None or section + field in offered.paths:
      path = section + field
      break
  if not path:
    return ''
  if not offered.python:
    return f'--{path.replace("_", "-")}{equals}{value}'
  if not equals:
    return path
  outer, *inner = path.split('.')
  literal = repr(value)
  if value in ('True', 'False') or value.isdigit():
    literal = value
  for name in reversed(inner):
    literal = f'{{{name!r}: {literal}}}'
  return f'{outer}={literal}'


def is_given(field: str) -> bool:
  """Tell whether the reader of a message has set a field, such as 'optim.peak'.

  >>> with option_scope({'optim.peak'}, given={'optim.peak', 'task'}):
  ...   is_given('optim.peak'), is_given('task')
  (True, False)
  """
  offered = OFFERED_OPTIONS.get()
  return field in offered.given and (offered.paths is None or field in offered.paths)


def vocab_option() -> str:
  """Return the option for the vocabulary size: --vocab of `prepare`, --model.vocab of a run."""
  offered = OFFERED_OPTIONS.get()
  path = 'model.vocab'
  if offered.paths is None or 'vocab' in offered.paths:
    path = 'vocab'
  if offered.python:
    return path
  return f'--{path}'


@contextlib.contextmanager
def option_scope(
    paths: Container[str] | None, python: bool = False, given: Container[str] = ()
) -> Iterator[None]:
  """Make messages inside name the options of a command, or the arguments of a function.

  Inside a command, Python functions change nothing: their caller is the command.

  Args:
    paths: fields that the command or function has; None: any.
    python: a Python function was called.
    given: fields that the reader has set.
  """
  outer = OFFERED_OPTIONS.get()
  options = OfferedOptions(paths, python, given)
  if python and not outer.python:  # inside a command
    options = outer
  token = OFFERED_OPTIONS.set(options)
  try:
    yield
  finally:
    OFFERED_OPTIONS.reset(token)


def show_warnings() -> None:
  """Print what the project logs as 'warning: ...' on standard error, without logger names."""
  logger = logging.getLogger('plm_jax')
  if not logger.handlers:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter('warning: %(message)s'))
    logger.addHandler(handler)
    logger.propagate = False


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
  reason = 'interrupted'
  if number != signal.SIGINT:
    reason = f'stopped by {signal.Signals(number).name}'
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

  For code that parses a file from elsewhere, whose contents can be anything. A bug of this project
  (`is_bug`) passes through with its traceback. Libraries written in Rust panic with exceptions that
  are not derived from Exception.

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
    raise type(raised)(f'{where}: {raised}') from raised
  except OSError as raised:
    raise error(f'{where} cannot be read: {describe_error(raised)}') from raised
  except MemoryError as raised:
    raise error(f'{where} takes more memory than there is') from raised
  except BaseException as raised:
    if not isinstance(raised, Exception) and type(raised).__name__ != 'PanicException':
      raise
    if is_bug(raised):
      raise
    reason = describe_error(raised)
    if isinstance(raised, LookupError | TypeError):
      reason = f'{type(raised).__name__}: {raised}'
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


def is_bug(error: BaseException) -> bool:
  """Tell whether an error is a mistake in the code of this project, whatever a file contains.

  That is an undefined name, a wrong signature, or a member that no type of data has, in a line of
  this project. A file with a number in place of a list, for example, also raises TypeError and
  AttributeError: these are no bugs.
  """
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  if not frame.f_code.co_filename.startswith(os.path.dirname(__file__)):
    return False
  if isinstance(error, AttributeError):
    kinds = (dict, list, tuple, str, bytes, int, float)
    is_data = error.obj is None or isinstance(error.obj, kinds)
    known: set[str] = set(ARRAY_MEMBERS)
    for kind in kinds:
      known.update(dir(kind))
    return not is_data or error.name not in known
  if isinstance(error, TypeError):
    return WRONG_SIGNATURE.search(str(error)) is not None
  return isinstance(error, NameError | ImportError)


ARRAY_MEMBERS = ('dtype', 'ndim', 'shape', 'size')
"""Members of arrays that data of other types lacks."""
WRONG_SIGNATURE = re.compile(
    r'\(\) (missing \d+ required|takes .*positional arg|got an unexpected keyword|got multiple)')
"""Message of Python about a call whose arguments do not fit the function."""


LFS_MARK = b'version https://git-lfs.github.com/spec/'


def describe_error(error: BaseException) -> str:
  """Describe an error of the operating system, TensorFlow or a bucket's client in one line."""
  if isinstance(error, OSError) and error.strerror:
    if error.filename:
      return f'{error.filename}: {error.strerror}'
    return error.strerror
  message = getattr(error, 'message', None) or str(error) or type(error).__name__
  return ' '.join(str(message).split())[:500]
