import json
import re

import pytest

from plm_jax import recipes
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError, Phase
from plm_jax.config.serialization import FIRST_FORMAT, FORMAT, from_json, to_json


@pytest.mark.parametrize(('number', 'said'), [
    (FORMAT + 1,
     f'a newer version of plm_jax wrote this, in format {FORMAT + 1}: this version reads formats '
     f'up to'),
    (0, 'the format is a whole number from 1 on, got 0'), (None, 'got None'), (True, 'got True'),
    ('2', "got '2'"),
    (FIRST_FORMAT - 1,
     f'was written before plm_jax 0.1.0, in format {FIRST_FORMAT - 1}: this version reads formats '
     f'from '
                       f'{FIRST_FORMAT} on. Export the model with the version that wrote this, or '
                       f'train it again')])
def test_an_unknown_format_is_refused(number, said):
  with pytest.raises(ConfigError, match=f'^runs/x/config.json.*{re.escape(said)}'):
    from_json(to_json(Phase(6, 32, 8)) | {'format': number}, 'runs/x/config.json')


def test_a_configuration_without_a_number_is_older_than_every_release():
  saved = to_json(Phase(6, 32, 8))
  del saved['format']
  with pytest.raises(ConfigError,
                     match=r'^config\.json was written before plm_jax 0\.1\.0, in format 1: '):
    from_json(saved)


def test_changes_come_one_after_another_and_from_the_inside_out(monkeypatch):
  first = FIRST_FORMAT
  changes = {
      first + 1: {'plm_jax.old:Stage': lambda saved: serialization.rename_fields(updates='steps')(
          saved) | {
          'is': 'plm_jax.config.run:Phase', 'length': 2 * saved['length']},
          'plm_jax.old:Training': serialization.rename_class('plm_jax.config.run:TrainConfig')},
      first + 2: {'plm_jax.config.run:Phase': serialization.add_fields(batch=4),
                  'plm_jax.config.run:TrainConfig': lambda saved: saved
                  | {'keep': saved['phases'][0]['batch']}}}
  monkeypatch.setattr(serialization, 'MIGRATIONS', changes)
  monkeypatch.setattr(serialization, 'FORMAT', first + 2)
  old = {'is': 'plm_jax.old:Stage', 'updates': 3, 'length': 16}
  train = from_json({'format': first, 'is': 'plm_jax.old:Training',
                     'phases': [old, old | {'batch': 9}]})
  assert train.phases == (Phase(3, 32, 4), Phase(3, 32, 9)) and train.keep == 4
  with pytest.raises(ConfigError, match=r'^x: .* was not written by an earlier version'):
    from_json({'format': first, 'is': 'plm_jax.old:Stage', 'updates': 3}, 'x')


def test_the_number_comes_first_in_the_file():
  text = serialization.dump(recipes.find_recipe('bert_base')('test'))
  assert json.loads(text)['format'] == FORMAT
  assert text.startswith(f'{{\n "format": {FORMAT},\n "is": "plm_jax.config.run:')
