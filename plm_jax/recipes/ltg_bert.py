"""LTG-BERT for BabyLM (Samuel et al. 2023; Samuel 2023; released babylm/train/train.py).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ltg_bert_strict
    python -m plm_jax train ltg_bert_strict --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train ltg_bert_strict_small --data.path=gs://BUCKET/records
    python -m plm_jax train ltg_bert_strict --scale=laptop                  # 2 CPU cores: 3 minutes
    python -m plm_jax train ltg_bert_strict --scale=test                    # seconds

strict is the base model for the track of 100 million words, and strict_small the small model for
the track of 10 million. TEXT is the text of the track; training takes many epochs of it.

15,625 updates with LAMB, with batch size 32,768 at sequence length 128, and for the last tenth
8,192 at length 512: as many tokens as BERT in half of the steps at each length. A tenth of the
sequences is cut to a random length. Spans of tokens are masked, of three tokens on average, 15% in
all. Each span as a whole becomes [MASK] (80%), random tokens (10%), or stays (dataset.py,
SpanMaskingStrategy; there the number of masked tokens is binomial, and spans may overlap). The
learning rate of 0.01 warms up over 1.6% of the run and falls along a cosine to a tenth. All layers
have dropout, and the weight decay is 0.1.

BabyLM evaluates minimal pairs (BLiMP and its supplement, in JSON Lines) and fine-tuning on GLUE:

    python -m plm_jax minimal-pairs runs/ltg_bert_strict 'blimp/*.jsonl' --page=blimp.html
    python -m plm_jax finetune --init=runs/ltg_bert_strict --task=cola
"""

from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import ltg_bert
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import Lamb
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

STEPS = 15_625
WARMUP = STEPS * 16 // 1000
LONG = STEPS // 10
"""updates at the end with sequences that are four times as long"""
SPANS = tuple((2 / 3) ** number / (3 * (1 - (2 / 3) ** 9)) for number in range(9))
"""probabilities of spans of 1 to 9 tokens: a truncated geometric distribution"""
SIZES = {
    # Parameters of the released Bert, by babylm/configs/base.json and small.json; published as 98M.
    'strict': RecipeSize(
        model=ltg_bert.base, parameters=98_229_760, peak=1e-2, length=512, batch=32_768,
        accumulate=8, pod='v5e:8x8'),
    'strict_small': RecipeSize(
        model=ltg_bert.small, parameters=27_741_952, peak=1e-2, length=512, batch=32_768,
        accumulate=16, pod='v5e:8x8')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = Lamb(
      peak=row.peak, warmup=WARMUP, schedule='cosine', floor=0.1, b2=0.98,
      bias_correction=True, weight_decay=0.1, clip=2.0,
      exempt=('bias', 'scale', 'tokens', 'relative'))
  phases = Phase(STEPS - LONG, 128, row.batch), Phase(LONG, 512, row.batch // 4)
  return PretrainRun(
      row.name, family='ltgbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), optim=optim,
      objective=MaskedLM(pair=Single(short=0.1), masking=Distinct(lengths=SPANS, replaced='span')),
      data=DataConfig(prepare=TextConfig(lowercase=False)),
      train=TrainConfig(phases=phases, accumulate=row.accumulate))


LTG_BERT = RecipeFamily('ltg_bert', __doc__, SIZES, make_run)
