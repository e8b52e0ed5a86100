"""LTG-BERT on 10 and 100 million words: BabyLM (Samuel et al. 2023; Samuel 2023; released babylm/train/train.py).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ltg_bert_strict
    python -m plm_jax train ltg_bert_strict --data.path=gs://BUCKET/records       # 64 TPU v5e chips
    python -m plm_jax train ltg_bert_strict_small --data.path=gs://BUCKET/records
    python -m plm_jax train ltg_bert_strict --scale=laptop                        # 2 CPU cores: 3 minutes
    python -m plm_jax train ltg_bert_strict --scale=test                          # seconds

strict is base, for the track of 100 million words, strict_small is small, for that of 10 million; TEXT is the track's,
many epochs of it. 15,625 updates with LAMB of 32,768 rows of 128 tokens, and for the last tenth of 8,192 rows of 512:
as many tokens as BERT, half as long. Spans of tokens are masked, of three on average, 15% in all. A rate of 0.01 rises
over 1.6% of the run and falls along a cosine to a tenth. Dropout is in all layers, and there is a weight decay of 0.1.

What BabyLM asks of a model, minimal pairs (BLiMP and its supplement, files of JSON lines) and fine-tuning on GLUE:

    python -m plm_jax minimal-pairs runs/ltg_bert_strict 'blimp/*.jsonl' --page=blimp.html
    python -m plm_jax finetune --init=runs/ltg_bert_strict --task=cola
"""
import dataclasses

from plm_jax.config import Experiment, Phase, Scale, TrainConfig
from plm_jax.data.settings import TextConfig
from plm_jax.models import ltg_bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

STEPS = 15_625
WARMUP = STEPS * 16 // 1000
LONG = STEPS // 10
"""updates at the end with rows that are four times as long"""
SPANS = tuple((2 / 3) ** number / (3 * (1 - (2 / 3) ** 9)) for number in range(9))
"""probabilities of 1 to 9 tokens: a geometric distribution, cut"""
SIZES = {
    # Parameters by the released Bert of babylm/configs/base.json and small.json; published as 98M.
    'strict': Size(model=ltg_bert.base, parameters=98_229_760, peak=1e-2, length=512, batch=32_768, accumulate=8,
                   pod='v5e:8x8'),
    'strict_small': Size(model=ltg_bert.small, parameters=27_741_952, peak=1e-2, length=512, batch=32_768, accumulate=4,
                         pod='v5e:8x8')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      kind='lamb', peak=row.peak, warmup=WARMUP, schedule='cosine', floor=0.1, b2=0.98, weight_decay=0.1, clip=2.0,
      exempt=('bias', 'scale', 'tokens', 'relative'))
  run = Experiment(
      f'ltg_bert_{size}', family='ltgbert', model=row.model('bfloat16'), optim=optim,
      objective=MaskedLM(pair=Single(), lengths=SPANS),
      train=TrainConfig(phases=(Phase(STEPS - LONG, 128, row.batch), Phase(LONG, 512, row.batch // 4)),
                        accumulate=row.accumulate))
  text = TextConfig(lowercase=False)
  return scaled(dataclasses.replace(run, data=dataclasses.replace(run.data, prepare=text)), scale)
