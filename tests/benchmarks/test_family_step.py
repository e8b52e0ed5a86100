"""Every family that the benchmark of training steps names can be built."""
import pytest

from benchmarks import family_step


@pytest.mark.parametrize('family', family_step.FAMILIES)
def test_the_benchmark_has_the_model_and_the_objective_of_a_family(family):
  config, objective = family_step.ours(family)
  assert config.vocab == family_step.VOCAB and objective.step_flops(config, 128) > 0
