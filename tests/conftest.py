"""Every test runs on the CPU with eight devices; without a mesh, on the first device."""
import ctypes
import gc
import os
import pathlib
import resource
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['HF_HUB_OFFLINE'] = '1'  # a mistyped folder may be a name of the Hugging Face hub

import jax
import pytest
import tiny

from plm_jax.training.step import init_state

# Most of the tests' time is compilation; compiled code runs for milliseconds.
FLAGS = ['--xla_force_host_platform_device_count=8', '--xla_backend_optimization_level=0',
         '--xla_cpu_parallel_codegen_split_count=1']  # the processors have other tests to run
if jax.__version_info__ < (0, 11):  # a later XLA aborts on a flag that it no longer has
  FLAGS.append('--xla_cpu_use_fusion_emitters=false')
os.environ['XLA_FLAGS'] = ' '.join([os.environ.get('XLA_FLAGS', ''), *FLAGS])
gc.set_threshold(50_000, 20, 100)  # to go through all that was traced and stays took 7% of the time


@pytest.fixture(autouse=True, scope='session')
def cache_folder(tmp_path_factory):
  """Nothing is read from or written to the user's own cache."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('PLM_JAX_CACHE', str(tmp_path_factory.mktemp('cache')))
    yield


@pytest.fixture(autouse=True, scope='module')
def freed_memory():
  """Free what JAX keeps of compiled functions, about 1.3 MB each, once a worker has allocated more
  than 1 GiB."""
  yield
  if sys.platform != 'linux':
    return
  _, resident, shared, *_ = map(int, pathlib.Path('/proc/self/statm').read_text().split())  # pages
  if (resident - shared) * resource.getpagesize() > 1 << 30:
    jax.clear_caches()
    gc.collect()
    ctypes.CDLL('libc.so.6').malloc_trim(0)  # glibc keeps freed memory otherwise


@pytest.fixture(scope='session')
def vocab():
  return tiny.VOCAB


@pytest.fixture(scope='session')
def windows():
  """16 rows; two of them contain only padding."""
  batch = tiny.windows(16)
  for name in ('tokens', 'segments', 'sentences', 'words'):
    batch[name][[5, 11]] = 0
  return batch


@pytest.fixture(scope='session')
def learner():
  return tiny.learner()


@pytest.fixture(scope='session')
def params(learner, windows):
  return tiny.random_params(jax.eval_shape(lambda: init_state(learner, windows).params))


@pytest.fixture(scope='session')
def batch(learner, windows):
  """The windows, corrupted as in training."""
  return jax.device_get(jax.jit(lambda w: learner.objective.corrupt(learner.key('corruption'), w,
                                                                    learner.vocab))(windows))
