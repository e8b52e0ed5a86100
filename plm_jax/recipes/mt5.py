"""mT5 (Xue et al. 2021).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mt5_small
    python -m plm_jax train mt5_small --data.path=gs://BUCKET/records      # 256 TPU v3 chips
    python -m plm_jax train mt5_small --scale=laptop                       # 2 CPU cores: 12 minutes
    python -m plm_jax train mt5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train mt5_small --scale=test                         # seconds

T5 v1.1 with a vocabulary of 250,000 tokens on mC4, 101 languages: a million steps with batch size
1,024 at sequence length 1,024. Give the records of every language in --data.path. Languages are
sampled by size to the power 0.3 (section 3.2), as --data.temperature sets.

umT5 (Chung et al. 2023) is mT5 with position biases of its own in every layer, and UniMax sampling
of languages. Its checkpoints can be read and written. There is no recipe, because the settings of
its training could not be verified; these options of mT5 give the model and the sampling:

    --family=umt5 --model.block.attention.position.no-shared --model.vocab=256384
    --data.temperature=1 --data.unimax-epochs=1
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import mt5
from plm_jax.objectives.span_corruption import MixtureOfDenoisers
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MT5Size(RecipeSize):
  """A size; all train for a million steps of 1,024 sequences of 1,024 tokens (section 3.2)."""

  peak: float = 0.01
  steps: int = 1_000_000
  length: int = 1024
  batch: int = 1024


SIZES = {
    # Parameters of transformers' MT5ForConditionalGeneration; published as 300M, 580M, 1.2B, 3.7B,
    # 13B (section 3.2).
    'small': MT5Size(model=mt5.small, parameters=300_176_768, pod='v3:16x16'),
    'base': MT5Size(model=mt5.base, parameters=582_401_280, pod='v3:16x32'),
    'large': MT5Size(model=mt5.large, parameters=1_229_581_312, pod='v4:8x8x8'),
    'xl': MT5Size(
        model=mt5.xl, parameters=3_742_619_648, pod='v4:8x8x8', mesh=MeshConfig(fsdp=32)),
    'xxl': MT5Size(
        model=mt5.xxl, parameters=12_921_057_280, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}


def make_run(row: MT5Size) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='mt5', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      objective=MixtureOfDenoisers(z_loss=1e-4),
      data=DataConfig(prepare=TEXT, assembly='packed', temperature=1 / 0.3), optim=OPTIM,
      train=row.make_train_config())


MT5 = RecipeFamily('mt5', __doc__, SIZES, make_run)
