"""MPNet (Song et al. 2020, arXiv:2004.09297): masked and permuted pre-training (section 3.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mpnet_base
    python -m plm_jax train mpnet_base --data.path=gs://BUCKET/records    # 256 TPU v3 chips
    python -m plm_jax train mpnet_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train mpnet_base --scale=test                       # seconds

500,000 steps with batch size 8,192 at sequence length 512, on the 160 GB of text of RoBERTa. 15% of
the tokens are predicted, in random order and as whole words; the encoder has T5's relative position
bias. From README.md of microsoft/MPNet: sequences are filled with whole sentences, across document
boundaries; Adam's second beta is 0.98, weight decay is 0.01, and gradients are not clipped.

Not verified against the paper: the peak learning rate and the warmup, which are those of RoBERTa
base (Liu et al. 2019, table 9). The command in README.md, a shorter run on less text, has 5e-4 and
10,000 steps.

Differences: the released code ends every line with </s>; here </s> separates documents. Padding is
neither predicted nor attended to. The published vocabulary is that of uncased BERT with RoBERTa's
special tokens: give the released tokenizer with --tokenizer to `prepare`. A new one is byte-level
BPE, because padding has the id 1 in this model.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import mpnet
from plm_jax.objectives.masked_permuted import MaskedPermutedLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

SIZES = {
    # Parameters of transformers' MPNetForMaskedLM; published as 110M (section 3.1).
    'base': RecipeSize(
        model=mpnet.base, parameters=109_518_527, peak=6e-4, steps=500_000, length=512, batch=8192,
        pod='v3:16x16', published_hardware='32 V100, 35 days')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=24_000, schedule='linear', b2=0.98, bias_correction=True,
      weight_decay=0.01, clip=0.0, exempt=())
  return PretrainRun(
      row.name, family='mpnet', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedPermutedLM(),
      data=DataConfig(
          prepare=TextConfig(kind='byte-bpe', lowercase=False), assembly='sentences'),
      optim=optim, train=row.make_train_config())


MPNET = RecipeFamily('mpnet', __doc__, SIZES, make_run)
