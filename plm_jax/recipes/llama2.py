"""LLaMA 2 (Touvron et al. 2023, arXiv:2307.09288, section 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=llama2_7b
    python -m plm_jax train llama2_7b --data.path=gs://BUCKET/records    # 128 TPU v4 chips, or more
    python -m plm_jax train llama2_7b --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train llama2_7b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train llama2_7b --scale=test                       # seconds

LLaMA with rows of 4,096 tokens and an epsilon of 1e-5, of which 70b has eight query heads share a key head: 2.0
trillion tokens in batches of 4 million. Documents of a row see each other. How weights begin is not told, here 0.02.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.recipes.llama import TEXT
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class LLaMA2Size(Size):
  """And what all sizes share: 2 trillion tokens, 1,024 rows of 4,096 in an update (section 2.2)."""

  steps: int = 476_837
  length: int = 4096
  batch: int = 1024


# Parameters by transformers' LlamaForCausalLM; published as 7B, 13B, 70B. Peaks and hours: section 2.2, tables 1 and 2.
SIZES = {
    '7b': LLaMA2Size(model=llama.llama2_7b, parameters=6_738_415_616, peak=3e-4, accumulate=8, remat='dots',
                     pod='v4:4x4x8', mesh=MeshConfig(fsdp=64), took='184,320 hours of an A100'),
    '13b': LLaMA2Size(model=llama.llama2_13b, parameters=13_015_864_320, peak=3e-4, accumulate=8, remat='full',
                      pod='v4:4x4x8', mesh=MeshConfig(fsdp=128), took='368,640 hours of an A100'),
    '70b': LLaMA2Size(model=llama.llama2_70b, parameters=68_976_648_192, peak=1.5e-4, accumulate=8, remat='dots',
                      pod='v4:8x8x8', mesh=MeshConfig(fsdp=128, tensor=4), took='1,720,320 hours of an A100')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=2000, schedule='cosine', floor=0.1, b2=0.95, eps=1e-5, bias_correction=True,
      weight_decay=0.1)
  return scaled(Experiment(
      f'llama2_{size}', family='llama', objective=CausalLM(isolated=False), optim=optim,
      model=row.backbone(),
      data=DataConfig(prepare=TEXT, assembly='packed'), train=row.train()), scale)
