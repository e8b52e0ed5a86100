"""T5 (Raffel et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_base
    python -m plm_jax train t5_base --data.path=gs://BUCKET/records                    # 256 TPU v3 chips, or more
    python -m plm_jax train t5_11b --data.path=gs://BUCKET/records     # 1,024 TPU v4 chips
    python -m plm_jax train t5_small --scale=laptop                                    # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_small --scale=laptop --train.phases.0.steps=1600        # 5 minutes
    python -m plm_jax train t5_small --scale=test                                      # seconds

On C4, 750 GB of English web pages: spans of three tokens on average, 15% of the text, are left out and are the target.
The paper's baseline saw 2^35 tokens in 2^19 steps of 128 rows of 512 (section 3.1.2); the released models, as here,
2^40 in a million steps of 2^11 rows (section 3.7), with supervised tasks mixed in: those come after it here, by
t5_small_tasks. Adafactor, at a rate of 1/sqrt(max(step, 10^4)), with attention's heads joined in its factors; a z loss
of 1e-4, as in T5X's base.gin and in every descendant.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Size(Size):
  """And what all sizes share: a million steps of 2^11 rows (section 3.7)."""

  peak: float = 0.01
  steps: int = 1_000_000
  batch: int = 2048


# Parameters by transformers' T5ForConditionalGeneration; published as 60M, 220M, 770M, 3B, 11B (section 3.7).
SIZES = {
    'small': T5Size(model=t5.small, parameters=60_506_624, pod='v3:8x8'),
    'base': T5Size(model=t5.base, parameters=222_903_552, pod='v3:16x16', mesh=MeshConfig(fsdp=32)),
    'large': T5Size(model=t5.large, parameters=737_668_096, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    '3b': T5Size(model=t5.t5_3b, parameters=2_851_598_336, pod='v4:8x8x8'),
    '11b': T5Size(model=t5.t5_11b, parameters=11_307_321_344, pod='v4:8x8x16', mesh=MeshConfig(fsdp=32, tensor=4))}
# What its descendants have too.
TEXT = TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False)
OPTIM = OptimConfig(
    kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0,
    heads='joined')


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  return scaled(Experiment(
      f't5_{size}', family='t5', model=row.model('bfloat16'), objective=MixtureOfDenoisers(z_loss=1e-4),
      data=DataConfig(prepare=TEXT, assembly='packed'), optim=OPTIM, train=row.train()), scale)
