"""LLaMA 3 (Dubey et al. 2024, arXiv:2407.21783, sections 3.2 to 3.4).

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

from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

# 252 million tokens in batches of 4 million, up to 2.87 trillion in batches of 8 million, and up to
# 15.6 trillion in batches of 16 million.
PHASES = (Phase(60, 4096, 1024), Phase(342_101, 8192, 1024), Phase(758_767, 8192, 2048))
# Parameters of transformers' LlamaForCausalLM; published as 8B, 70B, 405B. Peak learning rates:
# table 3.
SIZES = {
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


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=8000, schedule='cosine', horizon=1_200_000, floor=0.01, b2=0.95,
      eps=1e-8, bias_correction=True, weight_decay=0.1)
  text = TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='llama', objective=CausalLM(isolated=True), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=text, assembly='packed'),
      train=TrainConfig(phases=PHASES, accumulate=row.accumulate))


LLAMA3 = RecipeFamily('llama3', __doc__, SIZES, make_run)
