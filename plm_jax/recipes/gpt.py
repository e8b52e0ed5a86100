"""GPT, as published (Radford et al. 2018, section 4.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt_base
    python -m plm_jax train gpt_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips, or more
    python -m plm_jax train gpt_base --scale=laptop                       # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt_base --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt_base --scale=test                         # seconds

A causal language model with 12 layers of width 768 and post-norm, on BooksCorpus: 100 epochs with
batch size 64 at sequence length 512. For its billion tokens these are three million steps. The
paper's text continues from sequence to sequence without a separator. Here a sequence begins with
_start_, and _delimiter_ ends a document. The weight decay of 0.01 is decoupled from Adam's
gradient, as in the released optimizer.

The published model normalized its text: spaCy divided it into words, and these became lower case.
Here the tokenizer ignores white space and accents, too, so blank lines and indentation are left
out.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import gpt
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

SIZES = {
    # Parameters of transformers' OpenAIGPTLMHeadModel.
    'base': RecipeSize(
        model=gpt.base, parameters=116_534_784, peak=2.5e-4, steps=3_000_000, length=512, batch=64,
        pod='v3:4x4', mesh=MeshConfig(fsdp=32))}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  # Warmup over the first 2,000 updates, and a cosine to 0, as in the released code.
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='gpt1', eps=1e-8, bias_correction=True,
      weight_decay=0.01)
  return PretrainRun(
      row.name, family='openai-gpt', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='word-bpe'), assembly='packed'), optim=optim,
      train=row.make_train_config())


GPT = RecipeFamily('gpt', __doc__, SIZES, make_run)
