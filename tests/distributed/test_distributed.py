from concurrent import futures
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import time

import distributed_worker
import jax
import numpy as np
import pytest

from plm_jax import recipes
from plm_jax.cli.run import parse
from plm_jax.config.run import ConfigError, HostsConfig
from plm_jax.distributed import hosts
from plm_jax.loading import loaded_model
from plm_jax.runs.run import run

ROOT = pathlib.Path(__file__).parents[2]
HELPERS = ROOT / 'tests' / 'helpers'


def free_address() -> str:
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{s.getsockname()[1]}'


@contextlib.contextmanager
def two_processes(program: str, devices: int, arguments, folders=(None, None), status=0,
                  settings=({}, {}),
                  seconds=240):
  """Start PROGRAM COORDINATOR 2 INDEX *arguments(INDEX) twice; return a function that waits for
  both and returns their outputs.

  folders: their working directories. status: the expected exit status; 'any': it is returned,
  too; None: as soon as one process ends, the other is killed. settings: environment variables of
  each process. seconds: the time limit.
  """
  coordinator = free_address()
  flags = re.sub(r'device_count=\d+', f'device_count={devices}', os.environ['XLA_FLAGS'])
  path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
  workers = [subprocess.Popen(
      [sys.executable, HELPERS / program, coordinator, '2', str(index), *arguments(index)],
      env={**os.environ, 'XLA_FLAGS': flags, 'PYTHONPATH': path, **settings[index]}, text=True,
      cwd=folders[index],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for index in range(2)]

  def outputs() -> list[str]:
    if status is None:
      until = time.monotonic() + seconds
      while all(worker.poll() is None for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.1)
      return []
    printed = [worker.communicate(timeout=seconds)[0] for worker in workers]
    found = [worker.returncode for worker in workers]
    if status == 'any':
      return printed, found
    assert found == [status, status], printed
    return printed

  try:
    yield outputs
  finally:
    for worker in workers:
      worker.kill()


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path):
  """Of 4 devices each, every one feeding its own rows: bit for bit alike, and to 1e-5 like one
  process of 8 devices."""
  with two_processes('distributed_worker.py', 4,
                     lambda index: [tmp_path / f'{index}.npz']) as outputs:
    want = distributed_worker.train((2, 2, 2))
    outputs()
  got = [dict(np.load(tmp_path / f'{index}.npz')) for index in range(2)]
  assert [x.pop('rows').tolist() for x in got] == [[0, 8], [8, 16]]
  assert want.pop('rows').tolist() == [0, 16]
  for name, value in want.items():
    np.testing.assert_array_equal(got[0][name], got[1][name], name)
    # Processes add up in another order than devices of one process. The gradient of a key's bias is
    # zero but for rounding, which Adam enlarges: there only the size of the steps is compared.
    relative = 1e-2 / np.abs(value).max() if name.endswith('key/bias') else 1e-5
    np.testing.assert_allclose(got[0][name], value, rtol=0, atol=relative * np.abs(value).max(),
                               err_msg=name)


def called(*processes: hosts.JobPlace, seconds=0.5) -> list[str]:
  """Let the started processes of a job join; return the final message of each."""
  def call(place):
    try:
      hosts.wait_for_processes(place, seconds)
    except hosts.HostsError as error:
      return str(error)
    return ''
  with futures.ThreadPoolExecutor(len(processes)) as pool:
    return list(pool.map(call, processes))


def test_the_roll_names_who_is_missing():
  address = free_address()
  zero, one, two = (hosts.JobPlace(address, 3, index) for index in range(3))
  assert called(zero, two, one, seconds=20) == ['', '', '']
  said = called(zero, two)
  assert said[0] == said[1] and said[0].startswith(
      'of 3 processes, number 1 did not come within 0.5 s: every worker')
  assert 'number 1, 2 did not come' in called(zero)[0]
  assert (f'process 0 did not answer at {address} within 0.5 s (Connection refused): every '
          'worker') in called(two)[0]
  assert 'two processes, at' in called(zero, two, two, seconds=20)[0]
  assert 'came to a job of 3: the options differ' in called(zero, hosts.JobPlace(address, 2, 1),
                                                            seconds=20)[1]
  port = address.rpartition(':')[2]
  with socket.create_server(('', int(port))):
    assert f'port {port} of hosts.coordinator={address} cannot be had' in called(zero)[0]


def test_a_stranger_does_not_disturb_the_roll():
  address = free_address()
  def knock():
    hosts.send_greeting(hosts.JobPlace(address, 2, 1), 20)
  with futures.ThreadPoolExecutor(2) as pool:
    roll = pool.submit(hosts.wait_for_processes, hosts.JobPlace(address, 2, 0), 20)
    host, _, port = address.rpartition(':')
    for _ in range(200):
      with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as connection:
        connection.sendall(b'GET / HTTP/1.1\r\n\r\n')
        break
    pool.submit(knock).result()
    roll.result()


