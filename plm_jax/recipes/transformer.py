"""The Transformer (Vaswani et al. 2017), for translation.

    python -m plm_jax train transformer_base --data.path=task:columns-en-de:train.tsv.gz    # 4 TPU v3 chips
    python -m plm_jax train transformer_base --scale=laptop --data.path=task:columns-de-en:train.tsv
    python -m plm_jax train transformer_base --scale=test --data.path=task:columns-de-en:train.tsv
    python -m plm_jax text-to-text runs/transformer_base task:columns-en-de:test.tsv --beams=4 --length-penalty=0.6

WMT 2014, English to German, by default as TFDS has it; columns-A-B is any other pair of texts, in .tsv or .jsonl.
100,000 steps (big: 300,000) of about 25,000 tokens on each side (section 5.1): 96 rows of 256, which hold as many
sentences as fit; labels are smoothed by 0.1. Pieces are a unigram model's, not byte pairs, for which transformers has
no tokenizer without bytes; the last checkpoints are not averaged; and norms have an epsilon of 1e-5, which
transformers' Marian has without a setting, where tensor2tensor has 1e-6: else no run could be exported.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.models import transformer
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.recipes.t5 import TEXT
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Published as 65M and 213M (table 3). Section 5.3: a rate of D^-0.5 at most, over the root of the steps.
    'base': Size(model=transformer.base, parameters=63_082_496, peak=(512 * 4000) ** -0.5, steps=100_000, length=256,
                 batch=96, pod='v3:2x2', took='8 P100, 12 hours'),
    'big': Size(model=transformer.big, parameters=214_245_376, peak=(1024 * 4000) ** -0.5, steps=300_000, length=256,
                batch=96, pod='v3:4x4', took='8 P100, 3.5 days')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-9, bias_correction=True, weight_decay=0.0,
      clip=0.0)
  return scaled(Experiment(
      f'transformer_{size}', family='marian', model=row.model('bfloat16'),
      objective=TextToText(decoder_length=256, smoothing=0.1),
      data=DataConfig(path=('task:columns-en-de:tfds:wmt14_translate/de-en',), prepare=TEXT, assembly='examples'),
      optim=optim, train=row.train()), scale)
