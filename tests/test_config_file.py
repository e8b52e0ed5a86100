import json
import re

import pytest

from plm_jax import config_file, recipes
from plm_jax.config import ConfigError, Phase
from plm_jax.config_file import FORMAT, from_json, to_json
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope

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


def test_a_block_of_before_comes_apart():
  """0 is None, three kinds of biases are two, two booleans a name."""
  old = {'is': 'plm_jax.layers.block:BlockConfig', 'width': 32, 'heads': 4, 'head_size': 0, 'kv_heads': 2,
         'mlp_dim': 64, 'activation': 'relu', 'gated': True, 'norm': 'rms', 'norm_eps': 1e-6, 'norm_at': 'pre',
         'bias': True, 'attention_bias': ['query', 'out'], 'mlp_bias': False, 'logit_scale': 0.0,
         'position': {'is': 'plm_jax.layers.rope:Rope', 'share': 0.5}, 'cross': False, 'dropout': 0.2,
         'attention_dropout': 0.3, 'mlp_dropout': 0.4, 'init_std': 0.5, 'out_std': 0.25, 'fan_in': False}
  assert from_json(old) == BlockConfig(
      width=32, heads=4, kv_heads=2, mlp_dim=64, norm_at='pre', dropout=0.2, norm=NormConfig('rms', 1e-6),
      attention=AttentionConfig(('query', 'out'), dropout=0.3, position=Rope(share=0.5)),
      mlp=MlpConfig('relu', gated=True, bias=False, dropout=0.4), init=InitConfig(0.5, out_std=0.25))
  none = from_json(old | {'bias': False, 'mlp_bias': True, 'head_size': 16, 'logit_scale': 1.0, 'out_std': 0.0,
                          'fan_in': True, 'kv_heads': 0})
  assert (none.attention.bias, none.mlp.bias, none.head_size, none.kv_heads) == ((), False, 16, None)
  assert (none.attention.scale, none.init) == (1.0, InitConfig(0.5, fan='in'))
  assert from_json(old | {'fan_in': True, 'fan_out': True}).init.fan == 'average'
  assert from_json({'is': 'plm_jax.layers.block:BlockConfig'}) == BlockConfig()
