"""Interruption of a run: signals, and metrics that cannot be written, let the training loop save
and stop."""
from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal

import jax

from plm_jax import errors


class StopRequest:
  """A request to save and stop: of a signal, or of the loop itself; called, it tells whether there
  is one.

  In a job of several processes all must stop at the same step, for which Orbax and JAX's preemption
  service provide. There SIGTERM is theirs, and other requests become one.
  """

  def __init__(self):
    self.alone, self.sent = jax.process_count() == 1, False

  def __call__(self) -> bool:
    return self.alone and self.sent

  def send(self) -> None:
    """Ask the loop, of all processes of the job, to save and stop."""
    self.sent = True
    if not self.alone:
      os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def catch_interrupts() -> Iterator[StopRequest]:
  """Let the signals of `errors.STOP_SIGNALS` ask the loop to save and stop.

  A second Ctrl-C ends it at once. Signals that the parent process ignores stay ignored (`nohup`),
  but for SIGINT and SIGTERM: a script's background commands are started without SIGINT.
  """
  request = StopRequest()
  def handler(number, frame):
    del frame
    if request.sent and number == signal.SIGINT:
      raise KeyboardInterrupt
    request.send()
  always = signal.SIGINT, signal.SIGTERM
  old = {}
  # Only the main thread may set handlers. Elsewhere (a notebook's worker, a test) signals go where
  # they went before.
  with contextlib.suppress(ValueError):
    for name in errors.STOP_SIGNALS:
      number = getattr(signal, name, None)  # Windows has only some
      if number is None or (number == signal.SIGTERM and not request.alone):
        continue
      if number in always or signal.getsignal(number) != signal.SIG_IGN:
        old[number] = signal.signal(number, handler)
  try:
    yield request
  finally:
    for number, previous in old.items():
      signal.signal(number, previous)


@contextlib.contextmanager
def mark_saving() -> Iterator[None]:
  """Keep a file at the path PLM_JAX_SAVING, if set, while the run saves.

  Whoever stopped the run then knows that it saves, and does not kill it meanwhile
  (scripts/worker.sh).
  """
  name = os.environ.get('PLM_JAX_SAVING')
  if not name:
    yield
    return
  path = pathlib.Path(name)
  with contextlib.suppress(OSError):  # the save matters more
    path.touch()
  try:
    yield
  finally:
    with contextlib.suppress(OSError):
      path.unlink(missing_ok=True)
