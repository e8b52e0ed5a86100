"""What the laptop's scale says of how long it takes."""
import dataclasses

import pytest

from plm_jax import recipes
from plm_jax.config import Phase, TrainConfig
from plm_jax.training.scales import duration


def test_what_is_measured_by_the_run_and_by_its_parameters_stays_so():
  paper, laptop, test = (recipes.find('gpt_bert_strict_small')(scale) for scale in ('paper', 'laptop', 'test'))
  assert laptop.optim.peak == paper.optim.peak == 0.0141 and recipes.find('albert_base')('laptop').optim.peak == 2e-3
  shares = [1 / (1 - run.optim.ema) / run.train.steps for run in (paper, laptop)]
  assert shares[0] == pytest.approx(shares[1]) == pytest.approx(0.128, rel=1e-3) and test.optim.ema < 0.1


@pytest.mark.parametrize(('name', 'said'), [
    ('gpt2_small', 'about 40 minutes on two CPU cores; a run of 5, from which less can be expected: '
                   '--train.phases.0.steps=700 --output=runs/gpt2_small-laptop-short'),
    ('bart_base', 'about 23 minutes on two CPU cores; a run of 5, from which less can be expected: '
                  '--train.phases.0.steps=800 --output=runs/bart_base-laptop-short'),
    ('elmo_small', 'about 16 minutes on two CPU cores; a run of 5, from which less can be expected: '
                   '--train.phases.0.steps=1200 --output=runs/elmo_small-laptop-short'),
    ('t5_small', 'about 12 minutes on two CPU cores; a run of 5, from which less can be expected: '
                 '--train.phases.0.steps=1600 --output=runs/t5_small-laptop-short'),
    ('bert_base', '')])
def test_a_long_run_says_so_and_names_a_short_one(name, said):
  run = recipes.find(name)('laptop')
  assert duration(run) == said
  assert duration(recipes.find(name)('test')) == duration(recipes.find(name)('paper')) == ''
  phase = run.train.phases[0]
  short = dataclasses.replace(run, train=TrainConfig(phases=(Phase(700, phase.length, phase.batch),)))
  assert duration(short) == ''