@pytest.mark.parametrize(('options', 'message'), [
    (dict(distributed=True),
     'no worker of a TPU pod, of Slurm or of MPI: give hosts.coordinator and'),
    (dict(distributed=True, coordinator='a:1', count=2), 'give hosts.index too'),
    (dict(distributed=True, coordinator='machine', count=2, index=0),
     'machine is not address:port'),
    (dict(distributed=True, coordinator='a:1', count=2, index=2), 'hosts.index=2 of hosts.count=2'),
    (dict(coordinator='a:1', count=2, index=1), 'give hosts.distributed=True too'),
])
def test_options_that_make_no_job(options, message):
  with pytest.raises(ConfigError, match=message):
    hosts.join_job(HostsConfig(**options))


@pytest.mark.slow
def test_hosts_that_do_not_share_the_output_end_before_text_is_prepared(tmp_path):
  """The processes have separate folders instead of separate disks, and a relative output path."""
  folders = [tmp_path / '0', tmp_path / '1']
  for folder in folders:
    folder.mkdir()
  with two_processes('run_worker.py', 1,
                     lambda index: ['-1', '--scale=test', '--output=out', '--data.path=embedded'],
                     folders, status=1) as outputs:
    first, second = outputs()
  said = f'process 1 does not see the output of process 0 in {folders[1]}/out of '
  assert f'error: process 1 of the job cannot go on: {said}' in first and f'error: {said}' in second
  assert '--output=gs://BUCKET/out' in first and 'Traceback' not in first + second
  assert not list(folders[0].iterdir()) and not list(folders[1].iterdir())


@pytest.mark.slow
def test_a_preempted_run_with_two_processes_resumes(tmp_path):
  """The command of a pod's workers. One machine is preempted: both processes stop at the same
  step, the same commands resume from there, and the model equals that of a single process."""
  draw = random.Random(0)
  words = ['array', 'matrix', 'value', 'order', 'memory', 'place', 'copy', 'list']
  text = tmp_path / 'corpus.txt'
  def sentence():
    return f'The {" ".join(draw.choices(words, k=8))}.'
  text.write_text('\n\n'.join('\n'.join(sentence() for _ in range(8)) for _ in range(80)))
  args = ['--scale=test', f'--data.path={text}', '--data.prepare.heldout=0.2',
          '--train.save-every=100',
          '--train.phases.1.length=32']  # one length, for which each process compiles the steps
  def command(folder, terminated):
    return [str(terminated), *args, '--mesh.fsdp=2', f'--output={tmp_path / folder}']
  with two_processes('run_worker.py', 2, lambda index: command('run', terminated=1),
                     status=75) as outputs:
    want = run(parse(recipes.find_recipe('bert_base'),
                     [*args, '--mesh.data=1', f'--output={tmp_path / "alone"}']))
    first, second = outputs()
  stopped = re.search(r'stopped at step (\d) and saved', first)
  assert stopped and 5 <= int(stopped[1]) < 8 and 'stopped' not in second
  assert not (tmp_path / 'run' / 'report.html').exists()
  assert (tmp_path / 'run' / 'checkpoints' / stopped[1]).is_dir()

  with two_processes('run_worker.py', 2, lambda index: command('run', terminated=-1)) as outputs:
    first, second = outputs()
  assert 'report: ' in first and 'Held-out' not in second and (
      tmp_path / 'run' / 'report.html').exists()
  heldout = [json.loads(line)
             for line in (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
             if json.loads(line)['split'] == 'heldout']
  assert [line['step'] for line in heldout] == [4, 8]
  assert heldout[-1]['mlm'] == pytest.approx(want.heldout['mlm'], rel=1e-4)
  found = jax.tree.leaves(loaded_model.load_model(tmp_path / 'run').params)
  for ours, theirs in zip(jax.tree.leaves(want.params), found, strict=True):
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-3)


@pytest.mark.parametrize(('how', 'wrong'), [('barrier', 1), ('leader', 0)])
def test_a_bug_of_one_process_ends_the_others_too(how, wrong):
  """It is seen with its traceback, and the other process does not wait for days."""
  with two_processes('bug_worker.py', 1, lambda index: [how], status=1, seconds=120) as outputs:
    printed = outputs()
  assert "return {}['no such name']" in printed[wrong] and "KeyError: 'no such name'" in printed[
      wrong]
  expected = (f"process {wrong} of the job cannot go on: KeyError: 'no such name' (the output of "
              "that process has the")
  assert expected in printed[1 - wrong]


@pytest.mark.parametrize(('killed', 'how'), [
    (0, 'barrier'), (1, 'barrier'), pytest.param(1, 'collective', marks=pytest.mark.slow),
    (-1, 'ends')])
def test_a_killed_process_ends_the_others_at_once_with_one_line(killed, how):
  with two_processes('killed_worker.py', 1, lambda index: [str(killed), how], seconds=120,
                     status='any',
                     settings=[{'TF_CPP_MIN_LOG_LEVEL': '2'}] * 2) as outputs:
    printed, statuses = outputs()
  if how == 'ends':
    assert statuses == [0, 0] and not any('killed' in said for said in printed)
    return
  line = (f'error: process {killed} of the job was killed, or its machine has failed: this process '
          f'ends too. The '
          'same command on all machines resumes from the newest checkpoint')
  said = [text for text in printed[1 - killed].splitlines() if text and '[Gloo]' not in text]
  assert line in said
  if killed == 1:  # without the coordinator in process 0, jaxlib prints lines of another form
    assert statuses == [75, -9]
    assert all('waiting for 1 other' in text or text == line for text in said), said
