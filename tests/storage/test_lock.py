"""One process a folder: threads, processes, killed holders, holders on other machines and with
other clocks."""
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import pytest

from plm_jax import storage
from plm_jax.storage import lock
from plm_jax.storage.lock import Claim, Lock, LockError

# Acquire a folder's lock and print it, waiting if necessary; end with standard input.
HOLDER = """
import sys
from plm_jax.storage.lock import Lock
with Lock(sys.argv[1], 'a run', wait=True):
  print('holds', flush=True)
  sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
  """A minute takes half a second."""
  uniform = random.uniform
  monkeypatch.setattr(lock, 'RENEW_SECONDS', 0.1)
  monkeypatch.setattr(lock, 'EXPIRE_SECONDS', 0.5)
  monkeypatch.setattr(lock.random, 'uniform', lambda low, high: uniform(low, high) / 10)


def start(folder: pathlib.Path) -> subprocess.Popen:
  return subprocess.Popen(
      [sys.executable, '-c', HOLDER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
      text=True)


def claim_elsewhere(folder: pathlib.Path, **changes) -> pathlib.Path:
  """A claim of another machine, as its process would write it."""
  claim = Claim('a run', 'elsewhere', 'boot', 7, '1', 'noon', time.time(), holds=True)
  path = folder / '.lock' / '0123.json'
  storage.write_json(path, dataclasses.asdict(dataclasses.replace(claim, **changes)))
  return path


def holds(folder: pathlib.Path) -> bool:
  try:
    with Lock(folder, 'another'):
      return True
  except LockError:
    return False


def test_the_second_process_gets_the_holder_of_the_folder(tmp_path):
  threads = threading.active_count()
  with Lock(tmp_path / 'new', 'a run'):
    with pytest.raises(LockError) as error:
      Lock(tmp_path / 'new', 'a run').acquire()
    assert f'{tmp_path / "new"} is in use by a run (process {os.getpid()} on ' in str(error.value)
    stop = f'`kill {os.getpid()}` on {lock.this_machine()[0]}'
    assert str(error.value).endswith(f'wait for it, stop it ({stop}), or give another folder')
    assert holds(tmp_path)  # another folder gets no message
  assert holds(tmp_path / 'new')
  assert list((tmp_path / 'new').iterdir()) == []
  ended = time.monotonic() + 10  # a stopped thread is still counted for a moment
  while threading.active_count() > threads and time.monotonic() < ended:
    time.sleep(0.01)
  assert threading.active_count() <= threads


def test_an_error_inside_gives_the_folder_free(tmp_path):
  with pytest.raises(KeyError), Lock(tmp_path, 'a run'):
    raise KeyError('inside')
  assert holds(tmp_path)


def test_many_threads_take_turns(tmp_path):
  inside, most, turns = 0, 0, []
  def work(number):
    nonlocal inside, most
    with Lock(tmp_path, 'a turn', wait=True):
      inside += 1
      most = max(most, inside)
      time.sleep(0.01)
      turns.append(number)
      inside -= 1
  threads = [threading.Thread(target=work, args=[number]) for number in range(12)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert sorted(turns) == list(range(12)) and most == 1 and not (tmp_path / '.lock').exists()


def test_of_many_processes_without_waiting_one_gets_the_lock(tmp_path):
  """However they meet: never two, and none waits for ever."""
  for _ in range(5):
    got, barrier, done = [], threading.Barrier(6), threading.Barrier(6)
    def work(got=got, barrier=barrier, done=done):
      claim = Lock(tmp_path, 'a turn')
      barrier.wait()
      try:
        claim.acquire()
        got.append(claim)
      except LockError:
        pass
      done.wait(30)
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(60)
    assert len(got) == 1
    got[0].release()


def test_the_folder_of_a_killed_holder_is_free_at_once(tmp_path, capfd):
  first = start(tmp_path)
  assert first.stdout.readline() == 'holds\n'
  second = start(tmp_path)
  assert 'is in use by a run (process' in second.stdout.readline()
  with pytest.raises(LockError, match=f'process {first.pid} on '):
    Lock(tmp_path, 'a run').acquire()
  first.kill()  # without a wait() it stays a zombie
  assert second.stdout.readline() == 'holds\n'
  second.communicate('')
  assert second.returncode == 0 and holds(tmp_path)
  first.communicate()


@pytest.mark.parametrize('machine', ['boot of before pid:[1]', ''])
def test_a_lock_from_before_a_reboot_expires_after_a_minute(tmp_path, capsys, machine):
  """The machine, or a container with a fixed name, restarted; or the system does not distinguish
  its boots."""
  host, ours = lock.this_machine()
  claim_elsewhere(tmp_path, host=host, machine=machine or ours, process=os.getpid(),
                  started='' if not machine else '1')
  began = time.monotonic()
  assert holds(tmp_path) and 0.5 <= time.monotonic() - began < 5
  assert 'waiting for it, up to 0 s, to see whether it runs' in capsys.readouterr().out


def test_a_reused_process_id_is_no_holder(tmp_path):
  host, machine = lock.this_machine()
  claim_elsewhere(tmp_path, host=host, machine=machine, process=os.getpid(), started='1')
  assert holds(tmp_path)
  claim_elsewhere(tmp_path, host=host, machine=machine, process=os.getpid(),
                  started=lock.process_start(os.getpid()))
  assert not holds(tmp_path)


def test_the_lock_of_a_dead_holder_on_another_machine_expires(tmp_path, capsys):
  claim_elsewhere(tmp_path)
  began = time.monotonic()
  assert holds(tmp_path) and 0.5 <= time.monotonic() - began < 5
  assert (
      'in use by a run (process 7 on elsewhere, since noon): waiting for it') in capsys.readouterr(
          ).out
  claim_elsewhere(tmp_path, renewed=time.time() - 2 * lock.MAX_CLOCK_SKEW)
  began = time.monotonic()
  assert holds(tmp_path) and time.monotonic() - began < 0.5


@pytest.mark.parametrize('skew', [0, -7200, 7200])
def test_a_live_holder_on_another_machine_keeps_the_folder_despite_clock_skew(tmp_path, skew):
  path, ended = claim_elsewhere(tmp_path, renewed=time.time() + skew), threading.Event()
  def renew():
    while not ended.wait(0.1):
      claim_elsewhere(tmp_path, renewed=time.time() + skew)
  thread = threading.Thread(target=renew)
  thread.start()
  waiting = Lock(tmp_path, 'another', wait=True)
  waiter = threading.Thread(target=waiting.acquire)
  waiter.start()
  with pytest.raises(LockError, match='process 7 on elsewhere'):
    Lock(tmp_path, 'another').acquire()
  time.sleep(1)
  assert waiter.is_alive() and path.exists()
  ended.set()
  thread.join()
  waiter.join(20)  # it has died
  assert json.loads(waiting.path.read_text())['holds'] and not path.exists()
  waiting.release()


def test_a_dead_waiter_on_another_machine_is_no_holder(tmp_path):
  claim_elsewhere(tmp_path, holds=False)
  assert holds(tmp_path)


def test_a_suspended_holder_learns_that_it_lost_the_folder(tmp_path):
  with Lock(tmp_path, 'a run') as held:
    held.check()
    held.path.unlink()
    claim_elsewhere(tmp_path)
    held.renewer.join(10)
    with pytest.raises(LockError,
                       match=r'was taken over by a run \(process 7 on elsewhere, since noon\)'):
      held.check()
  assert [path.name for path in (tmp_path / '.lock').iterdir()] == ['0123.json']


def test_a_claim_is_renewed_while_it_is_held(tmp_path):
  with Lock(tmp_path, 'a run') as held:
    before = json.loads(held.path.read_text())['renewed']
    deadline = time.monotonic() + 10
    while json.loads(held.path.read_text())['renewed'] == before and time.monotonic() < deadline:
      time.sleep(0.02)
    assert json.loads(held.path.read_text())['renewed'] > before


@pytest.mark.parametrize('said', ['{}', '{"what": 3, "host": [], "later": 1}'])
def test_claims_of_another_format_are_read_as_far_as_possible(tmp_path, said):
  storage.write(tmp_path / '.lock' / 'odd.json', said)
  assert holds(tmp_path)


def test_invalid_claims_are_named(tmp_path):
  storage.write(tmp_path / '.lock' / 'odd.json', 'nothing of ours')
  with pytest.raises(storage.StorageError, match=r'odd\.json cannot be read as JSON'):
    Lock(tmp_path, 'a run').acquire()


def test_a_folder_that_cannot_be_created_is_a_one_line_error(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(storage.StorageError, match='file'):
    Lock(tmp_path / 'file' / 'run', 'a run').acquire()
