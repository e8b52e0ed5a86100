"""T5 v1.1 adapted to go on with a text (Lester et al. 2021, arXiv:2104.08691, section 3.3).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_lm_base --tokenizer=T5
    python -m plm_jax train t5_lm_base --data.path=gs://BUCKET/records --warm-start=T5    # 256 TPU v3 chips
    python -m plm_jax train t5_lm_small --scale=laptop                                    # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_lm_small --scale=laptop --train.phases.0.steps=1600        # 5 minutes
    python -m plm_jax train t5_lm_small --scale=test                                      # seconds

T5 is a run of t5_v1_1 of this size, or its checkpoint. 100,000 more steps of 2^11 rows of C4, whose end is written of
its beginning, as long as may be (Raffel et al. 2020, section 3.3.1); the rate is what 1/sqrt(step) has come to, 0.001.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.objectives.spans import MixtureOfDenoisers, PrefixLM
from plm_jax.recipes import t5_v1_1
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.training.scales import scaled

SIZES = {name: dataclasses.replace(row, peak=1e-3, steps=100_000) for name, row in t5_v1_1.SIZES.items()}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  return scaled(Experiment(
      f't5_lm_{size}', family='t5', model=row.model('bfloat16'),
      objective=MixtureOfDenoisers(z_loss=1e-4, denoisers=(PrefixLM(),)),
      data=DataConfig(prepare=TEXT, assembly='packed'),
      optim=dataclasses.replace(OPTIM, peak=row.peak, warmup=0, schedule='constant'), train=row.train()), scale)
