"""LLaMA 3 (Dubey et al. 2024, arXiv:2407.21783, sections 3.2 to 3.4).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=llama3_8b
    python -m plm_jax train llama3_8b --data.path=gs://BUCKET/records    # 512 TPU v4 chips, or more
    python -m plm_jax train llama3_8b --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train llama3_8b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train llama3_8b --scale=test                       # seconds

128,256 pieces of bytes, and documents of a row that do not see each other: 15.6 trillion tokens in batches of 4, 8 and
16 million, the first rows of 4,096 tokens, then of 8,192 (section 3.4.1, which tells this of 405b; peaks of all are in
table 3). Rows of up to 131,072 tokens, the last 800 billion tokens, for which rope is scaled, and the annealing of the
end are left out. Epsilon and how weights begin are not told, here 1e-8 and 0.02.
"""

from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.settings import TextConfig
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

# 252 million tokens in batches of 4 million, 2.87 trillion with those of 8 million, 15.6 trillion in all.
PHASES = (Phase(60, 4096, 1024), Phase(342_101, 8192, 1024), Phase(758_767, 8192, 2048))
# Parameters by transformers' LlamaForCausalLM; published as 8B, 70B, 405B. Peaks: table 3.
SIZES = {
    '8b': Size(model=llama.llama3_8b, parameters=8_030_261_248, peak=3e-4, batch=2048, accumulate=4, remat='full',
               pod='v4:8x8x8', mesh=MeshConfig(fsdp=128, tensor=2)),
    '70b': Size(model=llama.llama3_70b, parameters=70_553_706_496, peak=1.5e-4, batch=2048, accumulate=4, remat='full',
                pod='v4:8x8x16', mesh=MeshConfig(fsdp=256, tensor=4)),
    '405b': Size(model=llama.llama3_405b, parameters=405_853_388_800, peak=8e-5, batch=2048, accumulate=8, remat='full',
                 pod='v4:8x16x16', mesh=MeshConfig(fsdp=128, tensor=16), took='16,384 H100')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=8000, schedule='cosine', floor=0.01, b2=0.95, eps=1e-8, bias_correction=True,
      weight_decay=0.1)
  return scaled(Experiment(
      f'llama3_{size}', family='llama', objective=CausalLM(isolated=True), optim=optim,
      model=row.backbone(),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, newlines=True),
                      assembly='packed'),
      train=TrainConfig(phases=PHASES, accumulate=row.accumulate)), scale)
