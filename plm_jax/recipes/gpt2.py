"""GPT-2 (Radford et al. 2019).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt2_small
    python -m plm_jax train gpt2_small --data.path=gs://BUCKET/records    # 64 TPU v3 chips, or more
    python -m plm_jax train gpt2_small --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt2_small --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt2_small --scale=test                       # seconds

A causal language model with batch size 512 and sequence length 1,024 on WebText, 8 million
documents or 40 GB. Tokens attend to everything before them in the sequence, across documents. The
paper gives neither the number of steps nor the learning rate, which was tuned for each size. The
peak learning rate, warmup, cosine and other Adam settings are those of GPT-3 of the same size
(Brown et al. 2020, table 2.1 and appendix B), for 262 billion tokens.

chinese is small on Chinese text for 100,000 steps, with a SentencePiece vocabulary trained on that
text, which has LLaMA's special tokens and bytes. Documents in one sequence do not attend to each
other. For a text with one paragraph per line and an empty line between documents:

    python -m plm_jax train gpt2_chinese --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.documents=blank-lines
    python -m plm_jax train gpt2_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000 \\
        --data.prepare.documents=blank-lines

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it. Every
character has tokens: byte-level BPE and LLaMA's SentencePiece give the text back unchanged.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import gpt2
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes import llama
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize


def chinese_small(dtype):
  """Make GPT-2 small with 50,000 tokens, and 48 more such that devices can share the embeddings."""
  return dataclasses.replace(gpt2.small(dtype), vocab=50_048)


# Parameters of transformers' GPT2LMHeadModel. Peak learning rates: Brown et al. 2020, table 2.1.
SIZES = {
    'small': RecipeSize(
        model=gpt2.small, parameters=124_439_808, peak=6e-4, steps=500_000, length=1024, batch=512,
        pod='v3:8x8'),
    'medium': RecipeSize(
        model=gpt2.medium, parameters=354_823_168, peak=3e-4, steps=500_000, length=1024, batch=512,
        pod='v3:16x16'),
    'large': RecipeSize(
        model=gpt2.large, parameters=774_030_080, peak=2.5e-4, steps=500_000, length=1024,
        batch=512, accumulate=2, pod='v3:8x16'),
    'xl': RecipeSize(
        model=gpt2.xl, parameters=1_557_611_200, peak=2e-4, steps=500_000, length=1024, batch=512,
        accumulate=2, pod='v3:8x16'),
    'chinese': RecipeSize(
        model=chinese_small, parameters=124_279_296, peak=6e-4, steps=100_000, length=1024,
        batch=512, pod='v3:8x8', laptop_vocab=8000)}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='byte-bpe', layout='gpt2', sentences='none')
  chinese = row.name == 'gpt2_chinese'
  if chinese:
    text = llama.TEXT
  # The warmup of 375 million tokens is 715 updates with batch size 512 at sequence length 1,024.
  optim = AdamW(
      peak=row.peak, warmup=715, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family='gpt2', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=CausalLM(isolated=chinese),
      data=DataConfig(prepare=text, assembly='packed'), optim=optim,
      train=row.make_train_config())


GPT2 = RecipeFamily('gpt2', __doc__, SIZES, make_run)
