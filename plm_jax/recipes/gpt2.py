"""GPT-2 (Radford et al. 2019).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt2_small
    python -m plm_jax train gpt2_small --data.path=gs://BUCKET/records    # 64 TPU v3 chips, or more
    python -m plm_jax train gpt2_small --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt2_small --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt2_small --scale=test                       # seconds

Batches of 512 rows of 1,024 tokens of WebText, 8 million documents or 40 GB, that see what precedes them in the row,
whatever document it is of. The paper tells neither steps nor learning rate, which was tuned for each size: peak,
warmup, cosine and the other settings of Adam are those of GPT-3 of this size (Brown et al. 2020, table 2.1 and appendix
B), for 262 billion tokens. chinese is small on Chinese text, with a SentencePiece vocabulary trained on it, in 100,000
steps; documents in one row do not see each other. Its path has one paragraph a line and an empty line between
documents:

    python -m plm_jax train gpt2_chinese --scale=laptop --data.path=zhwiki.txt
    python -m plm_jax train gpt2_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import gpt2
from plm_jax.objectives.clm import CausalLM
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def chinese(dtype):
  """Makes GPT-2 small with 50,000 pieces, and 48 more for rows of a table that devices share."""
  return dataclasses.replace(gpt2.small(dtype), vocab=50_048)


# Parameters by transformers' GPT2LMHeadModel. Peaks: Brown et al. 2020, table 2.1.
SIZES = {
    'small': Size(model=gpt2.small, parameters=124_439_808, peak=6e-4, steps=500_000, length=1024, batch=512,
                  pod='v3:8x8'),
    'medium': Size(model=gpt2.medium, parameters=354_823_168, peak=3e-4, steps=500_000, length=1024, batch=512,
                   pod='v3:16x16'),
    'large': Size(model=gpt2.large, parameters=774_030_080, peak=2.5e-4, steps=500_000, length=1024, batch=512,
                  accumulate=2, pod='v3:8x16'),
    'xl': Size(model=gpt2.xl, parameters=1_557_611_200, peak=2e-4, steps=500_000, length=1024, batch=512, accumulate=2,
               pod='v3:8x16'),
    'chinese': Size(model=chinese, parameters=124_279_296, peak=6e-4, steps=100_000, length=1024, batch=512,
                    pod='v3:8x8')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  text = TextConfig(kind='byte-bpe', layout='gpt2', newlines=True)
  if size == 'chinese':
    text = TextConfig(kind='sentencepiece-unigram')
  # 375 million tokens of warmup are 715 updates of 512 rows of 1,024.
  optim = OptimConfig(
      peak=row.peak, warmup=715, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8, bias_correction=True,
      weight_decay=0.1)
  run = scaled(Experiment(
      f'gpt2_{size}', family='gpt2', model=row.model('bfloat16'), objective=CausalLM(isolated=size == 'chinese'),
      data=DataConfig(prepare=text, assembly='packed'), optim=optim, train=row.train()), scale)
  if size == 'chinese' and scale == 'laptop':  # of Chinese, 6,500 characters are 99.95% of the text
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=8000))
  return run
