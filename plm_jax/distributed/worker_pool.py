"""Worker processes that exit when their parent does, and results in the order of the work."""
import collections
from collections.abc import Callable, Generator, Iterable, Iterator
import concurrent.futures
import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from typing import Any, TypeVar

from plm_jax.errors import STOP_SIGNALS, UserError

BYTES_PER_WORKER = 1 << 24  # on disk; for less, starting another process costs more than it saves
WORKER_STATE: dict[str, Callable] = {}  # in a worker process: the function that it calls
Item = TypeVar('Item')
Result = TypeVar('Result')


class WorkerError(UserError):
  """A worker process that died."""


def count_workers(wanted: int, size: int | None) -> int:
  """Return the number of processes for a text.

  Args:
    wanted: by the options; 0: one per core.
    size: bytes of the text on the disk; None: not known.
  """
  useful = 1 + (size or 1 << 62) // BYTES_PER_WORKER
  return min(wanted or os.cpu_count() or 1, useful)


def map_ordered(
    function: Callable[[Item], Result], items: Iterable[Item],
    workers: int) -> Generator[Result, None, None]:
  """Call a function for each item in worker processes, and yield the results in order.

  About two items per worker are in progress at a time. The function goes to each process once, with
  all that is bound to it.
  """
  if workers == 1:
    yield from map(function, items)
    return
  with open_pool(workers, set_worker_function, function) as pool:
    yield from submit_ahead(pool, call_worker_function, items, 2 * workers)


def submit_ahead(
    pool: concurrent.futures.Executor, function: Callable[[Item], Result], items: Iterable[Item],
    ahead: int) -> Iterator[Result]:
  """Yield the results of a pool in order, while it works on `ahead` more items."""
  pending = collections.deque()
  for item in items:
    pending.append(pool.submit(function, item))
    if len(pending) > ahead:
      yield pending.popleft().result()
  while pending:
    yield pending.popleft().result()


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
  """Do not look for cycles of objects, for code that makes many objects and no cycles."""
  collecting = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if collecting:
      gc.enable()


def set_worker_function(function: Callable) -> None:
  """Keep the function of `map_ordered` in a worker process."""
  WORKER_STATE['function'] = function


def call_worker_function(item: Any) -> Any:
  """Call the function of `set_worker_function`."""
  return WORKER_STATE['function'](item)


@contextlib.contextmanager
def open_pool(workers: int, prepare: Callable[..., None] | None = None, *args: Any
              ) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
  """Open a pool of processes that have called prepare(*args).

  Raises:
    WorkerError: a process died.
  """
  # Not fork: the parent may run the threads of JAX, TensorFlow or the tokenizers library.
  executor = concurrent.futures.ProcessPoolExecutor(
      workers, multiprocessing.get_context('spawn'), initializer=init_worker,
      initargs=(prepare, *args))
  try:
    yield executor
  except concurrent.futures.BrokenExecutor as error:
    raise WorkerError(
        'a worker process died. If memory was short, try fewer workers: the same command resumes '
        'from the finished parts. If this is a script, its main part must be under '
        "if __name__ == '__main__'.") from error
  finally:
    executor.shutdown(cancel_futures=True)


def init_worker(prepare: Callable[..., None] | None, *args: Any) -> None:
  """Set up a worker process: leave signals to the parent, exit with it, call prepare(*args)."""
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  for name in set(STOP_SIGNALS) - {'SIGTERM'}:  # a terminal sends Ctrl-C to both
    if hasattr(signal, name):
      signal.signal(getattr(signal, name), signal.SIG_IGN)
  threading.Thread(target=exit_with_parent, daemon=True).start()
  if prepare:
    prepare(*args)


def exit_with_parent() -> None:
  """Exit this process when its parent is gone: otherwise it would wait for work forever."""
  parent = multiprocessing.parent_process()
  if parent:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
