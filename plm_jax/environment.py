"""Environment settings of other libraries, which they read when they are first imported or used."""
import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import sys
import warnings

DEFAULTS = {
    # TensorFlow only reads data here; its messages on import would hide a run's first lines.
    'TF_CPP_MIN_LOG_LEVEL': '2',
    'TF_ENABLE_ONEDNN_OPTS': '0',
    # Its bucket client composes what is appended to TensorBoard's log in the bucket; the default
    # uploads the complete log again.
    'GCS_APPEND_MODE': 'compose',
    # Files are read in blocks, and memory for one block is filled even for the smallest file; the
    # default is 64 MB.
    'GCS_READ_CACHE_BLOCK_SIZE_MB': '8',
    # What another process or client has written is visible at once; the default is five seconds.
    'GCS_STAT_CACHE_MAX_AGE': '0',
}

TPU_FILES = '/dev/accel*', '/dev/vfio/*'
"""device files, of which one exists on any machine with a TPU"""

# With its default, jaxlib 0.10 sometimes computes wrong results for what it fuses on the CPU,
# except for products alone: a vmapped pullback of attention was off by more than its size. 0.12 is
# correct. Products alone are what fusion speeds up.
CPU_FUSION_FLAG = 'xla_cpu_experimental_ynn_fusion_type'
CPU_FUSION_VALUE = 'LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT'

# Options of mallopt (glibc's malloc.h) and values: freed memory stays with the process, in one
# arena for all threads. On a CPU each step of JAX allocates all of its memory again, and the kernel
# clears it page by page, which was a sixth of the CPU time of a step of fine-tuning.
MALLOC_OPTIONS = {'M_TRIM_THRESHOLD': (-1, -1), 'M_MMAP_MAX': (-4, 0), 'M_ARENA_MAX': (-8, 1)}


def program() -> str:
  """Return the command that runs plm_jax: the console command where it was typed."""
  typed = os.path.basename(sys.argv[0]).removesuffix('.exe') if sys.argv else ''
  return 'plm-jax' if typed == 'plm-jax' else 'python -m plm_jax'


def option(name: str, value: str = '') -> str:
  """Write an option of a command that a message recommends, such as --for=bert_base."""
  return f'--{name}={value}' if value else f'--{name}'


def set_defaults() -> None:
  """Set environment variables that are not set; warn where JAX has read its flags already."""
  for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)
  only_libtpu = importlib.util.find_spec('libtpu') and not importlib.util.find_spec('jax_plugins')
  if only_libtpu and not any(map(glob.glob, TPU_FILES)):
    # libtpu is here to compile for TPUs: every command would begin with its messages.
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  flags = os.environ.get('XLA_FLAGS', '')
  if importlib.metadata.version('jaxlib').startswith('0.10.') and CPU_FUSION_FLAG not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} --{CPU_FUSION_FLAG}={CPU_FUSION_VALUE}'.strip()
    if is_jax_initialized():
      warnings.warn(
          'JAX was used before plm_jax was imported, which on a CPU with jaxlib 0.10 may compute '
          'wrongly: import plm_jax first', stacklevel=3)


def is_jax_initialized() -> bool:
  """Tell whether JAX was used, and so has read its flags and started its threads."""
  bridge = sys.modules.get('jax._src.xla_bridge')
  return bridge is not None and bridge.backends_are_initialized()


def keep_memory() -> bool:
  """Make freed memory stay with the process, for its next step.

  It does so where JAX will compute on the CPU alone and the environment does not configure malloc.
  Only runs call it: programs that import plm_jax may manage memory otherwise. Once JAX has threads
  it is too late, and nothing is changed.

  Returns:
    Whether the setting was changed.
  """
  malloc_is_set = any(name.startswith('MALLOC_') for name in os.environ)
  if 'GLIBC_TUNABLES' in os.environ or malloc_is_set or is_jax_initialized():
    return False
  if not sys.platform.startswith('linux') or may_have_accelerator():
    return False
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt is None:  # a C library other than glibc
    return False
  results = [mallopt(option, value) for option, value in MALLOC_OPTIONS.values()]
  return all(results)


def may_have_accelerator() -> bool:
  """Tell whether JAX may find an accelerator: a plugin is installed, and not disabled."""
  if os.environ.get('JAX_PLATFORMS', '') == 'cpu':
    return False
  return any(importlib.util.find_spec(name) for name in ('libtpu', 'jax_plugins'))
