"""T5 v1.1 adapted to language modeling (Lester et al. 2021, arXiv:2104.08691, section 3.3).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_lm_base --tokenizer=T5
    python -m plm_jax train t5_lm_base --data.path=gs://BUCKET/records \\
        --warm-start=T5  # 256 TPU v3 chips
    python -m plm_jax train t5_lm_small --scale=laptop                     # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_lm_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train t5_lm_small --scale=test                       # seconds

T5 is a run of t5_v1_1 of this size, or its checkpoint. 100,000 more steps with batch size 2^11 on
C4 with the prefix language modeling objective: the encoder reads the start of a text, and the
decoder writes the rest, as long as possible (Raffel et al. 2020, section 3.3.1). The number of
steps is that of released_checkpoints.md of google-research/text-to-text-transfer-transformer. It
does not name the batch size or the learning rate: T5's batch size, and the learning rate 0.001 that
1/sqrt(step) has reached, are an assumption.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.objectives.span_corruption import MixtureOfDenoisers, PrefixLM
from plm_jax.recipes import t5_v1_1
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.recipes.t5 import OPTIM, TEXT

SIZES = {name: dataclasses.replace(row, peak=1e-3, steps=100_000)
         for name, row in t5_v1_1.SIZES.items()}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  objective = MixtureOfDenoisers(z_loss=1e-4, denoisers=(PrefixLM(),))
  optim = dataclasses.replace(OPTIM, peak=row.peak, warmup=0, schedule='constant')
  return PretrainRun(
      row.name, family='t5', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      objective=objective, data=DataConfig(prepare=TEXT, assembly='packed'), optim=optim,
      train=row.make_train_config())


T5_LM = RecipeFamily('t5_lm', __doc__, SIZES, make_run)
