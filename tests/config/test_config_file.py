import json
import re

import pytest

from plm_jax import recipes
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError, Phase
from plm_jax.config.serialization import FORMAT, from_json, to_json
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import HeadConfig
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.span_corruption import MixtureOfDenoisers, SpanCorruption
from plm_jax.tasks.token_classification import TaggingTask

OPTIM = {'is': 'plm_jax.optim:OptimConfig', 'peak': 0.25}


def test_what_has_no_number_is_of_the_first_format():
  config = from_json({'is': 'plm_jax.config:Experiment', 'name': 'old', 'optim': OPTIM})
  assert config.optim.peak == 0.25
  with pytest.raises(ConfigError, match=re.escape('this version of plm_jax has no plm_jax.optim:OptimConfig')):
    from_json({'format': FORMAT, 'is': 'plm_jax.config.run:PretrainRun', 'name': 'old', 'optim': OPTIM})


@pytest.mark.parametrize(('number', 'said'), [
    (FORMAT + 1, f'a newer version of plm_jax wrote this, in format {FORMAT + 1}: this version reads formats up to'),
    (0, 'the format is a whole number from 1 on, got 0'), (None, 'got None'), (True, 'got True'), ('2', "got '2'")])
def test_a_format_that_is_not_known_is_refused(number, said):
  with pytest.raises(ConfigError, match=f'^runs/x/config.json: .*{re.escape(said)}'):
    from_json(to_json(Phase(6, 32, 8)) | {'format': number}, 'runs/x/config.json')


def test_changes_come_one_after_another_and_from_the_inside_out(monkeypatch):
  changes = {
      2: {'plm_jax.old:Stage': lambda saved: serialization.rename_fields(saved, updates='steps') | {
          'is': 'plm_jax.config.run:Phase', 'length': 2 * saved['length']}},
      3: {'plm_jax.config.run:Phase': serialization.add_fields(batch=4),
          'plm_jax.config.run:TrainConfig': lambda saved: saved | {'keep': saved['phases'][0]['batch']}}}
  monkeypatch.setattr(serialization, 'MIGRATIONS', changes)
  monkeypatch.setattr(serialization, 'FORMAT', 3)
  old = {'is': 'plm_jax.old:Stage', 'updates': 3, 'length': 16}
  train = from_json({'is': 'plm_jax.config.run:TrainConfig', 'phases': [old, old | {'batch': 9}]})
  assert train.phases == (Phase(3, 32, 4), Phase(3, 32, 9)) and train.keep == 4
  with pytest.raises(ConfigError, match=r'^x: .* was not written by an earlier version'):
    from_json({'is': 'plm_jax.old:Stage', 'updates': 3}, 'x')


def test_the_number_comes_first_in_the_file():
  text = serialization.dump(recipes.find_recipe('bert_base')('test'))
  assert json.loads(text)['format'] == FORMAT
  assert text.startswith(f'{{\n "format": {FORMAT},\n "is": "plm_jax.config.run:')


@pytest.mark.parametrize('number', [4, 5])
def test_fields_with_earlier_names_are_read(number):
  place = 'spans' if number < 5 else 'span_corruption'
  spans = {'is': f'plm_jax.objectives.{place}:SpanCorruption', 'rate': 0.5, 'mean': 8.0, 'marks': 'single', 'mode': 3}
  old = {'is': f'plm_jax.objectives.{place}:MixtureOfDenoisers', 'denoisers': [spans], 'sentinels': 90}
  found = from_json(old | {'format': number})
  assert found == MixtureOfDenoisers(denoisers=(SpanCorruption(0.5, 8.0, 'single', 3),), sentinels=90)
  masked = {'is': 'plm_jax.objectives.mlm:MaskedLM', 'rate': 0.3, 'last_rate': 0.1, 'held_out_rate': None,
            'unit': 'word', 'similar': 'list.txt', 'says_language': True}
  assert from_json(masked | {'format': number}) == MaskedLM(
      mask_rate=0.3, final_mask_rate=0.1, unit='word', synonyms='list.txt', language_ids=True)
  module = 'tagging' if number < 5 else 'token_classification'
  tagging = {'is': f'plm_jax.tasks.{module}:TaggingTask', 'measures': 'accuracy'}
  assert from_json(tagging | {'format': number}) == TaggingTask(metric='accuracy')


@pytest.mark.parametrize('number', [3, 5])
def test_an_encoder_of_before_comes_apart(number):
  old = {'is': 'plm_jax.architectures.encoder:EncoderConfig', 'vocab': 40, 'types': 1, 'languages': 3, 'tasks': 2,
         'absolute': 'scaled', 'embed_dim': 16, 'norm_embedded': True, 'summed': False, 'shifted': True}
  embeddings = EmbeddingConfig(types=1, absolute='scaled', languages=3, tasks=2, width=16, norm=True)
  assert from_json(old | {'format': number}) == EncoderConfig(
      vocab=40, embeddings=embeddings, head=HeadConfig(shifted=True))
  head = {'is': 'plm_jax.layers.heads:HeadConfig', 'transform': False}
  assert from_json(old | {'format': number, 'head': head}).head == HeadConfig(transform=False, shifted=True)


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


def test_line_breaks_of_format_6_are_exact_text():
  text = {'is': 'plm_jax.data.prepare_config:TextConfig', 'kind': 'bytes'}
  assert from_json(text | {'format': 6, 'newlines': True}).sentences == 'none'
  assert from_json(text | {'format': 6, 'newlines': False}).sentences == 'split'
  objective = {'is': 'plm_jax.objectives.clm:CausalLM', 'isolated': False, 'reserve': 4}
  assert from_json(objective | {'format': 6}) == CausalLM(isolated=False)
