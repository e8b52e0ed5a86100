"""Settings that other libraries read from the environment when they are first imported or used."""
import ctypes
import importlib.metadata
import importlib.util
import os
import sys
import warnings

DEFAULTS = {
    # TensorFlow only reads data here; what it prints about its own build when imported would bury a run's first lines.
    'TF_CPP_MIN_LOG_LEVEL': '2',
    'TF_ENABLE_ONEDNN_OPTS': '0',
    # Its client for buckets: what a log of TensorBoard gets is joined to it there; otherwise all of it goes up again.
    'GCS_APPEND_MODE': 'compose',
    # What is read comes in blocks, and memory for a block is filled for the smallest file: they have 64 MB by default.
    'GCS_READ_CACHE_BLOCK_SIZE_MB': '8',
    # And what another process, or another client, has written is seen at once; otherwise after five seconds.
    'GCS_STAT_CACHE_MAX_AGE': '0',
}

# jaxlib 0.10 computes wrongly, now and then, what it has fused for the CPU, unless that is a product: a vmapped
# pullback of attention was off by more than its size. 0.12 is right. Products on their own are what is fast.
FUSIONS = '--xla_cpu_experimental_ynn_fusion_type'

# Options of mallopt (malloc.h of glibc) and values: memory that is freed stays with the process, all threads in one
# place. On a CPU each step of JAX asks for all of its memory anew, and the system clears it page by page, which was a
# sixth of the processors' time in a step of fine-tuning.
MALLOC = {'M_TRIM_THRESHOLD': (-1, -1), 'M_MMAP_MAX': (-4, 0), 'M_ARENA_MAX': (-8, 1)}


def settle() -> None:
  """Sets what is not set. Warns where JAX has been used before, and has taken its flags already."""
  for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)
  if importlib.metadata.version('jaxlib').startswith('0.10.') and FUSIONS not in os.environ.get('XLA_FLAGS', ''):
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {FUSIONS}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT'.strip()
    if started():
      warnings.warn('JAX was used before plm_jax was imported, which on a CPU with jaxlib 0.10 may compute wrongly: '
                    'import plm_jax first', stacklevel=3)


def started() -> bool:
  """Tells whether JAX has been used, and has its flags and threads."""
  bridge = sys.modules.get('jax._src.xla_bridge')
  return bridge is not None and bridge.backends_are_initialized()


def keep_memory() -> bool:
  """Makes freed memory stay with the process, for its next step, where JAX will compute on the CPU alone and nothing in
  the environment says how to allocate -> whether it does. Only a run asks for it: a program that imports plm_jax has
  ways of its own. Once JAX has threads it comes too late, and does nothing."""
  told = 'GLIBC_TUNABLES' in os.environ or any(name.startswith('MALLOC_') for name in os.environ)
  if told or started() or not sys.platform.startswith('linux') or accelerated():
    return False
  change = getattr(ctypes.CDLL(None), 'mallopt', None)  # other libraries of C do without
  return change is not None and all([change(*option) for option in MALLOC.values()])


def accelerated() -> bool:
  """Tells whether JAX may find something besides the CPU: its plugins are there, and nothing forbids them."""
  if os.environ.get('JAX_PLATFORMS', '') == 'cpu':
    return False
  return any(importlib.util.find_spec(name) for name in ('libtpu', 'jax_plugins'))
