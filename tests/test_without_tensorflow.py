"""plm_jax without TensorFlow: models are loaded, called and exported, and a run trains."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# An import of a name that is None in sys.modules fails as if the package were not installed.
ABSENT = '''
import sys
for name in ('tensorflow', 'tensorflow_datasets', 'tensorboard'):
  sys.modules[name] = None
'''
MODELS = ABSENT + '''
import numpy as np
import plm_jax
import ready

for kind in ('bert', 'gpt2'):
  plm_jax.export(ready.model(kind), kind)
bert, gpt2 = plm_jax.load('bert'), plm_jax.load('gpt2')
print(plm_jax.encode(bert, ['ana came home']).shape)
print(len(plm_jax.fill_mask(bert, 'ana [MASK] home')))
print(len(plm_jax.generate(gpt2, 'ana came', max_new=3, temperature=0.0)))
'''
TRAINING = ABSENT + '''
import plm_jax
plm_jax.train(plm_jax.recipe('bert_base', scale='test', output='run',
                             data={'path': ('corpus.txt',)}))
assert 'tensorflow' not in sys.modules or sys.modules['tensorflow'] is None
print(plm_jax.load('run').family)
'''


def run(script: str, folder: pathlib.Path) -> list[str]:
  path = os.pathsep.join([str(ROOT), str(ROOT / 'tests/helpers')])
  environment = os.environ | {'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'}
  done = subprocess.run(
      [sys.executable, '-c', script], cwd=folder, env=environment, capture_output=True, text=True,
      timeout=300)
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()


def test_models_are_loaded_called_and_exported(tmp_path):
  width, candidates, text = run(MODELS, tmp_path)[-3:]
  assert width == '(1, 32)' and int(candidates) > 0 and int(text) > 0


@pytest.mark.slow
def test_a_run_trains(tmp_path):
  import tiny
  (tmp_path / 'corpus.txt').write_text(tiny.text())
  assert run(TRAINING, tmp_path)[-1] == 'bert'
  assert (tmp_path / 'run/metrics.jsonl').stat().st_size and not (
      tmp_path / 'run/tensorboard').exists()
