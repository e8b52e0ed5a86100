"""What the laptop's scale says of how long it takes."""
import dataclasses

import pytest

from plm_jax import recipes
from plm_jax.config import Phase, TrainConfig
from plm_jax.training.scales import duration


@pytest.mark.parametrize(('name', 'said'), [
    ('gpt2_small', 'about 40 minutes on two CPU cores; a run of 5, from which less can be expected: '
                   '--train.phases.0.steps=700 --output=runs/gpt2_small-laptop-short'),
    ('bart_base', 'about 15 minutes on two CPU cores; a run of 5, from which less can be expected: '
                  '--train.phases.0.steps=1300 --output=runs/bart_base-laptop-short'),
    ('elmo_small', 'about 40 minutes on two CPU cores; a run of 5, from which less can be expected: '
                   '--train.phases.0.steps=500 --output=runs/elmo_small-laptop-short'),
    ('bert_base', '')])
def test_a_long_run_says_so_and_names_a_short_one(name, said):
  run = recipes.find(name)('laptop')
  assert duration(run) == said
  assert duration(recipes.find(name)('test')) == duration(recipes.find(name)('paper')) == ''
  phase = run.train.phases[0]
  short = dataclasses.replace(run, train=TrainConfig(phases=(Phase(700, phase.length, phase.batch),)))
  assert duration(short) == ''
