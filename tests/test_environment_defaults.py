"""Environment variables that plm_jax sets before JAX is imported."""
import os

import pytest

from plm_jax import environment


@pytest.mark.parametrize(('device', 'expected'), [(False, 'cpu'), (True, None)])
def test_jax_looks_for_a_tpu_only_where_a_device_is(tmp_path, monkeypatch, device, expected):
  """On other machines libtpu, which compiles for TPUs, would print messages at every start."""
  monkeypatch.setenv('XLA_FLAGS', os.environ.get('XLA_FLAGS', ''))
  monkeypatch.setenv('JAX_PLATFORMS', '')
  monkeypatch.delenv('JAX_PLATFORMS')
  monkeypatch.setattr(environment.importlib.util, 'find_spec', lambda name: name == 'libtpu')
  monkeypatch.setattr(environment, 'TPU_FILES', (f'{tmp_path}/accel*',))
  if device:
    (tmp_path / 'accel0').touch()
  environment.set_defaults()
  assert os.environ.get('JAX_PLATFORMS') == expected
