"""The estimated duration of runs at the laptop scale."""
import dataclasses

import pytest

from plm_jax import recipes
from plm_jax.config.run import Phase, TrainConfig
from plm_jax.recipes.scale_presets import describe_duration


def test_settings_relative_to_the_run_or_parameters_do_not_scale():
  paper, laptop, test = (recipes.find_recipe('gpt_bert_strict_small')(scale)
                         for scale in ('paper', 'laptop', 'test'))
  assert (
    laptop.optim.peak == paper.optim.peak == 0.0141
    and recipes.find_recipe('albert_base')('laptop').optim.peak == 2e-3
  )
  shares = [1 / (1 - run.optim.ema) / run.train.steps for run in (paper, laptop)]
  assert shares[0] == pytest.approx(shares[1]) == pytest.approx(
      0.128, rel=1e-3) and test.optim.ema < 0.1


@pytest.mark.parametrize(('name', 'said'), [
    ('gpt2_small',
     'about 40 minutes on two CPU cores; a run of 5, from which less can be expected: '
                   '--train.phases.0.steps=700 --output=runs/gpt2_small-laptop-short'),
    ('bart_base', 'about 23 minutes on two CPU cores; a run of 5, from which less can be expected: '
                  '--train.phases.0.steps=800 --output=runs/bart_base-laptop-short'),
    ('elmo_small',
     'about 16 minutes on two CPU cores; a run of 5, from which less can be expected: '
                   '--train.phases.0.steps=1200 --output=runs/elmo_small-laptop-short'),
    ('t5_small', 'about 12 minutes on two CPU cores; a run of 5, from which less can be expected: '
                 '--train.phases.0.steps=1600 --output=runs/t5_small-laptop-short'),
    ('bert_base', '')])
def test_a_long_run_states_its_duration_and_a_shorter_recipe(name, said):
  run = recipes.find_recipe(name)('laptop')
  assert describe_duration(run) == said
  assert (
    describe_duration(recipes.find_recipe(name)('test'))
    == describe_duration(recipes.find_recipe(name)('paper')) == ''
  )
  phase = run.train.phases[0]
  short = dataclasses.replace(run, train=TrainConfig(
      phases=(Phase(700, phase.length, phase.batch),)))
  assert describe_duration(short) == ''


@pytest.mark.parametrize('name', [
    'bert_base', 'roberta_base', 'deberta_v3_base', 'xlnet_base', 'bart_base', 'glm_base'])
def test_a_small_model_reads_longer_texts_than_it_is_pre_trained_on(name):
  run = recipes.find_recipe(name)('laptop')
  assert run.model.max_length == 128 > run.train.phases[0].length
  assert recipes.find_recipe('gpt2_small')('laptop').model.max_length == 256
