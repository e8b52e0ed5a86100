"""Worker processes that end when their parent does, however it ends."""
from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from typing import Any

from plm_jax.errors import Expected


class WorkerError(Expected):
  """A worker process that died."""


@contextlib.contextmanager
def pool(workers: int, prepare: Callable[..., None] | None = None, *args: Any
         ) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
  """Processes that have called prepare(*args). Raises WorkerError where one of them dies."""
  # Not fork: the parent may run the threads of JAX, TensorFlow or the tokenizers library.
  executor = concurrent.futures.ProcessPoolExecutor(
      workers, multiprocessing.get_context('spawn'), initializer=start_worker, initargs=(prepare, *args))
  try:
    yield executor
  except concurrent.futures.BrokenExecutor as error:
    raise WorkerError(
        'a worker process died. If memory was short, try fewer workers: the same command goes on from what is whole. '
        "If this is a script, its main part must stand under if __name__ == '__main__'.") from error
  finally:
    executor.shutdown(cancel_futures=True)


def start_worker(prepare: Callable[..., None] | None, *args: Any) -> None:
  """Sets up a worker process: it leaves Ctrl-C to its parent, ends with it, and then calls prepare(*args)."""
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C
  threading.Thread(target=follow_parent, daemon=True).start()
  if prepare:
    prepare(*args)


def follow_parent() -> None:
  """Ends this process when its parent is gone: left alone it would wait for work for ever."""
  parent = multiprocessing.parent_process()
  if parent:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
