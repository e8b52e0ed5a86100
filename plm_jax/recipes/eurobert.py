"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500, section 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=eurobert_210m
    python -m plm_jax train eurobert_210m --data.path=gs://BUCKET/records   # 64 TPU v5e chips
    python -m plm_jax train eurobert_210m_anneal --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train eurobert_210m --scale=laptop                    # 2 CPU cores: 3 minutes
    python -m plm_jax train eurobert_210m --scale=test                      # seconds

An encoder with LLaMA's layers and LLaMA 3's vocabulary, for 15 languages, mathematics and code. Two
runs; the second starts from the first:

- 210m, 610m, 2b: 4.8 trillion tokens at sequence length 2,048. 50% of the tokens are masked, and
  all of these become the mask token. The learning rate warms up for 2,000 updates and then stays
  constant. The base of the rotary positions is 10,000.
- 210m_anneal, 610m_anneal, 2b_anneal: 200 billion tokens of better text, 10% masked. The learning
  rate falls to 0 along a cosine. Sequences have random lengths of up to 8,192 tokens, and the base
  of the rotary positions becomes 250,000.

AdamW with betas 0.9 and 0.95, epsilon 1e-5, weight decay 0.1 of all parameters, gradient clipping
at 1: defaults of optimus/trainer/configuration/train.py in Nicolas-BZRD/EuroBERT. Sequences are
pieces of the concatenated documents, which attend to each other (dataprocess/pack_dataset.py).

Assumption: the batch size is not in these files (docs/trainer.md: 12 sequences per GPU, on an
unstated number of GPUs). Here it is four million tokens for every size.
Not verified against the paper: mask rates and token counts (from summaries), warmup, cosine decay
and random lengths. Check them before a full run.

Differences: in annealing, a sequence is a part of one document, and about half of each batch is
padding. Use the released tokenizer with --tokenizer; a new one is byte-level BPE, too, with
other special tokens. The shares of the languages are those of --data.weights.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
import dataclasses
from typing import Any

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.layers.rope import Rope
from plm_jax.models import eurobert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

FIRST: dict[str, Any] = dict(peak=1e-4, steps=1_144_409, length=2048, batch=2048)
# A sequence has 4,096 tokens on average.
ANNEAL: dict[str, Any] = dict(steps=47_684, length=8192, batch=1024)
# Parameters of transformers' EuroBertModel; published as 210M, 610M and 2.1B (table 1).
SMALL = RecipeSize(
    model=eurobert.eurobert_210m, parameters=211_766_016, accumulate=16, pod='v5e:8x8', **FIRST)
MEDIUM = RecipeSize(
    model=eurobert.eurobert_610m, parameters=607_874_688, accumulate=16, pod='v5e:8x16', **FIRST)
LARGE = RecipeSize(
    model=eurobert.eurobert_2b, parameters=2_107_590_912, accumulate=8, pod='v5e:16x16',
    mesh=MeshConfig(fsdp=32), **FIRST)
SIZES = {
    '210m': SMALL,
    '610m': MEDIUM,
    '2b': LARGE,
    '210m_anneal': dataclasses.replace(SMALL, **ANNEAL),
    '610m_anneal': dataclasses.replace(MEDIUM, **ANNEAL, accumulate=8),
    '2b_anneal': dataclasses.replace(
        LARGE, **ANNEAL, accumulate=8, mesh=MeshConfig(fsdp=32, tensor=2))}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='constant', b2=0.95, eps=1e-5, bias_correction=True,
      weight_decay=0.1, exempt=())
  pair, assembly, mask_rate, theta = FullSentences(), 'packed', 0.5, 10_000.0
  if row.name.endswith('_anneal'):
    optim = dataclasses.replace(optim, warmup=0, schedule='cosine')
    pair, assembly, mask_rate, theta = Single(short=1.0), 'document', 0.1, 250_000.0
  model = validation.with_paths(row.make_model(dropout=0.0, attention_dropout=0.0), {
      'block.attention.position': Rope(theta)})
  text = TextConfig(kind='byte-bpe', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='eurobert', model=model, optim=optim,
      objective=MaskedLM(pair=pair, mask_rate=mask_rate, mask_share=1.0, random_share=0.0),
      data=DataConfig(prepare=text, assembly=assembly), train=row.make_train_config())


EUROBERT = RecipeFamily('eurobert', __doc__, SIZES, make_run)
