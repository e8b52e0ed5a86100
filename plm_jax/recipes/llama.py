"""LLaMA: versions 1, 2 and 3."""
import functools

from plm_jax import validation
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

LLAMA_DESCRIPTION = """\
LLaMA, as published (Touvron et al. 2023, section 2 and table 2).

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
# Parameters, peak learning rates and tokens of table 2: 6.7B, 13.0B, 32.5B, 65.2B; batches of 4M
# tokens. Hours: table 15.
LLAMA_SIZES = {
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


def make_llama_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family='llama', objective=CausalLM(isolated=False), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=TEXT, assembly='packed'), train=row.make_train_config())


LLAMA = RecipeFamily('llama', LLAMA_DESCRIPTION, LLAMA_SIZES, make_llama_run)


LLAMA2_DESCRIPTION = """\
LLaMA 2 (Touvron et al. 2023, arXiv:2307.09288, section 2).

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


# All train on 2 trillion tokens, 1,024 sequences of 4,096 per update (section 2.2).
LLaMA2Size = functools.partial(
    RecipeSize, steps=476_837, length=4096, batch=1024, accumulate=8, remat='dots')
# Parameters of transformers' LlamaForCausalLM; published as 7B, 13B, 70B. Peak learning rates and
# hours: section 2.2, tables 1 and 2.
LLAMA2_SIZES = {
    '7b': LLaMA2Size(
        model=llama.llama2_7b, parameters=6_738_415_616, peak=3e-4, pod='v4:4x4x8',
        mesh=MeshConfig(fsdp=64), published_hardware='184,320 hours of an A100'),
    '13b': LLaMA2Size(
        model=llama.llama2_13b, parameters=13_015_864_320, peak=3e-4, pod='v4:4x4x8',
        mesh=MeshConfig(fsdp=128), published_hardware='368,640 hours of an A100'),
    '70b': LLaMA2Size(
        model=llama.llama2_70b, parameters=68_976_648_192, peak=1.5e-4, pod='v4:8x8x8',
        mesh=MeshConfig(fsdp=128, tensor=4),
        published_hardware='1,720,320 hours of an A100')}


LLAMA2 = RecipeFamily(
    'llama2', LLAMA2_DESCRIPTION, LLAMA2_SIZES,
    lambda row: validation.with_paths(make_llama_run(row), {'optim.eps': 1e-5}))


LLAMA3_DESCRIPTION = """\
LLaMA 3 (Dubey et al. 2024, arXiv:2407.21783, sections 3.2 to 3.4).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=llama3_8b
    python -m plm_jax train llama3_8b --data.path=gs://BUCKET/records    # 512 TPU v4 chips, or more
    python -m plm_jax train llama3_8b --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train llama3_8b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train llama3_8b --scale=test                       # seconds

A vocabulary of 128,256 byte-level tokens, and documents in one sequence that do not attend to each
other. Training takes 15.6 trillion tokens in batches of 4, 8 and 16 million; the first sequences
have 4,096 tokens, later ones 8,192. Section 3.4.1 describes this for 405b; table 3 has the peak
learning rates of all sizes. The learning rate falls along a cosine to a hundredth over 1,200,000
updates, about 99,000 more than the run has (section 3.4.1).

Left out: sequences of up to 131,072 tokens (the last 800 billion tokens, with scaled rotary
positions), and the annealing at the end. Adam's epsilon and the initialization of the weights are
not published, here 1e-8 and 0.02.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
# 252 million tokens in batches of 4 million, up to 2.87 trillion in batches of 8 million, and up to
# 15.6 trillion in batches of 16 million.
LLAMA3_PHASES = (Phase(60, 4096, 1024), Phase(342_101, 8192, 1024), Phase(758_767, 8192, 2048))
# Parameters of transformers' LlamaForCausalLM; published as 8B, 70B, 405B. Peak learning rates:
# table 3.
LLAMA3_SIZES = {
    '8b': RecipeSize(
        model=llama.llama3_8b, parameters=8_030_261_248, peak=3e-4, length=8192, batch=2048,
        accumulate=4, remat='full', pod='v4:8x8x8', mesh=MeshConfig(fsdp=128, tensor=2)),
    '70b': RecipeSize(
        model=llama.llama3_70b, parameters=70_553_706_496, peak=1.5e-4, length=8192, batch=2048,
        accumulate=4, remat='full', pod='v4:8x8x16', mesh=MeshConfig(fsdp=256, tensor=4)),
    '405b': RecipeSize(
        model=llama.llama3_405b, parameters=405_853_388_800, peak=8e-5, length=8192, batch=2048,
        accumulate=8, remat='full', pod='v4:8x16x16', mesh=MeshConfig(fsdp=128, tensor=16),
        published_hardware='16,384 H100')}


def make_llama3_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=8000, schedule='cosine', horizon=1_200_000, floor=0.01, b2=0.95,
      eps=1e-8, bias_correction=True, weight_decay=0.1)
  text = TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='llama', objective=CausalLM(isolated=True), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=text, assembly='packed'),
      train=TrainConfig(phases=LLAMA3_PHASES, accumulate=row.accumulate))


LLAMA3 = RecipeFamily('llama3', LLAMA3_DESCRIPTION, LLAMA3_SIZES, make_llama3_run)
