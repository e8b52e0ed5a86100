"""scripts/worker.sh on this machine: how it ends a run."""
import os
import pathlib
import subprocess
import time

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


@pytest.fixture
def worker(tmp_path):
  (tmp_path / 'plm_jax').mkdir()
  (tmp_path / 'plm_jax/code').mkdir()
  (tmp_path / 'plm_jax/code/scripts').symlink_to(SCRIPTS)
  def call(*args, **settings):
    return subprocess.run(['bash', SCRIPTS / 'worker.sh', *args],
                          env={**os.environ, 'HOME': str(tmp_path), **settings},
                          text=True, capture_output=True, timeout=60, check=False)
  yield call
  call('stop', PLM_JAX_STOP_SECONDS='0', PLM_JAX_SAVE_SECONDS='0')


def started(worker, folder, program):
  """Starts a run whose work is a shell program, and waits until that has begun."""
  assert worker('start', '1', 'bash', '-c',
                f'{program}; touch {folder}/begun; while :; do sleep 0.05; done'
                ).returncode == 0
  for _ in range(200):
    if (folder / 'begun').exists():
      return
    time.sleep(0.05)
  raise AssertionError('the run did not begin')


def test_a_run_that_saves_is_not_killed(worker, tmp_path):
  save = (f'trap "touch $PLM_JAX_SAVING; sleep 3; touch {tmp_path}/saved; rm $PLM_JAX_SAVING; '
          'exit 75" TERM')
  started(worker, tmp_path, save.replace('$PLM', '\\$PLM'))
  found = worker('stop', PLM_JAX_STOP_SECONDS='1')
  assert found.returncode == 0 and 'saves its checkpoint' in found.stdout
  assert 'stopped 1' in found.stdout
  assert (tmp_path / 'saved').exists()
  assert worker('state', '0').stdout.strip().endswith('ended 75')


@pytest.mark.parametrize('program', ['trap "" TERM', 'trap "touch \\$PLM_JAX_SAVING" TERM'])
def test_a_run_that_does_not_end_is_killed(worker, tmp_path, program):
  started(worker, tmp_path, program)
  found = worker('stop', PLM_JAX_STOP_SECONDS='1', PLM_JAX_SAVE_SECONDS='2')
  assert found.returncode == 0 and 'stopped 1' in found.stdout
  assert worker('stop').stdout.strip().endswith('nothing to stop')
