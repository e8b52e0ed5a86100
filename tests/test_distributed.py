import os
import pathlib
import re
import socket
import subprocess
import sys

import distributed_worker
import numpy as np

FOLDER = pathlib.Path(__file__).parent


def test_two_processes_train_as_one_does(tmp_path):
  """Of 4 devices each, every one feeding its own rows: bit for bit alike, and to 1e-5 like one process of 8 devices."""
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    coordinator = f'127.0.0.1:{s.getsockname()[1]}'
  flags = re.sub(r'device_count=\d+', 'device_count=4', os.environ['XLA_FLAGS'])
  path = os.pathsep.join([str(FOLDER.parent), os.environ.get('PYTHONPATH', '')])
  workers = [subprocess.Popen(
      [sys.executable, FOLDER / 'distributed_worker.py', coordinator, '2', str(index), tmp_path / f'{index}.npz'],
      env={**os.environ, 'XLA_FLAGS': flags, 'PYTHONPATH': path}, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for index in range(2)]
  try:
    want = distributed_worker.train((2, 2, 2))
    printed = [worker.communicate(timeout=240)[0] for worker in workers]
  finally:
    for worker in workers:
      worker.kill()
  assert [worker.returncode for worker in workers] == [0, 0], printed
  got = [dict(np.load(tmp_path / f'{index}.npz')) for index in range(2)]
  assert [x.pop('rows').tolist() for x in got] == [[0, 8], [8, 16]]
  assert want.pop('rows').tolist() == [0, 16]
  for name, value in want.items():
    np.testing.assert_array_equal(got[0][name], got[1][name], name)
    # Processes add up in another order than devices of one process. The gradient of a key's bias is zero but for
    # rounding, which Adam enlarges: there only the size of the steps is compared.
    relative = 1e-2 / np.abs(value).max() if name.endswith('key/bias') else 1e-5
    np.testing.assert_allclose(got[0][name], value, rtol=0, atol=relative * np.abs(value).max(), err_msg=name)
