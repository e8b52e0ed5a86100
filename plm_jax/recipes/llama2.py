"""LLaMA 2 (Touvron et al. 2023, arXiv:2307.09288, section 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=llama2_7b
    python -m plm_jax train llama2_7b --data.path=gs://BUCKET/records    # 128 TPU v4 chips, or more
    python -m plm_jax train llama2_7b --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train llama2_7b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train llama2_7b --scale=test                       # seconds

LLaMA with sequence length 4,096 and an epsilon of 1e-5. In 70b, eight query heads share a key-value
head (grouped-query attention). Training takes 2.0 trillion tokens in batches of 4 million; betas
0.9 and 0.95, a warmup of 2,000 steps, a cosine to a tenth, a weight decay of 0.1 and gradient
clipping at 1 (section 2.2). Documents in one sequence attend to each other. The initialization of
the weights is not published, here 0.02.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.llama import TEXT
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LLaMA2Size(RecipeSize):
  """A size; all train on 2 trillion tokens, 1,024 sequences of 4,096 per update (section 2.2)."""

  steps: int = 476_837
  length: int = 4096
  batch: int = 1024


# Parameters of transformers' LlamaForCausalLM; published as 7B, 13B, 70B. Peak learning rates and
# hours: section 2.2, tables 1 and 2.
SIZES = {
    '7b': LLaMA2Size(
        model=llama.llama2_7b, parameters=6_738_415_616, peak=3e-4, accumulate=8, remat='dots',
        pod='v4:4x4x8', mesh=MeshConfig(fsdp=64), published_hardware='184,320 hours of an A100'),
    '13b': LLaMA2Size(
        model=llama.llama2_13b, parameters=13_015_864_320, peak=3e-4, accumulate=8, remat='dots',
        pod='v4:4x4x8', mesh=MeshConfig(fsdp=128), published_hardware='368,640 hours of an A100'),
    '70b': LLaMA2Size(
        model=llama.llama2_70b, parameters=68_976_648_192, peak=1.5e-4, accumulate=8, remat='dots',
        pod='v4:8x8x8', mesh=MeshConfig(fsdp=128, tensor=4),
        published_hardware='1,720,320 hours of an A100')}


def make_run(row: LLaMA2Size) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='cosine', floor=0.1, b2=0.95, eps=1e-5,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family='llama', objective=CausalLM(isolated=False), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=TEXT, assembly='packed'), train=row.make_train_config())


LLAMA2 = RecipeFamily('llama2', __doc__, SIZES, make_run)
