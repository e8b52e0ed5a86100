import json
import re

import pytest

from plm_jax import config_file, recipes
from plm_jax.config import ConfigError, Phase
from plm_jax.config_file import FORMAT, from_json, to_json

OPTIM = {'is': 'plm_jax.optim:OptimConfig', 'peak': 0.25}


def test_what_has_no_number_is_of_the_first_format():
  config = from_json({'is': 'plm_jax.config:Experiment', 'name': 'old', 'optim': OPTIM})
  assert config.optim.peak == 0.25
  with pytest.raises(ConfigError, match=re.escape('this version of plm_jax has no plm_jax.optim:OptimConfig')):
    from_json({'format': FORMAT, 'is': 'plm_jax.config:Experiment', 'name': 'old', 'optim': OPTIM})


@pytest.mark.parametrize(('number', 'said'), [
    (FORMAT + 1, f'a newer version of plm_jax wrote this, in format {FORMAT + 1}: this version reads formats up to'),
    (0, 'the format is a whole number from 1 on, got 0'), (None, 'got None'), (True, 'got True'), ('2', "got '2'")])
def test_a_format_that_is_not_known_is_refused(number, said):
  with pytest.raises(ConfigError, match=f'^runs/x/config.json: .*{re.escape(said)}'):
    from_json(to_json(Phase(6, 32, 8)) | {'format': number}, 'runs/x/config.json')


def test_changes_come_one_after_another_and_from_the_inside_out(monkeypatch):
  changes = {
      2: {'plm_jax.old:Stage': lambda saved: config_file.renamed(saved, updates='steps') | {
          'is': 'plm_jax.config:Phase', 'length': 2 * saved['length']}},
      3: {'plm_jax.config:Phase': config_file.lacking(batch=4),
          'plm_jax.config:TrainConfig': lambda saved: saved | {'keep': saved['phases'][0]['batch']}}}
  monkeypatch.setattr(config_file, 'CHANGES', changes)
  monkeypatch.setattr(config_file, 'FORMAT', 3)
  old = {'is': 'plm_jax.old:Stage', 'updates': 3, 'length': 16}
  train = from_json({'is': 'plm_jax.config:TrainConfig', 'phases': [old, old | {'batch': 9}]})
  assert train.phases == (Phase(3, 32, 4), Phase(3, 32, 9)) and train.keep == 4
  with pytest.raises(ConfigError, match=r'^x: .* is not what a version of before wrote'):
    from_json({'is': 'plm_jax.old:Stage', 'updates': 3}, 'x')


def test_the_number_comes_first_in_the_file():
  text = config_file.dump(recipes.find('bert_base')('test'))
  assert json.loads(text)['format'] == FORMAT
  assert text.startswith(f'{{\n "format": {FORMAT},\n "is": "plm_jax.config:')
