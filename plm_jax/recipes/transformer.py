"""The Transformer (Vaswani et al. 2017), for translation.

    python -m plm_jax train transformer_base \\
        --data.path=task:columns-en-de:train.tsv.gz  # 4 TPU v3 chips
    python -m plm_jax train transformer_base --scale=laptop --data.path=task:columns-de-en:train.tsv
    python -m plm_jax train transformer_base --scale=test --data.path=task:columns-de-en:train.tsv
    python -m plm_jax text-to-text runs/transformer_base task:columns-en-de:test.tsv --beams=4 \\
        --length-penalty=0.6

The default data is WMT 2014, English to German, from TFDS; columns-A-B is any other pair of texts,
in .tsv or .jsonl. 100,000 steps (big: 300,000) with about 25,000 tokens on each side (section 5.1):
batch size 96 at sequence length 256, packed with as many sentences as fit. Label smoothing is 0.1.

Differences: the vocabulary is a unigram model, not byte pairs, because transformers has no BPE
tokenizer without bytes. The last 5 checkpoints (big: 20; section 6.1) are averaged only on demand:
--train.keep=5, then `export RUN OUT --average=5`. Norms have an epsilon of 1e-5, which is fixed in
transformers' Marian; otherwise no run could be exported. tensor2tensor has 1e-6
(layers/common_hparams.py, norm_epsilon): give --model.block.norm.eps=1e-6 to follow it.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import transformer
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.recipes.t5 import TEXT


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerSize(RecipeSize):
  """A size with its dropout rate (table 3)."""

  dropout: float


SIZES = {
    # Published as 65M and 213M (table 3). Section 5.3: the learning rate is D^-0.5 times the
    # inverse square root of the step, after the warmup.
    'base': TransformerSize(
        model=transformer.base, parameters=63_082_496, peak=(512 * 4000) ** -0.5, steps=100_000,
        length=256, batch=96, dropout=0.1, pod='v3:2x2', published_hardware='8 P100, 12 hours'),
    'big': TransformerSize(
        model=transformer.big, parameters=214_245_376, peak=(1024 * 4000) ** -0.5, steps=300_000,
        length=256, batch=96, dropout=0.3, pod='v3:4x4', published_hardware='8 P100, 3.5 days')}


def make_run(row: TransformerSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-9, bias_correction=True,
      weight_decay=0.0, clip=0.0)
  data = DataConfig(
      path=('task:columns-en-de:tfds:wmt14_translate/de-en',), prepare=TEXT, assembly='examples')
  return PretrainRun(
      row.name, family='marian',
      model=row.make_model(dropout=row.dropout, attention_dropout=0.0),
      objective=TextToText(decoder_length=256, smoothing=0.1), data=data, optim=optim,
      train=row.make_train_config())


TRANSFORMER = RecipeFamily('transformer', __doc__, SIZES, make_run)
