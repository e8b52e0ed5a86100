"""The folder in which JAX stores compiled programs."""
import os
import sys
from typing import Any

from plm_jax import storage


def use_compilation_cache() -> None:
  """Store compiled programs in the cache folder, for the next process that needs them.

  Nothing changes where the environment names another folder, or the cache folder cannot be written.

  JAX's key of a program has the version of jaxlib, its flags, and the device: on a CPU also the
  instruction sets that the CPU supports. A folder that machines with different CPUs share is safe.
  JAX skips programs that compile within a second, unless told otherwise. To apply a model once,
  most of the time is the compilation of such programs.

  Raises:
    StorageError: the cache folder is in a bucket.
  """
  if os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    return
  folder = storage.cache_folder() / 'xla'
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return
  if not os.access(folder, os.W_OK):
    return
  settings: dict[str, Any] = {'jax_compilation_cache_dir': os.fspath(folder)}
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    settings['jax_persistent_cache_min_compile_time_secs'] = 0
  jax = sys.modules.get('jax')
  for name, value in settings.items():
    if jax:
      jax.config.update(name, value)
    else:  # JAX reads it when it is imported, which not every command needs
      os.environ[name.upper()] = str(value)
