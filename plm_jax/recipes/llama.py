"""LLaMA, as published (Touvron et al. 2023, section 2 and table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=llama_7b
    python -m plm_jax train llama_7b --data.path=gs://BUCKET/records      # 64 TPU v4 chips, or more
    python -m plm_jax train llama_7b --scale=laptop                       # 2 CPU cores: 48 minutes
    python -m plm_jax train llama_7b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train llama_7b --scale=test                         # seconds

A causal language model with rotary positions, RMSNorm and SwiGLU: 1.0 trillion tokens (33b and 65b:
1.4) with batch size 2,048 at sequence length 2,048, here with gradient accumulation. The paper used
A100 GPUs. Its corpus is CommonCrawl, C4, GitHub, Wikipedia, books, arXiv and Stack Exchange: give
--data.path and --data.weights.

The paper does not state the initialization of the weights or Adam's epsilon, here 0.02 and 1e-8. It
does not state whether documents in one sequence attend to each other; here they do.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

# Parameters, peak learning rates and tokens of table 2: 6.7B, 13.0B, 32.5B, 65.2B; batches of 4M
# tokens. Hours: table 15.
SIZES = {
    '7b': RecipeSize(
        model=llama.llama_7b, parameters=6_738_415_616, peak=3e-4, steps=238_419, length=2048,
        batch=2048, accumulate=16, remat='dots', pod='v4:4x4x4', mesh=MeshConfig(fsdp=64),
        published_hardware='82,432 hours of an A100'),
    '13b': RecipeSize(
        model=llama.llama_13b, parameters=13_015_864_320, peak=3e-4, steps=238_419, length=2048,
        batch=2048, accumulate=8, remat='dots', pod='v4:4x4x8', mesh=MeshConfig(fsdp=128),
        published_hardware='135,168 hours of an A100'),
    '33b': RecipeSize(
        model=llama.llama_33b, parameters=32_528_943_616, peak=1.5e-4, steps=333_786, length=2048,
        batch=2048, accumulate=16, remat='dots', pod='v4:4x8x8', mesh=MeshConfig(fsdp=64, tensor=4),
        published_hardware='530,432 hours of an A100'),
    '65b': RecipeSize(
        model=llama.llama_65b, parameters=65_285_660_672, peak=1.5e-4, steps=333_786, length=2048,
        batch=2048, accumulate=8, remat='dots', pod='v4:8x8x8', mesh=MeshConfig(fsdp=128, tensor=4),
        published_hardware='2,048 A100, 21 days')}
TEXT = TextConfig(kind='sentencepiece-bpe', layout='llama', lowercase=False, sentences='none')


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family='llama', objective=CausalLM(isolated=False), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=TEXT, assembly='packed'), train=row.make_train_config())


LLAMA = RecipeFamily('llama', __doc__, SIZES, make_run)
