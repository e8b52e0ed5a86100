"""Interruption of a run: signals let the training loop save and stop."""
from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal

import jax


@contextlib.contextmanager
def catch_interrupts():
  """Let SIGTERM and the first Ctrl-C ask the loop to save and stop.

  In a job of several processes all must stop at the same step, for which Orbax and JAX's preemption
  service provide. There SIGTERM is theirs, and the first Ctrl-C becomes one.

  Yields:
    a function that tells whether a signal came.
  """
  came: list[int] = []
  alone = jax.process_count() == 1
  def handler(number, frame):
    del frame
    if came and number == signal.SIGINT:
      raise KeyboardInterrupt
    came.append(number)
    if not alone:
      os.kill(os.getpid(), signal.SIGTERM)
  numbers = (signal.SIGTERM, signal.SIGINT) if alone else (signal.SIGINT,)
  old = {}
  # Only the main thread may set handlers. Elsewhere (a notebook's worker, a test) signals go where
  # they went before.
  with contextlib.suppress(ValueError):
    for number in numbers:
      old[number] = signal.signal(number, handler)
  try:
    yield lambda: alone and bool(came)
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
