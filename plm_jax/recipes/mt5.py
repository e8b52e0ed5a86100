"""mT5 (Xue et al. 2021).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mt5_small
    python -m plm_jax train mt5_small --data.path=gs://BUCKET/records    # 256 TPU v3 chips
    python -m plm_jax train mt5_small --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m plm_jax train mt5_small --scale=test                       # seconds

T5 v1.1 with a vocabulary of 250,000 pieces on mC4, 101 languages: a million steps of 1,024 rows of 1,024 tokens. Give
the records of every language in --data.path: their shares are of their sizes to the power of 0.3 (section 3.2), as
--data.temperature says.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.models import mt5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.recipes.table import Size
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' MT5ForConditionalGeneration; published as 300M (table 3).
    'small': Size(model=mt5.small, parameters=300_176_768, peak=0.01, steps=1_000_000, length=1024, batch=1024,
                  pod='v3:16x16')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  return scaled(Experiment(
      f'mt5_{size}', family='mt5', model=row.model('bfloat16'), objective=MixtureOfDenoisers(z_loss=1e-4),
      data=DataConfig(prepare=TEXT, assembly='packed', temperature=1 / 0.3), optim=OPTIM, train=row.train()), scale)
