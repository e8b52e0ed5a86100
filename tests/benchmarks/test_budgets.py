"""Budgets of compiled steps: how they are compared, and the content of the stored ones."""
import dataclasses
import json
import types

import pytest

from benchmarks import budgets, fits
from plm_jax import recipes
from plm_jax.compile.report import CHIPS, CompileReport
from plm_jax.config.run import ConfigError

# On v2: a second of arithmetic, half a second of traffic.
REPORT = CompileReport('TPU v2', {'parameters': 2 ** 30, 'temporaries': 2 ** 29}, 23e12, 23e12,
                       175 * 10 ** 9,
                {('all-reduce', False): (2, 8 * 10 ** 6, 15e6),
                 ('all-reduce', True): (1, 10 ** 6, 1e6)}, 0, 1.0)


def budget(*reports: CompileReport, topology='v2:4x4'):
  config = dataclasses.replace(recipes.find_recipe('bert_base')(), topology=topology)
  return budgets.budget(config, reports, 32)


@pytest.fixture(autouse=True)
def versions(monkeypatch):
  monkeypatch.setattr(budgets.importlib.metadata, 'version', lambda name: '1.2')


def test_stored_fields_of_a_step():
  kept = budget(REPORT, REPORT)
  short, long = kept.pop('phases')
  assert kept == {'topology': 'v2:4x4', 'devices': 32, 'kind': 'TPU v2',
                  'mesh': {'data': 8, 'fsdp': 4, 'tensor': 1},
                  'micro-steps': 1, 'compiler': 'jax 1.2, libtpu 1.2'}
  assert short | {'tokens': 512} == long
  assert short == {
      'rows': 256, 'tokens': 128, 'HBM, GiB': {'parameters': 1.0, 'temporaries': 0.5, 'total': 1.5},
      'traffic, GB': 175.0, 'model TFLOP': 23.0, 'compiled TFLOP': 23.0,
      'sent, MB': {'all-reduce': 16.0, 'total': 16.0},
      'bounds, ms': {'compute': 1000.0, 'memory': 500.0, 'network': 0.06452}, 'bound by': 'compute',
      'bound, ms': 1000.0, 'MFU': 1.0}


@pytest.mark.parametrize(('planted', 'grew'), [
    ({}, set()), (dict(hbm_traffic=177 * 10 ** 9, flops=23.4e12), set()),
    (dict(hbm_traffic=10 ** 9), set()),
    (dict(hbm_traffic=180 * 10 ** 9), {'traffic, GB'}),
    (dict(hbm_traffic=700 * 10 ** 9), {'traffic, GB', 'bound, ms'}),
    (dict(memory={'parameters': 2 ** 30, 'temporaries': 2 ** 30}), {'HBM, GiB'}),
    (dict(flops=24e12), {'compiled TFLOP', 'bound, ms'}),
    (dict(collectives={('all-gather', False): (1, 10 ** 7, 3e7)}), {'sent, MB'}),
])
def test_growth_beyond_the_tolerance_is_over_budget(planted, grew, monkeypatch, capsys):
  monkeypatch.setattr(budgets, 'read', lambda name: budget(REPORT, REPORT))
  now = budget(REPORT, dataclasses.replace(REPORT, **planted))
  monkeypatch.setattr(budgets, 'compiled', lambda name, options: now)
  assert budgets.check('bert_base') == (not grew)
  lines = [line for line in capsys.readouterr().out.splitlines() if 'GREW' in line]
  assert len(lines) == len(grew)
  assert all(line.startswith('256 x 512') and any(figure in line for figure in grew)
             for line in lines)


def test_a_budget_of_other_steps_is_none():
  with pytest.raises(ConfigError,
                     match='of 256 x 128, 256 x 512, the recipe has 256 x 128: write it anew'):
    budgets.compared(budget(REPORT, REPORT),
                     {**budget(REPORT, REPORT), 'phases': budget(REPORT, REPORT)['phases'][:1]})


def test_a_budget_is_written_and_read(tmp_path, monkeypatch):
  monkeypatch.setattr(budgets, 'FOLDER', tmp_path / 'budgets')
  assert budgets.read('bert_base') is None and not budgets.check('bert_base')
  monkeypatch.setattr(budgets.compiling, 'compile_run', lambda config: [REPORT, REPORT])
  monkeypatch.setattr(budgets.compiling, 'topology_devices',
                      lambda name: [types.SimpleNamespace()] * 32)
  assert budgets.write('bert_base') and budgets.check('bert_base')
  assert budgets.read('bert_base') == budget(REPORT, REPORT)
  assert (tmp_path / 'budgets' / 'bert_base.json').read_text().count('\n') > 40


def test_a_run_at_its_bounds():
  """A million steps of a second on 16 chips; an epoch of BERT's long rows is a tenth of them."""
  slow = dataclasses.replace(REPORT, flops=46e12)
  assert fits.row('bert_base', budget(REPORT, slow)) == (
      'bert_base', 'v2:4x4, fsdp 4', '1.5 of 8<br>1.5 of 8', '1,000 (compute)<br>2,000 (compute)',
      '100%<br>50%', '12.7 days', '4,889', '16 TPU chips, 4 days')
  assert fits.fits(budget(REPORT, slow))
  assert not fits.fits(budget(REPORT, dataclasses.replace(REPORT, memory={'all': 9 * 2 ** 30})))


@pytest.mark.parametrize('path', sorted(budgets.FOLDER.glob('*.json')), ids=lambda path: path.stem)
def test_stored_budgets_match_the_current_recipes(path):
  found, recipe = json.loads(path.read_text()), recipes.find_recipe(path.stem)
  assert found['topology'] == recipe.row.pod and found['mesh']['fsdp'] == recipe.row.mesh.fsdp
  assert found['mesh']['tensor'] == recipe.row.mesh.tensor and found['micro-steps'] == recipe(
      ).train.accumulate
  assert found['kind'] in CHIPS and fits.fits(found) and fits.seconds(path.stem, found) > 0
