"""GPT, as published (Radford et al. 2018, section 4.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt_base
    python -m plm_jax train gpt_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips, or more
    python -m plm_jax train gpt_base --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt_base --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt_base --scale=test                       # seconds

12 layers of 768 on BooksCorpus, norms behind sublayers: 100 epochs in batches of 64 rows of 512 tokens, which for its
billion tokens are three million steps. The paper's text runs on from row to row without a sign; here a row begins with
_start_, and _delimiter_ ends a document. Its decay of 0.01 is decoupled from Adam's gradient, as in the released
optimizer.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import gpt
from plm_jax.objectives.clm import CausalLM
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' OpenAIGPTLMHeadModel.
    'base': Size(model=gpt.base, parameters=116_534_784, peak=2.5e-4, steps=3_000_000, batch=64, pod='v3:4x4',
                 mesh=MeshConfig(fsdp=32))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  # The first 2000 updates rise, and a cosine falls to 0 as in the released code.
  optim = OptimConfig(peak=row.peak, warmup=2000, schedule='gpt1', eps=1e-8, bias_correction=True)
  return scaled(Experiment(
      f'gpt_{size}', family='openai-gpt', model=row.model('bfloat16'), objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='word-bpe'), assembly='packed'), optim=optim, train=row.train()), scale)
