"""UL2 (Tay et al. 2023).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ul2_20b
    python -m plm_jax train ul2_20b --data.path=gs://BUCKET/records        # 512 TPU v4 chips
    python -m plm_jax train ul2_20b --scale=laptop                         # 2 CPU cores: 12 minutes
    python -m plm_jax train ul2_20b --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train ul2_20b --scale=test                           # seconds

An encoder-decoder of 32 + 32 layers of width 4,096 with SwiGLU, on C4: two million steps with batch
size 1,024 at sequence length 512. The objective is a mixture of seven denoisers, one per sequence:
spans of 3 or 8 tokens on average, 15% of the text; the end of the text; and spans that cover half
of the text or have 64 tokens. A token at the start names the kind of denoiser, one of three
(section 3.1). Half of a text in spans of three needs more sentinels than T5's tokenizer has. The
numbers of steps and sequences, and the absence of dropout, follow the model card of google/ul2.

Adafactor at the learning rate 1/sqrt(max(step, 10^4)) and a z loss of 1e-4 are an assumption from
T5's released code: no configuration of a pre-training run was released.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5
from plm_jax.objectives.span_corruption import UL2_DENOISERS, MixtureOfDenoisers
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.sharding import MeshConfig

SIZES = {
    # Parameters with tied embeddings; published as 19.5B. With untied ones, as in T5 v1.1, there
    # would be 19.59B.
    '20b': RecipeSize(
        model=t5.ul2_20b, parameters=19_459_613_696, peak=0.01, steps=2_000_000, length=512,
        batch=1024, pod='v4:8x8x8', mesh=MeshConfig(fsdp=128))}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = dataclasses.replace(TEXT, sentinels=160)
  return PretrainRun(
      row.name, family='t5', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      objective=MixtureOfDenoisers(UL2_DENOISERS, sentinels=160, z_loss=1e-4),
      data=DataConfig(prepare=text, assembly='packed'), optim=OPTIM,
      train=row.make_train_config())


UL2 = RecipeFamily('ul2', __doc__, SIZES, make_run)
