"""mT5 (Xue et al. 2021).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mt5_small
    python -m plm_jax train mt5_small --data.path=gs://BUCKET/records    # 256 TPU v3 chips
    python -m plm_jax train mt5_small --scale=laptop                     # 2 CPU cores: 12 minutes
    python -m plm_jax train mt5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train mt5_small --scale=test                       # seconds

T5 v1.1 with a vocabulary of 250,000 pieces on mC4, 101 languages: a million steps of 1,024 rows of 1,024 tokens. Give
the records of every language in --data.path: their shares are of their sizes to the power of 0.3 (section 3.2), as
--data.temperature says.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.models import mt5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.scales import scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class MT5Size(Size):
  """And what all sizes share: a million steps of 1,024 rows of 1,024 tokens (section 3.2)."""

  peak: float = 0.01
  steps: int = 1_000_000
  length: int = 1024
  batch: int = 1024


SIZES = {
    # Parameters by transformers' MT5ForConditionalGeneration; published as 300M, 580M, 1.2B, 3.7B, 13B (section 3.2).
    'small': MT5Size(model=mt5.small, parameters=300_176_768, pod='v3:16x16'),
    'base': MT5Size(model=mt5.base, parameters=582_401_280, pod='v3:16x32'),
    'large': MT5Size(model=mt5.large, parameters=1_229_581_312, pod='v4:8x8x8'),
    'xl': MT5Size(model=mt5.xl, parameters=3_742_619_648, pod='v4:8x8x8', mesh=MeshConfig(fsdp=32)),
    'xxl': MT5Size(model=mt5.xxl, parameters=12_921_057_280, pod='v4:8x8x16', mesh=MeshConfig(fsdp=32, tensor=4))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  return scaled(Experiment(
      f'mt5_{size}', family='mt5', model=row.model('bfloat16'), objective=MixtureOfDenoisers(z_loss=1e-4),
      data=DataConfig(prepare=TEXT, assembly='packed', temperature=1 / 0.3), optim=OPTIM, train=row.train()), scale)
