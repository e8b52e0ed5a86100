"""ByT5 (Xue et al. 2022).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=byt5_small
    python -m plm_jax train byt5_small --data.path=gs://BUCKET/records    # 256 TPU v3 chips
    python -m plm_jax train byt5_small --scale=laptop                     # 2 CPU cores: 12 minutes
    python -m plm_jax train byt5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train byt5_small --scale=test                       # seconds

An encoder of three times the decoder's layers reads bytes, on mC4: a million steps of 1,024 rows of 1,024 bytes, of
which spans of twenty on average, 15% of the text, are left out and are the target (section 3.1). Shares of languages as
in mT5.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import MixtureOfDenoisers, SpanCorruption
from plm_jax.recipes.mt5 import MT5Size
from plm_jax.recipes.t5 import OPTIM
from plm_jax.sharding import MeshConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' T5ForConditionalGeneration; published as 300M, 582M, 1.23B, 3.74B, 12.9B (table 1).
    'small': MT5Size(model=t5.byt5_small, parameters=299_637_760, pod='v3:16x16'),
    'base': MT5Size(model=t5.byt5_base, parameters=581_653_248, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    'large': MT5Size(model=t5.byt5_large, parameters=1_228_183_552, pod='v4:8x8x8'),
    'xl': MT5Size(model=t5.byt5_xl, parameters=3_737_801_728, pod='v4:8x8x8', mesh=MeshConfig(fsdp=32)),
    'xxl': MT5Size(model=t5.byt5_xxl, parameters=12_906_899_328, pod='v4:8x8x16', mesh=MeshConfig(fsdp=32, tensor=4))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  objective = MixtureOfDenoisers(z_loss=1e-4, denoisers=(SpanCorruption(mean=20.0),))
  text = DataConfig(prepare=TextConfig(kind='bytes'), assembly='packed', temperature=1 / 0.3)
  return scaled(Experiment(
      f'byt5_{size}', family='t5', model=row.model('bfloat16'), objective=objective, data=text, optim=OPTIM,
      train=row.train()), scale)
