"""Printed lines of a run's first steps."""
import labelled
import numpy as np
import pytest

from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.training.training_log import TrainingLog
from plm_jax.validation import with_paths


@pytest.fixture
def log(tmp_path):
  config = with_paths(labelled.run(tmp_path, steps=100), {'train.log_every': 50})
  return TrainingLog(config, tmp_path / 'run', 0, make_mesh(MeshConfig(1)))


def test_the_first_step_and_the_time_left_are_shown_at_once(log, capsys):
  """Then nothing until the next line is due; a step of another shape compiles, and gives no
  pace."""
  phase = log.config.train.phases[0]
  numbers = {'loss': np.float32(2.0), 'skipped': np.int32(0), 'streak': np.int32(0)}
  log.add(phase, numbers)
  log.add(with_paths(phase, {'length': 8}), numbers)
  log.add(phase, numbers)
  log.add(phase, numbers)
  log.close()
  lines = capsys.readouterr().err.splitlines()
  assert lines[0].startswith('step 1 of 100 (1%): loss 2.000, compiled and done in 00:')
  assert lines[1].startswith('step 3 of 100 (3%): loss 2.000, 0') and ' left' in lines[1]
  assert len(lines) == 2
